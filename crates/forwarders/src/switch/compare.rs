//! Both kinds of sockets in turn: frames through a chain of nodes.
//!
//! ```text
//!  host 0 ── node 0 ── node 1 ── ... ── node n-1 ── host 1
//!  sends, as many as are in the window          counts
//! ```
//! A new frame is sent for one that has arrived, so the rate is what the chain can carry, and no
//! work goes into frames that are dropped further on.

use super::Task;
use super::keys::SwitchKey;
use super::lab::Lab;
use super::node::Tally;
use super::packet::PacketPorts;
use super::ports::{BURST, Kind, NotSent, Ports};
use super::report::Frames;
use super::world::World;
use crate::error::Context;
use crate::{Error, Result};
use crate::{Report, SocketKind, SwitchFib, SwitchKeys, SwitchOptions};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use weir_fib::Control;
use weir_testbed::interrupt::interrupted;

/// Frames that are on their way at a time; a veth has room for 256.
const WINDOW: u64 = 192;

/// How long none arrives until those on their way are given up.
const STALL: Duration = Duration::from_millis(200);

/// Bytes of frames, without checksum.
const SIZES: [usize; 2] = [60, 1514];

/// How AF_XDP compares with packet sockets.
#[derive(Serialize)]
pub struct CompareReport {
    fib: SwitchFib,
    key: SwitchKeys,
    nodes: u16,
    keys: usize,
    rounds: u16,
    rows: Vec<Row>,
    /// What nodes did with either kind of sockets, all rounds together.
    xdp: Frames,
    packet: Frames,
    interrupted: bool,
}

#[derive(Serialize)]
struct Row {
    frame_bytes: usize,
    /// Frames a second through the whole chain, medians.
    xdp_frames_per_s: f64,
    packet_frames_per_s: f64,
    /// Of the rounds: AF_XDP's rate by packet sockets'.
    ratio_median: f64,
    ratio_min: f64,
    ratio_max: f64,
    /// Microseconds of processor time for a frame on its whole way, sender and receiver included,
    /// medians; and, of the rounds, packet sockets' by AF_XDP's. Other work on the machine touches
    /// it less than the rate.
    xdp_cpu_us: f64,
    packet_cpu_us: f64,
    cpu_ratio_median: f64,
    /// Frames that never arrived.
    xdp_lost_frames: u64,
    packet_lost_frames: u64,
}

impl Report for CompareReport {
    fn held(&self) -> bool {
        self.xdp.held_up() && self.packet.held_up() && !self.interrupted && !self.rows.is_empty()
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{:?} by {}, {} keys: a chain of {} nodes, medians of {} rounds",
            self.fib,
            self.key.name(),
            self.keys,
            self.nodes,
            self.rounds
        );
        for row in &self.rows {
            text += &format!(
                "\n{:>5} B  AF_XDP {:>7.0} frames/s, packet sockets {:>7.0}: {:.2} ({:.2} to {:.2}); \
                 CPU {:.1} and {:.1} us a frame: {:.2}; never arrived {} and {}",
                row.frame_bytes,
                row.xdp_frames_per_s,
                row.packet_frames_per_s,
                row.ratio_median,
                row.ratio_min,
                row.ratio_max,
                row.xdp_cpu_us,
                row.packet_cpu_us,
                row.cpu_ratio_median,
                row.xdp_lost_frames,
                row.packet_lost_frames,
            );
        }
        for (kind, frames) in [(Kind::Xdp, &self.xdp), (Kind::Packet, &self.packet)] {
            text += &format!(
                "\n{}: {} frames forwarded, {} lookups, {} lost, {} misdirected; dropped: {}",
                kind.name(),
                frames.forwarded,
                frames.lookups,
                frames.lost,
                frames.misdirected,
                frames.dropped(),
            );
        }
        text
    }
}

pub struct Comparison<'a> {
    pub options: &'a SwitchOptions,
}

/// What was measured with frames of one size, by kind of sockets.
#[derive(Default)]
struct Samples {
    rates: [Vec<f64>; 2],
    cpu_us: [Vec<f64>; 2],
    lost: [u64; 2],
}

impl Task for Comparison<'_> {
    type Report = CompareReport;

    fn run<K: SwitchKey, C: Control<K>>(&self, mut world: World<K, C>) -> Result<CompareReport>
    where
        C::Plane: 'static,
    {
        let rounds = self.options.rounds;
        let each = self.options.duration / (u32::from(rounds) * 2 * SIZES.len() as u32);
        let mut samples: Vec<Samples> = SIZES.iter().map(|_| Samples::default()).collect();
        let mut tallies = [Tally::default(); 2];
        for round in 0..rounds {
            // Who is first changes.
            for turn in 0..2 {
                let kind = usize::from((round + turn) % 2);
                let wish = [SocketKind::Xdp, SocketKind::Packet][kind];
                world.start(wish)?;
                for (size, samples) in SIZES.iter().zip(&mut samples) {
                    let sample = measure(&world.lab, &K::frame(0, 1, *size), each)?;
                    samples.rates[kind].push(sample.rate);
                    samples.cpu_us[kind].push(sample.cpu_us);
                    samples.lost[kind] += sample.lost;
                }
                tallies[kind].add(&world.stop()?);
            }
            if interrupted() {
                break;
            }
        }
        let [xdp, packet] = tallies.map(|tally| {
            Frames::of(&tally, each.as_secs_f64() * f64::from(rounds) * SIZES.len() as f64)
        });
        Ok(CompareReport {
            fib: self.options.fib,
            key: self.options.key,
            nodes: self.options.nodes,
            keys: world.keys.len(),
            rounds,
            rows: SIZES.iter().zip(samples).map(|(&size, samples)| samples.row(size)).collect(),
            xdp,
            packet,
            interrupted: interrupted(),
        })
    }
}

