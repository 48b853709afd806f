//! Sequences with urgent data, which differed once and must not again, as in [`super::found`].

pub(crate) const URGENT: [(&str, &str); 8] = [
    (
        "seed 88001430: urgent data for a connection that was shut down both ways resets it",
        "v4\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L shutdown a 2\n\
         R send b 1 do\n\
         L splice a 6 d",
    ),
    (
        "seed 88003386: and who has sent it hears so",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L shutdown b 2\n\
         R send a 5 do\n\
         R send a 5 d",
    ),
    (
        "seed 94020740: send() of no bytes with MSG_OOB sends none, and moves nothing",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L fill a\n\
         L leave a\n\
         R send b 0 do",
    ),
    (
        "seed 93011235: and what has reset it is urgent data that has come, for recv() and poll()",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L shutdown b 2\n\
         R send a 1 do\n\
         L poll b IOPR 0\n\
         L select b e 0\n\
         L recv b 1 dot\n\
         L recv b 1 d\n\
         L recv b 1 do\n\
         L unconnect b\n\
         L recv b 1 do\n\
         L poll b IOPR 0",
    ),
    (
        "seed 1000081068: a thread that waits in accept() hands over what urgent data comes for",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M accept a c n\n\
         R send a 5 do\n\
         L get b queued",
    ),
    (
        "and so does one that waits for a datagram",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L dgram c b\n\
         L bind c 1\n\
         L thread\n\
         M recv c 5 -\n\
         R send a 5 do\n\
         L get b queued",
    ),
    (
        "and one that waits for another connection's data",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         R socket b n\n\
         R connect b 0\n\
         L accept a c b\n\
         L thread\n\
         M recv c 5 -\n\
         R send a 5 do\n\
         L get b queued",
    ),
    (
        "and one whose close() lingers",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         R socket b n\n\
         R connect b 0\n\
         L accept a c b\n\
         L fill c\n\
         L thread\n\
         M leave c\n\
         R send a 5 do\n\
         L get b queued",
    ),
];
