//! `weir bench maps`: memory, lookups, updates and construction of compact maps (docs/maps.md).

mod clock;
pub mod distributions;
pub mod keys;
mod measure;
mod print;
mod race;
mod reader;
pub mod structures;
mod updates;

pub use print::{Beside, Report, Row, csv, distributions_table, table};
pub use updates::Updates;

use crate::Result;
use crate::Spread;
use crate::blocks::Slow;
use crate::error::{Context, demand, ensure};
use keys::{Draw, Set};
use measure::{Mode, alien_share, rate, wrong_answers};
use reader::Reader;
use structures::{Built, Structure};

/// Keys of tables whose distributions are printed, at most.
const DISTRIBUTION_KEYS: usize = 1_000_000;
/// Share of the keys that tables of digests may answer wrongly: 16 bits and 16 slots explain 0.002.
const TOLERATED: f64 = 0.004;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names of structures; all if there are none.
    pub structures: Vec<String>,
    /// Numbers of keys to measure with.
    pub keys: Vec<usize>,
    /// Bits of a value.
    pub bits: Vec<u32>,
    /// Numbers of threads that look up.
    pub threads: Vec<usize>,
    /// Whether keys are looked up that are not in the maps.
    pub alien: bool,
    /// Exponent of the Zipf distribution that keys are drawn by; all alike if there is none.
    pub zipf: Option<f64>,
    /// Updates per second beside the readers of a shared view; 0 for none.
    pub updates: f64,
    /// Keys in a burst. One at a time is measured too.
    pub batch: usize,
    /// Lookups of each measurement.
    pub lookups: usize,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
    /// Makes every run with it the same, times apart.
    pub seed: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            structures: Vec::new(),
            keys: vec![1_000_000],
            bits: vec![12],
            threads: vec![1],
            alien: false,
            zipf: None,
            updates: 100e3,
            batch: 1024,
            lookups: 2_000_000,
            rounds: 5,
            seed: 1,
        }
    }
}

impl Request {
    /// Whether it can be measured.
    ///
    /// # Errors
    ///
    /// An unknown structure, or numbers that cannot be.
    pub fn check(&self) -> Result<()> {
        structures::find(&self.structures)?;
        demand!(!self.threads.contains(&0), "at least one thread");
        demand!(
            (1..=measure::BLOCK).contains(&self.batch),
            "bursts of {} keys: 1 to {}, as the clock runs over blocks of so many",
            self.batch,
            measure::BLOCK
        );
        demand!(self.rounds > 0, "at least one round");
        demand!(self.lookups > 0, "at least one lookup");
        demand!(
            self.keys.iter().all(|count| (100..1 << 27).contains(count)),
            "keys: at least 100, and less than 2^27"
        );
        demand!(self.bits.iter().all(|bits| (1..=64).contains(bits)), "values have 1 to 64 bits");
        Ok(())
    }
}

/// Measures. `progress` gets the rows of each block (a number of keys, of bits and of threads) when
/// they are ready.
///
/// # Errors
///
/// An unknown structure, numbers that cannot be, or a structure with a wrong value for a known key.
pub fn measure(request: &Request, mut progress: impl FnMut(&[Row])) -> Result<Report> {
    request.check()?;
    let mut report = Report {
        seed: request.seed,
        rounds: request.rounds,
        batch: request.batch,
        lookups: request.lookups,
        updates_per_s: request.updates,
        skipped: Vec::new(),
        rows: Vec::new(),
        seeds: None,
        collisions: Vec::new(),
        messages: Vec::new(),
    };
    for &count in &request.keys {
        for &bits in &request.bits {
            let set = Set { count, bits, seed: request.seed };
            report.rows.extend(block(request, &set, &mut report.skipped, &mut progress)?);
        }
    }
    distributions(request, &mut report)?;
    Ok(report)
}

/// Seeds and messages of Ludo, collisions of partial-key cuckoo, at the first number of keys.
fn distributions(request: &Request, report: &mut Report) -> Result<()> {
    let (Some(&count), Some(&bits)) = (request.keys.first(), request.bits.first()) else {
        return Ok(());
    };
    let set = Set { count: count.min(DISTRIBUTION_KEYS), bits, seed: request.seed };
    let asked = |name| {
        structures::find(&request.structures)
            .map(|all: Vec<&Structure>| all.iter().any(|structure| structure.name == name))
    };
    if asked("ludo")? {
        report.seeds = Some(distributions::seeds(&set)?);
        report.messages = distributions::messages(&set)?;
    }
    if asked("partial-cuckoo")? {
        report.collisions = distributions::collisions(set.count, set.seed)?;
    }
    Ok(())
}

