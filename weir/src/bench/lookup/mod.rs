//! `weir bench lookup`: how many packets a second each steering method decides (docs/bench.md).

mod bound;
mod control;
mod measure;
mod methods;
mod print;
mod stream;
mod subject;
mod world;

pub use measure::{Amount, Load};
pub use print::Row;
pub use stream::{Keys, TraceFile};

use crate::cli::{KeysName, LookupOptions};
use anyhow::Result;
use measure::{Entry, Mode, streams};
use print::{Report, Samples};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names of methods, with or without codec; all if there are none.
    pub methods: Vec<String>,
    /// Numbers of flows. A trace file brings its own.
    pub states: Vec<usize>,
    /// How packets are drawn from the flows.
    pub keys: Keys,
    /// Numbers of threads that decide packets.
    pub threads: Vec<usize>,
    /// Packets in a burst.
    pub batch: usize,
    /// Backends in the pool.
    pub backends: u16,
    /// New flows and pool changes meanwhile.
    pub load: Option<Load>,
    /// How long each measurement lasts.
    pub amount: Amount,
    /// Rounds; each measures every row of a block once, in turn.
    pub rounds: u32,
    /// Makes every run with it the same, times apart.
    pub seed: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            methods: Vec::new(),
            states: vec![1_000, 64_000, 1_000_000, 8_000_000],
            keys: Keys::Lfsr,
            threads: vec![1],
            batch: 32,
            backends: 100,
            load: None,
            amount: Amount::Lookups(4_000_000),
            rounds: 5,
            seed: 1,
        }
    }
}

/// Measures. `progress` gets the rows of each block (a number of states and of threads) when they
/// are ready.
///
/// # Errors
///
/// An unknown method, numbers that cannot be, or a method that sends known flows astray.
pub fn rows(request: &Request, mut progress: impl FnMut(&[Row])) -> Result<Vec<Row>> {
    check(request)?;
    let states = match &request.keys {
        Keys::File(file) => vec![file.flows()],
        _ => request.states.clone(),
    };
    let mut rows = Vec::new();
    for &states in &states {
        for &threads in &request.threads {
            let world = World { states, threads, backends: request.backends, seed: request.seed };
            let block = block(request, &world)?;
            progress(&block);
            rows.extend(block);
        }
    }
    Ok(rows)
}

fn check(request: &Request) -> Result<()> {
    let threads = request.threads.iter().copied().max().unwrap_or(1);
    anyhow::ensure!(!request.threads.contains(&0), "at least one thread");
    anyhow::ensure!(request.batch > 0, "a burst has at least one packet");
    anyhow::ensure!((2..10_000).contains(&request.backends), "2 to 9,999 backends");
    anyhow::ensure!(
        request.states.iter().all(|&states| (threads..1 << 28).contains(&states)),
        "states: at least one for each thread, and less than 2^28"
    );
    Ok(())
}

/// Everything at one number of states and threads.
fn block(request: &Request, world: &World) -> Result<Vec<Row>> {
    let mut entries = Vec::new();
    for method in methods::find(&request.methods)? {
        entries.push(Entry::new(method, world, request.batch)?);
    }
    let mut streams = streams(&request.keys, world)?;
    let mut samples: Vec<Samples> = entries.iter().map(|_| Samples::default()).collect();
    for round in 0..request.rounds.max(1) as usize {
        for turn in 0..entries.len() {
            // The order turns, so that no method always follows the same other.
            let which = (turn + round) % entries.len();
            let (entry, samples) = (&mut entries[which], &mut samples[which]);
            for mode in [Mode::Batched(request.batch), Mode::Single] {
                let rate = entry.rate(mode, request.amount, request.load, &mut streams)?;
                let bound = entry.bound_rate(mode, bound_amount(request), &mut streams);
                samples.note(mode == Mode::Single, rate, bound);
            }
        }
    }
    Ok(print::rows(request, world, &entries, &samples))
}

/// The bound has no load that it must be seen with.
fn bound_amount(request: &Request) -> Amount {
    match request.amount {
        Amount::Time(time) => Amount::Time(time.min(Duration::from_millis(300))),
        lookups => lookups,
    }
}

/// The command.
pub fn run(options: &LookupOptions) -> Result<()> {
    if options.control {
        return control::run(&options.states, options.rounds, options.json);
    }
    let request = request(options)?;
    let rows = rows(&request, |block| {
        if !options.json && !options.csv {
            print::table(block);
        }
    })?;
    if options.csv {
        print::csv(&rows)?;
    }
    if options.json {
        crate::bench::print_json(&Report::new(&request, rows))?;
    }
    Ok(())
}

fn request(options: &LookupOptions) -> Result<Request> {
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
        (None, None, None) => Request::default().amount,
    };
    Ok(Request {
        methods: options.methods.clone(),
        states: options.states.clone(),
        keys,
        threads: options.threads.clone(),
        batch: options.batch,
        backends: options.backends,
        load,
        amount,
        rounds: options.rounds,
        seed: options.seed,
    })
}
