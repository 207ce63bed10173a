//! The control plane: response to a change of the pool, and new states (figure 8, dissertation
//! figures 5.6 and 5.18).

use super::keys::{BITS, flow, pool};
use super::{DIGEST, MULTI, ORIGINAL};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::{ratio, short};
use weir_lookup::{DigestCuckoo, MultiDigest, Othello, OthelloMap};
use weir_steering::{BackendId, Codec, Concury, ConcuryConfig, Role, StateKey};

const WITH: &str = "OthelloMap";
const WITHOUT: &str = "built anew (Othello)";
const WHOLE: &str = "fuse codec (always built whole)";

pub static FIG_8: Figure = Figure {
    id: "concury-fig8",
    title: "Response of the control plane to a change of the pool",
    paper: "Concury, Fig. 8 (dissertation, Fig. 5.6)",
    measures: "Time from a changed pool to new data-plane tables of one service: with the \
        OthelloMap (DIP array, Dcodes of all states, cells); with only the cells built anew from \
        the keys, all at once, which is the fastest way there is (Othello::build: a graph is tried \
        by disjoint sets, without walks); and with weir’s other codec, which has no graph to keep. \
        One backend of 128 is drained or comes back. Medians and quartiles.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "states of the service", scale: Scale::Log },
        y: Axis { label: "ms", scale: Scale::Log },
    }],
    quotes: &[Quote {
        chart: 0,
        name: "OthelloMap",
        like: WITH,
        says: Says::Value,
        points: &[(8_192.0, 2.0), (131_072.0, 12.0)],
        source: "Concury, section 6.2: 2-12 ms at 8K to 128K states for one VIP",
    }],
    note: "the text gives the two ends, and “over 50 %” as what the OthelloMap saves.",
    why: "Both walk over all states once, so both grow with their number. Ours computes less at a \
        change, because it keeps Dcodes that still lead to their backends and the graph’s order \
        between changes. The paper’s times may contain the message to the data plane; ours end \
        where the tables are ready to be published (weir bench update measures publishing, a \
        grace period included).",
    times: ["1 s", "20 s", "2 min"],
    run: response,
};

fn response(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[u32] = setup.size.pick(
        &[8_192, 16_384],
        &[8_192, 16_384, 32_768, 65_536, 131_072],
        &[8_192, 16_384, 32_768, 65_536, 131_072, 1_048_576],
    );
    let rounds = setup.size.pick(5, 15, 31);
    let mut series = [WITH, WITHOUT, WHOLE].map(|name| Series::new(0, name));
    for &states in sizes {
        (setup.progress)(&format!("{} states", short(f64::from(states))));
        let mut members = pool(128);
        let mut concury = service(Codec::Othello, states, setup.seed)?;
        let mut whole = service(Codec::Fuse, states, setup.seed)?;
        concury.build(1, &members, 0)?;
        whole.build(1, &members, 0)?;
        let value = |n: u32| n & ((1 << BITS) - 1);
        let items: Vec<(StateKey, u32)> = (0..states).map(|n| (flow(n), value(n))).collect();
        let mut times = [const { Vec::new() }; 3];
        for round in 0..rounds {
            members[5].role = if round % 2 == 0 { Role::Draining } else { Role::Serving };
            let (built, ms) = timed(|| concury.build(2 + round, &members, 0));
            built?;
            times[0].push(ms);
            let (othello, ms) = timed(|| {
                Othello::build(BITS, &items, setup.seed + round).map(|othello| othello.view())
            });
            othello?;
            times[1].push(ms);
            let (fuse, ms) = timed(|| whole.build(2 + round, &members, 0));
            fuse?;
            times[2].push(ms);
        }
        for (series, times) in series.iter_mut().zip(times) {
            series.points.push(median(f64::from(states), times));
        }
    }
    let measured = Measured { series: series.into(), facts: Vec::new() };
    let mut facts = Vec::new();
    if let Some((share, low, high)) = measured.ratio(0, WITH, WITHOUT) {
        facts.push(format!(
            "The OthelloMap saves {:.0} % of building the cells anew ({:.0} to {:.0} % by size; \
             the paper says over 50 %).",
            100.0 * (1.0 - share),
            100.0 * (1.0 - high),
            100.0 * (1.0 - low)
        ));
    }
    if let Some((times, low, high)) = measured.ratio(0, WHOLE, WITH) {
        facts.push(format!(
            "With the fuse codec, which halves the memory, a change takes {} times as long ({} to \
             {} by size).",
            ratio(times),
            ratio(low),
            ratio(high)
        ));
    }
    Ok(Measured { facts, ..measured })
}

