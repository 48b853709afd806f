//! Sequences about exec and about descriptors that are passed on, which differed once and must not again, as in [`super::found`].

pub(crate) const PASSED: [(&str, &str); 40] = [
    (
        "seed 80001145: what is refused is so for the next image, too",
        "v4\n\
         L socket a n\n\
         L connect a 5\n\
         L exec\n\
         L poll a R 0\n\
         L readv a 1 3\n\
         L connect a 6",
    ),
    (
        "seed 80003983: what is about to connect can be passed on",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L give a\n\
         L take b\n\
         L connect b 6\n\
         L connect b 6",
    ),
    (
        "seed 1000111534: whoever of those connects it that have what was passed on, it is connected",
        "v6\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket b b\n\
         L give b\n\
         L take c\n\
         L connect c 5\n\
         L connect b 5",
    ),
    (
        "seed 80002178: and what was reset",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L send b 10 d\n\
         R close a\n\
         L give b\n\
         L take c\n\
         L close b\n\
         L get c state",
    ),
    (
        "seed 82000223: the next image's connect() says that the connection is made",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         R exec\n\
         R connect a 0\n\
         R connect a 0",
    ),
    (
        "and so does one of a descriptor that was passed on, once",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         R give a\n\
         R take b\n\
         R connect b 0\n\
         R connect a 0",
    ),
    (
        "seed 82001101: what was reset is so for who is given it, with the error that nobody has been told",
        "v6\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         R close a\n\
         L writev b 2000 0\n\
         L give b\n\
         L take c\n\
         L poll c IR 0\n\
         L recv c 5 d\n\
         L recv b 5 d\n\
         L send b 1 d",
    ),
    (
        "and with what it has not read",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R send a 100 d\n\
         R set a linger 1\n\
         R set a linger 0\n\
         L socket c b\n\
         L send b 1 d\n\
         R close a\n\
         L give b\n\
         L take c\n\
         L get c queued\n\
         L recv c 5 d\n\
         L recv b 5000 d\n\
         L send c 1 d",
    ),
    (
        "for the next image as well, also when the error has been told",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L send b 1 d\n\
         R close a\n\
         L get b error\n\
         L exec\n\
         L connect b 5\n\
         L poll b IOR 0\n\
         L recv b 5 d\n\
         L send b 1 d",
    ),
    (
        "seed 82000711: what splice() waits for is read when the descriptor is closed meanwhile, and so nothing is reset",
        "v6\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         R thread\n\
         L splice b 6 d\n\
         M close b\n\
         S sendmsg a 1 -\n\
         R send a 5 d",
    ),
    (
        "seed 83000070: what was closed before exec hears the FIN of its peer",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b n\n\
         L close a\n\
         L exec\n\
         R shutdown b 1\n\
         R poll b R 0",
    ),
    (
        "seed 84000173: a set that is passed on has the connections that are in it",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         L epoll b\n\
         L ctl b add a IO\n\
         L give b\n\
         L take d\n\
         L wait d +",
    ),
    (
        "seed 84002120: what AF_UNSPEC has ended says its reset to who is given it",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         L unconnect a\n\
         L give a\n\
         L take b\n\
         L poll b O 0\n\
         L recv a 5 d\n\
         L bind b 1\n\
         L connect b 5",
    ),
    (
        "seed 82002199: and also when it listens since",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a c b\n\
         L unconnect a\n\
         L listen a 8\n\
         L shutdown a 2\n\
         L poll a O 0\n\
         L get a error\n\
         R bind c 6",
    ),
    (
        "seed 84004341: SO_RCVLOWAT is not about splice()",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L set b lowat 4\n\
         R send a 1 -\n\
         L splice b 6 d",
    ),
    (
        "seed 84004265: after shutdown() the end of a connection is nothing that a connect() has to say",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b n\n\
         L shutdown b 1\n\
         R fork\n\
         D send a 5 d\n\
         R shutdown a 1\n\
         D connect a 4",
    ),
    (
        "seed 88001327: what both ends within the host have shut was not reset",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a b\n\
         L connect a 5\n\
         R accept a b b\n\
         L thread\n\
         R shutdown b 1\n\
         L shutdown a 1\n\
         L give a\n\
         M take b\n\
         L poll b R 0",
    ),
    (
        "seed 88003394: nor does send() say so",
        "host\n\
         R socket a b\n\
         R bind a 5 any\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n6\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         R shutdown b 1\n\
         M shutdown a 1\n\
         L give a\n\
         M sendfile a 7",
    ),
    (
        "seed 1000002007: what waits in a UDP socket is read by the descriptor that it was passed on as",
        "v6\n\
         L dgram a n\n\
         L bind a 0\n\
         R dgram a n\n\
         R bind a 5\n\
         L connect a 5\n\
         R connect a 0\n\
         R thread\n\
         S send a 1 -\n\
         L give a\n\
         L take b\n\
         L poll b IOPR 0",
    ),
    (
        "seed 1000002427: and an error of what that has sent is told here",
        "v6\n\
         L dgram a n\n\
         L thread\n\
         M connect a 7\n\
         M give a\n\
         L take b\n\
         M sendto b 7 5 -\n\
         L recvfrom a 2000 dp",
    ),
    (
        "seed 92002876: shutdown() in a child of what its parent has ended by AF_UNSPEC is the parent's as well",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         L fork\n\
         L unconnect a\n\
         C sendfile a 1\n\
         C shutdown a 2\n\
         L recv a 100 d",
    ),
    (
        "seed 92004198: what was accepted at any address forgets its own with AF_UNSPEC",
        "v4\n\
         L socket a n6\n\
         L bind a 0 any\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n6\n\
         R connect a 0\n\
         L accept a b n\n\
         L unconnect b\n\
         L get b name\n\
         L fork\n\
         C get b name",
    ),
    (
        "seed 92007735: a set hears that a child has ended a listener by AF_UNSPEC",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         R socket a n\n\
         R connect a 0\n\
         L accept a b b\n\
         L fork\n\
         C unconnect a\n\
         L epoll c\n\
         L ctl c add a IR\n\
         L wait c -",
    ),
    (
        "seed 89061775: what both ends have shut, and was bound since, is over after exec",
        "v4\n\
         L socket a n\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L shutdown b 1\n\
         L dup2 b a\n\
         R shutdown a 1\n\
         L bind a 1\n\
         L exec\n\
         L recv b 5000 dpt",
    ),
    (
        "seed 93000846: a listener blocks after exec, though another thread was in accept()",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b n\n\
         L thread\n\
         M accept a c n\n\
         L exec\n\
         L accept a e b",
    ),
    (
        "seed 93006011: what was accepted at any address, ended by AF_UNSPEC and passed on has no address of its own",
        "host\n\
         L socket a b6\n\
         L bind a 0 any\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a n6\n\
         R connect a 0\n\
         L accept a b n\n\
         L unconnect b\n\
         L give b\n\
         L take c\n\
         L get c name\n\
         L get c error",
    ),
    (
        "seed 1000000148: exec ends a connection that only another thread's recv() had any more, and its peer hears a FIN",
        "host\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         R thread\n\
         S readv a 1 1\n\
         R close a\n\
         R exec\n\
         L writev b 2000 3",
    ),
    (
        "nor does one over the network, whose peer may still send",
        "v4\n\
         L socket a b\n\
         L bind a 0\n\
         L listen a 8\n\
         L poll a I 0\n\
         R socket a b\n\
         R connect a 0\n\
         L accept a b b\n\
         L thread\n\
         M readv b 1 1\n\
         L close b\n\
         L exec\n\
         R writev a 2000 3\n\
         R recv a 10 d",
    ),
    (
        "seed 94007365: connect() of what was refused says EINVAL after a shutdown() since it was passed on",
        "v6\n\
         L socket a n\n\
         L connect a 5\n\
         L thread\n\
         L sendmsg a 1 d\n\
         L give a\n\
         M take c\n\
         L shutdown c 1\n\
         L connect a 6\n\
         L connect a 6\n\
         L unconnect a\n\
         L connect a 5",
    ),
    (
        "seed 94024449: and so does one of what was reset after the kernel has it",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         L thread\n\
         M send a 1 do\n\
         R close b\n\
         L shutdown a 1\n\
         M connect a 6",
    ),
    (
        "seed 1000053987: a child that has used no connection yet passes one on that is over, with the error that nobody has been told",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b b\n\
         R shutdown b 2\n\
         L send a 5 -\n\
         L fork\n\
         C give a\n\
         L take b\n\
         L poll b R 0\n\
         L get b error\n\
         L get a error",
    ),
    (
        "seed 1000044767: its next image is told that error, and nobody else",
        "host\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         R unconnect b\n\
         L fork E\n\
         E exec\n\
         E poll2 a a - 0\n\
         E get a error\n\
         E get a error\n\
         L get a error",
    ),
    (
        "nor does anybody else read what that reads",
        "v4\n\
         R socket a n\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L socket a n\n\
         L connect a 5\n\
         R accept a b n\n\
         R send b 100 d\n\
         L poll a I 0\n\
         R unconnect b\n\
         L fork\n\
         C exec\n\
         C recv a 50 d\n\
         L recv a 20 d\n\
         C recv a 100 d",
    ),
    (
        "seed 1000082751: the next image hears that the peer has refused what the one before sent by UDP, and so does who is given the socket",
        "v4\n\
         L dgram a b\n\
         L connect a 5\n\
         L sendto a 5 100 d\n\
         L exec\n\
         L give a\n\
         L take b\n\
         L poll b R 0\n\
         L get a error\n\
         L sendto b 5 100 d",
    ),
    (
        "an epoll set of the next image does, too, and the socket is connected as it was",
        "v6\n\
         L dgram a b\n\
         L connect a 5\n\
         L sendto a 5 100 d\n\
         L exec\n\
         L epoll e\n\
         L ctl e add a I\n\
         L wait e 0\n\
         L get a peer\n\
         L get a name\n\
         R dgram a b\n\
         R bind a 5\n\
         L recv a 1 d\n\
         L send a 7 d\n\
         R recv a 10 d",
    ),
    (
        "seed 1000100431: a UDP socket that was passed on is the kernel's for a child that has it by a fork, too, which hears its errors",
        "v6\n\
         L dgram a n\n\
         L fork\n\
         L give a\n\
         C take c\n\
         C sendto c 9 100 d\n\
         L connect a 5\n\
         L sendto a 5 100 -\n\
         C recvfrom c 2000 p",
    ),
    (
        "a set that was passed on tells of a listener in it what the kernel would",
        "host\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L socket l n\n\
         L bind l 6\n\
         L listen l 8\n\
         L epoll b\n\
         L ctl b add l I\n\
         L wait b 0\n\
         L give b\n\
         L take d\n\
         R socket c b\n\
         R connect c 6\n\
         L wait d +\n\
         L wait b +\n\
         L accept l m n\n\
         L wait d 0",
    ),
    (
        "what is added to a set that came from elsewhere is the kernel's",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L epoll b\n\
         L give b\n\
         L take d\n\
         L socket a n\n\
         L connect a 5\n\
         L ctl d add a IO\n\
         L wait d +\n\
         R accept a c b\n\
         R send c 5 d\n\
         L wait d +\n\
         L recv a 5 d",
    ),
    (
        "and what is added to one after it was passed on",
        "v6\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         R poll a I 0\n\
         L epoll b\n\
         L give b\n\
         L take d\n\
         L socket a n\n\
         L connect a 5\n\
         L ctl b add a IO\n\
         L wait d +\n\
         R accept a c b\n\
         R send c 5 d\n\
         L wait d +\n\
         L recv a 5 d",
    ),
    (
        "a set that the next image has tells of a listener with the program's data",
        "host\n\
         L socket l n\n\
         L bind l 6\n\
         L listen l 8\n\
         L epoll b\n\
         L ctl b add l I\n\
         L wait b 0\n\
         L exec\n\
         R socket c b\n\
         R connect c 6\n\
         L wait b +\n\
         L accept l m n\n\
         L socket k n\n\
         R socket a b\n\
         R bind a 5\n\
         R listen a 8\n\
         L connect k 5\n\
         L ctl b add k O\n\
         L wait b +",
    ),
];
