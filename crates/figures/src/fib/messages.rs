//! Update messages: their lengths by kind (Figs 3.22, 3.23; format of Fig 3.1), and how many a data
//! plane applies (Figs 3.24, 3.25).

use super::world::{NODE, filled, host, isp, overlay};
use super::{BFW, CFW, GATEWAY, LUDO, OFW, add, at, quote};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::short;
use std::sync::Arc;
use weir_fib::{
    Bfw, Cfw, ContentName, Control, FibKey, Gateway, LudoFib, Mac, Network, Ofw, Plane,
};

const KINDS: &[&str] = &["add", "change", "delete"];

const fn chart(title: &'static str, label: &'static str, scale: Scale) -> Chart {
    let x = Axis { label: "kind", scale: Scale::Names(KINDS) };
    Chart { title, x, y: Axis { label, scale } }
}

/// Longer messages hold a whole data plane, which was built anew; they are counted apart.
const WHOLE: usize = 16 << 10;

/// Messages of one kind that are timed together.
const BLOCK: usize = 500;

const FORMAT: &str = "dissertation, section 3.7.2: all of BFW’s messages hold the key";

pub static FIG_3_22: Figure = Figure {
    id: "fib-fig3.22",
    title: "Length of update messages by kind",
    paper: "dissertation, Figs 3.22 and 3.23",
    measures: "Mean bytes of the messages to one node without their envelope (32 bytes: what \
        it is, length, whom it is for, its number, a digest): fields as in Fig 3.1, packed bit by bit. L2: MAC \
        addresses, OFW without fingerprint, CFW with digests of 13 bits. L7: names of 45 bytes, 8 \
        bits both. A tenth of the keys of each kind, at 200K keys (20K in smoke, 4M in full size); \
        bars show the median and what 1 in 100 exceeds.",
    charts: &[
        chart("L2, MAC addresses", "bytes", Scale::Linear),
        chart("L7, names of 45 bytes", "bytes", Scale::Linear),
    ],
    quotes: &[
        quote(0, "the key itself", BFW, Says::AtLeast, &[(0.0, 6.0), (2.0, 6.0)], FORMAT),
        quote(1, "the key itself", BFW, Says::AtLeast, &[(0.0, 45.0), (2.0, 45.0)], FORMAT),
    ],
    note: "the text gives no lengths: it says which fields there are, that CFW’s and OFW’s lengths \
        differ little between the networks while BFW’s do, that OFW’s deletions are much shorter, \
        and that OFW’s changes are longer than CFW’s.",
    why: "CFW’s additions name a cuckoo path, or hold a whole key if it goes to level 2; OFW’s \
        additions and changes name the cells of the smaller side of a tree, where the dissertation \
        sends those of the whole component, with the value of the xor. weir’s OFW names the two \
        cells of the key instead of the xor (docs/fib.md), which makes deletions as long as that. \
        Ludo’s have whole bytes, and are the same for all nodes.",
    times: ["1 s", "3 s", "1 min"],
    run: lengths,
};

const APPLIED: &str = "M messages per second";
const TEN: &[(f64, f64)] = &[(0.0, 10.0), (2.0, 10.0)];
const RATE: &str = "dissertation, section 3.7.4: > 10M updates per second";

pub static FIG_3_24: Figure = Figure {
    id: "fib-fig3.24",
    title: "Update rate of a data plane, and of the control plane, by kind",
    paper: "dissertation, Figs 3.24 and 3.25",
    measures: "The messages of fib-fig3.22, read and applied at one data plane by one thread, and \
        how many changes the control plane makes and writes messages of for that node. Envelope \
        and digest are checked, and every field before anything is changed. Medians and quartiles \
        of blocks of 500.",
    charts: &[
        chart("Data plane, L2", APPLIED, Scale::Log),
        chart("Data plane, L7", APPLIED, Scale::Log),
        chart("Control plane, L2", "M changes per second", Scale::Log),
        chart("Control plane, L7", "M changes per second", Scale::Log),
    ],
    quotes: &[
        quote(0, "CFW", CFW, Says::AtLeast, TEN, RATE),
        quote(0, "OFW", OFW, Says::AtLeast, TEN, RATE),
        quote(1, "CFW", CFW, Says::AtLeast, TEN, RATE),
        quote(1, "OFW", OFW, Says::AtLeast, TEN, RATE),
    ],
    note: "the text gives more than 10M updates per second for CFW and OFW, and that CFW is more \
        than 10 times as fast as others in changes; which kinds the 10M are is not said.",
    why: "Our messages are byte strings with a digest over all of them, as they come from a \
        network; the dissertation’s are records in memory. Digest and checks take a good part of \
        the time, the rest is reads and writes at random places. A data plane does not search: the \
        control plane does, which is why the control plane’s rate is the lower one and is the same \
        for all nodes together.",
    times: ["1 s", "3 s", "1 min"],
    run: rates,
};

