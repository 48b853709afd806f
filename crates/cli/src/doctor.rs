//! `overfly doctor`: what this machine can do, what it cannot, why, and what to type to change it.

mod interfaces;

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use overfly_bench::lab::{DEVICE, Lab, SYSTEM_FOLDERS};
use overfly_link::memif::{Address, Listener, Settings};
use overfly_steer::{Attachment, Options};
use overfly_terminal::folded;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Say what this machine can do, what it cannot, why, and what to type to change that
///
/// The exit status is 0 if `overfly run` can accelerate programs here, over an interface or over shared memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether `overfly run` can accelerate programs.
    works: bool,
    links: Vec<Finding>,
    /// Each interface that has addresses: the paths that frames can take there, and those that they take now.
    interfaces: Vec<Finding>,
    machine: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    name: Cow<'static, str>,
    state: Health,
    detail: String,
    /// What to type to change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    /// As it should be.
    Good,
    /// Something is slower or cannot be measured, the main job works.
    Limited,
    /// It does not work.
    Missing,
}

pub(crate) fn doctor(arguments: &Arguments) -> ExitCode {
    let diagnosis = Diagnosis::of_this_machine();
    let said = if arguments.json {
        let object = serde_json::to_string_pretty(&diagnosis).unwrap_or_default();
        overfly_terminal::print_json(&(object + "\n"))
    } else {
        // Below the details of a finding, where a line does not fit.
        let text = diagnosis.to_text();
        overfly_terminal::print(
            &overfly_load::room().map_or_else(|| text.clone(), |room| folded(&text, room, 22)),
        )
    };
    match said {
        Ok(()) if !diagnosis.works => ExitCode::FAILURE,
        said => crate::written(said),
    }
}

impl Diagnosis {
    fn of_this_machine() -> Diagnosis {
        let (xdp, memif) = (xdp(), memif());
        let library = library();
        let carries = [&xdp, &memif].iter().any(|finding| finding.state != Health::Missing);
        let works = carries && library.state != Health::Missing;
        let mut machine = vec![
            library,
            interface(),
            driver(),
            firewall(),
            routing(),
            cores(),
            descriptors(),
            locked_memory(),
        ];
        machine.extend(TOOLS.map(tool));
        Diagnosis { works, links: vec![xdp, memif, tap()], interfaces: interfaces::all(), machine }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let parts = [("Links", &self.links), ("Interfaces", &self.interfaces), ("Machine", &self.machine)];
        for (heading, findings) in parts.into_iter().filter(|(_, findings)| !findings.is_empty()) {
            text.push_str(heading);
            text.push('\n');
            for finding in findings {
                let mark = match finding.state {
                    Health::Good => "yes ",
                    Health::Limited => "-   ",
                    Health::Missing => "NO  ",
                };
                text.push_str(&format!("  {mark} {:<14} {}\n", finding.name, finding.detail));
                if let Some(remedy) = &finding.remedy {
                    text.push_str(&format!("       {:<14} type: {remedy}\n", ""));
                }
            }
        }
        let over_interfaces =
            self.links.iter().any(|link| link.name == "xdp" && link.state != Health::Missing);
        text.push_str(match (self.works, over_interfaces) {
            (true, true) => "`overfly run` works here.\n",
            (true, false) => {
                "`overfly run --link memif:PATH` works here; over interfaces programs would run on the kernel.\n"
            }
            (false, _) => "`overfly run` cannot accelerate programs here: they would run on the kernel.\n",
        });
        text
    }
}

