//! `weir lab`: a demonstration that is a test.

use crate::cli::{ChurnOptions, CompareOptions, LabCommand, LabOptions, LabVerb};
use crate::out;
use anyhow::Context;
use std::collections::HashSet;
use std::time::Duration;
use weir_control::config::PlaneKind;
use weir_lab::demo::{self, DemoSpec};
use weir_lab::topology::{Receivers, Topology};
use weir_lab::view::Show;
use weir_lab::{AgentSpec, Program, Scenario, compare};
use weir_steering::cheetah::ANSWERS;
use weir_steering::{MethodId, why_none};

/// Seconds that a new backend waits in a service of `jet`: longer than a connection of the lab is
/// silent (its horizon is respected), and short enough for a run to see it serve.
const WARM_UP: u64 = 20;

/// Connections open at a time, on a P4 switch.
const ON_A_SWITCH: usize = 200;

/// Whether what was promised held.
pub fn run(command: LabCommand) -> anyhow::Result<bool> {
    weir_lab::catch_interrupts();
    match command.verb {
        Some(LabVerb::Compare(options)) => compare(options),
        None => demonstrate(command.options),
    }
}

fn demonstrate(options: LabOptions) -> anyhow::Result<bool> {
    let seed = seed(&options.churn);
    if !options.json {
        out::line(format_args!("lab: method {}, WEIR_SEED={seed}", options.method));
    }
    let show = match options {
        LabOptions { json: true, .. } => Show::LinesOnError,
        LabOptions { plain: true, .. } => Show::Lines,
        _ => Show::Picture,
    };
    let scenario = options.scenario.parse()?;
    let mut spec = spec(options.method, scenario, &options.churn, seed, show)?;
    if let Some(answers) = options.answers {
        answered_by(&mut spec, &answers)?;
    }
    forwarded_by(&mut spec, &options.forward, &options.receivers)?;
    if options.plane != PlaneKind::Kernel {
        spec.balancer.balancer_lines += &format!("plane = {:?}\n", options.plane.name());
    }
    if let Some(topology) = options.topology {
        goes_with(topology, &options.forward)?;
        spec.lab.topology = topology;
    }
    if let Some(balancers) = options.fleet {
        (spec.lab.topology, spec.lab.balancers) = (Topology::Fleet, balancers);
    }
    if spec.lab.topology == Topology::Tiers {
        in_tiers(&mut spec)?;
    }
    if spec.lab.topology == Topology::Fleet {
        in_a_fleet(&mut spec)?;
    }
    schedule(&mut spec, options.scheduler.as_deref(), options.load.as_deref())?;
    if options.plane == PlaneKind::Dpdk {
        // A table of its own: after all lines of `[balancer]`.
        spec.lab.taps = true;
        spec.balancer.balancer_lines += &weir_lab::dpdk(spec.lab.topology);
    }
    if options.plane == PlaneKind::P4 {
        spec.lab.switch = Some(Program { files: weir_plane_p4::FILES });
        if spec.balancer.method == MethodId::CheetahStateful.name() {
            // It has eight, for all services together.
            service_line(&mut spec, "partitions = 2".into());
        }
        if options.churn.connections.is_none() {
            // It forwards some ten thousand packets in a second.
            spec.traffic.connections = ON_A_SWITCH;
        }
    }
    let report = demo::run(spec)?;
    if options.json {
        out::json(&report)?;
    } else {
        out::line(format_args!("{}\n{}", report.table(), report.line()));
    }
    Ok(report.held())
}

fn compare(options: CompareOptions) -> anyhow::Result<bool> {
    let seed = seed(&options.churn);
    out::note(format_args!("lab: WEIR_SEED={seed}"));
    let methods = methods(options.methods);
    let mut specs = Vec::new();
    for name in once_each(options.scenario) {
        let scenario = name.parse()?;
        for method in &methods {
            let method = method.clone();
            specs.push(spec(method, scenario, &options.churn, seed, Show::LinesOnError)?);
        }
    }
    let comparison = compare::run(specs, |row, report| {
        let verdict = match &row.fault {
            Some(_) => format!("{}\n", report.table()),
            None => String::new(),
        };
        out::note(format_args!("{verdict}{}, {}: {}", row.method, row.scenario, report.line()));
    })?;
    if options.json {
        out::json(&comparison)?;
    } else {
        out::text(comparison.table());
    }
    Ok(comparison.held())
}

/// Each of the methods that were asked for, once; all that the data plane has, if none was.
fn methods(asked: Vec<String>) -> Vec<String> {
    if asked.is_empty() {
        return weir_dataplane::methods().map(|method| method.name().into()).collect();
    }
    once_each(asked)
}

fn once_each(names: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    names.into_iter().filter(|name| known.insert(name.clone())).collect()
}

fn seed(options: &ChurnOptions) -> u64 {
    options.seed.unwrap_or_else(rand::random)
}

