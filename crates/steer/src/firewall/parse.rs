//! The kernel's messages about tables, chains, rules, sets and elements.
//!
//! Source: include/uapi/linux/netfilter/{nf_tables,nf_tables_compat}.h; their numbers are in network byte order, registers'
//! values as they are compared. Whatever is not understood becomes something that only the kernel can judge.

use std::time::{Duration, Instant};

use super::ruleset::{
    Base, Chain, Data, Device, Element, Expression, Match, Register, Rule, Set, Table, Verdict,
};
use crate::netlink::attributes;

/// Of a message or a nested attribute.
#[derive(Clone, Copy)]
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn value(self, kind: u16) -> Option<&'a [u8]> {
        attributes(self.0).find(|(its, _)| *its == kind).map(|(_, value)| value)
    }

    fn inside(self, kind: u16) -> Attributes<'a> {
        Attributes(self.value(kind).unwrap_or_default())
    }

    fn number(self, kind: u16) -> Option<u32> {
        self.value(kind)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn long(self, kind: u16) -> Option<u64> {
        self.value(kind)?.get(..8)?.try_into().ok().map(u64::from_be_bytes)
    }

    fn text(self, kind: u16) -> Option<String> {
        self.value(kind).map(text)
    }

    /// The elements of a list (`NFTA_LIST_ELEM`).
    fn list(self) -> impl Iterator<Item = Attributes<'a>> {
        attributes(self.0).filter(|(kind, _)| *kind == 1).map(|(_, value)| Attributes(value))
    }
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// Of which family a message is, and its attributes, behind `struct nfgenmsg`.
fn body(message: &[u8]) -> Option<(u8, Attributes<'_>)> {
    Some((*message.first()?, Attributes(message.get(4..)?)))
}

/// `NFTA_GEN_ID`.
pub(crate) fn generation(message: &[u8]) -> Option<u32> {
    body(message)?.1.number(1)
}

/// `NFTA_TABLE_*`.
pub(crate) fn table(message: &[u8]) -> Option<Table> {
    const DORMANT: u32 = 1;
    let (family, table) = body(message)?;
    Some(Table {
        family,
        name: table.text(1)?,
        dormant: table.number(2).unwrap_or(0) & DORMANT != 0,
        ..Table::default()
    })
}

/// Whose something is: a family and a table's name.
pub(crate) type Owner = (u8, String);

/// `NFTA_CHAIN_*`, `NFTA_HOOK_*`.
pub(crate) fn chain(message: &[u8]) -> Option<(Owner, Chain)> {
    let (family, chain) = body(message)?;
    let base = chain.value(4).map(|hook| {
        let hook = Attributes(hook);
        let mut devices: Vec<Device> = hook.text(3).map(Device::Name).into_iter().collect();
        devices.extend(attributes(hook.inside(4).0).filter_map(|(kind, name)| match kind {
            1 => Some(Device::Name(text(name))),
            2 => Some(Device::Prefix(text(name))),
            _ => None,
        }));
        Base {
            hook: hook.number(1).unwrap_or(u32::MAX),
            priority: hook.number(2).unwrap_or(0).cast_signed(),
            kind: chain.text(7).unwrap_or_default(),
            drops: chain.number(5) == Some(0),
            devices,
        }
    });
    Some(((family, chain.text(1)?), Chain { name: chain.text(3)?, base, rules: Vec::new() }))
}

/// `NFTA_RULE_*`. With the name of its chain.
pub(crate) fn rule(message: &[u8]) -> Option<(Owner, String, Rule)> {
    let (family, rule) = body(message)?;
    let expressions = rule.inside(4).list().flat_map(expressions).collect();
    let handle = rule.long(3).unwrap_or(0);
    Some(((family, rule.text(1)?), rule.text(2)?, Rule { handle, expressions }))
}

