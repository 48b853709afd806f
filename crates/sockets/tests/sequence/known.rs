//! What differs from the kernel, each with its reason. docs/sockets.md has the reasons too, which a test keeps so.

/// A difference.
pub(crate) struct Known {
    /// The step, and what is said on the kernel and on Overfly; `*` stands for anything.
    step: &'static str,
    kernel: &'static str,
    overfly: &'static str,
    /// Whether nothing can be compared after it.
    pub(crate) ends: bool,
    pub(crate) reason: &'static str,
}

const REACHED_AFTER_ITS_END: &str = "a child of a fork finds a connection that has ended since, or was reset, at its first use unconnected: there is nothing to hand \
     over; of one that had ended before each has a copy, and reads, or hears of the reset, although the other one has";

pub(crate) const KNOWN: [Known; 9] = [
    Known {
        step: "* bind *",
        kernel: "EINVAL",
        overfly: "0",
        ends: true,
        reason: "bind() of an accepted connection succeeds: the kernel's socket behind it has no port of its own",
    },
    Known {
        step: "* bind *",
        kernel: "0",
        overfly: "EINVAL",
        ends: true,
        reason: "bind() after a connection has failed or was given up by AF_UNSPEC fails: the kernel's socket keeps its port",
    },
    Known {
        step: "* get * unsent",
        kernel: "*",
        overfly: "0",
        ends: false,
        reason: "SIOCOUTQ is 0 once nothing can be acknowledged any more; the kernel says what was left, or after AF_UNSPEC some number",
    },
    Known {
        step: "* close *",
        kernel: "*",
        overfly: "*has waited: *",
        ends: true,
        reason: "close() ends accept(), poll() and epoll_wait() of another thread for the descriptor with EBADF or POLLNVAL; the kernel lets them wait",
    },
    Known {
        step: "C send* *",
        kernel: "EPIPE",
        overfly: "ECONNRESET",
        ends: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known { step: "C *", kernel: "*", overfly: "*ENOTCONN*", ends: true, reason: REACHED_AFTER_ITS_END },
    Known {
        step: "D send* *",
        kernel: "EPIPE",
        overfly: "ECONNRESET",
        ends: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known { step: "D *", kernel: "*", overfly: "*ENOTCONN*", ends: true, reason: REACHED_AFTER_ITS_END },
    Known {
        step: "* connect *",
        kernel: "EINVAL",
        overfly: "*",
        ends: true,
        reason: "connect() after shutdown() of a connection that has failed says what failed, or EISCONN; the kernel says EINVAL",
    },
];

impl Known {
    pub(crate) fn is(&self, step: &str, kernel: &str, overfly: &str) -> bool {
        fits(self.step, step) && fits(self.kernel, kernel) && fits(self.overfly, overfly)
    }
}

/// Whether a text is as the pattern has it.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((begin, rest)) => text.strip_prefix(begin).is_some_and(|text| {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| fits(rest, &text[at..]))
        }),
    }
}
