//! `https://`: certificates that are to be trusted and others, over kernel sockets, against rustls in this process.

mod secure;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use overfly_load::http::{Rate, Report, Settings, Target, run};

/// A server on loopback whose certificate is for `name`, and the certificate as PEM.
fn server(name: &str, content: usize) -> (SocketAddr, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, secure::serve_on(listener, name, content))
}

fn load(address: SocketAddr, change: impl FnOnce(&mut Settings)) -> Report {
    let mut settings = Settings::new(Target::parse(&format!("https://{address}/")).unwrap());
    settings.duration = None;
    settings.requests = Some(200);
    settings.connections = 4;
    settings.timeout = Duration::from_secs(20);
    change(&mut settings);
    run(&settings, |_| {}).unwrap()
}

/// A file that goes with the test.
struct Pem(tempfile::NamedTempFile);

impl Pem {
    fn new(text: &str) -> Pem {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Pem(file)
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }
}

#[test]
fn requests_over_trusted_connections() {
    for content in [0, 1000, 300_000] {
        let (address, pem) = server("127.0.0.1", content);
        let pem = Pem::new(&pem);
        for close in [false, true] {
            let report = load(address, |settings| {
                settings.ca_file = Some(pem.path());
                settings.close = close;
                settings.expect_size = Some(content as u64);
            });
            assert_eq!((report.succeeded, report.failed_total), (200, 0), "{report}");
            assert_eq!(report.connections_made, if close { 200 } else { 4 });
        }
    }
}

#[test]
fn an_open_loop_over_tls() {
    let (address, _) = server("127.0.0.1", 100);
    let report = load(address, |settings| {
        settings.insecure = true;
        settings.requests = None;
        settings.rate = Some(Rate::constant(300.0));
        settings.duration = Some(Duration::from_secs(1));
    });
    assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (300, 0, 0), "{report}");
}

fn said(report: &Report, words: &str) {
    assert!(report.remarks.iter().any(|remark| remark.contains(words)), "{words}: {report}");
}

#[test]
fn who_is_not_to_be_trusted_is_counted() {
    let (address, _) = server("127.0.0.1", 10);
    let (_, other) = server("127.0.0.1", 10);
    let other = Pem::new(&other);
    let report = load(address, |settings| {
        settings.requests = Some(20);
        settings.ca_file = Some(other.path());
    });
    assert_eq!((report.succeeded, report.failed["tls"]), (0, 20), "{report}");
    said(&report, "--insecure takes any certificate");
    let report = load(address, |settings| settings.insecure = true);
    assert_eq!(report.succeeded, 200, "{report}");

    let (address, pem) = server("somebody.else", 10);
    let pem = Pem::new(&pem);
    let report = load(address, |settings| {
        settings.requests = Some(20);
        settings.ca_file = Some(pem.path());
    });
    assert_eq!(report.failed["tls"], 20, "another name: {report}");
    said(&report, "for another name than the URL's");
}

#[test]
fn a_server_without_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"220 mail ESMTP\r\n");
        }
    });
    let report = load(address, |settings| {
        settings.insecure = true;
        settings.requests = Some(20);
    });
    assert_eq!((report.succeeded, report.failed_total), (0, 20), "{report}");
    assert!(report.failed["tls"] > 0);
    said(&report, "no TLS: try http:// instead.");
}

#[test]
fn files_that_hold_no_certificates_are_said_before_the_run() {
    let empty = Pem::new("nothing\n");
    let mut settings = Settings::new(Target::parse("https://127.0.0.1:1/").unwrap());
    for path in [empty.path(), PathBuf::from("no/such/file")] {
        settings.ca_file = Some(path);
        let error = run(&settings, |_| {}).unwrap_err();
        assert!(error.is_usage() && error.to_string().starts_with("--ca-file"), "{error}");
    }
}
