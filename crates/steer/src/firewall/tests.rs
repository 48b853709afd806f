//! Rules as nft writes them and the kernel tells them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use overfly_testing::{Random, fresh_seed};

use super::evaluate::{Judgement, Packet, judge};
use super::ruleset::{Chain, Ruleset, Table};
use super::span::{Span, number};
use super::{ACK, SYN, parse, read};
use crate::netlink::{Netlink, Request};
use overfly_lab::Lab;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1));

/// Many kinds of rules.
const RULES: &str = r#"table inet t {
    set nets { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/24, 10.0.2.1-10.0.2.9, 255.255.255.0/24 }
    }
    set banned { type ipv4_addr; flags timeout; elements = { 10.1.1.1 timeout 1h }
    }
    set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.0.3.0/24 . 8000-9000, 10.0.4.1 . 80 }
    }
    set seen { type ipv4_addr; flags dynamic; }
    map way { type ipv4_addr : verdict; elements = { 10.5.0.1 : drop, 10.5.0.2 : jump deep, 10.5.0.3 : goto deep, 10.5.0.4 : return }
    }
    chain deep {
        ip saddr 10.5.0.2 counter return
        reject with tcp reset
    }
    chain input { type filter hook input priority 0; policy drop;
        iifname "lo" accept
        ct state vmap { established : accept, invalid : drop }
        ip saddr @banned drop
        ip saddr vmap @way
        ip saddr @nets tcp dport 8080 accept
        ip saddr . tcp dport @pairs accept
        ip saddr & 255.0.255.0 == 11.0.7.0 tcp dport { 80, 8080 } accept
        ip saddr 10.6.0.0/16 add @seen { ip saddr } accept
        ip saddr 10.7.0.1 log prefix "x" accept
        ip saddr 10.7.0.2 limit rate 10/second accept
        ip saddr 10.7.0.3 meta mark set 7 meta mark 7 accept
        ip saddr 10.7.0.4 fib saddr . iif oif exists accept
        ip saddr 10.7.0.5 fib daddr type local accept
        ip saddr 10.7.0.6 tcp sport 1000 accept
        ip saddr 10.7.0.7 @ih,0,8 1 accept
        ip saddr 10.7.0.8 ct count over 10 accept
        ip saddr 10.7.0.9 tcp flags syn / fin,syn,rst,ack ct original ip saddr 10.7.0.9 ct status dnat drop
        ip saddr 10.7.0.9 accept
    }
}
table netdev n {
    chain ingress { type filter hook ingress device "veth0" priority 0; ip saddr 10.0.0.7 drop
    }
    chain other { type filter hook ingress device "lo" priority 0; drop
    }
}
table ip nat {
    chain pre { type nat hook prerouting priority dstnat; ip saddr 10.0.0.8 tcp dport 8080 dnat to 10.99.0.9:80
    }
}
"#;

fn with_rules<R: Send>(rules: &str, work: impl FnOnce() -> R + Send) -> R {
    let lab = Lab::new(1);
    lab.server.command("nft", &[rules]);
    lab.server.within(work)
}

fn syn() -> Packet<'static> {
    Packet {
        interface: 2,
        name: "veth0",
        outgoing: false,
        protocol: 6,
        local: LOCAL,
        local_port: Some(8080),
        remote_port: None,
        established: false,
        opened_by_peer: Some(true),
        flags: SYN,
        heeds_log: true,
    }
}

fn of(judgement: &Judgement, peer: &str) -> &'static str {
    let peer = number(peer.parse().unwrap());
    match (judgement.accepted.contains(peer), judgement.refused.contains(peer)) {
        (true, false) => "accepted",
        (false, true) => "refused",
        (false, false) => "the kernel's",
        (true, true) => "both",
    }
}

