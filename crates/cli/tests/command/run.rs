//! `overfly run`: what does not need a link, and the watch over a program.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overfly_testing::process;

use super::{Guard, alive, assert_refused, descendants, eventually, outcome, overfly, signal};

/// The warden alone, as `overfly run` starts it, with nothing preloaded. Whoever runs these tests may ignore signals (nohup, a script's
/// background job): it does not.
fn warden(script: &str) -> Command {
    let mut command = Command::new("env");
    command.args([
        "--default-signal",
        env!("CARGO_BIN_EXE_overfly"),
        "__warden",
        "--parent",
        &std::process::id().to_string(),
        "--preload",
        "",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command
}

/// A program that cannot be accelerated, since there is no such interface.
fn run(words: &[&str]) -> Command {
    let mut command = overfly();
    command.args(["run", "--interface", "nosuch0"]).args(words);
    command
}

#[test]
fn what_cannot_be_accelerated_runs_on_the_kernel_after_one_warning() {
    let output = run(&["sh", "-c", "echo it ran; exit 5"]).output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(5));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "it ran\n");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("sh runs on the kernel"), "{said}");
}

#[test]
fn what_a_first_time_user_types_is_answered_with_what_to_type_next() {
    let words = ["no program was given", "`overfly run -- nginx", "`overfly run --help`", "`overfly doctor`"];
    assert_refused(overfly().arg("run"), 2, &words);
    let expected = ["--link foo: expected memif:PATH or tap:NAME; interfaces are named with --interface"];
    assert_refused(overfly().args(["run", "--link", "foo", "true"]), 2, &expected);
    let expected = ["--link tap:: expected memif:PATH or tap:NAME"];
    assert_refused(overfly().args(["run", "--link", "tap:", "true"]), 2, &expected);
    for group in [&[][..], &["load"], &["lab"], &["profile"]] {
        let output = overfly().args(group).output().unwrap();
        let (code, said) = outcome(&output);
        assert_eq!(code, Some(2), "{said}");
        assert!(output.stdout.is_empty());
        assert!(said.contains("Commands:") && said.contains("Examples:\n  overfly"), "{said}");
    }
    let help = overfly().args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("UDP sockets on the interface bypass the kernel"), "{help}");
}

#[test]
fn manual_pages_and_completions_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = overfly().arg("man").arg(folder.path().join("man1")).output().unwrap();
    assert_eq!(outcome(&output), (Some(0), String::new()));
    let page = fs::read_to_string(folder.path().join("man1/overfly-run.1")).unwrap();
    assert!(page.contains("overfly run \\-\\- nginx \\-g"), "{page}");
    let output = overfly().args(["completions", "bash"]).output().unwrap();
    assert_eq!(outcome(&output), (Some(0), String::new()));
    let mut shell = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut shell.stdin.take().unwrap(), &output.stdout).unwrap();
    assert!(shell.wait().unwrap().success(), "bash reads it");
    assert_refused(overfly().args(["man", "/proc/nowhere"]), 1, &["/proc/nowhere"]);
}

/// What no library can be preloaded into runs on the kernel's stack, and its exit status is its own.
#[test]
fn valgrind_runs_on_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let valgrind = folder.path().join("valgrind");
    super::write_script(&valgrind, "#!/bin/sh\nexit 3\n");
    let output = overfly().arg("run").arg(&valgrind).output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("runs on the kernel") && said.contains("a processor of its own"), "{said}");
}

#[test]
fn with_no_fail_0_it_does_not_run() {
    assert_refused(
        run(&["--", "echo", "it ran"]).env("EF_NO_FAIL", "0"),
        1,
        &["echo was not run", "EF_NO_FAIL"],
    );
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("strict.opf");
    fs::write(&profile, "onload_set EF_NO_FAIL 0\n").unwrap();
    assert_refused(&mut run(&["-p", profile.to_str().unwrap(), "echo", "it ran"]), 1, &["echo was not run"]);
    // The environment wins.
    let output =
        run(&["-p", profile.to_str().unwrap(), "echo", "it ran"]).env("EF_NO_FAIL", "1").output().unwrap();
    assert_eq!(output.stdout, b"it ran\n");
}

#[test]
fn wrong_options_and_profiles_get_one_line_and_status_2() {
    assert_refused(&mut run(&["-p", "warp", "true"]), 2, &["warp", "balanced, latency, load, performance"]);
    assert_refused(&mut run(&["--speed", "9", "true"]), 2, &["'--speed'"]);
    assert_refused(&mut run(&[]), 2, &["no program was given"]);
    assert_refused(
        run(&["true"]).env("EF_POLL_USEC", "soon"),
        2,
        &["EF_POLL_USEC soon", "from 0 to 4294967295"],
    );
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("mine.opf");
    for (text, words) in [
        ("onload_set EF_TCP_TCONST_MSL 0\n", &["mine.opf:1", "EF_TCP_TCONST_MSL 0", "from 1 to 255"][..]),
        ("\nonload_set EF_TELEPATHY 1\n", &["mine.opf:2", "EF_TELEPATHY 1", "overfly profile options"]),
        ("onload_set EF_NO_FAIL\n", &["mine.opf:1", "onload_set NAME VALUE"]),
    ] {
        fs::write(&profile, text).unwrap();
        assert_refused(&mut run(&["-p", profile.to_str().unwrap(), "true"]), 2, words);
    }
}

