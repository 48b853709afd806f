//! The table beside what the kernel's own sockets say, and beside docs/sockets.md.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use overfly_engine::{Algorithm, Info};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;

const FAMILIES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// A connection whose options are the table's, over a kernel's socket.
struct Local {
    settings: Settings,
    fresh: Fresh,
    backing: Backing,
}

impl Local {
    fn over(backing: Backing) -> Self {
        let fresh = fresh();
        Self { settings: read(backing, &fresh), fresh, backing }
    }
}

fn administrators(file: &str, column: usize) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/net/{file}")).unwrap();
    text.split_whitespace().nth(column).unwrap().parse().unwrap()
}

impl Connection for Local {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn change(&mut self, change: &dyn Fn(&mut Settings)) {
        change(&mut self.settings);
    }

    fn send_at_once(&mut self) {
        self.settings.no_delay = true;
    }

    fn look(&mut self) {}

    fn tell_readers(&mut self) {}

    fn tell_writers(&mut self) {}

    fn take_error(&mut self) -> Option<Errno> {
        None
    }

    fn info(&self) -> Option<Info> {
        None
    }

    fn path_mtu(&self) -> Option<u16> {
        Some(1500)
    }

    fn congestion(&self) -> Algorithm {
        self.settings.congestion.or(self.fresh.congestion).unwrap_or(Algorithm::Cubic)
    }

    fn is_passive(&self) -> bool {
        false
    }

    fn backing(&self) -> Backing {
        self.backing
    }

    fn send_buffer_max(&self) -> u32 {
        administrators("core/wmem_max", 0) as u32
    }

    fn receive_buffer_max(&self) -> u32 {
        administrators("core/rmem_max", 0) as u32
    }

    fn receive_buffer_grown_max(&self) -> u64 {
        administrators("ipv4/tcp_rmem", 2)
    }
}

