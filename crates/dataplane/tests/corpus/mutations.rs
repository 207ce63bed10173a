//! Faults that are put into the program, each of which some case must find.

use crate::format::{File, directory};
use crate::world::{self, Kernels};
use serde::Deserialize;
use std::collections::BTreeMap;
use weir_dataplane::other as object;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutations {
    mutation: Vec<Mutation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    pub what: String,
    pub file: String,
    /// What stands there, once.
    pub from: String,
    pub to: String,
    /// Tried whenever the tests run.
    #[serde(default)]
    pub always: bool,
}

pub fn listed() -> Vec<Mutation> {
    let path = directory().join("mutations.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    toml::from_str::<Mutations>(&text).unwrap_or_else(|e| panic!("{path:?}: {e}")).mutation
}

/// Puts it into the sources.
///
/// # Errors
/// Why it cannot be put there: what it changes must stand in its file, once, and become something else.
pub fn apply(
    mutation: &Mutation,
    sources: &mut BTreeMap<String, String>,
) -> Result<(), &'static str> {
    let text = sources.get_mut(&mutation.file).ok_or("no source has the name that `file` gives")?;
    let mut places = text.matches(&mutation.from);
    match (places.next(), places.next()) {
        (Some(_), None) => {}
        (None, _) => return Err("`from` stands nowhere in its file"),
        _ => return Err("`from` stands in its file more than once; give more of what is around"),
    }
    let changed = text.replace(&mutation.from, &mutation.to);
    if changed == *text {
        return Err("`to` is what stands there already");
    }
    *text = changed;
    Ok(())
}

/// The case that finds it, in this order of the files.
///
/// # Errors
/// Why it is none: it does not apply, or build, or load; or nothing finds it.
pub fn find(mutation: &Mutation, files: &[File]) -> Result<String, String> {
    let mut sources = object::sources();
    apply(mutation, &mut sources)?;
    let object = object::build(&sources, "mutation")?;
    let mut kernels = Kernels::new(Some(object));
    for file in files {
        for case in &file.case {
            if let Some(wrong) = world::run(&mut kernels, file, case)?.first() {
                return Ok(wrong.clone());
            }
        }
    }
    Err("no case finds it".into())
}