/// What changes of one kind led to.
#[derive(Default)]
struct Kind {
    /// Bytes of the messages, with envelope.
    messages: Vec<Vec<u8>>,
    /// Changes that did not concern the node.
    unsent: usize,
    /// Milliseconds of the control plane for each block.
    control_ms: Vec<f64>,
    /// Milliseconds of the data plane for each block.
    plane_ms: Vec<f64>,
}

/// Adds, moves and removes a tenth of the keys each; every message is applied.
fn changes<K: FibKey, C: Control<K>>(control: C, count: usize) -> Result<[Kind; 3]> {
    let mut control = filled(control, count)?;
    let mut plane = control.build(NODE);
    let few = (count / 10) as u64;
    let mut kinds: [Kind; 3] = Default::default();
    for (which, kind) in kinds.iter_mut().enumerate() {
        let mut n = 0;
        while n < few {
            let block = n..few.min(n + BLOCK as u64);
            n = block.end;
            let size = (block.end - block.start) as f64;
            let (made, ms) = timed(|| -> Result<Vec<Option<Vec<u8>>>> {
                block
                    .map(|n| {
                        one(&mut control, which, n, count as u64)?;
                        Ok(control.message(NODE))
                    })
                    .collect()
            });
            let made = made?;
            kind.control_ms.push(ms / size);
            kind.unsent += made.iter().filter(|message| message.is_none()).count();
            let made: Vec<Vec<u8>> = made.into_iter().flatten().collect();
            let (applied, ms) = timed(|| made.iter().try_for_each(|message| plane.apply(message)));
            applied?;
            if !made.is_empty() {
                kind.plane_ms.push(ms / made.len() as f64);
            }
            kind.messages.extend(made);
        }
    }
    Ok(kinds)
}

/// One change of a kind: a new key comes, one that is there moves, one that is there goes.
fn one<K: FibKey, C: Control<K>>(control: &mut C, kind: usize, n: u64, count: u64) -> Result<()> {
    let there = n * 7 % count;
    match kind {
        0 => {
            let host = host(control.network(), count + n);
            control.insert(K::numbered(0, count + n), host)?;
        }
        1 => {
            let host = host(control.network(), there ^ 0x5555_5555);
            control.insert(K::numbered(0, there), host)?;
        }
        _ => drop(control.remove(&K::numbered(0, there))),
    }
    Ok(())
}

/// All forwarders of a network. `widths`: bits of OFW's fingerprint and of CFW's digest.
fn all<K: FibKey>(
    setup: &Setup<'_>,
    network: &Arc<Network>,
    widths: [u32; 2],
) -> Result<Vec<(&'static str, [Kind; 3])>> {
    let count = setup.size.pick(20_000, 200_000, 4_000_000);
    let (room, seed) = (count + count / 10, setup.seed);
    let net = || Arc::clone(network);
    (setup.progress)(K::NAME);
    let ofw = changes::<K, _>(Ofw::new(net(), widths[0], room, seed), count)?;
    let cfw = changes::<K, _>(Cfw::new(net(), widths[1], room, seed), count)?;
    let ludo = changes::<K, _>(LudoFib::new(net(), room, seed)?, count)?;
    let bfw = changes::<K, _>(Bfw::new(net(), 16.0, room, seed), count)?;
    let gateway = changes::<K, _>(Gateway::new(net(), room, seed), count)?;
    Ok(vec![(OFW, ofw), (CFW, cfw), (LUDO, ludo), (BFW, bfw), (GATEWAY, gateway)])
}

