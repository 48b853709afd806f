//! bind() and listen() of what is, or was, a connection: the kernel's socket behind it does not know.

use rustix::io::Errno;

use super::{Answer, is_connection, lock_entry, lock_socket};
use crate::process::{contexts, is_active};

/// A connection has its port, whatever the kernel's socket behind it has. When it is over that is free again, and so is the
/// socket to take another one (__inet_bind() in Linux, net/ipv4/af_inet.c).
pub(crate) fn may_bind(descriptor: i32) -> Result<(), Errno> {
    match lock_socket::<()>(descriptor) {
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            guard.pump_before_waiting();
            if !guard.stack.is_over(id) {
                return Err(Errno::INVAL);
            }
            // In TIME-WAIT nobody else may have it.
            if guard.stack.socket(id).flow.is_none() {
                guard.forget_port(id);
            }
            Ok(())
        }
        Err(Answer::Done(Err(error))) => Err(error),
        _ => Ok(()),
    }
}

/// bind() in the kernel succeeded: what was a connection has that address now.
pub(crate) fn bound(descriptor: i32) {
    if let Some((mut guard, id)) = lock_entry(descriptor)
        && is_connection(&guard, id)
    {
        guard.stack.socket_mut(id).bound_since = true;
    }
}

/// The kernel has refused a port as another socket has it: perhaps one that keeps it for connections to come, which gives way. Returns
/// whether to try again.
pub(crate) fn makes_way(port: u16) -> bool {
    let mut any = false;
    if is_active() && port != 0 {
        contexts::each(|process| any |= process.give_port_back(port));
    }
    any
}

/// A connection cannot listen. The kernel's socket could: it is not connected.
pub(crate) fn may_listen(descriptor: i32) -> Result<(), Errno> {
    match lock_socket::<()>(descriptor) {
        Ok((guard, id)) if is_connection(&guard, id) && !guard.stack.socket(id).disconnected => {
            Err(Errno::INVAL)
        }
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            // What listens is not what was connected before: the kernel has it.
            guard.hand_over(id)
        }
        Err(Answer::Done(Err(error))) => Err(error),
        _ => Ok(()),
    }
}
