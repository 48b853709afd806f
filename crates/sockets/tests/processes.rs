//! Processes that share connections and listeners: fork, exec, spawned programs, passed descriptors, and OpenSSH's server.
//! The broker runs in this process. Needs root, python3 and OpenSSH.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, Helper, peer, programs, run, spawn, sum, text};

/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn processes_share_as_over_the_kernel() {
    let bench = Bench::new(2);
    for (accelerates, per_thread) in [(false, "0"), (true, "0"), (true, "1"), (true, "3")] {
        let _peer = peer(&bench, &CLIENT.to_string());
        let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
        script.args(["-s", "KILL", "120", PYTHON]).arg(programs("forks.py"));
        if accelerates {
            bench.stack_per_thread(&mut script, per_thread);
        }
        let output = run(&bench.lab.server, script.args([SERVER.to_string(), CLIENT.to_string()]));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "accelerated: {accelerates}, stack per thread: {per_thread}\n{told}\n{complained}"
        );
        if accelerates {
            assert!(complained.contains(", stack ") == (per_thread != "0"), "{complained}");
            assert!(sum(&complained, "accepts") > 30, "{complained}");
            assert!(sum(&complained, "handed over") > 20, "{complained}");
        }
    }
}

/// Redis forks to save: its connections must stay accelerated.
#[test]
fn a_snapshot_costs_no_connection_its_speed() {
    let bench = Bench::new(1);
    let _peer = peer(&bench, &CLIENT.to_string());
    let mut script = bench.accelerated(PYTHON);
    script.arg(programs("forks.py")).args([SERVER.to_string(), CLIENT.to_string()]);
    script.arg("a_child_that_never_uses_them_costs_nothing");
    let output = run(&bench.lab.server, &mut script);
    let complained = text(&output.stderr);
    assert!(output.status.success(), "{complained}");
    assert_eq!((sum(&complained, "accepts"), sum(&complained, "handed over")), (10, 0), "{complained}");
}

/// uvicorn's workers listen at a socket that their master has bound: it is accelerated from the first connection on.
#[test]
fn a_socket_bound_before_exec_is_accelerated() {
    let bench = Bench::new(1);
    let _peer = peer(&bench, &CLIENT.to_string());
    let mut script = bench.accelerated(PYTHON);
    script.arg(programs("forks.py")).args([SERVER.to_string(), CLIENT.to_string()]);
    script.arg("a_socket_that_another_image_listens_at");
    let output = run(&bench.lab.server, &mut script);
    let complained = text(&output.stderr);
    assert!(output.status.success(), "{complained}");
    // Up to its first look the kernel serves.
    assert!(sum(&complained, "accepts") >= 19, "{complained}");
}

/// Sessions of a real server that forks, execs itself and gives its connections away, with and without a terminal.
#[test]
fn sshd_serves() {
    let bench = Bench::new(2);
    let folder = bench.folder.path().display().to_string();
    std::fs::set_permissions(bench.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &format!("{folder}/{key}")])
            .status()
            .unwrap();
        assert!(made.success());
    }
    std::fs::copy(bench.path("user.pub"), bench.path("authorized")).unwrap();
    let made_privilege_separation_folder = std::fs::create_dir("/run/sshd").is_ok();
    let mut server = bench.accelerated("/usr/sbin/sshd");
    server.args(["-D", "-e", "-f", "/dev/null", "-p", "22"]);
    for option in [
        format!("HostKey={folder}/host"),
        format!("AuthorizedKeysFile={folder}/authorized"),
        format!("ListenAddress={SERVER}"),
        "StrictModes=no".to_owned(),
        "PermitRootLogin=yes".to_owned(),
        "PidFile=none".to_owned(),
        "UsePAM=no".to_owned(),
        "MaxStartups=100".to_owned(),
    ] {
        server.args(["-o", &option]);
    }
    let log = std::fs::File::create(bench.path("log")).unwrap();
    let _server = Helper(spawn(&bench.lab.server, server.stdin(Stdio::null()).stderr(log)));
    bench.until_joined((SERVER, 22).into(), 1);
    let ssh = |arguments: &[&str], input: Stdio| {
        let mut ssh = Command::new("timeout");
        ssh.args(["-s", "KILL", "60", "ssh", "-F", "/dev/null", "-i", &format!("{folder}/user")]);
        for option in
            ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
        {
            ssh.args(["-o", option]);
        }
        ssh.args(arguments).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = spawn(&bench.lab.client, &mut ssh).wait_with_output().unwrap();
        let log = std::fs::read_to_string(bench.path("log")).unwrap();
        assert!(output.status.success(), "{arguments:?}: {}\n{log}", text(&output.stderr));
        output.stdout
    };
    let host = format!("root@{SERVER}");
    for _ in 0..5 {
        assert_eq!(text(&ssh(&[&host, "echo hello; exit 0"], Stdio::null())), "hello\n");
    }
    let terminal = text(&ssh(&["-tt", &host, "tty; stty size"], Stdio::null()));
    assert!(terminal.starts_with("/dev/pts/"), "{terminal}");
    let large = crate::bench::noise(5, 20 << 20);
    std::fs::write(bench.path("large"), &large).unwrap();
    let input = std::fs::File::open(bench.path("large")).unwrap();
    assert!(ssh(&[&host, "cat"], input.into()) == large);
    let counters = bench.broker.attachment().counters().unwrap();
    assert!(counters.flows_recorded >= 7, "{counters:?}");
    if made_privilege_separation_folder {
        let _ = std::fs::remove_dir("/run/sshd");
    }
}
