//! `overfly broker --agent`: a node with containers, whose programs have no capability, and what they might try. Needs root, nginx, python3
//! and util-linux.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use overfly_broker::agent::{Found, Seek};
use overfly_testing::process::status;
use overfly_tests::containers::Container;
use overfly_tests::pods::{MOUNTED, Node, Pod};
use overfly_tests::{eventually, output, overfly, send};
use rustix::process::Signal;
use zerocopy::IntoBytes;

/// Nobody of this machine's.
const USER: u32 = 48_133;
const OTHER: u32 = 48_134;
const STRANGER: u32 = 48_135;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn two_users() -> String {
    format!("[[rule]]\nusers = [{USER}, {OTHER}]\ninterfaces = ['eth0']\nstacks = 2\n")
}

#[test]
fn pods_are_served_from_outside_and_leave_nothing() {
    let node = Node::new();
    let (one, two) = (node.pod(11, MOUNTED), node.pod(12, "/run/overfly"));
    // One is named by its control group, the other by its user.
    let policy = format!(
        "[[rule]]\ncgroups = ['{}']\ninterfaces = ['eth0']\nstacks = 2\n[[rule]]\nusers = [{OTHER}]\nstacks = 2\n",
        one.group()
    );
    let mut agent = node.agent(&policy);
    let first = one.nginx(USER, 8011, "one");
    let second = two.nginx(OTHER, 8012, "two");
    node.is_accelerated(&one, 8011, "one");
    node.is_accelerated(&two, 8012, "two");
    assert!(one.is_steered() && two.is_steered());
    assert_eq!((one.brokers().len(), two.brokers().len()), (1, 1), "one broker each");
    assert!(agent.log().contains("serves nginx"), "{}", agent.log());
    for (pod, other) in [(&one, 8012), (&two, 8011)] {
        assert_eq!(node.fetched(pod, other), "", "nobody has another pod's listener");
    }

    // A second user of a pod is the kernel's while the first one has stacks, as on an interface of the host's.
    let beside = one.nginx_with(OTHER, 8013, "beside", "1");
    eventually("it answers", || node.fetched(&one, 8013) == "beside");
    beside.stop();

    // The agent dies: those who are served do not notice. Another one finds their brokers.
    agent.child.kill().expect("kill");
    let _ = agent.child.wait();
    assert_eq!((node.fetched(&one, 8011).as_str(), node.fetched(&two, 8012).as_str()), ("one", "two"));
    drop(agent);
    let mut agent = node.agent(&policy);
    for (pod, user) in [(&one, USER), (&two, OTHER)] {
        let joined = pod.run(user, &[], &["true"]);
        assert!(joined.status.success() && said(&joined).is_empty(), "{}", said(&joined));
        assert_eq!(pod.brokers().len(), 1, "the same broker");
    }

    // A pod is evicted in the middle of traffic: the other one goes on, connection by connection and kept open.
    let (mut evicted, stays) = (node.load(&one, 8011, "3s"), node.load(&two, 8012, "3s"));
    let host = one.host.clone();
    let brokers = one.brokers();
    let before = two.accepts();
    std::thread::sleep(Duration::from_millis(1000));
    drop(one);
    eventually("its broker ends", || brokers.iter().all(|id| !Path::new(&format!("/proc/{id}")).exists()));
    let link_is_there =
        || output(&node.lab, "server", &["ip", "link", "show", "dev", &host]).status.success();
    eventually("its network namespace goes, and the veth pair", || !link_is_there());
    drop(first);
    let report = stays.wait_with_output().expect("wait");
    let _ = evicted.kill();
    let _ = evicted.wait();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("a report");
    assert_eq!(report["failed_total"].as_u64(), Some(0), "{report}");
    assert!(report["succeeded"].as_u64().is_some_and(|count| count > 100), "{report}");
    assert!(two.accepts() > before);

    // The agent stops: its socket goes, and the broker that serves goes on until its program ends.
    send(agent.child.id(), Signal::TERM);
    eventually("the agent ends", || agent.child.try_wait().expect("wait").is_some());
    assert!(!node.socket().exists() && node.fetched(&two, 8012) == "two", "{}", agent.log());
    second.stop();
    eventually("the broker ends", || two.brokers().is_empty());
    assert!(!two.is_steered());
}

