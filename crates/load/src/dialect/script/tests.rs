//! Scripts without a run around them: what they are given, and what comes back.

use std::io::Write;

use tempfile::NamedTempFile;

use super::*;
use crate::http::Exchange;
use crate::record::Times;

fn start(text: &str, threads: usize) -> Result<(Script, NamedTempFile), Error> {
    let mut file = NamedTempFile::with_suffix(".lua").unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let target = Target::parse("http://127.0.0.1:8080/a?b").unwrap();
    let script = Script::start(&Plan {
        file: file.path(),
        target: &target,
        server: "127.0.0.1:8080".parse().unwrap(),
        headers: &[("X-Given".into(), "1".into())],
        arguments: &["one".into(), "two".into()],
        threads,
    })?;
    Ok((script, file))
}

fn request(thread: &mut ThreadScript) -> String {
    let mut bytes = Vec::new();
    assert_eq!(thread.request(&mut bytes).unwrap(), Next::Continue);
    String::from_utf8(bytes).unwrap()
}

fn exchange<'a>(status: u16, head: &'a [u8], body: &'a [u8]) -> Exchange<'a> {
    Exchange {
        connection: 0,
        times: Times { intended_ns: 0, sent_ns: 0, first_byte_ns: 1, ended_ns: 2 },
        failure: None,
        status,
        body_bytes: body.len() as u64,
        keep_alive: true,
        head,
        body,
    }
}

#[test]
fn a_script_that_sets_the_request_only() {
    let (script, _file) =
        start("wrk.method = 'POST'; wrk.body = 'foo=bar'; wrk.headers['Content-Type'] = 'text/x'", 1)
            .unwrap();
    let mut thread = script.thread(0);
    assert!(!thread.wants_responses() && !thread.delays());
    let first = request(&mut thread);
    assert!(first.starts_with("POST /a?b HTTP/1.1\r\n") && first.ends_with("\r\n\r\nfoo=bar"), "{first}");
    for line in ["Host: 127.0.0.1:8080", "X-Given: 1", "Content-Type: text/x", "Content-Length: 7"] {
        assert!(first.contains(&format!("\r\n{line}\r\n")), "{line}: {first}");
    }
    assert_eq!(request(&mut thread), first);
}

#[test]
fn requests_are_made_one_by_one_and_none_is_lost() {
    let (script, _file) = start(
        "counter = 0
         request = function()
            counter = counter + 1
            return wrk.format(nil, '/' .. counter, nil, nil)
         end",
        2,
    )
    .unwrap();
    for index in 0..2 {
        let mut thread = script.thread(index);
        for n in 1..4 {
            assert!(request(&mut thread).starts_with(&format!("GET /{n} HTTP/1.1\r\n")));
        }
    }
}

#[test]
fn a_batch_is_as_many_requests_as_it_holds() {
    let (script, _file) = start(
        "init = function(args)
            batch = wrk.format(nil, '/?foo') .. wrk.format('POST', '/?bar', {}, 'GET / HTTP/1.1\\r\\n\\r\\n') .. wrk.format()
         end
         request = function() return batch end",
        1,
    )
    .unwrap();
    assert_eq!(script.thread(0).requests_at_once(), 3);
    assert_eq!(count_requests(b"GET / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n"), 1);
    assert_eq!(count_requests(b"GET / HTTP/1.1\r\nHost: a\r\n"), 0);
}

#[test]
fn responses_are_shown_whole() {
    let (script, _file) = start(
        "function response(status, headers, body)
            seen = status .. headers['X-Token'] .. #headers .. body
            if status == 404 then wrk.thread:stop() end
         end",
        1,
    )
    .unwrap();
    let mut thread = script.thread(0);
    assert!(thread.wants_responses());
    let head = b"HTTP/1.1 200 OK\r\nX-Token:  secret \r\nA: b:c\r\n\r\n";
    assert_eq!(thread.response(&exchange(200, head, b"\x00body")).unwrap(), Next::Continue);
    let seen: LuaString = thread.state.lua.globals().get("seen").unwrap();
    assert_eq!(&*seen.as_bytes(), b"200secret0\x00body");
    assert_eq!(thread.response(&exchange(0, b"", b"")).unwrap(), Next::Continue, "a failure is no response");
    assert_eq!(thread.response(&exchange(404, head, b"")).unwrap(), Next::Stop);
}

