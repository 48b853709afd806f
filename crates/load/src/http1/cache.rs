//! The head before. Most messages of a load test have it again.

use memchr::{memchr_iter, memchr3};

/// Longest head that is remembered, in bytes.
const HEAD_MAX: usize = 1024;
/// Length of an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7).
const DATE_LEN: usize = 29;

/// The last head that arrived in one piece, and what it meant. One per thread: a head with the same bytes (its `Date` value apart)
/// costs one comparison.
#[derive(Debug)]
pub struct HeadCache<T> {
    bytes: Box<[u8; HEAD_MAX]>,
    len: usize,
    /// Where the `Date` value starts; it is `DATE_LEN` long. `len` if there is none.
    date: usize,
    /// `None` while nothing is remembered.
    meaning: Option<T>,
}

impl<T: Copy> Default for HeadCache<T> {
    fn default() -> Self {
        HeadCache::new()
    }
}

impl<T: Copy> HeadCache<T> {
    /// An empty cache.
    #[must_use]
    pub fn new() -> HeadCache<T> {
        HeadCache { bytes: Box::new([0; HEAD_MAX]), len: 0, date: 0, meaning: None }
    }

    /// What the head at the start of `data` means and its length, if it is the remembered one.
    ///
    /// The Date value may differ in any byte but NUL, CR and LF: with those excluded no other
    /// byte can change what the head means, so the answer is the state machine's answer.
    #[inline]
    pub(crate) fn lookup(&self, data: &[u8]) -> Option<(T, usize)> {
        let len = self.len;
        let known = &self.bytes[..len];
        let data = data.get(..len)?;
        let is_known = if self.date == len {
            data == known
        } else {
            let after = self.date + DATE_LEN;
            let date = &data[self.date..after];
            data[after..] == known[after..]
                && data[..self.date] == known[..self.date]
                && (*date == known[self.date..after] || memchr3(0, b'\r', b'\n', date).is_none())
        };
        if is_known { self.meaning.map(|meaning| (meaning, len)) } else { None }
    }

    /// Remembers a valid head, which is all of `bytes`.
    pub(crate) fn remember(&mut self, bytes: &[u8], meaning: T) {
        if bytes.len() > HEAD_MAX {
            return;
        }
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
        self.date = date_value(bytes).unwrap_or(bytes.len());
        self.meaning = Some(meaning);
    }
}

/// Where the value of a `Date` line of the usual shape starts. `head` is a valid head.
fn date_value(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"date: ";
    memchr_iter(b'\n', head).map(|line_end| line_end + 1 + NAME.len()).find(|&start| {
        head.get(start..=start + DATE_LEN).is_some_and(|value| {
            head[start - NAME.len()..start].eq_ignore_ascii_case(NAME)
                && value[DATE_LEN] == b'\r'
                && memchr3(0, b'\r', b'\n', &value[..DATE_LEN]).is_none()
        })
    })
}
