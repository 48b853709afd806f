//! What differs from the kernel, each with its reason. docs/sockets.md has the reasons too, which a test keeps so.

use super::script::{Place, Step};

/// A difference. In its patterns `*` stands for anything, `#` for a number, `@` for a child, `|` is between alternatives, and
/// what begins with `!` is none of them; `!` alone for the kernel is what Overfly's pattern is not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The step, and what is said on the kernel and on Overfly.
    step: &'static str,
    kernel: &'static str,
    overfly: &'static str,
    /// Such steps were taken before, in this order; the last one may be this one.
    after: &'static [&'static str],
    /// Only there.
    place: Option<Place>,
    /// Whether nothing can be compared after it.
    pub(crate) ends: bool,
    pub(crate) reason: &'static str,
}

const NONE: &[&str] = &[];
/// A connection was full, and its other end was shut both ways and read.
const SHUT_AND_READ: &[&str] = &["* fill *", "* shutdown * 2", "* drain *"];

const CLOSED_UNDER_A_CALL: &str = "close() ends accept(), poll() and epoll_wait() of another thread for the descriptor, and a wait for a datagram, with EBADF or POLLNVAL, with SO_LINGER also POLLHUP; the kernel lets them wait";

const REPLACED_UNDER_POLL: &str = "dup2() over a descriptor that another thread has in poll() or select(): that says what the new one is; the kernel's goes on with the old \
     one";

const POLL_FOR_EVER: &str = "* *poll* -|* *select * -";

const ROOM_AGAIN: &str = "whether a connection has room again once a send() has taken a part depends on how far its queue and the peer's have grown, each stack's \
     own affair";

const UNSENT: &str = "SIOCOUTQ is 0 once nothing can be acknowledged any more; the kernel says what was left, or after AF_UNSPEC or a connect() \
     that failed some number";

/// A connection is perhaps over.
const OVER: &[&str] = &["* close *|* leave *|* dup# *|* shutdown *|* unconnect *|* exit"];

const UNACKNOWLEDGED: &str = "whether what was sent is acknowledged before the reset of a close with unread data, as SIOCOUTQ says, is each stack's own affair";

const KEPT_PORT: &str = "so does bind() of one that was handed over and is over: the broker has bound it";

const ANOTHER_QUEUE: &str =
    "a full connection that is handed over has room again: the kernel's queue is another one";

const DISARMED: &str = "what EPOLLONESHOT has disarmed hears EPOLLHUP and EPOLLERR once the connection is handed over: the kernel adds no entry that hears \
     nothing";

const HALF_READ: &str = "how much of a full connection has come, and whether its end has, is each stack's own affair: an end that is shut for reading reads 0 before \
     all has, and after a reset send() says ECONNRESET or EPIPE, and recv() ECONNRESET or the end";

const ANEW: &str = "what waits to receive while its connection is handed over begins anew in the kernel: it takes what has come below SO_RCVLOWAT, and SO_RCVTIMEO that \
     another process sets meanwhile is its own";

const OWN_QUEUE: &str = "what waits at a listener when its process forks a child does not see that looks without waiting; one that waits gets \
     it if the parent is busy";

const SHUT_UNTOLD: &str = "shutdown() by one process of what was refused to its connect() before a fork leaves the other one's connect() to be told so, instead of \
     EINVAL; so does one before it is passed on";

const QUEUE_CLOSED: &str = "what waits at a listener of a loopback address is reset when its process closes that, also if a child has it still: the broker \
     brings nothing there";

const OWN_SET: &str = "what one process adds to an epoll set or takes out of it, another one does not see that has it by a fork, as to connections \
     that it has not used since";

const HEARD_TWICE: &str = "what one process hears once of a connection or UDP socket in an epoll set (EPOLLET, EPOLLONESHOT), another one that has the set by a fork hears \
     once more if it was over before or is handed over to it; so does its own once it is passed on, or after exec";

/// By a thread that waits in the set as the connection is passed on.
const GIVEN_AND_HEARD: (&str, &str) = ("1", "1; *wait * - has waited: 1 *HUP");

const SENT_BEFORE: &str = "sendmmsg() sends all its messages before the answer to the first is looked at: a reset is the next call's";

const ONE_OR_BOTH: &str =
    "of two messages of one sendmmsg() who waits for them gets the first one or both, in the kernel as well";

const NOT_PASSED_ON: &str = "what waits at a listener when it is passed on (SCM_RIGHTS) is there only by the descriptors that it had before";

const OWN_FLAG: &str =
    "O_NONBLOCK of a listener that was passed on (SCM_RIGHTS) is that of the descriptor that it was set for";

const WOKEN_OTHERWISE: &str = "a thread that waits for as much as SO_RCVLOWAT says does not take less when another thread's shutdown() wakes it";

const NO_PORT: &str = "getsockname() of what was accepted, and ended by connect() to AF_UNSPEC before a fork or SCM_RIGHTS, says port 0: the kernel goes on saying the port \
     that it has let go of";

const OWN_LISTENER: &str = "what waits at a listener that another process ends by connect() to AF_UNSPEC is not reset: it is in the queue of the process that \
     took it";
const LISTENER_ENDED: &[&str] = &["* listen *", "* connect *", "* fork*", "* unconnect *"];

