//! Where a run takes place: in a lab of its own, or on this machine as it is.
//!
//! Without a lab there is no privilege, and so no process namespace whose end is everybody's. A warden (`overfly __warden`)
//! stands over the server instead: it ends what the server leaves behind, and if this process is killed, the server.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::lab::{CLIENT, DEVICE, Lab, SCRATCH, SERVER, list, tool};
use crate::plan::Link;
use crate::process_time::tree;

/// Where one run's server and generator live.
#[derive(Debug)]
pub(crate) struct Site {
    overfly: PathBuf,
    lab: Option<Lab>,
    root: PathBuf,
    /// Where both sides and this process meet, whatever folders they see.
    meeting: PathBuf,
    /// Several servers are to run at once. Processes of one another's process namespaces do not know each other, and a broker
    /// serves only whom it knows: each has a warden instead.
    several: bool,
}

impl Site {
    /// A fresh lab.
    pub(crate) fn lab(overfly: &Path) -> Result<Site, Error> {
        let lab = Some(Lab::new(overfly)?);
        Ok(Site {
            overfly: overfly.to_owned(),
            lab,
            root: Path::new(SCRATCH).join("overfly"),
            meeting: std::env::temp_dir().join(unique()),
            several: false,
        })
    }

    /// As this, for several servers at once.
    pub(crate) fn for_several(mut self) -> Site {
        self.several = true;
        self
    }

    /// Whether a process namespace ends the server with its guardian.
    fn is_contained(&self) -> bool {
        self.lab.is_some() && !self.several
    }

    /// A fresh lab whose server side has the settings that a network namespace begins with.
    pub(crate) fn lab_as_found(overfly: &Path) -> Result<Site, Error> {
        let lab = Some(Lab::as_found(overfly)?);
        Ok(Site {
            overfly: overfly.to_owned(),
            lab,
            root: Path::new(SCRATCH).join("overfly"),
            meeting: std::env::temp_dir().join(unique()),
            several: false,
        })
    }

    /// This machine, with a fresh folder in memory.
    pub(crate) fn machine(overfly: &Path) -> Result<Site, Error> {
        let shared = Path::new(SCRATCH);
        let place = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let name = unique();
        let (root, meeting) = (place.join(&name), std::env::temp_dir().join(name));
        // It must not be there yet: the folder that it is made in is everybody's.
        fs::create_dir(&root).map_err(Error::kernel(format!("make {}", root.display())))?;
        Ok(Site { overfly: overfly.to_owned(), lab: None, root, meeting, several: false })
    }

    pub(crate) fn as_lab(&self) -> Option<&Lab> {
        self.lab.as_ref()
    }

    /// The server's folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the server listens if nothing else is said.
    pub(crate) fn port(&self) -> Result<u16, Error> {
        if self.lab.is_some() {
            return Ok(80);
        }
        // Others may take it in the meantime: then the server says so.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        free.map(|address| address.port()).map_err(Error::kernel("find a free port"))
    }

    /// The server's address over a link.
    pub(crate) fn address(&self, link: Link) -> Ipv4Addr {
        match (&self.lab, link) {
            (None, Link::Kernel | Link::Host) => Ipv4Addr::LOCALHOST,
            _ => SERVER,
        }
    }

    /// `--link` for both sides.
    pub(crate) fn memif(&self) -> String {
        format!("memif:{}", self.root.join("memif").display())
    }

    /// `--link` for a program that meets another one of its host: nobody comes by it.
    pub(crate) fn own_memif(&self, whose: &str) -> String {
        format!("memif:{}", self.root.with_extension(whose).display())
    }

    /// Where an end of a profile takes orders: it is there once that end runs.
    pub(crate) fn control(&self, whose: &str) -> PathBuf {
        self.meeting.with_extension(whose)
    }

