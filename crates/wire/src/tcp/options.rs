//! The options of a header: read into, and written from, one plain struct.

use core::fmt;
use core::num::NonZeroU8;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

/// Greatest shift of a window: more is read, and written, as this (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Most bytes of options: the data offset has four bits.
const MAX_LEN: usize = 40;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;
const KIND_FAST_OPEN: u8 = 34;

/// NOP, NOP, timestamps, length 10: how RFC 7323 appendix A wants the option laid out, and everybody does.
const NOP_NOP_TIMESTAMPS: [u8; 4] = [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10];

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// The receiver's clock, as the sender saw it last (TSecr); only with ACK.
    pub echo: u32,
}

/// The 12 option bytes of a segment whose only option are its timestamps.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct TimestampsLayout {
    prefix: [u8; 4],
    value: U32,
    echo: U32,
}

impl From<Timestamps> for TimestampsLayout {
    #[inline]
    fn from(timestamps: Timestamps) -> TimestampsLayout {
        TimestampsLayout {
            prefix: NOP_NOP_TIMESTAMPS,
            value: timestamps.value.into(),
            echo: timestamps.echo.into(),
        }
    }
}

/// Up to four blocks of the SACK option (RFC 2018 section 3), in the order of the option.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Sacks {
    /// Those from `count` on are zero.
    blocks: [(u32, u32); Sacks::CAPACITY],
    count: u8,
}

impl Sacks {
    /// Most blocks that fit into a header.
    pub const CAPACITY: usize = 4;
    /// No block.
    pub const EMPTY: Sacks = Sacks { blocks: [(0, 0); Sacks::CAPACITY], count: 0 };

    /// Adds the block of sequence numbers from `left` up to, and without, `right`. False if there are four already.
    #[inline]
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        let Some(block) = self.blocks.get_mut(usize::from(self.count)) else {
            return false;
        };
        *block = (left, right);
        self.count += 1;
        true
    }

    /// The blocks as (left, right).
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        self.blocks.get(..usize::from(self.count)).unwrap_or(&self.blocks)
    }

    /// How many blocks.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for Sacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.as_slice()).finish()
    }
}

/// The TCP Fast Open option (RFC 7413 section 4.1.1): a request for a cookie, or a cookie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpen {
    /// Bytes of the option on the wire, kind and length included: 2 + the cookie's. Never 0, so that an absent option needs
    /// no byte of its own.
    option_len: NonZeroU8,
    /// The bytes as they lie in memory; those beyond the cookie are zero. Words, as options are copied for every segment, and
    /// aligned ones are copied at once.
    cookie: [u32; FastOpen::MAX_COOKIE_LEN / 4],
}

impl FastOpen {
    /// Fewest bytes of a cookie.
    pub const MIN_COOKIE_LEN: usize = 4;
    /// Most bytes of a cookie.
    pub const MAX_COOKIE_LEN: usize = 16;
    /// A client that asks for a cookie: the option without one.
    pub const REQUEST: FastOpen =
        FastOpen { option_len: NonZeroU8::MIN.saturating_add(1), cookie: [0; FastOpen::MAX_COOKIE_LEN / 4] };

    /// The option with this cookie. `None` unless it is 4 to 16 bytes, and an even number of them.
    #[must_use]
    pub fn with_cookie(cookie: &[u8]) -> Option<FastOpen> {
        if cookie.len() < FastOpen::MIN_COOKIE_LEN || !cookie.len().is_multiple_of(2) {
            return None;
        }
        let mut fast_open = FastOpen::REQUEST;
        fast_open.cookie.as_mut_bytes().get_mut(..cookie.len())?.copy_from_slice(cookie);
        fast_open.option_len = fast_open.option_len.saturating_add(cookie.len() as u8);
        Some(fast_open)
    }

    /// The cookie; empty in a request.
    #[inline]
    #[must_use]
    pub fn cookie(&self) -> &[u8] {
        &self.cookie.as_bytes()[..usize::from(self.option_len.get() - 2)]
    }

