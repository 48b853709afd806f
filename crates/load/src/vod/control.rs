//! The control socket: one JSON object a line, in and out, over a Unix or a TCP socket.
//!
//! `{"open": 256}` opens so many streams more, `{"stop": true}` ends the run, and any object, `{}` too, is answered with how
//! the streams do: `{"granted":256,"opened":320,"connecting":0,"filling":12,"streaming":308,"dropped":0,"failed":0,…}`.
//! What is none of these is answered with `{"error": "…"}`.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ramp::Standing;
use super::settings::Control;
use crate::error::Error;

/// Clients at a time at most.
const CLIENTS_MAX: usize = 16;
/// Longest request, bytes.
const LINE_MAX: usize = 4096;

/// What somebody asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wish {
    /// So many streams more.
    pub(super) open: u64,
    /// The end of the run.
    pub(super) stop: bool,
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// Streams that are going to be opened because of this wish.
    pub(super) granted: u64,
    #[serde(flatten)]
    pub(super) standing: Standing,
    /// Most streams that lasted until now.
    pub(super) sustained: u64,
}

#[derive(Serialize)]
struct Refusal {
    error: String,
}

enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

struct Client {
    stream: Stream,
    line: Vec<u8>,
}

/// The socket and whoever is connected to it. Nothing of it ever waits.
pub(super) struct ControlSocket {
    listener: Listener,
    clients: Vec<Client>,
}

impl ControlSocket {
    pub(super) fn open(control: &Control) -> Result<ControlSocket, Error> {
        let listener = match control {
            Control::Unix(path) => UnixListener::bind(path).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener, path.clone()))
            }),
            Control::Tcp(address) => TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }),
        };
        let listener = listener.map_err(|error| {
            let place = match control {
                Control::Unix(path) => path.display().to_string(),
                Control::Tcp(address) => address.to_string(),
            };
            Error::machine(format!("--control {place}"), error)
        })?;
        Ok(ControlSocket { listener, clients: Vec::new() })
    }

    /// Accepts whoever came, and answers what was asked.
    pub(super) fn serve(&mut self, mut answer: impl FnMut(Wish) -> Answer) {
        while self.clients.len() < CLIENTS_MAX
            && let Some(stream) = self.accept()
        {
            self.clients.push(Client { stream, line: Vec::new() });
        }
        self.clients.retain_mut(|client| client.serve(&mut answer).is_ok());
    }

    fn accept(&self) -> Option<Stream> {
        match &self.listener {
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(true).ok()?;
                Some(Stream::Unix(stream))
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(true).ok()?;
                Some(Stream::Tcp(stream))
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = &self.listener {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Client {
    /// Answers the lines that are there. An error ends the connection: it closed, said too much, or does not read.
    fn serve(&mut self, answer: &mut impl FnMut(Wish) -> Answer) -> std::io::Result<()> {
        let mut buffer = [0; LINE_MAX];
        loop {
            let received = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for byte in &buffer[..received] {
                if *byte != b'\n' {
                    self.line.push(*byte);
                    if self.line.len() > LINE_MAX {
                        return Err(ErrorKind::InvalidData.into());
                    }
                    continue;
                }
                let line = std::mem::take(&mut self.line);
                let text = match serde_json::from_slice::<Wish>(&line) {
                    Ok(wish) => serde_json::to_string(&answer(wish)),
                    Err(error) => serde_json::to_string(&Refusal {
                        error: format!("{error}; expected {{\"open\": N}}, {{\"stop\": true}} or {{}}"),
                    }),
                };
                self.stream.write_all((text.unwrap_or_default() + "\n").as_bytes())?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    /// Sends a line and serves until an answer is there.
    fn ask(socket: &mut ControlSocket, stream: &mut UnixStream, line: &str) -> serde_json::Value {
        stream.write_all(line.as_bytes()).unwrap();
        socket.serve(|wish| Answer {
            granted: wish.open.min(10),
            standing: Standing { opened: 7, streaming: 5, ..Standing::default() },
            sustained: u64::from(wish.stop),
        });
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
        assert_eq!(socket.clients.len(), 1);
        drop(socket);
        assert!(!path.exists());
    }
}
