//! Faults that are put into the program, each of which some case must find.

use crate::format::{File, directory};
use crate::object;
use crate::world::{self, Kernels};
use serde::Deserialize;

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

/// The case that finds it, in this order of the files.
///
/// # Errors
/// Why it is none: it does not apply, or build, or load; or nothing finds it.
pub fn find(mutation: &Mutation, files: &[File]) -> Result<String, String> {
    let mut sources = object::sources();
    let text = sources.get_mut(&mutation.file).ok_or("there is no such file")?;
    match text.matches(&mutation.from).count() {
        1 => *text = text.replace(&mutation.from, &mutation.to),
        count => return Err(format!("what it changes stands there {count} times")),
    }
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
