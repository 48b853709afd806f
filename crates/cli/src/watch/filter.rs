//! Which frames `overfly dump` keeps: `host ADDRESS`, `port NUMBER`, `tcp`, `udp`, with `and` between them.

use std::net::IpAddr;

use overfly_wire::{ethernet, ipv4, ipv6};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Host(IpAddr),
    Port(u16),
    Protocol(u8),
}

/// All of its conditions must hold; none keeps everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter(Vec<Condition>);

/// What of a frame a filter looks at.
struct Ends {
    addresses: [IpAddr; 2],
    protocol: u8,
    ports: Option<[u16; 2]>,
}

impl std::str::FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Filter, String> {
        let mut conditions = Vec::new();
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            conditions.push(match word {
                "and" if !conditions.is_empty() => continue,
                "tcp" => Condition::Protocol(ipv4::PROTOCOL_TCP),
                "udp" => Condition::Protocol(ipv4::PROTOCOL_UDP),
                "host" => {
                    let address = words.next().and_then(|word| word.parse().ok());
                    Condition::Host(address.ok_or("`host` is followed by an IP address")?)
                }
                "port" => {
                    let port = words.next().and_then(|word| word.parse().ok());
                    Condition::Port(port.ok_or("`port` is followed by a number up to 65535")?)
                }
                other => {
                    return Err(format!(
                        "`{other}`: expected `host ADDRESS`, `port NUMBER`, `tcp` or `udp`, with `and` between them"
                    ));
                }
            });
        }
        Ok(Filter(conditions))
    }
}

impl Filter {
    /// Whether a frame, of which the beginning is there, is kept.
    pub(super) fn keeps(&self, frame: &[u8]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(ends) = ends(frame) else { return false };
        self.0.iter().all(|condition| match *condition {
            Condition::Host(address) => ends.addresses.contains(&address),
            Condition::Port(port) => ends.ports.is_some_and(|ports| ports.contains(&port)),
            Condition::Protocol(protocol) => ends.protocol == protocol,
        })
    }
}

/// Looks at the headers only: the frame may have been cut.
fn ends(frame: &[u8]) -> Option<Ends> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let bytes = |range: std::ops::Range<usize>| packet.get(range);
    let (addresses, protocol, header_len) = match packet.first()? >> 4 {
        4 => {
            let address = |at: usize| {
                let bytes: [u8; 4] = bytes(at..at + 4)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            };
            ([address(12)?, address(16)?], *packet.get(9)?, usize::from(packet[0] & 15) * 4)
        }
        6 => {
            let address = |at: usize| {
                let bytes: [u8; 16] = bytes(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            };
            ([address(8)?, address(24)?], *packet.get(6)?, ipv6::HEADER_LEN)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(bytes(at..at + 2)?.try_into().ok()?));
    let has_ports = matches!(protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP);
    let ports = if has_ports { port(header_len).zip(port(header_len + 2)) } else { None };
    Some(Ends { addresses, protocol, ports: ports.map(|(from, to)| [from, to]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of a TCP segment from 10.0.0.1:80 to 10.0.0.2:4000.
    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 80, 0x0f, 0xa0, 0, 0]);
        frame
    }

    #[test]
    fn all_conditions_must_hold() {
        for (filter, keeps) in [
            ("", true),
            ("tcp", true),
            ("udp", false),
            ("port 80", true),
            ("host 10.0.0.2 and port 4000 and tcp", true),
            ("host 10.0.0.2 and port 4001", false),
            ("host fd00::1", false),
        ] {
            assert_eq!(filter.parse::<Filter>().unwrap().keeps(&frame()), keeps, "{filter}");
        }
        assert!(!"tcp".parse::<Filter>().unwrap().keeps(&frame()[..20]), "a frame that is cut too short");
        for wrong in ["net 10.0.0.0/8", "port http", "host", "and tcp"] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
    }
}
