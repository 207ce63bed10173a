//! `weir bench plane`: packets per second of the whole pipeline of a burst plane, beside the least that a
//! forwarder does.

pub mod af_xdp;
mod beside;
pub mod dpdk;
pub mod forwarders;
pub mod rules;
mod testpmd;
mod world;

pub use beside::Beside;
pub use world::{Forward, METHODS};

use crate::error::{demand, ensure};
use crate::{Result, Spread};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use weir_lookup::simd::gather::Gather;
use weir_plane_burst::ports::{Memory, Sent, Stock};
use weir_plane_burst::{BURST, Burst, Fate, Frame, Ports, macswap};
use weir_steering::MethodId;
use world::{FRAME_BYTES, Tables, stock, wanted_sum};

/// Buffers of a port, as many as a card's ring usually has.
const BUFFERS: usize = 1024;
/// Frames whose outcome is compared with the pipeline's before the clock runs.
const CHECKED: usize = 1 << 18;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The steering methods whose pipelines are measured.
    pub methods: Vec<MethodId>,
    /// How frames get to backends.
    pub forward: Vec<Forward>,
    /// Numbers of flows.
    pub flows: Vec<u32>,
    /// More flows, for residue alone, whose table does not grow with them.
    pub residue_flows: Vec<u32>,
    /// Numbers of cores, each with a plane and a port of its own.
    pub cores: Vec<usize>,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Packets of each core in a measurement.
    pub packets: u64,
    /// Rounds; each measures everything once, in turn.
    pub rounds: u32,
    /// Makes the order of frames the same.
    pub seed: u64,
}

/// Bytes that a frame may have.
pub const FRAME_SIZES: std::ops::RangeInclusive<usize> = FRAME_BYTES..=1514;

impl Request {
    /// Refuses what is not measured.
    fn check(&self, there: usize) -> Result<()> {
        for &cores in &self.cores {
            demand!((1..=there).contains(&cores), "{cores} cores: give 1 to {there}");
        }
        for method in &self.methods {
            let known = METHODS.map(MethodId::name).join(", ");
            demand!(METHODS.contains(method), "{method} is not measured: give some of {known}");
        }
        let (bytes, sizes) = (self.frame_bytes, FRAME_SIZES);
        let (least, most) = (sizes.start(), sizes.end());
        demand!(sizes.contains(&bytes), "frames of {bytes} bytes: give {least} to {most}");
        Ok(())
    }
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// The most frames of a burst.
    pub burst: usize,
    /// Buffers of a port.
    pub buffers: usize,
    /// Packets of each core in a measurement.
    pub packets: u64,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Of the order of frames.
    pub seed: u64,
    /// One for each method, way of forwarding, and number of flows and cores.
    pub rows: Vec<Row>,
}

/// A pipeline, beside what bounds it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Beside MAC addresses swapped and nothing else.
    #[serde(flatten)]
    pub beside: Beside,
    /// Quartiles of its rate over the rounds.
    pub mpps_spread: Spread,
    /// Quartiles of the macswap's rate over the rounds.
    pub macswap_mpps_spread: Spread,
    /// MAC addresses swapped, and bare reads of as much memory as the method's tables take.
    pub bound_mpps: f64,
    /// Median of the rounds' ratios of the pipeline's rate to that.
    pub ratio_to_bound: f64,
    /// Nanoseconds of a core per packet, of the macswap with reads.
    pub bound_ns: f64,
    /// Median of the rounds' ratios to one core's rate; none for one core.
    pub ratio_to_one_core: Option<f64>,
    /// Bytes that packets read at random places.
    pub table_bytes: usize,
    /// Frames that were compared with the scalar pipeline before the clock ran.
    pub checked: usize,
    /// Share of the packets that took the way of the scalar pipeline.
    pub long: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { flows, cores, method, forward, mpps, ns, .. } = self.beside;
        let end = if cores == 1 { " " } else { "s" };
        write!(
            f,
            "{flows:>9} flows, {cores} core{end}  {method:<8} {forward:<5}{mpps:>7.1} Mpps, {ns:>5.1} ns/packet; \
             {}, {:.2} of macswap with bare reads ({:.1} ns)",
            self.beside.ratio(),
            self.ratio_to_bound,
            self.bound_ns,
        )?;
        match self.ratio_to_one_core {
            Some(ratio) => write!(f, ", {ratio:.2} times one core"),
            None => Ok(()),
        }
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// A method that is not measured, more cores than there are, or a plane that does not do with a frame what
/// the pipeline does.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    request.check(thread::available_parallelism().map_or(1, usize::from))?;
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
                let found = of_method(request, &tables, method, forward, flows, &stock)?;
                found.iter().for_each(&mut progress);
                rows.extend(found);
            }
        }
    }
    let Request { frame_bytes, packets, rounds, seed, .. } = *request;
    Ok(Report { frame_bytes, burst: BURST, buffers: BUFFERS, packets, rounds, seed, rows })
}

