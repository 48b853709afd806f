//! Servers whose behaviour is known.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// An HTTP server with as many desks as `desks`; each serves one request at a time and takes `takes` for it. Requests wait
/// in one queue, first come first served.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    answered: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn new(desks: usize, takes: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        let (sender, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..desks {
            let (queue, answered) = (queue.clone(), answered.clone());
            std::thread::spawn(move || serve(&queue, takes, &answered));
        }
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let mut stream = stream;
                    while read_request(&mut stream) && sender.send(stream.try_clone().unwrap()).is_ok() {}
                });
            }
        });
        Server { address, answered }
    }

    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

fn serve(queue: &Mutex<Receiver<TcpStream>>, takes: Duration, answered: &AtomicU64) {
    loop {
        let Ok(mut stream) = queue.lock().unwrap().recv() else { return };
        std::thread::sleep(takes);
        // A client that has gone away has its reasons.
        if stream.write_all(HELLO).is_ok() {
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reads one request head; false at the end of the stream.
fn read_request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(received) => head.extend_from_slice(&buffer[..received]),
        }
    }
    true
}
