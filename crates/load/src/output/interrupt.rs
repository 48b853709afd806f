//! Ctrl-C and its like end a run early, with its report; the second time they end the command at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What the process's signal handlers set and read: there is one set of them, however many runs there are.
#[derive(Debug, Clone)]
struct Signals {
    came: Arc<AtomicBool>,
    /// The next one ends the process, as it would without us.
    deadly: Arc<AtomicBool>,
}

impl Signals {
    fn of_this_process() -> io::Result<Signals> {
        static SIGNALS: Mutex<Option<Signals>> = Mutex::new(None);
        let mut signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signals) = &*signals {
            return Ok(signals.clone());
        }
        let (came, deadly) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, deadly.clone())?;
            flag::register(signal, came.clone())?;
        }
        Ok(signals.insert(Signals { came, deadly }).clone())
    }
}

/// Watches for signals while it lives.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: Signals,
    patient: bool,
}

impl Interrupt {
    /// Where the terminal must be put back first (`patient`), a second signal changes nothing.
    pub(crate) fn new(patient: bool) -> io::Result<Interrupt> {
        let signals = Signals::of_this_process()?;
        signals.came.store(false, Ordering::Relaxed);
        signals.deadly.store(false, Ordering::Relaxed);
        Ok(Interrupt { signals, patient })
    }

    /// Whether one came.
    pub(crate) fn came(&self) -> bool {
        let came = self.signals.came.load(Ordering::Relaxed);
        if came && !self.patient {
            self.signals.deadly.store(true, Ordering::Relaxed);
        }
        came
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.signals.deadly.store(true, Ordering::Relaxed);
    }
}
