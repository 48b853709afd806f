//! Connections on their way from a client into the kernel. Where the kernel has to hear something first, the way takes several
//! steps, and nobody else waits meanwhile.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use overfly_broker::connection::Parcel;
use overfly_broker::service::Peer;
use rustix::io::Errno;

use crate::attachment::{Attachment, Steered};
use crate::beside::bind_beside;
use crate::claim::Claims;
use crate::error::Error;
use crate::repair::{self, Repair, Right, Room};

/// What a client has handed over and the kernel does not have yet.
#[derive(Debug)]
pub(crate) enum Move {
    /// A connection whose frames are the client's stack's.
    Steered(Box<Steered>),
    /// A connection within the host.
    Within(Within),
}

impl Move {
    /// Goes on; `None` if that takes longer: to be called again after [`overfly_broker::service::WAITING_PAUSE`].
    pub(crate) fn go_on(&mut self, attachment: Option<&mut Attachment>) -> Option<Result<(), Error>> {
        match (self, attachment) {
            (Move::Steered(steered), Some(attachment)) => attachment.go_on_with(steered),
            (Move::Steered(_), None) => Some(Err(Error::NoKernelsAddress)),
            (Move::Within(within), _) => within.go_on(),
        }
    }
}

/// Reads what a client says of a connection.
pub(crate) fn parcel(file: OwnedFd) -> Result<Parcel<OwnedFd>, Error> {
    Parcel::open(file).map_err(|errno| Error::system("reading the connection", errno))
}

fn not_moved(errno: Errno) -> Error {
    Error::NotMoved { errno }
}

/// A connection within the host: its ends, none of which says anything before both are there.
#[derive(Debug)]
pub(crate) struct Within {
    ends: Vec<Repair>,
    /// How many of them go on already.
    done: usize,
    /// In the place of an end that is no more, until the other one goes on.
    stand_in: Option<Box<Repair>>,
}

impl Within {
    /// Makes a connection within the host out of its two ends, or of one of them if the other is no more: for each, a socket that
    /// is in no connection, the file that says what it is to be, and a socket that has the port in the kernel. Without any
    /// descriptors it is only looked whether this process may do that.
    pub(crate) fn begin(
        descriptors: Vec<OwnedFd>,
        claims: &mut Claims,
        client: Option<Peer>,
        may_do_all: impl FnOnce() -> bool,
        room: Room,
    ) -> Result<Option<Move>, Error> {
        let mut descriptors = descriptors.into_iter();
        let mut given = Vec::new();
        while let Some(socket) = descriptors.next() {
            let (Some(file), Some(holder)) = (descriptors.next(), descriptors.next()) else {
                return Err(Error::Options("each end of a connection is two sockets and a file".to_owned()));
            };
            given.push((socket, parcel(file)?, holder));
        }
        let ends = |place: usize| -> Option<(SocketAddr, SocketAddr)> {
            let (_, parcel, _) = given.get(place)?;
            Some((parcel.connection.local(), parcel.connection.remote()))
        };
        let (local, remote) = match (ends(0), ends(1), given.len()) {
            (None, ..) => return repair::probe().map_err(not_moved).map(|()| None),
            (Some(ends), None, _) => ends,
            (Some(ends), Some(other), 2) if (ends.0, ends.1) == (other.1, other.0) => ends,
            _ => return Err(Error::Options("the ends of two connections".to_owned())),
        };
        for address in [local.ip(), remote.ip()] {
            if !claims.is_of_host(address) {
                return Err(Error::NotLocal(address));
            }
        }
        for (socket, parcel, _) in &given {
            claims.check_backing(socket.as_fd(), parcel.connection.local(), client)?;
        }
        let proven: Vec<bool> = given
            .iter()
            .map(|(_, parcel, holder)| claims.proves(holder.as_fd(), parcel.connection.local()))
            .collect();
        let all = proven.contains(&false) && may_do_all();
        let mut within = Within { ends: Vec::new(), done: 0, stand_in: None };
        for ((socket, parcel, holder), proven) in given.into_iter().zip(proven) {
            let right = if proven || all { Right::Granted } else { Right::Own };
            bind_beside(&socket, proven.then_some(&holder), &parcel.connection, claims.interface());
            let end = Repair::restore(socket, parcel, claims.interface(), room, right);
            within.ends.push(end.map_err(not_moved)?);
        }
        if let [last] = &within.ends[..] {
            within.stand_in = last.stand_in(claims.interface(), room).map(Box::new);
        }
        Ok(Some(Move::Within(within)))
    }

    fn go_on(&mut self) -> Option<Result<(), Error>> {
        while let Some(end) = self.ends.get_mut(self.done) {
            match end.go_on() {
                Ok(true) => self.done += 1,
                Ok(false) => return None,
                Err(errno) => {
                    self.ends[..self.done].iter().for_each(Repair::undo);
                    return Some(Err(not_moved(errno)));
                }
            }
        }
        if let (Some(_), [last]) = (&self.stand_in, &self.ends[..]) {
            last.acknowledge();
        }
        Some(Ok(()))
    }
}