const OWN_CLOSE: &str = "an epoll set of a process has no connection any more that the process has closed; the kernel's has it for as long as another process, \
     or a call that waits, has it open";

const PROBED: &str = "whoever has shut a full connection both ways and reads resets it with the next probe of its window, which comes up to \
     a tenth later in the kernel, whose clock is as coarse";

const TAKEN_BEFORE: &str = "of a thread in poll() and one in recv() or send() that wait for a connection which is reset, one wakes first: the poll() says \
     POLLERR only if that is the one, in the kernel as well";
const ONE_HEARS: &str = "of a thread in recv() and one in send() that wait for a connection which is reset, the one that wakes first is told so, in the \
     kernel as well";
const READ_BEFORE: &str = "of a thread in poll() and one in recv() or splice() that wait for the same data one wakes first: if that is the one that reads, the poll() goes \
     on waiting, in the kernel as well";
/// The one that reads, and a poll() that has waited: of an actor before it, or after it, in the alphabet.
const READ: &str = "#; *re* has waited: # *";
const POLLED_AND_READ: &str = "#; *poll* *I* has waited: # *IN*; *re* has waited: # *";
const READ_AND_POLLED: &str = "#; *re* has waited: # *; *poll* *I* has waited: # *IN*";
const READ_AND_SELECTED: &str = "#; *re* has waited: # *; *select * has waited: 1 r";
const POLL_AND_READ: &[&str] = &["* poll* *I* -"];
const POLL_AND_SPLICE: &[&str] = &["* poll* *I* -", "* splice *"];
const SPLICE_AND_POLL: &[&str] = &["* splice *", "* poll* *I* -"];
const SELECT_AND_READ: &[&str] = &["* select * r -"];

const POLLED_FIRST: &str = "*poll * has waited: # *ERR+HUP*";
const POLLED_LATER: &str = "*poll * has waited: # *HUP*";
/// Two threads wait for one connection.
const WAIT_FOR_ONE: &[&str] = &["* thread", "* poll *"];

const ONE_END: &str = "of a connection within the host whose other end was closed the kernel gets this end alone: once it is shut as well it is reset, \
     as nobody takes its FIN";
/// The other end was closed, and this one handed over and shut.
const CLOSED_AND_HANDED_OVER: &[&str] = &[CLOSES, PASSED_ON];
const HANDED_OVER_AND_CLOSED: &[&str] = &[PASSED_ON, CLOSES, "* shutdown *"];
const CLOSES: &str = "* close *|* leave *|* dup# *";
const SENDS: &str = "* send* *|* writev *|* fill *";
const RECEIVES: &str = "* re* *|* patient recv *|* drain *";

const URGENT_AGAIN: &str = "urgent data that comes while its process is in no call is sent again by the peer, and until then nothing after it comes";

const ERROR_BEFORE: &str = "of a thread in poll() or select() for a UDP socket and one in sendmmsg(), which is told of the same ICMP error, the poll() says it only \
     if it runs first, in the kernel as well";

const HELD_BACK: &str = "who waits for more than one segment of what is sent with MSG_MORE gets the full ones, or the rest as well if that has come meanwhile";
const SET_SAYS: &str = "an epoll set in poll() is readable for as long as the kernel's UDP socket is, also if EPOLLET has told that already";
const READ_ALL: &str = "3000; *re* has waited: 3000 *";
/// Two of them, in whatever family.
const READ_SEGMENTS: &str = "3000; *re* has waited: 28# *";
/// The kernel's frames have room for all of it, on the way between two namespaces.
const IN_SEGMENTS: &str = "who waits for what is sent in several segments gets the first, or as many as have come, in the kernel as well, where one frame can \
     have them all";
const SENT_AT_ONCE: &str = "#; *re* has waited: # *";
const FIRST_SEGMENT: &str = "#; *re* has waited: 14# *";
const READS_ALL: &[&str] = &["* re* *", "* send* * 3000 dm"];

const FREE_ALREADY: &str = "IPV6_V6ONLY after a connect() that was refused, or that AF_UNSPEC has ended, fails: the kernel's socket keeps its port";

const NAME_AFTER: &[&str] = &["* accept *", "* unconnect *", "* fork*"];
const NAME_AFTER_GIVEN: &[&str] = &["* accept *", "* unconnect *", "* give *"];
const NAME_AFTER_CONNECT: &[&str] = &["* accept *", "* unconnect *", "* connect *"];

const NO_NAME: &str = "nor does one say the address at which a connection was accepted that has been ended by AF_UNSPEC, when a connect() of it has failed since";

const SETS_CLOSE: &str = "so an epoll set has no connection any more whose descriptor was closed while another thread waits for it";

const URGENT_KEPT: &str =
    "urgent data stands in the stream of a connection that a call waits for whose descriptor was closed";

const LONGER_LATER: &str = "a datagram that is longer than a frame comes by the kernel's socket, and is read after those that came at user level";
const OWN_DATAGRAMS: &str = "of a UDP socket that several processes have by a fork each has what comes to it: of one that none had used before a part of \
     the peers, and what waits in any other goes to the child that uses it first; another one does not see that, and an epoll set of that child \
     says what is the kernel's apart";
const ERROR_OF_OTHERS: &str = "of a UDP socket that several processes have by a fork, and that one of them connects, the ICMP error of what is sent then is lost if \
     another one has used it before: it comes to the stack of that one, which has not heard yet that it is connected";