#[test]
fn each_kind_of_rule_says_what_becomes_of_whom() {
    let ruleset = with_rules(RULES, || read::read(&mut Netlink::open_netfilter().unwrap()).unwrap());
    assert!(ruleset.expires.is_some());
    let judgement = judge(&ruleset, syn(), &Span::all(32), &Span::none());
    for (peer, expected) in [
        ("10.0.0.1", "accepted"),
        ("10.0.0.7", "refused"),
        ("10.0.0.8", "the kernel's"),
        ("10.0.1.0", "refused"),
        ("10.0.2.0", "refused"),
        ("10.0.2.1", "accepted"),
        ("10.0.2.9", "accepted"),
        ("10.0.2.10", "refused"),
        ("10.0.3.200", "accepted"),
        ("10.0.4.1", "refused"),
        ("255.255.255.255", "accepted"),
        ("0.0.0.0", "refused"),
        ("10.1.1.1", "refused"),
        ("10.5.0.1", "refused"),
        ("10.5.0.3", "refused"),
        ("11.200.7.3", "accepted"),
        ("11.200.8.3", "refused"),
        ("10.6.0.1", "the kernel's"),
        ("10.7.0.1", "the kernel's"),
        ("10.7.0.2", "the kernel's"),
        ("10.7.0.3", "the kernel's"),
        ("10.7.0.4", "the kernel's"),
        ("10.7.0.5", "accepted"),
        ("10.7.0.6", "the kernel's"),
        ("10.7.0.7", "the kernel's"),
        ("10.7.0.8", "the kernel's"),
        ("10.7.0.9", "accepted"),
    ] {
        assert_eq!(of(&judgement, peer), expected, "{peer}");
    }
    let open = Packet { established: true, flags: ACK, ..syn() };
    let judgement = judge(&ruleset, open, &Span::all(32), &Span::none());
    assert_eq!([of(&judgement, "10.0.1.0"), of(&judgement, "10.0.0.7")], ["accepted", "refused"]);
    // A port that is known decides.
    let from_1000 =
        judge(&ruleset, Packet { remote_port: Some(1000), ..syn() }, &Span::all(32), &Span::none());
    assert_eq!(of(&from_1000, "10.7.0.6"), "accepted");
    let elsewhere =
        judge(&ruleset, Packet { name: "eth1", interface: 3, ..syn() }, &Span::all(32), &Span::none());
    assert_eq!(of(&elsewhere, "10.0.0.7"), "accepted");
}

/// Whatever is wrong with the kernel's messages, nothing ends the broker.
#[test]
fn damaged_messages_are_survived() {
    let messages = with_rules(RULES, || {
        let mut netlink = Netlink::open_netfilter().unwrap();
        let mut messages: Vec<Vec<u8>> = Vec::new();
        for kind in [1, 4, 7, 10] {
            let request = Request::netfilter(10 << 8 | kind, Netlink::DUMP, 0);
            netlink.exchange(request, |_, body| messages.push(body.to_vec())).unwrap();
        }
        for name in ["nets", "banned", "pairs", "way"] {
            let mut request = Request::netfilter(10 << 8 | 13, Netlink::DUMP, 1);
            request.attribute(1, b"t\0");
            request.attribute(2, &[name.as_bytes(), &[0]].concat());
            netlink.exchange(request, |_, body| messages.push(body.to_vec())).unwrap();
        }
        messages
    });
    assert!(messages.len() > 30, "{}", messages.len());
    let mut numbers = Random(fresh_seed());
    let mut random = move |below: usize| numbers.index(below);
    let mut judged = 0;
    for _ in 0..1500 {
        let mut tables = vec![Table { family: 1, name: "t".to_owned(), ..Table::default() }];
        let mut chains: Vec<Chain> = Vec::new();
        let mut rules = Vec::new();
        let mut elements = Vec::new();
        for message in &messages {
            let mut message = message.clone();
            for _ in 0..random(3) {
                let at = random(message.len());
                match random(4) {
                    0 => message.truncate(at),
                    1 => message[at..].fill(0xff),
                    _ => message[at] = random(256) as u8,
                }
                if message.is_empty() {
                    break;
                }
            }
            tables.extend(parse::table(&message));
            chains.extend(parse::chain(&message).map(|(_, chain)| chain));
            rules.extend(parse::rule(&message).map(|(_, chain, rule)| (chain, rule)));
            tables[0].sets.extend(parse::set(&message).map(|(_, set)| set));
            elements.extend(parse::elements(&message, Instant::now()));
            let _ = parse::generation(&message);
        }
        for (set, raw) in tables[0].sets.iter_mut().zip(elements) {
            set.fill(raw);
        }
        for (chain, rule) in rules {
            if let Some(chain) = chains.iter_mut().find(|its| its.name == chain) {
                chain.rules.push(rule);
            }
        }
        tables[0].chains = chains;
        let ruleset = Ruleset { tables, expires: None };
        for packet in [syn(), Packet { local: "fd99::1".parse().unwrap(), outgoing: true, ..syn() }] {
            let bits = if packet.local.is_ipv4() { 32 } else { 128 };
            let judgement = judge(&ruleset, packet, &Span::all(bits), &Span::none());
            assert!(judgement.accepted.intersection(&judgement.refused).is_empty());
            judged += usize::from(!judgement.refused.is_empty());
        }
    }
    assert!(judged > 100, "{judged}");
}
