//! `overfly top --metrics ADDR`: what runs over Overfly, for Prometheus to scrape (text exposition format 0.0.4).
//!
//! By interface and program: the counters of a program's processes are added up, and those of processes that have ended stay in
//! the sum, as they were seen last, so that a restart of a worker makes nothing smaller. docs/metrics.md has the meanings.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use overfly_load::Label;

use super::sample::{Sample, Sampler, is_drop};
use super::{Choice, Left};

/// What counts up, by the counters' names in the stacks.
const COUNTERS: [(&str, &str, &str); 14] = [
    ("accepts_total", "sockets.accepts", "Connections that the program accepted at user level."),
    ("connects_total", "sockets.connects", "Connections that the program began at user level."),
    (
        "kernel_accepts_total",
        "sockets.kernel_accepts",
        "Connections that accelerated listeners accepted from the kernel.",
    ),
    (
        "kernel_connects_total",
        "sockets.kernel_connects",
        "Connections that the program began on the kernel's stack.",
    ),
    ("received_frames_total", "engine.rx_frames", "Frames that stacks received."),
    ("transmitted_frames_total", "engine.tx_frames", "Frames that stacks sent."),
    ("received_bytes_total", "link.received_bytes", "Bytes of received frames, Ethernet headers included."),
    ("transmitted_bytes_total", "link.sent_bytes", "Bytes of sent frames, Ethernet headers included."),
    ("retransmits_total", "engine.retransmits", "Segments sent again."),
    ("timeouts_total", "engine.timeouts", "Retransmission timeouts."),
    ("resets_received_total", "engine.resets_received", "Connections that the peer reset."),
    ("resets_sent_total", "engine.resets_sent", "RST segments sent."),
    ("kicks_total", "link.kicks", "System calls that told the kernel, or a memif peer, of frames."),
    ("sleeps_total", "sockets.sleeps", "Times that a thread slept until something happened."),
];

/// What stands at the moment.
const GAUGES: [(&str, &str, &str); 3] = [
    ("connections", "now.flows", "Connections in the stacks, TIME-WAIT ones included."),
    ("receive_ring_entries", "now.receive_ring", "Frames that wait in receive rings."),
    ("receive_ring_size", "now.receive_ring_size", "Frames that receive rings have room for."),
];

/// An interface's and a program's name.
type Key = (String, String);

/// Counters by name.
type Counters = BTreeMap<String, u64>;

/// Looks at each scrape, and remembers what has ended.
struct Exporter {
    sampler: Sampler,
    /// What ended processes had counted, by program.
    ended: BTreeMap<Key, Counters>,
    /// The last look, by process and stack.
    last: BTreeMap<(u32, Option<u16>, Key), Counters>,
}

/// The page of an interface.
pub(crate) fn of_interface(interface: &str) -> impl Fn() -> String + Send + use<> {
    of(&Choice { interface: Some(interface.to_owned()), pid: None })
}

/// The page of what is meant.
pub(crate) fn of(choice: &Choice) -> impl Fn() -> String + Send + use<> {
    let exporter =
        Mutex::new(Exporter { sampler: Sampler::new(choice), ended: BTreeMap::new(), last: BTreeMap::new() });
    move || exporter.lock().unwrap_or_else(PoisonError::into_inner).page()
}

impl Exporter {
    fn page(&mut self) -> String {
        match self.sampler.look() {
            Ok((samples, left)) => self.told(&samples, &left),
            Err(_) => text(&BTreeMap::new(), &[], false),
        }
    }

    fn told(&mut self, samples: &[Sample], left: &[Left]) -> String {
        let mut programs: BTreeMap<Key, Program> = BTreeMap::new();
        let mut now = BTreeMap::new();
        for sample in samples {
            let key = (sample.interface.raw().to_owned(), sample.program.raw().to_owned());
            let program = programs.entry(key.clone()).or_default();
            program.processes += 1;
            program.without_stack += u64::from(sample.stack.is_none());
            let mut counters = Counters::new();
            for (name, value) in &sample.counters {
                let to = if name.raw().starts_with("now.") { &mut program.now } else { &mut counters };
                *to.entry(name.raw().to_owned()).or_default() += value;
            }
            now.insert((sample.process, sample.stack, key), counters);
        }
        for (who, counters) in std::mem::take(&mut self.last) {
            // Counters that have become smaller are another process's of the same number.
            let goes_on = now.get(&who).is_some_and(|now| {
                counters.iter().all(|(name, then)| now.get(name).is_some_and(|now| now >= then))
            });
            if !goes_on {
                add(self.ended.entry(who.2).or_default(), &counters);
            }
        }
        for ((_, _, key), counters) in &now {
            add(&mut programs.entry(key.clone()).or_default().counters, counters);
        }
        for (key, counters) in &self.ended {
            add(&mut programs.entry(key.clone()).or_default().counters, counters);
        }
        self.last = now;
        text(&programs, left, true)
    }
}

