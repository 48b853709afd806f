//! Datagrams that are sent.

use core::net::{IpAddr, SocketAddr};

use overfly_engine::SendError;

use super::{ControlMessages, MOST_PAYLOAD, MOST_SEGMENTS, PIECE_HEADERS, ours};
use crate::calls::Answer;
use crate::kernel::{self, now};
use crate::memory::Source;
use crate::process::{Placed, Process, WakeOnDrop, leave_to_kernel};
use crate::socket::{SocketId, canonical};
use crate::table::{self, Entry};

/// Where a datagram goes, as the engine has it: to `destination`, or where the socket is connected. `None`: the kernel sends it, or
/// says why not.
fn destined(
    process: &Process,
    id: SocketId,
    descriptor: i32,
    destination: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let socket = process.stack.socket(id);
    match destination {
        _ if socket.write_shut => None,
        // Neither an address of another family nor a mapped one where there are none.
        Some(to) if to.is_ipv6() != socket.v6 => None,
        Some(to) if socket.v6 && to.ip().to_canonical().is_ipv4() && kernel::is_v6only(descriptor) => None,
        Some(to) => Some(canonical(to)),
        None => socket.datagrams.as_ref()?.connected,
    }
}

/// sendmsg() to `destination` or to where the socket is connected. `Kernel`: the kernel's socket sends it.
pub(crate) fn send(
    descriptor: i32,
    source: Source<'_>,
    destination: Option<SocketAddr>,
    wishes: ControlMessages,
    flags: i32,
) -> Answer<usize> {
    let Some((mut guard, id)) = ours(descriptor) else { return Answer::Kernel };
    let length = source.length();
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 || length > MOST_PAYLOAD {
        return Answer::Kernel;
    }
    let told = WakeOnDrop(&mut guard);
    let process = &mut *told.0;
    let Some(part) = process.stack.datagrams(id) else { return Answer::Kernel };
    let pieces_above = part.pieces_above;
    // udp_send_skb() in net/ipv4/udp.c: what fits into one segment goes as ever.
    let segment_len = usize::from(wishes.segment_len.unwrap_or(part.segment_len));
    let is_cut = segment_len > 0 && length > segment_len;
    let longest = if is_cut { segment_len } else { length };
    if is_cut && length.div_ceil(segment_len) > MOST_SEGMENTS {
        return Answer::Kernel;
    }
    // Before what shutdown() has to say (sock_alloc_send_pskb() in Linux, net/core/sock.c).
    if process.stack.socket(id).write_shut
        && let Some(error) = process.stack.take_error(id)
    {
        return Answer::error(error);
    }
    let Some(to) = destined(process, id, descriptor, destination) else { return Answer::Kernel };
    let goes_in_pieces = to.is_ipv6() && pieces_above > 0 && longest + PIECE_HEADERS > pieces_above;
    if !process.is_beyond(to) || goes_in_pieces || process.is_away() {
        return sent_by_kernel(process, id);
    }
    if process.is_asked_blindly(id, descriptor) {
        return sent_blindly(process, id, descriptor);
    }
    match placed_to_send(process, id, descriptor) {
        Placed::Yes => {}
        Placed::Unbound => return sent_by_kernel(process, id),
        Placed::No => {
            leave_to_kernel(process, id);
            return Answer::Kernel;
        }
    }
    // Which addresses are the stack's is known once it runs.
    if wishes.from.is_some_and(|from| !process.is_from(from)) {
        return sent_by_kernel(process, id);
    }
    let from = wishes.from.map(|from| from.address).filter(|address| !address.is_unspecified());
    if let Some(error) = process.stack.take_error(id) {
        return Answer::error(error);
    }
    let mut pieces = source.pieces(0);
    let first = pieces.next().unwrap_or(&[]);
    let gathered: Vec<u8>;
    let payload = if first.len() == length {
        first
    } else {
        gathered = source.pieces(0).flatten().copied().collect();
        &gathered
    };
    let class = wishes.classes[usize::from(to.is_ipv6())];
    let marks = class.and_then(|class| process.stack.mark_next_datagrams(id, class));
    let outcome = sent_here(process, id, from, to, payload.split_at(longest));
    if let Some(marks) = marks {
        process.stack.set_datagrams_marks(id, marks);
    }
    match outcome {
        Ok(()) => {
            process.stack.datagram_sent(id);
            process.output();
            Answer::ok(length)
        }
        // Too big, another way, or no room: the kernel's socket has the same port, and can do it.
        Err(_) => sent_by_kernel(process, id),
    }
}

/// The stack sends one datagram, and if it could, the rest in others of that length.
fn sent_here(
    process: &mut Process,
    id: SocketId,
    from: Option<IpAddr>,
    to: SocketAddr,
    (first, rest): (&[u8], &[u8]),
) -> Result<(), SendError> {
    let mut outcome = process.stack.send_datagram(now(), id, from, to, first);
    if outcome == Err(SendError::NoNeighbor) && process.find_next_hop(to.ip()) {
        outcome = process.stack.send_datagram(now(), id, from, to, first);
    }
    if outcome.is_ok() && !rest.is_empty() {
        process.stack.send_segments(now(), id, from, to, rest, first.len());
    }
    outcome
}

/// As [`Process::place_datagram`]; one that is not bound yet gets a port. `Unbound`: the kernel sends for now.
fn placed_to_send(process: &mut Process, id: SocketId, descriptor: i32) -> Placed {
    let placed = process.place_datagram(id, descriptor);
    if placed != Placed::Unbound || process.stack.is_left_to_kernels_sets(id) {
        return placed;
    }
    let bound = kernel::local_address(descriptor);
    if bound.is_none_or(|bound| kernel::bind_any_port(descriptor, bound).is_err()) {
        return Placed::No;
    }
    match process.place_datagram(id, descriptor) {
        Placed::Yes => Placed::Yes,
        _ => Placed::No,
    }
}

/// As [`sent_by_kernel`], of a socket that may have become the kernel's just now.
fn sent_blindly(process: &mut Process, id: SocketId, descriptor: i32) -> Answer<usize> {
    if table::lookup(descriptor) == Entry::Socket(id) { sent_by_kernel(process, id) } else { Answer::Kernel }
}

/// The kernel's socket sends it, unless there is an error to be told: what answers comes here, as to all that is sent from that port.
fn sent_by_kernel(process: &mut Process, id: SocketId) -> Answer<usize> {
    process.keep_up();
    if let Some(error) = process.stack.take_error(id) {
        return Answer::error(error);
    }
    process.stack.kernel_sends(id);
    process.stack.datagram_sent(id);
    Answer::Kernel
}
