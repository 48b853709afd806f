//! What is a request, how it may be split, what is refused and why.

use proptest::prelude::*;

use super::*;

type Outcome = Result<Vec<Parsed>, (usize, Malformed)>;

/// Everything that comes out of `pieces`, one after the other.
fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, cache: &mut HeadCache) -> (Outcome, bool) {
    let mut parser = Parser::new();
    let mut parsed = Vec::new();
    for piece in pieces {
        let mut at = 0;
        while at < piece.len() {
            match parser.feed(&piece[at..], cache) {
                Ok((used, found)) => {
                    assert!(used > 0);
                    assert!(found.is_some() || used == piece.len() - at);
                    at += used;
                    parsed.extend(found);
                }
                Err(malformed) => return (Err((parsed.len(), malformed)), false),
            }
        }
    }
    (Ok(parsed), parser.is_idle())
}

fn requests(text: &str) -> Outcome {
    parse([text.as_bytes()], &mut HeadCache::new()).0
}

fn one(text: &str) -> Request {
    match requests(text).as_deref() {
        Ok([Parsed::Request(request)]) => *request,
        other => panic!("{text:?}: {other:?}"),
    }
}

fn get(target: &str) -> Request {
    one(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

#[test]
fn the_path_names_the_size() {
    for (target, size) in [
        ("/", Some(0)),
        ("/0", Some(0)),
        ("/1024", Some(1024)),
        ("/10k", Some(10_000)),
        ("/1M", Some(1_000_000)),
        ("/1g", Some(1_000_000_000)),
        ("/1000G", Some(1_000_000_000_000)),
        ("/10M/17", Some(10_000_000)),
        ("/10M?x=1", Some(10_000_000)),
        ("/?x", Some(0)),
        ("http://a/1k", Some(1000)),
        ("http://a:80", Some(0)),
        ("*", Some(0)),
        ("/1001G", None),
        ("/99999999999999999999999", None),
        ("/1kk", None),
        ("/k", None),
        ("/index.html", None),
        ("/1x", None),
        ("a:1", None),
    ] {
        assert_eq!(get(target).size, size, "{target}");
    }
}

#[test]
fn which_connections_persist() {
    let ask = |version: &str, field: &str| {
        one(&format!("GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n")).keep_alive
    };
    assert!(ask("1.1", ""));
    assert!(ask("1.1", "Connection: upgrade\r\n"));
    // No option has a blank in it (RFC 9110 section 7.6.1).
    assert!(ask("1.1", "Connection: close x\r\n"));
    assert!(!ask("1.1", "connection:close\r\n"));
    assert!(!ask("1.1", "Connection: x, Close \r\n"));
    assert!(!ask("1.1", "Connection: keep-alive\r\nConnection: close\r\n"));
    assert!(!ask("1.0", ""));
    assert!(ask("1.0", "Connection: Keep-Alive\r\n"));
    assert!(!ask("1.0", "Connection: keep-alive, close\r\n"));
    assert!(one("GET / HTTP/1.0\n\n").old);
    assert!(one("HEAD /5 HTTP/1.1\r\nHost: a\r\n\r\n").head_only);
    assert!(!one("head /5 HTTP/1.1\r\nHost: a\r\n\r\n").head_only);
}

#[test]
fn bodies_are_counted_off() {
    let body = "POST /7 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5 \r\n\r\nGET /";
    assert_eq!(one(body).size, Some(7));
    let chunked = "POST /7 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
                   5;x=y\r\nGET /\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
    assert_eq!(one(chunked).size, Some(7));
    let several = format!("\r\n{body}\r\n{chunked}GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(requests(&several).unwrap().len(), 3);
    let expects = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx";
    let both = requests(expects).unwrap();
    assert_eq!(both[0], Parsed::Expecting);
    assert!(matches!(both[1..], [Parsed::Request(_)]));
    assert_eq!(one("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").size, Some(0));
    let no_wait = expects.replace("100-continue", "100-con tinue");
    assert!(matches!(requests(&no_wait).as_deref(), Ok([Parsed::Request(_)])));
}

#[test]
fn the_longest_head_may_have_another_behind_it() {
    let head = |pad: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(pad));
    // The first byte of a method is not counted.
    let pad = Strict::HEAD_LIMIT as usize + 1 - head(0).len();
    assert_eq!(requests(&head(pad).repeat(2)).unwrap().len(), 2);
    assert_eq!(requests(&head(pad + 1)), Err((0, Malformed::TooLong)));
}

#[test]
fn what_is_no_request() {
    let fields = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    let chunks = |chunks: &str| fields(&format!("Transfer-Encoding: chunked\r\n\r\n{chunks}"));
    for (text, malformed) in [
        (" GET / HTTP/1.1\r\n".to_string(), Malformed::Method),
        ("GE\u{1}T / HTTP/1.1\r\n".to_string(), Malformed::Method),
        ("\u{16}\u{3}\u{1}".to_string(), Malformed::Method),
        ("GET\r\n".to_string(), Malformed::Method),
        ("GET  HTTP/1.1\r\n".to_string(), Malformed::Target),
        ("GET /\r\n".to_string(), Malformed::Target),
        ("GET /a\u{7f} HTTP/1.1\r\n".to_string(), Malformed::Target),
        ("GET / HTTP/2.0\r\n".to_string(), Malformed::Version),
        ("GET / http/1.1\r\n".to_string(), Malformed::Version),
        ("GET / HTTP/1.1 \r\n".to_string(), Malformed::Version),
        ("GET / HTTP/1.1\r\n\r\n".to_string(), Malformed::NoHost),
        (fields(" folded: x"), Malformed::HeaderName),
        (fields("no colon"), Malformed::HeaderName),
        (fields("name : x"), Malformed::HeaderName),
        (fields(": x"), Malformed::HeaderName),
        (fields("x: a\rb"), Malformed::HeaderValue),
        (fields("x: a\0b"), Malformed::HeaderValue),
        (fields("Content-Length: 1x"), Malformed::ContentLength),
        (fields("Content-Length: 1 1"), Malformed::ContentLength),
        (fields("Content-Length: -1"), Malformed::ContentLength),
        (fields("Content-Length: "), Malformed::ContentLength),
        (fields("Content-Length: 1\r\nContent-Length: 2"), Malformed::ContentLength),
        (fields("Content-Length: 99999999999999999999"), Malformed::ContentLength),
        (fields("Transfer-Encoding: gzip"), Malformed::TransferEncoding),
        (fields("Transfer-Encoding: chun ked"), Malformed::TransferEncoding),
        (fields("Transfer-Encoding: gzip, chunked"), Malformed::TransferEncoding),
        (fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Malformed::TransferEncoding),
        (fields("Transfer-Encoding: chunked\r\nContent-Length: 1"), Malformed::TransferEncoding),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_string(), Malformed::TransferEncoding),
        (chunks("x\r\n"), Malformed::ChunkSize),
        (chunks("1 x\r\n"), Malformed::ChunkSize),
        (chunks("1;\0\r\n"), Malformed::ChunkSize),
        (chunks("0\r\nx: \0\r\n"), Malformed::HeaderValue),
        (chunks("0\r\n\rx"), Malformed::HeaderName),
        (chunks("\r\n"), Malformed::ChunkSize),
        (chunks("11111111111111111\r\n"), Malformed::ChunkSize),
        (chunks("1\r\nab\r\n"), Malformed::ChunkEnd),
        (chunks(&format!("1;{}\r\n", "x".repeat(2000))), Malformed::TooLong),
        (fields(&format!("x: {}", "y".repeat(20_000))), Malformed::TooLong),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), Malformed::TooLong),
        (chunks(&format!("0\r\n{}", "x: y\r\n".repeat(4000))), Malformed::TooLong),
    ] {
        assert_eq!(requests(&text), Err((0, malformed)), "{text:?}");
    }
}

