//! The hosts of a session: reached, checked, prepared, and left as they were, however the session ends.
//!
//! On each one process (`overfly __far hold`) has the session's folders, and one (`overfly tune hold`) its settings. Their standard
//! inputs end with the session, and then both put back what they changed: nothing there waits for a word from here.

pub(crate) mod reach;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use overfly_terminal::tell;
use serde::de::DeserializeOwned;

use self::reach::Reach;
use crate::Error;
use crate::agent::{About, Spent};
use crate::environment::Environment;
use crate::plan::{self, Link, Mode, Plan};
use crate::yardstick::Speed;

/// What a host is given to put everything back.
const PUT_BACK_BY: Duration = Duration::from_secs(60);

/// Files that a host is given, where it has no Overfly of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binaries<'a> {
    pub(crate) overfly: &'a Path,
    pub(crate) library: Option<&'a Path>,
}

/// The two sides of a plan; they may be the same host.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) server: Arc<Machine>,
    pub(crate) client: Arc<Machine>,
}

/// A host that answers, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Machine {
    name: String,
    // Before the connection that it goes through.
    holder: Child,
    reach: Reach,
    pub(crate) about: About,
    pub(crate) interface: String,
    pub(crate) address: Option<String>,
    irq_cpus: Vec<usize>,
}

impl Hosts {
    /// Reaches and checks both hosts of a plan. Nothing is changed on either before both are found to be right.
    ///
    /// # Errors
    /// [`Error::Plan`] with the line of the host's key, and what ssh or the host said.
    pub(crate) fn reach(plan: &Plan, binaries: Binaries<'_>) -> Result<Option<Hosts>, Error> {
        let Some([server, client]) = plan.sides() else { return Ok(None) };
        let tool = plan.client.tool.program();
        let same = server.0 == client.0;
        let reached =
            |(name, host), program: &str| Machine::reach(plan, name, host, program, binaries).map(Arc::new);
        let server_machine = reached(server, &plan.server.program)?;
        let client_machine =
            if same { server_machine.clone() } else { reached(client, tool.unwrap_or("sh"))? };
        let (at, there) = (format!(" of {}", server.0), server_machine.about.has_program);
        plan.check_server_program(&at, there)?;
        if !same {
            plan.check_tool(&format!(" of {}", client.0), client_machine.about.has_program)?;
        } else if let Some(tool) = tool {
            plan.check_tool(&at, server_machine.said(&["sh", "-c", &format!("command -v {tool}")]).is_ok())?;
        }
        let hosts = Hosts { server: server_machine, client: client_machine };
        hosts.check(plan)?;
        Ok(Some(hosts))
    }

    /// That each host can do what the plan asks of it.
    fn check(&self, plan: &Plan) -> Result<(), Error> {
        let xdp = plan.links.contains(&Link::Xdp);
        let sides = [
            (
                "server",
                &self.server,
                plan.all_server_cores(),
                plan.modes.contains(&Mode::Overfly) || xdp && plan.modes.contains(&Mode::Null),
            ),
            ("client", &self.client, vec![plan.client.cpu], xdp),
        ];
        for (side, machine, cores, needs_root) in sides {
            let Machine { name, about, interface, .. } = &**machine;
            if let Some(core) = cores.iter().find(|&&core| core >= about.cores) {
                let last = about.cores - 1;
                let key = if side == "server" && !plan.server.cpus.is_empty() {
                    "server.cpus".to_owned()
                } else {
                    format!("{side}.cpu")
                };
                let message = format!("{key} = {core}: {name} has cores 0 to {last}");
                return Err(plan.fault(&key, message));
            }
            if (needs_root || plan.tune) && !about.root {
                let message = format!(
                    "hosts.{name}: XDP and `tune` need root there; expected a destination such as root@…"
                );
                return Err(plan.fault(&format!("hosts.{name}.ssh"), message));
            }
            if !about.has_interface {
                let key = format!("hosts.{name}.interface");
                let message = format!("{key} = \"{interface}\": there is no such network interface there");
                return Err(plan.fault(&key, message));
            }
        }
        Ok(())
    }

