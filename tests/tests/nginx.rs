//! nginx, unmodified, on the user-level stack, with curl on the kernel as its client, and the other way round.

use std::process::Stdio;

use overfly_bench::lab::{Lab, ROUTED_SERVER};
use overfly_tests::{
    Nginx, ROOT, Random, Server, alive, eventually, is_steered, output, overfly, send, succeed, titled,
};
use rustix::process::Signal;

const URL: &str = "http://10.77.0.1";

fn lab() -> Lab {
    Lab::new(overfly()).expect("a lab")
}

#[track_caller]
fn get(lab: &Lab, path: &str) -> String {
    succeed(lab, "client", &["curl", "-s", "--max-time", "10", &format!("{URL}{path}")])
}

#[test]
fn serves_beside_the_kernel() {
    let lab = lab();
    Nginx::default().install(&lab, &[]);
    let server = Server::nginx(&lab);
    assert!(is_steered(&lab));
    assert_eq!(get(&lab, "/"), "hello from nginx\n");
    assert!(succeed(&lab, "server", &["ss", "-ltn"]).contains(":80 "), "ss shows the listener");
    assert_eq!(succeed(&lab, "server", &["curl", "-s", "http://127.0.0.1/"]), "hello from nginx\n");
    succeed(&lab, "client", &["ping", "-c", "3", "-i", "0.1", "10.77.0.1"]);
    // The kernel saw no connection to the device's address: only loopback's, which is over.
    let seen = succeed(&lab, "server", &["ss", "-tan", "sport = :80"]);
    assert!(!seen.contains("10.77.0.2"), "the connection went through the kernel: {seen}");
    server.stop();
    assert!(!is_steered(&lab));
}

#[test]
fn a_hundred_megabytes_arrive_whole() {
    let seed = 1;
    let file = Random(seed).bytes(100 << 20);
    for sendfile in [false, true] {
        let lab = lab();
        Nginx { sendfile, ..Nginx::default() }.install(&lab, &[("large", &file)]);
        let server = Server::nginx(&lab);
        let command = format!("curl -s --max-time 60 {URL}/large | cmp - {ROOT}/copy");
        lab.write("client", format!("{ROOT}/copy"), &file).expect("write a copy");
        succeed(&lab, "client", &["sh", "-c", &command]);
        server.stop();
    }
}

/// Sizes from nothing to 5 MB, small and large ones alike often (log-uniform).
fn thousand_files(seed: u64) -> Vec<(String, Vec<u8>)> {
    let mut random = Random(seed);
    (0..1000)
        .map(|index| {
            let size = match index {
                0 => 0,
                1 => 5_000_000,
                _ => {
                    let bits = random.next() % 22;
                    (random.next() % (2 << bits)).min(5_000_000) as usize
                }
            };
            (format!("file{index:04}"), random.bytes(size))
        })
        .collect()
}

#[test]
fn a_thousand_files_survive_one_percent_of_loss() {
    let seed = 20_261_121;
    println!("seed {seed}");
    let lab = Lab::routed(overfly()).expect("a routed lab");
    let rule = "add table inet faults\n\
                add chain inet faults forward { type filter hook forward priority 0; }\n\
                add rule inet faults forward numgen random mod 100 < 1 counter drop\n";
    lab.write("middle", "/dev/shm/rules", rule.as_bytes()).expect("write the rule");
    succeed(&lab, "middle", &["nft", "-f", "/dev/shm/rules"]);
    let files = thousand_files(seed);
    let borrowed: Vec<(&str, &[u8])> = files.iter().map(|(name, data)| (name.as_str(), &data[..])).collect();
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &borrowed);
    for (name, data) in &files {
        lab.write("client", format!("/dev/shm/original/{name}"), data).expect("write a copy");
    }
    let server = Server::nginx(&lab);
    let mut list = String::new();
    for (name, _) in &files {
        list += &format!("url = \"http://{ROUTED_SERVER}/{name}\"\noutput = \"/dev/shm/fetched/{name}\"\n");
    }
    lab.write("client", "/dev/shm/list", list.as_bytes()).expect("write the list");
    // Over one connection, then over many at once.
    for options in
        [&["--parallel-max", "1"][..], &["-Z", "--parallel-immediate", "--parallel-max", "100"][..]]
    {
        let mut words =
            vec!["curl", "-s", "--fail", "--create-dirs", "--max-time", "300", "-K", "/dev/shm/list"];
        words.extend(options);
        succeed(&lab, "client", &words);
        succeed(&lab, "client", &["diff", "-r", "/dev/shm/original", "/dev/shm/fetched"]);
        succeed(&lab, "client", &["rm", "-r", "/dev/shm/fetched"]);
    }
    let counted = succeed(&lab, "middle", &["nft", "list", "ruleset"]);
    assert!(!counted.contains("packets 0 "), "nothing was lost: {counted}");
    server.stop();
}

