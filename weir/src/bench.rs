//! `weir bench`: asks for measurements, and prints them.

use crate::cli::{
    BenchVerb, ControlOptions, FleetOptions, KeysName, LookupOptions, MapsOptions, PlaneOptions,
};
use crate::out;
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use weir_bench::lookup::{Amount, Keys, Load, TraceFile};
use weir_bench::xdp::{Encapsulation, FOU_PORT, GUE_PORT};
use weir_bench::{
    checks, control, fleet, instructions, lookup, maps, plane, throughput, update, xdp,
};

pub fn run(what: BenchVerb) -> anyhow::Result<()> {
    match what {
        BenchVerb::Xdp { instructions: true, beside, json, .. } => {
            let report = instructions::run(&beside)?;
            lines(&report.rows, json);
            if json { out::json(&report) } else { Ok(()) }
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
            if json { out::json(&report) } else { Ok(()) }
        }
        BenchVerb::Update { states, rounds, json } => {
            let request = update::Request { states, rounds };
            let report = update::run(&request, |rows| lines(rows, json))?;
            if json { out::json(&report) } else { Ok(()) }
        }
        BenchVerb::Throughput { forward, rounds, seconds, json } => {
            let named = |name: &String| {
                throughput::Forward::ALL.into_iter().find(|forward| forward.name() == name)
            };
            let forward = forward.iter().filter_map(named).collect();
            let weir = std::env::current_exe().context("cannot find the program itself")?;
            let request = throughput::Request { weir, forward, rounds, seconds };
            let report = throughput::run(&request, |row| lines(std::slice::from_ref(row), json))?;
            if json { out::json(&report) } else { Ok(()) }
        }
        BenchVerb::Plane(options) => burst_plane(options),
        BenchVerb::Control(options) => control_plane(&options),
        BenchVerb::Checks { backends, interval, seconds, patience, json } => {
            let time = Duration::from_secs(seconds.into());
            let weir = std::env::current_exe().context("cannot find the program itself")?;
            let request = checks::Request { weir, backends, interval, time, patience };
            let report = checks::run(&request, |row| lines(std::slice::from_ref(row), json))?;
            if json { out::json(&report) } else { Ok(()) }
        }
        BenchVerb::Fleet(options) => a_fleet(options),
        BenchVerb::Lookup(options) if options.control => othello_control(&options),
        BenchVerb::Lookup(options) => lookups(&options),
        BenchVerb::Maps(options) => compact_maps(options),
    }
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
    let request = control::Request {
        weir: std::env::current_exe()?,
        sizes: options.sizes(),
        rounds: options.rounds,
        failovers: options.failovers,
        scrapes: options.scrapes,
        patience: options.patience,
        seed: options.seed,
    };
    let report = control::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    if options.json { out::json(&report) } else { Ok(()) }
}

fn a_fleet(options: FleetOptions) -> anyhow::Result<()> {
    let FleetOptions { balancers, agents, backends, states, link, rate, seconds, .. } = options;
    let FleetOptions { connections, rounds, patience, json, .. } = options;
    let request = fleet::Request {
        weir: std::env::current_exe().context("cannot find the program itself")?,
        balancers,
        agents,
        backends,
        states,
        link,
        rate,
        seconds,
        connections,
        rounds,
        patience,
    };
    let report = fleet::run(&request, |row| lines(std::slice::from_ref(row), json))?;
    if json { out::json(&report) } else { Ok(()) }
}

/// Flows whose frames, and whose table, are beyond every cache.
const MANY_FLOWS: u32 = 16_000_000;

fn over_sockets(options: &PlaneOptions) -> anyhow::Result<()> {
    let request = plane::af_xdp::Request {
        weir: std::env::current_exe().context("cannot find the program itself")?,
        flows: options.flows.first().copied().unwrap_or(1000),
        packets: u32::try_from(options.packets).context("too many packets")?,
        rounds: options.rounds,
    };
    let report =
        plane::af_xdp::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    if options.json { out::json(&report) } else { Ok(()) }
}

fn by_rules(options: PlaneOptions, rules: u32) -> anyhow::Result<()> {
    let PlaneOptions { methods, flows, packets, rounds, seed, json, .. } = options;
    let request = plane::rules::Request { methods, flows, rules, packets, rounds, seed };
    let rows = plane::rules::run(&request, |row| lines(std::slice::from_ref(row), json))?;
    if json { out::json(&serde_json::json!({ "rows": rows })) } else { Ok(()) }
}

fn burst_plane(options: PlaneOptions) -> anyhow::Result<()> {
    if let Some(rules) = options.rules {
        return by_rules(options, rules);
    }
    if options.ports == "af-xdp" {
        return over_sockets(&options);
    }
    let forward = |name: &String| plane::Forward::ALL.into_iter().find(|way| way.name() == name);
    let (mut residue_flows, mut cores) = (options.residue_flows, options.cores);
    if options.full {
        residue_flows.push(MANY_FLOWS);
        let two = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        cores = if two { vec![1, 2] } else { vec![1] };
    }
    let request = plane::Request {
        methods: options.methods,
        forward: options.forward.iter().filter_map(forward).collect(),
        flows: options.flows,
        residue_flows,
        cores,
        packets: options.packets,
        rounds: options.rounds,
        seed: options.seed,
    };
    if options.ports == "dpdk" {
        let report =
            plane::dpdk::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
        return if options.json { out::json(&report) } else { Ok(()) };
    }
    let report = plane::run(&request, |row| lines(std::slice::from_ref(row), options.json))?;
    if options.json { out::json(&report) } else { Ok(()) }
}

fn othello_control(options: &LookupOptions) -> anyhow::Result<()> {
    let progress = |row: &lookup::control::Row| lines(std::slice::from_ref(row), options.json);
    let report = lookup::control::run(&options.states, options.rounds, progress)?;
    if options.json { out::json(&report) } else { Ok(()) }
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
    let keys = match (&options.trace, options.keys) {
        (Some(path), _) => Keys::File(Arc::new(TraceFile::read(path)?)),
        (None, KeysName::Lfsr) => Keys::Lfsr,
        (None, KeysName::Zipf) => Keys::Zipf { skew: options.skew },
        (None, KeysName::Trace) => Keys::Trace,
    };
    let load = (options.updates > 0.0 || options.pool_change_every.is_some()).then(|| Load {
        new_states_per_s: options.updates,
        change_every: options.pool_change_every.unwrap_or(Duration::from_secs(10)),
    });
    let amount = match (options.lookups, options.seconds, load) {
        (Some(lookups), ..) => Amount::Lookups(lookups),
        (None, Some(seconds), _) => Amount::Time(Duration::try_from_secs_f64(seconds)?),
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

fn compact_maps(options: MapsOptions) -> anyhow::Result<()> {
    let people = !options.json && !options.csv;
    let (keys, bits) = match options.full {
        true => (vec![1_000_000, 4_000_000, 16_000_000], vec![8, 12, 16, 24, 32, 40]),
        false => (options.keys, options.bits),
    };
    let request = maps::Request {
        structures: options.structures,
        keys,
        bits,
        threads: options.threads,
        alien: options.alien,
        zipf: options.zipf,
        updates: options.updates,
        batch: options.batch,
        lookups: options.lookups,
        rounds: options.rounds,
        seed: options.seed,
    };
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