const LOST_AT_EXEC: &str = "what waits in a UDP socket at user level when its process calls exec is lost: the kernel's queue cannot be given it";

const REFUSED_BEFORE: &str = "that a connect() was refused, which AF_UNSPEC has ended since, is not told any more once the socket is passed on (SCM_RIGHTS)";
const ERROR_UNTOLD: &str = "an epoll set does not tell the error of a UDP socket that was passed on (SCM_RIGHTS), as of what was sent before anybody waited in the set; \
     the next call on it does";
const SEEN_ONCE: &str = "recvmmsg() with MSG_PEEK that waits while its descriptor is closed has a datagram once; the kernel as often as there are records";

const POLLS: &str = "* poll* *|* ppoll *|* wait *|* pwait *";
const SELECTS: &str = "* select *|* pselect *";
const WAITS: &str = "* wait *|* pwait *";
/// What a wait says that ends without an event, or does not end.
const NOTHING: &str = "0*|waits";
/// A thread that waited hears that there is room.
const ROOM_HEARD: &str = "*has waited: # *OUT*|*select * has waited: # *w*";
/// It hears that its descriptor is closed.
const CLOSED_HEARD: &str = "*accept * has waited: EBADF*|*wait * has waited: EBADF*|*select * has waited: EBADF*|*poll*has waited: # *NVAL*";
const SENDS_GO_ON: &str = "*send * 3000000 - has waited: some*|*send * 3000000 - has waited: 3000000*";
const FILLS: &str = "* fill *|* send * 3000000 *";
/// What has the kernel take a connection.
const HANDS_OVER: &str = "* fork*|* give *|* exec|* send* *o";
const FULL_AND_HANDED_OVER: &[&str] = &[FILLS, HANDS_OVER];
const HANDED_OVER_AND_FULL: &[&str] = &[HANDS_OVER, FILLS];
const STATES_FULL: &str = "ESTABLISHED|FIN_WAIT1";
const STATES_WITH_ROOM: &str = "CLOSE_WAIT|FIN_WAIT2";
const HEARD_ONCE: &str = "* ctl * *E|* ctl * *1";
const PASSED_ON: &str = "* fork*|* give *|* exec";
const DATAGRAMS_FORKED: &[&str] = &["* dgram *", "* fork*"];
const DATAGRAMS_FORKED_CONNECTED: &[&str] = &["* dgram *", "* fork*", "* connect *"];
const DATAGRAMS_AND_EXEC: &[&str] = &["* dgram *", "* exec"];

const PEEKED_TWICE: &str = "recv() with MSG_PEEK and MSG_WAITALL that waits while another thread reads says what is there; the kernel counts what it has seen before, \
     too";
const BOUND_SINCE: &str = "what was reset, and has been bound since, tells nothing of it once it is passed on (SCM_RIGHTS), and with something unread is not: the broker \
     cannot make a connection of a socket that is bound";
const BOUND_AND_GIVEN: &[&str] = &["* bind *", "* give *"];
const NAME_KEPT: &str = "getsockname() of what was handed over, and then ended by connect() to AF_UNSPEC, goes on saying the address: the kernel's socket was bound to \
     it to be handed the connection";
const NAME_HANDED_OVER: &[&str] = &["* connect *", PASSED_ON, "* unconnect *|* connect *"];

/// An entry of the most common kind.
const fn known(
    step: &'static str,
    (kernel, overfly): (&'static str, &'static str),
    after: &'static [&'static str],
    reason: &'static str,
) -> Known {
    Known { step, kernel, overfly, after, place: None, ends: true, reason }
}

/// One of connections within the host.
const fn within_host(
    step: &'static str,
    told: (&'static str, &'static str),
    after: &'static [&'static str],
    reason: &'static str,
) -> Known {
    Known { place: Some(Place::Host), ..known(step, told, after, reason) }
}