/// `NFTA_SET_*`, without its elements.
pub(crate) fn set(message: &[u8]) -> Option<(Owner, Set)> {
    const INTERVAL: u32 = 0x4;
    const DYNAMIC: u32 = 0x20;
    let (family, set) = body(message)?;
    let flags = set.number(3).unwrap_or(0);
    let key_length = set.number(5)? as usize;
    // NFTA_SET_DESC_CONCAT, NFTA_SET_FIELD_LEN.
    let mut fields: Vec<usize> =
        set.inside(9).inside(2).list().filter_map(|field| field.number(1)).map(|len| len as usize).collect();
    let described: usize = fields.iter().map(|length| length.next_multiple_of(4)).sum();
    let concatenation = fields.len() > 1 && described == key_length.next_multiple_of(4);
    if !concatenation {
        fields = vec![key_length];
    }
    Some((
        (family, set.text(1)?),
        Set {
            name: set.text(2)?,
            dynamic: flags & DYNAMIC != 0,
            interval: flags & INTERVAL != 0 && !concatenation,
            key_length,
            fields,
            ..Set::default()
        },
    ))
}

/// An element as the kernel tells it: of a set of ranges, one end.
#[derive(Debug)]
pub(crate) struct RawElement {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    ends_range: bool,
    catch_all: bool,
    data: Data,
    sometimes: bool,
    expires: Option<Instant>,
}

/// `NFTA_SET_ELEM_LIST_*`.
pub(crate) fn elements(message: &[u8], now: Instant) -> Option<Vec<RawElement>> {
    let (_, list) = body(message)?;
    Some(list.inside(3).list().map(|element| raw_element(element, now)).collect())
}

fn raw_element(element: Attributes<'_>, now: Instant) -> RawElement {
    const INTERVAL_END: u32 = 1;
    const CATCH_ALL: u32 = 2;
    let flags = element.number(3).unwrap_or(0);
    let harmless =
        |expression: Attributes<'_>| matches!(expression.text(1).as_deref(), Some("counter" | "last"));
    let single = element.value(7).is_none_or(|expression| harmless(Attributes(expression)));
    let sometimes = !single || !element.inside(11).list().all(harmless);
    // What is left of its time, in milliseconds; the kernel leaves it out where there is no end.
    let expires = element.long(5).and_then(|rest| now.checked_add(Duration::from_millis(rest)));
    RawElement {
        key: element.inside(1).value(1).unwrap_or_default().to_vec(),
        key_end: element.value(10).map(|key| Attributes(key).value(1).unwrap_or_default().to_vec()),
        ends_range: flags & INTERVAL_END != 0,
        catch_all: flags & CATCH_ALL != 0,
        data: element.value(2).map_or(Data::None, |value| data(Attributes(value))),
        sometimes,
        expires,
    }
}

fn data(data: Attributes<'_>) -> Data {
    match (data.value(1), data.value(2)) {
        (Some(value), _) => Data::Value(value.to_vec()),
        (None, Some(verdict)) => {
            let verdict = Attributes(verdict);
            Data::Verdict(verdict.number(1).unwrap_or(u32::MAX - 99), verdict.text(2).unwrap_or_default())
        }
        (None, None) => Data::None,
    }
}

impl Set {
    /// Takes its elements; returns when the first of them expires.
    pub(crate) fn fill(&mut self, mut raw: Vec<RawElement>) -> Option<Instant> {
        let expires = raw.iter().filter_map(|element| element.expires).min();
        if let Some(at) = raw.iter().position(|element| element.catch_all) {
            self.catch_all = Some(raw.remove(at).data);
        }
        if !self.interval {
            let whole = raw.into_iter().map(|raw| {
                let high = raw.key_end.unwrap_or_else(|| raw.key.clone());
                Element { low: raw.key, high, data: raw.data, sometimes: raw.sometimes }
            });
            self.elements = whole.collect();
            return expires;
        }
        // Each range is told as its first key and the first behind it (net/netfilter/nft_set_rbtree.c).
        raw.sort_by(|a, b| (&a.key, !a.ends_range).cmp(&(&b.key, !b.ends_range)));
        let mut raw = raw.into_iter().peekable();
        while let Some(first) = raw.next() {
            if first.ends_range {
                continue;
            }
            let high = match (first.key_end, raw.peek()) {
                (Some(high), _) => high,
                (None, Some(next)) => before(&next.key),
                (None, None) => vec![0xff; first.key.len()],
            };
            let element = Element { low: first.key, high, data: first.data, sometimes: first.sometimes };
            self.elements.push(element);
        }
        expires
    }
}

