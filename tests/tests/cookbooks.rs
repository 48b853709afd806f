//! Plans of `overfly bench` that need the library: several servers on Overfly, and the cookbooks, as far as seconds can show it. Needs
//! root, nginx and sockperf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use overfly_tests::overfly;
use serde_json::Value;

const PLAN: &str = r#"
title = "several instances"
modes = ["overfly"]
profile = "balanced"
links = ["xdp"]
payload_bytes = [1024]
connections = ["keepalive"]
repeats = 1
warmup_s = 0.1
duration_s = 0.5
[server]
program = "nginx"
arguments = ["-e", "stderr", "-p", "@ROOT@", "-c", "@CONFIG@"]
config = "nginx.conf"
cpu = 0
instances = 2
start_s = 30
[client]
connections = 4
cpu = 0
"#;

/// A file of this checkout.
fn ours(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Carries a plan out, and returns the folder's report as `summary.json` has it.
fn bench(plan: &Path, results: &Path, words: &[&str]) -> Value {
    let mut command = Command::new(overfly());
    let output = command.arg("bench").arg(plan).args(words).arg("--output").arg(results).output();
    let output = output.expect("start overfly");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", plan.display());
    let text = fs::read_to_string(results.join("summary.json")).expect("a summary");
    serde_json::from_str(&text).expect("the summary is JSON")
}

#[test]
fn several_instances_share_an_interface_on_overfly() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(ours("workloads/nginx/nginx.conf"), folder.path().join("nginx.conf")).expect("copy nginx.conf");
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, PLAN).expect("write a plan");
    let summary = bench(&plan, &folder.path().join("results"), &[]);
    let figure = &summary["cells"][0]["overfly"];
    // Both servers and the generator have one core here, and other tests: how many they answer says nothing.
    assert!(figure["median"].as_f64().expect("a rate") > 0.0, "{figure}");
    assert_eq!(figure["errors"], 0, "{figure}");
    let commands = figure["server_command"].as_str().expect("the servers' commands");
    assert_eq!(commands.matches("overfly run").count(), 2, "{figure}");
}

/// Each cookbook for a measurement of the seeds works.
#[test]
fn the_cookbooks_of_nginx_work() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["nginx-cps", "nginx-web"] {
        let results = folder.path().join(name);
        bench(&ours(&format!("cookbooks/{name}.toml")), &results, &["--smoke"]);
        let text = fs::read_to_string(results.join("report.md")).expect("a report");
        assert!(text.contains("A smoke run") && text.contains("null server"), "{text}");
    }
}

/// Carries a cookbook out as `--smoke` does, with fewer axes: each pair is what it says and what is said instead.
fn smoke(name: &str, changes: &[(&str, &str)]) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = ours(&format!("cookbooks/{name}.toml"));
    let text = fs::read_to_string(&path)
        .expect("a cookbook")
        .replace("../workloads", &ours("workloads").display().to_string());
    let text = text.replace("@PLAN@/", "");
    let text = changes.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    });
    let plan = folder.path().join(format!("{name}.toml"));
    fs::write(&plan, text).expect("write a plan");
    let results = folder.path().join("results");
    let summary = bench(&plan, &results, &["--smoke"]);
    let report = fs::read_to_string(results.join("report.md")).expect("a report");
    (summary, report)
}

/// Every figure of a mode, by the link of its cell.
fn medians(summary: &Value, mode: &str) -> Vec<(String, f64)> {
    let cells = summary["cells"].as_array().expect("cells");
    let figures = cells.iter().filter(|cell| !cell[mode].is_null());
    figures
        .map(|cell| {
            let link = cell["link"].as_str().expect("a link").to_owned();
            (link, cell[mode]["median"].as_f64().expect("a figure"))
        })
        .collect()
}

#[test]
fn the_largest_load_that_holds_is_searched_for() {
    let (summary, report) = smoke("nginx-cps-max", &[("up_to = 12288", "up_to = 256")]);
    assert_eq!(summary["measure"]["key"], "most_connections");
    for mode in ["kernel", "overfly"] {
        let [(_, found)] = medians(&summary, mode)[..] else { panic!("{summary}") };
        assert!((64.0..=256.0).contains(&found), "{mode}: {found}");
    }
    assert!(report.contains("--find-max p99<1000ms") && report.contains("-c 64:256"), "{report}");
}