impl Finding {
    fn new(name: impl Into<Cow<'static, str>>, state: Health, detail: impl Into<String>) -> Finding {
        Finding { name: name.into(), state, detail: detail.into(), remedy: None }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Tries it: an XDP program and AF_XDP sockets on a veth pair in namespaces that are thrown away.
fn xdp() -> Finding {
    let missing = |detail: String| Finding::new("xdp", Health::Missing, detail);
    if let Err(errno) = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None) {
        return match errno {
            rustix::io::Errno::AFNOSUPPORT => {
                missing("this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS)".to_owned())
                    .remedy("apt-get install linux-image-amd64, and boot it")
            }
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                missing(format!("it needs {}", capabilities_missing().join(", ")))
                    .remedy("sudo overfly doctor")
            }
            errno => missing(format!("no AF_XDP socket: {errno}")),
        };
    }
    let without = capabilities_missing();
    if !without.is_empty() {
        return missing(format!("it needs {}", without.join(", "))).remedy("sudo overfly doctor");
    }
    // Nobody enters this lab through the command.
    let tried =
        Lab::new(PathBuf::new()).map_err(|error| format!("no lab to try it in: {error}")).and_then(|lab| {
            lab.within("server", || {
                let mut attachment =
                    Attachment::attach(DEVICE, Options::default()).map_err(|error| error.to_string())?;
                let sockets = attachment.add_stack().map_err(|error| error.to_string())?;
                let together = attachment.long_frames().map_err(str::to_owned);
                let long_packets = attachment.long_packets().map_err(str::to_owned);
                Ok::<_, String>((together.map(|()| sockets.long_frames.is_some()), long_packets))
            })
            .map_err(|error| error.to_string())?
        });
    match tried {
        Ok((Ok(true), Ok(()))) => Finding::new(
            "xdp",
            Health::Good,
            "native XDP and AF_XDP, segments leave together, packets of up to 34,802 bytes, tried on a veth pair",
        ),
        Ok((Ok(true), Err(reason))) => Finding::new(
            "xdp",
            Health::Limited,
            format!(
                "native XDP and AF_XDP, tried on a veth pair; no packets longer than 1,778 bytes: {reason}"
            ),
        ),
        Ok((apart, _)) => {
            let reason = apart.err().unwrap_or_else(|| "no packet socket".to_owned());
            Finding::new(
                "xdp",
                Health::Limited,
                format!(
                    "native XDP and AF_XDP, tried on a veth pair; large answers leave segment by segment: {reason}"
                ),
            )
            .remedy("modprobe macvlan")
        }
        Err(reason) => missing(reason),
    }
}

/// Tries it: a socket for clients, and memory to share with them.
fn memif() -> Finding {
    let missing = |detail: String| Finding::new("memif", Health::Missing, detail);
    let place = format!("@overfly-doctor-{}", std::process::id());
    let place: Address = match place.parse() {
        Ok(place) => place,
        Err(error) => return missing(format!("{place}: {error}")),
    };
    if let Err(error) = Listener::bind(&place, Settings::default()) {
        return missing(error.to_string());
    }
    match memfd_create("overfly-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => Finding::new(
            "memif",
            Health::Good,
            "shared memory between programs of this host, without privilege",
        ),
        Err(errno) => missing(format!("no memory to share (memfd_create): {errno}")),
    }
}

/// Whether `--link tap:NAME` may have queues of a device.
fn tap() -> Finding {
    const DEVICE: &str = "/dev/net/tun";
    let limited = |detail: String| Finding::new("tap", Health::Limited, detail);
    match fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::new(
            "tap",
            Health::Good,
            format!(
                "{DEVICE} opens; a tap device leads to this host's kernel, in a namespace of one's own too (`unshare -Urn`)"
            ),
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            limited(format!("there is no {DEVICE}; `--link tap:NAME` needs it"))
                .remedy("modprobe tun (a container: --device /dev/net/tun)")
        }
        Err(error) => limited(format!("{DEVICE}: {error}; `--link tap:NAME` needs it"))
            .remedy(format!("sudo chmod 666 {DEVICE}")),
    }
}

/// Those that the XDP link needs and this process does not have.
fn capabilities_missing() -> Vec<&'static str> {
    // linux/capability.h
    const NEEDED: [(u32, &str); 4] =
        [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or(0);
    NEEDED.into_iter().filter(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| name).collect()
}

fn library() -> Finding {
    match crate::run::library() {
        Ok(path) => Finding::new("liboverfly.so", Health::Good, path.display().to_string()),
        Err(reason) => Finding::new("liboverfly.so", Health::Missing, reason).remedy("make build"),
    }
}

fn interface() -> Finding {
    match crate::interface::choose() {
        Ok(name) => {
            let driver = fs::read_link(format!("/sys/class/net/{name}/device/driver"))
                .ok()
                .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or_else(|| "no device driver".to_owned());
            let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).unwrap_or_default();
            Finding::new("interface", Health::Good, format!("{name} ({driver}, MTU {})", mtu.trim()))
        }
        Err(reason) => Finding::new("interface", Health::Limited, reason)
            .remedy("overfly lab up && overfly lab exec server -- overfly run -- PROGRAM"),
    }
}

/// What the interface's driver offers XDP, as the kernel says it (docs/drivers.md).
fn driver() -> Finding {
    let Ok(name) = crate::interface::choose() else {
        return Finding::new("driver", Health::Limited, "no interface was chosen");
    };
    match overfly_steer::xdp_features(&name) {
        Ok(Some(features)) => {
            let state = match (features.native && features.redirect, features.zero_copy) {
                (false, _) => Health::Missing,
                (true, false) => Health::Limited,
                (true, true) => Health::Good,
            };
            Finding::new("driver", state, format!("{name}: {features}"))
        }
        Ok(None) => Finding::new(
            "driver",
            Health::Limited,
            "this kernel does not say what drivers offer (Linux 6.3 does)",
        ),
        Err(error) => Finding::new("driver", Health::Limited, error.to_string()),
    }
}

