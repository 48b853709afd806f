//! Which part of a response comes next.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponsePart {
    /// `position` bytes of `HTTP/1.` are there.
    Version,
    Minor,
    CodeSpace,
    /// `position` digits are there.
    Code,
    CodeEnd,
    Reason,
    /// A CR ended a status or header line: LF must follow.
    LineEnd,
    LineStart,
    Name,
    Value,
    /// A CR at the start of a header line: LF must follow, and ends the head.
    HeadEnd,
    /// `remaining` bytes of body are to come.
    Body,
    UntilClose,
    /// `position` is 1 when a digit was there.
    ChunkSize,
    ChunkSizeSpace,
    ChunkExtension,
    ChunkSizeEnd,
    ChunkData,
    ChunkDataCr,
    ChunkDataLf,
    TrailerStart,
    Trailer,
    TrailerEnd,
}
