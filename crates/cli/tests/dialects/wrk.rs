//! wrk's page and wrk2's.

use super::server::Server;
use super::shape::shape;
use super::{overfly, page, real, text};

#[test]
fn the_page_is_wrks() {
    let server = Server::start();
    for (words, path) in [
        (&["-t2", "-c4", "-d1", "--latency"][..], "/"),
        (&["-t", "1", "-c", "3", "-d", "1s", "-H", "X-A: b"], "/missing"),
    ] {
        let url = server.url(path);
        let words = [words, &[&url]].concat();
        let theirs = text(&real("wrk", &words).stdout);
        let ours = text(&overfly("wrk", &words).stdout);
        assert_eq!(shape(&ours), shape(&theirs), "\n{ours}\n{theirs}");
        // Columns, not only words: the table's lines are as long as theirs.
        let table = |page: &str| -> Vec<usize> {
            page.lines().skip(2).take_while(|line| line.starts_with("  ")).map(str::len).collect()
        };
        assert_eq!(table(&ours)[..3], table(&theirs)[..3], "\n{ours}\n{theirs}");
    }
}

#[test]
fn the_request_is_wrks() {
    let server = Server::start();
    let url = server.url("/path?query");
    let words = ["-t1", "-c1", "-d1", "-H", "X-A: b", "-H", "User-Agent: me", &url];
    let request = |dialect: bool| {
        server.take();
        if dialect {
            page(&overfly("wrk", &words))
        } else {
            text(&real("wrk", &words).stdout)
        };
        let request = server.take().swap_remove(0);
        let mut lines: Vec<String> = request.head.lines().map(str::to_string).collect();
        lines[1..].sort();
        lines
    };
    assert_eq!(request(true), request(false));
}

#[test]
fn the_page_of_wrk2_is_as_its_readme_shows_it() {
    let server = Server::start();
    let url = server.url("/");
    let ours = page(&overfly("wrk2", &["-t2", "-c4", "-d1s", "-R500", "-L", "-U", &url]));
    let lines: Vec<&str> = ours.lines().collect();
    assert_eq!(lines[0], format!("Running 1s test @ {url}"));
    assert_eq!(lines[1], "  2 threads and 4 connections");
    assert_eq!(lines[2], "  Thread Stats   Avg      Stdev     Max   +/- Stdev");
    assert_eq!(lines[5], "  Latency Distribution (HdrHistogram - Recorded Latency)");
    let percentiles: Vec<&str> = lines[6..14].iter().map(|line| &line[..8]).collect();
    let expected =
        [" 50.000%", " 75.000%", " 90.000%", " 99.000%", " 99.900%", " 99.990%", " 99.999%", "100.000%"];
    assert_eq!(percentiles, expected);
    assert!(lines[6..14].iter().all(|line| line.len() == 18), "{ours}");
    let head = [
        "",
        "  Detailed Percentile spectrum:",
        "       Value   Percentile   TotalCount 1/(1-Percentile)",
        "",
    ];
    assert_eq!(lines[14..18], head);
    let uncorrected = "  Latency Distribution (HdrHistogram - Uncorrected Latency (measured without taking delayed starts \
                       into account))";
    let second = lines.iter().position(|line| *line == uncorrected).unwrap();
    assert_eq!(lines[second - 2..second], ["----------------------------------------------------------", ""]);
    let footer: Vec<String> = shape(&lines[second - 5..second - 2].join("\n"));
    assert_eq!(
        footer,
        ["#[Mean = #, StdDeviation = #]", "#[Max = #, Total count = #]", "#[Buckets = #, SubBuckets = #]"]
    );
    assert!(lines[18..second - 5].iter().all(|line| line.len() == 51), "{ours}");
    let end = shape(&lines[lines.len() - 3..].join("\n"));
    assert_eq!(end, [" # requests in #, # read", "Requests/sec: #", "Transfer/sec: #"]);
    // wrk2's known failures: a second is enough, and the rate is the one that was asked for.
    let rate: f64 = lines[lines.len() - 2].split_ascii_whitespace().last().unwrap().parse().unwrap();
    assert!((rate - 500.0).abs() < 15.0, "{ours}");
}

#[test]
fn a_rate_below_the_number_of_threads_and_close() {
    let server = Server::start();
    let url = server.url("/");
    let words = ["-t4", "-c4", "-d2s", "-R2", "-H", "Connection: close", &url];
    let ours = page(&overfly("wrk2", &words));
    assert!((3..=5).contains(&server.take().len()), "{ours}");
}

#[test]
fn errors_are_counted_under_wrks_names() {
    let server = Server::start();
    let output = overfly("wrk", &["-t1", "-c2", "-d1", "--timeout", "200ms", &server.url("/slow")]);
    let ours = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "nothing succeeded: {ours}");
    let line = ours.lines().find(|line| line.starts_with("  Socket errors: ")).expect(&ours);
    assert_eq!(shape(line), [" Socket errors: connect #, read #, write #, timeout #"]);
    assert!(!line.contains("timeout 0"), "{ours}");
    assert!(ours.contains("  0 requests in "), "{ours}");

    let output = overfly("wrk", &["-t1", "-c2", "-d300ms", &server.url("/reset")]);
    let ours = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{ours}");
    assert!(!ours.contains(" read 0,"), "{ours}");
}

#[test]
fn what_is_wrong_is_said_before_the_run() {
    for (dialect, words, part) in [
        ("wrk", &["-t4", "-c2", "http://127.0.0.1/"][..], "-c 2"),
        ("wrk", &["-d", "soon", "http://127.0.0.1/"], "-d soon"),
        ("wrk", &["-H", "nocolon", "http://127.0.0.1/"], "-H nocolon"),
        ("wrk", &["ftp://127.0.0.1/"], "URL ftp://127.0.0.1/"),
        ("wrk", &["-s", "no-such.lua", "http://127.0.0.1/"], "-s no-such.lua"),
        ("wrk", &["--link", "pigeon", "http://127.0.0.1/"], "--link pigeon"),
        ("wrk2", &["-R", "fast", "http://127.0.0.1/"], "-R fast"),
        ("wrk2", &["http://127.0.0.1/"], "--rate"),
    ] {
        let output = overfly(dialect, words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{words:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{words:?}");
    }
    assert!(page(&overfly("wrk", &["-v"])).contains("overfly"));
}
