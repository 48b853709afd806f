//! `overfly load astf` over memif with several threads, and what others see and order meanwhile; what a wrong
//! profile leaves undone, whose a profile runs as, and that the Python package installs.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use overfly_bench::lab::Lab;
use overfly_testing::Folder;
use overfly_testing::process::Killed;
use overfly_tests::control::drain;
use overfly_tests::{eventually, overfly, send, succeed};
use rustix::process::Signal;
use serde_json::Value;

/// A folder that goes with the test.
fn folder(test: &str) -> Folder {
    // Short: the names of Unix sockets hold 108 bytes.
    Folder::new(Path::new("/dev/shm").join(format!("astf-{test}-{}", std::process::id())))
}

fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python")
}

fn profile(name: &str) -> String {
    python().join("tests/profiles").join(name).display().to_string()
}

fn astf(profile: &str, words: &[&str]) -> Command {
    let mut command = Command::new(overfly());
    command.args(["load", "astf", profile]).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Ends a server side by its control socket, and reads its report.
fn end(server: Child, control: &str) -> Value {
    drain(control, || ());
    json(&server.wait_with_output().expect("wait for the server side"))
}

/// What holds of a clean run of so many flows, each of so many bytes.
fn check(client: &Value, server: &Value, flows: u64, up: u64, down: u64) {
    let at = |report: &Value, side: &str, name: &str| report["totals"][side]["counters"][name].as_u64();
    let of_client = |name| at(client, "client", name);
    let of_server = |name| at(server, "server", name);
    assert_eq!(of_client("flows_total"), Some(flows));
    assert_eq!((of_client("tcps_connattempt"), of_client("tcps_closed")), (Some(flows), Some(flows)));
    assert_eq!((of_server("tcps_accepts"), of_server("tcps_closed")), (Some(flows), Some(flows)));
    assert_eq!(
        (of_client("tcps_sndbyte"), of_client("tcps_rcvbyte")),
        (Some(flows * up), Some(flows * down))
    );
    assert_eq!(of_client("tcps_rcvackbyte"), of_server("tcps_rcvbyte"));
    for name in ["tcps_drops", "tcps_conndrops", "tcps_testdrops", "err_c_tuple_err", "tcps_rcvbadsum"] {
        assert_eq!((of_client(name), of_server(name)), (Some(0), Some(0)), "{name}");
    }
}

fn page(address: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("connect to the metrics");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("ask for the metrics");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("read the metrics");
    page
}

#[test]
fn over_memif_with_two_threads_and_what_others_see() {
    let folder = folder("memif");
    let (link, control) = (format!("memif:{}", folder.path("link")), folder.path("control"));
    let csv = folder.path("run.csv");
    let text = fs::read_to_string(profile("http_by_program.py")).expect("read a profile");
    // So many, however late a busy machine makes them.
    fs::write(folder.path("p.py"), text.replace("cps=10)", "cps=10, limit=1250)")).expect("write a profile");
    let name = folder.path("p.py");
    let server = astf(
        &name,
        &["--side", "server", "--link", &link, "--threads", "2", "--control", &control, "--json"],
    );
    let server = { server }.spawn().expect("start the server side");
    eventually("the server side listens", || Path::new(&control).exists());
    let words = ["--side", "client", "--link", &link, "--threads", "2", "-m", "50", "--csv", &csv, "--json"];
    let mut client = astf(&name, &words);
    let client = client.args(["--metrics", "127.0.0.1:0", "--probe", "50"]).stderr(Stdio::piped());
    let mut client = client.spawn().expect("start the client side");
    let mut said = BufReader::new(client.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        assert!(said.read_line(&mut line).expect("read what it says") > 0, "it says where the metrics are");
    }
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let mut text = String::new();
    eventually("the metrics count flows", || {
        text = page(address);
        let family = "overfly_astf_tcps_connects_total{side=\"client\",group=\"others\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(family)?.parse::<u64>().ok());
        count.is_some_and(|count| count > 100)
    });
    for family in
        ["# TYPE overfly_astf_active_flows gauge", "# TYPE overfly_astf_tcps_pawsdrop_total counter"]
    {
        assert!(text.contains(family), "{family}: {text}");
    }
    assert!(
        text.contains("overfly_astf_probe_sent_total{client=\"16.0.0.0\",server=\"48.0.0.0\"} "),
        "{text}"
    );
    let client = json(&client.wait_with_output().expect("wait for the client side"));
    let server = end(server, &control);
    check(&client, &server, 1250, 57, 42 + 32_768);
    let probe = &client["probes"][0];
    assert!(probe["received"].as_u64() > Some(50) && probe["lost"] == 0, "{probe}");

    let lines: Vec<String> =
        fs::read_to_string(&csv).expect("read the CSV").lines().map(String::from).collect();
    let columns: Vec<&str> = lines[0].split(',').collect();
    let at = columns.iter().position(|name| *name == "client.tcps_connects").expect("a column");
    let counts = lines[1..].iter().map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), columns.len(), "{line}");
        cells[at].parse::<u64>().expect("a count")
    });
    // The last half second has no line of its own, and the looks are not to the millisecond.
    let (lines, counted) = counts.fold((0, 0), |(lines, sum), count| (lines + 1, sum + count));
    assert!(lines >= 2 && (500..=1250).contains(&counted), "{counted} in {lines} lines");
}

