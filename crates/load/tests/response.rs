//! The response parser: what is a response, how it may be split, what is refused and why.

use overfly_load::response::{HeadCache, Malformed, Parser, Response};
use proptest::prelude::*;

/// Feeds pieces one by one; the responses found, and the error that ended it.
fn feed_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    cache: &mut HeadCache,
) -> (Vec<Response>, Option<Malformed>, Parser) {
    let mut parser = Parser::new();
    let mut responses = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            match parser.feed(piece, cache) {
                Err(malformed) => return (responses, Some(malformed), parser),
                Ok((used, response)) => {
                    assert!(used <= piece.len());
                    assert!(used > 0);
                    assert!(response.is_some() || used == piece.len());
                    responses.extend(response);
                    piece = &piece[used..];
                }
            }
        }
    }
    (responses, None, parser)
}

fn one(text: &[u8]) -> Result<Option<Response>, Malformed> {
    let (responses, malformed, mut parser) = feed_pieces(std::iter::once(text), &mut HeadCache::new());
    let bytewise = feed_pieces(text.chunks(1), &mut HeadCache::new());
    assert_eq!((&responses, malformed), (&bytewise.0, bytewise.1), "byte by byte");
    match malformed {
        Some(malformed) => Err(malformed),
        None => Ok(responses.first().copied().or_else(|| parser.finish())),
    }
}

fn response(status: u16, body_bytes: u64, keep_alive: bool) -> Result<Option<Response>, Malformed> {
    Ok(Some(Response { status, body_bytes, keep_alive }))
}

#[test]
fn content_length() {
    assert_eq!(one(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), response(200, 5, true));
    assert_eq!(one(b"HTTP/1.1 200 OK\r\ncontent-LENGTH:5  \r\n\r\nhello"), response(200, 5, true));
    assert_eq!(one(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), response(404, 0, true));
    assert_eq!(one(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"), Ok(None));
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        response(200, 3, true)
    );
}

#[test]
fn no_body_by_status() {
    assert_eq!(one(b"HTTP/1.1 204 No Content\r\n\r\n"), response(204, 0, true));
    assert_eq!(one(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"), response(304, 0, true));
    assert_eq!(one(b"HTTP/1.1 204\r\n\r\n"), response(204, 0, true));
}

#[test]
fn interim_responses_are_skipped() {
    assert_eq!(
        one(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"),
        response(200, 1, true)
    );
}

#[test]
fn chunked() {
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\n"),
        response(200, 15, true)
    );
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n1 \r\nx\r\n0\r\nExpires: now\r\nA: b\r\n\r\n"),
        response(200, 1, true)
    );
    // Both lengths: the encoding counts, and the connection is not used again.
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        response(200, 0, false)
    );
    // An encoding that does not end in chunked ends with the connection.
    assert_eq!(one(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nxyz"), response(200, 3, false));
}

#[test]
fn until_the_connection_ends() {
    assert_eq!(one(b"HTTP/1.1 200 OK\r\n\r\nhello"), response(200, 5, false));
    assert_eq!(one(b"HTTP/1.0 200 OK\r\n\r\n"), response(200, 0, false));
}

#[test]
fn who_keeps_the_connection() {
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
        response(200, 0, false)
    );
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nConnection: foo , Close\r\nContent-Length: 0\r\n\r\n"),
        response(200, 0, false)
    );
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nConnection: closed\r\nContent-Length: 0\r\n\r\n"),
        response(200, 0, true)
    );
    assert_eq!(one(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), response(200, 0, false));
    assert_eq!(
        one(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"),
        response(200, 0, true)
    );
}

#[test]
fn lenient_where_the_rfc_lets_us() {
    assert_eq!(one(b"HTTP/1.1 200\nContent-Length: 2\n\nok"), response(200, 2, true));
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nX-A: b\r\n  folded\r\nContent-Length: 2\r\n\r\nok"),
        response(200, 2, true)
    );
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;\0\r\nx\r\n0\r\nA: \0\r\n\r\n"),
        response(200, 1, true)
    );
    assert_eq!(
        one(b"HTTP/1.1 200 OK\r\nConnection: foo,\r\n close\r\nContent-Length:\r\n 2\r\n\r\nok"),
        response(200, 2, false)
    );
}

