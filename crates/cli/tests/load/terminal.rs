//! `--tui`, on a terminal of its own.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Guard;
use crate::server::Server;
use crate::step::eventually;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A shell on a terminal that runs the command, with the terminal's settings before and after.
struct Terminal {
    script: Guard,
    keys: ChildStdin,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(words: &str) -> Terminal {
        let overfly = env!("CARGO_BIN_EXE_overfly");
        let shell = format!(
            "trap : INT TERM HUP; stty cols 100 rows 30; echo before=$(stty -g); sh -c 'echo pid=$$; exec {overfly} load {words}'; echo status=$?; echo after=$(stty -g)"
        );
        let mut script: Child = Command::new("script")
            .args(["-qfec", &shell, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (keys, mut output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(String::new()));
        let ours = shown.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(received @ 1..) = output.read(&mut buffer) {
                ours.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..received]));
            }
        });
        Terminal { script: Guard(script), keys, shown }
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The rest of the line that begins so.
    #[track_caller]
    fn line(&self, beginning: &str) -> String {
        eventually(|| {
            let shown = self.shown();
            let rest = shown.split(beginning).nth(1)?;
            rest.contains('\n').then(|| rest.lines().next().unwrap_or_default().trim_end().to_string())
        })
    }

    #[track_caller]
    fn wait_for_the_screen(&self) {
        eventually(|| {
            let shown = self.shown();
            (shown.contains(ENTER) && shown.contains("ends the run") && shown.contains("latency"))
                .then_some(())
        });
    }

    /// After the end: the terminal is as it was, and the report is on it.
    #[track_caller]
    fn assert_put_back(mut self, by: &str) {
        let (before, after) = (self.line("before="), self.line("after="));
        let status = self.line("status=");
        let _ = self.script.0.wait();
        let shown = self.shown();
        assert_eq!(status, "0", "{shown}");
        assert_eq!(before, after, "{shown}");
        let (_, after_the_screen) = shown.split_once(LEAVE).expect("the screen was left");
        assert!(after_the_screen.contains("\x1b[?25h"), "the cursor is there again");
        assert!(after_the_screen.contains("Requests/sec:"), "{after_the_screen}");
        assert!(after_the_screen.contains(&format!("ended early, by {by}")), "{after_the_screen}");
    }
}

fn url(server: &Server) -> String {
    format!("http://{}/", server.address)
}

#[test]
fn q_ends_the_run_and_the_terminal_is_as_it_was() {
    let server = Server::new(4, Duration::from_millis(1));
    let mut terminal = Terminal::run(&format!("http -d 300s --tui {}", url(&server)));
    terminal.wait_for_the_screen();
    terminal.keys.write_all(b"q").unwrap();
    terminal.assert_put_back("a key");
}

#[test]
fn a_signal_does_too() {
    let server = Server::new(4, Duration::from_millis(1));
    for signal in ["TERM", "INT", "HUP"] {
        let terminal = Terminal::run(&format!("http -d 300s --tui {}", url(&server)));
        terminal.wait_for_the_screen();
        let status = Command::new("kill").args([&format!("-{signal}"), &terminal.line("pid=")]).status();
        assert!(status.unwrap().success());
        terminal.assert_put_back("a signal");
    }
}

#[test]
fn without_it_a_line_tells_how_it_goes_and_control_c_ends_it() {
    let server = Server::new(4, Duration::from_millis(1));
    let mut terminal = Terminal::run(&format!("http -d 300s {}", url(&server)));
    eventually(|| terminal.shown().contains("/s, p50 ").then_some(()));
    terminal.keys.write_all(b"\x03").unwrap();
    let status = terminal.line("status=");
    let shown = terminal.shown();
    assert_eq!(status, "0", "{shown}");
    assert!(shown.contains("ended early, by a signal") && !shown.contains(ENTER), "{shown}");
}

#[test]
fn no_terminal_is_said() {
    let output = crate::load("http --tui http://127.0.0.1:1/").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--tui: expected a terminal"));
}
