//! Sequences of some kind (see `script/kinds.rs`), which differed once and must not again, as in [`super::found`].

pub(crate) const KINDS: [(&str, &str); 46] = [
    (
        "seed 85000170: a datagram that came before the process took part in its port is read before those that came later",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a n\n\
         R sendto a 0 5 d\n\
         L sendto a 7 1400 d\n\
         R sendto a 0 5 d\n\
         L get a queued\n\
         L recvmsg a 2000 -\n\
         L recvfrom a 2000 d",
    ),
    (
        "seed 85000266: a UDP socket is shut also where shutdown() says that it is not connected",
        "v4\n\
         L dgram a b\n\
         L shutdown a 1\n\
         L sendto a 5 10 d",
    ),
    (
        "seed 85000129: who does not wait does not hear that a UDP socket is shut, and what comes is read all the same",
        "v6\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a b\n\
         L shutdown a 0\n\
         L recvfrom a 2000 d\n\
         L recvfrom a 2000 -\n\
         R sendto a 0 5 d\n\
         L recvfrom a 2000 d",
    ),
    (
        "seed 85001244: who waits for a datagram goes on waiting though another thread has set O_NONBLOCK",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         L thread\n\
         L recvfrom a 5 p\n\
         M nonblock a 1\n\
         M sendto a 5 100 -",
    ),
    (
        "seed 85001434: connect() of a UDP socket leaves what has come in its order",
        "v6\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a n\n\
         R sendto a 0 1 d\n\
         L poll a IOR 0\n\
         R sendto a 0 100 -\n\
         L connect a 9\n\
         L recv a 1 d\n\
         L recv a 100 d",
    ),
    (
        "seed 85001448: nor does it forget the error",
        "v4\n\
         L dgram a b\n\
         L connect a 6\n\
         L sendmsg a 0 d\n\
         L connect a 6\n\
         L recvfrom a 1 dp",
    ),
    (
        "seed 85001736: writev() of nothing sends no datagram, write() and send() do",
        "v4\n\
         R dgram a b\n\
         R bind a 5\n\
         L dgram a b\n\
         L connect a 5\n\
         L writev a 0 0\n\
         R recvfrom a 5 d\n\
         L send a 0 d\n\
         R recvfrom a 5 d",
    ),
    (
        "seed 85003206: who reads nothing of a UDP socket that was shut is told of no address",
        "v4\n\
         L dgram a b\n\
         L sendto a 6 0 -\n\
         L shutdown a 0\n\
         L recvfrom a 2000 -",
    ),
    (
        "seed 85020588: send() of nothing does not push what MSG_MORE holds back",
        "v4\n\
         R socket b b\n\
         R bind b 5\n\
         R listen b 8\n\
         L socket c n\n\
         L connect c 5\n\
         R accept b c b\n\
         L sendmsg c 100 dm\n\
         L send c 0 d\n\
         R recv c 100 d",
    ),
    (
        "seed 85030018: an epoll set does not say that there is a datagram because select() has found room to send one",
        "v6\n\
         L dgram a b\n\
         L select a w -\n\
         L epoll b\n\
         L ctl b add a IE1\n\
         L wait b 0",
    ),
    (
        "urgent data ends a recv() with MSG_WAITALL that has something",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L send b 100 d\n\
         R recv a 5000 w\n\
         L send b 1 do",
    ),
    (
        "seed 88005756: an edge-triggered set says after each datagram that there is room",
        "v4\n\
         L dgram a n\n\
         L thread\n\
         L epoll b\n\
         L ctl b add a IORE\n\
         M wait b 0\n\
         M sendto a 9 5 -\n\
         M wait b -",
    ),
    (
        "seed 89013712: the last send() of one that fills a connection raises SIGPIPE",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         L hear\n\
         R thread\n\
         S shutdown b 2\n\
         L fill a",
    ),
    (
        "seed 89016495: what an epoll set says of a UDP socket is what it has here and in the kernel",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a n\n\
         R sendto a 0 1 d\n\
         L epoll b\n\
         L ctl b add a IOR\n\
         L wait b +",
    ),
    (
        "seed 89012924: a connection that a connect() found reset has no address any more",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n6\n\
         R connect a 0\n\
         L accept a b n\n\
         R thread\n\
         R send a 3000 d\n\
         L close b\n\
         R connect a 4\n\
         S get a name",
    ),
    (
        "nor one that AF_UNSPEC has ended, but for what bind() said",
        "host\n\
         L socket b b\n\
         L bind b 0\n\
         L listen b 8\n\
         L poll b I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept b c b\n\
         R get a name\n\
         R unconnect a\n\
         R get a name\n\
         R connect a 5\n\
         R get a name\n\
         R socket d b\n\
         R bind d 7 any\n\
         R connect d 0\n\
         R unconnect d\n\
         R get d name",
    ),
    (
        "seed 89021903: what was accepted at an address keeps that",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         R thread\n\
         R unconnect b\n\
         S get b name",
    ),
    (
        "seed 89023493: who waits to send hears the reset though its descriptor is closed",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         L fill b\n\
         M send b 3000000 -\n\
         L dup b c\n\
         L close b\n\
         L unconnect c",
    ),
    (
        "seed 89025960: connect() of what was passed on says that it has failed, though its error was told",
        "v4\n\
         L socket a n6\n\
         L connect a 5\n\
         L thread\n\
         M send a 3000 -\n\
         M give a\n\
         M connect a 9",
    ),
    (
        "seed 89026975: and after exec",
        "v6\n\
         L socket c n\n\
         L connect c 5\n\
         L send c 1 d\n\
         L exec\n\
         L connect c 4",
    ),
    (
        "seed 89026226: who waits for a datagram goes on when another thread's connect() leaves the socket to the kernel",
        "host\n\
         L thread\n\
         L dgram b b\n\
         M sendto b 5 0 -\n\
         M recv b 5 -\n\
         L connect b 5",
    ),
    (
        "seed 89026456: an error of a UDP socket is told before shutdown() is",
        "v6\n\
         L dgram a b\n\
         L thread\n\
         L dgram b n\n\
         L connect b 6\n\
         M sendto b 6 0 d\n\
         L shutdown b 1\n\
         M poll a I -\n\
         L sendmmsg b 5 d",
    ),
    (
        "seed 89061638: what was held back, and comes with a FIN, resets who has shut both ways",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         R shutdown b 2\n\
         L send a 3000 dm\n\
         L shutdown a 1\n\
         L poll2 a a IO +",
    ),
    (
        "seed 89062973: and that one hears of it, rather than of the FIN",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         R shutdown b 2\n\
         L set a cork 1\n\
         L send a 100 d\n\
         L shutdown a 1\n\
         R recv b 1 d\n\
         L poll a IR 0",
    ),
    (
        "seed 89066040: splice() from a pipe sends what MSG_MORE has held back",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L send a 5 dm\n\
         L sendpipe a 7\n\
         R recv b 100 d",
    ),
    (
        "so does sendfile()",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L send a 5 dm\n\
         L sendfile a 7\n\
         R recv b 100 d",
    ),
    (
        "seed 92004502: close() does not wait for SO_LINGER while another thread's call keeps the connection open",
        "v6\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L thread\n\
         M send a 3000000 -\n\
         L leave a",
    ),
    (
        "seed 91030493: what MSG_MORE holds back goes when the peer closes, which resets it if nobody reads there",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L send a 5 dm\n\
         R shutdown b 2\n\
         L sendpipe a 2000",
    ),
    (
        "seed 91001713: who waits for a datagram does not wait again, after a handler that restarts calls, if O_NONBLOCK has been set",
        "v6\n\
         L dgram a b\n\
         L bind a 0\n\
         L thread\n\
         L dup a b\n\
         M recvmmsg a 1 p\n\
         L nonblock b 1\n\
         L kick M r",
    ),
    (
        "seed 1000032174: an edge-triggered set hears that there is room again also after datagrams that the kernel sends, as they are longer than a frame",
        "v4\n\
         L dgram a n\n\
         R dgram a b\n\
         R bind a 5\n\
         L connect a 5\n\
         L epoll b\n\
         L ctl b add a IORE\n\
         L wait b 0\n\
         L sendmmsg a 5000 d\n\
         L wait b 0",
    ),
    (
        "seed 1000043409: who waits for a datagram goes on in the kernel although O_NONBLOCK has been set meanwhile",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a b\n\
         L thread\n\
         M recvfrom a 5 -\n\
         L nonblock a 1\n\
         L give a\n\
         R sendto a 0 5 d",
    ),
    (
        "seed 1000050232: a datagram of several frames is read also where an epoll set has not said yet that it is there",
        "v6\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a b\n\
         R connect a 0\n\
         L poll a IOPR 0\n\
         L epoll b\n\
         L ctl b add a IO\n\
         R writev a 1 20000\n\
         L recvfrom a 30000 dp\n\
         L wait b 0\n\
         L recvfrom a 30000 d\n\
         L wait b 0\n\
         R writev a 1 20000\n\
         L recvfrom a 30000 d\n\
         L recvfrom a 30000 d\n\
         R send a 5 d\n\
         R writev a 1 20000\n\
         L recvfrom a 30000 d\n\
         L recvfrom a 30000 d\n\
         L recvfrom a 30000 d",
    ),
    (
        "seed 1000041612: close() does not wait for SO_LINGER while another thread has the connection in poll()",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         M poll a I -\n\
         L fill a\n\
         L leave a 5",
    ),
    (
        "seed 1000071288: what a connect() was refused, and bind() has bound since, has the address that bind() said",
        "v4\n\
         L socket a n\n\
         L connect a 5\n\
         L bind a 0 any\n\
         L get a name\n\
         L connect a 6\n\
         L get a name",
    ),
    (
        "seed 1000073047: who waits in a call lingers in place of a close() by another thread",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         M readv a 1 3000\n\
         L fill a\n\
         L leave a 1\n\
         - pause 5\n\
         R send b 10 d",
    ),
    (
        "dup2() over a socket lingers as close() does",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L socket b n\n\
         L set a linger 9\n\
         L fill a\n\
         L dup2 b a",
    ),
    (
        "seed 1000120747: what a UDP socket of several processes was refused is told before what waits",
        "v6\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a b\n\
         R bind a 5\n\
         R connect a 0\n\
         L thread\n\
         L recvfrom a 0 dp\n\
         L fork\n\
         R sendmmsg a 0 -\n\
         M connect a 6\n\
         L writev a 5 5\n\
         L recvfrom a 0 d",
    ),
    (
        "seed 1000132548: who waits for a datagram hears of what another thread has sent from a socket that it has connected meanwhile",
        "v4\n\
         L thread\n\
         L dgram b b\n\
         M recvfrom b 2000 -\n\
         L connect b 9\n\
         L writev b 3 10",
    ),
    (
        "seed 1000150564: a listener in an epoll set is still its child's when its process closes it",
        "v6\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L epoll d\n\
         L ctl d add a I\n\
         L fork\n\
         L close a\n\
         C accept a e n",
    ),
    (
        "seed 1000166836: so is a UDP socket",
        "v6\n\
         L dgram a n\n\
         L thread\n\
         M sendto a 5 20000 -\n\
         L fork\n\
         M epoll b\n\
         M ctl b add a IOR1\n\
         M close a\n\
         C sendto a 5 5000 -",
    ),
    (
        "seed 1000153598: a child's poll() of an epoll set asks about what is its parent's",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         M epoll b\n\
         M ctl b add a I1\n\
         R send b 1 dn\n\
         M splice a 1 -\n\
         L fork\n\
         C select b r 0",
    ),
    (
        "seed 1000201813: what waits in a UDP socket that was passed on is read, also once it is in an epoll set",
        "v6\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a b\n\
         R bind a 5\n\
         L readv a 4 5\n\
         R connect a 0\n\
         R sendmsg a 1 d\n\
         L give a\n\
         L take b\n\
         L epoll c\n\
         L ctl c add a OE\n\
         L recvfrom b 12 dp",
    ),
    (
        "seed 1000201449: what both ends had shut before a fork is in no connection any more for either once AF_UNSPEC has ended it",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         M shutdown a 1\n\
         R shutdown b 1\n\
         L fork\n\
         C unconnect a\n\
         M patient recv a 100",
    ),
    (
        "seed 1000215640: a UDP socket is told that it was refused, also once AF_UNSPEC has ended its connection",
        "v6\n\
         L thread\n\
         M dgram b n\n\
         M connect b 6\n\
         L sendto b 6 20000 d\n\
         L unconnect b\n\
         M patient recv b 100",
    ),
    (
        "seed 1000220398: an epoll set says of what has failed before a fork what it is since another process was told",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L thread\n\
         L epoll b\n\
         L ctl b add a IR\n\
         L fork\n\
         M connect a 5\n\
         C wait b 0",
    ),
    (
        "seed 1000227927: who waits in accept() gets what comes, also when the listener has come back by SCM_RIGHTS",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M give a\n\
         M take c\n\
         L accept a d n\n\
         R socket b n\n\
         R fork\n\
         D connect b 0",
    ),
];