/// Which workers answer `count` connections.
fn workers_that_answer(lab: &Lab, count: usize) -> std::collections::BTreeSet<String> {
    let command =
        format!("for i in $(seq {count}); do curl -s -o /dev/null -D - {URL}/ok | grep -i x-worker; done");
    let text = succeed(lab, "client", &["sh", "-c", &command]);
    assert_eq!(text.lines().count(), count, "an answer is missing: {text}");
    text.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn more_workers_than_queues_all_serve() {
    let lab = lab();
    Nginx { workers: 5, ..Nginx::default() }.install(&lab, &[]);
    let server = Server::nginx(&lab);
    assert_eq!(workers_that_answer(&lab, 100).len(), 5);
    server.stop();
}

#[test]
fn a_shared_listener_serves_from_every_worker() {
    let lab = lab();
    Nginx { workers: 3, reuseport: false, ..Nginx::default() }.install(&lab, &[]);
    let server = Server::nginx(&lab);
    assert_eq!(workers_that_answer(&lab, 60).len(), 3);
    server.stop();
}

#[test]
fn reload_and_graceful_quit_lose_nothing() {
    for reuseport in [true, false] {
        let lab = lab();
        let file = Random(7).bytes(3 << 20);
        Nginx { workers: 2, reuseport, ..Nginx::default() }.install(&lab, &[("file", &file)]);
        lab.write("client", "/dev/shm/file", &file).expect("write a copy");
        let mut server = Server::nginx(&lab);
        let workers = || titled(server.id(), "nginx: worker process");
        eventually("two workers", || workers().len() == 2);
        let before = workers();
        // A slow download that is under way during the reload.
        let mut download = lab
            .command("client", "sh")
            .args([
                "-c",
                &format!("curl -s --limit-rate 1M {URL}/file | tee /dev/shm/begun | cmp - /dev/shm/file"),
            ])
            .stdin(Stdio::null())
            .spawn()
            .expect("start curl");
        let begun = || output(&lab, "client", &["test", "-s", "/dev/shm/begun"]).status.success();
        eventually("the download is under way", begun);
        let master = titled(server.id(), "nginx: master process")[0];
        for _ in 0..3 {
            send(master, Signal::HUP);
            for _ in 0..20 {
                // A connection whose handshake is under way when its worker leaves the listener is reset (README,
                // "What it cannot do yet"): a client that tries again is served at once.
                let retry = ["--retry", "3", "--retry-all-errors", "--retry-delay", "1"];
                let mut words = vec!["curl", "-s", "--max-time", "10"];
                words.extend(retry);
                let url = format!("{URL}/ok");
                words.push(&url);
                assert_eq!(succeed(&lab, "client", &words), "ok");
            }
        }
        assert!(download.wait().expect("wait for curl").success(), "the download was cut by the reload");
        eventually("the old workers end", || before.iter().all(|&id| !alive(id)));
        assert_eq!(get(&lab, "/ok"), "ok");
        send(master, Signal::QUIT);
        eventually("a graceful quit ends it", || server.ended());
        assert!(!is_steered(&lab));
    }
}

#[test]
fn killed_anywhere_it_leaves_nothing_and_starts_again() {
    let lab = lab();
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &[]);
    for victim in ["overfly", "nginx: master process", "nginx: worker process"] {
        let mut server = Server::nginx(&lab);
        assert_eq!(get(&lab, "/ok"), "ok");
        let family = overfly_tests::descendants(server.id());
        let victim_id = if victim == "overfly" { server.id() } else { titled(server.id(), victim)[0] };
        send(victim_id, Signal::KILL);
        if victim == "nginx: worker process" {
            // The master starts another: service goes on.
            eventually("a new worker", || titled(server.id(), victim).iter().any(|id| !family.contains(id)));
            for _ in 0..20 {
                eventually("the new worker answers", || {
                    output(&lab, "client", &["curl", "-s", "--max-time", "2", &format!("{URL}/ok")]).stdout
                        == b"ok"
                });
            }
            server.stop();
        } else {
            eventually("the rest ends", || server.ended() && family.iter().all(|&id| !alive(id)));
        }
        assert!(!is_steered(&lab), "XDP is left after kill -9 of {victim}");
    }
    let server = Server::nginx(&lab);
    assert_eq!(get(&lab, "/ok"), "ok");
    server.stop();
}

