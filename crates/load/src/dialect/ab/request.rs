//! The request that ab sends.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::args::AbArgs;
use crate::arguments::header;
use crate::error::Error;
use crate::http::Target;

/// A request and what must be known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    pub(super) method: String,
    /// The head's length, bytes.
    pub(super) head: usize,
}

impl Request {
    /// HTTP/1.0, fields in ab's order.
    pub(super) fn new(args: &AbArgs, target: &Target) -> Result<Request, Error> {
        let content = content(args)?;
        let method = match (&args.method, args.head, &args.post, &args.put) {
            (Some(method), ..) => method.clone(),
            (None, true, ..) => "HEAD".to_string(),
            (None, _, Some(_), _) => "POST".to_string(),
            (None, _, _, Some(_)) => "PUT".to_string(),
            _ => "GET".to_string(),
        };
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return Err(Error::usage("-m", method, "a method such as GET"));
        }
        let resource = if args.proxy.is_some() { target.url() } else { target.path() };
        let mut head = format!("{method} {resource} HTTP/1.0\r\n");
        let mut line = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        if args.keep_alive {
            line("Connection", "Keep-Alive");
        }
        if !args.cookies.is_empty() {
            // RFC 6265 section 5.4: one field for all of them.
            line("Cookie", single_line("-C", &args.cookies.join("; "))?);
        }
        for (flag, name, pair) in [
            ("-A", "Authorization", &args.authentication),
            ("-P", "Proxy-Authorization", &args.proxy_authentication),
        ] {
            if let Some(pair) = pair {
                single_line(flag, pair)?;
                line(name, &format!("Basic {}", BASE64.encode(pair)));
            }
        }
        if let Some(content) = &content {
            line("Content-length", &content.len().to_string());
            line("Content-type", single_line("-T", &args.content_type)?);
        }
        let given: Vec<(String, String)> =
            args.headers.iter().map(|given| header(given)).collect::<Result<_, _>>()?;
        for (name, value) in &given {
            line(name, value);
        }
        let host = target.host_field();
        let agent = concat!("ApacheBench/2.3 (overfly ", env!("CARGO_PKG_VERSION"), ")");
        for (name, value) in [("Host", host.as_str()), ("User-Agent", agent), ("Accept", "*/*")] {
            if !given.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
                line(name, value);
            }
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        let head = bytes.len();
        bytes.extend(content.unwrap_or_default());
        Ok(Request { bytes, method, head })
    }
}

fn content(args: &AbArgs) -> Result<Option<Vec<u8>>, Error> {
    let (flag, file) = match (&args.post, &args.put) {
        (Some(file), _) => ("-p", file),
        (None, Some(file)) => ("-u", file),
        (None, None) => return Ok(None),
    };
    let wrong = |error| Error::usage(flag, file.display(), format!("a file that can be read ({error})"));
    std::fs::read(file).map(Some).map_err(wrong)
}

fn single_line<'a>(flag: &'static str, given: &'a str) -> Result<&'a str, Error> {
    if given.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(Error::usage(flag, given.escape_debug(), "one line"));
    }
    Ok(given)
}
