//! Profiles of the Python tests, and forms written here, run with both sides on a virtual clock: what must be in the counters, to
//! the byte. No network, no threads.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::compile::{Compiled, Source, compile};
use super::counter::{Counter, Tally};
use super::plan::{Plan, Role};
use super::report::sum;
use super::rig::{Pair, Rig, Snapshot};
use super::run::pair;
use super::settings::Settings;
use super::tunnel::{Tunnelled, Tunnels};
use super::wire::End;

mod hostile;
mod marks;
mod paths;

/// Virtual time that a turn takes.
const TURN_NS: u64 = 20_000;

type Wired = Tunnelled<End>;

pub(super) struct Case {
    pub(super) plan: Arc<Plan>,
    pub(super) pair: Pair<Wired>,
    now_ns: Cell<u64>,
    pub(super) settings: Settings,
}

fn profiles() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/profiles")
}

pub(super) fn plan_of(profiles: &[PathBuf], tunables: Option<&str>) -> Arc<Plan> {
    let source =
        Source { profiles: profiles.to_vec(), tunables: tunables.map(str::to_string), ..Source::default() };
    match compile(&source).unwrap() {
        Compiled::Form(form) => Arc::new(Plan::new(&form).unwrap()),
        _ => panic!("{profiles:?} is not compiled"),
    }
}

impl Case {
    pub(super) fn of(name: &str, tunables: Option<&str>, multiplier: f64, seconds: u64) -> Case {
        Case::new(plan_of(&[profiles().join(name)], tunables), multiplier, seconds)
    }

    pub(super) fn new(plan: Arc<Plan>, multiplier: f64, seconds: u64) -> Case {
        Case::with(
            plan,
            Settings { multiplier, duration: Some(Duration::from_secs(seconds)), ..Settings::default() },
        )
    }

    pub(super) fn with(plan: Arc<Plan>, settings: Settings) -> Case {
        let settings = Settings { flows: 1 << 16, ..settings };
        let wire = |role, end| Tunnelled::new(end, Tunnels::new(&plan.tunnels, role));
        let pair = pair(&settings, &plan, 0, wire).unwrap();
        Case { plan, pair, now_ns: Cell::new(0), settings }
    }

