//! HNLB's figures, over an *emulated* card: the software's side of them is measured, the card's is not.

mod load;
mod share;
mod throughput;

use super::figure::Figure;
use crate::Result;
use weir_bench::plane::rules::{Bed, Plan};
use weir_steering::MethodId;

pub const FIGURES: &[&Figure] = &[
    &throughput::FIG_4,
    &throughput::FIG_5,
    &throughput::FIG_6,
    &load::FIG_7,
    &load::FIG_8,
    &throughput::COST,
    &share::SHARE,
];

const LED: &str = "rules (emulated card)";
const CONCURY: &str = "software only, concury";
const TRACKED: &str = "software only, connection table";

/// The paper has ten queues beside the software's.
const QUEUES: u16 = 10;

/// Why all of these differ from the paper's.
const WHY: &str = "The card is emulated, and its own work is left out: frames stand in the queues beforehand. \
    So this is the software's saving alone, and never a card's gain; the paper's rates have the card, the wire \
    and a driver in them, which take longest there. Its software keeps a hash table, as tracked does here; \
    concury's table is small and read in bursts, so that a rule saves less beside it.";

/// So many connections, of which all have rules.
fn bed(method: MethodId, connections: u32, bytes: usize, queues: u16, seed: u64) -> Result<Bed> {
    let plan = Plan { method, flows: connections, ruled: connections, queues, bytes, seed };
    Ok(Bed::new(&plan)?)
}
