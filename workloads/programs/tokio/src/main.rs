//! A server on tokio's threads: HTTP at port 8080, where /echo returns the body, else ?size=N bytes; an echo at port 8081.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    // By then its threads wait in an epoll set that has nothing of the network's.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (web, echo) = (TcpListener::bind("0.0.0.0:8080").await?, TcpListener::bind("0.0.0.0:8081").await?);
    let mut stop = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            Ok((stream, _)) = web.accept() => drop(tokio::spawn(answer(stream))),
            Ok((stream, _)) = echo.accept() => drop(tokio::spawn(reflect(stream))),
            _ = stop.recv() => return Ok(()),
        }
    }
}

async fn reflect(mut stream: TcpStream) -> Result<u64> {
    let (mut reader, mut writer) = stream.split();
    tokio::io::copy(&mut reader, &mut writer).await
}

async fn answer(stream: TcpStream) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut keep) = (String::new(), true);
    while keep && stream.read_line(&mut line).await? > 0 {
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let field = line.trim_end().to_ascii_lowercase();
            if field.is_empty() {
                break;
            }
            if let Some(value) = field.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            keep &= field != "connection: close";
        }
        line.clear();
        let size = target.split("size=").nth(1).and_then(|size| size.split('&').next()?.parse().ok());
        let mut body = vec![b'x'; if target == "/echo" { length } else { size.unwrap_or(2) }];
        if target == "/echo" {
            stream.read_exact(&mut body).await?;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
    }
    Ok(())
}
