//! What the kernel under the tests can do.

/// Linux 6.17 gives each NAPI a thread where it is asked to; it can be placed where the kernel's threads are seen.
///
/// # Panics
/// If there is no /proc.
#[must_use]
pub fn napis_have_threads() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let seen = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    seen && (numbers.next(), numbers.next()) >= (Some(6), Some(17))
}

/// A counter of a kernel's, of what `/proc/net/snmp` says (RFC 4022 and others name them): `counter(&text, "Tcp", "PassiveOpens")`.
///
/// # Panics
/// If there is no such counter.
#[must_use]
pub fn counter(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let value = pairs.find(|(its, _)| *its == name).and_then(|(_, value)| value.parse().ok());
    value.unwrap_or_else(|| panic!("no counter {protocol} {name} in {text}"))
}

#[cfg(test)]
mod tests {
    use super::counter;

    const TEXT: &str = "Tcp: ActiveOpens MaxConn PassiveOpens\nTcp: 3 -1 5\nUdp: InDatagrams\nUdp: 7\nUdpLite: InDatagrams\n";

    #[test]
    fn counters_are_found_by_protocol_and_name() {
        assert_eq!(counter(TEXT, "Tcp", "PassiveOpens"), 5);
        assert_eq!(counter(TEXT, "Udp", "InDatagrams"), 7);
    }

    #[test]
    #[should_panic(expected = "no counter Tcp InDatagrams")]
    fn a_counter_that_is_not_there_is_no_zero() {
        let _ = counter(TEXT, "Tcp", "InDatagrams");
    }
}