/// The key before this one.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            break;
        }
    }
    key
}

/// A register's first byte (`nft_parse_register`): 1 to 4 have 16 bytes each, those from 8 on 4.
fn register(number: Option<u32>) -> Option<Register> {
    match number? {
        number @ 0..=4 => Some(number as usize * 16),
        number @ 8..=23 => Some((number as usize - 4) * 4),
        _ => None,
    }
}

/// What one expression of the kernel's says; a value that goes to the verdict's register is a verdict.
fn expressions(expression: Attributes<'_>) -> Vec<Expression> {
    let name = expression.text(1).unwrap_or_default();
    let kernels = || vec![Expression::Kernels(name.clone())];
    parse_expression(&name, expression.inside(2)).map_or_else(kernels, |one| vec![one])
}

fn parse_expression(name: &str, of: Attributes<'_>) -> Option<Expression> {
    const WRITTEN: usize = 64;
    let to = |kind| register(of.number(kind)).filter(|register| *register >= 16);
    let loaded =
        |kind, length| to(kind).map(|to| Expression::LoadOther { name: name.to_owned(), to, length });
    match name {
        "meta" => match of.number(2)? {
            key if of.value(3).is_some() => Some(Expression::SetMeta { key }),
            key => Some(Expression::LoadMeta { key, to: to(1)? }),
        },
        "ct" => match of.number(2)? {
            key if of.value(4).is_some() => Some(Expression::SetConntrack { key }),
            key => {
                let direction = of.value(3).and_then(|value| value.first()).copied();
                Some(Expression::LoadConntrack { key, direction, to: to(1)? })
            }
        },
        "payload" if of.value(5).is_none() => Some(Expression::Payload {
            base: of.number(2)?,
            offset: of.number(3)? as usize,
            length: of.number(4)? as usize,
            to: to(1)?,
        }),
        "fib" => Some(Expression::Fib { result: of.number(2)?, flags: of.number(3)?, to: to(1)? }),
        "immediate" => match (register(of.number(1))?, data(of.inside(2))) {
            (0, Data::Verdict(code, chain)) => Some(Expression::Verdict(Verdict::new(code, &chain))),
            (to @ 16.., Data::Value(value)) => Some(Expression::Immediate { to, value }),
            _ => None,
        },
        "cmp" => {
            let Data::Value(value) = data(of.inside(3)) else { return None };
            Some(Expression::Compare { from: to(1)?, operator: of.number(2)?, value })
        }
        "range" => {
            let (Data::Value(low), Data::Value(high)) = (data(of.inside(3)), data(of.inside(4))) else {
                return None;
            };
            Some(Expression::Range { from: to(1)?, inverted: of.number(2)? != 0, low, high })
        }
        "bitwise" => bitwise(of),
        "byteorder" => Some(Expression::ByteOrder {
            from: to(1)?,
            to: to(2)?,
            length: of.number(4)? as usize,
            size: of.number(5)? as usize,
        }),
        "lookup" => {
            const INVERTED: u32 = 1;
            let register = register(of.number(3));
            Some(Expression::Lookup {
                set: of.text(1)?,
                from: to(2)?,
                to: register.filter(|register| *register > 0),
                verdict: register == Some(0),
                inverted: of.number(5).unwrap_or(0) & INVERTED != 0,
            })
        }
        "counter" | "last" => Some(Expression::Nothing),
        "log" => Some(Expression::Says("log".to_owned())),
        "limit" | "quota" | "connlimit" => Some(Expression::Sometimes(name.to_owned())),
        "notrack" => Some(Expression::Untracked),
        "reject" => Some(Expression::Reject),
        "objref" => match of.number(1) {
            Some(1) => Some(Expression::Nothing), // a counter
            Some(2 | 4 | 5) => Some(Expression::Sometimes("object".to_owned())), // quota, limit, connlimit
            _ => None,
        },
        "rt" | "osf" | "numgen" | "xfrm" => loaded(1, WRITTEN),
        "exthdr" if of.value(7).is_none() => loaded(1, WRITTEN),
        "socket" | "hash" | "tunnel" => loaded(2, WRITTEN),
        "match" => Some(matching(of)),
        "target" => match of.text(1)?.as_str() {
            "REJECT" => Some(Expression::Reject),
            says @ ("LOG" | "NFLOG") => Some(Expression::Says(says.to_owned())),
            other => Some(Expression::Kernels(other.to_owned())),
        },
        _ => None,
    }
}

