//! `overfly lab`, and the labs of tests and runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use overfly_bench::lab::{Lab, ROUTED_SERVER, SERVER};
use overfly_testing::process;

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
        // What was refused for the sake of a stranger's namespace has left its markers.
        let _ = self.lab(&["down"]).output();
    }
}

#[test]
fn up_exec_down_and_nothing_is_left() {
    let lab = OwnLab::new("whole");
    let said = lab.succeed(&["up"]);
    assert!(said.contains(&format!("Try: overfly lab --prefix {} exec client -- ping", lab.0)), "{said}");
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

    let mut command = lab.lab(&[
        "exec",
        "server",
        "--",
        "sh",
        "-c",
        "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done",
    ]);
    let mut child = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
    let id = child.0.id();
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n", "it listens to SIGTERM");
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
    eventually("sleep runs", || process::status(id, "Name") == "sleep");
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

/// Sends a line from one side's socket to the other's.
fn talk(lab: &Lab, server: Ipv4Addr) -> std::io::Result<String> {
    let listener = lab.within("server", || TcpListener::bind((server, 7)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(700));
    let mut stream = lab.within("client", connect).unwrap()?;
    stream.write_all(b"hello")?;
    drop(stream);
    let mut said = String::new();
    listener.accept()?.0.read_to_string(&mut said)?;
    Ok(said)
}

#[test]
fn an_anonymous_lab_connects_its_sides() {
    let lab = Lab::new(env!("CARGO_BIN_EXE_overfly")).unwrap();
    assert_eq!(talk(&lab, SERVER).unwrap(), "hello");
    lab.write("server", "/dev/shm/folder/file", b"only here").unwrap();
    let read =
        |side| lab.command(side, "cat").arg("/dev/shm/folder/file").stderr(Stdio::null()).output().unwrap();
    assert_eq!(read("server").stdout, b"only here");
    assert!(!read("client").status.success());
    let devices = lab.command("client", "ls").arg("/sys/class/net").output().unwrap();
    assert_eq!(devices.stdout, b"eth0\nlo\n");
}

#[test]
fn a_routed_lab_loses_what_its_middle_drops() {
    let lab = Lab::routed(env!("CARGO_BIN_EXE_overfly")).unwrap();
    assert_eq!(talk(&lab, ROUTED_SERVER).unwrap(), "hello");
    let rules = "add table inet loss; add chain inet loss way { type filter hook forward priority 0; }; \
                 add rule inet loss way iifname eth1 counter drop";
    assert!(lab.command("middle", "nft").arg(rules).status().unwrap().success());
    assert!(talk(&lab, ROUTED_SERVER).is_err());
    let counted = lab.command("middle", "nft").args(["list", "ruleset"]).output().unwrap();
    let counted = String::from_utf8_lossy(&counted.stdout).into_owned();
    assert!(!counted.contains("packets 0 "), "{counted}");
}

#[test]
fn a_contained_command_takes_its_descendants_along() {
    let lab = Lab::new(env!("CARGO_BIN_EXE_overfly")).unwrap();
    let script = "setsid sleep 60 & setsid sleep 60 & wait";
    let mut guardian = Guard(lab.contained("server", "sh", Some(0)).args(["-c", script]).spawn().unwrap());
    eventually("everything runs", || super::descendants(guardian.0.id()).len() == 3);
    let family = super::descendants(guardian.0.id());
    let shell = Lab::inner_process(guardian.0.id()).unwrap();
    assert!(family.contains(&shell));
    let allowed = std::fs::read_to_string(format!("/proc/{shell}/status")).unwrap();
    assert!(allowed.contains("Cpus_allowed_list:\t0\n"), "{allowed}");
    guardian.0.kill().unwrap();
    guardian.0.wait().unwrap();
    eventually("everything has ended", || !family.iter().any(|&id| super::alive(id)));

    // Also when the program itself ends first, and its status comes out.
    let status =
        lab.contained("client", "sh", None).args(["-c", "setsid sleep 60 & exit 9"]).status().unwrap();
    assert_eq!(status.code(), Some(9));
}

#[test]
fn a_command_dies_with_the_thread_that_owns_it() {
    let lab = Lab::new(env!("CARGO_BIN_EXE_overfly")).unwrap();
    let child = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let child = lab.command("server", "sleep").arg("60").spawn().unwrap();
            let id = child.id();
            eventually("sleep runs", || process::status(id, "Name") == "sleep");
            child
        });
        owner.join().unwrap()
    });
    let mut child = Guard(child);
    assert_eq!(child.0.wait().unwrap().signal(), Some(9));
}