#[test]
fn setup_and_done_see_every_thread() {
    let (script, _file) = start(
        "local threads = {}
         function setup(thread)
            threads[#threads + 1] = thread
            thread:set('id', { n = #threads, nested = { true, 'x' } })
            if #threads == 2 then thread.addr = wrk.lookup('127.0.0.2', '81')[1] end
         end
         function init(args) mine = id.n .. args[0] .. args[1] .. args[2] .. #args .. tostring(id.nested[1]) end
         function done(summary, latency, requests)
            for i, thread in ipairs(threads) do
               assert(thread:get('mine') == i .. 'http://127.0.0.1:8080/a?bonetwo2true', thread:get('mine'))
            end
            assert(tostring(threads[1].addr) == '127.0.0.1:8080' and tostring(threads[2].addr) == '127.0.0.2:81')
            assert(summary.duration == 2000000 and summary.requests == 3 and summary.errors.timeout == 5)
            assert(math.abs(latency.min - 1000) < 3 and math.abs(latency.max - 3000) < 3)
            assert(latency.mean > 1990 and latency.mean < 2010 and latency.stdev > 800)
            assert(math.abs(latency:percentile(50) - 2000) < 3, latency:percentile(50))
            local value, count = latency(2)
            assert(#latency == 3 and math.abs(value - 2000) < 3 and count == 1)
            assert(math.abs(latency[3] - 3000) < 3)
            assert(requests.max == 10)
            error('all is well')
         end",
        2,
    )
    .unwrap();
    assert_eq!(script.thread(0).server(), Some("127.0.0.1:8080".parse().unwrap()));
    assert_eq!(script.thread(1).server(), Some("127.0.0.2:81".parse().unwrap()));
    let mut latency_ns = Histogram::<u64>::new(3).unwrap();
    for ms in 1..=3u64 {
        latency_ns.record(ms * 1_000_000).unwrap();
    }
    let mut rates = Histogram::<u64>::new(3).unwrap();
    rates.record(10).unwrap();
    let errors = [("connect", 1), ("read", 2), ("write", 3), ("status", 4), ("timeout", 5)];
    let summary = Summary { duration_s: 2.0, requests: 3, bytes: 4, errors, latency_ns, rates };
    let error = script.done(summary).unwrap_err().to_string();
    assert!(error.contains("all is well"), "{error}");
}

#[test]
fn wrk2_scripts_that_call_wrk_init_themselves() {
    let (script, _file) = start(
        "init = function(args) wrk.init(args); ready = wrk.headers['Host'] end
         request = function() return wrk.request() end",
        1,
    )
    .unwrap();
    let mut thread = script.thread(0);
    assert!(request(&mut thread).contains("Host: 127.0.0.1:8080\r\n"));
}

#[test]
fn delays_are_milliseconds() {
    let (script, _file) =
        start("local n = 0; function delay() n = n + 1; return ({12.5, -1, 0/0})[n] end", 1).unwrap();
    let mut thread = script.thread(0);
    assert!(thread.delays());
    assert_eq!(thread.delay().unwrap(), Duration::from_micros(12_500));
    assert_eq!(thread.delay().unwrap(), Duration::ZERO);
    assert_eq!(thread.delay().unwrap(), Duration::ZERO);
}

#[test]
fn what_a_script_does_wrong_is_said_in_one_line() {
    for (text, part) in [
        ("function request( ", "expected near"),
        ("function init() error('boom') end", "boom"),
        ("function request() return nil end", "error converting Lua nil"),
        ("function request() return {} end", "error converting Lua table"),
        ("function setup(thread) thread:set('f', print) end", "cannot transfer 'function'"),
        ("function setup(thread) local t = {}; t.t = t; thread:set('t', t) end", "contains itself"),
        ("wrk.lookup('127.0.0.1', 'gopher')", "is no port"),
        ("local s = io.open('/')", ""),
    ] {
        match start(text, 1) {
            Ok(_) => assert_eq!(part, "", "{text}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("script ") && error.contains(part), "{text}: {error}");
                assert!(!error.contains('\n'), "{error}");
            }
        }
    }
    let (script, _file) = start(
        "local n = 0; function request() n = n + 1; if n == 2 then error('later') end return 'GET' end",
        1,
    )
    .unwrap();
    let mut thread = script.thread(0);
    thread.request(&mut Vec::new()).unwrap();
    assert!(thread.request(&mut Vec::new()).unwrap_err().to_string().contains("later"));
}
