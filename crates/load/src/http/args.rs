//! The command line of `overfly load http`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Arrivals, Ending, Hostility, Leg, Rate, Settings, Target};
use crate::arguments::{ReceiveArgs, count, cpus, header, number, per_s, ports, sources, time};
use crate::error::Error;
use crate::link::{Link, Network};
use crate::output::OutputArgs;
use crate::search::SearchArgs;
use crate::step::{ShardArgs, StepArgs};

/// Loads an HTTP server and reports requests/s, latency and failures.
///
/// Without -R it is a closed loop: each of -c connections has its next request when the one before is over. With -R it is
/// an open loop: requests are due by a schedule whatever the server does, and latency counts from when they were due.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct HttpArgs {
    /// What to request: http://HOST[:PORT][/PATH], or https://; several are mixed. redis://HOST[:PORT]/KEY,
    /// memcached://HOST[:PORT]/KEY: that value, of a Redis server or a memcached
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
    /// How often each URL comes up beside the others, in their order: 3,1
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub weights: Option<String>,

    /// Threads; over a user-level link each has a stack of its own
    #[arg(short = 't', long, value_name = "N", default_value = "1", allow_hyphen_values = true, help_heading = LOAD)]
    pub threads: String,
    /// Connections over all threads
    #[arg(short = 'c', long, value_name = "N", default_value = "10", allow_hyphen_values = true, help_heading = LOAD)]
    pub connections: String,
    /// How long to measure: 10s, 500ms, 2m [default: 10s, or as long as -n, --ramp or --steps take]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true, help_heading = LOAD)]
    pub duration: Option<String>,
    /// Stop after this many requests, failed ones counted too
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true, help_heading = LOAD)]
    pub requests: Option<String>,
    /// Run this long before anything is counted
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true, help_heading = LOAD)]
    pub warmup: String,
    /// A request that takes longer has failed
    #[arg(long, value_name = "TIME", default_value = "2s", allow_hyphen_values = true, help_heading = LOAD)]
    pub timeout: String,
    /// Pin thread after thread to these processors, and over veth what the kernel receives for them: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true, help_heading = LOAD)]
    pub cpus: Option<String>,

    /// Requests per second over all threads: 5k, 0.5
    #[arg(short = 'R', long, value_name = "RATE", allow_hyphen_values = true, help_heading = RATE)]
    pub rate: Option<String>,
    /// A rate that grows, or falls, evenly: 10k:100k/60s
    #[arg(long, value_name = "FROM:TO/TIME", allow_hyphen_values = true, help_heading = RATE)]
    pub ramp: Option<String>,
    /// One rate after the other, each for this time: 10k,20k,30k/10s
    #[arg(long, value_name = "RATES/TIME", allow_hyphen_values = true, help_heading = RATE)]
    pub steps: Option<String>,
    /// How requests are spaced: even, or poisson as independent users would send them
    #[arg(long, value_name = "even|poisson", default_value = "even", allow_hyphen_values = true, help_heading = RATE)]
    pub arrivals: String,
    /// Seed of poisson arrivals [default: another one each time; the report says which]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = RATE)]
    pub seed: Option<String>,

    /// The request method [default: GET, or POST where there is a body]
    #[arg(short = 'X', long, value_name = "METHOD", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub method: Option<String>,
    /// One more request header; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub headers: Vec<String>,
    /// The content of each request
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub body: Option<String>,
    /// A file with the content of each request
    #[arg(long, value_name = "FILE", conflicts_with = "body", help_heading = REQUESTS)]
    pub body_file: Option<PathBuf>,
    /// The status that is a success [default: any 2xx or 3xx]
    #[arg(long, value_name = "STATUS", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub expect_status: Option<String>,
    /// The content size that is a success, in bytes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub expect_size: Option<String>,
    /// The SHA-256 of the content that is a success, in hexadecimal
    #[arg(long, value_name = "DIGEST", allow_hyphen_values = true, help_heading = REQUESTS)]
    pub expect_sha256: Option<String>,

    /// A new connection for each request; rst: ended by a reset of ours
    #[arg(long, value_name = "fin|rst", num_args = 0..=1, require_equals = true, default_missing_value = "fin", help_heading = CONNECTIONS)]
    pub close: Option<String>,
    /// A new connection after this many requests
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub requests_per_connection: Option<String>,
    /// Requests under way at once on each connection
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub pipeline: String,
    /// Hold connections as hostile clients do, and see what the server does about it: half-open, connect-only,
    /// slow-headers, slow-body, slow-reader or never-read
    #[arg(long, value_name = "KIND", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub hostile: Option<String>,
    /// How often slow hostile clients do a little
    #[arg(long, value_name = "TIME", default_value = "1s", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub hostile_interval: String,
    /// https: take any certificate
    #[arg(long, help_heading = CONNECTIONS)]
    pub insecure: bool,
    /// https: take certificates signed by those in this file (PEM), not by the system's
    #[arg(long, value_name = "FILE", help_heading = CONNECTIONS)]
    pub ca_file: Option<PathBuf>,
    /// What carries the connections: kernel (sockets); or the user-level stack over xdp (an interface, needs root),
    /// memif:PATH (shared memory with the program that listens there; @NAME is an abstract socket) or tap:NAME (a tap
    /// device, at whose other end is this host's kernel)
    #[arg(long, value_name = "LINK", default_value = "kernel", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub link: String,
    /// The stack's own address with --link memif or tap [default: 10.77.0.2/24]
    #[arg(long, value_name = "ADDRESS/LENGTH", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub address: Option<String>,
    /// The interface for --link xdp [default: the one on the route to the server]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub interface: Option<String>,
    /// How frames come.
    #[command(flatten, next_help_heading = CONNECTIONS)]
    pub receive: ReceiveArgs,
    /// Connect from each of these addresses in turn: 10.77.1.0/24
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub sources: Option<String>,
    /// The local ports that a user-level link takes for itself
    #[arg(long, value_name = "LOW-HIGH", default_value = "10000-32000", allow_hyphen_values = true, help_heading = CONNECTIONS)]
    pub ports: String,

    /// Whether one run is wanted, or a search.
    #[command(flatten)]
    pub search: SearchArgs,
    /// When it begins.
    #[command(flatten)]
    pub step: StepArgs,
    /// How many are started alike.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