    /// From a profile's text.
    pub(super) fn written(text: &str, multiplier: f64, seconds: u64) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.py");
        std::fs::write(&path, text).unwrap();
        Case::new(plan_of(&[path], None), multiplier, seconds)
    }

    pub(super) fn turn(&mut self) {
        self.now_ns.set(self.now_ns.get() + TURN_NS);
        let now_ns = &self.now_ns;
        self.pair.turn(&|| now_ns.get());
    }

    /// The whole run.
    pub(super) fn run(mut self) -> Case {
        let end_ns = self.settings.duration.unwrap().as_nanos() as u64;
        loop {
            let now_ns = self.now_ns.get();
            self.pair.pace(now_ns.min(end_ns), self.settings.multiplier, false);
            self.pair.begin(now_ns, self.settings.multiplier);
            if now_ns >= end_ns {
                break;
            }
            self.turn();
        }
        self.pair.end();
        self.drain()
    }

    pub(super) fn drain(mut self) -> Case {
        let until_ns = self.now_ns.get() + 60_000_000_000;
        while self.pair.active() > 0 || self.pair.has_work() || !self.pair.has_arrived() {
            assert!(self.now_ns.get() < until_ns, "flows are left after a minute");
            self.turn();
        }
        self
    }

    pub(super) fn tally(&self, role: Role) -> Tally {
        sum(&self.shown().tallies[role as usize])
    }

    pub(super) fn shown(&self) -> Snapshot {
        let mut shown = Snapshot::default();
        self.pair.show(&mut shown);
        shown
    }

    pub(super) fn group(&self, role: Role, name: &str) -> Tally {
        let index = self.plan.groups.iter().position(|group| group == name).unwrap();
        self.shown().tallies[role as usize][index]
    }

    pub(super) fn at(&self, role: Role, counter: Counter) -> u64 {
        self.tally(role).counts.at(counter)
    }

    /// What holds at the end of every clean run.
    pub(super) fn check_clean(&self) {
        let at = |role, counter| self.at(role, counter);
        let (client, server) = (Role::Client, Role::Server);
        assert_eq!(at(client, Counter::tcps_connattempt), at(client, Counter::tcps_closed));
        let accepts = at(server, Counter::tcps_accepts);
        assert_eq!(
            (accepts, accepts),
            (at(server, Counter::tcps_connects), at(server, Counter::tcps_closed))
        );
        assert_eq!(at(client, Counter::tcps_rcvackbyte), at(server, Counter::tcps_rcvbyte));
        assert_eq!(at(server, Counter::tcps_rcvackbyte), at(client, Counter::tcps_rcvbyte));
        assert_eq!(at(client, Counter::udps_sndbyte), at(server, Counter::udps_rcvbyte));
        assert_eq!(at(server, Counter::udps_sndpkt), at(client, Counter::udps_rcvpkt));
        assert_eq!(at(client, Counter::tcps_sndtotal), at(server, Counter::tcps_rcvtotal));
        assert_eq!(at(server, Counter::tcps_sndtotal), at(client, Counter::tcps_rcvtotal));
        for role in [client, server] {
            let tally = self.tally(role);
            assert_eq!((tally.active, tally.established), (0, 0));
            for (counter, count) in tally.counts.iter().filter(|(counter, _)| counter.kind().is_error()) {
                assert_eq!(count, 0, "{} of the {role:?}", counter.name());
            }
        }
    }

    /// Flows, bytes of the client, bytes of the server.
    fn check(&self, flows: u64, up: u64, down: u64) {
        self.check_clean();
        let (client, server) = (Role::Client, Role::Server);
        assert_eq!(self.at(client, Counter::flows_total), flows);
        assert_eq!(self.at(client, Counter::tcps_sndbyte), flows * up);
        assert_eq!(self.at(server, Counter::tcps_sndbyte), flows * down);
        assert_eq!(self.at(client, Counter::tcps_rcvbyte), flows * down);
    }
}

#[test]
fn an_exchange_is_seven_packets_and_its_bytes() {
    let case = Case::of("http_by_program.py", Some("size=100"), 10.0, 1).run();
    case.check(100, 57, 40 + 100);
    // SYN, request, FIN, last ACK; SYN and ACK, response, FIN.
    assert_eq!(case.at(Role::Client, Counter::tcps_sndtotal), 400);
    assert_eq!(case.at(Role::Server, Counter::tcps_sndtotal), 300);
    assert_eq!(case.at(Role::Client, Counter::tcps_sndctrl), 200);
    let latency = &case.pair.client.latencies()[0];
    assert_eq!(
        (latency.connect_ns.len(), latency.first_byte_ns.len(), latency.flow_ns.len()),
        (100, 100, 100)
    );
}

#[test]
fn loops_over_variables_send_as_often_as_they_say() {
    let case = Case::of("keep_alive.py", Some("loop=7,size=3000"), 100.0, 1);
    assert_eq!(case.plan.templates[0].limit, Some(500));
    let case = case.run();
    case.check_clean();
    let flows = case.at(Role::Client, Counter::flows_total);
    // 100 are begun in the second; none of them is replaced before there were 500.
    assert_eq!(flows, 100);
    assert_eq!(case.at(Role::Client, Counter::tcps_sndbyte), flows * 7 * 27);
    assert_eq!(case.at(Role::Server, Counter::tcps_sndbyte), flows * 7 * 3000);

    let case = Case::of("loops.py", None, 20.0, 1).run();
    case.check(20, 1200, 1200);
    assert_eq!(case.at(Role::Client, Counter::user_counter_A), 140);
    let waited_us = case.at(Role::Client, Counter::user_counter_B) / 20;
    assert!((10_000..11_500).contains(&waited_us), "{waited_us}");
}