/// The reads of a method's memory, without anything else.
enum Reads {
    One(Gather<1>),
    Two(Gather<2>),
}

impl Reads {
    fn new((bytes, reads): (usize, usize)) -> Self {
        if reads == 1 { Self::One(Gather::new(bytes)) } else { Self::Two(Gather::new(bytes)) }
    }

    /// As [`macswap`], with reads at places that the frame says.
    fn turn<P: Ports>(&self, ports: &mut P) -> Result<usize, P::Error> {
        let mut frames = [Frame::default(); BURST];
        let count = ports.receive(&mut frames)?;
        let memory = ports.memory();
        let (mut keys, mut found) = ([0; BURST], [0; BURST]);
        for (frame, key) in frames[..count].iter_mut().zip(&mut keys) {
            if let Some(head) = memory[frame.at as usize..].first_chunk_mut::<38>() {
                let (to, from) = head[..12].split_at_mut(6);
                to.swap_with_slice(from);
                // Address and port of the client, which no two flows share.
                let word = |at: usize| {
                    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
                };
                *key = u64::from(word(26)) << 32 | u64::from(word(34));
            }
            frame.fate = Fate::Send;
        }
        match self {
            Self::One(bytes) => bytes.get_batch(&keys[..count], &mut found[..count]),
            Self::Two(bytes) => bytes.get_batch(&keys[..count], &mut found[..count]),
        }
        black_box(&found);
        ports.finish(&frames[..count])?;
        Ok(count)
    }
}

/// What the calling thread has used of its processor so far: other work takes the processor away, but not
/// from the account.
pub(crate) fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// What a core measures.
struct Core<'a> {
    plane: Burst,
    ports: Memory<'a>,
    reads: &'a Reads,
}

/// One of the three that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Pipeline,
    Macswap,
    Bound,
}

const SUBJECTS: [Subject; 3] = [Subject::Macswap, Subject::Pipeline, Subject::Bound];

impl Core<'_> {
    /// Sends so many packets through a subject.
    fn send(&mut self, subject: Subject, packets: u64) -> Duration {
        let Self { plane, ports, reads } = self;
        let begin = used();
        let mut sent = 0;
        while sent < packets {
            let Ok(count) = match subject {
                Subject::Pipeline => plane.turn(ports),
                Subject::Macswap => macswap(ports),
                Subject::Bound => reads.turn(ports),
            };
            sent += count as u64;
        }
        used().saturating_sub(begin)
    }
}

fn of_method(
    request: &Request,
    tables: &Tables,
    method: MethodId,
    forward: Forward,
    flows: u32,
    stock: &Stock,
) -> Result<Vec<Row>> {
    let memory = tables.memory(flows);
    let reads = Reads::new(memory);
    let most = request.cores.iter().copied().max().unwrap_or(1);
    let mut cores: Vec<Core<'_>> = (0..most)
        .map(|core| Core {
            plane: Burst::new(tables.plane(flows, forward)),
            ports: Memory::new(stock, core * (stock.frames() / most), BUFFERS),
            reads: &reads,
        })
        .collect();
    let checked = check(tables, &mut cores[0], stock)?;
    let mut rounds = vec![Vec::new(); request.cores.len()];
    for round in 0..request.rounds as usize {
        for turn in 0..request.cores.len() {
            let at = (round + turn) % request.cores.len();
            let mut rates = [0.0; 3];
            for turn in 0..SUBJECTS.len() {
                let subject = (round + turn) % SUBJECTS.len();
                let send = |core: &mut Core<'_>| core.send(SUBJECTS[subject], request.packets);
                rates[subject] = together(&mut cores[..request.cores[at]], request.packets, send);
            }
            rounds[at].push(rates);
        }
    }
    let one_core = request.cores.iter().position(|&cores| cores == 1);
    let long: u64 = cores.iter().map(|core| core.plane.long()).sum();
    let all: u64 = cores
        .iter_mut()
        .map(|core| core.plane.counters().lanes.values().map(|lane| lane.packets).sum::<u64>())
        .sum();
    let rows = request.cores.iter().enumerate().map(|(at, &cores)| {
        let of = |subject: usize| Spread::of(rounds[at].iter().map(|rates| rates[subject]));
        let ratio = |to: usize| Spread::of(rounds[at].iter().map(|rates| rates[1] / rates[to]));
        let (swapped, whole, bound) = (of(0), of(1), of(2));
        let to_one = one_core.filter(|one| *one != at).map(|one| {
            let pairs = rounds[at].iter().zip(&rounds[one]);
            Spread::of(pairs.map(|(these, one)| these[1] / one[1])).median
        });
        let ns = |rate: Spread| cores as f64 * 1e3 / rate.median;
        let cycles = |rate| beside::cycles(ns(rate));
        let beside = Beside {
            plane: "memory",
            method: method.name(),
            forward: forward.name(),
            flows,
            cores,
            mpps: whole.median,
            macswap_mpps: swapped.median,
            ratio_to_macswap: ratio(0).median,
            ratio_spread: ratio(0),
            ns: ns(whole),
            macswap_ns: ns(swapped),
            cycles: cycles(whole),
            macswap_cycles: cycles(swapped),
        };
        Row {
            beside,
            mpps_spread: whole,
            macswap_mpps_spread: swapped,
            bound_mpps: bound.median,
            ratio_to_bound: ratio(2).median,
            bound_ns: ns(bound),
            ratio_to_one_core: to_one,
            table_bytes: memory.0,
            checked,
            long: long as f64 / all.max(1) as f64,
        }
    });
    Ok(rows.collect())
}

