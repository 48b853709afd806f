//! `overfly broker`: it stands before programs come, serves users without privilege as its policy says, and ends with the last.

use std::io::Read;
use std::process::{Command, Stdio};

use overfly_bench::lab::Lab;
use overfly_tests::service::{Broker, OTHER, USER, accepts, as_user, capabilities};
use overfly_tests::{Server, eventually, is_steered, output, overfly, send, succeed};
use rustix::process::Signal;

/// A web server of a user's, under `overfly run`.
fn web(lab: &Lab, user: &str, port: &str) -> Server {
    let mut command = as_user(lab, "server", user);
    command.arg(overfly()).args(["run", "--", "/usr/bin/python3", "-m", "http.server", port]);
    command.current_dir("/usr/share/doc").stdout(Stdio::null());
    Server::spawn(command)
}

fn answers(lab: &Lab, port: &str) -> bool {
    let url = format!("http://10.77.0.1:{port}/");
    output(lab, "client", &["curl", "-sf", "-o", "/dev/null", "--max-time", "5", &url]).status.success()
}

#[test]
fn a_user_without_privilege_is_served_as_the_policy_says() {
    let lab = Lab::new(overfly()).expect("a lab");
    let policy = format!("[[rule]]\nusers = [{USER}]\ninterfaces = ['eth0']\nstacks = 1\n");
    let mut broker = Broker::start(&lab, &policy, &capabilities(), &["--metrics", "127.0.0.1:9477"]);
    assert!(is_steered(&lab));

    let server = web(&lab, USER, "8001");
    eventually("it answers", || answers(&lab, "8001"));
    // A peer that the neighbour table lacks yet is the kernel's.
    eventually("connections are counted", || answers(&lab, "8001") && accepts(&lab) >= 1);
    eventually("the log says so", || {
        broker.log().contains("eth0 serves python3 (process ")
            && broker.log().contains(&format!("user {USER})"))
    });

    // One more process of the rule's finds no place.
    let refused = as_user(&lab, "server", USER)
        .arg(overfly())
        .args(["run", "--", "curl", "-s", "http://10.77.0.2:1/"])
        .stdin(Stdio::null())
        .output()
        .expect("start overfly");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the 1 stacks that the broker's policy gives them"), "{said}");
    assert_eq!(refused.status.code(), Some(7), "curl itself ran, on the kernel: {said}");

    // Who is not in the policy is told, and runs on the kernel's stack.
    let stranger = as_user(&lab, "server", OTHER)
        .arg(overfly())
        .args(["run", "--", "true"])
        .stdin(Stdio::null())
        .output()
        .expect("start overfly");
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(said.contains(&format!("gives user {OTHER} nothing on eth0")), "{said}");
    assert!(stranger.status.success(), "{said}");
    assert!(broker.log().contains(&format!("user {OTHER}): the broker's policy")), "{}", broker.log());

    // A file that cannot be read admits nobody new.
    broker.policy("[[rule]]\n");
    let unread =
        as_user(&lab, "server", USER).arg(overfly()).args(["run", "--", "true"]).output().expect("start");
    let said = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert!(said.contains("policy cannot be read"), "{said}");
    broker.policy(&policy);

    let page = succeed(&lab, "server", &["curl", "-s", "http://127.0.0.1:9477/metrics"]);
    let who = "{interface=\"eth0\",program=\"python3\"}";
    let value = |name: &str| -> u64 {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("overfly_{name}{who} ")));
        line.unwrap_or_else(|| panic!("{name} is not in\n{page}")).parse().expect("a number")
    };
    assert!(value("accepts_total") >= 1 && value("processes") == 1);
    // Every family of a stack's has a series: its name is one that stacks have.
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE overfly_")) {
        let name = line.split(' ').next().expect("a name");
        let begins = format!("overfly_{name}");
        let by_reason = ["kernel_sockets_total", "dropped_total", "counter_total"].contains(&name);
        let series = page.lines().any(|line| line.starts_with(&begins));
        assert!(series || by_reason, "{name} has no series:\n{page}");
    }

    // Told to stop, it ends, and who was there goes on.
    send(broker.id(), Signal::TERM);
    eventually("it says that it stops", || broker.hears("STOPPING=1"));
    eventually("the broker ends", || broker.ended().is_some());
    assert!(broker.ended().is_some_and(|status| status.success()), "{}", broker.log());
    assert!(!is_steered(&lab) && answers(&lab, "8001"));
    server.stop();
}