    /// Whether a cookie is asked for.
    #[inline]
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.option_len.get() == 2
    }

    /// Bytes with the NOPs that align it.
    fn emitted_len(self) -> usize {
        usize::from(self.option_len.get()).next_multiple_of(4)
    }
}

impl fmt::Debug for FastOpen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A cookie is a secret between two hosts.
        formatter.debug_struct("FastOpen").field("cookie_len", &self.cookie().len()).finish_non_exhaustive()
    }
}

/// The options of a segment. MSS, window scale, SACK-permitted and Fast Open mean something on SYN only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Most payload bytes that the sender takes in one segment (RFC 9293 section 3.7.1), as it came: also if it is absurd.
    pub mss: Option<u16>,
    /// Shift of the window, at most [`MAX_WINDOW_SCALE`] (RFC 7323 section 2.2).
    pub window_scale: Option<u8>,
    /// Whether the sender understands SACK (RFC 2018 section 2).
    pub sack_permitted: bool,
    /// The timestamps (RFC 7323 section 3.2).
    pub timestamps: Option<Timestamps>,
    /// What arrived out of order. As many blocks are written as there is room for beside the other options: four alone,
    /// three with timestamps.
    pub sack: Sacks,
    /// Fast Open (RFC 7413 section 4.1.1). One whose cookie has an illegal length is as if it were not there, and so must a
    /// receiver take one without SYN.
    pub fast_open: Option<FastOpen>,
}

impl Options {
    /// No option.
    pub const NONE: Options = Options {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps: None,
        sack: Sacks::EMPTY,
        fast_open: None,
    };

    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Options, Malformed> {
        if bytes.is_empty() {
            return Ok(Options::NONE);
        }
        if let Ok(layout) = TimestampsLayout::ref_from_bytes(bytes)
            && layout.prefix == NOP_NOP_TIMESTAMPS
        {
            let timestamps = Timestamps { value: layout.value.into(), echo: layout.echo.into() };
            return Ok(Options { timestamps: Some(timestamps), ..Options::NONE });
        }
        Options::parse_any(bytes)
    }

