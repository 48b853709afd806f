//! The fuzz drivers on stable: see [`overfly_testing::fuzz`].

mod drivers;

#[test]
fn broker_messages() {
    overfly_testing::fuzz::run("broker_messages", drivers::broker_messages);
}
