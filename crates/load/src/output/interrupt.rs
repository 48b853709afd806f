//! Ctrl-C and its like end a run early, with its report; the second time they end the command at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::unregister;

/// Watches for signals while it lives.
#[derive(Debug)]
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
    deadly: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Where the terminal must be put back first (`patient`), a second signal changes nothing.
    pub(crate) fn new(patient: bool) -> io::Result<Interrupt> {
        let came = Arc::new(AtomicBool::new(false));
        let deadly = if patient { Arc::new(AtomicBool::new(false)) } else { came.clone() };
        let mut ids = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds `deadly` still false. It is never unregistered, since then
            // nothing at all would act on the signal.
            flag::register_conditional_default(signal, deadly.clone())?;
            ids.push(flag::register(signal, came.clone())?);
        }
        Ok(Interrupt { came, deadly, ids })
    }

    /// Whether one came.
    pub(crate) fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.deadly.store(true, Ordering::Relaxed);
        for id in &self.ids {
            unregister(*id);
        }
    }
}
