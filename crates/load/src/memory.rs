//! Whether so many connections fit into this machine's memory.

use crate::error::Error;

/// A connection of the user-level stack: its control block and its places in tables and queues, and the generator's part.
pub(crate) const USER_LEVEL: u64 = 320;
/// A connection of the kernel's: socket, file, inode and epoll item (slabtop: TCP, sock_inode_cache, filp, dentry,
/// eventpoll_epi), and the generator's part.
pub(crate) const KERNEL: u64 = 4800;

/// Refuses what cannot be: `connections` of `bytes_each`.
pub(crate) fn check(connections: usize, bytes_each: u64) -> Result<(), Error> {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    check_against(&table, connections, bytes_each)
}

fn check_against(table: &str, connections: usize, bytes_each: u64) -> Result<(), Error> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    let Some(available) = available.map(|kb| kb * 1024) else { return Ok(()) };
    if connections as u64 * bytes_each <= available {
        return Ok(());
    }
    let (most, mb) = (available / bytes_each, available >> 20);
    Err(Error::usage(
        "-c",
        connections,
        format!("at most {most} connections: {mb} MB of memory are available"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let table = "MemTotal:        2048000 kB\nMemFree:  10 kB\nMemAvailable:    1024000 kB\n";
        assert!(check_against(table, 1_000_000, USER_LEVEL).is_ok());
        let error = check_against(table, 1_000_000, KERNEL).unwrap_err();
        assert!(error.is_usage());
        assert_eq!(
            error.to_string(),
            "-c 1000000: expected at most 218453 connections: 1000 MB of memory are available"
        );
        assert!(check_against("", usize::MAX >> 20, 1).is_ok(), "unknown is no reason to refuse");
        assert!(check(1, KERNEL).is_ok());
    }
}
