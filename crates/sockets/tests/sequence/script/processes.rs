//! Threads and processes of a sequence that comes to be.

use super::{Closed, Connection, Fresh, Listener, Step, Story, side_of};

impl Story {
    /// A signal for the other thread, which perhaps waits.
    pub(super) fn kick(&mut self, actor: char) {
        let other = match actor {
            'L' => 'M',
            'M' => 'L',
            'R' => 'S',
            'S' => 'R',
            _ => return self.look(actor),
        };
        if !self.actors.contains(&other) {
            return self.make_thread_of(actor);
        }
        let how = self.random.of(&["r", "i"]);
        self.say(actor, format!("kick {other} {how}"));
    }

    /// A descriptor for another process, or for this one. Not of a full connection: the queue that it has then is the kernel's.
    pub(super) fn pass_on(&mut self, actor: char) {
        if !self.filled.is_empty() {
            return self.look(actor);
        }
        let slot = self.slot(actor, &[Connection, Connection, Listener, Fresh]);
        self.say(actor, format!("give {slot}"));
        let kind = self.slots(actor).get(&slot).copied().unwrap_or(Closed);
        let side = side_of(actor);
        let takers: Vec<char> = self.actors.iter().copied().filter(|other| side_of(*other) == side).collect();
        let taker = self.random.of(&takers);
        let new = self.new_slot(taker);
        self.say(taker, format!("take {new}"));
        self.put(taker, new, kind);
    }

    /// Another image: only the thread that asks for it goes on. What waits at a listener of a loopback address is reset then.
    pub(super) fn exec(&mut self, actor: char) {
        let is_his = |step: &Step| step.side() == side_of(actor) && step.word() == "listen";
        let resets = self.within_host && self.steps.iter().any(is_his);
        if resets || !self.filled.is_empty() || "MS".contains(actor) {
            return self.look(actor);
        }
        self.say(actor, "exec");
        let thread = match actor {
            'L' => 'M',
            'R' => 'S',
            _ => return,
        };
        self.actors.retain(|other| *other != thread);
    }

    fn make_thread_of(&mut self, actor: char) {
        if "LR".contains(actor) { self.make_thread(actor) } else { self.look(actor) }
    }

    pub(super) fn make_thread(&mut self, actor: char) {
        self.say(actor, "thread");
        self.actors.push(if actor == 'L' { 'M' } else { 'S' });
    }

    /// Another thread or process, or a child's end.
    pub(super) fn multiply(&mut self, actor: char) {
        let (thread, child, other) = if side_of(actor) == 'L' { ('M', 'C', 'E') } else { ('S', 'D', 'F') };
        let another =
            self.kinds.children && self.slots.contains_key(&child) && !self.slots.contains_key(&other);
        if another && actor != thread {
            return self.make_child(actor, other, &format!("fork {other}"));
        }
        if actor == child || actor == other {
            self.say(actor, "exit");
            self.actors.retain(|other| *other != actor);
        } else if actor == thread {
            self.look(actor);
        } else if !self.actors.contains(&thread) && self.random.chance(60) {
            self.make_thread(actor);
        } else if !self.slots.contains_key(&child) {
            self.make_child(actor, child, "fork");
        }
    }

    fn make_child(&mut self, actor: char, child: char, words: &str) {
        self.say(actor, words);
        let inherited = self.slots(actor).clone();
        self.slots.insert(child, inherited);
        self.actors.push(child);
    }
}