#[test]
fn without_a_broker_a_user_is_told_what_is_missing() {
    let lab = Lab::new(overfly()).expect("a lab");
    let alone =
        as_user(&lab, "server", USER).arg(overfly()).args(["run", "--", "true"]).output().expect("start");
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(said.contains("nobody serves eth0") && said.contains("needs root"), "{said}");
    assert!(alone.status.success());
}

#[test]
fn a_service_with_nobody_to_serve_ends_at_once_and_a_second_one_says_why_it_does_not_begin() {
    let lab = Lab::new(overfly()).expect("a lab");
    let mut broker = Broker::start(&lab, "", &capabilities(), &[]);
    let mut second = Broker::begin(&lab, "", &capabilities(), &[]);
    eventually("the second one ends", || second.ended().is_some());
    assert!(second.log().contains("eth0 has a broker already"), "{}", second.log());
    send(broker.id(), Signal::TERM);
    eventually("it ends", || broker.ended().is_some());
    assert!(broker.ended().is_some_and(|status| status.success()), "{}", broker.log());
    assert!(!is_steered(&lab));
}

/// The broker that an `overfly run` of root's began is one, too: who starts the service meanwhile learns whom to end, and the program goes on.
#[test]
fn a_service_beside_a_program_that_began_a_broker_says_why_it_does_not_begin() {
    let lab = Lab::new(overfly()).expect("a lab");
    let mut command = lab.command("server", overfly());
    command.args(["run", "--", "/usr/bin/python3", "-m", "http.server", "8001"]);
    command.current_dir("/usr/share/doc").stdout(Stdio::null());
    let server = Server::spawn(command);
    eventually("it answers at user level", || answers(&lab, "8001") && accepts(&lab) >= 1);
    let mut service = Broker::begin(&lab, "", &capabilities(), &[]);
    eventually("the service ends", || service.ended().is_some());
    assert_eq!(service.ended().and_then(|status| status.code()), Some(1));
    let said = service.log();
    assert!(
        said.contains("eth0 has a broker already") && said.contains("`overfly run` that began it"),
        "{said}"
    );
    let before = accepts(&lab);
    eventually("the program is accelerated as before", || answers(&lab, "8001") && accepts(&lab) > before);
    drop(server);
}

/// Whoever takes an interface hears that there is no such, and where the names are.
#[test]
fn an_interface_that_is_not_there_is_named() {
    let lab = Lab::new(overfly()).expect("a lab");
    let binary = overfly();
    let binary = binary.to_str().expect("a path in UTF-8");
    let says = |arguments: &[&str], status: i32| {
        let line: Vec<&str> = std::iter::once(binary).chain(arguments.iter().copied()).collect();
        let output = output(&lab, "server", &line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains("eth7") && said.contains("`ip link`"), "{arguments:?}: {said}");
    };
    says(&["broker", "--interface", "eth7"], 1);
    says(&["run", "--interface", "eth7", "--", "true"], 0);
    says(&["load", "http", "--link", "xdp", "--interface", "eth7", "-n", "1", "http://10.77.0.2/"], 2);
    says(&["load", "serve", "--link", "xdp", "--interface", "eth7", "--address", "10.77.0.1", "-d", "1s"], 2);
    assert!(!is_steered(&lab));
}