/// Nanoseconds from before a burst is fetched until all of it has been sent: of so many bursts of so many packets, of
/// a method's flows, by the wall clock.
///
/// # Errors
/// A method that is not measured, a burst of another size than 1 to [`BURST`], or a plane that does not do with a
/// frame what the pipeline does.
pub fn latencies(
    method: MethodId,
    flows: u32,
    frame_bytes: usize,
    (burst, bursts): (usize, usize),
    seed: u64,
) -> Result<Vec<f64>> {
    demand!(METHODS.contains(&method), "{method} is not measured");
    demand!((1..=BURST).contains(&burst), "bursts of {burst} packets: 1 to {BURST}");
    let stock = stock(flows, frame_bytes, seed);
    let tables = Tables::new(method, flows)?;
    let reads = Reads::new(tables.memory(flows));
    let plane = Burst::new(tables.plane(flows, Forward::L2));
    let mut core = Core { plane, ports: Memory::new(&stock, 0, BUFFERS), reads: &reads };
    check(&tables, &mut core, &stock)?;
    let Core { plane, ports, .. } = &mut core;
    ports.offered = burst;
    let one = |_| {
        let begin = Instant::now();
        let Ok(count) = plane.turn(ports);
        let took = begin.elapsed();
        ensure!(count == burst, "{count} packets came, not {burst}");
        Ok(took.as_nanos() as f64)
    };
    (0..bursts).map(one).collect()
}

/// Sends the first frames of the stock through the plane, and compares what goes out with what the pipeline
/// says of each by itself. Returns how many.
fn check(tables: &Tables, core: &mut Core<'_>, stock: &Stock) -> Result<usize> {
    let bursts = stock.frames().min(CHECKED).div_ceil(BURST);
    let frames = bursts * BURST;
    let wanted = wanted_sum(tables, core.plane.soft(), stock, frames)?;
    let mut ports = Memory::new(stock, 0, BUFFERS);
    for _ in 0..bursts {
        let Ok(_) = core.plane.turn(&mut ports);
    }
    let Sent { others, sum, .. } = ports.sent;
    ensure!(others == 0, "{others} frames of established flows were not sent");
    ensure!(sum == wanted, "frames were sent elsewhere than the pipeline says");
    Ok(frames)
}

/// Millions of packets per second of several cores together, each of which sends so many in the time that `send` says.
fn together<C: Send>(
    cores: &mut [C],
    packets: u64,
    send: impl Fn(&mut C) -> Duration + Sync,
) -> f64 {
    let rate = |spent: Duration| packets as f64 / spent.as_secs_f64() / 1e6;
    if let [only] = cores {
        return rate(send(only));
    }
    let barrier = Barrier::new(cores.len());
    thread::scope(|scope| {
        let started: Vec<_> = cores
            .iter_mut()
            .enumerate()
            .map(|(at, core)| {
                let (barrier, send) = (&barrier, &send);
                scope.spawn(move || {
                    // If it is refused, the kernel keeps them apart.
                    let _ = weir_testbed::process::stay_on_cpu(at);
                    barrier.wait();
                    send(core)
                })
            })
            .collect();
        started.into_iter().filter_map(|core| core.join().ok()).map(rate).sum()
    })
}
