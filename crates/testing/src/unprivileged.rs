//! A test in user and network namespaces of its own, which take no privilege to make.

use std::process::Command;

const INSIDE: &str = "OVERFLY_TEST_INSIDE";

/// Runs the test of that name once more, in namespaces where the kernel has `addresses` (each with its prefix length) on a tap
/// device `t0`, which leads to whoever opens it. Returns false there. Needs iproute2 and unshare.
///
/// # Panics
/// If the test fails.
#[must_use]
pub fn outside(test: &str, addresses: &[&str]) -> bool {
    let mut script = "ip link set lo up && ip tuntap add dev t0 mode tap multi_queue".to_owned();
    for address in addresses {
        let at_once = if address.contains(':') { "nodad" } else { "" };
        script.push_str(&format!(" && ip address add {address} dev t0 {at_once}"));
    }
    script.push_str(" && ip link set t0 up");
    outside_with(test, &script)
}

/// The same, in namespaces that a shell's script sets up.
///
/// # Panics
/// If the script or the test fails.
#[must_use]
pub fn outside_with(test: &str, script: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let output = Command::new("unshare")
        .args(["-Urn", "sh", "-c", &format!("{script} && exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().expect("the path of the test"))
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("start unshare");
    // Set in, so that whoever counts what tests printed (scripts/test.py) does not count this one twice.
    let said = [output.stdout, output.stderr].map(|said| {
        String::from_utf8_lossy(&said).lines().map(|line| format!("  | {line}\n")).collect::<String>()
    });
    assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
    true
}
