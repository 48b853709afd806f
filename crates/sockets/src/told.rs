//! What a process and its children have in common about a connection that is over: whether one of them has been told of its error, and how
//! much they have read. In the kernel they have one socket, and who comes first is the only one. Each has the connection's end for itself
//! here, so that stands in memory which is theirs together.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The first word counts those that are given. A process that needs more, and its children, hear of an error each, and read for themselves.
const WORDS: u32 = 4096;

/// What a word says of what the kernel tells.
const KERNELS: u32 = 2;

static WORDS_OF_FAMILY: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Before a fork: children have the memory as well.
pub(crate) fn prepare() {
    if !WORDS_OF_FAMILY.load(Ordering::Acquire).is_null() {
        return;
    }
    let (length, protection) = (WORDS as usize * size_of::<AtomicU32>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new memory, wherever the kernel has room.
    let mapped = unsafe { mmap_anonymous(null_mut(), length, protection, MapFlags::SHARED) };
    if let Ok(words) = mapped {
        WORDS_OF_FAMILY.store(words.cast(), Ordering::Release);
    }
}

/// An error that the first one takes who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error(u32);

impl Error {
    /// A new one, which nobody has been told of. `None` before any fork, and if there are too many.
    pub(crate) fn new() -> Option<Self> {
        Self::of_number(new_word())
    }

    /// As [`Error::new`], for what there may be many of: half of the words are for others.
    pub(crate) fn new_of_many() -> Option<Self> {
        let given = word(0).map_or(WORDS, |given| given.load(Ordering::Relaxed));
        (given < WORDS / 2).then(Self::new)?
    }

    /// As another process calls it.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        (number > 0 && number < WORDS).then_some(Self(number))
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Whether nobody has been told.
    pub(crate) fn is_pending(self) -> bool {
        word(self.0).is_some_and(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Nobody is to be told here any more: whoever asks is to ask the kernel.
    pub(crate) fn leave_to_kernel(self) {
        if let Some(word) = word(self.0) {
            word.store(KERNELS, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_kernels(self) -> bool {
        word(self.0).is_some_and(|word| word.load(Ordering::Relaxed) == KERNELS)
    }

    /// Whether it is for who asks now.
    pub(crate) fn take(self) -> bool {
        word(self.0).is_some_and(|word| word.swap(1, Ordering::Relaxed) == 0)
    }
}

/// Bytes of what had not been read when the connection ended, which one of them takes from all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    number: u32,
    /// Those that this process knows of.
    known: u32,
}

impl Reads {
    /// See [`Error::new`].
    pub(crate) fn new() -> Option<Self> {
        Self::of_words([new_word(), 0])
    }

    /// As another process says it, which knows of as many.
    pub(crate) fn of_words([number, known]: [u32; 2]) -> Option<Self> {
        (number > 0 && number < WORDS).then_some(Self { number, known })
    }

    pub(crate) const fn words(self) -> [u32; 2] {
        [self.number, self.known]
    }

    /// How many others have read since this was last asked.
    pub(crate) fn news(&mut self) -> usize {
        let all = word(self.number).map_or(0, |word| word.load(Ordering::Relaxed));
        all.wrapping_sub(core::mem::replace(&mut self.known, all)) as usize
    }

    /// This process has read.
    pub(crate) fn add(&mut self, count: usize) {
        if let Some(word) = word(self.number) {
            word.fetch_add(count as u32, Ordering::Relaxed);
            self.known = self.known.wrapping_add(count as u32);
        }
    }
}

/// One that nobody has, which is zero, or a number beyond all.
fn new_word() -> u32 {
    let Some(given) = word(0) else { return WORDS };
    let next = given.fetch_add(1, Ordering::Relaxed) + 1;
    if next >= WORDS {
        given.store(WORDS - 1, Ordering::Relaxed);
    }
    next
}

fn word(number: u32) -> Option<&'static AtomicU32> {
    let words = WORDS_OF_FAMILY.load(Ordering::Acquire);
    // SAFETY: the memory is there for as long as the process, and as long as that; zeros are valid, and all accesses are atomic.
    (!words.is_null() && number < WORDS).then(|| unsafe { &*words.add(number as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_who_ask_gets_it() {
        prepare();
        let (first, second) = (Error::new().unwrap(), Error::new().unwrap());
        assert_ne!(first, second);
        let heirs = Error::of_number(first.number()).unwrap();
        assert!(first.is_pending() && heirs.take());
        assert!(!first.is_pending() && !first.take() && second.is_pending());
        assert_eq!((Error::of_number(0), Error::of_number(WORDS)), (None, None));
        second.leave_to_kernel();
        assert!(second.is_kernels() && !second.is_pending() && !second.take() && !first.is_kernels());
    }

    #[test]
    fn what_one_reads_is_gone_for_the_others() {
        prepare();
        let mut mine = Reads::new().unwrap();
        mine.add(5);
        let mut heirs = Reads::of_words(mine.words()).unwrap();
        assert_eq!((mine.news(), heirs.news()), (0, 0));
        heirs.add(7);
        assert_eq!((heirs.news(), mine.news(), mine.news()), (0, 7, 0));
    }
}
