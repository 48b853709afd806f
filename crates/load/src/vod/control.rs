//! Orders to a run: one JSON object a line ([`crate::control`]).
//!
//! `{"open": 256}` opens so many streams more, `{"stop": true}` ends the run, and any object, `{}` too, is answered with how
//! the streams do: `{"granted":256,"opened":320,"connecting":0,"filling":12,"streaming":308,"dropped":0,"failed":0,…}`.
//! What is none of these is answered with `{"error": "…"}`.

use serde::{Deserialize, Serialize};

use super::ramp::Standing;
use crate::control::{self, Control};
use crate::error::Error;

/// What somebody asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Command {
    /// So many streams more.
    pub(super) open: u64,
    /// The end of the run.
    pub(super) stop: bool,
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Streams that are going to be opened because of this command.
    pub(super) granted: u64,
    #[serde(flatten)]
    pub(super) standing: Standing,
    /// Most streams that lasted until now.
    pub(super) sustained: u64,
}

/// The socket and whoever is connected to it. Nothing of it ever waits.
pub(super) struct ControlSocket(control::ControlSocket);

impl ControlSocket {
    pub(super) fn open(control: &Control) -> Result<ControlSocket, Error> {
        control::ControlSocket::open(control).map(ControlSocket)
    }

    /// Accepts whoever came, and answers what was asked.
    pub(super) fn serve(&mut self, mut answer: impl FnMut(Command) -> Outcome) {
        self.0.serve("{\"open\": N}, {\"stop\": true} or {}", |command| Ok(answer(command)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::control::LINE_MAX;

    /// Sends a line and serves until an answer is there.
    fn ask(socket: &mut ControlSocket, stream: &mut UnixStream, line: &str) -> serde_json::Value {
        stream.write_all(line.as_bytes()).unwrap();
        let answer = |command: Command| Outcome {
            granted: command.open.min(10),
            standing: Standing { opened: 7, streaming: 5, ..Standing::default() },
            sustained: u64::from(command.stop),
        };
        // Once to read it, once to write what is to be answered.
        socket.serve(answer);
        socket.serve(answer);
        let mut text = String::new();
        BufReader::new(stream).read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn wishes_and_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let mut socket = ControlSocket::open(&Control::Unix(path.clone())).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        let answer = ask(&mut socket, &mut stream, "{\"open\": 256}\n");
        assert_eq!((&answer["granted"], &answer["opened"]), (&10.into(), &7.into()));
        assert_eq!((&answer["streaming"], &answer["dropped"]), (&5.into(), &0.into()));
        assert_eq!(ask(&mut socket, &mut stream, "{\"stop\": true}\n")["sustained"], 1);
        assert_eq!(ask(&mut socket, &mut stream, "{}\n")["granted"], 0);
        for wrong in ["what?\n", "{\"close\": 1}\n", "{\"open\": -1}\n", "\n"] {
            assert!(ask(&mut socket, &mut stream, wrong)["error"].is_string(), "{wrong}");
        }
        // Whoever says too much is let go; others go on.
        let mut other = UnixStream::connect(&path).unwrap();
        other.write_all(&[b'x'; LINE_MAX + 1]).unwrap();
        assert_eq!(ask(&mut socket, &mut stream, "{}\n")["opened"], 7);
        drop(socket);
        assert!(!path.exists());
    }
}
