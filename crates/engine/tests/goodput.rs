//! What one bulk flow brings over links that lose, for each congestion control, beside what theory says of the same path.
//! The table is kept in `tests/snapshots/goodput.md`.

use std::fmt::Write as _;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use crate::harness::{CLIENT, Faults, Network, SERVER, config};
use overfly_engine::Algorithm;

const BANDWIDTH_BPS: u64 = 100_000_000;
const QUEUE_BYTES: u64 = 375_000;
const WINDOW: u32 = 4 << 20;
const MTU: u16 = 1500;
/// Payload of a full segment, timestamps deducted.
const MSS: f64 = 1448.0;
/// Ethernet, IPv4 and TCP headers, timestamps included.
const OVERHEAD: f64 = 66.0;

/// Loss in per mille.
const LOSSES: [u64; 5] = [0, 1, 10, 50, 100];
/// One way, in milliseconds.
const DELAYS: [u64; 4] = [0, 1, 20, 100];
const SEEDS: u64 = 5;
const _: () = assert!(SEEDS % 2 == 1, "odd, so that one figure is in the middle");

/// A run ends after this much virtual time, or this many bytes, warm-up included.
const WARM_UP: (Duration, u64) = (Duration::from_secs(5), 16_000_000);
const WHOLE: (Duration, u64) = (Duration::from_secs(65), 40_000_000);

/// What a figure may differ from the snapshot's by, before a change of the engine has to renew it.
const TOLERANCE: f64 = 0.25;
/// Below this many Mb/s few packets decide.
const FLOOR_MBPS: f64 = 0.05;

struct Control {
    name: &'static str,
    algorithm: Algorithm,
    /// Average window in segments at a loss rate and a round-trip time in seconds, where the control has a formula.
    response: Option<fn(f64, f64) -> f64>,
}

const CUBIC: Control = Control { name: "CUBIC", algorithm: Algorithm::Cubic, response: Some(cubic_window) };
const BBR: Control = Control { name: "BBR", algorithm: Algorithm::Bbr, response: None };
const CONTROLS: [Control; 3] =
    [CUBIC, Control { name: "Reno", algorithm: Algorithm::Reno, response: Some(reno_window) }, BBR];

/// RFC 9438 section 5.2 with C 0.4 and beta 0.7, and section 4.3: where Reno would have the larger window, CUBIC has it too.
fn cubic_window(loss: f64, rtt: f64) -> f64 {
    (1.054 * (rtt / loss).powf(0.75)).max(reno_window(loss, rtt))
}

/// Mathis, Semke, Mahdavi and Ott 1997: the average window of Reno in segments, every segment acknowledged; also the case
/// of alpha 1 and beta 0.5 in RFC 9438 section 5.2.
fn reno_window(loss: f64, _: f64) -> f64 {
    (1.5 / loss).sqrt()
}

/// Padhye, Firoiu, Towsley and Kurose 1998, equation 30: what Reno sends, timeouts included, in segments a second.
fn padhye_rate(loss: f64, rtt: f64) -> f64 {
    let timeout = (3.0 * rtt).max(0.2);
    let often = (3.0 * (3.0 * loss / 8.0).sqrt()).min(1.0);
    1.0 / (rtt * (2.0 * loss / 3.0).sqrt() + timeout * often * loss * (1.0 + 32.0 * loss * loss))
}

/// Mb/s of payload.
fn mbps(segments_a_second: f64) -> f64 {
    segments_a_second * MSS * 8.0 / 1e6
}

/// The path's round-trip time without a queue, in seconds: a data frame and an acknowledgment, both ways.
fn round_trip(delay_ms: u64) -> f64 {
    (MSS + OVERHEAD + OVERHEAD) * 8.0 / BANDWIDTH_BPS as f64 + 2.0 * delay_ms as f64 / 1e3
}

