//! An HTTP server on tokio: /echo returns the body, /pieces writes slowly, else ?size=N bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What a request says that matters here.
#[derive(Default)]
struct Request {
    target: String,
    body_length: usize,
    is_last: bool,
}

/// Reads a request's head. `None` at the end of the stream.
async fn request(from: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = Request { target, ..Request::default() };
    loop {
        line.clear();
        from.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(Some(request)) };
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("content-length", value) => request.body_length = value.parse().unwrap_or(0),
            ("connection", value) => request.is_last = value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(Request { target, body_length, is_last }) = request(&mut stream).await? {
        if target == "/pieces" {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n").await?;
            for _ in 0..50 {
                stream.write_all(b"piece\n").await?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        } else {
            let size = target.split_once("size=").and_then(|(_, size)| size.split('&').next()?.parse().ok());
            let mut body = vec![b'x'; size.unwrap_or(body_length)];
            if target == "/echo" {
                stream.read_exact(&mut body).await?;
            }
            let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
            answer.append(&mut body);
            stream.write_all(&answer).await?;
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Returns what came, as it comes.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn run() -> io::Result<()> {
    // Its threads wait for events long before there is a socket.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let plain = TcpListener::bind("0.0.0.0:7007").await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = plain.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    let listener = TcpListener::bind("0.0.0.0:8080").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        // Whoever hangs up has no use for an error.
        tokio::spawn(async move { drop(serve(stream).await) });
    }
}

fn main() -> io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}
