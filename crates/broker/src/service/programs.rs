//! Which programs are served, and how many stacks each may have.

use std::os::fd::OwnedFd;

use super::ready::is_readable;
use super::{Applicant, Backing, Connection, Denial, Event, Peer, Service, Share, Term};
use crate::Refusal;

impl<B: Backing> Service<B> {
    /// What a program gets that wants to be served.
    ///
    /// # Errors
    /// Says why it is not.
    pub(super) fn judge(
        &mut self,
        socket: &OwnedFd,
        peer: Option<Peer>,
    ) -> Result<Option<(u32, Share)>, String> {
        const NOT_OURS: &str =
            "the programs of this interface are another user's, or run over another version of Overfly";
        let Some(admission) = &mut self.admission else {
            return if peer.is_some_and(Peer::may_join) { Ok(None) } else { Err(NOT_OURS.to_owned()) };
        };
        let process = peer.and_then(|peer| peer.handle(socket));
        let alive = || process.as_ref().is_some_and(|process| !is_readable(process));
        let applicant = peer.and_then(|peer| Applicant::of(socket, peer, alive));
        let applicant = applicant.ok_or("the process that asks is out of the broker's sight")?;
        let judged = match self.term {
            Term::Parting(_) => Err("the broker was told to end, and takes no more programs".to_owned()),
            _ => admission.judge(&applicant),
        };
        match judged {
            Ok(share) => {
                let share = share.map(|share| (applicant.user, share));
                admission.note(Event::Begun(applicant));
                Ok(share)
            }
            Err(reason) => {
                admission.note(Event::Refused(applicant, reason.clone()));
                Err(reason)
            }
        }
    }

    /// Whether a program has room for one more stack.
    ///
    /// # Errors
    /// That it has not.
    pub(super) fn has_share(&self, program: u64) -> Result<(), Denial> {
        let share_of = |number: u64| self.programs.iter().find(|its| its.number == number)?.share.as_ref();
        let Some((user, share)) = share_of(program) else { return Ok(()) };
        let same = |one: &&Connection<B::Waiting>| {
            let its = share_of(one.program);
            one.stack().is_some() && its.is_some_and(|(its, other)| its == user && other.rule == share.rule)
        };
        if self.connections.iter().filter(same).count() < usize::from(share.stacks) {
            return Ok(());
        }
        Err(Denial::new(
            Refusal::NoStack,
            format!(
                "this user's programs have the {} stacks that the broker's policy gives them: let fewer processes use the interface, or raise `stacks` there",
                share.stacks
            ),
        ))
    }
}
