//! Whichever link a thread's stack is on: what is above it is compiled once.

use overfly_link::tap::TapLink;
use overfly_link::xdp::XdpLink;

use super::Stack;
use super::memif::{Dialed, Port};

/// The link of a stack that this program opens.
pub(crate) enum AnyLink {
    Xdp(XdpLink),
    Dialed(Dialed),
    Listening(Port),
    Tap(Box<TapLink>),
}

overfly_link::one_of!(AnyLink { Xdp, Dialed, Listening, Tap });

/// A stack on such a link.
pub(crate) type AnyStack = Stack<AnyLink>;
