//! What a reader has to know of the machine to judge a figure.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::lab::DEVICE;
use crate::site::Site;

/// The machine and its software, as they were when the runs began.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Environment {
    /// Model name from /proc/cpuinfo.
    pub cpu_model: String,
    /// Cores that are online.
    pub cores: usize,
    /// MiB.
    pub memory_mib: u64,
    /// Whether cores share execution units: `on`, `off`, `notsupported`, ….
    pub smt: String,
    /// Of core 0; `none` where the kernel does not scale frequencies.
    pub governor: String,
    /// Release and build of the kernel.
    pub kernel: String,
    /// The kernel's command line.
    pub kernel_command_line: String,
    /// /sys/devices/system/cpu/vulnerabilities, by name.
    pub mitigations: BTreeMap<String, String>,
    /// One, five and fifteen minutes, before the first run.
    pub load_average: String,
    /// Of this command.
    pub overfly_version: String,
    /// What the server says of its version.
    pub server_version: String,
    /// Settings of the network where the runs take place, the same for every run.
    pub sysctls: BTreeMap<String, String>,
    /// Settings of a busy server that the kernel refused to make, each with the reason.
    #[serde(default)]
    pub refused_sysctls: Vec<String>,
    /// What was changed for the session and put back after it.
    #[serde(default)]
    pub tuned: Vec<String>,
    /// `ethtool -k` of a lab's device before anything is attached: features that are on. Empty without a lab.
    pub offloads_on: Vec<String>,
}

/// Date and time, UTC.
pub(crate) fn now() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M"]).stdin(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

impl Environment {
    /// Looks around, and into a fresh lab if runs have one. What cannot be found out is left empty.
    pub(crate) fn observe(site: &Site, server: &str) -> Environment {
        let Some(lab) = site.as_lab() else { return Environment::here(server, None) };
        let (sysctls, offloads_on) =
            lab.within("server", || (sysctls(), offloads(DEVICE))).unwrap_or_default();
        let refused_sysctls = lab.refused().to_vec();
        Environment { sysctls, offloads_on, refused_sysctls, ..Environment::here(server, None) }
    }

    /// Of this machine as it is, and of one of its devices.
    pub(crate) fn here(server: &str, device: Option<&str>) -> Environment {
        let cpu_info = read("/proc/cpuinfo");
        Environment {
            cpu_model: field(&cpu_info, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: crate::lab::queue_count(),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            smt: read("/sys/devices/system/cpu/smt/control"),
            governor: Some(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "none".to_owned()),
            kernel: format!("{} {}", read("/proc/sys/kernel/osrelease"), read("/proc/sys/kernel/version")),
            kernel_command_line: read("/proc/cmdline"),
            mitigations: folder("/sys/devices/system/cpu/vulnerabilities"),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            overfly_version: env!("CARGO_PKG_VERSION").to_owned(),
            server_version: version(server),
            sysctls: sysctls(),
            refused_sysctls: Vec::new(),
            tuned: Vec::new(),
            offloads_on: device.map(offloads).unwrap_or_default(),
        }
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value after `name : `.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (its, value) = line.split_once(':')?;
        (its.trim() == name).then(|| value.trim().to_owned())
    })
}

fn folder(path: &str) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(path) else { return BTreeMap::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().into_string().ok()?, read(entry.path())))
        })
        .collect()
}

fn sysctls() -> BTreeMap<String, String> {
    [
        "net/core/somaxconn",
        "net/ipv4/tcp_max_syn_backlog",
        "net/ipv4/tcp_tw_reuse",
        "net/ipv4/tcp_max_tw_buckets",
        "net/ipv4/ip_local_port_range",
        "net/ipv4/tcp_congestion_control",
        "net/ipv4/tcp_rmem",
        "net/ipv4/tcp_wmem",
    ]
    .into_iter()
    .map(|name| (name.replace('/', "."), read(format!("/proc/sys/{name}")).replace('\t', " ")))
    .collect()
}

fn offloads(device: &str) -> Vec<String> {
    let Ok(output) = Command::new("ethtool").args(["-k", device]).stdin(Stdio::null()).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let (name, state) = line.trim().split_once(": ")?;
            state.starts_with("on").then(|| name.to_owned())
        })
        .collect()
}

/// Most programs print their version, on either stream, when they are given -v or else --version.
fn version(program: &str) -> String {
    let said = |option: &str| {
        let output = Command::new(program).arg(option).stdin(Stdio::null()).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let line = String::from_utf8_lossy(&text).lines().next().unwrap_or("").to_owned();
        output.status.success().then_some(line)
    };
    said("-v").or_else(|| said("--version")).unwrap_or_default()
}