    /// Each host once.
    fn each(&self) -> impl Iterator<Item = &Arc<Machine>> {
        let other = (!Arc::ptr_eq(&self.server, &self.client)).then_some(&self.client);
        std::iter::once(&self.server).chain(other)
    }

    /// What a reader must know of the server's machine.
    pub(crate) fn environment(&self) -> Environment {
        self.server.about.environment.clone()
    }

    /// Gives the server's host what `server.build` made.
    pub(crate) fn send_build(&self, build: &Path) -> Result<(), Error> {
        if !build.is_dir() {
            return Ok(());
        }
        let there = self.server.build();
        let mut tar = std::process::Command::new("tar");
        let mut pack = tar
            .args(["-c", "-f", "-", "-C"])
            .arg(build)
            .arg(".")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::kernel("start `tar`"))?;
        let script = format!("mkdir -p {0} && tar -x -f - -C {0}", there.display());
        let mut command = self.server.reach.command(&["sh", "-c", &script]);
        let packed = pack.stdout.take().map_or_else(Stdio::null, Stdio::from);
        let status = command.stdin(packed).stdout(Stdio::null()).status();
        let _ = pack.wait();
        if status.is_ok_and(|status| status.success()) {
            return Ok(());
        }
        Err(Error::Machine(format!("what server.build made could not be copied to {}", self.server.name)))
    }

    /// How fast the cores of both sides are.
    pub(crate) fn speed(&self, server_cpus: &[usize], client_cpu: usize) -> Speed {
        let speed = |machine: &Machine, cpus: &[usize]| {
            let cpus = crate::lab::list(cpus);
            machine.ask::<f64>(&["speed", "--cores", &cpus]).unwrap_or_default()
        };
        Speed {
            server_core: speed(&self.server, server_cpus),
            client_core: speed(&self.client, &[client_cpu]),
        }
    }
}

impl Machine {
    fn reach(
        plan: &Plan,
        name: &str,
        host: &plan::Host,
        program: &str,
        binaries: Binaries<'_>,
    ) -> Result<Machine, Error> {
        let key = format!("hosts.{name}.ssh");
        let fault = |said: String| {
            let given = host.ssh.as_ref().map_or_else(String::new, |ssh| format!(" = \"{ssh}\""));
            plan.fault(&key, format!("{key}{given}: {said}"))
        };
        let reach = match &host.ssh {
            None => Reach::Here,
            Some(destination) => {
                let config = host.ssh_config.as_ref().map(|config| plan.beside(config));
                tell(format_args!("{name}: connecting to {destination}"));
                Reach::ssh(binaries.overfly, destination, config.as_deref()).map_err(fault)?
            }
        };
        let mut holder = hold(&reach, host, program, binaries).map_err(fault)?;
        let about: About = first_line(&mut holder).map_err(|said| {
            let _ = holder.kill();
            let _ = holder.wait();
            fault(said)
        })?;
        let version = env!("CARGO_PKG_VERSION");
        if about.overfly != version {
            let there = &about.overfly;
            return Err(fault(format!(
                "its overfly is of version {there}, this is {version}; expected the same"
            )));
        }
        Ok(Machine {
            name: name.to_owned(),
            holder,
            reach,
            about,
            interface: host.interface.clone(),
            address: host.address.clone(),
            irq_cpus: host.irq_cpus.clone(),
        })
    }

    /// The command there.
    pub(crate) fn overfly(&self) -> &Path {
        &self.about.executable
    }

    /// Where it has what `server.build` made.
    pub(crate) fn build(&self) -> PathBuf {
        self.about.scratch.join("build")
    }

    /// A command there.
    pub(crate) fn command<T: AsRef<OsStr>>(&self, words: &[T]) -> std::process::Command {
        self.reach.command(words)
    }

