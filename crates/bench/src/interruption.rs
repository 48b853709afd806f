//! Whether somebody asked for the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Set it, from a signal's handler too, and the session that is carried out ends with a report of what was measured.
pub fn interruption() -> Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    Arc::clone(FLAG.get_or_init(Arc::default))
}

pub(crate) fn interrupted() -> bool {
    interruption().load(Ordering::Relaxed)
}
