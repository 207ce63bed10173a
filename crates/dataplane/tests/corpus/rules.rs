//! The rules of the program's source, and which cases go through each.
//!
//! A comment at the end of a line, `rule: NAME`, names what stands there. For the table the program is built
//! with a mark in the place of each comment, so that a case is known to go where it says.

use crate::format::{Case, directory};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::Deserialize;
use std::collections::BTreeMap;
use weir_dataplane::other as object;

#[path = "../../build/rules.rs"]
mod source;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    pub rules: BTreeMap<String, String>,
    /// Which test goes through a rule that no case can go through: `file::function: why none can`.
    pub elsewhere: BTreeMap<String, String>,
    /// Why nothing goes through a rule here.
    pub nowhere: BTreeMap<String, String>,
}

impl Rules {
    /// What is said of a rule that no case goes through.
    pub fn apart(&self, name: &str) -> Option<&str> {
        self.elsewhere.get(name).or(self.nowhere.get(name)).map(String::as_str)
    }
}

pub fn listed() -> Rules {
    let path = directory().join("rules.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    toml::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

/// The program with a mark for each rule.
pub struct Marked {
    /// Rules in the order of their marks.
    pub names: Vec<String>,
    /// The map of the marks.
    map: String,
    pub object: Vec<u8>,
}

impl Marked {
    pub fn build() -> Self {
        let mut sources = object::sources();
        let mut names = Vec::new();
        for text in sources.values_mut() {
            *text = source::mark(text, &mut names, &[]);
        }
        // The kernel keeps 15 letters of a map's name.
        let map = format!(".data.r{:x}", std::process::id());
        let declared = format!(
            "__u8 rule_marks[{}] SEC(\"{map}\");\n\
             #define RULE_MARK(at) (*(volatile __u8 *)&rule_marks[at] = 1)\n#endif\n",
            names.len()
        );
        let abi = sources.get_mut("abi.h").expect("it is one of the sources");
        let end = abi.rfind("#endif").expect("it is guarded");
        abi.replace_range(end.., &declared);
        let object = object::build(&sources, "rules").unwrap_or_else(|e| panic!("{e}"));
        Self { names, map, object }
    }

    /// The marks of all programs that were loaded.
    pub fn marks(&self) -> Vec<MapHandle> {
        let ours = MapInfoIter::default().filter(|map| map.name.to_string_lossy() == self.map[..]);
        ours.map(|map| MapHandle::from_map_id(map.id).expect("it is there")).collect()
    }

    /// The rules whose marks are set; they are taken back.
    pub fn take(&self, maps: &[MapHandle]) -> Vec<&str> {
        let mut hit = vec![false; self.names.len()];
        for map in maps {
            let marks = map.lookup(&[0; 4], MapFlags::ANY).expect("it is an array");
            let marks = marks.expect("it has one element");
            hit.iter_mut().zip(&marks).for_each(|(hit, mark)| *hit |= *mark != 0);
            map.update(&[0; 4], &vec![0; marks.len()], MapFlags::ANY).expect("it is an array");
        }
        let names = self.names.iter().zip(hit);
        names.filter(|(_, hit)| *hit).map(|(name, _)| name.as_str()).collect()
    }
}

/// What is wrong with the rules that no case goes through: the test that an entry names is to be one of this tree, and
/// none is in both lists.
pub fn check_apart(rules: &Rules) -> Vec<String> {
    let root = directory().join("..");
    let mut wrong = Vec::new();
    for (name, said) in &rules.elsewhere {
        let test = said.split_once(": ").map_or(said.as_str(), |(test, _)| test);
        let there = test.split_once("::").is_some_and(|(file, function)| {
            let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            text.contains(&format!("#[test]\nfn {function}()"))
        });
        if !there {
            wrong.push(format!(
                "rule {name}: there is no test {test:?}; give `file::function: why no case can`"
            ));
        }
        if rules.nowhere.contains_key(name) {
            wrong.push(format!("rule {name}: it is elsewhere and nowhere; take it out of one"));
        }
    }
    wrong
}

/// Which cases name a rule, and which go through it.
#[derive(Default, Clone, Copy)]
pub struct Counts {
    pub named: usize,
    pub met: usize,
}

/// The names of the source and of the list must be the same, each once; and every case names one of them.
pub fn check_names(names: &[String], rules: &Rules, cases: &[(&str, &Case)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *places.entry(name).or_default() += 1);
    for (name, places) in &places {
        if *places > 1 {
            wrong.push(format!(
                "rule {name}: {places} places of the source have this name; give each its own"
            ));
        }
        if !rules.rules.contains_key(*name) {
            wrong.push(format!("rule {name}: in the source, and not in corpus/rules.toml"));
        }
    }
    for name in rules.rules.keys().chain(rules.elsewhere.keys()).chain(rules.nowhere.keys()) {
        if !places.contains_key(name.as_str()) {
            wrong.push(format!("rule {name}: in corpus/rules.toml, and not in the source"));
        }
    }
    for (file, case) in cases {
        if !rules.rules.contains_key(&case.rule) {
            wrong.push(format!("corpus/{file}: {}: no rule {:?}", case.name, case.rule));
        }
    }
    wrong
}
