//! A form made ready to run: what all threads share, and nothing of it ever changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use overfly_engine::{Algorithm, Config, Ecn, Prefix};

use super::address::{Range, prefixes_of};
use super::buffer::Buffer;
use super::form::{self, Command, Distribution, Form, Payload, Transport, Tunnel};
use super::path::{Ambiguous, Paths};
use crate::error::Error;

/// Which end of its flows a stack is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Template of no flow, or of one whose template nothing has said yet.
pub(crate) const NO_TEMPLATE: u16 = u16::MAX;

/// The engine asks for 0 or 1 to 500 ms (RFC 9293 section 3.8.6.3).
const DELAYED_ACK_MOST_MS: u32 = 500;
/// What keep-alive tunables are that nobody touched: then there is no keep-alive.
const KEEP_ALIVE_DEFAULT_S: (u32, u32) = (5, 7);

/// The payload that tells rules of one port apart.
#[derive(Debug, Clone)]
struct Mask(Payload);

impl Mask {
    fn fits(&self, payload: &[u8]) -> bool {
        let Payload { offsets, masks, values } = &self.0;
        offsets.iter().zip(masks).zip(values).all(|((offset, mask), value)| {
            payload.get(usize::from(*offset)).is_some_and(|byte| byte & mask == value & mask)
        })
    }
}

#[derive(Debug, Clone)]
struct Rule {
    addresses: Option<Range>,
    payload: Option<Mask>,
    template: u16,
}

/// What becomes of a flow to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    Template(u16),
    /// The first payload will tell.
    Wait,
    Nobody,
}

/// Who answers at a port.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// Those that come first go before.
    rules: Vec<Rule>,
}

impl Port {
    /// The template of every flow to the port, if it is one.
    pub(crate) fn only(&self) -> Option<u16> {
        match self.rules.as_slice() {
            [Rule { addresses: None, payload: None, template }] => Some(*template),
            _ => None,
        }
    }

    /// Whose a flow to `local` is, whose first payload may be known.
    pub(crate) fn find(&self, local: IpAddr, payload: Option<&[u8]>) -> Match {
        for rule in &self.rules {
            if rule.addresses.is_some_and(|addresses| !addresses.contains(local)) {
                continue;
            }
            match (&rule.payload, payload) {
                (Some(_), None) => return Match::Wait,
                (Some(mask), Some(payload)) if !mask.fits(payload) => {}
                _ => return Match::Template(rule.template),
            }
        }
        Match::Nobody
    }

    /// A template of the port.
    pub(crate) fn any(&self) -> u16 {
        self.rules.first().map_or(NO_TEMPLATE, |rule| rule.template)
    }
}

/// What a template sets for each of its flows otherwise than the engine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Nagle's algorithm is off.
    pub(crate) no_delay: bool,
    pub(crate) traffic_class: u8,
    /// If the profile says one.
    pub(crate) hop_limit: Option<u8>,
    pub(crate) mss: Option<u16>,
    pub(crate) window: Option<u32>,
    /// Bytes of the initial congestion window.
    pub(crate) initial: Option<u32>,
    pub(crate) congestion: Option<Algorithm>,
    pub(crate) keep_alive: Option<overfly_engine::KeepAlive>,
    /// Bytes that may be queued by sends that do not block.
    pub(crate) queue: u32,
}

/// One kind of flow.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) transport: Transport,
    /// Index into [`Plan::groups`].
    pub(crate) group: usize,
    pub(crate) clients: (Range, Distribution),
    pub(crate) servers: (Range, Distribution),
    pub(crate) port: u16,
    pub(crate) cps: f64,
    pub(crate) limit: Option<u32>,
    pub(crate) keep_open: bool,
    /// The thread that has the first flow of those that `limit` leaves over when it is shared.
    pub(crate) first_core: u16,
    pub(crate) ramp_s: Option<u32>,
    programs: [usize; 2],
    tunings: [Tuning; 2],
    /// Of what the client side sends, and the server side.
    paths: [form::Path; 2],
    /// The profile's file and line.
    place: String,
}

impl Template {
    pub(crate) fn tuning(&self, role: Role) -> &Tuning {
        &self.tunings[role as usize]
    }
}

