//! Frames a second over one memif ring pair, from one core to another, each way: writing every byte of each frame and
//! reading it once more than the link does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overfly_link::memif::{Address, Listener, MemifLink, Settings, connect};
use overfly_wire::FrameSink;
use rustix::thread::{CpuSet, sched_setaffinity};

const RUN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), overfly_link::Error> {
    let address: Address = format!("@overfly-throughput-{}", std::process::id()).parse()?;
    println!("{:>8} {:>22} {:>22}", "bytes", "client to server", "server to client");
    for length in [64, 256, 1514, 65_549] {
        let mut listener = Listener::bind(&address, Settings::default())?;
        let [mut client, mut server] = std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&address, &Settings::default(), PATIENCE)?.open());
            let server =
                listener.accept(PATIENCE)?.ok_or(overfly_link::Error::MemifSilent { during: "connect" })?;
            let mut links = client.join().expect("no panic")?;
            links.extend(server.open()?);
            Ok::<_, overfly_link::Error>(links.try_into().expect("two links"))
        })?;
        let rates = [one_way(&mut client, &mut server, length), one_way(&mut server, &mut client, length)];
        let column =
            |rate: f64| format!("{:6.2} M/s {:6.1} Gb/s", rate / 1e6, rate * length as f64 * 8.0 / 1e9);
        println!("{length:>8} {:>22} {:>22}", column(rates[0]), column(rates[1]));
    }
    Ok(())
}

/// Frames a second.
fn one_way(from: &mut MemifLink, to: &mut MemifLink, length: usize) -> f64 {
    let over = AtomicBool::new(false);
    let before = to.counters().received_frames;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            while !over.load(Ordering::Relaxed) {
                for _ in 0..32 {
                    let Some(frame) = from.frame() else { break };
                    frame[..length].fill(1);
                    from.commit(length);
                }
                from.flush();
            }
        });
        pin(1);
        let begin = Instant::now();
        let mut sum = 0_u64;
        while begin.elapsed() < RUN {
            for _ in 0..100 {
                to.receive(64, |frame| sum = sum.wrapping_add(u64::from(frame[frame.len() - 1])));
            }
        }
        over.store(true, Ordering::Relaxed);
        std::hint::black_box(sum);
        (to.counters().received_frames - before) as f64 / begin.elapsed().as_secs_f64()
    })
}

/// To one of two processors, where there are two.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}
