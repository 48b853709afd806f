//! What the machine asks for, and asks.

use core::time::Duration;

use overfly_engine::Instant;

use super::Calls;
use crate::interest::SetId;
use crate::socket::SocketId;

/// A timer that the machine sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// Wakes one of those who stand by.
    Alarm,
    /// Wakes the library's own thread.
    Background,
}

/// What is around the machine: a stack, the program's sets, and the kernel.
pub(crate) trait World {
    /// The time.
    fn now(&self) -> Instant;
    /// When frames were last looked for.
    fn looked(&self) -> Instant;
    /// When somebody has to look even if no frame comes.
    fn next_look(&self) -> Option<Instant>;
    /// The next frame wakes whoever watches the links. False if there are frames already.
    fn arm(&mut self) -> bool;

    /// Whether anything became ready since this was last asked.
    fn take_news(&mut self) -> bool;
    /// What has come concerns everybody.
    fn is_urgent(&self) -> bool;
    /// A thread will sleep until something happens to a socket.
    fn awaits(&mut self, socket: SocketId);
    /// Nothing has happened to it since.
    fn is_awaited(&self, socket: SocketId) -> bool;

    /// A set has something at user level.
    fn is_ready(&self, set: SetId) -> bool;
    /// The links are in it, or were before it stood by.
    fn is_joined(&self, set: SetId) -> bool;
    /// It is watched as a descriptor.
    fn is_exposed(&self, set: SetId) -> bool;
    /// A child could be who waits in it.
    fn is_shared(&self, set: SetId) -> bool;
    /// Before somebody looks: sets that are watched as descriptors say what they have.
    fn signal_exposed(&mut self);
    /// What wakes those who sleep in a set, if there is something.
    fn signal_of(&self, set: SetId) -> Option<i32>;
    /// It leaves the set.
    fn leaves(&mut self, signal: i32, set: SetId);

    /// A new signal, for a waiter that polls.
    fn make_signal(&mut self) -> Option<i32>;
    /// It is readable from now on,
    fn raise(&mut self, signal: i32);
    /// or no more.
    fn lower(&mut self, signal: i32);
    /// Threads wake that sleep each on a futex.
    fn call(&mut self, calls: &Calls);
    /// A timer rings once, so long from now.
    fn ring(&mut self, timer: Timer, after: Duration);
    /// It has rung, or is about to: it is readable no more.
    fn silence(&mut self, timer: Timer);
    /// The library's own thread looks again what it is to do.
    fn wake_background(&mut self);
}
