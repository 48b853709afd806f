//! Looking at a running server: what `overfly top`, `overfly sockets` and `overfly dump` say must be what was sent.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_tests::{
    Held, Nginx, ROOT, Server, alive, descendants, eventually, output, overfly, send, succeed,
};
use rustix::process::Signal;
use serde_json::Value;

const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

fn nginx() -> (Lab, Server) {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[]);
    let server = Server::nginx(&lab);
    (lab, server)
}

/// So many requests, one connection each.
#[track_caller]
fn requests(lab: &Lab, count: u32) {
    let script = format!(
        "for i in $(seq {count}); do curl -s --max-time 10 http://{SERVER}/ok >/dev/null || exit 1; done"
    );
    succeed(lab, "client", &["sh", "-c", &script]);
}

/// `overfly` with these words in the server side.
fn asking(lab: &Lab, words: &[&str]) -> Command {
    let mut command = lab.command("server", overfly());
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn ask(lab: &Lab, words: &[&str]) -> String {
    let output = asking(lab, words).output().expect("start overfly");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn top(lab: &Lab) -> Vec<Value> {
    let text = ask(lab, &["top", "--json", "--once", "--interval", "0.05"]);
    let look: Value = serde_json::from_str(&text).expect("JSON");
    look["stacks"].as_array().expect("stacks").clone()
}

fn sum(stacks: &[Value], counter: &str) -> u64 {
    stacks.iter().filter_map(|stack| stack["counters"][counter].as_u64()).sum()
}

#[test]
fn top_counts_what_was_served_and_what_was_left_to_the_kernel() {
    let (lab, server) = nginx();
    let before = top(&lab);
    requests(&lab, 50);
    let after = top(&lab);
    let grown = |counter: &str| sum(&after, counter) - sum(&before, counter);
    assert_eq!((grown("sockets.accepts"), grown("engine.accepts")), (50, 50));
    // SYN, ACK, request and FIN of each connection at least, and what was sent is what the link sent.
    assert!(grown("engine.rx_frames") >= 200, "{}", grown("engine.rx_frames"));
    assert_eq!(grown("engine.rx_frames"), grown("link.received_frames"));
    assert_eq!(grown("engine.tx_frames"), grown("link.sent_frames"));
    // Each answer has the body and a header.
    assert!(grown("engine.tx_bytes") > 50 * 100, "{}", grown("engine.tx_bytes"));
    // `Server::nginx` asked over loopback.
    assert!(sum(&after, "sockets.kernel_accepts") > 0);
    let worker = after.iter().find(|stack| stack["stack"].is_number()).expect("a worker with a stack");
    assert_eq!((worker["program"].as_str(), worker["interface"].as_str()), (Some("nginx"), Some("eth0")));
    let process = worker["process"].as_u64().expect("a process") as u32;
    assert!(descendants(server.id()).contains(&process));
    assert!(worker["counters"]["now.receive_ring_size"].as_u64() > Some(0));

    // Others' programs are nobody's business.
    let mut other = lab.command("server", "setpriv");
    other.args(["--reuid", "65534", "--clear-groups"]).arg(overfly());
    other.args(["top", "--json", "--once", "--interval", "0.05"]).stdin(Stdio::null());
    let seen = other.output().expect("start overfly as somebody else");
    let seen: Value = serde_json::from_slice(&seen.stdout).expect("JSON");
    assert_eq!(seen["stacks"].as_array().map(Vec::len), Some(0));
    let table = ask(&lab, &["top", "-n", "1", "--interval", "0.05"]);
    assert!(table.contains("nginx") && table.contains("connections accepted from the kernel"), "{table}");
    server.stop();
    assert!(top(&lab).is_empty());
}

/// The paths of an interface, and which of them a running program uses.
#[test]
fn the_doctor_says_which_paths_an_interface_has_and_which_are_used() {
    let doctor = |lab: &Lab| -> String {
        let found: Value = serde_json::from_str(&ask(lab, &["doctor", "--json"])).expect("JSON");
        let interfaces = found["interfaces"].as_array().expect("interfaces");
        assert_eq!(interfaces.len(), 1, "{found}");
        assert_eq!(
            (interfaces[0]["name"].as_str(), interfaces[0]["state"].as_str()),
            (Some("eth0"), Some("good"))
        );
        interfaces[0]["detail"].as_str().expect("words").to_owned()
    };
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[("large", &[7; 100_000])]);
    let server = Server::nginx(&lab);
    let running = doctor(&lab);
    assert!(running.contains("segments can leave together; packets of up to 1500 bytes; "), "{running}");
    assert!(running.contains("used: attached behind the driver, "), "{running}");
    assert!(running.contains(" 0 frames of several segments left"), "{running}");
    succeed(
        &lab,
        "client",
        &["curl", "-s", "--max-time", "10", "-o", "/dev/null", &format!("http://{SERVER}/large")],
    );
    eventually("it says that segments left together", || {
        !doctor(&lab).contains(" 0 frames of several segments left")
    });
    server.stop();
    eventually("it says that nothing runs", || doctor(&lab).ends_with("; not used"));
}

#[test]
fn sockets_shows_a_sleeping_servers_listener_and_connection() {
    let (lab, server) = nginx();
    let held = Held::open(&lab, 80);
    let rows = || -> Vec<Value> {
        let text = ask(&lab, &["sockets", "--json"]);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let of = |rows: &[Value], kind: &str| -> Vec<Value> {
        rows.iter().filter(|row| row["kind"] == kind).cloned().collect()
    };
    eventually("nginx has accepted", || of(&rows(), "connection").len() == 1);
    let seen = rows();
    let listener = &of(&seen, "listener")[0];
    assert_eq!(
        (listener["state"].as_str(), listener["local"].as_str()),
        (Some("LISTEN"), Some("0.0.0.0:80"))
    );
    let connection = &of(&seen, "connection")[0];
    assert_eq!(
        (connection["state"].as_str(), connection["local"].as_str()),
        (Some("ESTAB"), Some("10.77.0.1:80"))
    );
    assert!(connection["remote"].as_str().expect("an end").starts_with(CLIENT));
    assert_eq!((connection["mss"].as_u64(), connection["passive"].as_bool()), (Some(1448), Some(true)));
    let descriptor = format!("/proc/{}/fd/{}", connection["process"], connection["descriptor"]);
    assert!(std::fs::symlink_metadata(&descriptor).is_ok(), "{descriptor}");
    let text = ask(&lab, &["sockets", "-a"]);
    let head = format!("users:((\"nginx\",pid={},fd={}))", connection["process"], connection["descriptor"]);
    assert!(text.contains(&head) && text.contains("cwnd:10") && text.contains("LISTEN"), "{text}");
    drop(held);
    eventually("the connection goes", || of(&rows(), "connection").is_empty());
    // A process that is stopped does not answer, and that is said.
    let worker = connection["process"].as_u64().expect("a process") as u32;
    send(worker, Signal::STOP);
    let stopped = asking(&lab, &["sockets"]).output().expect("start overfly");
    send(worker, Signal::CONT);
    assert!(!stopped.status.success());
    assert!(String::from_utf8_lossy(&stopped.stderr).contains("does not answer"));
    server.stop();
}

/// `overfly dump` into a file, once it has begun.
fn dump(lab: &Lab, file: &str, words: &[&str]) -> Child {
    let child = asking(lab, &[&["dump", "-w", file], words].concat()).spawn().expect("start overfly dump");
    eventually("the file is begun", || {
        output(lab, "server", &["stat", "-c", "%s", file]).stdout.first().is_some_and(|&digit| digit != b'0')
    });
    child
}

/// What tcpdump reads out of a file: one line a packet.
#[track_caller]
fn packets(lab: &Lab, file: &str, filter: &str) -> Vec<String> {
    let text = succeed(lab, "server", &["tcpdump", "-n", "-r", file, filter]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn dump_has_the_frames_of_each_request_for_tcpdump_and_tshark() {
    let (lab, server) = nginx();
    let file = format!("{ROOT}/dump.pcapng");
    let dumper = dump(&lab, &file, &[]);
    requests(&lab, 10);
    send(dumper.id(), Signal::INT);
    let end = dumper.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&end.stderr).into_owned();
    assert!(end.status.success() && said.contains(", 0 dropped"), "{said}");
    let opened = packets(&lab, &file, "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn");
    assert_eq!(opened.len(), 10, "{opened:#?}");
    let answered = packets(&lab, &file, "src port 80 and tcp[tcpflags] & tcp-syn != 0");
    assert_eq!(answered.len(), 10, "{answered:#?}");
    // tshark sees the checksums and the HTTP in it.
    let words = ["tshark", "-r", &file, "-o", "tcp.check_checksum:TRUE", "-Y"];
    let http = succeed(&lab, "server", &[&words[..], &["http.response.code == 200"]].concat());
    assert_eq!(http.lines().count(), 10, "{http}");
    let broken = succeed(
        &lab,
        "server",
        &[&words[..], &["ip.src == 10.77.0.1 and tcp.checksum.status == 0"]].concat(),
    );
    assert_eq!(broken, "");

    // Only what the filter says, and no more than was asked for; nothing of what came before.
    let few = format!("{ROOT}/few.pcapng");
    let dumper = dump(&lab, &few, &["--filter", &format!("host {CLIENT} and port 80"), "--count", "4"]);
    requests(&lab, 3);
    let end = dumper.wait_with_output().expect("its end");
    assert!(String::from_utf8_lossy(&end.stderr).contains("4 frames captured"));
    assert_eq!(packets(&lab, &few, "").len(), 4);

    // One at a time; and who was killed is in nobody's way for long.
    let mut first = dump(&lab, &format!("{ROOT}/first.pcapng"), &[]);
    let second =
        asking(&lab, &["dump", "-w", &format!("{ROOT}/second.pcapng")]).output().expect("start overfly dump");
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains(&format!("process {}", first.id())));
    first.kill().expect("kill it");
    first.wait().expect("its end");
    eventually("the stack forgets it", || {
        std::thread::sleep(Duration::from_millis(200));
        let words = ["dump", "-w", &format!("{ROOT}/third.pcapng"), "--seconds", "0.05"];
        asking(&lab, &words).output().expect("start overfly dump").status.success()
    });
    let worker = server.id();
    server.stop();
    assert!(!alive(worker));
}

#[test]
fn programs_over_shared_memory_are_seen_too() {
    const LINK: &str = "memif:@overfly-watch";
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[]);
    let configuration = format!("{ROOT}/nginx.conf");
    let words = ["nginx", "-c", &configuration, "-e", "stderr"];
    let server = Server::start(&lab, Some(&["-p", "balanced", "--link", LINK]), &words);
    eventually("the worker has a stack", || top(&lab).iter().any(|seen| seen["stack"].is_number()));
    let file = format!("{ROOT}/dump.pcapng");
    let dumper = dump(&lab, &file, &["--filter", "port 80"]);
    let url = format!("http://{SERVER}/ok");
    let load = ["load", "http", "--link", LINK, "-c", "1", "-n", "20", "--close", &url];
    assert!(ask(&lab, &load).contains("20"));
    let held = ask(&lab, &["sockets", "-a", "-i", LINK]);
    assert!(held.contains("LISTEN") && held.contains("0.0.0.0:80"), "{held}");
    let seen = top(&lab);
    let worker = seen.iter().find(|seen| seen["stack"].is_number()).expect("a worker with a stack");
    assert_eq!(
        (worker["interface"].as_str(), &worker["counters"]["engine.accepts"]),
        (Some(LINK), &20.into())
    );
    assert_eq!(worker["counters"]["engine.rx_frames"], worker["counters"]["link.received_frames"]);
    send(dumper.id(), Signal::INT);
    dumper.wait_with_output().expect("its end");
    let opened = packets(&lab, &file, "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn");
    assert_eq!(opened.len(), 20, "{opened:#?}");
    server.stop();
    assert!(top(&lab).is_empty());
}
