//! Concury's figures.

mod keys;
mod load;
mod load_rate;
mod memory;
mod rate;
mod switch;
mod uniformity;
mod update;

use super::figure::Figure;
pub use keys::{flow, pool};

pub const FIGURES: &[&Figure] = &[
    &uniformity::FIG_5,
    &uniformity::FIG_6,
    &uniformity::FIG_7,
    &update::FIG_8,
    &memory::FIG_9,
    &memory::FIG_10,
    &memory::FIG_11,
    &memory::FIG_12,
    &rate::FIG_13,
    &rate::FIG_14,
    &rate::FIG_15,
    &rate::FIG_16,
    &load_rate::FIG_17,
    &load_rate::FIG_18,
    &switch::FIG_20,
    &switch::FIG_21,
    &update::INSERT,
    &load::LOAD,
];

const ORIGINAL: &str = "Concury (Othello)";
const FUSE: &str = "Concury (fuse)";
const DIGEST: &str = "hash table with digest (Maglev)";
const MULTI: &str = "multi-level digest (SilkRoad)";