#[test]
fn delays_last_as_long_as_they_say() {
    let case = Case::of("delays.py", None, 5.0, 1).run();
    case.check(5, 5, 4500);
    let latency = &case.pair.client.latencies()[0];
    let least_us = latency.flow_ns.min() / 1000;
    // 1 to 3 ms, 10 ms, five pieces of which each waits for the acknowledgment of the one before (delayed by 100 ms), 250 ms.
    assert!((661_000..680_000).contains(&least_us), "{least_us}");
}

#[test]
fn datagrams_are_counted_and_flows_end() {
    let case = Case::of("udp.py", None, 2.0, 1).run();
    case.check_clean();
    let at = |role, counter| case.at(role, counter);
    assert_eq!(at(Role::Client, Counter::udps_connects), 200);
    assert_eq!(at(Role::Server, Counter::udps_accepts), 200);
    assert_eq!(at(Role::Client, Counter::udps_closed) + at(Role::Server, Counter::udps_closed), 400);
    assert_eq!(at(Role::Client, Counter::udps_sndbyte), 200 * 50);
    assert_eq!(at(Role::Server, Counter::udps_sndbyte), 200 * 1300);
    assert_eq!(at(Role::Client, Counter::udps_rcvpkt), 400);
}

#[test]
fn groups_are_counted_apart() {
    let case = Case::of("groups.py", None, 3.0, 1).run();
    case.check_clean();
    for (group, flows, bytes) in [("pages", 6, 9000), ("downloads", 3, 150_000), ("others", 3, 3)] {
        let client = case.group(Role::Client, group).counts;
        assert_eq!(
            (client.at(Counter::flows_total), client.at(Counter::tcps_rcvbyte)),
            (flows, bytes),
            "{group}"
        );
        let server = case.group(Role::Server, group).counts;
        assert_eq!(
            (server.at(Counter::tcps_accepts), server.at(Counter::tcps_sndbyte)),
            (flows, bytes),
            "{group}"
        );
        assert_eq!(client.at(Counter::tcps_sndtotal), server.at(Counter::tcps_rcvtotal), "{group}");
    }
}

#[test]
fn weights_are_kept() {
    let case = Case::of("weighted.py", None, 1.0, 2).run();
    case.check_clean();
    assert_eq!(case.at(Role::Client, Counter::flows_total), 140 + 51 + 1);
    assert_eq!(case.at(Role::Client, Counter::tcps_rcvbyte), 140 * 32_000 + 51 * 5000 + 64);
}

#[test]
fn ipv6_and_the_server_that_speaks_first() {
    let case = Case::of("ipv6.py", None, 4.0, 1).run();
    case.check_clean();
    assert_eq!(case.at(Role::Client, Counter::tcps_sndbyte), 4 * 340);
    assert_eq!(case.at(Role::Server, Counter::tcps_sndbyte), 4 * 3041);
    Case::of("server_push.py", None, 8.0, 1).run().check(8, 6, 8020);
}

#[test]
fn flows_that_flows_open_come_from_the_same_client() {
    let case = Case::of("video.py", None, 1.0, 1).run();
    let at = |role, counter| case.at(role, counter);
    assert_eq!(at(Role::Client, Counter::tcps_connattempt), at(Role::Client, Counter::tcps_closed));
    assert_eq!(at(Role::Server, Counter::tcps_accepts), at(Role::Client, Counter::tcps_connects));
    assert!(at(Role::Client, Counter::flows_total) >= 4);
    assert_eq!(case.tally(Role::Client).active, 0);
}