const LOAD: &str = "Load";
const RATE: &str = "Open loop";
const REQUESTS: &str = "Requests, and what is a success";
const CONNECTIONS: &str = "Connections";

const EXAMPLES: &str = "Examples:
  overfly load http -c 64 -d 10s http://10.0.0.1/            as many requests as 64 connections can have
  overfly load http -R 5k -c 100 --warmup 2s http://10.0.0.1/  5,000 requests per second, and their latency
  overfly load http --ramp 1k:50k/60s -c 500 http://10.0.0.1/  where does it break?
  overfly load http --close -c 200 http://10.0.0.1/           new connections per second
  overfly load http http://10.0.0.1/a http://10.0.0.1/b --weights 9,1

The exit status is 0 if anything succeeded, 1 if nothing did, and 2 for a wrong option.";

impl HttpArgs {
    /// The settings that these arguments ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first option that is wrong; [`Error::Machine`] for a file that cannot be read.
    pub fn settings(&self) -> Result<Settings, Error> {
        let targets = self.targets()?;
        let first = targets.first().cloned().ok_or_else(|| Error::usage("URL", "", "at least one URL"))?;
        let mut settings = Settings::new(first);
        settings.targets = targets;
        settings.threads = number("-t", &self.threads)?;
        settings.connections = count("-c", &self.connections)? as usize;
        settings.requests = self.requests.as_deref().map(|given| count("-n", given)).transpose()?;
        settings.rate = self.rate()?;
        let duration = self.duration.as_deref().map(|given| time("-d", given)).transpose()?;
        let legs = settings.rate.as_ref().map(Rate::length).filter(|length| !length.is_zero());
        settings.duration = match (duration, settings.requests) {
            (None, Some(_)) => legs,
            (None, None) => legs.or(settings.duration),
            (given, _) => given,
        };
        settings.warmup = time("--warmup", &self.warmup)?;
        settings.timeout = time("--timeout", &self.timeout)?;
        settings.cpus = self.cpus.as_deref().map(cpus).transpose()?.unwrap_or_default();
        self.set_requests(&mut settings)?;
        self.set_connections(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }

    fn targets(&self) -> Result<Vec<Target>, Error> {
        let mut targets = self.urls.iter().map(|url| Target::parse(url)).collect::<Result<Vec<_>, _>>()?;
        if let Some(given) = &self.weights {
            let weights = given
                .split(',')
                .map(|weight| number("--weights", weight))
                .collect::<Result<Vec<u64>, _>>()?;
            if weights.len() != targets.len() {
                let expected = format!("a weight for each of the {} URLs, such as 3,1", targets.len());
                return Err(Error::usage("--weights", given, expected));
            }
            for (target, weight) in targets.iter_mut().zip(weights) {
                target.weight = weight;
            }
        }
        Ok(targets)
    }

    /// The rate of an open loop, if one is asked for in any way.
    fn rate(&self) -> Result<Option<Rate>, Error> {
        let given = [&self.rate, &self.ramp, &self.steps];
        if given.iter().filter(|given| given.is_some()).count() > 1 {
            return Err(Error::usage("-R", "", "one of -R, --ramp and --steps"));
        }
        let legs = if let Some(given) = &self.rate {
            Rate::constant(per_s("-R", given)?).legs
        } else if let Some(given) = &self.ramp {
            vec![ramp(given)?]
        } else if let Some(given) = &self.steps {
            steps(given)?
        } else if self.arrivals != "even" {
            return Err(Error::usage(
                "--arrivals",
                &self.arrivals,
                "a rate beside it: -R, --ramp or --steps",
            ));
        } else {
            return Ok(None);
        };
        let arrivals = match self.arrivals.as_str() {
            "even" => Arrivals::Even,
            "poisson" => Arrivals::Poisson,
            other => return Err(Error::usage("--arrivals", other, "even or poisson")),
        };
        let seed = match &self.seed {
            Some(given) => number("--seed", given)?,
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64 >> 10),
        };
        Ok(Some(Rate { legs, arrivals, seed }))
    }

