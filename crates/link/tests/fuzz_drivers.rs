//! The fuzz drivers on stable: see [`overfly_testing::fuzz`].

mod drivers;

use overfly_testing::fuzz::run;

#[test]
fn memif_messages() {
    run("memif_messages", drivers::memif_messages);
}

#[test]
fn memif_rings() {
    run("memif_rings", drivers::memif_rings);
}