/// Orders by the Python client, against a run.
const ORDERS: &str = "
import sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from overfly.astf.control import Control, ControlError

def begun(run): return run.standing()['flows'][0]

def rate(run):
    before, at = begun(run), time.monotonic()
    time.sleep(0.5)
    return (begun(run) - before) / (time.monotonic() - at)

with Control(sys.argv[2]) as run:
    slow = rate(run)
    assert 50 < slow < 200, slow
    assert run.multiplier(100)['multiplier'] == 100
    time.sleep(0.1)
    fast = rate(run)
    assert 500 < fast < 1500, fast
    assert run.pause()['paused'] is True
    time.sleep(0.1)
    assert rate(run) == 0
    assert run.resume()['paused'] is False
    time.sleep(0.1)
    assert rate(run) > 500
    try:
        run.multiplier(-1)
        sys.exit('a multiplier of -1 was taken')
    except ControlError as error:
        assert 'expected a number above 0' in str(error), error
    counters = run.counters()
    client = counters['counters']['client']['counters']
    assert client['tcps_connects'] > 500 and client['tcps_drops'] == 0, client
    assert counters['groups']['others']['server']['counters']['tcps_accepts'] > 500
    run.end()
";

#[test]
fn a_run_obeys_the_python_client() {
    let folder = folder("orders");
    let control = folder.path("control");
    let run = astf(&profile("http_by_program.py"), &["-m", "10", "--control", &control, "--json"]).spawn();
    let run = run.expect("start a run");
    eventually("it takes orders", || Path::new(&control).exists());
    let orders = Command::new("python3").args(["-c", ORDERS]).arg(python()).arg(&control).output();
    let orders = orders.expect("start python3");
    if !orders.status.success() {
        drop(Killed(run));
        panic!("{}", String::from_utf8_lossy(&orders.stderr));
    }
    let report = json(&run.wait_with_output().expect("wait for the run"));
    assert_eq!(report["multiplier"], 100.0);
}

#[test]
fn a_wrong_profile_is_two_and_nothing_is_touched() {
    let folder = folder("wrong");
    let link = folder.path("link");
    let good = fs::read_to_string(profile("http_by_program.py")).expect("read a profile");
    for (name, text, said) in [
        ("python.py", good.replace("def register", "def regist("), "python.py:"),
        ("api.py", good.replace("ASTFProgram()", "ASTFProgram(side=7)"), "api.py:"),
        ("capture.py", fs::read_to_string(profile("http_simple.py")).expect("read a profile"), "capture.py:"),
    ] {
        fs::write(folder.path(name), text).expect("write a profile");
        for words in [
            &["--side", "server", "--link", &format!("memif:{link}")][..],
            // No such device: it is not even looked for.
            &["--side", "client", "--link", "tap:nowhere"],
            &["-d", "1s", "--json"],
        ] {
            let output = astf(&folder.path(name), words).output().expect("start a run");
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{name}: {message}");
            assert_eq!((output.stdout.len(), message.lines().count()), (0, 1), "{name}: {message}");
            let place = message.split(said).nth(1).unwrap_or_else(|| panic!("{name}: {message}"));
            let line: String = place.chars().take_while(char::is_ascii_digit).collect();
            assert!(line.parse::<u32>().is_ok_and(|line| line > 0), "{name}: {message}");
            assert!(!Path::new(&link).exists(), "{name}: it listens");
        }
    }
}

