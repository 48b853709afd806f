//! What generators and their gatherer say to each other: one JSON object a line, over TCP or a Unix socket.
//!
//! A generator says [`Said::Hello`], makes all ready, says [`Said::Ready`], tells its clock when it is asked, and
//! begins at the moment of [`Instruction::Start`]. While it runs it sends its intervals, and at the end its result.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::http::Report;
use crate::record::Record;

/// What both ends must agree on.
pub(super) const VERSION: u32 = 1;
/// A result is five histograms, some 10 KB each: whoever sends so much more is no generator.
const LINE_MAX: u64 = 64 << 20;

/// What a generator says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// The first thing.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Machine and process.
        name: String,
    },
    /// All that can be done before the start is done.
    Ready,
    /// The answer to [`Instruction::TellClock`]: ns, from a beginning of its own.
    Clock(u64),
    /// One more interval of the measured part is over.
    Interval(Box<Part>),
    /// The result; the last thing.
    Result(Box<Report>),
    /// There will be no result; the last thing.
    Failed(String),
}

/// One generator's share of one interval.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// The interval's number, from 0.
    pub(super) index: u64,
    /// When it ended, s after the measured part began.
    pub(super) until_s: f64,
    /// Connections that are open at its end.
    pub(super) open: u64,
    /// What ended in it.
    pub(super) record: Record,
}

/// What a generator is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Instruction {
    /// What does your clock say?
    TellClock,
    /// Begin when your clock says so many ns.
    Start(u64),
    /// Nothing will come of it, because…
    GiveUp(String),
}

/// Where generators meet: `HOST:PORT`, or a path, which has a slash in it.
#[derive(Debug, Clone)]
pub(super) enum MeetingPoint<'a> {
    Tcp(&'a str),
    Unix(&'a Path),
}

impl MeetingPoint<'_> {
    pub(super) fn parse<'a>(option: &'static str, given: &'a str) -> Result<MeetingPoint<'a>, Error> {
        if given.contains('/') {
            return Ok(MeetingPoint::Unix(Path::new(given)));
        }
        match given.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(MeetingPoint::Tcp(given))
            }
            _ => {
                Err(Error::usage(option, given, "HOST:PORT, or the path of a Unix socket with a slash in it"))
            }
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that is heard from.
#[derive(Debug)]
pub(super) struct Ear {
    stream: BufReader<Stream>,
}

impl Ear {
    /// The next message; `None` at the end, also when the other machine has gone without a word.
    pub(super) fn hear<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let mut line = Vec::new();
        match (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::TimedOut) =>
            {
                return Ok(None);
            }
            read => read?,
        };
        if line.last() != Some(&b'\n') {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
    }
}

/// The end that is spoken to.
#[derive(Debug)]
pub(super) struct Mouth {
    stream: Stream,
}

impl Mouth {
    pub(super) fn say<M: Serialize>(&mut self, message: &M) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.write_all(&line)
    }

    /// Nothing more is said or heard.
    pub(super) fn hang_up(&self) {
        let _ = match &self.stream {
            Stream::Tcp(stream) => rustix::net::shutdown(stream, Shutdown::Both),
            Stream::Unix(stream) => rustix::net::shutdown(stream, Shutdown::Both),
        };
    }
}

fn both(stream: Stream) -> io::Result<(Ear, Mouth)> {
    if let Stream::Tcp(tcp) = &stream {
        tcp.set_nodelay(true)?;
        end_when_the_peer_is_gone(tcp)?;
    }
    Ok((Ear { stream: BufReader::new(stream.try_clone()?) }, Mouth { stream }))
}

/// A machine that loses power says nothing: ask it after 5 s of silence, and give it up after 10 more.
fn end_when_the_peer_is_gone(tcp: impl AsFd) -> io::Result<()> {
    sockopt::set_socket_keepalive(&tcp, true)?;
    sockopt::set_tcp_keepidle(&tcp, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(&tcp, Duration::from_secs(2))?;
    Ok(sockopt::set_tcp_keepcnt(&tcp, 5)?)
}

/// Joins whoever gathers at this place.
pub(super) fn connect(place: &MeetingPoint<'_>) -> io::Result<(Ear, Mouth)> {
    both(match place {
        MeetingPoint::Tcp(address) => Stream::Tcp(TcpStream::connect(address)?),
        MeetingPoint::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
    })
}

/// Where a gatherer waits. A Unix socket's path is removed with it.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    pub(super) fn open(place: &MeetingPoint<'_>) -> io::Result<Listener> {
        Ok(match place {
            MeetingPoint::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
            MeetingPoint::Unix(path) => Listener::Unix(UnixListener::bind(path)?, path.to_path_buf()),
        })
    }

    /// Where it is, as `--join` takes it.
    pub(super) fn place(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
            }
            Listener::Unix(_, path) => path.display().to_string(),
        }
    }

    /// The next one to come; `None` after [`Listener::close`].
    pub(super) fn accept(&self) -> Option<(Ear, Mouth)> {
        loop {
            let accepted = match self {
                Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
                Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            };
            match accepted.and_then(both) {
                Ok(both) => return Some(both),
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return None,
                // It has gone again, or descriptors have run out: others may do better in a moment.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Wakes whoever is in [`Listener::accept`].
    pub(super) fn close(&self) {
        let _ = match self {
            Listener::Tcp(listener) => rustix::net::shutdown(listener, Shutdown::Both),
            Listener::Unix(listener, _) => rustix::net::shutdown(listener, Shutdown::Both),
        };
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
