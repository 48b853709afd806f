//! A call's way through the contexts that concern it. It has the lock of one at a time, and keeps that until it looks at another
//! one: where there is one context alone, for as long as it does not wait.

use super::{Process, contexts};
use crate::lock::Guard;

/// Where a call is.
pub(crate) struct Rounds(Option<Guard<'static, Process>>);

impl Rounds {
    /// Nowhere.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// In the context whose lock is held.
    pub(crate) const fn holding(guard: Guard<'static, Process>) -> Self {
        Self(Some(guard))
    }

    /// In a context. The lock of another one is released before.
    #[inline]
    pub(crate) fn enter(&mut self, context: usize) -> &mut Process {
        if self.0.as_ref().is_none_or(|guard| guard.context != context) {
            self.leave();
            self.0 = Some(contexts::at(context));
        }
        match &mut self.0 {
            Some(guard) => guard,
            None => unreachable!("it has just entered"),
        }
    }

    /// Nowhere any more.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.0 = None;
    }

    /// Does something with the lock, which may be released meanwhile.
    pub(crate) fn pass(&mut self, act: impl FnOnce(Guard<'static, Process>) -> Guard<'static, Process>) {
        self.0 = self.0.take().map(act);
    }

    /// The lock of a context.
    pub(crate) fn end(mut self, context: usize) -> Guard<'static, Process> {
        self.enter(context);
        self.0.take().unwrap_or_else(|| contexts::at(context))
    }
}
