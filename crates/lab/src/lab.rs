//! A lab: created in one call, gone when dropped.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use crate::agent::{self, AgentSpec};
use crate::backend::Backend;
use crate::bgp::Speaker;
use crate::error::{Doing, Error, Result};
use crate::events::PoolEvents;
use crate::home::Home;
use crate::narrow::{LEAST_MTU, Link, USUAL_MTU};
use crate::quic::Identity;
use crate::switch::{P4Switch, Program};
use crate::topology::{
    self, FRONTS, INTERFACE, MAX_BACKENDS, MAX_CLIENT_ADDRESSES, MAX_CLIENTS, MAX_FLEET, Node,
    Plan, Receivers, Role, STATEFUL, Topology, VIP4, VIP6, WEB_PORT,
};
use weir_testbed::NetNs;
use weir_testbed::cgroup::Cgroup;
use weir_testbed::interrupt::{interrupted, sleep};
use weir_testbed::{link, process};

/// What a lab is made of.
#[derive(Clone, Debug)]
pub struct LabSpec {
    /// The arrangement of its nodes.
    pub topology: Topology,
    /// Number of balancers of a fleet, 2 to 8, in the topology `fleet`.
    pub balancers: usize,
    /// Whether the router of a fleet learns by BGP which balancers there are, from such a speaker beside each, and leads
    /// to those that announce; else its routes are set.
    pub bgp: Option<Speaker>,
    /// Number of backends, 1 to 200.
    pub backends: usize,
    /// Number of client namespaces, 1 to 100. Each gets a thread of the traffic driver.
    pub clients: usize,
    /// Source addresses of each client and family, 1..=200. One address has about 64,000 ports
    /// towards a service, and a closed connection holds its port for a minute.
    pub addresses_per_client: usize,
    /// Size of the answer to `/big`, in bytes.
    pub big_bytes: u64,
    /// Rate at which nginx sends it, in bytes per second.
    pub big_rate: u64,
    /// TCP ports at which nginx of each backend answers, besides [`WEB_PORT`].
    pub more_ports: Vec<u16>,
    /// Whether backends are hosts on which nothing was set for them to be backends: without the VIP, with
    /// the kernel's usual settings, and nothing that takes packets out of tunnels.
    pub bare: bool,
    /// What takes packets out of tunnels on backends that are not bare, in the topology `routed`.
    pub receivers: Receivers,
    /// The agents that backends run, if they do.
    pub agent: Option<AgentSpec>,
    /// Whether backends have a server of QUIC, too, which makes its connection ids by what their agents are told, in
    /// the topology `fleet`.
    pub quic: bool,
    /// Whether no packet overtakes another on the way through the lab, however busy the machine is. Without,
    /// one that a processor has taken and not passed on yet is overtaken by those of another, by
    /// milliseconds where both have much to do; TCP then drops, rightly, what is older than what it has
    /// seen (RFC 7323, PAWS).
    pub in_order: bool,
    /// Whether nginx of each backend has an application behind it, which works on one request for
    /// `/work/<microseconds>` after the other, for as long as it says.
    pub work: bool,
    /// Whether the servers of each backend have a control group of their own, which tells what they
    /// use of the CPUs.
    pub cgroups: bool,
    /// Whether the balancer's interfaces are taps, beside the ends of its cables
    /// ([`device_of`](topology::device_of)), which a plane in user space has.
    pub taps: bool,
    /// Queues in each direction of the interfaces of the balancers, if the kernel is not to choose. Flows are spread
    /// over them by their hash.
    pub queues: Option<u16>,
    /// What a P4 switch runs whose ports the balancer's interfaces are, if there is one. The balancer has not the
    /// VIPs then, and forwards nothing: its own stack sees all frames, too, and is to let them be.
    pub switch: Option<Program>,
    /// The link between the router and the backends, if it takes less than others; in topologies with a router
    /// there.
    pub link: Option<Link>,
}

impl Default for LabSpec {
    fn default() -> Self {
        Self {
            topology: Topology::L2,
            balancers: 3,
            bgp: None,
            backends: 12,
            clients: 2,
            addresses_per_client: 4,
            big_bytes: 8 << 20,
            big_rate: 1 << 20,
            more_ports: Vec::new(),
            bare: false,
            receivers: Receivers::Testbed,
            agent: None,
            quic: false,
            in_order: false,
            work: false,
            cgroups: false,
            taps: false,
            queues: None,
            switch: None,
            link: None,
        }
    }
}

