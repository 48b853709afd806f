//! Which frames of an interface belong to which stack, and who may say so.
//!
//! * [`Attachment`]: the XDP program on one interface, with its maps, pools and sockets. Needs root.
//! * [`Steering`]: an attachment as a broker gives it away ([`Backing`](overfly_broker::service::Backing)).
//! * [`host`]: attaches and serves any number of programs, as a process of its own.
//! * [`stand`]: the same as a service, for whomever a policy admits.
//! * [`host_pod`]: the same for a container, started by a node's agent.
//! * [`over_memif`], [`over_tap`]: serve a program whose frames go over memif or a tap device, which takes no privilege at all.

mod attachment;
mod beside;
mod bridge;
mod claim;
mod confined;
mod device;
mod error;
mod features;
mod firewall;
mod grants;
mod groups;
mod handover;
mod host;
mod local;
mod long_packets;
mod mirror;
mod napi;
mod netlink;
mod next_hops;
mod orphans;
mod program;
mod renewal;
mod repair;
mod socket_table;
mod steering;
mod switch;

pub use attachment::{Attachment, Counters, Options};
pub use bridge::bridge_that_answers;
pub use confined::long_frames_of;
pub use device::restore_deferral;
pub use error::Error;
pub use features::{XdpFeatures, xdp_features};
pub use firewall::firewall_in_force;
pub use host::{Hosting, host, host_pod, leave_descriptors_behind, stand};
pub use local::{over_memif, over_tap};
pub use long_packets::{
    ChecksumOffload, ReceiveOffload, checksums_of, long_packets_of, segments_of, xdp_attached,
};
pub use mirror::routing_rules;
pub use next_hops::NextHops;
pub use overfly_broker::{Interface, Protocol, Route};
pub use steering::Steering;
