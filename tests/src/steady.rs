//! A load that goes on while something happens to its server.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::send;

/// A generator, or a bench, that goes on until it is told to end.
#[derive(Debug)]
pub struct Steady(Child);

impl Steady {
    /// Starts `overfly load … --json`, or something that nobody asks for its report.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the generator"))
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Tells it to end, and returns its report.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    #[must_use]
    pub fn end(mut self) -> Value {
        send(self.0.id(), Signal::INT);
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.0.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("read a pipe");
        self.0.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("read a pipe");
        assert!(self.0.wait().expect("wait for the generator").success(), "{stdout}{stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    }

    /// Waits for one that was killed.
    ///
    /// # Panics
    /// If that fails.
    pub fn wait(&mut self) {
        self.0.wait().expect("wait for what was started");
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that nginx's access log names, one in each line, in order.
///
/// # Panics
/// If a line is no process id.
#[must_use]
pub fn served(log: &str) -> Vec<u32> {
    // The last line may not be whole.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    whole.lines().map(|line| line.parse().expect("a process id")).collect()
}
