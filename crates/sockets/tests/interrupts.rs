//! Signals, cancellation and forks in the middle of calls on sockets: what the program prints over Overfly is what it prints
//! over the kernel. The broker runs in this process. Needs root, python3 and a C compiler.

use std::process::Command;

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, compile, peer, run, sum, text};

/// What a program prints over the kernel, and over Overfly in several ways, is the same.
fn same(name: &str, ways: &[&[(&str, &str)]]) {
    same_of(name, None, ways);
}

/// As [`same`], of one of its tests.
fn same_of(name: &str, test: Option<&str>, ways: &[&[(&str, &str)]]) {
    let bench = Bench::new(1);
    let program = compile(name, bench.folder.path());
    let mut expected = None;
    for way in core::iter::once(None).chain(ways.iter().map(Some)) {
        let _peer = peer(&bench, &CLIENT.to_string());
        let mut command = if way.is_some() { bench.accelerated("timeout") } else { Command::new("timeout") };
        command.args(["-s", "KILL", "100"]).arg(&program);
        command
            .args([SERVER.to_string(), CLIENT.to_string()])
            .args(test)
            .envs(way.into_iter().copied().flatten().copied());
        let output = run(&bench.lab.server, &mut command);
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && told.ends_with("done\n"), "{way:?}: {told}\n{complained}");
        if way.is_some() {
            let least = if test.is_some() { 2 } else { 6 };
            assert!(sum(&complained, "connects") >= least, "not accelerated: {complained}");
        }
        assert_eq!(&told, expected.get_or_insert_with(|| told.clone()), "{way:?}: {complained}");
    }
}

#[test]
fn signals_interrupt_as_over_the_kernel() {
    same("interrupts", &[&[], &[("EF_POLL_USEC", "2000")], &[("EF_STACK_PER_THREAD", "1")]]);
}

/// A signal that comes while its thread is inside the library is put back; the kernel has no room for it any more.
#[test]
fn a_full_queue_loses_no_signal() {
    same_of("interrupts", Some("realtime_queue_is_full"), &[&[], &[("EF_STACK_PER_THREAD", "1")]]);
}

#[test]
fn threads_are_cancelled_as_over_the_kernel() {
    same("cancels", &[&[], &[("EF_POLL_USEC", "2000")], &[("EF_STACK_PER_THREAD", "1")]]);
}

#[test]
fn forks_past_libc_are_forks() {
    same("rawforks", &[&[], &[("EF_STACK_PER_THREAD", "1")]]);
}

/// Erlang's virtual machine called itself for ever: the library's `__sigaction` went on to whoever is called `sigaction`.
#[test]
fn a_programs_own_sigaction_goes_on_to_libcs() {
    let bench = Bench::new(1);
    let program = compile("ownsignals", bench.folder.path());
    let program = program.to_str().unwrap();
    for mut command in [Command::new(program), bench.accelerated(program)] {
        let output = run(&bench.lab.server, &mut command);
        assert!(output.status.success(), "{:?}: {}", output.status, text(&output.stderr));
        assert_eq!(text(&output.stdout), "heard 10\n2 calls\n");
    }
}
