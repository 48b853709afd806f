//! ab's page, its files, its requests.

use std::fs;
use std::process::Output;

use tempfile::TempDir;

use super::server::Server;
use super::shape::shape;
use super::{overfly, page, real, text};

/// A page without what depends on how quick the machine was, and without who says so.
fn ab_shape(output: &Output) -> Vec<String> {
    let doubts = ["WARNING: The", "ERROR: The", "deviation apart", "These results are"];
    let banner =
        ["This is ApacheBench", "Copyright", "Licensed to", "ab's flags and page", "ApacheBench itself"];
    let agent = format!(" (overfly {})", env!("CARGO_PKG_VERSION"));
    shape(&text(&output.stdout).replace(&agent, ""))
        .into_iter()
        .filter(|line| !doubts.iter().chain(&banner).any(|start| line.trim_start().starts_with(start)))
        .filter(|line| !line.contains("Server Port"))
        .collect()
}

#[test]
fn the_page_is_abs() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let post = folder.path().join("post");
    fs::write(&post, "foo=bar").unwrap();
    let post = post.to_str().unwrap();
    for (words, path) in [
        (&["-n", "300", "-c", "10"][..], "/"),
        (&["-q", "-k", "-n", "200", "-c3"], "/"),
        (&["-q", "-n", "20", "-S", "-d"], "/missing"),
        (&["-q", "-n", "7", "-p", post, "-T", "text/x"], "/"),
        (&["-q", "-n", "7", "-u", post, "-k"], "/"),
        (&["-w", "-n", "20"], "/"),
        (&["-x", "border=1", "-y", "a", "-z", "b", "-n", "20", "-k"], "/missing"),
        (&["-q", "-i", "-n", "20"], "/"),
        (&["-q", "-l", "-n", "20"], "/growing"),
        (&["-q", "-n", "20"], "/growing"),
        (&["-v", "4", "-n", "1", "-A", "u:p"], "/"),
        (&["-v", "3", "-n", "1"], "/missing"),
        (&["-m", "PATCH", "-n", "1"], "/"),
        (&["-t", "1", "-n", "10"], "/"),
        (&["-B", "127.0.0.2", "-n", "10", "-s", "5"], "/"),
    ] {
        let url = server.url(path);
        let words = [words, &[&url]].concat();
        server.take();
        let theirs = real("ab", &words);
        server.take();
        let ours = overfly("ab", &words);
        let (our_text, their_text) = (text(&ours.stdout), text(&theirs.stdout));
        assert_eq!(ab_shape(&ours), ab_shape(&theirs), "{words:?}\n{our_text}\n{their_text}");
        // What we remark on a run of a few milliseconds depends on the machine.
        let remarks = text(&ours.stderr);
        let said: String =
            remarks.split_inclusive('\n').filter(|line| !line.starts_with("overfly load ab: ")).collect();
        assert_eq!(said, text(&theirs.stderr), "{words:?}");
        // Counts are the same to the byte, where both count the same.
        for name in [
            "Complete requests",
            "Document Length",
            "HTML transferred",
            "Total transferred",
            "Keep-Alive requests",
        ] {
            let line = |page: &str| page.lines().find(|line| line.contains(name)).map(str::to_string);
            assert_eq!(line(&our_text), line(&their_text), "{words:?}");
        }
    }
}

#[test]
fn requests_are_abs() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let post = folder.path().join("post");
    fs::write(&post, "foo=bar").unwrap();
    let post = post.to_str().unwrap();
    for words in [
        &["-n", "1"][..],
        &["-n", "1", "-k", "-i"],
        &["-n", "1", "-C", "a=1", "-H", "X-A: b", "-H", "Accept: text/x", "-A", "u:p", "-P", "a:b"],
        &["-n", "1", "-H", "Host: elsewhere", "-H", "User-Agent: me"],
        &["-n", "1", "-p", post],
        &["-n", "1", "-u", post, "-T", "a/b"],
        &["-n", "1", "-m", "DELETE"],
        &["-n", "1", "-X", &server.address.to_string()],
    ] {
        let url =
            if words.contains(&"-X") { "http://origin.test/x?y".to_string() } else { server.url("/x?y") };
        let words = [&["-q"], words, &[&url]].concat();
        let asked = |output: Output| {
            page(&output);
            let mut requests = server.take();
            assert_eq!(requests.len(), 1, "{words:?}");
            let mut request = requests.remove(0);
            // Who asks is the one thing that differs, and it should.
            request.head = request.head.replace(&format!(" (overfly {})", env!("CARGO_PKG_VERSION")), "");
            request
        };
        assert_eq!(asked(overfly("ab", &words)), asked(real("ab", &words)), "{words:?}");
    }
}

#[test]
fn files_are_abs() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let files = |tool: &str| {
        let [csv, tsv] = ["csv", "tsv"].map(|kind| folder.path().join(format!("{tool}.{kind}")));
        let (csv, tsv) = (csv.to_str().unwrap(), tsv.to_str().unwrap());
        let url = server.url("/");
        let words = ["-q", "-n", "50", "-c", "2", "-e", csv, "-g", tsv, &url];
        page(&if tool == "ab" { real("ab", &words) } else { overfly("ab", &words) });
        [csv, tsv].map(|path| fs::read_to_string(path).unwrap())
    };
    let ([our_csv, our_tsv], [their_csv, their_tsv]) = (files("overfly"), files("ab"));
    assert_eq!(shape(&our_csv), shape(&their_csv));
    let columns =
        |table: &str| -> Vec<usize> { table.lines().map(|line| line.split('\t').count()).collect() };
    assert_eq!(columns(&our_tsv), columns(&their_tsv));
    assert_eq!(our_tsv.lines().next(), their_tsv.lines().next());
    // Quickest first, in both.
    let totals: Vec<u64> =
        our_tsv.lines().skip(1).map(|line| line.split('\t').nth(4).unwrap().parse().unwrap()).collect();
    assert!(totals.is_sorted(), "{totals:?}");
    let seconds =
        |table: &str| -> u64 { table.lines().nth(1).unwrap().split('\t').nth(1).unwrap().parse().unwrap() };
    assert!(seconds(&our_tsv).abs_diff(seconds(&their_tsv)) < 60);
}

