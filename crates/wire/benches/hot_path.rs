//! What every packet costs here: `cargo bench -p overfly-wire`.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use overfly_wire::checksum::{Sum, copy_and_sum};
use overfly_wire::tcp::{self, ChecksumState, Flags, Options, Segment, Timestamps};
use overfly_wire::{MacAddr, ethernet, ipv4};

/// Repetitions of which the fastest counts: the machine has other work too.
const REPETITIONS: usize = 7;
const ROUNDS: u32 = 1_000_000;

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TRANSPORT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

/// Nanoseconds that one `operation` takes.
fn duration_ns(mut operation: impl FnMut()) -> f64 {
    let fastest = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            (0..ROUNDS).for_each(|_| operation());
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    fastest.as_secs_f64() * 1e9 / f64::from(ROUNDS)
}

/// Writes all headers of a data segment with timestamps, except the TCP checksum; returns their length.
fn emit(frame: &mut [u8], payload_len: usize) -> usize {
    ethernet::Header {
        destination: MacAddr([2; 6]),
        source: MacAddr([4; 6]),
        ethertype: ethernet::ETHERTYPE_IPV4,
    }
    .emit(frame);
    let header = tcp::Header {
        source_port: 80,
        destination_port: 40_000,
        sequence: 1,
        acknowledgment: 2,
        flags: Flags::ACK,
        window: 3,
        options: Options { timestamps: Some(Timestamps { value: 4, echo: 5 }), ..Options::NONE },
    };
    let header_len = black_box(header).emit(&mut frame[TRANSPORT..]);
    ipv4::Header {
        source: SOURCE,
        destination: DESTINATION,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: (header_len + payload_len) as u16,
    }
    .emit(&mut frame[ethernet::HEADER_LEN..]);
    TRANSPORT + header_len
}

/// Everything that an engine looks at; `None` if the frame is not what it should be.
fn parse(frame: &[u8]) -> Option<u32> {
    let (_, bytes) = ethernet::Header::parse(frame).ok()?;
    let packet = ipv4::Packet::parse(bytes).ok()?;
    let segment = Segment::parse(packet.payload()).ok()?;
    let options = segment.options().ok()?;
    if segment.verify(packet.source(), packet.destination()) == ChecksumState::Invalid {
        return None;
    }
    Some(segment.sequence() ^ segment.acknowledgment() ^ options.timestamps?.value)
}

fn main() {
    for length in [20, 40, 64, 128, 1448, 9000] {
        let buffer: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
        let sum_ns = duration_ns(|| {
            black_box(Sum::new().bytes(black_box(&buffer)).finish());
        });
        let rate = f64::from(length) / sum_ns;
        println!("checksum of {length:5} bytes:     {sum_ns:7.1} ns, {rate:5.1} GB/s");
    }
    for length in [64, 1448, 9000] {
        let from: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
        let mut to = from.clone();
        let apart_ns = duration_ns(|| {
            black_box(&mut to).copy_from_slice(black_box(&from));
            black_box(Sum::new().bytes(black_box(&to)).finish());
        });
        let fused_ns = duration_ns(|| {
            black_box(copy_and_sum(black_box(&from), black_box(&mut to)).finish());
        });
        println!("copy, then checksum, {length:4} bytes: {apart_ns:5.1} ns; at once: {fused_ns:5.1} ns");
    }
    for payload_len in [0, 1448] {
        let mut frame = vec![7; 66 + payload_len];
        let emit_ns = duration_ns(|| {
            emit(black_box(&mut frame), payload_len);
            tcp::write_checksum(black_box(&mut frame[TRANSPORT..]), SOURCE, DESTINATION);
        });
        println!("emit headers, {payload_len:4} payload:   {emit_ns:7.1} ns");
        let parse_ns = duration_ns(|| {
            black_box(parse(black_box(&frame)).expect("what is emitted is parsed"));
        });
        println!("parse and verify, {payload_len:4} payload: {parse_ns:5.1} ns");
    }
}
