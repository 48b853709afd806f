//! Next hops that move while connections are opened for a long time: a gateway that fails over, say.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use overfly_steer::NextHops;
use overfly_wire::MacAddr;

/// How often the kernel is asked.
const EVERY: Duration = Duration::from_millis(250);

/// A stack's view of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hops {
    /// `None`: nobody looks.
    known: Option<Arc<Known>>,
    seen: u64,
}

#[derive(Debug)]
struct Known {
    /// One more with each change.
    version: AtomicU64,
    hops: Mutex<Vec<(IpAddr, MacAddr)>>,
}

impl Hops {
    /// Those to `hops`' destinations behind an interface, which a thread looks after for as long as somebody has a view of them. Without
    /// the thread they stay where they are.
    pub(crate) fn watch(interface: u32, hops: Vec<(IpAddr, MacAddr)>) -> Hops {
        let destinations = hops.iter().map(|&(destination, _)| destination).collect();
        let known = Arc::new(Known { version: AtomicU64::new(0), hops: Mutex::new(hops) });
        let watched = Arc::downgrade(&known);
        if let Ok(kernels) = NextHops::new(interface, destinations) {
            let body = move || look_after(kernels, &watched);
            let _ = std::thread::Builder::new().name("next-hops".to_owned()).spawn(body);
        }
        Hops { known: Some(known), seen: 0 }
    }

    /// Where all of them are, if one is elsewhere than when this was asked before.
    #[inline]
    pub(crate) fn moved(&mut self) -> Option<Vec<(IpAddr, MacAddr)>> {
        let known = self.known.as_ref()?;
        let version = known.version.load(Ordering::Acquire);
        if version == self.seen {
            return None;
        }
        self.seen = version;
        Some(known.hops.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn look_after(mut kernels: NextHops, watched: &Weak<Known>) {
    loop {
        std::thread::sleep(EVERY);
        let Some(known) = watched.upgrade() else { return };
        let mut hops = known.hops.lock().unwrap_or_else(PoisonError::into_inner);
        let mut differs = false;
        for (destination, mac) in kernels.look() {
            for hop in hops.iter_mut().filter(|hop| hop.0 == destination && hop.1 != mac) {
                (hop.1, differs) = (mac, true);
            }
        }
        drop(hops);
        if differs {
            known.version.fetch_add(1, Ordering::Release);
        }
    }
}
