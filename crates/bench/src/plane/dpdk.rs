//! `weir bench plane --ports dpdk`: the whole pipeline over a null port of DPDK, beside a macswap over the same
//! port.
//!
//! The port's driver hands over buffers, whose frames are written from a stock made beforehand, and takes them
//! back: what is measured has DPDK's pool, bursts and descriptions of frames in it, and no card. Each core has a
//! port, a pool and a plane of its own, and shares the table. Where DPDK's own `testpmd` is installed, it is
//! measured in the same rounds.

use super::beside::cycles;
use super::testpmd::Aside;
use super::world::{Tables, stock, wanted_sum};
use super::{Beside, CHECKED, Forward, Reads, Request, SUBJECTS, Subject, used};
use crate::error::ensure;
use crate::{Result, Spread};
use serde::Serialize;
use std::fmt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use weir_plane_burst::ports::{Sent, Stock};
use weir_plane_burst::{BURST, Burst, macswap};
use weir_plane_dpdk::{Buffers, Dpdk, Eal, Fed, Memory};
use weir_steering::MethodId;

/// Buffers of the port: a card's ring, and as many again in the pool's cache.
const BUFFERS: Buffers = Buffers { count: 2047, room: 2048 + 192, ring: 1024 };
/// Of which there is enough for the buffers of a few cores.
const MEGABYTES: u32 = 64;
/// Cores for whose buffers that is enough.
const MOST_CORES: usize = 8;
/// A measurement of `testpmd` takes as long as these frames would at so many a second, within bounds.
const TESTPMD_RATE: f64 = 20e6;
const TESTPMD_SECONDS: (f64, f64) = (0.05, 1.0);

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// The most frames of a burst.
    pub burst: usize,
    /// Packets of each core in a measurement.
    pub packets: u64,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Of the order of frames.
    pub seed: u64,
    /// DPDK's device arguments.
    pub device: String,
    /// Whether DPDK's memory is in huge pages.
    pub huge_pages: bool,
    /// Why figures of `testpmd` are missing, though it is installed.
    pub testpmd_failure: Option<String>,
    /// One for each method, way of forwarding, and number of flows and cores.
    pub rows: Vec<Row>,
}

/// A pipeline beside the macswap.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Beside MAC addresses swapped and nothing else.
    #[serde(flatten)]
    pub beside: Beside,
    /// MAC addresses swapped, and bare reads of as much memory as the method's tables take, over the same port.
    pub bound_mpps: f64,
    /// Median of the rounds' ratios of the pipeline's rate to that.
    pub ratio_to_bound: f64,
    /// Nanoseconds of a core per packet, of the macswap with reads.
    pub bound_ns: f64,
    /// Median of the rounds' ratios to one core's rate; none for one core.
    pub ratio_to_one_core: Option<f64>,
    /// Millions of packets for each second of its processor of DPDK's own `testpmd`, which swaps MAC addresses and
    /// fills no frames; none where it is not installed or has failed, and of more cores than one.
    pub testpmd_mpps: Option<f64>,
    /// Median of the rounds' ratios to that.
    pub ratio_to_testpmd: Option<f64>,
    /// Quartiles of that ratio over the rounds.
    pub testpmd_ratio_spread: Option<Spread>,
    /// Frames that were compared with the scalar pipeline before the clock ran.
    pub checked: usize,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { flows, cores, method, forward, mpps, ns, .. } = self.beside;
        let end = if cores == 1 { " " } else { "s" };
        write!(
            f,
            "{flows:>9} flows, {cores} core{end}  DPDK  {method:<8} {forward:<5}{mpps:>6.1} Mpps, {ns:>5.1} \
             ns/packet; {}, {:.2} of macswap with bare reads ({:.1} ns)",
            self.beside.ratio(),
            self.ratio_to_bound,
            self.bound_ns,
        )?;
        if let (Some(mpps), Some(ratio)) = (self.testpmd_mpps, self.ratio_to_testpmd) {
            write!(f, ", {ratio:.2} of testpmd ({mpps:.1} Mpps)")?;
        }
        match self.ratio_to_one_core {
            Some(ratio) => write!(f, ", {ratio:.2} times one core"),
            None => Ok(()),
        }
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// What DPDK refuses, that it is not built, a plane that does not do with a frame what the pipeline does, or
/// more cores than there are.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    let there = thread::available_parallelism().map_or(1, usize::from).min(MOST_CORES);
    request.check(there)?;
    let huge = Eal::start(Memory { huge: true, megabytes: MEGABYTES });
    let huge_pages = huge.is_ok();
    let eal = match huge {
        // Or it has begun without them before.
        Err(weir_plane_dpdk::Error::HugePages { .. } | weir_plane_dpdk::Error::Started) => {
            Eal::start(Memory { huge: false, megabytes: MEGABYTES })?
        }
        other => other?,
    };
    let mut testpmd = Aside::start(huge_pages, MEGABYTES, request.frame_bytes);
    let mut rows = Vec::new();
    let only_residue = request.residue_flows.iter().filter(|more| !request.flows.contains(more));
    let all = request.flows.iter().map(|flows| (*flows, false));
    for (flows, only_residue) in all.chain(only_residue.map(|flows| (*flows, true))) {
        let stock = stock(flows, request.frame_bytes, request.seed);
        for &method in &request.methods {
            if only_residue && method != MethodId::Residue {
                continue;
            }
            let tables = Tables::new(method, flows)?;
            for &forward in &request.forward {
                let reads = Reads::new(tables.memory(flows));
                let (tables, reads, stock) = (&tables, &reads, &stock);
                let bed = Bed { eal, tables, reads, forward, flows, stock };
                let checked = bed.check()?;
                let rounds = measure(request, &bed, &mut testpmd)?;
                let of_cores = request.cores.iter().enumerate();
                let found = of_cores.map(|(at, &cores)| {
                    let names = (method.name(), forward.name());
                    row(request, names, flows, (at, cores), &rounds, checked)
                });
                for row in found {
                    progress(&row);
                    rows.push(row);
                }
            }
        }
    }
    let Request { frame_bytes, packets, rounds, seed, .. } = *request;
    Ok(Report {
        frame_bytes,
        burst: BURST,
        packets,
        rounds,
        seed,
        device: device(0, frame_bytes),
        huge_pages,
        testpmd_failure: testpmd.failure().map(str::to_owned),
        rows,
    })
}

