//! What the hooks of a process's life call: it is loaded, forks, and ends.

use core::sync::atomic::Ordering;
use core::time::Duration;

use overfly_engine::Instant;

use super::start::Start;
use super::{ACTIVE, For, Process, Woken, contexts, is_active, process, sets, wait};
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::table::{self, Entry};
use crate::{allocate, bound, sys};

/// How long a process that exits waits for its peers to acknowledge what it sent.
pub(super) const EXIT_LINGER: Duration = Duration::from_secs(2);

impl Process {
    /// Prints what the process did, if that is wanted.
    pub(super) fn report(&mut self) {
        let Self { stack, statistics, context, .. } = self;
        statistics.report(stack, *context);
    }
}

/// The library was loaded.
pub(crate) fn load() {
    let mut process = process();
    if !process.configure() {
        return;
    }
    allocate::begin();
    sys::find_single_threaded();
    bound::set(match process.options.tcp_mem {
        0 => kernel::connections_memory(),
        kilobytes => bound::of_most(usize::try_from(kilobytes << 10).unwrap_or(usize::MAX)),
    });
    table::create(process.options.fdtable_size);
    // The first look at the clock asks the kernel where it is; a sandbox that the program enters later may forbid to ask.
    let _ = now();
    process.adopt_all();
    process.connect_leash(None);
    ACTIVE.store(process.start != Start::Failed, Ordering::Release);
}

/// Before a fork: nobody may be in the middle of something.
pub(crate) fn before_fork() {
    if is_active() {
        contexts::hold(|process| {
            process.look_again();
            process.leave_unused_listeners();
            if contexts::is_pending(process.context) {
                process.transmit();
            }
            process.settle();
            process.expect_child();
            process.share_sets();
            process.call_sleepers();
        });
    }
}

/// After a fork, in the parent.
pub(crate) fn after_fork_in_parent() {
    if is_active() {
        // SAFETY: `before_fork` held all contexts in this thread.
        unsafe {
            contexts::held(|process| {
                process.become_parent();
                process.call_sleepers();
            });
        }
        // SAFETY: as above.
        unsafe { contexts::release() };
    }
}

/// After a fork, in the child.
pub(crate) fn after_fork_in_child() {
    if is_active() {
        disown_descriptors();
        contexts::forget_threads();
        sets::inherit();
        // SAFETY: `before_fork` held all contexts in the thread that this one is the copy of.
        unsafe { contexts::held(Process::begin_as_child) };
        // SAFETY: as above.
        unsafe {
            contexts::held(|process| {
                if process.context == 0 {
                    let parents = process.session.leash.take();
                    process.connect_leash(parents.as_ref());
                }
            });
        }
        // SAFETY: as above.
        unsafe { contexts::release() };
    }
}

/// The process is about to end: what it sent must arrive, as it would if the kernel sent it.
pub(crate) fn finish() {
    if !is_active() {
        return;
    }
    contexts::each(|process| {
        process.leave_inheritance();
        let listeners: Vec<_> = process.stack.listeners().collect();
        for id in listeners {
            process.part(id);
        }
        process.stack.close_all();
        if contexts::are_several() {
            process.pump();
        }
    });
    let end = now() + EXIT_LINGER;
    for context in contexts::all() {
        let mut process = deliver(contexts::at(context), end);
        if !process.unfinished()
            && let Some(client) = &mut process.session.client
        {
            let _ = client.finish();
        }
        process.report();
    }
}

/// Waits until what was sent on closed connections has arrived, or `end` comes.
pub(super) fn deliver(mut guard: Guard<'static, Process>, end: Instant) -> Guard<'static, Process> {
    guard.pump();
    while guard.unfinished() {
        let (next, woken) =
            wait(guard, For::Frames, &mut [], Some(end), Instant::from_micros(0), sys::handlers_run(), true);
        guard = next;
        guard.pump();
        if woken == Woken::TimedOut {
            break;
        }
    }
    guard
}

/// The library's own descriptors are about to be closed.
pub(super) fn disown_descriptors() {
    for descriptor in 0..table::length() {
        if table::lookup(descriptor) == Entry::Internal {
            table::enter(descriptor, Entry::Kernel);
        }
    }
}