fn spec(
    method: String,
    scenario: Scenario,
    options: &ChurnOptions,
    seed: u64,
    show: Show,
) -> anyhow::Result<DemoSpec> {
    let weir = std::env::current_exe().context("cannot find this program's own file")?;
    let mut spec = DemoSpec::new(weir, seed);
    scenario.suit(&mut spec, options.duration.unwrap_or_else(|| scenario.usual_duration()));
    spec.lab.backends = options.backends;
    spec.balancer.pool = (options.backends * 3 / 4).max(2);
    suit(&mut spec, &method);
    spec.balancer.method = method;
    if let Some(connections) = options.connections {
        spec.traffic.connections = connections;
    }
    if let Some(patience) = options.patience {
        (spec.traffic.timeout, spec.traffic.detection) = (patience, patience);
        // A datagram is sent four times in all.
        spec.traffic.udp_timeout = spec.traffic.udp_timeout.max(patience / 4);
    }
    spec.goals.changes = spec.goals.changes.max(options.changes);
    spec.limit = options.limit;
    spec.show = show;
    if let Some(seconds) = options.change_every {
        let mean = Duration::from_secs_f64(seconds.clamp(0.05, 3600.0));
        spec.churn.gap = mean / 2..mean * 3 / 2;
    }
    Ok(spec)
}

/// Sets who gets first packets.
fn schedule(
    spec: &mut DemoSpec,
    scheduler: Option<&str>,
    load: Option<&str>,
) -> anyhow::Result<()> {
    let Some(scheduler) = scheduler else { return Ok(()) };
    let method = MethodId::named(&spec.balancer.method).context("there is no such method")?;
    if let Some(why) = why_none(method) {
        anyhow::bail!("{method} has no scheduler: {why}");
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
fn answered_by(spec: &mut DemoSpec, answers: &str) -> anyhow::Result<()> {
    let method = &spec.balancer.method;
    let known = MethodId::named(method).into_iter().flat_map(|method| method.info().settings);
    if !known.into_iter().any(|one| one.name == ANSWERS && one.words.contains(&answers)) {
        anyhow::bail!("{method} has no answers = {answers:?}; cheetah has");
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
fn in_tiers(spec: &mut DemoSpec) -> anyhow::Result<()> {
    let (method, wanted) = (&spec.balancer.method, MethodId::CheetahStateful.name());
    if method != wanted {
        anyhow::bail!(
            "two tiers of balancers are for {wanted}, not {method}: add --method {wanted}"
        );
    }
    spec.lab.agent = Some(AgentSpec::new(&spec.balancer.weir));
    spec.balancer.service_lines.clear();
    spec.traffic.mix.udp = 0.0;
    Ok(())
}

/// Sets what several balancers of one fleet need: connections that any of them finds the backend of.
fn in_a_fleet(spec: &mut DemoSpec) -> anyhow::Result<()> {
    match &*spec.balancer.method {
        "cheetah" => {
            spec.lab.agent = Some(AgentSpec::new(&spec.balancer.weir));
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
        "tracked" | "jet" => {}
        method => anyhow::bail!(
            "balancers of one fleet do not serve alike with {method} (docs/fleet.md): add --method cheetah, \
             concury, residue, tracked or jet"
        ),
    }
    // Nothing in a datagram tells another balancer where its flow lives.
    spec.traffic.mix.udp = 0.0;
    Ok(())
}

/// Sets how packets reach backends, and what that needs of the network.
fn forwarded_by(spec: &mut DemoSpec, forward: &str, receivers: &str) -> anyhow::Result<()> {
    let by_kernel = receivers == "kernel";
    if by_kernel {
        spec.lab.receivers = Receivers::of_the_kernel(forward)?;
    }
    if forward == "l2" {
        return Ok(());
    }
    if spec.lab.topology == Topology::Inline {
        let method = &spec.balancer.method;
        anyhow::bail!(
            "answers of {method} pass the balancer, and with --forward {forward} the laboratory's \
             backends answer clients directly; cheetah with --answers backend does that, too"
        );
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
fn goes_with(topology: Topology, forward: &str) -> anyhow::Result<()> {
    // Both ways of translation have a network of their name.
    let needed = topology.name();
    if topology.is_nat() && forward != needed {
        anyhow::bail!(
            "--topology {needed} is the network of --forward {needed}, and --forward {forward} does not work in \
             it; give --forward {needed}"
        );
    }
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
    fn each_method_runs_once_and_all_without_a_list() {
        let asked = ["jet", "concury", "jet"].map(String::from);
        assert_eq!(methods(asked.into()), ["jet", "concury"]);
        let all = methods(Vec::new());
        assert_eq!(all.len(), weir_dataplane::methods().count());
        assert!(
            ["cheetah", "cheetah-stateful", "concury", "jet", "residue", "tracked"]
                .iter()
                .all(|method| all.contains(&(*method).to_string()))
        );
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
    fn a_method_gets_the_network_that_it_needs_and_the_same_churn() {
        use clap::Parser;
        let cli = crate::cli::Cli::parse_from(["weir", "lab", "compare", "--changes", "7"]);
        let crate::cli::Verb::Lab(command) = cli.verb else { panic!("another verb") };
        let Some(LabVerb::Compare(options)) = command.verb else { panic!("another verb") };
        let of = |method: &str| {
            spec(method.into(), Scenario::Churn, &options.churn, 5, Show::Lines).unwrap()
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