#[test]
fn a_profile_runs_as_whoever_called_sudo() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can be somebody else");
        return;
    }
    let folder = folder("sudo");
    // Where nobody may read.
    let copied =
        Command::new("cp").arg("-r").arg(python().join("overfly")).arg(folder.path("overfly")).status();
    assert!(copied.expect("start cp").success());
    let good = fs::read_to_string(profile("http_by_program.py")).expect("read a profile");
    let text = format!(
        "import os, sys\nprint('as', os.getresuid(), os.getresgid(), os.getgroups(), file=sys.stderr)\n\
         try:\n    os.setuid(0)\n    print('root again', file=sys.stderr)\nexcept OSError:\n    pass\n{good}"
    );
    fs::write(folder.path("p.py"), text).expect("write a profile");
    let opened = Command::new("chmod").args(["-R", "a+rX", &folder.path("")]).status();
    assert!(opened.expect("start chmod").success());
    let run = |who: &[(&str, &str)]| {
        let mut command =
            astf(&folder.path("p.py"), &["-d", "100ms", "--json", "--python", &folder.path("")]);
        command.env_remove("SUDO_UID").env_remove("SUDO_GID").envs(who.iter().copied());
        let output = command.output().expect("start a run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(json(&output)["totals"]["client"]["counters"]["tcps_drops"], 0);
        said
    };
    let said = run(&[("SUDO_UID", "65534"), ("SUDO_GID", "65533")]);
    assert!(said.contains("as (65534, 65534, 65534) (65533, 65533, 65533) []"), "{said}");
    assert!(!said.contains("root again"), "{said}");
    assert!(run(&[]).contains("as (0, 0, 0)"), "root's own are root's");
}

#[test]
fn the_package_installs_without_a_network() {
    let folder = folder("pip");
    let run = |command: &mut Command| {
        let output = command.output().expect("start a command");
        let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
        assert!(output.status.success(), "{command:?}: {}{}", said[0], said[1]);
        said[0].clone()
    };
    run(Command::new("python3").args(["-m", "venv", &folder.path("venv")]));
    // pip writes beside what it builds.
    run(Command::new("cp").arg("-r").arg(python()).arg(folder.path("source")));
    let inside = folder.path("venv/bin/python");
    let words = ["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"];
    run(Command::new(&inside).args(words).arg(folder.path("source")));
    let checked = Command::new(&inside)
        .args(["-I", "-m", "overfly.astf", "check", &profile("udp.py")])
        .current_dir("/")
        .output()
        .expect("start python");
    assert_eq!(String::from_utf8_lossy(&checked.stdout).matches("nothing wrong").count(), 1, "{checked:?}");
    let script = "import overfly, overfly.astf.control as control; print(overfly.__file__, control.Control)";
    assert!(run(Command::new(&inside).args(["-I", "-c", script])).contains("venv/lib"));
}

/// Neither side's kernel knows more of the other's addresses than that of the first request for a hardware address.
#[test]
fn over_xdp_with_clients_that_nobody_has_seen() {
    let lab = Lab::new(overfly()).expect("a lab");
    for host in 0..32 {
        succeed(&lab, "client", &["ip", "address", "add", &format!("10.77.9.{host}/16"), "dev", "eth0"]);
    }
    let text = fs::read_to_string(profile("http_by_program.py")).expect("read a profile");
    let text = text.replace("\"16.0.0.0\", \"16.0.0.255\"", "\"10.77.9.0\", \"10.77.9.31\"");
    let text = text.replace("\"48.0.0.0\", \"48.0.255.255\"", "\"10.77.0.1\", \"10.77.0.1\"");
    let text = text.replace("cps=10)", "cps=10, limit=640)");
    let name = format!("{}/p.py", overfly_tests::ROOT);
    for side in ["server", "client"] {
        lab.write(side, &name, text.as_bytes()).expect("write a profile");
    }
    let start = |side: &str, words: &[&str]| {
        let mut command = lab.command(side, overfly());
        command.args(["load", "astf", &name, "--side", side, "--link", "xdp", "--json"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start a side")
    };
    let server = start("server", &[]);
    eventually("the server side is attached", || overfly_tests::is_steered(&lab));
    let client = json(
        &start("client", &["-m", "50", "--probe", "50"])
            .wait_with_output()
            .expect("wait for the client side"),
    );
    std::thread::sleep(std::time::Duration::from_millis(300));
    send(server.id(), Signal::INT);
    let server = json(&server.wait_with_output().expect("wait for the server side"));
    check(&client, &server, 640, 57, 42 + 32_768);
    let probe = &client["probes"][0];
    let received = probe["received"].as_u64();
    assert!(received > Some(10) && probe["lost"] == 0, "the kernel answers, and hears the answers: {probe}");
    assert!(probe["avg_us"].as_f64() > Some(0.0), "{probe}");
}