/// The text of a profile with one template: what each side does, and more.
fn template(client: &str, server: &str, more: &str) -> String {
    format!(
        "from trex.astf.api import *
class P():
    def get_profile(self, tunables=(), **kwargs):
        c = ASTFProgram(); s = ASTFProgram()
        {client}
        {server}
        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.9']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.1']))
        kw = {{}}; info = ASTFGlobalInfo(); rule = ASTFAssociationRule(port=80)
        {more}
        return ASTFProfile(default_ip_gen=ip, default_c_glob_info=info, default_s_glob_info=info, templates=[ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=c, ip_gen=ip, cps=10, **kw),
            server_template=ASTFTCPServerTemplate(program=s, assoc=rule))])
def register(): return P()
"
    )
}

#[test]
fn a_reset_is_seen_by_the_peer() {
    let text = template(
        "c.send('a' * 100); c.recv(10); c.reset()",
        "s.recv(100); s.send('b' * 10); s.wait_for_peer_close()",
        "",
    );
    let case = Case::written(&text, 1.0, 1).run();
    assert_eq!(case.at(Role::Server, Counter::tcps_drops), 10);
    assert_eq!(case.at(Role::Server, Counter::tcps_closed), 10);
    assert_eq!(case.at(Role::Client, Counter::tcps_closed), 10);
    assert_eq!(case.at(Role::Client, Counter::tcps_drops), 0);
}

#[test]
fn so_many_flows_are_kept_open() {
    let text = template(
        "c.send('a'); c.recv(1); c.delay(300000)",
        "s.recv(1); s.send('b'); s.wait_for_peer_close()",
        "kw = dict(limit=7, cont=True)",
    );
    let mut case = Case::written(&text, 10.0, 3);
    let mut most = 0;
    let end_ns = 3_000_000_000;
    while case.now_ns.get() < end_ns {
        let now_ns = case.now_ns.get();
        case.pair.pace(now_ns, 10.0, false);
        case.pair.begin(now_ns, 10.0);
        case.turn();
        let active = case.tally(Role::Client).active;
        most = most.max(active);
        assert!(now_ns < 100_000_000 || active >= 6, "{active} at {now_ns}");
    }
    assert_eq!(most, 7);
    case.pair.end();
    let case = case.drain();
    case.check_clean();
    // Each lasts 300 ms and a little.
    let flows = case.at(Role::Client, Counter::flows_total);
    assert!((63..=71).contains(&flows), "{flows}");
}

/// Growth between two numbers of flows, as of resident memory between 100 k and 1 M (docs/performance.md): tables double, so both
/// stand right before they would.
#[test]
fn a_flow_and_a_side_cost_300_bytes_at_most() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/seven.py");
    let memory = |flows: u64| {
        let tunables = format!("hold=4000000000,cps=1000000,limit={flows}");
        let settings = Settings { duration: Some(Duration::from_secs(1)), ..Settings::default() };
        let mut case = Case::with(plan_of(std::slice::from_ref(&path), Some(&tunables)), settings);
        while case.tally(Role::Server).established < flows {
            let now_ns = case.now_ns.get();
            assert!(now_ns < 2_000_000_000, "{:?} are there", case.tally(Role::Server).established);
            for _ in 0..50 {
                case.pair.pace(case.now_ns.get(), 1.0, false);
                case.pair.begin(case.now_ns.get(), 1.0);
                case.turn();
            }
        }
        case.shown().memory as u64
    };
    let (few, many) = (12_000, 49_000);
    let each = (memory(many) - memory(few)) / (2 * (many - few));
    println!("{each} bytes");
    assert!((100..=300).contains(&each), "{each} bytes");
}

#[test]
fn a_limit_ends_the_run() {
    let text = template("c.send('a'); c.recv(1)", "s.recv(1); s.send('b')", "kw = dict(limit=25)");
    let mut case = Case::written(&text, 1000.0, 1);
    while !case.pair.is_done() {
        let now_ns = case.now_ns.get();
        assert!(now_ns < 10_000_000_000);
        case.pair.pace(now_ns, 1000.0, false);
        case.pair.begin(now_ns, 1000.0);
        case.turn();
    }
    let case = case.drain();
    case.check(25, 1, 1);
}

