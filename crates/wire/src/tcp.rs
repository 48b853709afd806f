//! TCP segments (RFC 9293 section 3.1) and their options (RFC 9293 section 3.2, RFC 7323, RFC 2018).

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
pub use crate::checksum::ChecksumState;
use crate::checksum::{Address, Sum};
use crate::ipv4::PROTOCOL_TCP;
pub use options::{FastOpen, MAX_WINDOW_SCALE, Options, Sacks, Timestamps};

mod options;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Most bytes of a header with its options.
pub const MAX_HEADER_LEN: usize = 60;

/// Where the checksum is in a segment.
const CHECKSUM: core::ops::Range<usize> = 16..18;

/// The control bits of a segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Hand the data to the program at once.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment number means something.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer means something.
    pub const URG: Flags = Flags(0x20);
    /// The sender saw a congestion mark (RFC 3168 section 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// The sender slowed down for one (RFC 3168 section 6.1).
    pub const CWR: Flags = Flags(0x80);

    /// The flags of a header's 14th byte.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Flags {
        Flags(bits)
    }

    /// The 14th byte of a header.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all of `flags` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether any of `flags` is set.
    #[inline]
    #[must_use]
    pub const fn intersects(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// What is set in either: `|` for constants.
    #[inline]
    #[must_use]
    pub const fn union(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    #[inline]
    fn bitor(self, flags: Flags) -> Flags {
        self.union(flags)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, flags: Flags) {
        self.0 |= flags.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 == 1 {
                write!(formatter, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.0 == 0 { formatter.write_str("-") } else { Ok(()) }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    source_port: U16,
    destination_port: U16,
    sequence: U32,
    acknowledgment: U32,
    data_offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}

/// A segment whose data offset has been checked; its options and checksum not yet.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Looks at the payload of an IP packet as a segment.
    ///
    /// # Errors
    /// [`Malformed::TcpShort`], [`Malformed::TcpDataOffset`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Segment<'a>, Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::TcpShort)?;
        let options_len = (usize::from(layout.data_offset >> 4) * 4)
            .checked_sub(HEADER_LEN)
            .ok_or(Malformed::TcpDataOffset)?;
        let (options, payload) = rest.split_at_checked(options_len).ok_or(Malformed::TcpDataOffset)?;
        Ok(Segment { layout, bytes, options, payload })
    }

    /// Port of the sender.
    #[inline]
    #[must_use]
    pub fn source_port(&self) -> u16 {
        self.layout.source_port.into()
    }

    /// Port of the receiver.
    #[inline]
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        self.layout.destination_port.into()
    }

    /// Sequence number of the first byte, or of SYN.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.layout.sequence.into()
    }

    /// The next sequence number that the sender waits for; only with [`Flags::ACK`].
    #[inline]
    #[must_use]
    pub fn acknowledgment(&self) -> u32 {
        self.layout.acknowledgment.into()
    }

    /// The control bits.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags(self.layout.flags)
    }

    /// The window field, not scaled.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        self.layout.window.into()
    }

    /// The checksum field.
    #[inline]
    #[must_use]
    pub fn checksum(&self) -> u16 {
        self.layout.checksum.into()
    }

    /// The urgent pointer; only with [`Flags::URG`].
    #[inline]
    #[must_use]
    pub fn urgent(&self) -> u16 {
        self.layout.urgent.into()
    }

    /// Bytes of the header and its options.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// The options as they came: at most 40 bytes, a multiple of 4.
    #[inline]
    #[must_use]
    pub fn options_bytes(&self) -> &'a [u8] {
        self.options
    }

    /// The options that are understood; others are stepped over.
    ///
    /// # Errors
    /// [`Malformed::TcpOption`].
    #[inline]
    pub fn options(&self) -> Result<Options, Malformed> {
        Options::parse(self.options)
    }

    /// The data.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// How it stands with the checksum, given the addresses of the packet.
    ///
    /// [`ChecksumState::Partial`] is looked for first, as it costs nothing, and so hides one valid checksum in 65,536: where
    /// a link does not bring partial checksums, ask [`Segment::checksum_holds`].
    #[inline]
    #[must_use]
    pub fn verify<A: Address>(&self, source: A, destination: A) -> ChecksumState {
        let Some(pseudo) = self.pseudo_header(source, destination) else {
            return ChecksumState::Invalid;
        };
        if pseudo.fold() == self.checksum() {
            ChecksumState::Partial
        } else if pseudo.bytes(self.bytes).finish() == 0 {
            ChecksumState::Valid
        } else {
            ChecksumState::Invalid
        }
    }

    /// Whether the full checksum holds, given the addresses of the packet (RFC 9293 section 3.1).
    #[inline]
    #[must_use]
    pub fn checksum_holds<A: Address>(&self, source: A, destination: A) -> bool {
        self.pseudo_header(source, destination).is_some_and(|pseudo| pseudo.bytes(self.bytes).finish() == 0)
    }

    /// `None` for a segment that is longer than any IP packet.
    #[inline]
    fn pseudo_header<A: Address>(&self, source: A, destination: A) -> Option<Sum> {
        let length = u16::try_from(self.bytes.len()).ok()?;
        Some(A::pseudo_header(source, destination, PROTOCOL_TCP, length))
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Segment")
            .field("source_port", &self.source_port())
            .field("destination_port", &self.destination_port())
            .field("sequence", &self.sequence())
            .field("acknowledgment", &self.acknowledgment())
            .field("flags", &self.flags())
            .field("window", &self.window())
            .field("options", &self.options())
            .field("payload_len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What a segment to be sent says. The urgent pointer is always 0 (RFC 6093 section 5: not to be used).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Sequence number of the first byte, or of SYN.
    pub sequence: u32,
    /// The next sequence number that the sender waits for; only with [`Flags::ACK`].
    pub acknowledgment: u32,
    /// The control bits.
    pub flags: Flags,
    /// The window field, already scaled down.
    pub window: u16,
    /// The options.
    pub options: Options,
}

/// A header with timestamps and no other option, which is nearly every segment of a connection.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct TimestampedLayout {
    layout: Layout,
    timestamps: options::TimestampsLayout,
}

