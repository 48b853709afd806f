//! Several generators in step.

use std::fs;
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use overfly_load::http::Report;

use crate::server::Server;
use crate::{Folder, Guard, load, report, succeed};

/// What `look` finds, when it finds something.
#[track_caller]
pub(crate) fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The sum of what two generators found has the same histograms as the merged report.
fn assert_merged_exactly(merged: &Report, parts: [&Report; 2]) {
    let mut all = parts[0].record.clone();
    all.merge(&parts[1].record);
    for (ours, theirs) in [
        (&merged.record.latency_ns, &all.latency_ns),
        (&merged.record.service_ns, &all.service_ns),
        (&merged.record.first_byte_ns, &all.first_byte_ns),
        (&merged.record.connect_ns, &all.connect_ns),
    ] {
        assert_eq!(ours, theirs);
    }
    assert_eq!(merged.latency_us.p99, (all.latency_ns.value_at_quantile(0.99) as f64 / 10.0).round() / 100.0);
    assert_eq!(merged.requests, parts[0].requests + parts[1].requests);
    assert_eq!(merged.connections, parts[0].connections + parts[1].connections);
}

#[test]
fn two_generators_begin_together_and_merge_exactly() {
    let (quick, slow) = (Server::new(4, Duration::from_millis(1)), Server::new(4, Duration::from_millis(7)));
    let folder = Folder::new();
    for place in ["127.0.0.1:0".to_string(), folder.file("place")] {
        let csv = folder.file("merged.csv");
        let mut gather = Guard::spawn(&mut load(&format!("gather -g 2 -l {place} --json --csv {csv}")));
        let mut said = gather.errors();
        let join = Guard::told(&mut said, "Waiting for 2 generators: overfly load http … --join ");
        let generator = |server: &Server, connections| {
            let words =
                format!("http -c {connections} -d 1500ms --json --join {join} http://{}/", server.address);
            Guard::spawn(&mut load(&words))
        };
        let before = quick.answered();
        let one = generator(&quick, 2);
        Guard::told(&mut said, "1 of 2: ");
        assert_eq!(quick.answered(), before, "it waits for the other one");
        let two = generator(&slow, 3);
        Guard::told(&mut said, "Started: ");
        let (one, two, merged) = (one.output(), two.output(), gather.output());
        let (one, two, merged) = (report(&one.stdout), report(&two.stdout), report(&merged.stdout));
        assert!(one.succeeded > 0 && two.succeeded > 0);
        assert_merged_exactly(&merged, [&one, &two]);
        let text = fs::read_to_string(&csv).unwrap();
        let requests =
            text.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse::<u64>().unwrap());
        assert_eq!(requests.sum::<u64>(), merged.requests, "{text}");
    }
    assert!(!fs::exists(folder.file("place")).unwrap(), "the socket is gone");
}

/// As a Kubernetes Indexed Job starts them: all alike, in any order, the first one among them.
#[test]
fn shards_are_alike_and_the_first_one_reports_for_all() {
    let server = Server::new(4, Duration::from_millis(1));
    // Nobody else's, most likely: the first shard says so if it is.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shard = |index: usize, patience: &str| {
        let words = format!(
            "http -c 2 -n 100 --json --shards 3 --join localhost:{port} --patience {patience} http://{}/",
            server.address
        );
        let mut command = load(&words);
        command.env("JOB_COMPLETION_INDEX", index.to_string());
        command
    };
    let late: Vec<Guard> = [2, 1].map(|index| Guard::spawn(&mut shard(index, "60s"))).into();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.answered(), 0, "they wait for the first one");
    let merged = Guard::spawn(&mut shard(0, "60s")).output();
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    let merged = report(&merged.stdout);
    let parts: Vec<Report> = late.into_iter().map(|shard| report(&shard.output().stdout)).collect();
    assert_eq!((merged.requests, merged.connections, server.answered()), (300, 6, 300));
    // What the others found is in it, bucket by bucket; what is left over is the first one's.
    let mut rest = merged.record.latency_ns.clone();
    for part in &parts {
        assert_eq!(part.requests, 100);
        rest.subtract(&part.record.latency_ns).unwrap();
    }
    assert_eq!(rest.len(), 100);

    let alone = shard(1, "300ms").output().unwrap();
    let said = String::from_utf8(alone.stderr).unwrap();
    assert!(alone.status.code() == Some(1) && said.contains("joining localhost"), "{said}");
    for (index, named) in [("3", "JOB_COMPLETION_INDEX 3"), ("x", "JOB_COMPLETION_INDEX x")] {
        let wrong = shard(0, "1s").env("JOB_COMPLETION_INDEX", index).output().unwrap();
        let said = String::from_utf8(wrong.stderr).unwrap();
        assert!(
            wrong.status.code() == Some(2) && said.contains(named) && said.contains("from 0 to 2"),
            "{said}"
        );
    }
    let wrong = shard(0, "1s").env_remove("JOB_COMPLETION_INDEX").output().unwrap();
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("JOB_COMPLETION_INDEX"));
}

