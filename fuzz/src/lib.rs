//! The fuzz drivers of the tests of engine, links and broker, for cargo-fuzz.

#![allow(missing_docs, reason = "modules of tests")]

#[path = "../../crates/engine/tests/drivers/mod.rs"]
pub mod drivers;
#[path = "../../crates/engine/tests/harness/mod.rs"]
pub mod harness;
#[path = "../../crates/link/tests/drivers/mod.rs"]
pub mod link_drivers;
#[path = "../../crates/broker/tests/drivers/mod.rs"]
pub mod broker_drivers;
