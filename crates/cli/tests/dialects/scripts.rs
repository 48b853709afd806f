//! The scripts that wrk ships, as Debian installs them, and what they ask of a server.

use std::collections::HashMap;
use std::io::Write;

use tempfile::NamedTempFile;

use super::server::{Request, Server};
use super::shape::shape;
use super::{overfly, page, real, text};

const SHIPPED: &str = "/usr/share/doc/wrk/examples/scripts";

fn shipped(name: &str) -> String {
    let path = format!("{SHIPPED}/{name}.lua");
    assert!(std::fs::exists(&path).unwrap(), "{path} is needed here: type scripts/install.sh");
    path
}

/// Runs a shipped script against the server, with what real wrk prints beside it.
fn compare(server: &Server, name: &str, words: &[&str]) -> (String, Vec<Request>) {
    let url = server.url("/start");
    let script = shipped(name);
    let words = [words, &["-s", &script, &url]].concat();
    let theirs = text(&real("wrk", &words).stdout);
    server.take();
    let ours = page(&overfly("wrk", &words));
    let requests = server.take();
    // stop.lua's threads end before wrk has sampled a rate; ours say what it was.
    let table = |page: &str| -> Vec<String> {
        shape(page).into_iter().filter(|line| !line.starts_with(" Req/Sec")).collect()
    };
    assert_eq!(table(&ours), table(&theirs), "{name}\n{ours}\n{theirs}");
    (ours, requests)
}

#[test]
fn addr_chooses_an_address_for_each_thread() {
    let server = Server::start();
    let (ours, requests) = compare(&server, "addr", &["-t2", "-c2", "-d1"]);
    assert!(!requests.is_empty());
    assert!(
        ours.starts_with(&format!("thread addr: {0}\nthread addr: {0}\nRunning", server.address)),
        "{ours}"
    );
}

#[test]
fn auth_asks_for_a_token_and_then_carries_it() {
    let server = Server::start();
    let (_, requests) = compare(&server, "auth", &["-t1", "-c1", "-d1"]);
    assert_eq!((requests[0].path(), requests[0].field("X-Token")), ("/authenticate", None));
    let later: Vec<_> = requests.iter().skip_while(|request| request.path() == "/authenticate").collect();
    assert!(later.len() > 10 && requests.len() - later.len() < 3);
    assert!(later.iter().all(|r| r.path() == "/resource" && r.field("X-Token") == Some("secret")));
}

#[test]
fn counter_counts_in_path_and_header() {
    let server = Server::start();
    let (_, requests) = compare(&server, "counter", &["-t1", "-c1", "-d1"]);
    for (index, request) in requests.iter().enumerate() {
        assert_eq!(request.path(), format!("/{index}"));
        assert_eq!(request.field("X-Counter"), Some(index.to_string().as_str()));
    }
}

#[test]
fn delay_waits_before_each_request() {
    let server = Server::start();
    let (_, requests) = compare(&server, "delay", &["-t1", "-c2", "-d1"]);
    // Two connections, 30 ms on average.
    assert!((10..=200).contains(&requests.len()), "{}", requests.len());
}

#[test]
fn pipeline_sends_three_requests_at_once() {
    let server = Server::start();
    let (ours, requests) = compare(&server, "pipeline", &["-t1", "-c1", "-d1"]);
    for batch in requests.chunks_exact(3) {
        let paths: Vec<_> = batch.iter().map(Request::path).collect();
        assert_eq!(paths, ["/?foo", "/?bar", "/?baz"]);
    }
    assert!(!ours.contains("Socket errors"), "{ours}");
}

#[test]
fn post_has_method_body_and_header() {
    let server = Server::start();
    let (_, requests) = compare(&server, "post", &["-t1", "-c1", "-d1"]);
    for request in &requests {
        assert_eq!(request.line(), "POST /start HTTP/1.1");
        assert_eq!(request.body, b"foo=bar&baz=quux");
        assert_eq!(request.field("Content-Type"), Some("application/x-www-form-urlencoded"));
    }
}

