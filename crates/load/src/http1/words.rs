//! Finding a few words byte by byte, in any case of letters.

/// Bytes of the longest word.
const LEN_MAX: usize = "transfer-encoding".len();

/// Eight words at most, lower case, and what each means.
pub(super) struct Words<T: 'static, const N: usize> {
    words: [(&'static [u8], T); N],
    /// Which words have this byte at this place: one bit each. After the end of a word it has none.
    having: [[u8; 256]; LEN_MAX + 1],
}

impl<T: Copy, const N: usize> Words<T, N> {
    pub(super) const fn new(words: [(&'static [u8], T); N]) -> Self {
        assert!(N <= 8, "a word is a bit");
        let mut having = [[0; 256]; LEN_MAX + 1];
        let mut word = 0;
        while word < N {
            let bytes = words[word].0;
            let mut at = 0;
            while at < bytes.len() {
                having[at][bytes[at] as usize] |= 1 << word;
                having[at][bytes[at].to_ascii_uppercase() as usize] |= 1 << word;
                at += 1;
            }
            word += 1;
        }
        Self { words, having }
    }
}

/// What is known of a word that is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    /// Words that all bytes so far agree with.
    candidates: u8,
    /// Its bytes so far, while it has candidates; 0 only before the first.
    pub(super) len: u8,
    /// A blank came after it: whatever else follows makes it none.
    pub(super) is_over: bool,
}

impl Word {
    pub(super) const NEW: Self = Self { candidates: u8::MAX, len: 0, is_over: false };

    #[inline]
    pub(super) fn byte<T, const N: usize>(&mut self, words: &Words<T, N>, byte: u8) {
        if self.is_over {
            self.candidates = 0;
        }
        if self.candidates != 0 {
            self.candidates &= words.having[usize::from(self.len)][usize::from(byte)];
            self.len += 1;
        }
    }

    #[inline]
    pub(super) fn blank(&mut self) {
        self.is_over = self.len > 0;
    }

    /// What the word means that ended here, if it is one.
    #[inline]
    pub(super) fn end<T: Copy, const N: usize>(self, words: &Words<T, N>) -> Option<T> {
        let whole = |&(bit, (word, _)): &(usize, &(&[u8], T))| {
            self.candidates & 1 << bit != 0 && word.len() == usize::from(self.len)
        };
        words.words.iter().enumerate().find(whole).map(|(_, &(_, meaning))| meaning)
    }
}
