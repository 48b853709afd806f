//! `broker.toml`: who may have programs served by a broker, and how much of it.

use std::os::linux::fs::MetadataExt;
use std::path::Path;

use overfly_broker::service::{Applicant, Share};
use serde::Deserialize;

/// Rules, of which the first that fits counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    rules: Vec<Rule>,
}

/// Who, where, and how much.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    users: Vec<u32>,
    groups: Vec<u32>,
    cgroups: Vec<String>,
    interfaces: Vec<String>,
    stacks: u16,
}

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    rule: Vec<WrittenRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    #[serde(default)]
    users: Vec<Who>,
    #[serde(default)]
    groups: Vec<Who>,
    #[serde(default)]
    cgroups: Vec<String>,
    #[serde(default)]
    interfaces: Vec<String>,
    stacks: u16,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Who {
    Number(u32),
    Name(String),
}

/// What is wrong with a file, and at which line: a log has no room for a drawing of it.
fn in_one_line(error: &toml::de::Error, text: &str) -> String {
    let message = match error.message() {
        // Who is named: serde knows only that there are two ways.
        message if message.contains("enum Who") => "expected names in quotes, or numbers".to_owned(),
        message => message.replace('\n', ", "),
    };
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let number = before.matches('\n').count();
    let line = text.lines().nth(number).unwrap_or_default().trim();
    format!("line {}: `{line}`: {message}", number + 1)
}