#[test]
fn a_missing_program_has_a_shells_statuses() {
    assert_refused(&mut run(&["no-such-program"]), 127, &["no-such-program"]);
    assert_refused(&mut run(&["/etc/passwd"]), 126, &["/etc/passwd"]);
}

#[test]
fn the_programs_arguments_are_its_own() {
    let output = run(&["echo", "-p", "--interface", "-x"]).output().unwrap();
    assert_eq!(output.stdout, b"-p --interface -x\n");
}

#[test]
fn exit_status_and_signals_pass_through() {
    assert_eq!(warden("exit 3").status().unwrap().code(), Some(3));
    assert_eq!(warden("kill -9 $$").status().unwrap().code(), Some(128 + 9));
    for (name, status) in [("TERM", 11), ("INT", 12), ("QUIT", 13), ("HUP", 14), ("USR1", 15), ("USR2", 16)] {
        let script = format!("trap 'exit {status}' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = Guard(warden(&script).stdout(Stdio::piped()).spawn().unwrap());
        let mut ready = [0; 6];
        child.0.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        signal(child.0.id(), name);
        assert_eq!(child.0.wait().unwrap().code(), Some(status), "{name}");
    }
}

/// The warden, started by somebody who ignores a signal: nohup(1), a script's background job.
fn warden_ignoring(name: &str, program: &str) -> Command {
    let mut command = Command::new("sh");
    let overfly = env!("CARGO_BIN_EXE_overfly");
    let parent = std::process::id();
    let line = format!("trap '' {name}; exec {overfly} __warden --parent {parent} --preload '' -- {program}");
    command.args(["-c", &line]);
    command
}

#[test]
fn what_was_ignored_stays_ignored() {
    let status = warden_ignoring("HUP", "sh -c 'kill -HUP $$; exit 4'").status().unwrap();
    assert_eq!(status.code(), Some(4));
}

#[test]
fn what_was_ignored_is_forwarded_to_a_server_with_its_own_handlers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let config = format!(
        "daemon off; pid {path}/pid; events {{}} http {{ access_log off; server {{ listen unix:{path}/socket; }} }}"
    );
    fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut command = warden_ignoring("QUIT", &format!("nginx -e stderr -c {path}/nginx.conf"));
    let mut child = Guard(command.stderr(Stdio::null()).spawn().unwrap());
    eventually("nginx listens", || {
        std::os::unix::net::UnixStream::connect(folder.path().join("socket")).is_ok()
    });
    signal(child.0.id(), "QUIT");
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_that_goes_into_the_background_is_waited_for() {
    let started = Instant::now();
    assert_eq!(warden("setsid sleep 0.7 & exit 6").status().unwrap().code(), Some(6));
    assert!(started.elapsed() >= Duration::from_millis(700));

    // And told to end.
    let mut child = Guard(warden("setsid sleep 60 & exit 0").spawn().unwrap());
    let id = child.0.id();
    eventually("only sleep is left", || {
        let family = descendants(id);
        family.len() == 1 && family.iter().all(|&id| process::status(id, "Name") == "sleep")
    });
    signal(id, "TERM");
    assert_eq!(child.0.wait().unwrap().code(), Some(128 + 15));
}

/// What a shell left in the background ends as it likes: the program's own status stays, and so do the others.
#[test]
fn a_stray_descendant_that_dies_of_a_signal_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    let script = format!(
        "setsid sh -c 'sleep 0.3; kill -TERM $$' & setsid sh -c 'sleep 0.9; echo > {}' & exit 0",
        there.display()
    );
    assert_eq!(warden(&script).status().unwrap().code(), Some(0));
    assert!(there.exists(), "the other one was ended");
}

/// A server of three processes: a master and two workers, one of which does not listen to SIGTERM.
const MASTER: &str = "sleep 60 & sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & wait";

fn family_of(id: u32, size: usize) -> Vec<u32> {
    eventually("the family is complete", || descendants(id).len() >= size);
    descendants(id)
}

#[test]
fn when_the_program_is_killed_its_workers_end_too() {
    let mut child = Guard(warden(MASTER).spawn().unwrap());
    let family = family_of(child.0.id(), 3);
    let master = *family.iter().min().unwrap();
    signal(master, "KILL");
    assert_eq!(child.0.wait().unwrap().code(), Some(128 + 9));
    assert!(!family.iter().any(|&id| alive(id)));
}

