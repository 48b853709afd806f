//! `--shards`: generators that are all started alike, as a Kubernetes Indexed Job does; the first of them gathers.

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use super::StepArgs;
use super::gather::{GatherArgs, Gathering};
use crate::arguments::{number, time};
use crate::error::Error;
use crate::output::OutputArgs;

/// What Kubernetes sets for each pod of an Indexed Job, from 0 on.
const INDEX: &str = "JOB_COMPLETION_INDEX";

/// How many alike there are, on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Several generators in step")]
pub struct ShardArgs {
    /// One of so many that are started alike, as by a Kubernetes Indexed Job: JOB_COMPLETION_INDEX says which. The first one also
    /// gathers, at the port of --join, and prints the merged report alone
    #[arg(long, value_name = "N", requires = "join", allow_hyphen_values = true)]
    pub shards: Option<String>,
    /// Give up unless all shards are there and ready by then
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "shards", allow_hyphen_values = true)]
    pub patience: String,
}

/// The gatherer that the first shard is beside its load.
#[derive(Debug)]
pub(crate) struct Gatherer {
    thread: JoinHandle<Result<bool, Error>>,
}

impl Gatherer {
    /// Begins to gather, if this is the first of several shards. The merged results go where `output` says.
    pub(crate) fn begin(
        shards: &ShardArgs,
        step: &StepArgs,
        output: &OutputArgs,
    ) -> Result<Option<Gatherer>, Error> {
        let Some(index) = shards.index()? else { return Ok(None) };
        let join = step.join.as_deref().unwrap_or_default();
        let port = join.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let port = port.ok_or_else(|| {
            Error::usage("--join", join, "HOST:PORT of the first shard, since shards are on several machines")
        })?;
        if index > 0 {
            return Ok(None);
        }
        // By IPv4 too; where there is no IPv6, by that alone.
        let any = if TcpListener::bind("[::]:0").is_ok() { "[::]" } else { "0.0.0.0" };
        let args = GatherArgs {
            generators: shards.shards.clone().unwrap_or_default(),
            listen: format!("{any}:{port}"),
            patience: shards.patience.clone(),
            output: output.clone(),
        };
        let gathering = Gathering::open(&args)?;
        let thread = std::thread::Builder::new().name("gatherer".to_string()).spawn(move || gathering.run());
        thread
            .map(|thread| Some(Gatherer { thread }))
            .map_err(|error| Error::machine("starting a thread", error))
    }

    /// Whether all shards reported and something succeeded.
    pub(crate) fn end(self) -> Result<bool, Error> {
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl ShardArgs {
    /// Which of several this is.
    fn index(&self) -> Result<Option<usize>, Error> {
        let Some(shards) = &self.shards else { return Ok(None) };
        let count = number::<usize>("--shards", shards)?;
        let given = std::env::var(INDEX).map_err(|_| {
            let expected = format!("{INDEX} in the environment: 0 for the first of them, 1 for the next");
            Error::usage("--shards", shards, expected)
        })?;
        match given.parse() {
            Ok(index) if index < count => Ok(Some(index)),
            _ => Err(Error::usage(INDEX, given, format!("a number from 0 to {}", count.saturating_sub(1)))),
        }
    }

    /// How long the gatherer may take to be there: a pod whose turn has not come has no name yet.
    pub(crate) fn patience(&self) -> Result<Duration, Error> {
        match &self.shards {
            Some(_) => time("--patience", &self.patience),
            None => Ok(Duration::ZERO),
        }
    }
}