#[test]
fn the_remembered_head_may_have_another_date_but_nothing_else() {
    let cache = &mut HeadCache::new();
    let mut ask = |size: usize, date: &str| {
        let head = format!("GET /{size} HTTP/1.1\r\nDate: {date}\r\nHost: a\r\n\r\n");
        let (parsed, _) = parse([head.as_bytes()], cache);
        parsed.map(|parsed| match parsed[..] {
            [Parsed::Request(request)] => request.size,
            _ => panic!("{parsed:?}"),
        })
    };
    assert_eq!(ask(1, "Sun, 06 Nov 1994 08:49:37 GMT"), Ok(Some(1)));
    assert_eq!(ask(1, "Mon, 07 Nov 1994 08:49:38 GMT"), Ok(Some(1)));
    assert_eq!(ask(2, "Mon, 07 Nov 1994 08:49:38 GMT"), Ok(Some(2)));
    assert_eq!(ask(2, "x\r\nContent-Length: 7\r\nAAA bc:"), Err((0, Malformed::HeaderName)));
    assert_eq!(ask(2, "x\0y Nov 1994 08:49:37 GMT ...."), Err((0, Malformed::HeaderValue)));
}

/// Requests of all kinds, some of them spoilt.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let request = prop_oneof![
        Just("GET /1024 HTTP/1.1\r\nHost: a\r\nUser-Agent: b c\r\n\r\n".to_string()),
        Just("GET / HTTP/1.0\r\n\r\n".to_string()),
        Just("HEAD http://a/5k HTTP/1.1\nHost: a\nConnection: close\n\n".to_string()),
        Just("POST /1 HTTP/1.1\r\nhost:\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nabcd".into()),
        Just(
            "PUT /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n"
                .into()
        ),
    ];
    (prop::collection::vec(request, 1..6), prop::option::of((any::<prop::sample::Index>(), any::<u8>())))
        .prop_map(|(requests, spoilt)| {
            let mut bytes = requests.concat().into_bytes();
            if let Some((index, byte)) = spoilt {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes
        })
}

proptest! {
    /// However the stream is cut, and whatever was remembered from others, the same comes out.
    #[test]
    fn splits_and_caches_change_nothing(
        stream in streams(),
        warm in streams(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect();
        let expected = parse(stream.chunks(1), &mut HeadCache::new());
        let mut cache = HeadCache::new();
        let _ = parse([&warm[..]], &mut cache);
        prop_assert_eq!(parse(pieces, &mut cache), expected.clone());
        prop_assert_eq!(parse([&stream[..]], &mut cache), expected);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse([&bytes[..]], &mut HeadCache::new());
    }
}