/// What the link carries, and what the receive window lets through.
fn bound_mbps(delay_ms: u64) -> f64 {
    let link = BANDWIDTH_BPS as f64 / 1e6 * MSS / (MSS + OVERHEAD);
    link.min(f64::from(WINDOW) * 8.0 / 1e6 / round_trip(delay_ms))
}

/// Mb/s of payload that the receiver gets after the warm-up.
fn goodput_mbps(control: &Control, loss: u64, delay_ms: u64, queue_bytes: u64, seed: u64) -> f64 {
    let mut configs = [config(CLIENT), config(SERVER)];
    for config in &mut configs {
        config.mtu = MTU;
        config.receive_window = WINDOW;
        config.initial_receive_window = WINDOW;
        config.congestion = control.algorithm;
    }
    let [client, server] = configs;
    let mut network = Network::with(seed, client, server);
    let path =
        Faults { bandwidth_bps: BANDWIDTH_BPS, queue_bytes, delay_us: delay_ms * 1000, ..Faults::default() };
    network.set_faults(path);
    network.client.owner.count_only = true;
    network.server.owner.count_only = true;
    let service = SocketAddrV4::new(SERVER, 80);
    network.server.engine.listen(service, 1).expect("listen");
    let flow = network.client.connect(network.now, SocketAddrV4::new(CLIENT, 40_000), service);
    assert!(network.run_until(Duration::from_secs(10), |network| !network.server.owner.incoming.is_empty()));
    let (peer, _) = network.server.owner.incoming.pop_front().expect("an incoming flow");
    network.server.engine.accepted(peer);
    // Data is lost, acknowledgments are not: the models know no others.
    network.to_server.loss = loss;
    network.client.send(flow, 1 << 30);
    let begin = network.now;
    let mut run = |(time, bytes): (Duration, u64)| {
        let end = begin + time;
        let received = |network: &Network| network.server.owner.streams[&peer].received_bytes;
        while network.now < end && received(&network) < bytes && network.step() {}
        (network.now, received(&network))
    };
    let (warm_at, warm_bytes) = run(WARM_UP);
    let (end_at, end_bytes) = run(WHOLE);
    (end_bytes - warm_bytes) as f64 * 8.0 / (end_at - warm_at).as_micros() as f64
}

