//! The ruleset of this thread's network namespace, read from the kernel.

use std::time::Instant;

use rustix::io::Errno;

use super::parse;
use super::ruleset::{Chain, Ruleset, Set, Table};
use crate::netlink::{Netlink, Request};

/// `NFNL_SUBSYS_NFTABLES << 8`; messages are `NFT_MSG_*`.
const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const GET_SET: u16 = SUBSYSTEM | 10;
const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
const GET_GENERATION: u16 = SUBSYSTEM | 16;
const ALL_FAMILIES: u8 = 0;
/// How often a ruleset that changes while it is read is read again.
const TRIES: u32 = 20;

/// Reads all tables.
///
/// # Errors
/// What the kernel said; `EAGAIN` if the ruleset changes all the time. A kernel without nf_tables has no rules.
pub(crate) fn read(netlink: &mut Netlink) -> Result<Ruleset, Errno> {
    for _ in 0..TRIES {
        let before = match generation(netlink) {
            // No such subsystem.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Ruleset::default()),
            other => other?,
        };
        let ruleset = match read_once(netlink) {
            // A table or a set that went meanwhile; a dump that was overtaken.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            other => other?,
        };
        if generation(netlink)? == before {
            return Ok(ruleset);
        }
    }
    Err(Errno::AGAIN)
}

fn generation(netlink: &mut Netlink) -> Result<Option<u32>, Errno> {
    let mut found = None;
    netlink.exchange(Request::netfilter(GET_GENERATION, 0, ALL_FAMILIES), |_, body| {
        found = parse::generation(body);
    })?;
    Ok(found)
}

fn dump(netlink: &mut Netlink, request: Request, each: impl FnMut(u16, &[u8])) -> Result<(), Errno> {
    netlink.exchange(request, each)?;
    if netlink.was_interrupted() { Err(Errno::INTR) } else { Ok(()) }
}

fn read_once(netlink: &mut Netlink) -> Result<Ruleset, Errno> {
    let everything = |kind| Request::netfilter(kind, Netlink::DUMP, ALL_FAMILIES);
    let mut tables: Vec<Table> = Vec::new();
    dump(netlink, everything(GET_TABLE), |_, body| tables.extend(parse::table(body)))?;
    if tables.is_empty() {
        return Ok(Ruleset::default());
    }
    let mut unplaced = false;
    let mut chains: Vec<(parse::Owner, Chain)> = Vec::new();
    dump(netlink, everything(GET_CHAIN), |_, body| match parse::chain(body) {
        Some(chain) => chains.push(chain),
        None => unplaced = true,
    })?;
    let mut rules = Vec::new();
    dump(netlink, everything(GET_RULE), |_, body| match parse::rule(body) {
        Some(rule) => rules.push(rule),
        None => unplaced = true,
    })?;
    let mut sets: Vec<(parse::Owner, Set)> = Vec::new();
    dump(netlink, everything(GET_SET), |_, body| match parse::set(body) {
        Some(set) => sets.push(set),
        None => unplaced = true,
    })?;
    if unplaced {
        return Err(Errno::BADMSG);
    }
    let mut expires: Option<Instant> = None;
    for ((family, table), set) in &mut sets {
        let mut request = Request::netfilter(GET_ELEMENTS, Netlink::DUMP, *family);
        request.attribute(1, &[table.as_bytes(), &[0]].concat());
        request.attribute(2, &[set.name.as_bytes(), &[0]].concat());
        let (mut raw, now) = (Vec::new(), Instant::now());
        dump(netlink, request, |_, body| match parse::elements(body, now) {
            Some(list) => raw.extend(list),
            None => unplaced = true,
        })?;
        expires = expires.into_iter().chain(set.fill(raw)).min();
    }
    if unplaced {
        return Err(Errno::BADMSG);
    }
    for ((family, name), set) in sets {
        if let Some(table) = find(&mut tables, family, &name) {
            table.sets.push(set);
        }
    }
    for ((family, name), chain) in chains {
        if let Some(table) = find(&mut tables, family, &name) {
            table.chains.push(chain);
        }
    }
    for ((family, name), chain, rule) in rules {
        let chain = find(&mut tables, family, &name)
            .and_then(|table| table.chains.iter_mut().find(|its| its.name == chain));
        chain.ok_or(Errno::AGAIN)?.rules.push(rule);
    }
    Ok(Ruleset { tables, expires })
}

fn find<'a>(tables: &'a mut [Table], family: u8, name: &str) -> Option<&'a mut Table> {
    tables.iter_mut().find(|table| table.family == family && table.name == name)
}
