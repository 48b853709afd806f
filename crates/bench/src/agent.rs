//! What `overfly __far` does on a host of a plan, for a session on another machine.
//!
//! A session holds each host by one process there ([`hold`]), whose standard input is the leash: when it closes, by whatever, the
//! host's folders go. What else it asks for ([`spent`], [`speed`]) are commands of a moment.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::environment::Environment;
use crate::lab::SCRATCH;
use crate::plan::is_there;
use crate::process_time::{CoreTime, processes, tree_among};
use crate::yardstick::Speed;

/// What a program that was told to end may still write into a folder that is to go.
const FOLDERS_GO_BY: Duration = Duration::from_secs(20);

/// What a host says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct About {
    /// The version of the command there.
    pub overfly: String,
    /// Its own file.
    pub executable: PathBuf,
    /// A folder in memory that goes with the leash.
    pub scratch: PathBuf,
    /// Cores that are online.
    pub cores: usize,
    /// Whether commands there may make sockets of XDP and change settings.
    pub root: bool,
    /// Whether the program that was asked for is on the PATH.
    pub has_program: bool,
    /// Whether there is such a network interface.
    pub has_interface: bool,
    /// The machine.
    pub environment: Environment,
}

/// Looks around, makes a folder, says so, and waits until the leash ends. `folder` is another one that goes with it.
///
/// # Errors
/// If no folder could be made, or one does not go.
pub fn hold(
    folder: Option<&Path>,
    program: &str,
    interface: &str,
    said: impl FnOnce(&str),
) -> Result<(), Error> {
    let mut mine: Vec<PathBuf> = folder.map(Path::to_owned).into_iter().collect();
    let result = (|| {
        let memory = Path::new(SCRATCH);
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = place.join(format!("overfly-bench-{}", std::process::id()));
        // It must not be there yet: the folder that it is made in is everybody's.
        fs::create_dir(&scratch).map_err(Error::kernel(format!("make {}", scratch.display())))?;
        mine.push(scratch.clone());
        let about = About {
            overfly: env!("CARGO_PKG_VERSION").to_owned(),
            executable: std::env::current_exe().map_err(Error::kernel("find this command's own file"))?,
            scratch,
            cores: crate::lab::queue_count(),
            root: rustix::process::geteuid().is_root(),
            has_program: is_there(program),
            has_interface: Path::new("/sys/class/net").join(interface).exists(),
            environment: Environment::here(program, Some(interface)),
        };
        said(&serde_json::to_string(&about).unwrap_or_default());
        await_end_of_leash();
        Ok(())
    })();
    let gone = mine.iter().map(|folder| remove(folder)).fold(Ok(()), Result::and);
    result.and(gone)
}

/// Returns when standard input has come to its end.
pub fn await_end_of_leash() {
    let mut rest = [0; 512];
    while matches!(std::io::stdin().read(&mut rest), Ok(1..)) {}
}

/// Removes a folder that others may still be writing to.
fn remove(folder: &Path) -> Result<(), Error> {
    let end = Instant::now() + FOLDERS_GO_BY;
    loop {
        match fs::remove_dir_all(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() > end => {
                return Err(Error::kernel(format!("remove {}", folder.display()))(error));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// What processes and cores of a host have spent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Spent {
    /// By the host's monotonic clock.
    pub when: Duration,
    /// By everything under the wardens of these folders.
    pub by_processes: Duration,
    /// By the kernel's threads that receive for the interface.
    pub receiving: Duration,
    /// By the cores together.
    pub by_cores: CoreTime,
}

/// Of everything that wardens with one of these folders stand over, and of these cores.
#[must_use]
pub fn spent(folders: &[PathBuf], interface: &str, cores: &[usize]) -> Spent {
    let processes = processes();
    let is_warden = |id: u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let has = |folder: &PathBuf| {
            let option = [&b"--folder"[..], folder.as_os_str().as_encoded_bytes()];
            words.windows(2).any(|pair| pair == option)
        };
        words.get(1) == Some(&&b"__warden"[..]) && folders.iter().any(has)
    };
    let roots = processes.iter().filter(|process| is_warden(process.id));
    let receiver = format!("napi/{interface}-");
    Spent {
        when: now(),
        by_processes: roots
            .flat_map(|root| tree_among(&processes, root.id))
            .map(|process| process.time)
            .sum(),
        receiving: processes
            .iter()
            .filter(|process| process.name.starts_with(&receiver))
            .map(|process| process.time)
            .sum(),
        by_cores: CoreTime::of_all(cores),
    }
}

/// Since any fixed moment.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// How fast these cores are just now, the slowest of them: million iterations per second of the yardstick.
#[must_use]
pub fn speed(cores: &[usize]) -> f64 {
    cores.first().map_or(0.0, |&first| Speed::measure(cores, first).server_core)
}
