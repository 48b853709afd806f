//! The examples of docs/load.md for `serve` and `vod`, run as they stand but for where they are and how long they take.

use std::time::Duration;

use clap::Parser;
use overfly_load::Link;
use overfly_load::serve::{ServeArgs, Server, Settings};
use overfly_load::vod::{self, Stop, VodArgs};

#[derive(Parser)]
enum Load {
    Serve(Box<ServeArgs>),
    Vod(Box<VodArgs>),
}

/// The commands of one kind, as they are parsed.
fn examples(kind: &str) -> Vec<(String, Load)> {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/load.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let start = format!("overfly load {kind} ");
    let lines = manual.lines().filter(|line| line.starts_with(&start));
    let parse = |line: &str| {
        println!("{line}");
        (line.to_string(), Load::try_parse_from(line.split(' ').skip(1)).unwrap())
    };
    lines.map(parse).collect()
}

#[test]
fn servers() {
    let examples = examples("serve");
    assert!(examples.len() > 5);
    for (line, load) in examples {
        let Load::Serve(args) = load else { panic!("{line}") };
        let mut settings = args.settings().unwrap();
        // Neither the link's interface nor its processors are here.
        (settings.link, settings.interface) = (Link::Kernel, None);
        settings.cpus.clear();
        settings.listen = "127.0.0.1:0".parse().unwrap();
        settings.connections = settings.connections.map(|connections| connections.min(1000));
        settings.duration = Some(Duration::from_millis(50));
        let server = Server::start(settings).unwrap();
        while !server.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(server.stop().unwrap().requests, 0, "{line}");
    }
}

#[test]
fn streams() {
    let settings = Settings { listen: "127.0.0.1:0".parse().unwrap(), ..Settings::default() };
    let server = Server::start(settings).unwrap();
    let address = server.address().to_string();
    let examples = examples("vod");
    assert!(examples.len() > 6);
    for (line, load) in examples {
        let Load::Vod(args) = load else { panic!("{line}") };
        let mut settings = args.settings().unwrap();
        settings.url = settings.url.replace("10.77.0.1", &address).replace("SERVER", &address);
        settings.url = settings.url.replace("block-{block}", "10M/{block}");
        settings.ramp.streams = Some(8);
        settings.ramp.hold = Duration::from_millis(10);
        settings.ramp.duration = Some(Duration::from_millis(1500));
        settings.control = None;
        let report = vod::run(&settings, &Stop::default(), |_| {}).unwrap();
        assert_eq!(report.standing.lost(), 0, "{line}\n{report}");
        assert!(report.standing.streaming > 0 || settings.ramp.initial == 0, "{line}\n{report}");
    }
}
