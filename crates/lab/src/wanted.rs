//! What a laboratory is made like, by what somebody wants to see: each method, each way to backends and each plane
//! needs a network, lines of configuration and agents of its own.

use crate::demo::DemoSpec;
use crate::error::{Error, Result};
use crate::rules::{AT_VETH, LEAST_LED, METHODS, QUEUES, RulesSpec};
use crate::scenario::in_a_flood;
use crate::topology::{Receivers, Topology};
use crate::traffic::Kind;
use crate::view::Show;
use crate::{AgentSpec, FloodKind, Lies, Link, Program, Scenario, Speaker};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_steering::cheetah::ANSWERS;
use weir_steering::{MethodId, why_none};

/// Seconds that a new backend waits in a service of `jet`: longer than a connection of the lab is
/// silent (its horizon is respected), and short enough for a run to see it serve.
const WARM_UP: u64 = 20;

/// How long a client of a fleet waits for an answer, at least.
const PATIENCE_IN_A_FLEET: Duration = Duration::from_secs(60);

/// How long it waits for a connection to open: a little longer than TCP itself does, which in Linux sends the SYN again
/// after 1, 3, 7, 15, 31 and 63 s, and gives up after 127 s.
const UNTIL_TCP_GIVES_UP: Duration = Duration::from_secs(130);

/// How often clients of a fleet are drawn to be of QUIC.
const QUIC_MIX: f64 = 0.04;

/// Segments that a flood beside a fleet is to have, at least.
const FLOODED: u64 = 100_000;

/// Of each kind of long connection so many go over a narrow link, at least, where they can.
const OVER_THE_LINK: u64 = 3;

/// Connections open at a time, on a P4 switch.
const ON_A_SWITCH: usize = 200;
/// Bytes of an upload there.
const UPLOAD_BY_A_SWITCH: u64 = 256 << 10;

/// What decides packets.
#[derive(Clone, Copy, Debug)]
pub enum Plane {
    /// The program in the kernel.
    Kernel,
    /// A process with AF_XDP sockets beside it.
    AfXdp,
    /// A process with ports of DPDK beside it.
    Dpdk,
    /// This program, on a P4 switch.
    P4(Program),
}

