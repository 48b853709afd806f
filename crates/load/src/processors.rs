//! Which processors the threads run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::Error;

fn one_cpu(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Tries each processor from here, then puts this thread back where it was.
pub(crate) fn check_cpus(cpus: &[usize]) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let before =
        sched_getaffinity(None).map_err(|error| Error::machine("reading this thread's processors", error))?;
    let wrong =
        cpus.iter().find(|cpu| **cpu >= CpuSet::MAX_CPU || sched_setaffinity(None, &one_cpu(**cpu)).is_err());
    sched_setaffinity(None, &before)
        .map_err(|error| Error::machine("going back to this thread's processors", error))?;
    match wrong {
        Some(cpu) => Err(Error::usage("--cpus", cpu, "processors that this machine has online")),
        None => Ok(()),
    }
}

/// Thread `index` runs on processor `cpus[index % cpus.len()]` alone from here on; anywhere if the list is empty.
pub(crate) fn pin(cpus: &[usize], index: usize) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[index % cpus.len()];
    sched_setaffinity(None, &one_cpu(cpu))
        .map_err(|error| Error::machine(format!("pinning a thread to processor {cpu}"), error))
}
