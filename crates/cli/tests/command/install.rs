//! `scripts/install.sh`, with an apt-get that installs nothing; `make install` into a folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use super::write_script;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install.sh");

/// What the script says, and has apt-get install, on a machine that has none of the tools.
fn installed(words: &[&str]) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for tool in ["bash", "id", "chmod", "rm"] {
        let place =
            ["/usr/bin", "/bin"].map(|its| Path::new(its).join(tool)).into_iter().find(|its| its.exists());
        symlink(place.unwrap(), path.join(tool)).unwrap();
    }
    for (name, text) in [
        ("apt-get", format!("#!/bin/sh\necho \"$@\" >> {}/asked\n", path.display())),
        ("cargo", "#!/bin/sh\n".to_owned()),
    ] {
        write_script(&path.join(name), &text);
    }
    let output = Command::new("/bin/bash").arg(SCRIPT).args(words).env("PATH", path).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let asked = fs::read_to_string(path.join("asked")).unwrap();
    let install = asked.lines().find(|line| line.contains(" install ")).unwrap();
    let packages = install.split(' ').skip_while(|word| *word != "--no-install-recommends").skip(1);
    (said, packages.map(str::to_owned).collect())
}

#[test]
fn the_quickstart_installs_what_it_needs_and_says_what() {
    let (said, packages) = installed(&["quickstart"]);
    for needed in ["nginx-light", "clang", "gcc", "make", "iproute2", "ethtool"] {
        assert!(packages.iter().any(|package| package == needed), "{needed}: {packages:?}");
        assert!(said.contains(needed), "{said}");
    }
    for others in ["valgrind", "openjdk-17-jdk-headless", "postgresql-contrib", "tshark", "npm"] {
        assert!(!packages.iter().any(|package| package == others), "{others}: {packages:?}");
    }
    // And headers, where they are missing.
    assert!(packages.len() <= 8, "{packages:?}");
    let (_, all) = installed(&[]);
    assert!(all.len() > 30 && packages.iter().all(|package| all.contains(package)), "{all:?}");
}

#[test]
fn packages_tools_are_for_packages_only() {
    let (_, packages) = installed(&["packages"]);
    assert!(
        packages.contains(&"rpm".to_owned()) && !packages.contains(&"nginx-light".to_owned()),
        "{packages:?}"
    );
    let (_, tests) = installed(&[]);
    assert!(!tests.contains(&"rpm".to_owned()) && !tests.contains(&"debootstrap".to_owned()), "{tests:?}");
}