    /// If an option is there twice, the last counts.
    fn parse_any(mut bytes: &[u8]) -> Result<Options, Malformed> {
        let mut options = Options::NONE;
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                KIND_END => break,
                KIND_NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            // The length counts kind and length too (RFC 9293 section 3.2).
            let (&length, rest) = rest.split_first().ok_or(Malformed::TcpOption)?;
            let value_len = usize::from(length).checked_sub(2).ok_or(Malformed::TcpOption)?;
            let (value, rest) = rest.split_at_checked(value_len).ok_or(Malformed::TcpOption)?;
            options.read(kind, value)?;
            bytes = rest;
        }
        Ok(options)
    }

    fn read(&mut self, kind: u8, value: &[u8]) -> Result<(), Malformed> {
        match (kind, value) {
            (KIND_MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (KIND_WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (KIND_SACK_PERMITTED, []) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, value) => {
                let [value, echo] = *<[U32; 2]>::ref_from_bytes(value).map_err(|_| Malformed::TcpOption)?;
                self.timestamps = Some(Timestamps { value: value.into(), echo: echo.into() });
            }
            (KIND_SACK, value) => {
                let blocks = <[[U32; 2]]>::ref_from_bytes(value).map_err(|_| Malformed::TcpOption)?;
                if blocks.is_empty() {
                    return Err(Malformed::TcpOption);
                }
                self.sack = Sacks::EMPTY;
                for &[left, right] in blocks {
                    self.sack.push(left.into(), right.into());
                }
            }
            // "Options with invalid Length values or without the SYN flag set MUST be ignored."
            (KIND_FAST_OPEN, []) => self.fast_open = Some(FastOpen::REQUEST),
            (KIND_FAST_OPEN, cookie) => self.fast_open = FastOpen::with_cookie(cookie),
            (KIND_MSS | KIND_WINDOW_SCALE | KIND_SACK_PERMITTED, _) => {
                return Err(Malformed::TcpOption);
            }
            _ => {}
        }
        Ok(())
    }

    /// The timestamps, if nothing else is there.
    #[inline]
    pub(super) fn only_timestamps(&self) -> Option<Timestamps> {
        let alone = self.mss.is_none()
            && self.window_scale.is_none()
            && !self.sack_permitted
            && self.sack.is_empty()
            && self.fast_open.is_none();
        if alone { self.timestamps } else { None }
    }

    /// Bytes that [`Options::emit`] writes, a multiple of 4.
    #[inline]
    pub(super) fn emitted_len(&self) -> usize {
        let before_sack = self.len_before_sack();
        let blocks = self.emitted_sacks(before_sack);
        before_sack + if blocks == 0 { 0 } else { 4 + 8 * blocks }
    }

    #[inline]
    fn len_before_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let timestamps_and_sack_permitted = match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => 12,
            (None, true) => 4,
            (None, false) => 0,
        };
        let fast_open = self.fast_open.map_or(0, FastOpen::emitted_len);
        mss + window_scale + timestamps_and_sack_permitted + fast_open
    }

    #[inline]
    fn emitted_sacks(&self, before_sack: usize) -> usize {
        self.sack.len().min((MAX_LEN - before_sack).saturating_sub(4) / 8)
    }

    /// Fills `buffer`, which is [`Options::emitted_len`] bytes. Every option is led by NOPs, or by SACK-permitted before
    /// timestamps, so that its values are aligned and the whole needs no padding.
    pub(super) fn emit(&self, buffer: &mut [u8]) {
        let blocks = self.emitted_sacks(self.len_before_sack());
        let mut writer = Writer { buffer };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            writer.word([KIND_MSS, 4, high, low]);
        }
        if let Some(timestamps) = self.timestamps {
            let lead = if self.sack_permitted { [KIND_SACK_PERMITTED, 2] } else { [KIND_NOP, KIND_NOP] };
            writer.word([lead[0], lead[1], KIND_TIMESTAMPS, 10]);
            writer.word(timestamps.value.to_be_bytes());
            writer.word(timestamps.echo.to_be_bytes());
        } else if self.sack_permitted {
            writer.word([KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            writer.word([KIND_NOP, KIND_WINDOW_SCALE, 3, shift.min(MAX_WINDOW_SCALE)]);
        }
        if let Some(fast_open) = &self.fast_open {
            writer.fast_open(fast_open);
        }
        if blocks > 0 {
            writer.word([KIND_NOP, KIND_NOP, KIND_SACK, (2 + 8 * blocks) as u8]);
            for (left, right) in &self.sack.as_slice()[..blocks] {
                writer.word(left.to_be_bytes());
                writer.word(right.to_be_bytes());
            }
        }
    }
}

/// Writes words one after the other.
struct Writer<'a> {
    buffer: &'a mut [u8],
}

impl Writer<'_> {
    fn fast_open(&mut self, fast_open: &FastOpen) {
        let option_len = fast_open.option_len.get();
        let mut option = [KIND_NOP; 4 + FastOpen::MAX_COOKIE_LEN];
        let length = fast_open.emitted_len();
        let lead = length - usize::from(option_len);
        option[lead..lead + 2].copy_from_slice(&[KIND_FAST_OPEN, option_len]);
        option[lead + 2..length].copy_from_slice(fast_open.cookie());
        let (words, _) = option[..length].as_chunks::<4>();
        for word in words {
            self.word(*word);
        }
    }

    fn word(&mut self, word: [u8; 4]) {
        let (head, tail) = core::mem::take(&mut self.buffer)
            .split_first_chunk_mut::<4>()
            .expect("emitted_len counts every word");
        *head = word;
        self.buffer = tail;
    }
}
