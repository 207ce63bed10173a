//! Faults that are put into the program, each of which some case must find.

use crate::format::{Case, File, directory};
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
    /// A case that finds it, as `FILE: NAME`. It is asked before all others, which saves their time.
    pub case: Option<String>,
}

impl Mutation {
    /// Whether this is the case that is known to find it.
    fn names(&self, file: &File, case: &Case) -> bool {
        let known = self.case.as_deref().and_then(|known| known.split_once(": "));
        known.is_some_and(|(in_file, name)| file.name == in_file && case.name == name)
    }

    /// Whether the case that it names is there, if it names one.
    pub fn names_a_case(&self, files: &[File]) -> bool {
        self.case.is_none() || all(files).any(|(file, case)| self.names(file, case))
    }
}

/// All cases, in the order of the files.
fn all(files: &[File]) -> impl Iterator<Item = (&File, &Case)> {
    files.iter().flat_map(|file| file.case.iter().map(move |case| (file, case)))
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

/// The case that finds it: the one that it names, or the first other one. `name` is that of the build, and nobody else's.
///
/// # Errors
/// Why it is none: it does not apply, or build, or load; or nothing finds it.
pub fn find(mutation: &Mutation, files: &[File], name: &str) -> Result<String, String> {
    let mut sources = object::sources();
    apply(mutation, &mut sources)?;
    let object = object::build(&sources, name)?;
    let mut kernels = Kernels::new(Some(object));
    let named = all(files).filter(|(file, case)| mutation.names(file, case));
    let others = all(files).filter(|(file, case)| !mutation.names(file, case));
    for (file, case) in named.chain(others) {
        if let Some(wrong) = world::run(&mut kernels, file, case)?.first() {
            return Ok(wrong.clone());
        }
    }
    Err("no case finds it".into())
}
