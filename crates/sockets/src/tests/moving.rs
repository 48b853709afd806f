//! Connections that move between two stacks of one server.

use std::collections::BTreeMap;

use overfly_testing::Random;

use super::*;

/// A server with two stacks, of which the first one listens, and a client; what is between them knows whose frames are whose.
struct Fork {
    stacks: [Stack<Cable>; 2],
    client: Stack<Cable>,
    listener: SocketId,
    /// What the client sends; what goes to each stack; what comes back.
    there: Wire,
    to: [Wire; 2],
    back: Wire,
    /// By the client's port.
    steering: BTreeMap<u16, usize>,
    now: Instant,
}

impl Fork {
    fn new(loss: usize) -> Self {
        let (there, to, back) = (Wire::default(), <[Wire; 2]>::default(), Wire::default());
        let cable = |inbound: &Wire, outbound: &Wire| Cable {
            inbound: Rc::clone(inbound),
            outbound: Rc::clone(outbound),
            buffer: [0; 2048],
            loss,
            sent: 0,
        };
        let stacks = [0_u8, 1].map(|context| {
            let mut stack = Stack::new();
            stack.belongs_to(context.into());
            let mut config = Config::new(SERVER_MAC, SERVER_IP, 16);
            config.hash_key = [context; 16];
            let engine = Engine::new(config).unwrap();
            stack.start(Side::Network, engine, cable(&to[usize::from(context)], &back), 16);
            stack
        });
        let mut client = Stack::new();
        let engine = Engine::new(Config::new(CLIENT_MAC, CLIENT, 16)).unwrap();
        client.start(Side::Network, engine, cable(&back, &there), 16);
        let mut fork = Self {
            stacks,
            client,
            listener: SocketId(0),
            there,
            to,
            back,
            steering: BTreeMap::new(),
            now: Instant::from_micros(1_000_000),
        };
        fork.listener = fork.stacks[0].open(3, false, true).unwrap();
        fork.stacks[0].listening(fork.listener, 64);
        assert_eq!(fork.stacks[0].join(Side::Network, fork.listener, SERVER), Ok(true));
        fork
    }

    /// Frames go where they are steered.
    fn distribute(&self) {
        for frame in self.there.borrow_mut().drain(..) {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            let stack = self.steering.get(&port).copied().unwrap_or(0);
            self.to[stack].borrow_mut().push_back(frame);
        }
    }

    fn settle(&mut self) {
        loop {
            self.now = self.now + Duration::from_micros(10);
            self.distribute();
            self.stacks.iter_mut().for_each(|stack| _ = stack.pump(self.now));
            self.client.pump(self.now);
            if [&self.there, &self.to[0], &self.to[1], &self.back].iter().all(|wire| wire.borrow().is_empty())
            {
                return;
            }
        }
    }

    fn wait(&mut self) {
        let stacks = self.stacks.iter().chain([&self.client]);
        let next = stacks.filter_map(Stack::next_deadline).min();
        self.now = next.unwrap_or(self.now).max(self.now) + Duration::from_micros(1);
        self.settle();
    }

    /// Moves a connection to the other stack, with what is on its way to it or without. Returns what it is there.
    fn pass(&mut self, port: u16, id: SocketId, takes_all: bool) -> Option<SocketId> {
        let from = id.context();
        let [first, second] = &mut self.stacks;
        let (here, there) = if from == 0 { (first, second) } else { (second, first) };
        if !here.may_move(id, there) {
            return None;
        }
        let reserved = there.reserve().unwrap();
        self.steering.insert(port, 1 - from);
        if takes_all {
            here.pump(self.now);
        }
        let Some(moving) = Some(()).filter(|()| here.may_move(id, there)).and_then(|()| here.take_out(id))
        else {
            there.unreserve(reserved);
            self.steering.insert(port, from);
            return None;
        };
        assert!(there.put_in(self.now, reserved, moving).is_ok());
        Some(reserved)
    }
}