fn add(to: &mut Counters, counters: &Counters) {
    for (name, value) in counters {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*value);
    }
}

/// All processes of a program on an interface.
#[derive(Default)]
struct Program {
    processes: u64,
    without_stack: u64,
    now: Counters,
    counters: Counters,
}

fn text(programs: &BTreeMap<Key, Program>, left: &[Left], up: bool) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, series: &mut dyn Iterator<Item = (String, u64)>| {
        let _ = writeln!(text, "# HELP overfly_{name} {help}\n# TYPE overfly_{name} {kind}");
        for (labels, value) in series {
            let _ = writeln!(text, "overfly_{name}{labels} {value}");
        }
    };
    let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    family("info", "gauge", "This exporter.", &mut [(version, 1)].into_iter());
    let looked = "1 if brokers could be looked for.";
    family("up", "gauge", looked, &mut [(String::new(), u64::from(up))].into_iter());

    let each = |value: &dyn Fn(&Program) -> Option<u64>| -> Vec<(String, u64)> {
        let one = |(key, program)| Some((labels(key, None), value(program)?));
        programs.iter().filter_map(one).collect()
    };
    let processes = each(&|program| Some(program.processes));
    family("processes", "gauge", "Processes that a broker serves.", &mut processes.into_iter());
    let without = each(&|program| Some(program.without_stack));
    let help = "Processes that have no stack: nothing of them is accelerated.";
    family("processes_without_stack", "gauge", help, &mut without.into_iter());
    for (name, counter, help) in GAUGES {
        let values = each(&|program| program.now.get(counter).copied());
        family(name, "gauge", help, &mut values.into_iter());
    }
    for (name, counter, help) in COUNTERS {
        let values = each(&|program| program.counters.get(counter).copied());
        family(name, "counter", help, &mut values.into_iter());
    }

    let by_name = |label: &str, chosen: &dyn Fn(&str) -> Option<String>| -> Vec<(String, u64)> {
        let named = |(key, program): (&Key, &Program)| {
            let chosen = program.counters.iter().filter_map(|(name, value)| Some((chosen(name)?, *value)));
            chosen.map(|(name, value)| (labels(key, Some((label, &name))), value)).collect::<Vec<_>>()
        };
        programs.iter().flat_map(named).collect()
    };
    let kernel = by_name("reason", &|name| Some(name.strip_prefix("kernel.")?.to_owned()));
    let help = "Sockets left on the kernel's stack, by reason.";
    family("kernel_sockets_total", "counter", help, &mut kernel.into_iter());
    let drops = by_name("reason", &|name| is_drop(name).then(|| name.to_owned()));
    let help = "Frames and datagrams dropped, by the counter that counts them.";
    family("dropped_total", "counter", help, &mut drops.into_iter());
    let has_family =
        |name: &str| name.starts_with("kernel.") || is_drop(name) || COUNTERS.iter().any(|its| its.1 == name);
    let others = by_name("name", &|name| (!has_family(name)).then(|| name.to_owned()));
    family("counter_total", "counter", "All other counters, by name.", &mut others.into_iter());

    let interfaces = left.iter().flat_map(|Left { interface, frames }| {
        let verdicts = [
            ("passed_source", frames.passed_source),
            ("passed_firewall", frames.passed_firewall),
            ("dropped_firewall", frames.dropped_firewall),
        ];
        verdicts.map(|(verdict, count)| {
            (format!("{{interface=\"{}\",verdict=\"{verdict}\"}}", Label(interface.raw())), count)
        })
    });
    let help = "Frames of accelerated listeners and connections that no stack was given, by verdict.";
    family("interface_frames_total", "counter", help, &mut interfaces.collect::<Vec<_>>().into_iter());
    text
}

