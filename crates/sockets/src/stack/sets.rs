//! Epoll sets over a stack's sockets.

use rustix::io::Errno;

use super::Stack;
use crate::interest::{Interest, NONE, SetId, bits};
use crate::socket::{SocketId, SocketState};
use overfly_link::Link;

impl<T: Link> Stack<T> {
    /// epoll_create().
    pub fn open_set(&mut self) -> SetId {
        self.sockets.interests.open_set()
    }

    /// A set that was opened in another context may watch sockets of this one.
    pub(crate) fn make_room(&mut self, set: SetId) {
        self.sockets.interests.make_room(set);
    }

    /// close() of a set.
    pub fn close_set(&mut self, set: SetId) {
        self.empty_set(set);
        self.sockets.interests.close_set(set);
    }

    /// A set watches no socket any more.
    pub(crate) fn empty_set(&mut self, set: SetId) {
        let members: Vec<u32> = self.sockets.interests.of_set(set).collect();
        for index in members {
            self.detach(SocketId(self.sockets.interests.at(index).socket), index);
        }
    }

    /// The socket has that interest no more.
    fn detach(&mut self, id: SocketId, index: u32) {
        let mut head = self.sockets.at(id).interests;
        self.sockets.interests.remove(&mut head, index);
        self.sockets.at_mut(id).interests = head;
    }

    /// EPOLL_CTL_ADD. With `in_kernel` the kernel's set reports this one, until the socket connects.
    pub fn watch(
        &mut self,
        set: SetId,
        id: SocketId,
        descriptor: i32,
        events: u32,
        data: u64,
        in_kernel: bool,
    ) -> Result<(), Errno> {
        let level = self.sockets.asked(id, events);
        let mut head = self.sockets.at(id).interests;
        let index = self.sockets.interests.add(&mut head, set, id.0, descriptor, events, data, in_kernel)?;
        self.sockets.at_mut(id).interests = head;
        if !in_kernel && level & (events | bits::ERR | bits::HUP) != 0 {
            self.sockets.interests.list(index);
            self.sockets.news = true;
        }
        Ok(())
    }

    /// EPOLL_CTL_MOD. Returns whether the kernel's set reports this one.
    pub fn rewatch(
        &mut self,
        set: SetId,
        id: SocketId,
        descriptor: i32,
        events: u32,
        data: u64,
    ) -> Result<bool, Errno> {
        let head = self.sockets.at(id).interests;
        let index = self.sockets.interests.find(head, set, descriptor).ok_or(Errno::NOENT)?;
        if self.sockets.interests.at(index).events & bits::EXCLUSIVE != 0 {
            return Err(Errno::INVAL);
        }
        self.sockets.interests.modify(index, events, data);
        let in_kernel = self.sockets.interests.at(index).in_kernel;
        if !in_kernel && self.sockets.asked(id, events) & (events | bits::ERR | bits::HUP) != 0 {
            self.sockets.interests.list(index);
            self.sockets.news = true;
        }
        Ok(in_kernel)
    }

    /// EPOLL_CTL_DEL. Returns whether the kernel's set reported this one.
    pub fn unwatch(&mut self, set: SetId, id: SocketId, descriptor: i32) -> Result<bool, Errno> {
        let head = self.sockets.at(id).interests;
        let index = self.sockets.interests.find(head, set, descriptor).ok_or(Errno::NOENT)?;
        let in_kernel = self.sockets.interests.at(index).in_kernel;
        self.detach(id, index);
        Ok(in_kernel)
    }

    /// The interests in a socket: set, descriptor, the events that they wait for, data.
    pub(crate) fn interests(&self, id: SocketId, mut each: impl FnMut(SetId, i32, u32, u64)) {
        let mut index = self.sockets.at(id).interests;
        while index != NONE {
            let interest = self.sockets.interests.at(index);
            each(SetId(interest.set), interest.descriptor, interest.armed(), interest.data);
            index = interest.next;
        }
    }

    /// The program never waits for the socket but in sets, and the kernel alone reports it there: one that has not joined.
    pub(crate) fn is_left_to_kernels_sets(&self, id: SocketId) -> bool {
        let (mut is, mut is_reported_here) = (false, false);
        self.watchers(id, |interest| {
            is |= interest.in_kernel;
            is_reported_here |= !interest.in_kernel;
        });
        is && !is_reported_here && self.sockets.at(id).nonblocking && !self.has_joined(id)
    }

    /// The interests in a socket, as they are.
    pub(crate) fn watchers(&self, id: SocketId, mut each: impl FnMut(&Interest)) {
        let mut index = self.sockets.at(id).interests;
        while index != NONE {
            let interest = self.sockets.interests.at(index);
            each(interest);
            index = interest.next;
        }
    }

    /// A set has reported a socket for its only time (EPOLLONESHOT).
    pub(crate) fn disable(&mut self, set: SetId, id: SocketId, descriptor: i32) {
        let head = self.sockets.at(id).interests;
        if let Some(index) = self.sockets.interests.find(head, set, descriptor) {
            self.sockets.interests.disable(index);
        }
    }

    /// Listeners and UDP sockets that a set has reported for their only time since this was asked, and the descriptors that it has them by.
    pub(crate) fn take_fired(&mut self, set: SetId) -> Vec<(SocketId, i32)> {
        let fired = self.sockets.interests.take_fired(set).into_iter();
        let fired = fired.map(|interest| (SocketId(interest.socket), interest.descriptor));
        let has_entry = |state: SocketState| matches!(state, SocketState::Listening | SocketState::Datagram);
        fired.filter(|&(id, _)| has_entry(self.sockets.at(id).state)).collect()
    }

    /// Whether a set watches any socket, at user level or in the kernel.
    pub(crate) fn has_interests(&self, set: SetId) -> bool {
        self.sockets.interests.of_set(set).next().is_some()
    }

    /// Sockets in a set, and the descriptors that it has them by.
    pub(crate) fn watched(&self, set: SetId) -> Vec<(SocketId, i32)> {
        let watched = self.sockets.interests.of_set(set).map(|index| self.sockets.interests.at(index));
        watched.map(|interest| (SocketId(interest.socket), interest.descriptor)).collect()
    }

    /// Descriptors in a set whose connections, or UDP sockets, are an ancestor's.
    pub(crate) fn watched_and_lost(&self, set: SetId) -> Vec<i32> {
        let interests = &self.sockets.interests;
        let lost = |index: &u32| {
            let id = SocketId(interests.at(*index).socket);
            self.sockets.at(id).state == SocketState::Lost || self.is_lost_datagram(id)
        };
        interests.of_set(set).filter(lost).map(|index| interests.at(index).descriptor).collect()
    }

    /// What is ready in a set: at most `max` times events and data.
    pub fn collect(&mut self, set: SetId, max: usize, report: impl FnMut(u32, u64)) -> usize {
        self.sockets.collect(set, max, report)
    }

    /// Whether [`Stack::collect`] would find anything.
    #[must_use]
    pub fn set_is_ready(&self, set: SetId) -> bool {
        self.sockets.set_is_ready(set)
    }

    /// Whether something happened in a set since this was asked.
    pub(crate) fn take_news_of(&mut self, set: SetId) -> bool {
        self.sockets.interests.take_news(set)
    }

    /// Sockets of a set that are reported at user level.
    #[must_use]
    pub fn watching(&self, set: SetId) -> usize {
        self.sockets.interests.watching(set)
    }
}