/// One connection: what it is to the client and to the server, and how much of each stream was sent and has come.
struct Talk {
    port: u16,
    client: SocketId,
    server: SocketId,
    questions: [usize; 2],
    answers: [usize; 2],
    moves: usize,
}

impl Talk {
    fn begin(fork: &mut Fork, port: u16) -> Self {
        let client = fork.client.open(i32::from(port), false, true).unwrap();
        let local = SocketAddr::new(CLIENT.into(), port);
        let settings = Settings::DEFAULT;
        fork.client.connect(fork.now, Side::Network, client, local, SERVER, SERVER_MAC, settings).unwrap();
        let server = loop {
            fork.settle();
            match fork.stacks[0].accept(fork.listener, 100, true) {
                Some(server) => break server,
                None => fork.wait(),
            }
        };
        Self { port, client, server, questions: [0; 2], answers: [0; 2], moves: 0 }
    }
}

const TOTAL: usize = 60_000;

fn byte(port: u16, answers: bool, place: usize) -> u8 {
    (place * 7 + place / 251 + usize::from(port) * 13 + usize::from(answers) * 101) as u8
}

/// Writes and reads a piece of one stream of a connection.
fn step(
    random: &mut Random,
    (writer, from): (&mut Stack<Cable>, SocketId),
    [sent, _]: &mut [usize; 2],
    value: impl Fn(usize) -> u8,
) {
    let end = TOTAL.min(*sent + 1 + random.below(5000) as usize);
    let piece: Vec<u8> = (*sent..end).map(value).collect();
    if !piece.is_empty()
        && let Ok(count) = write(writer, from, &piece)
    {
        *sent += count;
    }
}

fn take(
    seed: u64,
    (reader, to): (&mut Stack<Cable>, SocketId),
    [_, received]: &mut [usize; 2],
    value: impl Fn(usize) -> u8,
) {
    if let Ok(data) = read(reader, to, 7777) {
        for got in data {
            assert_eq!(got, value(*received), "seed {seed}, at {received}");
            *received += 1;
        }
    }
}

#[test]
fn every_byte_is_right_whichever_stack_has_the_connection() {
    let one = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut moves = 0;
    for seed in one.map_or(0..120, |seed: u64| seed..seed + 1) {
        let mut random = Random(seed);
        let loss = [0, 0, 60, 9][random.below(4) as usize];
        let mut fork = Fork::new(loss);
        let mut talks = Vec::new();
        for port in 40_000..40_003 {
            talks.push(Talk::begin(&mut fork, port));
        }
        let mut rounds = 0;
        while talks.iter().any(|talk| talk.questions[1] < TOTAL || talk.answers[1] < TOTAL) {
            for talk in &mut talks {
                let port = talk.port;
                let (question, answer) = (move |at| byte(port, false, at), move |at| byte(port, true, at));
                if random.chance(300) {
                    step(&mut random, (&mut fork.client, talk.client), &mut talk.questions, question);
                }
                if random.chance(300) {
                    let stack = &mut fork.stacks[talk.server.context()];
                    step(&mut random, (stack, talk.server), &mut talk.answers, answer);
                }
                // What is on its way is at any place.
                match random.below(4) {
                    0 => fork.settle(),
                    1 => fork.distribute(),
                    2 => _ = fork.client.pump(fork.now),
                    _ => {}
                }
                if random.chance(200)
                    && let Some(server) = fork.pass(port, talk.server, random.chance(500))
                {
                    talk.server = server;
                    talk.moves += 1;
                }
                take(
                    seed,
                    (&mut fork.stacks[talk.server.context()], talk.server),
                    &mut talk.questions,
                    question,
                );
                take(seed, (&mut fork.client, talk.client), &mut talk.answers, answer);
            }
            if random.chance(200) {
                fork.wait();
            }
            rounds += 1;
            assert!(
                rounds < 100_000,
                "seed {seed}: {:?}",
                talks.iter().map(|talk| (talk.questions, talk.answers)).collect::<Vec<_>>()
            );
        }
        // They end as others do, and leave nothing.
        for talk in &talks {
            fork.stacks[talk.server.context()].close(talk.server);
            fork.client.close(talk.client);
            moves += talk.moves;
        }
        for _ in 0..200 {
            fork.wait();
        }
        for stack in fork.stacks.iter().chain([&fork.client]) {
            assert_eq!(stack.engine(Side::Network).unwrap().flows(), 0, "seed {seed}");
            assert_eq!(stack.unfinished(), 0, "seed {seed}");
        }
    }
    assert!(one.is_some() || moves > 1000, "{moves} moves");
}

