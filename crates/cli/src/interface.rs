//! Which interface to accelerate when nobody named one, and what its surroundings do to it.

use std::fs;

/// The interface of the default route, else the only one with an IPv4 route of its own.
///
/// # Errors
/// Says in words why none could be chosen.
pub(crate) fn choose() -> Result<String, String> {
    let table = fs::read_to_string("/proc/net/route").map_err(|error| format!("/proc/net/route: {error}"))?;
    choose_from(&table)
}

/// The table is that of /proc/net/route: addresses in hexadecimal, flags with RTF_UP = 1.
fn choose_from(table: &str) -> Result<String, String> {
    const RTF_UP: u32 = 1;
    let mut defaults: Vec<(u32, &str)> = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, destination, _gateway, flags, _, _, metric, mask, ..] = fields.as_slice() else {
            continue;
        };
        let up = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_UP != 0);
        if !up || *name == "lo" {
            continue;
        }
        if *destination == "00000000" && *mask == "00000000" {
            defaults.push((metric.parse().unwrap_or(u32::MAX), name));
        } else if !others.contains(name) {
            others.push(name);
        }
    }
    if let Some((_, name)) = defaults.iter().min() {
        return Ok((*name).to_owned());
    }
    match others.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err("no interface is up with an IPv4 address (name one with --interface)".to_owned()),
        several => Err(format!(
            "several interfaces could be meant; choose one with --interface: {}",
            several.join(", ")
        )),
    }
}

/// What the user of a program there must know: why frames do not come to the interface, and what to type.
pub(crate) fn warning(name: &str) -> Option<String> {
    let bridge = overfly_steer::bridge_that_answers(name).ok()??;
    Some(format!("{}: type `{}`", answered_by(name, &bridge), silence(&bridge)))
}

pub(crate) fn answered_by(name: &str, bridge: &str) -> String {
    format!(
        "{bridge}, the bridge that {name} hangs on in this network namespace, answers ARP for its addresses too, and what peers send to the bridge is the kernel's"
    )
}

/// What to type against that.
pub(crate) fn silence(bridge: &str) -> String {
    // sysctl(8) has the names' dots the other way round.
    format!("sysctl -w net.ipv4.conf.{}.arp_ignore=1", bridge.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use super::choose_from;

    const HEAD: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";

    fn route(name: &str, destination: &str, flags: &str, metric: u32, mask: &str) -> String {
        format!("{name}\t{destination}\t00000000\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
    }

    #[test]
    fn the_default_route_with_the_least_metric_wins() {
        let table = [
            HEAD.to_owned(),
            route("wlan0", "00000000", "0003", 600, "00000000"),
            route("eth0", "00000000", "0003", 100, "00000000"),
            route("docker0", "000011AC", "0001", 0, "0000FFFF"),
        ];
        assert_eq!(choose_from(&table.concat()), Ok("eth0".to_owned()));
    }

    #[test]
    fn without_a_default_route_there_must_be_one_interface_only() {
        let one = route("eth0", "00004D0A", "0001", 0, "0000FFFF");
        assert_eq!(choose_from(&[HEAD, &one].concat()), Ok("eth0".to_owned()));
        let down = route("eth1", "0000580A", "0000", 0, "0000FFFF");
        assert_eq!(choose_from(&[HEAD, &one, &down].concat()), Ok("eth0".to_owned()));
        let two = route("eth1", "0000580A", "0001", 0, "0000FFFF");
        let error = choose_from(&[HEAD, &one, &two].concat()).unwrap_err();
        assert!(error.contains("--interface") && error.contains("eth0, eth1"), "{error}");
        assert!(choose_from(HEAD).unwrap_err().contains("--interface"));
    }
}
