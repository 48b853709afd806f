//! Whether a connection takes a large upload, which the kernel may be better at (`EF_UPLOADS_TO_KERNEL`).

use super::Socket;

/// Payload that comes at once, at least, where what a peer has sent together arrives together.
pub(crate) const TOGETHER: usize = 16 * 1024;
/// An upload is answered with less than one byte in so many.
const ANSWERS: u64 = 256;

/// What has come together since the program last sent more than a little.
#[derive(Clone, Copy)]
pub(crate) struct Upload {
    received: u64,
    /// How much had been sent when that began.
    sent_before: u64,
    /// It was enough: the connection wants the kernel for this, and at the beginning of a call.
    pub(crate) is_large: bool,
}

impl Upload {
    pub(crate) const NONE: Self = Self { received: 0, sent_before: 0, is_large: false };

    /// So many bytes have come together, when `sent` had been sent since the connection began. Whether an upload of `limit` has come.
    pub(crate) fn came(&mut self, bytes: usize, sent: u64, limit: u64) -> bool {
        if sent - self.sent_before > limit / ANSWERS {
            (self.received, self.sent_before) = (0, sent);
        }
        self.received += bytes as u64;
        self.received >= limit
    }
}

impl Socket {
    /// The call that has begun is better off with the kernel, too: what a large upload asks for is the next call's.
    pub(crate) const fn wants_kernel_at_once(&self) -> bool {
        self.wants_kernel && !self.upload.is_large
    }
}
