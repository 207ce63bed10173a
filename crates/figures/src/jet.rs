//! JET's figures and tables.

mod tables;
mod traces;
mod violations;

use super::figure::Figure;

pub const FIGURES: &[&Figure] = &[
    &violations::FIG_3,
    &violations::FIG_4,
    &violations::FIG_5,
    &traces::FIG_7,
    &tables::TABLE_1,
    &tables::TABLE_2,
];
