//! What simulations and figures are asked for, and how values are read that only verbs of the laboratory take.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::time::Duration;

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
    /// Where the report goes; - is the output.
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

/// A number with an optional K or M: flows of `bench xdp`, of which 24M have slots in all partitions that there can be.
pub(crate) fn flows(text: &str) -> Result<u32, String> {
    const MOST: usize = 24_000_000;
    let count = count(text)?;
    let fits = (1..=MOST).contains(&count);
    fits.then_some(count as u32).ok_or_else(|| format!("{text}: give 1 to {MOST} flows"))
}

/// A number within a range. What is no number, as `nan`, is in none.
pub(crate) fn within(
    least: f64,
    most: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number: Option<f64> = text.parse().ok();
        let allowed = number.filter(|number| (least..=most).contains(number));
        allowed.ok_or_else(|| format!("give a number from {least} to {most}"))
    }
}

/// A number with an optional K or M, of which there must be some.
pub(crate) fn some(text: &str) -> Result<usize, String> {
    let count = count(text)?;
    (count > 0).then_some(count).ok_or_else(|| "give 1 or more".into())
}

/// A time that is not none.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    (time > Duration::ZERO).then_some(time).ok_or_else(|| "give more than 0s".into())
}

/// A number with an optional K or M, as a rate.
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
    fn numbers_are_within_their_ranges() {
        let every = within(0.05, 3600.0);
        for (good, number) in [("0.05", 0.05), ("1", 1.0), ("3600", 3600.0), ("3.6e3", 3600.0)] {
            assert_eq!(every(good), Ok(number));
        }
        for bad in ["nan", "NaN", "inf", "-inf", "-1", "0", "0.04", "3601", "1e300", "", "x"] {
            assert_eq!(every(bad), Err("give a number from 0.05 to 3600".to_owned()), "{bad}");
        }
    }

    /// Whatever option takes a number with a fraction refuses what is none, by its own name.
    #[test]
    fn what_is_no_number_is_refused_with_the_name_of_the_option() {
        for (verb, option) in [
            ("lab", "--change-every"),
            ("lab compare", "--change-every"),
            ("fib switch", "--moves-per-second"),
            ("fib content", "--seconds"),
            ("bench lookup", "--seconds"),
            ("bench lookup --keys zipf", "--skew"),
            ("bench maps", "--zipf"),
        ] {
            for bad in ["nan", "inf", "-inf", "-1", "1e300"] {
                let words = format!("weir {verb} {option} {bad}");
                let Err(refused) = Cli::try_parse_from(words.split(' ')) else {
                    panic!("{words} is taken")
                };
                let said = refused.to_string();
                assert!(said.contains(option), "{words}: {said}");
                assert!(said.contains("give a number from "), "{words}: {said}");
            }
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
