//! Plans that are right, and what is said of those that are not.

use super::*;

pub(super) const RIGHT: &str = r#"
title = "t"
modes = ["kernel", "overfly"]
payload_bytes = [0, 10000]
connections = ["close", "keepalive"]
repeats = 3
warmup_s = 0.5
duration_s = 2
[server]
program = "nginx"
arguments = []
config = "nginx.conf"
cpu = 0
[client]
connections = 64
cpu = 0
"#;

fn complaint(from: &str, to: &str) -> String {
    assert!(RIGHT.contains(from), "{from}");
    let text = RIGHT.replacen(from, to, 1);
    let line = Plan::parse(Path::new("p.toml"), &text).unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    assert!(line.starts_with("p.toml:"), "{line}");
    line
}

#[test]
fn large_payloads_are_measured_with_kernel_sockets_too() {
    let plan = Plan::parse(Path::new("p.toml"), RIGHT).unwrap();
    assert_eq!(plan.name(), "p");
    assert_eq!(plan.patience_s, 0.0);
    assert_eq!(plan.cells().len(), 4);
    let cases = plan.cases();
    assert_eq!(cases.len(), 4 * 2 * 3 + 2 * 3);
    let second: Vec<_> = cases.iter().filter(|case| case.generator == Link::Kernel).collect();
    assert_eq!(second.len(), 6);
    assert!(
        second
            .iter()
            .all(|case| case.mode == Mode::Kernel && plan.cells()[case.cell].payload_bytes == 10_000)
    );
}

#[test]
fn what_may_arrive_is_asked_over_an_interface_only() {
    let text = RIGHT.replacen("cpu = 0\n[client]", "cpu = 0\n[client]\nreceive_offload = \"segments\"", 1);
    let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
    assert_eq!(plan.client.receive_offload, ReceiveOffload::Segments);
    assert_eq!(
        [0, 1024, 10_000].map(|bytes| ReceiveOffload::Auto.word(bytes)),
        ["packets", "packets", "segments"]
    );
    let text = text.replacen("repeats = 3", "links = [\"kernel\"]\nrepeats = 1", 1);
    let line = Plan::parse(Path::new("p.toml"), &text).unwrap_err().to_string();
    let unknown = complaint("connections = 64", "connections = 64\nreceive_offload = \"frames\"");
    assert!(unknown.contains("`frames` is not known; expected"), "{unknown}");
    assert!(line.contains("client.receive_offload: overfly over \"kernel\" does not know it"), "{line}");
}

#[test]
fn over_memif_the_kernel_has_its_loopback() {
    let text = RIGHT.replacen("repeats = 3", "links = [\"memif\"]\nrepeats = 1", 1);
    let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
    assert!(!plan.needs_lab());
    let cases = plan.cases();
    assert_eq!(cases.len(), 4 * 2, "there is no second look");
    assert!(cases.iter().all(|case| match case.mode {
        Mode::Kernel | Mode::KernelAsFound | Mode::KernelBusyPoll => case.generator == Link::Kernel,
        Mode::Overfly | Mode::Null => case.generator == Link::Memif,
    }));
}

#[test]
fn an_unknown_key_is_named_with_the_known_ones() {
    let line = complaint("repeats = 3", "repeat = 3");
    assert!(line.contains("`repeat`") && line.contains("`repeats`"), "{line}");
    let line = complaint("[client]", "[client]\ncolour = 1");
    assert!(line.contains("there is no key `colour`") && line.contains("`threads`"), "{line}");
}

