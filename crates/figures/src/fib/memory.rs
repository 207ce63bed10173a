//! Memory of a data plane (Figs 3.6, 3.7, 3.20).

use super::world::{NODE, Table, filled, mesh, passed, wrong};
use super::{BFW, CFW, GATEWAY, LUDO, OFW, add, add_ratio, at, quote};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Says, Scale, Setup};
use crate::number::{ratio, short};
use std::sync::Arc;
use weir_fib::{Bfw, Cfw, Control, Gateway, Ipv6, LudoFib, Mac, Network, Ofw, Plane};

const BITS: &str = "bits per key";

const fn chart(title: &'static str, x: Axis, label: &'static str) -> Chart {
    Chart { title, x, y: Axis { label, scale: Scale::Linear } }
}

fn per_key(bytes: usize, count: usize) -> f64 {
    bytes as f64 * 8.0 / count as f64
}

const PORTS: Axis = Axis { label: "ports of the node", scale: Scale::Log };

const OFW_CFW: &str = "OFW over CFW";
const OFW_BFW: &str = "OFW over BFW";
const SHARE: &[(f64, f64)] = &[(8.0, 0.2), (256.0, 0.2)];
const MOST: &[(f64, f64)] = &[(8.0, 0.6), (256.0, 0.6)];
const LEAST_MEMORY: &str = "dissertation, section 3.5.4: OFW around 20 to 60 % of the other two";

pub static FIG_3_6: Figure = Figure {
    id: "fib-fig3.6",
    title: "Memory behind gateways by number of ports",
    paper: "dissertation, Fig 3.6",
    measures: "Bits per key of the allocations of a data plane, IPv6 addresses, 200K keys (20K in \
        smoke, 10M in full size). OFW without fingerprint; CFW with the digest that makes it \
        smallest; BFW with as few bits as misdirect at most 1 in 1,000 valid keys, found by \
        trying, without the counting filters.",
    charts: &[chart("Memory", PORTS, BITS), chart("OFW’s over others’", PORTS, "ratio")],
    quotes: &[
        quote(1, "at least 20 % of CFW’s", OFW_CFW, Says::AtLeast, SHARE, LEAST_MEMORY),
        quote(1, "at most 60 % of CFW’s", OFW_CFW, Says::AtMost, MOST, LEAST_MEMORY),
        quote(1, "at least 20 % of BFW’s", OFW_BFW, Says::AtLeast, SHARE, LEAST_MEMORY),
        quote(1, "at most 60 % of BFW’s", OFW_BFW, Says::AtMost, MOST, LEAST_MEMORY),
    ],
    note: "the figure is computed from equations for 10M keys; the text gives the range of the \
        ratios only.",
    why: "The range does not follow from the paper’s own equations: with 256 ports 2.33 lp is 18.6 \
        bits and 1.05 (10 + lp), for digests of 10 bits, 18.9. Our OFW keeps the emptiness bit \
        also without a fingerprint, another 2.33 bits per key. Memory per key does not depend on \
        the number of keys, but filters are made with room for a quarter more keys than they hold. \
        With their counting filters, which data planes keep for updates, BFW takes five times as \
        much. Ludo’s values are hosts, of which there are as many as nodes here.",
    times: ["1 s", "15 s", "8 min"],
    run: with_gateways,
};

fn with_gateways(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(20_000, 200_000, 10_000_000);
    let all = [8, 16, 32, 64, 128, 256];
    let ports = setup.size.pick(&[8, 64, 256][..], &all, &all);
    let mut measured = Measured::default();
    let digest = smallest_digest(setup, count)?;
    let mut facts = vec![format!(
        "CFW is smallest with digests of {digest} bits, for keys of 128 bits (level 1 grows with a \
         digest, level 2 shrinks)."
    )];
    for &ports in ports {
        (setup.progress)(&format!("{ports} ports"));
        let network = mesh(ports);
        let net = || Arc::clone(&network);
        let seed = setup.seed;
        let ofw = filled(Ofw::<Ipv6>::new(net(), 0, count, seed), count)?.build(NODE);
        let cfw = filled(Cfw::<Ipv6>::new(net(), digest, count, seed), count)?.build(NODE);
        let ludo = filled::<Ipv6, _>(LudoFib::new(net(), count, seed)?, count)?.build(NODE);
        let (bits, bfw, misdirected) = smallest_filters(&network, count, seed)?;
        let sizes = [
            (OFW, Plane::<Ipv6>::bytes(&ofw)),
            (CFW, cfw.bytes()),
            (LUDO, Plane::<Ipv6>::bytes(&ludo)),
            (BFW, bfw),
        ];
        for (name, bytes) in sizes {
            add(&mut measured.series, 0, name, at(ports as f64, per_key(bytes, count)));
        }
        facts.push(format!(
            "{ports} ports: BFW needs filters of {bits} bits per key for {} % of misdirected keys.",
            short(100.0 * misdirected)
        ));
    }
    for other in [CFW, BFW, LUDO] {
        add_ratio(&mut measured, 1, 0, OFW, other);
    }
    let least = |p: &&crate::figure::Point| {
        [CFW, BFW].iter().all(|name| {
            measured.find(0, name).and_then(|s| s.at(p.x)).is_some_and(|other| p.y < other)
        })
    };
    if let Some(ofw) = measured.find(0, OFW) {
        let count = ofw.points.iter().filter(least).count();
        facts.insert(
            0,
            format!(
                "OFW has less memory than CFW and BFW at {count} of {} numbers of ports (paper: at \
                 all of them).",
                ofw.points.len()
            ),
        );
    }
    Ok(Measured { facts, ..measured })
}

