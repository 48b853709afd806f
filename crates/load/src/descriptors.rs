//! How many descriptors this process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::Error;

/// What the limit is raised to at most where nobody asked for more.
const ENOUGH: u64 = 1 << 20;

/// Each connection is a descriptor, and `spare` are needed besides: raises the soft limit to the hard one if it must.
/// `option` is where the number of connections was given.
pub(crate) fn raise_limit(option: &'static str, connections: usize, spare: usize) -> Result<(), Error> {
    let needed = (connections + spare) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if maximum < needed {
        return Err(Error::usage(
            option,
            connections,
            format!(
                "at most {} connections: the hard limit on open files is {maximum} (ulimit -Hn)",
                maximum.saturating_sub(spare as u64)
            ),
        ));
    }
    raise_to(needed.max(maximum.min(ENOUGH)), limit)
}

/// As many connections as this process may have: raises the soft limit to the hard one, within reason.
pub(crate) fn most(spare: usize) -> Result<usize, Error> {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX).min(ENOUGH);
    if limit.current.is_some_and(|current| current < allowed) {
        raise_to(allowed, limit)?;
    }
    Ok((allowed as usize).saturating_sub(spare).max(1))
}

fn raise_to(count: u64, limit: Rlimit) -> Result<(), Error> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: limit.maximum })
        .map_err(|error| Error::machine("raising the limit on open files", error))
}