fn lengths(setup: &Setup<'_>) -> Result<Measured> {
    let mut measured = Measured::default();
    let l2 = all::<Mac>(setup, &isp(setup), [0, 13])?;
    let l7 = all::<ContentName>(setup, &overlay(setup), [8, 8])?;
    for (chart, found) in [l2, l7].into_iter().enumerate() {
        for (name, kinds) in found {
            for (x, kind) in kinds.iter().enumerate() {
                add(&mut measured.series, chart, name, length(x as f64, kind));
            }
            let whole: usize = kinds.iter().map(|kind| wholes(kind).count()).sum();
            if whole > 0 {
                measured.facts.push(format!(
                    "{name}, {}: {whole} messages held a whole data plane and are not counted.",
                    if chart == 0 { "L2" } else { "L7" }
                ));
            }
        }
    }
    let at = |chart: usize, name: &str, kind: f64| measured.find(chart, name)?.at(kind);
    let mut facts = Vec::new();
    for (name, paper) in [(CFW, "little"), (OFW, "little"), (BFW, "with the key")] {
        if let (Some(l2), Some(l7)) = (at(0, name, 0.0), at(1, name, 0.0)) {
            facts.push(format!(
                "{name}: an addition has {} bytes in L2 and {} in L7 (paper: changes {paper}).",
                short(l2),
                short(l7)
            ));
        }
    }
    if let (Some(ofw), Some(cfw), Some(add), Some(gone)) =
        (at(0, OFW, 1.0), at(0, CFW, 1.0), at(0, OFW, 0.0), at(0, OFW, 2.0))
    {
        let verdict = |yes: bool| if yes { "as in the paper" } else { "unlike the paper" };
        facts.push(format!(
            "L2: OFW’s changes are {} than CFW’s ({} and {} bytes), {}; its deletions {} than its \
             additions ({} and {}), {}.",
            if ofw > cfw { "longer" } else { "not longer" },
            short(ofw),
            short(cfw),
            verdict(ofw > cfw),
            if gone < add { "shorter" } else { "not shorter" },
            short(gone),
            short(add),
            verdict(gone < add)
        ));
    }
    measured.facts.splice(0..0, facts);
    Ok(measured)
}

fn wholes(kind: &Kind) -> impl Iterator<Item = &Vec<u8>> {
    kind.messages.iter().filter(|message| message.len() >= WHOLE)
}

/// Mean, with the median and what 1 in 100 exceeds.
fn length(x: f64, kind: &Kind) -> Point {
    let short = kind.messages.iter().filter(|message| message.len() < WHOLE);
    let mut lengths: Vec<usize> = short.map(|message| message.len() - weir_fib::ENVELOPE).collect();
    lengths.sort_unstable();
    let count = lengths.len().max(1);
    let mean = lengths.iter().sum::<usize>() as f64 / count as f64;
    let quantile = |share: f64| {
        lengths.get(((count - 1) as f64 * share) as usize).map_or(mean, |&bytes| bytes as f64)
    };
    let spread = (quantile(0.5).min(mean), quantile(0.99).max(mean));
    Point { spread: Some(spread), ..at(x, mean) }
}

fn rates(setup: &Setup<'_>) -> Result<Measured> {
    let mut measured = Measured::default();
    let l2 = all::<Mac>(setup, &isp(setup), [0, 13])?;
    let l7 = all::<ContentName>(setup, &overlay(setup), [8, 8])?;
    for (chart, found) in [l2, l7].into_iter().enumerate() {
        for (name, kinds) in found {
            for (x, kind) in kinds.into_iter().enumerate() {
                note(&mut measured.series, (chart, name), x as f64, kind);
            }
        }
    }
    let of = |chart: usize, name: &str, kind: f64| measured.find(chart, name)?.at(kind);
    let mut facts = Vec::new();
    for (chart, network) in [(0, "L2"), (1, "L7")] {
        let others = [OFW, BFW].map(|name| of(chart, name, 1.0).unwrap_or(0.0));
        if let Some(cfw) = of(chart, CFW, 1.0) {
            facts.push(format!(
                "{network}: CFW applies {} M changes per second, {} times as many as OFW and {} \
                 times as many as BFW (paper: more than 10 times).",
                short(cfw),
                short(cfw / others[0]),
                short(cfw / others[1])
            ));
        }
        let least = [CFW, OFW].iter().flat_map(|name| (0..3).map(move |kind| (name, kind)));
        let least = least.filter_map(|(name, kind)| of(chart, name, f64::from(kind)));
        if let Some(least) = least.reduce(f64::min) {
            facts.push(format!(
                "{network}: the slowest kind of CFW and OFW makes {} M updates per second; below \
                 1M, which the paper expects in operation, {}.",
                short(least),
                if least < 1.0 { "it is" } else { "none is" }
            ));
        }
    }
    Ok(Measured { facts, ..measured })
}

/// M per second of the data plane and, two charts on, of the control plane.
fn note(series: &mut Vec<Series>, (chart, name): (usize, &str), x: f64, kind: Kind) {
    let per_s = |ms: Vec<f64>| ms.into_iter().map(|ms| 1e-3 / ms.max(1e-9)).collect::<Vec<f64>>();
    for (chart, ms) in [(chart, kind.plane_ms), (chart + 2, kind.control_ms)] {
        if !ms.is_empty() {
            add(series, chart, name, median(x, per_s(ms)));
        }
    }
}
