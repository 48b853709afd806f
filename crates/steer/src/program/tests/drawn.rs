//! Frames drawn at random, most of them nearly right, against what the routes and neighbours say of them.

use overfly_testing::{Random, fresh_seed};

use super::*;
use crate::firewall::{Span, number};
use crate::mirror::{RT_TABLE_LOCAL, RT_TABLE_MAIN, RouteLine, Tables, compile};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);
const INTERFACE: u32 = 2;
const ROUNDS: usize = 30;
const FRAMES: usize = 600;

/// What is drawn from a seed.
struct Draw(Random);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        self.0.one_of(all)
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A host with two interfaces and two gateways, and a few routes and neighbours more, at random.
struct Host {
    ways: BTreeMap<Prefix, Way>,
    neighbors: BTreeMap<IpAddr, MacAddr>,
}

impl Host {
    fn draw(draw: &mut Draw) -> Host {
        let mut routes = Vec::new();
        let mut add = |table, to: &str, len, way, interface| {
            routes.push(RouteLine { table, to: Prefix::new(address(to), len), way, interface, metric: 0 });
        };
        for (own, len, interface) in [
            ("10.0.0.1", 32, 2),
            ("10.7.0.1", 32, 3),
            ("fd00::1", 128, 2),
            ("fe80::1", 128, 2),
            ("fd07::1", 128, 3),
        ] {
            add(RT_TABLE_LOCAL, own, len, Way::Own, interface);
        }
        add(RT_TABLE_LOCAL, "10.0.0.255", 32, Way::Martian, 2);
        for (to, len, interface) in [
            ("10.0.0.0", 24, 2),
            ("10.7.0.0", 16, 3),
            ("fd00::", 64, 2),
            ("fd07::", 64, 3),
            ("fe80::", 64, 2),
        ] {
            add(RT_TABLE_MAIN, to, len, Way::Direct, interface);
        }
        for (to, len, gateway) in
            [("0.0.0.0", 0, "10.0.0.254"), ("::", 0, "fe80::254"), ("172.16.0.0", 12, "10.0.0.253")]
        {
            if draw.below(4) > 0 {
                add(RT_TABLE_MAIN, to, len, Way::Gateway(address(gateway)), draw.of(&[2, 2, 3]));
            }
        }
        for _ in 0..draw.below(20) {
            let to = drawn_address(draw);
            let len = 1 + draw.below(if to.is_ipv4() { 32 } else { 128 }) as u8;
            let way = draw.of(&[
                Way::Direct,
                Way::Gateway(address("10.0.0.253")),
                Way::Kernels,
                Way::Martian,
                Way::Own,
            ]);
            routes.push(RouteLine {
                table: RT_TABLE_MAIN,
                to: Prefix::new(to, len),
                way,
                interface: draw.of(&[2, 2, 3]),
                metric: draw.below(2) as u32,
            });
        }
        let ruled = [draw.below(8) == 0, draw.below(8) == 0];
        let ways = compile(&Tables { routes, ruled }, INTERFACE);
        let known = ["10.0.0.2", "10.0.0.253", "10.0.0.254", "fd00::2", "fe80::2", "fe80::254", "10.0.0.9"];
        let neighbors = known
            .into_iter()
            .filter(|_| draw.below(4) > 0)
            .enumerate()
            .map(|(number, neighbor)| (address(neighbor), MacAddr([2, 0, 0, 1, 0, number as u8])))
            .collect();
        Host { ways, neighbors }
    }

    /// Where an address is, by the longest prefix.
    fn way_to(&self, address: IpAddr) -> Option<Way> {
        (0..=128).rev().find_map(|len| {
            let v4 = if address.is_ipv4() { len - 96 } else { len };
            self.ways.get(&Prefix::new(address, u8::try_from(v4).ok()?)).copied()
        })
    }

    /// Where the answers to a sender go, if that is known.
    fn next_hop(&self, sender: IpAddr) -> Option<MacAddr> {
        match self.way_to(sender)? {
            Way::Direct => self.neighbors.get(&sender).copied(),
            Way::Gateway(gateway) => self.neighbors.get(&gateway).copied(),
            _ => None,
        }
    }

    /// The hardware address that a stack must see an opening frame from; `None` if the frame is the kernel's.
    fn seen_from(&self, sender: IpAddr, from: MacAddr) -> Option<MacAddr> {
        let next_hop = self.next_hop(sender)?;
        (next_hop == from || matches!(self.way_to(sender), Some(Way::Gateway(_)))).then_some(next_hop)
    }
}

