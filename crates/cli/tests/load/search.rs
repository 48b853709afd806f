//! `--find-max` against a server whose capacity is known.

use std::io::{BufReader, Read};
use std::process::Command;
use std::time::Duration;

use crate::server::Server;
use crate::{Guard, load, succeed};

/// Four desks, 100 ms each: 8 connections wait one turn and are answered after 200 ms, all of them; of 9, one in four waits
/// two turns.
#[test]
fn the_largest_number_of_connections() {
    let server = Server::new(4, Duration::from_millis(100));
    let url = format!("http://{}/", server.address);
    let search = "http -c 2:64 -n 60 --find-max p90<260ms,errors<1% --find-repeats 3";
    let output = succeed(load(search).args(["--json", &url]));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(found["holds"]["load"], 8, "{said}");
    assert_eq!(found["fails"]["load"], 9, "{said}");
    assert!(found["holds"]["held"].as_u64() >= Some(2), "{said}");
    let probes = found["probes"].as_array().unwrap();
    assert_eq!(said.lines().count(), probes.len() + 1, "a line each and the first:\n{said}");
    let loads: Vec<u64> = probes.iter().map(|probe| probe["load"].as_u64().unwrap()).collect();
    // One that fails on a machine with others is tried again, smaller ones before it.
    let climb = [2, 4, 8, 16, 12, 10, 9];
    assert!(loads.starts_with(&climb[..3]) && climb.iter().all(|load| loads.contains(load)), "{loads:?}");
    assert_eq!(probes[0]["report"]["succeeded"], 60);
    let above = probes.iter().find(|probe| probe["load"] == 16).unwrap();
    assert!(above["why"].as_str().unwrap().starts_with("p90 "), "{said}");
}

/// Four desks, 20 ms each: 200/s, and a queue that grows at any rate above.
#[test]
fn the_highest_rate() {
    let server = Server::new(4, Duration::from_millis(20));
    let url = format!("http://{}/", server.address);
    let search = "http -R 25:1600 -c 100 -d 2s --find-max p50<500ms --find-repeats 1 --find-precision 10%";
    let output = succeed(load(search).args(["--json", &url]));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(found["over"], "rate", "{said}");
    // At twice the capacity half of the requests wait for 500 ms or more when 2 s are over.
    let holds = found["holds"]["load"].as_u64().unwrap();
    assert!((100..=400).contains(&holds), "{said}");
    let asked = &found["probes"][0]["report"]["open_loop"]["asked_per_s"];
    assert_eq!(asked.as_f64().map(f64::round), Some(25.0), "{said}");
}

/// Poisson arrivals are now more, now fewer than the rate: that is no load missed.
#[test]
fn a_rate_that_chance_makes_smaller_holds() {
    let server = Server::new(64, Duration::from_millis(1));
    let url = format!("http://{}/", server.address);
    let search = "http -R 50:800 -c 64 -d 250ms --arrivals poisson --find-max p50<5s --find-repeats 1";
    let output = succeed(load(search).args(["--json", &url]));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(found["holds"]["load"], 800, "{said}");
}

#[test]
fn nothing_holds_and_everything_holds() {
    let server = Server::new(4, Duration::from_millis(20));
    let url = format!("http://{}/", server.address);
    let output =
        load(&format!("http -c 2:4 -n 20 --find-max p50<1ms --find-repeats 2 {url}")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("Answer: none. -c 2 fails in 2 of 2 runs (75.00% sure)."), "{text}");
    let output = succeed(&mut load(&format!("http -c 2:4 -n 20 --find-max p50<20s --find-repeats 1 {url}")));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Answer: -c 4 holds in 1 of 1 runs"), "{text}");
    assert!(text.contains("the end of the range"), "{text}");
}

/// The signal comes between two runs, or in one.
#[test]
fn a_search_that_is_ended_says_what_it_knows() {
    let server = Server::new(4, Duration::from_millis(20));
    for json in [" --json", ""] {
        let words = format!(
            "http -c 2:4 -n 20 --find-max p50<1ms --find-repeats 100{json} http://{}/",
            server.address
        );
        let mut search = Guard::spawn(&mut load(&words));
        let mut said = search.errors();
        let mut lines = BufReader::new(search.0.stdout.take().unwrap());
        if json.is_empty() {
            Guard::told(&mut lines, "  -c 2 ");
        } else {
            Guard::told(&mut said, "  -c 2 ");
        }
        assert!(Command::new("kill").args(["-INT", &search.0.id().to_string()]).status().unwrap().success());
        Guard::told(&mut said, "overfly load http: the search was ended: by a signal");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!(search.0.wait().unwrap().code(), Some(1), "{rest}");
        if json.is_empty() {
            assert!(rest.contains("So far: none. -c 2 fails in "), "{rest}");
            continue;
        }
        let known: serde_json::Value = serde_json::from_str(&rest).unwrap();
        assert!(known["ended"].as_str().unwrap().starts_with("the search was ended"), "{rest}");
        assert_eq!((&known["holds"], &known["fails"]["load"]), (&serde_json::Value::Null, &2.into()));
        assert_eq!(known["fails"]["runs"], known["probes"].as_array().unwrap().len());
    }
}

#[test]
fn what_a_search_cannot_have_is_refused() {
    for (words, expected) in [
        ("http -c 2:4 http://127.0.0.1:1/", "-c 2:4: expected one number, or --find-max"),
        ("http -c 4:2 --find-max p99<1s http://127.0.0.1:1/", "-c 4:2: expected LOW:HIGH"),
        ("http --find-max p99 http://127.0.0.1:1/", "--find-max p99: expected conditions"),
        ("http --csv /dev/null --find-max p99<1s http://127.0.0.1:1/", "--csv: expected a single run"),
        (
            "http --find-repeats 0 --find-max p99<1s http://127.0.0.1:1/",
            "--find-repeats 0: expected 1 to 100",
        ),
    ] {
        let output = load(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