#[test]
fn who_is_not_to_be_served_is_told_and_runs_on_the_kernel() {
    let node = Node::new();
    let agent = node.agent(&format!("[[rule]]\nusers = [{USER}, 0]\nstacks = 2\n"));
    let pod = node.pod(11, MOUNTED);

    let stranger = pod.run(STRANGER, &[], &["true"]);
    assert!(
        said(&stranger).contains(&format!("gives user {STRANGER} nothing on eth0")),
        "{}",
        said(&stranger)
    );
    assert!(stranger.status.success() && pod.brokers().is_empty());
    assert!(agent.log().contains(&format!("user {STRANGER}): the broker's policy")), "{}", agent.log());

    // A device that was made within the pod, both ends of it, and one upon its own.
    pod.done_by_root("ip link add eth1 type veth peer name eth2");
    pod.done_by_root("ip address add 10.78.0.1/24 dev eth1");
    pod.done_by_root("ip link add mac0 link eth0 type macvlan mode bridge");
    for interface in ["eth1", "mac0", "lo", "nothing"] {
        let refused = said(&pod.run(USER, &["-i", interface], &["true"]));
        let expected = if interface == "nothing" { "no interface" } else { "no end of a veth pair" };
        assert!(refused.contains(expected), "{interface}: {refused}");
    }
    eventually("no broker is left", || pod.brokers().is_empty());

    // A namespace of the user's own, in a user namespace of its own, with a device that it likes.
    let script = format!(
        "ip link add eth0 type veth peer name eth1 && ip address add 10.79.0.1/24 dev eth0 && ip link set eth0 up && \
         exec {} run -i eth0 -- true",
        overfly().display()
    );
    let own = pod
        .command(USER)
        .args(["unshare", "--user", "--map-root-user", "--net", "bash", "-c", &script])
        .output();
    let refused = said(&own.expect("start unshare"));
    assert!(refused.contains("belongs to a user namespace"), "{refused}");

    // The node's own network, where the socket can be reached, too.
    let mut on_node = node.lab.command("server", "setpriv");
    on_node.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    on_node.arg(overfly()).args(["run", "-i", "br0", "--", "true"]).env("OVERFLY_AGENT", node.socket());
    let refused = said(&on_node.output().expect("start"));
    assert!(refused.contains("on the host's network"), "{refused}");

    // Nobody is there, or nobody is to be asked.
    let run = |setting: &str| {
        let mut command = pod.command(USER);
        command.arg(format!("OVERFLY_AGENT={setting}")).arg(overfly()).args(["run", "--", "true"]);
        said(&command.output().expect("start"))
    };
    let nobody = run("/dev/shm/nobody.sock");
    assert!(nobody.contains("no agent answers at /dev/shm/nobody.sock"), "{nobody}");
    let none = run("");
    assert!(none.contains("nobody serves eth0"), "{none}");

    // Root of a pod is served as the policy says, and has no more than that.
    let root = pod.run(0, &[], &["true"]);
    assert!(said(&root).is_empty() && root.status.success(), "{}", said(&root));
}

/// Python that has the agent's socket, and a question for it.
fn script(node: &str, text: &str) -> String {
    let question = Seek::new("eth0").expect("a name");
    let hex: String = question.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "import os, socket, sys, time\n\
         def agent():\n    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n    s.connect('{node}/agent.sock')\n    return s\n\
         question = bytes.fromhex('{hex}')\n{text}"
    )
}