#[test]
fn a_daemon_is_kept_until_it_ends() {
    let lab = lab();
    Nginx { daemon: true, ..Nginx::default() }.install(&lab, &[]);
    let mut server = Server::nginx(&lab);
    assert_eq!(get(&lab, "/"), "hello from nginx\n");
    assert!(!server.ended());
    let pid: u32 =
        succeed(&lab, "server", &["cat", &format!("{ROOT}/nginx.pid")]).trim().parse().expect("a pid");
    send(pid, Signal::QUIT);
    eventually("overfly ends with the daemon", || server.ended());
}

#[test]
fn curl_is_carried_too() {
    let lab = lab();
    let file = Random(3).bytes(2 << 20);
    Nginx::default().install(&lab, &[("file", &file)]);
    lab.write("client", "/dev/shm/file", &file).expect("write a copy");
    let command = format!(
        "{} run -- curl -s --max-time 20 {URL}/file {URL}/file | cat - > /dev/shm/got; \
         cat /dev/shm/file /dev/shm/file | cmp - /dev/shm/got",
        overfly().display()
    );
    // To a server on the kernel, then to one on Overfly.
    let kernel = Server::start(&lab, None, &["nginx", "-c", &format!("{ROOT}/nginx.conf"), "-e", "stderr"]);
    eventually("nginx answers", || {
        output(&lab, "client", &["curl", "-s", &format!("{URL}/ok")]).stdout == b"ok"
    });
    succeed(&lab, "client", &["sh", "-c", &command]);
    kernel.stop();
    let server = Server::nginx(&lab);
    succeed(&lab, "client", &["sh", "-c", &command]);
    server.stop();
    // Nobody listens: the error is curl's own.
    let refused =
        output(&lab, "client", &[overfly().to_str().expect("UTF-8"), "run", "--", "curl", "-s", URL]);
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
}

#[test]
fn the_generator_finds_no_error() {
    let lab = lab();
    let file = Random(5).bytes(10_000);
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &[("file", &file)]);
    let server = Server::nginx(&lab);
    for link in ["xdp", "kernel"] {
        for close in [&["--close"][..], &[]] {
            let mut command = lab.command("client", overfly());
            command.args([
                "load",
                "http",
                "--link",
                link,
                "-c",
                "32",
                "-n",
                "2000",
                "--json",
                "--expect-size",
                "10000",
            ]);
            let output =
                command.args(close).arg(format!("{URL}/file")).output().expect("start the generator");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(
                text.contains("\"succeeded\":2000") || text.contains("\"succeeded\": 2000"),
                "{link}: {text}"
            );
        }
    }
    server.stop();
}
