//! Sequences that differed once, and must not again: what it was about, and the sequence as a seed found it, shortened.

pub(crate) const FOUND: [(&str, &str); 16] = [
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
];
