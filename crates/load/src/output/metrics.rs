//! `--metrics ADDR`: what a run has counted so far, for Prometheus to scrape (text exposition format 0.0.4).
//!
//! The server is a thread with a kernel socket, so that asking costs the generator's threads nothing. Times and sizes
//! are in base units: seconds, bytes. Counters go on over the runs of one command.

use std::fmt::{self, Write as _};
use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::net::Shutdown;

use crate::error::Error;
use crate::record::{Failure, Record};

/// Upper bounds of buckets: 1, 2 and 5 of each power of ten from 10 µs to 10 s.
const BUCKETS_NS: [u64; 19] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
/// A scraper that takes longer to ask is turned away, so that the next one has its turn.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const HEAD_MAX: usize = 8192;

/// What is shown.
#[derive(Debug)]
struct Counted {
    url: String,
    link: &'static str,
    record: Record,
    open: u64,
    warming_up: bool,
}

/// What requests of a run have counted, served.
#[derive(Debug)]
pub(crate) struct Metrics {
    counted: Arc<Mutex<Counted>>,
    page: Page,
}

/// A page of metrics, served until this is dropped.
#[derive(Debug)]
pub struct Page {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Listens on `address`.
    pub(crate) fn serve(address: &str, url: &str, link: &'static str) -> Result<Metrics, Error> {
        let counted =
            Counted { url: url.to_string(), link, record: Record::new(), open: 0, warming_up: true };
        let counted = Arc::new(Mutex::new(counted));
        let shown = counted.clone();
        let page = Page::serve(address, move || lock(&shown).to_string())?;
        Ok(Metrics { counted, page })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.page.address()
    }

    /// Adds what one interval counted.
    pub(crate) fn add(&self, record: &Record) {
        lock(&self.counted).record.merge(record);
    }

    /// How things stand now.
    pub(crate) fn set(&self, open: u64, warming_up: bool) {
        let mut counted = lock(&self.counted);
        counted.open = open;
        counted.warming_up = warming_up;
    }
}

