//! What processes and cores have spent when a run's counting began and when it ended.

use super::server::Server;
use crate::agent::{Spent, now};
use crate::lab::DEVICE;
use crate::plan::{Cell, Plan};
use crate::process_time::{CoreTime, Process, processes, tree_among};
use crate::site::Site;

#[derive(Debug, Clone)]
pub(super) struct Clocks {
    pub(super) server: Spent,
    pub(super) client: Spent,
    pub(super) cores_differ: bool,
    pub(super) server_cores: u32,
}

impl Clocks {
    /// `None` if a host does not say.
    pub(super) fn read(
        plan: &Plan,
        cell: Cell,
        site: &Site,
        servers: &[Server<'_>],
        generator: u32,
    ) -> Option<Clocks> {
        let cores = plan.server_cores(&cell);
        let client_core = [plan.client.cpu];
        let (server, client) = match site.machines() {
            Some((server, client, folder)) => {
                let roots: Vec<_> = servers.iter().map(|server| server.root.clone()).collect();
                (server.spent(&roots, &cores)?, client.spent(&[folder.to_owned()], &client_core)?)
            }
            None => here(servers, generator, &cores, &client_core),
        };
        Some(Clocks {
            server,
            client,
            cores_differ: !cores.contains(&plan.client.cpu) || plan.server.host != plan.client.host,
            server_cores: cores.len() as u32,
        })
    }
}

/// Of both sides, on this machine.
fn here(servers: &[Server<'_>], generator: u32, cores: &[usize], client_core: &[usize]) -> (Spent, Spent) {
    let processes = processes();
    let spent = |processes: &[Process]| processes.iter().map(|process| process.time).sum();
    let receiver = format!("napi/{DEVICE}-");
    let receiving = processes.iter().filter(|process| process.name.starts_with(&receiver));
    let server = Spent {
        when: now(),
        by_processes: servers.iter().map(|server| spent(&tree_among(&processes, server.guardian.id()))).sum(),
        by_cores: CoreTime::of_all(cores),
        ..Spent::default()
    };
    let client = Spent {
        when: server.when,
        by_processes: spent(&tree_among(&processes, generator)),
        receiving: receiving.map(|process| process.time).sum(),
        by_cores: CoreTime::of_all(client_core),
    };
    (server, client)
}
