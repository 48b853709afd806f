//! Rules that choose what is accelerated: the first that matches a listener, or a connection, decides; where none does, it
//! is accelerated. `overfly run` reads them from profiles and puts them into the environment, where the library finds them.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

/// The environment variable that holds the rules, with `;` between them.
pub const ENVIRONMENT: &str = "OVERFLY_RULES";

/// How a rule is written.
const SYNTAX: &str =
    "accelerate|kernel listen|connect|any [program NAME] [port LOW[-HIGH]] [address ADDRESS[/LENGTH]]";

/// Which end of a connection this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It waits at a port: listen(), and UDP sockets that are bound.
    Listen,
    /// It chooses its peer: connect().
    Connect,
}

/// Addresses that have their first bits in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor ADDRESS/LENGTH");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        if length > most {
            return Err(format!("`{text}` has more than {most} bits"));
        }
        Ok(Self { address, length })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let differ = |difference: u128, bits: u32| difference.checked_shr(bits - u32::from(self.length));
        let difference = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => differ(u128::from(own.to_bits() ^ other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => differ(own.to_bits() ^ other.to_bits(), 128),
            _ => return false,
        };
        difference.unwrap_or(0) == 0
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    accelerates: bool,
    /// `None`: both.
    direction: Option<Direction>,
    program: Option<String>,
    ports: Option<RangeInclusive<u16>>,
    addresses: Option<Prefix>,
}

impl Rule {
    /// Reads the words after `overfly_rule`.
    ///
    /// # Errors
    /// Says which word is wrong, and what was expected.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let [verdict, direction, conditions @ ..] = words else {
            return Err(format!("expected {SYNTAX}"));
        };
        let mut rule = Self {
            accelerates: match *verdict {
                "accelerate" => true,
                "kernel" => false,
                other => return Err(format!("`{other}`: expected accelerate or kernel")),
            },
            direction: match *direction {
                "listen" => Some(Direction::Listen),
                "connect" => Some(Direction::Connect),
                "any" => None,
                other => return Err(format!("`{other}`: expected listen, connect or any")),
            },
            program: None,
            ports: None,
            addresses: None,
        };
        for condition in conditions.chunks(2) {
            match *condition {
                ["program", name] if rule.program.is_none() => {
                    if name.is_empty() || name.contains([' ', ';', '/']) {
                        return Err(format!("`{name}`: expected a program's name without its folder"));
                    }
                    rule.program = Some(name.to_owned());
                }
                ["port", range] if rule.ports.is_none() => rule.ports = Some(parse_ports(range)?),
                ["address", prefix] if rule.addresses.is_none() => {
                    rule.addresses = Some(Prefix::parse(prefix)?);
                }
                [condition, ..] => {
                    return Err(format!("`{condition}`: expected {SYNTAX}, each condition once"));
                }
                [] => {}
            }
        }
        Ok(rule)
    }

    fn matches(&self, direction: Direction, programs: &[String], address: SocketAddr) -> bool {
        self.direction.is_none_or(|its| its == direction)
            && self.program.as_ref().is_none_or(|its| programs.contains(its))
            && self.ports.as_ref().is_none_or(|its| its.contains(&address.port()))
            && self.addresses.is_none_or(|its| its.contains(address.ip().to_canonical()))
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.parse::<u16>(), high.parse::<u16>()) {
        (Ok(low), Ok(high)) if 0 < low && low <= high => Ok(low..=high),
        _ => Err(format!("`{text}`: expected a port from 1 to 65535, or LOW-HIGH")),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.accelerates { "accelerate" } else { "kernel" })?;
        f.write_str(match self.direction {
            Some(Direction::Listen) => " listen",
            Some(Direction::Connect) => " connect",
            None => " any",
        })?;
        if let Some(program) = &self.program {
            write!(f, " program {program}")?;
        }
        if let Some(ports) = &self.ports {
            write!(f, " port {}-{}", ports.start(), ports.end())?;
        }
        if let Some(Prefix { address, length }) = self.addresses {
            write!(f, " address {address}/{length}")?;
        }
        Ok(())
    }
}

/// The rules of a process, and the names that its program goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    programs: Vec<String>,
}

