//! Where a run takes place: in a lab of its own, on this machine as it is, or on the plan's hosts.
//!
//! Without a lab there is no privilege, and so no process namespace whose end is everybody's. A warden (`overfly __warden`)
//! stands over the server instead: it ends what the server leaves behind, and if this process is killed, the server. On a host
//! each side has a warden whose leash is its standard input, which comes from here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;
use crate::hosts::{Hosts, Machine};
use crate::lab::{CLIENT, DEVICE, Lab, SCRATCH, SERVER, list, tool};
use crate::plan::Link;
use crate::process_time::tree;

/// What a program under a leash is given to end once it has been let go, beyond what its warden gives it.
const LET_GO_BY: Duration = Duration::from_secs(10);

/// Where one run's server and generator live.
#[derive(Debug)]
pub(crate) struct Site {
    overfly: PathBuf,
    lab: Option<Lab>,
    far: Option<Far>,
    root: PathBuf,
    /// Where both sides and this process meet, whatever folders they see.
    meeting: PathBuf,
    /// Several servers are to run at once. Processes of one another's process namespaces do not know each other, and a broker
    /// serves only whom it knows: each has a warden instead.
    several: bool,
}

/// The hosts of both sides.
#[derive(Debug)]
struct Far {
    server: Arc<Machine>,
    client: Arc<Machine>,
    /// The generator's folder on its host, by which its warden is known.
    generator: PathBuf,
}

impl Site {
    /// Hosts that have been reached.
    pub(crate) fn hosts(overfly: &Path, hosts: &Hosts) -> Site {
        let Hosts { server, client } = hosts;
        let run = unique();
        let generator = client.about.scratch.join(format!("{run}-generator"));
        Site {
            overfly: overfly.to_owned(),
            lab: None,
            root: server.about.scratch.join(&run),
            meeting: std::env::temp_dir().join(run),
            several: false,
            far: Some(Far { server: server.clone(), client: client.clone(), generator }),
        }
    }