/// A structure while it is measured.
struct Entry {
    name: &'static str,
    built: Built,
    bound: reader::MakeReader,
    wrong: usize,
    alien: f64,
}

impl Entry {
    /// Fills it and asks it for every key, in bursts and one at a time.
    fn new(
        structure: &Structure,
        set: &Set,
        request: &Request,
        update_rounds: u32,
    ) -> Result<Self> {
        let name = structure.name;
        let built = (structure.build)(set, update_rounds).context(name)?;
        let mut reader = (built.make)();
        let wrong = wrong_answers(reader.as_mut(), set, request.batch, built.expected);
        let tolerated = if built.may_err { TOLERATED * set.count as f64 } else { 0.0 };
        ensure!(
            wrong as f64 <= tolerated.ceil(),
            "{name}: {wrong} of {} keys do not have their values",
            set.count
        );
        let alien = alien_share(reader.as_mut(), set);
        let mut reads = built.reads;
        if name == "bloom" && request.alien {
            // Half of the bits are set, so an alien key is known by two reads on average.
            reads.first = 2;
        }
        Ok(Self { name, built, bound: reads.readers(), wrong, alien })
    }
}

#[derive(Default)]
struct Samples {
    /// In bursts, then one at a time.
    rates: [Vec<f64>; 2],
    bounds: [Vec<f64>; 2],
    beside: Vec<f64>,
    made: Vec<f64>,
    ratios: Vec<f64>,
    wrong: usize,
}

/// The structures that are asked for, filled with a set.
fn entries(
    request: &Request,
    set: &Set,
    update_rounds: u32,
    skipped: &mut Vec<String>,
) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for structure in structures::find(&request.structures)? {
        if set.bits > structure.most_bits {
            skipped.push(format!("{} with values of {} bits", structure.name, set.bits));
        } else {
            entries.push(Entry::new(structure, set, request, update_rounds)?);
        }
    }
    Ok(entries)
}

/// Rows of structures that are filled once and looked up in several ways, which differ in threads,
/// in the keys that are drawn and in updates beside readers. Rates of updates alone are not
/// measured: in these rows they are no numbers.
///
/// # Errors
///
/// A structure that cannot be filled, or has a wrong value for a known key.
pub fn lookups(set: &Set, ways: &[Request]) -> Result<Vec<Row>> {
    let Some(first) = ways.first() else {
        return Ok(Vec::new());
    };
    let mut entries = entries(first, set, 0, &mut Vec::new())?;
    let mut rows = Vec::new();
    for request in ways {
        for &threads in &request.threads {
            let samples = rounds(request, set, threads, &mut entries)?;
            let measured = entries.iter().zip(&samples);
            rows.extend(
                measured.map(|(entry, samples)| row(request, set, threads, entry, samples)),
            );
        }
    }
    Ok(rows)
}

/// Everything at one number of keys and bits.
fn block(
    request: &Request,
    set: &Set,
    skipped: &mut Vec<String>,
    progress: &mut impl FnMut(&[Row]),
) -> Result<Vec<Row>> {
    let mut entries = entries(request, set, request.rounds, skipped)?;
    let mut rows = Vec::new();
    for &threads in &request.threads {
        let samples = rounds(request, set, threads, &mut entries)?;
        let measured = entries.iter().zip(&samples);
        let part: Vec<Row> =
            measured.map(|(entry, samples)| row(request, set, threads, entry, samples)).collect();
        progress(&part);
        rows.extend(part);
    }
    Ok(rows)
}

