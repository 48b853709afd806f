//! What other people wrote to read the pages of wrk, wrk2 and ab. Each is installed from its registry, once, under the
//! target folder.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super::server::Server;
use super::{overfly, page, run, text};

/// Node's: the drop-in runner `wrk` and the parser `ab-result`.
const NPM: [&str; 2] = ["wrk@1.2.1", "ab-result@1.0.2"];
/// Python's: wrk-load-tools for wrk and wrk2, wrk2img for what it draws.
const PIP: [&str; 3] = ["wrk-load-tools==0.0.3", "pyparsing==2.4.7", "wrk2img==1.1.0"];

/// The folder with the readers in it.
fn readers() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("readers");
        let done = folder.join("complete");
        if !done.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            let npm = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
            page(&run(Command::new("npm").args(npm).arg(&folder).args(NPM)));
            let pip =
                ["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target"];
            page(&run(Command::new("python3").args(pip).arg(&folder).args(PIP)));
            std::fs::write(done, "").unwrap();
        }
        folder
    })
}

fn node(script: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new("node");
    command.env("NODE_PATH", readers().join("node_modules")).args(["-e", script, "--"]).args(arguments);
    last_line(&page(&run(&mut command)))
}

fn python(script: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", readers()).args(["-c", script]).args(arguments);
    last_line(&page(&run(&mut command)))
}

