//! Servers on smol: at port 8080 HTTP, ?size=N bytes; at 7007 what a client sends comes back, at 7008 the same by UDP.

use std::io;

use smol::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use smol::net::{TcpListener, TcpStream, UdpSocket};

async fn serve(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let size = line.split_once("size=").and_then(|(_, rest)| rest.split([' ', '&']).next()?.parse().ok());
        let size: usize = size.unwrap_or(2);
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
        }
        line.clear();
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
        answer.resize(answer.len() + size, b'x');
        stream.write_all(&answer).await?;
    }
    Ok(())
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut part = vec![0; 65_536];
    loop {
        match stream.read(&mut part).await? {
            0 => return Ok(()),
            length => stream.write_all(&part[..length]).await?,
        }
    }
}

async fn accept(port: u16, serve: impl AsyncFn(TcpStream) -> io::Result<()> + Copy + 'static) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    let here = smol::LocalExecutor::new();
    here.run(async {
        loop {
            let (stream, _) = listener.accept().await?;
            // Whoever hangs up has no use for an error.
            here.spawn(async move { drop(serve(stream).await) }).detach();
        }
    })
    .await
}

async fn datagrams() -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:7008").await?;
    let mut datagram = vec![0; 65_536];
    loop {
        let (length, from) = socket.recv_from(&mut datagram).await?;
        socket.send_to(&datagram[..length], from).await?;
    }
}

fn main() -> io::Result<()> {
    let tcp = smol::future::or(accept(8080, serve), accept(7007, echo));
    smol::block_on(smol::future::or(tcp, datagrams()))
}
