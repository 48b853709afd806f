//! Two ends in memory, on virtual time: frames take their time, and some are lost. For tests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use overfly_wire::FrameSink;

use super::{Each, Wire};
use crate::random::SplitMix;

/// One way, on the virtual clock.
pub(crate) const DELAY_NS: u64 = 50_000;

/// Both directions: frames under way with the time of their arrival.
pub(crate) struct Network {
    pub(crate) now_ns: u64,
    random: SplitMix,
    pub(crate) loss_per_mille: u64,
    under_way: [VecDeque<(u64, Vec<u8>)>; 2],
}

impl Network {
    /// A network and its two ends.
    pub(crate) fn new(seed: u64, loss_per_mille: u64) -> (Rc<RefCell<Network>>, [End; 2]) {
        let network = Rc::new(RefCell::new(Network {
            now_ns: 0,
            random: SplitMix::new(seed),
            loss_per_mille,
            under_way: Default::default(),
        }));
        let end = |out| End { network: network.clone(), out, frame: vec![0; 2048] };
        let ends = [end(0), end(1)];
        (network, ends)
    }
}

/// One end: sends into direction `out`, receives from the other.
pub(crate) struct End {
    network: Rc<RefCell<Network>>,
    out: usize,
    frame: Vec<u8>,
}

impl FrameSink for End {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.frame)
    }

    fn commit(&mut self, length: usize) {
        let mut network = self.network.borrow_mut();
        let loss = network.loss_per_mille;
        if network.random.below(1000) >= loss {
            let arrival_ns = network.now_ns + DELAY_NS;
            network.under_way[self.out].push_back((arrival_ns, self.frame[..length].to_vec()));
        }
    }
}

impl Wire for End {
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        for count in 0..budget {
            let mut network = self.network.borrow_mut();
            let now_ns = network.now_ns;
            let inbound = &mut network.under_way[1 - self.out];
            match inbound.front() {
                Some((arrival_ns, _)) if *arrival_ns <= now_ns => {}
                _ => return count,
            }
            let frame = inbound.pop_front();
            drop(network);
            if let Some((_, frame)) = frame {
                each(&frame);
            }
        }
        budget
    }

    fn flush(&mut self) {}

    fn each_counter(&self, each: Each<'_>) {
        each("link", "mtu", 1500);
    }
}
