//! An established TCP connection as one process describes it to another, so that the kernel goes on with it.
//!
//! A client writes a [`Connection`] and its bytes into a sealed memory file, and gives it to the broker with the socket
//! that is to become the connection ([`Kind::HandOver`](crate::message::Kind::HandOver)).

use core::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::message::{from_bytes, to_bytes};

/// Bytes of one connection at most: more than any send queue and receive window together.
const BYTES_MAX: usize = 256 << 20;

/// A connection's state (RFC 9293 section 3.3.1). Sequence numbers count neither side's FIN. In the machine's own byte
/// order: it does not leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Connection {
    /// This end's address; IPv4's as ::ffff:a.b.c.d.
    pub local_address: [u8; 16],
    /// The peer's, likewise.
    pub remote_address: [u8; 16],
    /// This end's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Payload of a full segment without options, in bytes.
    pub mss: u16,
    /// Shift of the peer's window (RFC 7323 section 2).
    pub send_shift: u8,
    /// Shift of ours.
    pub receive_shift: u8,
    /// SND.UNA.
    pub send_una: u32,
    /// SND.WND in bytes.
    pub send_window: u32,
    /// The largest SND.WND seen, in bytes.
    pub send_window_max: u32,
    /// SND.WL1.
    pub window_sequence: u32,
    /// RCV.NXT.
    pub receive_next: u32,
    /// RCV.WND in bytes.
    pub receive_window: u32,
    /// Our present timestamp.
    pub timestamp: u32,
    /// See [`flags`].
    pub flags: u32,
    /// Bytes before RCV.NXT that the program has not read: the first that follow in the file.
    pub unread: u32,
    /// Bytes from SND.UNA on that were sent: they follow next.
    pub sent: u32,
    /// Bytes that were not sent yet: the last.
    pub unsent: u32,
}

/// What is so of a [`Connection`].
#[allow(missing_docs, reason = "a comment for all of them would say the same again")]
pub mod flags {
    pub const SACK: u32 = 1;
    pub const TIMESTAMPS: u32 = 1 << 1;
    /// A listener accepted it: others may bind its port.
    pub const PASSIVE: u32 = 1 << 2;
    /// Our FIN: follows what was not sent, was sent, was acknowledged.
    pub const FIN_WANTED: u32 = 1 << 3;
    pub const FIN_SENT: u32 = 1 << 4;
    pub const FIN_ACKNOWLEDGED: u32 = 1 << 5;
    /// The peer's FIN.
    pub const FIN_RECEIVED: u32 = 1 << 6;
    /// It is over: a reset ends it as soon as it is there. Only what was not read is left of it, and the error.
    pub const RESET: u32 = 1 << 7;
}

impl Connection {
    /// One between these ends, with everything else zero.
    #[must_use]
    pub fn between(local: SocketAddr, remote: SocketAddr) -> Connection {
        Connection {
            local_address: to_bytes(local.ip()),
            remote_address: to_bytes(remote.ip()),
            local_port: local.port(),
            remote_port: remote.port(),
            ..Connection::new_zeroed()
        }
    }

    /// This end; not an IPv4-mapped address.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(from_bytes(self.local_address), self.local_port)
    }

    /// The peer's end.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(from_bytes(self.remote_address), self.remote_port)
    }

    /// Whether this is so: one of [`flags`].
    #[must_use]
    pub fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Bytes that follow it.
    fn bytes(&self) -> usize {
        self.unread as usize + self.sent as usize + self.unsent as usize
    }

    /// Writes it into a file that nobody can change any more. `fill` puts the connection's bytes in: unread, sent, unsent.
    ///
    /// # Errors
    /// What the kernel said, most likely ENOMEM.
    pub fn to_file(&self, fill: impl FnOnce(&mut [u8])) -> Result<OwnedFd, Errno> {
        let head = size_of::<Connection>();
        let mut bytes = vec![0; head + self.bytes()];
        bytes[..head].copy_from_slice(self.as_bytes());
        fill(&mut bytes[head..]);
        let file = memfd_create("overfly-connection", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&file, &bytes[done..], done as u64)? {
                0 => return Err(Errno::NOSPC),
                written => done += written,
            }
        }
        fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }
}

/// A connection's file, as who takes the connection over reads it: in pieces, since it may be long.
#[derive(Debug)]
pub struct Parcel<F> {
    /// What it is about.
    pub connection: Connection,
    file: F,
}

impl<F: AsFd> Parcel<F> {
    /// Reads the first part. Whatever the descriptor is, this does not wait.
    ///
    /// # Errors
    /// EINVAL if it is no such file.
    pub fn open(file: F) -> Result<Parcel<F>, Errno> {
        // Only memory files have seals: anything else could make the reader wait.
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(Errno::INVAL);
        }
        let mut head = [0; size_of::<Connection>()];
        if pread(&file, &mut head, 0)? != head.len() {
            return Err(Errno::INVAL);
        }
        let connection: Connection = zerocopy::transmute!(head);
        let length = usize::try_from(fstat(&file)?.st_size).unwrap_or(usize::MAX);
        if connection.bytes() > BYTES_MAX || length != head.len() + connection.bytes() {
            return Err(Errno::INVAL);
        }
        Ok(Parcel { connection, file })
    }

    /// Fills `piece` with the connection's bytes from `offset` on: unread, sent, unsent.
    ///
    /// # Errors
    /// EINVAL if there are not so many.
    pub fn read(&self, offset: usize, piece: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < piece.len() {
            let at = size_of::<Connection>() + offset + done;
            match pread(&self.file, &mut piece[done..], at as u64) {
                Ok(0) => return Err(Errno::INVAL),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        let (local, remote) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:40000".parse().unwrap());
        Connection { unread: 3, sent: 2, unsent: 1, ..Connection::between(local, remote) }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = connection();
        let file = written.to_file(|bytes| bytes.copy_from_slice(b"abcdef")).unwrap();
        let parcel = Parcel::open(&file).unwrap();
        let (read, mut bytes) = (parcel.connection, [0; 4]);
        parcel.read(2, &mut bytes).unwrap();
        assert_eq!((read, &bytes), (written, b"cdef"));
        assert_eq!(parcel.read(3, &mut bytes), Err(Errno::INVAL));
        assert_eq!(read.local(), "10.0.0.1:80".parse().unwrap());
        assert_eq!(pwrite(&file, b"x", 0), Err(Errno::PERM));
    }

    #[test]
    fn what_is_no_connection_is_refused() {
        let mut wrong = connection();
        wrong.sent += 1;
        let file = wrong.to_file(|_| {}).unwrap();
        assert!(Parcel::open(&file).is_ok());
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, size_of::<Connection>() as u64).unwrap();
        assert_eq!(Parcel::open(&open).err(), Some(Errno::INVAL), "it could be changed");
        let short = memfd_create("short", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&short, SEALS).unwrap();
        assert_eq!(Parcel::open(&short).err(), Some(Errno::INVAL));
        let long = memfd_create("long", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        pwrite(&long, connection().as_bytes(), 0).unwrap();
        fcntl_add_seals(&long, SEALS).unwrap();
        assert_eq!(Parcel::open(&long).err(), Some(Errno::INVAL), "its bytes are missing");
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(Parcel::open(&pipe).is_err());
    }
}
