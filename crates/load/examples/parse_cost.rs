//! What parsing a response costs: nginx's usual head and 0 to 10,000 bytes of content.
//!
//! `cargo run --release -p overfly-load --example parse_cost`

use std::hint::black_box;
use std::time::Instant;

use overfly_load::response::{HeadCache, Parser};

const ROUNDS: u32 = 2_000_000;

fn response(server: &str, body: usize) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nServer: {server}\r\nDate: Sat, 21 Nov 2026 22:51:42 GMT\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {body}\r\n\
         Last-Modified: Sat, 21 Nov 2026 22:00:00 GMT\r\nConnection: keep-alive\r\n\
         ETag: \"6740b3c0-400\"\r\nAccept-Ranges: bytes\r\n\r\n"
    )
    .into_bytes();
    bytes.resize(bytes.len() + body, b'x');
    bytes
}

/// ns for each of `responses`, in turn, in pieces of `piece` bytes.
fn measure(responses: &[Vec<u8>], piece: usize) -> f64 {
    let mut cache = HeadCache::new();
    let mut parser = Parser::new();
    let mut complete = 0u32;
    let start = Instant::now();
    for round in 0..ROUNDS {
        let response = &responses[round as usize % responses.len()];
        for data in black_box(&response[..]).chunks(piece) {
            if let Ok((_, Some(_))) = parser.feed(data, &mut cache) {
                complete += 1;
            }
        }
    }
    assert_eq!(complete, ROUNDS);
    start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}

fn main() {
    println!("ns a response; head of {} bytes", response("nginx/1.22.1", 0).len());
    println!("{:>8} {:>16} {:>16} {:>16}", "content", "same head", "another head", "1,448 B pieces");
    for body in [0, 1024, 10_000] {
        let same = [response("nginx/1.22.1", body)];
        let turns = [response("nginx/1.22.1", body), response("nginx/1.22.2", body)];
        println!(
            "{body:>8} {:>16.1} {:>16.1} {:>16.1}",
            measure(&same, usize::MAX),
            measure(&turns, usize::MAX),
            measure(&same, 1448)
        );
    }
}
