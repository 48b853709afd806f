//! An HTTPS server in this process.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Serves where `listener` is, with a certificate for `name`; the certificate as PEM.
pub(crate) fn serve_on(listener: TcpListener, name: &str, content: usize) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_string()]).unwrap().self_signed(&key).unwrap();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(config.clone()).unwrap();
            std::thread::spawn(move || serve(StreamOwned::new(connection, stream), content));
        }
    });
    certificate.pem()
}

/// Answers requests with `content` bytes, until the client says `Connection: close`.
fn serve(mut stream: StreamOwned<ServerConnection, std::net::TcpStream>, content: usize) {
    let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {content}\r\n\r\n").into_bytes();
    response.resize(response.len() + content, b'x');
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        head.extend_from_slice(&buffer[..received]);
        if head.ends_with(b"\r\n\r\n") {
            let last = head.windows(17).any(|window| window == b"Connection: close");
            head.clear();
            if stream.write_all(&response).is_err() || stream.flush().is_err() {
                return;
            }
            if last {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
        }
    }
}