/// A run, ready.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What was compiled, for titles.
    pub(crate) name: String,
    pub(crate) buffers: Vec<Buffer>,
    programs: Vec<Box<[Command]>>,
    pub(crate) templates: Vec<Template>,
    /// Names; the last is of the templates without a group.
    pub(crate) groups: Vec<String>,
    pub(crate) tcp_ports: BTreeMap<u16, Port>,
    pub(crate) udp_ports: BTreeMap<u16, Port>,
    pub(crate) tunnels: Vec<Tunnel>,
    /// Clients and servers between which latency is probed.
    pub(crate) probes: Vec<(IpAddr, IpAddr)>,
    /// What the client side sends, and the server side.
    paths: [Paths; 2],
    /// Engine-wide tunables of the client and the server side.
    wide: [form::Tcp; 2],
}

/// The group of templates that have none.
pub(crate) const NO_GROUP: &str = "others";

impl Plan {
    /// Makes the form ready.
    ///
    /// # Errors
    /// What cannot be run, with the line of the profile.
    pub(crate) fn new(form: &Form) -> Result<Plan, Error> {
        let name = form.profiles.iter().map(|profile| profile.file.clone()).collect::<Vec<_>>().join(", ");
        let wrong = |place: String, why: String| Error::usage("PROFILE", place, why);
        let buffers = (form.buffers.iter().map(Buffer::new))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong(name.clone(), format!("payload in base64: {error}")))?;
        for program in &form.programs {
            check(program, &form.buffers)?;
        }
        if form.templates.is_empty() || form.templates.len() >= usize::from(NO_TEMPLATE) {
            return Err(wrong(name, "1 to 65,534 templates".to_string()));
        }
        let mut groups = form.groups.clone();
        if form.templates.iter().any(|template| template.group.is_none()) {
            groups.push(NO_GROUP.to_string());
        }
        let wide = wide(form)?;
        let mut plan = Plan {
            name,
            buffers,
            programs: form.programs.iter().map(|program| program.commands.clone().into()).collect(),
            templates: Vec::new(),
            groups,
            tcp_ports: BTreeMap::new(),
            udp_ports: BTreeMap::new(),
            tunnels: form.tunnels.iter().filter(|tunnel| tunnel.active).cloned().collect(),
            probes: (form.probes.iter().filter(|probe| probe.link_pair == 0))
                .map(|probe| (probe.client, probe.server))
                .collect(),
            paths: Default::default(),
            wide,
        };
        for (index, template) in form.templates.iter().enumerate() {
            plan.add(form, index, template)?;
        }
        let ports = plan.tcp_ports.values_mut().chain(plan.udp_ports.values_mut());
        // schema.json: one with payload goes before one without, then one with addresses before one without.
        for port in ports {
            port.rules.sort_by_key(|rule| (rule.payload.is_none(), rule.addresses.is_none()));
        }
        plan.paths = [plan.client_paths()?, plan.server_paths()?];
        Ok(plan)
    }

    /// What the client side sends is known by its destination.
    fn client_paths(&self) -> Result<Paths, Error> {
        let mut paths = Paths::default();
        for template in &self.templates {
            let to = (protocol(template.transport), template.port);
            let path = (template.paths[0], template.group);
            let added = paths.add(to, Some(template.servers.0), path, self.groups.len());
            added.map_err(|Ambiguous| ambiguous(template))?;
        }
        Ok(paths)
    }

    /// What the server side sends is known by its source, as flows are that come.
    fn server_paths(&self) -> Result<Paths, Error> {
        let mut paths = Paths::default();
        for (transport, ports) in [(Transport::Tcp, &self.tcp_ports), (Transport::Udp, &self.udp_ports)] {
            for (port, rules) in ports {
                let by_payload = rules.rules.iter().any(|rule| rule.payload.is_some());
                for rule in &rules.rules {
                    let template = &self.templates[usize::from(rule.template)];
                    let path = (template.paths[1], template.group);
                    let servers = rule.addresses.filter(|_| !by_payload);
                    let added = paths.add((protocol(transport), *port), servers, path, self.groups.len());
                    added.map_err(|Ambiguous| ambiguous(template))?;
                }
            }
        }
        Ok(paths)
    }

    /// The paths of what a side sends.
    pub(crate) fn paths(&self, role: Role) -> &Paths {
        &self.paths[role as usize]
    }

    fn add(&mut self, form: &Form, index: usize, template: &form::Template) -> Result<(), Error> {
        let (client, server) = (&template.client, &template.server);
        let place = place(template);
        let range = |pool: usize, msb: Option<std::net::Ipv6Addr>| {
            let pool = &form.pools[pool];
            let msb = (client.ipv6.enable == 1).then(|| msb.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED));
            let range = Range::of(pool, msb).map_err(|error| Error::usage("PROFILE", &place, error))?;
            Ok((range, pool.distribution))
        };
        let clients = range(client.clients, client.ipv6.src_msb)?;
        let servers = range(client.servers, client.ipv6.dst_msb)?;
        if clients.0.first.is_ipv4() != servers.0.first.is_ipv4() {
            return Err(Error::usage("PROFILE", place, "clients and servers of one family: IPv4 or IPv6"));
        }
        let group = template.group.unwrap_or(self.groups.len() - 1);
        let tunings =
            [tuning(&client.tcp, &client.ip, &self.wide[0]), tuning(&server.tcp, &server.ip, &self.wide[1])];
        self.templates.push(Template {
            transport: template.transport,
            group,
            clients,
            servers,
            port: client.port,
            cps: client.cps,
            limit: client.limit,
            keep_open: client.keep_open,
            first_core: client.first_core.unwrap_or(0),
            ramp_s: form.profiles.get(template.profile).and_then(|profile| profile.rampup_sec),
            programs: [client.program, server.program],
            tunings,
            paths: [client.path, server.path],
            place: place.clone(),
        });
        let ports = match template.transport {
            Transport::Tcp => &mut self.tcp_ports,
            Transport::Udp => &mut self.udp_ports,
        };
        for rule in &server.rules {
            let addresses =
                rule.first.zip(rule.last).map(|(first, last)| Range::new(first, last)).transpose();
            let addresses = addresses.map_err(|error| Error::usage("PROFILE", &place, error))?;
            let payload = rule.payload.clone().map(Mask);
            ports.entry(rule.port).or_default().rules.push(Rule {
                addresses,
                payload,
                template: index as u16,
            });
        }
        Ok(())
    }

    /// What `role`'s side of a template's flows does.
    #[inline]
    pub(crate) fn program(&self, template: u16, role: Role) -> &[Command] {
        &self.programs[self.templates[usize::from(template)].programs[role as usize]]
    }

    /// The addresses of one side.
    pub(crate) fn addresses(&self, role: Role) -> Vec<Prefix> {
        let ports = self.tcp_ports.values().chain(self.udp_ports.values());
        // What a device in between makes of a server's address is in its rules.
        let rules = ports.flat_map(|port| port.rules.iter().filter_map(|rule| rule.addresses));
        prefixes_of(
            (self.templates.iter())
                .map(|template| if role == Role::Client { template.clients.0 } else { template.servers.0 })
                .chain(rules.filter(|_| role == Role::Server)),
        )
    }

    /// The largest segment that either side may send.
    pub(crate) fn largest_segment(&self) -> u16 {
        self.wide.iter().map(|tcp| tcp.mss).max().unwrap_or(1460)
    }

    /// Whether there are flows of IPv6.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.templates.iter().any(|template| template.clients.0.first.is_ipv6())
    }

    /// An engine's configuration with this side's tunables, out of what its link asks for.
    pub(crate) fn configure(&self, role: Role, config: Config) -> Config {
        let tcp = &self.wide[role as usize];
        Config {
            receive_window: tcp.rxbufsize,
            initial_receive_window: tcp.rxbufsize,
            initial_window: tcp.initwnd * u32::from(tcp.mss),
            timestamps: tcp.do_rfc1323 == 1,
            sack: tcp.do_sack == 1,
            congestion: algorithm(tcp),
            ecn: match tcp.do_ecn {
                0 => Ecn::Off,
                1 => Ecn::Ask,
                _ => Ecn::Accept,
            },
            max_reassembly_blocks: tcp.reass_maxqlen.max(1),
            // Each try waits twice as long as the one before, the first for a second (RFC 6298 section 2).
            syn_retries: (32 - tcp.keepinit.leading_zeros()) as u8,
            delayed_ack: Duration::from_millis(tcp.delay_ack_msec.min(DELAYED_ACK_MOST_MS).into()),
            // As TRex's stack, in which delay_ack_msec holds from the first segment on.
            quick_acks: false,
            // The test's own peers: nobody guesses, and no SYN is one too many.
            syn_cookies: overfly_engine::SynCookies::Off,
            min_half_open: u32::MAX,
            // Flows of datagrams begin at once, while the first one asks where the peer is.
            held_datagrams: 4096,
            ..config
        }
    }
}

