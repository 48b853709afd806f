//! Two network namespaces with a veth pair between them. Needs root and iproute2.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace that lives as long as a process which ends with our end of a pipe.
pub(crate) struct Namespace(Child);

impl Namespace {
    fn new() -> Namespace {
        let script = "echo ready; exec cat";
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Namespace(child)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    pub(crate) fn ip(&self, words: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg("ip")
            .args(words.split(' '))
            .output()
            .unwrap();
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `work` in a thread inside.
    pub(crate) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let namespace = File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), network).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

pub(crate) struct Lab {
    pub(crate) server: Namespace,
    pub(crate) client: Namespace,
}

impl Lab {
    pub(crate) fn new() -> Option<Lab> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not tested: AF_XDP and network namespaces need root");
            return None;
        }
        let lab = Lab { server: Namespace::new(), client: Namespace::new() };
        let queues = "numtxqueues 2 numrxqueues 2";
        let peer = lab.client.0.id();
        lab.server.ip(&format!("link add eth0 {queues} type veth peer name eth0 netns {peer} {queues}"));
        for (namespace, address, v6) in
            [(&lab.server, "10.98.0.1/16", "fd98::1/64"), (&lab.client, "10.98.0.2/16", "fd98::2/64")]
        {
            namespace.ip(&format!("address add {address} dev eth0"));
            namespace.ip(&format!("address add {v6} dev eth0 nodad"));
            namespace.ip("link set eth0 up");
            namespace.ip("link set lo up");
        }
        for namespace in [&lab.server, &lab.client] {
            let begin = Instant::now();
            while !namespace.ip("-6 address show dev eth0 scope link").contains("fe80:") {
                assert!(begin.elapsed() < Duration::from_secs(10), "IPv6 is not ready");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Some(lab)
    }
}
