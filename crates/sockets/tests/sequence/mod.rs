//! Sequences of calls: what they are, how they are played, and what is known of their differences.

pub(crate) mod compare;
pub(crate) mod forks;
pub(crate) mod found;
pub(crate) mod inbox;
pub(crate) mod kinds;
pub(crate) mod known;
pub(crate) mod passed;
pub(crate) mod play;
pub(crate) mod rest;
pub(crate) mod script;
pub(crate) mod stall;
pub(crate) mod urgent;
pub(crate) mod waits;
