//! The paths that frames can take at each interface, and those that they take now.

use std::fs;

use overfly_broker::observer;

use super::{Finding, Health, capabilities_missing};
use crate::interface;

/// Every interface with an address, in the order of names.
pub(super) fn all() -> Vec<Finding> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let names = with_addresses(&read("/proc/net/route"), &read("/proc/net/if_inet6"));
    names.into_iter().map(finding).collect()
}

/// The two tables name the interface of a line first and last.
fn with_addresses(v4: &str, v6: &str) -> Vec<String> {
    let v4 = v4.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    let v6 = v6.lines().filter_map(|line| line.split_ascii_whitespace().last());
    let mut names: Vec<String> = v4.chain(v6).filter(|name| *name != "lo").map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn finding(name: String) -> Finding {
    let leave = overfly_steer::long_frames_of(&name);
    // Whether sockets take such packets shows only to those who may make some.
    let arrive = capabilities_missing().is_empty().then(|| overfly_steer::long_packets_of(&name));
    let state = match (&leave, &arrive) {
        (Ok(()), Some(Ok(_))) => Health::Good,
        _ => Health::Limited,
    };
    let leave = match leave {
        Ok(()) => "segments can leave together".to_owned(),
        Err(reason) => format!("segments leave one by one ({reason})"),
    };
    let arrive = match arrive {
        Some(Ok(longest)) => format!("packets of up to {longest} bytes"),
        Some(Err(reason)) => format!("packets of up to 1,778 bytes ({reason})"),
        None => "who asks may not know how long packets can be".to_owned(),
    };
    let together = match overfly_steer::segments_of(&name) {
        Ok(()) => "; segments can arrive together",
        Err(_) => "",
    };
    let checksums = match overfly_steer::checksums_of(&name) {
        Ok(()) => "; the device can complete TCP checksums",
        Err(_) => "",
    };
    let used = used(&name);
    let detail = format!("{leave}; {arrive}{together}{checksums}; {used}");
    match overfly_steer::bridge_that_answers(&name) {
        Ok(Some(bridge)) => {
            let detail = format!("{}; {detail}", interface::answered_by(&name, &bridge));
            Finding::new(name, Health::Limited, detail).remedy(interface::silence(&bridge))
        }
        _ => Finding::new(name, state, detail),
    }
}

/// What goes on there now.
fn used(name: &str) -> String {
    let runs = observer::interfaces().is_ok_and(|interfaces| interfaces.iter().any(|runs| runs == name));
    let attached = overfly_steer::xdp_attached(name);
    match (runs, attached) {
        (true, attached) => {
            let place = attached.map_or_else(String::new, |place| format!(" {place}"));
            format!("used: attached{place}, {}", counted(name))
        }
        (false, Some(place)) => format!("used by another XDP program, {place}"),
        (false, None) => "not used".to_owned(),
    }
}

/// What the programs there have done, as far as the caller may see them.
fn counted(name: &str) -> String {
    let Ok(look) = observer::look(name) else { return "its broker does not answer".to_owned() };
    let counters: Vec<(String, u64)> =
        look.processes.iter().flat_map(|process| process.view.counters()).collect();
    let sum = |name: &str| -> u64 {
        counters.iter().filter(|(named, _)| named == name).map(|(_, count)| count).sum()
    };
    in_words(
        look.processes.len(),
        sum("link.long_frames"),
        sum("link.received_long_frames"),
        sum("link.sent_unsummed"),
    )
}

fn in_words(processes: usize, left: u64, arrived: u64, unsummed: u64) -> String {
    let noun = if processes == 1 { "process" } else { "processes" };
    format!(
        "{processes} {noun}, {left} frames of several segments left and {arrived} packets of several buffers arrived, {unsummed} checksums were left to be completed"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_with_an_address_of_either_family_are_named_once() {
        let v4 = "Iface\tDestination\tGateway\nveth0\t00004D0A\t00000000\nveth0\t00000000\t0104D0A\n";
        let v6 = "fe80000000000000ff 04 40 20 80    tap0\n00000000000000000001 01 80 10 80       lo\n\
                  fd990000000000000001 02 40 00 80    veth0\n";
        assert_eq!(with_addresses(v4, v6), ["tap0", "veth0"]);
        assert_eq!(with_addresses("", ""), Vec::<String>::new());
    }

    #[test]
    fn what_is_used_is_said_in_words() {
        assert_eq!(
            in_words(1, 3, 0, 2),
            "1 process, 3 frames of several segments left and 0 packets of several buffers arrived, 2 checksums were left to be completed"
        );
        assert!(in_words(0, 0, 0, 0).starts_with("0 processes"));
    }
}
