//! nginx, unmodified, on the user-level stack, and a link that is deleted and made again: it is accelerated again, by itself.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Stdio};

use overfly_bench::lab::{DEVICE, Lab, queue_count};
use overfly_testing::process;
use overfly_tests::{Nginx, Server, descendants, eventually, kernel_accepted, output, overfly, succeed};
use rustix::fs::{MemfdFlags, memfd_create};

const ROUNDS: usize = 10;

/// Something that runs in a side of the lab.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether nginx answers, and not over the kernel.
fn is_accelerated(lab: &Lab) -> bool {
    let before = kernel_accepted(lab);
    let answer = output(lab, "client", &["curl", "-s", "--max-time", "1", "http://10.77.0.1/ok"]);
    answer.stdout == b"ok" && kernel_accepted(lab) == before
}

/// Files that the server's processes have open.
fn open_files(server: &Server) -> usize {
    descendants(server.id()).into_iter().map(process::descriptors).sum()
}

/// What the server's processes have spent, in ticks of 10 ms.
fn processor_time(server: &Server) -> u64 {
    descendants(server.id()).into_iter().map(process::ticks).sum()
}

#[test]
fn nginx_is_accelerated_again_when_its_link_comes_back() {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &[("ok", b"ok")]);
    // A process of the other side names its namespace.
    let there = Running(lab.command("client", "sleep").arg("600").stdin(Stdio::null()).spawn().unwrap());
    let there_id = there.0.id().to_string();
    let mut log = File::from(memfd_create("log", MemfdFlags::CLOEXEC).expect("a file"));
    let mut command = lab.command("server", overfly());
    command.args(["run", "-p", "balanced", "--", "nginx", "-e", "stderr"]);
    command.args(["-c", "/dev/shm/nginx/nginx.conf"]).stderr(log.try_clone().expect("a descriptor"));
    let server = Server::spawn(command);
    eventually("nginx is accelerated", || is_accelerated(&lab));
    let mut files = 0;
    for round in 0..ROUNDS {
        let server_ip = |line: &str| {
            let words: Vec<&str> = std::iter::once("ip").chain(line.split(' ')).collect();
            succeed(&lab, "server", &words);
        };
        server_ip(&format!("link delete {DEVICE}"));
        let queues = format!("numtxqueues {0} numrxqueues {0}", queue_count());
        server_ip(&format!(
            "link add {DEVICE} {queues} type veth peer name {DEVICE} {queues} netns {there_id}"
        ));
        server_ip(&format!("address add 10.77.0.1/16 dev {DEVICE}"));
        server_ip(&format!("link set {DEVICE} up"));
        succeed(&lab, "client", &["ip", "address", "add", "10.77.0.2/16", "dev", DEVICE]);
        succeed(&lab, "client", &["ip", "link", "set", DEVICE, "up"]);
        // Each worker has its listener: both are asked.
        for _ in 0..10 {
            eventually(&format!("{round}: nginx is accelerated again"), || is_accelerated(&lab));
        }
        // The first time, workers have connections that the kernel let them have beforehand.
        if round == 0 {
            files = open_files(&server);
        }
    }
    assert_eq!(open_files(&server), files);
    // Nobody is woken for nothing.
    let before = processor_time(&server);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let spent = processor_time(&server) - before;
    assert!(spent < 50, "{spent} ticks of 10 ms in 2 s without a request");
    server.stop();
    // Whoever ran it was told.
    let mut said = String::new();
    log.rewind().and_then(|()| log.read_to_string(&mut said)).expect("what it said");
    let lines = |line: &str| said.lines().filter(|its| its.starts_with(line)).count();
    assert!(lines(&format!("overfly: {DEVICE} is gone: nothing is accelerated until")) > 0, "{said}");
    let back = format!("overfly: {DEVICE} is there again, and accelerated");
    assert_eq!(lines(&back), ROUNDS, "{said}");
}
