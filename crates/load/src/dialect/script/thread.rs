//! A thread as scripts see it: `wrk.thread` in its own state, the argument of `setup` in the state of all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mlua::{Error, Lua, Result, UserData, UserDataFields, UserDataMethods, UserDataRef, Value, WeakLua};

use super::address::Address;
use super::value::Plain;

/// What the generator and the scripts share of a thread.
#[derive(Debug, Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    address: Mutex<Option<SocketAddr>>,
}

impl Shared {
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_address(&self, address: Option<SocketAddr>) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

/// The object.
#[derive(Clone)]
pub(super) struct Handle {
    /// The thread's state. Weak: it holds this object itself.
    pub(super) state: WeakLua,
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    fn state(&self) -> Result<Lua> {
        self.state.try_upgrade().ok_or_else(|| Error::runtime("the thread is no more"))
    }
}

impl UserData for Handle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, thread| Ok(thread.shared.address().map(Address)));
        fields.add_field_method_set("addr", |_, thread, address: Option<UserDataRef<Address>>| {
            thread.shared.set_address(address.map(|address| address.0));
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("get", |lua, thread, name: String| {
            Plain::of(&thread.state()?.globals().get(name)?)?.into_lua(lua)
        });
        methods.add_method("set", |_, thread, (name, value): (String, Value)| {
            let state = thread.state()?;
            state.globals().set(name, Plain::of(&value)?.into_lua(&state)?)
        });
        methods.add_method("stop", |_, thread, ()| {
            thread.shared.stop.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}