impl LabSpec {
    fn check(&self) -> Result<()> {
        for (what, value, most) in [
            ("backends", self.backends, MAX_BACKENDS),
            ("clients", self.clients, MAX_CLIENTS),
            ("addresses per client", self.addresses_per_client, MAX_CLIENT_ADDRESSES),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::BadSpec(format!("{value} {what}: a lab has 1 to {most}")));
            }
        }
        if !(2..=MAX_FLEET).contains(&self.balancers) {
            let wrong = format!("{} balancers: a fleet has 2 to {MAX_FLEET}", self.balancers);
            return Err(Error::BadSpec(wrong));
        }
        if self.bgp.is_some() && self.topology != Topology::Fleet {
            return Err(Error::BadSpec("a router with BGP is the one of a fleet".into()));
        }
        let told = self.agent.as_ref().is_some_and(|agent| agent.tells);
        if self.quic && !(told && self.topology == Topology::Fleet) {
            return Err(Error::BadSpec(
                "servers of QUIC are those of a fleet's backends, whose agents speak to its balancers".into(),
            ));
        }
        let plain = [Topology::L2, Topology::Inline, Topology::Nat, Topology::Routed];
        if self.taps && !plain.contains(&self.topology) {
            let wrong = format!("taps in the topology {}", self.topology.name());
            return Err(Error::BadSpec(format!("{wrong}: l2, inline, nat and routed have them")));
        }
        let ported = [Topology::L2, Topology::Routed];
        if self.switch.is_some() && !ported.contains(&self.topology) {
            let wrong = format!("a P4 switch in the topology {}", self.topology.name());
            return Err(Error::BadSpec(format!("{wrong}: l2 and routed can have one")));
        }
        if let Some(link) = self.link {
            self.check_link(link)?;
        }
        if self.big_bytes == 0 || self.big_rate == 0 {
            return Err(Error::BadSpec("the long download has a size and a rate above 0".into()));
        }
        Ok(())
    }

    fn check_link(&self, link: Link) -> Result<()> {
        let name = self.topology.name();
        let wrong = if !Link::goes_with(self.topology) {
            format!(
                "a link of {} bytes in the topology {name}, which has no router before its backends: routed, fullnat \
                 and dual have one",
                link.mtu
            )
        } else if self.switch.is_some() {
            "a P4 switch tells no senders that their packets are too large for a link".into()
        } else if !(LEAST_MTU..USUAL_MTU).contains(&link.mtu) {
            let most = USUAL_MTU - 1;
            format!("a link of {} bytes: it takes {LEAST_MTU} to {most}", link.mtu)
        } else {
            return Ok(());
        };
        Err(Error::BadSpec(wrong))
    }
}

/// A running lab. Dropping it removes everything that it made; if the process dies, the kernel
/// kills its servers, and the next lab on the machine (or [`sweep`](crate::sweep)) removes the
/// rest.
#[derive(Debug)]
pub struct Lab {
    // Dropped by `teardown`, in this order.
    backends: Vec<Backend>,
    clients: Vec<NetNs>,
    balancer: NetNs,
    router: Option<NetNs>,
    fronts: Vec<NetNs>,
    stateful: Vec<NetNs>,
    switch: NetNs,
    events: Arc<PoolEvents>,
    p4: Mutex<Option<P4Switch>>,
    quic: Option<Arc<Identity>>,
    spec: LabSpec,
    home: Home,
}

impl Lab {
    /// Builds the topology and starts the servers of every backend; returns when all of them
    /// listen. On an error nothing is left behind.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::BadSpec`], [`Error::Interrupted`], or what the system said.
    pub fn create(spec: LabSpec) -> Result<Self> {
        if !geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        spec.check()?;
        process::raise_file_limit()?;
        let quic = spec.quic.then(Identity::new).transpose()?.map(Arc::new);
        let home = Home::claim()?;
        let prefix = format!("wl{}-", home.id());
        let node =
            |role: Role| Node { role, netns: NetNs::named(format!("{prefix}{}", role.name())) };
        let switch = node(Role::Switch);
        let routed = [Topology::Routed, Topology::FullNat, Topology::Dual, Topology::Fleet];
        let router = routed.contains(&spec.topology).then_some(Role::Router);
        let tiers = spec.topology == Topology::Tiers;
        let fronts = match spec.topology {
            Topology::Tiers => FRONTS,
            Topology::Fleet => spec.balancers,
            _ => 1,
        };
        let fronts = (1..fronts).map(Role::Front);
        let stateful = (0..if tiers { STATEFUL } else { 0 }).map(Role::Stateful);
        let others: Vec<Node> = std::iter::once(Role::Balancer)
            .chain(router)
            .chain(fronts.clone())
            .chain(stateful.clone())
            .chain((0..spec.clients).map(Role::Client))
            .chain((0..spec.backends).map(Role::Backend))
            .map(node)
            .collect();
        let mut lab = Self {
            backends: Vec::new(),
            clients: (0..spec.clients).map(|i| node(Role::Client(i)).netns).collect(),
            balancer: node(Role::Balancer).netns,
            router: router.map(|role| node(role).netns),
            fronts: fronts.map(|role| node(role).netns).collect(),
            stateful: stateful.map(|role| node(role).netns).collect(),
            switch: switch.netns.clone(),
            events: Arc::default(),
            p4: Mutex::default(),
            quic,
            spec,
            home,
        };
        // From here on an early return drops `lab`, which cleans up.
        lab.build(&switch, &others)?;
        Ok(lab)
    }

