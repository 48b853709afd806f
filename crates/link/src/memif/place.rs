//! The file of a listener's socket: who may connect there, and which file may be replaced.

use core::time::Duration;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, open, statat, unlink,
};
use rustix::io::Errno;
use rustix::net::{bind, connect, listen};

use super::Address;
use super::control::make_socket;
use crate::Error;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Who may connect, less what the umask takes away: the user; the group only with a umask that lets groups write.
const MODE: u32 = 0o660;
/// How long another process may take to make or replace its own socket in the same folder.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(5);

/// Has `socket` listen at an address. Returns the file that this made.
///
/// # Errors
/// [`Error::MemifTaken`], [`Error::MemifFile`], or what the kernel said.
pub(super) fn listen_at(socket: &OwnedFd, address: &Address) -> Result<Option<SocketFile>, Error> {
    let place = address.socket_address()?;
    // Until it listens, the new socket looks like an abandoned one.
    let lock = address.path().map(Lock::of_the_folder_of);
    if lock.is_some() {
        // bind(2) makes the file with the socket's mode: there is no moment at which it has another.
        fchmod(socket, Mode::from_raw_mode(MODE))
            .map_err(|errno| Error::system("fchmod of a memif socket", errno))?;
    }
    let bound = match bind(socket, &place) {
        Err(Errno::ADDRINUSE) => match (address.path(), lock.as_ref()) {
            (Some(path), Some(lock)) if remove(address, path, lock)? => bind(socket, &place),
            _ => Err(Errno::ADDRINUSE),
        },
        bound => bound,
    };
    bound.map_err(|errno| match errno {
        Errno::ADDRINUSE => Error::MemifTaken(address.to_string()),
        errno => Error::system("binding a memif socket", errno),
    })?;
    listen(socket, BACKLOG).map_err(|errno| Error::system("listening on a memif socket", errno))?;
    Ok(address.path().and_then(SocketFile::new))
}

/// Takes away the socket's file if nobody listens there any more: who did was killed. Returns whether it did.
///
/// # Errors
/// [`Error::MemifFile`] if what is there is no socket of this user's, or what the kernel said.
pub fn remove_abandoned(address: &Address) -> Result<bool, Error> {
    let Some(path) = address.path() else { return Ok(false) };
    remove(address, path, &Lock::of_the_folder_of(path))
}

fn remove(address: &Address, path: &str, lock: &Lock) -> Result<bool, Error> {
    let is = |what: String| Error::MemifFile { address: address.to_string(), what };
    let Ok(before) = look_at(path) else { return Ok(false) };
    match FileType::from_raw_mode(before.st_mode) {
        FileType::Socket => {}
        FileType::RegularFile => return Err(is("an ordinary file".to_owned())),
        FileType::Symlink => return Err(is("a symbolic link".to_owned())),
        FileType::Directory => return Err(is("a folder".to_owned())),
        _ => return Err(is("a device or a pipe".to_owned())),
    }
    if connect(make_socket()?, &address.socket_address()?) != Err(Errno::CONNREFUSED) {
        return Ok(false);
    }
    if before.st_uid != rustix::process::geteuid().as_raw() {
        return Err(is(format!("an old socket of user {}'s", before.st_uid)));
    }
    if lock.0.is_none() {
        return Err(is("an old socket, in a folder that another program has locked (flock),".to_owned()));
    }
    if look_at(path).is_ok_and(|now| identity(&now) == identity(&before)) {
        unlink(path).map_err(|errno| Error::system("removing an old memif socket", errno))?;
    }
    Ok(true)
}

/// Of the name itself, not of what a symbolic link leads to.
fn look_at(path: &str) -> Result<Stat, Errno> {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

/// Which file it is.
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A file that this process made. Dropping it takes the file away, unless another one has its name by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: String,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &str) -> Option<SocketFile> {
        let stat = look_at(path).ok()?;
        Some(SocketFile { path: path.to_owned(), identity: identity(&stat) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _lock = Lock::of_the_folder_of(&self.path);
        if look_at(&self.path).is_ok_and(|stat| identity(&stat) == self.identity) {
            let _ = unlink(&self.path);
        }
    }
}

/// Keeps two processes from replacing the same file at the same time: one would take away what the other has just made. It is
/// an flock(2) of the folder, which ends with the process and leaves nothing behind. `None` if it can't be had: then nothing
/// is replaced.
struct Lock(Option<OwnedFd>);

impl Lock {
    fn of_the_folder_of(path: &str) -> Lock {
        let folder = match path.rsplit_once('/') {
            Some(("", _)) => "/",
            Some((folder, _)) => folder,
            None => ".",
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = open(folder, flags, Mode::empty()) else { return Lock(None) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Lock(Some(folder)),
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(_) => return Lock(None),
            }
        }
    }
}