/// How much happens, whatever the method.
#[derive(Clone, Debug)]
pub struct Amount {
    /// How long the pool is churned, at least; none: as long as the scenario usually takes.
    pub duration: Option<Duration>,
    /// Changes of the pool, at least.
    pub changes: u64,
    /// When a run is given up that has not come to that.
    pub limit: Duration,
    /// How long answers, and the notice of a death, may take; none: as usual.
    pub patience: Option<Duration>,
    /// Connections that are open at a time; none: as many as the scenario has.
    pub connections: Option<usize>,
    /// Connections that have to end, in all.
    pub total: u64,
    /// Backends; three quarters of them are in the pool at the start.
    pub backends: usize,
    /// Seconds between two changes of the pool, on average, 0.05 to 3600; none: as usual.
    pub change_every: Option<f64>,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// What somebody wants to see.
#[derive(Debug)]
pub struct Wanted {
    /// The program.
    pub weir: PathBuf,
    /// The services' method, by its name.
    pub method: String,
    /// What is done besides changes of the pool.
    pub scenario: Scenario,
    /// How much of it.
    pub amount: Amount,
    /// How it is shown.
    pub show: Show,
    /// Who writes cookies, of the method cheetah; none: the balancer.
    pub answers: Option<String>,
    /// How packets reach the backends, as the configuration calls it.
    pub forward: String,
    /// Whether the kernel's own devices take packets out of tunnels there, and no agent.
    pub by_kernel: bool,
    /// What decides packets.
    pub plane: Plane,
    /// The rules that a card has beside a plane in user space; none: no card has any.
    pub offload: Option<RulesSpec>,
    /// How the nodes are wired; none: as the rest needs it.
    pub topology: Option<Topology>,
    /// The link between the router and the backends, if it takes less than others.
    pub link: Option<Link>,
    /// The largest segments that SYNs and SYN+ACKs of the services may ask for; none: as they do.
    pub mss: Option<u32>,
    /// So many balancers of one fleet; none: one balancer that is in none.
    pub fleet: Option<usize>,
    /// Whether the router of a fleet learns its routes by BGP, of such speakers, and nobody sets them.
    pub bgp: Option<Speaker>,
    /// Whether a run of a fleet goes on until everything has happened to it that may.
    pub every_event: bool,
    /// Floods beside a fleet's connections.
    pub floods: Vec<FloodKind>,
    /// What the agents of a fleet say wrongly.
    pub lies: Lies,
    /// Who gets first packets; none: as the method has it.
    pub scheduler: Option<String>,
    /// What the scheduler goes by.
    pub load: Option<String>,
}

impl Wanted {
    /// The laboratory, and what happens in it.
    ///
    /// # Errors
    /// [`Error::BadSpec`] if not all of it goes together.
    pub fn spec(self) -> Result<DemoSpec> {
        let Self { weir, method, scenario, amount, show, answers, forward, plane, .. } = self;
        let mut spec = spec(&weir, &method, scenario, &amount, show);
        if let Some(answers) = answers {
            answered_by(&mut spec, &answers)?;
        }
        forwarded_by(&mut spec, &forward, self.by_kernel)?;
        let name = match plane {
            Plane::Kernel => None,
            Plane::AfXdp => Some("af-xdp"),
            Plane::Dpdk => Some("dpdk"),
            Plane::P4(_) => Some("p4"),
        };
        if let Some(name) = name {
            // Before tables that a scenario has added.
            spec.balancer.balancer_lines.insert_str(0, &format!("plane = {name:?}\n"));
        }
        if let Some(topology) = self.topology {
            goes_with(topology, &forward)?;
            leads_answers(&spec, topology)?;
            spec.lab.topology = topology;
        }
        if let Some(balancers) = self.fleet {
            (spec.lab.topology, spec.lab.balancers) = (Topology::Fleet, balancers);
        }
        if let Some(mss) = self.mss {
            spec.balancer.tcp_lines += &format!("mss = {mss}\n");
        }
        if let Some(link) = self.link {
            narrowed(&mut spec, link, self.mss)?;
        }
        if spec.lab.topology == Topology::Tiers {
            in_tiers(&mut spec)?;
        }
        if spec.lab.topology == Topology::Fleet {
            if spec.balancer.service_lines.contains("answers = \"inline\"") {
                return bad(
                    "answers do not pass the balancers of a fleet: leave --answers out, or give --answers backend"
                        .into(),
                );
            }
            in_a_fleet(&mut spec)?;
        }
        if let Some(speaker) = self.bgp {
            with_bgp(&mut spec, speaker)?;
        }
        if self.every_event {
            of_a_fleet(&spec, "--every-event")?;
            spec.goals.every_event = true;
        }
        if !self.floods.is_empty() {
            beside_floods(&mut spec, self.floods, amount.connections)?;
        }
        if self.lies.any() {
            with_liars(&mut spec, self.lies)?;
        }
        if let Some(rules) = self.offload {
            with_rules(&mut spec, &plane, &rules)?;
        }
        schedule(&mut spec, self.scheduler.as_deref(), self.load.as_deref())?;
        match plane {
            Plane::Kernel | Plane::AfXdp => {}
            Plane::Dpdk => {
                // A table of its own: after all lines of `[balancer]`.
                spec.lab.taps = true;
                spec.balancer.balancer_lines += &crate::dpdk(spec.lab.topology);
            }
            Plane::P4(program) => {
                spec.lab.switch = Some(program);
                spec.traffic.upload_bytes = UPLOAD_BY_A_SWITCH;
                if spec.balancer.method == MethodId::CheetahStateful.name() {
                    // It has eight, for all services together.
                    service_line(&mut spec, "partitions = 2".into());
                }
                if amount.connections.is_none() {
                    // It forwards some ten thousand packets in a second.
                    spec.traffic.connections = ON_A_SWITCH;
                }
            }
        }
        Ok(spec)
    }
}

/// A laboratory of a method in its usual network, and so much of a scenario in it.
pub fn spec(
    weir: &Path,
    method: &str,
    scenario: Scenario,
    amount: &Amount,
    show: Show,
) -> DemoSpec {
    let mut spec = DemoSpec::new(weir, amount.seed);
    scenario.suit(&mut spec, amount.duration.unwrap_or_else(|| scenario.usual_duration()));
    spec.lab.backends = amount.backends;
    spec.balancer.pool = (amount.backends * 3 / 4).max(2);
    suit(&mut spec, method);
    spec.balancer.method = method.to_owned();
    if let Some(connections) = amount.connections {
        spec.traffic.connections = connections;
    }
    if let Some(patience) = amount.patience {
        (spec.traffic.timeout, spec.traffic.detection) = (patience, patience);
        // A datagram is sent four times in all.
        spec.traffic.udp_timeout = spec.traffic.udp_timeout.max(patience / 4);
        spec.traffic.quic_timeout = spec.traffic.quic_timeout.max(patience);
    }
    spec.goals.changes = spec.goals.changes.max(amount.changes);
    spec.goals.ended = amount.total;
    spec.limit = amount.limit;
    spec.show = show;
    if let Some(seconds) = amount.change_every {
        let mean = Duration::from_secs_f64(seconds.clamp(0.05, 3600.0));
        spec.churn.gap = mean / 2..mean * 3 / 2;
    }
    spec
}

fn bad<T>(words: String) -> Result<T> {
    Err(Error::BadSpec(words))
}

/// Sets who gets first packets.
fn schedule(spec: &mut DemoSpec, scheduler: Option<&str>, load: Option<&str>) -> Result<()> {
    let Some(scheduler) = scheduler else { return Ok(()) };
    let Some(method) = MethodId::named(&spec.balancer.method) else {
        return bad("there is no such method".into());
    };
    if let Some(why) = why_none(method) {
        return bad(format!("{method} has no scheduler: {why}"));
    }
    // What nobody tells is no load.
    (spec.tell_loads, spec.lab.cgroups) = (load == Some("told"), load == Some("told"));
    let load = load.map(|load| format!("load = {load:?}"));
    for line in [Some(format!("scheduler = {scheduler:?}")), load].into_iter().flatten() {
        service_line(spec, line);
    }
    Ok(())
}

/// Sets who writes cookies, and what that needs of the network.
fn answered_by(spec: &mut DemoSpec, answers: &str) -> Result<()> {
    let method = &spec.balancer.method;
    let known = MethodId::named(method).into_iter().flat_map(|method| method.info().settings);
    if !known.into_iter().any(|one| one.name == ANSWERS && one.words.contains(&answers)) {
        return bad(format!("{method} has no answers = {answers:?}; cheetah has"));
    }
    if answers == "backend" {
        spec.lab.topology = Topology::L2;
        spec.lab.agent = Some(AgentSpec::new(&spec.balancer.weir));
    }
    service_line(spec, format!("answers = {answers:?}"));
    Ok(())
}

/// Sets what two tiers of balancers need: backends that answer clients directly, and connections with cookies
/// only, as nothing else finds its way when a client changes to another balancer in front.
fn in_tiers(spec: &mut DemoSpec) -> Result<()> {
    let (method, wanted) = (&spec.balancer.method, MethodId::CheetahStateful.name());
    if method != wanted {
        return bad(format!(
            "two tiers of balancers are for {wanted}, not {method}: add --method {wanted}"
        ));
    }
    if spec.balancer.service_lines.contains("answers = \"inline\"") {
        return bad(
            "answers do not pass the balancers of two tiers: leave --answers out, or give --answers backend"
                .into(),
        );
    }
    spec.lab.agent = Some(AgentSpec::new(&spec.balancer.weir));
    spec.balancer.service_lines.clear();
    spec.traffic.mix.udp = 0.0;
    Ok(())
}

/// Sets what several balancers of one fleet need: connections that any of them finds the backend of.
fn in_a_fleet(spec: &mut DemoSpec) -> Result<()> {
    match &*spec.balancer.method {
        "cheetah" => {
            spec.lab.agent = Some(AgentSpec::stamping(&spec.balancer.weir));
            if !spec.balancer.service_lines.contains("answers") {
                service_line(spec, "answers = \"backend\"".into());
            }
        }
        // Every balancer learns from the backends which connections there are, and all change pools in step.
        "concury" | "residue" => {
            spec.lab.agent = Some(AgentSpec::telling(&spec.balancer.weir));
            spec.balancer.tcp_lines += "states = \"agents\"\n";
            spec.balancer.udp_method = Some("jet".into());
        }
        // Whatever breaks is counted, and shown.
        "tracked" | "jet" => spec.lab.agent = Some(AgentSpec::telling(&spec.balancer.weir)),
        // Its cookies are read by the balancer that made them: what keeps is one tier of such behind another.
        "cheetah-stateful" => {
            return bad(
                "cookies of cheetah-stateful name places in one balancer's memory, so that balancers of one fleet \
                 do not serve alike with it (docs/fleet.md): give --topology tiers in the place of --fleet, or \
                 --method cheetah"
                    .into(),
            );
        }
        method => {
            return bad(format!(
                "balancers of one fleet do not serve alike with {method} (docs/fleet.md): add --method cheetah, \
             concury, residue, tracked or jet"
            ));
        }
    }
    with_quic(spec);
    // Nothing in a datagram tells another balancer where its flow lives, but where it is of QUIC.
    spec.traffic.unpromised = vec![Kind::Udp];
    // A leader that dies in a change leaves new connections waiting for as long as its lease lasts, and a control plane
    // that is killed in one until the next has begun. Of several in turn each may meet one of the SYNs of a connection.
    spec.traffic.connect_timeout = UNTIL_TCP_GIVES_UP;
    spec.traffic.timeout = spec.traffic.timeout.max(PATIENCE_IN_A_FLEET);
    Ok(())
}

/// Adds servers and clients of QUIC to a fleet whose agents speak to its balancers: servers make connection ids by what
/// those are told, and clients change their addresses.
pub fn with_quic(spec: &mut DemoSpec) {
    (spec.lab.quic, spec.balancer.quic, spec.traffic.mix.quic) = (true, true, QUIC_MIX);
}

/// Refuses for any other network what is of several balancers.
fn of_a_fleet(spec: &DemoSpec, option: &str) -> Result<()> {
    if spec.lab.topology == Topology::Fleet {
        return Ok(());
    }
    bad(format!("{option} is for several balancers of one fleet: add --fleet 3 (docs/lab.md)"))
}

/// Floods beside the connections of a fleet.
fn beside_floods(
    spec: &mut DemoSpec,
    floods: Vec<FloodKind>,
    connections: Option<usize>,
) -> Result<()> {
    if spec.lab.topology != Topology::Fleet {
        return bad(
            "--flood is for several balancers of one fleet: add --fleet 3; beside one balancer --scenario syn-flood \
             and ack-flood are floods (docs/lab.md)"
                .into(),
        );
    }
    in_a_flood(spec);
    let usual = Scenario::SynFlood.usual_connections().min(spec.traffic.connections);
    spec.traffic.connections = connections.unwrap_or(usual);
    spec.goals.flooded = FLOODED;
    spec.floods = floods;
    Ok(())
}

/// Agents that do not report connections as they are.
fn with_liars(spec: &mut DemoSpec, lies: Lies) -> Result<()> {
    let told = ["concury", "residue"].contains(&&*spec.balancer.method);
    match spec.lab.agent.as_mut().filter(|agent| told && agent.tells) {
        Some(agent) => {
            agent.lies = lies;
            Ok(())
        }
        None => bad(
            "--omit-one-in and --end-one-in are for agents that tell balancers what lives: add --fleet 3 with --method \
             concury or residue (docs/lab.md)"
                .into(),
        ),
    }
}

/// Rules of a card, of which some are to lead packets.
fn with_rules(spec: &mut DemoSpec, plane: &Plane, rules: &RulesSpec) -> Result<()> {
    if !matches!(plane, Plane::AfXdp | Plane::Dpdk) {
        return bad(
            "--offload is for planes in user space: add --plane af-xdp or dpdk (docs/hnlb.md)"
                .into(),
        );
    }
    let method = &spec.balancer.method;
    if !METHODS.contains(&method.as_str()) {
        let others = METHODS.join(", ");
        return bad(format!(
            "the program in the kernel decides all packets of {method}, which get no rules: give --method with one \
             of {others}, or leave --offload out"
        ));
    }
    if matches!(spec.lab.topology, Topology::Fleet | Topology::Tiers) {
        return bad(
            "--offload is shown beside one balancer: leave --fleet or --topology out".into()
        );
    }
    if rules.card == AT_VETH {
        at_veth(spec, plane)?;
    }
    spec.balancer.balancer_lines += &rules.table();
    spec.goals.led = LEAST_LED;
    Ok(())
}

/// A card in the kernel, at the far end of the balancer's only interface.
fn at_veth(spec: &mut DemoSpec, plane: &Plane) -> Result<()> {
    if !matches!(plane, Plane::AfXdp) {
        return bad(format!(
            "--card {AT_VETH} is played at an interface of the kernel's: add --plane af-xdp, or leave --card out"
        ));
    }
    let topology = spec.lab.topology;
    if !matches!(topology, Topology::L2 | Topology::Routed) {
        return bad(format!(
            "--card {AT_VETH} is at the far end of a balancer's only interface, without VLAN tags or bonds, which \
             --topology {} has not: give l2 or routed, or leave --card out",
            topology.name()
        ));
    }
    spec.lab.queues = Some(QUEUES);
    Ok(())
}

/// Lets the router learn who the balancers are.
fn with_bgp(spec: &mut DemoSpec, speaker: Speaker) -> Result<()> {
    if spec.lab.topology != Topology::Fleet {
        return bad(
            "--router bgp and gobgp are for the router of several balancers: add --fleet 3 (docs/lab.md)"
                .into(),
        );
    }
    spec.lab.bgp = Some(speaker);
    Ok(())
}

/// Sets how packets reach backends, and what that needs of the network.
fn forwarded_by(spec: &mut DemoSpec, forward: &str, by_kernel: bool) -> Result<()> {
    if by_kernel {
        spec.lab.receivers = Receivers::of_the_kernel(forward)?;
    }
    if forward == "l2" {
        return Ok(());
    }
    if spec.lab.topology == Topology::Inline {
        let method = &spec.balancer.method;
        return bad(format!(
            "answers of {method} pass the balancer, and with --forward {forward} the laboratory's \
             backends answer clients directly; cheetah with --answers backend does that, too"
        ));
    }
    spec.lab.topology = match forward {
        "nat" => Topology::Nat,
        "fullnat" => Topology::FullNat,
        _ => Topology::Routed,
    };
    if !spec.lab.topology.is_nat() && !by_kernel && spec.lab.agent.is_none() {
        spec.lab.bare = true;
        spec.lab.agent = Some(AgentSpec::ready(&spec.balancer.weir, forward));
    }
    service_line(spec, format!("forward = {forward:?}"));
    Ok(())
}

/// Where backends have addresses and ports of their own, packets need them.
fn goes_with(topology: Topology, forward: &str) -> Result<()> {
    // Both ways of translation have a network of their name.
    let needed = topology.name();
    if topology.is_nat() && forward != needed {
        return bad(format!(
            "--topology {needed} is the network of --forward {needed}, and --forward {forward} does not work in \
             it; give --forward {needed}"
        ));
    }
    Ok(())
}

/// Where the balancer is to write into answers, it is in their way; several balancers have backends that write cookies.
fn leads_answers(spec: &DemoSpec, topology: Topology) -> Result<()> {
    let inline = spec.lab.topology == Topology::Inline;
    let others = [Topology::Inline, Topology::Vlan, Topology::Tiers, Topology::Fleet];
    if !inline || others.contains(&topology) {
        return Ok(());
    }
    bad(format!(
        "in --topology {} answers do not pass the balancer, which writes the cookies of {} into them: give --answers \
         backend, or --topology inline",
        topology.name(),
        spec.balancer.method
    ))
}

/// Makes the link between the router and the backends take less than others. Long connections are to go over it; where
/// they can only stand still that is counted apart.
fn narrowed(spec: &mut DemoSpec, link: Link, mss: Option<u32>) -> Result<()> {
    if !Link::goes_with(spec.lab.topology) {
        return bad(format!(
            "--link-mtu is for networks with a router before their backends, and {} has none: add --forward ipip, gue, \
             fou, gre or fullnat, or --topology dual",
            spec.lab.topology.name()
        ));
    }
    spec.lab.link = Some(link);
    let stalled = link.stalls(spec.lab.topology, mss);
    let long = [Kind::Download, Kind::Upload].into_iter().filter(|kind| !stalled.contains(kind));
    spec.goals.completed.extend(long.map(|kind| (kind, OVER_THE_LINK)));
    spec.traffic.unpromised.extend(stalled);
    Ok(())
}

/// Adds a line to each service of the configuration.
fn service_line(spec: &mut DemoSpec, line: String) {
    let lines = &mut spec.balancer.service_lines;
    *lines = if lines.is_empty() { line } else { format!("{lines}\n{line}") };
}

/// What a method needs of its network and of its configuration.
fn suit(spec: &mut DemoSpec, method: &str) {
    let Some(method) = MethodId::named(method) else { return };
    if method.needs().timestamps {
        spec.lab.topology = Topology::Inline;
    }
    if method == MethodId::Jet {
        spec.balancer.service_lines = format!("warm_up = {WARM_UP}");
        spec.settle += Duration::from_secs(WARM_UP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_of_methods_that_any_balancer_continues() {
        let of = |method: &str| {
            let mut spec = DemoSpec::new("weir", 5);
            spec.balancer.method = method.into();
            let made = in_a_fleet(&mut spec).map_err(|error| error.to_string());
            if made.is_ok() {
                // There are flows of UDP, and what becomes of them says nothing of the others.
                assert_eq!(spec.traffic.unpromised, [Kind::Udp], "{method}");
                assert!(spec.traffic.mix.udp > 0.0, "{method}");
                // Those of QUIC are promised, and their servers hear of the agents how ids are made.
                assert!(spec.traffic.mix.quic > 0.0 && spec.lab.quic && spec.balancer.quic);
                assert!(spec.lab.agent.is_some_and(|agent| agent.tells), "{method}");
            }
            made
        };
        for method in ["cheetah", "concury", "residue", "tracked", "jet"] {
            assert_eq!(of(method), Ok(()), "{method}");
        }
        let refused = of("cheetah-stateful").unwrap_err();
        let words = ["places in one balancer's memory", "--topology tiers in the place of --fleet"];
        assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
        assert!(of("ecmp").unwrap_err().contains("add --method cheetah"));
    }

    #[test]
    fn two_tiers_have_backends_that_answer_clients_directly() {
        let of = |method: &str, answers: Option<&str>| {
            let mut spec = DemoSpec::new("weir", 5);
            suit(&mut spec, method);
            spec.balancer.method = method.into();
            if let Some(answers) = answers {
                answered_by(&mut spec, answers).map_err(|error| error.to_string())?;
            }
            in_tiers(&mut spec).map_err(|error| error.to_string())?;
            Ok::<_, String>(spec)
        };
        for answers in [None, Some("backend")] {
            let spec = of("cheetah-stateful", answers).unwrap();
            assert!(spec.lab.agent.is_some() && spec.balancer.service_lines.is_empty());
        }
        let refused = of("cheetah-stateful", Some("inline")).unwrap_err();
        assert!(refused.contains("leave --answers out, or give --answers backend"), "{refused}");
        assert!(of("cheetah", None).unwrap_err().contains("add --method cheetah-stateful"));
    }

    #[test]
    fn a_router_that_learns_is_the_one_of_a_fleet() {
        let mut spec = DemoSpec::new("weir", 5);
        let refused = with_bgp(&mut spec, Speaker::Bird).unwrap_err().to_string();
        assert!(refused.contains("add --fleet 3") && spec.lab.bgp.is_none(), "{refused}");
        spec.lab.topology = Topology::Fleet;
        assert!(with_bgp(&mut spec, Speaker::Gobgp).is_ok());
        assert_eq!(spec.lab.bgp, Some(Speaker::Gobgp));
    }

    #[test]
    fn floods_lies_and_events_are_of_a_fleet() {
        let mut spec = DemoSpec::new("weir", 5);
        let refused = beside_floods(&mut spec, vec![FloodKind::Syn], None).unwrap_err().to_string();
        assert!(refused.contains("add --fleet 3"), "{refused}");
        assert!(of_a_fleet(&spec, "--every-event").is_err());
        spec.lab.topology = Topology::Fleet;
        spec.balancer.method = "cheetah".into();
        in_a_fleet(&mut spec).unwrap();
        let lies = Lies { omit_one_in: Some(5), end_one_in: None };
        let refused = with_liars(&mut spec, lies).unwrap_err().to_string();
        assert!(refused.contains("concury or residue"), "{refused}");
        spec.balancer.method = "concury".into();
        in_a_fleet(&mut spec).unwrap();
        with_liars(&mut spec, lies).unwrap();
        assert_eq!(spec.lab.agent.as_ref().map(|agent| agent.lies), Some(lies));
        beside_floods(&mut spec, vec![FloodKind::Syn, FloodKind::Ack], Some(4321)).unwrap();
        assert_eq!(spec.traffic.connections, 4321);
        beside_floods(&mut spec, vec![FloodKind::Syn, FloodKind::Ack], None).unwrap();
        assert_eq!(spec.traffic.connections, Scenario::SynFlood.usual_connections());
        assert_eq!((spec.floods.len(), spec.churn.kills, spec.goals.flooded), (2, false, FLOODED));
        assert!(spec.traffic.timeout >= PATIENCE_IN_A_FLEET);
        assert!(of_a_fleet(&spec, "--every-event").is_ok());
    }

    #[test]
    fn rules_are_of_planes_in_user_space_that_decide() {
        let of_card = |card: &str, method: &str, topology, plane| {
            let mut spec = DemoSpec::new("weir", 5);
            (spec.balancer.method, spec.lab.topology) = (method.into(), topology);
            let rules = RulesSpec {
                card: card.into(),
                profile: "hostile".into(),
                rules: Some(8),
                choice: "all".into(),
            };
            with_rules(&mut spec, &plane, &rules).map_err(|error| error.to_string())?;
            Ok::<_, String>(spec)
        };
        let of = |method: &str, topology, plane| of_card("emulated", method, topology, plane);
        for method in METHODS {
            let spec = of(method, Topology::L2, Plane::AfXdp).unwrap();
            assert_eq!(spec.goals.led, LEAST_LED, "{method}");
            assert!(spec.balancer.balancer_lines.contains("[offload]\ncard"), "{method}");
        }
        let refused = of("concury", Topology::L2, Plane::Kernel).unwrap_err();
        assert!(refused.contains("add --plane af-xdp or dpdk"), "{refused}");
        let refused = of("tracked", Topology::L2, Plane::Dpdk).unwrap_err();
        assert!(refused.contains("one of concury, residue, jet"), "{refused}");
        let refused = of("concury", Topology::Fleet, Plane::AfXdp).unwrap_err();
        assert!(refused.contains("beside one balancer"), "{refused}");
        let at = |topology, plane| of_card(AT_VETH, "concury", topology, plane);
        let spec = at(Topology::Routed, Plane::AfXdp).unwrap();
        assert!(spec.balancer.balancer_lines.contains("card = \"emulated-veth\"\n"));
        assert_eq!(spec.lab.queues, Some(QUEUES));
        let refused = at(Topology::L2, Plane::Dpdk).unwrap_err();
        assert!(refused.contains("add --plane af-xdp"), "{refused}");
        let refused = at(Topology::Nat, Plane::AfXdp).unwrap_err();
        assert!(refused.contains("which --topology nat has not"), "{refused}");
    }

    #[test]
    fn a_narrow_link_is_before_backends_and_stops_what_nobody_makes_smaller() {
        let of = |topology, silent, mss| {
            let mut spec = DemoSpec::new("weir", 5);
            spec.lab.topology = topology;
            narrowed(&mut spec, Link { mtu: 1400, silent }, mss)
                .map_err(|error| error.to_string())?;
            Ok::<_, String>((spec.traffic.unpromised, spec.goals.completed.len()))
        };
        let (download, upload) = (Kind::Download, Kind::Upload);
        assert_eq!(of(Topology::Routed, false, None), Ok((vec![], 2)));
        assert_eq!(of(Topology::Routed, true, None), Ok((vec![download, upload], 0)));
        assert_eq!(of(Topology::FullNat, true, Some(1340)), Ok((vec![], 2)));
        let refused = of(Topology::L2, false, None).unwrap_err();
        assert!(refused.contains("l2 has none: add --forward ipip"), "{refused}");
    }

    #[test]
    fn a_network_of_backends_with_other_ports_needs_translation() {
        let refused = goes_with(Topology::FullNat, "l2").unwrap_err().to_string();
        assert!(refused.ends_with("give --forward fullnat"), "{refused}");
        assert!(
            goes_with(Topology::Nat, "gue").is_err() && goes_with(Topology::Nat, "nat").is_ok()
        );
        assert!(
            goes_with(Topology::Routed, "gue").is_ok() && goes_with(Topology::L2, "l2").is_ok()
        );
    }

    #[test]
    fn who_writes_into_answers_is_in_their_way() {
        let in_network = |method: &str, answers: Option<&str>, topology| {
            let mut spec = DemoSpec::new("weir", 5);
            suit(&mut spec, method);
            spec.balancer.method = method.into();
            if let Some(answers) = answers {
                answered_by(&mut spec, answers).map_err(|error| error.to_string())?;
            }
            leads_answers(&spec, topology).map_err(|error| error.to_string())
        };
        for method in ["cheetah", "cheetah-stateful"] {
            for topology in [Topology::L2, Topology::Routed, Topology::Dual] {
                for answers in [None, Some("inline")] {
                    let refused = in_network(method, answers, topology).unwrap_err();
                    let words = format!("in --topology {} answers do not pass", topology.name());
                    assert!(refused.starts_with(&words), "{refused}");
                    assert!(refused.contains("give --answers backend"), "{refused}");
                }
                assert_eq!(in_network(method, Some("backend"), topology), Ok(()));
                assert_eq!(in_network("concury", None, topology), Ok(()));
            }
            for topology in [Topology::Inline, Topology::Vlan, Topology::Tiers, Topology::Fleet] {
                assert_eq!(in_network(method, None, topology), Ok(()));
            }
        }
    }

    #[test]
    fn a_method_gets_the_network_that_it_needs_and_the_same_churn() {
        let of = |method: &str| {
            let amount = Amount {
                duration: None,
                changes: 7,
                limit: Duration::from_secs(600),
                patience: None,
                connections: None,
                total: 0,
                backends: 12,
                change_every: None,
                seed: 5,
            };
            spec(Path::new("weir"), method, Scenario::Churn, &amount, Show::Lines)
        };
        let (jet, cheetah) = (of("jet"), of("cheetah"));
        assert_eq!((jet.lab.topology, cheetah.lab.topology), (Topology::L2, Topology::Inline));
        assert_eq!(jet.balancer.service_lines, "warm_up = 20");
        let mut tracked = of("tracked");
        schedule(&mut tracked, Some("p2c"), Some("told")).unwrap();
        assert_eq!(tracked.balancer.service_lines, "scheduler = \"p2c\"\nload = \"told\"");
        assert!(tracked.tell_loads && tracked.lab.cgroups);
        let refused = schedule(&mut of("concury"), Some("rr"), None).unwrap_err();
        assert!(refused.to_string().starts_with("concury has no scheduler: "), "{refused}");
        assert_eq!(cheetah.balancer.service_lines, "");
        for spec in [jet, cheetah] {
            assert_eq!((spec.goals.changes, spec.churn.seed, spec.traffic.seed), (7, 5, 5));
        }
    }
}
