//! As [`super::found`], of connections that several processes have.

pub(crate) const FORKS: [(&str, &str); 43] = [
    (
        "a child hears of a reset that came after the fork",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L fork\n\
         R close b\n\
         L writev a 1 3\n\
         C get a error",
    ),
    (
        "of a connection that had failed, or was reset, before a fork, one of the two processes hears",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C recvmsg a 5 d\n\
         L send a 0 d",
    ),
    (
        "whichever call that is",
        "v6\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R unconnect a\n\
         L fork\n\
         C readv b 0 3\n\
         L recv b 12 dpt",
    ),
    (
        "a child's connect() says how the one that its parent had begun has ended",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         R thread\n\
         L sendmsg a 1 d\n\
         L fork\n\
         S close b\n\
         C connect a 7",
    ),
    (
        "a child reads what a connection had that its parent has closed since, and hears of its reset once",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R send a 5 d\n\
         L fork\n\
         R unconnect a\n\
         L get b queued\n\
         L close b\n\
         C recv b 12 d\n\
         C get b error\n\
         C get b error\n\
         C recv b 12 d\n\
         C send b 1 d",
    ),
    (
        "nobody hears of a reset of which the parent has heard",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L fork\n\
         R unconnect a\n\
         L get b error\n\
         C poll b IO 0\n\
         C get b error\n\
         C recv b 12 d\n\
         L recv b 12 d",
    ),
    (
        "nor of the end by AF_UNSPEC",
        "v6\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         L fork\n\
         M unconnect b\n\
         C poll b R 0\n\
         C recv b 100 -\n\
         L get b error\n\
         C recv b 100 -",
    ),
    (
        "who waits to send goes on when its descriptor is closed, and a child has the connection",
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
         L fork\n\
         L close b\n\
         R drain a\n\
         C send b 5 d\n\
         R recv a 5 -",
    ),
    (
        "and who waits to receive, whatever the number is then",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recv b 10 w\n\
         R send a 5 d\n\
         L fork\n\
         L close b\n\
         L socket b b\n\
         L connect b 9\n\
         R send a 100 d\n\
         C recv b 5 d",
    ),
    (
        "nobody but the call that waits has the connection",
        "v6\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         R thread\n\
         L thread\n\
         M recv a 5 -\n\
         L fork\n\
         R recv b 100 d\n\
         S accept a c b\n\
         C ctl a del a IR\n\
         M send a 0 -\n\
         R poll c O -\n\
         C close a\n\
         R get b queued\n\
         M poll a R -\n\
         L set a keepalive 1\n\
         C dup a b\n\
         R send c 10 d\n\
         L close a\n\
         L epoll b\n\
         L ctl b add a IE\n\
         M recv b 1 -\n\
         C close a\n\
         M wait b -\n\
         C listen a 8\n\
         R connect b 4\n\
         M close b\n\
         R recv b 100 dp\n\
         S accept a d b\n\
         M set a linger 1\n\
         R send b 0 d",
    ),
    (
        "what a parent has read of a connection that is over, its child does not read, nor the other way round",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R send a 100 d\n\
         R unconnect a\n\
         L get b queued\n\
         L fork\n\
         L recv b 5 d\n\
         C get b queued\n\
         C recv b 12 dp\n\
         C recv b 5000 d\n\
         L recv b 12 d\n\
         L get b queued",
    ),
    (
        "the same of one that ended after the fork",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R send a 100 d\n\
         L fork\n\
         R unconnect a\n\
         L get b queued\n\
         L recv b 5 d\n\
         C get b queued\n\
         C recv b 12 dp\n\
         C recv b 5000 d\n\
         L recv b 12 d\n\
         L get b queued",
    ),
    (
        "a socket whose connect() has failed is parent's and child's",
        "v4\n\
         L socket a b\n\
         L connect a 5\n\
         L fork\n\
         L shutdown a 0\n\
         C poll a IR +\n\
         L connect a 6\n\
         C connect a 7",
    ),
    (
        "the first connect() of a connection that is the kernel's says that it is made",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L fork\n\
         C send a 3000 d\n\
         L connect a 5\n\
         L connect a 5",
    ),
    (
        "or how it has ended",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L fork\n\
         C send a 3000 d\n\
         R close b\n\
         C connect a 5\n\
         C connect a 7",
    ),
    (
        "unless the other process has ended it by AF_UNSPEC",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C unconnect a\n\
         L connect a 5",
    ),
    (
        "or has shut it",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C shutdown a 1\n\
         L connect a 7",
    ),
    (
        "one of the two processes hears that it is made",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L fork\n\
         L connect a 5\n\
         C send a 3000 d\n\
         C connect a 5\n\
         L connect a 5",
    ),
    (
        "whichever asks first",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L fork\n\
         C send a 3000 d\n\
         L connect a 5\n\
         C connect a 5",
    ),
    (
        "seed 22000451: who waits to send goes on when its descriptor is closed, and a child of the other end's process has asked for that",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R fork\n\
         M send b 3000000 -\n\
         L close b\n\
         D drain a",
    ),
    (
        "seed 22001694: a child hears that its parent has shut a connection that AF_UNSPEC had ended",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L thread\n\
         L fork\n\
         M unconnect a\n\
         L send a 5 d\n\
         M shutdown a 0\n\
         C patient recv a 100",
    ),
    (
        "seed 22005786: the port of a connect() that has failed is free again, for a child too",
        "v4\n\
         L socket a b\n\
         L connect a 5\n\
         L fork\n\
         C bind a 0",
    ),
    (
        "seed 22005536: what was not read is gone with AF_UNSPEC, for a child too",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b n\n\
         L writev b 0 3\n\
         R fork\n\
         L unconnect b\n\
         D send a 3000 d\n\
         D get a queued\n\
         R unconnect a\n\
         D get a queued",
    ),
    (
        "seed 24003880: a listener that AF_UNSPEC has ended connects as it would, though a child has polled it",
        "v6\n\
         L socket a b\n\
         L listen a 8\n\
         L fork\n\
         L unconnect a\n\
         C poll a IR 0\n\
         L connect a 7",
    ),
    (
        "or had polled it before",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L fork\n\
         C poll a IR 0\n\
         L unconnect a\n\
         L connect a 7",
    ),
    (
        "seed 10003491: the error of a refused connect() is told once, also after AF_UNSPEC",
        "v4\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         L unconnect a\n\
         C patient recv a 1\n\
         L poll a IOR +",
    ),
    (
        "seed 10014049: connect() forgets the error that AF_UNSPEC left, for the other process too",
        "v6\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L unconnect b\n\
         L fork\n\
         C connect b 9\n\
         L readv b 2000 3",
    ),
    (
        "seed 10018767: a duplicate says as well that a connection is made that was handed over before any connect() had",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C recv a 12 dw\n\
         C dup a b\n\
         C connect b 9",
    ),
    (
        "seed 20008644: what AF_UNSPEC has ended one connects anew for both",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L unconnect a\n\
         L fork\n\
         C connect a 5\n\
         L patient recv a 100\n\
         L send a 5 d",
    ),
    (
        "seed 20003667: or fails to",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L unconnect b\n\
         L fork\n\
         C connect b 6\n\
         L send b 10 d",
    ),
    (
        "seed 30004604: who waits in readv() fills all of it also when the descriptor was closed meanwhile",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         M readv a 2000 3000\n\
         L fork\n\
         L close a\n\
         R send b 3000 d",
    ),
    (
        "seed 30018179: an end that was shut for reading reads nothing after a handover",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R shutdown a 2\n\
         L fork\n\
         R patient recv a 1\n\
         L readv b 1 3000\n\
         R poll a O 0\n\
         R socket b n\n\
         L get b error\n\
         M recv b 1 pw\n\
         C ctl a mod b -\n\
         M wait a 0\n\
         R epoll c\n\
         R ctl c add a IORE\n\
         C sendmsg b 6 d\n\
         R recvmsg a 5 d",
    ),
    (
        "seed 30026909: nor does a handover change how AF_UNSPEC ends a wait",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         L recv a 12 pw\n\
         R fork\n\
         D recv b 12 dpt\n\
         M unconnect a",
    ),
    (
        "seed 30024143: what one process connects after AF_UNSPEC another one polls",
        "host\n\
         R socket b n\n\
         R bind b 5\n\
         R listen b 8\n\
         R poll b I 0\n\
         L socket c n\n\
         L connect c 5\n\
         L thread\n\
         M unconnect c\n\
         L fork\n\
         L connect c 9\n\
         C poll c IOPR 0",
    ),
    (
        "what was over before a fork one process ends by AF_UNSPEC for all",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         R send b 100 d\n\
         R shutdown b 1\n\
         L shutdown a 1\n\
         L fork\n\
         L unconnect a\n\
         C poll a IR 0\n\
         C recv a 12 d\n\
         C connect a 5\n\
         L get a state\n\
         L send a 5 d",
    ),
    (
        "so that another one can listen there",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R unconnect a\n\
         L fork\n\
         C unconnect b\n\
         L poll b IR 0\n\
         L listen b 8\n\
         L get b listens",
    ),
    (
        "or by a connect() that says that it has failed",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         L connect a 6\n\
         C recv a 5 d\n\
         C poll a IR 0\n\
         C bind a 1",
    ),
    (
        "seed 88000860: close() of what a child has as well does not linger, and sends no FIN",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L fork\n\
         L leave a\n\
         C get a state\n\
         C send a 1 d",
    ),
    (
        "seed 1000001753: segments of a connection that was handed over are as long as before: TCP_CORK keeps what fills none",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L fork\n\
         C get a error\n\
         R set b cork 1\n\
         L recv a 12 p\n\
         R send b 3000 d",
    ),
    (
        "seed 94027619: an end with something unread hears, as the kernel takes both, of the room that the other one has told meanwhile",
        "host\n\
         R socket b b\n\
         R bind b 5\n\
         R listen b 8\n\
         R poll b I 0\n\
         L socket c b\n\
         L connect c 5\n\
         R accept b c n\n\
         L thread\n\
         R thread\n\
         M send c 3000000 -\n\
         S writev c 0 1500\n\
         R fork\n\
         D drain c",
    ),
    (
        "seed 95014563: what AF_UNSPEC has ended is to tell that also when it is a child that listens with it",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L unconnect a\n\
         L fork\n\
         C listen a 8\n\
         C writev a 5 3",
    ),
    (
        "seed 1000027168: accept() waits, although a child has joined at its listener and made that nonblocking",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L fork\n\
         C poll a IO 0\n\
         L accept a d n\n\
         R socket a n\n\
         R connect a 0",
    ),
    (
        "what AF_UNSPEC ended before a fork, and the child has connected anew, has a peer in the parent, too",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L unconnect a\n\
         L fork\n\
         C connect a 5\n\
         L get a peer\n\
         L get a name\n\
         L get a state\n\
         L send a 5 d",
    ),
];
