//! What TCP_INFO and TCP_CC_INFO say of a connection.

use rustix::io::Errno;

use super::access::Connection;
use crate::stack::rows::state_number;

/// Longest `struct tcp_info` that is given: up to tcpi_rcv_wnd, and what newer kernels have behind it as zeros.
const TCP_INFO_LEN: usize = 320;

/// `struct tcp_info`, as long as the kernel's, which grows from version to version.
pub(super) fn of_connection(of: &mut dyn Connection) -> Result<Vec<u8>, Errno> {
    of.look();
    let mut room = [0; 1024];
    let length = of.backing().get(libc::IPPROTO_TCP, libc::TCP_INFO, &mut room).unwrap_or(0);
    let bytes = tcp_info(of.info(), of.path_mtu());
    Ok(bytes[..length.min(TCP_INFO_LEN)].to_vec())
}

/// `struct tcp_info` (include/uapi/linux/tcp.h; tcp_get_info() in net/ipv4/tcp.c). What the engine does not know is zero.
fn tcp_info(info: Option<overfly_engine::Info>, path_mtu: Option<u16>) -> [u8; TCP_INFO_LEN] {
    let mut bytes = [0; TCP_INFO_LEN];
    let Some(info) = info else {
        bytes[0] = 7;
        return bytes;
    };
    let (send_shift, receive_shift) = info.window_shift;
    bytes[..7].copy_from_slice(&[
        match info.state {
            // A socket of Linux's has no part in TIME-WAIT (tcp_time_wait() in net/ipv4/tcp_minisocks.c).
            overfly_engine::State::TimeWait => state_number(overfly_engine::State::Closed),
            state => state_number(state),
        },
        info.congestion_state as u8,
        // tcpi_retransmits, tcpi_probes: timeouts in a row are of data, or of looks at a closed window.
        if info.flight > 0 { info.retries } else { 0 },
        if info.flight > 0 { 0 } else { info.retries },
        info.backoff,
        // TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK, TCPI_OPT_WSCALE, TCPI_OPT_ECN, TCPI_OPT_SYN_DATA.
        u8::from(info.timestamps)
            | u8::from(info.sack) << 1
            | u8::from(info.window_shift != (0, 0)) << 2
            | u8::from(info.ecn) << 3
            | u8::from(info.syn_data) << 5,
        send_shift & 0xf | receive_shift << 4,
    ]);
    let segment = u32::from(info.mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(segment);
    // TCP_INFINITE_SSTHRESH
    const INFINITE: u32 = 0x7fff_ffff;
    let threshold = match info.slow_start_threshold {
        INFINITE.. => INFINITE,
        bytes => bytes / segment,
    };
    let waiting = info.unacknowledged.saturating_sub(info.flight.into());
    let fields: [(usize, u32); 23] = [
        (8, u32::try_from(info.rto_us).unwrap_or(u32::MAX)),
        // tcpi_snd_mss, tcpi_rcv_mss
        (16, segment),
        (20, segment),
        // tcpi_unacked, tcpi_sacked, tcpi_lost
        (24, segments(info.flight)),
        (28, segments(info.sacked)),
        (32, segments(info.lost)),
        // tcpi_retrans
        (36, segments(info.repeating)),
        // tcpi_pmtu
        (60, path_mtu.unwrap_or(0).into()),
        // tcpi_rtt, tcpi_rttvar, tcpi_snd_ssthresh, tcpi_snd_cwnd, tcpi_advmss
        (68, info.rtt_us),
        (72, info.rtt_variation_us),
        (76, threshold),
        (80, info.congestion_window / segment),
        (84, segment),
        // tcpi_reordering: segments of fast retransmit, as net.ipv4.tcp_reordering comes; RACK takes time instead.
        (88, 3),
        // tcpi_rcv_rtt, tcpi_rcv_space
        (92, info.receive_rtt_us),
        (96, info.receive_window),
        // tcpi_total_retrans, tcpi_reord_seen (whether, and not how often)
        (100, info.repeated),
        (220, u32::from(info.reordering_seen)),
        // tcpi_notsent_bytes, tcpi_min_rtt (all ones before the first sample)
        (144, u32::try_from(waiting).unwrap_or(u32::MAX)),
        (148, if info.min_rtt_us == 0 { u32::MAX } else { info.min_rtt_us }),
        // tcpi_snd_wnd, tcpi_rcv_wnd
        (228, info.send_window),
        (232, info.receive_window),
        // tcpi_bytes_received's lower half: the engine counts modulo 2^32.
        (if cfg!(target_endian = "little") { 128 } else { 132 }, info.received),
    ];
    for (offset, value) in fields {
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // tcpi_bytes_acked
    bytes[120..128].copy_from_slice(&info.acknowledged.to_ne_bytes());
    put_rates(&mut bytes, info.bbr);
    bytes
}

/// tcpi_delivery_rate_app_limited, tcpi_pacing_rate, tcpi_delivery_rate.
fn put_rates(bytes: &mut [u8; TCP_INFO_LEN], bbr: Option<overfly_engine::BbrInfo>) {
    let Some(bbr) = bbr else { return };
    bytes[7] = u8::from(bbr.is_limited);
    bytes[104..112].copy_from_slice(&bbr.pacing_rate.to_ne_bytes());
    bytes[160..168].copy_from_slice(&bbr.delivery_rate.to_ne_bytes());
}

/// `struct tcp_bbr_info` (include/uapi/linux/inet_diag.h; bbr_get_info() in net/ipv4/tcp_bbr.c). Other algorithms of ours have
/// nothing to say, as those of Linux.
pub(super) fn of_model(of: &mut dyn Connection) -> Result<Vec<u8>, Errno> {
    let Some(bbr) = of.info().and_then(|info| info.bbr) else { return Ok(Vec::new()) };
    // BBR_UNIT: gains are 256ths there.
    let gain = |hundredths: u32| hundredths * 256 / 100;
    let bandwidth = bbr.bandwidth;
    let gains = [gain(bbr.pacing_gain), gain(bbr.window_gain)];
    let words = [bandwidth as u32, (bandwidth >> 32) as u32, bbr.min_rtt_us, gains[0], gains[1]];
    Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}
