//! An interface that goes and comes back: a veth whose container is made anew, a driver that is loaded again.

use crate::attachment::Attachment;
use crate::error::Error;

/// What has become of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    /// It is the same, perhaps with other addresses; or still not there.
    Same,
    /// It is gone.
    Lost,
    /// One of the same name is there: stacks have new sockets.
    Renewed,
}

impl Attachment {
    /// Looks what has become of the interface and its addresses, and goes along.
    ///
    /// # Errors
    /// What the kernel said; a new interface may not be fit.
    pub(crate) fn follow(&mut self) -> Result<Followed, Error> {
        let (name, link) = self.interface_now()?;
        if name.is_some() {
            return self.refresh_addresses().map(|_| Followed::Same);
        }
        let was_lost = std::mem::replace(&mut self.lost, true);
        if let Some(link) = link
            && self.renew(&link)?
        {
            return Ok(Followed::Renewed);
        }
        if !was_lost {
            self.refresh_addresses()?;
            return Ok(Followed::Lost);
        }
        Ok(Followed::Same)
    }
}

/// Looks what has become of the interface. True if stacks have new sockets; and what its programs' users must know of it.
///
/// # Errors
/// Those of [`Attachment::follow`].
pub(crate) fn follow(attachment: &mut Attachment) -> (Result<bool, Error>, Option<String>) {
    let followed = attachment.follow();
    let name = &attachment.interface().name;
    let news = match &followed {
        Ok(Followed::Same) => None,
        Ok(Followed::Lost) => Some(format!(
            "{name} is gone: nothing is accelerated until there is an interface of that name again"
        )),
        Ok(Followed::Renewed) => Some(format!("{name} is there again, and accelerated")),
        Err(error) if attachment.lost => Some(format!("{name} was gone and is not accelerated: {error}")),
        Err(error) => Some(format!("changes of {name} cannot be followed: {error}")),
    };
    (followed.map(|followed| followed == Followed::Renewed), news)
}