/// The digest with which a CFW is smallest. The port's width plays no part in which that is.
fn smallest_digest(setup: &Setup<'_>, count: usize) -> Result<u32> {
    let count = count.min(1_000_000);
    let network = mesh(32);
    let mut best = (usize::MAX, 0);
    for digest in [8, 9, 10, 11, 12, 13, 14] {
        (setup.progress)(&format!("CFW with digests of {digest} bits"));
        let control = Cfw::<Ipv6>::new(Arc::clone(&network), digest, count, setup.seed);
        best = best.min((filled(control, count)?.build(NODE).bytes(), digest));
    }
    Ok(best.1)
}

/// The fewest bits per key with which a BFW misdirects at most one valid key in a thousand: bits,
/// bytes, share misdirected.
fn smallest_filters(network: &Arc<Network>, count: usize, seed: u64) -> Result<(u32, usize, f64)> {
    let made = |bits: u32| -> Result<(usize, f64)> {
        let control = Bfw::<Ipv6>::new(Arc::clone(network), bits.into(), count, seed);
        let plane = filled(control, count)?.build(NODE);
        Ok((plane.size(), wrong(&plane, network, count)))
    };
    let (mut low, mut high) = (6, 32);
    while low < high {
        let middle = (low + high) / 2;
        if made(middle)?.1 <= 1e-3 { high = middle } else { low = middle + 1 }
    }
    let (bytes, misdirected) = made(high)?;
    Ok((high, bytes, misdirected))
}

const TARGETS: [f64; 7] = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3, 1e-2];
const RATE: Axis = Axis { label: "share of alien keys that may get a port", scale: Scale::Log };
const CFW_OTHERS: &str = "CFW over the least of the others";

pub static FIG_3_7: Figure = Figure {
    id: "fib-fig3.7",
    title: "Memory without gateways by target of false positives",
    paper: "dissertation, Fig 3.7",
    measures: "The smallest data plane, of all widths of fingerprints, digests and filters, that \
        lets no more than the target of alien keys pass, by counting (1M aliens, 100K in smoke \
        size). 32 ports, IPv6 addresses, 200K keys (20K in smoke, 4M in full size). BFW without \
        its counting filters.",
    charts: &[chart("Memory", RATE, BITS), chart("CFW’s over others’", RATE, "ratio")],
    quotes: &[quote(
        1,
        "CFW least below 0.4 %",
        CFW_OTHERS,
        Says::AtMost,
        &[(1e-4, 1.0), (3.9e-3, 1.0)],
        "dissertation, section 3.5.4: the least memory when false positive < 0.4 %",
    )],
    note: "the figure is computed from equations for 10M keys; the text says where CFW is the \
        smallest.",
    why: "A bit of a digest halves the false positives and costs CFW 1.05 bits, a bit of a \
        fingerprint costs OFW 2.33, one of BFW’s hashes 1.44; but CFW has 8 places to meet a \
        digest and some whole keys in level 2, while OFW’s emptiness bit already finds two aliens \
        in three. BFW must split its target among its ports. Filters are made with room for a \
        quarter more keys than they hold, which moves BFW up in memory and down in false \
        positives.",
    times: ["2 s", "10 s", "4 min"],
    run: without_gateways,
};