#[test]
fn a_connection_that_is_passed_on_is_of_no_use_elsewhere() {
    let node = Node::new();
    let _agent = node.agent(&two_users());
    let (one, two) = (node.pod(11, MOUNTED), node.pod(12, MOUNTED));
    let between = node.folder.path().join("between");
    std::fs::create_dir(&between).expect("a folder");
    std::fs::set_permissions(&between, PermissionsExt::from_mode(0o777)).expect("chmod");

    // Who is in pod two speaks over a connection of pod one's.
    let speaks = script(
        MOUNTED,
        &format!(
            "os.umask(0)\nsocket.setdefaulttimeout(20)\nl = socket.socket(socket.AF_UNIX)\nl.bind('{MOUNTED}/between/s')\nl.listen()\nc, _ = l.accept()\n\
             _, (fd,), _, _ = socket.recv_fds(c, 1, 1)\ns = socket.socket(fileno=fd)\ns.send(question)\n\
             answer = s.recv(4096)\nprint(answer.hex(), flush=True)\n\
             name = answer[2:].split(b'\\0')[0]\nt = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
             try:\n    t.connect(b'\\0' + name)\n    print('connected')\n\
             except ConnectionRefusedError:\n    print('refused')\n"
        ),
    );
    let passes = script(
        MOUNTED,
        &format!(
            "c = socket.socket(socket.AF_UNIX)\nwhile True:\n    try:\n        c.connect('{MOUNTED}/between/s')\n        break\n\
             \x20   except OSError:\n        time.sleep(0.02)\ns = agent()\nsocket.send_fds(c, [b'x'], [s.fileno()])\ntime.sleep(60)\n"
        ),
    );
    let mut passer = one.command(USER).args(["python3", "-c", &passes]).spawn().expect("start");
    let spoken = two.command(OTHER).args(["python3", "-c", &speaks]).output().expect("start");
    let lines = String::from_utf8_lossy(&spoken.stdout).into_owned();
    let (answer, outcome) = lines.split_once('\n').unwrap_or_else(|| panic!("{lines}{}", said(&spoken)));
    let answer: Vec<u8> = (0..answer.len() / 2)
        .map(|at| u8::from_str_radix(&answer[2 * at..2 * at + 2], 16).expect("a digit"))
        .collect();
    assert!(Found::parse(&answer).expect("an answer").is_some(), "the broker of pod one has a name");
    assert_eq!(outcome, "refused\n", "which nobody has in pod two");
    assert!(two.brokers().is_empty());
    eventually("the broker that nobody joins ends", || one.brokers().is_empty());
    let _ = passer.kill();
    let _ = passer.wait();
}

#[test]
fn silence_of_one_pod_keeps_no_other_one_out() {
    let node = Node::new();
    let agent = node.agent(&two_users());
    let (one, two) = (node.pod(11, MOUNTED), node.pod(12, MOUNTED));
    let silence = script(
        MOUNTED,
        "held = [agent() for _ in range(400)]\nprint('silent', flush=True)\n\
         end = time.time() + 20\nwhile time.time() < end:\n    held = held[1:] + [agent()]\n    held[-1].send(b'x' * 2000)\n",
    );
    let mut silent =
        one.command(USER).args(["python3", "-c", &silence]).stdout(Stdio::piped()).spawn().expect("start");
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(silent.stdout.as_mut().expect("a pipe")),
        &mut line,
    )
    .expect("a line");
    assert_eq!(line, "silent\n");
    let begun = Instant::now();
    let served = two.run(OTHER, &[], &["true"]);
    assert!(served.status.success() && said(&served).is_empty(), "{}{}", said(&served), agent.log());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let open = overfly_testing::process::descriptors(agent.child.id());
    assert!(open < 100, "{open} descriptors of the agent's");
    let _ = silent.kill();
    let _ = silent.wait();
}

/// A connection from outside that stays open; it says so when it hears of the other side's end.
fn kept_open(node: &Node, pod: &Pod, port: u16) -> Child {
    let script = format!(
        "exec 3<>/dev/tcp/{}/{port}; printf 'GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; cat <&3; echo; echo over",
        pod.address
    );
    let mut shell = node.lab.command("client", "bash");
    shell.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().expect("start a client")
}