fn bitwise(of: Attributes<'_>) -> Option<Expression> {
    let (from, to) = (register(of.number(1))?, register(of.number(2))?);
    let length = (of.number(3)? as usize).min(64);
    match (of.number(6).unwrap_or(0), data(of.inside(4)), data(of.inside(5))) {
        (0, Data::Value(and), Data::Value(xor)) if and.len() == length && xor.len() == length => {
            Some(Expression::Mask { from, to, and, xor })
        }
        _ => Some(Expression::Bits { to, length }),
    }
}

/// `NFTA_MATCH_*`: one of x_tables' that is understood, or one that nobody knows.
fn matching(of: Attributes<'_>) -> Expression {
    let name = of.text(1).unwrap_or_default();
    let (revision, info) = (of.number(2).unwrap_or(0), of.value(3).unwrap_or_default());
    if name == "comment" {
        return Expression::Nothing;
    }
    let understood = match (name.as_str(), revision) {
        ("tcp", 0) => ports(info, 6),
        ("udp", 0) => ports(info, 17),
        ("multiport", 1) => multiport(info),
        ("state", 0) => native(info, 0).map(|mask| (u32::from(mask), false)).and_then(states),
        ("conntrack", 2 | 3) => conntrack(info),
        _ => None,
    };
    match understood {
        Some(understood) => Expression::Match(understood),
        // These remember what they saw.
        None if matches!(name.as_str(), "recent" | "hashlimit" | "connlimit" | "rateest" | "nfacct") => {
            Expression::Kernels(name)
        }
        None => Expression::Sometimes(name),
    }
}

fn native(info: &[u8], at: usize) -> Option<u16> {
    info.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// `struct xt_tcp`, `struct xt_udp`.
fn ports(info: &[u8], protocol: u8) -> Option<Match> {
    const OPTION: u8 = 0x08;
    let is_tcp = protocol == 6;
    let inverted = *info.get(if is_tcp { 11 } else { 8 })?;
    if is_tcp && (info[8] != 0 || inverted & OPTION != 0) {
        return None;
    }
    Some(Match::Ports {
        protocol,
        source: (native(info, 0)?, native(info, 2)?, inverted & 1 != 0),
        destination: (native(info, 4)?, native(info, 6)?, inverted & 2 != 0),
        flags: is_tcp.then(|| (info[9], info[10], inverted & 4 != 0)),
    })
}

/// `struct xt_multiport_v1`.
fn multiport(info: &[u8]) -> Option<Match> {
    let (which, count, inverted) = (*info.first()?, usize::from(*info.get(1)?), *info.get(47)? != 0);
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < count.min(15) {
        let low = native(info, 2 + 2 * at)?;
        let is_range = info[32 + at] != 0;
        at += usize::from(is_range);
        ranges.push((low, native(info, 2 + 2 * at.min(14))?));
        at += 1;
    }
    Some(Match::MultiPort { source: which != 1, destination: which != 0, ranges, inverted })
}

/// `struct xt_conntrack_mtinfo2` and 3, if they ask for the state alone.
fn conntrack(info: &[u8]) -> Option<Match> {
    const STATE: u16 = 1;
    const ALIAS: u16 = 1 << 13;
    const UNTRACKED: u32 = 1 << 8; // of these bits; of the others it is 1 << 6
    let (asked, inverted, mask) = (native(info, 146)?, native(info, 148)?, u32::from(native(info, 150)?));
    if asked & !ALIAS != STATE {
        return None;
    }
    // Bits of translated addresses: such connections are none of ours.
    let mask = mask & 0x0f | if mask & UNTRACKED != 0 { 1 << 6 } else { 0 };
    states((mask, inverted & STATE != 0))
}

fn states((mask, inverted): (u32, bool)) -> Option<Match> {
    Some(Match::State { states: u8::try_from(mask).ok()?, inverted })
}
