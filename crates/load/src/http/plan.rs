//! What all threads of a run work by: the servers with their requests, and the limits.

use std::net::SocketAddr;
use std::sync::Arc;

use super::party::Servers;
use super::schedule::Rate;
use super::script::Script;
use super::{Ending, Settings, Store};
use crate::error::Error;
use crate::link::sources::Sources;

/// One request of a server's.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Arc<[u8]>,
    /// The same as the last one of a connection.
    pub(crate) last: Arc<[u8]>,
    weight: u64,
}

/// A server and what is asked of it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The name that its certificate must have; `None` without TLS.
    pub(crate) secure_name: Option<String>,
    pub(crate) requests: Vec<Request>,
}

impl Server {
    /// The targets' weights together.
    pub(crate) fn weight(&self) -> u64 {
        self.requests.iter().map(|request| request.weight).sum()
    }

    /// Indices of its requests, each as often as its weight says, well mixed; after the last begin again.
    pub(crate) fn order(&self) -> Vec<u16> {
        let weights: Vec<u64> = self.requests.iter().map(|request| request.weight).collect();
        deal(&weights).into_iter().map(|index| index as u16).collect()
    }
}

/// The same for all threads.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) servers: Vec<Server>,
    /// Local addresses to come from.
    pub(crate) sources: Option<Sources>,
    pub(crate) rate: Option<Rate>,
    pub(crate) timeout_ns: u64,
    /// Requests that a connection carries at most.
    pub(crate) turns: u64,
    pub(crate) ending: Ending,
    pub(crate) pipeline: usize,
    pub(crate) threads: usize,
    /// Responses have no content: the method is HEAD.
    pub(crate) no_content: bool,
    /// What the servers are, if they are no web servers.
    pub(crate) store: Option<Store>,
}

impl Plan {
    /// Finds the servers' addresses.
    pub(crate) fn new(settings: &Settings) -> Result<Plan, Error> {
        let server = |first: &super::Target| {
            let same = settings.targets.iter().filter(|target| target.is_same_server(first));
            let request = |target: &super::Target| Request {
                bytes: settings.request(target, false).into(),
                last: settings.request(target, true).into(),
                weight: target.weight,
            };
            Ok(Server {
                address: first.resolve()?,
                secure_name: first.is_secure().then(|| first.host().to_string()),
                requests: same.map(request).collect(),
            })
        };
        Ok(Plan {
            servers: settings.servers().into_iter().map(server).collect::<Result<_, Error>>()?,
            sources: settings.sources.map(Sources::new).transpose()?,
            rate: settings.rate.clone(),
            timeout_ns: u64::try_from(settings.timeout.as_nanos()).unwrap_or(u64::MAX),
            turns: settings.turns(),
            ending: settings.ending,
            pipeline: settings.pipeline,
            threads: settings.threads,
            no_content: settings.method == "HEAD",
            store: settings.targets.iter().find_map(|target| target.key()).map(|(store, _)| store),
        })
    }

    /// Whether a connection is begun when a request is due, and for that request alone.
    pub(crate) fn connects_on_demand(&self) -> bool {
        self.rate.is_some() && self.turns == 1
    }

    /// Where a thread's connections go: its script may send them elsewhere, all of them.
    pub(crate) fn servers_of(&self, script: Option<&dyn Script>) -> Servers {
        let elsewhere = script.and_then(Script::server);
        let address = |server: &Server| elsewhere.unwrap_or(server.address);
        let at_once = script.map_or(1, Script::requests_at_once);
        Servers {
            addresses: self.servers.iter().map(address).collect(),
            sources: self.sources.clone(),
            no_delay: self.pipeline > 1 || at_once > 1,
        }
    }

    /// By server.
    pub(crate) fn weights(&self) -> Vec<u64> {
        self.servers.iter().map(Server::weight).collect()
    }

    /// How many of a thread's connections go to each server: by weight, and at least one to each that has any.
    pub(crate) fn share(&self, connections: usize) -> Vec<usize> {
        let weights = self.weights();
        let some = weights.iter().filter(|weight| **weight > 0).count();
        let mut shares: Vec<usize> = weights.iter().map(|weight| usize::from(*weight > 0)).collect();
        for server in deal(&weights).into_iter().cycle().take(connections.saturating_sub(some)) {
            shares[server] += 1;
        }
        shares
    }
}

/// Indices of `weights`, each as often as its weight says, spread as evenly as whole numbers allow.
pub(crate) fn deal(weights: &[u64]) -> Vec<usize> {
    let total: u64 = weights.iter().sum();
    let mut dealt = vec![0u64; weights.len()];
    let mut order = Vec::with_capacity(total as usize);
    for turn in 1..=total {
        // Whoever is furthest behind its share of the turns so far; of several the first.
        let behind = |index: usize| {
            i128::from(weights[index]) * i128::from(turn) - i128::from(total) * i128::from(dealt[index])
        };
        let next = (0..weights.len()).rev().max_by_key(|index| behind(*index)).unwrap_or(0);
        dealt[next] += 1;
        order.push(next);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::*;

    #[test]
    fn weights_are_kept_exactly_and_mixed() {
        assert_eq!(deal(&[1]), [0]);
        assert_eq!(deal(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(deal(&[1, 0, 1]), [0, 2]);
        let order = deal(&[50, 30, 20]);
        assert_eq!(order.len(), 100);
        for (index, weight) in [50, 30, 20].into_iter().enumerate() {
            assert_eq!(order.iter().filter(|dealt| **dealt == index).count(), weight);
            let early = order[..20].iter().filter(|dealt| **dealt == index).count();
            assert!(early.abs_diff(weight / 5) <= 1, "{index}: {early} of the first 20");
        }
    }

    #[test]
    fn targets_of_one_server_share_its_connections() {
        let target = |url: &str, weight| {
            let mut target = Target::parse(url).unwrap();
            target.weight = weight;
            target
        };
        let mut settings = Settings::new(target("http://127.0.0.1/a", 6));
        settings.targets.push(target("http://127.0.0.2/b", 1));
        settings.targets.push(target("http://127.0.0.1/c", 2));
        let plan = Plan::new(&settings).unwrap();
        assert_eq!(plan.weights(), [8, 1]);
        assert_eq!(plan.servers[0].order().len(), 8);
        assert_eq!(plan.share(2), [1, 1], "nobody is left out");
        assert_eq!(plan.share(11), [9, 2]);
    }
}
