//! The library's memory: libc's, and a reserve for when libc has none. What is large is asked for in ways that can fail; what is
//! small, of which there are too many places, comes out of the reserve then, and as long as memory is short nothing new is begun.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::alloc::System;

use rustix::mm::{MapFlags, ProtFlags};

/// Address space of the reserve. It takes memory only where it is used.
const RESERVE: usize = 4 << 20;
/// The largest piece of it.
const LARGEST: usize = 64 << 10;
/// The smallest.
const SMALLEST: usize = 32;
const SIZES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;

#[cfg_attr(not(test), global_allocator)]
static MEMORY: Memory = Memory {
    begin: AtomicUsize::new(0),
    short: AtomicBool::new(false),
    locked: AtomicBool::new(false),
    pieces: UnsafeCell::new(Pieces { used: 0, free: [null_mut(); SIZES] }),
};

struct Memory {
    /// The reserve's address, once it is there.
    begin: AtomicUsize,
    short: AtomicBool,
    locked: AtomicBool,
    pieces: UnsafeCell<Pieces>,
}

/// Powers of two, each from a list of those that were given back or from what was never used.
struct Pieces {
    used: usize,
    free: [*mut *mut u8; SIZES],
}

// SAFETY: `pieces` is used under `locked`.
unsafe impl Sync for Memory {}

/// Maps the reserve.
pub(crate) fn begin() {
    let mapping = map(RESERVE, MapFlags::NORESERVE);
    MEMORY.begin.store(mapping.map_or(0, |mapping| mapping as usize), Ordering::Relaxed);
}

fn map(bytes: usize, flags: MapFlags) -> rustix::io::Result<*mut core::ffi::c_void> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping, at an address of the kernel's choice.
    unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, MapFlags::PRIVATE | flags) }
}

/// libc has no memory: nothing is to be begun that needs some.
pub(crate) fn is_short() -> bool {
    MEMORY.short.load(Ordering::Relaxed) && !has(4 * LARGEST)
}

/// Whether the process may have so many bytes at once. The kernel is asked: a compiler may leave out a malloc() whose memory nobody
/// uses, and take it for one that went well.
pub(crate) fn has(bytes: usize) -> bool {
    // SAFETY: the mapping that was made, which nobody else knows.
    let has =
        map(bytes, MapFlags::empty()).is_ok_and(|piece| unsafe { rustix::mm::munmap(piece, bytes) }.is_ok());
    MEMORY.short.store(!has, Ordering::Relaxed);
    has
}

/// Which size holds a layout, if any does.
fn size_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).checked_next_power_of_two()?;
    (bytes <= LARGEST).then(|| (bytes / SMALLEST).ilog2() as usize)
}

impl Memory {
    #[inline]
    fn has_given(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.begin.load(Ordering::Relaxed)) < RESERVE
    }

    fn with<R>(&self, act: impl FnOnce(&mut Pieces) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        // SAFETY: under the lock.
        let result = act(unsafe { &mut *self.pieces.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    #[cold]
    fn give(&self, layout: Layout) -> *mut u8 {
        self.short.store(true, Ordering::Relaxed);
        let begin = self.begin.load(Ordering::Relaxed);
        let Some(size) = size_of(layout).filter(|_| begin != 0) else { return null_mut() };
        self.with(|pieces| {
            let first = pieces.free[size];
            if !first.is_null() {
                // SAFETY: a piece in the list holds the next one's address.
                pieces.free[size] = unsafe { *first }.cast();
                return first.cast();
            }
            // Each on a multiple of its own size, for its alignment.
            let bytes = SMALLEST << size;
            let at = pieces.used.next_multiple_of(bytes.min(4096));
            if at + bytes > RESERVE || layout.align() > 4096 {
                return null_mut();
            }
            pieces.used = at + bytes;
            (begin + at) as *mut u8
        })
    }

    #[cold]
    fn take_back(&self, pointer: *mut u8, layout: Layout) {
        let Some(size) = size_of(layout) else { return };
        self.with(|pieces| {
            let piece = pointer.cast::<*mut u8>();
            // SAFETY: the piece is nobody's any more, and holds a pointer.
            unsafe { *piece = pieces.free[size].cast() };
            pieces.free[size] = piece;
        });
    }
}

// SAFETY: libc's memory, or a piece of the reserve that is nobody else's, as large and as aligned as the layout asks for.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let piece = unsafe { System.alloc(layout) };
        if piece.is_null() { self.give(layout) } else { piece }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let piece = unsafe { System.alloc_zeroed(layout) };
        if !piece.is_null() {
            return piece;
        }
        let piece = self.give(layout);
        if !piece.is_null() {
            // SAFETY: as large as the layout.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if self.has_given(pointer) {
            return self.take_back(pointer, layout);
        }
        // SAFETY: the caller's promise; it is libc's.
        unsafe { System.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.has_given(pointer) {
            // SAFETY: the caller's promise; it is libc's.
            let piece = unsafe { System.realloc(pointer, layout, size) };
            if !piece.is_null() {
                return piece;
            }
        }
        // SAFETY: the caller's promise for the size with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the size is not zero; the old piece is valid for its layout, and freed once.
        unsafe {
            let piece = self.alloc(wanted);
            if !piece.is_null() {
                piece.copy_from_nonoverlapping(pointer, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            piece
        }
    }
}