    fn set_requests(&self, settings: &mut Settings) -> Result<(), Error> {
        settings.headers = self.headers.iter().map(|given| header(given)).collect::<Result<_, _>>()?;
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => std::fs::read(path)
                .map_err(|error| Error::machine(format!("--body-file {}", path.display()), error))?,
            (None, None) => Vec::new(),
        };
        let default = if self.body.is_some() || self.body_file.is_some() { "POST" } else { "GET" };
        settings.method = self.method.as_deref().map_or(Ok(default), method)?.to_string();
        settings.body = body.into();
        settings.expect_status = self
            .expect_status
            .as_deref()
            .map(|given| match number("--expect-status", given)? {
                status @ 200..=999 => Ok(status),
                _ => Err(Error::usage("--expect-status", given, "a status from 200 to 999")),
            })
            .transpose()?;
        settings.expect_size =
            self.expect_size.as_deref().map(|given| count("--expect-size", given)).transpose()?;
        settings.expect_sha256 = self.expect_sha256.as_deref().map(digest).transpose()?;
        Ok(())
    }

    fn set_connections(&self, settings: &mut Settings) -> Result<(), Error> {
        settings.close = self.close.is_some();
        settings.ending = match self.close.as_deref() {
            None | Some("fin") => Ending::Fin,
            Some("rst") => Ending::Reset,
            Some(other) => return Err(Error::usage("--close", other, "--close, --close=fin or --close=rst")),
        };
        settings.requests_per_connection = self
            .requests_per_connection
            .as_deref()
            .map(|given| count("--requests-per-connection", given))
            .transpose()?;
        settings.hostile = self.hostile.as_deref().map(hostility).transpose()?;
        settings.hostile_interval = time("--hostile-interval", &self.hostile_interval)?;
        settings.pipeline = number("--pipeline", &self.pipeline)?;
        settings.insecure = self.insecure;
        settings.ca_file.clone_from(&self.ca_file);
        settings.link = Link::parse(&self.link)?;
        settings.network = Network::own(self.address.as_deref(), &settings.link)?;
        settings.interface.clone_from(&self.interface);
        settings.receive_offload = self.receive.offload(Some(&settings.link))?;
        settings.sources = self.sources.as_deref().map(sources).transpose()?;
        settings.ports = ports(&self.ports)?;
        Ok(())
    }
}

