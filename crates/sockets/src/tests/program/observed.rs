//! What observers see of a program: its counters, its sockets, its frames.

use overfly_broker::observer;
use overfly_broker::watch::{Kind, View};

use super::away::standing;
use super::*;

/// What this process shows of itself.
fn view(interface: &str) -> View {
    until(|| observer::look(interface).ok()?.processes.into_iter().next().map(|process| process.view))
}

#[test]
fn sockets_and_counters_are_seen_while_the_program_runs() {
    standing(|world, broker| {
        let (listener, port) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        let datagrams = socket(libc::AF_INET, libc::SOCK_DGRAM);
        assert_eq!(bind(datagrams, "0.0.0.0:0".parse().unwrap()), Ok(0));
        assert_eq!(recv(datagrams, 10, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        let (descriptor, mut far) = world.dial();
        far.write(b"four");
        until(|| (queued(descriptor, libc::FIONREAD) == Ok(4)).then_some(()));
        crate::process::process().begin_to_show();
        let name = broker.watched();
        let looking = std::thread::spawn(move || {
            let view = view(&name);
            (view.table(PATIENCE), view.counters())
        });
        while !looking.is_finished() {
            // The program's calls see to it.
            polled(descriptor, libc::POLLPRI, 1);
        }
        let (table, counters) = looking.join().unwrap();
        let rows = table.expect("an answer").rows;
        let row = |kind| rows.iter().find(|row| row.kind() == Some(kind)).unwrap();
        let connection = row(Kind::Connection);
        assert_eq!((connection.descriptor, connection.remote()), (descriptor, Some(FAR)));
        assert_eq!((connection.state, connection.receive_queue, connection.passive), (1, 4, 0));
        assert!(connection.congestion_window > 0 && connection.mss > 1000);
        let listens = row(Kind::Listener);
        assert_eq!((listens.descriptor, listens.local().port(), listens.state), (listener, port, 10));
        assert_eq!((row(Kind::Datagram).descriptor, row(Kind::Datagram).state), (datagrams, 7));
        let counter = |name: &str| counters.iter().find(|(its, _)| its == name).unwrap().1;
        assert_eq!((counter("sockets.connects"), counter("now.flows")), (1, 1));
        assert_eq!((counter("sockets.handovers"), counter("sockets.handovers_of_uploads")), (0, 0));
    });
}

#[test]
fn frames_are_taken_while_somebody_looks() {
    standing(|world, broker| {
        let (descriptor, mut far) = world.dial();
        crate::process::process().begin_to_show();
        let view = view(&broker.watched());
        let mut capture = view.capture(2000).unwrap();
        let mut seen = Vec::new();
        until(|| {
            assert_eq!(write(descriptor, b"question"), Ok(8));
            far.write(b"answer");
            assert_eq!(recv(descriptor, 6, libc::MSG_WAITALL), Ok(b"answer".to_vec()));
            capture.take(|frame| seen.push((frame.outbound, frame.bytes.to_vec())));
            let has = |outbound, payload: &[u8]| {
                seen.iter().any(|(way, bytes)| *way == outbound && bytes.ends_with(payload))
            };
            (has(true, b"question") && has(false, b"answer")).then_some(())
        });
        assert_eq!(close(descriptor), Ok(0));
    });
}
