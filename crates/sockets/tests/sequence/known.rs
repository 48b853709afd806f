//! What differs from the kernel, each with its reason. docs/sockets.md has the reasons too, which a test keeps so.

/// A difference.
pub(crate) struct Known {
    /// The step, and what is said on the kernel and on Overfly; `*` stands for anything.
    step: &'static str,
    kernel: &'static str,
    overfly: &'static str,
    /// Whether nothing can be compared after it.
    pub(crate) ends: bool,
    /// Only after a fork.
    forked: bool,
    pub(crate) reason: &'static str,
}

const CLOSED_UNDER_A_CALL: &str = "close() ends accept(), poll() and epoll_wait() of another thread for the descriptor with EBADF or POLLNVAL; the kernel lets them wait";

const REACHED_AFTER_ITS_END: &str = "a child of a fork finds a connection that has ended since, or was reset, at its first use unconnected: there is nothing to hand \
     over; of one that had ended before each has a copy, and reads, or hears of the reset, although the other one has";

const MOVED_AFTER_THE_OTHER: &str = "a connection within the host that is handed over when its other end was closed says EPIPE at the first write, the kernel at the \
     second";

const UNTOLD: &str = "connect() of a connection that was handed over before a connect() had said that it succeeded says EISCONN; the kernel says 0 once";

pub(crate) const KNOWN: [Known; 16] = [
    Known {
        step: "* bind *",
        kernel: "EINVAL",
        overfly: "0",
        ends: true,
        forked: false,
        reason: "bind() of an accepted connection succeeds: the kernel's socket behind it has no port of its own",
    },
    Known {
        step: "* bind *",
        kernel: "0",
        overfly: "EINVAL",
        ends: true,
        forked: false,
        reason: "bind() after a connection has failed or was given up by AF_UNSPEC fails: the kernel's socket keeps its port",
    },
    Known {
        step: "* get * unsent",
        kernel: "*",
        overfly: "0",
        ends: false,
        forked: false,
        reason: "SIOCOUTQ is 0 once nothing can be acknowledged any more; the kernel says what was left, or after AF_UNSPEC some number",
    },
    Known {
        step: "* close *",
        kernel: "*",
        overfly: "*has waited: *",
        ends: true,
        forked: false,
        reason: CLOSED_UNDER_A_CALL,
    },
    // As soon as something else wakes it.
    Known {
        step: "*",
        kernel: "*",
        overfly: "*poll *has waited: 1 NVAL*",
        ends: true,
        forked: false,
        reason: CLOSED_UNDER_A_CALL,
    },
    Known {
        step: "* connect *",
        kernel: "ECONNABORTED",
        overfly: "ECONN*",
        ends: true,
        forked: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known { step: "* connect *", kernel: "0", overfly: "EISCONN", ends: true, forked: true, reason: UNTOLD },
    Known {
        step: "* poll *",
        kernel: "*",
        overfly: "*+ERR*",
        ends: true,
        forked: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "* get * error",
        kernel: "0",
        overfly: "ECONN*",
        ends: true,
        forked: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "* send* *",
        kernel: "*",
        overfly: "EPIPE",
        ends: true,
        forked: true,
        reason: MOVED_AFTER_THE_OTHER,
    },
    Known {
        step: "* writev *",
        kernel: "*",
        overfly: "EPIPE",
        ends: true,
        forked: true,
        reason: MOVED_AFTER_THE_OTHER,
    },
    Known {
        step: "C send* *",
        kernel: "EPIPE",
        overfly: "ECONNRESET",
        ends: true,
        forked: false,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "C *",
        kernel: "*",
        overfly: "*ENOTCONN*",
        ends: true,
        forked: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "D send* *",
        kernel: "EPIPE",
        overfly: "ECONNRESET",
        ends: true,
        forked: false,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "D *",
        kernel: "*",
        overfly: "*ENOTCONN*",
        ends: true,
        forked: true,
        reason: REACHED_AFTER_ITS_END,
    },
    Known {
        step: "* connect *",
        kernel: "EINVAL",
        overfly: "*",
        ends: true,
        forked: false,
        reason: "connect() after shutdown() of a connection that has failed says what failed, or EISCONN; the kernel says EINVAL",
    },
];

impl Known {
    /// `forked`: there has been a fork.
    pub(crate) fn is(&self, step: &str, forked: bool, kernel: &str, overfly: &str) -> bool {
        (forked || !self.forked)
            && fits(self.step, step)
            && fits(self.kernel, kernel)
            && fits(self.overfly, overfly)
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