/// All structures in turn, round by round.
fn rounds(
    request: &Request,
    set: &Set,
    threads: usize,
    entries: &mut [Entry],
) -> Result<Vec<Samples>> {
    let draw = |part| Draw::new(set, request.alien, request.zipf, part);
    let mut draws = (0..threads).map(draw).collect::<Result<Vec<_>>>()?;
    let several = |make: &reader::MakeReader| -> Vec<Box<dyn Reader>> {
        (0..threads).map(|_| make()).collect()
    };
    let mut readers: Vec<_> =
        entries.iter().map(|entry| (several(&entry.built.make), several(&entry.bound))).collect();
    let mut samples: Vec<Samples> = entries.iter().map(|_| Samples::default()).collect();
    for round in 0..request.rounds as usize {
        for turn in 0..entries.len() {
            // The order turns, so that no structure always follows the same other.
            let which = (turn + round) % entries.len();
            let (own, bound) = &mut readers[which];
            let samples = &mut samples[which];
            for (at, mode) in [Mode::Batched(request.batch), Mode::Single].into_iter().enumerate() {
                let mut measured = |readers: &mut [Box<dyn Reader>]| {
                    rate(readers, &mut draws, mode, request.lookups, Slow::LeftOut, &|_, _| 0).0
                };
                samples.rates[at].push(measured(own));
                samples.bounds[at].push(measured(bound));
            }
            if let Some(writer) = &mut entries[which].built.writer
                && request.updates > 0.0
            {
                race(request, set, writer, own, &mut draws, samples)?;
            }
        }
    }
    Ok(samples)
}

/// The rate without updates and the one beside them, one right after the other. Slow blocks count
/// in both: beside a writer they are what a reader waits. Readers must have the values of all keys
/// that are not updated.
fn race(
    request: &Request,
    set: &Set,
    writer: &mut race::Writer,
    readers: &mut [Box<dyn Reader>],
    draws: &mut [Draw],
    samples: &mut Samples,
) -> Result<()> {
    let inspect = |keys: &[u64], reader: &dyn Reader| {
        let wrong = |(at, &key): (usize, &u64)| {
            !race::touched(key) && reader.answer(at) != Some(set.value(key))
        };
        let count = keys.iter().enumerate().filter(|&item| wrong(item)).count();
        if request.alien { 0 } else { count }
    };
    let mode = Mode::Batched(request.batch);
    let mut measured = || rate(readers, draws, mode, request.lookups, Slow::Kept, &inspect);
    let (quiet, _) = measured();
    let ((beside, wrong), made) = writer.beside(request.updates, measured)?;
    ensure!(wrong == 0, "{wrong} wrong answers beside updates of a shared map");
    samples.beside.push(beside);
    samples.made.push(made);
    samples.ratios.push(beside / quiet);
    samples.wrong += wrong;
    Ok(())
}

fn row(request: &Request, set: &Set, threads: usize, entry: &Entry, samples: &Samples) -> Row {
    let spread = |samples: &[f64]| Spread::of(samples.iter().copied());
    let [bursts, single] = [0, 1].map(|at| spread(&samples.rates[at]));
    let bound = |at: usize| spread(&samples.bounds[at]).median;
    let ratio = |at: usize| {
        let pairs = samples.rates[at].iter().zip(&samples.bounds[at]);
        Spread::of(pairs.map(|(rate, bound)| rate / bound)).median
    };
    let per_key = |bytes: usize| bytes as f64 * 8.0 / set.count as f64;
    let beside = (!samples.beside.is_empty()).then(|| Beside {
        kupdates_per_s: spread(&samples.made).median,
        mlookups_per_s: spread(&samples.beside).median,
        ratio_to_quiet: spread(&samples.ratios),
        wrong_answers: samples.wrong,
    });
    Row {
        structure: entry.name,
        keys: set.count,
        value_bits: set.bits,
        threads,
        alien: request.alien,
        zipf: request.zipf,
        mlookups_per_s: bursts.median,
        mlookups_spread: bursts,
        bound_mlookups_per_s: bound(0),
        ratio_to_bound: ratio(0),
        single_mlookups_per_s: single.median,
        single_mlookups_spread: single,
        single_bound_mlookups_per_s: bound(1),
        single_ratio_to_bound: ratio(1),
        bytes: entry.built.bytes,
        bits_per_key: per_key(entry.built.bytes),
        control_bits_per_key: entry.built.control_bytes.map(per_key),
        mupdates_per_s: (entry.built.batched_updates.or(entry.built.updates))
            .map(|updates| updates.mixed()),
        single_mupdates_per_s: entry.built.updates.map(|updates| updates.mixed()),
        updates: entry.built.updates,
        batched_updates: entry.built.batched_updates,
        build_s: entry.built.build_s,
        wrong_answers: entry.wrong,
        alien_answered: entry.alien,
        beside_updates: beside,
    }
}
