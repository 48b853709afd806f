//! The table: each option stands here once.

use core::time::Duration;

use rustix::io::Errno;

use super::access::OptionAccess::{Linger, Name, Number, Record, Time};
use super::access::{
    change, change_within, congestion, flag, is_read_only, max_segment, receive_buffer, reset_hops, seconds,
    send_buffer, set_congestion, set_linger, set_receive_buffer, set_receive_low_water, set_send_buffer,
    timeout, timeval, write_class,
};
use super::backing::named;
use super::{Carried, Datagram, Follow, Refused, SocketOption, When, info, wants};
use crate::socket::SEND_LIMIT_RANGE;

const YES: &str = "yes; before connect() and on listeners read from there. The kernel says whether SO_RCVBUFFORCE and SO_SNDBUFFORCE are allowed, and the connection follows";
const CLASS: &str = "the class of every packet, inherited from the listener";
const HOPS: &str = "how far every packet may go, inherited from the listener";
const IN_KERNEL: &str = "as the kernel's socket has them";
const MARKS: &str = "every packet has it, ECN's bits of the class too";
const TOLD: &str = "yes: recvmsg() and recvmmsg() tell it, as the kernel does for what comes by its socket";
const TIME: &str = "yes: the time when the datagram was taken from the link";
const ERRORS: &str = "yes: errors from ICMP stand in the error queue (MSG_ERRQUEUE), and poll() says POLLERR until it is empty; errors of what the kernel's socket sent stand in its queue, which is read after ours";
const PIECES: &str = "what does not fit, or goes in pieces, is sent by the kernel's socket, which has them";

