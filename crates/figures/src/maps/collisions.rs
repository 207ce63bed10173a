//! Short digests: what memory buys against collisions (Fig 4.30).

use super::{LUDO, OTHELLO, SETSEP, add, quote};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Setup};
use crate::number::{ratio, short};
use weir_bench::maps::distributions::{Collision, collisions};

const COLLIDING: &str = "partial keys, colliding";
const WRONG: &str = "partial keys, wrong value";

const fn chart(title: &'static str, scale: Scale) -> Chart {
    Chart {
        title,
        x: Axis { label: "bits per key above those of the value", scale: Scale::Linear },
        y: Axis { label: "percent of the keys", scale },
    }
}

const SOURCE: &str = "dissertation, section 4.7";

/// Ludo's extra memory by its equation at l = 20.
const LUDO_EXTRA: f64 = 4.76;

pub static FIG_4_30: Figure = Figure {
    id: "ludo-fig4.30",
    title: "Partial keys: collisions against extra bits",
    paper: "dissertation, Fig 4.30",
    measures: "MAC addresses with l = 20 in partial-key cuckoo tables with digests of 1 to 20 \
        bits; 1M keys (50K in smoke size). Colliding: the key shares an entry with another. Wrong: \
        it gets another’s value, since of the keys of an entry one is right. Structures without \
        digests are asked for all keys too.",
    charts: &[chart("All", Scale::Linear), chart("Near 1 %, and below", Scale::Log)],
    quotes: &[
        quote(
            0,
            "more than 40 % at Ludo’s memory",
            COLLIDING,
            Says::AtLeast,
            &[(0.0, 40.0), (LUDO_EXTRA, 40.0)],
            SOURCE,
        ),
        quote(0, "Ludo", LUDO, Says::Value, &[(LUDO_EXTRA, 0.0)], "dissertation, Table 1.1, 4.7"),
        quote(0, "Othello", OTHELLO, Says::Value, &[(26.6, 0.0)], "dissertation, Table 1.1, 4.7"),
        quote(
            1,
            "0.1 % takes more than 3 times Ludo’s",
            COLLIDING,
            Says::AtLeast,
            &[(0.0, 0.1), (3.0 * LUDO_EXTRA, 0.1)],
            SOURCE,
        ),
    ],
    note: "the text gives two bounds: with no more memory than Ludo more than 40 % of the keys \
        collide, and less than 0.1 % takes more than three times Ludo’s extra memory, which is \
        4.76 bits by its equation.",
    why: "An entry’s digest stands in one of two buckets of four slots, so a key meets about 2 · 4 \
        · 0.95 others’ digests, each equal with probability 2^-d: both bounds follow, and the \
        number of keys plays no part. The paper’s collisions are “mapped to more than one value”, \
        which is our colliding. SetSep’s extra bits are above its equation (ludo-fig4.12).",
    times: ["1 s", "10 s", "10 s"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(50_000, 1 << 20, 1 << 20);
    (setup.progress)("filling tables with digests of 1 to 20 bits");
    let rows = collisions(count, setup.seed)?;
    let mut series = Vec::new();
    for row in &rows {
        let x = row.extra_bits_per_key;
        let (names, values): (&[&str], _) = match row.structure {
            "ludo" => (&[LUDO], [row.wrong_percent; 2]),
            "othello" => (&[OTHELLO], [row.wrong_percent; 2]),
            "setsep" => (&[SETSEP], [row.wrong_percent; 2]),
            _ => (&[COLLIDING, WRONG], [row.colliding_percent, row.wrong_percent]),
        };
        for (name, y) in names.iter().zip(values) {
            add(&mut series, 0, name, Point { x, y, spread: None });
            if y <= 5.0 {
                add(&mut series, 1, name, Point { x, y, spread: None });
            }
        }
    }
    let facts = said(&rows).into_iter().flatten().collect();
    Ok(Measured { series, facts })
}

/// Both of the dissertation's sentences, with our numbers.
fn said(rows: &[Collision]) -> [Option<String>; 2] {
    let ludo = rows.iter().find(|row| row.structure == "ludo").map(|row| row.extra_bits_per_key);
    let partial = || rows.iter().filter(|row| row.digest_bits.is_some());
    let bits = |row: &Collision| row.digest_bits.unwrap_or(0);
    let fitting = partial().rfind(|row| ludo.is_some_and(|most| row.extra_bits_per_key <= most));
    let rare = partial().find(|row| row.colliding_percent < 0.1);
    let holds = |yes: bool| if yes { "holds" } else { "does not hold" };
    [
        ludo.zip(fitting).map(|(ludo, row)| {
            format!(
                "With no more than Ludo’s {ludo:.2} extra bits (digests of {} bits) {:.0} % of the \
                 keys collide: the paper’s “more than 40 %” {}.",
                bits(row),
                row.colliding_percent,
                holds(row.colliding_percent > 40.0)
            )
        }),
        ludo.zip(rare).map(|(ludo, row)| {
            format!(
                "Less than 0.1 % of colliding keys takes digests of {} bits, {} extra bits, {} \
                 times Ludo’s: the paper’s “more than 3 times” {}.",
                bits(row),
                short(row.extra_bits_per_key),
                ratio(row.extra_bits_per_key / ludo),
                holds(row.extra_bits_per_key > 3.0 * ludo)
            )
        }),
    ]
}
