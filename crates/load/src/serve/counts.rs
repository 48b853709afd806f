//! What a server counts. Each thread has its own [`Counts`]; adding them loses nothing.

use std::collections::BTreeMap;

use super::fault::Fault;
use crate::http1::Malformed;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What was served, and what went wrong. Since the start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
            /// Requests that are none, by kind.
            pub malformed: [u64; Malformed::ALL.len()],
            /// Faults that `--fault` asked for.
            pub faults: [u64; Fault::ALL.len()],
            /// When the first request was answered, ns after the start; 0 if none was.
            pub first_ns: u64,
            /// When the last one was.
            pub last_ns: u64,
        }

        impl Counts {
            /// Every plain counter with its name.
            fn plain(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            fn add_plain(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Connections accepted.
    accepted,
    /// Connections that are over, however they ended.
    closed,
    /// Requests answered, with whatever status.
    requests,
    /// Of those, requests whose path names no size: 404.
    not_found,
    /// Stream bytes received.
    bytes_in,
    /// Stream bytes that the client acknowledged; over kernel sockets, that the kernel took.
    bytes_out,
    /// Connections that the client ended in the middle of a request.
    cut_short,
    /// Connections that failed: mostly resets by the client.
    failed,
    /// Connections reset because a request's head did not end in time, or its body stood still.
    slow_requests,
    /// Connections reset because the client read nothing for too long.
    slow_readers,
    /// Connections closed because no request came in time.
    idle,
    /// Connections that could not be accepted: no descriptor, no memory.
    accept_failed,
}

impl Counts {
    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Counts) {
        self.add_plain(other);
        for (sum, more) in self.malformed.iter_mut().zip(other.malformed) {
            *sum += more;
        }
        for (sum, more) in self.faults.iter_mut().zip(other.faults) {
            *sum += more;
        }
        if other.first_ns > 0 && (self.first_ns == 0 || other.first_ns < self.first_ns) {
            self.first_ns = other.first_ns;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
    }

    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed)
    }

    /// Requests that were none, of all kinds.
    #[must_use]
    pub fn malformed_total(&self) -> u64 {
        self.malformed.iter().sum()
    }

    /// Everything by name: the plain counters, `malformed.KIND` and `fault.KIND` for kinds that came up.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let malformed = Malformed::ALL.map(|kind| ("malformed", kind.name(), self.malformed[kind as usize]));
        let faults = Fault::ALL.map(|kind| ("fault", kind.name(), self.faults[kind as usize]));
        let kinds = malformed.into_iter().chain(faults).filter(|(_, _, count)| *count > 0);
        self.plain()
            .map(|(name, count)| (name.to_string(), count))
            .chain(kinds.map(|(group, name, count)| (format!("{group}.{name}"), count)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_index() {
        assert!(Malformed::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
        assert!(Fault::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
    }

    #[test]
    fn adding_keeps_everything() {
        let mut one = Counts { accepted: 3, closed: 1, first_ns: 5, last_ns: 9, ..Counts::default() };
        let mut two = Counts { accepted: 4, closed: 4, first_ns: 4, last_ns: 6, ..Counts::default() };
        two.malformed[Malformed::NoHost as usize] = 2;
        one.faults[Fault::Lie as usize] = 1;
        one.add(&two);
        one.add(&Counts::default());
        assert_eq!((one.open(), one.malformed_total()), (2, 2));
        assert_eq!((one.first_ns, one.last_ns), (4, 9));
        let names = one.by_name();
        assert_eq!((names["accepted"], names["malformed.no_host"], names["fault.lie"]), (7, 2, 1));
        assert!(!names.contains_key("fault.reset"));
    }
}
