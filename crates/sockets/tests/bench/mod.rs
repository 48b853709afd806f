//! Programs with the library preloaded, between two network namespaces, and a broker in the test's own process.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) use overfly_lab as lab;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use overfly_broker::Protocol;
use overfly_lab::{Broker, INTERFACE, Lab, Namespace};
use overfly_steer::{Attachment, Options};

/// The library that this test run built, or another one that was asked for (`cargo xtask sanitize`).
pub(crate) fn library() -> PathBuf {
    if let Some(library) = std::env::var_os("OVERFLY_TEST_LIBRARY") {
        return library.into();
    }
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder.join("liboverfly.so"), folder.join("../liboverfly.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds liboverfly.so with these tests")
}

/// Has a program preload the library, and before it a sanitizer's runtime if there is one.
pub(crate) fn preload(command: &mut Command) -> &mut Command {
    let Some(sanitizer) = std::env::var_os("OVERFLY_TEST_SANITIZER") else {
        return command.env("LD_PRELOAD", library());
    };
    let mut both = sanitizer;
    both.push(":");
    both.push(library());
    // Programs are not instrumented, and leave what they hold to the kernel. Addresses that no program can have are tried.
    command
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:use_sigaltstack=0");
    command.env("LD_PRELOAD", both)
}

/// A lab whose server end has a broker.
pub(crate) struct Bench {
    /// Before the lab: its end kills the programs that hang on it.
    pub(crate) broker: Broker,
    pub(crate) lab: Lab,
    pub(crate) folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(queues: u32) -> Self {
        Self::within(Lab::new(queues), Options::default())
    }

    /// In a lab that is there, attached to in another way.
    pub(crate) fn within(lab: Lab, options: Options) -> Self {
        let broker = lab.server.within(|| {
            let attachment = Attachment::attach(INTERFACE, options).unwrap();
            Broker::start(attachment).unwrap()
        });
        Self { broker, lab, folder: tempfile::tempdir().unwrap() }
    }

    /// A program in the server's namespace, over Overfly.
    pub(crate) fn accelerated(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.accelerate(&mut command);
        command
    }

    /// Has a program run over Overfly.
    pub(crate) fn accelerate<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        preload(command).env("OVERFLY_BROKER", self.broker.environment()).env("OVERFLY_STATS", "1")
    }

    /// The kernel has a listener on that port.
    pub(crate) fn listens(&self, port: u16) -> bool {
        text(&run(&self.lab.server, Command::new("ss").arg("-ltn")).stdout).contains(&format!(":{port} "))
    }

    /// Until that many stacks listen at the address. Before the first, the kernel accepts.
    pub(crate) fn until_joined(&self, address: SocketAddr, stacks: usize) {
        until(&format!("{stacks} stacks listen at {address}"), || {
            self.broker.attachment().listening_stacks(Protocol::Tcp, address) == stacks
        });
    }

    /// The script, which imports `ends`, has that value of EF_STACK_PER_THREAD, and with 3 it has divided before it begins.
    pub(crate) fn stack_per_thread(&self, script: &mut Command, value: &str) {
        script.env("EF_STACK_PER_THREAD", value);
        if value == "3" {
            let library = self.path("meets.so");
            let mut compiler = Command::new("cc");
            compiler.args(["-O1", "-Wall", "-Wextra", "-pthread", "-shared", "-fPIC", "-o"]);
            let output = compiler
                .args([&library, &programs("meets.c")])
                .output()
                .expect("a C compiler (apt install gcc)");
            assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
            script.env("MEETS", library);
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// curl in the client's namespace: what it got.
    pub(crate) fn fetch(&self, url: &str) -> Vec<u8> {
        let output = run(&self.lab.client, Command::new("curl").args(["-sS", "-m", "20", url]));
        assert!(output.status.success(), "{url}: {}", text(&output.stderr));
        output.stdout
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn spawn(namespace: &Namespace, command: &mut Command) -> Child {
    namespace.within(|| command.spawn().unwrap())
}

pub(crate) fn run(namespace: &Namespace, command: &mut Command) -> Output {
    let child = spawn(namespace, command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.wait_with_output().unwrap()
}

pub(crate) fn wait(child: &mut Child, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    until_within(what, Duration::from_secs(10), condition);
}

pub(crate) fn until_within(what: &str, patience: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The sum of a number in the statistics lines: `accepts 5 (kernel 2)`.
pub(crate) fn sum(statistics: &str, word: &str) -> u64 {
    let numbers = statistics.lines().filter(|line| line.starts_with("overfly: process")).filter_map(|line| {
        let (_, after) = line.split_once(&format!("{word} "))?;
        after.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    });
    numbers.sum()
}

/// Bytes that look random, from a seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Kills a helper of a test when the test is over.
pub(crate) struct Helper(pub(crate) Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn programs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// One of the programs in C, made in that folder.
pub(crate) fn compile(name: &str, folder: &Path) -> PathBuf {
    let binary = folder.join(name);
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-pthread", "-rdynamic", "-o"])
        .args([&binary, &programs(&format!("{name}.c"))])
        .output()
        .expect("a C compiler (apt install gcc)");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    binary
}

/// The other end of a script, in the client's namespace at `address`.
pub(crate) fn peer(bench: &Bench, address: &str) -> Helper {
    let mut peer = Command::new("python3");
    peer.arg(programs("peer.py")).arg(address).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut peer = Helper(spawn(&bench.lab.client, &mut peer));
    let mut ready = String::new();
    BufReader::new(peer.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    peer
}
