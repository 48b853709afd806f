//! What the XDP program knows of the kernel's routes and neighbours (`bpf/mirror.bpf.h`): who is plainly behind this interface, and
//! where. What the kernel alone can judge (rules of one's own, several ways, other interfaces, VRF) is left to it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::MacAddr;

use crate::error::Error;
use crate::netlink::Netlink;

/// Routes that the program's map holds.
pub(crate) const ROUTES_MAX: usize = 65_536;

/// Which families of this thread's network namespace have routing rules that are not the kernel's own (IPv4, IPv6): `ip rule`'s, or
/// a VRF's. All who would open a connection to a stack's listener over them are the kernel's.
///
/// # Errors
/// What the kernel said.
pub fn routing_rules() -> Result<[bool; 2], Error> {
    let read = || Netlink::open()?.tables();
    read().map(|tables| tables.ruled).map_err(|errno| Error::system("reading the routing rules", errno))
}

/// Tables in the order of the kernel's default rules (include/uapi/linux/rtnetlink.h, `enum rt_class_t`).
const TABLES: [u32; 3] = [RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_DEFAULT];
pub(crate) const RT_TABLE_DEFAULT: u32 = 253;
pub(crate) const RT_TABLE_MAIN: u32 = 254;
pub(crate) const RT_TABLE_LOCAL: u32 = 255;

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Only the kernel can say.
    Kernels,
    /// Nobody's, or many hosts'.
    Martian,
    /// This host's, on whatever interface.
    Own,
    /// On this interface's link.
    Direct,
    /// Behind a router on this interface's link.
    Gateway(IpAddr),
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix {
    /// IPv4 as ::ffff:a.b.c.d; what is beyond `len` is 0.
    bits: u128,
    /// Of the 128.
    len: u8,
}

impl Prefix {
    /// `len` in the family's own bits.
    pub(crate) fn new(address: IpAddr, len: u8) -> Prefix {
        let (bits, len) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), 96 + len.min(32)),
            IpAddr::V6(address) => (address.to_bits(), len.min(128)),
        };
        Prefix { bits, len: 128 }.shortened(len)
    }

    pub(crate) fn octets(self) -> [u8; 16] {
        self.bits.to_be_bytes()
    }

    /// Of the 16 bytes.
    pub(crate) fn len(self) -> u8 {
        self.len
    }

    fn shortened(self, len: u8) -> Prefix {
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Prefix { bits: self.bits & mask, len }
    }

    /// Whether one of those covers this one.
    fn is_within(self, those: &BTreeMap<Prefix, Way>) -> bool {
        let shortest = if self.is_ipv4() { 96 } else { 0 };
        (shortest..=self.len).any(|len| those.contains_key(&self.shortened(len)))
    }

    fn is_ipv4(self) -> bool {
        self.len >= 96 && self.bits >> 32 == 0xffff
    }
}

/// The way of the longest prefix that an address has.
pub(crate) fn way_to(ways: &BTreeMap<Prefix, Way>, address: IpAddr) -> Option<Way> {
    let whole = Prefix::new(address, 128);
    (0..=whole.len).rev().find_map(|len| ways.get(&whole.shortened(len)).copied())
}

/// A route as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteLine {
    pub(crate) table: u32,
    pub(crate) to: Prefix,
    /// What of it can be told; routes of one interface are [`Way::Direct`] or [`Way::Gateway`] whatever interface it is.
    pub(crate) way: Way,
    /// The interface, where there is one.
    pub(crate) interface: u32,
    /// Of several to the same prefix the least is taken.
    pub(crate) metric: u32,
}

/// What the namespace has, of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) routes: Vec<RouteLine>,
    /// Rules other than the kernel's own (IPv4's, IPv6's): no table says by itself where something goes.
    pub(crate) ruled: [bool; 2],
}

/// What no host on a link can have as its address, and Linux takes from nobody (net/ipv4/route.c, `ip_route_input_slow`;
/// net/ipv6/ip6_input.c).
fn martians() -> BTreeMap<Prefix, Way> {
    let v4 = |a, len| Prefix::new(Ipv4Addr::new(a, 0, 0, 0).into(), len);
    let v6 = |first, last, len| Prefix::new(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last).into(), len);
    [v4(0, 8), v4(127, 8), v4(224, 3), v6(0, 0, 128), v6(0, 1, 128), v6(0xff00, 0, 8)]
        .map(|prefix| (prefix, Way::Martian))
        .into()
}

