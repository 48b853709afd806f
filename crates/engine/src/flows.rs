//! The control blocks, in a slab, and the table that finds them by address.

use core::hash::Hasher;
use core::net::{Ipv4Addr, SocketAddrV4};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use crate::flow::{Flags, Flow};
use crate::wheel::{Link, Links};

/// All flows of an engine. Memory for `max` of them is reserved at once and touched as they come.
pub(crate) struct Flows {
    slab: Vec<Flow>,
    free: Vec<u32>,
    max: u32,
    table: HashTable<u32>,
    hasher: SipHasher13,
}

/// Hashes of an address pair, keyed: peers choose tuples.
#[derive(Clone, Copy)]
pub(crate) struct TupleHash(pub(crate) u64);

impl Flows {
    pub(crate) fn new(max: u32, hasher: SipHasher13) -> Self {
        Self {
            slab: Vec::with_capacity(max as usize),
            free: Vec::new(),
            max,
            table: HashTable::with_capacity(max.min(1 << 16) as usize),
            hasher,
        }
    }

    pub(crate) fn hash(&self, local: SocketAddrV4, remote: SocketAddrV4) -> TupleHash {
        tuple_hash(&self.hasher, local, remote)
    }

    pub(crate) fn find(&self, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
        let hash = self.hash(local, remote);
        self.table
            .find(hash.0, |&index| {
                let flow = &self.slab[index as usize];
                flow.remote == remote && flow.local == local
            })
            .copied()
    }

    /// Takes a control block for `flow` and enters it into the table. The tuple must not be there yet.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<u32> {
        let hash = self.hash(flow.local, flow.remote);
        let index = match self.free.pop() {
            Some(index) => {
                self.slab[index as usize] = flow;
                index
            }
            None if self.slab.len() < self.max as usize => {
                self.slab.push(flow);
                self.slab.len() as u32 - 1
            }
            None => return None,
        };
        self.slab[index as usize].flags.set(Flags::IN_TABLE);
        let Self { slab, table, hasher, .. } = self;
        table.insert_unique(hash.0, index, |&index| {
            let flow = &slab[index as usize];
            tuple_hash(hasher, flow.local, flow.remote).0
        });
        Some(index)
    }

    /// Takes the flow out of the table: its tuple may be used again, its control block stays.
    pub(crate) fn unhook(&mut self, index: u32) {
        let flow = &mut self.slab[index as usize];
        if flow.flags.take(Flags::IN_TABLE) {
            let hash = tuple_hash(&self.hasher, flow.local, flow.remote);
            if let Ok(entry) = self.table.find_entry(hash.0, |&other| other == index) {
                entry.remove();
            }
        }
    }

    /// Gives the control block back. It must be out of the table and the wheel.
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    pub(crate) fn get(&self, index: u32) -> &Flow {
        &self.slab[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.slab[index as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max as usize
    }
}

impl Links for Flows {
    fn link(&mut self, index: u32) -> &mut Link {
        &mut self.slab[index as usize].link
    }
}

fn tuple_hash(hasher: &SipHasher13, local: SocketAddrV4, remote: SocketAddrV4) -> TupleHash {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&local.ip().octets());
    bytes[4..8].copy_from_slice(&remote.ip().octets());
    bytes[8..10].copy_from_slice(&local.port().to_ne_bytes());
    bytes[10..].copy_from_slice(&remote.port().to_ne_bytes());
    TupleHash(hasher.hash(&bytes))
}

/// A number for an address pair that peers cannot guess and that stays the same (RFC 7323 section 5.4's offset).
pub(crate) fn pair_hash(hasher: &SipHasher13, local: Ipv4Addr, remote: Ipv4Addr) -> u32 {
    let mut hasher = *hasher;
    hasher.write(&local.octets());
    hasher.write(&remote.octets());
    hasher.finish() as u32
}