#[test]
fn frames_of_a_connection_that_stays_where_it_was_are_no_reset() {
    let mut fork = Fork::new(0);
    let talk = Talk::begin(&mut fork, 40_000);
    let remote = SocketAddr::new(CLIENT.into(), talk.port);
    // Steered to the second stack for as long as one frame takes.
    fork.steering.insert(talk.port, 1);
    write(&mut fork.client, talk.client, b"question").unwrap();
    fork.client.pump(fork.now);
    fork.distribute();
    fork.steering.insert(talk.port, 0);
    fork.stacks[1].stays_away(SERVER, remote);
    fork.settle();
    let counters = *fork.stacks[1].engine(Side::Network).unwrap().counters();
    assert_eq!((counters.drop_departed, counters.resets_sent), (1, 0));
    while read(&mut fork.stacks[0], talk.server, 10) != Ok(b"question".to_vec()) {
        fork.wait();
    }
}

/// What was not read, what waits to be sent, the settings and the place in the stream go along; the old stack answers nothing.
#[test]
fn all_that_a_connection_is_goes_along() {
    let mut fork = Fork::new(0);
    let port = 40_000;
    let client = fork.client.open(7, false, true).unwrap();
    let local = SocketAddr::new(CLIENT.into(), port);
    fork.client
        .connect(fork.now, Side::Network, client, local, SERVER, SERVER_MAC, Settings::DEFAULT)
        .unwrap();
    fork.settle();
    let server = fork.stacks[0].accept(fork.listener, 100, true).unwrap();
    fork.stacks[0].change(server, |settings| settings.no_delay = true);
    write(&mut fork.client, client, b"unread").unwrap();
    fork.settle();
    write(&mut fork.stacks[0], server, b"unsent").unwrap();
    let before = *fork.stacks[0].socket(server).remote.to_string().as_bytes().last().unwrap();
    let moved = fork.pass(port, server, false).expect("a quiet connection");
    assert_eq!(moved.context(), 1);
    let socket = fork.stacks[1].socket(moved);
    assert!(socket.settings.no_delay && socket.passive && socket.nonblocking);
    assert_eq!(socket.remote.to_string().as_bytes().last(), Some(&before));
    assert_eq!(fork.stacks[0].socket(server).flow, None);
    fork.settle();
    assert_eq!(read(&mut fork.client, client, 10), Ok(b"unsent".to_vec()));
    assert_eq!(read(&mut fork.stacks[1], moved, 10), Ok(b"unread".to_vec()));
    // A frame that still comes to the old one is nobody's, and no reset.
    fork.steering.insert(port, 0);
    write(&mut fork.client, client, b"late").unwrap();
    fork.settle();
    assert_eq!(read(&mut fork.client, client, 10), Err(Errno::AGAIN));
    assert_eq!(fork.stacks[0].engine(Side::Network).unwrap().counters().drop_departed, 1);
    fork.steering.insert(port, 1);
    while read(&mut fork.stacks[1], moved, 10) != Ok(b"late".to_vec()) {
        fork.wait();
    }
    // A connection that one side has ended may go as well; one that this side has ended stays.
    fork.client.shutdown(client, false, true).unwrap();
    fork.settle();
    let home = fork.pass(port, moved, true).expect("CLOSE-WAIT");
    assert_eq!((home.context(), read(&mut fork.stacks[0], home, 10)), (0, Ok(vec![])));
    fork.stacks[0].shutdown(home, false, true).unwrap();
    assert_eq!(fork.pass(port, home, true), None);
}
