//! Sequences that differed once, and must not again: what it was about, and the sequence as a seed found it, shortened.

pub(crate) const FOUND: [(&str, &str); 44] = [
    (
        "data for a connection that was shut down both ways resets it",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L shutdown a 2\n\
         R send b 1 d\n\
         L readv a 4 3\n\
         R get b error",
    ),
    (
        "a set says nothing of a thread that sleeps in it, and shutdown() leaves no connect() to be told",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         L thread\n\
         M epoll b\n\
         M wait b -\n\
         L poll b I 0\n\
         L shutdown a 1\n\
         L connect a 4",
    ),
    (
        "who waits hears EPIPE when another thread disconnects",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recv b 100 w\n\
         L unconnect b",
    ),
    (
        "and who waits to write hears the reset, which nobody hears again",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         L fill b\n\
         M send b 3000000 -\n\
         L unconnect b\n\
         L get b error\n\
         L recv b 5 d\n\
         L send b 5 d",
    ),
    (
        "who peeks with MSG_WAITALL waits for all of it, or the end",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R send a 5 d\n\
         M recv b 10 pw\n\
         R send a 5 d\n\
         M recv b 12 pw\n\
         R shutdown a 1\n\
         M recv b 12 pw",
    ),
    (
        "a listener that closes resets what waits for it, within the host as well",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R close a\n\
         L get a error\n\
         L poll a IOR 0\n\
         L get a error\n\
         L recv a 1 d",
    ),
    (
        "the end that was closed first has no state to tell",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L shutdown a 2\n\
         R shutdown b 2\n\
         L get a state",
    ),
    (
        "a connection stays where it waits while other programs wait for others",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         L fork\n\
         C socket b b\n\
         C bind b 1\n\
         C listen b 8\n\
         C close a\n\
         C accept b c b\n\
         R socket a b\n\
         R connect a 0\n\
         - pause\n\
         L accept a b n",
    ),
    (
        "who closed first and makes no more calls hears the other end's FIN",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         R thread\n\
         M close a\n\
         R shutdown b 2\n\
         S get b error",
    ),
    (
        "the same, and the other end writes after its own shutdown()",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L close a\n\
         R shutdown b 1\n\
         R writev b 0 1500",
    ),
    (
        "a child knows of a connect() that had failed",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C connect a 7",
    ),
    (
        "a child reads what came before the end of a connection that was over",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         R send b 5 d\n\
         R shutdown b 1\n\
         L shutdown a 1\n\
         L fork\n\
         C recv a 12 d\n\
         C recv a 12 d\n\
         C send a 1 d",
    ),
    (
        "a socket that was unconnected connects in the kernel without waiting, as it does at user level",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L unconnect b\n\
         L connect b 5",
    ),
    (
        "and listens there without waiting",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L unconnect b\n\
         L listen b 8\n\
         L accept b c n",
    ),
    (
        "a child's connect() says that its parent's has succeeded",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         C connect a 6",
    ),
    (
        "a call waits as long as SO_RCVTIMEO said when it began",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recvmsg b 5 p\n\
         L sendmsg b 6 d\n\
         L patient recv b 1",
    ),
    (
        "connect() forgets the error of the connection before",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R socket b n\n\
         R bind b 5\n\
         R listen b 8\n\
         L unconnect b\n\
         L connect b 5\n\
         L get b error",
    ),
    (
        "who has shut its reading side tells nobody that there is room again: nothing more comes, and nothing is reset",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L shutdown b 0\n\
         R fill a\n\
         L shutdown b 1\n\
         L drain b\n\
         L drain b",
    ),
    (
        "the same within the host",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         L fill a\n\
         R shutdown b 2\n\
         R drain b\n\
         R drain b",
    ),
    (
        "who peeks with MSG_WAITALL waits on when the connection is handed over",
        "v6\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M recv b 5000 pw\n\
         L fork\n\
         R sendmsg a 6 -\n\
         C send b 100 d\n\
         R shutdown a 1",
    ),
    (
        "who waits for all of it gets the rest from the kernel",
        "v4\n\
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
         C send b 1 d\n\
         R send a 100 d",
    ),
    (
        "and who sends more than there is room for goes on sending",
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
         C recv b 12 d\n\
         R drain a",
    ),
    (
        "the kernel says whether what a child has listens still",
        "v6\n\
         L socket a b\n\
         L listen a 8\n\
         L fork\n\
         L unconnect a\n\
         C get a unsent",
    ),
    (
        "what a child's socket is connected to, is the parent's as well",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L thread\n\
         L fork\n\
         M connect a 5\n\
         C connect a 5",
    ),
    (
        "a connection that was accepted has a port",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L bind b 1\n\
         L connect b 5\n\
         L shutdown b 1\n\
         R shutdown a 1\n\
         L bind b 1",
    ),
    (
        "a socket whose connect() has failed, or that was unconnected, has none",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 6\n\
         L bind a 1\n\
         L bind a 2\n\
         L socket b b\n\
         L connect b 5\n\
         L bind b 3\n\
         L unconnect b\n\
         L bind b 3\n\
         L listen b 8",
    ),
    (
        "shutdown() before any connect() has said that it failed ends that socket",
        "v4\n\
         L socket a n\n\
         L connect a 5\n\
         - pause\n\
         L shutdown a 1\n\
         L connect a 5\n\
         L unconnect a\n\
         L connect a 5",
    ),
    (
        "a thread that has slept for long wakes for what comes after a fork",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L thread\n\
         R thread\n\
         S recv a 1 -\n\
         - pause\n\
         R fork\n\
         M send b 100 d",
    ),
    (
        "a child hears from getpeername() that the connection is over",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L shutdown a 1\n\
         L fork\n\
         R shutdown b 1\n\
         C get a peer",
    ),
    (
        "a peer that waits for room hears of it from the kernel, too",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         R thread\n\
         S send b 3000000 -\n\
         L fork\n\
         C get a state\n\
         L drain a",
    ),
    (
        "what was shut before it was connected is shut then",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket b b\n\
         L shutdown b 2\n\
         L connect b 5\n\
         L recvmsg b 1 d\n\
         L send b 1 d",
    ),
    (
        "a connection within the host whose other end was closed is open still when the kernel has it",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L fork\n\
         R close a\n\
         C recv b 12 d\n\
         L get b state\n\
         L writev b 2000 3\n\
         L writev b 2000 3",
    ),
    (
        "and says nothing of a reset to whoever has it, too",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L fork\n\
         R close b\n\
         C get a queued\n\
         L poll a O 0",
    ),
    (
        "after shutdown() the state is FIN_WAIT1, though the FIN waits behind data",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L fill b\n\
         L shutdown b 1\n\
         L get b state",
    ),
    (
        "SO_RCVLOWAT makes what there is to read news once more, if it is enough",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L epoll b\n\
         L ctl b add a IORE\n\
         R writev b 0 1500\n\
         L wait b 0\n\
         L wait b 0\n\
         L set a lowat 1\n\
         L wait b 0\n\
         L set a lowat 4\n\
         L wait b 0\n\
         L recv a 5000 d\n\
         L set a lowat 1\n\
         L wait b 0\n\
         R writev b 0 3\n\
         L wait b 0\n\
         L set a lowat 4\n\
         L wait b 0\n\
         L set a lowat 1\n\
         L wait b 0\n\
         L wait b 0",
    ),
    (
        "seed 24007251: what was shut after AF_UNSPEC is shut when it is connected again",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         L thread\n\
         L dup a b\n\
         L unconnect b\n\
         L shutdown a 2\n\
         M connect a 5\n\
         L poll a R 0\n\
         L send a 5 d",
    ),
    (
        "seed 25000094: a set has a listener that was added with EPOLLEXCLUSIVE, also when it listens no more",
        "host\n\
         L socket a n\n\
         L listen a 8\n\
         L thread\n\
         L epoll c\n\
         L ctl c add a IX\n\
         L unconnect a\n\
         M wait c 0",
    ),
    (
        "seed 27002369: who has shut a full connection first is in CLOSING when the other end has, too",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L fill b\n\
         L shutdown b 1\n\
         R shutdown a 1\n\
         L get b state",
    ),
    (
        "seed 28006118: of a recv() that has got a part before the reset the next one hears of it",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         R thread\n\
         S recv a 5 w\n\
         L send b 1 d\n\
         L unconnect b\n\
         S patient recv a 100",
    ),
    (
        "seed 10016354: SO_SNDBUF tells edge-triggered sets once more that there is room",
        "host\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         L shutdown b 1\n\
         L epoll c\n\
         L ctl c add b OE\n\
         L wait c 0\n\
         M fill b\n\
         M wait c -",
    ),
    (
        "seed 20011325: shutdown() of what is over has edge-triggered sets tell that once more",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         R unconnect a\n\
         L epoll d\n\
         L ctl d add b IE\n\
         L wait d +\n\
         L shutdown b 0\n\
         L wait d 0",
    ),
    (
        "seed 40004180: a send() that ends with a part leaves the error to the next call",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         R thread\n\
         S send b 3000000 -\n\
         R recv b 1 pw\n\
         M close a",
    ),
    (
        "seed 50001443: what was shut after AF_UNSPEC is so after bind(), too",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         R unconnect a\n\
         R shutdown a 1\n\
         R bind a 5\n\
         R connect a 5\n\
         R send a 0 d",
    ),
    (
        "poll() leaves a UDP socket its error that is in an epoll set of the kernel's alone: the kernel answers recv()",
        "v4\n\
         L dgram a n\n\
         L epoll b\n\
         L ctl b add a IOR1\n\
         L connect a 6\n\
         L sendto a 6 1400 d\n\
         L poll a I 0\n\
         L recv a 1 d\n\
         L wait b 0\n",
    ),
];
