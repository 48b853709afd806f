//! Processes as /proc shows them (proc(5)).

use std::collections::HashMap;
use std::path::Path;
use std::process::Child;

/// A child that is killed with this value.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One line of /proc/PID/stat, what is used of it.
struct Stat {
    /// The first letter of its state.
    state: char,
    parent: u32,
    /// User and system, in ticks of 10 ms.
    ticks: u64,
}

fn stat(id: u32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// What follows the name, which may hold blanks and parentheses.
fn parse(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: u32::try_from(number(1)?).ok()?,
        ticks: number(11)? + number(12)?,
    })
}

/// All processes.
///
/// # Panics
/// If there is no /proc.
#[must_use]
pub fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process exists and is no zombie.
#[must_use]
pub fn alive(id: u32) -> bool {
    stat(id).is_some_and(|stat| stat.state != 'Z')
}

/// Every process under `root`, without it.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for id in all() {
        if let Some(stat) = stat(id) {
            children.entry(stat.parent).or_default().push(id);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        let its = children.remove(&id).unwrap_or_default();
        found.extend(&its);
        open.extend(its);
    }
    found
}

/// The processes under `root` whose title begins with `title`.
#[must_use]
pub fn titled(root: u32, title: &str) -> Vec<u32> {
    let named = |id: &u32| {
        std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.starts_with(title.as_bytes()))
    };
    descendants(root).into_iter().filter(named).collect()
}

/// Processor time of a process, user and system, in ticks of 10 ms; 0 if it has gone.
#[must_use]
pub fn ticks(id: u32) -> u64 {
    stat(id).map_or(0, |stat| stat.ticks)
}

/// A line of /proc/PID/status, without its name; empty if there is none.
#[must_use]
pub fn status(id: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Descriptors that a process has open; 0 if it has gone.
#[must_use]
pub fn descriptors(id: u32) -> usize {
    std::fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count)
}

/// The processes in the network namespace that this link of /proc's names.
#[must_use]
pub fn inhabitants(namespace: &Path) -> Vec<u32> {
    let inside =
        |id: &u32| std::fs::read_link(format!("/proc/{id}/ns/net")).is_ok_and(|link| link == namespace);
    all().into_iter().filter(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let line = "12 (a ) b) S 7 12 12 0 -1 4194560 1 2 3 4 50 60 0 0 20 0 1 0 1 1 1";
        let stat = parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.ticks), ('S', 7, 110));
        assert!(parse("12 (a) S").is_none() && parse("").is_none());
    }

    #[test]
    fn a_child_is_seen_until_it_is_buried() {
        let child = Killed(std::process::Command::new("sleep").arg("600").spawn().unwrap());
        let (own, id) = (std::process::id(), child.0.id());
        assert!(alive(id) && descendants(own).contains(&id));
        // Until it has become the other program its title is this test's.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while titled(own, "sleep\x00600") != [id] {
            assert!(std::time::Instant::now() < end, "the child's title");
            std::thread::yield_now();
        }
        let namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert!(inhabitants(&namespace).contains(&id));
        assert_eq!(status(id, "PPid"), own.to_string());
        assert!(descriptors(own) > 0);
        drop(child);
        assert!(!alive(id) && !descendants(own).contains(&id));
        assert_eq!((ticks(id), descriptors(id)), (0, 0));
        assert_eq!(status(id, "PPid"), "");
    }
}
