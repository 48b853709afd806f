//! Two network namespaces joined by veth, for tests and examples, and a broker in one of them. The namespaces have no names: they are held by
//! descriptors of this process, and vanish with it however it ends.

mod broker;

pub use broker::Broker;

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use overfly_wire::MacAddr;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The end that Overfly attaches to.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The other end.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The end that Overfly attaches to, IPv6.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
/// The other end, IPv6.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// The interface's name in both namespaces.
pub const INTERFACE: &str = "veth0";

/// The two ends.
pub struct Lab {
    /// Overfly's.
    pub server: Namespace,
    /// The other one.
    pub client: Namespace,
}

impl Lab {
    /// Each end with that many queues.
    #[must_use]
    pub fn new(queues: u32) -> Lab {
        let lab = Lab { server: Namespace::new(), client: Namespace::new() };
        lab.join(queues);
        lab
    }

    /// Makes the link, with addresses.
    pub fn join(&self, queues: u32) {
        self.join_after(queues, || ());
    }

    /// The same; `before` is done to the link before it has addresses, and so before a broker takes it for the one that was gone.
    pub fn join_after(&self, queues: u32, before: impl FnOnce()) {
        let lab = self;
        let peer = format!("/proc/{}/fd/{}", std::process::id(), lab.client.0.as_raw_fd());
        lab.server.run(&format!(
            "link add {INTERFACE} numtxqueues {queues} numrxqueues {queues} type veth \
             peer name {INTERFACE} netns {peer} numtxqueues {queues} numrxqueues {queues}"
        ));
        before();
        for (namespace, v4, v6) in [(&lab.server, SERVER, SERVER_V6), (&lab.client, CLIENT, CLIENT_V6)] {
            // Addresses may be used at once: nobody else is on the link.
            namespace.write(&format!("/proc/sys/net/ipv6/conf/{INTERFACE}/accept_dad"), "0");
            namespace.run("link set lo up");
            namespace.run(&format!("address add {v4}/24 dev {INTERFACE}"));
            namespace.run(&format!("address add {v6}/64 dev {INTERFACE}"));
            namespace.run(&format!("link set {INTERFACE} up"));
        }
        // The kernel makes the link-local ones a little later, and lets all of them pass a little later still (a broker takes
        // no others).
        let end = Instant::now() + Duration::from_secs(10);
        let is_ready = |side: &Namespace| {
            let shown = side.command("ip", &["-6", "address", "show", "dev", INTERFACE]);
            shown.contains("fe80:") && !shown.contains("tentative")
        };
        while !is_ready(&lab.server) || !is_ready(&lab.client) {
            assert!(Instant::now() < end, "no IPv6 addresses");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sets the MTU of both ends.
    pub fn set_mtu(&self, mtu: u32) {
        for namespace in [&self.server, &self.client] {
            namespace.run(&format!("link set {INTERFACE} mtu {mtu}"));
        }
    }

    /// Gives the server's end a queueing discipline in which frames of several segments would wait: they do not leave there.
    pub fn hold_back(&self) {
        let arguments = format!("qdisc add dev {INTERFACE} root tbf rate 10gbit burst 1mb latency 50ms");
        self.server.command("tc", &arguments.split_whitespace().collect::<Vec<_>>());
    }

    /// Takes the link away.
    pub fn part(&self) {
        self.server.run(&format!("link delete {INTERFACE}"));
    }
}

/// A network namespace.
pub struct Namespace(OwnedFd);

impl Namespace {
    fn new() -> Namespace {
        let thread = std::thread::spawn(|| {
            // SAFETY: no descriptors are unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .expect("these tests make network namespaces: run them as root");
            File::open("/proc/thread-self/ns/net").unwrap().into()
        });
        Namespace(thread.join().unwrap())
    }

    /// Moves the calling thread in.
    pub fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs `work` on a thread of its own inside.
    pub fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Writes a setting of the kernel inside.
    pub fn write(&self, path: &str, value: &str) {
        self.within(|| std::fs::write(path, value).unwrap());
    }

    /// Runs `ip ARGUMENTS` inside, which must succeed.
    pub fn run(&self, arguments: &str) {
        self.command("ip", &arguments.split_whitespace().collect::<Vec<_>>());
    }

    /// Runs a command inside, which must succeed; returns what it said.
    pub fn command(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.within(|| Command::new(program).args(arguments).output().unwrap());
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A path that another process can open while this one lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// The interface's IPv6 link-local address.
    #[must_use]
    pub fn link_local(&self) -> Ipv6Addr {
        let shown = self.command("ip", &["-6", "-br", "address", "show", "dev", INTERFACE, "scope", "link"]);
        let address = shown.split_whitespace().find(|word| word.starts_with("fe80:")).expect("an address");
        address.split('/').next().unwrap_or(address).parse().unwrap()
    }

    /// The interface's hardware address.
    #[must_use]
    pub fn mac(&self) -> MacAddr {
        let shown = self.command("ip", &["-br", "link", "show", "dev", INTERFACE]);
        let bytes = shown.split_whitespace().nth(2).expect("an address").split(':');
        let bytes: Vec<u8> = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        MacAddr(bytes.try_into().unwrap())
    }

    /// Whether an XDP program is attached to the interface inside.
    #[must_use]
    pub fn has_xdp(&self) -> bool {
        self.command("ip", &["-d", "link", "show", INTERFACE]).contains("prog/xdp")
    }
}
