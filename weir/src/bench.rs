//! `weir bench`: asks for measurements, and prints them.

use crate::out;
use anyhow::Context;
use serde::Serialize;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::lookup::{Amount, Keys, Load, TraceFile};
use weir_bench::xdp::{Encapsulation, FOU_PORT, GUE_PORT};
use weir_bench::{
    checks, control, fleet, instructions, lookup, maps, plane, throughput, update, xdp,
};
use weir_cli::{
    BenchVerb, ControlOptions, FleetOptions, KeysName, LookupOptions, MapsOptions, PlaneOptions,
};
use weir_control::engine::EngineError;

pub fn run(what: BenchVerb) -> anyhow::Result<()> {
    match what {
        BenchVerb::Xdp { instructions: true, beside, json, .. } => {
            let report = instructions::run(&beside)?;
            lines(&report.rows, json);
            finish(&report, json)
        }
        BenchVerb::Xdp {
            flows,
            packets,
            rounds,
            neighbour,
            marks,
            forward,
            decapsulate,
            product,
            json,
            ..
        } => {
            let (company, marks) = (neighbour.into(), marks.into());
            let product = product.then(std::env::current_exe).transpose()?;
            let tunnels = forward.iter().filter_map(|name| tunnel(name)).collect();
            let decapsulated = decapsulate.iter().filter_map(|name| tunnel(name)).collect();
            let nat = forward.iter().any(|name| name == "nat");
            let full_nat = forward.iter().any(|name| name == "fullnat");
            let lists = forward.iter().any(|name| name == "lists");
            let request = xdp::Request {
                flows,
                packets,
                rounds,
                company,
                marks,
                tunnels,
                decapsulated,
                nat,
                full_nat,
                lists,
                product,
            };
            let report = xdp::run(&request, |rows| lines(rows, json))?;
            lines(&report.quic, json);
            lines(&report.decapsulation, json);
            finish(&report, json)
        }
        BenchVerb::Update { states, rounds, json } => {
            let request = update::Request { states, rounds };
            let report = update::run(&request, |rows| lines(rows, json))?;
            finish(&report, json)
        }
        BenchVerb::Throughput { forward, rounds, seconds, json } => {
            let named = |name: &String| {
                throughput::Forward::ALL.into_iter().find(|forward| forward.name() == name)
            };
            let forward = forward.iter().filter_map(named).collect();
            let weir = program()?;
            let request = throughput::Request { weir, forward, rounds, seconds };
            let report = throughput::run(&request, |row| lines(std::slice::from_ref(row), json))?;
            finish(&report, json)
        }
        BenchVerb::Plane(options) => burst_plane(options),
        BenchVerb::Control(options) => control_plane(&options),
        BenchVerb::Checks { backends, interval, seconds, patience, json } => {
            let time = Duration::from_secs(seconds.into());
            let weir = program()?;
            let request = checks::Request { weir, backends, interval, time, patience };
            let report = checks::run(&request, |row| lines(std::slice::from_ref(row), json))?;
            finish(&report, json)
        }
        BenchVerb::Fleet(options) => a_fleet(&options),
        BenchVerb::Lookup(options) if options.control => othello_control(&options),
        BenchVerb::Lookup(options) => lookups(&options),
        BenchVerb::Maps(options) => compact_maps(&options),
    }
}

/// This program, which is what is measured from outside.
fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program itself")
}

/// At the end all of it, for programs.
fn finish(report: &impl Serialize, json: bool) -> anyhow::Result<()> {
    if json { out::json(report) } else { Ok(()) }
}

fn tunnel(name: &str) -> Option<Encapsulation> {
    Some(match name {
        "ipip" => Encapsulation::Ipip,
        "gre" => Encapsulation::Gre,
        "fou" => Encapsulation::Fou(FOU_PORT),
        "gue" => Encapsulation::Gue(GUE_PORT),
        _ => return None,
    })
}

/// Rows that are ready, for people.
fn lines(rows: &[impl std::fmt::Display], json: bool) {
    if !json {
        rows.iter().for_each(out::line);
    }
}

fn control_plane(options: &ControlOptions) -> anyhow::Result<()> {
    let request = options.request(std::env::current_exe()?);
    let report = control::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    finish(&report, options.json)
}

fn a_fleet(options: &FleetOptions) -> anyhow::Result<()> {
    let request = options.request(program()?);
    let report = fleet::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    finish(&report, options.json)
}