fn drawn_address(draw: &mut Draw) -> IpAddr {
    const PLACES: [&str; 30] = [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.9",
        "10.0.0.77",
        "10.0.0.253",
        "10.0.0.254",
        "10.0.0.255",
        "10.7.0.1",
        "10.7.0.2",
        "127.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.5",
        "240.1.2.3",
        "192.0.2.1",
        "172.16.9.9",
        "8.8.8.8",
        "fd00::1",
        "fd00::2",
        "fd00::77",
        "fd07::1",
        "fd07::2",
        "fe80::1",
        "fe80::2",
        "fe80::99",
        "::1",
        "::",
        "ff02::1",
        "2001:db8::1",
        "2001:db8:1::9",
    ];
    match draw.below(8) {
        0 => IpAddr::V4(std::net::Ipv4Addr::from_bits(draw.below(1 << 32) as u32)),
        1 => {
            let high = draw.below(1 << 40) as u128;
            IpAddr::V6(std::net::Ipv6Addr::from_bits(high << 88 | draw.below(1 << 40) as u128))
        }
        _ => address(draw.of(&PLACES)),
    }
}

/// Each protocol of each family has a stack of its own, so that a frame for another than its own shows.
fn places() -> [(BoundAddress, u16); 4] {
    [
        (BoundAddress::new(Protocol::Tcp, V4.here()), 0),
        (BoundAddress::new(Protocol::Udp, V4.here()), 1),
        (BoundAddress::new(Protocol::Tcp, V6.here()), 2),
        (BoundAddress::new(Protocol::Udp, V6.here()), 3),
    ]
}

fn bench_of(host: &Host) -> Bench {
    let mut bench = Bench::new();
    bench.program.set_routes(&host.ways).unwrap();
    for known in bench.program.known_neighbors() {
        bench.program.set_neighbor(known, None).unwrap();
    }
    for (&neighbor, &mac) in &host.neighbors {
        bench.program.set_neighbor(neighbor, Some(mac)).unwrap();
    }
    let listeners = places().map(|(place, stack)| (place, Group::new(&[stack])));
    bench.program.set_listeners(listeners.into()).unwrap();
    bench
}

/// Whom a firewall lets through to each place: ranges around addresses that frames come from.
fn drawn_verdicts(draw: &mut Draw) -> BTreeMap<BoundAddress, Span> {
    let mut of = |v4: bool| {
        let last = if v4 { u128::from(u32::MAX) } else { u128::MAX };
        let mut ranges = Vec::new();
        for _ in 0..draw.below(12) {
            let middle = drawn_address(draw);
            if middle.is_ipv4() == v4 {
                let [before, after] = [draw.below(300), draw.below(300)].map(|width| width as u128);
                let middle = number(middle);
                ranges.push((middle.saturating_sub(before), middle.saturating_add(after).min(last)));
            }
        }
        let some = Span::of(ranges);
        let all = Span::all(if v4 { 32 } else { 128 });
        if draw.below(2) == 0 { all.without(&some) } else { some }
    };
    places().map(|(place, _)| (place, of(place.address.is_ipv4()))).into()
}

/// The verdict, and what the frame is then.
fn run(bench: &Bench, frame: &[u8]) -> (u32, Vec<u8>) {
    use aya::programs::{TestRun as _, TestRunOptions};
    let mut out = vec![0; frame.len() + 64];
    let mut options = TestRunOptions::new();
    options.data_in = Some(frame);
    options.data_out = Some(&mut out);
    let result = bench.program.xdp().unwrap().test_run(options).unwrap();
    out.truncate(result.data_size_out as usize);
    (result.return_value, out)
}

/// Well-formed frames from anywhere: a stack gets exactly those that it should, from where its answers must go.
#[test]
fn whoever_opens_is_judged_by_routes_neighbours_and_firewall() {
    let mut draw = Draw(Random(fresh_seed()));
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let host = Host::draw(&mut draw);
        let mut bench = bench_of(&host);
        let served = draw.below(4) as u16;
        bench.serve(&[served]);
        let verdicts = if draw.below(3) == 0 { BTreeMap::new() } else { drawn_verdicts(&mut draw) };
        bench.program.verdicts.set_places(&verdicts).unwrap();
        let judges = bench.program.verdicts.judge();
        bench.program.set_firewall(judges, false).unwrap();
        for _ in 0..FRAMES {
            let sender = drawn_address(&mut draw);
            let family = if sender.is_ipv4() { V4 } else { V6 };
            let is_tcp = draw.below(2) == 0;
            let to = SocketAddr::new(family.here().ip(), draw.of(&[80, 80, 80, 81]));
            let from = SocketAddr::new(sender, 1 + draw.below(60_000) as u16);
            let mut bytes = if is_tcp { frame(from, to, SYN) } else { datagram(from, to) };
            let known: Vec<MacAddr> = host.neighbors.values().copied().chain([STRANGER]).collect();
            let source = host.next_hop(sender).filter(|_| draw.below(3) > 0).unwrap_or(draw.of(&known));
            let destination = draw.of(&[OURS, OURS, OURS, OURS, STRANGER, MacAddr::BROADCAST]);
            bytes[..6].copy_from_slice(&destination.0);
            bytes[6..12].copy_from_slice(&source.0);

            let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
            let stack = places()
                .into_iter()
                .find(|(place, _)| *place == BoundAddress::new(protocol, to))
                .map(|its| its.1);
            let verdict_of_rules = verdicts.get(&BoundAddress::new(protocol, to));
            let is_let_in = verdict_of_rules.is_none_or(|accepted| accepted.contains(number(sender)));
            let is_ours = destination == OURS && stack == Some(served) && is_let_in;
            let expected = host.seen_from(sender, source).filter(|_| is_ours);
            let (verdict, out) = run(&bench, &bytes);
            let way = host.way_to(sender);
            let what =
                format!("{from} {source} > {to} {destination}, {protocol:?}, {way:?}, let in: {is_let_in}");
            match expected {
                Some(seen) => {
                    assert_eq!(verdict, XDP_REDIRECT, "{what}");
                    assert_eq!(out[6..12], seen.0, "{what}");
                    assert_eq!((&out[..6], &out[12..]), (&bytes[..6], &bytes[12..]), "{what}");
                    accepted += 1;
                }
                None => assert_eq!(verdict, XDP_PASS, "{what}"),
            }
        }
    }
    assert!(accepted > 50, "{accepted}");
}