/// Every option that is more than a number of the kernel's socket. Its rows are read, and written, in this order.
pub(crate) const TABLE: &[SocketOption] = &[
    // ---- of connections, at user level ----
    option!(SOL_SOCKET SO_ERROR).kept(
        YES,
        Number(
            |of| {
                of.look();
                Ok(of.take_error().map_or(0, Errno::raw_os_error))
            },
            is_read_only,
        ),
        Carried::No,
    ),
    option!(SOL_SOCKET SO_KEEPALIVE)
        .kept(
            YES,
            Number(
                |of| flag(of.settings().keep_alive),
                |of, on| change(of, |settings| settings.keep_alive = on != 0),
            ),
            Carried::Both(
                |from, to| to.keep_alive = from.is_on(),
                |to, settings| to.set_flag(settings.keep_alive),
            ),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_LINGER)
        .kept(
            YES,
            Linger(
                |of| {
                    let settings = of.settings();
                    Ok([i32::from(settings.linger.is_some()), settings.linger_time.as_secs() as i32])
                },
                set_linger,
            ),
            Carried::Both(
                |from, to| {
                    let (is_on, time) = from.linger();
                    (to.linger, to.linger_time) = (is_on.then_some(time), time);
                },
                |to, settings| to.set_linger(settings.linger.is_some(), settings.linger_time),
            ),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_RCVTIMEO)
        .kept(
            YES,
            Time(
                |of| timeval(of.settings().receive_timeout),
                |of, time| timeout(time).and_then(|time| change(of, |settings| settings.receive_timeout = time)),
            ),
            Carried::Both(
                |from, to| to.receive_timeout = from.timeout(),
                |to, settings| to.set_timeout(settings.receive_timeout),
            ),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_SNDTIMEO)
        .kept(
            YES,
            Time(
                |of| timeval(of.settings().send_timeout),
                |of, time| timeout(time).and_then(|time| change(of, |settings| settings.send_timeout = time)),
            ),
            Carried::Both(
                |from, to| to.send_timeout = from.timeout(),
                |to, settings| to.set_timeout(settings.send_timeout),
            ),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_SNDBUF)
        .kept(
            YES,
            Number(send_buffer, set_send_buffer),
            Carried::Both(
                // The kernel says twice what was asked for, and a default of its own where nothing was.
                |from, to| match from.number().and_then(|bytes| u32::try_from(bytes).ok()) {
                    Some(bytes) if bytes as i32 != from.fresh.send_buffer => {
                        to.send_limit = (bytes as usize / 2).clamp(SEND_LIMIT_RANGE.0, SEND_LIMIT_RANGE.1);
                        to.send_buffer = bytes;
                    }
                    _ => {}
                },
                |to, settings| {
                    if settings.send_limit != to.fresh.settings.send_limit {
                        to.set_number(i32::try_from(settings.send_limit).unwrap_or(i32::MAX));
                    }
                },
            ),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_RCVBUF)
        .kept(
            YES,
            Number(receive_buffer, set_receive_buffer),
            Carried::Both(
                |from, to| {
                    let bytes = from.number().filter(|&bytes| bytes != from.fresh.receive_buffer);
                    to.receive_limit = bytes.and_then(|bytes| u32::try_from(bytes / 2).ok());
                },
                |to, settings| {
                    if let Some(limit) = settings.receive_limit {
                        to.set_number(i32::try_from(limit).unwrap_or(i32::MAX));
                    }
                },
            ),
        )
        .datagram(IN_KERNEL, Datagram::ReceiveBuffer),
    option!(SOL_SOCKET SO_RCVLOWAT).kept(
        YES,
        Number(|of| Ok(of.settings().receive_low_water as i32), set_receive_low_water),
        Carried::Both(
            |from, to| to.receive_low_water = from.number().map_or(1, |bytes| (bytes as u32).max(1)),
            |to, settings| {
                if settings.receive_low_water != to.fresh.settings.receive_low_water {
                    to.set_number(settings.receive_low_water as i32);
                }
            },
        ),
    ),
    option!(IPPROTO_IPV6 IPV6_V6ONLY)
        .kept(
            YES,
            Number(
                |of| {
                    if of.is_passive() {
                        return flag(of.settings().v6only);
                    }
                    let backing = of.backing().number(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
                    flag(backing.is_ok_and(|on| on != 0))
                },
                // ipv6_setsockopt(): not once the socket has a port.
                |_, _| Err(Errno::INVAL),
            ),
            Carried::Read(|from, to| to.v6only = from.is_on()),
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_TCP TCP_NODELAY).kept(
        YES,
        Number(
            |of| flag(of.settings().no_delay),
            |of, on| {
                if on == 0 {
                    return change(of, |settings| settings.no_delay = false);
                }
                of.send_at_once();
                Ok(())
            },
        ),
        Carried::Both(|from, to| to.no_delay = from.is_on(), |to, settings| to.set_flag(settings.no_delay)),
    ),
    option!(IPPROTO_TCP TCP_CORK).kept(
        YES,
        Number(|of| flag(of.settings().cork), |of, on| change(of, |settings| settings.cork = on != 0)),
        Carried::Both(|from, to| to.cork = from.is_on(), |to, settings| to.set_flag(settings.cork)),
    ),
    keep_time!(TCP_KEEPIDLE keep_idle),
    keep_time!(TCP_KEEPINTVL keep_interval),
    option!(IPPROTO_TCP TCP_KEEPCNT).kept(
        YES,
        Number(
            |of| Ok(of.settings().keep_probes.into()),
            |of, number| change_within(of, number, 1..=127, |settings| settings.keep_probes = number as u8),
        ),
        Carried::Both(
            |from, to| {
                to.keep_probes =
                    from.number().and_then(|probes| u8::try_from(probes).ok()).unwrap_or(to.keep_probes);
            },
            |to, settings| to.set_number(settings.keep_probes.into()),
        ),
    ),
    option!(IPPROTO_TCP TCP_USER_TIMEOUT).kept(
        YES,
        Number(
            |of| Ok(of.settings().user_timeout.as_millis() as i32),
            |of, number| {
                let time = Duration::from_millis(number.unsigned_abs().into());
                change_within(of, number, 0..=i32::MAX, |settings| settings.user_timeout = time)
            },
        ),
        Carried::Both(
            |from, to| {
                let time_ms = from.number().and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
                to.user_timeout = Duration::from_millis(time_ms);
            },
            |to, settings| {
                to.set_number(i32::try_from(settings.user_timeout.as_millis()).unwrap_or(i32::MAX));
            },
        ),
    ),
    option!(IPPROTO_TCP TCP_SYNCNT).kept(
        "yes, before net.ipv4.tcp_syn_retries and EF_RETRANSMIT_THRESHOLD_SYN",
        Number(
            |of| match of.settings().syn_retries {
                0 => of.backing().number(libc::IPPROTO_TCP, libc::TCP_SYNCNT),
                retries => Ok(retries.into()),
            },
            // MAX_TCP_SYNCNT (include/net/tcp.h).
            |of, number| change_within(of, number, 1..=127, |settings| settings.syn_retries = number as u8),
        ),
        Carried::Both(
            |from, to| {
                let retries = from.number().filter(|&retries| retries != from.fresh.syn_retries);
                to.syn_retries = retries.and_then(|retries| u8::try_from(retries).ok()).unwrap_or(0);
            },
            |to, settings| match settings.syn_retries {
                0 => {}
                retries => to.set_number(retries.into()),
            },
        ),
    ),
    option!(IPPROTO_TCP TCP_CONGESTION).kept(
        "`cubic`, `reno` and `bbr` ([tcp.md](tcp.md#bbr)); others ENOENT. What the engine lacks and the kernel's socket had before connect() becomes the engine's default, `cubic`",
        Name(congestion, set_congestion),
        Carried::Both(
            |from, to| {
                let algorithm = named(&from.bytes::<{ super::access::NAME_LEN }>());
                to.congestion = algorithm.filter(|&algorithm| Some(algorithm) != from.fresh.congestion);
            },
            |to, settings| {
                if let Some(algorithm) = settings.congestion {
                    to.set(algorithm.name().as_bytes());
                }
            },
        ),
    ),
    option!(IPPROTO_TCP TCP_MAXSEG).kept(
        "bounds what is sent and what is offered, if set before the handshake; later it changes nothing, as in Linux",
        Number(max_segment, |of, bytes| {
            if bytes == 0 {
                return change(of, |settings| settings.max_segment = 0);
            }
            // TCP_MIN_MSS and MAX_TCP_WINDOW (include/net/tcp.h). The handshake has settled it.
            change_within(of, bytes, 88..=32_767, |settings| settings.max_segment = bytes as u16)
        }),
        Carried::Read(|from, to| {
            let bytes = from.number().filter(|&bytes| bytes != from.fresh.max_segment);
            to.max_segment = bytes.and_then(|bytes| u16::try_from(bytes).ok()).unwrap_or(0);
        }),
    ),
    option!(IPPROTO_TCP TCP_NOTSENT_LOWAT).kept(
        "yes, net.ipv4.tcp_notsent_lowat too: a socket is writable while less than half of it was not sent",
        Number(
            |of| Ok(of.settings().unsent_low_water as i32),
            |of, bytes| change(of, |settings| settings.unsent_low_water = bytes as u32),
        ),
        Carried::Both(
            |from, to| {
                to.unsent_low_water = match from.number() {
                    None | Some(0) => from.fresh.unsent_low_water,
                    Some(bytes) => bytes as u32,
                };
            },
            |to, settings| {
                if settings.unsent_low_water != to.fresh.settings.unsent_low_water {
                    to.set_number(settings.unsent_low_water as i32);
                }
            },
        ),
    ),
    option!(SOL_SOCKET SO_INCOMING_CPU)
        .kept(
            "where the program runs, as its frames are looked at there",
            // What is set the next frame makes what it was.
            Number(|_| Ok(rustix::thread::sched_getcpu() as i32), |_, _| Ok(())),
            Carried::No,
        )
        .datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_MTU).kept(
        "of the path",
        // ip_getsockopt(): where there is no path, there is nothing to say.
        Number(|of| of.path_mtu().map(i32::from).ok_or(Errno::NOTCONN), is_read_only),
        Carried::No,
    ),
    // A socket of IPv6 has IP_TOS for peers of IPv4: it counts where this one is not set.
    option!(IPPROTO_IPV6 IPV6_TCLASS).kept(
        CLASS,
        Number(
            |of| Ok(of.settings().traffic_class.into()),
            // ipv6_setsockopt(): -1 is the default.
            |of, class| {
                change_within(of, class, -1..=255, |settings| {
                    settings.traffic_class = class.max(0) as u8 & !0b11;
                })
            },
        ),
        Carried::Both(
            |from, to| to.traffic_class = from.number().and_then(|class| u8::try_from(class).ok()).unwrap_or(0),
            write_class,
        ),
    )
    .datagram(MARKS, Datagram::Marks),
    option!(IPPROTO_IP IP_TOS).kept(
        CLASS,
        Number(
            |of| Ok(of.settings().traffic_class.into()),
            // __ip_sock_set_tos() takes any number's lowest byte, without ECN's bits for a stream.
            |of, class| change(of, |settings| settings.traffic_class = class as u8 & !0b11),
        ),
        Carried::Both(
            |from, to| {
                if to.traffic_class == 0 {
                    to.traffic_class = from.number().and_then(|class| u8::try_from(class).ok()).unwrap_or(0);
                }
            },
            write_class,
        ),
    )
    .datagram(MARKS, Datagram::Marks),
    hops!(IPPROTO_IP IP_TTL time_to_live 1),
    hops!(IPPROTO_IPV6 IPV6_UNICAST_HOPS hop_limit 0),
    option!(IPPROTO_TCP TCP_QUICKACK).kept(
        // Linux forgets it when the direction of the talk turns.
        "stays until it is set again",
        Number(
            |of| flag(of.settings().quick_ack.unwrap_or(true)),
            |of, on| change(of, |settings| settings.quick_ack = Some(on != 0)),
        ),
        // The handshake makes a new beginning of it (inet_csk_exit_pingpong_mode() in Linux).
        Carried::Written(|to, settings| {
            if let Some(on) = settings.quick_ack {
                to.set_flag(on);
            }
        }),
    ),
    switch!(
        IPPROTO_TCP TCP_INQ = 36, says_inq,
        "yes: recvmsg() and recvmmsg() tell how many bytes are left to read, and one more once the end has come"
    ),
    switch!(
        SOL_SOCKET SO_ZEROCOPY, zerocopy,
        "yes: what is sent is copied, until the first call with MSG_ZEROCOPY, for which the connection is handed over; UDP sockets with it are left to the kernel"
    ),
    option!(IPPROTO_TCP TCP_INFO).kept(
        "`struct tcp_info`, cut as by this kernel; what the engine does not count is zero (the ages of the last segments; tcpi_busy_time, tcpi_rwnd_limited and tcpi_sndbuf_limited, which are three clocks for each connection and a look at them with each segment; rates but with `bbr`); tcpi_reord_seen says whether, not how often",
        Record(info::of_connection),
        Carried::No,
    ),
    option!(IPPROTO_TCP TCP_CC_INFO = 26).kept(
        "with `bbr` `struct tcp_bbr_info`: the model's bandwidth, its least round trip and both gains; with the others nothing, as in Linux",
        Record(info::of_model),
        Carried::No,
    ),
    // ---- of listeners ----
    option!(IPPROTO_TCP TCP_DEFER_ACCEPT).listener(
        "a connection is accepted when it has data or its end, or after the time (as the kernel rounds it); in the engine it is established from the beginning, and counts in the backlog",
        |seconds, to| to.defer_s = seconds,
    ),
    // With 0x400 of net.ipv4.tcp_fastopen the kernel sets it on every listener.
    option!(IPPROTO_TCP TCP_FASTOPEN).refused(Refused::Always).listener(
        "if net.ipv4.tcp_fastopen allows it; cookies are Linux's own, by the same keys: the listener's (`TCP_FASTOPEN_KEY`, primary and backup), else net.ipv4.tcp_fastopen_key, which a listener that root made has for its own from then on, as only root may read it. So kernels and Overfly behind one address know each other's cookies, and all workers do. The bits 0x4, 0x200 and 0x400 of net.ipv4.tcp_fastopen are followed",
        |max, to| to.fast_open = max,
    ),
    // ---- of the kernel's socket, with a consequence ----
    option!(SOL_SOCKET SO_RCVBUFFORCE)
        .followed(Follow::ReceiveBuffer)
        .datagram(IN_KERNEL, Datagram::ReceiveBuffer),
    option!(SOL_SOCKET SO_SNDBUFFORCE).followed(Follow::SendBuffer).datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_BINDTODEVICE).followed(Follow::Link),
    option!(SOL_SOCKET SO_BINDTOIFINDEX).followed(Follow::Link),
    option!(IPPROTO_TCP TCP_FASTOPEN_NO_COOKIE = 34).refused(Refused::Always),
    option!(IPPROTO_TCP TCP_WINDOW_CLAMP).refused(Refused::Zero),
    // ---- only the kernel's TCP follows these ----
    // SO_TIMESTAMPNS_NEW before SO_TIMESTAMP_NEW: that one is said to be on with it.
    option!(SOL_SOCKET SO_TIMESTAMP)
        .kernel_only(When::Next)
        .datagram(TIME, Datagram::TellsTime(wants::TIME, 1_000_000)),
    option!(SOL_SOCKET SO_TIMESTAMPNS)
        .kernel_only(When::Next)
        .datagram(TIME, Datagram::TellsTime(wants::TIME_NS, 1_000_000_000)),
    option!(SOL_SOCKET SO_TIMESTAMPING).kernel_only(When::Stamps),
    option!(SOL_SOCKET SO_TIMESTAMPNS_NEW = 64)
        .kernel_only(When::Next)
        .datagram(TIME, Datagram::TellsTime(wants::TIME_NS_NEW, 1_000_000_000)),
    option!(SOL_SOCKET SO_TIMESTAMP_NEW = 63)
        .kernel_only(When::Next)
        .datagram(TIME, Datagram::TellsTime(wants::TIME_NEW, 1_000_000)),
    option!(SOL_SOCKET SO_TIMESTAMPING_NEW = 65).kernel_only(When::Stamps),
    option!(SOL_SOCKET SO_MARK).kernel_only(When::Next),
    option!(IPPROTO_IP IP_MINTTL).kernel_only(When::Next),
    option!(IPPROTO_IP IP_OPTIONS).kernel_only(When::Next),
    option!(IPPROTO_IP IP_RECVERR)
        .kernel_only(When::Next)
        .datagram(ERRORS, Datagram::Tells(wants::ERRORS)),
    option!(IPPROTO_IP IP_TRANSPARENT).kernel_only(When::Next),
    option!(IPPROTO_IPV6 IPV6_MINHOPCOUNT).kernel_only(When::Next),
    option!(IPPROTO_IPV6 IPV6_RECVERR)
        .kernel_only(When::Next)
        .datagram(ERRORS, Datagram::Tells(wants::ERRORS_6)),
    option!(IPPROTO_IPV6 IPV6_TRANSPARENT).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_ULP).kernel_only(When::First),
    option!(IPPROTO_TCP TCP_MD5SIG).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_MD5SIG_EXT = 38).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_AO_ADD_KEY = 39).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_SAVE_SYN).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_TX_DELAY = 37).kernel_only(When::Next),
    option!(IPPROTO_TCP TCP_REPAIR).kernel_only(When::FirstUnlessZero),
    option!(IPPROTO_TCP TCP_LINGER2).kernel_only(When::FirstUnlessZero),
    option!(IPPROTO_TCP TCP_FASTOPEN_CONNECT).kernel_only(When::Next).refused(Refused::Always),
    // ---- of UDP sockets ----
    option!(SOL_SOCKET SO_REUSEADDR).datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_BROADCAST).datagram(IN_KERNEL, Datagram::Kernel),
    option!(SOL_SOCKET SO_REUSEPORT).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_FREEBIND).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IPV6 IPV6_FREEBIND).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_BIND_ADDRESS_NO_PORT).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_MULTICAST_LOOP).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_MULTICAST_TTL).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IPV6 IPV6_MULTICAST_LOOP).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IPV6 IPV6_MULTICAST_HOPS).datagram(IN_KERNEL, Datagram::Kernel),
    option!(IPPROTO_IP IP_PKTINFO).datagram(TOLD, Datagram::Tells(wants::PACKET_INFO)),
    option!(IPPROTO_IPV6 IPV6_RECVPKTINFO).datagram(TOLD, Datagram::Tells(wants::PACKET_INFO_6)),
    option!(IPPROTO_IP IP_RECVTTL).datagram(TOLD, Datagram::Tells(wants::HOPS)),
    option!(IPPROTO_IPV6 IPV6_RECVHOPLIMIT).datagram(TOLD, Datagram::Tells(wants::HOPS_6)),
    option!(IPPROTO_IP IP_RECVTOS).datagram(TOLD, Datagram::Tells(wants::CLASS)),
    option!(IPPROTO_IPV6 IPV6_RECVTCLASS).datagram(TOLD, Datagram::Tells(wants::CLASS_6)),
    option!(SOL_UDP UDP_SEGMENT).datagram(
        "yes, and as a control message: up to 64 datagrams a call, each of which must fit; else the kernel's socket sends, or says why not. Segments that the link has no room for are dropped, as at the end of a kernel's queue (`unsent segments` of OVERFLY_STATS=1, `dropped_datagram_segments`)",
        Datagram::SegmentLen,
    ),
    option!(SOL_UDP UDP_GRO).datagram(
        "yes: datagrams of one peer that wait are read as one, 64 at most and no more than there is room for; the control message says how long each is",
        Datagram::Tells(wants::SEGMENTS),
    ),
    // How the kernel sends what is too long for the path, which is all that it sends in the stack's stead.
    option!(IPPROTO_IP IP_MTU_DISCOVER).datagram(PIECES, Datagram::Kernel),
    option!(IPPROTO_IPV6 IPV6_MTU_DISCOVER).datagram(PIECES, Datagram::Kernel),
    option!(IPPROTO_IPV6 IPV6_MTU).datagram(PIECES, Datagram::PiecesAbove),
    option!(IPPROTO_IPV6 IPV6_DONTFRAG).datagram(PIECES, Datagram::Kernel),
];