fn service(codec: Codec, states: u32, seed: u64) -> Result<Concury> {
    let mut concury = Concury::new(ConcuryConfig {
        capacity: states as usize,
        ..ConcuryConfig::unbounded(codec, BITS, seed)
    });
    for n in 0..states {
        concury.start(flow(n), BackendId::of((n % 128) as u16), 0)?;
    }
    Ok(concury)
}

pub static INSERT: Figure = Figure {
    id: "concury-insert",
    title: "Time to insert new states",
    paper: "Concury, figure on new states (dissertation, Fig. 5.18)",
    measures: "Seconds to insert so many states into 128 services that begin empty, so growth and \
        rebuilds are included for Concury’s OthelloMap, and for an Othello; tables of digests do \
        not grow and are sized beforehand.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "new states", scale: Scale::Log },
        y: Axis { label: "seconds", scale: Scale::Log },
    }],
    quotes: &[Quote {
        chart: 0,
        name: "Concury at 16M: a few seconds",
        like: ORIGINAL,
        says: Says::AtMost,
        points: &[(16e6, 9.0)],
        source: "Concury, section 6.2: for 16M new states a few seconds",
    }],
    note: "the text says “a few seconds” for 16M states (taken as less than ten), and that all \
        three curves are straight lines, Concury’s the highest.",
    why: "The order is the paper’s: an insertion into an OthelloMap writes an entry, links an edge \
        into the graph and recolours a part of it, where a table of digests writes a slot. It is \
        paid by the control plane, not by a packet: in weir the data plane is told nothing of a \
        new state. Straight lines in both.",
    times: ["1 s", "8 s", "1 min"],
    run: insert,
};

fn insert(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[16_000, 64_000],
        &[16_000, 64_000, 256_000, 1_000_000, 4_000_000],
        &[16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000],
    );
    let rounds = setup.size.pick(1, 3, 3);
    let mut series = [ORIGINAL, DIGEST, MULTI].map(|name| Series::new(0, name));
    for &total in sizes {
        (setup.progress)(&format!("{} states", short(total as f64)));
        let each = (total / super::keys::SERVICES) as u32;
        let mut times = [const { Vec::new() }; 3];
        for round in 0..rounds {
            let seed = |service: usize| setup.seed + round + service as u64;
            let runs: [&dyn Fn() -> Result<()>; 3] = [
                &|| {
                    let fresh = |service| OthelloMap::new(BITS, 0, seed(service));
                    fill(each, fresh, |map, flow, n| map.insert(flow, n).map(drop))
                },
                &|| {
                    let fresh = |service| DigestCuckoo::<4>::new(each as usize, seed(service));
                    fill(each, fresh, |table, flow, n| table.insert(&flow, n & 0xff).map(drop))
                },
                &|| {
                    let fresh = |service| MultiDigest::new(each as usize, seed(service));
                    fill(each, fresh, |table, flow, n| table.insert(&flow, n & 0xff).map(drop))
                },
            ];
            for (times, run) in times.iter_mut().zip(runs) {
                let (done, ms) = timed(run);
                done?;
                times.push(ms / 1e3);
            }
        }
        for (series, times) in series.iter_mut().zip(times) {
            series.points.push(median(total as f64, times));
        }
    }
    let measured = Measured { series: series.into(), facts: Vec::new() };
    let mut facts = Vec::new();
    if let Some((ratio, ..)) = measured.ratio(0, ORIGINAL, DIGEST) {
        facts.push(format!(
            "Concury takes {} times as long as the hash table with digest.",
            short(ratio)
        ));
    }
    if let Some(last) = measured.series[0].points.last() {
        facts.push(format!(
            "{} M states per second at {}.",
            short(last.x / last.y / 1e6),
            short(last.x)
        ));
    }
    Ok(Measured { facts, ..measured })
}

/// Fills the tables of all services with so many states each.
fn fill<T>(
    each: u32,
    fresh: impl Fn(usize) -> T,
    put: impl Fn(&mut T, StateKey, u16) -> Result<(), weir_lookup::Error>,
) -> Result<()> {
    let mut tables: Vec<T> = (0..super::keys::SERVICES).map(fresh).collect();
    // States come to all services in turn, as they do on a wire.
    for n in 0..each {
        for table in &mut tables {
            put(table, flow(n), n as u16)?;
        }
    }
    std::hint::black_box(&tables);
    Ok(())
}