fn protocol(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => overfly_wire::ipv4::PROTOCOL_TCP,
        Transport::Udp => overfly_wire::ipv4::PROTOCOL_UDP,
    }
}

fn ambiguous(template: &Template) -> Error {
    Error::usage(
        "PROFILE",
        &template.place,
        "the same path (delay, jitter, loss) for templates of the same port and addresses: on the way nothing tells their packets apart",
    )
}

/// The profile's file and line.
fn place(template: &form::Template) -> String {
    match (&template.file, template.line) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.clone(),
        _ => String::new(),
    }
}

/// A send that is longer than this could not be told from an old one.
const SEND_MOST: u32 = 1 << 30;

fn check(program: &form::Program, buffers: &[form::Buffer]) -> Result<(), Error> {
    for (index, command) in program.commands.iter().enumerate() {
        let line = program.lines.get(index).copied().unwrap_or(0);
        let refuse = |why: &str| Err(Error::usage("PROFILE", format!("{}:{line}", program.file), why));
        match command {
            Command::Send { buffer } if buffers[*buffer as usize].bytes > SEND_MOST => {
                return refuse("a send of 1 GiB at most: loop over a smaller one");
            }
            Command::SendMsg { buffer } if buffers[*buffer as usize].bytes > 65_507 => {
                return refuse("a datagram of 65,507 bytes at most (RFC 768)");
            }
            _ => {}
        }
    }
    Ok(())
}

