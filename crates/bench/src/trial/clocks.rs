//! What processes and cores have spent when a run's counting began and when it ended.

use std::time::{Duration, Instant};

use super::server::Server;
use crate::lab::DEVICE;
use crate::plan::{Cell, Plan};
use crate::process_time::{CoreTime, Process, processes, tree_among};

#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    pub(super) when: Instant,
    pub(super) server: Duration,
    pub(super) generator: Duration,
    /// Of the kernel's threads that receive for the generator.
    pub(super) receiving: Duration,
    pub(super) cores_differ: bool,
    pub(super) server_cores: u32,
    /// Of all of them together.
    pub(super) server_core: CoreTime,
    pub(super) client_core: CoreTime,
}

impl Clocks {
    pub(super) fn read(plan: &Plan, cell: Cell, servers: &[Server<'_>], generator: u32) -> Clocks {
        let cores = plan.server_cores(&cell);
        let processes = processes();
        let spent = |processes: &[Process]| processes.iter().map(|process| process.time).sum();
        let receiver = format!("napi/{DEVICE}-");
        let receiving = processes.iter().filter(|process| process.name.starts_with(&receiver));
        Clocks {
            when: Instant::now(),
            receiving: receiving.map(|process| process.time).sum(),
            server: servers
                .iter()
                .map(|server| spent(&tree_among(&processes, server.guardian.id())))
                .sum::<Duration>(),
            generator: spent(&tree_among(&processes, generator)),
            cores_differ: !cores.contains(&plan.client.cpu),
            server_cores: cores.len() as u32,
            server_core: CoreTime::of_all(&cores),
            client_core: CoreTime::of(plan.client.cpu),
        }
    }
}