fn over_sockets(options: &PlaneOptions) -> anyhow::Result<()> {
    let request = plane::af_xdp::Request {
        weir: program()?,
        flows: options.flows.first().copied().unwrap_or(1000),
        packets: u32::try_from(options.packets).context("too many packets")?,
        rounds: options.rounds,
    };
    let report =
        plane::af_xdp::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    finish(&report, options.json)
}

fn by_rules(options: PlaneOptions, rules: u32) -> anyhow::Result<()> {
    let PlaneOptions { methods, flows, packets, rounds, seed, json, .. } = options;
    let request = plane::rules::Request { methods, flows, rules, packets, rounds, seed };
    let rows = plane::rules::run(&request, |row| lines(std::slice::from_ref(row), json))?;
    finish(&serde_json::json!({ "rows": rows }), json)
}

fn burst_plane(options: PlaneOptions) -> anyhow::Result<()> {
    if let Some(rules) = options.rules {
        return by_rules(options, rules);
    }
    if options.ports == "af-xdp" {
        return over_sockets(&options);
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let request = options.request(cores);
    if options.ports == "dpdk" {
        let report =
            plane::dpdk::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
        lines(report.testpmd_failure.as_slice(), options.json);
        return finish(&report, options.json);
    }
    let report = plane::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    finish(&report, options.json)
}

fn othello_control(options: &LookupOptions) -> anyhow::Result<()> {
    let progress = |row: &lookup::control::Row| lines(std::slice::from_ref(row), options.json);
    let report = lookup::control::run(&options.states, options.rounds, options.seed, progress)?;
    finish(&report, options.json)
}

fn lookups(options: &LookupOptions) -> anyhow::Result<()> {
    let request = lookup_request(options)?;
    let rows = lookup::rows(&request, |block| {
        if !options.json && !options.csv {
            out::text(lookup::table(block));
        }
    })?;
    if !options.json && !options.csv && options.methods.is_empty() {
        out::text(lookup::not_measured());
    }
    if options.csv {
        out::text(lookup::csv(&rows));
    }
    if options.json {
        out::json(&lookup::Report::new(&request, rows))?;
    }
    Ok(())
}

fn lookup_request(options: &LookupOptions) -> anyhow::Result<lookup::Request> {
    let zipf = options.trace.is_none() && matches!(options.keys, KeysName::Zipf);
    if options.skew.is_some() && !zipf {
        let words = "--skew is the exponent of --keys zipf: give that, too, or leave it out";
        return Err(EngineError::Invalid(words.into()).into());
    }
    let keys = match (&options.trace, options.keys) {
        (Some(path), _) => Keys::File(Arc::new(TraceFile::read(path)?)),
        (None, KeysName::Lfsr) => Keys::Lfsr,
        (None, KeysName::Zipf) => Keys::Zipf { skew: options.skew.unwrap_or(1.0) },
        (None, KeysName::Trace) => Keys::Trace,
    };
    let load = (options.updates > 0.0 || options.pool_change_every.is_some()).then(|| Load {
        new_states_per_s: options.updates,
        change_every: options.pool_change_every.unwrap_or(Duration::from_secs(10)),
    });
    let amount = match (options.lookups, options.seconds, load) {
        (Some(lookups), ..) => Amount::Lookups(lookups),
        (None, Some(seconds), _) => Amount::Time(Duration::from_secs_f64(seconds)),
        // Every measurement sees a change.
        (None, None, Some(load)) => Amount::Time(load.change_every),
        (None, None, None) => lookup::Request::default().amount,
    };
    Ok(lookup::Request {
        methods: options.methods.clone(),
        states: options.states.clone(),
        keys,
        threads: options.threads.clone(),
        batch: options.batch,
        backends: options.backends,
        load,
        company: options.neighbour.into(),
        amount,
        rounds: options.rounds,
        seed: options.seed,
    })
}

fn compact_maps(options: &MapsOptions) -> anyhow::Result<()> {
    let people = !options.json && !options.csv;
    let request = options.request();
    if people {
        out::line(format_args!("seed {}\n", request.seed));
    }
    let report = maps::measure(&request, |rows| {
        if people {
            out::text(maps::table(rows));
        }
    })?;
    if people {
        out::text(maps::distributions_table(&report));
    }
    report.skipped.iter().for_each(|skipped| out::note(format_args!("left out: {skipped}")));
    if options.csv {
        out::text(maps::csv(&report.rows));
    }
    if options.json {
        out::json(&report)?;
    }
    Ok(())
}