    fn build(&mut self, switch: &Node, others: &[Node]) -> Result<()> {
        let started = Instant::now();
        let names: Vec<&str> =
            std::iter::once(switch).chain(others).map(|node| node.netns.name()).collect();
        self.home.note_namespaces(&names)?;
        NetNs::create(&names)?;
        topology::wire(switch, others, self.plan())?;
        if self.spec.in_order {
            std::iter::once(switch).chain(others).try_for_each(|node| node.netns.keep_order())?;
        }
        tracing::debug!("wired after {:?}", started.elapsed());
        if let Some(program) = self.spec.switch {
            let mut switch = P4Switch::compile(self.balancer.clone(), self.home.path(), program)?;
            switch.start()?;
            *self.p4() = Some(switch);
        }
        let big = self.home.path().join("big");
        File::create(&big)
            .and_then(|file| file.set_len(self.spec.big_bytes))
            .doing(|| format!("creating {}", big.display()))?;
        let groups = self.spec.cgroups.then(|| format!("wl{}", self.home.id()));
        if let Some(all) = &groups {
            self.home.note_also(&Cgroup::path_of(all)?)?;
        }
        for node in others {
            if let Role::Backend(index) = node.role {
                let group = groups.as_ref().map(|all| Cgroup::create(&format!("{all}/b{index}")));
                let backend = Backend::new(
                    index,
                    node.netns.clone(),
                    self.home.path(),
                    &self.spec,
                    Arc::clone(&self.events),
                    group.transpose()?,
                    self.quic.clone(),
                )?;
                backend.launch()?;
                self.home.note_also(&agent::pins(&node.netns)?)?;
                self.backends.push(backend);
            }
            if interrupted() {
                return Err(Error::Interrupted);
            }
        }
        if self.spec.agent.as_ref().is_some_and(|agent| agent.tells) {
            agent::certificates(self.home.path(), self.spec.balancers, self.backends.len())?;
        }
        for backend in &self.backends {
            if self.spec.agent.is_some() {
                self.start_agent(backend)?;
            }
            backend.await_listening()?;
        }
        tracing::debug!("ready after {:?}", started.elapsed());
        Ok(())
    }

    /// Starts the agent of one of its backends as at first; does nothing if it runs.
    ///
    /// # Errors
    /// As [`Backend::start_agent`].
    pub fn start_agent(&self, backend: &Backend) -> Result<()> {
        let telling = self.spec.agent.as_ref().filter(|agent| agent.tells);
        let words = telling.map(|agent| {
            let given = agent.given.unwrap_or(self.spec.balancers);
            agent::telling(&self.home.path().join("pki"), backend.index(), given)
        });
        let mut words = words.unwrap_or_default();
        if self.spec.quic {
            words.extend(["--quic-lb-file".into(), backend.quic_ids().display().to_string()]);
        }
        backend.start_agent(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Takes the balancer's interface away and gives it a new one of the same name and addresses.
    ///
    /// # Errors
    /// What the system said.
    pub fn replace_balancer_interface(&self) -> Result<()> {
        let node = Node { role: Role::Balancer, netns: self.balancer.clone() };
        topology::replace(&self.switch, &node, self.plan())
    }

    /// Pulls the cables out of the balancer's interfaces, or puts them back: it loses its carrier, and keeps
    /// its addresses.
    ///
    /// # Errors
    /// What the system said.
    pub fn plug_balancer(&self, plugged: bool) -> Result<()> {
        topology::plug(&self.switch, Role::Balancer, self.spec.topology, plugged)
    }

    /// Ends the P4 switch, and starts it anew unless it is to be `gone`: it has forgotten everything then.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart_switch(&self, gone: bool) -> Result<()> {
        match &mut *self.p4() {
            Some(switch) if gone => switch.kill(),
            Some(switch) => switch.start()?,
            None => {}
        }
        Ok(())
    }

    fn p4(&self) -> MutexGuard<'_, Option<P4Switch>> {
        self.p4.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> Plan {
        let LabSpec { topology, bare, receivers, clients, backends, taps, queues, .. } = self.spec;
        let (switch, link) = (self.spec.switch.is_some(), self.spec.link);
        let client_addresses = self.spec.addresses_per_client;
        Plan {
            topology,
            client_addresses,
            bare,
            receivers,
            clients,
            backends,
            taps,
            queues,
            switch,
            link,
        }
    }

    /// Its id, four letters and digits; its namespaces are called `wl<id>-...`.
    pub fn id(&self) -> &str {
        self.home.id()
    }

    /// Its directory, which goes with it.
    pub fn directory(&self) -> &Path {
        self.home.path()
    }

    /// What it was made from.
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// A backend by its position.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn backend(&self, index: usize) -> &Backend {
        &self.backends[index]
    }

