//! Simulated paths, and the probe that measures what they leave alone.

use super::*;
use crate::astf::form::Form;
use crate::astf::path::Underway;

#[test]
fn a_path_takes_as_long_as_it_says() {
    let case = Case::of("path.py", Some("jitter=0,loss=0"), 2.0, 1).run();
    case.check(20, 500, 20_000);
    let latency = &case.pair.client.latencies()[0];
    // 20 ms there and 30 back, and what turns take.
    let (least_us, most_us) = (latency.connect_ns.min() / 1000, latency.connect_ns.max() / 1000);
    assert!(least_us >= 49_900 && most_us < 50_300, "{least_us} to {most_us}");
    for role in [Role::Client, Role::Server] {
        let (held, sent) = (case.at(role, Counter::path_delayed), case.at(role, Counter::tcps_sndtotal));
        // Acknowledgments in TIME-WAIT are the stack's own.
        assert!(held >= sent && sent >= 100, "{held} of {sent}");
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    let case = Case::of("path.py", None, 20.0, 1).run();
    let at = |role, counter| case.at(role, counter);
    assert_eq!(at(Role::Client, Counter::tcps_rcvbyte), 200 * 20_000);
    assert_eq!(at(Role::Client, Counter::path_lost), 0);
    let lost = at(Role::Server, Counter::path_lost);
    let sent = at(Role::Server, Counter::path_delayed) + lost;
    // 2 %, within five standard deviations.
    let (expected, deviation) = (sent as f64 * 0.02, (sent as f64 * 0.02 * 0.98).sqrt());
    assert!((lost as f64 - expected).abs() < 5.0 * deviation, "{lost} of {sent}");
    assert!(at(Role::Server, Counter::tcps_sndrexmitpack) > 0);
    assert_eq!(
        at(Role::Client, Counter::tcps_rcvtotal) + lost,
        at(Role::Server, Counter::tcps_sndtotal),
        "what does not arrive was lost"
    );
}

#[test]
fn a_seed_loses_the_same() {
    let plan = plan_of(&[profiles().join("path.py")], Some("delay=0,jitter=0,loss=300000"));
    let mut frame = [0; 54];
    overfly_wire::ipv4::Header {
        source: [48, 0, 0, 1].into(),
        destination: [16, 0, 0, 1].into(),
        protocol: overfly_wire::ipv4::PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: 20,
    }
    .emit(&mut frame[14..]);
    (frame[12], frame[35]) = (8, 80);
    let lost = |seed| {
        let mut path = Underway::new(&plan, Role::Server, seed).unwrap();
        (0..1000).map(|_| path.takes(&frame, None)).collect::<Vec<_>>()
    };
    let count = lost(1).iter().filter(|lost| **lost).count();
    assert!((220..380).contains(&count), "{count}");
    assert!(lost(1) == lost(1) && lost(1) != lost(2));
}

/// Behind a tunnel the stacks make whole checksums, and check them: payload that was put in wrong would be dropped.
#[test]
fn payload_is_put_in_when_a_frame_leaves() {
    let mut form = form_of("tunnel.py");
    for template in &mut form.templates {
        template.client.path.delay_usec = 5000;
        template.server.path =
            crate::astf::form::Path { delay_usec: 40_000, jitter_usec: 30_000, loss_ppm: 0 };
    }
    let case = Case::new(Arc::new(Plan::new(&form).unwrap()), 20.0, 1).run();
    case.check(20, 123, 4567);
    assert!(case.at(Role::Server, Counter::path_delayed) > 20 * 4);
}

#[test]
fn what_is_under_way_is_headers() {
    let text = template(
        "c.send('a'); c.recv(4000000)",
        "s.recv(1); s.send('b' * 4000000)",
        "info.path.delay_usec = 50000; info.tcp.rxbufsize = 1 << 20; info.tcp.initwnd = 20",
    );
    let mut case = Case::written(&text, 1.0, 1);
    let mut most = (0, 0);
    while case.now_ns.get() < 1_000_000_000 {
        let now_ns = case.now_ns.get();
        case.pair.pace(now_ns, 1.0, false);
        case.pair.begin(now_ns, 1.0);
        case.turn();
        let path = case.pair.server.stack.wire.path().unwrap();
        most = most.max((path.held(), path.memory()));
    }
    let (frames, bytes) = most;
    println!("{frames} frames of {} bytes in {bytes}", frames * 1514);
    assert!(frames > 300 && bytes < frames * 1514 / 4, "{frames} frames in {bytes} bytes");
}

#[test]
fn templates_that_nothing_tells_apart_on_the_way_have_one_path() {
    let mut form = form_of("groups.py");
    let port = form.templates[0].client.port;
    form.templates[0].client.path.loss_ppm = 5;
    for template in &mut form.templates {
        template.client.port = port;
    }
    let error = Plan::new(&form).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("groups.py:"), "{error}");
    for template in &mut form.templates {
        template.client.path.loss_ppm = 5;
    }
    Plan::new(&form).unwrap();
}

fn form_of(name: &str) -> Box<Form> {
    let source = Source { profiles: vec![profiles().join(name)], ..Source::default() };
    let Compiled::Form(form) = compile(&source).unwrap() else { panic!("{name} is compiled") };
    form
}

#[test]
fn a_probe_is_answered_beside_the_flows() {
    for (name, sent) in [("http_by_program.py", 100), ("ipv6.py", 100), ("tunnel.py", 100)] {
        let settings = Settings {
            multiplier: 5.0,
            duration: Some(Duration::from_secs(1)),
            probe_per_s: Some(100.0),
            ..Settings::default()
        };
        let case = Case::with(plan_of(&[profiles().join(name)], None), settings).run();
        case.check_clean();
        let shown = case.shown();
        let [probe] = shown.probes.as_slice() else { panic!("{:?}", shown.probes) };
        assert!(
            probe.sent.abs_diff(sent) < 5 && probe.received == probe.sent && probe.lost == 0,
            "{probe:?}"
        );
        assert!(
            probe.min_us >= 1 && probe.max_us <= 200 && probe.mean_us() >= probe.min_us as f64,
            "{probe:?}"
        );
    }
}

#[test]
fn a_probe_that_nobody_answers_is_lost() {
    let form = &mut form_of("http_by_program.py");
    form.probes = vec![crate::astf::form::Probe {
        link_pair: 0,
        client: "16.0.0.1".parse().unwrap(),
        server: "9.9.9.9".parse().unwrap(),
    }];
    let settings = Settings {
        duration: Some(Duration::from_secs(3)),
        multiplier: 100.0,
        probe_per_s: Some(10.0),
        ..Settings::default()
    };
    let case = Case::with(Arc::new(Plan::new(form).unwrap()), settings).run();
    let probe = case.shown().probes.remove(0);
    assert!(probe.received == 0 && (15..=21).contains(&probe.lost), "{probe:?}");
}
