//! A ruleset of nf_tables as the kernel has it.
//!
//! Source: include/uapi/linux/netfilter/nf_tables.h, include/uapi/linux/netfilter.h.

use std::time::Instant;

/// `NFPROTO_*` of include/uapi/linux/netfilter.h.
pub(crate) const FAMILY_INET: u8 = 1;
pub(crate) const FAMILY_IPV4: u8 = 2;
pub(crate) const FAMILY_NETDEV: u8 = 5;
pub(crate) const FAMILY_IPV6: u8 = 10;

/// All tables of a network namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ruleset {
    pub(crate) tables: Vec<Table>,
    /// When the first element of a set expires: the kernel does not say it then.
    pub(crate) expires: Option<Instant>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) family: u8,
    pub(crate) name: String,
    pub(crate) dormant: bool,
    pub(crate) chains: Vec<Chain>,
    pub(crate) sets: Vec<Set>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Chain {
    pub(crate) name: String,
    pub(crate) base: Option<Base>,
    pub(crate) rules: Vec<Rule>,
}

/// Where a chain is begun.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    /// `NF_INET_*`, or `NF_NETDEV_*` in the family netdev.
    pub(crate) hook: u32,
    pub(crate) priority: i32,
    /// `filter`, `nat` or `route`.
    pub(crate) kind: String,
    /// What is not decided is dropped.
    pub(crate) drops: bool,
    /// Interfaces of an ingress or egress chain.
    pub(crate) devices: Vec<Device>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Device {
    Name(String),
    Prefix(String),
}

impl Device {
    pub(crate) fn is(&self, name: &str) -> bool {
        match self {
            Device::Name(its) => its == name,
            Device::Prefix(prefix) => name.starts_with(prefix),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    pub(crate) handle: u64,
    pub(crate) expressions: Vec<Expression>,
}

/// A register's first byte among the registers' 80: the first 16 are the verdict's.
pub(crate) type Register = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expression {
    /// `NFT_META_*`
    LoadMeta {
        key: u32,
        to: Register,
    },
    SetMeta {
        key: u32,
    },
    /// `NFT_CT_*`; the direction where the key has one.
    LoadConntrack {
        key: u32,
        direction: Option<u8>,
        to: Register,
    },
    SetConntrack {
        key: u32,
    },
    Payload {
        base: u32,
        offset: usize,
        length: usize,
        to: Register,
    },
    Fib {
        result: u32,
        flags: u32,
        to: Register,
    },
    /// Something that is loaded and of which nothing is known; how many bytes at most.
    LoadOther {
        name: String,
        to: Register,
        length: usize,
    },
    Immediate {
        to: Register,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    Compare {
        from: Register,
        operator: u32,
        value: Vec<u8>,
    },
    Range {
        from: Register,
        inverted: bool,
        low: Vec<u8>,
        high: Vec<u8>,
    },
    Mask {
        from: Register,
        to: Register,
        and: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Another operation on bits.
    Bits {
        to: Register,
        length: usize,
    },
    ByteOrder {
        from: Register,
        to: Register,
        length: usize,
        size: usize,
    },
    Lookup {
        set: String,
        from: Register,
        to: Option<Register>,
        verdict: bool,
        inverted: bool,
    },
    /// No effect on what becomes of the packet: counter, last.
    Nothing,
    /// Says something about the packet, and nothing to it: log.
    Says(String),
    /// Goes on or not, by something that only the kernel knows: limit, quota, connlimit, a match of x_tables'.
    Sometimes(String),
    Untracked,
    Reject,
    /// A match of x_tables' that is understood.
    Match(Match),
    /// Does something that only the kernel can.
    Kernels(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    /// On with the rule.
    Continue,
    /// On with the next rule.
    Break,
    Jump(String),
    Goto(String),
    Return,
    /// To a program, or one that is not known.
    Other,
}

/// Matches of x_tables' (include/uapi/linux/netfilter/{xt_tcpudp,xt_multiport,xt_state,xt_conntrack}.h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// Ports of TCP (6) or UDP (17): low, high, inverted; and TCP's flags: mask, value, inverted.
    Ports {
        protocol: u8,
        source: (u16, u16, bool),
        destination: (u16, u16, bool),
        flags: Option<(u8, u8, bool)>,
    },
    /// One of the ranges, of the source's, the destination's or either port.
    MultiPort { source: bool, destination: bool, ranges: Vec<(u16, u16)>, inverted: bool },
    /// A bit of `NFT_CT_STATE` for each state.
    State { states: u8, inverted: bool },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Set {
    pub(crate) name: String,
    /// Rules change it: what is in it is known to the kernel alone.
    pub(crate) dynamic: bool,
    /// The elements are ranges of one field, told as their ends.
    pub(crate) interval: bool,
    pub(crate) key_length: usize,
    /// Lengths in bytes of a key's fields, each of which begins at a multiple of four; one if it is no concatenation.
    pub(crate) fields: Vec<usize>,
    pub(crate) elements: Vec<Element>,
    pub(crate) catch_all: Option<Data>,
}

/// An element: all keys with each field between two.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Vec<u8>,
    pub(crate) data: Data,
    /// What it has besides (a limit, say) decides whether it is found.
    pub(crate) sometimes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Data {
    None,
    Value(Vec<u8>),
    Verdict(u32, String),
}

impl Expression {
    /// What it is, if only the kernel can follow it.
    pub(crate) fn beyond(&self) -> Option<&str> {
        match self {
            Expression::Says(what) | Expression::Sometimes(what) | Expression::Kernels(what) => Some(what),
            Expression::LoadOther { name, .. } => Some(name),
            Expression::SetMeta { .. } => Some("meta … set"),
            Expression::SetConntrack { .. } => Some("ct … set"),
            _ => None,
        }
    }
}

impl Verdict {
    /// `NF_*` and `NFT_*` verdicts.
    pub(crate) fn new(code: u32, chain: &str) -> Verdict {
        match code.cast_signed() {
            0 => Verdict::Drop,
            1 => Verdict::Accept,
            -1 => Verdict::Continue,
            -2 => Verdict::Break,
            -3 => Verdict::Jump(chain.to_owned()),
            -4 => Verdict::Goto(chain.to_owned()),
            -5 => Verdict::Return,
            _ => Verdict::Other,
        }
    }
}

impl Table {
    pub(crate) fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    pub(crate) fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name)
    }
}

impl Ruleset {
    /// Whether any chain at all is begun by the kernel.
    pub(crate) fn is_empty(&self) -> bool {
        let judges = |table: &Table| !table.dormant && table.chains.iter().any(|chain| chain.base.is_some());
        !self.tables.iter().any(judges)
    }
}