/// Any local user can take the broker's name while there is none. Whoever reads the log knows whom to end, and the unit begins again then.
#[test]
fn who_keeps_the_broker_from_its_name_is_named() {
    let lab = Lab::new(overfly()).expect("a lab");
    for (then, pattern) in [
        (
            "s.listen()",
            "process PID (\"python3\") of user 48123 has the name @overfly/eth0, at which programs look for the broker: `kill PID`",
        ),
        // As good as not there, and nobody else can have the name.
        ("pass", "`ss -xap | grep @overfly/eth0`, as root, says which"),
    ] {
        let script = format!(
            "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
             s.bind('\\0overfly/eth0')\n{then}\nprint('taken', flush=True)\nsys.stdin.read()"
        );
        let mut stranger = as_user(&lab, "server", USER);
        stranger.args(["/usr/bin/python3", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut stranger = stranger.spawn().expect("a stranger");
        let mut said = [0; 6];
        stranger.stdout.as_mut().expect("a pipe").read_exact(&mut said).expect("a line");

        let mut broker = Broker::begin(&lab, "", &capabilities(), &[]);
        eventually("it ends", || broker.ended().is_some());
        let wanted = pattern.replace("PID", &stranger.id().to_string());
        assert!(broker.log().contains(&wanted), "{}", broker.log());
        assert!(!is_steered(&lab));
        // What it says to type does name it.
        let holders = output(&lab, "server", &["ss", "-xap"]);
        let holders = String::from_utf8_lossy(&holders.stdout).into_owned();
        let holder = holders.lines().find(|line| line.contains("@overfly/eth0")).unwrap_or_default();
        assert!(holder.contains(&format!("pid={},", stranger.id())), "{holders}");

        drop(stranger.stdin.take());
        stranger.wait().expect("wait");
        let broker = Broker::start(&lab, "", &capabilities(), &[]);
        send(broker.id(), Signal::TERM);
    }
}

/// Root without capabilities, as in a container, needs a rule like everybody.
#[test]
fn roots_number_alone_is_no_privilege() {
    let lab = Lab::new(overfly()).expect("a lab");
    let _broker = Broker::start(&lab, "", &capabilities(), &[]);
    let run = |bounds: &str| {
        let mut command = lab.command("server", "setpriv");
        command
            .args(["--inh-caps=-all", "--bounding-set", bounds])
            .arg(overfly())
            .args(["run", "--", "true"]);
        String::from_utf8_lossy(&command.output().expect("start").stderr).into_owned()
    };
    let said = run("-all");
    assert!(said.contains("gives user 0 nothing on eth0"), "{said}");
    assert_eq!(run("+all"), "");
}

/// A broker with these capabilities serves a program, and root's, too.
fn serves_with(lab: &Lab, capabilities: &[&str]) -> Result<(), String> {
    let policy = format!("[[rule]]\nusers = [{USER}]\nstacks = 4\n");
    let mut broker = Broker::begin(lab, &policy, capabilities, &[]);
    let mut ready = false;
    eventually("it is ready, or has ended", || {
        ready = ready || broker.hears("READY=1");
        ready || broker.ended().is_some()
    });
    if !ready {
        return Err(broker.log());
    }
    let server = web(lab, USER, "8002");
    eventually("it answers", || answers(lab, "8002"));
    // A peer that the neighbour table lacks yet is the kernel's, and a process shows its counters a little later.
    let mut served = 0;
    for _ in 0..100 {
        assert!(answers(lab, "8002"));
        served = accepts(lab);
        if served > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.stop();
    let mut root = lab.command("server", overfly());
    let root = root.args(["run", "--", "true"]).output().expect("start");
    let said = String::from_utf8_lossy(&root.stderr).into_owned();
    if served == 0 || !said.is_empty() || broker.log().contains("Operation not permitted") {
        return Err(format!("{served} accepts; {said}; {}", broker.log()));
    }
    Ok(())
}

#[test]
fn the_unit_has_the_capabilities_that_it_needs_and_no_others() {
    let lab = Lab::new(overfly()).expect("a lab");
    let all = capabilities();
    serves_with(&lab, &all).expect("with what the unit has");
    for without in &all {
        let rest: Vec<&str> = all.iter().copied().filter(|name| name != without).collect();
        let outcome = serves_with(&lab, &rest);
        println!("without {without}: {outcome:?}");
        assert!(outcome.is_err(), "CAP_{without} is in the unit, and nothing needs it");
    }
}

#[test]
fn lines_have_levels_where_the_journal_reads_them() {
    use std::os::linux::fs::MetadataExt;
    let mut pipe = tempfile::tempfile().expect("a file");
    let its = pipe.metadata().expect("metadata");
    let mut command = Command::new(overfly());
    command.args(["broker", "--check", "--policy", "/nowhere"]).stderr(pipe.try_clone().expect("dup"));
    command.env("JOURNAL_STREAM", format!("{}:{}", its.st_dev(), its.st_ino()));
    assert_eq!(command.status().expect("start").code(), Some(2));
    let mut said = String::new();
    std::io::Seek::rewind(&mut pipe).expect("rewind");
    pipe.read_to_string(&mut said).expect("read");
    assert!(said.starts_with("<4>/nowhere: "), "{said}");
}