#[test]
fn payload_tells_templates_of_one_port_apart() {
    let text = "from trex.astf.api import *
class P():
    def get_profile(self, tunables=(), **kwargs):
        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.9']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.1']))
        templates = []
        for first, size in ((b'A', 11), (b'B', 2200)):
            c = ASTFProgram(); c.send(first + b'x' * 9); c.recv(size)
            s = ASTFProgram(); s.recv(10); s.send('y' * size)
            rule = ASTFAssociationRule(port=80, l7_map=dict(offset=[0]))
            templates.append(ASTFTemplate(
                client_template=ASTFTCPClientTemplate(program=c, ip_gen=ip, cps=10),
                server_template=ASTFTCPServerTemplate(program=s, assoc=rule), tg_name=first.decode()))
        return ASTFProfile(default_ip_gen=ip, templates=templates)
def register(): return P()
";
    let case = Case::written(text, 1.0, 1).run();
    for (group, size) in [("A", 11), ("B", 2200)] {
        let server = case.group(Role::Server, group).counts;
        assert_eq!((server.at(Counter::tcps_accepts), server.at(Counter::tcps_sndbyte)), (10, 10 * size));
        assert_eq!(server.at(Counter::defer_template), 10);
        assert_eq!(case.group(Role::Client, group).counts.at(Counter::tcps_rcvbyte), 10 * size);
    }
}

#[test]
fn a_side_that_does_not_wait_queues_as_much_as_it_may() {
    let text = template(
        "c.send('a'); c.recv(60000)",
        "s.recv(1); s.set_send_blocking(False)\n        for _ in range(20): s.send('b' * 3000)",
        "info.tcp.txbufsize = 8192",
    );
    Case::written(&text, 2.0, 1).run().check(20, 1, 60_000);
}

#[test]
fn tunables_reach_the_wire() {
    let text = template(
        "c.send('a' * 5000); c.recv(5000)",
        "s.recv(5000); s.send('b' * 5000)",
        "info.tcp.mss = 500; info.tcp.do_rfc1323 = 0; info.tcp.initwnd = 1; info.tcp.cc_algo = 1; info.ip.ttl = 9; info.ip.tos = 40",
    );
    let case = Case::written(&text, 1.0, 1).run();
    case.check(10, 5000, 5000);
    assert_eq!(case.at(Role::Client, Counter::tcps_sndpack), 10 * 10, "ten segments of 500 bytes each");
}

#[test]
fn what_cannot_run_is_refused_with_its_line() {
    let text =
        template("c.send('', size=1 << 30); c.send('', size=(1 << 30) + 1)", "s.recv((1 << 31) + 1)", "");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.py");
    std::fs::write(&path, text).unwrap();
    let source = Source { profiles: vec![path], ..Source::default() };
    let Compiled::Form(form) = compile(&source).unwrap() else { panic!("it is compiled") };
    let error = Plan::new(&form).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("p.py:5"), "{error}");
    let missing = Source { profiles: vec!["/nowhere/p.py".into()], ..Source::default() };
    assert!(matches!(compile(&missing).unwrap(), Compiled::Refused));
}

#[test]
fn clients_behind_tunnels_have_their_bytes() {
    let case = Case::of("tunnel.py", None, 20.0, 1).run();
    assert_eq!(case.plan.tunnels.len(), 1);
    case.check(20, 123, 4567);
    let counters = case.pair.counters();
    assert_eq!(counters["client.tunnel.sent_frames"], counters["server.tunnel.received_frames"]);
    // Its topology asks for a probe, which goes through the tunnel, and its answer too.
    let probe = case.shown().probes.remove(0);
    assert_eq!((probe.sent, probe.received), (1, 1));
    assert_eq!(counters["client.tunnel.sent_frames"], case.at(Role::Client, Counter::tcps_sndtotal) + 1);
    assert_eq!(counters["client.tunnel.received_frames"], case.at(Role::Server, Counter::tcps_sndtotal) + 1);
}