impl Policy {
    /// Reads a file, which nobody may write but who the broker is.
    ///
    /// # Errors
    /// Says in words what is wrong.
    pub(crate) fn read(path: &Path) -> Result<Policy, String> {
        const OTHERS_WRITE: u32 = 0o022;
        let shown = path.display();
        let metadata = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?;
        let ours = [0, rustix::process::geteuid().as_raw()].contains(&metadata.st_uid());
        if !ours || metadata.st_mode() & OTHERS_WRITE != 0 {
            return Err(format!("{shown} can be written by others than root: chown root it, chmod go-w it"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
        let known = |database: &str| std::fs::read_to_string(database).unwrap_or_default();
        Policy::parse(&text, &known("/etc/passwd"), &known("/etc/group"))
            .map_err(|error| format!("{shown}: {error}"))
    }

    fn parse(text: &str, users: &str, groups: &str) -> Result<Policy, String> {
        let written: Written = toml::from_str(text).map_err(|error| in_one_line(&error, text))?;
        let rules = written.rule.into_iter().enumerate();
        let rules = rules.map(|(index, rule)| {
            rule.checked(users, groups).map_err(|error| format!("rule {}: {error}", index + 1))
        });
        Ok(Policy { rules: rules.collect::<Result<_, _>>()? })
    }

    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// What a program gets on an interface; `None` if no rule fits.
    pub(crate) fn share(&self, applicant: &Applicant, interface: &str) -> Option<Share> {
        let rule = self.rules.iter().position(|rule| rule.fits(applicant, interface))?;
        Some(Share { rule, stacks: self.rules[rule].stacks })
    }
}

impl WrittenRule {
    fn checked(self, users: &str, groups: &str) -> Result<Rule, String> {
        if self.users.is_empty() && self.groups.is_empty() && self.cgroups.is_empty() {
            return Err("it names nobody: users, groups or cgroups are missing".to_owned());
        }
        if self.stacks == 0 {
            return Err("stacks = 0 gives nothing: leave the rule out".to_owned());
        }
        for cgroup in &self.cgroups {
            let parts = cgroup.strip_prefix('/').ok_or(cgroup);
            if parts.is_ok_and(|parts| {
                parts.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
            }) {
                continue;
            }
            return Err(format!("cgroups: expected a path such as /system.slice/web.service, not {cgroup}"));
        }
        let number = |who: Who, database: &str, kind: &str| match who {
            Who::Number(number) => Ok(number),
            Who::Name(name) => numbered(database, &name)
                .ok_or_else(|| format!("there is no {kind} {name} in /etc: name others by their numbers")),
        };
        Ok(Rule {
            users: self.users.into_iter().map(|who| number(who, users, "user")).collect::<Result<_, _>>()?,
            groups: self
                .groups
                .into_iter()
                .map(|who| number(who, groups, "group"))
                .collect::<Result<_, _>>()?,
            cgroups: self.cgroups,
            interfaces: self.interfaces,
            stacks: self.stacks,
        })
    }
}

impl Rule {
    fn fits(&self, applicant: &Applicant, interface: &str) -> bool {
        let within = |cgroup: &String| {
            let its = applicant.cgroup.as_deref().and_then(|its| its.strip_prefix(cgroup.as_str()));
            its.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        (self.interfaces.is_empty() || self.interfaces.iter().any(|its| its == interface))
            && (self.users.is_empty() || self.users.contains(&applicant.user))
            && (self.groups.is_empty() || self.groups.iter().any(|its| applicant.groups.contains(its)))
            && (self.cgroups.is_empty() || self.cgroups.iter().any(within))
    }
}

/// The number of a name in passwd(5) or group(5).
fn numbered(database: &str, name: &str) -> Option<u32> {
    database.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\n";
    const GROUPS: &str = "root:x:0:\nweb:x:70:alice\n";

    fn parse(text: &str) -> Result<Policy, String> {
        Policy::parse(text, USERS, GROUPS)
    }

    fn applicant(user: u32, groups: &[u32], cgroup: &str) -> Applicant {
        Applicant {
            process: 1,
            name: "nginx".to_owned(),
            user,
            groups: groups.to_vec(),
            cgroup: Some(cgroup.to_owned()),
            is_privileged: false,
            network: None,
        }
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text = "[[rule]]\nusers = ['www-data', 1000]\ninterfaces = ['eth0']\nstacks = 8\n\
            [[rule]]\ngroups = ['web']\ncgroups = ['/a/b']\nstacks = 2\n\
            [[rule]]\nusers = [33]\nstacks = 1\n";
        let policy = parse(text).unwrap();
        let share = |user, groups: &[u32], cgroup, interface| {
            policy.share(&applicant(user, groups, cgroup), interface).map(|its| (its.rule, its.stacks))
        };
        assert_eq!(share(33, &[], "/", "eth0"), Some((0, 8)));
        assert_eq!(share(1000, &[], "/", "eth0"), Some((0, 8)));
        assert_eq!(share(33, &[], "/", "eth1"), Some((2, 1)));
        assert_eq!(share(7, &[1, 70], "/a/b", "eth1"), Some((1, 2)));
        assert_eq!(share(7, &[70], "/a/b/c", "eth1"), Some((1, 2)));
        for (groups, cgroup) in [(&[70][..], "/a/bc"), (&[70], "/a"), (&[71], "/a/b"), (&[], "/a/b")] {
            assert_eq!(share(7, groups, cgroup, "eth1"), None, "{groups:?} {cgroup}");
        }
        let nowhere = Applicant { cgroup: None, ..applicant(7, &[70], "") };
        assert_eq!(policy.share(&nowhere, "eth1"), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        // In one line, as a log has it, with the place.
        let said = parse("[[rule]]\nusers = [1]\nstack = 1\n").unwrap_err();
        assert!(said.starts_with("line 3: `stack = 1`: unknown field `stack`, expected one of "), "{said}");
        let said = parse("[[rule]]\nusers = [1\nstacks = 1\n").unwrap_err();
        assert!(said.starts_with("line ") && !said.contains('\n'), "{said}");
        for (text, words) in [
            ("[[rule]]\nstacks = 1\n", "rule 1: it names nobody"),
            ("[[rule]]\nusers = [1]\n", "missing field `stacks`"),
            ("[[rule]]\nusers = [1]\nstacks = 0\n", "stacks = 0"),
            ("[[rule]]\nusers = ['nobody']\nstacks = 1\n", "no user nobody in /etc"),
            (
                "[[rule]]\nusers = [-1]\nstacks = 1\n",
                "line 2: `users = [-1]`: expected names in quotes, or numbers",
            ),
            ("[[rule]]\ngroups = ['x']\nstacks = 1\n", "no group x in /etc"),
            ("[[rule]]\nusers = [1]\nstacks = 1\nspeed = 1\n", "unknown field `speed`"),
            ("[[rules]]\n", "unknown field `rules`"),
            ("[[rule]]\ncgroups = ['a']\nstacks = 1\n", "expected a path such as"),
            ("[[rule]]\ncgroups = ['/a/../b']\nstacks = 1\n", "expected a path such as"),
            ("[[rule]]\ncgroups = ['/']\nstacks = 1\n", "expected a path such as"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn nobody_else_writes_it() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(Policy::read(file.path()), Ok(Policy::default()));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o660)).unwrap();
        assert!(Policy::read(file.path()).unwrap_err().contains("chmod go-w"));
    }

    #[test]
    fn the_example_that_is_shipped_is_sound() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/broker.toml"));
        let groups = "root:x:0:\nadm:x:4:\n";
        let policy = Policy::parse(&text.unwrap(), USERS, groups).unwrap();
        assert_eq!(policy.len(), 3);
        assert_eq!(policy.share(&applicant(33, &[], "/"), "eth0").unwrap().stacks, 8);
        assert_eq!(policy.share(&applicant(0, &[0], "/kubepods.slice/x/y"), "eth7").unwrap().stacks, 4);
    }
}
