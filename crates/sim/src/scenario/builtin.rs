//! The scenarios that come with the crate.

use super::{Scenario, ScenarioError, Size};
use std::path::Path;

/// The names of the built-in scenarios: one per published figure, and what several balancers,
/// drains and the eviction of connection tables do. Their files are in `crates/sim/scenarios/`.
pub const BUILTIN: [&str; 17] = [
    "cheetah-2a",
    "cheetah-2b",
    "cheetah-2c",
    "cheetah-6",
    "cheetah-7",
    "cheetah-8",
    "cheetah-9",
    "concury-load-60",
    "concury-load-30",
    "drain",
    "ecmp",
    "eviction",
    "hnlb",
    "jet-3",
    "jet-4",
    "jet-5",
    "residue",
];

/// The text of a built-in scenario, as it stands in its file.
pub fn builtin_text(name: &str) -> Option<&'static str> {
    Some(match name {
        "cheetah-2a" => include_str!("../../scenarios/cheetah-2a.toml"),
        "cheetah-2b" => include_str!("../../scenarios/cheetah-2b.toml"),
        "cheetah-2c" => include_str!("../../scenarios/cheetah-2c.toml"),
        "cheetah-6" => include_str!("../../scenarios/cheetah-6.toml"),
        "cheetah-7" => include_str!("../../scenarios/cheetah-7.toml"),
        "cheetah-8" => include_str!("../../scenarios/cheetah-8.toml"),
        "cheetah-9" => include_str!("../../scenarios/cheetah-9.toml"),
        "concury-load-60" => include_str!("../../scenarios/concury-load-60.toml"),
        "concury-load-30" => include_str!("../../scenarios/concury-load-30.toml"),
        "drain" => include_str!("../../scenarios/drain.toml"),
        "ecmp" => include_str!("../../scenarios/ecmp.toml"),
        "eviction" => include_str!("../../scenarios/eviction.toml"),
        "hnlb" => include_str!("../../scenarios/hnlb.toml"),
        "jet-3" => include_str!("../../scenarios/jet-3.toml"),
        "jet-4" => include_str!("../../scenarios/jet-4.toml"),
        "jet-5" => include_str!("../../scenarios/jet-5.toml"),
        "residue" => include_str!("../../scenarios/residue.toml"),
        _ => return None,
    })
}

/// A built-in scenario in a size. Set `seed` and `runs` as wanted, and give it to [`super::run`].
///
/// # Errors
///
/// A name that is not in [`BUILTIN`].
pub fn builtin(name: &str, size: Size) -> Result<Scenario, ScenarioError> {
    let text = builtin_text(name).ok_or_else(|| ScenarioError::Unknown {
        name: name.to_owned(),
        known: BUILTIN.join(", "),
    })?;
    Scenario::parse_sized(text, Path::new(&format!("{name}.toml")), size)
}
