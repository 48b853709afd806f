//! The JSON form of a run, as `python3 -m overfly.astf compile` writes it: `python/overfly/astf/schema.json` says what each part
//! means. It holds every default, so nothing is filled in here.

use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;

/// The version of the form that this reads.
pub(crate) const VERSION: u32 = 1;

/// A run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Form {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) groups: Vec<String>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) programs: Vec<Program>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) templates: Vec<Template>,
    pub(crate) tunnels: Vec<Tunnel>,
    pub(crate) probes: Vec<Probe>,
}

/// A profile of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Profile {
    pub(crate) file: String,
    pub(crate) rampup_sec: Option<u32>,
}

/// Payload: `base64`, then `fill_base64` over and over.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Buffer {
    pub(crate) base64: String,
    pub(crate) bytes: u32,
    pub(crate) fill_base64: Option<String>,
}

/// What one side does.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Program {
    pub(crate) commands: Vec<Command>,
    pub(crate) file: String,
    pub(crate) lines: Vec<u64>,
}

/// How a jump compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Comparison {
    Lt,
    Gt,
    Eq,
    Ge,
    Le,
    Ne,
}

/// A user counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum UserCounter {
    A,
    B,
    C,
    D,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    Connect,
    Send { buffer: u32 },
    Recv { bytes: i64, clear: bool },
    SendMsg { buffer: u32 },
    RecvMsg { messages: i64, clear: bool },
    Keepalive { idle_ms: u32, received_only: bool },
    CloseMsg,
    Delay { us: u32 },
    DelayRandom { min_us: u32, max_us: u32 },
    Reset,
    WaitForPeerClose,
    SendMode { blocking: bool },
    SetVar { var: u8, value: i64 },
    AddVar { var: u8, value: i64 },
    SetTimer { timer: u8 },
    AddTimer { timer: u8, ns: i64 },
    Jump { to: u32 },
    JumpNonzero { var: u8, to: u32 },
    JumpBefore { timer: u8, ns: i64, to: u32 },
    JumpIf { var: u8, is: Comparison, value: i64, to: u32 },
    Count { counter: UserCounter, value: i64 },
    CountTime { counter: UserCounter, timer: u8 },
    SetNextTemplate { template: u16 },
    ExecTemplate,
}

/// The order in which addresses are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distribution {
    Seq,
    Rand,
}

/// A range of addresses.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Pool {
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    pub(crate) distribution: Distribution,
}

/// What carries a template's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// One kind of flow.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Template {
    pub(crate) profile: usize,
    pub(crate) transport: Transport,
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) group: Option<usize>,
    #[serde(rename = "capture")]
    _capture: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
}

/// The side that opens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Client {
    pub(crate) program: usize,
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    pub(crate) port: u16,
    pub(crate) cps: f64,
    pub(crate) tcp: Tcp,
    pub(crate) ip: Ip,
    pub(crate) ipv6: Ipv6,
    pub(crate) path: Path,
    pub(crate) limit: Option<u32>,
    #[serde(default)]
    pub(crate) keep_open: bool,
    pub(crate) first_core: Option<u16>,
}

/// The side that answers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) program: usize,
    pub(crate) rules: Vec<Rule>,
    pub(crate) tcp: Tcp,
    pub(crate) ip: Ip,
    #[serde(rename = "ipv6")]
    _ipv6: Ipv6,
    pub(crate) path: Path,
}

/// Which flows are a server template's.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    pub(crate) port: u16,
    pub(crate) first: Option<IpAddr>,
    pub(crate) last: Option<IpAddr>,
    pub(crate) payload: Option<Payload>,
}

/// Bytes of the first payload.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Payload {
    pub(crate) offsets: Vec<u16>,
    pub(crate) masks: Vec<u8>,
    pub(crate) values: Vec<u8>,
}

/// Tunables of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Tcp {
    pub(crate) mss: u16,
    pub(crate) initwnd: u32,
    pub(crate) rxbufsize: u32,
    pub(crate) txbufsize: u32,
    pub(crate) no_delay: u8,
    pub(crate) do_rfc1323: u8,
    pub(crate) do_sack: u8,
    pub(crate) cc_algo: u8,
    pub(crate) do_ecn: u8,
    pub(crate) reass_maxqlen: u16,
    pub(crate) keepinit: u32,
    pub(crate) keepidle: u32,
    pub(crate) keepintvl: u32,
    pub(crate) delay_ack_msec: u32,
}

/// Tunables of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Ip {
    pub(crate) tos: u8,
    pub(crate) ttl: Option<u8>,
}

/// Tunables of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Ipv6 {
    pub(crate) enable: u8,
    pub(crate) src_msb: Option<Ipv6Addr>,
    pub(crate) dst_msb: Option<Ipv6Addr>,
}

/// What becomes of packets on their way: `delay_usec` less or more `jitter_usec`, and of a million `loss_ppm` are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Path {
    pub(crate) delay_usec: u32,
    pub(crate) jitter_usec: u32,
    pub(crate) loss_ppm: u32,
}

/// A latency probe. Those of other pairs of links than the first are left out.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Probe {
    pub(crate) link_pair: u64,
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
}

/// What a tunnel is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TunnelKind {
    Gtpu,
    Vxlan,
    Vlan,
}

/// The clients `first` to `last` are behind a tunnel.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Tunnel {
    pub(crate) kind: TunnelKind,
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    pub(crate) active: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) identity: Option<u32>,
    pub(crate) identity_step: Option<u32>,
    pub(crate) source_port: Option<u16>,
    pub(crate) outer_source: Option<IpAddr>,
    pub(crate) outer_destination: Option<IpAddr>,
}

impl Form {
    /// Reads the form.
    ///
    /// # Errors
    /// What is wrong with it: it was not written by this version's `python/overfly`.
    pub(crate) fn read(text: &[u8]) -> Result<Form, String> {
        let form: Form = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if form.format != "overfly-astf" || form.version != VERSION {
            return Err(format!(
                "it is {} version {}, not overfly-astf version {VERSION}",
                form.format, form.version
            ));
        }
        Ok(form)
    }
}
