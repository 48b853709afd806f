//! `overfly bench`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use overfly_testing::process;
use serde_json::Value;

use super::{
    Guard, alive, assert_refused, descendants, eventually, network_of, outcome, overfly, signal, write_script,
};

/// A folder with a plan for nginx on the kernel under a generator with kernel sockets.
struct Workplace {
    folder: tempfile::TempDir,
}

impl Workplace {
    fn new(change: impl FnOnce(String) -> String) -> Workplace {
        let folder = tempfile::tempdir().unwrap();
        let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/nginx/nginx.conf");
        fs::copy(template, folder.path().join("nginx.conf")).unwrap();
        let plan = r#"
title = "a test"
modes = ["kernel"]
links = ["kernel"]
payload_bytes = [1024]
connections = ["keepalive"]
repeats = 1
warmup_s = 0.1
duration_s = 0.5
[server]
program = "nginx"
arguments = ["-e", "stderr", "-p", "@ROOT@", "-c", "@CONFIG@"]
config = "nginx.conf"
cpu = 0
[client]
connections = 4
cpu = 0
"#;
        fs::write(folder.path().join("plan.toml"), change(plan.to_owned())).unwrap();
        Workplace { folder }
    }

    /// The plan runs the server on Overfly.
    fn of_overfly(self) -> Workplace {
        let path = self.folder.path().join("plan.toml");
        let plan = fs::read_to_string(&path).unwrap();
        fs::write(&path, plan.replace("modes = [\"kernel\"]", "modes = [\"overfly\"]")).unwrap();
        self
    }

    fn bench(&self) -> Command {
        let mut command = overfly();
        command.args(["bench", "plan.toml"]).current_dir(self.folder.path());
        command
    }