    /// A fresh lab.
    pub(crate) fn lab(overfly: &Path) -> Result<Site, Error> {
        let lab = Some(Lab::new(overfly)?);
        Ok(Site {
            overfly: overfly.to_owned(),
            lab,
            root: Path::new(SCRATCH).join("overfly"),
            meeting: std::env::temp_dir().join(unique()),
            several: false,
            far: None,
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
            far: None,
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
        Ok(Site { overfly: overfly.to_owned(), lab: None, root, meeting, several: false, far: None })
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
        if self.lab.is_some() || self.far.is_some() {
            return Ok(80);
        }
        // Others may take it in the meantime: then the server says so.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        free.map(|address| address.port()).map_err(Error::kernel("find a free port"))
    }

    /// The server's address over a link.
    pub(crate) fn address(&self, link: Link) -> Ipv4Addr {
        if let Some(far) = &self.far {
            // The plan's check has seen to it.
            return far.server.address.as_deref().and_then(|its| its.parse().ok()).unwrap_or(SERVER);
        }
        match (&self.lab, link) {
            (None, Link::Kernel | Link::Host) => Ipv4Addr::LOCALHOST,
            _ => SERVER,
        }
    }

    /// The network interface of the server's side.
    pub(crate) fn server_device(&self) -> &str {
        self.far.as_ref().map_or(DEVICE, |far| &far.server.interface)
    }

    /// That of the generator's.
    pub(crate) fn client_device(&self) -> &str {
        self.far.as_ref().map_or(DEVICE, |far| &far.client.interface)
    }

    /// The command where the server is.
    pub(crate) fn server_overfly(&self) -> &Path {
        self.far.as_ref().map_or(&self.overfly, |far| far.server.overfly())
    }

    /// The command where the generator is.
    pub(crate) fn client_overfly(&self) -> &Path {
        self.far.as_ref().map_or(&self.overfly, |far| far.client.overfly())
    }

    /// What the plan's `server.build` made, where the server is.
    pub(crate) fn build(&self, here: &Path) -> PathBuf {
        self.far.as_ref().map_or_else(|| here.to_owned(), |far| far.server.build())
    }

    /// The hosts of server and generator, and the generator's folder there.
    pub(crate) fn machines(&self) -> Option<(&Machine, &Machine, &Path)> {
        self.far.as_ref().map(|far| (&*far.server, &*far.client, far.generator.as_path()))
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

    /// The kernel's table of sockets (`tcp`, `udp`) where the server is; nothing if it cannot be read.
    pub(crate) fn sockets(&self, table: &str) -> String {
        let look = || fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        match (&self.lab, &self.far) {
            (Some(lab), _) => lab.within("server", look).unwrap_or_default(),
            (None, Some(far)) => far.server.said(&["cat", &format!("/proc/net/{table}")]).unwrap_or_default(),
            (None, None) => look(),
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
        match (&self.lab, &self.far) {
            (Some(lab), _) => lab.write("server", path, contents),
            (None, Some(far)) => far.server.write(path, contents),
            (None, None) => fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))
                .and_then(|()| fs::write(path, contents))
                .map_err(Error::kernel(format!("write {}", path.display()))),
        }
    }

    /// A command that runs program and arguments as the server whose folder is `root`, on these cores. What is started is its
    /// guardian, whose standard input is [`Site::leash`].
    pub(crate) fn server(&self, words: &[OsString], root: &Path, cpus: &[usize]) -> Command {
        if let Some(far) = &self.far {
            return far.server.leashed(words, root, cpus);
        }
        let (program, arguments) =
            words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
        let mut command = match &self.lab {
            Some(lab) if self.is_contained() => {
                let mut command = lab.contained_on("server", program, cpus);
                command.args(arguments);
                return command;
            }
            Some(lab) => lab.pinned_on("server", &self.overfly, cpus),
            None => {
                let mut command = self.on_cores(cpus);
                command.arg(&self.overfly);
                command
            }
        };
        command.args(["__warden", "--parent"]).arg(std::process::id().to_string());
        command.arg("--folder").arg(root).arg("--").args(words);
        command
    }

    /// The standard input of both sides: as long as it is open, those on hosts live.
    pub(crate) fn leash(&self) -> Stdio {
        if self.far.is_some() { Stdio::piped() } else { Stdio::null() }
    }

    /// A command that runs `program` where the server is. It ends by itself.
    pub(crate) fn beside_server(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.lab {
            Some(lab) => lab.command("server", program),
            None => Command::new(program),
        }
    }

    /// A command that runs program and arguments as the generator, on a core. It starts no other process, and where it is in a
    /// process namespace it would not see the kernel's threads that receive for it.
    pub(crate) fn generator(&self, words: &[OsString], cpu: usize) -> Command {
        let (program, arguments) =
            words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
        let mut command = match (&self.lab, &self.far) {
            (Some(lab), _) => lab.pinned("client", program, cpu),
            (None, Some(far)) => return far.client.leashed(words, &far.generator, &[cpu]),
            (None, None) => {
                let mut command = self.on_cores(&[cpu]);
                command.arg(program);
                command
            }
        };
        command.args(arguments);
        command
    }

    fn on_cores(&self, cpus: &[usize]) -> Command {
        let mut command = Command::new(&self.overfly);
        command.args(["__enter", "--die-with"]).arg(std::process::id().to_string());
        command.arg("--cpu").arg(list(cpus)).arg("--");
        command
    }

    /// Sends the server under a guardian a signal.
    pub(crate) fn tell(&self, guardian: &Child, signal: Signal) {
        if self.far.is_some() {
            if let Some(mut leash) = guardian.stdin.as_ref() {
                let _ = writeln!(leash, "{}", signal.as_raw());
            }
            return;
        }
        let guardian = guardian.id();
        // Where there is a process namespace, its guardian passes nothing on.
        let told = if self.is_contained() { Lab::inner_process(guardian) } else { Some(guardian) };
        if let Some(told) = told.and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(told, signal);
        }
    }

    /// Ends a guardian and everything under it.
    pub(crate) fn kill(&self, guardian: &mut Child) {
        if self.far.is_some() {
            // Its warden ends it, and the connection with it.
            drop(guardian.stdin.take());
            let end = Instant::now() + LET_GO_BY;
            while matches!(guardian.try_wait(), Ok(None)) && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
            }
        } else if !self.is_contained() && matches!(guardian.try_wait(), Ok(None)) {
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
        if self.lab.is_none() && self.far.is_none() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}