/// What the program is told, on the interface of that number.
pub(crate) fn compile(tables: &Tables, interface: u32) -> BTreeMap<Prefix, Way> {
    let mut compiled = martians();
    for table in TABLES {
        // A table is asked only where the ones before it say nothing, however short their prefixes are.
        let mut here: BTreeMap<Prefix, (u32, Way)> = BTreeMap::new();
        for line in tables.routes.iter().filter(|line| line.table == table) {
            let way = match line.way {
                // Each interface has its own link-local addresses.
                _ if is_link_local(line.to) && line.interface != interface && line.way != Way::Own => {
                    continue;
                }
                Way::Direct | Way::Gateway(_) if line.interface != interface => Way::Kernels,
                Way::Direct | Way::Gateway(_) if tables.ruled[usize::from(!line.to.is_ipv4())] => {
                    Way::Kernels
                }
                way => way,
            };
            here.entry(line.to)
                .and_modify(|best| match line.metric.cmp(&best.0) {
                    std::cmp::Ordering::Less => *best = (line.metric, way),
                    // Which of them only the kernel knows.
                    std::cmp::Ordering::Equal if best.1 != way => best.1 = Way::Kernels,
                    _ => {}
                })
                .or_insert((line.metric, way));
        }
        here.retain(|prefix, _| !prefix.is_within(&compiled));
        compiled.extend(here.into_iter().map(|(prefix, (_, way))| (prefix, way)));
    }
    if compiled.len() >= ROUTES_MAX {
        // A shorter prefix would speak for what is left out.
        compiled.retain(|_, way| matches!(way, Way::Martian | Way::Own));
        compiled = compiled.into_iter().take(ROUTES_MAX - 1).collect();
    }
    // No route of IPv6's, of whatever length, speaks for IPv4.
    compiled.entry(Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0)).or_insert(Way::Kernels);
    compiled
}

/// RFC 4291 section 2.5.6.
fn is_link_local(prefix: Prefix) -> bool {
    prefix.len >= 10 && prefix.bits >> 118 == 0xfe80 >> 6
}

