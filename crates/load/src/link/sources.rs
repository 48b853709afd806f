//! Local addresses that connections come from, one after the other: with as many ports on each, a million connections are
//! ordinary.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use overfly_engine::Prefix;

use crate::error::Error;

/// Addresses of one prefix at most: the XDP program has room for a claim of each (`claims` in steer.bpf.c).
const MOST: u64 = 65_535;

/// The addresses of a prefix, without those of the network and of broadcast (RFC 1122 section 3.2.1.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sources {
    first: IpAddr,
    count: u64,
    next: u64,
}

impl Sources {
    /// Those of `prefix`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are too many.
    pub(crate) fn new(prefix: Prefix) -> Result<Sources, Error> {
        let (first, count) = match prefix.address {
            IpAddr::V4(address) => {
                let hosts = u32::MAX.checked_shr(prefix.len.into()).unwrap_or(0);
                let network = address.to_bits() & !hosts;
                let (skip, count) = if hosts > 1 { (1, hosts - 1) } else { (0, hosts + 1) };
                (IpAddr::V4(Ipv4Addr::from_bits(network + skip)), u64::from(count))
            }
            IpAddr::V6(address) => {
                let hosts = u128::MAX.checked_shr(prefix.len.into()).unwrap_or(0);
                let network = address.to_bits() & !hosts;
                // RFC 4291 section 2.6.1: the first one is every router's.
                let (skip, count) = if hosts > 1 { (1, hosts) } else { (0, hosts + 1) };
                (IpAddr::V6(Ipv6Addr::from_bits(network + skip)), u64::try_from(count).unwrap_or(u64::MAX))
            }
        };
        if count > MOST {
            return Err(Error::usage(
                "--sources",
                prefix,
                format!("a prefix of {MOST} addresses at most, such as a /16 of IPv4"),
            ));
        }
        Ok(Sources { first, count, next: 0 })
    }

    /// `count` addresses from `first` on.
    ///
    /// # Errors
    /// [`Error::Usage`] if they are too many.
    pub(crate) fn of_range(first: IpAddr, count: u64) -> Result<Sources, Error> {
        if count > MOST {
            return Err(Error::usage("PROFILE", count, format!("{MOST} client addresses at most over xdp")));
        }
        Ok(Sources { first, count, next: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// One of them, counted from 0.
    pub(crate) fn at(&self, index: u64) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + index as u32).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() + u128::from(index)).into(),
        }
    }

    /// All of them.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        (0..self.count).map(|index| self.at(index))
    }

    /// Whether a new turn begins.
    pub(crate) fn is_at_first(&self) -> bool {
        self.next == 0
    }

    /// The one used longest ago.
    pub(crate) fn take(&mut self) -> IpAddr {
        let address = self.at(self.next);
        self.next = if self.next + 1 < self.count { self.next + 1 } else { 0 };
        address
    }

    /// Whether this machine has all of them.
    ///
    /// # Errors
    /// [`Error::Machine`], naming the first that it has not.
    pub(crate) fn check_local(&self) -> Result<(), Error> {
        for address in self.addresses() {
            UdpSocket::bind(SocketAddr::new(address, 0)).map_err(|error| {
                let what = format!("--sources: {address} is no address of this machine ({error})");
                Error::machine(what, format!("give it to an interface: ip address add {address} dev …"))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_prefix_in_turn() {
        let of = |prefix: &str| Sources::new(prefix.parse().unwrap());
        let list = |prefix: &str| {
            let sources = of(prefix).unwrap();
            (
                sources.len(),
                sources.addresses().next().unwrap().to_string(),
                sources.addresses().last().unwrap().to_string(),
            )
        };
        assert_eq!(list("10.77.1.0/24"), (254, "10.77.1.1".into(), "10.77.1.254".into()));
        assert_eq!(list("10.77.1.9/30"), (2, "10.77.1.9".into(), "10.77.1.10".into()));
        assert_eq!(list("10.77.1.8/31"), (2, "10.77.1.8".into(), "10.77.1.9".into()));
        assert_eq!(list("10.77.1.9"), (1, "10.77.1.9".into(), "10.77.1.9".into()));
        assert_eq!(list("fd00::/120"), (255, "fd00::1".into(), "fd00::ff".into()));
        assert!(of("10.0.0.0/8").is_err() && of("fd00::/64").is_err());
        let mut sources = of("127.0.0.0/30").unwrap();
        let taken: Vec<String> = (0..3).map(|_| sources.take().to_string()).collect();
        assert_eq!(taken, ["127.0.0.1", "127.0.0.2", "127.0.0.1"]);
        assert!(sources.check_local().is_ok());
        assert!(of("255.255.255.0/30").unwrap().check_local().is_err());
    }
}
