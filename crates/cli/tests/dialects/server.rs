//! A small HTTP server on loopback that remembers what it was asked.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Method, resource and version.
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub(crate) fn path(&self) -> &str {
        self.line().split(' ').nth(1).unwrap_or_default()
    }

    /// The first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn keeps_alive(&self) -> bool {
        let connection = self.field("Connection").unwrap_or_default().to_ascii_lowercase();
        if self.line().ends_with("HTTP/1.0") { connection == "keep-alive" } else { connection != "close" }
    }
}

/// Answers `/` with 12 bytes, `/missing` with 404, `/authenticate` with a token, `/slow` never, `/reset` with a reset, and
/// `/growing` with one byte more each time. The last 2000 requests are kept.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let log = log.clone();
                std::thread::spawn(move || serve(stream, &log));
            }
        });
        Server { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What was asked since the last call.
    pub(crate) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// Every request of a connection, in turn.
fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>) {
    let mut received = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        let Some((request, length)) = parse(&received) else {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
                _ => return,
            }
            continue;
        };
        received.drain(..length);
        let number = {
            let mut log = log.lock().unwrap();
            if log.len() < 2000 {
                log.push(request.clone());
            }
            log.len()
        };
        match request.path() {
            "/slow" => std::thread::sleep(Duration::from_secs(20)),
            "/reset" => {
                // Closing with unread data is a reset; there is none here, so linger decides.
                let _ = stream.shutdown(Shutdown::Read);
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                return;
            }
            _ => {}
        }
        if stream.write_all(&answer(&request, number)).is_err() || !request.keeps_alive() {
            return;
        }
    }
}

fn parse(received: &[u8]) -> Option<(Request, usize)> {
    let end = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let mut request = Request { head, body: Vec::new() };
    let length: usize = request.field("Content-Length").map_or(0, |length| length.parse().unwrap());
    request.body = received.get(end..end + length)?.to_vec();
    Some((request, end + length))
}

fn answer(request: &Request, number: usize) -> Vec<u8> {
    let (status, extra, body) = match request.path() {
        "/missing" => ("404 Not Found", "", "nothing here\n".to_string()),
        "/authenticate" => ("200 OK", "X-Token: secret\r\n", String::new()),
        "/growing" => ("200 OK", "", "x".repeat(number)),
        _ => ("200 OK", "", "hello world\n".to_string()),
    };
    let connection = if request.keeps_alive() { "keep-alive" } else { "close" };
    let head = format!(
        "HTTP/1.1 {status}\r\nServer: overfly-tests/1\r\nContent-Length: {}\r\nConnection: {connection}\r\n{extra}\r\n",
        body.len()
    );
    let body = if request.line().starts_with("HEAD ") { "" } else { &body };
    [head.as_bytes(), body.as_bytes()].concat()
}
