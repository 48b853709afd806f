//! What is between a stack and its link: the paths that are simulated, and the latency probe.

use std::sync::Arc;

use overfly_wire::{FrameSink, Unfinished};

use super::path::{Note, Underway};
use super::probe::{Probe, ProbeTimes};
use super::wire::{End, HasEnd};
use crate::link::{Each, Gone, Stack, Wire};

/// A wire with what a run puts before it. With nothing, frames pass as they would without.
#[derive(Debug)]
pub(crate) struct Way<W> {
    wire: W,
    path: Option<Box<Underway>>,
    probe: Option<Box<Probe>>,
}

impl<W: Wire> Way<W> {
    pub(crate) fn new(wire: W, path: Option<Underway>, probe: Option<Probe>) -> Way<W> {
        Way { wire, path: path.map(Box::new), probe: probe.map(Box::new) }
    }

    /// The stack on this wire.
    pub(crate) fn before(stack: Stack<W>, path: Option<Underway>, probe: Option<Probe>) -> Stack<Way<W>> {
        let Stack { engine, wire, local, ports, epoch_ns, hops } = stack;
        Stack { engine, wire: Way::new(wire, path, probe), local, ports, epoch_ns, hops }
    }

    /// Where the side says whose bytes it writes, if anybody reads it.
    pub(crate) fn note(&self) -> Option<Arc<Note>> {
        self.path.as_ref().map(|path| path.note.clone())
    }

    /// Time has gone on: what has arrived goes out, and probes that are due, but none any more when the run `ends`.
    #[inline]
    pub(crate) fn at(&mut self, now_us: u64, ends: bool) {
        if let Some(path) = &mut self.path {
            path.at(now_us);
            path.release(&mut self.wire);
        }
        if let Some(probe) = &mut self.probe {
            probe.at(now_us, ends, &mut self.wire);
        }
    }

    /// When something is due that no frame brings, µs.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let path = self.path.as_ref().and_then(|path| path.next_us());
        path.into_iter().chain(self.probe.as_ref().and_then(|probe| probe.next_us())).min()
    }

    /// Frames under way.
    pub(crate) fn held(&self) -> usize {
        self.path.as_ref().map_or(0, |path| path.held())
    }

    pub(crate) fn path(&self) -> Option<&Underway> {
        self.path.as_deref()
    }

    pub(crate) fn probes(&self) -> impl Iterator<Item = &ProbeTimes> {
        self.probe.iter().flat_map(|probe| probe.times())
    }

    #[inline]
    fn takes(&mut self, length: usize, left: Option<Unfinished>) -> bool {
        let Some(path) = &mut self.path else { return false };
        // What is not committed is given again as it was left.
        self.wire.frame().is_some_and(|frame| path.takes(&frame[..length], left))
    }
}

impl<W: HasEnd> HasEnd for Way<W> {
    fn end(&mut self) -> &mut End {
        self.wire.end()
    }

    fn has_taken_all(&self) -> bool {
        self.wire.has_taken_all()
    }

    fn prepare(&self, prepare: impl FnOnce(&mut dyn Iterator<Item = &[u8]>)) {
        self.wire.prepare(prepare);
    }
}

impl<W: Wire> FrameSink for Way<W> {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.wire.frame()
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        if !self.takes(length, None) {
            self.wire.commit(length);
        }
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        if !self.takes(length, Some(left)) {
            self.wire.commit_unfinished(length, left);
        }
    }
}

impl<W: Wire> Wire for Way<W> {
    #[inline]
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        match &mut self.probe {
            None => self.wire.receive(budget, each),
            Some(probe) => self.wire.receive(budget, |frame| {
                if !probe.takes(frame) {
                    each(frame);
                }
            }),
        }
    }

    #[inline]
    fn flush(&mut self) {
        if let Some(path) = &mut self.path {
            path.release(&mut self.wire);
        }
        self.wire.flush();
    }

    #[inline]
    fn room(&self) -> Option<u32> {
        self.wire.room()
    }

    #[inline]
    fn take_gone(&mut self) -> Option<Gone> {
        self.wire.take_gone()
    }

    fn each_counter(&self, each: Each<'_>) {
        self.wire.each_counter(each);
    }

    fn each_kernel_counter(&self, each: Each<'_>) {
        self.wire.each_kernel_counter(each);
    }
}
