//! What a program is run with: the EF_* options, the rules that leave sockets to the kernel, and the host's settings that an
//! engine follows. `overfly run` reads profiles and puts them into the program's environment; the preloaded library reads them
//! there. Both use these tables, so that they agree; the command cannot link the library, which would stand before its own libc.

#![forbid(unsafe_code)]

mod file;
pub mod options;
pub mod routes;
pub mod rules;
pub mod sysctls;

pub use self::file::{InForce, Origin, Profile, ProfileError, Setting, environment, folders, known};
