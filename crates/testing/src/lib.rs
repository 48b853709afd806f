//! What tests of several crates share. See README.md.

#![forbid(unsafe_code)]

pub mod bytes;
mod folder;
pub mod fuzz;
pub mod kernel;
pub mod manual;
pub mod process;
mod random;
pub mod unprivileged;

pub use self::folder::Folder;
pub use self::random::{Random, fresh_seed, seed};
