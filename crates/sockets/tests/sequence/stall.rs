//! Whether the machine stood still while a sequence was played: whoever plays was stopped as well, but no timer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// How often it is looked.
const BEAT: Duration = Duration::from_millis(10);
/// Of a beat that is so late nobody knows what else was. A timer of a sequence rings after 120 ms.
const LATE: Duration = Duration::from_millis(100);

static BEGIN: Once = Once::new();
static STALLS: AtomicU64 = AtomicU64::new(0);
static LAST_BEAT: Mutex<Option<Instant>> = Mutex::new(None);

/// How often it has stood still so far.
pub(crate) fn stalls() -> u64 {
    BEGIN.call_once(|| {
        std::thread::spawn(|| {
            loop {
                beat();
                std::thread::sleep(BEAT);
            }
        });
    });
    // Who asks may run before the thread does.
    beat();
    STALLS.load(Ordering::Relaxed)
}

fn beat() {
    let mut last = LAST_BEAT.lock().unwrap();
    let now = Instant::now();
    if last.is_some_and(|last| now - last > LATE) {
        STALLS.fetch_add(1, Ordering::Relaxed);
    }
    *last = Some(now);
}
