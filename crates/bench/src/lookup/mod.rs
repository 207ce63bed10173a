//! `weir bench lookup`: how many packets a second each steering method decides (docs/bench.md).

mod bound;
pub mod control;
mod measure;
mod methods;
mod print;
mod stream;
mod subject;
mod world;

pub use measure::{Amount, Load};
pub use print::{Report, Row, csv, not_measured, table};
pub use stream::{Keys, TraceFile};

use crate::Company;
use crate::Result;
use crate::error::demand;
use crate::neighbour::{Away, Neighbour};
use measure::{BLOCK, Done, Entry, Mode, streams};
use print::Samples;
use std::time::Duration;
use stream::Stream;
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
    /// What else the machine does.
    pub company: Company,
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
            company: Company::Quiet,
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
    demand!(!request.threads.contains(&0), "at least one thread");
    demand!(request.rounds > 0, "at least one round");
    demand!(
        (1..=BLOCK).contains(&request.batch),
        "bursts of {} packets: 1 to {BLOCK}, as the clock runs over blocks of so many",
        request.batch
    );
    match request.amount {
        Amount::Lookups(lookups) => demand!(lookups > 0, "at least one lookup"),
        Amount::Time(time) => demand!(!time.is_zero(), "a measurement takes more than no time"),
    }
    let backends = request.backends;
    demand!((2..10_000).contains(&backends), "{backends} backends: 2 to 9,999");
    let few: Vec<_> = methods::find(&request.methods)?
        .into_iter()
        .filter(|method| method.most_backends < backends)
        .map(|method| format!("{} has at most {}", method.label(), method.most_backends))
        .collect();
    demand!(
        few.is_empty(),
        "{backends} backends: {}; give fewer, or --methods without them",
        few.join(", ")
    );
    demand!(
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
    let ways = request.company.ways();
    let neighbour = match ways {
        [false] => None,
        _ => Some(Neighbour::new(world.threads)?),
    };
    let away = neighbour.as_ref().map(Neighbour::away);
    let mut streams = streams(&request.keys, world)?;
    let fresh = || entries.iter().map(|_| Samples::default()).collect::<Vec<_>>();
    let mut samples: Vec<Vec<Samples>> = ways.iter().map(|_| fresh()).collect();
    for turn in 0..request.rounds.max(1) as usize {
        for (&awake, samples) in ways.iter().zip(&mut samples) {
            let mut measured = || round(request, turn, away, &mut entries, &mut streams, samples);
            match &neighbour {
                Some(neighbour) => neighbour.beside(awake, measured)?,
                None => measured()?,
            }
        }
    }
    let rows = ways.iter().zip(&samples);
    Ok(rows.flat_map(|(&way, of)| print::rows(request, world, way, &entries, of)).collect())
}

/// Every method once, and its bound. The order turns, so that no method always follows the same
/// other.
fn round(
    request: &Request,
    turn: usize,
    away: Option<Away>,
    entries: &mut [Entry],
    streams: &mut [Stream],
    samples: &mut [Samples],
) -> Result<()> {
    for offset in 0..entries.len() {
        let which = (offset + turn) % entries.len();
        let (entry, samples) = (&mut entries[which], &mut samples[which]);
        let changes = entry.changes;
        for mode in [Mode::Batched(request.batch), Mode::Single] {
            let Done { rate, new_per_s } =
                entry.rate(mode, request.amount, request.load, away, streams)?;
            let bound = entry.bound_rate(mode, bound_amount(request), away, streams);
            samples.note(mode == Mode::Single, rate, bound);
            samples.note_new(new_per_s);
        }
        samples.note_changes(entry.changes - changes);
    }
    Ok(())
}

/// The bound has no load that it must be seen with.
fn bound_amount(request: &Request) -> Amount {
    match request.amount {
        Amount::Time(time) => Amount::Time(time.min(Duration::from_millis(300))),
        lookups => lookups,
    }
}