impl Page {
    /// Listens on `address`; `text` is asked for whenever somebody wants the page.
    ///
    /// # Errors
    /// That it cannot listen there.
    pub fn serve(address: &str, text: impl Fn() -> String + Send + 'static) -> Result<Page, Error> {
        let places = address.to_socket_addrs().map_err(|error| {
            Error::usage(
                "--metrics",
                address,
                format!("ADDRESS:PORT to listen on, such as 127.0.0.1:9100 ({error})"),
            )
        })?;
        let places: Vec<SocketAddr> = places.collect();
        let listener = TcpListener::bind(&places[..])
            .map_err(|error| Error::machine(format!("--metrics {address}"), refused(&error)))?;
        let listener = Arc::new(listener);
        let theirs = listener.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".to_string())
            .spawn(move || answer_all(&theirs, &text))
            .map_err(|error| Error::machine("starting the thread of --metrics", error))?;
        Ok(Page { listener, thread: Some(thread) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Why nobody can listen there, and what to do.
fn refused(error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "the address is none of this network namespace's; `ip address` shows them, and 0.0.0.0 is all of them"
        }
        io::ErrorKind::AddrInUse => {
            "another program listens there, which `ss -ltnp` names: end it, or take another port"
        }
        io::ErrorKind::PermissionDenied => "this port is root's: take one from 1024 on",
        _ => "nobody can listen there",
    };
    format!("{what} ({error})")
}

impl Drop for Page {
    fn drop(&mut self) {
        // Wakes accept, which then fails: tcp(7).
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Counters hold whatever panicked elsewhere.
fn lock(counted: &Mutex<Counted>) -> MutexGuard<'_, Counted> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_all(listener: &TcpListener, text: &dyn Fn() -> String) {
    loop {
        match listener.accept() {
            // A scraper that goes away before its answer has lost nothing but that.
            Ok((stream, _)) => drop(answer(stream, text)),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => return,
            // The connection was gone, or descriptors have run out: others may do better in a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn answer(mut stream: TcpStream, page: &dyn Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + ASK_TIMEOUT;
    stream.set_write_timeout(Some(ASK_TIMEOUT))?;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if head.len() > HEAD_MAX || left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            received => head.extend_from_slice(&buffer[..received]),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, text) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", page()),
        (b"GET" | b"HEAD", _) => ("404 Not Found", "The metrics are at /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".to_string()),
    };
    let length = text.len();
    let body = if method == b"HEAD" { "" } else { &text };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.record;
        family(f, "info", "gauge", "What is loaded, and how.")?;
        writeln!(
            f,
            "overfly_load_info{{url=\"{}\",link=\"{}\",version=\"{}\"}} 1",
            Label(&self.url),
            self.link,
            env!("CARGO_PKG_VERSION")
        )?;
        let mut simple = |name: &str, kind: &str, help: &str, value: u64| {
            family(f, name, kind, help)?;
            writeln!(f, "overfly_load_{name} {value}")
        };
        simple("warming_up", "gauge", "1 while nothing is counted yet.", u64::from(self.warming_up))?;
        simple("connections_open", "gauge", "Connections that are open.", self.open)?;
        simple("sent_total", "counter", "Requests sent.", record.sent)?;
        simple(
            "succeeded_total",
            "counter",
            "Requests with a complete and expected response.",
            record.succeeded,
        )?;
        simple("received_bytes_total", "counter", "Stream bytes received, heads included.", record.bytes_in)?;
        simple("transmitted_bytes_total", "counter", "Stream bytes sent.", record.bytes_out)?;
        family(f, "failed_total", "counter", "Requests that failed, by kind.")?;
        for kind in Failure::ALL {
            writeln!(f, "overfly_load_failed_total{{kind=\"{}\"}} {}", kind.name(), record.failures(kind))?;
        }
        for (name, help, histogram) in [
            (
                "latency_seconds",
                "Intended start of a request to the end of its response.",
                &record.latency_ns,
            ),
            ("service_seconds", "Request sent to the end of its response.", &record.service_ns),
            ("first_byte_seconds", "Request sent to the first byte of its response.", &record.first_byte_ns),
            ("connect_seconds", "SYN to established.", &record.connect_ns),
            ("send_lag_seconds", "How late the generator itself sent.", &record.send_lag_ns),
        ] {
            distribution(f, name, help, histogram)?;
        }
        Ok(())
    }
}

fn family(f: &mut fmt::Formatter<'_>, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(f, "# HELP overfly_load_{name} {help}\n# TYPE overfly_load_{name} {kind}")
}

/// Buckets are cumulative. A value counts as below a bound to the histogram's precision, 0.1 %.
fn distribution(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    help: &str,
    histogram: &Histogram<u64>,
) -> fmt::Result {
    family(f, name, "histogram", help)?;
    for bound_ns in BUCKETS_NS {
        let below = histogram.count_between(0, bound_ns);
        writeln!(f, "overfly_load_{name}_bucket{{le=\"{}\"}} {below}", bound_ns as f64 / 1e9)?;
    }
    let count = histogram.len();
    let sum_s = histogram.mean() * count as f64 / 1e9;
    writeln!(f, "overfly_load_{name}_bucket{{le=\"+Inf\"}} {count}")?;
    writeln!(f, "overfly_load_{name}_sum {sum_s}\noverfly_load_{name}_count {count}")
}

/// A label's value, escaped.
#[derive(Debug)]
pub struct Label<'a>(pub &'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn value(text: &str, series: &str) -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{series} ")));
        line.unwrap_or_else(|| panic!("{series} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn what_was_counted_is_served() {
        let metrics = Metrics::serve("127.0.0.1:0", "http://a/?\"x\\y\"", "kernel").unwrap();
        let address = metrics.address().unwrap();
        let mut record = Record::new();
        for latency_us in 1..=1000u64 {
            record.succeeded += 1;
            record.latency_ns.record(latency_us * 1000).unwrap();
        }
        record.fail(Failure::Timeout);
        record.bytes_in = 5000;
        metrics.add(&record);
        metrics.add(&record);
        metrics.set(7, false);
        let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains(r#"url="http://a/?\"x\\y\"""#), "{text}");
        assert_eq!(value(&text, "overfly_load_succeeded_total"), 2000.0);
        assert_eq!(value(&text, "overfly_load_connections_open"), 7.0);
        assert_eq!(value(&text, "overfly_load_received_bytes_total"), 10_000.0);
        assert_eq!(value(&text, "overfly_load_failed_total{kind=\"timeout\"}"), 2.0);
        assert_eq!(value(&text, "overfly_load_latency_seconds_bucket{le=\"0.0001\"}"), 200.0);
        assert_eq!(value(&text, "overfly_load_latency_seconds_bucket{le=\"+Inf\"}"), 2000.0);
        assert_eq!(value(&text, "overfly_load_latency_seconds_count"), 2000.0);
        assert!((value(&text, "overfly_load_latency_seconds_sum") - 1.001).abs() < 0.001);
    }

    #[test]
    fn other_requests_are_answered_too() {
        let metrics = Metrics::serve("127.0.0.1:0", "http://a", "xdp").unwrap();
        let address = metrics.address().unwrap();
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        let head = ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(address, "GET /metrics?x=y HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        // One that never comes to the end of its question gets no answer, and keeps nobody else from theirs.
        let mut endless = TcpStream::connect(address).unwrap();
        let _ = endless.write_all("x".repeat(2 * HEAD_MAX).as_bytes());
        assert_eq!(endless.read(&mut [0]).unwrap_or(0), 0);
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn the_port_is_free_again_after_it() {
        let metrics = Metrics::serve("127.0.0.1:0", "http://a", "xdp").unwrap();
        let address = metrics.address().unwrap();
        let error = Metrics::serve(&address.to_string(), "http://a", "xdp").unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("--metrics 127.0.0.1:") && said.contains("another program listens"),
            "{said}"
        );
        drop(metrics);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn an_address_of_another_machine_is_said_to_be_that() {
        // TEST-NET-1 (RFC 5737) is nobody's.
        let error = Metrics::serve("192.0.2.1:9100", "http://a", "xdp").unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("none of this network namespace's") && !said.contains("ADDRESS:PORT"),
            "{said}"
        );
        assert!(!error.is_usage(), "it may come to be this machine's: {said}");
        let error = Metrics::serve("192.0.2.1", "http://a", "xdp").unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("expected ADDRESS:PORT"), "{error}");
    }
}
