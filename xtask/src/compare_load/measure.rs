//! One run of one generator against one server, each on a core of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_bench::CoreTime;
use overfly_bench::lab::{Lab, SERVER};

use super::Link;
use super::generators::{Amount, Generator, Said, Work};

/// The server's core and the generator's.
const SERVER_CORE: usize = 0;
pub(crate) const GENERATOR_CORE: usize = 1;
const PORT: u16 = 8080;
/// How long a server may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) said: Said,
    /// Processor time of the generator's process, per second.
    pub(crate) cpu: f64,
    /// What of the time the generator's core was busy, with the kernel's work for it.
    pub(crate) generator_core: f64,
    /// What of the time the server's core was busy. A server that spins is always.
    pub(crate) server_core: f64,
}

impl Run {
    /// Requests per second of the generator's processor time.
    pub(crate) fn per_core_s(&self) -> f64 {
        self.said.per_s / self.cpu.max(0.01)
    }

    /// Whether the generator could do no more: its core was full, or it says so where it spins.
    pub(crate) fn generator_is_the_limit(&self) -> bool {
        self.said.busy_share.unwrap_or(self.generator_core) >= 0.9
    }
}

/// `overfly load serve` over one link, in the lab's server side; it ends with this value.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(lab: &Lab, overfly: &Path, link: &Link) -> Result<Server, String> {
        // Not by --cpus: on veth both sides then receive on their own cores, while other generators leave that to the server's.
        let mut command = lab.pinned("server", overfly, SERVER_CORE);
        command.args(["load", "serve", "--port", &PORT.to_string()]).args(link.server_words());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut server = Server(child.map_err(|error| format!("cannot start the server: {error}"))?);
        let said = std::io::BufReader::new(server.0.stderr.take().ok_or("the server has no standard error")?);
        let begun = Instant::now();
        for line in std::io::BufRead::lines(said).map_while(Result::ok) {
            if line.starts_with("Serving at") {
                return Ok(server);
            }
            if begun.elapsed() > PATIENCE {
                break;
            }
            eprintln!("overfly load serve: {line}");
        }
        Err(format!("the server over {} did not start", link.server))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// The URL at which the server answers with nothing but a head.
pub(crate) fn url() -> String {
    format!("http://{SERVER}:{PORT}/")
}

/// Runs the generator once. Nothing where it cannot do that kind of work.
pub(crate) fn run(
    lab: &Lab,
    overfly: &Path,
    generator: &Generator,
    work: Work,
    amount: Amount,
    link_words: &[String],
) -> Result<Option<Run>, String> {
    let Some(words) = generator.command(overfly, work, amount, &url(), link_words) else {
        return Ok(None);
    };
    // bash's own `time` counts the processor time of what it ran; -p: in seconds.
    let script = "TIMEFORMAT='cpu %U %S %R'; time taskset -c \"$0\" \"$@\"";
    let mut command = lab.command("client", "bash");
    command.args(["-c", script, &GENERATOR_CORE.to_string()]).args(&words).stdin(Stdio::null());
    let before = [SERVER_CORE, GENERATOR_CORE].map(CoreTime::of);
    let begun = Instant::now();
    let output = command.output().map_err(|error| format!("cannot start {}: {error}", generator.name()))?;
    let elapsed = begun.elapsed().as_secs_f64();
    let after = [SERVER_CORE, GENERATOR_CORE].map(CoreTime::of);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = generator.read(&stdout).map_err(|error| format!("{error}{stderr}"))?;
    let times =
        stderr.lines().rev().find_map(|line| line.strip_prefix("cpu ")).ok_or("bash said no times")?;
    let times: Vec<f64> = times.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [user, system, real] = times[..] else {
        return Err(format!("bash said no times: {stderr}"));
    };
    let busy = |core: usize| (after[core].busy - before[core].busy).as_secs_f64() / elapsed;
    Ok(Some(Run {
        said,
        cpu: (user + system) / real.max(0.001),
        server_core: busy(0).min(1.0),
        generator_core: busy(1).min(1.0),
    }))
}