/// A change of a neighbour on some interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbor {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// Where it is, if that may be used.
    pub(crate) mac: Option<MacAddr>,
    /// It may be elsewhere by now: the kernel will ask before it relies on it for long (`NUD_STALE`).
    pub(crate) stale: bool,
    /// An administrator or a control plane has said where it is, and the kernel does not ask.
    pub(crate) told: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 2;
    const THERE: u32 = 3;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), len.parse().unwrap())
    }

    fn line(table: u32, to: &str, way: Way, interface: u32, metric: u32) -> RouteLine {
        RouteLine { table, to: prefix(to), way, interface, metric }
    }

    fn via(gateway: &str) -> Way {
        Way::Gateway(gateway.parse().unwrap())
    }

    /// As the program looks it up.
    fn way_to(compiled: &BTreeMap<Prefix, Way>, address: &str) -> Option<Way> {
        let address: IpAddr = address.parse().unwrap();
        let whole = Prefix::new(address, 128);
        (0..=128).rev().find_map(|len| compiled.get(&whole.shortened(len)).copied())
    }

    fn host() -> Tables {
        let routes = vec![
            line(RT_TABLE_LOCAL, "10.0.0.1/32", Way::Own, HERE, 0),
            line(RT_TABLE_LOCAL, "10.0.0.255/32", Way::Martian, HERE, 0),
            line(RT_TABLE_LOCAL, "192.168.7.1/32", Way::Own, THERE, 0),
            line(RT_TABLE_MAIN, "10.0.0.0/24", Way::Direct, HERE, 0),
            line(RT_TABLE_MAIN, "192.168.7.0/24", Way::Direct, THERE, 0),
            line(RT_TABLE_MAIN, "0.0.0.0/0", via("10.0.0.254"), HERE, 100),
            line(RT_TABLE_MAIN, "0.0.0.0/0", via("192.168.7.254"), THERE, 200),
            line(RT_TABLE_MAIN, "172.16.0.0/12", via("192.168.7.254"), THERE, 0),
            line(RT_TABLE_LOCAL, "fd00::1/128", Way::Own, HERE, 0),
            line(RT_TABLE_LOCAL, "fe80::1/128", Way::Own, HERE, 0),
            line(RT_TABLE_MAIN, "fd00::/64", Way::Direct, HERE, 256),
            line(RT_TABLE_MAIN, "fe80::/64", Way::Direct, THERE, 256),
            line(RT_TABLE_MAIN, "fe80::/64", Way::Direct, HERE, 256),
        ];
        Tables { routes, ruled: [false; 2] }
    }

    #[test]
    fn each_address_has_the_way_that_the_kernel_would_take() {
        let compiled = compile(&host(), HERE);
        for (address, expected) in [
            ("10.0.0.2", Some(Way::Direct)),
            ("10.0.0.1", Some(Way::Own)),
            ("192.168.7.1", Some(Way::Own)),
            ("192.168.7.2", Some(Way::Kernels)),
            ("10.0.0.255", Some(Way::Martian)),
            ("255.255.255.255", Some(Way::Martian)),
            ("224.0.0.1", Some(Way::Martian)),
            ("127.0.0.1", Some(Way::Martian)),
            ("127.9.9.9", Some(Way::Martian)),
            ("0.0.0.0", Some(Way::Martian)),
            ("0.1.2.3", Some(Way::Martian)),
            ("8.8.8.8", Some(via("10.0.0.254"))),
            ("172.16.0.1", Some(Way::Kernels)),
            ("fd00::2", Some(Way::Direct)),
            ("fd00::1", Some(Way::Own)),
            ("fe80::2", Some(Way::Direct)),
            ("fe80::1", Some(Way::Own)),
            ("::1", Some(Way::Martian)),
            ("::", Some(Way::Martian)),
            ("ff02::1", Some(Way::Martian)),
            ("2001:db8::1", None),
        ] {
            assert_eq!(way_to(&compiled, address), expected, "{address}");
        }
    }

    #[test]
    fn rules_of_ones_own_leave_a_family_to_the_kernel() {
        let tables = Tables { ruled: [true, false], ..host() };
        let compiled = compile(&tables, HERE);
        assert_eq!(way_to(&compiled, "10.0.0.2"), Some(Way::Kernels));
        assert_eq!(way_to(&compiled, "8.8.8.8"), Some(Way::Kernels));
        assert_eq!(way_to(&compiled, "10.0.0.1"), Some(Way::Own));
        assert_eq!(way_to(&compiled, "fd00::2"), Some(Way::Direct));
        let compiled = compile(&Tables { ruled: [false, true], ..host() }, HERE);
        assert_eq!(way_to(&compiled, "10.0.0.2"), Some(Way::Direct));
        assert_eq!(way_to(&compiled, "fe80::2"), Some(Way::Kernels));
    }

    #[test]
    fn the_least_metric_wins_and_equals_are_the_kernels() {
        let mut tables = host();
        tables.routes.push(line(RT_TABLE_MAIN, "0.0.0.0/0", via("192.168.7.9"), THERE, 50));
        assert_eq!(way_to(&compile(&tables, HERE), "8.8.8.8"), Some(Way::Kernels));
        assert_eq!(way_to(&compile(&tables, THERE), "8.8.8.8"), Some(via("192.168.7.9")));
        tables.routes.push(line(RT_TABLE_MAIN, "0.0.0.0/0", via("192.168.7.8"), THERE, 50));
        assert_eq!(way_to(&compile(&tables, THERE), "8.8.8.8"), Some(Way::Kernels));
    }

    #[test]
    fn a_table_speaks_before_the_next_however_short_its_prefix_is() {
        let mut tables = host();
        // AnyIP: a whole prefix is the host's own.
        tables.routes.push(line(RT_TABLE_LOCAL, "10.0.0.0/28", Way::Own, 1, 0));
        tables.routes.push(line(RT_TABLE_MAIN, "10.0.0.5/32", Way::Direct, HERE, 0));
        tables.routes.push(line(RT_TABLE_DEFAULT, "10.0.0.77/32", via("10.0.0.9"), HERE, 0));
        tables.routes.push(line(RT_TABLE_DEFAULT, "2001:db8::/32", via("fe80::9"), HERE, 0));
        tables.routes.push(line(77, "10.0.0.78/32", via("10.0.0.9"), HERE, 0));
        let compiled = compile(&tables, HERE);
        assert_eq!(way_to(&compiled, "10.0.0.5"), Some(Way::Own));
        assert_eq!(way_to(&compiled, "10.0.0.77"), Some(Way::Direct));
        assert_eq!(way_to(&compiled, "10.0.0.78"), Some(Way::Direct));
        assert_eq!(way_to(&compiled, "2001:db8::1"), Some(via("fe80::9")));
        // No route makes a host of what is none.
        tables.routes.push(line(RT_TABLE_MAIN, "127.0.0.5/32", Way::Direct, HERE, 0));
        assert_eq!(way_to(&compile(&tables, HERE), "127.0.0.5"), Some(Way::Martian));
    }

    #[test]
    fn too_many_routes_say_nothing_at_all() {
        let mut tables = host();
        let more = (0..ROUTES_MAX as u32).map(|number| RouteLine {
            table: RT_TABLE_MAIN,
            to: Prefix::new(Ipv4Addr::from_bits(20 << 24 | number << 8).into(), 24),
            way: Way::Kernels,
            interface: THERE,
            metric: 0,
        });
        tables.routes.extend(more);
        let compiled = compile(&tables, HERE);
        assert!(compiled.len() <= ROUTES_MAX);
        assert_eq!(way_to(&compiled, "10.0.0.2"), Some(Way::Kernels));
        assert_eq!(way_to(&compiled, "fd00::2"), None);
        assert_eq!(way_to(&compiled, "10.0.0.1"), Some(Way::Own));
    }

    #[test]
    fn a_route_of_ipv6_is_none_of_ipv4() {
        let mut tables = host();
        tables.routes.retain(|line| !line.to.is_ipv4());
        tables.routes.push(line(RT_TABLE_MAIN, "::/0", via("fe80::9"), HERE, 0));
        let compiled = compile(&tables, HERE);
        assert_eq!(way_to(&compiled, "8.8.8.8"), Some(Way::Kernels));
        assert_eq!(way_to(&compiled, "2001:db8::1"), Some(via("fe80::9")));
    }
}