#[test]
fn a_runtimes_containers_are_served_end_when_told_and_begin_again() {
    let node = Node::new();
    let (pod, other) = (node.pod(11, MOUNTED), node.pod(12, MOUNTED));
    let policy = format!(
        "[[rule]]\ncgroups = ['{}', '{}']\ninterfaces = ['eth0']\nstacks = 2\n",
        pod.group(),
        other.group()
    );
    let agent = node.agent(&policy);
    let mut web = Container::nginx(&pod, "web", USER, 8011, "web").start(&pod);
    node.is_accelerated(&pod, 8011, "web");
    assert_eq!(status(web.process, "NSpid").split_whitespace().last(), Some("1"), "{}", web.log());
    for set in ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"] {
        assert_eq!(status(web.process, set), "0000000000000000", "{set}");
    }
    assert_eq!((status(web.process, "NoNewPrivs"), status(web.process, "Seccomp")), ("1".into(), "2".into()));

    // The same pod's second container, as another user: the kernel's as long as the first one has stacks.
    let kernel = Container {
        environment: vec!["EF_NO_FAIL=1".to_owned()],
        ..Container::nginx(&pod, "beside", OTHER, 8013, "beside")
    };
    let mut beside = kernel.start(&pod);
    eventually("it answers", || node.fetched(&pod, 8013) == "beside");
    assert!(beside.log().contains("continues on the kernel's stack"), "{}", beside.log());

    // Told to end, as a runtime does it, with a connection that waits for more.
    let client = kept_open(&node, &pod, 8011);
    eventually("the connection is there", || pod.accepts() >= 2);
    let ended = web.end(Signal::TERM);
    assert!(ended.success(), "{ended}: {}", web.log());
    let heard = client.wait_with_output().expect("wait");
    assert!(String::from_utf8_lossy(&heard.stdout).ends_with("web\nover\n"), "{heard:?}");
    assert_eq!(node.fetched(&pod, 8013), "beside", "the other container goes on");
    assert!(beside.end(Signal::TERM).success(), "{}", beside.log());
    eventually("the broker ends", || pod.brokers().is_empty());
    assert!(!pod.is_steered());

    // Now the second user is alone; killed, and begun again, as the kubelet does with what has crashed.
    let again = Container::nginx(&pod, "again", OTHER, 8013, "again");
    let mut crashed = again.start(&pod);
    node.is_accelerated(&pod, 8013, "again");
    assert!(!crashed.end(Signal::KILL).success());
    eventually("the broker ends", || pod.brokers().is_empty());
    let mut again = again.start(&pod);
    node.is_accelerated(&pod, 8013, "again");

    // Evicted in mid-traffic: its containers are told to end, then the pod goes. Who has connections hears of it, and another pod's go on.
    let _stays = Container::nginx(&other, "stays", USER, 8012, "stays").start(&other);
    node.is_accelerated(&other, 8012, "stays");
    let (mut of_evicted, of_other) = (node.load(&pod, 8013, "2s"), node.load(&other, 8012, "3s"));
    let client = kept_open(&node, &pod, 8013);
    let before = pod.accepts();
    eventually("both have traffic", || pod.accepts() > before && other.accepts() > 8);
    std::thread::sleep(Duration::from_millis(500));
    assert!(again.end(Signal::TERM).success(), "{}", again.log());
    let heard = client.wait_with_output().expect("wait");
    assert!(String::from_utf8_lossy(&heard.stdout).ends_with("again\nover\n"), "{heard:?}");
    eventually("the broker ends", || pod.brokers().is_empty());
    drop(pod);
    let report = of_other.wait_with_output().expect("wait");
    let _ = of_evicted.wait();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("a report");
    assert_eq!(report["failed_total"].as_u64(), Some(0), "{report}");
    assert!(report["succeeded"].as_u64().is_some_and(|count| count > 100), "{report}");
    drop(agent);
}
