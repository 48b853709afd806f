//! What a session has measured so far, on disk: one line of JSON for each run, so that a session that was ended, by whatever,
//! goes on where it was.
//!
//! All of it is under `unfinished/` until the report is whole, and takes the earlier report's place then.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::plan::Plan;
use crate::schedule::Attempt;
use crate::trial::Trial;

const LOCK: &str = "lock";
const UNFINISHED: &str = "unfinished";
const LINES: &str = "points.jsonl";

/// The first line: what the others are of.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Heading {
    plan: String,
    config_template: Option<String>,
    smoke: bool,
    #[serde(default)]
    quick: bool,
    seed: u64,
}

/// A run that was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Index into the plan's cases.
    pub(crate) point: usize,
    /// The run, by its number from 0, that this one was to replace.
    pub(crate) again: Option<usize>,
    pub(crate) attempt: Attempt,
    pub(crate) trial: Trial,
}

/// A results folder that nobody else writes to.
#[derive(Debug)]
pub(crate) struct Journal {
    output: PathBuf,
    file: File,
    /// Holds the lock; the kernel lets go of it whenever this process ends.
    _lock: File,
}

/// What an earlier session left behind.
#[derive(Debug)]
pub(crate) struct Earlier {
    pub(crate) seed: u64,
    pub(crate) lines: Vec<Line>,
}

impl Journal {
    /// Begins anew; what an interrupted session left is moved aside.
    ///
    /// # Errors
    /// If another session writes there, or it cannot be written.
    pub(crate) fn begin(output: &Path, plan: &Plan, seed: u64) -> Result<Journal, Error> {
        let lock = lock(output)?;
        let place = output.join(UNFINISHED);
        if place.join(LINES).exists() {
            let aside = output.join("unfinished-before");
            let _ = fs::remove_dir_all(&aside);
            fs::rename(&place, &aside).map_err(Error::kernel(format!("move {} aside", place.display())))?;
            let aside = aside.display();
            overfly_terminal::tell(format_args!(
                "an earlier session did not end; what it measured is in {aside} now (--resume would have gone on with it)"
            ));
        }
        let raw = place.join("raw");
        fs::create_dir_all(&raw).map_err(Error::kernel(format!("make {}", raw.display())))?;
        let path = place.join(LINES);
        let file = File::create(&path).map_err(Error::kernel(format!("make {}", path.display())))?;
        let mut journal = Journal { output: output.to_owned(), file, _lock: lock };
        journal.append(&Heading::of(plan, seed))?;
        Ok(journal)
    }

    /// Goes on with what an interrupted session left.
    ///
    /// # Errors
    /// [`Error::Plan`] if there is none, or it was of another plan.
    pub(crate) fn resume(output: &Path, plan: &Plan) -> Result<(Journal, Earlier), Error> {
        let path = output.join(UNFINISHED).join(LINES);
        let wrong = |message: String| Error::Plan { file: path.display().to_string(), line: None, message };
        if !path.exists() {
            return Err(wrong("there is nothing to go on with; run without --resume".to_owned()));
        }
        let lock = lock(output)?;
        let text = fs::read(&path).map_err(Error::kernel(format!("read {}", path.display())))?;
        // A line that a full disk or a crash cut off was never measured.
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(&text[..whole]).into_owned();
        let mut lines = text.lines();
        let heading: Heading = lines
            .next()
            .and_then(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| wrong("it has no heading; run without --resume".to_owned()))?;
        if heading != Heading::of(plan, heading.seed) {
            return Err(wrong(
                "it was begun with another plan; run without --resume, or with --output".to_owned(),
            ));
        }
        let parsed: Result<Vec<Line>, _> = lines.map(serde_json::from_str).collect();
        let lines = parsed.map_err(|error| wrong(format!("{error}; run without --resume")))?;
        let points = plan.cases().len();
        if lines.iter().any(|line| line.point >= points) {
            return Err(wrong("it has runs that the plan has not; run without --resume".to_owned()));
        }
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(Error::kernel(format!("open {}", path.display())))?;
        file.set_len(whole as u64).map_err(Error::kernel(format!("shorten {}", path.display())))?;
        let journal = Journal { output: output.to_owned(), file, _lock: lock };
        Ok((journal, Earlier { seed: heading.seed, lines }))
    }

    /// Writes a run down, to the disk.
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), Error> {
        self.append(line)
    }

    fn append(&mut self, line: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(line).unwrap_or_default() + "\n";
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|source| {
            let path = self.place().join(LINES);
            let kept = "what was measured before is kept: make room and go on with --resume";
            Error::Kernel { action: format!("write {} ({kept})", path.display()), source }
        })
    }

    /// Where everything is written until it is whole.
    pub(crate) fn place(&self) -> PathBuf {
        self.output.join(UNFINISHED)
    }

    /// Puts all of it in the earlier report's place.
    pub(crate) fn publish(self) -> Result<(), Error> {
        let place = self.place();
        let entries = fs::read_dir(&place).map_err(Error::kernel(format!("read {}", place.display())))?;
        for entry in entries.flatten() {
            let to = self.output.join(entry.file_name());
            // A folder takes no other folder's place.
            if to.is_dir() {
                let _ = fs::remove_dir_all(&to);
            }
            fs::rename(entry.path(), &to).map_err(Error::kernel(format!("write {}", to.display())))?;
        }
        fs::remove_dir(&place).map_err(Error::kernel(format!("remove {}", place.display())))
    }
}

