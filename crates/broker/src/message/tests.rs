use overfly_link::xdp::{BusyPoll, PoolLayout};

use super::*;

const TOKEN: Token = Token([7; 16]);

fn interface() -> Interface {
    Interface {
        name: "a-name-15-bytes".to_owned(),
        index: 70_000,
        mac: MacAddr([1, 2, 3, 4, 5, 6]),
        mtu: 1500,
        addresses: vec![("10.0.0.1".parse().unwrap(), 8), ("fe80::1".parse().unwrap(), 64)],
        partial_checksums: true,
    }
}

#[test]
fn what_is_said_is_heard() {
    assert_eq!(Hello::parse(Hello::new(Role::Leash, TOKEN).as_bytes(), TOKEN), Some(Role::Leash));
    assert_eq!(Hello::parse(Hello::new(Role::Client, Token([8; 16])).as_bytes(), TOKEN), None);
    let addresses: [SocketAddr; 2] = ["1.2.3.4:5".parse().unwrap(), "[2001:db8::1]:65535".parse().unwrap()];
    for kind in Kind::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for (local, remote) in [(addresses[0], addresses[1]), (addresses[1], addresses[0])] {
                let cluster = Cluster::new("web", 3);
                let request = Request { kind, protocol, v6only: local.is_ipv6(), local, remote, cluster };
                assert_eq!(RequestMessage::parse(RequestMessage::new(&request).as_bytes()), Some(request));
            }
        }
    }
    let mapped = Request { local: "[::ffff:1.2.3.4]:5".parse().unwrap(), ..Request::new(Kind::Listen) };
    assert_eq!(RequestMessage::parse(RequestMessage::new(&mapped).as_bytes()).unwrap().local, addresses[0]);
    assert_eq!(Welcome::parse(Welcome::new(&interface()).as_bytes()), Ok(interface()));
    let route = Route { source: "2001:db8::9".parse().unwrap(), next_hop: MacAddr([6, 5, 4, 3, 2, 1]) };
    assert_eq!(Reply::parse(Reply::yes(Some(route)).as_bytes()), Ok(route));
    let [here, there] = addresses;
    assert_eq!(PassedMessage::parse(PassedMessage::new(here, there).as_bytes()), Some((here, there)));
    assert_eq!(PassedMessage::parse(Reply::yes(None).as_bytes()), None);
    assert_eq!(Word::parse(PassedMessage::new(here, there).as_bytes()), None);
    let returned = Hello::new(Role::Return, TOKEN);
    assert!(Hello::parse_any(returned.as_bytes()).is_some_and(|heard| heard == (Role::Return, TOKEN)));
    assert!(Hello::parse_any(&returned.as_bytes()[1..]).is_none());
    let part = Part {
        stack: 3,
        queue: 1,
        queues: 2,
        zero_copy: false,
        busy_poll: Some(BusyPoll::default()),
        layout: PoolLayout {
            rx_frames: 8192,
            rx_ring: 1024,
            tx_frames: 512,
            tx_queues: 2,
            stacks: 32,
            frame_buffers: 1,
            tx_metadata: true,
        },
    };
    assert_eq!(StackPart::parse(StackPart::new(&part).as_bytes()), Ok(part));
    let long = "w".repeat(WORDS_MAX);
    for before in [None, Some(Deferral { napi_defer_hard_irqs: 2, gro_flush_timeout_ns: 1 << 40 })] {
        let joined = Joined::new("overfly-1", TOKEN, &long, before);
        let (name, token, words, heard) = Joined::parse(joined.as_bytes()).unwrap();
        assert!(name == "overfly-1" && token == TOKEN && words == long[1..] && heard == before);
    }
    for place in ["@a", "/run/b,id=4294967295", &"c".repeat(100)] {
        let address = place.parse().unwrap();
        assert_eq!(MemifPart::parse(MemifPart::new(&address).as_bytes()), Some(address));
    }
    assert!(TapPart::parse(TapPart::new().as_bytes()) && !TapPart::parse(&REPLY.to_le_bytes()));
}

#[test]
fn a_process_is_shown_until_there_are_no_more() {
    for stack in [None, Some(7)] {
        let shown = Shown { process: 70_000, user: 1000, stack };
        assert_eq!(ShownPart::parse(ShownPart::new(&shown).as_bytes()), Ok(Some(shown)));
    }
    assert_eq!(ShownPart::parse(Reply::yes(None).as_bytes()), Ok(None));
    let left = LeftFrames { passed_source: 1, passed_firewall: u64::MAX, dropped_firewall: 3 };
    let part = LeftPart::new(&left);
    assert_eq!(LeftPart::parse(part.as_bytes()), Some(left));
    assert_eq!(LeftPart::parse(&part.as_bytes()[1..]), None);
    assert_eq!(LeftPart::parse(&[0; size_of::<LeftPart>()]), None);
    assert!(ShownPart::parse(part.as_bytes()).is_err());
    assert!(ShownPart::parse(&[0; 3]).is_err());
}

#[test]
fn news_are_words_that_fit() {
    let long = "é".repeat(WORDS_MAX);
    for (said, heard) in [("", ""), ("eth0 is gone", "eth0 is gone"), (&long, &long[..WORDS_MAX])] {
        assert_eq!(News::parse(News::new(said).as_bytes()).as_deref(), Some(heard));
    }
    assert_eq!(News::parse(Reply::yes(None).as_bytes()), None);
}

#[test]
fn a_no_is_a_no_in_place_of_any_answer() {
    let long = "é".repeat(REASON_MAX);
    let no = Reply::no(Refusal::NoStack, &long);
    for heard in [
        Reply::parse(no.as_bytes()).unwrap_err(),
        Welcome::parse(no.as_bytes()).unwrap_err(),
        Joined::parse(no.as_bytes()).map(drop).unwrap_err(),
        StackPart::parse(no.as_bytes()).unwrap_err(),
    ] {
        let Error::Refused { refusal, reason } = heard else {
            panic!("{heard}");
        };
        assert_eq!((refusal, reason.len()), (Refusal::NoStack, REASON_MAX));
    }
}

/// Every length and some hundred thousand random contents: nothing panics, little is understood.
#[test]
fn bad_messages_are_refused() {
    let mut numbers = overfly_testing::Random::seeded();
    let mut random = move || numbers.next();
    let mut bytes = [0_u8; MESSAGE_LEN_MAX];
    for _ in 0..200_000 {
        for chunk in bytes[..64].chunks_mut(8) {
            chunk.copy_from_slice(&random().to_le_bytes());
        }
        bytes[0] = random() as u8 & 3;
        bytes[1] = 0;
        let length = random() as usize % MESSAGE_LEN_MAX;
        let message = &bytes[..length];
        assert_eq!(Hello::parse(message, TOKEN), None);
        let _ = RequestMessage::parse(message);
        let _ = Reply::parse(message);
        let _ = Welcome::parse(message);
        let _ = StackPart::parse(message);
        let _ = MemifPart::parse(message);
        let _ = TapPart::parse(message);
        let _ = Joined::parse(message);
        let _ = LeftPart::parse(message);
        let _ = News::parse(message);
    }
    for length in [size_of::<Reply>(), size_of::<Welcome>(), size_of::<StackPart>(), size_of::<Joined>()] {
        assert!(length <= MESSAGE_LEN_MAX);
    }
}