/// The median over the seeds.
fn cell(control: &Control, loss: u64, delay_ms: u64, queue_bytes: u64) -> f64 {
    let run = |seed| goodput_mbps(control, loss, delay_ms, queue_bytes, seed);
    let mut figures: Vec<f64> = (0..SEEDS).map(run).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn table(control: &Control, figures: &mut Vec<f64>) -> String {
    let mut text = format!("## {}\n\n", control.name);
    text.push_str("| loss | one way | goodput | response | timeouts too | bound |\n");
    text.push_str("|---:|---:|---:|---:|---:|---:|\n");
    for loss in LOSSES {
        for delay_ms in DELAYS {
            let figure = cell(control, loss, delay_ms, QUEUE_BYTES);
            figures.push(figure);
            let bound = bound_mbps(delay_ms);
            let rtt = round_trip(delay_ms);
            let rate = loss as f64 / 1000.0;
            let theory = |segments_a_second: f64| match loss {
                0 => "–".to_owned(),
                _ => format!("{:.2}", mbps(segments_a_second).min(bound)),
            };
            let response =
                control.response.map_or("–".to_owned(), |window| theory(window(rate, rtt) / rtt));
            let _ = writeln!(
                text,
                "| {} % | {delay_ms} ms | {figure:.2} | {response} | {} | {bound:.2} |",
                loss as f64 / 10.0,
                theory(padhye_rate(rate, rtt)),
            );
        }
    }
    text.push('\n');
    text
}

/// A queue of ten frames, and one of half a second.
const QUEUES: [(&str, u64); 2] = [("shallow", 15_140), ("deep", 6_250_000)];

/// BBR and CUBIC where the queue is shallow, and where it is deep.
fn queues(figures: &mut Vec<f64>) -> String {
    let mut text = "## BBR and CUBIC, a shallow queue of 15 kB and a deep one of 6.25 MB\n\n".to_owned();
    for (name, queue_bytes) in QUEUES {
        let _ = writeln!(text, "| loss | one way, {name} queue | BBR | CUBIC |\n|---:|---:|---:|---:|");
        for loss in [0, 10, 20, 50] {
            for delay_ms in [1, 20, 100] {
                let [bbr, cubic] = [BBR, CUBIC].map(|control| cell(&control, loss, delay_ms, queue_bytes));
                figures.extend([bbr, cubic]);
                let _ =
                    writeln!(text, "| {} % | {delay_ms} ms | {bbr:.2} | {cubic:.2} |", loss as f64 / 10.0);
            }
        }
        text.push('\n');
    }
    text
}

/// Mb/s of two flows over one link, the second begun a second after the first, from the tenth second on.
fn beside(controls: [&Control; 2], delay_ms: u64, queue_bytes: u64, seed: u64) -> [f64; 2] {
    let [client, server] = [CLIENT, SERVER].map(|address| {
        let mut config = config(address);
        config.mtu = MTU;
        config.receive_window = WINDOW;
        config.initial_receive_window = WINDOW;
        config
    });
    let mut network = Network::with(seed, client, server);
    network.set_faults(Faults {
        bandwidth_bps: BANDWIDTH_BPS,
        queue_bytes,
        delay_us: delay_ms * 1000,
        ..Faults::default()
    });
    network.client.owner.count_only = true;
    network.server.owner.count_only = true;
    let service = SocketAddrV4::new(SERVER, 80);
    network.server.engine.listen(service, 2).expect("listen");
    let mut peers = Vec::new();
    for (port, control) in (40_000..).zip(controls) {
        let flow = network.client.connect(network.now, SocketAddrV4::new(CLIENT, port), service);
        network.client.engine.set_congestion(flow, control.algorithm);
        assert!(
            network.run_until(Duration::from_secs(10), |network| !network.server.owner.incoming.is_empty())
        );
        let (peer, _) = network.server.owner.incoming.pop_front().expect("an incoming flow");
        network.server.engine.accepted(peer);
        network.client.send(flow, 1 << 30);
        network.run_for(Duration::from_secs(1));
        peers.push(peer);
    }
    let received = |network: &Network| {
        [0, 1].map(|index: usize| network.server.owner.streams[&peers[index]].received_bytes)
    };
    network.run_for(Duration::from_secs(10));
    let before = received(&network);
    network.run_for(SHARED);
    let after = received(&network);
    [0, 1].map(|index| (after[index] - before[index]) as f64 * 8.0 / SHARED.as_micros() as f64)
}

/// How long shares are measured, in how many runs, and Mb/s that nobody has less than.
const SHARED: Duration = Duration::from_secs(40);
const SHARE_SEEDS: u64 = 3;
const LEAST_MBPS: f64 = 15.0;

/// How BBR shares a link.
fn shares(figures: &mut Vec<f64>) -> String {
    let mut text = "## Two flows on one link\n\n".to_owned();
    text.push_str("| one way | queue, products | BBR | CUBIC beside it | BBR | BBR beside it |\n");
    text.push_str("|---:|---:|---:|---:|---:|---:|\n");
    for delay_ms in [5, 20] {
        for products in [1, 4] {
            let queue_bytes = products * BANDWIDTH_BPS / 8 * 2 * delay_ms / 1000;
            let pairs = [&CUBIC, &BBR].map(|other| {
                let runs = (0..SHARE_SEEDS).map(|seed| beside([&BBR, other], delay_ms, queue_bytes, seed));
                let runs: Vec<[f64; 2]> = runs.collect();
                [0, 1].map(|index| runs.iter().map(|run| run[index]).sum::<f64>() / SHARE_SEEDS as f64)
            });
            let [[bbr, cubic], [first, second]] = pairs;
            let shares = [bbr, cubic, first, second];
            assert!(shares.iter().all(|mbps| *mbps > LEAST_MBPS), "{delay_ms} ms, {products}: {shares:?}");
            figures.extend(shares);
            let _ = writeln!(
                text,
                "| {delay_ms} ms | {products} | {bbr:.2} | {cubic:.2} | {first:.2} | {second:.2} |"
            );
        }
    }
    text
}

fn heading() -> String {
    format!(
        "# Goodput of one flow under loss\n\n\
         Mb/s of payload, median of {SEEDS} seeds; a link of {} Mb/s both ways with a queue of {} kB (drop-tail), MTU {MTU}, \
         receive window {} MiB. Loss is random and on the way of the data only; the delay is that of one way. \
         Measured on virtual time from the {}th second or {} MB on, until the {}th second or {} MB.\n\n\
         `response` is the window that the control's response function gives, over the round-trip time without a queue: \
         for Reno sqrt(3/2)/sqrt(p) (Mathis et al. 1997), for CUBIC the larger of 1.054 RTT^0.75/p^0.75 (RFC 9438 section 5.2) \
         and Reno's, which the Reno-friendly region (section 4.3) holds it to. `timeouts too` is Padhye et al. 1998, equation 30, \
         for Reno with one acknowledgment a segment and a timeout of three round trips, 200 ms at least. `bound` is what \
         link and receive window let through; no column exceeds it. BBR has no response function: it sends at the rate that it \
         measures, up to its threshold of 2 % loss in a round trip. `products` are those of bandwidth and round-trip time; two \
         flows are measured for {} seconds, the mean of {SHARE_SEEDS} seeds.\n\n\
         A test compares (`cargo test -p overfly-engine --test all goodput`); a figure that moves by more than {} % fails. \
         `OVERFLY_SNAPSHOT=write` before the command renews this file.\n\n",
        BANDWIDTH_BPS / 1_000_000,
        QUEUE_BYTES / 1000,
        WINDOW >> 20,
        WARM_UP.0.as_secs(),
        WARM_UP.1 / 1_000_000,
        WHOLE.0.as_secs(),
        WHOLE.1 / 1_000_000,
        SHARED.as_secs(),
        TOLERANCE * 100.0,
    )
}

/// The measured columns of every row: the third where there is theory beside it, and all from there on in the other tables.
fn figures_of(snapshot: &str) -> Vec<f64> {
    let mut columns = 0..0;
    let mut figures = Vec::new();
    for line in snapshot.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.contains(" ms |") {
            columns = if line.contains("bound") { 3..4 } else { 3..cells.len() - 1 };
            continue;
        }
        figures.extend(cells[columns.clone()].iter().filter_map(|cell| cell.parse::<f64>().ok()));
    }
    figures
}