#[test]
fn a_value_that_is_not_as_expected_is_named_with_what_is() {
    for (from, to, named) in [
        ("repeats = 3", "repeats = 0", "p.toml:6: repeats = 0: expected a number from 1 to 100"),
        (
            "repeats = 3",
            "repeats = \"x\"",
            "p.toml:6: `repeats = \"x\"`: expected a whole number, 0 or more, not the text \"x\"",
        ),
        ("repeats = 3", "repeats = -3", "expected a whole number, 0 or more, not -3"),
        ("duration_s = 2", "duration_s = true", "p.toml:8: `duration_s = true`: expected a number, not true"),
        ("title = \"t\"", "title = 3", "p.toml:2: `title = 3`: expected text in quotes, not 3"),
        ("[0, 10000]", "5", "expected a list in brackets, [ ], not 5"),
        ("repeats = 3", "", "the key `repeats` is missing"),
        ("program = \"nginx\"", "", "the key `program` is missing"),
        ("duration_s = 2", "duration_s = 0", "duration_s = 0: expected a number from 0.2 to 600"),
        ("duration_s = 2", "duration_s = nan", "duration_s = NaN: expected"),
        (
            "\"close\", \"keepalive\"",
            "\"maybe\"",
            "`maybe` is not known; expected one of `close`, `keepalive`",
        ),
        (
            "duration_s = 2",
            "duration_s = 2\npatience_s = -1",
            "patience_s = -1: expected a number from 0 to 3600",
        ),
        ("[0, 10000]", "[]", "payload_bytes = []: expected at least one"),
        ("[0, 10000]", "[7, 7]", "payload_bytes: 7 is there twice"),
        ("[0, 10000]", "[-1]", "payload_bytes = [-1]"),
        ("cpu = 0", "cpu = 4096", "p.toml:13: server.cpu = 4096: expected a number from 0 to"),
        ("connections = 64", "connections = 64\nthreads = 0", "client.threads = 0: expected"),
        ("connections = 64", "connections = 2\nthreads = 3", "client.connections = 2: expected"),
        ("title = \"t\"", "title = ", "p.toml:2: "),
    ] {
        let line = complaint(from, to);
        assert!(line.contains(named), "{to} -> {line}");
    }
}