#[test]
fn a_generator_that_dies_is_said() {
    let server = Server::new(4, Duration::from_millis(1));
    let folder = Folder::new();
    let place = folder.file("place");
    let mut gather = Guard::spawn(&mut load(&format!("gather -g 2 -l {place} --json")));
    let mut said = gather.errors();
    Guard::told(&mut said, "Waiting for 2 generators: ");
    let generator = |length: &str| {
        Guard::spawn(&mut load(&format!("http -d {length} --join {place} http://{}/", server.address)))
    };
    let (long, short) = (generator("300s"), generator("1s"));
    Guard::told(&mut said, "Started: ");
    eventually(|| (server.answered() > 0).then_some(()));
    drop(long);
    let short = short.output();
    assert!(short.status.success());
    let merged = gather.output();
    assert_eq!(merged.status.code(), Some(1));
    let merged = report(&merged.stdout);
    let died = |remark: &String| remark.contains("it died") && remark.contains("requests are missing");
    assert!(merged.remarks.iter().any(died), "{:?}", merged.remarks);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("it died"), "{rest}");
}

#[test]
fn nothing_begins_without_all() {
    let server = Server::new(1, Duration::from_millis(1));
    let folder = Folder::new();
    let place = folder.file("place");
    let gather = Guard::spawn(&mut load(&format!("gather -g 2 -l {place} --patience 1s")));
    let join = format!("http --join {place} http://{}/", server.address);
    eventually(|| fs::exists(&place).unwrap().then_some(()));
    let alone = load(&join).output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    let said = String::from_utf8(alone.stderr).unwrap();
    assert!(said.contains("1 of 2 are there and ready"), "{said}");
    assert_eq!((gather.output().status.code(), server.answered()), (Some(1), 0));
    let nobody = load(&join).output().unwrap();
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("is `overfly load gather --listen"), "{said}");
}

#[test]
fn a_time_of_day_and_files_do_too() {
    let server = Server::new(4, Duration::from_millis(1));
    let folder = Folder::new();
    let at = SystemTime::now() + Duration::from_secs(2);
    let at_s = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let words = format!("http -n 100 --json --start-at {at_s:.3} http://{}/", server.address);
    let (one, two) = (Guard::spawn(&mut load(&words)), Guard::spawn(&mut load(&words)));
    let (one, two) = (one.output(), two.output());
    assert!(SystemTime::now() >= at);
    fs::write(folder.file("one"), &one.stdout).unwrap();
    fs::write(folder.file("two"), &two.stdout).unwrap();
    let merged = succeed(&mut load(&format!("merge --json {} {}", folder.file("one"), folder.file("two"))));
    assert_merged_exactly(&report(&merged.stdout), [&report(&one.stdout), &report(&two.stdout)]);
    let past = Command::new(env!("CARGO_BIN_EXE_overfly"))
        .args(["load", "http", "--start-at", "2001-01-01T00:00:00Z", "http://127.0.0.1:1/"])
        .output()
        .unwrap();
    assert_eq!(past.status.code(), Some(2));
    for wrong in ["/dev/null", "/nowhere"] {
        assert_eq!(load(&format!("merge {wrong}")).output().unwrap().status.code(), Some(2));
    }
}