#[test]
fn goodput_is_what_the_snapshot_says() {
    let mut figures = Vec::new();
    let mut text = heading();
    for control in &CONTROLS {
        text.push_str(&table(control, &mut figures));
    }
    text.push_str(&queues(&mut figures));
    text.push_str(&shares(&mut figures));
    let text = format!("{}\n", text.trim_end());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/goodput.md");
    if std::env::var("OVERFLY_SNAPSHOT").is_ok_and(|value| value == "write") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make the folder");
        std::fs::write(&path, text).expect("write the snapshot");
        return;
    }
    let snapshot = std::fs::read_to_string(&path).expect("the snapshot: OVERFLY_SNAPSHOT=write makes it");
    let kept = figures_of(&snapshot);
    assert_eq!(kept.len(), figures.len(), "rows: OVERFLY_SNAPSHOT=write renews the snapshot");
    let moved = kept
        .iter()
        .zip(&figures)
        .filter(|(kept, now)| (*kept - *now).abs() > TOLERANCE * kept.max(**now) + FLOOR_MBPS)
        .count();
    assert_eq!(
        moved,
        0,
        "{moved} figures moved by more than {} %: OVERFLY_SNAPSHOT=write renews the snapshot. Now:\n{text}",
        TOLERANCE * 100.0
    );
}
