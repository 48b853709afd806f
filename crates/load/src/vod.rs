//! `overfly load vod`: video streams that have to keep up. Each has a buffer that drains like a viewer's, reads its
//! connection only while there is room, and has failed when it runs dry. The answer is how many a server sustains.
//!
//! The model, its names and its defaults are those of seed 003's Table 9.

mod args;
mod buffer;
mod control;
mod counts;
mod kernel;
mod player;
mod ramp;
mod report;
mod run;
mod settings;
mod shard;

pub use crate::control::Control;
pub use args::{VodArgs, main_vod};
pub use counts::Loss;
pub use ramp::{Ended, RampSettings, Standing};
pub use report::{Moment, Report};
pub use run::{Stop, run};
pub use settings::Settings;