/// The null port of a core, by DPDK's device arguments.
fn device(core: usize, frame_bytes: usize) -> String {
    format!("net_null{core},size={frame_bytes}")
}

/// What a round has found, in millions of packets per second: of all subjects, by the numbers of cores that were
/// asked for.
struct Round {
    rates: Vec<[f64; SUBJECTS.len()]>,
    testpmd: Option<f64>,
}

fn row(
    request: &Request,
    (method, forward): (&'static str, &'static str),
    flows: u32,
    (at, cores): (usize, usize),
    rounds: &[Round],
    checked: usize,
) -> Row {
    let of =
        |subject: usize| Spread::of(rounds.iter().map(|round| round.rates[at][subject])).median;
    let ratio =
        |to: usize| Spread::of(rounds.iter().map(|round| round.rates[at][1] / round.rates[at][to]));
    let one_core = request.cores.iter().position(|&cores| cores == 1).filter(|one| *one != at);
    let to_one = one_core.map(|one| {
        Spread::of(rounds.iter().map(|round| round.rates[at][1] / round.rates[one][1])).median
    });
    let testpmd: Option<Vec<f64>> = rounds.iter().map(|round| round.testpmd).collect();
    let testpmd = testpmd.filter(|_| cores == 1);
    let to_testpmd = testpmd.as_ref().map(|rates| {
        Spread::of(rounds.iter().zip(rates).map(|(round, rate)| round.rates[at][1] / rate))
    });
    let ns = |rate: f64| cores as f64 * 1e3 / rate;
    let beside = Beside {
        plane: "dpdk",
        method,
        forward,
        flows,
        cores,
        mpps: of(1),
        macswap_mpps: of(0),
        ratio_to_macswap: ratio(0).median,
        ratio_spread: ratio(0),
        ns: ns(of(1)),
        macswap_ns: ns(of(0)),
        cycles: cycles(ns(of(1))),
        macswap_cycles: cycles(ns(of(0))),
    };
    Row {
        beside,
        bound_mpps: of(2),
        ratio_to_bound: ratio(2).median,
        bound_ns: ns(of(2)),
        ratio_to_one_core: to_one,
        testpmd_mpps: testpmd.map(|rates| Spread::of(rates).median),
        ratio_to_testpmd: to_testpmd.map(|ratio| ratio.median),
        testpmd_ratio_spread: to_testpmd,
        checked,
    }
}

/// What is measured.
#[derive(Clone, Copy)]
struct Bed<'a> {
    eal: Eal,
    tables: &'a Tables,
    reads: &'a Reads,
    forward: Forward,
    flows: u32,
    stock: &'a Stock,
}

impl<'a> Bed<'a> {
    /// A plane, and a port of its core. They stay with the thread that asks for them.
    fn open(&self, core: usize) -> Result<(Burst, Fed<'a, Dpdk>)> {
        let device = device(core, self.stock.frame(0).len());
        let ports = Dpdk::open(self.eal, &[&device], None, BUFFERS)?;
        let plane = Burst::new(self.tables.plane(self.flows, self.forward));
        Ok((plane, Fed::new(ports, self.stock)))
    }

    fn check(&self) -> Result<usize> {
        let (mut plane, ports) = self.open(0)?;
        check(self.tables, &mut plane, ports, self.stock)
    }
}

