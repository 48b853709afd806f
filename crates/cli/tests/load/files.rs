//! What a run leaves behind, read by others' tools.

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::server::Server;
use crate::{Folder, Guard, load, report, succeed};

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn the_report_as_json_and_as_text() {
    let server = Server::new(4, MILLISECOND);
    let url = format!("http://{}/", server.address);
    let output = succeed(&mut load(&format!("http -c 4 -n 200 --json {url}")));
    let report = report(&output.stdout);
    assert_eq!((report.succeeded, report.failed_total), (200, 0));
    assert_eq!(report.record.latency_ns.len(), 200);
    let fields: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in
        ["url", "link", "requests", "succeeded", "requests_per_s", "duration_s", "connections_open_max"]
    {
        assert!(!fields[name].is_null(), "{name}");
    }
    for name in ["latency_us", "service_us", "first_byte_us", "connect_us"] {
        for quantile in ["p50", "p99", "p99_9", "p99_9999", "max", "mean"] {
            assert!(fields[name][quantile].as_f64().unwrap() > 0.0, "{name}.{quantile}");
        }
    }
    let output = succeed(&mut load(&format!("http -c 4 -n 200 {url}")));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["Running 200 requests @ http://127.0.0.1", "Latency", "Service", "First byte", "Requests/sec:"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn the_time_series_adds_up_to_the_report() {
    let server = Server::new(4, MILLISECOND);
    let folder = Folder::new();
    let file = folder.file("run.csv");
    let command = format!("http -c 4 -d 2500ms --json --csv {file} http://{}/", server.address);
    let report = report(&succeed(&mut load(&command)).stdout);
    let text = fs::read_to_string(&file).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let rows: Vec<HashMap<&str, f64>> = lines
        .map(|cells| {
            assert_eq!(cells.len(), names.len());
            names.iter().copied().zip(cells.iter().map(|cell| cell.parse().unwrap_or(0.0))).collect()
        })
        .collect();
    let sum = |name: &str| rows.iter().map(|row| row[name]).sum::<f64>() as u64;
    assert_eq!(rows.iter().map(|row| row["elapsed_s"].ceil()).collect::<Vec<_>>(), [1.0, 2.0, 3.0], "{text}");
    assert_eq!((sum("requests"), sum("succeeded")), (report.requests, report.succeeded));
    assert_eq!((sum("bytes_in"), sum("bytes_out")), (report.bytes_in, report.bytes_out));
    assert_eq!(rows[1]["connections_open"], 4.0);
    assert!(rows.iter().all(|row| row["latency_p50_us"] >= 1000.0 && row["timeout"] == 0.0), "{text}");
}

/// HdrHistogram's own program reads the log, and finds what the report says.
#[test]
fn the_histogram_log_is_read_by_hdrhistogram_itself() {
    const JAR: &str = "/usr/share/java/hdrhistogram.jar";
    assert!(fs::exists(JAR).unwrap(), "no {JAR}: scripts/install.sh installs it");
    let server = Server::new(4, MILLISECOND);
    let folder = Folder::new();
    let file = folder.file("run.hdr");
    let command = format!("http -c 4 -d 2500ms --json --hdr {file} http://{}/", server.address);
    let report = report(&succeed(&mut load(&command)).stdout);
    let process = |more: &[&str]| {
        let mut java = Command::new("java");
        java.args(["-cp", JAR, "org.HdrHistogram.HistogramLogProcessor", "-i", &file]).args(more);
        String::from_utf8(succeed(&mut java).stdout).unwrap()
    };
    let ms = |us: f64| format!("{:.3}", us / 1000.0);
    let text = process(&[]);
    let total =
        format!("#[Max     = {:>12}, Total count    = {:>12}]", ms(report.latency_us.max), report.requests);
    assert!(text.contains(&total), "{total} in\n{text}");
    let text = process(&["-tag", "service"]);
    assert!(text.contains(&format!("Total count    = {:>12}]", report.requests)), "{text}");

    let merged = succeed(&mut load(&format!("merge --json {file} {file}")));
    let merged: serde_json::Value = serde_json::from_slice(&merged.stdout).unwrap();
    assert_eq!(merged["requests"], 2 * report.requests);
    assert_eq!(merged["latency_us"]["p99"], report.latency_us.p99);
}

/// Prometheus's own parser reads what curl got.
#[test]
fn prometheus_reads_the_metrics() {
    let server = Server::new(4, MILLISECOND);
    let command = format!("http -c 4 -d 60s --metrics 127.0.0.1:0 http://{}/", server.address);
    let mut run = Guard::spawn(&mut load(&command));
    let mut said = run.errors();
    let url = Guard::told(&mut said, "Metrics at ");
    let text = crate::step::eventually(|| {
        let curl = Command::new("curl").args(["-sS", "--max-time", "5", &url]).output().unwrap();
        let text = String::from_utf8(curl.stdout).unwrap();
        (!text.contains("overfly_load_succeeded_total 0\n") && text.contains("_total ")).then_some(text)
    });
    let parser = "
import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation and family.type in ('counter', 'gauge', 'histogram'), family
    for sample in family.samples:
        print(sample.name, sample.labels.get('le', ''), sample.value)
";
    let folder = Folder::new();
    fs::write(folder.file("text"), &text).unwrap();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", parser]).stdin(Stdio::from(fs::File::open(folder.file("text")).unwrap()));
    let samples = String::from_utf8(succeed(&mut python).stdout).unwrap();
    let value = |name: &str| {
        let line = samples.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in\n{samples}")).trim().parse::<f64>().unwrap()
    };
    assert!(value("overfly_load_succeeded_total ") > 0.0);
    assert_eq!(value("overfly_load_latency_seconds_bucket +Inf"), value("overfly_load_succeeded_total "));
    assert_eq!(value("overfly_load_latency_seconds_bucket 0.0001"), 0.0);
    assert_eq!(value("overfly_load_connections_open "), 4.0);
}

#[test]
fn files_that_cannot_be_written_are_refused_before_the_run() {
    let server = Server::new(1, MILLISECOND);
    for option in ["--csv", "--hdr"] {
        let output = load(&format!("http {option} /nowhere/x http://{}/", server.address)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{option} /nowhere/x: expected a file")), "{said}");
    }
    assert_eq!(server.answered(), 0);
    let output = load(&format!("http -d 2s --csv /dev/full http://{}/", server.address)).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("writing /dev/full"));
}