/// Every file below a folder, by its path there.
fn files(folder: &Path) -> Vec<String> {
    let output = Command::new("find").args([".", "!", "-type", "d"]).current_dir(folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut files: Vec<String> = text.lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
    files.sort();
    files
}

fn make(words: &[&str], build: &Path, prefix: &Path) {
    let mut command = Command::new("make");
    command.args(["--no-print-directory", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")]).args(words);
    let output = command
        .env("CARGO_TARGET_DIR", build)
        .env("DESTDIR", prefix)
        .env("PREFIX", "/opt/overfly")
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_is_installed_runs_from_there_and_is_taken_away_whole() {
    let build = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let release = build.path().join("release");
    fs::create_dir(&release).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_overfly"), release.join("overfly")).unwrap();
    fs::write(release.join("liboverfly.so"), "").unwrap();
    let destination = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(destination.path().join("neighbour"), "").unwrap();
    make(&["install"], build.path(), destination.path());

    let root = destination.path().join("opt/overfly");
    let there = files(&root);
    for name in [
        "bin/overfly",
        "lib/overfly/liboverfly.so",
        "lib/systemd/system/overfly-agent.service",
        "lib/systemd/system/overfly-broker@.service",
        "share/bash-completion/completions/overfly",
        "share/doc/overfly/LICENSE-MIT",
        "share/doc/overfly/broker.toml",
        "share/doc/overfly/docs/operate.md",
        "share/doc/overfly/docs/troubleshooting.md",
        "share/doc/overfly/docs/servers/nginx.md",
        "share/fish/vendor_completions.d/overfly.fish",
        "share/man/man1/overfly-broker.1",
        "share/man/man1/overfly.1",
        "share/overfly/cookbooks/README.md",
        "share/overfly/cookbooks/plan.schema.json",
        "share/overfly/cookbooks/quickstart.toml",
        "share/overfly/profiles/latency.opf",
        "share/overfly/python/overfly/__init__.py",
        "share/zsh/site-functions/_overfly",
    ] {
        assert!(there.contains(&name.to_owned()), "{name} is missing: {there:?}");
    }
    for (name, starts) in [("overfly-broker@", "--interface %I"), ("overfly-agent", "--agent")] {
        let unit = fs::read_to_string(root.join(format!("lib/systemd/system/{name}.service"))).unwrap();
        assert!(unit.contains(&format!("ExecStart=/opt/overfly/bin/overfly broker {starts}\n")), "{unit}");
    }

    let output = |words: &[&str]| {
        let output = Command::new(root.join("bin/overfly")).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let diagnosis: serde_json::Value = serde_json::from_str(&output(&["doctor", "--json"])).unwrap();
    assert_eq!(diagnosis["machine"][0]["state"], "good", "the library is found: {diagnosis}");
    let profiles = output(&["profile", "list"]);
    assert!(
        profiles.contains(&format!("{}/share/overfly/profiles/latency.opf", root.display())),
        "{profiles}"
    );
    plans_have_what_they_name(&root.join("share/overfly/cookbooks"));

    // The manual page's plans are found from anywhere, by the name that it has them under.
    fs::write(root.join("share/overfly/cookbooks/wrong.toml"), "nonsense = 1\n").unwrap();
    let mut bench = Command::new(root.join("bin/overfly"));
    let output = bench.args(["bench", "cookbooks/wrong.toml"]).current_dir(build.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("{}/share/overfly/cookbooks/wrong.toml", root.display())), "{said}");

    make(&["uninstall"], build.path(), destination.path());
    assert_eq!(files(destination.path()), ["neighbour"]);
}

/// What plans name relative to themselves is there, and can be run if it can in the source tree.
fn plans_have_what_they_name(cookbooks: &Path) {
    let mut named = 0;
    for plan in files(cookbooks).iter().filter(|name| name.ends_with(".toml")) {
        let text = fs::read_to_string(cookbooks.join(plan)).unwrap();
        for place in
            text.split('"').filter_map(|word| word.strip_prefix("../").or(word.strip_prefix("@PLAN@/../")))
        {
            let mode = |root: &Path| {
                let its =
                    fs::metadata(root.join(place)).unwrap_or_else(|error| panic!("{plan}: {place}: {error}"));
                its.permissions().mode() & 0o111
            };
            let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            assert_eq!(mode(cookbooks.parent().unwrap()) != 0, mode(source) != 0, "{plan}: {place}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}

/// What systemd itself says of the units; `systemd-analyze` is of systemd, which Debian's smallest images lack. `make packages-test` starts them.
#[test]
fn systemd_takes_the_units_and_finds_them_sandboxed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["overfly-broker@.service", "overfly-agent.service"] {
        let unit = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging")).join(name);
        let unit = fs::read_to_string(unit).unwrap();
        // Of wrong options and wrong policies: `a_brokers_wrong_options_are_no_failures_to_begin`.
        assert!(unit.contains("\nRestartPreventExitStatus=2\n"), "{unit}");
        let path = folder.path().join(name);
        fs::write(&path, unit.replace("@PREFIX@/bin/overfly", "/bin/true")).unwrap();
        let analyze = |words: &[&str]| {
            let output = Command::new("systemd-analyze").args(words).arg(&path).output();
            let output = output.expect("systemd-analyze is needed here: type scripts/install.sh");
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            (output.status.success(), said)
        };
        let (is_taken, said) = analyze(&["verify", "--man=no"]);
        assert!(is_taken && !said.contains("overfly-"), "{said}");
        // Its overall exposure, in tenths: less is better, and a unit without a sandbox has 96.
        let (is_safe, said) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=50"]);
        assert!(is_safe, "{said}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/licences.py");
    let check = |changed: &[(&str, &str)]| {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg("check").envs(changed.iter().copied());
        command.output().unwrap()
    };
    let output = check(&[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // And one that is not in the list is found.
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("deny.toml");
    fs::write(&list, "[licenses]\nallow = ['MIT']\n").unwrap();
    let output = check(&[("DENY", list.to_str().unwrap())]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("foldhash") && said.contains("Zlib"), "{said}");
    assert!(!said.contains("aya "), "MIT OR Apache-2.0 is allowed: {said}");
}