#[test]
fn flows_of_a_profile_are_measured_against_nginx_and_against_themselves() {
    let (summary, report) = smoke("astf-vs-nginx", &[("connections = 12288", "connections = 512")]);
    assert_eq!(summary["measure"]["unit"], "flows/s");
    let links = |mode: &str| medians(&summary, mode).into_iter().map(|(link, _)| link).collect::<Vec<_>>();
    assert_eq!(links("kernel"), ["xdp", "memif"]);
    assert_eq!(links("overfly"), ["xdp", "memif"]);
    assert_eq!(links("null_server"), ["memif", "memory"]);
    for mode in ["kernel", "overfly", "null_server"] {
        assert!(medians(&summary, mode).iter().all(|(_, flows)| *flows > 10.0), "{mode}: {report}");
    }
    // Python's time is not the server's: its own is counted while there are flows.
    let ours = &summary["cells"][1]["overfly"];
    assert!(ours["server_cpu_us_per_request"].as_f64().expect("a figure") > 0.0, "{ours}");
    assert!(report.contains("--side both") && report.contains("--side server"), "{report}");
}

#[test]
fn questions_of_a_profile_reach_a_name_server() {
    let (summary, report) = smoke("dns", &[("connections = [64, 256]", "connections = 32")]);
    let links = |mode: &str| medians(&summary, mode).into_iter().map(|(link, _)| link).collect::<Vec<_>>();
    assert_eq!(links("kernel"), ["xdp"]);
    assert_eq!(links("overfly"), ["xdp", "memif"]);
    assert_eq!(links("null_server"), ["memif", "memory"]);
    for mode in ["kernel", "overfly", "null_server"] {
        assert!(medians(&summary, mode).iter().all(|(_, flows)| *flows > 1.0), "{mode}: {report}");
    }
}

#[test]
fn video_streams_are_sustained() {
    let (summary, report) =
        smoke("vod", &[("modes = [\"kernel\", \"overfly\", \"null\"]", "modes = [\"kernel\", \"overfly\"]")]);
    for mode in ["kernel", "overfly"] {
        let streams = medians(&summary, mode);
        assert!(streams.len() == 2 && streams.iter().all(|(_, streams)| *streams >= 1.0), "{mode}: {report}");
    }
    assert!(report.contains("Streams sustained (streams)"), "{report}");
}

#[test]
fn messages_go_there_and_back_by_every_way() {
    let changes =
        [("[14, 1024]", "[14]"), ("[\"latency\", \"balanced\"]", "\"balanced\""), ("[\"kernel\", ", "[")];
    let (summary, report) = smoke("latency", &changes);
    assert_eq!(summary["measure"]["smaller_is_better"], true);
    for mode in ["kernel_busy_poll", "overfly"] {
        let times = medians(&summary, mode);
        assert!(times.len() == 4 && times.iter().all(|(_, us)| (0.1..1e6).contains(us)), "{mode}: {report}");
    }
    let cells = summary["cells"].as_array().expect("cells");
    for cell in cells {
        let commands = ["server_command", "client_command"]
            .map(|name| cell["overfly"][name].as_str().expect("a command"));
        assert!(commands.iter().all(|line| line.contains("overfly run")), "both ends: {commands:?}");
        let is_tcp = cell["connection"] == "tcp";
        assert!(commands.iter().all(|line| line.contains("--tcp") == is_tcp), "{commands:?}");
        assert!(cell["overfly"]["latency_us"]["p99_9"].as_f64().expect("a percentile") > 0.0, "{cell}");
    }
}

/// Netty's server is built from maven's repository.
#[test]
fn instances_of_netty_are_asked_at_a_rate() {
    let changes =
        [("[16, 512]", "[16]"), ("[10000, 20000, 40000, 80000]", "[500]"), ("start_s = 30", "start_s = 120")];
    let (summary, report) = smoke("netty-rates", &changes);
    for mode in ["kernel", "overfly"] {
        let rates = medians(&summary, mode);
        assert!(!rates.is_empty() && rates.iter().all(|(_, rate)| *rate > 10.0), "{mode}: {report}");
    }
    assert!(report.contains("-R 500"), "{report}");
}

#[test]
fn programs_of_one_host_meet() {
    let (summary, report) = smoke("local", &[("[1024, 16384]", "[1024]")]);
    for mode in ["kernel", "overfly"] {
        let rates = medians(&summary, mode);
        assert!(rates.len() == 1 && rates[0].1 > 10.0, "{mode}: {report}");
    }
    assert!(report.contains("loopback"), "{report}");
}

#[test]
fn idle_connections_take_memory() {
    let (summary, report) = smoke("idle", &[("links = [\"xdp\", \"memif\"]", "links = [\"xdp\"]")]);
    assert_eq!(summary["measure"]["unit"], "bytes");
    let command = summary["cells"][0]["kernel"]["client_command"].as_str().expect("a command");
    assert!(command.contains("-c 10000 "), "{report}");
    for mode in ["kernel", "overfly"] {
        // One run of the whole machine's memory beside other tests: that there is a figure, and that a page of each kind is plenty.
        let bytes = medians(&summary, mode)[0].1;
        assert!((1.0..100_000.0).contains(&bytes), "{mode}: {bytes}");
    }
}
