//! What clients ask for, and their answers.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::observers::{Observed, deliver};
use super::{Asked, Backing, Denial, Event, Outcome, Service, Session, receive};
use crate::Refusal;
use crate::message::{Kind, MESSAGE_LEN_MAX, Reply, Request, RequestMessage, Welcome};

/// Messages of one connection that are read before others have their turn.
const IN_NUMBERS: usize = 64;
/// Why a process out of the broker's sight gets nothing.
const UNSEEN: &str = "a process that nobody sees";

impl<B: Backing> Service<B> {
    /// Reads a message of a connection and does what it says; more of them where they come in numbers.
    pub(super) fn hear(&mut self, index: usize) {
        for _ in 0..IN_NUMBERS {
            if self.hear_one(index) != Some(Kind::Disconnect) || self.connections[index].over {
                break;
            }
        }
    }

    fn hear_one(&mut self, index: usize) -> Option<Kind> {
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let connection = &mut self.connections[index];
        let (length, descriptors) = match receive(&connection.socket, &mut bytes) {
            Ok((length, descriptors)) if length > 0 => (length, descriptors),
            Err(Errno::AGAIN | Errno::INTR) => return None,
            _ => {
                connection.over = true;
                return None;
            }
        };
        let message = bytes.get(..length).unwrap_or_default(); // longer than any message: none
        let request = match connection.session {
            Session::Client { waiting: None, .. } => RequestMessage::parse(message),
            // A leash and a lease say nothing more, and a client waits for its answer.
            Session::Leash | Session::Lease | Session::Client { .. } => None,
        };
        match request {
            Some(request) => {
                let kind = request.kind;
                self.serve(index, request, descriptors);
                return Some(kind);
            }
            None => {
                connection.over = true;
                self.count(|counters| counters.messages_refused += 1);
            }
        }
        None
    }

    fn serve(&mut self, index: usize, request: Request, descriptors: Vec<OwnedFd>) {
        let share = match request.kind {
            Kind::OpenStack => self.has_share(self.connections[index].program),
            _ => Ok(()),
        };
        let Service { backing, connections, .. } = self;
        let connection = &mut connections[index];
        let stack = connection.stack();
        let delivered = match request.kind {
            Kind::Interface => {
                let welcome = Welcome::new(&backing.interface());
                deliver(&connection.socket, welcome.as_bytes(), &[])
            }
            Kind::Show => match connection.peer.map(Observed::new) {
                Some(Ok(observed)) => {
                    let delivered = observed.deliver(&connection.socket, stack);
                    connection.observed = Some(observed);
                    delivered
                }
                Some(Err(error)) => {
                    return self.reply(index, Err(Denial::new(Refusal::Other, error.to_string())));
                }
                None => return self.reply(index, Err(Denial::new(Refusal::StackState, UNSEEN))),
            },
            Kind::Finish => {
                connection.finished = true;
                return self.reply(index, Ok(None));
            }
            Kind::OpenStack if let Some(stack) = stack => {
                match backing.renew_stack(connection.asker(), stack) {
                    Ok(delivered) => delivered,
                    Err(error) => return self.reply(index, Err(error.into())),
                }
            }
            Kind::OpenStack => {
                match share.and_then(|()| backing.open_stack(connection.asker()).map_err(Into::into)) {
                    Ok((opened, delivered)) => {
                        connection.session = Session::Client { stack: Some(opened), waiting: None };
                        delivered
                    }
                    Err(denial) => {
                        if let Some(peer) = connection.peer {
                            let (process, user, reason) = (peer.number(), peer.user, denial.reason.clone());
                            self.note(Event::NoStack { process, user, reason });
                        }
                        return self.reply(index, Err(denial));
                    }
                }
            }
            _ => match backing.ask(connection.asker(), stack, request, descriptors) {
                Asked::Now(outcome) => return self.reply(index, outcome.map_err(Into::into)),
                Asked::Later(begun) => {
                    connection.session = Session::Client { stack, waiting: Some(begun) };
                    return;
                }
            },
        };
        self.count(|counters| counters.requests_granted += 1);
        self.note_delivery(index, delivered);
    }

    /// Goes on with what a connection waits for.
    pub(super) fn look_after(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let Session::Client { stack, waiting: waiting @ Some(_) } = &mut connection.session else { return };
        if connection.over {
            *waiting = None;
            return;
        }
        let stack = *stack;
        let Some(outcome) = waiting.as_mut().and_then(|begun| self.backing.go_on(stack, begun)) else {
            return;
        };
        *waiting = None;
        self.reply(index, outcome.map_err(Into::into));
    }

    fn reply(&mut self, index: usize, outcome: Outcome<Denial>) {
        let granted = outcome.is_ok();
        let reply = match outcome {
            Ok(route) => Reply::yes(route),
            Err(Denial { refusal, reason }) => Reply::no(refusal, &reason),
        };
        self.count(|counters| {
            counters.requests_granted += u64::from(granted);
            counters.requests_refused += u64::from(!granted);
        });
        let delivered = deliver(&self.connections[index].socket, reply.as_bytes(), &[]);
        self.note_delivery(index, delivered);
    }

    fn note_delivery(&mut self, index: usize, delivered: bool) {
        if !delivered {
            self.connections[index].over = true;
            self.count(|counters| counters.answers_undelivered += 1);
        }
    }
}
