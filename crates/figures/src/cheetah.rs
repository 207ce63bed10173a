//! Cheetah's figures.

mod broken;
mod completion;
mod cost;
mod imbalance;
mod scaling;
mod served;
mod threshold;

use super::figure::Figure;

pub const FIGURES: &[&Figure] = &[
    &broken::FIG_2A,
    &imbalance::FIG_2B,
    &threshold::FIG_2C,
    &cost::FIG_5,
    &completion::FIG_6,
    &completion::FIG_7,
    &completion::FIG_8,
    &scaling::FIG_9,
    &served::FIG_6,
    &served::FIG_7,
    &served::FIG_8,
    &served::FIG_9,
];
