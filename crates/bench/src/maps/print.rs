//! Rows, as a table, as JSON and as comma-separated values.

use super::distributions::{Collision, Message, Seeds};
use super::updates::Updates;
use crate::{Spread, put};
use serde::Serialize;

/// One structure at one number of keys, bits and threads.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the structure.
    pub structure: &'static str,
    /// Number of keys in it.
    pub keys: usize,
    /// Bits of its values.
    pub value_bits: u32,
    /// Threads that look up.
    pub threads: usize,
    /// Whether alien keys are looked up.
    pub alien: bool,
    /// Exponent of the Zipf distribution; none if keys are uniform.
    pub zipf: Option<f64>,
    /// Millions per second of all threads, in bursts: median.
    pub mlookups_per_s: f64,
    /// Quartiles of that rate over the rounds.
    pub mlookups_spread: Spread,
    /// Of the bare reads.
    pub bound_mlookups_per_s: f64,
    /// Median of the rounds' ratios.
    pub ratio_to_bound: f64,
    /// One at a time.
    pub single_mlookups_per_s: f64,
    /// Quartiles of that rate over the rounds.
    pub single_mlookups_spread: Spread,
    /// Of the bare reads, one at a time.
    pub single_bound_mlookups_per_s: f64,
    /// Median of the rounds' ratios.
    pub single_ratio_to_bound: f64,
    /// Bytes that lookups may read.
    pub bytes: usize,
    /// The same per key, in bits.
    pub bits_per_key: f64,
    /// The maintainer's, where that is apart, the view included.
    pub control_bits_per_key: Option<f64>,
    /// Millions per second, as many of each kind, in batches if the structure takes batches.
    pub mupdates_per_s: Option<f64>,
    /// The same, one at a time.
    pub single_mupdates_per_s: Option<f64>,
    /// One at a time, by kind.
    pub updates: Option<Updates>,
    /// In batches, by kind.
    pub batched_updates: Option<Updates>,
    /// Seconds from the items to the full structure.
    pub build_s: f64,
    /// Valid keys with a wrong answer before the measurement.
    pub wrong_answers: usize,
    /// Share of alien keys that get an answer.
    pub alien_answered: f64,
    /// Readers beside a writer.
    pub beside_updates: Option<Beside>,
}

/// Readers beside a writer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Beside {
    /// Thousands of updates per second that were made.
    pub kupdates_per_s: f64,
    /// Millions of lookups per second meanwhile, in bursts.
    pub mlookups_per_s: f64,
    /// To the rate without updates of the same round.
    pub ratio_to_quiet: Spread,
    /// Wrong answers for keys that were not updated.
    pub wrong_answers: usize,
}

/// What the bench prints as JSON.
#[derive(Serialize)]
pub struct Report {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Keys of a burst.
    pub batch: usize,
    /// Lookups of each measurement.
    pub lookups: usize,
    /// Updates per second beside readers, as asked for.
    pub updates_per_s: f64,
    /// Structures that cannot have values of so many bits.
    pub skipped: Vec<String>,
    /// One row for each structure and numbers of keys, bits and threads.
    pub rows: Vec<Row>,
    /// Slot seeds of Ludo.
    pub seeds: Option<Seeds>,
    /// Keys that share an entry when digests are short.
    pub collisions: Vec<Collision>,
    /// Lengths of update messages, by structure and kind.
    pub messages: Vec<Message>,
}

fn optional(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// A block of rows for people.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let Some(first) = rows.first() else {
        return out;
    };
    let drawn = first.zipf.map_or("uniform".to_owned(), |skew| format!("Zipf {skew}"));
    put!(
        out,
        "{} keys, l = {}, {} thread(s), {} {drawn} keys; millions per second",
        first.keys,
        first.value_bits,
        first.threads,
        if first.alien { "alien" } else { "valid" },
    );
    put!(
        out,
        "{:15}{:>9}{:>8} {:>8}{:>16}{:>8}{:>6} {:>8}{:>8}{:>6} {:>7}{:>7}{:>7}{:>8}{:>9}{:>10}",
        "",
        "bits/key",
        "control",
        "bursts",
        "(quartiles)",
        "bound",
        "of it",
        "single",
        "bound",
        "of it",
        "insert",
        "change",
        "delete",
        "build s",
        "wrong",
        "alien"
    );
    for row in rows {
        let (spread, updates) = (row.mlookups_spread, row.updates);
        put!(
            out,
            "{:15}{:>9.2}{:>8} {:>8.1}{:>16}{:>8.1}{:>6.2} {:>8.1}{:>8.1}{:>6.2} \
             {:>7}{:>7}{:>7}{:>8.2}{:>9}{:>10.5}",
            row.structure,
            row.bits_per_key,
            optional(row.control_bits_per_key),
            row.mlookups_per_s,
            format!("({:.1}..{:.1})", spread.low, spread.high),
            row.bound_mlookups_per_s,
            row.ratio_to_bound,
            row.single_mlookups_per_s,
            row.single_bound_mlookups_per_s,
            row.single_ratio_to_bound,
            optional(updates.map(|updates| updates.insert.median)),
            optional(updates.and_then(|updates| updates.change).map(|change| change.median)),
            optional(updates.map(|updates| updates.delete.median)),
            row.build_s,
            row.wrong_answers,
            row.alien_answered,
        );
    }
    more(&mut out, rows);
    put!(out);
    out
}