    /// A command that runs `words` there on these cores, with a warden that ends all of it, and removes `folder`, when the
    /// command's standard input ends. A line with a number on it is a signal for the program.
    pub(crate) fn leashed(&self, words: &[OsString], folder: &Path, cpus: &[usize]) -> std::process::Command {
        let overfly = self.overfly().as_os_str();
        // A comparison with the kernel under Overfly's name would be worse than none.
        let mut line: Vec<OsString> = ["env", "EF_NO_FAIL=0"].map(OsString::from).to_vec();
        line.extend([overfly.to_owned(), "__enter".into(), "--cpu".into(), crate::lab::list(cpus).into()]);
        line.extend([
            "--".into(),
            overfly.to_owned(),
            "__warden".into(),
            "--leash".into(),
            "--folder".into(),
        ]);
        line.extend([folder.as_os_str().to_owned(), "--".into()]);
        line.extend(words.iter().cloned());
        self.command(&line)
    }

    /// Writes a file there, and makes its folder.
    pub(crate) fn write(&self, path: &Path, contents: &[u8]) -> Result<(), Error> {
        let script = r#"mkdir -p "${1%/*}" && cat > "$1""#;
        let mut command =
            self.command(&["sh".as_ref(), "-c".as_ref(), script.as_ref(), "sh".as_ref(), path.as_os_str()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let place = format!("write {} on {}", path.display(), self.name);
        let mut child = command.spawn().map_err(Error::kernel(place.clone()))?;
        let sent = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(contents));
        let output = child.wait_with_output().map_err(Error::kernel(place.clone()))?;
        if !output.status.success() {
            return Err(Error::Tool {
                command: place,
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        sent.map_err(Error::kernel(place))
    }

    /// What a command there prints.
    pub(crate) fn said<T: AsRef<OsStr>>(&self, words: &[T]) -> Result<String, String> {
        let output = self.command(words).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// What processes under these folders, and cores, have spent there.
    pub(crate) fn spent(&self, folders: &[PathBuf], cores: &[usize]) -> Option<Spent> {
        let cores = crate::lab::list(cores);
        let mut words: Vec<&OsStr> =
            ["spent", "--cores", &cores, "--interface", &self.interface].map(OsStr::new).to_vec();
        words.extend(folders.iter().flat_map(|folder| [OsStr::new("--of"), folder.as_os_str()]));
        self.ask(&words)
    }

    /// What `overfly __far` says there.
    fn ask<T: DeserializeOwned>(&self, words: &[impl AsRef<OsStr>]) -> Option<T> {
        let mut line: Vec<&OsStr> = vec![self.overfly().as_os_str(), "__far".as_ref()];
        line.extend(words.iter().map(AsRef::as_ref));
        serde_json::from_str(self.said(&line).ok()?.trim()).ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All that it has there goes when its standard input ends.
        end_of_leash(&self.name, &mut self.holder);
    }
}

/// Hosts as `overfly tune` would have them, until this is dropped.
#[derive(Debug)]
pub(crate) struct Tuned {
    holders: Vec<(String, Child)>,
    /// What was changed.
    pub(crate) changed: Vec<String>,
}

impl Tuned {
    /// Tunes the hosts of a plan, or this machine.
    ///
    /// # Errors
    /// What `overfly tune` says; the host that it says it of is as it was.
    pub(crate) fn all(hosts: Option<&Hosts>, overfly: &Path) -> Result<Tuned, Error> {
        let mut tuned = Tuned { holders: Vec::new(), changed: Vec::new() };
        match hosts {
            None => tuned.add("this machine", &Reach::Here, overfly, &[])?,
            Some(hosts) => {
                for machine in hosts.each() {
                    let mut words = vec!["--interface".to_owned(), machine.interface.clone()];
                    if !machine.irq_cpus.is_empty() {
                        words.extend(["--irq-cpus".to_owned(), crate::lab::list(&machine.irq_cpus)]);
                    }
                    tuned.add(&machine.name, &machine.reach, machine.overfly(), &words)?;
                }
            }
        }
        Ok(tuned)
    }

    fn add(&mut self, name: &str, reach: &Reach, overfly: &Path, more: &[String]) -> Result<(), Error> {
        let mut words: Vec<&OsStr> = vec![overfly.as_os_str()];
        words.extend(["tune", "hold", "--json"].map(OsStr::new));
        words.extend(more.iter().map(OsStr::new));
        let mut command = reach.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().map_err(Error::kernel(format!("start overfly on {name}")))?;
        match first_line::<Vec<crate::tune::Difference>>(&mut holder) {
            Ok(differences) => {
                let lines = differences
                    .iter()
                    .map(|its| format!("{name}: {}: {} -> {}", its.knob, its.now, its.wanted));
                self.changed.extend(lines);
                self.holders.push((name.to_owned(), holder));
                Ok(())
            }
            Err(said) => {
                let _ = holder.wait();
                Err(Error::Machine(format!("{name} could not be tuned: {said}")))
            }
        }
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        for (name, holder) in &mut self.holders {
            end_of_leash(name, holder);
        }
    }
}

/// Ends the standard input of a holder and waits until it has put everything back.
fn end_of_leash(name: &str, holder: &mut Child) {
    drop(holder.stdin.take());
    let end = Instant::now() + PUT_BACK_BY;
    loop {
        match holder.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
            _ => break,
        }
    }
    let _ = holder.kill();
    let mut said = String::new();
    if let Some(stderr) = &mut holder.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let _ = holder.wait();
    let said = said.trim().replace('\n', "; ");
    tell(format_args!(
        "{name} may not be as it was: {said} (`overfly tune revert` there puts settings back)"
    ));
}

/// Starts what has the session's folders on a host.
fn hold(reach: &Reach, host: &plan::Host, program: &str, binaries: Binaries<'_>) -> Result<Child, String> {
    let own = match (reach, &host.overfly) {
        (_, Some(overfly)) => Some(overfly.as_path()),
        (Reach::Here, None) => Some(binaries.overfly),
        (Reach::Ssh(_), None) => None,
    };
    let more = ["__far", "hold", "--program", program, "--interface", &host.interface];
    let spawn = |words: &[&OsStr]| {
        let mut command = reach.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| error.to_string())
    };
    if let Some(overfly) = own {
        let words: Vec<&OsStr> =
            std::iter::once(overfly.as_os_str()).chain(more.iter().map(OsStr::new)).collect();
        return spawn(&words);
    }
    let mut files = Vec::new();
    for (path, name) in [(Some(binaries.overfly), "overfly"), (binaries.library, "liboverfly.so")] {
        let Some(path) = path else { continue };
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        files.push((file, name, bytes));
    }
    let mut script = String::from(
        "umask 022; d=$(mktemp -d \"${TMPDIR:-/tmp}/overfly-bench-XXXXXX\") || exit 1; trap 'rm -rf \"$d\"' EXIT; \
         trap 'exit 1' HUP INT TERM PIPE; chmod 755 \"$d\"",
    );
    for (_, name, bytes) in &files {
        // Whoever loses the connection half way has too few.
        script += &format!(
            " && head -c {bytes} > \"$d/{name}\" && [ \"$(wc -c < \"$d/{name}\")\" -eq {bytes} ] && chmod 755 \"$d/{name}\""
        );
    }
    script += " || exit 1; exec \"$d/overfly\" \"$@\" --folder \"$d\"";
    let mut words: Vec<&OsStr> = ["sh", "-c", &script, "sh"].map(OsStr::new).to_vec();
    words.extend(more.iter().map(OsStr::new));
    let mut holder = spawn(&words)?;
    if let Some(stdin) = &mut holder.stdin {
        for (file, _, _) in &mut files {
            // Why it could not be written, the other end says.
            if std::io::copy(file, stdin).is_err() {
                break;
            }
        }
    }
    Ok(holder)
}

/// The first line of JSON that a holder prints (a login shell may greet before), or what it said on its way out.
fn first_line<T: DeserializeOwned>(holder: &mut Child) -> Result<T, String> {
    if let Some(stdout) = &mut holder.stdout {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        while matches!(reader.read_line(&mut line), Ok(1..)) {
            if let Ok(value) = serde_json::from_str(&line) {
                return Ok(value);
            }
            line.clear();
        }
    }
    let mut said = String::new();
    if let Some(stderr) = &mut holder.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let said = said.trim().replace('\n', "; ");
    Err(if said.is_empty() { "nothing was heard from it".to_owned() } else { said })
}
