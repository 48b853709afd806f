//! `overfly tune`.

use std::fs;
use std::process::{Command, Output};

use super::{outcome, overfly};

/// In a user namespace where it is nobody.
#[test]
fn who_is_not_root_hears_that_first() {
    for word in ["apply", "hold", "revert"] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--"]).arg(overfly().get_program()).args(["tune", word]);
        let output = command.output().unwrap();
        let (status, said) = outcome(&output);
        assert!(status == Some(1) && said.contains("only root may change this host"), "{word}: {said}");
        assert!(output.stdout.is_empty(), "{word}");
    }
}

#[test]
fn a_host_is_shown_changed_and_put_back() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        ("proc/sys/net/core/somaxconn", "4096\n", "65535"),
        ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n", "1024 65535"),
        ("proc/sys/vm/nr_hugepages", "4096\n", "4096\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n", "performance"),
    ];
    for (path, text, _) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let tune = |words: &[&str]| -> Output {
        let mut command: Command = overfly();
        command.arg("tune").args(words).arg("--root").arg(root.path()).output().unwrap()
    };
    let has = |index: usize| -> Vec<String> {
        let wanted = |(_, before, after): (&str, &str, &str)| {
            if index == 0 { before.to_owned() } else { after.to_owned() }
        };
        files.map(wanted).to_vec()
    };
    let now = || -> Vec<String> {
        files.map(|(path, _, _)| fs::read_to_string(root.path().join(path)).unwrap()).to_vec()
    };

    let check = tune(&["check"]);
    assert_eq!(check.status.code(), Some(1));
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        text.contains("/proc/sys/net/core/somaxconn: 4096 -> 65535\n    accept queues overflow"),
        "{text}"
    );
    assert!(!text.contains("nr_hugepages"), "more than enough stays: {text}");
    assert_eq!(now(), has(0), "check changes nothing");

    let apply = tune(&["apply", "--json"]);
    assert_eq!(outcome(&apply).0, Some(0), "{}", outcome(&apply).1);
    let shown: serde_json::Value = serde_json::from_slice(&apply.stdout).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 3, "{shown}");
    assert_eq!(now(), has(1));
    assert_eq!(tune(&["check"]).status.code(), Some(0));
    let again = outcome(&tune(&["apply"]));
    assert!(again.0 == Some(1) && again.1.contains("overfly tune revert"), "{again:?}");

    assert_eq!(outcome(&tune(&["revert"])).0, Some(0));
    // Spaces are the kernel's own business: what is written is what was read.
    let same: Vec<String> =
        now().iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let before: Vec<String> =
        has(0).iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(same, before);
    assert!(outcome(&tune(&["revert"])).1.contains("0 settings"));
}
