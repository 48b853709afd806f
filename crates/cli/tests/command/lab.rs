//! `overfly lab`.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Guard, assert_refused, eventually, outcome, overfly, signal};

/// A lab whose names no person and no other test uses, taken down at the end.
struct OwnLab(String);

impl OwnLab {
    fn new(name: &str) -> OwnLab {
        OwnLab(format!("test-{}-{name}-", std::process::id()))
    }

    fn lab(&self, words: &[&str]) -> Command {
        let mut command = overfly();
        command.args(["lab", "--prefix", &self.0]).args(words);
        command
    }

    #[track_caller]
    fn succeed(&self, words: &[&str]) -> String {
        let output = self.lab(words).output().unwrap();
        let (code, said) = outcome(&output);
        assert_eq!(code, Some(0), "{words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn file(&self, side: &str) -> String {
        format!("/run/netns/{}{side}", self.0)
    }
}

impl Drop for OwnLab {
    fn drop(&mut self) {
        let _ = self.lab(&["down"]).output();
        for side in ["server", "client"] {
            if Path::new(&self.file(side)).exists() {
                let _ = Command::new("ip").args(["netns", "del", &format!("{}{side}", self.0)]).status();
            }
        }
    }
}

#[test]
fn up_exec_down_and_nothing_is_left() {
    let lab = OwnLab::new("whole");
    lab.succeed(&["up"]);
    assert!(lab.succeed(&["up"]).contains("already"));
    assert_eq!(lab.succeed(&["exec", "server", "--", "ls", "/sys/class/net"]), "eth0\nlo\n");
    let addresses = lab.succeed(&["exec", "client", "--", "ip", "-br", "-4", "addr"]);
    assert!(addresses.contains("10.77.0.2/16") && addresses.contains("127.0.0.1/8"), "{addresses}");
    let queues =
        lab.succeed(&["exec", "server", "--", "sh", "-c", "ls -d /sys/class/net/eth0/queues/rx-* | wc -l"]);
    assert_eq!(queues.trim().parse::<usize>().unwrap(), overfly_bench::lab::queue_count());
    let namespace = format!("{}server", lab.0);
    let plain =
        Command::new("ip").args(["netns", "exec", &namespace, "cat", "/proc/net/dev"]).output().unwrap();
    assert!(String::from_utf8_lossy(&plain.stdout).contains("eth0"));

    lab.succeed(&["down"]);
    for side in ["server", "client"] {
        assert!(!Path::new(&lab.file(side)).exists());
        assert!(!Path::new(&format!("/run/overfly/{}{side}.netns", lab.0)).exists());
    }
    assert!(lab.succeed(&["down"]).contains("no lab"));
}

#[test]
fn exec_is_the_command_itself() {
    let lab = OwnLab::new("exec");
    assert_refused(&mut lab.lab(&["exec", "server", "--", "true"]), 1, &["not up", "overfly lab up"]);
    lab.succeed(&["up"]);
    assert_eq!(lab.lab(&["exec", "server", "--", "sh", "-c", "exit 3"]).status().unwrap().code(), Some(3));
    assert_refused(&mut lab.lab(&["exec", "server", "--", "no-such-program"]), 127, &["no-such-program"]);
    assert_refused(&mut lab.lab(&["exec", "router", "--", "true"]), 2, &["'router'", "server, client"]);

    let mut command =
        lab.lab(&["exec", "server", "--", "sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"]);
    let mut child = Guard(command.stdout(Stdio::null()).spawn().unwrap());
    let id = child.0.id();
    eventually("the shell runs", || {
        std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "sh")
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    signal(id, "TERM");
    assert_eq!(child.0.wait().unwrap().code(), Some(7));
}

#[test]
fn the_working_folder_stays() {
    let lab = OwnLab::new("folder");
    lab.succeed(&["up"]);
    let folder = tempfile::tempdir().unwrap();
    let output = lab.lab(&["exec", "client", "--", "pwd"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), folder.path().to_str().unwrap());
}

#[test]
fn namespaces_of_others_are_left_alone() {
    let lab = OwnLab::new("others");
    let name = format!("{}server", lab.0);
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
    assert_refused(&mut lab.lab(&["up"]), 1, &[&name, "--prefix"]);
    assert_refused(&mut lab.lab(&["down"]), 1, &[&name]);
    assert!(Path::new(&lab.file("server")).exists());
    assert!(!Path::new(&lab.file("client")).exists());

    // Nor is one that has taken the place of ours.
    assert!(Command::new("ip").args(["netns", "del", &name]).status().unwrap().success());
    lab.succeed(&["up"]);
    assert!(Command::new("ip").args(["netns", "del", &name]).status().unwrap().success());
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
    assert_refused(&mut lab.lab(&["up"]), 1, &[&name]);
}

#[test]
fn half_a_lab_is_made_whole() {
    let lab = OwnLab::new("half");
    lab.succeed(&["up"]);
    assert!(
        Command::new("ip").args(["netns", "del", &format!("{}client", lab.0)]).status().unwrap().success()
    );
    let said = lab.succeed(&["up"]);
    assert!(!said.contains("already"), "{said}");
    assert!(lab.succeed(&["exec", "client", "--", "ip", "-br", "addr"]).contains("10.77.0.2/16"));
}

#[test]
fn down_tells_of_processes_inside_and_leaves_them_alone() {
    let lab = OwnLab::new("inside");
    lab.succeed(&["up"]);
    let child = Guard(lab.lab(&["exec", "server", "--", "sleep", "60"]).spawn().unwrap());
    let id = child.0.id();
    eventually("sleep runs", || {
        std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "sleep")
    });
    let output = lab.lab(&["down"]).output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0));
    assert!(said.contains(&format!("process {id} (sleep)")), "{said}");
    assert!(super::alive(id));
}

#[test]
fn a_prefix_that_is_no_name_is_refused() {
    assert_refused(overfly().args(["lab", "--prefix", "../x", "up"]), 2, &["--prefix", "letters"]);
}
