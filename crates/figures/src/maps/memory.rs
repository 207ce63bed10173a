//! Bytes of the allocations, by value length and by number of keys (Figs 1.2, 4.12 to 4.15).

use super::{CUCKOO, FUSE, LUDO, OTHELLO, PARTIAL, SETSEP, TABLE_1_1, add, line, quote};
use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Series, Setup};
use crate::number::short;
use weir_bench::maps::keys::key;
use weir_hash::{Key, Octets};
use weir_lookup::{Cuckoo, Fuse, Ludo, Othello, PartialCuckoo, SetSep};

/// Most bits of a value that Othello and fuse retrieval hold.
const NARROW: u32 = 32;

/// What is dynamic and compared by the dissertation; fuse retrieval is ours beside it.
const RIVALS: [&str; 4] = [OTHELLO, SETSEP, PARTIAL, CUCKOO];

const LENGTHS: [f64; 6] = [4.0, 8.0, 10.0, 20.0, 32.0, 40.0];

pub static FIG_4_12: Figure = Figure {
    id: "ludo-fig4.12",
    title: "Memory by length of the values",
    paper: "dissertation, Figs 1.2 and 4.12",
    measures: "Bits per key of the allocations that a lookup may read, in tables filled with keys \
        of 13 bytes (the paper: 100 bits) and digests of 30 bits. 250K keys (20K in smoke, 4M in \
        full size). Every key is in its table.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "l, bits of a value", scale: Scale::Linear },
        y: Axis { label: "bits per key", scale: Scale::Linear },
    }],
    quotes: &[
        quote(0, "3.76 + 1.05 l", LUDO, Says::Value, &line(3.76, 1.05, LENGTHS), TABLE_1_1),
        quote(
            0,
            "2.33 l",
            OTHELLO,
            Says::Value,
            &line(0.0, 2.33, [4.0, 8.0, 10.0, 20.0, 32.0]),
            TABLE_1_1,
        ),
        quote(0, "0.5 + 1.5 l", SETSEP, Says::Value, &line(0.5, 1.5, LENGTHS), TABLE_1_1),
        quote(0, "1.05 (30 + l)", PARTIAL, Says::Value, &line(31.5, 1.05, LENGTHS), TABLE_1_1),
        quote(
            0,
            "1.05 (100 + l)",
            CUCKOO,
            Says::Value,
            &line(105.0, 1.05, LENGTHS),
            "dissertation, section 4.2: (2,4)-cuckoo at 95 % load",
        ),
    ],
    note: "the equations of Table 1.1, which Fig 1.2 draws, with L = 100 and L' = 30; the values \
        of Fig 4.12, for 1 billion keys, are not in the text.",
    why: "Memory per key does not depend on the number of keys, so these stand for a billion. \
        Othello and Ludo are within a percent or two of their equations. SetSep is above its own: \
        its groups hold 14.5 keys and not 16, because with 16 one key in 12 falls into a group \
        without a seed (docs/cuckoo.md), and such keys stand in a list of whole entries. The \
        cuckoo table has keys of 104 bits and one bit per slot that says whether it is in use.",
    times: ["1 s", "5 s", "2 min"],
    run: by_length,
};

