//! Processes and the time they and the cores have spent, from /proc.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One line of /proc/PID/stat, what is used of it.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) name: String,
    /// User and system time of all its threads, those that have ended too.
    pub(crate) time: Duration,
}

/// Every process of this process namespace and of those below.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|id: u32| parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?))
        .collect()
}

/// Processes whose parent is `parent`.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    processes().into_iter().filter(|process| process.parent == parent).map(|process| process.id).collect()
}

/// `root` and all processes under it.
pub(crate) fn tree(root: u32) -> Vec<Process> {
    tree_among(&processes(), root)
}

/// As [`tree`], of the processes that were found once.
pub(crate) fn tree_among(processes: &[Process], root: u32) -> Vec<Process> {
    let (mut tree, mut rest): (Vec<_>, Vec<_>) =
        processes.iter().cloned().partition(|process| process.id == root);
    let mut next = 0;
    while next < tree.len() {
        let parent = tree[next].id;
        let (children, others) = rest.into_iter().partition(|process: &Process| process.parent == parent);
        tree.extend::<Vec<_>>(children);
        rest = others;
        next += 1;
    }
    tree
}

/// proc_pid_stat(5). The name is in parentheses and may hold anything, parentheses too.
fn parse(stat: &str) -> Option<Process> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let id = stat[..open].trim().parse().ok()?;
    let fields: Vec<&str> = stat[close + 1..].split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        name: stat[open + 1..close].to_owned(),
        time: ticks_to_duration(ticks(11)? + ticks(12)?),
    })
}

/// Where a core's time went, from /proc/stat.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CoreTime {
    /// All but idle.
    pub busy: Duration,
    /// The kernel's deferred work, of which network packets are the most; a part of `busy`.
    pub softirq: Duration,
}

impl CoreTime {
    /// Of several cores together.
    #[must_use]
    pub fn of_all(cores: &[usize]) -> CoreTime {
        cores.iter().map(|&core| CoreTime::of(core)).fold(CoreTime::default(), |sum, time| CoreTime {
            busy: sum.busy + time.busy,
            softirq: sum.softirq + time.softirq,
        })
    }

    /// Since boot.
    #[must_use]
    pub fn of(core: usize) -> CoreTime {
        let Ok(stat) = fs::read_to_string("/proc/stat") else {
            return CoreTime::default();
        };
        let label = format!("cpu{core} ");
        let Some(line) = stat.lines().find_map(|line| line.strip_prefix(&label)) else {
            return CoreTime::default();
        };
        // user nice system idle iowait irq softirq steal …
        let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let all: u64 = ticks.iter().take(8).sum();
        CoreTime {
            busy: ticks_to_duration(all - idle),
            softirq: ticks_to_duration(ticks.get(6).copied().unwrap_or(0)),
        }
    }
}

fn ticks_to_duration(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_micros(ticks * 1_000_000 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_spaces_and_parentheses() {
        let process = parse("42 (a) (b c) S 7 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9").unwrap();
        assert_eq!((process.id, process.parent, process.name.as_str()), (42, 7, "a) (b c"));
        assert_eq!(process.time, ticks_to_duration(200));
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        let id = std::process::id();
        assert!(tree(id).iter().any(|process| process.id == id));
        assert!(children(std::os::unix::process::parent_id()).contains(&id));
    }

    #[test]
    fn cores_have_been_busy() {
        assert!(CoreTime::of(0).busy > Duration::ZERO);
    }
}