impl Rules {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: Vec::new(), programs: Vec::new() }
    }

    /// Reads the value of [`ENVIRONMENT`] for a program with these names.
    ///
    /// # Errors
    /// Says which rule is wrong.
    pub fn parse(text: &str, programs: Vec<String>) -> Result<Self, String> {
        let rules = text
            .split(';')
            .map(|rule| rule.split_ascii_whitespace().collect::<Vec<_>>())
            .filter(|words| !words.is_empty())
            .map(|words| Rule::parse(&words).map_err(|error| format!("rule `{}`: {error}", words.join(" "))))
            .collect::<Result<_, _>>()?;
        Ok(Self { rules, programs })
    }

    /// Whether a listener at `address`, or a connection to it, may be accelerated.
    #[must_use]
    pub fn accelerate(&self, direction: Direction, address: SocketAddr) -> bool {
        self.rules
            .iter()
            .find(|rule| rule.matches(direction, &self.programs, address))
            .is_none_or(|rule| rule.accelerates)
    }
}

/// The value of [`ENVIRONMENT`] for these rules.
#[must_use]
pub fn environment(rules: &[Rule]) -> String {
    rules.iter().map(Rule::to_string).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<Rule, String> {
        Rule::parse(&text.split_ascii_whitespace().collect::<Vec<_>>())
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_rule_is_written_as_it_was_read() {
        for text in [
            "accelerate any",
            "kernel listen port 22-22",
            "kernel connect program curl port 80-443 address 10.0.0.0/8",
            "accelerate any address fd00::/8",
        ] {
            assert_eq!(rule(text).unwrap().to_string(), text);
        }
        assert_eq!(rule("kernel any port 53 address ::1"), rule("kernel any port 53-53 address ::1/128"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("", "accelerate|kernel"),
            ("refuse any", "`refuse`"),
            ("kernel both", "`both`"),
            ("kernel any port", "`port`"),
            ("kernel any port 0", "`0`"),
            ("kernel any port 9-8", "`9-8`"),
            ("kernel any port 80 port 81", "`port`"),
            ("kernel any program /bin/sh", "`/bin/sh`"),
            ("kernel any address 10.0.0.0/33", "32 bits"),
            ("kernel any address ten", "`ten`"),
            ("kernel any user root", "`user`"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let text = environment(&[
            rule("accelerate listen port 8080").unwrap(),
            rule("kernel listen port 8000-8999").unwrap(),
            rule("kernel connect address 10.1.0.0/16").unwrap(),
            rule("kernel any program curl").unwrap(),
        ]);
        let rules = Rules::parse(&text, vec!["nginx".to_owned()]).unwrap();
        assert!(rules.accelerate(Direction::Listen, at("0.0.0.0:8080")));
        assert!(!rules.accelerate(Direction::Listen, at("0.0.0.0:8081")));
        assert!(rules.accelerate(Direction::Connect, at("10.2.0.1:8081")));
        assert!(!rules.accelerate(Direction::Connect, at("10.1.255.255:1")));
        assert!(!rules.accelerate(Direction::Connect, at("[::ffff:10.1.0.1]:1")));
        assert!(rules.accelerate(Direction::Connect, at("[fd00::1]:1")));
        let curl = Rules::parse(&text, vec!["curl".to_owned()]).unwrap();
        assert!(!curl.accelerate(Direction::Connect, at("10.2.0.1:8081")));
        assert!(Rules::new().accelerate(Direction::Listen, at("0.0.0.0:1")));
        assert!(Rules::parse("kernel any;nothing", Vec::new()).is_err());
    }

    #[test]
    fn a_prefix_of_no_bits_holds_every_address_of_its_family() {
        let rules = Rules::parse("kernel any address 0.0.0.0/0;kernel any address ::/0 port 9", Vec::new());
        let rules = rules.unwrap();
        assert!(!rules.accelerate(Direction::Connect, at("255.1.2.3:9")));
        assert!(rules.accelerate(Direction::Connect, at("[fd00::1]:8")));
        assert!(!rules.accelerate(Direction::Connect, at("[fd00::1]:9")));
    }
}
