//! What balancers have said of their fleet, in a file: for a start at which the one that was given is away.
//!
//! Nobody is believed for standing there: whoever is called shows a certificate, as ever.

use super::Balancer;
use super::roster::Roster;
use crate::error::{Context, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use weir_host::files;

/// Of the file's form: one that is not known is passed over.
const FORM: u32 = 1;
/// No file of all balancers that an agent may be told of is longer.
const MOST_BYTES: u64 = 1 << 18;

#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
struct Form {
    form: u32,
    /// Those that were given, with what they are called, if they have said so.
    given: BTreeMap<String, Option<String>>,
    /// The others, by their names.
    balancers: BTreeMap<String, String>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    /// What stands in it; empty: there is none.
    there: String,
}

fn read(path: &Path) -> Result<String, String> {
    let file = match files::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
        file => file.map_err(|error| error.to_string())?,
    };
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_BYTES { Err("it is too long".into()) } else { Ok(text) }
}

impl Kept {
    /// The file of the agent that is called so in its certificate, and takes up what it says if that was told by one of
    /// those that are given: another fleet's counts no more. In words, why it cannot be used.
    pub fn open(directory: &Path, name: &str, roster: &mut Roster) -> (Self, Option<String>) {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
        let name: String = name.chars().take(64).map(plain).collect();
        let path = directory.join(format!("balancers-{name}.json"));
        let (there, trouble) = match read(&path) {
            Ok(there) => (there, None),
            Err(why) => (String::new(), Some(why)),
        };
        let mut kept = Self { path, there };
        let trouble = trouble.or_else(|| kept.take_up(roster).err());
        let trouble = trouble.map(|why| {
            let path = kept.path.display();
            format!("{path}: what balancers have said of their fleet cannot be read ({why}); goes on without")
        });
        if trouble.is_some() {
            kept.there.clear();
        }
        (kept, trouble)
    }

    fn take_up(&self, roster: &mut Roster) -> Result<(), String> {
        if self.there.is_empty() {
            return Ok(());
        }
        let form: Form = serde_json::from_str(&self.there).map_err(|error| error.to_string())?;
        if form.form != FORM {
            return Err(format!("it has form {}, and this weir knows {FORM}", form.form));
        }
        let balancer = |text: &String| text.parse::<Balancer>().map_err(|error| error.to_string());
        let (mut names, mut learned, mut ours) = (Vec::new(), Vec::new(), false);
        for (given, name) in &form.given {
            let given = balancer(given)?;
            ours |= roster.given().any(|(one, _)| *one == given);
            names.extend(name.clone().map(|name| (given, name)));
        }
        for (name, at) in &form.balancers {
            learned.push((name.clone(), balancer(at)?));
        }
        if ours {
            roster.remember(names, learned);
        }
        Ok(())
    }

    /// Writes what is known by now, if that is something else: whole or not at all, and for its owner alone.
    pub fn keep(&mut self, roster: &Roster) -> Result<(), Error> {
        let text = if roster.learned().is_empty() { String::new() } else { text_of(roster) };
        if text == self.there {
            return Ok(());
        }
        let what = || format!("write {}", self.path.display());
        if text.len() as u64 > MOST_BYTES {
            // The next start would refuse it.
            return Err(io::Error::other("it would be too long")).context(what);
        }
        if text.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.context(what)?,
            }
        } else {
            let directory = self.path.parent().unwrap_or(Path::new("/"));
            DirBuilder::new().recursive(true).mode(0o700).create(directory).context(what)?;
            files::write_through(&self.path, text.as_bytes()).context(what)?;
        }
        self.there = text;
        Ok(())
    }
}

fn text_of(roster: &Roster) -> String {
    let given = roster.given().map(|(one, name)| (one.to_string(), name.cloned())).collect();
    let others = roster.learned().iter().map(|(name, at)| (name.clone(), at.to_string())).collect();
    serde_json::to_string_pretty(&Form { form: FORM, given, balancers: others }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_rpc::message::{Balancers, Peer};

    fn at(text: &str) -> Balancer {
        text.parse().expect("a balancer")
    }

    fn wanted(roster: &Roster) -> Vec<String> {
        roster.wanted().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_was_told_outlives_the_agent() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let directory = home.path().join("deep/er");
        let open = |given: &[&str]| {
            let given: Vec<Balancer> = given.iter().map(|text| at(text)).collect();
            let mut roster = Roster::new(&given);
            let (kept, trouble) = Kept::open(&directory, "../b 0", &mut roster);
            (kept, roster, trouble)
        };
        let (mut kept, mut roster, trouble) = open(&["lb.example"]);
        assert_eq!(trouble, None);
        kept.keep(&roster).expect("nothing to write");
        assert!(!directory.exists(), "of no fleet it keeps nothing");
        let peer =
            |name: &str, host: &str| Peer { name: name.into(), at: Some((host.to_owned(), 4479)) };
        let peers = vec![peer("a", "10.0.0.1"), peer("b", "2001:db8::2")];
        roster.says(&at("lb.example"), &[].into(), Some(Balancers { own: "a".into(), peers }));
        let all = ["lb.example:4479", "[2001:db8::2]:4479"];
        assert_eq!(wanted(&roster), all);
        kept.keep(&roster).expect("it can be written");
        let path = directory.join("balancers-___b_0.json");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(&directory)), (0o600, 0o700));
        // What the next start would refuse is not written: what was there stays.
        let longer = (0..256).map(|n| peer(&format!("{n}{}", "n".repeat(2000)), "10.0.0.3"));
        let mut crowded = Roster::new(&[at("lb.example")]);
        let list = Balancers { own: "a".into(), peers: longer.collect() };
        crowded.says(&at("lb.example"), &[].into(), Some(list));
        let error = kept.keep(&crowded).expect_err("it is too long");
        assert!(error.to_string().contains("balancers-"), "{error}");
        // The next one, and one that is given others besides.
        assert_eq!(wanted(&open(&["lb.example"]).1), all);
        assert_eq!(wanted(&open(&["10.0.0.7", "lb.example"]).1).len(), 3);
        // One that is to tell another fleet.
        let (mut kept, roster, trouble) = open(&["other.example"]);
        assert_eq!((wanted(&roster), trouble), (vec!["other.example:4479".to_owned()], None));
        kept.keep(&roster).expect("it can be removed");
        assert!(!path.exists());
        // What is there and makes no sense.
        let long = " ".repeat(1 << 19);
        let place = r#"{"form":1,"given":{},"balancers":{"a":"no place"}}"#;
        for text in ["{", r#"{"form":2,"given":{},"balancers":{}}"#, place, long.as_str(), "\u{0}"]
        {
            fs::write(&path, text).expect("written");
            let (_, roster, trouble) = open(&["lb.example"]);
            assert!(trouble.is_some_and(|why| why.contains("balancers-")), "{text}");
            assert_eq!(wanted(&roster), ["lb.example:4479"]);
        }
    }
}