fn last_line(output: &str) -> Value {
    serde_json::from_str(output.lines().last().unwrap()).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_npm_package_that_runs_wrk_runs_overfly_instead() {
    let server = Server::start();
    let script =
        "require('wrk')({ path: process.argv[1] + ' load wrk', threads: 1, connections: 2, duration: '1s', url: process.argv[2] },
        (error, out) => { if (error) throw error; console.log(JSON.stringify(out)) })";
    let out = node(script, &[env!("CARGO_BIN_EXE_overfly"), &server.url("/")]);
    assert!(number(&out["requestsPerSec"]) > 10.0 && number(&out["requestsTotal"]) > 10.0, "{out}");
    assert!(number(&out["latencyStdevPerc"]) > 0.0, "{out}");
    for key in ["latencyAvg", "latencyStdev", "latencyMax", "rpsAvg", "transferPerSec", "durationActual"] {
        assert!(out[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {out}");
    }
}

#[test]
fn the_npm_package_that_reads_wrk2_finds_the_histogram() {
    let server = Server::start();
    let ours = page(&overfly("wrk2", &["-t1", "-c2", "-d1", "-R200", "--latency", &server.url("/")]));
    let script = "console.log(JSON.stringify(require('wrk/lib/parseWrk')(process.argv[1])))";
    let out = node(script, &[&ours]);
    assert!((number(&out["requestsPerSec"]) - 200.0).abs() < 10.0, "{out}");
    let histogram = out["histogram"].as_array().unwrap();
    assert!(histogram.len() > 10, "{out}");
    let last = &histogram[histogram.len() - 1];
    assert_eq!((number(&last["percentile"]), last["total"].as_f64()), (1.0, out["requestsTotal"].as_f64()));
}

#[test]
fn wrk_load_tools_reads_both_pages() {
    let server = Server::start();
    let script = "
import json, sys
from wrktoolbox import wrkoutput
def plain(value):
    if isinstance(value, wrkoutput.ParseFailure):
        return {'failure': value.exception_message, 'raw': value.raw_value}
    if hasattr(value, '__dict__'):
        return {str(key): plain(inner) for key, inner in value.__dict__.items()}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value
page = sys.argv[1]
found = {}
for name in ['LatencyResult', 'RequestsPerSecondResult', 'TotalRequestsResult', 'RequestsSummaryResult',
             'TransferSummaryResult', 'LatencyDistributionResult', 'HdrHistogramLatencyDistributionResult',
             'DetailedPercentileSpectrumResult']:
    kind = getattr(wrkoutput, name, None)
    if kind is None:
        continue
    for line in page.splitlines():
        start = page.index(line)
        parsed = kind.parse(page[start:]) if line.strip() else None
        if parsed is not None and not isinstance(parsed, wrkoutput.ParseFailure):
            found[name] = plain(parsed)
            break
print(json.dumps(found, default=str))
";
    let url = server.url("/");
    let wrk = page(&overfly("wrk2", &["-t1", "-c1", "-d1", "-R100", "--latency", &url]));
    let out = python(script, &[&wrk]);
    assert!((number(&out["RequestsSummaryResult"]["reqs_per_second_summary"]) - 100.0).abs() < 10.0, "{out}");
    assert!(number(&out["LatencyResult"]["avg"]["ms"]) > 0.0, "{out}");
    assert!((number(&out["RequestsPerSecondResult"]["avg"]) - 100.0).abs() < 20.0, "{out}");
    assert!(number(&out["TotalRequestsResult"]["requests"]) > 50.0, "{out}");
    assert!(
        number(&out["HdrHistogramLatencyDistributionResult"]["percentiles"]["99.9"]["ms"]) > 0.0,
        "{out}"
    );

    let plain = page(&overfly("wrk", &["-t1", "-c1", "-d1", "--latency", &url]));
    let out = python(script, &[&plain]);
    let percentiles = out["LatencyDistributionResult"]["percentiles"].as_object().unwrap();
    assert_eq!(percentiles.keys().collect::<Vec<_>>(), ["50.0", "75.0", "90.0", "99.0"]);
}

#[test]
fn wrk2img_finds_the_points_it_draws() {
    let server = Server::start();
    let ours = page(&overfly("wrk2", &["-t1", "-c1", "-d1", "-R100", "--latency", &server.url("/x")]));
    let script = "
import importlib.util, json, os, sys
# The package itself asks for matplotlib, which is needed to draw only.
spec = importlib.util.spec_from_file_location('parser', os.environ['PYTHONPATH'] + '/wrk2img/parser.py')
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
curves, website = module.Parser().parse_wrk_output(sys.argv[1])
print(json.dumps({'website': website, 'curves': list(curves.values())}))
";
    let out = python(script, &[&ours]);
    assert_eq!(out["website"], server.address.to_string());
    let curve = out["curves"][0].as_object().unwrap();
    assert!(curve.len() > 15 && curve.contains_key("100.0") && curve.contains_key("50.0"), "{out}");
    assert!(curve.values().all(|seconds| number(seconds) > 0.0 && number(seconds) < 5.0), "{out}");
}

#[test]
fn ab_result_reads_the_page() {
    let server = Server::start();
    let ours = page(&overfly("ab", &["-q", "-k", "-n", "100", "-c", "4", &server.url("/")]));
    let script = "console.log(JSON.stringify(require('ab-result')(process.argv[1])))";
    let out = node(script, &[&ours]);
    assert_eq!(out["server"]["software"], "overfly-tests/1");
    assert_eq!(number(&out["server"]["port"]), f64::from(server.address.port()));
    let test = &out["test"];
    let counts = ["concurencyLevel", "completeRequests", "failedRequests", "htmlTransferred"]
        .map(|key| number(&test[key]));
    assert_eq!(counts, [4.0, 100.0, 0.0, 1200.0], "{out}");
    assert!(number(&test["requestsPerSecond"]) > 0.0 && number(&test["transferRate"]) > 0.0, "{out}");
    assert!(number(&out["time"]["total"]["max"]) >= number(&out["time"]["total"]["min"]), "{out}");
}

#[test]
fn gnuplot_draws_the_file_for_gnuplot() {
    let server = Server::start();
    let folder = tempfile::TempDir::new().unwrap();
    let table = folder.path().join("requests.tsv");
    page(&overfly("ab", &["-q", "-n", "50", "-c", "2", "-g", table.to_str().unwrap(), &server.url("/")]));
    let script = format!(
        "set datafile separator '\\t'; set terminal dumb; stats '{}' using 5 every ::1; plot '' using 5 every ::2 with points",
        table.display()
    );
    let output = run(Command::new("gnuplot").args(["-e", &script]));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.contains("Records:           50"), "{said}");
}