#[test]
fn failures_end_the_run_as_in_ab_unless_told_otherwise() {
    let server = Server::start();
    let reset = server.url("/reset");
    for words in [&["-n", "20", &reset][..], &["-n", "20", "-c", "2", "-k", &reset]] {
        let ours = overfly("ab", words);
        assert_eq!(ours.status.code(), Some(1));
        assert!(
            text(&ours.stderr).contains("apr_socket_recv: Connection reset by peer"),
            "{}",
            text(&ours.stderr)
        );
        assert!(!real("ab", words).status.success());
    }
    for flag in ["-r", "--keep-going"] {
        let ours = overfly("ab", &["-q", "-n", "20", flag, &reset]);
        let said = text(&ours.stdout);
        assert_eq!(ours.status.code(), Some(1), "nothing succeeded: {said}");
        assert!(
            said.contains(
                "Failed requests:        20\n   (Connect: 0, Receive: 20, Length: 0, Exceptions: 0)\n"
            ),
            "{said}"
        );
    }
    let closed = "http://127.0.0.1:1/";
    let refused = "apr_socket_recv: Connection refused (111)";
    let ours = overfly("ab", &["-n", "50", closed]);
    assert_eq!(ours.status.code(), Some(1));
    assert!(text(&ours.stderr).contains(refused), "{}", text(&ours.stderr));
    let theirs = real("ab", &["-n", "50", closed]);
    assert!(text(&theirs.stderr).contains(refused), "{}", text(&theirs.stderr));
    for words in [&["-n", "50", "-r", closed], &["-n", "50", "-k", "-r", closed]] as [&[&str]; 2] {
        let ours = overfly("ab", words);
        assert_eq!(ours.status.code(), Some(1));
        assert!(text(&ours.stdout).contains("(Connect: 50, Receive: 0,"), "{}", text(&ours.stdout));
        assert!(real("ab", words).status.success());
    }
    // No connection for another reason: nobody speaks TLS there.
    let secure = server.url("/").replace("http:", "https:");
    let ours = overfly("ab", &["-n", "50", "-c", "20", "-s", "1", &secure]);
    assert_eq!(ours.status.code(), Some(1));
    assert!(text(&ours.stderr).contains("Test aborted after 10 failures"), "{}", text(&ours.stderr));
    let ours = overfly("ab", &["-q", "-n", "30", "--keep-going", closed]);
    assert_eq!(ours.status.code(), Some(1));
    assert!(text(&ours.stdout).contains("(Connect: 30, Receive: 0,"), "{}", text(&ours.stdout));
}

#[test]
fn wrong_values_are_said_of_the_option_that_was_typed() {
    for (option, value) in [("-t", "0"), ("-t", "soon"), ("-s", "x"), ("--threads", "0"), ("-c", "none")] {
        let ours = overfly("ab", &[option, value, "http://127.0.0.1:1/"]);
        assert_eq!(ours.status.code(), Some(2));
        let said = text(&ours.stderr);
        assert!(said.starts_with(&format!("overfly load ab: {option} {value}: expected ")), "{said}");
    }
}

#[test]
fn an_expected_size_and_the_number_of_successes() {
    let server = Server::start();
    let url = server.url("/");
    let ours = overfly("ab", &["-q", "-n", "20", "--expect-size", "13", "--successes", &url]);
    let said = text(&ours.stdout);
    assert_eq!(ours.status.code(), Some(1), "{said}");
    assert!(said.contains("Document Length:        13 bytes\n"), "{said}");
    assert!(
        said.contains("(Connect: 0, Receive: 0, Length: 20, Exceptions: 0)\nSuccessful requests:    0\n"),
        "{said}"
    );
    let said = page(&overfly("ab", &["-q", "-n", "20", "--expect-size", "12", "--successes", &url]));
    assert!(said.contains("Failed requests:        0\nSuccessful requests:    20\n"), "{said}");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    for (words, part) in [
        (&["-b", "1000", "http://127.0.0.1/"][..], "-b 1000"),
        (&["-Z", "x", "http://127.0.0.1/"], "-Z x"),
        (&["-f", "TLS1", "http://127.0.0.1/"], "-f TLS1"),
        (&["-I", "http://127.0.0.1/"], "-I: expected"),
        (&["-E", "x", "http://127.0.0.1/"], "-E x"),
        (&["-n", "50", "-c", "60", "http://127.0.0.1/"], "-c 60"),
        (&["-n", "none", "http://127.0.0.1/"], "-n none"),
        (&["-p", "no-such-file", "http://127.0.0.1/"], "-p no-such-file"),
        (&["-e", "no/such/folder", "http://127.0.0.1/"], "-e no/such/folder"),
        (&["-X", "a/b", "http://127.0.0.1/"], "-X a/b"),
        (&["-B", "here", "http://127.0.0.1/"], "-B here"),
        (&["-C", "a\nb", "http://127.0.0.1/"], "-C a\\nb"),
        (&["http://127.0.0.1:99999/"], "URL http://127.0.0.1:99999/"),
        (&[], "URL"),
    ] {
        let output = overfly("ab", words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{words:?}: {said}");
    }
    assert!(page(&overfly("ab", &["-V"])).starts_with("This is ApacheBench, Version 2.3 <overfly "));
}