fn new_socket(of: IpAddr, kind: SocketType) -> OwnedFd {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn fresh() -> Fresh {
    let socket = new_socket(FAMILIES[1], SocketType::STREAM);
    Fresh::read(Backing(socket.as_raw_fd()), 0).unwrap()
}

/// Both ends of a connection within the host.
fn connected(at: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(SocketAddr::new(at, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn kept(option: &SocketOption) -> Option<OptionAccess> {
    match option.stream {
        Stream::Here(kept) => Some(kept),
        _ => None,
    }
}

/// What is tried of each shape: values that are right, and such that are not.
fn values(kept: &OptionAccess) -> Vec<Vec<u8>> {
    match kept {
        OptionAccess::Number(..) | OptionAccess::Record(_) => {
            [1, 0, -1, 2, 3, 87, 88, 127, 128, 255, 256, 5000, 32_767, 32_768, 100_000, i32::MAX, i32::MIN]
                .iter()
                .map(|number: &i32| number.to_ne_bytes().to_vec())
                .collect()
        }
        OptionAccess::Linger(..) => [[1, 5], [0, 9], [1, 0], [7, 70_000], [0, 0]]
            .iter()
            .map(|pair: &[i32; 2]| pair.map(i32::to_ne_bytes).concat())
            .collect(),
        OptionAccess::Time(..) => [[3, 200_000], [0, 0], [-3, 0], [0, 1_000_000], [5, -1], [70_000, 0]]
            .iter()
            .map(|pair: &[i64; 2]| pair.map(i64::to_ne_bytes).concat())
            .collect(),
        OptionAccess::Name(..) => {
            [&b"reno"[..], b"", b"no such", b"reno\0cubic", b"longer than any name of an algorithm"]
                .map(<[u8]>::to_vec)
                .to_vec()
        }
    }
}

/// setsockopt() and getsockopt() as the hooks have the table do them.
fn set_here(option: &SocketOption, of: &mut Local, value: &[u8]) -> Result<(), Errno> {
    let kept = kept(option).unwrap();
    let taken = kept.taken(option.level, value.len())?;
    kept.set(of, &OptionArgument::new(&value[..taken]))
}

fn get_here(option: &SocketOption, of: &mut Local, room: usize) -> Result<Vec<u8>, Errno> {
    let value = kept(option).unwrap().get(of, option.level, room)?;
    Ok(value[..room.min(value.len())].to_vec())
}

fn get_there(option: &SocketOption, socket: Backing, room: usize) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; room];
    let length = socket.get(option.level, option.name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

/// Options whose value is another one here: their lengths are compared alone.
const VARY: [&str; 3] = ["SO_INCOMING_CPU", "IP_MTU", "TCP_INFO"];

/// All that both say of an option in turn, where they differ.
fn differences(option: &SocketOption, socket: Backing, of: &mut Local) -> String {
    let mut told = String::new();
    let mut compare = |of: &mut Local, after: &str| {
        for room in [0, 1, 2, 3, 4, 5, 8, 12, 16, 17, 64, 400] {
            let (here, there) = (get_here(option, of, room), get_there(option, socket, room));
            let same = match (&here, &there) {
                (Ok(here), Ok(there)) if VARY.contains(&option.called) => here.len() == there.len(),
                _ => here == there,
            };
            if !same {
                writeln!(told, "{} {after}, {room} bytes: here {here:?}, there {there:?}", option.called)
                    .unwrap();
            }
        }
    };
    compare(of, "at first");
    let mut refused = String::new();
    for value in values(&kept(option).unwrap()) {
        let exact = value.len();
        for length in [0, 1, 2, 3, 4, 7, 8, 15, 16, 40, exact] {
            let mut value = value.clone();
            value.resize(length, 0);
            let here = set_here(option, of, &value);
            let there = socket.set(option.level, option.name, &value);
            if here != there {
                writeln!(refused, "{} {value:?}: here {here:?}, there {there:?}", option.called).unwrap();
            }
            compare(of, &format!("after {value:?}"));
        }
    }
    told + &refused
}

#[test]
fn connections_say_of_each_option_what_the_kernels_say() {
    let mut seen = 0;
    let mut told = String::new();
    for family in FAMILIES {
        for option in TABLE.iter().filter(|option| kept(option).is_some()) {
            // An AF_INET socket knows none of these, which the hooks say before they ask.
            if option.level == libc::IPPROTO_IPV6 && family.is_ipv4() {
                continue;
            }
            let (one, _other) = connected(family);
            let socket = Backing(one.as_raw_fd());
            // The kernel's default may be one that the engine lacks.
            socket.set(libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno").unwrap();
            told += &differences(option, socket, &mut Local::over(socket));
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
    assert!(told.is_empty(), "{told}");
}

/// A program sets an option before connect(), or on a listener: the connection has it, and so has the kernel's socket that takes
/// the connection over.
#[test]
fn what_the_kernels_socket_keeps_comes_and_goes() {
    let mut carried = 0;
    for family in FAMILIES {
        for option in TABLE {
            let Carried::Both(..) = option.carried else { continue };
            for value in values(&kept(option).unwrap()) {
                let [before, after] = [(); 2].map(|()| new_socket(family, SocketType::STREAM));
                let [before, after] = [&before, &after].map(|socket| Backing(socket.as_raw_fd()));
                if before.set(option.level, option.name, &value).is_err() {
                    continue;
                }
                let shown = format!("{} {value:?} of {family}", option.called);
                let mut connection = Local::over(before);
                let said = get_there(option, before, 16);
                assert_eq!(get_here(option, &mut connection, 16), said, "{shown}");
                if option.called == "SO_RCVLOWAT" && connection.settings.receive_limit.is_some() {
                    // The kernel's buffer grew with it (tcp_set_rcvlowat()), which looks as if that had been asked for.
                    continue;
                }
                write(after, &connection.settings, &connection.fresh);
                if option.called == "SO_SNDBUF" {
                    // The stack has bounds of its own.
                    let (least, most) = crate::socket::SEND_LIMIT_RANGE;
                    let bounded = (connection.settings.send_buffer as usize / 2).clamp(least, most) * 2;
                    assert_eq!(after.number(option.level, option.name), Ok(bounded as i32), "{shown}");
                } else {
                    assert_eq!(get_there(option, after, 16), said, "{shown}");
                }
                carried += 1;
            }
        }
    }
    assert!(carried > 200, "{carried}");
}

/// What stands first has precedence: a class for IPv6 counts before one for IPv4, and what is not set is not read as set.
#[test]
fn a_socket_that_nothing_was_set_on_is_a_fresh_one() {
    for family in FAMILIES {
        let socket = new_socket(family, SocketType::STREAM);
        let fresh = fresh();
        assert_eq!(read(Backing(socket.as_raw_fd()), &fresh), fresh.settings, "{family}");
    }
    let socket = new_socket(FAMILIES[1], SocketType::STREAM);
    let socket = Backing(socket.as_raw_fd());
    for (name, value, class) in [("IP_TOS", 16_i32, 16), ("IPV6_TCLASS", 32, 32), ("IPV6_TCLASS", 0, 16)] {
        let option = called(name);
        socket.set(option.level, option.name, &value.to_ne_bytes()).unwrap();
        assert_eq!(read(socket, &fresh()).traffic_class, class, "{name} {value}");
    }
}

fn called(name: &str) -> &'static SocketOption {
    TABLE.iter().find(|option| option.called == name).unwrap()
}

#[test]
fn what_linux_refuses_to_connections_is_refused() {
    let number = |number: i32| number.to_ne_bytes();
    let mut refused = 0;
    for family in FAMILIES {
        for option in TABLE.iter().filter(|option| option.refused != Refused::Never) {
            let (one, _other) = connected(family);
            let socket = Backing(one.as_raw_fd());
            for value in [0, 1] {
                let said = socket.set(option.level, option.name, &number(value));
                assert_eq!(
                    option.is_refused(Some(value)),
                    said == Err(Errno::INVAL),
                    "{} {value}",
                    option.called
                );
                refused += u32::from(said.is_err());
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn listeners_are_asked_what_they_were_given() {
    let socket = new_socket(FAMILIES[0], SocketType::STREAM);
    rustix::net::bind(&socket, &SocketAddr::new(FAMILIES[0], 0)).unwrap();
    rustix::net::listen(&socket, 5).unwrap();
    let socket = Backing(socket.as_raw_fd());
    assert_eq!(of_listener(socket).defer_s, 0);
    socket.set(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &3_i32.to_ne_bytes()).unwrap();
    socket.set(libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &4_i32.to_ne_bytes()).unwrap();
    assert_eq!(of_listener(socket), Listener { defer_s: 3, fast_open: 4 });
}

#[test]
fn the_kernel_has_those_that_the_stack_cannot_follow() {
    let answers = |name: &str, number: i32| {
        let option = called(name);
        (option.is_for_the_kernel(number), option.hands_over_first(Some(number)))
    };
    let only_kernel = TABLE.iter().filter(|option| matches!(option.stream, Stream::KernelOnly(_)));
    for option in only_kernel.clone() {
        assert!(!option.is_for_the_kernel(0), "{}", option.called);
        assert!(option.is_for_the_kernel(1), "{}", option.called);
    }
    assert!(only_kernel.count() > 20);
    assert_eq!(answers("IP_MINTTL", -1), (true, false));
    assert_eq!(answers("TCP_ULP", 0), (false, true));
    assert_eq!(answers("TCP_LINGER2", 0), (false, false));
    assert_eq!(answers("TCP_LINGER2", -1), (true, true));
    assert_eq!(answers("SO_TIMESTAMPING", 1), (true, false));
    assert_eq!(answers("SO_TIMESTAMPING", SOF_TIMESTAMPING_OPT_ID), (true, true));
    assert_eq!(answers("SO_KEEPALIVE", 1), (false, false));
    assert!(!called("TCP_LINGER2").hands_over_first(None) && called("TCP_ULP").hands_over_first(None));
}

/// Each that has something told with datagrams is found on a kernel's socket, alone, and time under its own name.
#[test]
fn udp_sockets_tell_what_they_were_asked_to() {
    let mut bits = 0;
    for option in TABLE {
        let (Datagram::Tells(bit) | Datagram::TellsTime(bit, _)) = option.datagram else { continue };
        assert_eq!(bits & bit, 0, "{} shares its bit", option.called);
        bits |= bit;
        let socket = UdpSocket::bind(SocketAddr::new(FAMILIES[1], 0)).unwrap();
        let socket = Backing(socket.as_raw_fd());
        assert_eq!(told(socket), 0);
        socket.set(option.level, option.name, &1_i32.to_ne_bytes()).unwrap();
        assert_ne!(told(socket) & bit, 0, "{}", option.called);
        match option.datagram {
            Datagram::TellsTime(_, per_second) => {
                assert_eq!(time_told(told(socket)), Some((option.name, per_second)), "{}", option.called);
            }
            _ => assert_eq!((told(socket), time_told(told(socket))), (bit, None), "{}", option.called),
        }
    }
    assert_eq!(bits.count_ones(), 13);
}

#[test]
fn each_option_is_found_and_nothing_else() {
    for option in TABLE {
        assert!(find(option.level, option.name).is_some_and(|found| found.called == option.called));
    }
    let there =
        |level: i32, name: i32| TABLE.iter().any(|option| (option.level, option.name) == (level, name));
    for level in (-3..300).chain([i32::MIN, i32::MAX]) {
        for name in (-3..300).chain([i32::MIN, i32::MAX]) {
            assert_eq!(find(level, name).is_some(), there(level, name), "{level} {name}");
        }
    }
}

/// A table of docs/sockets.md: options with the same words share a row.
fn table(heading: &str, says: impl Fn(&SocketOption) -> &'static str) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    for option in TABLE.iter().filter(|option| !says(option).is_empty()) {
        let name = format!("`{}` ", option.called);
        match rows.iter_mut().find(|(words, _)| *words == says(option)) {
            Some((_, names)) => *names += &name,
            None => rows.push((says(option), name)),
        }
    }
    let mut text = format!("| {heading} | at user level |\n|---|---|\n");
    for (words, names) in rows {
        writeln!(text, "| {names}| {words} |").unwrap();
    }
    text
}

fn only_the_kernels() -> String {
    let mut text = "| option that only the kernel follows |\n|---|\n".to_owned();
    for prefixes in [&["SO_"][..], &["IP_", "IPV6_"], &["TCP_"]] {
        let names: String = TABLE
            .iter()
            .filter(|option| matches!(option.stream, Stream::KernelOnly(_)))
            .filter(|option| prefixes.iter().any(|prefix| option.called.starts_with(prefix)))
            .map(|option| format!("`{}` ", option.called))
            .collect();
        writeln!(text, "| {names}|").unwrap();
    }
    text
}

/// The tables of the documentation are this one's. Where they are not, they are printed as they should be.
#[test]
fn the_documentation_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sockets.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    for wanted in [
        table("option of a connection", |option| option.says.connection),
        table("option of a listener", |option| option.says.listener),
        table("option of a UDP socket", |option| option.says.datagram),
        only_the_kernels(),
    ] {
        let there = documentation.contains(&format!("\n\n{wanted}\n"));
        assert!(there, "docs/sockets.md should have, and nothing else in this table:\n\n{wanted}");
    }
    // Who has an option at user level, or leaves UDP sockets for none, says so.
    for option in TABLE {
        assert_eq!(kept(option).is_some(), !option.says.connection.is_empty(), "{}", option.called);
        assert_eq!(option.listener.is_some(), !option.says.listener.is_empty(), "{}", option.called);
        let is_left = option.datagram == Datagram::KernelOnly;
        assert_eq!(is_left, option.says.datagram.is_empty(), "{}", option.called);
    }
}
