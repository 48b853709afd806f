//! Plans of `overfly bench` that need the library: several servers on Overfly, and the cookbooks, as far as seconds can show it. Needs
//! root and nginx.

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
    assert!(figure["median"].as_f64().expect("a rate") > 10.0, "{figure}");
    let commands = figure["server_command"].as_str().expect("the servers' commands");
    assert_eq!(commands.matches("overfly run").count(), 2, "{figure}");
}

/// Each cookbook for a measurement of the seeds works. (`netty.toml` needs maven's repository: its plan is read by a test of the bench.)
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