/// `FROM:TO/TIME`.
fn ramp(given: &str) -> Result<Leg, Error> {
    const OPTION: &str = "--ramp";
    let parts = given.split_once('/').and_then(|(rates, length)| Some((rates.split_once(':')?, length)));
    let ((from, to), length) =
        parts.ok_or_else(|| Error::usage(OPTION, given, "FROM:TO/TIME, such as 10k:100k/60s"))?;
    Ok(Leg {
        from_per_s: per_s(OPTION, from)?,
        to_per_s: per_s(OPTION, to)?,
        length: positive(OPTION, length)?,
    })
}

/// `RATE,RATE,…/TIME`.
fn steps(given: &str) -> Result<Vec<Leg>, Error> {
    const OPTION: &str = "--steps";
    let (rates, length) = given
        .split_once('/')
        .ok_or_else(|| Error::usage(OPTION, given, "RATES/TIME, such as 10k,20k,30k/10s"))?;
    let length = positive(OPTION, length)?;
    let leg = |rate| per_s(OPTION, rate).map(|rate| Leg { from_per_s: rate, to_per_s: rate, length });
    rates.split(',').map(leg).collect()
}

fn positive(option: &'static str, given: &str) -> Result<Duration, Error> {
    match time(option, given)? {
        Duration::ZERO => Err(Error::usage(option, given, "a time above 0")),
        time => Ok(time),
    }
}

/// RFC 9110 section 9.1: a method is a token.
fn method(given: &str) -> Result<&str, Error> {
    let is_token =
        !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_token {
        Ok(given)
    } else {
        Err(Error::usage("-X", given.escape_debug(), "a method such as GET or PUT"))
    }
}

fn hostility(given: &str) -> Result<Hostility, Error> {
    let found = Hostility::ALL.into_iter().find(|kind| kind.name() == given);
    found.ok_or_else(|| {
        let kinds = Hostility::ALL.map(Hostility::name).join(", ");
        Error::usage("--hostile", given, format!("one of {kinds}"))
    })
}