/// Sends the first frames of the stock through the plane, and compares what goes out with what the pipeline
/// says of each by itself. Returns how many.
fn check(
    tables: &Tables,
    plane: &mut Burst,
    mut ports: Fed<'_, Dpdk>,
    stock: &Stock,
) -> Result<usize> {
    let wanted = stock.frames().min(CHECKED);
    let mut frames = 0;
    while frames < wanted {
        let count = plane.turn(&mut ports)?;
        ensure!(count > 0, "the null port hands over no frame");
        frames += count;
    }
    let sum = wanted_sum(tables, plane.soft(), stock, frames)?;
    let Sent { others, sum: found, .. } = ports.sent;
    ensure!(others == 0, "{others} frames of established flows were not sent");
    ensure!(found == sum, "frames were sent elsewhere than the pipeline says");
    ensure!(ports.ports().counts().sent == frames as u64, "the port has not taken all frames");
    Ok(frames)
}

/// One of what is compared, on so many cores at once.
#[derive(Clone, Copy)]
struct Step {
    cores: usize,
    subject: Subject,
}

/// Measures in rounds, in an order that turns.
fn measure(request: &Request, bed: &Bed<'_>, testpmd: &mut Aside) -> Result<Vec<Round>> {
    let (counts, most) = (request.cores.len(), request.cores.iter().copied().max().unwrap_or(1));
    // Of each round: which of the numbers of cores, and which subject.
    let order = move |round: usize| {
        let numbers = (0..counts).map(move |turn| (round + turn) % counts);
        let subject = move |turn| (round + turn) % SUBJECTS.len();
        numbers.flat_map(move |at| (0..SUBJECTS.len()).map(move |turn| (at, subject(turn))))
    };
    let rounds = request.rounds as usize;
    let steps: Vec<Step> = (0..rounds)
        .flat_map(order)
        .map(|(at, which)| Step { cores: request.cores[at], subject: SUBJECTS[which] })
        .collect();
    // The thread that starts them waits, too: while it measures something else, nobody else does.
    let barrier = Barrier::new(most + 1);
    let wait = (request.packets as f64 / TESTPMD_RATE).clamp(TESTPMD_SECONDS.0, TESTPMD_SECONDS.1);
    let (found, beside) = thread::scope(|scope| {
        let started: Vec<_> = (0..most)
            .map(|core| {
                let (steps, barrier) = (&steps, &barrier);
                scope.spawn(move || of_core(core, bed, request.packets, steps, barrier))
            })
            .collect();
        let mut beside = Vec::new();
        for _ in 0..rounds {
            for _ in 0..counts * SUBJECTS.len() {
                barrier.wait();
                barrier.wait();
            }
            beside.push(testpmd.measure(Duration::from_secs_f64(wait)));
        }
        let found: Vec<_> = started.into_iter().map(|core| core.join()).collect();
        (found, beside)
    });
    let mut of_cores = Vec::new();
    for rates in found {
        let rates = rates.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        of_cores.push(rates.into_iter());
    }
    let mut all = Vec::new();
    for (round, testpmd) in beside.into_iter().enumerate() {
        let mut rates = vec![[0.0; SUBJECTS.len()]; counts];
        for (at, which) in order(round) {
            // A core that had no part in it adds nothing.
            rates[at][which] = of_cores.iter_mut().filter_map(Iterator::next).sum();
        }
        all.push(Round { rates, testpmd });
    }
    Ok(all)
}

/// What a core does in each step: millions of packets for each second of its processor.
fn of_core(
    core: usize,
    bed: &Bed<'_>,
    packets: u64,
    steps: &[Step],
    barrier: &Barrier,
) -> Result<Vec<f64>> {
    // If it is refused, the kernel keeps them apart.
    let _ = weir_testbed::process::stay_on_cpu(core);
    let mut opened = bed.open(core);
    let mut rates: Result<Vec<f64>> = Ok(Vec::new());
    for step in steps {
        // Whoever has failed still waits with the others.
        barrier.wait();
        if let (Ok(opened), Ok(so_far)) = (&mut opened, &mut rates) {
            let takes_part = core < step.cores;
            let sent = takes_part.then(|| send(opened, bed.reads, step.subject, packets));
            match sent.transpose() {
                Ok(rate) => so_far.push(rate.unwrap_or(0.0)),
                Err(error) => rates = Err(error),
            }
        }
        barrier.wait();
    }
    opened.and(rates)
}

fn send(
    (plane, ports): &mut (Burst, Fed<'_, Dpdk>),
    reads: &Reads,
    subject: Subject,
    packets: u64,
) -> Result<f64> {
    let begin = used();
    let mut sent = 0;
    while sent < packets {
        let count = match subject {
            Subject::Pipeline => plane.turn(ports),
            Subject::Macswap => macswap(ports),
            Subject::Bound => reads.turn(ports),
        }?;
        ensure!(count > 0, "the null port hands over no frame");
        sent += count as u64;
    }
    Ok(sent as f64 / used().saturating_sub(begin).as_secs_f64() / 1e6)
}
