//! The program's buffers.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::mem::MaybeUninit;

use libc::iovec;

/// Where data comes from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    vectors: *const iovec,
    count: usize,
    lifetime: PhantomData<&'a [u8]>,
}

/// Where data goes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    vectors: *const iovec,
    count: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> Source<'a> {
    /// # Safety
    /// The vectors, and the buffers they name, must be readable for `'a`.
    pub(crate) unsafe fn new(vectors: *const iovec, count: usize) -> Self {
        Self { vectors, count, lifetime: PhantomData }
    }

    pub(crate) fn length(&self) -> usize {
        length(self.vectors, self.count)
    }

    /// No piece lies where no program has memory.
    pub(crate) fn is_plausible(&self) -> bool {
        are_all(self.vectors, self.count, is_plausible)
    }

    /// No piece lies in the kernel's half: Linux looks at that before anything else.
    pub(crate) fn is_possible(&self) -> bool {
        are_all(self.vectors, self.count, is_possible)
    }

    /// The pieces after the first `skip` bytes; empty ones are left out.
    pub(crate) fn pieces(self, skip: usize) -> impl Iterator<Item = &'a [u8]> {
        Pieces { vectors: self.vectors, left: self.count, skip }.map(|(base, length)| {
            // SAFETY: `new`'s caller answers for the buffer, and `Pieces` leaves out those of no length.
            unsafe { core::slice::from_raw_parts(base, length) }
        })
    }
}

impl<'a> Target<'a> {
    /// # Safety
    /// The vectors must be readable, and the buffers they name writable and not otherwise in use, for `'a`.
    pub(crate) unsafe fn new(vectors: *const iovec, count: usize) -> Self {
        Self { vectors, count, lifetime: PhantomData }
    }

    pub(crate) fn length(&self) -> usize {
        length(self.vectors, self.count)
    }

    /// As recvmsg(2) takes it, without room for a name or ancillary data.
    pub(crate) fn message(&self) -> libc::msghdr {
        // SAFETY: a plain C record, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = self.vectors.cast_mut();
        message.msg_iovlen = self.count;
        message
    }

    /// No piece lies where no program has memory.
    pub(crate) fn is_plausible(&self) -> bool {
        are_all(self.vectors, self.count, is_plausible)
    }

    /// No piece lies in the kernel's half: Linux looks at that before anything else.
    pub(crate) fn is_possible(&self) -> bool {
        are_all(self.vectors, self.count, is_possible)
    }

    /// The pieces after the first `skip` bytes; empty ones are left out.
    pub(crate) fn pieces(self, skip: usize) -> impl Iterator<Item = &'a mut [MaybeUninit<u8>]> {
        Pieces { vectors: self.vectors, left: self.count, skip }.map(|(base, length)| {
            // SAFETY: `new`'s caller answers for the buffer. Its bytes may be uninitialised, and need not be otherwise.
            unsafe { core::slice::from_raw_parts_mut(base.cast::<MaybeUninit<u8>>(), length) }
        })
    }
}

fn length(vectors: *const iovec, count: usize) -> usize {
    // SAFETY: `Source::new`'s or `Target::new`'s caller answers for the vectors.
    (0..count).fold(0usize, |sum, index| sum.saturating_add(unsafe { (*vectors.add(index)).iov_len }))
}

/// Behind every address that a program can have.
const BEHIND: usize = 1 << 56;

/// Whether `length` bytes there are outside the kernel's half (access_ok() in Linux).
fn is_possible<T>(pointer: *const T, length: usize) -> bool {
    pointer.addr().checked_add(length).is_some_and(|end| end <= BEHIND)
}

/// Whether a program could have `length` bytes there: not on the first page, and not in the kernel's half. More would cost a
/// system call for each buffer: where a program could have memory and has none, it dies of SIGSEGV.
pub(crate) fn is_plausible<T>(pointer: *const T, length: usize) -> bool {
    const FIRST: usize = 4096;
    is_possible(pointer, length) && (length == 0 || pointer.addr() >= FIRST)
}

/// Whether that holds for all pieces.
fn are_all(vectors: *const iovec, count: usize, holds: impl Fn(*const c_void, usize) -> bool) -> bool {
    is_plausible(vectors, count.saturating_mul(size_of::<iovec>()))
        && (0..count).all(|index| {
            // SAFETY: `Source::new`'s or `Target::new`'s caller answers for the vectors.
            let vector = unsafe { &*vectors.add(index) };
            holds(vector.iov_base, vector.iov_len)
        })
}

struct Pieces {
    vectors: *const iovec,
    left: usize,
    skip: usize,
}

impl Iterator for Pieces {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            // SAFETY: `left` vectors are still valid at `vectors` (see `length`).
            let vector = unsafe { *self.vectors };
            // SAFETY: at most one past the end.
            self.vectors = unsafe { self.vectors.add(1) };
            self.left -= 1;
            if vector.iov_len > self.skip {
                // SAFETY: within the buffer.
                let base = unsafe { vector.iov_base.cast::<u8>().add(self.skip) };
                let length = vector.iov_len - self.skip;
                self.skip = 0;
                return Some((base, length));
            }
            self.skip -= vector.iov_len;
        }
        None
    }
}
