//! A socket that takes orders while a run goes on: one JSON object a line, in and out. What the orders are is the run's affair.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Clients at a time at most.
const CLIENTS_MAX: usize = 16;
/// Longest request, bytes.
pub(crate) const LINE_MAX: usize = 4096;
/// Bytes that a client may leave unread.
const UNREAD_MAX: usize = 1 << 20;

/// Where orders are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// A Unix socket, which is made and removed.
    Unix(PathBuf),
    /// A TCP socket.
    Tcp(std::net::SocketAddr),
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

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }
}

struct Client {
    stream: Stream,
    line: Vec<u8>,
    unread: Vec<u8>,
}

/// The socket and whoever is connected to it. Nothing of it ever waits.
pub(crate) struct ControlSocket {
    listener: Listener,
    clients: Vec<Client>,
}

impl ControlSocket {
    /// Makes the socket.
    pub(crate) fn open(control: &Control) -> Result<ControlSocket, Error> {
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

    /// Accepts whoever came, and answers what was asked. Each line is a `W`, or refused; `answer` says what comes of it, or why it cannot be.
    pub(crate) fn serve<W: DeserializeOwned, A: Serialize>(
        &mut self,
        expected: &str,
        mut answer: impl FnMut(W) -> Result<A, String>,
    ) {
        while self.clients.len() < CLIENTS_MAX
            && let Some(stream) = self.accept()
        {
            self.clients.push(Client { stream, line: Vec::new(), unread: Vec::new() });
        }
        self.clients.retain_mut(|client| client.serve(expected, &mut answer).is_ok());
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
    fn serve<W: DeserializeOwned, A: Serialize>(
        &mut self,
        expected: &str,
        answer: &mut impl FnMut(W) -> Result<A, String>,
    ) -> std::io::Result<()> {
        let mut buffer = [0; LINE_MAX];
        loop {
            self.write()?;
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
                let wish = serde_json::from_slice::<W>(&line)
                    .map_err(|error| format!("{error}; expected {expected}"));
                let text = match wish.and_then(&mut *answer) {
                    Ok(answer) => serde_json::to_string(&answer),
                    Err(error) => serde_json::to_string(&Refusal { error }),
                }
                .unwrap_or_default();
                self.unread.extend_from_slice(text.as_bytes());
                self.unread.push(b'\n');
                if self.unread.len() > UNREAD_MAX {
                    return Err(ErrorKind::InvalidData.into());
                }
            }
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        while !self.unread.is_empty() {
            match self.stream.write(&self.unread) {
                Ok(written) => drop(self.unread.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
