//! `weir bench plane --ports dpdk`: the whole pipeline over a null port of DPDK, beside a macswap over the same
//! port.
//!
//! The port's driver hands over buffers, whose frames are written from a stock made beforehand, and takes them
//! back: what is measured has DPDK's pool, bursts and descriptions of frames in it, and no card.

use super::world::{FRAME_BYTES, Tables, stock, wanted_sum};
use super::{Beside, CHECKED, METHODS, Request, used};
use crate::error::{demand, ensure};
use crate::{Result, Spread};
use serde::Serialize;
use std::fmt;
use weir_plane_burst::ports::{Sent, Stock};
use weir_plane_burst::{BURST, Burst, macswap};
use weir_plane_dpdk::{Buffers, Dpdk, Eal, Fed, Memory};
use weir_steering::MethodId;

/// Buffers of the port: a card's ring, and as many again in the pool's cache.
const BUFFERS: Buffers = Buffers { count: 2047, room: 2048 + 192, ring: 1024 };
/// Of which there is enough for the buffers.
const MEGABYTES: u32 = 64;

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// The most frames of a burst.
    pub burst: usize,
    /// Packets of a measurement.
    pub packets: u64,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Of the order of frames.
    pub seed: u64,
    /// DPDK's device arguments.
    pub device: String,
    /// Whether DPDK's memory is in huge pages.
    pub huge_pages: bool,
    /// One for each method, way of forwarding, and number of flows.
    pub rows: Vec<Row>,
}

/// A pipeline beside the macswap.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Beside MAC addresses swapped and nothing else.
    #[serde(flatten)]
    pub beside: Beside,
    /// Frames that were compared with the scalar pipeline before the clock ran.
    pub checked: usize,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { flows, method, forward, mpps, ns, .. } = self.beside;
        write!(
            f,
            "{flows:>9} flows  DPDK  {method:<8} {forward:<5}{mpps:>6.1} Mpps, {ns:>5.1} ns/packet; {}",
            self.beside.ratio(),
        )
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// What DPDK refuses, that it is not built, or a plane that does not do with a frame what the pipeline does.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    demand!(request.cores == [1], "over DPDK one core is measured: leave out --cores and --full");
    for method in &request.methods {
        let known = METHODS.map(MethodId::name).join(", ");
        demand!(METHODS.contains(method), "{method} is not measured: give some of {known}");
    }
    let huge = Eal::start(Memory { huge: true, megabytes: MEGABYTES });
    let huge_pages = huge.is_ok();
    let eal = match huge {
        Err(weir_plane_dpdk::Error::HugePages { .. }) => {
            Eal::start(Memory { huge: false, megabytes: MEGABYTES })?
        }
        other => other?,
    };
    let device = format!("net_null0,size={FRAME_BYTES}");
    let mut rows = Vec::new();
    let only_residue = request.residue_flows.iter().filter(|more| !request.flows.contains(more));
    let all = request.flows.iter().map(|flows| (*flows, false));
    for (flows, only_residue) in all.chain(only_residue.map(|flows| (*flows, true))) {
        let stock = stock(flows, request.seed);
        for &method in &request.methods {
            if only_residue && method != MethodId::Residue {
                continue;
            }
            let tables = Tables::new(method, flows)?;
            for &forward in &request.forward {
                let plane = || Burst::new(tables.plane(flows, forward));
                let open = || Dpdk::open(eal, &[&device], None, BUFFERS);
                let checked = check(&tables, &mut plane(), Fed::new(open()?, &stock), &stock)?;
                let rates = measure(request, plane(), Fed::new(open()?, &stock))?;
                let of = |at: usize| Spread::of(rates.iter().map(|rates| rates[at])).median;
                let ratio = Spread::of(rates.iter().map(|rates| rates[1] / rates[0]));
                let beside = Beside {
                    plane: "dpdk",
                    method: method.name(),
                    forward: forward.name(),
                    flows,
                    cores: 1,
                    mpps: of(1),
                    macswap_mpps: of(0),
                    ratio_to_macswap: ratio.median,
                    ratio_spread: ratio,
                    ns: 1e3 / of(1),
                    macswap_ns: 1e3 / of(0),
                };
                let row = Row { beside, checked };
                progress(&row);
                rows.push(row);
            }
        }
    }
    let Request { packets, rounds, seed, .. } = *request;
    let frame_bytes = FRAME_BYTES;
    Ok(Report { frame_bytes, burst: BURST, packets, rounds, seed, device, huge_pages, rows })
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

/// Of each round, millions of packets per second: of the macswap, and of the pipeline.
fn measure(request: &Request, mut plane: Burst, mut ports: Fed<'_, Dpdk>) -> Result<Vec<[f64; 2]>> {
    let mut rounds = Vec::new();
    for round in 0..request.rounds as usize {
        let mut rates = [0.0; 2];
        for turn in 0..2 {
            let subject = (round + turn) % 2;
            let begin = used();
            let mut sent = 0;
            while sent < request.packets {
                let count =
                    if subject == 1 { plane.turn(&mut ports) } else { macswap(&mut ports) }?;
                ensure!(count > 0, "the null port hands over no frame");
                sent += count as u64;
            }
            rates[subject] = sent as f64 / used().saturating_sub(begin).as_secs_f64() / 1e6;
        }
        rounds.push(rates);
    }
    Ok(rounds)
}