/// What a few structures have besides.
fn more(out: &mut String, rows: &[Row]) {
    for row in rows {
        if let Some(Updates { insert, change, delete }) = row.batched_updates {
            put!(
                out,
                "{}: updates in batches: insert {:.2}, change {}, delete {:.2}",
                row.structure,
                insert.median,
                optional(change.map(|change| change.median)),
                delete.median,
            );
        }
        if let Some(beside) = row.beside_updates {
            put!(
                out,
                "{}: beside {:.0}K updates/s {:.1}, {:.2} ({:.2}..{:.2}) of the quiet rate, \
                 {} wrong",
                row.structure,
                beside.kupdates_per_s,
                beside.mlookups_per_s,
                beside.ratio_to_quiet.median,
                beside.ratio_to_quiet.low,
                beside.ratio_to_quiet.high,
                beside.wrong_answers,
            );
        }
    }
}

/// Seeds, collisions and messages for people.
pub fn distributions_table(report: &Report) -> String {
    let mut out = String::new();
    if let Some(Seeds { fills, overflow_by_bits: [three, four, five], table }) = &report.seeds {
        put!(out, "slot seeds: keys of a bucket, mean tries, share that 31 seeds serve");
        for fill in fills {
            let served = fill.cumulative.last().copied().unwrap_or(0.0);
            put!(out, "{:>4}{:>8.2}{:>9.4}", fill.keys, fill.mean_tries, served);
        }
        put!(out, "full buckets that overflow 3, 4, 5 bits: {three:.4} {four:.4} {five:.4}");
        put!(
            out,
            "a table of {} keys: buckets with 0..4 keys {:.4?}, overflow {:.6}, fallback {}\n",
            table.keys,
            table.fill,
            table.overflow,
            table.fallback
        );
    }
    if let Some(first) = report.collisions.first() {
        put!(out, "collisions, {} keys, l = 20: extra bits per key, % of keys", first.keys);
        put!(
            out,
            "{:15}{:>7}{:>8}{:>11}{:>9}{:>9}",
            "",
            "digest",
            "extra",
            "colliding",
            "wrong",
            "refused"
        );
        for row in &report.collisions {
            put!(
                out,
                "{:15}{:>7}{:>8.2}{:>11.4}{:>9.4}{:>9.4}",
                row.structure,
                row.digest_bits.map_or("-".to_owned(), |bits| bits.to_string()),
                row.extra_bits_per_key,
                row.colliding_percent,
                row.wrong_percent,
                row.refused_percent,
            );
        }
        put!(out);
    }
    if !report.messages.is_empty() {
        put!(out, "messages, bytes: mean, least, median, 99 %, most");
        for row in &report.messages {
            put!(
                out,
                "{:12}{:15}{:>8.1}{:>6}{:>6}{:>6}{:>6}",
                row.structure,
                row.kind,
                row.mean_bytes,
                row.least,
                row.median,
                row.p99,
                row.most
            );
        }
        put!(out);
    }
    out
}

/// All rows as comma-separated values. No field needs quotes.
pub fn csv(rows: &[Row]) -> String {
    let mut out = String::new();
    put!(
        out,
        "structure,keys,value_bits,threads,alien,zipf,mlookups_per_s,mlookups_low,mlookups_high,\
         bound_mlookups_per_s,ratio_to_bound,single_mlookups_per_s,single_bound_mlookups_per_s,\
         single_ratio_to_bound,bits_per_key,control_bits_per_key,mupdates_per_s,single_mupdates_per_s,\
         minserts_per_s,mchanges_per_s,mdeletes_per_s,build_s,wrong_answers,alien_answered,\
         beside_kupdates_per_s,beside_mlookups_per_s,beside_ratio_to_quiet"
    );
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in rows {
        let (updates, beside) = (row.updates, row.beside_updates);
        let fields = [
            row.structure.to_owned(),
            row.keys.to_string(),
            row.value_bits.to_string(),
            row.threads.to_string(),
            row.alien.to_string(),
            number(row.zipf),
            row.mlookups_per_s.to_string(),
            row.mlookups_spread.low.to_string(),
            row.mlookups_spread.high.to_string(),
            row.bound_mlookups_per_s.to_string(),
            row.ratio_to_bound.to_string(),
            row.single_mlookups_per_s.to_string(),
            row.single_bound_mlookups_per_s.to_string(),
            row.single_ratio_to_bound.to_string(),
            row.bits_per_key.to_string(),
            number(row.control_bits_per_key),
            number(row.mupdates_per_s),
            number(row.single_mupdates_per_s),
            number(updates.map(|updates| updates.insert.median)),
            number(updates.and_then(|updates| updates.change).map(|change| change.median)),
            number(updates.map(|updates| updates.delete.median)),
            row.build_s.to_string(),
            row.wrong_answers.to_string(),
            row.alien_answered.to_string(),
            number(beside.map(|beside| beside.kupdates_per_s)),
            number(beside.map(|beside| beside.mlookups_per_s)),
            number(beside.map(|beside| beside.ratio_to_quiet.median)),
        ];
        put!(out, "{}", fields.join(","));
    }
    out
}
