//! What a plan goes through: values of axes, and what each combination of them is called.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Connection, Link, Mode, Plan, Tool};

/// What a gain needs to have an interval of 90 %.
const QUICK_REPEATS: u32 = 3;

/// One value, or a list of values to go through.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Several<T>(pub Vec<T>);

impl<T> Several<T> {
    /// A single value.
    pub fn one(value: T) -> Several<T> {
        Several(vec![value])
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Several<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Several<T>, D::Error> {
        let values = match toml::Value::deserialize(deserializer)? {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        let values = values.into_iter().map(T::deserialize).collect::<Result<_, _>>();
        values.map(Several).map_err(|error| D::Error::custom(error.message()))
    }
}

/// Where a metric is compared between modes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// Size of the file.
    pub payload_bytes: u64,
    /// How connections are used.
    pub connection: Connection,
    /// What carries the generator's connections.
    pub link: Link,
    /// Connections that are kept busy.
    pub connections: u32,
    /// Requests that are due each second, whatever the server does; `None`: as many as the connections can have.
    pub rate_per_s: Option<f64>,
    /// What replaces `@WORKERS@`.
    pub workers: u32,
    /// Servers that run at once, each at a port of its own.
    pub instances: u32,
    /// Index into [`Plan::profile`]: of what the kernel is compared with.
    pub profile: usize,
}

impl Cell {
    /// One worker of one instance, in a closed loop.
    #[cfg(test)]
    pub(crate) fn plain(payload_bytes: u64, connection: Connection, link: Link) -> Cell {
        Cell {
            payload_bytes,
            connection,
            link,
            connections: 64,
            rate_per_s: None,
            workers: 1,
            instances: 1,
            profile: 0,
        }
    }

    /// What carries the generator's connections to a server of this mode: no kernel has a memif.
    pub(crate) fn generator(&self, mode: Mode) -> Link {
        match (self.link, mode.is_kernel()) {
            (Link::Memif, true) => Link::Kernel,
            _ => self.link,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B {} over {}", self.payload_bytes, self.connection, self.link)
    }
}

impl Plan {
    /// Every cell, in the order of the report: the profile changes quickest.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        let profiles = if self.modes.contains(&Mode::Overfly) { self.profile.0.len() } else { 1 };
        let rates: Vec<Option<f64>> = match self.client.rates_per_s.as_slice() {
            [] => vec![None],
            rates => rates.iter().copied().map(Some).collect(),
        };
        for &link in &self.links {
            for &payload_bytes in &self.payload_bytes {
                for &connection in &self.connections {
                    let first = Cell {
                        payload_bytes,
                        connection,
                        link,
                        connections: 0,
                        rate_per_s: None,
                        workers: 0,
                        instances: 0,
                        profile: 0,
                    };
                    for &connections in &self.client.connections.0 {
                        for &rate_per_s in &rates {
                            let first = Cell { connections, rate_per_s, ..first };
                            cells.extend(self.server_cells(first, profiles));
                        }
                    }
                }
            }
        }
        cells
    }

    fn server_cells(&self, first: Cell, profiles: usize) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &workers in &self.server.workers.0 {
            for &instances in &self.server.instances.0 {
                cells.extend((0..profiles).map(|profile| Cell { workers, instances, profile, ..first }));
            }
        }
        cells
    }

    /// What a cell has of the axes that this plan goes through, beyond payload, connection and link: `2 instances`.
    #[must_use]
    pub fn varied(&self, cell: &Cell) -> String {
        let mut words = Vec::new();
        if self.client.connections.0.len() > 1 {
            words.push(format!("{} connections", cell.connections));
        }
        if let Some(rate) = cell.rate_per_s {
            words.push(format!("{rate}/s"));
        }
        for (values, value, name) in [
            (&self.server.workers, cell.workers, "worker"),
            (&self.server.instances, cell.instances, "instance"),
        ] {
            if values.0.len() > 1 {
                words.push(format!("{value} {name}{}", if value == 1 { "" } else { "s" }));
            }
        }
        if self.profile.0.len() > 1 && self.modes.contains(&Mode::Overfly) {
            words.extend(self.profile.0.get(cell.profile).cloned());
        }
        words.join(", ")
    }

    /// The whole name of a cell.
    #[must_use]
    pub fn name_of(&self, cell: &Cell) -> String {
        let varied = self.varied(cell);
        if varied.is_empty() { cell.to_string() } else { format!("{cell}, {varied}") }
    }

    /// The profile that a cell's Overfly runs with.
    pub(crate) fn profile_of(&self, cell: &Cell) -> &str {
        self.profile.0.get(cell.profile).map_or("performance", String::as_str)
    }

    /// The cores of an instance: one each where there are several, and as many as it has workers where it is alone.
    pub(crate) fn cores_of(&self, cell: &Cell, instance: usize) -> Vec<usize> {
        match self.server.cpus.as_slice() {
            [] => vec![self.server.cpu],
            cpus if cell.instances > 1 => vec![cpus[instance % cpus.len()]],
            cpus => cpus.iter().copied().take(cell.workers as usize).collect(),
        }
    }

    /// Every core that the servers of a cell use, once.
    pub(crate) fn server_cores(&self, cell: &Cell) -> Vec<usize> {
        let instances = if cell.link == Link::Memory { 0 } else { cell.instances as usize };
        let mut cores: Vec<usize> =
            (0..instances).flat_map(|instance| self.cores_of(cell, instance)).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Every core that the servers of any cell use, once; none where there is no server.
    pub(crate) fn all_server_cores(&self) -> Vec<usize> {
        let mut cores: Vec<usize> = self.cells().iter().flat_map(|cell| self.server_cores(cell)).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// A plan that says within minutes what this one says: the ends of each axis, three times at most.
    #[must_use]
    pub fn quick(mut self) -> Plan {
        self.keep_ends();
        self.repeats = self.repeats.min(QUICK_REPEATS);
        self.source.quick = true;
        self
    }

    fn keep_ends(&mut self) {
        fn ends<T: Clone>(values: &mut Vec<T>) {
            if values.len() > 2 {
                *values = vec![values[0].clone(), values[values.len() - 1].clone()];
            }
        }
        ends(&mut self.payload_bytes);
        ends(&mut self.client.connections.0);
        ends(&mut self.client.rates_per_s);
        ends(&mut self.server.workers.0);
        ends(&mut self.server.instances.0);
    }

    /// A plan that shows within moments whether all of this one works: the ends of each axis, once, for half a second. Its figures
    /// say nothing, so that nothing is required of them.
    #[must_use]
    pub fn smoke(mut self) -> Plan {
        self.keep_ends();
        self.repeats = 1;
        self.patience_s = 0.0;
        self.rules.clear();
        self.source.smoke = true;
        self.warmup_s = self.warmup_s.min(0.2);
        self.duration_s = self.duration_s.min(0.5);
        match self.client.tool {
            // They know whole seconds only.
            Tool::Wrk | Tool::Ab | Tool::Sockperf => (self.warmup_s, self.duration_s) = (0.0, 1.0),
            // Streams are counted once they have filled their buffers, connections once all are open.
            Tool::Vod | Tool::Idle => self.duration_s = 2.5,
            Tool::Overfly | Tool::Astf => {}
        }
        if let Some(search) = &mut self.client.find_max {
            (search.repeats, search.precision) = (1, 1.0);
        }
        self
    }
}
