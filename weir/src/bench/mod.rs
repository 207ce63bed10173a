//! `weir bench`: measurements. Things that are compared are measured in one run, in turn, and
//! reported as medians with their spread: this machine may be shared and noisy.

pub mod lookup;
pub mod maps;
mod stats;
mod update;
mod xdp;

use crate::cli::BenchVerb;

pub fn run(what: BenchVerb) -> anyhow::Result<()> {
    match what {
        BenchVerb::Xdp { flows, packets, rounds, json } => xdp::run(&flows, packets, rounds, json),
        BenchVerb::Update { states, rounds, json } => update::run(&states, rounds, json),
        BenchVerb::Lookup(options) => lookup::run(&options),
        BenchVerb::Maps(options) => maps::run(&options),
    }
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
