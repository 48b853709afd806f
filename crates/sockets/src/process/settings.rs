//! What the program, the administrator and the profile have set of a socket that is about to be the stack's.

use core::time::Duration;

use overfly_engine::Algorithm;
use overfly_profile::options::Options;

use super::Process;
use crate::kernel;
use crate::options::{self, Backing};
use crate::socket::{Settings, SocketId};

impl Process {
    /// What the program has set on the kernel's socket so far, with the profile's words where it has said nothing.
    pub(super) fn settings(&self, id: SocketId, descriptor: i32) -> Settings {
        let Some(fresh) = &self.fresh else { return Settings::DEFAULT };
        let socket = self.stack.socket(id);
        // Other processes may have set something on a listener; on a socket of our own, only this one.
        let mut settings = if socket.customized || socket.listening.is_some() {
            options::read(Backing(descriptor), fresh)
        } else {
            fresh.settings
        };
        let [never_receives, never_sends] = socket.never_waits;
        if never_receives {
            settings.receive_timeout = Some(Duration::ZERO);
        }
        if never_sends {
            settings.send_timeout = Some(Duration::ZERO);
        }
        let Options { keepalive_time, keepalive_intvl, keepalive_probes, .. } = self.options;
        if keepalive_time != 0 && settings.keep_idle == fresh.settings.keep_idle {
            settings.keep_idle = Duration::from_millis(keepalive_time);
        }
        if keepalive_intvl != 0 && settings.keep_interval == fresh.settings.keep_interval {
            settings.keep_interval = Duration::from_millis(keepalive_intvl);
        }
        if keepalive_probes != 0 && settings.keep_probes == fresh.settings.keep_probes {
            settings.keep_probes = keepalive_probes as u8;
        }
        settings
    }

    /// What governs a connection's congestion window where the program does not say.
    pub(crate) fn default_congestion(&self) -> Algorithm {
        self.fresh.as_ref().and_then(|fresh| fresh.congestion).unwrap_or(Algorithm::Cubic)
    }

    /// A listener was given an option after this process had joined.
    pub(crate) fn read_settings_again(&mut self, id: SocketId, descriptor: i32) {
        if self.stack.has_joined(id) {
            let settings = self.settings(id, descriptor);
            self.stack.change_listener(id, settings);
            self.follow_listener(id, descriptor);
        }
    }

    /// What the program has asked of a listener alone.
    pub(super) fn follow_listener(&mut self, id: SocketId, descriptor: i32) {
        let asked = options::of_listener(Backing(descriptor));
        self.stack.defer_accept(id, Duration::from_secs(asked.defer_s.into()));
        let max = kernel::fast_open_max(asked);
        self.stack.open_fast(id, max, if max > 0 { kernel::fast_open_keys(descriptor) } else { None });
    }

    /// The program tied the socket to another interface (SO_BINDTODEVICE).
    pub(crate) fn is_tied_elsewhere(&self, descriptor: i32) -> bool {
        let link = kernel::link(descriptor);
        link != 0 && link != self.interface_index
    }
}
