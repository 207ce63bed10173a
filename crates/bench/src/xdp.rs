//! `weir bench xdp`: what the XDP program costs above a reflector.

use crate::error::demand;
use crate::neighbour::Neighbour;
use crate::{Company, Spread};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::thread;
use weir_dataplane::Interface;
use weir_dataplane::bench::{Memory, Sample, Storage, Subject, XdpBench};
use weir_testbed::link;

/// The processor that packets are made and handled on.
const CPU: usize = 0;
const SUBJECTS: [Subject; 3] = [Subject::Reflector, Subject::Concury, Subject::Tracked];

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Numbers of flows to draw from.
    pub flows: Vec<u32>,
    /// Packets in each measurement.
    pub packets: u32,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
    /// What else the machine does.
    pub company: Company,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nanoseconds per packet of the reflector, generator and veth included.
    pub floor_ns: f64,
    /// Packets in each measurement.
    pub packets: u32,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Bytes that the neighbour walks through, if there was one.
    pub neighbour_bytes: Option<usize>,
    /// One row for each method and number of flows.
    pub rows: Vec<Row>,
}

/// One method at one number of flows.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Steering method that the frames went through.
    pub method: &'static str,
    /// Flows that packets are drawn from.
    pub flows: u32,
    /// Whether a thread on another core walked through a buffer larger than the last-level cache.
    pub neighbour: bool,
    /// Median of the differences to the reflector in the same round.
    pub above_floor_ns: f64,
    /// With quartiles.
    pub above_floor_spread: Spread,
    /// The reflector's time at this number of flows.
    pub floor_ns: f64,
    /// Of the whole path: generator, veth and balancer, on one core.
    pub mpps: f64,
    /// Median of the rounds' ratios.
    pub ratio_to_tracked: f64,
    /// With quartiles.
    pub ratio_spread: Spread,
    /// Share of the packets that came back; under 1, something was dropped.
    pub returned: f64,
    /// Bits per connection of the table's cells; `None` for tracked.
    pub bits_per_connection: Option<f64>,
    /// Bytes of the table that do not depend on the number of connections (DIP array, header).
    pub fixed_bytes: Option<usize>,
}

/// Measures. `progress` gets the rows of each number of flows when they are ready.
///
/// # Errors
///
/// The kernel refuses a program or a veth pair.
pub fn run(request: &Request, mut progress: impl FnMut(&[Row])) -> Result<Report> {
    let (packets, rounds) = (request.packets, request.rounds);
    let mut rows = Vec::new();
    for &count in &request.flows {
        // Each number of flows gets a thread, because a bench keeps its thread's namespace.
        let part = Request { flows: vec![count], ..request.clone() };
        let measured = thread::spawn(move || measure(count, &part));
        let found = measured.join().map_err(|_| Error::Fault("the bench panicked".into()))??;
        progress(&found);
        rows.extend(found);
    }
    let floor_ns = Spread::of(rows.iter().map(|row| row.floor_ns)).median;
    let neighbour_bytes = request.company.bytes();
    Ok(Report { floor_ns, packets, rounds, neighbour_bytes, rows })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = self.above_floor_spread;
        write!(
            f,
            "{:>8} flows{}  {:<8} {:>6.1} ns above the reflector ({:.1}..{:.1}; floor {:.0}), \
             {:.2} Mpps, {:.2} of tracked ({:.2}..{:.2})",
            self.flows,
            if self.neighbour { " beside a neighbour" } else { "" },
            self.method,
            self.above_floor_ns,
            spread.low,
            spread.high,
            self.floor_ns,
            self.mpps,
            self.ratio_to_tracked,
            self.ratio_spread.low,
            self.ratio_spread.high,
        )?;
        match self.bits_per_connection {
            Some(bits) => write!(f, ", {bits:.2} bits/connection"),
            None => Ok(()),
        }
    }
}

/// Both methods at one number of flows, quiet, beside a neighbour, or in turn; in a network
/// namespace of the thread's own, on one processor.
fn measure(flows: u32, request: &Request) -> Result<Vec<Row>> {
    let ways = request.company.ways();
    let neighbour = match ways {
        [false] => None,
        _ => Some(Neighbour::new(1)?),
    };
    if let Some(neighbour) = &neighbour {
        demand!(!neighbour.shares(CPU), "no core beside that of processor {CPU} is free");
    }
    weir_testbed::enter_own_namespace()?;
    weir_testbed::process::stay_on_cpu(CPU)?;
    let ends = ["gen0", "lb0"];
    link::ip(&link::veth(&ends.map(link::End::new)))?;
    link::ip(&ends.map(link::up).concat())?;
    let [generator, balancer] = ends.map(Interface::find);
    let mut storage = Storage::uninit();
    let mut bench = XdpBench::new(&mut storage, flows, [generator?, balancer?])?;
    // Warms caches and the LRU map.
    for subject in SUBJECTS {
        bench.run(subject, flows, request.packets.min(500_000), 0)?;
    }
    let mut samples: Vec<Vec<Round>> = ways.iter().map(|_| Vec::new()).collect();
    for turn in 0..request.rounds.max(1) {
        for (&awake, samples) in ways.iter().zip(&mut samples) {
            let mut measured = || round(&mut bench, flows, request.packets, turn);
            samples.push(match &neighbour {
                Some(neighbour) => neighbour.beside(awake, measured)?,
                None => measured()?,
            });
        }
    }
    let found = ways.iter().zip(&samples);
    Ok(found.flat_map(|(&way, samples)| rows(flows, way, samples, &bench.memory)).collect())
}

/// A sample of each subject.
type Round = [Sample; 3];

/// Every subject once. The order turns, so that no subject always follows the same other.
fn round(bench: &mut XdpBench<'_>, flows: u32, packets: u32, turn: u32) -> Result<Round> {
    let mut row = [Sample { nanoseconds: 0.0, returned: 0.0 }; 3];
    for offset in 0..SUBJECTS.len() {
        let which = (offset + turn as usize) % SUBJECTS.len();
        row[which] = bench.run(SUBJECTS[which], flows, packets, u64::from(turn) + 1)?;
    }
    Ok(row)
}

fn rows(flows: u32, neighbour: bool, samples: &[Round], memory: &Memory) -> Vec<Row> {
    let above = |which: usize| -> Vec<f64> {
        samples.iter().map(|row| row[which].nanoseconds - row[0].nanoseconds).collect()
    };
    let floor_ns = Spread::of(samples.iter().map(|row| row[0].nanoseconds)).median;
    let tracked = above(2);
    let rows = (1..SUBJECTS.len()).map(|which| {
        let mine = above(which);
        let above_floor_spread = Spread::of(mine.iter().copied());
        let ratio_spread = Spread::of(mine.iter().zip(&tracked).map(|(a, b)| a / b));
        let whole = Spread::of(samples.iter().map(|row| row[which].nanoseconds)).median;
        let concury = SUBJECTS[which] == Subject::Concury;
        let cells = memory.concury_bytes - memory.concury_fixed_bytes;
        Row {
            method: SUBJECTS[which].name(),
            flows,
            neighbour,
            above_floor_ns: above_floor_spread.median,
            above_floor_spread,
            floor_ns,
            mpps: 1e3 / whole,
            ratio_to_tracked: ratio_spread.median,
            ratio_spread,
            returned: Spread::of(samples.iter().map(|row| row[which].returned)).median,
            bits_per_connection: concury.then(|| cells as f64 * 8.0 / f64::from(flows)),
            fixed_bytes: concury.then_some(memory.concury_fixed_bytes),
        }
    });
    rows.collect()
}