/// 64 hexadecimal digits.
fn digest(given: &str) -> Result<[u8; 32], Error> {
    let byte = |at: usize| u8::from_str_radix(given.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    bytes.filter(|_| given.len() == 64).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        Error::usage("--expect-sha256", given, "64 hexadecimal digits, as sha256sum prints them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use overfly_steer::ReceiveOffload;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        http: HttpArgs,
    }

    fn settings(line: &str) -> Result<Settings, String> {
        let words = std::iter::once("http").chain(line.split(' '));
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        command.http.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_that_people_know() {
        let s = settings("-t2 -c 1k -d 1.5s -n 1M --warmup 500ms --timeout 3 --close --cpus 0,2-3 --expect-status 204 --expect-size 10k http://127.0.0.1:81/x").unwrap();
        assert_eq!((s.threads, s.connections, s.requests), (2, 1000, Some(1_000_000)));
        assert_eq!(s.duration, Some(Duration::from_millis(1500)));
        assert_eq!(s.warmup, Duration::from_millis(500));
        assert_eq!(s.timeout, Duration::from_secs(3));
        assert!(s.close);
        assert_eq!(s.cpus, [0, 2, 3]);
        assert_eq!((s.expect_status, s.expect_size), (Some(204), Some(10_000)));
        assert_eq!(s.link, Link::Kernel);
        let s = settings("http://a --link xdp --interface eth0 --ports 20000-30000").unwrap();
        assert_eq!((s.link, s.interface.as_deref()), (Link::Xdp, Some("eth0")));
        assert_eq!(s.ports, 20_000..=30_000);
        assert_eq!(s.receive_offload, ReceiveOffload::Packets);
        let s = settings("http://a --link xdp --receive-offload segments").unwrap();
        assert_eq!(s.receive_offload, ReceiveOffload::Segments);
        for (line, named) in [
            (
                "--link xdp --receive-offload all http://a",
                "--receive-offload all: expected packets or segments",
            ),
            (
                "--receive-offload segments http://a",
                "--receive-offload segments: expected --link xdp with it",
            ),
        ] {
            assert!(settings(line).unwrap_err().to_string().contains(named), "{line}");
        }
        assert_eq!(settings("-n 5 http://a").unwrap().duration, None);
    }

    #[test]
    fn rates_ramps_and_steps() {
        let rate = |line: &str| settings(line).unwrap().rate.unwrap();
        assert_eq!(rate("-R 5k --seed 1 http://a").legs, Rate::constant(5000.0).legs);
        assert_eq!(rate("-R 0.1 http://a").at(Duration::ZERO), 0.1);
        let poisson = rate("-R 1 --arrivals poisson --seed 7 http://a");
        assert_eq!((poisson.arrivals, poisson.seed), (Arrivals::Poisson, 7));
        let s = settings("--ramp 10k:100k/60s http://a").unwrap();
        assert_eq!(s.duration, Some(Duration::from_secs(60)));
        assert_eq!(s.rate.unwrap().at(Duration::from_secs(30)), 55_000.0);
        let s = settings("--steps 10,20.5,1k/2s -d 10s http://a").unwrap();
        assert_eq!(s.duration, Some(Duration::from_secs(10)));
        let rate = s.rate.unwrap();
        assert_eq!([1, 3, 5, 9].map(|s| rate.at(Duration::from_secs(s))), [10.0, 20.5, 1000.0, 1000.0]);
    }

    #[test]
    fn requests_connections_and_several_urls() {
        let s = settings("http://a/x http://b/y https://a/z --weights 3,1,2 -c 9").unwrap();
        assert_eq!(s.targets.iter().map(|target| target.weight).collect::<Vec<_>>(), [3, 1, 2]);
        let s = settings("--body abc --close=rst --pipeline 4 --insecure http://a").unwrap();
        assert_eq!(
            (s.method.as_str(), &s.body[..], s.close, s.ending),
            ("POST", &b"abc"[..], true, Ending::Reset)
        );
        assert_eq!((s.pipeline, s.insecure), (4, true));
        let s = settings("--requests-per-connection 1k -X HEAD http://a").unwrap();
        assert_eq!((s.requests_per_connection, s.method.as_str()), (Some(1000), "HEAD"));
        let s = settings(&format!("--expect-sha256 {} http://a", "0A".repeat(32))).unwrap();
        assert_eq!(s.expect_sha256, Some([10; 32]));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (line, start) in [
            ("-t x http://a", "-t x: expected "),
            ("-t -1 http://a", "-t -1: expected "),
            ("-c 1x http://a", "-c 1x: expected "),
            ("-c 99999999999999999999 http://a", "-c 99999999999999999999: expected "),
            ("-d 1y http://a", "-d 1y: expected "),
            ("-d -1s http://a", "-d -1s: expected "),
            ("-d inf http://a", "-d inf: expected "),
            ("-n 0 http://a", "-n 0: expected "),
            ("--link dpdk http://a", "--link dpdk: expected "),
            ("--cpus 3-1 http://a", "--cpus 3-1: expected "),
            ("--ports 5-1 http://a", "--ports 5-1: expected "),
            ("--expect-status 100 http://a", "--expect-status 100: expected "),
            ("-H nocolon http://a", "-H nocolon: expected "),
            ("ftp://a", "URL ftp://a: expected "),
            ("http://a http://b --weights 1", "--weights 1: expected "),
            ("-R -5 http://a", "-R -5: expected "),
            ("-R 0 http://a", "-R: expected "),
            ("-R 5 --ramp 1:2/3 http://a", "-R: expected "),
            ("--ramp 1:2 http://a", "--ramp 1:2: expected "),
            ("--steps 1,2/0s http://a", "--steps 0s: expected "),
            ("-R 5 --arrivals odd http://a", "--arrivals odd: expected "),
            ("--arrivals poisson http://a", "--arrivals poisson: expected a rate "),
            ("--close=now http://a", "--close now: expected "),
            ("--close --requests-per-connection 5 http://a", "--requests-per-connection 5: expected "),
            ("--sources 10.1.1.0/40 http://a", "--sources 10.1.1.0/40: expected "),
            ("--hostile rude http://a", "--hostile rude: expected "),
            ("--hostile half-open http://a", "--hostile half-open: expected "),
            ("--hostile slow-body -n 5 http://a", "--hostile slow-body: expected "),
            ("--hostile slow-body --hostile-interval 0 http://a", "--hostile-interval 0: expected "),
            ("--pipeline 0 http://a", "--pipeline 0: expected "),
            ("--expect-sha256 12 http://a", "--expect-sha256 12: expected "),
            ("-X G?T http://a", "-X G?T: expected "),
            ("-c 1 http://a http://b", "-c 1: expected "),
        ] {
            let text = settings(line).unwrap_err();
            assert!(text.starts_with(start) && !text.contains('\n'), "{line}: {text}");
        }
        assert!(header("a: b\r\nc: d").is_err());
    }
}