#[test]
fn when_the_supervisor_is_killed_the_program_ends() {
    let line = format!(
        "{} __warden --parent $$ --preload '' -- sh -c '{}' & wait",
        env!("CARGO_BIN_EXE_overfly"),
        MASTER.replace('\'', r"'\''")
    );
    let mut parent = Guard(Command::new("sh").args(["-c", &line]).spawn().unwrap());
    let family = family_of(parent.0.id(), 4);
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    eventually("everything has ended", || !family.iter().any(|&id| alive(id)));
}

/// The command in a folder of its own, beside a library or not, whatever has been built so far.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new(library: bool) -> Installed {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::hard_link(env!("CARGO_BIN_EXE_overfly"), folder.path().join("overfly")).unwrap();
        if library {
            fs::write(folder.path().join("liboverfly.so"), "").unwrap();
        }
        Installed(folder)
    }

    fn command(&self) -> PathBuf {
        self.0.path().join("overfly")
    }

    fn diagnosis(&self) -> (bool, serde_json::Value) {
        let output = Command::new(self.command()).args(["doctor", "--json"]).output().unwrap();
        (output.status.success(), serde_json::from_slice(&output.stdout).unwrap())
    }
}

#[test]
fn the_doctors_word_and_status_agree() {
    let installed = Installed::new(true);
    let (success, diagnosis) = installed.diagnosis();
    assert!(success && diagnosis["works"] == true, "{diagnosis}");
    for (link, name) in ["xdp", "memif", "tap"].into_iter().enumerate() {
        assert_eq!(diagnosis["links"][link]["name"], name);
        assert_eq!(diagnosis["links"][link]["state"], "good", "the tests need it: {diagnosis}");
    }
    let text = Command::new(installed.command()).arg("doctor").output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).ends_with("`overfly run` works here.\n"));
}

#[test]
fn without_the_library_the_doctor_says_what_to_type() {
    let (success, diagnosis) = Installed::new(false).diagnosis();
    assert!(!success && diagnosis["works"] == false, "{diagnosis}");
    let library = &diagnosis["machine"][0];
    assert_eq!((&library["name"], &library["state"]), (&"liboverfly.so".into(), &"missing".into()));
    assert_eq!(library["remedy"], "make build");
}

/// `su` and Debian's users have no folders of system tools on their path.
#[test]
fn the_doctor_finds_what_is_not_on_the_path() {
    let installed = Installed::new(true);
    let output =
        Command::new(installed.command()).arg("doctor").env("PATH", "/usr/bin:/bin").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("yes  xdp"), "{text}");
    assert!(text.contains("sbin/ethtool, which is not on the PATH; the tests need it"), "{text}");
    assert!(text.contains("type: export PATH=$PATH:/usr/sbin:/sbin"), "{text}");
}

/// Whoever has no privilege has shared memory, and is told so.
#[test]
fn the_doctor_knows_what_needs_no_privilege() {
    let installed = Installed::new(true);
    let mut doctor = Command::new("setpriv");
    doctor.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(installed.command()).arg("doctor");
    let output = doctor.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("NO   xdp") && text.contains("yes  memif"), "{text}");
    assert!(text.contains("`overfly run --link memif:PATH` works here"), "{text}");
}

/// What an administrator typed wrong has the status of wrong options, and one line: whoever starts a service can tell it from what passes.
#[test]
fn a_brokers_wrong_options_are_no_failures_to_begin() {
    let broker = |words: &[&str]| {
        let mut command = overfly();
        command.args(["broker", "--interface", "lo"]).args(words);
        command
    };
    assert_refused(
        &mut broker(&["--profile", "nosuch"]),
        2,
        &["lo is not served", "no such profile: nosuch"],
    );
    for wrong in ["nonsense", "127.0.0.1:99999", "127.0.0.1"] {
        let words = ["lo is not served", wrong, "expected ADDRESS:PORT to listen on"];
        assert_refused(&mut broker(&["--metrics", wrong]), 2, &words);
    }
    // Which an interface may get later on.
    assert_refused(&mut broker(&["--metrics", "192.0.2.1:9100"]), 1, &["none of this network namespace's"]);
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("broker.toml");
    fs::write(&policy, "[[rule]]\nusers = [1]\nstack = 1\n").unwrap();
    let policy = policy.to_str().unwrap();
    assert_refused(&mut broker(&["--policy", policy]), 2, &["line 3: `stack = 1`: unknown field `stack`"]);
    fs::write(policy, "[[rule]]\nusers = [1]\nstacks = 1\n").unwrap();
    let output = broker(&["--policy", policy, "--check"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{policy}: 1 rule\n"));
}
