//! The examples of docs/load.md, run as they stand but for where they go and how long they take.

mod secure;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use clap::Parser;
use overfly_load::Link;
use overfly_load::http::{HttpArgs, Store, Target, run};
use overfly_load::serve::{Server, Settings};
use overfly_testing::manual::words;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    http: HttpArgs,
}

/// Serves each connection in a thread of its own.
fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers each GET of Redis's, of the key `key`, with `hello`.
fn serve_redis(mut stream: TcpStream) {
    let mut request = *b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let expected = request;
    while stream.read_exact(&mut request).is_ok() {
        assert_eq!(request, expected);
        if stream.write_all(b"$5\r\nhello\r\n").is_err() {
            return;
        }
    }
}

/// The same of memcached.
fn serve_memcached(mut stream: TcpStream) {
    let mut request = *b"get key\r\n";
    let expected = request;
    while stream.read_exact(&mut request).is_ok() {
        assert_eq!(request, expected);
        if stream.write_all(b"VALUE key 0 5\r\nhello\r\nEND\r\n").is_err() {
            return;
        }
    }
}

/// Answers each request with `hello`, and closes where it is asked to.
fn serve(mut stream: TcpStream) {
    let mut pending = Vec::new();
    let mut buffer = [0; 16_384];
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        pending.extend_from_slice(&buffer[..received]);
        while let Some(end) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(pending.drain(..end + 4).collect()).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.map_or(0, |digits| digits.parse().unwrap());
            while pending.len() < length {
                let received = stream.read(&mut buffer).unwrap();
                pending.extend_from_slice(&buffer[..received]);
            }
            pending.drain(..length);
            let content = if head.starts_with("HEAD ") { "" } else { "hello" };
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{content}");
            if stream.write_all(response.as_bytes()).is_err() || head.contains("Connection: close") {
                return;
            }
        }
    }
}

/// A server at the manual's address, and the way to it.
fn serve_over_memif(example: &str) -> (Server, Link) {
    let link =
        Link::parse(&format!("memif:@overfly-example-{}-{}", example.len(), std::process::id())).unwrap();
    let listen = "10.77.0.1:80".parse().unwrap();
    (Server::start(Settings { listen, link: link.clone(), ..Settings::default() }).unwrap(), link)
}

#[test]
fn every_example_of_the_manual_works() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/load.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let plain = server(serve);
    let redis = server(serve_redis);
    let memcached = server(serve_memcached);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let secure = listener.local_addr().unwrap();
    secure::serve_on(listener, "127.0.0.1", 5);
    let examples: Vec<&str> = manual.lines().filter(|line| line.starts_with("overfly load http ")).collect();
    assert!(examples.len() > 20, "{} examples", examples.len());
    for example in examples {
        println!("{example}");
        let words = words(example).into_iter().skip(2);
        let mut settings = Command::try_parse_from(words).unwrap().http.settings().unwrap();
        for target in &mut settings.targets {
            let (scheme, address) = match (target.key(), target.is_secure()) {
                (Some((Store::Redis, _)), _) => ("redis", redis),
                (Some((Store::Memcached, _)), _) => ("memcached", memcached),
                (None, true) => ("https", secure),
                (None, false) => ("http", plain),
            };
            let weight = target.weight;
            *target = Target::parse(&format!("{scheme}://{address}{}", target.path())).unwrap();
            target.weight = weight;
        }
        settings.warmup = settings.warmup.min(Duration::from_millis(50));
        settings.duration = settings.duration.map(|duration| duration.min(Duration::from_millis(300)));
        settings.requests = settings.requests.map(|requests| requests.min(1000));
        // The address of the other links' lab is not here, nor are its processors.
        settings.cpus.clear();
        let shared = matches!(settings.link, Link::Memif(_)).then(|| serve_over_memif(example));
        settings.link = match &shared {
            Some((_, link)) => link.clone(),
            None => Link::Kernel,
        };
        if shared.is_some() {
            settings.targets = vec![Target::parse(example.rsplit(' ').next().unwrap()).unwrap()];
        }
        settings.check().unwrap();
        let report = run(&settings, |_| {}).unwrap();
        assert!(report.succeeded > 0, "{example}\n{report}");
        assert!(report.failed["wrong_content"] + report.failed["wrong_size"] == 0, "{example}\n{report}");
    }
}
