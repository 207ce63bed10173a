//! What simulations and figures are asked for, and how values are read that only verbs of the laboratory take.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

/// What is simulated.
#[derive(Args)]
pub struct SimOptions {
    /// The scenario: a TOML file, or the name of a built-in one (see --list).
    #[arg(required_unless_present = "list")]
    pub scenario: Option<PathBuf>,
    /// How much of the scenario is run: smoke (seconds), normal (up to minutes) or full (as
    /// published).
    #[arg(long, default_value = "normal")]
    pub size: weir_sim::Size,
    /// Seed of everything that is drawn, instead of the scenario's.
    #[arg(long, env = "WEIR_SEED")]
    pub seed: Option<u64>,
    /// Print rows and series in JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Write the rows as CSV to this file, or to the output if it is -.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the series (imbalance, entries, state over time) as CSV to this file, or -.
    #[arg(long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// Print the names of the built-in scenarios.
    #[arg(long)]
    pub list: bool,
}

/// Which figures are drawn.
#[derive(Args)]
pub struct ReproduceOptions {
    /// Figures by id, or `all`.
    #[arg(value_name = "FIGURE")]
    pub figures: Vec<String>,
    /// How large the runs are: seconds, minutes, or as in the paper.
    #[arg(long, value_parser = one_of(&weir_figures::Size::CHOICES), default_value = "normal")]
    pub size: weir_figures::Size,
    /// Where the report goes.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also write each figure's rows into this directory, as CSV.
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
    /// Seed of everything that is drawn.
    #[arg(long, env = "WEIR_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON: the list, or all rows and sentences.
    #[arg(long)]
    pub json: bool,
}

/// The name of a scenario of laboratories.
pub(crate) fn scenario_name() -> PossibleValuesParser {
    PossibleValuesParser::new(weir_lab::Scenario::NAMES)
}

/// The name of a method whose tables the data plane can hold, by the registry.
pub(crate) fn method_name() -> PossibleValuesParser {
    PossibleValuesParser::new(
        weir_dataplane::methods()
            .map(|method| PossibleValue::new(method.name()).help(method.info().summary)),
    )
}

/// One of the choices that a library lists: value, name, and what it is.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [(T, &'static str, &'static str)],
) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(_, name, what)| PossibleValue::new(*name).help(*what));
    PossibleValuesParser::new(names).try_map(move |given| {
        let found = choices.iter().find(|(_, name, _)| *name == given);
        found.map(|(value, ..)| *value).ok_or("not one of the choices")
    })
}

/// A number with an optional K or M.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1_000),
        Some((at, 'M' | 'm')) => (&text[..at], 1_000_000),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| format!("{text} is not a number"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

/// The same for flows of `bench xdp`, of which 24M have slots in all partitions that there can be.
pub(crate) fn flows(text: &str) -> Result<u32, String> {
    const MOST: usize = 24_000_000;
    let count = count(text)?;
    let fits = (1..=MOST).contains(&count);
    fits.then_some(count as u32).ok_or_else(|| format!("{text}: give 1 to {MOST} flows"))
}

/// The same for a rate.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    count(text).map(|count| count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Verb};
    use clap::Parser;

    #[test]
    fn counts_have_units() {
        assert_eq!(count("64K"), Ok(64_000));
        assert_eq!(count("8M"), Ok(8_000_000));
        assert_eq!(count("17"), Ok(17));
        for bad in ["", "K", "1.5M", "-1", "99999999999999999999", "999999999999999999M"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_choice_is_what_its_name_says() {
        let parse = |size: &str| Cli::try_parse_from(["weir", "reproduce", "--size", size]);
        for (size, name, _) in weir_figures::Size::CHOICES {
            let Ok(Cli { verb: Verb::Reproduce(options) }) = parse(name) else {
                panic!("{name} is refused");
            };
            assert_eq!(options.size, size);
        }
        assert!(parse("huge").is_err());
    }
}
