//! A TCP/IP engine without I/O, clock, threads, or `unsafe`: frames and the time go in, frames and events come out.
//!
//! [`Engine`]'s documentation says how to drive it; [`Owner`] is the side that the engine calls.

#![forbid(unsafe_code)]

mod acknowledge;
mod answers;
mod autotune;
mod config;
mod congestion;
mod cookies;
mod counters;
mod engine;
mod fastopen;
mod flow;
mod flows;
mod handover;
mod handshake;
mod headers;
mod icmp;
mod listener;
mod moving;
mod neighbor;
mod next_segment;
mod owner;
mod paced;
mod path_mtu;
mod prefix;
mod reassembly;
mod receive;
mod recovery;
mod resolution;
mod rtt;
mod secrets;
mod segment;
mod sequence;
mod settings;
mod shared;
mod sizes;
mod syn;
mod time;
mod timers;
mod transmit;
mod tuple;
mod udp;
mod wheel;
mod window;

pub use config::{Config, ConfigError, Ecn, Route, SynCookies};
pub use congestion::{Algorithm, BbrInfo};
pub use counters::Counters;
pub use engine::Engine;
pub use flow::{Info, State, Timer};
pub use handover::{Handover, SentFin};
pub use moving::Moving;
pub use owner::{Act, Error, Event, Failure, FlowId, KeepAlive, ListenerId, Owner, REFUSED, UNWANTED};
pub use prefix::{NoPrefix, Prefix};
pub use recovery::CongestionState;
pub use time::Instant;
pub use udp::{Datagram, Report, SendError, UdpId, Unreachable};