fn by_length(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(20_000, 250_000, 4_000_000);
    let keys: Vec<Octets<13>> = octets(count);
    let mut series = Vec::new();
    let mut parts = (0.0, 0.0);
    for l in [1, 2, 3, 4, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40] {
        (setup.progress)(&format!("l = {l}"));
        let (bytes, locator) = bytes(&keys, l, 30, setup.seed)?;
        for (name, bytes) in bytes {
            let y = bytes as f64 * 8.0 / count as f64;
            add(&mut series, 0, name, Point { x: l.into(), y, spread: None });
            if (l, name) == (20, LUDO) {
                parts = (y, locator as f64 * 8.0 / count as f64);
            }
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let mut facts = vec![shares(&measured)];
    facts.extend([OTHELLO, SETSEP].map(|name| least(&measured, name)));
    facts.push(format!(
        "At l = 20 Ludo’s {:.2} bits are {:.2} for the locator, {:.2} for values and free slots, \
         {:.2} for seeds and the rest (paper: 2.33, 21.0, 1.31 and 0.12).",
        parts.0,
        parts.1,
        20.0 / weir_lookup::LUDO_LOAD,
        parts.0 - parts.1 - 20.0 / weir_lookup::LUDO_LOAD
    ));
    Ok(Measured { facts, ..measured })
}

/// From which length on Ludo has fewer bits than another.
fn least(measured: &Measured, other: &str) -> String {
    let (Some(ludo), Some(rival)) = (measured.find(0, LUDO), measured.find(0, other)) else {
        return String::new();
    };
    let more = |p: &&Point| rival.at(p.x).is_some_and(|y| y < p.y);
    let paper = if other == OTHELLO { "l > 3" } else { "l > 7" };
    match ludo.points.iter().rfind(more) {
        Some(last) => format!(
            "Ludo needs fewer bits than {other} at every measured l > {} (paper: {paper}).",
            last.x
        ),
        None => format!("Ludo needs fewer bits than {other} at every l (paper: {paper})."),
    }
}

/// What Ludo saves at l = 20.
fn shares(measured: &Measured) -> String {
    let at = |name| measured.find(0, name).and_then(|series| series.at(20.0));
    let Some(ludo) = at(LUDO) else { return String::new() };
    let saved =
        |name| at(name).map(|bits| format!("{:.0} % of {name}", 100.0 * (1.0 - ludo / bits)));
    let all: Vec<String> = RIVALS.into_iter().filter_map(saved).collect();
    format!("At l = 20 Ludo saves {} (paper: 40 to over 80 %).", all.join(", "))
}

const fn use_of(title: &'static str) -> Chart {
    Chart {
        title,
        x: Axis { label: "keys", scale: Scale::Log },
        y: Axis { label: "MB", scale: Scale::Log },
    }
}

pub static FIG_4_13: Figure = Figure {
    id: "ludo-fig4.13",
    title: "Memory by number of keys, in three uses",
    paper: "dissertation, Figs 4.13 to 4.15",
    measures: "Bytes of the allocations that a lookup may read, MB of a million bytes. Contents: l \
        = 20, keys of 63 bytes, digests of 32 bits (the paper: 60). Forwarding: l = 8, keys of 6 \
        bytes, digests of 30. Storage: l = 40, keys of 25 bytes, digests of 32 (60), without the \
        structures that hold 32 bits at most.",
    charts: &[use_of("Contents"), use_of("Forwarding"), use_of("Storage")],
    quotes: &[
        quote(
            0,
            "Ludo",
            LUDO,
            Says::Value,
            &[(1e9, 3300.0)],
            "dissertation, section 4.6.2: 3.3 GB",
        ),
        quote(1, "Ludo", LUDO, Says::Value, &[(32e6, 50.5)], "dissertation, section 4.6.2"),
        quote(
            2,
            "Ludo",
            LUDO,
            Says::Value,
            &[(1e9, 6100.0)],
            "dissertation, section 4.6.2: 6.1 GB",
        ),
    ],
    note: "the text gives Ludo’s memory at one size for each use, that other designs need at least \
        6.3 GB for the contents and more than 12 GB for the storage.",
    why: "A billion keys do not fit into this machine’s memory together with the maintainers that \
        build the tables; memory is proportional to the number of keys, and the sentences say what \
        a billion would take. The text’s bounds for other designs contradict its own equations: \
        0.5 + 1.5 l is 3.8 GB for SetSep and 2.33 l is 5.8 GB for Othello at l = 20, not 6.3.",
    times: ["1 s", "10 s", "5 min"],
    run: by_keys,
};

fn by_keys(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[100_000, 1_000_000],
        &[100_000, 1_000_000, 4_000_000, 16_000_000],
    );
    let mut series = Vec::new();
    for &count in sizes {
        let seed = setup.seed;
        (setup.progress)(&format!("{} keys", short(count as f64)));
        let contents = bytes(&octets::<63>(count), 20, 32, seed)?.0;
        let forwarding = bytes(&octets::<6>(count), 8, 30, seed)?.0;
        let storage = bytes(&octets::<25>(count), 40, 32, seed)?.0;
        for (chart, found) in [contents, forwarding, storage].into_iter().enumerate() {
            for (name, bytes) in found {
                let point = Point { x: count as f64, y: bytes as f64 / 1e6, spread: None };
                add(&mut series, chart, name, point);
            }
        }
    }
    if matches!(setup.size, crate::Size::Full) {
        (setup.progress)("32M addresses");
        for (name, bytes) in bytes(&octets::<6>(32_000_000), 8, 30, setup.seed)?.0 {
            add(&mut series, 1, name, Point { x: 32e6, y: bytes as f64 / 1e6, spread: None });
        }
    }
    let facts = (0..3).filter_map(|chart| said(&series, chart)).collect();
    Ok(Measured { series, facts })
}

/// Memory of as many keys as in the text, in proportion, and who comes next.
fn said(series: &[Series], chart: usize) -> Option<String> {
    const USES: [(&str, f64, &str); 3] =
        [("Contents", 1e9, "3.3 GB"), ("Forwarding", 32e6, "50.5 MB"), ("Storage", 1e9, "6.1 GB")];
    let (title, keys, paper) = USES[chart];
    let last = |name| series.iter().find(|s| s.chart == chart && s.name == name)?.points.last();
    let ludo = last(LUDO)?;
    let rivals = RIVALS.into_iter().filter_map(|name| Some((name, last(name)?.y)));
    let (next, most) = rivals.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let whole = short(ludo.y / ludo.x * keys * 1e6);
    Some(format!(
        "{title}: {} keys take {whole}B with Ludo (paper: {paper}); the next, {next}, takes {:.2} \
         times as much.",
        short(keys),
        most / ludo.y
    ))
}

/// `count` different keys of N bytes.
fn octets<const N: usize>(count: usize) -> Vec<Octets<N>> {
    let one = |n: u64| {
        let mut bytes = [0; N];
        for (at, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = key(n.wrapping_mul(64) + at as u64).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        // A bijection of 48-bit numbers: no two keys are equal.
        let number = n.wrapping_mul(0x9e37_79b9_7f4b).to_le_bytes();
        bytes[..6].copy_from_slice(&number[..6]);
        Octets(bytes)
    };
    (0..count as u64).map(one).collect()
}

/// Bytes by structure.
type Bytes = Vec<(&'static str, usize)>;

/// Bytes by structure, and those of Ludo's bucket locator.
fn bytes<K: Key>(keys: &[K], l: u32, digest: u32, seed: u64) -> Result<(Bytes, usize)> {
    let value = |n: usize| n as u64 & (u64::MAX >> (64 - l));
    let items: Vec<(K, u64)> = keys.iter().enumerate().map(|(n, &key)| (key, value(n))).collect();
    let ludo = Ludo::build(l, &items, seed)?.view().clone();
    let mut found = vec![(LUDO, ludo.bytes())];
    if l <= NARROW {
        let mut othello = Othello::new(l, keys.len(), seed);
        for &(key, value) in &items {
            othello.insert(key, value as u32)?;
        }
        found.push((OTHELLO, othello.view().bytes()));
        let fuse = Fuse::build(l, keys, |n| value(n) as u32, seed)?;
        found.push((FUSE, fuse.bytes()));
    }
    found.push((SETSEP, SetSep::build(l, &items, seed).bytes()));
    let mut partial = PartialCuckoo::new(digest, l, keys.len(), seed);
    let mut cuckoo = Cuckoo::new(l, keys.len(), seed);
    for (key, value) in items {
        partial.insert(&key, value)?;
        cuckoo.insert(key, value);
    }
    ensure!(cuckoo.len() == keys.len(), "{} keys of {}", cuckoo.len(), keys.len());
    found.extend([(PARTIAL, partial.bytes()), (CUCKOO, cuckoo.bytes())]);
    Ok((found, ludo.locator_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Size;

    #[test]
    fn keys_of_any_width_differ() {
        let keys: std::collections::HashSet<_> = octets::<6>(100_000).into_iter().collect();
        assert_eq!(keys.len(), 100_000);
    }

    /// The rows of the figure are bytes of tables: those of one built here, from the same keys.
    #[test]
    fn memory_is_that_of_the_allocations() {
        let setup =
            Setup { size: Size::Smoke, seed: 3, program: "weir".as_ref(), progress: &|_| {} };
        let measured = by_length(&setup).expect("a run");
        let keys: Vec<Octets<13>> = octets(20_000);
        let items: Vec<_> = keys.iter().map(|&key| (key, 1)).collect();
        let ludo = Ludo::build(20, &items, 3).expect("a table").view().clone().bytes();
        let shown = measured.find(0, LUDO).and_then(|s| s.at(20.0)).expect("a row");
        assert_eq!(shown, ludo as f64 * 8.0 / 20_000.0);
        // 20,000 keys leave some percent of rounding up to whole pages.
        assert!((24.5..27.0).contains(&shown), "{shown}");
    }
}
