//! Rules in words, for those who have to find them.

use super::ruleset::{Chain, Rule, Table};

/// Which rule it is, and what of it cannot be followed.
pub(crate) fn rule(table: &Table, chain: &Chain, rule: &Rule, what: &str) -> String {
    let family = family(table.family);
    format!(
        "{what} in table {family} {}, chain {}, handle {} (`nft -a list chain {family} {} {}`)",
        table.name, chain.name, rule.handle, table.name, chain.name
    )
}

/// As nft writes it.
pub(crate) fn family(number: u8) -> &'static str {
    match number {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "?",
    }
}