/// Which rules decide whom a stack may serve.
fn firewall() -> Finding {
    match overfly_steer::firewall_in_force() {
        Ok(rules) => Finding::new("firewall", Health::Good, rules),
        Err(error) => {
            Finding::new("firewall", Health::Limited, error.to_string()).remedy("sudo overfly doctor")
        }
    }
}

/// Whether rules choose among routes, which the XDP program does not follow.
fn routing() -> Finding {
    match overfly_steer::routing_rules() {
        Ok(ruled) => routing_of(ruled),
        Err(error) => Finding::new("routing", Health::Limited, error.to_string()),
    }
}

fn routing_of(ruled: [bool; 2]) -> Finding {
    let (families, options) = match ruled {
        [false, false] => {
            return Finding::new("routing", Health::Good, "no rules but the kernel's own");
        }
        [true, false] => ("IPv4", ""),
        [false, true] => ("IPv6", "-6 "),
        [true, true] => ("IPv4 and IPv6", ""),
    };
    let detail = format!(
        "`ip rule` has rules of yours, or there is a VRF: connections that come over {families} are the kernel's, all of them"
    );
    Finding::new("routing", Health::Limited, detail).remedy(format!("ip {options}rule"))
}

fn cores() -> Finding {
    match overfly_bench::lab::queue_count() {
        1 => Finding::new(
            "cores",
            Health::Limited,
            "1: a server and a generator share it, so figures mean little",
        ),
        cores => Finding::new("cores", Health::Good, cores.to_string()),
    }
}

fn descriptors() -> Finding {
    const ENOUGH: u64 = 16_384;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    let shown = limit.current.map_or_else(|| "no limit".to_owned(), |current| current.to_string());
    if current >= ENOUGH {
        return Finding::new("open files", Health::Good, shown);
    }
    Finding::new("open files", Health::Limited, format!("{shown}: so many connections at most"))
        .remedy(format!("ulimit -n {}", limit.maximum.unwrap_or(1_048_576).min(1_048_576)))
}

fn locked_memory() -> Finding {
    const ENOUGH: u64 = 64 << 20;
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let unlimited = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .is_some_and(|effective| effective & (1 << CAP_IPC_LOCK) != 0);
    match getrlimit(Resource::Memlock).current {
        Some(_) if unlimited => Finding::new("locked memory", Health::Good, "no limit (CAP_IPC_LOCK)"),
        None => Finding::new("locked memory", Health::Good, "no limit"),
        Some(bytes) if bytes >= ENOUGH => {
            Finding::new("locked memory", Health::Good, format!("{} MiB", bytes >> 20))
        }
        Some(bytes) => Finding::new(
            "locked memory",
            Health::Limited,
            format!("{} KiB: too little for packet buffers", bytes >> 10),
        )
        .remedy("ulimit -l unlimited"),
    }
}

/// Program, package, and what it is for.
const TOOLS: [(&str, &str, &str); 6] = [
    ("nginx", "nginx-light", "`make quickstart` and the tests"),
    ("clang", "clang", "building"),
    ("ip", "iproute2", "labs"),
    ("ethtool", "ethtool", "the tests"),
    ("nft", "nftables", "the tests"),
    ("curl", "curl", "the tests"),
];

fn tool((program, package, purpose): (&'static str, &'static str, &'static str)) -> Finding {
    let elsewhere = || {
        SYSTEM_FOLDERS.map(|folder| Path::new(folder).join(program)).into_iter().find(|path| path.is_file())
    };
    match (crate::program::find(program.as_ref()), elsewhere()) {
        (Ok(path), _) => Finding::new(program, Health::Good, path.display().to_string()),
        (Err(_), Some(path)) => {
            let detail = format!("{}, which is not on the PATH; {purpose} need it", path.display());
            Finding::new(program, Health::Limited, detail).remedy("export PATH=$PATH:/usr/sbin:/sbin")
        }
        (Err(_), None) => Finding::new(program, Health::Limited, format!("not installed; {purpose} need it"))
            .remedy(format!("apt-get install {package}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_choose_routes_are_said_with_their_families() {
        assert!(routing_of([false; 2]).state == Health::Good);
        for (ruled, family) in [([true, false], "over IPv4 are"), ([false, true], "over IPv6 are")] {
            let finding = routing_of(ruled);
            assert!(
                finding.state == Health::Limited && finding.detail.contains(family),
                "{}",
                finding.detail
            );
        }
    }
}
