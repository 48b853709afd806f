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

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a test's own, with a reserve.
    fn memory() -> Memory {
        let mapping = map(RESERVE, MapFlags::NORESERVE).unwrap();
        Memory {
            begin: AtomicUsize::new(mapping as usize),
            short: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            pieces: UnsafeCell::new(Pieces { used: 0, free: [null_mut(); SIZES] }),
        }
    }

    fn layout(bytes: usize, align: usize) -> Layout {
        Layout::from_size_align(bytes, align).unwrap()
    }

    #[test]
    fn pieces_of_the_reserve_are_aligned_apart_and_used_again() {
        let memory = memory();
        let layouts = [layout(1, 1), layout(100, 8), layout(33, 64), layout(5000, 4096), layout(LARGEST, 16)];
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for layout in layouts {
            let piece = memory.give(layout);
            assert!(memory.has_given(piece) && (piece as usize).is_multiple_of(layout.align()));
            // SAFETY: as large as the layout, and nobody else's.
            unsafe { piece.write_bytes(7, layout.size()) };
            let (begin, end) = (piece as usize, piece as usize + layout.size());
            assert!(pieces.iter().all(|&(from, to)| end <= from || to <= begin), "apart");
            pieces.push((begin, end));
        }
        assert!(memory.short.load(Ordering::Relaxed));
        for (layout, &(piece, _)) in layouts.iter().zip(&pieces) {
            // SAFETY: the piece was given with this layout.
            unsafe { memory.dealloc(piece as *mut u8, *layout) };
            assert_eq!(memory.give(*layout) as usize, piece, "the same again");
        }
    }

    #[test]
    fn the_reserve_ends_and_has_no_large_pieces() {
        let memory = memory();
        assert!(memory.give(layout(LARGEST + 1, 1)).is_null());
        assert!(memory.give(layout(64, 8192)).is_null(), "no such alignment");
        let most = RESERVE / LARGEST;
        let given = (0..=most).map(|_| memory.give(layout(LARGEST, 1))).take_while(|piece| !piece.is_null());
        assert_eq!(given.count(), most);
        memory.begin.store(0, Ordering::Relaxed);
        assert!(memory.give(layout(1, 1)).is_null(), "there is none");
    }

    #[test]
    fn what_libc_has_is_libcs_and_contents_move_along() {
        let memory = memory();
        // SAFETY: each piece is used as its layout says, and freed once.
        unsafe {
            let zeroed = memory.alloc_zeroed(layout(64, 8));
            assert!(!memory.has_given(zeroed) && *zeroed == 0);
            let grown = memory.realloc(zeroed, layout(64, 8), 128);
            assert!(!memory.has_given(grown));
            memory.dealloc(grown, layout(128, 8));
            let given = memory.give(layout(64, 8));
            given.write_bytes(9, 64);
            let moved = memory.realloc(given, layout(64, 8), 200);
            assert!(!memory.has_given(moved), "libc has some again");
            assert!((0..64).all(|at| *moved.add(at) == 9));
            assert_eq!(memory.give(layout(64, 8)), given, "and the piece is free");
            memory.dealloc(moved, layout(200, 8));
        }
        begin();
        assert!(has(4096) && !is_short());
        assert!(!has(usize::MAX / 2) && !is_short(), "there is room for what is small");
    }
}
