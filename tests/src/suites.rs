//! Test suites that nobody here wrote, each a folder of `workloads/suites`, run on the kernel and on Overfly.
//!
//! | file | what |
//! |---|---|
//! | `packages` | names of Debian's packages that the suite needs |
//! | `source` | name of Debian's source package that the suite is a part of, which is unpacked in `BUILD`; or also the release that has it, and then what upstream released is there, packed |
//! | `needs` | names of suites that must be built before, as something of theirs is used |
//! | `build` | a script: what has to be compiled or unpacked, once; outside of the lab |
//! | `names` | a script: prints the names of what `run` can run, a line each; outside of the lab |
//! | `run` | a script: runs the tests that its arguments name, `JOBS` at a time if the suite can, and writes a line `pass NAME`, `fail NAME` or `skip NAME` for each to the file `RESULTS` |
//!
//! `run` and all that it starts are under test, so that both ends of the connections are at user level; `STATE` is a folder
//! that goes with the lab, and `TMPDIR` too. A name of `names` may be of many tests (a module), which have names of their own in
//! `RESULTS`; `run` takes those, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overfly_bench::lab::Lab;
use overfly_testing::process;
use rustix::process::Signal;

use crate::programs::{Way, install};
use crate::{overfly, send, succeed};

const STATE: &str = "/dev/shm/state";
/// Where Debian's source packages come from, up to the release.
const SOURCES: &str = "deb-src http://deb.debian.org/debian";
const RELEASE: &str = "bookworm";

/// What became of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Pass,
    /// It failed, or did not end in time.
    Fail,
    /// The suite itself left it out.
    Skip,
}

/// What became of each test, by its name.
pub type Verdicts = BTreeMap<String, Verdict>;

/// A suite of `workloads/suites`.
#[derive(Clone, Debug)]
pub struct Suite {
    folder: PathBuf,
}

impl Suite {
    /// Every suite that there is, by name.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all() -> std::io::Result<Vec<Suite>> {
        let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/suites"))?;
        let mut all: Vec<Suite> = entries.flatten().map(|entry| Suite { folder: entry.path() }).collect();
        all.sort_by(|one, other| one.folder.cmp(&other.folder));
        Ok(all)
    }

    /// The folder's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// What the suite is built in; it stays.
    fn build_folder(&self) -> PathBuf {
        overfly().parent().expect("a folder").join("../suites").join(self.name())
    }

    fn words(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Installs what it needs, and fetches and builds it, unless that has been done.
    ///
    /// # Errors
    /// What the tool that failed said.
    pub fn prepare(&self) -> Result<(), String> {
        install(&self.words("packages"))?;
        for name in self.words("needs") {
            Suite { folder: self.folder.with_file_name(name) }.prepare()?;
        }
        let build = self.build_folder();
        if build.join("done").exists() {
            return Ok(());
        }
        let _ = std::fs::remove_dir_all(&build);
        std::fs::create_dir_all(&build).map_err(|error| format!("{}: {error}", build.display()))?;
        match self.words("source").as_slice() {
            [source] => fetch(source, RELEASE, &["source"], &build)?,
            [source, release] => {
                fetch(source, release, &["source", "--tar-only", "--download-only"], &build)?;
            }
            _ => {}
        }
        let mut command = Command::new(self.folder.join("build"));
        finish(command.current_dir(&build).env("BUILD", &build))?;
        File::create(build.join("done")).map(drop).map_err(|error| error.to_string())
    }

    /// What [`Suite::run`] can run.
    ///
    /// # Errors
    /// What the suite's script said.
    pub fn names(&self) -> Result<Vec<String>, String> {
        let build = self.build_folder();
        let mut command = Command::new(self.folder.join("names"));
        let said = finish(command.current_dir(&build).env("BUILD", &build))?;
        Ok(said.lines().map(str::to_owned).collect())
    }

    /// Runs the tests of these names in a lab of its own, so many at a time, for as long as `within`. What they say is in a log in the
    /// suite's folder of `target/suites`.
    ///
    /// # Errors
    /// If the suite said nothing of any test.
    ///
    /// # Panics
    /// If the lab cannot be made.
    pub fn run(&self, way: Way, names: &[String], jobs: u32, within: Duration) -> Result<Verdicts, String> {
        let lab = Lab::new(overfly()).expect("a lab");
        succeed(&lab, "server", &["mkdir", "-p", STATE]);
        let build = self.build_folder();
        let log = build.join(if way == Way::Kernel { "kernel.log" } else { "overfly.log" });
        let results = build.join("results");
        let _ = std::fs::remove_file(&results);
        let script = self.folder.join("run");
        let mut command = match way {
            Way::Kernel => lab.contained("server", script, None),
            Way::Overfly(profile) => {
                let mut command = lab.contained("server", overfly(), None);
                command.args(["run", "-p", profile, "--"]).arg(script);
                command
            }
        };
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        command.args(names).current_dir(&build).env("BUILD", &build).env("STATE", STATE);
        command.env("TMPDIR", STATE).env("JOBS", jobs.to_string());
        command.env("RESULTS", &results).stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let end = Instant::now() + within;
        while Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let namespace = lab.within("server", || std::fs::read_link("/proc/thread-self/ns/net"));
        let _ = child.kill();
        let _ = child.wait();
        if let Ok(Ok(namespace)) = namespace {
            process::inhabitants(&namespace).into_iter().for_each(|id| send(id, Signal::KILL));
        }
        let verdicts = read(&std::fs::read_to_string(&results).unwrap_or_default());
        if verdicts.is_empty() {
            return Err(format!("no test has run: see {}", log.display()));
        }
        Ok(verdicts)
    }
}

/// Fetches a source package of Debian's, with a list of sources of its own.
fn fetch(source: &str, release: &str, how: &[&str], build: &Path) -> Result<(), String> {
    let list = build.join("sources.list");
    let state = build.join("lists");
    let kept = std::fs::write(&list, format!("{SOURCES} {release} main\n"))
        .and_then(|()| std::fs::create_dir_all(state.join("partial")));
    kept.map_err(|error| format!("{}: {error}", build.display()))?;
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.args(["-qq", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Sandbox::User=root"])
            .args(["-o", &format!("Dir::Etc::sourcelist={}", list.display())])
            .args(["-o", &format!("Dir::State::lists={}", state.display())])
            .current_dir(build);
        apt
    };
    finish(apt().arg("update"))?;
    finish(apt().args(how).arg(source)).map(drop)
}

fn finish(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = said.lines().rev().take(20).collect();
    Err(format!("{command:?}: {}: {}", output.status, tail.into_iter().rev().collect::<Vec<_>>().join("\n")))
}

/// The last word about each test.
fn read(text: &str) -> Verdicts {
    let verdict = |line: &str| {
        let (verdict, name) = line.split_once(' ')?;
        let verdict = match verdict {
            "pass" => Verdict::Pass,
            "fail" => Verdict::Fail,
            "skip" => Verdict::Skip,
            _ => return None,
        };
        Some((name.trim().to_owned(), verdict))
    };
    text.lines().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_a_test_counts() {
        let verdicts = read("pass a\nskip b c\nnonsense\nfail a\nperhaps d\n");
        let expected = [("a", Verdict::Fail), ("b c", Verdict::Skip)];
        assert_eq!(verdicts, expected.map(|(name, verdict)| (name.to_owned(), verdict)).into());
    }
}
