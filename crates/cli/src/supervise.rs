//! Watching over a program and everything it starts: signals on, ends in, nothing left behind.

use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

const FORWARDED: [i32; 7] = [SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH];
/// What the rest of a program is given to end by itself after one of its processes was killed.
const GRACE: Duration = Duration::from_secs(5);

/// Starts `command` and stays until it and all its descendants have ended, those that were
/// re-parented too (a server that goes into the background). Signals go on to the program. If
/// the program dies by a signal, or one of its descendants by one that was sent on to it, or it `is_orphaned` when a signal comes,
/// the remaining descendants are terminated. The child `apart` is none of the family.
///
/// Returns the exit status: the program's own, or 128 + the signal that killed it.
///
/// # Errors
/// If the command cannot be started.
pub(crate) fn supervise(
    mut command: Command,
    is_orphaned: impl Fn() -> bool,
    apart: Option<Pid>,
) -> io::Result<u8> {
    set_child_subreaper(Some(getpid()))?;
    // What we were told to ignore (nohup, a script's background jobs) the program is to find
    // ignored too, so those signals get their handlers after it has been started.
    let ignored = ignored_signals();
    let (late, early): (Vec<i32>, Vec<i32>) =
        FORWARDED.into_iter().partition(|signal| ignored & (1 << (signal - 1)) != 0);
    let mut signals = SignalsInfo::<WithOrigin>::new(early.into_iter().chain([SIGCHLD]))?;
    let program = command.spawn()?;
    for signal in late {
        signals.handle().add_signal(signal)?;
    }
    let program = Pid::from_raw(program.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;

    let mut family =
        Family { program, apart, program_ended: false, sent_on: None, status: 0, terminating: false };
    loop {
        if family.reap() {
            return Ok(family.status);
        }
        for origin in signals.wait() {
            if origin.signal == SIGCHLD {
                continue;
            }
            if is_orphaned() {
                family.terminate(128 + 9);
            } else {
                family.forward(origin.signal, origin.cause == Cause::Kernel);
            }
        }
    }
}

struct Family {
    program: Pid,
    apart: Option<Pid>,
    program_ended: bool,
    /// The last signal that its descendants were sent in its stead.
    sent_on: Option<u8>,
    status: u8,
    terminating: bool,
}

impl Family {
    /// Collects what has ended. True if nobody is left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((process, _))) if Some(process) == self.apart => {}
                Ok(Some((process, status))) => {
                    let killed_by = status.terminating_signal().and_then(|signal| u8::try_from(signal).ok());
                    let ours = process == self.program;
                    if ours && !self.terminating {
                        let exit_status = status.exit_status().and_then(|status| u8::try_from(status).ok());
                        self.status = exit_status.or(killed_by.map(|signal| 128 + signal)).unwrap_or(1);
                    }
                    // What became of a stray descendant is nobody's business, unless somebody told it to end.
                    if let Some(signal) = killed_by
                        && (ours || self.sent_on == killed_by)
                    {
                        self.terminate(128 + signal);
                    }
                    self.program_ended |= ours;
                }
                Ok(None) => {
                    return self.apart.is_some() && self.program_ended && children(self.apart).is_empty();
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn forward(&mut self, signal: i32, from_terminal: bool) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        let receivers = if self.program_ended {
            self.sent_on = u8::try_from(signal.as_raw()).ok();
            children(self.apart)
        } else {
            vec![self.program]
        };
        for process in receivers {
            // A key on the terminal has reached our whole process group already.
            let has_it = from_terminal && getpgid(Some(process)).ok() == getpgid(None).ok();
            if !has_it {
                let _ = kill_process(process, signal);
            }
        }
    }

    fn terminate(&mut self, status: u8) {
        if std::mem::replace(&mut self.terminating, true) {
            return;
        }
        self.status = status;
        let apart = self.apart;
        signal_all(Signal::TERM, apart);
        thread::spawn(move || {
            thread::sleep(GRACE);
            // Until the main thread finds that nobody is left.
            loop {
                signal_all(Signal::KILL, apart);
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

fn signal_all(signal: Signal, apart: Option<Pid>) {
    for process in descendants(apart) {
        let _ = kill_process(process, signal);
    }
}

/// Bit `n - 1` stands for signal `n`.
fn ignored_signals() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?.trim().to_owned();
            u64::from_str_radix(&mask, 16).ok()
        })
        .unwrap_or(0)
}

/// (process, its parent), for every process.
fn parentage() -> Vec<(i32, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            // The name before it is in parentheses and may hold anything.
            let parent = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(1)?.parse().ok()?;
            Some((id, parent))
        })
        .collect()
}

fn children(apart: Option<Pid>) -> Vec<Pid> {
    let us = getpid().as_raw_nonzero().get();
    parentage()
        .into_iter()
        .filter(|&(_, parent)| parent == us)
        .filter_map(|(id, _)| Pid::from_raw(id))
        .filter(|&id| Some(id) != apart)
        .collect()
}

fn descendants(apart: Option<Pid>) -> Vec<Pid> {
    let parentage = parentage();
    let mut family = vec![getpid().as_raw_nonzero().get()];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parentage.iter().filter(|&&(_, its)| its == parent).map(|&(id, _)| id));
        next += 1;
    }
    family.into_iter().skip(1).filter_map(Pid::from_raw).filter(|&id| Some(id) != apart).collect()
}