fn algorithm(tcp: &form::Tcp) -> Algorithm {
    if tcp.cc_algo == 1 { Algorithm::Cubic } else { Algorithm::Reno }
}

fn tuning(tcp: &form::Tcp, ip: &form::Ip, wide: &form::Tcp) -> Tuning {
    let (mss, window) = (tcp.mss, tcp.rxbufsize);
    let initial = tcp.initwnd * u32::from(mss);
    let keep_alive = (tcp.keepidle, tcp.keepintvl);
    Tuning {
        no_delay: tcp.no_delay & 1 == 1,
        traffic_class: ip.tos,
        hop_limit: ip.ttl,
        mss: (mss != 1460).then_some(mss),
        window: (window != wide.rxbufsize).then_some(window),
        initial: (initial != wide.initwnd * u32::from(wide.mss)).then_some(initial),
        congestion: (tcp.cc_algo != wide.cc_algo).then(|| algorithm(tcp)),
        keep_alive: (keep_alive != KEEP_ALIVE_DEFAULT_S).then(|| overfly_engine::KeepAlive {
            idle: Duration::from_secs(tcp.keepidle.into()),
            interval: Duration::from_secs(tcp.keepintvl.into()),
            // As BSD's TCPTV_KEEPCNT.
            probes: 8,
        }),
        queue: tcp.txbufsize,
    }
}

/// What an engine has for all its flows: of the client side, and of the server side.
fn wide(form: &Form) -> Result<[form::Tcp; 2], Error> {
    let of = |side: fn(&form::Template) -> form::Tcp| {
        let mut all = form.templates.iter().map(|template| (template, side(template)));
        let (_, mut tcp) = all.next().expect("there is a template");
        for (template, other) in all {
            let differs = [
                ("do_rfc1323", tcp.do_rfc1323 != other.do_rfc1323),
                ("do_sack", tcp.do_sack != other.do_sack),
                ("do_ecn", tcp.do_ecn != other.do_ecn),
                ("reass_maxqlen", tcp.reass_maxqlen != other.reass_maxqlen),
                ("keepinit", tcp.keepinit != other.keepinit),
                ("delay_ack_msec", tcp.delay_ack_msec != other.delay_ack_msec),
            ];
            if let Some((name, _)) = differs.into_iter().find(|(_, differs)| *differs) {
                let expected = format!("the same {name} in all templates of a side: one stack runs them");
                return Err(Error::usage("PROFILE", place(template), expected));
            }
            tcp.rxbufsize = tcp.rxbufsize.max(other.rxbufsize);
            tcp.mss = tcp.mss.max(other.mss);
        }
        Ok(tcp)
    };
    Ok([of(|template| template.client.tcp)?, of(|template| template.server.tcp)?])
}
