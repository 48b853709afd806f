//! What the firewall's rules say of what stacks have.

use super::Attachment;
use crate::error::Error;
use crate::firewall::Firewall;

impl Attachment {
    /// Reads the firewall's rules again if they have changed, and judges listeners and connections by them.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn refresh_firewall(&mut self) -> Result<(), Error> {
        let changed = self.firewall.as_mut().is_some_and(Firewall::refresh);
        if changed { self.judge() } else { Ok(()) }
    }

    /// Programs of control groups judge the packets of these stacks, and of no others, which nobody follows.
    pub(crate) fn set_judged(&mut self, stacks: impl Iterator<Item = u16>) -> Result<(), Error> {
        let changed = self.firewall.as_mut().is_some_and(|firewall| firewall.set_judged(stacks));
        if changed { self.judge() } else { Ok(()) }
    }

    /// Judges listeners and connections again.
    fn judge(&mut self) -> Result<(), Error> {
        let places = self.places();
        let Some(firewall) = self.firewall.as_mut() else { return Ok(()) };
        let judged = firewall.judge_places(&mut self.program, &places);
        let opened = self.connections.iter().map(|(flow, opened)| (flow, opened.stack));
        let judged = judged.and(firewall.judge_connections(&mut self.program, &places, opened));
        self.note_change();
        judged
    }
}
