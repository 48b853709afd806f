//! socket(), bind(), connect(), accept(), and what ends are called.

use super::*;

#[test]
fn who_connects_is_accepted_under_its_name() {
    script(|world| {
        let (listener, port) = world.listen();
        let far = world.peer.connect(own(port), 40_001);
        let (descriptor, remote) = accept(listener, 0).unwrap();
        assert_eq!(remote, SocketAddr::new(CLIENT.into(), 40_001));
        assert_eq!(name(descriptor, true), Ok(remote));
        assert_eq!(name(descriptor, false), Ok(own(port)));
        far.close();
        assert_eq!(recv(descriptor, 10, 0), Ok(vec![]));
        assert_eq!(close(descriptor), Ok(0));
        assert_eq!(close(descriptor), Err(Errno::BADF));
        assert_eq!(close(listener), Ok(0));
    });
}

#[test]
fn a_request_and_its_answer() {
    script(|world| {
        let mut twins = world.twins();
        assert_eq!(twins.same(|end| write(end, b"GET /")), Ok(5));
        assert_eq!(twins.far_read(5), b"GET /");
        twins.hear(b"200 OK");
        assert_eq!(twins.same(|end| recv(end, 3, libc::MSG_PEEK)), Ok(b"200".to_vec()));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"200 OK".to_vec()));
        twins.far_shut();
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(vec![]));
        twins.close();
    });
}
