//! wrk's Lua scripts: `setup`, `init`, `delay`, `request`, `response`, `done`, and the table `wrk`.
//!
//! As in wrk each thread has a Lua state of its own, and there is one more for `setup` and `done`; values go from one to the
//! other by copy. Lua is LuaJIT with its safe libraries: no `ffi`, no `debug`, no modules in C.

mod address;
mod statistics;
mod thread;
mod value;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use memchr::memmem;
use mlua::{Function, Lua, LuaString, Table, UserDataRef, Value};

use self::address::{Address, connects, lookup};
use self::statistics::Statistics;
use self::thread::{Handle, Shared};
use crate::error::Error;
use crate::http::{Exchange, Next, Target};

const WRK: &str = include_str!("script/wrk.lua");

/// What a script is started with.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) file: &'a Path,
    pub(super) target: &'a Target,
    /// The server's address, unless `setup` gives a thread another.
    pub(super) server: SocketAddr,
    pub(super) headers: &'a [(String, String)],
    /// What follows `--`.
    pub(super) arguments: &'a [String],
    pub(super) threads: usize,
}

/// What `done` is told beside the distributions.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) duration_s: f64,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// Counts by wrk's names.
    pub(super) errors: [(&'static str, u64); 5],
    pub(super) latency_ns: Histogram<u64>,
    pub(super) rates: Histogram<u64>,
}

/// A script in the states of a run.
#[derive(Debug)]
pub(super) struct Script {
    file: PathBuf,
    /// The state of `setup` and `done`.
    main: Interpreter,
    threads: Vec<ThreadScript>,
}

impl Script {
    /// Loads the script into each state, then calls `setup` and `init` for each thread.
    pub(super) fn start(plan: &Plan<'_>) -> Result<Script, Error> {
        let text = std::fs::read(plan.file).map_err(|error| {
            Error::usage("-s", plan.file.display(), format!("a script that can be read ({error})"))
        })?;
        let named = |error| failed(plan.file, &error);
        let main = Interpreter::new(plan, &text).map_err(named)?;
        let threads = (0..plan.threads).map(|_| ThreadScript::start(plan, &text, &main));
        let threads = threads.collect::<mlua::Result<_>>().map_err(named)?;
        Ok(Script { file: plan.file.to_path_buf(), main, threads })
    }

    /// The script in the state of thread `index`.
    pub(super) fn thread(&self, index: usize) -> ThreadScript {
        self.threads[index].clone()
    }

    /// Calls `done`, if there is one.
    pub(super) fn done(&self, summary: Summary) -> Result<(), Error> {
        self.main.done(summary).map_err(|error| failed(&self.file, &error))
    }
}

fn failed(file: &Path, error: &mlua::Error) -> Error {
    let text = error.to_string();
    // Lua's own message is the first line; where it was called from is of no use to who wrote the script.
    let why = text.lines().next().unwrap_or_default().trim_start_matches("runtime error: ").to_string();
    Error::machine(format!("script {}", file.display()), why)
}

/// A Lua state with `wrk` and the script in it.
#[derive(Debug, Clone)]
struct Interpreter {
    lua: Lua,
    wrk: Table,
    /// `io.stdout:flush()`: what scripts print waits in C's buffer, which is not ours.
    flush: Function,
}

impl Interpreter {
    fn new(plan: &Plan<'_>, text: &[u8]) -> mlua::Result<Interpreter> {
        let lua = Lua::new();
        let target = plan.target;
        let wrk = lua.create_table()?;
        lua.globals().set("wrk", &wrk)?;
        wrk.set("scheme", if target.is_secure() { "https" } else { "http" })?;
        wrk.set("host", target.host())?;
        wrk.set(
            "port",
            (target.port() != if target.is_secure() { 443 } else { 80 }).then(|| target.port().to_string()),
        )?;
        wrk.set("path", target.path())?;
        wrk.set("authority", target.host_field())?;
        wrk.set("addrs", vec![Address(plan.server)])?;
        wrk.set("lookup", lua.create_function(lookup)?)?;
        wrk.set("connect", lua.create_function(|_, address: UserDataRef<Address>| Ok(connects(&address)))?)?;
        lua.load(WRK).set_name("=wrk.lua").exec()?;
        let headers: Table = wrk.get("headers")?;
        for (name, value) in plan.headers {
            headers.set(name.as_str(), value.as_str())?;
        }
        let flush = lua.load("local out = io.stdout; return function() out:flush() end").eval()?;
        let name = plan.file.file_name().unwrap_or_default().to_string_lossy();
        lua.load(text).set_name(format!("={name}")).exec()?;
        Ok(Interpreter { lua, wrk, flush })
    }

    /// The script's global function of that name.
    fn function(&self, name: &str) -> mlua::Result<Option<Function>> {
        Ok(self.lua.globals().get::<Value>(name)?.as_function().cloned())
    }

    fn done(&self, summary: Summary) -> mlua::Result<()> {
        let Some(done) = self.function("done")? else {
            return Ok(());
        };
        let errors = self.lua.create_table_from(summary.errors)?;
        let table = self.lua.create_table()?;
        table.set("duration", (summary.duration_s * 1e6).round())?;
        table.set("requests", summary.requests)?;
        table.set("bytes", summary.bytes)?;
        table.set("errors", errors)?;
        let latency = Statistics::new(summary.latency_ns, 1e3);
        let rates = Statistics::new(summary.rates, 1.0);
        done.call::<()>((table, latency, rates))?;
        self.flush.call(())
    }
}

/// The script in one thread's state.
#[derive(Debug, Clone)]
pub(super) struct ThreadScript {
    file: Arc<Path>,
    state: Interpreter,
    shared: Arc<Shared>,
    /// `request`, unless every request is the same.
    request: Option<Function>,
    response: Option<Function>,
    delay: Option<Function>,
    /// The request, or the first of them.
    first: Vec<u8>,
    /// `first` has not been sent.
    fresh: bool,
}

impl ThreadScript {
    fn start(plan: &Plan<'_>, text: &[u8], main: &Interpreter) -> mlua::Result<ThreadScript> {
        let state = Interpreter::new(plan, text)?;
        let shared = Arc::new(Shared::default());
        shared.set_address(Some(plan.server));
        let handle = Handle { state: state.lua.weak(), shared: shared.clone() };
        state.wrk.set("thread", handle.clone())?;
        main.wrk.get::<Function>("setup")?.call::<()>(handle)?;
        main.flush.call::<()>(())?;

        let arguments = state.lua.create_table()?;
        arguments.raw_set(0, plan.target.url())?;
        for (index, argument) in plan.arguments.iter().enumerate() {
            arguments.raw_set(index + 1, argument.as_str())?;
        }
        state.wrk.get::<Function>("init")?.call::<()>(arguments)?;

        let request = state.function("request")?;
        let make = match &request {
            Some(request) => request.clone(),
            None => state.wrk.get("request")?,
        };
        let first = make.call::<LuaString>(())?.as_bytes().to_vec();
        state.flush.call::<()>(())?;
        Ok(ThreadScript {
            file: plan.file.into(),
            response: state.function("response")?,
            delay: state.function("delay")?,
            request,
            state,
            shared,
            first,
            fresh: true,
        })
    }

    /// Where this thread connects to.
    pub(super) fn server(&self) -> Option<SocketAddr> {
        self.shared.address()
    }

    /// How many requests `request` returns at once.
    pub(super) fn requests_at_once(&self) -> usize {
        count_requests(&self.first).max(1)
    }

    pub(super) fn wants_responses(&self) -> bool {
        self.response.is_some()
    }

    pub(super) fn delays(&self) -> bool {
        self.delay.is_some()
    }

    /// Appends what is to be sent next.
    pub(super) fn request(&mut self, bytes: &mut Vec<u8>) -> Result<Next, Error> {
        match &self.request {
            Some(request) if !self.fresh => {
                let text: LuaString = request.call(()).map_err(|error| failed(&self.file, &error))?;
                bytes.extend_from_slice(&text.as_bytes());
            }
            _ => {
                bytes.extend_from_slice(&self.first);
                self.fresh = false;
            }
        }
        Ok(self.next())
    }

    /// Calls `response`.
    pub(super) fn response(&mut self, exchange: &Exchange<'_>) -> Result<Next, Error> {
        if let Some(response) = &self.response
            && exchange.status != 0
        {
            self.respond(response, exchange).map_err(|error| failed(&self.file, &error))?;
        }
        Ok(self.next())
    }

    fn respond(&self, response: &Function, exchange: &Exchange<'_>) -> mlua::Result<()> {
        let lua = &self.state.lua;
        let headers = lua.create_table()?;
        for (name, value) in fields(exchange.head) {
            headers.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
        }
        response.call((exchange.status, headers, lua.create_string(exchange.body)?))
    }

    /// Calls `delay`: milliseconds.
    pub(super) fn delay(&mut self) -> Result<Duration, Error> {
        let Some(delay) = &self.delay else {
            return Ok(Duration::ZERO);
        };
        let ms: f64 = delay.call(()).map_err(|error| failed(&self.file, &error))?;
        // Not below nothing, not above a day, and nothing for what is no number.
        Ok(Duration::from_secs_f64(ms.clamp(0.0, 86_400_000.0).max(0.0) / 1e3))
    }

    fn next(&self) -> Next {
        if self.shared.stopped() { Next::Stop } else { Next::Continue }
    }

    /// The run is over: what the script has printed goes out.
    pub(super) fn flush(&self) {
        // A script may have closed its own output.
        let _ = self.state.flush.call::<()>(());
    }
}

/// Names and values of a head's fields, in order.
fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let line = |line: &[u8]| line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
    head.split(|byte| *byte == b'\n').skip(1).filter_map(move |raw| {
        let raw = &raw[..line(raw)];
        let colon = raw.iter().position(|byte| *byte == b':')?;
        Some((&raw[..colon], raw[colon + 1..].trim_ascii()))
    })
}

/// How many whole requests `bytes` are.
fn count_requests(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some(end) = memmem::find(bytes, b"\r\n\r\n") {
        let content = fields(&bytes[..end])
            .find(|(name, _)| name.eq_ignore_ascii_case(b"content-length"))
            .and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<usize>().ok());
        count += 1;
        let next = (end + 4).saturating_add(content.unwrap_or(0));
        bytes = bytes.get(next..).unwrap_or_default();
    }
    count
}

#[cfg(test)]
mod tests;
