//! `overfly broker` under test, as systemd would start it, and programs of users without privilege.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use overfly_bench::lab::Lab;

use crate::{eventually, overfly, succeed};

/// Nobody of this machine's.
pub const USER: &str = "48123";
/// Nobody either.
pub const OTHER: &str = "48124";

/// A broker's process, what it says, and what it tells the service manager.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    said: std::fs::File,
    told: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Broker {
    /// Started with these capabilities and no others, once it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn start(lab: &Lab, policy: &str, capabilities: &[&str], more: &[&str]) -> Broker {
        let mut broker = Broker::begin(lab, policy, capabilities, more);
        eventually("it is ready", || {
            assert!(broker.ended().is_none(), "{}", broker.log());
            broker.hears("READY=1")
        });
        broker
    }

    /// The same, without waiting.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn begin(lab: &Lab, policy: &str, capabilities: &[&str], more: &[&str]) -> Broker {
        Broker::begin_as(&overfly(), lab, policy, capabilities, more)
    }

    /// The same, by another file.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn begin_as(binary: &Path, lab: &Lab, policy: &str, capabilities: &[&str], more: &[&str]) -> Broker {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("broker.toml");
        std::fs::write(&place, policy).expect("write the policy");
        let notify = folder.path().join("notify");
        let told = UnixDatagram::bind(&notify).expect("bind");
        told.set_nonblocking(true).expect("no waiting");
        let said = tempfile::tempfile().expect("a file");
        // The capability is to make up for systemd's usual limit, or a smaller one.
        let mut command = lab.command("server", "prlimit");
        let bounds = capabilities.iter().map(|name| format!("+{}", name.to_lowercase()));
        let bounds: Vec<String> = std::iter::once("-all".to_owned()).chain(bounds).collect();
        command
            .args(["--memlock=65536", "setpriv"])
            .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set"])
            .arg(bounds.join(","))
            .arg(binary)
            .args(["broker", "--interface", "eth0", "--policy"])
            .arg(&place)
            .args(more)
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null())
            .stderr(said.try_clone().expect("dup"));
        Broker { child: command.spawn().expect("start the broker"), said, told, folder }
    }

    /// Its process's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes the policy anew.
    ///
    /// # Panics
    /// If that fails.
    pub fn policy(&self, text: &str) {
        std::fs::write(self.folder.path().join("broker.toml"), text).expect("write the policy");
    }

    /// Whether it has told this since it was asked last.
    #[must_use]
    pub fn hears(&self, what: &str) -> bool {
        let mut bytes = [0; 1024];
        while let Ok(length) = self.told.recv(&mut bytes) {
            if String::from_utf8_lossy(&bytes[..length]).contains(what) {
                return true;
            }
        }
        false
    }

    /// What it has said.
    ///
    /// # Panics
    /// If that cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        let mut bytes = vec![0; 65_536];
        let length = self.said.read_at(&mut bytes, 0).expect("read");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// How it has ended.
    ///
    /// # Panics
    /// If it is nobody's child.
    #[must_use]
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Those that the broker's unit leaves it.
///
/// # Panics
/// If the unit bounds none.
#[must_use]
pub fn capabilities() -> Vec<&'static str> {
    static UNIT: LazyLock<String> = LazyLock::new(|| unit("overfly-broker@"));
    bounds(&UNIT)
}

/// Those that the agent's unit leaves it.
///
/// # Panics
/// If the unit bounds none.
#[must_use]
pub fn agents_capabilities() -> Vec<&'static str> {
    static UNIT: LazyLock<String> = LazyLock::new(|| unit("overfly-agent"));
    bounds(&UNIT)
}

fn unit(name: &str) -> String {
    let path = format!("{}/../packaging/{name}.service", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("a unit of systemd's")
}

fn bounds(unit: &str) -> Vec<&str> {
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.expect("the unit bounds capabilities").split(' ');
    names.map(|name| name.strip_prefix("CAP_").expect("a capability")).collect()
}

/// As a user who has nothing but its number.
#[must_use]
pub fn as_user(lab: &Lab, side: &str, user: &str) -> Command {
    let mut command = lab.command(side, "setpriv");
    command.args([
        "--reuid",
        user,
        "--regid",
        user,
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ]);
    command
}

/// Connections that programs have accepted at user level.
///
/// # Panics
/// If nobody can be asked.
#[must_use]
pub fn accepts(lab: &Lab) -> u64 {
    counted(lab, "sockets.accepts")
}

/// A counter of all programs together.
///
/// # Panics
/// If nobody can be asked.
#[must_use]
pub fn counted(lab: &Lab, counter: &str) -> u64 {
    let binary = overfly().to_str().expect("UTF-8").to_owned();
    let text = succeed(lab, "server", &[&binary, "top", "--json", "--once", "--interval", "0.05"]);
    let look: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let stacks = look["stacks"].as_array().expect("stacks").iter();
    stacks.filter_map(|stack| stack["counters"][counter].as_u64()).sum()
}
