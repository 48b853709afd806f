//! Which part of a request comes next.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPart {
    /// Before a request; empty lines are skipped (RFC 9112 section 2.2).
    Start,
    Method,
    TargetStart,
    /// `http://host` of an absolute target; `number` counts its slashes.
    Authority,
    /// The size so far is in `number`.
    Size,
    /// The size was complete with a unit.
    SizeEnd,
    /// Whatever follows the size, or a path that names none.
    Path,
    /// `number` bytes of [`VERSION`](super::VERSION) have come.
    Version,
    LineEnd,
    HeaderStart,
    HeaderName,
    ValueStart,
    Value,
    ValueEnd,
    /// After the carriage return of the empty line.
    HeadEnd,
    /// `number` more bytes.
    Body,
    ChunkSizeStart,
    ChunkSize,
    ChunkExtension,
    ChunkSizeEnd,
    /// `number` more bytes of this chunk.
    Chunk,
    ChunkEnd,
    ChunkLineFeed,
    TrailerStart,
    Trailer,
    TrailersEnd,
}
