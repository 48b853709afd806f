//! Sequences about calls that wait, which differed once and must not again, as in [`super::found`].

pub(crate) const WAITS: [(&str, &str); 44] = [
    (
        "seed 40009005: who peeks for all of it does so also when the connection is handed over and the descriptor closed",
        "v4\n\
         R socket b b\n\
         R bind b 5\n\
         R listen b 8\n\
         L socket c b\n\
         L connect c 5\n\
         R accept b c n\n\
         L thread\n\
         M recv c 10 pw\n\
         L fork\n\
         L close c\n\
         R send c 5 d\n\
         R send c 5 d",
    ),
    (
        "seed 20017829: who waits goes on waiting after a handover, though another thread has set O_NONBLOCK",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         M recv a 100 pt\n\
         L nonblock a 1\n\
         R fork\n\
         D set b linger 1\n\
         R send b 5 d",
    ),
    (
        "seed 6068315: fewer bytes than SO_RCVLOWAT says wake nobody who reads, and another reader gets them",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M set b lowat 4\n\
         M readv b 1 3000\n\
         R send a 1 d\n\
         L patient recv b 1\n\
         R send a 3 d\n\
         R send a 1 d\n\
         M recv b 2 -\n\
         R send a 2 d\n\
         L set b lowat 1\n\
         R send a 1 d\n\
         M set b lowat 4\n\
         M recv b 5 pw\n\
         R send a 3 d\n\
         R send a 2 d\n\
         L set b lowat 1\n\
         L recv b 100 d\n\
         M recv b 100 -\n\
         L set b lowat 4\n\
         R send a 1 d\n\
         R shutdown a 1\n\
         L recv b 1 d",
    ),
    (
        "whatever the reader asks for; and at the end of its patience it takes what there is",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         L set a lowat 4\n\
         R send b 1 d\n\
         L patient recv a 3\n\
         M recv a 2 -\n\
         R send b 1 d\n\
         R send b 1 d\n\
         R send b 1 d\n\
         R send b 1 d\n\
         L get a queued",
    ),
    (
        "seed 80002059: select() does not hear what it has not asked for",
        "v4\n\
         L socket a n\n\
         L thread\n\
         M select a e -\n\
         L select a e +\n\
         L select a rwe 0",
    ),
    (
        "seed 84005109: a signal ends a call that has seen a part, although its handler restarts calls",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R send a 10 d\n\
         M recv b 5000 pw\n\
         L kick M r",
    ),
    (
        "that has read a part, and not one that has read nothing",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recv b 5000 w\n\
         L kick M r\n\
         R send a 10 d\n\
         L kick M r",
    ),
    (
        "that has written a part",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M send b 3000000 -\n\
         L kick M r\n\
         R drain a",
    ),
    (
        "seed 88006467: recvmmsg() goes on with what it began with, though its descriptor is closed",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R thread\n\
         L thread\n\
         M recvmmsg b 3000 -\n\
         L close b\n\
         S close a",
    ),
    (
        "seed 88006307: also when a connection within the host has more",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recvmmsg b 3000 -\n\
         L close b\n\
         R fill a",
    ),
    (
        "also when the connection is handed over meanwhile, as another process has it",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recvmmsg b 5 -\n\
         L fork\n\
         L close b\n\
         R send a 10 d",
    ),
    (
        "seed 92005096: what waits in a UDP socket when it is added to a set is told with the rest",
        "v6\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a b\n\
         R sendto a 0 1 d\n\
         L epoll c\n\
         L ctl c add a IORE\n\
         L wait c +",
    ),
    (
        "once, and so it is when it is added for writing, and changed to be told of both",
        "v4\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a b\n\
         R sendto a 0 1 d\n\
         L epoll c\n\
         L ctl c add a OE\n\
         L wait c 0\n\
         L ctl c mod a IO1\n\
         L wait c +\n\
         L ctl c mod a IOE\n\
         L wait c +\n\
         L wait c 0\n\
         R sendto a 0 1 d\n\
         L wait c +",
    ),
    (
        "seed 92007127: what EPOLLONESHOT has told of a UDP socket does not make its set readable",
        "v6\n\
         L dgram a b\n\
         L shutdown a 0\n\
         L epoll c\n\
         L ctl c add a IOR1\n\
         L wait c 0\n\
         L poll2 c d I 0\n\
         L ctl c mod a IOR1\n\
         L poll2 c d I 0\n\
         L wait c 0\n\
         L poll c I 0\n\
         L epoll b\n\
         L ctl b add c IE\n\
         L wait b 0\n\
         L ctl c mod a IOR1\n\
         L wait b 0",
    ),
    (
        "seed 1000000221: a UDP socket that was used before a fork is the kernel's for both, and what waited goes to the child that uses it",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a b\n\
         R thread\n\
         L recvfrom a 1 dt\n\
         S sendto a 0 10 -\n\
         L fork\n\
         C poll a IR 0",
    ),
    (
        "seed 1000000957: who reads it",
        "v6\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a b\n\
         R connect a 0\n\
         L poll a IR +\n\
         R sendmsg a 1 d\n\
         L fork\n\
         C recvfrom a 30000 dpt",
    ),
    (
        "seed 1000000474: or what comes after the fork",
        "v6\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a n\n\
         R connect a 0\n\
         L thread\n\
         M recvfrom a 30000 p\n\
         L fork\n\
         R writev a 1 1\n\
         C recv a 5 -",
    ),
    (
        "seed 1000001928: and an error is told to who has sent",
        "v4\n\
         L dgram a n\n\
         L connect a 5\n\
         L fork\n\
         C sendto a 5 10 d\n\
         C send a 10 d",
    ),
    (
        "seed 1000000405: shutdown() of one process is another one's, too",
        "v6\n\
         L dgram a b\n\
         L thread\n\
         L nonblock a 1\n\
         L fork\n\
         C shutdown a 1\n\
         M sendto a 6 10 -",
    ),
    (
        "seed 1000000596: and so is connect()",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         R dgram a n\n\
         L fork\n\
         L connect a 6\n\
         C recvmmsg a 1 p\n\
         R sendto a 0 100 -",
    ),
    (
        "seed 1000001773: what answers a datagram of several frames, which the kernel's socket has sent, is told",
        "v6\n\
         L dgram a b\n\
         L connect a 7\n\
         L sendto a 7 20000 d\n\
         L sendmmsg a 20000 d",
    ),
    (
        "seed 1000002978: to whatever call comes next",
        "v4\n\
         L dgram a b\n\
         L connect a 6\n\
         L writev a 2 5000\n\
         - pause\n\
         - pause\n\
         L recvfrom a 30000 dp\n\
         L recvfrom a 3000 dp",
    ),
    (
        "once",
        "v4\n\
         L dgram a b\n\
         L connect a 7\n\
         L sendto a 7 5000 d\n\
         - pause\n\
         L sendto a 7 1 d\n\
         L sendto a 7 1 d\n\
         L recv a 10 d\n\
         L sendto a 7 1 d\n\
         L sendto a 7 1 d\n\
         - pause\n\
         L sendto a 7 1 d",
    ),
    (
        "seed 1000022931: an error is told to whoever asks first of parent and child",
        "v4\n\
         L dgram a n\n\
         L bind a 0\n\
         L connect a 5\n\
         L thread\n\
         L fork\n\
         M send a 0 -\n\
         C epoll b\n\
         C ctl b add a IE1\n\
         M recvmmsg a 2000 p",
    ),
    (
        "seed 93002596: a recv() that a handler restarts hears that O_NONBLOCK was set meanwhile",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L thread\n\
         M recv a 1 pt\n\
         L nonblock a 1\n\
         L kick M r",
    ),
    (
        "and so does an accept()",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L thread\n\
         M accept a b n\n\
         L nonblock a 1\n\
         L kick M r",
    ),
    (
        "seed 91010910: nor does close() with SO_LINGER end a connection that another thread's recv() has still",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R thread\n\
         L recv b 1 -\n\
         S recvmmsg a 3000 -\n\
         M leave b",
    ),
    (
        "seed 94005085: who waits in poll() hears of what comes after another thread has sent urgent data, with which the kernel goes on",
        "v6\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         L poll a I -\n\
         M send a 1 do\n\
         R shutdown b 1",
    ),
    (
        "and of data",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M poll b I -\n\
         L send b 5 do\n\
         R send a 5 d",
    ),
    (
        "seed 94012197: a UDP socket in two sets, of which one is waited in",
        "v4\n\
         L dgram a n\n\
         L epoll b\n\
         L ctl b add a IOR\n\
         L epoll c\n\
         L ctl c add a IOR\n\
         L wait b +\n\
         L wait c +",
    ),
    (
        "seed 94008850: also when it has a datagram",
        "v4\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a n\n\
         L epoll b\n\
         L ctl b add a IE\n\
         R sendto a 0 5 d\n\
         L epoll c\n\
         L ctl c add a IX\n\
         L wait b +\n\
         L wait c +\n\
         L recv a 100 d\n\
         R sendto a 0 7 d\n\
         L wait c +\n\
         L wait b +",
    ),
    (
        "seed 94019761: a set tells the error of a UDP socket that had it before anybody waited",
        "v6\n\
         L dgram a n\n\
         L epoll b\n\
         L ctl b add a -\n\
         L connect a 7\n\
         L writev a 5 5\n\
         L wait b +\n\
         L wait b 0\n\
         L get a error\n\
         L wait b 0",
    ),
    (
        "and it is one, and nothing to read",
        "v4\n\
         L dgram a n\n\
         L epoll b\n\
         L ctl b add a I\n\
         L connect a 7\n\
         L writev a 5 5\n\
         L wait b +\n\
         L recv a 5 d\n\
         L wait b 0",
    ),
    (
        "seed 1000003362: a handler that does not restart calls ends a send() with EINTR, although another thread has set O_NONBLOCK",
        "v4\n\
         R socket a b\n\
         R bind a 5 any\n\
         R listen a 8\n\
         L socket a b6\n\
         L connect a 5\n\
         L thread\n\
         L fill a\n\
         M send a 3000000 -\n\
         L nonblock a 1\n\
         L kick M i",
    ),
    (
        "and a recv()",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         M recv a 5 -\n\
         L nonblock a 1\n\
         L kick M i",
    ),
    (
        "and an accept()",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         L thread\n\
         M accept a b b\n\
         L nonblock a 1\n\
         L kick M i",
    ),
    (
        "and a wait for a datagram",
        "v4\n\
         L dgram a b\n\
         L bind a 0\n\
         L poll a I 0\n\
         L thread\n\
         M recv a 5 -\n\
         L nonblock a 1\n\
         L kick M i",
    ),
    (
        "seed 1000104327: a set goes on reporting a connection that is over and that a child has, also if its own process closes it",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L epoll c\n\
         L ctl c add b IOR\n\
         L fork\n\
         R unconnect a\n\
         L close b\n\
         L wait c 0\n\
         C recv b 10 d\n\
         C recv b 10 d\n\
         L wait c 0",
    ),
    (
        "seed 1000196130: ppoll() says what is ready, and leaves a signal pending that its mask lets in",
        "v4\n\
         L socket a n\n\
         L thread\n\
         M mask b\n\
         L kick M r\n\
         M ppoll a O o -",
    ),
    (
        "seed 1000202374: who waits in an epoll set hears once of what the kernel has, also when a listener has joined the set",
        "v6\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M epoll d\n\
         M ctl d add b I\n\
         M wait d -\n\
         L ctl d add a IOR\n\
         R send a 3000 d",
    ),
    (
        "seed 1000244175: an epoll set that poll() has asked about says nothing of the library's to whom it is passed on",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         M epoll b\n\
         M ctl b add a IOR\n\
         L poll b I 0\n\
         M give b\n\
         L take c\n\
         L wait c 0\n\
         L wait b 0",
    ),
    (
        "seed 1000253576: an epoll set says once what another process has made the kernel's of what AF_UNSPEC ended before a fork",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         R epoll b\n\
         R ctl b add a IO\n\
         R unconnect a\n\
         R fork\n\
         R recvmsg a 1 dw\n\
         D set a lowat 4\n\
         R wait b 0",
    ),
    (
        "seed 1000269124: recv() with MSG_TRUNC below SO_RCVLOWAT drops no more than it is asked for",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         L set a lowat 4\n\
         R send b 1 -\n\
         M recv a 100 t\n\
         R sendmsg b 3000 dm",
    ),
    (
        "seed 1000263661: who waits in accept() goes on when the listener becomes the kernel's, as for an epoll set that is passed on",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         L thread\n\
         L epoll c\n\
         L ctl c add a I\n\
         M accept a d b\n\
         L give c\n\
         R socket a b\n\
         R connect a 0",
    ),
];
