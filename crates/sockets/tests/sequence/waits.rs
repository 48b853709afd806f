//! Sequences about calls that wait, which differed once and must not again, as in [`super::found`].

pub(crate) const WAITS: [(&str, &str); 12] = [
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
];
