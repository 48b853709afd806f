//! `overfly run` in a container: the node's agent has its interface served, if there is an agent.

use std::path::{Path, PathBuf};

use overfly_broker::Error;
use overfly_broker::Lease;
use overfly_broker::agent::{AGENT_ENVIRONMENT, PATH, seek};
use rustix::io::Errno;

/// The agent's place, as seen from here.
pub(crate) struct AgentSocket {
    path: PathBuf,
    /// Somebody said so: what it refuses is not tried otherwise.
    pub(crate) is_named: bool,
}

/// What comes of asking it.
pub(crate) enum AgentAnswer {
    Served(Lease),
    /// Something has just ended: ask again.
    Again,
    /// Why not, in words.
    No(String),
}

impl AgentSocket {
    /// What the environment says, or the usual place if something is there. An empty variable: there is none.
    pub(crate) fn known() -> Option<AgentSocket> {
        match std::env::var_os(AGENT_ENVIRONMENT) {
            Some(path) if path.is_empty() => None,
            Some(path) => Some(AgentSocket { path: path.into(), is_named: true }),
            None => Path::new(PATH).exists().then(|| AgentSocket { path: PATH.into(), is_named: false }),
        }
    }

    /// Has the agent find the interface's broker, or start it, and joins that.
    pub(crate) fn ask(&self, interface: &str) -> AgentAnswer {
        let path = self.path.display();
        let no = |error: Error| AgentAnswer::No(format!("the agent at {path}: {error}"));
        match seek(&self.path, interface) {
            Ok(Some(name)) => match Lease::at(&name) {
                Ok(lease) => AgentAnswer::Served(lease),
                Err(Error::Gone { .. }) => AgentAnswer::Again,
                Err(error) => AgentAnswer::No(error.to_string()),
            },
            // It was started by another agent, or by somebody else of root's.
            Ok(None) => match Lease::at_interface(interface) {
                Ok(Some(lease)) => AgentAnswer::Served(lease),
                Ok(None) => {
                    AgentAnswer::No(format!("{interface} is served by somebody whom this user cannot trust"))
                }
                Err(Error::Gone { .. }) => AgentAnswer::Again,
                Err(error) => AgentAnswer::No(error.to_string()),
            },
            Err(Error::Gone { .. }) => AgentAnswer::No(format!("no agent answers at {path}")),
            // A path has owners and modes, which a broker's abstract name has not.
            Err(Error::Forbidden { operation: "connect", errno: Errno::ACCESS }) => AgentAnswer::No(format!(
                "this user may not reach the agent's socket: `namei -l {path}` shows which folder it may not search (chmod a+x), or that it may not write the socket (chmod a+rw)"
            )),
            Err(error @ Error::Agent(_)) => AgentAnswer::No(format!("OVERFLY_AGENT: {error}")),
            Err(error) => no(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_no_socket_can_have_is_said_to_be_that() {
        let socket = AgentSocket { path: format!("/{}", "x".repeat(108)).into(), is_named: true };
        let AgentAnswer::No(said) = socket.ask("eth0") else { panic!("it was served") };
        assert!(
            said.contains("108 bytes at most, and this one has 109") && !said.contains("BROKER"),
            "{said}"
        );
    }

    #[test]
    fn a_folder_that_a_user_may_not_search_is_no_module_of_the_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let socket = AgentSocket { path: folder.path().join("agent.sock"), is_named: true };
        let _listener = std::os::unix::net::UnixListener::bind(&socket.path).unwrap();
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
                socket.ask("eth0")
            });
            asked.join().unwrap()
        });
        let AgentAnswer::No(said) = answer else { panic!("it was served") };
        assert!(
            said.contains("namei -l") && said.contains("agent.sock") && !said.contains("seccomp"),
            "{said}"
        );
    }
}