#[test]
fn malformed_by_kind() {
    let cases: &[(&[u8], Malformed)] = &[
        (b"SSH-2.0-OpenSSH\r\n", Malformed::StatusLine),
        (b"HTTP/2.0 200 OK\r\n\r\n", Malformed::StatusLine),
        (b"HTTP/1.1  200 OK\r\n\r\n", Malformed::StatusCode),
        (b"HTTP/1.1 2000 OK\r\n\r\n", Malformed::StatusCode),
        (b"HTTP/1.1 099 OK\r\n\r\n", Malformed::StatusCode),
        (b"HTTP/1.1 20x OK\r\n\r\n", Malformed::StatusCode),
        (b"HTTP/1.1 200-OK\r\n\r\n", Malformed::StatusLine),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", Malformed::Upgrade),
        (b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", Malformed::HeaderName),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", Malformed::HeaderName),
        (b"HTTP/1.1 200 OK\r\n: empty\r\n\r\n", Malformed::HeaderName),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n", Malformed::HeaderName),
        (b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", Malformed::HeaderValue),
        (b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", Malformed::HeaderValue),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1 2\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", Malformed::ContentLength),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", Malformed::ChunkSize),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", Malformed::ChunkSize),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", Malformed::ChunkSize),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy", Malformed::ChunkEnd),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\rx", Malformed::HeaderName),
    ];
    for (text, malformed) in cases {
        assert_eq!(one(text), Err(*malformed), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn endless_lines_are_bounded() {
    let mut text = b"HTTP/1.1 200 OK\r\nA: ".to_vec();
    text.resize(70_000, b'b');
    assert_eq!(one(&text), Err(Malformed::TooLong));
    let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;".to_vec();
    text.resize(70_000, b'b');
    assert_eq!(one(&text), Err(Malformed::TooLong));
}

#[test]
fn the_remembered_head_may_have_another_date_but_nothing_else() {
    let head = |date: &str, length: usize| {
        format!("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n")
    };
    let cache = &mut HeadCache::new();
    let mut ask = |text: String| {
        let (responses, malformed, _) = feed_pieces(std::iter::once(text.as_bytes()), cache);
        malformed.map_or(Ok(responses.first().copied()), Err)
    };
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    assert_eq!(ask(head(date, 0)), response(200, 0, true));
    assert_eq!(ask(head("Mon, 07 Nov 1994 08:49:38 GMT", 0)), response(200, 0, true));
    assert_eq!(ask(head(date, 2) + "xy"), response(200, 2, true));
    // As long as a date, and a line of its own: must not be taken for one.
    let sly = "x\r\nContent-Length: 7\r\nAAA: bc";
    assert_eq!(sly.len(), date.len());
    assert_eq!(ask(head(sly, 2)), Err(Malformed::ContentLength));
    assert_eq!(ask(head("x\0y Nov 1994 08:49:37 GMT ....", 2)), Err(Malformed::HeaderValue));
}

/// A valid response and what it says.
fn any_response() -> impl Strategy<Value = (Vec<u8>, Response)> {
    let filler = prop::collection::vec(
        prop_oneof![
            Just("Server: nginx".to_string()),
            Just("Date: Sun, 06 Nov 1994 08:49:37 GMT".to_string()),
            Just("Connection: keep-alive".to_string()),
            "[A-Za-z-]{1,20}x: [ -~]{0,40}",
        ],
        0..6,
    );
    let body = prop::collection::vec(any::<u8>(), 0..300);
    let status = prop_oneof![Just(200u16), Just(204), Just(304), 200u16..1000];
    let cuts = prop::collection::vec(1usize..50, 0..8);
    (filler, body, status, 0..3u8, any::<bool>(), cuts, any::<bool>()).prop_map(
        |(mut lines, body, status, framing, close, cuts, interim)| {
            let no_body = matches!(status, 204 | 304);
            let framing = if no_body { 0 } else { framing };
            let mut bytes = Vec::new();
            if interim {
                bytes.extend_from_slice(b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n");
            }
            if close {
                lines.push("connection: Close".to_string());
            }
            match framing {
                0 => lines.push(format!("Content-Length: {}", body.len())),
                1 => lines.push("Transfer-Encoding: chunked".to_string()),
                _ => {}
            }
            bytes.extend_from_slice(format!("HTTP/1.1 {status} Fine\r\n").as_bytes());
            for line in &lines {
                bytes.extend_from_slice(line.as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"\r\n");
            match framing {
                0 if no_body => {}
                0 | 2 => bytes.extend_from_slice(&body),
                _ => {
                    let mut rest = &body[..];
                    for cut in cuts {
                        let (chunk, after) = rest.split_at(cut.min(rest.len()));
                        if !chunk.is_empty() {
                            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                            bytes.extend_from_slice(chunk);
                            bytes.extend_from_slice(b"\r\n");
                        }
                        rest = after;
                    }
                    if !rest.is_empty() {
                        bytes.extend_from_slice(format!("{:X};e=1\r\n", rest.len()).as_bytes());
                        bytes.extend_from_slice(rest);
                        bytes.extend_from_slice(b"\r\n");
                    }
                    bytes.extend_from_slice(b"0\r\nTrailer: t\r\n\r\n");
                }
            }
            let body_bytes = if no_body { 0 } else { body.len() as u64 };
            let keep_alive = !close && framing != 2;
            (bytes, Response { status, body_bytes, keep_alive })
        },
    )
}

/// Splits at the given lengths, round and round.
fn split<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*length).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_a_valid_response_is_the_same_response(
        (bytes, expected) in any_response(),
        lengths in prop::collection::vec(1usize..80, 1..12),
    ) {
        let cache = &mut HeadCache::new();
        for pieces in [vec![&bytes[..]], split(&bytes, &lengths), vec![&bytes[..]]] {
            let (responses, malformed, mut parser) = feed_pieces(pieces.into_iter(), cache);
            prop_assert_eq!(malformed, None);
            let found = responses.first().copied().or_else(|| parser.finish());
            prop_assert_eq!(found, Some(expected));
            prop_assert!(responses.len() <= 1);
            prop_assert!(parser.is_fresh());
        }
    }

    #[test]
    fn damaged_responses_read_the_same_in_any_split_and_with_any_cache(
        (good, _) in any_response(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        lengths in prop::collection::vec(1usize..200, 1..6),
    ) {
        let mut bad = good.clone();
        for (index, byte) in damage {
            let at = index.index(bad.len());
            bad[at] = byte;
        }
        let plain = feed_pieces(bad.chunks(1), &mut HeadCache::new());
        let cache = &mut HeadCache::new();
        feed_pieces(std::iter::once(&good[..]), cache);
        let cached = feed_pieces(split(&bad, &lengths).into_iter(), cache);
        prop_assert_eq!((plain.0, plain.1), (cached.0, cached.1));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        prefix in 0..4usize,
        lengths in prop::collection::vec(1usize..80, 1..6),
    ) {
        let prefix: &[u8] = [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
        ][prefix];
        let all = [prefix, &bytes].concat();
        let (_, _, mut parser) =
            feed_pieces(split(&all, &lengths).into_iter(), &mut HeadCache::new());
        let _ = parser.finish();
    }
}
