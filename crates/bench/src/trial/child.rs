//! Children with pipes: until when they may run, and what they wrote.

use std::ffi::OsString;
use std::io::Read;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use crate::interruption::interrupted;

/// What `look` sees at `when`, or None if the child has ended by then.
pub(super) fn wait_until<T>(child: &mut Child, when: Instant, look: impl FnOnce() -> T) -> Option<T> {
    loop {
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some(look());
        }
        if !matches!(child.try_wait(), Ok(None)) || interrupted() {
            return None;
        }
        thread::sleep(left.min(Duration::from_millis(100)));
    }
}

pub(super) struct Output {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// What a child with two pipes wrote, once it has ended; it is killed at the deadline.
pub(super) fn output_of(mut child: Child, deadline: Instant) -> Result<Output, String> {
    fn read_all(pipe: Option<impl Read>) -> String {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        let status = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < deadline && !interrupted() => {
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(Some(status)) => break Some(status),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        match status {
            Some(status) => Ok(Output { success: status.success(), stdout, stderr }),
            None => Err("it did not end in time and was killed".to_owned()),
        }
    })
}

/// A command line as one could type it.
pub(super) fn line(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
