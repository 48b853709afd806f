//! What a host should have before it is measured, and the way back.
//!
//! The list is that of the seeds (quiet services, huge pages, interrupt moderation) and of a busy server (queues, ports, files).
//! [`Host::check`] compares, [`Host::apply`] changes, [`Host::revert`] puts back. Before anything is changed, what it was is in a
//! journal on the disk: a host that crashed half way is put back by the same `revert`.

mod settings;

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::Error;

/// Where the journal is kept, from the root.
const JOURNAL: &str = "var/lib/overfly/tune.jsonl";

/// A host, seen from its root folder.
#[derive(Debug, Clone)]
pub struct Host {
    /// `/`, or what stands for it in a test.
    pub root: PathBuf,
    /// The network interface whose interrupts are looked at; none: no interface is touched.
    pub interface: Option<String>,
    /// The cores that its interrupts are to be on; empty: they stay where they are.
    pub irq_cpus: Vec<usize>,
}

/// What a setting is kept in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "of")]
pub enum Knob {
    /// A file of /proc or /sys, from the root.
    File(PathBuf),
    /// A service of systemd: `active` or `inactive`.
    Service(String),
    /// A field of `ethtool -c INTERFACE`: the interface, the field, its name for `ethtool -C`.
    Coalesce(String, String),
}

/// One setting that is not as it should be, or is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Difference {
    /// Where it is kept.
    pub knob: Knob,
    /// What is there now.
    pub now: String,
    /// What should be.
    pub wanted: String,
    /// Why.
    pub reason: Cow<'static, str>,
}

/// A line of the journal: what was there before.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    knob: Knob,
    value: String,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::File(path) => write!(f, "/{}", path.display()),
            Knob::Service(name) => write!(f, "service {name}"),
            Knob::Coalesce(interface, field) => write!(f, "ethtool -C {interface} {field}"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}\n    {}", self.knob, self.now, self.wanted, self.reason)
    }
}

impl Host {
    /// Every setting that this host has and that is not as it should be. What it has not (a governor in a virtual machine, a
    /// service that is not installed) is passed over.
    #[must_use]
    pub fn check(&self) -> Vec<Difference> {
        let all = settings::all(self).into_iter();
        let different = all.filter_map(|(knob, want, reason)| {
            let now = self.read(&knob)?;
            let wanted = want.given(&now)?;
            Some(Difference { knob, now, wanted, reason: reason.into() })
        });
        different.collect()
    }

    /// Changes every difference. What was there is in the journal before.
    ///
    /// # Errors
    /// [`Error::Machine`] if an earlier apply has not been reverted, or without privilege. What was changed by then is put back.
    pub fn apply(&self) -> Result<Vec<Difference>, Error> {
        let path = self.journal();
        if path.exists() {
            return Err(Error::Machine(format!(
                "{} is there: this host is tuned already, or was when it stopped; `overfly tune revert` puts it back",
                path.display()
            )));
        }
        let differences = self.check();
        if differences.is_empty() {
            return Ok(differences);
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(Error::kernel(format!("make {}", folder.display())))?;
        self.write_journal(&path, &differences)?;
        for difference in &differences {
            if let Err(error) = self.write(&difference.knob, &difference.wanted) {
                // The first fault is the one to tell. What cannot be put back stays in the journal.
                let _ = self.revert();
                return Err(error);
            }
        }
        Ok(differences)
    }

    /// Puts back what the journal says, the last change first.
    ///
    /// # Errors
    /// [`Error::Machine`] naming what could not be put back; it stays in the journal, for another try.
    pub fn revert(&self) -> Result<usize, Error> {
        let path = self.journal();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(Error::kernel(format!("read {}", path.display()))(error)),
        };
        // The journal is whole before the first change: a torn line was followed by none.
        let befores: Vec<Before> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut left = Vec::new();
        let mut faults = Vec::new();
        for before in befores.iter().rev() {
            // Most of a journal may not have come to be changed.
            if self.read(&before.knob).as_deref() == Some(before.value.as_str()) {
                continue;
            }
            if let Err(error) = self.write(&before.knob, &before.value) {
                faults.push(error.to_string());
                left.push(before);
            }
        }
        if left.is_empty() {
            fs::remove_file(&path).map_err(Error::kernel(format!("remove {}", path.display())))?;
            // If nothing else is in it.
            let _ = fs::remove_dir(path.parent().unwrap_or(Path::new("/")));
            return Ok(befores.len());
        }
        left.reverse();
        let lines: String = left.iter().map(|before| line(before)).collect();
        put(&path, &lines)?;
        Err(Error::Machine(format!("not put back, and kept in {}: {}", path.display(), faults.join("; "))))
    }