#[test]
fn a_missing_plan_or_template_is_named() {
    let line = Plan::read(Path::new("/nowhere/p.toml")).unwrap_err();
    assert_eq!(line.exit_status(), 2);
    assert!(line.to_string().starts_with("/nowhere/p.toml: "), "{line}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    fs::write(&path, RIGHT).unwrap();
    let line = Plan::read(&path).unwrap_err().to_string();
    assert!(line.contains("p.toml:12: server.config = \"nginx.conf\""), "{line}");
}

#[test]
fn what_could_only_fail_while_it_runs_is_found_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let complaint = |from: &str, to: &str, template: &str| {
        let right = RIGHT.replace("\"nginx\"", "\"true\"");
        assert!(right.contains(from), "{from}");
        fs::write(&path, right.replacen(from, to, 1)).unwrap();
        fs::write(folder.path().join("nginx.conf"), template).unwrap();
        Plan::read(&path).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(complaint("t", "t", "listen @PORT@;"), Ok(()));
    for (from, to, template, named) in [
        ("\"true\"", "\"ngin\"", "", "p.toml:10: server.program = \"ngin\": there is no such program"),
        ("\"true\"", "\"/etc/passwd\"", "", "p.toml:10: server.program = \"/etc/passwd\": there is no"),
        (
            "arguments = []",
            "arguments = [\"@RAIZ@\"]",
            "",
            "p.toml:11: server.arguments: nothing replaces @RAIZ@",
        ),
        (
            "arguments = []",
            "arguments = []\nbuild = \"no\"",
            "",
            "p.toml:12: server.build = \"no\": expected a program",
        ),
        (
            "arguments = []",
            "arguments = []\nfill = [\"no\"]",
            "",
            "p.toml:12: server.fill = \"no\": expected a program",
        ),
        (
            "arguments = []",
            "arguments = []\nurl = \"http://@HOST@/\"",
            "",
            "p.toml:12: server.url: nothing replaces @HOST@",
        ),
        (
            "t",
            "t",
            "user x;\nlisten @PROT@;\n",
            "nginx.conf:2: nothing replaces @PROT@; expected @ROOT@, @PORT@",
        ),
    ] {
        let line = complaint(from, to, template).unwrap_err();
        assert!(line.contains(named), "{named} is not in {line}");
    }
}

#[test]
fn every_axis_is_gone_through_and_the_kernel_is_measured_once_for_all_profiles() {
    let text = RIGHT
        .replacen("repeats = 3", "repeats = 2\nlinks = [\"kernel\"]\nprofile = [\"balanced\", \"performance\"]", 1)
        .replacen("[0, 10000]", "[16]", 1)
        .replacen("[\"close\", \"keepalive\"]", "[\"keepalive\"]", 1)
        .replacen("[client]\nconnections = 64", "workers = 1\ninstances = [1, 2, 4]\ncpus = [0]\n[client]\nconnections = [8, 64]\nrates_per_s = [1000, 2.5e3, 9000]", 1);
    let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
    let cells = plan.cells();
    assert_eq!(cells.len(), 2 * 3 * 3 * 2);
    let names: Vec<String> = cells.iter().map(|cell| plan.name_of(cell)).collect();
    assert_eq!(names[0], "16 B keepalive over kernel, 8 connections, 1000/s, 1 instance, balanced");
    assert_eq!(names[3], "16 B keepalive over kernel, 8 connections, 1000/s, 2 instances, performance");
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    let cases = plan.cases();
    let of = |mode| cases.iter().filter(|case| case.mode == mode).count();
    assert_eq!((of(Mode::Kernel), of(Mode::Overfly)), (2 * 18, 2 * 36));
    assert_eq!(plan.cores_of(&cells[2], 1), [0]);

    let smoke = plan.smoke();
    assert_eq!((smoke.repeats, smoke.duration_s, smoke.cells().len()), (1, 0.5, 2 * 2 * 2 * 2));
}

#[test]
fn a_profile_meets_its_own_server_side_over_memif_and_in_memory_and_nginx_elsewhere() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../cookbooks/astf-vs-nginx.toml"));
    let plan = Plan::parse(file, &fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(plan.measure(), Measure::FlowsPerS);
    let cells = plan.cells();
    let of = |mode: Mode| {
        let cases = plan.cases().into_iter().filter(move |case| case.mode == mode && case.repeat == 1);
        cases.map(|case| (cells[case.cell].link, case.generator)).collect::<Vec<_>>()
    };
    // Kernel sockets are looked at too where the interface's generator takes offloads from nginx.
    let kernel = [(Link::Xdp, Link::Xdp), (Link::Xdp, Link::Kernel), (Link::Memif, Link::Kernel)];
    assert_eq!(of(Mode::Kernel), kernel);
    assert_eq!(of(Mode::Overfly), [(Link::Xdp, Link::Xdp), (Link::Memif, Link::Memif)]);
    assert_eq!(of(Mode::Null), [(Link::Memif, Link::Memif), (Link::Memory, Link::Memory)]);
    assert!(plan.all_server_cores() == [0] && plan.server_cores(&cells[2]).is_empty());
}

#[test]
fn instances_take_one_core_each_and_a_lonely_one_as_many_as_it_has_workers() {
    let mut plan = Plan::any();
    plan.server.cpus = vec![1, 0];
    let cell = plan.cells()[0];
    assert_eq!(plan.cores_of(&cell, 0), [1]);
    assert_eq!(plan.cores_of(&Cell { workers: 2, ..cell }, 0), [1, 0]);
    let several = Cell { instances: 3, ..cell };
    assert_eq!([0, 1, 2].map(|instance| plan.cores_of(&several, instance)[0]), [1, 0, 1]);
    assert_eq!(plan.server_cores(&several), [0, 1]);
}

#[test]
fn keys_that_exclude_each_other_are_named() {
    for (from, to, named) in [
        ("[client]", "instances = 2\n[client]", "server.instances"),
        ("[client]", "port = 65535\ninstances = 2\n[client]", "port 65536"),
        ("connections = 64", "connections = []", "client.connections = []: expected at least one"),
        ("connections = 64", "connections = [\"x\"]", "expected a whole number"),
        (
            "connections = 64",
            "connections = 64\ntool = \"wrk\"",
            "p.toml:16: client.tool = \"wrk\": it has kernel sockets only",
        ),
        (
            "connections = 64",
            "connections = 64\ntool = \"curl\"",
            "`curl` is not known; expected one of `overfly`",
        ),
        (
            "connections = 64",
            "connections = 64\ntool = \"astf\"",
            "connections: \"keepalive\" is nothing to client.tool = \"astf\"; expected \"close\"",
        ),
        (
            "connections = 64\ncpu = 0",
            "connections = 64\ncpu = 0\n[client.astf]\nprofile = \"a.py\"",
            "client.astf: nothing to client.tool = \"overfly\"",
        ),
        (
            "connections = 64\ncpu = 0",
            "connections = 64\ncpu = 0\n[client.astf]\nprofil = \"a.py\"",
            "p.toml:18: `profil = \"a.py\"`: there is no key `profil`; expected `profile` or `tunables`",
        ),
        (
            "connections = 64\ncpu = 0",
            "connections = 64\ncpu = 0\n[client.find_max]\nof = \"rate\"\nup_to = 9\nholds = \"p99<1s\"",
            "p.toml:18: client.find_max.of = \"rate\": expected client.rates_per_s, where it begins",
        ),
        (
            "connections = 64\ncpu = 0",
            "connections = 64\ncpu = 0\n[client.find_max]\nof = \"connections\"\nup_to = 64\nholds = \"p99<1s\"",
            "p.toml:19: client.find_max.up_to = 64: expected more than the 64 where it begins",
        ),
        (
            "modes = [",
            "modes = [\"kernel-busy-poll\", ",
            "p.toml:3: modes: kernel-busy-poll is an option of sockperf's",
        ),
        (
            "repeats = 3",
            "repeats = 3\nlinks = [\"memory\"]",
            "it has nothing to do with links = [\"memory\"]",
        ),
        (
            "repeats = 3",
            "repeats = 3\nrules = [\"streams >= 1\"]",
            "rules: streams is not what this load comes to; expected requests_per_s",
        ),
        ("connections = 64", "connections = 64\nrates_per_s = [0]", "client.rates_per_s = 0: expected"),
        ("repeats = 3", "repeats = 3\nrules = [\"gain > 1\"]", "`gain > 1` is no rule"),
        ("repeats = 3", "repeats = 3\nprofile = []", "profile = []: expected at least one"),
        (
            "cpu = 0\n[client]",
            "cpu = 0\nurl = \"redis://@ADDRESS@:@PORT@/k\"\nstop = \"quit\"\n[client]",
            "null server speaks HTTP",
        ),
        ("[\"kernel\", ", "[\"kernel-as-found\", ", "kernel-as-found needs a network namespace"),
    ] {
        let text = if named.contains("memif")
            || to.contains("instances = 2\n") && !to.contains("port")
            || to.contains("as-found")
        {
            RIGHT.replacen("repeats = 3", "repeats = 3\nlinks = [\"memif\"]", 1)
        } else {
            RIGHT.replace(
                "modes = [",
                if named.contains("null") { "modes = [\"null\", " } else { "modes = [" },
            )
        };
        assert!(text.contains(from), "{from}");
        let line = Plan::parse(Path::new("p.toml"), &text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(line.starts_with("p.toml:") && line.contains(named), "{to} -> {line}");
    }
}

/// The JSON Schema that editors use says what the parser says: of keys, of words, of the ends of ranges.
#[test]
fn the_schema_agrees_with_the_parser() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cookbooks/plan.schema.json");
    let schema: serde_json::Value = serde_json::from_str(&fs::read_to_string(text).unwrap()).unwrap();
    let mut right: toml::Table = toml::from_str(RIGHT).unwrap();
    // Tables that no plan needs, so that each of their keys is looked at.
    let more = "[hosts.a]\nssh = \"a\"\naddress = \"10.0.0.1\"\n[hosts.b]\n[astf]\nprofile = \"p.py\"\n[find_max]\nof = \"connections\"\nup_to = 100\nholds = \"p99<1s\"";
    let more: toml::Table = toml::from_str(more).unwrap();
    let answer = |plan: &toml::Table| {
        Plan::parse(Path::new("p.toml"), &toml::to_string(plan).unwrap())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    answer(&right).unwrap();
    right["client"].as_table_mut().unwrap().insert("find_max".to_owned(), more["find_max"].clone());
    answer(&right).unwrap();
    right["client"].as_table_mut().unwrap().insert("astf".to_owned(), more["astf"].clone());
    let table_of = |plan: &mut toml::Table, table: &str, change: &dyn Fn(&mut toml::Table)| {
        let steps = table.split('.').filter(|step| !step.is_empty());
        change(steps.fold(plan, |table, step| table.get_mut(step).unwrap().as_table_mut().unwrap()));
    };
    let with = |table: &str, change: &dyn Fn(&mut toml::Table)| {
        let mut plan = right.clone();
        if table.starts_with("hosts") {
            plan.insert("hosts".to_owned(), more["hosts"].clone());
            for (side, host) in [("server", "a"), ("client", "b")] {
                plan[side].as_table_mut().unwrap().insert("host".to_owned(), host.into());
            }
        }
        table_of(&mut plan, table, change);
        answer(&plan)
    };
    let client = &schema["properties"]["client"];
    for (table, schema) in [
        ("", &schema),
        ("server", &schema["properties"]["server"]),
        ("client", client),
        ("hosts.a", &schema["properties"]["hosts"]["additionalProperties"]),
        ("client.astf", &client["properties"]["astf"]),
        ("client.find_max", &client["properties"]["find_max"]),
    ] {
        assert_eq!(schema["additionalProperties"], false);
        // An unknown key is answered with all that are known.
        let error = with(table, &|table| {
            table.insert("zzz".to_owned(), 1.into());
        })
        .unwrap_err();
        let known: std::collections::BTreeSet<&str> =
            error.split("expected").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        let listed: std::collections::BTreeSet<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(known, listed, "{table}");
        let required: Vec<&str> =
            schema["required"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
        for (key, its) in schema["properties"].as_object().unwrap() {
            let missing = with(table, &|table| {
                table.remove(key);
            });
            let is_required = missing.is_err_and(|error| error.contains(&format!("`{key}` is missing")));
            assert_eq!(required.contains(&key.as_str()), is_required, "{table} {key}");
            check_values(key, its, &|value| {
                with(table, &|table| {
                    table.insert(key.clone(), value.clone());
                })
            });
        }
    }
}

/// That the parser takes what the schema allows of a key, and not what it forbids.
fn check_values(key: &str, its: &serde_json::Value, answer: &dyn Fn(toml::Value) -> Result<(), String>) {
    let one = its.get("anyOf").map_or(its, |forms| &forms[0]);
    let item = one.get("items");
    let is_list = item.is_some();
    let one = item.unwrap_or(one);
    let value = |value: toml::Value| if is_list { vec![value].into() } else { value };
    if let Some(words) = one["enum"].as_array() {
        for word in words {
            let said = answer(value(word.as_str().unwrap().into()));
            // It may not go with the rest of the plan, but it is known.
            assert!(said.is_ok() || !said.clone().unwrap_err().contains("is not known"), "{key}: {said:?}");
        }
        let error = answer(value("zzz".into())).unwrap_err();
        let known: Vec<&str> =
            error.split("expected").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert_eq!(known.len(), words.len(), "{key}: {error}");
    }
    let number =
        |number: f64| if one["type"] == "integer" { toml::Value::from(number as i64) } else { number.into() };
    let is_core = key.starts_with("cpu");
    if one["type"] == "boolean" {
        assert!(!answer(true.into()).is_err_and(|error| error.contains("true or false")), "{key}");
        assert!(answer("zzz".into()).unwrap_err().contains("true or false"), "{key}");
    }
    for (end, step) in [("minimum", -1.0), ("maximum", 1.0)] {
        let Some(limit) = one[end].as_f64().filter(|_| !is_core || end == "minimum") else { continue };
        let inside = answer(value(number(limit)));
        let named =
            |said: &Result<(), String>| said.as_ref().is_err_and(|error| error.contains("a number from"));
        assert!(!named(&inside), "{key} = {limit}: {inside:?}");
        assert!(answer(value(number(limit + step))).is_err(), "{key} = {}", limit + step);
    }
}

#[test]
fn every_plan_of_the_cookbooks_is_right() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../cookbooks"));
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = fs::read_to_string(&path).unwrap();
            Plan::parse(&path, &text).unwrap();
            count += 1;
        }
    }
    assert!(count >= 7, "{count} plans in {}", folder.display());
}