impl Samples {
    fn row(self, frame_bytes: usize) -> Row {
        let ratios = |over: &[f64], under: &[f64]| -> Vec<f64> {
            over.iter().zip(under).map(|(over, under)| over / under).collect()
        };
        let [xdp, packet] = &self.rates;
        let [xdp_cpu, packet_cpu] = &self.cpu_us;
        let cpu_ratios = ratios(packet_cpu, xdp_cpu);
        let ratios = ratios(xdp, packet);
        Row {
            frame_bytes,
            xdp_frames_per_s: median(xdp),
            packet_frames_per_s: median(packet),
            ratio_median: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            xdp_cpu_us: median(xdp_cpu),
            packet_cpu_us: median(packet_cpu),
            cpu_ratio_median: median(&cpu_ratios),
            xdp_lost_frames: self.lost[0],
            packet_lost_frames: self.lost[1],
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// One measurement: frames a second that arrive, processor time for each, and frames that do not.
struct Sample {
    rate: f64,
    cpu_us: f64,
    lost: u64,
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    // SAFETY: the structure is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the structure, which outlives it.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Sends frames from host 0 to host 1 for a time.
fn measure(lab: &Lab, frame: &[u8], time: Duration) -> Result<Sample> {
    let arrived = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (listening, ready) = channel();
    let sink = {
        let (arrived, stop, frame) = (Arc::clone(&arrived), Arc::clone(&stop), frame.to_vec());
        lab.host(1).spawn(move || count(&frame, &arrived, &stop, listening))?
    };
    // If it does not listen, it says why when it is joined.
    let _ = ready.recv();
    let source = {
        let (arrived, frame) = (Arc::clone(&arrived), frame.to_vec());
        lab.host(0).spawn(move || send(&frame, &arrived, time))?
    };
    let sent = source.join().map_err(|_| Error::Failed("the sender panicked".into()))?;
    stop.store(true, Ordering::Relaxed);
    let counted = sink.join().map_err(|_| Error::Failed("the receiver panicked".into()))?;
    counted??;
    sent?
}

fn count(
    frame: &[u8],
    arrived: &AtomicU64,
    stop: &AtomicBool,
    listening: Sender<()>,
) -> Result<()> {
    let mut ports = PacketPorts::open(1)?;
    listening.send(()).context("the sender has ended early")?;
    let mut burst = Vec::with_capacity(BURST);
    while !stop.load(Ordering::Relaxed) {
        ports.receive(Duration::from_millis(10), &mut burst)?;
        let right = burst.iter().filter(|got| ports.bytes(got) == frame).count();
        arrived.fetch_add(right as u64, Ordering::Relaxed);
        burst.drain(..).for_each(|frame| ports.free(frame));
    }
    Ok(())
}

fn send(frame: &[u8], arrived: &AtomicU64, time: Duration) -> Result<Sample> {
    let mut ports = PacketPorts::open(1)?;
    // SAFETY: the name is a string that ends with 0.
    let interface = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    ports.plug(0, interface)?;
    let started = Instant::now();
    // The first fifth of the time is for everyone to get going.
    let warm = time / 5;
    let mut counting: Option<(Instant, Duration, u64)> = None;
    let (mut sent, mut given_up) = (0u64, 0u64);
    let mut progress = (Instant::now(), 0);
    while started.elapsed() < time && !interrupted() {
        let got = arrived.load(Ordering::Relaxed);
        if counting.is_none() && started.elapsed() >= warm {
            counting = Some((Instant::now(), cpu_time(), got));
        }
        if got != progress.1 {
            progress = (Instant::now(), got);
        } else if progress.0.elapsed() > STALL {
            given_up = sent - got;
            progress.0 = Instant::now();
        }
        let room = WINDOW.saturating_sub(sent.saturating_sub(given_up + got)).min(BURST as u64);
        if room < WINDOW / 8 {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        for _ in 0..room {
            let copy = ports.copy(frame);
            if let Err(NotSent::Unplugged(frame) | NotSent::Full(frame)) = ports.send(copy, 0) {
                ports.free(frame);
            }
        }
        for frame in ports.flush()? {
            ports.free(frame);
        }
        sent += room;
    }
    let (since, cpu, before) =
        counting.ok_or_else(|| Error::Failed("no time to measure".into()))?;
    let counted = (arrived.load(Ordering::Relaxed) - before) as f64;
    let rate = counted / since.elapsed().as_secs_f64();
    let cpu_us = (cpu_time() - cpu).as_secs_f64() * 1e6 / counted.max(1.0);
    // Those on their way get a moment.
    std::thread::sleep(STALL);
    let lost = sent.saturating_sub(arrived.load(Ordering::Relaxed));
    Ok(Sample { rate, cpu_us, lost })
}