fn without_gateways(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(20_000, 200_000, 4_000_000);
    let aliens = setup.size.pick(100_000, 1_000_000, 2_000_000);
    let network = mesh(32);
    let net = || Arc::clone(&network);
    let seed = setup.seed;
    let mut found: Vec<(&str, f64, f64)> = Vec::new();
    let mut note = |name, plane: &dyn Table<Ipv6>| {
        (setup.progress)(name);
        found.push((name, passed(plane, aliens), per_key(plane.size(), count)));
    };
    for bits in 2..=13 {
        note(OFW, &filled(Ofw::<Ipv6>::new(net(), bits, count, seed), count)?.build(NODE));
    }
    for bits in 8..=17 {
        note(CFW, &filled(Cfw::<Ipv6>::new(net(), bits, count, seed), count)?.build(NODE));
    }
    for bits in 10..=24 {
        let control = Bfw::<Ipv6>::new(net(), bits.into(), count, seed);
        note(BFW, &filled(control, count)?.build(NODE));
    }
    let mut measured = Measured::default();
    for target in TARGETS {
        let least = |names: &[&str]| {
            let meeting = found.iter().filter(|f| names.contains(&f.0) && f.1 <= target);
            meeting.map(|f| f.2).reduce(f64::min)
        };
        for name in [OFW, CFW, BFW] {
            if let Some(bits) = least(&[name]) {
                add(&mut measured.series, 0, name, at(target, bits));
            }
        }
        if let (Some(cfw), Some(others)) = (least(&[CFW]), least(&[OFW, BFW])) {
            add(&mut measured.series, 1, CFW_OTHERS, at(target, cfw / others));
        }
    }
    let smaller = |p: &&crate::figure::Point| p.y < 1.0;
    if let Some(series) = measured.find(1, CFW_OTHERS) {
        let all: Vec<String> = series
            .points
            .iter()
            .filter(smaller)
            .map(|p| format!("{} %", short(100.0 * p.x)))
            .collect();
        measured.facts.push(match all.is_empty() {
            true => {
                "CFW is at no target the smallest (paper: at all targets below 0.4 %).".to_owned()
            }
            false => format!(
                "CFW is the smallest at targets of {} (paper: at all targets below 0.4 %).",
                all.join(", ")
            ),
        });
    }
    if let Some((ofw, ..)) = measured.ratio(0, OFW, CFW) {
        measured.facts.push(format!(
            "OFW takes {} times CFW’s memory, median of the targets: without gateways it “needs \
             much more memory”, as the paper says.",
            ratio(ofw)
        ));
    }
    Ok(measured)
}

const CUCKOO_CFW: &str = "whole keys over CFW";
const KEYS: Axis = Axis { label: "keys", scale: Scale::Log };

pub static FIG_3_20: Figure = Figure {
    id: "fib-fig3.20",
    title: "Memory of CFW against whole keys (CuckooSwitch)",
    paper: "dissertation, Fig 3.20",
    measures: "Bits per key of the allocations, MAC addresses as 64-bit keys, ports of 8 bits, \
        digests of 13 bits, with which the share of 500K aliens that get a port is at most 1 in \
        1,000, by counting. The gateway’s cuckoo table has values of 16 bits.",
    charts: &[chart("Memory", KEYS, BITS), chart("Ratio", KEYS, "ratio")],
    quotes: &[quote(
        1,
        "more than 3",
        CUCKOO_CFW,
        Says::AtLeast,
        &[(1e4, 3.0), (64e6, 3.0)],
        "dissertation, section 3.7.2: CFW saves > 3x memory",
    )],
    note: "the text gives the ratio and the two lengths.",
    why: "1.05 (64 + 16 + 1) against 1.05 (13 + 8) bits and some keys of level 2.",
    times: ["1 s", "3 s", "1 min"],
    run: whole_keys,
};

fn whole_keys(setup: &Setup<'_>) -> Result<Measured> {
    const DIGEST: u32 = 13;
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[64_000, 256_000, 1_000_000],
        &[64_000, 1_000_000, 4_000_000, 16_000_000],
    );
    let network = mesh(256);
    let net = || Arc::clone(&network);
    let mut measured = Measured::default();
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        let mut cfw = filled(Cfw::<Mac>::new(net(), DIGEST, count, setup.seed), count)?;
        let mut whole = filled(Gateway::<Mac>::new(net(), count, setup.seed), count)?;
        let (x, level2) = (count as f64, cfw.level2_len());
        let (cfw, whole) = (cfw.build(NODE), whole.build(NODE));
        let (small, large) = (per_key(cfw.bytes(), count), per_key(whole.bytes(), count));
        add(&mut measured.series, 0, CFW, at(x, small));
        add(&mut measured.series, 0, GATEWAY, at(x, large));
        add(&mut measured.series, 1, CUCKOO_CFW, at(x, large / small));
        let share = passed::<Mac>(&cfw, 500_000);
        measured.facts.push(format!(
            "{} keys: {} in level 2, {} % of the aliens get a port with CFW.",
            short(x),
            level2,
            short(100.0 * share)
        ));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Size;

    /// The figure's memory is the planes' own, and meets the target that it stands at.
    #[test]
    fn memory_is_of_planes_that_meet_their_target() {
        let setup =
            Setup { size: Size::Smoke, seed: 5, program: "weir".as_ref(), progress: &|_| {} };
        let measured = without_gateways(&setup).expect("a run");
        let (count, network) = (20_000, mesh(32));
        let ofw = Ofw::<Ipv6>::new(network, 9, count, setup.seed);
        let plane = filled(ofw, count).expect("room").build(NODE);
        let bits = per_key(Plane::<Ipv6>::bytes(&plane), count);
        // 0.33 / 2^9 is below one in a thousand, 0.33 / 2^8 is not.
        assert!(passed::<Ipv6>(&plane, 1_000_000) <= 1e-3);
        let shown = measured.find(0, OFW).and_then(|s| s.at(1e-3));
        assert_eq!(shown, Some(bits));
    }
}
