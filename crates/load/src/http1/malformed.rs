//! What is wrong with a message.

/// What is wrong with a message. Whoever sent it is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The first bytes of a response are not `HTTP/1.`, or its status line does not go on as it should.
    StatusLine,
    /// The status code is not three digits between 100 and 999.
    StatusCode,
    /// A header name holds a byte that no token has, is empty, or the line has no colon; or it is folded, in a request.
    HeaderName,
    /// A header value holds a NUL or a carriage return of its own.
    HeaderValue,
    /// Content-Length is no number, is too large, or comes twice with different values.
    ContentLength,
    /// A chunk-size line is no hexadecimal number or is too large.
    ChunkSize,
    /// The bytes after a chunk are not a line end.
    ChunkEnd,
    /// The head, a chunk-size line or the trailers do not end within their limit.
    TooLong,
    /// 101 Switching Protocols, which nobody asked for.
    Upgrade,
    /// Bytes arrived that belong to no request.
    Unsolicited,
    /// A request without a method, or a byte in it that no token has.
    Method,
    /// An empty target, or a byte that no target has.
    Target,
    /// A request's version is not `HTTP/1.0`, `HTTP/1.1` or another minor version of it.
    Version,
    /// A request of HTTP/1.1 without a Host (RFC 9112 section 3.2).
    NoHost,
    /// A request's Transfer-Encoding is not `chunked`, or in HTTP/1.0, or beside a Content-Length (RFC 9112 section 6.1).
    TransferEncoding,
}

impl Malformed {
    /// Every kind, in the order of its index.
    pub const ALL: [Malformed; 15] = [
        Malformed::StatusLine,
        Malformed::StatusCode,
        Malformed::HeaderName,
        Malformed::HeaderValue,
        Malformed::ContentLength,
        Malformed::ChunkSize,
        Malformed::ChunkEnd,
        Malformed::TooLong,
        Malformed::Upgrade,
        Malformed::Unsolicited,
        Malformed::Method,
        Malformed::Target,
        Malformed::Version,
        Malformed::NoHost,
        Malformed::TransferEncoding,
    ];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Malformed::StatusLine => "status_line",
            Malformed::StatusCode => "status_code",
            Malformed::HeaderName => "header_name",
            Malformed::HeaderValue => "header_value",
            Malformed::ContentLength => "content_length",
            Malformed::ChunkSize => "chunk_size",
            Malformed::ChunkEnd => "chunk_end",
            Malformed::TooLong => "too_long",
            Malformed::Upgrade => "upgrade",
            Malformed::Unsolicited => "unsolicited",
            Malformed::Method => "method",
            Malformed::Target => "target",
            Malformed::Version => "version",
            Malformed::NoHost => "no_host",
            Malformed::TransferEncoding => "transfer_encoding",
        }
    }
}
