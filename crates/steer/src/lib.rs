//! Which frames of an interface belong to which stack, and who may say so.
//!
//! * [`Attachment`]: the XDP program on one interface, with its maps, pools and sockets. Needs root.
//! * [`Broker`]: serves an attachment to the processes of a program that has no privilege.
//! * [`host`]: the same for any number of programs, as a process of its own.
//! * [`stand`]: the same as a service, for whomever a policy admits ([`Admission`]).
//! * [`host_pod`]: the same for a container, started by a node's agent, which knows by [`Agent`] who asks.
//! * [`LocalBroker`]: the same for a program whose frames go over memif or a tap device, which takes no privilege at all.

mod admission;
mod agent;
mod attachment;
mod bridge;
mod broker;
mod claim;
mod confined;
mod device;
mod door;
mod error;
mod features;
mod firewall;
mod grants;
mod groups;
mod handover;
mod host;
#[cfg(test)]
#[path = "../tests/lab/mod.rs"]
mod lab;
mod local_broker;
mod long_packets;
mod mirror;
mod napi;
mod netlink;
mod observers;
mod orphans;
mod program;
mod ready;
mod renewal;
mod repair;
mod service;
mod serving;
mod socket_table;
mod steering;
mod switch;

pub use admission::{Admission, Applicant, Event, Share};
pub use agent::{Agent, Caller};
pub use attachment::{Attachment, Counters, Options};
pub use bridge::bridge_that_answers;
pub use broker::{Broker, BrokerCounters};
pub use confined::long_frames_of;
pub use device::restore_deferral;
pub use error::Error;
pub use features::{XdpFeatures, xdp_features};
pub use firewall::firewall_in_force;
pub use host::{Hosting, host, host_pod, leave_descriptors_behind, stand};
pub use local_broker::LocalBroker;
pub use long_packets::{ReceiveOffload, long_packets_of, segments_of, xdp_attached};
pub use mirror::routing_rules;
pub use overfly_link::broker::{Interface, Protocol, Route};
pub use ready::readable;
