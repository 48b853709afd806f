//! The lab of `overfly lab up`: the same as [`Lab::new`], with names that `ip netns exec` and
//! `overfly lab exec` find, until `overfly lab down`.
//!
//! For each namespace a marker under [`MARKERS`] keeps its inode number. A namespace whose number
//! is another was made by somebody else and is not touched.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{DEVICE, Entry, Lab, require_root, tool};
use crate::Error;
use crate::process_time::processes;

/// Where the markers are.
pub const MARKERS: &str = "/run/overfly";
const NAMES: &str = "/run/netns";

/// The two namespaces of one `overfly lab`, by name.
#[derive(Debug, Clone)]
pub struct NamedLab {
    prefix: String,
}

/// What [`NamedLab::up`] found or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Up {
    /// The namespaces were made.
    Made,
    /// They were there already, made by an earlier `up`.
    AlreadyThere,
}

/// What [`NamedLab::down`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Down {
    /// Names of the namespaces that were removed.
    pub removed: Vec<String>,
    /// Processes that were running inside and go on without a network: id, command, namespace.
    pub left_running: Vec<(u32, String, String)>,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Existence {
    Absent,
    Ours,
    NotOurs,
}

impl NamedLab {
    /// The lab whose namespaces are `{prefix}server` and `{prefix}client`; the usual prefix is
    /// empty.
    pub fn new(prefix: &str) -> NamedLab {
        NamedLab { prefix: prefix.to_owned() }
    }

    /// Makes the namespaces, unless they are there. Kill it anywhere: the next `up` or `down`
    /// copes.
    ///
    /// # Errors
    /// [`Error::NotOurs`] if somebody else's namespace has one of the names; nothing was changed.
    pub fn up(&self, overfly: &Path) -> Result<Up, Error> {
        require_root("`overfly lab up`, which makes network namespaces,")?;
        let _guard = self.guard()?;
        let states = self.states()?;
        if states.iter().all(|&(_, state)| state == Existence::Ours) {
            return Ok(Up::AlreadyThere);
        }
        self.remove(&states)?;
        let lab = Lab::new(overfly)?;
        for (side, (name, _)) in lab.sides.iter().zip(&states) {
            let inode = inode(super::descriptor_path(&side.net))
                .map_err(Error::kernel("look at the new network namespace"))?;
            // The marker comes first: a namespace is never without it.
            fs::write(self.marker(name), format!("{inode}\n"))
                .map_err(Error::kernel(format!("write {}", self.marker(name).display())))?;
            attach(side, name)?;
        }
        Ok(Up::Made)
    }

    /// Removes what [`NamedLab::up`] made. Processes inside are not touched, only told of.
    ///
    /// # Errors
    /// [`Error::NotOurs`] if somebody else's namespace has one of the names; nothing was changed.
    pub fn down(&self) -> Result<Down, Error> {
        require_root("`overfly lab down`, which removes network namespaces,")?;
        let _guard = self.guard()?;
        let states = self.states()?;
        let down = self.remove(&states)?;
        // Under the lock, and only if no other lab has its markers there.
        let _ = fs::remove_dir(MARKERS);
        Ok(down)
    }

    /// How to run `command` inside the namespace `name` (without the prefix).
    ///
    /// # Errors
    /// [`Error::Machine`] if `name` is not one of the two, or the lab is not up.
    pub fn entry(&self, name: &str, command: Vec<std::ffi::OsString>) -> Result<Entry, Error> {
        require_root("`overfly lab exec`, which enters a network namespace,")?;
        if !["server", "client"].contains(&name) {
            return Err(Error::Machine(format!(
                "no such namespace in the lab: {name}; expected server or client"
            )));
        }
        let net = Path::new(NAMES).join(format!("{}{name}", self.prefix));
        if !net.exists() {
            return Err(Error::Machine(format!(
                "the lab is not up: {} does not exist; type `overfly lab up`",
                net.display()
            )));
        }
        Ok(Entry { net: Some(net), command, ..Entry::default() })
    }

    fn names(&self) -> [String; 2] {
        ["server", "client"].map(|side| format!("{}{side}", self.prefix))
    }

    fn marker(&self, name: &str) -> PathBuf {
        Path::new(MARKERS).join(format!("{name}.netns"))
    }

    /// One `up` or `down` at a time. The lock lies on the folder and so leaves nothing.
    fn guard(&self) -> Result<File, Error> {
        let action = || format!("lock {MARKERS}");
        loop {
            fs::create_dir_all(MARKERS).map_err(Error::kernel(action()))?;
            let folder = match File::open(MARKERS) {
                // Removed by a `down` between the two calls.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(Error::kernel(action()))?,
            };
            folder.lock().map_err(Error::kernel(action()))?;
            // Only the folder that still has the name counts: an earlier holder may have removed
            // the one that we waited for.
            let locked = folder.metadata().map_err(Error::kernel(action()))?.ino();
            if inode(MARKERS).is_ok_and(|named| named == locked) {
                return Ok(folder);
            }
        }
    }

    fn states(&self) -> Result<Vec<(String, Existence)>, Error> {
        let states: Vec<_> = self
            .names()
            .into_iter()
            .map(|name| {
                let marked =
                    fs::read_to_string(self.marker(&name)).ok().and_then(|text| text.trim().parse().ok());
                let state = match inode(Path::new(NAMES).join(&name)) {
                    Err(_) => Existence::Absent,
                    Ok(actual) if Some(actual) == marked => Existence::Ours,
                    Ok(_) => Existence::NotOurs,
                };
                (name, state)
            })
            .collect();
        match states.iter().find(|(_, state)| *state == Existence::NotOurs) {
            Some((name, _)) => Err(Error::NotOurs(name.clone())),
            None => Ok(states),
        }
    }

    fn remove(&self, states: &[(String, Existence)]) -> Result<Down, Error> {
        let mut down = Down { removed: Vec::new(), left_running: Vec::new() };
        for (name, state) in states {
            if *state == Existence::Ours {
                let file = Path::new(NAMES).join(name);
                let inode = inode(&file).map_err(Error::kernel(format!("look at {}", file.display())))?;
                for process in processes() {
                    let inside =
                        self::inode(format!("/proc/{}/ns/net", process.id)).is_ok_and(|its| its == inode);
                    if inside {
                        down.left_running.push((process.id, process.name, name.clone()));
                    }
                }
                // A process inside keeps the namespace alive without its name, but not its device.
                let _ = tool("ip", ["-n", name, "link", "del", DEVICE]);
                tool("ip", ["netns", "del", name])?;
                down.removed.push(name.clone());
            }
            let _ = fs::remove_file(self.marker(name));
        }
        Ok(down)
    }
}

/// Gives the namespace of `side` a name that `ip netns` knows.
fn attach(side: &super::Side, name: &str) -> Result<(), Error> {
    super::on_thread(|| {
        use std::os::fd::AsFd;
        // The network namespace only: the name must appear in the machine's own /run/netns.
        rustix::thread::move_into_link_name_space(
            side.net.as_fd(),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .map_err(|errno| Error::kernel("enter the new network namespace")(errno.into()))?;
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        tool("ip", ["netns", "attach", name, &thread])
    })
}

fn inode(path: impl AsRef<Path>) -> io::Result<u64> {
    fs::metadata(path).map(|metadata| metadata.ino())
}