#[test]
fn report_prints_percentiles() {
    let server = Server::start();
    let (ours, _) = compare(&server, "report", &["-t1", "-c1", "-d1"]);
    let report: HashMap<&str, u64> = (ours.lines().skip_while(|line| !line.starts_with("---")).skip(1))
        .map(|line| line.split_once(',').unwrap())
        .map(|(percentile, us)| (percentile, us.parse().unwrap()))
        .collect();
    assert_eq!(report.len(), 4, "{ours}");
    assert!(
        report["50%"] > 0 && report["50%"] <= report["99%"] && report["99%"] <= report["99.999%"],
        "{ours}"
    );
}

#[test]
fn setup_passes_data_to_and_from_the_threads() {
    let server = Server::start();
    let (ours, _) = compare(&server, "setup", &["-t2", "-c2", "-d1"]);
    let made: u64 = ours
        .lines()
        .filter(|line| line.contains(" requests and got "))
        .map(|line| line.split(' ').nth(3).unwrap().parse::<u64>().unwrap())
        .sum();
    let total = ours.lines().find(|line| line.contains(" requests in ")).unwrap();
    let total: u64 = total.split_ascii_whitespace().next().unwrap().parse().unwrap();
    // Some were under way at the end, and each thread makes one before the run.
    assert!(made >= total && made - total <= 4, "{made} made, {total} answered\n{ours}");
}

#[test]
fn stop_ends_each_thread_after_a_hundred_responses() {
    let server = Server::start();
    let (ours, _) = compare(&server, "stop", &["-t2", "-c2", "-d5"]);
    assert!(ours.contains("  200 requests in "), "{ours}");
}

#[test]
fn a_script_sees_what_wrk_shows_it() {
    let mut script = NamedTempFile::with_suffix(".lua").unwrap();
    script
        .write_all(
            b"function init(args) print(args[1], args[2], #args, wrk.host, wrk.path, wrk.scheme, wrk.method) end
              function response(status, headers, body)
                 local n = 0
                 for _ in pairs(headers) do n = n + 1 end
                 seen = table.concat({ status, headers['Server'], headers['Content-Length'], n, body }, ' ')
                 wrk.thread:stop()
              end
              local thread
              function setup(t) thread = t end
              function done(summary, latency, requests)
                 print(thread:get('seen'))
                 print(summary.requests, summary.bytes > 100, summary.duration > 0)
                 for _, name in ipairs({ 'connect', 'read', 'write', 'status', 'timeout' }) do
                    print(name, summary.errors[name])
                 end
                 print(#latency, latency.min == latency.max, latency.stdev, latency:percentile(50) > 0)
              end",
        )
        .unwrap();
    let server = Server::start();
    let url = server.url("/x");
    let words = ["-t1", "-c1", "-d1", "-s", script.path().to_str().unwrap(), &url, "--", "one", "two"];
    let theirs = text(&real("wrk", &words).stdout);
    let ours = page(&overfly("wrk", &words));
    let own_lines = |page: &str| -> Vec<String> {
        let (start, end) = (page.find("Running").unwrap(), page.find("Transfer/sec").unwrap());
        let after = page[end..].lines().skip(1);
        page[..start].lines().chain(after).map(str::to_string).collect()
    };
    assert_eq!(own_lines(&ours), own_lines(&theirs));
}

#[test]
fn a_script_that_fails_ends_the_run_with_its_message() {
    let mut script = NamedTempFile::with_suffix(".lua").unwrap();
    script.write_all(b"local n = 0\nfunction request()\n  n = n + 1\n  if n == 5 then error('boom') end\n  return wrk.format()\nend").unwrap();
    let server = Server::start();
    let output =
        overfly("wrk", &["-t1", "-c1", "-d20", "-s", script.path().to_str().unwrap(), &server.url("/")]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(":4: boom") && said.trim_end().lines().count() == 1, "{said}");
}
