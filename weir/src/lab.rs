//! `weir lab`: a demonstration that is a test.

use crate::out;
use anyhow::Context;
use std::collections::HashSet;
use weir_cli::{ChurnOptions, CompareOptions, LabCommand, LabOptions, LabVerb};
use weir_control::config::PlaneKind;
use weir_lab::wanted::{Amount, Plane, Wanted, spec};
use weir_lab::{FloodKind, Lies, Link, Program, RulesSpec, Speaker, compare, demo, view::Show};

/// Whether what was promised held.
pub fn run(command: LabCommand) -> anyhow::Result<bool> {
    weir_lab::catch_interrupts();
    match command.verb {
        Some(LabVerb::Compare(options)) => compare(options),
        None => demonstrate(command.options),
    }
}

fn demonstrate(options: LabOptions) -> anyhow::Result<bool> {
    let amount = amount(&options.churn);
    let begins = format!("lab: method {}, WEIR_SEED={}", options.method, amount.seed);
    let json = options.json;
    let wanted = Wanted {
        weir: std::env::current_exe().context("cannot find this program's own file")?,
        method: options.method,
        scenario: options.scenario.parse()?,
        amount,
        show: match (json, options.plain) {
            (true, _) => Show::LinesOnError,
            (false, true) => Show::Lines,
            (false, false) => Show::Picture,
        },
        answers: options.answers,
        forward: options.forward,
        by_kernel: options.receivers == "kernel",
        plane: match options.plane {
            PlaneKind::Kernel => Plane::Kernel,
            PlaneKind::AfXdp => Plane::AfXdp,
            PlaneKind::Dpdk => Plane::Dpdk,
            PlaneKind::P4 => Plane::P4(Program { files: weir_plane_p4::FILES }),
        },
        offload: options.offload.map(|profile| RulesSpec {
            card: options.card,
            profile,
            rules: options.rules,
            choice: options.choice,
        }),
        topology: options.topology,
        link: options.link_mtu.map(|mtu| Link { mtu, silent: options.link_silent }),
        mss: options.mss,
        fleet: options.fleet,
        bgp: match &*options.router {
            "bgp" => Some(Speaker::Bird),
            "gobgp" => Some(Speaker::Gobgp),
            _ => None,
        },
        every_event: options.every_event,
        floods: match options.flood.as_deref() {
            Some("syn") => vec![FloodKind::Syn],
            Some("ack") => vec![FloodKind::Ack],
            Some(_) => vec![FloodKind::Syn, FloodKind::Ack],
            None => Vec::new(),
        },
        lies: Lies { omit_one_in: options.omit_one_in, end_one_in: options.end_one_in },
        scheduler: options.scheduler,
        load: options.load,
    };
    let spec = wanted.spec()?;
    if json {
        out::note(begins)
    } else {
        out::line(begins)
    }
    let report = demo::run(spec)?;
    out::report(&report, json, || format!("{}\n{}\n", report.table(), report.line()))?;
    if let (true, Some(fault)) = (json, report.fault()) {
        out::note(format_args!("lab: {fault}"));
    }
    if let (true, Some(why)) = (json, report.unchanged()) {
        out::note(format_args!("lab: {why}"));
    }
    Ok(report.held())
}

fn compare(options: CompareOptions) -> anyhow::Result<bool> {
    let amount = amount(&options.churn);
    out::note(format_args!("lab: WEIR_SEED={}", amount.seed));
    let methods = methods(options.methods);
    let weir = std::env::current_exe().context("cannot find this program's own file")?;
    let mut specs = Vec::new();
    for name in once_each(options.scenario) {
        let scenario = name.parse()?;
        let of = |method: &String| spec(&weir, method, scenario, &amount, Show::LinesOnError);
        specs.extend(methods.iter().map(of));
    }
    let comparison = compare::run(specs, |row, report| {
        let verdict = match &row.fault {
            Some(_) => format!("{}\n", report.table()),
            None => String::new(),
        };
        let unchanged = report.unchanged().map_or(String::new(), |why| format!("; {why}"));
        let line = report.line();
        out::note(format_args!("{verdict}{}, {}: {line}{unchanged}", row.method, row.scenario));
    })?;
    out::report(&comparison, options.json, || comparison.table())?;
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

fn amount(options: &ChurnOptions) -> Amount {
    Amount {
        duration: options.duration,
        changes: options.changes,
        limit: options.limit,
        patience: options.patience,
        connections: options.connections,
        total: options.total,
        backends: options.backends,
        change_every: options.change_every,
        seed: options.seed.unwrap_or_else(weir_lab::draw_seed),
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
}
