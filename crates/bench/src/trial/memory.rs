//! What a machine has in use for connections.

use std::fs;
use std::time::{Duration, Instant};

use crate::process_time::{processes, tree_among};

/// Bytes that a machine's memory in use may change by while nothing of ours goes on.
const STEADY_BYTES: u64 = 512 << 10;
const LOOKS_APART: Duration = Duration::from_millis(100);
/// So many looks in a row must find no change.
const STEADY_LOOKS: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the machine's memory in use stands still, or for ten seconds: the kernel takes back what an earlier run had (namespaces,
/// rings, sockets) after that has ended.
pub(super) fn settle(ours: &[u32]) {
    let end = Instant::now() + PATIENCE;
    let (mut last, mut steady) = (in_use(ours), 0);
    while steady < STEADY_LOOKS && Instant::now() < end {
        std::thread::sleep(LOOKS_APART);
        let now = in_use(ours);
        steady = if now.abs_diff(last) < STEADY_BYTES { steady + 1 } else { 0 };
        last = now;
    }
}

/// What the whole machine has in use, the kernel's slabs and memory that programs share included; not what it keeps of files, nor what
/// processes that are not under `ours` have for themselves: they come and go. Bytes.
pub(super) fn in_use(ours: &[u32]) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| kib_of(&info, name);
    // Shared memory is a part of Cached.
    let files = kib("Buffers") + kib("Cached").saturating_sub(kib("Shmem"));
    let all = processes();
    let ours: Vec<u32> =
        ours.iter().flat_map(|&root| tree_among(&all, root)).map(|process| process.id).collect();
    let others = all.iter().filter(|process| !ours.contains(&process.id));
    let theirs: u64 = others
        .map(|process| fs::read_to_string(format!("/proc/{}/status", process.id)).unwrap_or_default())
        .map(|status| kib_of(&status, "RssAnon"))
        .sum();
    kib("MemTotal").saturating_sub(kib("MemFree") + files + theirs) * 1024
}

/// The number of a line `Name:   123 kB`; 0 without it.
fn kib_of(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_for_themselves_does_not_count_and_ours_does() {
        let text = "MemTotal:  100 kB\nMemFree:  7 kB\n";
        assert_eq!((kib_of(text, "MemFree"), kib_of(text, "Mem"), kib_of(text, "Swap")), (7, 0, 0));
        let size = 256 << 20;
        // Touched, so that it is there.
        let held = vec![1_u8; size];
        let (with, without) = (in_use(&[std::process::id()]), in_use(&[]));
        assert_eq!(std::hint::black_box(&held)[size - 1], 1);
        assert!(with > without + (size as u64) / 2, "{with} with this process, {without} without");
    }
}