/// Whose frame it seems to be, of Ethernet, IPv4 and IPv6: sender and destination.
fn ends(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
    match frame.get(12..15)? {
        [8, 0, version] if version >> 4 == 4 => Some((v4(26)?, v4(30)?)),
        [0x86, 0xdd, version] if version >> 4 == 6 => Some((v6(22)?, v6(38)?)),
        _ => None,
    }
}

/// Frames of all kinds with bytes changed, cut and put in: never to another's stack, never from whom no frame can be from.
#[test]
fn no_mutation_brings_a_frame_to_the_wrong_stack() {
    let mut draw = Draw(Random(fresh_seed()));
    let mut redirected = 0;
    for _ in 0..ROUNDS {
        let host = Host::draw(&mut draw);
        let mut bench = bench_of(&host);
        let served = draw.below(4) as u16;
        bench.serve(&[served]);
        for _ in 0..FRAMES {
            let sender = drawn_address(&mut draw);
            let family = if sender.is_ipv4() { V4 } else { V6 };
            let (from, here) = (SocketAddr::new(sender, 1 + draw.below(50) as u16), family.here());
            let flags = draw.of(&[SYN, ACK, SYN | ACK, tcp::Flags::FIN, tcp::Flags::RST, tcp::Flags::NONE]);
            let mut bytes = match draw.below(5) {
                0 => datagram(from, here),
                1 => icmp_error(draw.of(&[1, 2, 3, 4, 11, 12]), here, from, draw.of(&[TCP, UDP])),
                2 if family == V6 => {
                    let (mut extended, from) =
                        (extended(&[(HOP_BY_HOP, 0), (DESTINATION_OPTIONS, 1)], flags), from.ip());
                    let IpAddr::V6(from) = from else { unreachable!() };
                    extended[22..38].copy_from_slice(&from.octets());
                    extended
                }
                _ => frame(from, here, flags),
            };
            if let Some(next_hop) = host.next_hop(sender) {
                bytes[6..12].copy_from_slice(&next_hop.0);
            }
            for _ in 0..draw.below(4) {
                let at = draw.below(bytes.len());
                match draw.below(4) {
                    0 | 1 => bytes[at] = draw.below(256) as u8,
                    2 => bytes.truncate(at.max(ETHERNET_LEN)),
                    _ => bytes.insert(at, draw.below(256) as u8),
                }
            }
            let (verdict, out) = run(&bench, &bytes);
            if verdict == XDP_PASS {
                // The source of what was for a stack that has gone may have been changed.
                assert_eq!((&out[..6], &out[12..]), (&bytes[..6], &bytes[12..]));
                continue;
            }
            assert_eq!(verdict, XDP_REDIRECT);
            redirected += 1;
            let (sender, destination) = ends(&bytes).expect("a packet");
            let what = format!("{sender} > {destination}: {bytes:02x?}");
            assert_eq!(bytes[..6], OURS.0, "{what}");
            let (place, _) = places().into_iter().find(|(_, stack)| *stack == served).unwrap();
            assert_eq!(destination, place.address, "{what}");
            // Behind extension headers it may be one.
            let is_error = if destination.is_ipv4() {
                bytes[23] == 1
            } else {
                matches!(bytes[20], 58 | HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS)
            };
            let way = host.way_to(sender);
            if is_error {
                assert!(!matches!(way, Some(Way::Martian | Way::Own)), "{what}");
            } else {
                assert!(matches!(way, Some(Way::Direct | Way::Gateway(_))), "{way:?} {what}");
            }
        }
    }
    assert!(redirected > 100, "{redirected}");
}