pub(crate) static KNOWN: [Known; 182] = [
    known(
        "* bind *",
        ("0", "EINVAL"),
        &["* shutdown *"],
        "bind() of a connection that both ends have shut fails while it is in TIME-WAIT: the kernel's socket keeps its port",
    ),
    known("* bind *", ("0", "EINVAL"), &["* accept *", "* fork*"], KEPT_PORT),
    Known { ends: false, ..known("* get * unsent", ("#", "0"), OVER, UNSENT) },
    Known { ends: false, ..known("* get * unsent", ("#", "#"), &["* unconnect *"], UNSENT) },
    Known { ends: false, ..known("* get * unsent", ("0", "#"), &["* re* *", CLOSES], UNACKNOWLEDGED) },
    // The SYN of a connect() that has failed, and what connect() adds to it when it says so.
    Known { ends: false, ..known("* get * unsent", ("1", "0"), &["* connect *"], UNSENT) },
    Known { ends: false, ..known("* get * unsent", ("3", "0"), &["* connect *"], UNSENT) },
    // After a fork the kernel's socket is asked here, too, and says another number.
    Known { ends: false, ..known("* get * unsent", ("#", "2"), &["* connect *", "* fork*"], UNSENT) },
    Known { ends: false, ..known("* get * unsent", ("6#", "6#"), &["* send* *", "* connect *"], UNSENT) },
    known("* send* *", (READ, POLLED_AND_READ), POLL_AND_READ, READ_BEFORE),
    known("* writev *", (READ, POLLED_AND_READ), POLL_AND_READ, READ_BEFORE),
    known("* send* *", (READ, READ_AND_POLLED), POLL_AND_READ, READ_BEFORE),
    known("* writev *", (READ, READ_AND_POLLED), POLL_AND_READ, READ_BEFORE),
    known("* send* *", (POLLED_AND_READ, READ), POLL_AND_READ, READ_BEFORE),
    known("* writev *", (POLLED_AND_READ, READ), POLL_AND_READ, READ_BEFORE),
    known("* send* *", (READ_AND_POLLED, READ), POLL_AND_READ, READ_BEFORE),
    known("* writev *", (READ_AND_POLLED, READ), POLL_AND_READ, READ_BEFORE),
    known("* send* *", (READ, READ_AND_SELECTED), SELECT_AND_READ, READ_BEFORE),
    known("* send* *", (READ_AND_SELECTED, READ), SELECT_AND_READ, READ_BEFORE),
    known("*", ("*poll* *I* has waited: # *IN*", "!*poll* has waited*"), POLL_AND_SPLICE, READ_BEFORE),
    known("*", ("!*poll* has waited*", "*poll* *I* has waited: # *IN*"), POLL_AND_SPLICE, READ_BEFORE),
    known("*", ("*poll* *I* has waited: # *IN*", "!*poll* has waited*"), SPLICE_AND_POLL, READ_BEFORE),
    known("*", ("!*poll* has waited*", "*poll* *I* has waited: # *IN*"), SPLICE_AND_POLL, READ_BEFORE),
    Known { ends: false, ..known("*", (POLLED_FIRST, POLLED_LATER), WAIT_FOR_ONE, TAKEN_BEFORE) },
    Known { ends: false, ..known("*", (POLLED_LATER, POLLED_FIRST), WAIT_FOR_ONE, TAKEN_BEFORE) },
    known("* close *", ("0, then EBADF*", "*re* has waited: EBADF*"), &["* dgram *"], CLOSED_UNDER_A_CALL),
    // As soon as something else wakes it.
    known("*", ("!", "*re* has waited: EBADF*"), &["* dgram *", "* re* *", CLOSES], CLOSED_UNDER_A_CALL),
    known(
        "* *connect *",
        ("0", "0; *re* has waited: EBADF"),
        &["* dgram *", "* re* *", "* close *"],
        CLOSED_UNDER_A_CALL,
    ),
    known("* dup# *", ("0", "0; *poll* has waited: # *"), &["* *poll* -"], REPLACED_UNDER_POLL),
    known("* dup# *", ("0", "0; *select * has waited: # *"), &["* *select * -"], REPLACED_UNDER_POLL),
    known(
        "*",
        ("!", "*poll* * has waited: # *|*select * has waited: *"),
        &[POLL_FOR_EVER, "* dup# *"],
        REPLACED_UNDER_POLL,
    ),
    // The old one goes when the kernel's poll() does.
    known("* send* *", ("#", "ECONNRESET"), &[POLL_FOR_EVER, "* dup# *"], REPLACED_UNDER_POLL),
    known("* re* *", ("waits|EAGAIN", "0*"), &[POLL_FOR_EVER, "* dup# *"], REPLACED_UNDER_POLL),
    known(POLLS, ("!", "*IN*"), &[POLL_FOR_EVER, "* dup# *"], REPLACED_UNDER_POLL),
    known(SELECTS, ("!", "# r*"), &[POLL_FOR_EVER, "* dup# *"], REPLACED_UNDER_POLL),
    known("* select * w *", ("1 w", "waits"), &["* send * 3000000 *"], ROOM_AGAIN),
    known("* poll *", ("1 OUT", "waits"), &["* send * 3000000 *"], ROOM_AGAIN),
    known("* leave *", ("0", "waits"), &["* send * 3000000 *", "* leave *"], ROOM_AGAIN),
    known(
        "* send*",
        ("ECONNREFUSED", "EPIPE"),
        &["* connect *", "* unconnect *", "* give *"],
        REFUSED_BEFORE,
    ),
    known(
        "* send*",
        ("#; *recvmmsg * has waited: 2 *", "#; *recvmmsg * has waited: 1 *"),
        &["* dgram *", "* recvmmsg * *p", "* close *"],
        SEEN_ONCE,
    ),
    known("* send* *", ("ECONNRESET", "EPIPE"), &["* fill *", "* shutdown *", "* send * do"], ANOTHER_QUEUE),
    known(
        "*",
        (
            "*; *re* has waited: ECONNRESET; *send * has waited: EPIPE",
            "*; *re* has waited: 0 ; *send * has waited: ECONNRESET",
        ),
        &["* send * 3000000 -", "* re*"],
        ONE_HEARS,
    ),
    known("* dup# *", ("0", "0; *re* has waited: EBADF*"), &["* dgram *"], CLOSED_UNDER_A_CALL),
    known("* re* *", ("#*", "#*"), &["* dgram *", "* send* * *000 *", "* send* *"], LONGER_LATER),
    known("* re* *", ("#*", "#*"), &["* dgram *", "* writev * # *000", "* send* *"], LONGER_LATER),
    known(
        "* re* *|* patient recv *|* send* *|* writev *",
        ("ECONNREFUSED*", "#*|EAGAIN*"),
        DATAGRAMS_FORKED_CONNECTED,
        ERROR_OF_OTHERS,
    ),
    known("* sendmmsg *", ("1 #", "2 # #"), NONE, SENT_BEFORE),
    known("* sendmmsg *", ("1 #; *poll* has waited: *", "2 # #; *poll* has waited: *"), NONE, SENT_BEFORE),
    known("* sendmmsg *", ("1 # SIGPIPE", "2 # #"), &["* hear"], SENT_BEFORE),
    known("* sendmmsg *", ("1 #", "2 # #; *re* has waited: ECONNREFUSED"), &["* dgram *"], SENT_BEFORE),
    known("* sendmmsg *", ("1 #", "2 # #; *select * has waited: 1 *"), &["* dgram *"], SENT_BEFORE),
    known("* sendmmsg *", ("1 #", "2 # #; *poll* has waited: *ERR*"), &["* dgram *"], SENT_BEFORE),
    known("* sendmmsg *", ("1 #", "1 #; *select * has waited: 1*"), &["* dgram *"], ERROR_BEFORE),
    known("* sendmmsg *", ("1 #", "1 #; *poll* has waited: *ERR*"), &["* dgram *"], ERROR_BEFORE),
    known(
        "* send * do",
        ("1", "1; *send * 3000000 - has waited: *"),
        &["* send * 3000000 -", "* send * do"],
        ANOTHER_QUEUE,
    ),
    known("* send * do", ("#", "#; *re* has waited: # *"), &["* re* *", "* close *"], URGENT_KEPT),
    known("* send * do", ("#", "#; *re* has waited: #"), &["* re* *", "* close *"], URGENT_KEPT),
    known(
        "* send * do",
        ("#; *re* has waited: # *", "#; *re* has waited: # *"),
        &["* re* *", "* close *"],
        URGENT_KEPT,
    ),
    known("* send * do", ("#; *splice * has waited: 0*", "#*"), &["* splice *", "* close *"], URGENT_KEPT),
    known("* wait * 0", ("1 *:OUT", "0"), &["* re* *", "* ctl * add *", "* close *"], SETS_CLOSE),
    known("* splice *", ("0", "waits"), &["* send * do"], URGENT_AGAIN),
    known("* splice *", ("0 ", "waits"), &["* send * do"], URGENT_AGAIN),
    known("* recv * do*", ("# *", "EINVAL"), &["* send * do"], URGENT_AGAIN),
    known("* leave *", ("0", "waits"), &["* send * do"], URGENT_AGAIN),
    known("* mark *", ("1", "0"), &["* send * do"], URGENT_AGAIN),
    known("* leave *", ("0", "0; *poll*has waited: 1 HUP"), &["* *poll * -"], CLOSED_UNDER_A_CALL),
    // Without a place for the bytes (MSG_TRUNC), or for none.
    known("* recv * do*", ("#", "EINVAL"), &["* send * do"], URGENT_AGAIN),
    known("* re* d*", ("#*", "EAGAIN"), &["* send * do"], URGENT_AGAIN),
    known("* writev * # #", (SENT_AT_ONCE, FIRST_SEGMENT), &["* re* *", "* writev *"], IN_SEGMENTS),
    known("* send* * *000 *", (SENT_AT_ONCE, FIRST_SEGMENT), &["* re* *", "* send* *"], IN_SEGMENTS),
    known("* sendfile * *000", (SENT_AT_ONCE, FIRST_SEGMENT), &["* re* *", "* sendfile *"], IN_SEGMENTS),
    known("* send* * dm", (READ_ALL, READ_SEGMENTS), READS_ALL, HELD_BACK),
    known(
        "* send* * dm",
        ("3000; *splice * has waited: 3000 *", "3000; *splice * has waited: 28# *"),
        &["* splice *", "* send* * 3000 dm"],
        HELD_BACK,
    ),
    known(
        "* send* * dm",
        ("3000; *recvmmsg * has waited: 1 3000 *", "3000; *recvmmsg * has waited: # 28# *"),
        READS_ALL,
        HELD_BACK,
    ),
    known("* send* * dm", (READ_SEGMENTS, READ_ALL), READS_ALL, HELD_BACK),
    known("* set * v6only *", ("0", "EINVAL"), &["* connect *"], FREE_ALREADY),
    known("* sendmmsg *", ("2 # #; * has waited: *", "2 # #; * has waited: *"), NONE, ONE_OR_BOTH),
    known("* bind *", ("0", "EINVAL"), &["* accept *", "* give *"], KEPT_PORT),
    known("* bind *", ("0", "EINVAL"), &["* accept *", "* exec"], KEPT_PORT),
    known("* poll *", ("1 IN*", "0 -*"), &["* listen *", "* give *", "* take *"], NOT_PASSED_ON),
    known(
        "* accept *",
        ("EAGAIN", "waits"),
        &["* listen *", "* give *", "* take *", "* nonblock * 1"],
        OWN_FLAG,
    ),
    known(
        "* accept *",
        ("waits", "EAGAIN"),
        &["* listen *", "* give *", "* take *", "* nonblock * 0"],
        OWN_FLAG,
    ),
    known(
        "* patient accept *",
        ("EAGAIN at once", "EAGAIN after the timer"),
        &["* listen *", "* give *", "* take *", "* nonblock * 1"],
        OWN_FLAG,
    ),
    known(
        "* patient accept *",
        ("EAGAIN after the timer", "EAGAIN at once"),
        &["* listen *", "* give *", "* take *", "* nonblock * 0"],
        OWN_FLAG,
    ),
    known("* accept *", ("new", "EAGAIN|waits"), &["* listen *", "* give *", "* take *"], NOT_PASSED_ON),
    Known {
        ends: false,
        ..known("* get * flags", ("0o4002", "0o2"), &["* listen *", "* give *", "* nonblock * 1"], OWN_FLAG)
    },
    Known {
        ends: false,
        ..known("* get * flags", ("0o2", "0o4002"), &["* listen *", "* give *", "* nonblock * 0"], OWN_FLAG)
    },
    Known {
        ends: false,
        ..known("* get * queued", ("0", "#"), &["* set * lowat 4", "* shutdown *"], WOKEN_OTHERWISE)
    },
    // What the peer has still comes at once then, to an end that is shut.
    known(
        "* drain *",
        ("0", "ECONNRESET"),
        &["* shutdown * 0", "* fill *", "* fork*", "* shutdown * 1", "* drain *"],
        ANOTHER_QUEUE,
    ),
    // The child has had it handed over.
    known(
        "* wait *",
        ("1 *:IN+OUT+ERR", "1 *:IN+OUT"),
        &["* dgram *", "* give *", "* ctl * add *"],
        ERROR_UNTOLD,
    ),
    known("*", ("!", "*splice * has waited: # *"), &["* fork*", "* lowat 4", "* splice *"], ANEW),
    known(
        "@ patient recv *",
        ("EAGAIN after the timer", "EAGAIN after the timer; * has waited: EAGAIN"),
        &["* fork*"],
        ANEW,
    ),
    known("* wait *", ("waits", "1 *:OUT"), &["* shutdown * 0", "* fill *", "* drain *"], HALF_READ),
    within_host(SENDS, ("ECONNRESET", "EPIPE*"), &[FILLS, CLOSES], HALF_READ),
    within_host(RECEIVES, ("ECONNRESET*", "0*"), &[FILLS, CLOSES], HALF_READ),
    known("* wait *", ("0", "1 *:HUP"), &["* ctl * add *1", "* fork*"], DISARMED),
    known("* connect *", ("!", "*poll* has waited: # *IN*"), &["* ctl * *1", "* unconnect *"], DISARMED),
    known("* give *", GIVEN_AND_HEARD, &["* ctl * add *1", "* wait *", "* wait * -"], DISARMED),
    known("* give *", GIVEN_AND_HEARD, &["* ctl * add *E", "* wait *", "* wait * -"], HEARD_TWICE),
    known("* wait *", ("waits", "1 *:HUP"), &["* ctl * add *1", "* fork*"], DISARMED),
    known("* wait *", ("0", "1 *:*HUP"), &["* ctl * add *1", "* exec"], DISARMED),
    known(POLLS, ("*IN*", "0*"), &["* listen *", "* connect *", "* fork*"], OWN_QUEUE),
    known("@ accept *", ("new", "EAGAIN"), &["* listen *", "* connect *", "* fork*"], OWN_QUEUE),
    known("* connect *", ("EINVAL", "E*"), &["* connect *", "* fork*", "* shutdown *"], SHUT_UNTOLD),
    known("* connect *", ("EINVAL", "E*"), &["* connect *", "* shutdown *", "* give *"], SHUT_UNTOLD),
    known("* shutdown *", ("ENOTCONN", "0"), LISTENER_ENDED, OWN_LISTENER),
    known("* re*", ("ECONNRESET", "*"), LISTENER_ENDED, OWN_LISTENER),
    known(
        "* accept *",
        ("EINVAL", "EAGAIN|waits"),
        &["* listen *", "* fork*", "* unconnect *"],
        OWN_LISTENER,
    ),
    known("* get * error", ("ECONNRESET", "0"), LISTENER_ENDED, OWN_LISTENER),
    known("@ wait *", ("# *", "0"), &["* ctl * add *", "* fork*", "@ close *"], OWN_CLOSE),
    known(WAITS, ("# *", NOTHING), &["* fork*", CLOSES], OWN_CLOSE),
    known("* poll *", ("1 IN*", "0 -*"), &["* ctl * add *", "* re*", "* close *"], OWN_CLOSE),
    known(POLLS, ("*IN*", "!*IN*"), &["* ctl * add *", "* fork*", CLOSES], OWN_CLOSE),
    known(SELECTS, ("# r*", "!# r*"), &["* ctl * add *", "* fork*", CLOSES], OWN_CLOSE),
    known(
        "@ accept *",
        ("new", "waits"),
        &["* listen *", "* connect *", "* fork*", "* dup# *"],
        QUEUE_CLOSED,
    ),
    known(
        "*",
        ("*re* * pw has waited: # *", "*re* * pw has waited: # *"),
        &["* re* * pw", "* re* *"],
        PEEKED_TWICE,
    ),
    known(POLLS, ("*ERR*", "!*ERR*"), BOUND_AND_GIVEN, BOUND_SINCE),
    known("* connect *", ("EISCONN|ECONN*", "0|EINPROGRESS"), BOUND_AND_GIVEN, BOUND_SINCE),
    known("* get * error", ("E*", "0"), BOUND_AND_GIVEN, BOUND_SINCE),
    known("* give *", ("1", "EOPNOTSUPP"), BOUND_AND_GIVEN, BOUND_SINCE),
    known(SENDS, ("ECONNRESET", "EPIPE*"), BOUND_AND_GIVEN, BOUND_SINCE),
    known(RECEIVES, ("ECONNRESET*", "*"), BOUND_AND_GIVEN, BOUND_SINCE),
    Known { ends: false, ..known("* get * name", ("# port any", "# port"), NAME_HANDED_OVER, NAME_KEPT) },
    known("* dup# *", ("0", "0; *re* has waited: 0 *"), &[POLL_FOR_EVER], REPLACED_UNDER_POLL),
    known("* wait *", ("# *", "0"), &["* epoll *", "* fork*", "@ ctl * add *"], OWN_SET),
    known(WAITS, (NOTHING, "# *"), &["* epoll *", "* fork*", "* ctl * del *"], OWN_SET),
    known("* poll* *", ("!", "*IN*"), &["* epoll *", "* fork*", "* ctl *"], OWN_SET),
    known("@ ctl * mod *", ("ENOENT", "0"), &["* epoll *", "* fork*", "* ctl * del *"], OWN_SET),
    known("@ ctl * del *", ("ENOENT", "0"), &["* epoll *", "* fork*", "* ctl * del *"], OWN_SET),
    known("@ ctl * mod *", ("0", "ENOENT"), &["* epoll *", "* fork*", "* ctl * add *"], OWN_SET),
    known("@ ctl * del *", ("0", "ENOENT"), &["* epoll *", "* fork*", "* ctl * add *"], OWN_SET),
    known("* ctl * del *", ("0", "ENOENT"), &["* epoll *", "* fork*", "@ ctl * add *"], OWN_SET),
    known("@ ctl * add *", ("0", "EEXIST"), &["* epoll *", "* fork*", "* ctl * del *"], OWN_SET),
    known("@ ctl * add *", ("EEXIST", "0"), &["* epoll *", "* fork*", "* ctl * add *"], OWN_SET),
    known("* poll2 *", ("1 - IN*", "2 IN IN*"), &["* dgram *", "* ctl * *E", "* wait *"], SET_SAYS),
    Known { ends: false, ..known("* get * name", ("# port*", "# no port*"), NAME_AFTER, NO_PORT) },
    Known { ends: false, ..known("* get * name", ("# port*", "# no port*"), NAME_AFTER_GIVEN, NO_PORT) },
    Known { ends: false, ..known("* get * name", ("# port*", "# port* any"), NAME_AFTER_CONNECT, NO_NAME) },
    within_host(
        "* bind *",
        ("EINVAL", "0"),
        &["* listen *", "* connect *", "* fork*", "* close *"],
        QUEUE_CLOSED,
    ),
    within_host("* get * unsent", ("0", "1"), CLOSED_AND_HANDED_OVER, ONE_END),
    within_host("* get * error", ("0", "ECONNRESET"), CLOSED_AND_HANDED_OVER, ONE_END),
    within_host("* get * error", ("0", "ECONNRESET"), HANDED_OVER_AND_CLOSED, ONE_END),
    within_host(POLLS, ("# *HUP*", "# *ERR+HUP*"), CLOSED_AND_HANDED_OVER, ONE_END),
    within_host(POLLS, ("# *HUP*", "# *ERR+HUP*"), HANDED_OVER_AND_CLOSED, ONE_END),
    within_host(SENDS, ("EPIPE*", "ECONNRESET"), CLOSED_AND_HANDED_OVER, ONE_END),
    within_host(SENDS, ("EPIPE*", "ECONNRESET"), HANDED_OVER_AND_CLOSED, ONE_END),
    within_host(RECEIVES, ("0 *|# 0 *", "ECONNRESET*"), CLOSED_AND_HANDED_OVER, ONE_END),
    within_host(RECEIVES, ("0 *|# 0 *", "ECONNRESET*"), HANDED_OVER_AND_CLOSED, ONE_END),
    known("* shutdown *", ("0", "ENOTCONN"), SHUT_AND_READ, PROBED),
    known("* send* *", ("EPIPE", "ECONNRESET"), SHUT_AND_READ, PROBED),
    known("* drain *", ("0", "ECONNRESET"), SHUT_AND_READ, PROBED),
    known("* get * peer", ("# port", "ENOTCONN"), SHUT_AND_READ, PROBED),
    known("* get * state", ("CLOSE_WAIT", "CLOSE"), SHUT_AND_READ, PROBED),
    known("* get * state", (STATES_FULL, STATES_WITH_ROOM), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known("* get * state", (STATES_FULL, STATES_WITH_ROOM), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known(POLLS, ("!", "*OUT*|*RDHUP*"), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known(POLLS, ("!", "*OUT*|*RDHUP*"), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known("* poll2 *", ("# *", "2 *OUT *OUT*"), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known("* poll2 *", ("# *", "2 *OUT *OUT*"), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known(SELECTS, ("!", "# w*|# r w*"), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known(SELECTS, ("!", "# w*|# r w*"), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known("*", ("!", ROOM_HEARD), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known("*", ("!", ROOM_HEARD), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known("*", ("*", SENDS_GO_ON), FULL_AND_HANDED_OVER, ANOTHER_QUEUE),
    known("*", ("*", SENDS_GO_ON), HANDED_OVER_AND_FULL, ANOTHER_QUEUE),
    known(WAITS, (NOTHING, "# *"), &[HEARD_ONCE, WAITS, PASSED_ON], HEARD_TWICE),
    known(WAITS, (NOTHING, "# *"), &[HEARD_ONCE, "* fork*", WAITS, WAITS], HEARD_TWICE),
    known("* poll* *|* ppoll *", ("*", "*IN*"), &[HEARD_ONCE, WAITS, PASSED_ON], HEARD_TWICE),
    known("* poll* *|* ppoll *", ("*", "*IN*"), &[HEARD_ONCE, "* fork*", WAITS], HEARD_TWICE),
    known(
        "* exec",
        ("*wait * has waited: has gone", "*wait * has waited: # *; *: has gone"),
        &[HEARD_ONCE, "* wait *"],
        HEARD_TWICE,
    ),
    known("* re* *", ("#*", "EAGAIN*|waits|#*"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known("*", ("*has waited: *", "!*has waited: *"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known(WAITS, ("1 *", "2 *"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known("* get * queued", ("#", "#"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known(POLLS, ("*IN*", "!*IN*"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known(SELECTS, ("# r*", "!# r*"), DATAGRAMS_FORKED, OWN_DATAGRAMS),
    known("* re* *", ("#*", "EAGAIN*|waits"), DATAGRAMS_AND_EXEC, LOST_AT_EXEC),
    known("* get * queued", ("#", "0"), DATAGRAMS_AND_EXEC, LOST_AT_EXEC),
    known(POLLS, ("*IN*", "!*IN*"), DATAGRAMS_AND_EXEC, LOST_AT_EXEC),
    known(SELECTS, ("# r*", "!# r*"), DATAGRAMS_AND_EXEC, LOST_AT_EXEC),
    known(CLOSES, ("!", CLOSED_HEARD), NONE, CLOSED_UNDER_A_CALL),
    // As soon as something else wakes it.
    known("*", ("!", CLOSED_HEARD), &[CLOSES], CLOSED_UNDER_A_CALL),
];

impl Known {
    /// At a step, the last one of those so far.
    pub(crate) fn is(&self, place: Place, so_far: &[Step], step: &str, kernel: &str, overfly: &str) -> bool {
        self.place.is_none_or(|its| its == place)
            && fits(self.step, step)
            && match self.kernel {
                "!" => !fits(self.overfly, kernel),
                pattern => fits(pattern, kernel),
            }
            && fits(self.overfly, overfly)
            && self.comes_after(so_far)
    }
}

impl Known {
    fn comes_after(&self, steps: &[Step]) -> bool {
        let mut steps = steps.iter().map(Step::to_string);
        self.after.iter().all(|pattern| steps.any(|step| fits(pattern, &step)))
    }
}

/// Whether a text is as one of the pattern's alternatives has it.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_prefix('!') {
        Some(pattern) => !fits(pattern, text),
        None => pattern.split('|').any(|alternative| fits_one(alternative, text)),
    }
}

fn fits_one(pattern: &str, text: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return text.is_empty() };
    let rest = &pattern[first.len_utf8()..];
    let after = |length: usize| fits_one(rest, &text[length..]);
    match first {
        '*' => text.char_indices().map(|(at, _)| at).chain([text.len()]).any(after),
        '#' => {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            digits > 0 && after(digits)
        }
        '@' => text.starts_with(['C', 'D', 'E', 'F']) && after(1),
        _ => text.starts_with(first) && after(first.len_utf8()),
    }
}

#[test]
fn patterns_fit_what_they_are_meant_for() {
    assert!(fits("@ send* *", "C sendmsg b 6 d") && fits("@ send* *", "D send b 6 d"));
    assert!(!fits("@ send* *", "L send b 6 d") && !fits("@ send* *", "C writev b 6 1"));
    assert!(fits("#", "64262") && !fits("#", "EINVAL") && !fits("#", "") && !fits("#", "12 x"));
    assert!(fits("@ send*|L close *", "L close b") && !fits("!@ send*|L close *", "L close b"));
    assert!(fits("!0*|waits", "1 b:IN") && !fits("!0*|waits", "waits") && fits("", ""));
    assert!(fits("*accept * has waited: EBADF*", "0, then EBADF; L accept a c n has waited: EBADF"));
    // All digits are one number: one behind it never fits.
    assert!(
        fits("* send* * *000 *", "L sendmsg b 2000 d") && !fits("* send* * #000 *", "L sendmsg b 2000 d")
    );
    let texts = |known: &Known| [&[known.step, known.kernel, known.overfly], known.after].concat();
    let digit_behind =
        |text: &str| text.split('#').skip(1).any(|rest| rest.starts_with(|next: char| next.is_ascii_digit()));
    for text in KNOWN.iter().flat_map(texts) {
        assert!(!digit_behind(text), "never fits: {text}");
    }
}
