//! The program's buffers.

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
