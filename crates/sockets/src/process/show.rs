//! What the process shows of itself: see [`overfly_broker::watch`].

use core::time::Duration;
use std::os::fd::AsRawFd;

use overfly_broker::Error;
use overfly_broker::watch::Show;
use overfly_broker::{Client, Greeted};
use overfly_engine::Instant;
use overfly_link::Link;

use super::Process;
use crate::bound;
use crate::kernel::now;
use crate::numbers;
use crate::socket::Side;
use crate::stack::Stack;
use crate::table::{self, Entry};

/// While the process is busy, how often its counters are shown.
const PAUSE: Duration = Duration::from_millis(1);

impl Process {
    /// Has something to show for the first time, or something new. Where the broker cannot be asked nobody sees.
    pub(crate) fn begin_to_show(&mut self) {
        if self.stack.show.is_none() {
            let Ok(mut client) = self.take_client() else { return };
            let shown = client.show();
            self.session.client = Some(client);
            let Ok((memory, doorbell)) = shown else { return };
            self.stack.show = Show::open(&memory, numbers::make_internal(doorbell)).ok();
        }
        let mut names = Vec::new();
        self.each_counter(|group, name, _| names.push(format!("{group}.{name}")));
        if let Some(show) = &mut self.stack.show {
            show.name(names.iter().map(String::as_str));
        }
        self.show();
    }

    /// The connection to the broker, made if there is none.
    pub(super) fn take_client(&mut self) -> Result<Client, Error> {
        if let Some(client) = self.session.client.take() {
            return Ok(client);
        }
        let greeted = self.session.greet()?;
        self.welcomed(greeted)
    }

    /// Waits until a broker has answered.
    pub(super) fn welcomed(&mut self, greeted: Greeted) -> Result<Client, Error> {
        match greeted.welcome() {
            Ok(interface) => {
                // There was no broker when this process was forked.
                if self.context == 0 && self.session.leash.is_none() {
                    let _ = self.try_connect_leash();
                }
                Ok(Client::welcomed(greeted, interface))
            }
            Err(error) => {
                table::enter(greeted.as_fd().as_raw_fd(), Entry::Kernel);
                Err(error)
            }
        }
    }

    /// Observers see this process no more.
    pub(super) fn stop_showing(&mut self) {
        if let Some(show) = self.stack.show.take() {
            table::enter(show.doorbell().as_raw_fd(), Entry::Kernel);
        }
        self.stack.captured = false;
    }

    /// Shows the counters if they have not been for a while, and looks what else has changed meanwhile.
    pub(super) fn show_sometimes(&mut self) {
        if self.pumped - self.shown >= PAUSE {
            self.shown = self.pumped;
            self.share_memory();
            self.ask_device();
            self.look_for_unheard();
            self.show_at(self.pumped);
        }
    }

    /// The same before a thread sleeps, with what observers have asked for. Counters that nobody sees now are shown to whoever rings.
    pub(super) fn show_before_sleep(&mut self) {
        if self.pumped - self.shown >= PAUSE {
            return self.show_sometimes();
        }
        let Some(show) = &mut self.stack.show else { return };
        if show.are_counters_asked() || show.is_asked() {
            return self.show_at(self.pumped);
        }
        show.put_off();
        self.stack.captured = show.is_captured(self.pumped.as_micros());
    }

    /// Tells other processes on the interface what this one holds for its connections, and hears what they do.
    fn share_memory(&self) {
        let Some(link) = self.stack.transport(Side::Network) else { return };
        // One of a process's stacks says it: the others would be counted twice.
        let says = bound::is_said_by(self.context);
        let others = link.hold(if says { bound::held() as u64 } else { 0 });
        if says {
            bound::set_others(usize::try_from(others).unwrap_or(usize::MAX));
        }
    }

    /// Shows the counters, and what observers have asked for.
    pub(crate) fn show(&mut self) {
        self.show_at(now());
    }

    fn show_at(&mut self, time: Instant) {
        if self.stack.show.is_none() {
            return;
        }
        self.shown = time;
        let mut values = core::mem::take(&mut self.shown_values);
        values.clear();
        self.each_counter(|_, _, value| values.push(value));
        let Stack { show: Some(show), captured, .. } = &mut self.stack else { return };
        show.count(time.as_micros(), values.iter().copied());
        self.shown_values = values;
        *captured = show.is_captured(time.as_micros());
        if show.is_asked() {
            self.show_sockets(time);
        }
    }

    fn show_sockets(&mut self, time: Instant) {
        let Some(mut show) = self.stack.show.take() else { return };
        show.answer(self.stack.shown_sockets().count(), self.stack.rows(time));
        self.stack.show = Some(show);
    }

    /// The doorbell of observers rang, and what they want has been, or will be, seen to.
    pub(crate) fn silence_doorbell(&self) {
        if let Some(show) = &self.stack.show {
            show.silence_doorbell();
        }
    }

    /// Every counter: its group, its name, its value.
    fn each_counter(&self, mut each: impl FnMut(&'static str, &'static str, u64)) {
        let flows = |side| self.stack.engine(side).map_or(0, overfly_engine::Engine::flows) as u64;
        each("now", "flows", flows(Side::Network) + flows(Side::Loopback));
        for (name, value) in self.statistics.counters() {
            each("sockets", name, value);
        }
        for (name, value) in [
            ("accepts", self.stack.accepts),
            ("connects", self.stack.connects),
            ("accepts_within_host", self.stack.accepts_within_host),
            ("connects_within_host", self.stack.connects_within_host),
            ("datagram_overflows", self.stack.datagram_overflows()),
            ("dropped_datagram_segments", self.stack.unsent_segments()),
        ] {
            each("sockets", name, value);
        }
        if self.context == 0 {
            // The process's.
            let [held, pressures, refusals] = bound::counters();
            each("now", "buffer_bytes", held);
            each("sockets", "memory_pressures", pressures);
            each("sockets", "memory_refusals", refusals);
        }
        for (name, value) in self.statistics.reasons() {
            each("kernel", name, value);
        }
        if let Some(engine) = self.stack.engine(Side::Network) {
            engine.counters().iter().for_each(|(name, value)| each("engine", name, value));
        }
        for link in self.stack.transports() {
            link.each_counter(&mut each);
        }
    }
}