impl Heading {
    fn of(plan: &Plan, seed: u64) -> Heading {
        let source = &plan.source;
        Heading {
            plan: source.text.clone(),
            config_template: source.config_template.clone(),
            smoke: source.smoke,
            quick: source.quick,
            seed,
        }
    }
}

/// For as long as the file is open. Its text says who has it.
fn lock(output: &Path) -> Result<File, Error> {
    fs::create_dir_all(output).map_err(Error::kernel(format!("make {}", output.display())))?;
    let path = output.join(LOCK);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
    let mut file = opened.map_err(Error::kernel(format!("open {}", path.display())))?;
    match lock_soon(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            return Err(Error::Machine(format!(
                "process {} writes to {} just now; wait for it, or choose another folder with --output",
                holder.trim(),
                output.display()
            )));
        }
        Err(TryLockError::Error(error)) => {
            return Err(Error::kernel(format!("lock {}", path.display()))(error));
        }
    }
    // The number that a process left here which has ended stands in nobody's way.
    let _ = file.set_len(0);
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
}

/// A process that has ended holds its lock a moment longer by a child that had been forked and had not called exec yet.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if began.elapsed() < Duration::from_secs(1) => {
                thread::sleep(Duration::from_millis(5));
            }
            locked => return locked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Attempt;

    fn line(point: usize) -> Line {
        let trial = Trial { value: 10.0 + point as f64, ..Trial::default() };
        Line { point, again: None, attempt: Attempt::default(), trial }
    }

    #[test]
    fn a_session_goes_on_after_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::any();
        let mut journal = Journal::begin(folder.path(), &plan, 7).unwrap();
        let held = Journal::begin(folder.path(), &plan, 8).unwrap_err().to_string();
        assert!(held.contains(&format!("process {} writes to", std::process::id())), "{held}");
        journal.add(&line(3)).unwrap();
        journal.add(&line(1)).unwrap();
        journal.file.write_all(b"{\"point\": 2, \"aga").unwrap();
        drop(journal);

        let (mut journal, earlier) = Journal::resume(folder.path(), &plan).unwrap();
        assert_eq!(earlier.seed, 7);
        assert_eq!(earlier.lines.iter().map(|line| line.point).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(earlier.lines[0].trial.value, 13.0);
        journal.add(&line(2)).unwrap();
        drop(journal);
        let (journal, earlier) = Journal::resume(folder.path(), &plan).unwrap();
        assert_eq!(earlier.lines.len(), 3, "the torn line is gone");

        fs::create_dir(folder.path().join("raw")).unwrap();
        fs::write(folder.path().join("raw/old"), "").unwrap();
        journal.publish().unwrap();
        assert!(folder.path().join(LINES).exists() && !folder.path().join("raw/old").exists());
        assert!(
            Journal::resume(folder.path(), &plan).unwrap_err().to_string().contains("nothing to go on with")
        );
    }

    #[test]
    fn the_lock_of_a_process_that_has_ended_is_waited_for_where_a_child_has_it_still() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::any();
        let journal = Journal::begin(folder.path(), &plan, 7).unwrap();
        let childs = journal._lock.try_clone().unwrap();
        drop(journal);
        let another = File::open(folder.path().join(LOCK)).unwrap();
        assert!(another.try_lock().is_err(), "the child's descriptor holds the lock");
        let exec = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(childs);
        });
        assert!(Journal::resume(folder.path(), &plan).is_ok());
        exec.join().unwrap();
    }

    #[test]
    fn another_plan_is_not_gone_on_with_and_nothing_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::any();
        drop(Journal::begin(folder.path(), &plan, 7).unwrap());
        let mut other = plan.clone();
        other.source.text.push('#');
        let error = Journal::resume(folder.path(), &other).unwrap_err();
        assert!(error.to_string().contains("another plan") && error.exit_status() == 2, "{error}");
        let mut smoke = plan.clone();
        smoke.source.smoke = true;
        assert!(Journal::resume(folder.path(), &smoke).is_err());
        drop(Journal::begin(folder.path(), &other, 9).unwrap());
        assert!(folder.path().join("unfinished-before").join(LINES).exists());
    }

    #[test]
    fn a_full_disk_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(folder.path(), &Plan::any(), 7).unwrap();
        journal.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = journal.add(&line(0)).unwrap_err().to_string();
        assert!(
            error.contains("points.jsonl") && error.contains("--resume") && error.contains("No space"),
            "{error}"
        );
    }
}
