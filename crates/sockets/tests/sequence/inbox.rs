//! The driver's end of the connections that actors have with it. No thread stands between: what an actor has said can be heard at once.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) enum News {
    /// An actor, of this process.
    Came(char, u32),
    Said(char, String),
    Gone(char),
}

/// Takes the actors of one sequence.
pub(crate) struct Inbox {
    path: PathBuf,
    listener: UnixListener,
    actors: BTreeMap<char, UnixStream>,
    heard: VecDeque<News>,
}

impl Inbox {
    pub(crate) fn new(path: &Path) -> Inbox {
        let listener = UnixListener::bind(path).unwrap();
        Inbox { path: path.to_owned(), listener, actors: BTreeMap::new(), heard: VecDeque::new() }
    }

    pub(crate) fn has(&self, actor: char) -> bool {
        self.actors.contains_key(&actor)
    }

    /// False if it has gone.
    pub(crate) fn tell(&mut self, actor: char, line: &str) -> bool {
        // At once: half a line would wake it as well.
        self.actors
            .get_mut(&actor)
            .is_some_and(|stream| stream.write_all(format!("{line}\n").as_bytes()).is_ok())
    }

    /// What comes next, until then.
    pub(crate) fn next(&mut self, end: Instant) -> Option<News> {
        loop {
            if let Some(news) = self.heard.pop_front() {
                return Some(news);
            }
            let left = end.saturating_duration_since(Instant::now());
            let listener = PollFd::new(&self.listener, PollFlags::IN);
            let streams = self.actors.values().map(|stream| PollFd::new(stream, PollFlags::IN));
            let mut polled: Vec<_> = std::iter::once(listener).chain(streams).collect();
            match poll(&mut polled, Some(&Timespec::try_from(left).unwrap())) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => panic!("poll: {error}"),
            }
            let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            let talking: Vec<char> = self.actors.keys().copied().collect();
            if ready[0] {
                self.take();
            }
            talking
                .into_iter()
                .zip(&ready[1..])
                .filter(|(_, ready)| **ready)
                .for_each(|(actor, _)| self.hear(actor));
        }
    }

    /// One more actor, which says who it is.
    fn take(&mut self) {
        let (mut stream, _) = self.listener.accept().unwrap();
        let hello = read_lines(&mut stream).unwrap_or_default();
        if let Some((name, process)) = hello.trim_end().split_once(' ') {
            let name = name.parse().unwrap();
            self.actors.insert(name, stream);
            self.heard.push_back(News::Came(name, process.parse().unwrap()));
        }
    }

    fn hear(&mut self, actor: char) {
        let Some(stream) = self.actors.get_mut(&actor) else { return };
        match read_lines(stream) {
            Some(lines) => self.heard.extend(lines.lines().map(|line| News::Said(actor, line.to_owned()))),
            None => {
                self.actors.remove(&actor);
                self.heard.push_back(News::Gone(actor));
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whole lines; `None` at the end.
fn read_lines(stream: &mut UnixStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut some = [0; 512];
    while bytes.last() != Some(&b'\n') {
        match stream.read(&mut some) {
            Ok(count @ 1..) => bytes.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(String::from_utf8(bytes).unwrap())
}
