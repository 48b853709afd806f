//! The settings themselves, each with its reason.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Host, Knob};

/// What a setting should be.
#[derive(Debug, Clone)]
pub(super) enum Want {
    /// This.
    Exactly(String),
    /// A number, or a greater one.
    AtLeast(u64),
    /// A range of two numbers, or a wider one.
    Range(u64, u64),
}

impl Want {
    /// What to set, if what is there is not good enough.
    pub(super) fn given(&self, now: &str) -> Option<String> {
        match self {
            Want::Exactly(value) => (now != value).then(|| value.clone()),
            Want::AtLeast(least) => {
                now.parse::<u64>().is_ok_and(|now| now < *least).then(|| least.to_string())
            }
            Want::Range(low, high) => {
                let (first, last) = now.split_once(' ')?;
                let narrow = first.parse::<u64>().ok()? > *low || last.parse::<u64>().ok()? < *high;
                narrow.then(|| format!("{low} {high}"))
            }
        }
    }
}

/// Names of interrupt moderation for `ethtool -C`, what they should be, and how `ethtool -c` begins their lines.
const COALESCE: [(&str, &str, &str); 2] =
    [("adaptive-rx", "off", "Adaptive RX:"), ("rx-usecs", "0", "rx-usecs:")];

/// How the line of a field begins in what `ethtool -c` prints.
pub(super) fn coalesce_label(field: &str) -> &str {
    COALESCE.iter().find(|(name, _, _)| *name == field).map_or(field, |(_, _, label)| label)
}

/// Every setting that there may be.
pub(super) fn all(host: &Host) -> Vec<(Knob, Want, &'static str)> {
    let sysctl = |name: &str| Knob::File(Path::new("proc/sys").join(name));
    let exactly = |value: &str| Want::Exactly(value.to_owned());
    let mut all = vec![
        (
            sysctl("net/core/somaxconn"),
            Want::AtLeast(65_535),
            "accept queues overflow when thousands connect at once",
        ),
        (
            sysctl("net/ipv4/tcp_max_syn_backlog"),
            Want::AtLeast(65_535),
            "with a short SYN queue the kernel answers floods with cookies instead",
        ),
        (
            sysctl("net/core/netdev_max_backlog"),
            Want::AtLeast(250_000),
            "packets that wait for a core are dropped beyond this",
        ),
        (
            sysctl("net/ipv4/ip_local_port_range"),
            Want::Range(1024, 65_535),
            "each connection from one address needs a port of its own",
        ),
        (
            sysctl("net/ipv4/tcp_tw_reuse"),
            exactly("1"),
            "ports in TIME-WAIT run out within seconds of one connection a request",
        ),
        (
            sysctl("net/ipv4/tcp_max_tw_buckets"),
            Want::AtLeast(1_000_000),
            "beyond this TIME-WAIT is cut short, with a warning each time",
        ),
        (
            sysctl("fs/nr_open"),
            Want::AtLeast(1_048_576),
            "the most files that a process may be allowed to have open",
        ),
        (
            sysctl("fs/file-max"),
            Want::AtLeast(2_097_152),
            "the most files that the host may have open: a connection is one",
        ),
        (
            sysctl("vm/nr_hugepages"),
            Want::AtLeast(1024),
            "packet buffers in huge pages miss the TLB less (seed 001)",
        ),
    ];
    for service in [
        "irqbalance",
        "firewalld",
        "iptables",
        "nftables",
        "ufw",
        "cpupower",
        "cpuspeed",
        "cpufreqd",
        "powerd",
    ] {
        let reason = match service {
            "irqbalance" => "it moves interrupts between cores while they are measured (seed 001)",
            "firewalld" | "iptables" | "nftables" | "ufw" => {
                "its rules cost the kernel time for each packet (seed 001); the host is open while it is stopped"
            }
            _ => "it changes the cores' clocks while they are measured (seed 001)",
        };
        all.push((Knob::Service(service.to_owned()), exactly("inactive"), reason));
    }
    for core in numbered(&host.root.join("sys/devices/system/cpu"), "cpu") {
        let path = format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
        let reason = "other governors lower a core's clock when it waits, and raise it late";
        all.push((Knob::File(path.into()), exactly("performance"), reason));
    }
    if let Some(interface) = &host.interface {
        for (field, wanted, _) in COALESCE {
            let knob = Knob::Coalesce(interface.clone(), field.to_owned());
            all.push((
                knob,
                exactly(wanted),
                "moderation holds interrupts back, which latency pays for (seed 001)",
            ));
        }
        for (queue, irq) in interrupts(&host.root, interface).into_iter().enumerate() {
            let Some(core) = host.irq_cpus.get(queue % host.irq_cpus.len().max(1)) else { break };
            let path = PathBuf::from(format!("proc/irq/{irq}/smp_affinity_list"));
            let reason =
                "a queue's interrupts stay on the core that was chosen for them (seed 000, tables 1 and 2)";
            all.push((Knob::File(path), exactly(&core.to_string()), reason));
        }
    }
    all
}

/// The numbers in the names of a folder: `cpu0`, `cpu1`.
fn numbered(folder: &Path, prefix: &str) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: String| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u64> =
        entries.filter_map(|entry| number(entry.file_name().into_string().ok()?)).collect();
    numbers.sort_unstable();
    numbers
}

/// The interrupts of an interface's queues, as its device lists them.
fn interrupts(root: &Path, interface: &str) -> Vec<u64> {
    numbered(&root.join("sys/class/net").join(interface).join("device/msi_irqs"), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_better_than_wanted_stays() {
        let wide = Want::Range(1024, 65_535);
        for (want, now, set) in [
            (Want::AtLeast(10), "9", Some("10")),
            (Want::AtLeast(10), "10", None),
            (Want::AtLeast(10), "unlimited", None),
            (Want::Exactly("off".to_owned()), "on", Some("off")),
            (Want::Exactly("off".to_owned()), "off", None),
            (wide.clone(), "32768 60999", Some("1024 65535")),
            (wide.clone(), "1000 65535", None),
            (wide, "", None),
        ] {
            assert_eq!(want.given(now).as_deref(), set, "{want:?} {now}");
        }
    }

    #[test]
    fn queues_go_around_the_cores_that_were_chosen() {
        let folder = tempfile::tempdir().unwrap();
        for irq in [30, 31, 32] {
            let path = folder.path().join(format!("sys/class/net/eth9/device/msi_irqs/{irq}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let host = |irq_cpus: Vec<usize>| Host {
            root: folder.path().to_owned(),
            interface: Some("eth9".to_owned()),
            irq_cpus,
        };
        let places = |host: Host| -> Vec<(String, String)> {
            let all = all(&host).into_iter();
            all.filter(|(knob, _, _)| knob.to_string().contains("/irq/"))
                .map(|(knob, want, _)| (knob.to_string(), want.given("").unwrap()))
                .collect()
        };
        let place = |irq: u32, core: u32| (format!("/proc/irq/{irq}/smp_affinity_list"), core.to_string());
        assert_eq!(places(host(vec![1, 3])), [place(30, 1), place(31, 3), place(32, 1)]);
        assert_eq!(places(host(Vec::new())), []);
    }
}