/// A plan whose sides are hosts, with a change.
fn of_hosts(from: &str, to: &str) -> Result<Plan, String> {
    let plan = RIGHT.replacen(
        "[server]",
        "[hosts.a]\nssh = \"root@a\"\naddress = \"10.0.0.1\"\n[hosts.b]\n[server]\nhost = \"a\"",
        1,
    );
    let plan = plan.replacen("[client]", "[client]\nhost = \"b\"", 1);
    assert!(plan.contains(from), "{from}");
    Plan::parse(Path::new("p.toml"), &plan.replacen(from, to, 1)).map_err(|error| error.to_string())
}

#[test]
fn hosts_are_where_the_sides_are() {
    let plan = of_hosts("repeats", "repeats").unwrap();
    assert!(!plan.needs_lab());
    let [(server, host), (client, other)] = plan.sides().unwrap();
    assert_eq!((server, client), ("a", "b"));
    assert_eq!((host.ssh.as_deref(), other.ssh.as_deref()), (Some("root@a"), None));
    assert_eq!((host.interface.as_str(), other.interface.as_str()), ("eth0", "eth0"));
    // What a host has of cores is known once it answers.
    of_hosts("cpu = 0", "cpu = 900").unwrap();
    for (from, to, named) in [
        (
            "host = \"a\"",
            "host = \"c\"",
            "p.toml:14: server.host = \"c\": there is no [hosts.c]; expected one of a, b",
        ),
        ("host = \"b\"\n", "", "client.host: the plan has hosts; expected one of a, b"),
        ("address = \"10.0.0.1\"\n", "", "hosts.a.address: nobody knows where the server is"),
        ("\"10.0.0.1\"", "\"a\"", "p.toml:11: hosts.a.address = \"a\": expected an IPv4 address"),
        (
            "\"root@a\"",
            "\"-oProxyCommand=x\"",
            "p.toml:10: hosts.a.ssh = \"-oProxyCommand=x\": expected a destination",
        ),
        (
            "[hosts.b]",
            "[hosts.b]\nssh_config = \"c\"",
            "p.toml:13: hosts.b.ssh_config: this host is this machine",
        ),
        ("[hosts.b]", "[hosts.b]\nirq_cpus = [1, 1]", "p.toml:13: hosts.b.irq_cpus: 1 is there twice"),
        ("[hosts.b]", "[hosts.b]\ncolour = 1", "there is no key `colour`"),
        ("repeats = 3", "repeats = 3\nlinks = [\"memif\"]", "links: memif is within one machine"),
        ("\"kernel\", ", "\"kernel\", \"kernel-as-found\", ", "expected tune = true with hosts"),
        ("config =", "fill = [\"f\"]\nconfig =", "server.fill: it is a program of this machine"),
        ("arguments = []", "arguments = [\"@PLAN@/x\"]", "server.arguments: \"@PLAN@/x\""),
        ("connections = 64", "connections = 64\ntool = \"idle\"", "it needs both sides on this machine"),
    ] {
        let error = of_hosts(from, to).unwrap_err();
        assert!(error.contains(named), "{from} -> {to}: {error}");
    }
}

#[test]
fn runs_come_in_the_order_that_is_asked_for() {
    let orders = ["random", "interleaved", "sequential"].map(|order| {
        let text = RIGHT.replacen("repeats = 3", &format!("repeats = 3\norder = \"{order}\""), 1);
        let plan = Plan::parse(Path::new("p.toml"), &text).unwrap();
        let cases = plan.cases();
        let order: Vec<Case> = plan.order_of_runs(7).into_iter().map(|run| cases[run]).collect();
        assert!(order.len() == cases.len() && cases.iter().all(|case| order.contains(case)), "each once");
        (cases, order)
    });
    let [(cases, random), (_, interleaved), (_, sequential)] = orders;
    assert_ne!(random, cases);
    assert_eq!(interleaved, cases);
    let modes = |cases: &[Case]| cases.iter().take(6).map(|case| case.mode).collect::<Vec<_>>();
    let (kernel, overfly) = (Mode::Kernel, Mode::Overfly);
    assert_eq!(modes(&interleaved), [kernel, overfly, kernel, overfly, kernel, overfly]);
    assert_eq!(modes(&sequential), [kernel, kernel, kernel, overfly, overfly, overfly]);
    assert!(sequential.is_sorted_by_key(|case| case.cell));
}