const TIMESTAMPED_LEN: usize = size_of::<TimestampedLayout>();

impl Header {
    /// Bytes that [`Header::emit`] writes: the header and its options, a multiple of 4.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.emitted_len()
    }

    /// Writes the header and its options to the start of `buffer`, and returns how many bytes that took. The checksum is
    /// left 0: see [`write_checksum`].
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Header::header_len`].
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        if let Some(timestamps) = self.options.only_timestamps() {
            let header =
                TimestampedLayout { layout: self.layout(TIMESTAMPED_LEN), timestamps: timestamps.into() };
            buffer[..TIMESTAMPED_LEN].copy_from_slice(header.as_bytes());
            return TIMESTAMPED_LEN;
        }
        let header_len = self.header_len();
        let (header, options) = buffer[..header_len].split_at_mut(HEADER_LEN);
        header.copy_from_slice(self.layout(header_len).as_bytes());
        if !options.is_empty() {
            self.options.emit(options);
        }
        header_len
    }

    #[inline]
    fn layout(&self, header_len: usize) -> Layout {
        Layout {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            sequence: self.sequence.into(),
            acknowledgment: self.acknowledgment.into(),
            data_offset: ((header_len / 4) << 4) as u8,
            flags: self.flags.0,
            window: self.window.into(),
            checksum: 0.into(),
            urgent: 0.into(),
        }
    }
}

/// Fills in the checksum of `segment`, a header with its payload, between these addresses.
///
/// # Panics
/// If `segment` is shorter than a header or longer than 65,535 bytes.
#[inline]
pub fn write_checksum<A: Address>(segment: &mut [u8], source: A, destination: A) {
    let pseudo = A::pseudo_header(source, destination, PROTOCOL_TCP, checked_len(segment.len()));
    segment[CHECKSUM].fill(0);
    let checksum = pseudo.bytes(segment).finish();
    segment[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

/// Fills in the checksum of `header`, which [`Header::emit`] wrote, when its payload of `payload_len` bytes has been summed
/// already, by [`copy_and_sum`](crate::checksum::copy_and_sum) for instance.
///
/// # Panics
/// If `header` is shorter than a header, or longer than 65,535 bytes with its payload.
#[inline]
pub fn write_checksum_of<A: Address>(
    header: &mut [u8],
    payload: Sum,
    payload_len: usize,
    source: A,
    destination: A,
) {
    let length = checked_len(header.len() + payload_len);
    let pseudo = A::pseudo_header(source, destination, PROTOCOL_TCP, length);
    header[CHECKSUM].fill(0);
    let checksum = (pseudo.bytes(header) + payload).finish();
    header[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes what a link that completes checksums wants in the field of `segment` ([`ChecksumState::Partial`]): the folded sum
/// of the pseudo-header, not complemented. The link then sums from the header on, this field included.
///
/// For a super-segment the length in the pseudo-header is that of the whole, as the kernel has it for `CHECKSUM_PARTIAL`.
///
/// # Panics
/// If `segment` is shorter than a header or longer than 65,535 bytes.
#[inline]
pub fn write_partial_checksum<A: Address>(segment: &mut [u8], source: A, destination: A) {
    let pseudo = A::pseudo_header(source, destination, PROTOCOL_TCP, checked_len(segment.len()));
    segment[CHECKSUM].copy_from_slice(&pseudo.fold().to_be_bytes());
}

#[inline]
fn checked_len(length: usize) -> u16 {
    u16::try_from(length).expect("a TCP segment holds at most 65,535 bytes: send less at once")
}
