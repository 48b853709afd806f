//! Tells the XDP program what the rules say.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

use overfly_broker::Protocol;

use super::{Firewall, Span};
use crate::error::Error;
use crate::groups::BoundAddress;
use crate::program::{FlowKey, Group, Program};

impl Firewall {
    /// Says of each place who is let through to it: before the program knows the place.
    pub(crate) fn judge_places(
        &mut self,
        program: &mut Program,
        places: &BTreeMap<BoundAddress, Group>,
    ) -> Result<(), Error> {
        let judged = if self.is_empty() && self.judged == 0 {
            BTreeMap::new()
        } else {
            places.iter().map(|(place, group)| (*place, self.admitted(place, group))).collect()
        };
        // Until places are judged, and after they no longer are, nobody must ask of them.
        if judged.is_empty() {
            program.set_firewall(false, program.verdicts.refuse())?;
        }
        let result = program.verdicts.set_places(&judged);
        program.set_firewall(program.verdicts.judge(), program.verdicts.refuse())?;
        result
    }

    /// Who is let through to a place. Which of the stacks there will have a connection, nobody knows beforehand.
    fn admitted(&mut self, place: &BoundAddress, group: &Group) -> Span {
        if group.has_any(self.judged) {
            return Span::none();
        }
        self.listening(place).accepted.clone()
    }

    /// Of the connections that stacks have, says which are refused now. `opened` are those that stacks have opened.
    pub(crate) fn judge_connections<'a>(
        &mut self,
        program: &mut Program,
        places: &BTreeMap<BoundAddress, Group>,
        opened: impl Iterator<Item = (&'a FlowKey, u16)>,
    ) -> Result<(), Error> {
        let ends = |flow: &FlowKey| {
            let protocol = if flow.protocol() == Protocol::Tcp as u8 { Protocol::Tcp } else { Protocol::Udp };
            let (local, remote): (SocketAddr, SocketAddr) = flow.ends();
            (BoundAddress::new(protocol, local), remote)
        };
        let mut refused = HashSet::new();
        for (flow, stack) in opened {
            let (local, remote) = ends(flow);
            if self.is_judged(stack) || !self.lets_go_on(&local, remote, false) {
                refused.insert(*flow);
            }
        }
        let mut tcp = places.keys().filter(|place| place.protocol == Protocol::Tcp);
        if self.judged != 0 || tcp.any(|place| !self.lets_all_go_on(place)) {
            for (flow, stack) in program.recorded() {
                let (local, remote) = ends(&flow);
                if self.is_judged(stack) || !self.lets_go_on(&local, remote, true) {
                    refused.insert(flow);
                }
            }
        }
        program.verdicts.set_refused(refused)?;
        program.set_firewall(program.verdicts.judge(), program.verdicts.refuse())
    }

    /// Whether somebody might be let through to one of these places.
    ///
    /// # Errors
    /// [`Error::Firewall`] if a rule that cannot be followed is in the way of all: then the kernel had better serve them alone.
    pub(crate) fn admits_somebody<'a>(
        &mut self,
        places: impl Iterator<Item = &'a BoundAddress>,
    ) -> Result<(), Error> {
        let mut blame = None;
        if self.is_empty() {
            return Ok(());
        }
        for place in places {
            let listening = self.listening(place);
            match &listening.blame {
                Some(rule) => blame = Some(rule.clone()),
                None => return Ok(()),
            }
        }
        blame.map_or(Ok(()), |rule| Err(Error::Firewall(format!("nobody can be let in for certain: {rule}"))))
    }
}
