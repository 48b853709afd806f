//! A short `cargo xtask soak`.

use std::time::{SystemTime, UNIX_EPOCH};

use overfly_tests::soak::{Link, Plan, run};

#[test]
fn stops_cost_nothing_and_kills_their_own_requests_and_nothing_is_left() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    // Other tests may hold the machine up for many seconds: only what fails at once, or stays wrong, is found here.
    let tolls = run(Plan { link: Link::Xdp, kills: 20, stops: 20, seed, timeout_s: 120, settle_s: 2 });
    assert_eq!(tolls.len(), 4, "both kinds of load, while workers were stopped and while they were killed");
}

/// The same over shared memory, where a worker that goes takes its clients along.
#[test]
fn nor_over_shared_memory() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let tolls = run(Plan { link: Link::Memif, kills: 10, stops: 10, seed, timeout_s: 120, settle_s: 2 });
    assert_eq!(tolls.len(), 4, "both kinds of load, while workers were stopped and while they were killed");
}