    /// All backends, in order.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// What its servers of QUIC show, if it has any.
    pub(crate) fn quic(&self) -> Option<&Identity> {
        self.quic.as_deref()
    }

    /// The namespaces of the clients, in order.
    pub fn clients(&self) -> &[NetNs] {
        &self.clients
    }

    /// The namespace in which the balancer runs.
    pub fn balancer(&self) -> &NetNs {
        &self.balancer
    }

    /// The namespace of a balancer in front, or of a fleet; the first one is [`balancer`](Self::balancer).
    ///
    /// # Panics
    /// If there are not so many.
    pub fn front(&self, index: usize) -> &NetNs {
        index.checked_sub(1).map_or(&self.balancer, |index| &self.fronts[index])
    }

    /// The namespaces of the stateful balancers behind, in `tiers`.
    pub fn stateful(&self) -> &[NetNs] {
        &self.stateful
    }

    /// Makes a client send what it sends to the VIP by a balancer in front, in `tiers`.
    pub fn route_by(&self, client: usize, front: usize) -> Result<()> {
        let (v4, v6) = (topology::front4(front), topology::front6(front));
        let lines =
            format!("route replace {VIP4}/32 via {v4}\nroute replace {VIP6}/128 via {v6}\n");
        Ok(self.clients[client].ip(&lines)?)
    }

    /// The router's namespace, in a topology that has one.
    pub fn router(&self) -> Option<&NetNs> {
        self.router.as_ref()
    }

    /// The switch's namespace; port `lb` of its bridge faces the balancer.
    pub fn switch(&self) -> &NetNs {
        &self.switch
    }

    /// The log of kills.
    pub fn events(&self) -> &Arc<PoolEvents> {
        &self.events
    }

    /// A command that runs in the balancer's namespace, with the mounts of this process: pinned
    /// BPF objects are visible. See [`NetNs::command`] for how long it lives.
    pub fn balancer_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        Ok(self.balancer.command(program)?)
    }

    /// Notes a file or directory, such as one of pinned BPF objects, to be removed with the lab.
    pub fn remove_later(&self, path: &Path) -> Result<()> {
        self.home.note_also(path)
    }

    /// Makes one client send what it sends to the VIP straight to a backend, past any balancer
    /// (`None`: asks the network again). In the topology `l2`.
    pub fn bypass(&self, client: usize, backend: Option<usize>) -> Result<()> {
        let lines: String = [IpAddr::from(VIP4), IpAddr::from(VIP6)]
            .iter()
            .map(|vip| match backend {
                Some(backend) => link::neighbour(*vip, self.backends[backend].mac(), INTERFACE),
                None => format!("neigh del {vip} dev {INTERFACE}\n"),
            })
            .collect();
        Ok(self.clients[client].ip(&lines)?)
    }

    /// Waits until the web service answers the first client at both virtual addresses.
    ///
    /// # Errors
    /// [`Error::NotReady`] or [`Error::Interrupted`].
    pub fn await_service(&self, limit: Duration) -> Result<()> {
        let started = Instant::now();
        for vip in [IpAddr::from(VIP4), IpAddr::from(VIP6)] {
            let address = SocketAddr::new(vip, WEB_PORT);
            let attempt = || TcpStream::connect_timeout(&address, Duration::from_millis(300));
            while let Err(error) = self.clients[0].enter(attempt)? {
                if started.elapsed() > limit {
                    return Err(Error::NotReady {
                        what: format!("the service at {address}"),
                        seconds: started.elapsed().as_secs_f64(),
                        detail: format!(": {error}"),
                    });
                }
                if !sleep(Duration::from_millis(50)) {
                    return Err(Error::Interrupted);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for backend in &self.backends {
            backend.kill();
        }
        *self.p4() = None;
        self.home.demolish();
    }
}