    /// What `look` sees where the server is; nothing if it cannot be entered.
    pub(crate) fn within_server<T: Default + Send>(&self, look: impl FnOnce() -> T + Send) -> T {
        match &self.lab {
            Some(lab) => lab.within("server", look).unwrap_or_default(),
            None => look(),
        }
    }

    /// Gives the generator's side so many addresses, from the one after its own on.
    pub(crate) fn add_clients(&self, count: u8) -> Result<(), Error> {
        let Some(lab) = &self.lab else { return Ok(()) };
        let [a, b, c, own] = CLIENT.octets();
        let lines: String =
            (1..count).map(|more| format!("addr add {a}.{b}.{c}.{}/16 dev {DEVICE}\n", own + more)).collect();
        let path = Path::new(SCRATCH).join("clients");
        lab.write("client", &path, lines.as_bytes())?;
        lab.within("client", || tool("ip", ["-batch".as_ref(), path.as_os_str()]))?
    }

    /// Writes a file of the server's.
    pub(crate) fn write(&self, path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
        let path = path.as_ref();
        match &self.lab {
            Some(lab) => lab.write("server", path, contents),
            None => fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))
                .and_then(|()| fs::write(path, contents))
                .map_err(Error::kernel(format!("write {}", path.display()))),
        }
    }

    /// A command that runs `program` as the server whose folder is `root`, on these cores. What is started is its guardian.
    pub(crate) fn server(&self, program: impl AsRef<OsStr>, root: &Path, cpus: &[usize]) -> Command {
        let mut command = match &self.lab {
            Some(lab) if self.is_contained() => return lab.contained_on("server", program, cpus),
            Some(lab) => lab.pinned_on("server", &self.overfly, cpus),
            None => {
                let mut command = self.on_cores(cpus);
                command.arg(&self.overfly);
                command
            }
        };
        command.args(["__warden", "--parent"]).arg(std::process::id().to_string());
        command.arg("--folder").arg(root).arg("--").arg(program);
        command
    }

    /// A command that runs `program` where the server is. It ends by itself.
    pub(crate) fn beside_server(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.lab {
            Some(lab) => lab.command("server", program),
            None => Command::new(program),
        }
    }

    /// A command that runs `program` as the generator, on a core. It starts no other process, and where it is in a process
    /// namespace it would not see the kernel's threads that receive for it.
    pub(crate) fn generator(&self, program: impl AsRef<OsStr>, cpu: usize) -> Command {
        if let Some(lab) = &self.lab {
            return lab.pinned("client", program, cpu);
        }
        let mut command = self.on_cores(&[cpu]);
        command.arg(program);
        command
    }

    fn on_cores(&self, cpus: &[usize]) -> Command {
        let mut command = Command::new(&self.overfly);
        command.args(["__enter", "--die-with"]).arg(std::process::id().to_string());
        command.arg("--cpu").arg(list(cpus)).arg("--");
        command
    }

    /// The process under a guardian that passes signals on to the server, or is it.
    pub(crate) fn listens_to_signals(&self, guardian: u32) -> Option<u32> {
        if self.is_contained() { Lab::inner_process(guardian) } else { Some(guardian) }
    }

    /// Ends a guardian and everything under it.
    pub(crate) fn kill(&self, guardian: &mut Child) {
        if !self.is_contained() && matches!(guardian.try_wait(), Ok(None)) {
            // The guardian last: as long as it lives, what loses its parent becomes its child.
            for process in tree(guardian.id()).iter().rev() {
                if let Some(id) = Pid::from_raw(process.id.cast_signed()) {
                    let _ = kill_process(id, Signal::KILL);
                }
            }
        }
        let _ = guardian.kill();
        let _ = guardian.wait();
    }
}

/// A name that no other run has.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("overfly-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Drop for Site {
    fn drop(&mut self) {
        for whose in ["client", "server"] {
            // Of an end that was killed.
            let _ = fs::remove_file(self.control(whose));
        }
        if self.lab.is_none() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}