    /// Whether an apply waits for its revert.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        self.journal().exists()
    }

    fn journal(&self) -> PathBuf {
        self.root.join(JOURNAL)
    }

    fn write_journal(&self, path: &Path, differences: &[Difference]) -> Result<(), Error> {
        let before = |difference: &Difference| {
            line(&Before { knob: difference.knob.clone(), value: difference.now.clone() })
        };
        put(path, &differences.iter().map(before).collect::<String>())
    }

    /// What a knob is at; `None` if there is no such knob here.
    fn read(&self, knob: &Knob) -> Option<String> {
        match knob {
            Knob::File(path) => {
                let text = fs::read_to_string(self.root.join(path)).ok()?;
                Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            // Services are this machine's, whatever stands for its root.
            Knob::Service(_) | Knob::Coalesce(..) if self.root != Path::new("/") => None,
            Knob::Service(name) => {
                let state = said("systemctl", &["is-active", name])?;
                ["active", "inactive"].contains(&state.as_str()).then_some(state)
            }
            Knob::Coalesce(interface, field) => {
                let label = settings::coalesce_label(field);
                let text = said("ethtool", &["-c", interface])?;
                // `Adaptive RX: on  TX: off` or `rx-usecs:	3`
                let value = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
                let value = value.split_whitespace().next()?;
                (value != "n/a").then(|| value.to_owned())
            }
        }
    }

    fn write(&self, knob: &Knob, value: &str) -> Result<(), Error> {
        let ran = |program: &str, words: &[&str]| {
            let output = Command::new(program).args(words).stdin(Stdio::null()).output();
            let output = output.map_err(Error::kernel(format!("run {program}")))?;
            if output.status.success() {
                return Ok(());
            }
            let command = format!("{program} {}", words.join(" "));
            Err(Error::Tool { command, output: String::from_utf8_lossy(&output.stderr).into_owned() })
        };
        match knob {
            Knob::File(path) => fs::write(self.root.join(path), value)
                .map_err(Error::kernel(format!("set {knob} to {value} (is this root?)"))),
            Knob::Service(name) => {
                ran("systemctl", &[if value == "active" { "start" } else { "stop" }, name])
            }
            Knob::Coalesce(interface, field) => ran("ethtool", &["-C", interface, field, value]),
        }
    }
}

fn line(before: &Before) -> String {
    serde_json::to_string(before).unwrap_or_default() + "\n"
}

/// Whole, on the disk, or not at all.
fn put(path: &Path, text: &str) -> Result<(), Error> {
    let part = path.with_extension("part");
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&part, path))
        .and_then(|()| File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all())
        .map_err(Error::kernel(format!("write {}", path.display())))
}

/// What a command prints; nothing if it is not there.
fn said(program: &str, words: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(words).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with some of the files of a host.
    fn root(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host { root: folder.path().to_owned(), interface: None, irq_cpus: Vec::new() };
        (folder, host)
    }

    const SOMAXCONN: &str = "proc/sys/net/core/somaxconn";
    const RANGE: &str = "proc/sys/net/ipv4/ip_local_port_range";
    const PAGES: &str = "proc/sys/vm/nr_hugepages";
    const GOVERNOR: &str = "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";

    fn files(differences: &[Difference]) -> Vec<(String, &str, &str)> {
        let files = differences.iter();
        files.map(|its| (its.knob.to_string(), its.now.as_str(), its.wanted.as_str())).collect()
    }

    #[test]
    fn only_what_is_worse_than_wanted_is_a_difference() {
        let (_folder, host) = root(&[
            (SOMAXCONN, "4096\n"),
            (RANGE, "1024\t65535\n"),
            (PAGES, "2048\n"),
            (GOVERNOR, "powersave\n"),
        ]);
        let found = host.check();
        let mut found = files(&found);
        found.sort();
        assert_eq!(
            found,
            [
                (format!("/{SOMAXCONN}"), "4096", "65535"),
                (format!("/{GOVERNOR}"), "powersave", "performance"),
            ]
        );
        assert!(host.check().iter().all(|its| its.reason.len() > 20), "each has its reason");
    }

    #[test]
    fn a_crash_between_any_two_changes_is_put_back() {
        let was = [(SOMAXCONN, "128"), (RANGE, "32768 60999"), (PAGES, "0")];
        let (_folder, host) = root(&was);
        let read = |path: &str| fs::read_to_string(host.root.join(path)).unwrap();
        let differences = host.check();
        assert_eq!(differences.len(), 3);
        for changed in 0..=differences.len() {
            fs::create_dir_all(host.journal().parent().unwrap()).unwrap();
            host.write_journal(&host.journal(), &differences).unwrap();
            for difference in &differences[..changed] {
                host.write(&difference.knob, &difference.wanted).unwrap();
            }
            // Another process finds the journal.
            assert!(host.is_applied());
            assert!(host.apply().unwrap_err().to_string().contains("overfly tune revert"));
            assert_eq!(host.revert().unwrap(), 3);
            for (path, text) in was {
                assert_eq!(read(path), text, "{path} after {changed} changes");
            }
            assert!(!host.is_applied() && host.revert().unwrap() == 0);
        }
    }

    #[test]
    fn what_cannot_be_put_back_stays_in_the_journal() {
        let (_folder, host) = root(&[(SOMAXCONN, "128"), (PAGES, "0")]);
        let differences = host.check();
        fs::create_dir_all(host.journal().parent().unwrap()).unwrap();
        host.write_journal(&host.journal(), &differences).unwrap();
        for difference in &differences {
            host.write(&difference.knob, &difference.wanted).unwrap();
        }
        // A folder in its place cannot be written, by root neither.
        let pages = host.root.join(PAGES);
        fs::remove_file(&pages).unwrap();
        fs::create_dir(&pages).unwrap();
        let error = host.revert().unwrap_err().to_string();
        assert!(error.contains("nr_hugepages") && error.contains("kept in"), "{error}");
        assert_eq!(fs::read_to_string(host.root.join(SOMAXCONN)).unwrap(), "128");
        fs::remove_dir(&pages).unwrap();
        fs::write(&pages, "1024").unwrap();
        assert_eq!(host.revert().unwrap(), 1);
        assert_eq!(fs::read_to_string(&pages).unwrap(), "0");
    }
}