fn labels((interface, program): &Key, more: Option<(&str, &str)>) -> String {
    let more = more.map(|(name, value)| format!(",{name}=\"{}\"", Label(value)));
    let more = more.unwrap_or_default();
    format!("{{interface=\"{}\",program=\"{}\"{more}}}", Label(interface), Label(program))
}

#[cfg(test)]
mod tests {
    use overfly_broker::LeftFrames;

    use super::super::top::tests::sample;
    use super::*;

    fn exporter() -> Exporter {
        Exporter { sampler: Sampler::new(&Choice::default()), ended: BTreeMap::new(), last: BTreeMap::new() }
    }

    fn counting(process: u32, accepts: u64) -> Sample {
        let mut sample = Sample { process, ..sample() };
        for (name, value) in &mut sample.counters {
            if name.raw() == "sockets.accepts" {
                *value = accepts;
            }
        }
        sample
    }

    #[track_caller]
    fn value(text: &str, series: &str) -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
    }

    const ACCEPTS: &str = "overfly_accepts_total{interface=\"eth0\",program=\"nginx\"}";

    #[test]
    fn a_programs_processes_are_added_up_and_none_is_forgotten() {
        let mut exporter = exporter();
        let both = exporter.told(&[counting(7, 10), counting(8, 5)], &[]);
        assert_eq!(value(&both, ACCEPTS), 15);
        assert_eq!(value(&both, "overfly_processes{interface=\"eth0\",program=\"nginx\"}"), 2);
        let one = exporter.told(&[counting(8, 6)], &[]);
        assert_eq!(value(&one, ACCEPTS), 16);
        // Another process has the number.
        assert_eq!(value(&exporter.told(&[counting(8, 1)], &[]), ACCEPTS), 17);
        let none = exporter.told(&[], &[]);
        assert_eq!(value(&none, ACCEPTS), 17);
        assert_eq!(value(&none, "overfly_processes{interface=\"eth0\",program=\"nginx\"}"), 0);
        assert!(!none.contains("overfly_connections{"), "{none}");
    }

    #[test]
    fn reasons_drops_and_names_are_labels() {
        let left = Left {
            interface: "e\"0".into(),
            frames: LeftFrames { passed_firewall: 12, ..LeftFrames::default() },
        };
        let text = exporter().told(&[sample()], &[left]);
        let of = |what: &str| format!("overfly_{what}");
        let who = "interface=\"eth0\",program=\"nginx\"";
        assert_eq!(value(&text, &of(&format!("kernel_sockets_total{{{who},reason=\"rule\"}}"))), 2);
        assert_eq!(value(&text, &of(&format!("dropped_total{{{who},reason=\"engine.drop_checksum\"}}"))), 4);
        assert_eq!(value(&text, &of(&format!("connections{{{who}}}"))), 3);
        let verdict = "interface_frames_total{interface=\"e\\\"0\",verdict=\"passed_firewall\"}";
        assert_eq!(value(&text, &of(verdict)), 12);
        // A name that somebody chose stays within its label.
        let odd = Sample { program: "a\"b\nc\\".into(), ..sample() };
        let text = exporter().told(&[odd], &[]);
        assert!(text.contains("program=\"a\\\"b\\nc\\\\\""), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#') || line.starts_with("overfly_")), "{text}");
    }

    /// The families of a page, which has them all whatever runs.
    fn families() -> Vec<String> {
        let text = exporter().told(&[sample()], &[]);
        text.lines()
            .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned()))
            .collect()
    }

    /// Words that begin as our metrics do.
    fn named(text: &str) -> Vec<&str> {
        let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        words.filter(|word| word.starts_with("overfly_")).collect()
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/grafana/overfly.json");
        let dashboard: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let families = families();
        let mut asked = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let names = named(query);
                assert!(!names.is_empty(), "{query} asks for nothing of ours");
                asked.extend(names.into_iter().map(str::to_owned));
            }
        }
        assert!(asked.len() > 10, "{asked:?}");
        for name in asked {
            assert!(families.contains(&name), "{name} is not exported");
        }
    }

    #[test]
    fn every_metric_has_its_meaning_in_the_documents() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"));
        let page = page.unwrap();
        let families = families();
        for name in &families {
            assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
        }
        for name in named(&page) {
            assert!(families.iter().any(|its| its == name) || name.starts_with("overfly_load_"), "{name}");
        }
    }
}
