//! What a command says of what goes on, one line each: on standard error, to the journal with its level, or to the system log.

use std::fmt::Display;
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How much a line matters, in syslog(3)'s words and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Something is not as it was asked for.
    Warning = 4,
    /// Somebody will want to know.
    Notice = 5,
    /// All is well.
    Info = 6,
}

/// Lines go to the system log.
static TO_SYSTEM_LOG: AtomicBool = AtomicBool::new(false);

/// Where lines go from now on: to the system log, or to standard error.
pub(crate) fn to_system_log(on: bool) {
    TO_SYSTEM_LOG.store(on, Ordering::Relaxed);
}

/// Says something in one line, on standard error or, where a profile wants that and there is one, to the system log.
pub(crate) fn say(level: Level, message: impl Display) {
    const DAEMON: u32 = 3 << 3; // syslog(3)
    let number = level as u32;
    // A name with a newline in it would begin a line of its own.
    let message = message.to_string().replace('\n', "\\n");
    let message = overfly_terminal::shown(&message);
    let logged = TO_SYSTEM_LOG.load(Ordering::Relaxed) && {
        let record = format!("<{}>overfly[{}]: {message}", DAEMON | number, std::process::id());
        UnixDatagram::unbound().is_ok_and(|socket| socket.send_to(record.as_bytes(), "/dev/log").is_ok())
    };
    if logged {
    } else if is_journal() {
        // The journal knows who speaks, and takes the level from the line's beginning: sd-daemon(3).
        overfly_terminal::tell(format_args!("<{number}>{message}"));
    } else {
        overfly_terminal::tell(format_args!("overfly: {message}"));
    }
}

/// Whether standard error is the journal's: systemd.exec(5), $JOURNAL_STREAM.
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        std::env::var("JOURNAL_STREAM").is_ok_and(|stream| {
            std::fs::metadata("/proc/self/fd/2")
                .is_ok_and(|its| stream == format!("{}:{}", its.st_dev(), its.st_ino()))
        })
    })
}