    fn summary(&self) -> Value {
        let text = fs::read_to_string(self.folder.path().join("results/plan/summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn raw(&self) -> Vec<PathBuf> {
        fs::read_dir(self.folder.path().join("results/plan/raw"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

#[test]
fn a_plan_is_carried_out_and_everything_is_written() {
    let workplace = Workplace::new(|plan| plan.replace("[\"keepalive\"]", "[\"keepalive\", \"close\"]"));
    let output = workplace.bench().args(["--seed", "5"]).output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("seed 5"), "{said}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("1024 B") && table.contains("keepalive") && table.contains("close"), "{table}");

    let summary = workplace.summary();
    let cells = summary["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2);
    for cell in cells {
        assert_eq!(cell["payload_bytes"], 1024);
        assert_eq!(cell["link"], "kernel");
        let kernel = &cell["kernel"];
        assert!(kernel["median"].as_f64().unwrap() > 1.0, "{kernel}");
        assert_eq!(kernel["points"].as_array().unwrap().len(), 1);
        assert_eq!(kernel["errors"], 0);
        assert!(kernel["disturbed"].as_array().unwrap().len() <= 1, "{kernel}");
        assert_eq!(kernel["set_aside"].as_array().unwrap().len(), 0, "there is no patience: {kernel}");
        assert!(kernel["server_cpu_us_per_request"].as_f64().unwrap() > 0.0, "{kernel}");
        assert!(kernel["client_command"].as_str().unwrap().contains("load http --json"));
    }
    let environment = &summary["environment"];
    assert!(environment["server_version"].as_str().unwrap().contains("nginx"));
    // What a machine's namespaces may have, and in no case one that paces.
    let control = environment["sysctls"]["net.ipv4.tcp_congestion_control"].as_str().unwrap();
    assert!(["cubic", "reno"].contains(&control), "{environment}");
    let refused = environment["refused_sysctls"].to_string();
    assert_eq!(refused.contains("tcp_congestion_control = cubic"), control == "reno", "{environment}");
    assert_eq!(summary["measure"]["key"], "requests_per_s");
    assert_eq!(workplace.raw().len(), 2);
    for path in workplace.raw() {
        let run: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let yardstick = &run["yardstick"];
        for look in [&yardstick["before"], &yardstick["during"]["speeds"][0], &yardstick["after"]] {
            assert!(look["server_core"].as_f64().unwrap() > 0.0, "{yardstick}");
            assert!(look["client_core"].as_f64().unwrap() > 0.0, "{yardstick}");
        }
    }
    // A session does not differ from itself, and one run is too few to say more.
    let diff = overfly()
        .args(["report", "diff", "results/plan", "results/plan/summary.json"])
        .current_dir(workplace.folder.path())
        .output()
        .unwrap();
    let (code, said) = outcome(&diff);
    assert_eq!(code, Some(0), "{said}");
    let text = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(text.contains("1024 B close over kernel, kernel") && text.contains("too few"), "{text}");

    let report = fs::read_to_string(workplace.folder.path().join("results/plan/report.md")).unwrap();
    assert!(report.contains("| 1024 B | close | kernel |"), "{report}");
}

/// By its processor time, which a busy machine does not change.
#[test]
fn the_bench_itself_takes_little_of_a_core() {
    let workplace = Workplace::new(|plan| plan.replace("duration_s = 0.5", "duration_s = 4"));
    let (code, said) = outcome(&workplace.bench().output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    let percent = workplace.summary()["harness_percent"].as_f64().unwrap();
    assert!(percent > 0.0 && percent < 2.0, "{percent} % of a core");
}

#[test]
fn a_plan_may_have_another_server_than_nginx() {
    let server = r#"
program = "redis-server"
arguments = ["@BUILD@/redis.conf", "--port", "@PORT@", "--dir", "@ROOT@"]
build = "build"
fill = ["FOLDER/redis/fill", "@PORT@", "@BYTES@"]
url = "redis://@ADDRESS@:@PORT@/@BYTES@"
stop = "term"
"#;
    let server = server.replace("FOLDER", concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads"));
    let workplace = Workplace::new(|plan| {
        let (before, rest) = plan.split_once("program = ").unwrap();
        let (_, after) = rest.split_once("config = \"nginx.conf\"\n").unwrap();
        format!("{before}{server}{after}")
    });
    let build = workplace.folder.path().join("build");
    write_script(&build, "#!/bin/sh\nprintf 'save \"\"\nprotected-mode no\n' > \"$1/redis.conf\"\n");
    let (code, said) = outcome(&workplace.bench().output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    let kernel = &workplace.summary()["cells"][0]["kernel"];
    assert!(kernel["median"].as_f64().unwrap() > 1.0, "{kernel}");
    assert_eq!(kernel["errors"], 0);

    write_script(&build, "#!/bin/sh\nexit 3\n");
    assert_refused(&mut workplace.bench(), 2, &["plan.toml", "server.build", "exit status: 3"]);
}

#[test]
fn several_instances_are_gone_through_and_rules_are_judged() {
    let workplace = Workplace::new(|plan| {
        plan.replace("repeats = 1", "repeats = 1\nrules = [\"errors <= 0\"]")
            .replace("[\"kernel\"]\nlinks", "[\"kernel\", \"kernel-as-found\"]\nlinks")
            .replace("[client]", "instances = [1, 2]\ncpus = [0]\n[client]")
            .replace("connections = 4", "connections = 4\nrates_per_s = [200]")
    });
    let output = workplace.bench().output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0), "{said}");
    let summary = workplace.summary();
    let cells = summary["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2);
    for (cell, instances) in cells.iter().zip([1, 2]) {
        assert_eq!((&cell["instances"], &cell["rate_per_s"]), (&instances.into(), &200.0.into()));
        for mode in ["kernel", "kernel_as_found"] {
            let figure = &cell[mode];
            assert!((1.0..=220.0).contains(&figure["median"].as_f64().unwrap()), "{figure}");
            let command = figure["client_command"].as_str().unwrap();
            assert!(command.contains("-R 200"), "{command}");
            assert_eq!(command.matches("http://").count(), instances, "{command}");
        }
    }
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("keepalive, 200/s, 2 instances"), "{table}");
    assert_eq!(table.matches("+ errors <= 0 holds").count(), 2, "{table}");

    let missed = Workplace::new(|plan| plan.replace("repeats = 1", "repeats = 1\nrules = [\"errors >= 7\"]"));
    let (code, said) = outcome(&missed.bench().output().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not what the plan requires"), "{said}");
    let (code, said) = outcome(&missed.bench().arg("--smoke").output().unwrap());
    assert_eq!(code, Some(0), "nothing is required of a smoke run: {said}");
}

#[test]
fn the_generators_ceiling_is_measured_against_a_server_that_only_answers() {
    for link in ["xdp", "memif", "kernel"] {
        let workplace = Workplace::new(|plan| {
            plan.replace("[\"kernel\"]\nlinks = [\"kernel\"]", &format!("[\"null\"]\nlinks = [\"{link}\"]"))
        });
        let (code, said) = outcome(&workplace.bench().output().unwrap());
        assert_eq!(code, Some(0), "{link}: {said}");
        let null = &workplace.summary()["cells"][0]["null_server"];
        assert!(null["median"].as_f64().unwrap() > 1.0, "{null}");
        assert_eq!((&null["link"], &null["errors"]), (&link.into(), &0.into()));
        assert!(null["server_command"].as_str().unwrap().contains("load serve"), "{null}");
    }
}

#[test]
fn foreign_generators_are_understood() {
    for tool in ["wrk", "ab"] {
        let workplace = Workplace::new(|plan| {
            plan.replace("warmup_s = 0.1", "warmup_s = 0")
                .replace("duration_s = 0.5", "duration_s = 1")
                .replace("connections = 4", &format!("connections = 4\ntool = \"{tool}\""))
        });
        let (code, said) = outcome(&workplace.bench().output().unwrap());
        assert_eq!(code, Some(0), "{tool}: {said}");
        let kernel = &workplace.summary()["cells"][0]["kernel"];
        assert!(kernel["median"].as_f64().unwrap() > 1.0, "{kernel}");
        assert!(kernel["server_cpu_us_per_request"].as_f64().unwrap() > 0.0, "{kernel}");
        assert!(kernel["client_command"].as_str().unwrap().starts_with(tool), "{kernel}");
    }
}

#[test]
fn a_run_that_fails_is_in_the_report() {
    let workplace = Workplace::new(|plan| plan.replace("\"nginx\"", "\"false\""));
    let output = workplace.bench().output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(1), "{said}");
    let kernel = &workplace.summary()["cells"][0]["kernel"];
    assert_eq!(kernel["errors"], 1);
    assert_eq!(kernel["points"][0], 0.0);
    assert!(kernel["problems"][0].as_str().unwrap().contains("ended at once"), "{kernel}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("! 1024 B keepalive, kernel: the server ended at once"), "{table}");
}

#[test]
fn failed_requests_are_errors() {
    // All but the first one of a connection.
    let workplace = Workplace::new(|plan| plan);
    let config = workplace.folder.path().join("nginx.conf");
    let text = fs::read_to_string(&config).unwrap();
    let text =
        text.replace("root @ROOT@/www;", "root @ROOT@/www; if ($connection_requests != 1) { return 404; }");
    fs::write(&config, text).unwrap();
    let output = workplace.bench().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let kernel = &workplace.summary()["cells"][0]["kernel"];
    assert!(kernel["errors"].as_u64().unwrap() > 1, "{kernel}");
    assert!(kernel["problems"].to_string().contains("wrong status"), "{kernel}");
}

#[test]
fn a_wrong_plan_is_refused_in_one_line() {
    let with = |from: &str, to: &str| Workplace::new(|plan| plan.replacen(from, to, 1));
    let workplace = with("repeats = 1", "repeat = 1");
    assert_refused(&mut workplace.bench(), 2, &["plan.toml", "`repeat`", "`repeats`"]);
    let workplace = with("repeats = 1", "repeats = 0");
    assert_refused(&mut workplace.bench(), 2, &["plan.toml", "repeats = 0", "from 1 to 100"]);
    let workplace = with("\"nginx.conf\"", "\"apache.conf\"");
    assert_refused(&mut workplace.bench(), 2, &["plan.toml", "server.config", "apache.conf"]);
    let workplace = with("title", "title title");
    assert_refused(&mut workplace.bench(), 2, &["plan.toml:2: "]);
    let workplace = with("repeats = 1", "repeats = 1\nprofile = \"fast\"").of_overfly();
    assert_refused(&mut workplace.bench(), 2, &["plan.toml:8: profile = \"fast\"", "balanced"]);
    let workplace = with("\"nginx\"", "\"ngin\"");
    assert_refused(&mut workplace.bench(), 2, &["server.program = \"ngin\"", "no such program"]);
    assert_refused(overfly().args(["bench", "/nowhere.toml"]), 2, &["/nowhere.toml"]);
    assert_refused(overfly().args(["bench"]), 2, &["<PLAN>"]);
}

/// Kept reports are of requests per second, before there was anything else: they say no figure.
#[test]
fn a_summary_of_before_there_were_other_figures_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/quickstart.json");
    fs::copy(kept, folder.path().join("summary.json")).unwrap();
    let (code, said) = outcome(&overfly().arg("report").arg(folder.path()).output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    let report = fs::read_to_string(folder.path().join("report.md")).unwrap();
    assert!(report.contains("Requests per second (requests/s) over"), "{report}");
    let output = overfly().args(["report", "diff"]).args([folder.path(), folder.path()]).output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("The two agree"));
}

/// Starts a long run and waits until server and generator are both there; returns every process
/// under it and the lab's network namespaces.
fn long_run(workplace: &Workplace) -> (Guard, Vec<u32>, HashSet<u64>) {
    let mut command = workplace.bench();
    let bench = Guard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let ours = network_of(std::process::id()).unwrap();
    let (mut family, mut networks) = (Vec::new(), HashSet::new());
    // The guardian, nginx, its worker, the generator.
    eventually("server and generator run", || {
        family = descendants(bench.0.id());
        networks = family.iter().copied().filter_map(network_of).filter(|&its| its != ours).collect();
        networks.len() == 2 && family.len() >= 4
    });
    (bench, family, networks)
}

#[test]
fn an_interrupted_session_goes_on_and_the_earlier_report_stands_until_then() {
    let workplace = Workplace::new(|plan| plan.replace("repeats = 1", "repeats = 4"));
    let results = workplace.folder.path().join("results/plan");
    fs::create_dir_all(&results).unwrap();
    fs::write(results.join("report.md"), "the earlier report").unwrap();
    let lines = || {
        let text = fs::read_to_string(results.join("unfinished/points.jsonl")).unwrap_or_default();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut command = workplace.bench();
    let mut bench = Guard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("a point has been measured", || !lines().is_empty());
    let (code, said) = outcome(&workplace.bench().output().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("process {} writes to", bench.0.id())), "{said}");
    signal(bench.0.id(), "INT");
    assert_eq!(bench.0.wait().unwrap().code(), Some(130));
    let kept = lines();
    assert!((1..4).contains(&kept.len()), "{} points", kept.len());
    assert_eq!(fs::read_to_string(results.join("report.md")).unwrap(), "the earlier report");
    let partial = fs::read_to_string(results.join("unfinished/report.md")).unwrap();
    assert!(partial.contains("The session was interrupted"), "{partial}");

    let output = workplace.bench().arg("--resume").output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("{} runs are there already", kept.len())), "{said}");
    assert_eq!(workplace.summary()["cells"][0]["kernel"]["points"].as_array().unwrap().len(), 4);
    let all = fs::read_to_string(results.join("points.jsonl")).unwrap();
    assert!(kept.iter().all(|line| all.contains(line.as_str())), "what was measured was kept as it was");
    assert_eq!(workplace.raw().len(), 4);
    assert!(!results.join("unfinished").exists());
    assert_refused(workplace.bench().arg("--resume"), 2, &["points.jsonl", "nothing to go on with"]);
}

#[test]
fn a_run_that_fails_once_is_made_again_and_is_no_error() {
    let server = r#"#!/bin/sh
# The bench asks for the version too.
case "$*" in *-c*) if mkdir FOLDER/tried 2>/dev/null; then exit 3; fi ;; esac
exec nginx "$@"
"#;
    let workplace = Workplace::new(|plan| plan.replace("program = \"nginx\"", "program = \"./server\""));
    let path = workplace.folder.path().join("server");
    write_script(&path, &server.replace("FOLDER", &workplace.folder.path().display().to_string()));
    let output = workplace.bench().output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(0), "{said}");
    let kernel = &workplace.summary()["cells"][0]["kernel"];
    assert_eq!(kernel["errors"], 0, "{kernel}");
    assert!(kernel["tried_again"][0].as_str().unwrap().contains("ended at once"), "{kernel}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("made again, and well then"));
}

#[test]
fn a_server_that_dies_while_it_is_measured_has_no_figure_and_the_others_have() {
    // It ends well, some time after the generator has begun: nothing but its absence says so.
    let server = r#"#!/bin/sh
case "$*" in *-c*) ;; *) exec nginx "$@" ;; esac
if ! mkdir FOLDER/first 2>/dev/null && ! mkdir FOLDER/second 2>/dev/null; then exec nginx "$@"; fi
nginx "$@" &
sleep 2
kill -9 $!
exit 0
"#;
    let workplace = Workplace::new(|plan| {
        plan.replace("program = \"nginx\"", "program = \"./server\"")
            .replace("duration_s = 0.5", "duration_s = 3")
            .replace("repeats = 1", "repeats = 2")
    });
    let path = workplace.folder.path().join("server");
    write_script(&path, &server.replace("FOLDER", &workplace.folder.path().display().to_string()));
    let output = workplace.bench().output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(1), "{said}");
    let kernel = &workplace.summary()["cells"][0]["kernel"];
    assert!(kernel["problems"].to_string().contains("the server ended while it was measured"), "{kernel}");
    let points: Vec<f64> =
        kernel["points"].as_array().unwrap().iter().map(|point| point.as_f64().unwrap()).collect();
    assert_eq!(points.iter().filter(|point| **point == 0.0).count(), 1, "{points:?}");
    assert_eq!(points.iter().filter(|point| **point > 10.0).count(), 1, "{points:?}");
}

/// What a headless Chromium makes of a page: its elements after its scripts have run, and a picture of it.
fn browser(page: &Path, width: u32, dark: bool, picture: Option<&Path>) -> String {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.args(["--virtual-time-budget=3000", "--enable-logging=stderr", "--v=0"]);
    command.arg(format!("--window-size={width},2600"));
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    match picture {
        Some(picture) => command.arg(format!("--screenshot={}", picture.display())),
        None => command.arg("--dump-dom"),
    };
    let output = command.arg(format!("file://{}", page.display())).output().expect("chromium is installed");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains(":CONSOLE")).collect();
    assert!(complaints.is_empty(), "the page's own messages: {complaints:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_report_is_a_page_that_needs_nothing_but_itself() {
    let workplace = Workplace::new(|plan| {
        plan.replace("title = \"a test\"", "title = \"a </script><b>test</b> & more\"")
            .replace("[1024]", "[0, 1024]")
            .replace("[client]", "workers = [1, 2]\n[client]")
    });
    let (code, said) = outcome(&workplace.bench().output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    let results = workplace.folder.path().join("results/plan");
    let page = results.join("report.html");
    let text = fs::read_to_string(&page).unwrap();
    // A browser asks nobody for anything: the page forbids it, and names no place.
    assert!(text.contains("default-src 'none'") && !text.contains("src=\"") && !text.contains("<link"));

    let dom = browser(&page, 1200, false, None);
    let body = dom.split("<body").nth(1).unwrap();
    let charts: usize =
        body.split("data-charts=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(charts >= 4, "{charts} charts");
    assert_eq!(body.matches("<canvas").count(), charts, "each chart was drawn");
    assert!(
        body.contains("<h1>a &lt;/script&gt;&lt;b&gt;test&lt;/b&gt; &amp; more</h1>"),
        "the title is text"
    );
    assert!(body.contains("keepalive, 2 workers"), "the table is there");
    for unit in
        ["median; more is better; requests/s", "content only, without headers; Gb/s", "less is better; µs"]
    {
        assert!(body.contains(unit), "each chart says its unit: {unit}");
    }
    // Kept, to be looked at.
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-pictures");
    fs::create_dir_all(&pictures).unwrap();
    println!("pictures of the report: {}", pictures.display());
    for (width, dark) in [(1200, false), (1200, true), (390, false)] {
        let picture = pictures.join(format!("{width}-{}.png", if dark { "dark" } else { "light" }));
        browser(&page, width, dark, Some(&picture));
        assert!(fs::metadata(&picture).unwrap().len() > 10_000);
    }

    let csv = fs::read_to_string(results.join("points.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4, "{csv}");
    assert!(
        csv.lines().nth(1).unwrap().starts_with("0,keepalive,kernel,4,,1,1,performance,kernel,1,"),
        "{csv}"
    );

    // It can be made again from summary.json alone.
    let markdown = fs::read_to_string(results.join("report.md")).unwrap();
    for name in ["report.html", "report.md", "points.csv"] {
        fs::remove_file(results.join(name)).unwrap();
    }
    let report = |folder: &str| {
        let mut command = overfly();
        command.args(["report", folder]).current_dir(workplace.folder.path());
        command
    };
    let (code, said) = outcome(&report("results/plan").output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    assert!(fs::read_to_string(&page).unwrap() == text, "the page is the same");
    assert_eq!(fs::read_to_string(results.join("report.md")).unwrap(), markdown);
    assert_eq!(fs::read_to_string(results.join("points.csv")).unwrap(), csv);
    assert_refused(&mut report("."), 2, &["./summary.json", "overfly bench"]);
}

#[test]
fn killed_in_the_middle_it_leaves_nothing() {
    for name in ["KILL", "TERM", "INT"] {
        let workplace = Workplace::new(|plan| plan.replace("duration_s = 0.5", "duration_s = 60"));
        let (mut bench, family, networks) = long_run(&workplace);
        signal(bench.0.id(), name);
        assert!(!bench.0.wait().unwrap().success());
        eventually("every process has ended", || !family.iter().any(|&id| alive(id)));
        let inside = process::all().into_iter().filter_map(network_of).any(|its| networks.contains(&its));
        assert!(!inside, "nobody is left in the lab");
    }
}
