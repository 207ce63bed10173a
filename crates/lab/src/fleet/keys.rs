//! Keys of QUIC's connection ids in a fleet, one after the other (docs/quic.md, Rotation): all balancers read another
//! one, then servers make ids by it, and the former one goes when no connection can have ids of it.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rand::Rng;

use super::{Fleet, PATIENCE, lock, words};
use crate::error::{Doing, Error, Result};
use crate::quic;

/// A connection lives for 20 s after its id was made, and its client may wait for two answers for up to two minutes
/// each: ids of a former key are read for so long.
const READ_ON: Duration = Duration::from_secs(300);
/// Numbers that a configuration may have: 0 to 6.
const NUMBERS: u8 = 7;

/// A key that ids are made by, or were.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Key {
    number: u8,
    key: String,
    /// Since when no ids are made by it.
    former: Option<Instant>,
}

/// The keys by which balancers read ids.
#[derive(Debug)]
pub(super) struct Keys {
    read: Vec<Key>,
    /// The number of the one by which servers make them.
    issue: u8,
}

impl Default for Keys {
    /// As the configuration has them at first.
    fn default() -> Self {
        Self { read: vec![Key { number: 0, key: quic::KEY.into(), former: None }], issue: 0 }
    }
}

impl Keys {
    /// As the configuration of the service has them.
    fn text(&self) -> String {
        quic::config(self.issue, self.read.iter().map(|one| (one.number, one.key.as_str())))
    }

    /// Those by which no connection can have an id any more go.
    fn forget(&mut self, now: Instant) {
        let recent = |since: Instant| now.saturating_duration_since(since) < READ_ON;
        self.read.retain(|one| one.former.is_none_or(recent));
    }

    /// Another one is read, if there is a number for it. The one that was free for longest is taken.
    fn add(&mut self, key: String) -> Option<u8> {
        let taken = |number: &u8| self.read.iter().any(|one| one.number == *number);
        let mut next = (1..NUMBERS).map(|step| (self.issue + step) % NUMBERS);
        let number = next.find(|number| !taken(number))?;
        self.read.push(Key { number, key, former: None });
        Some(number)
    }

    /// Ids are made by this one.
    fn issue(&mut self, number: u8, now: Instant) {
        for one in &mut self.read {
            if one.number == self.issue {
                one.former = Some(now);
            }
        }
        self.issue = number;
    }
}

/// A configuration with these keys in the place of the former ones; none if it has neither. One that has them already,
/// as an answer was lost, stays as it is.
fn replaced(text: &str, former: &str, keys: &str) -> Option<String> {
    if text.contains(keys) {
        return Some(text.to_owned());
    }
    text.contains(former).then(|| text.replace(former, keys))
}

impl Fleet {
    /// Servers make ids by another key, once all balancers read it: its number; none if there is none left. Nobody may
    /// be away.
    pub(super) fn rotate_keys(&self) -> Result<Option<u8>> {
        // No other change comes between what a balancer's file says and what is made of it.
        let _alone = lock(&self.commanding);
        self.await_agreement(self.balancers.len(), PATIENCE)?;
        let mut keys = lock(&self.keys);
        let former = keys.text();
        let key = format!("{:032x}", lock(&self.dice).random::<u128>());
        keys.forget(Instant::now());
        let Some(number) = keys.add(key) else { return Ok(None) };
        let read = keys.text();
        self.put_keys(&former, &read)?;
        keys.issue(number, Instant::now());
        self.put_keys(&read, &keys.text())?;
        Ok(Some(number))
    }

    /// Applies the fleet's configuration with other keys on one of its balancers, and waits until all follow it.
    fn put_keys(&self, former: &str, keys: &str) -> Result<()> {
        let file = self.lab.directory().join("keys.toml");
        let apply = |asked: usize| -> Result<Vec<String>> {
            let path = self.balancers[asked].config();
            let text = fs::read_to_string(path).doing(|| format!("reading {}", path.display()))?;
            let text = replaced(&text, former, keys).ok_or_else(|| Error::BadFile {
                path: path.to_owned(),
                what: format!("it has not the keys that the fleet has:\n{former}"),
            })?;
            fs::write(&file, text).doing(|| format!("writing {}", file.display()))?;
            Ok(words(&["apply", &file.display().to_string()]))
        };
        self.ask_with(&apply, &mut BTreeSet::new())?;
        self.await_agreement(self.balancers.len(), PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_before_ids_are_made_by_it_and_long_after() {
        let (mut keys, mut now) = (Keys::default(), Instant::now());
        let mut made: Vec<(u8, Instant)> = vec![(0, now)];
        for round in 0..40 {
            keys.forget(now);
            let before = keys.text();
            let Some(number) = keys.add(format!("{round:032x}")) else {
                assert_eq!(keys.read.len(), usize::from(NUMBERS), "all numbers are taken");
                now += READ_ON / 4;
                continue;
            };
            let read = keys.text();
            assert!(read.contains(&format!("config_id = {number}\n")));
            let line = |text: &str| text.lines().nth(1).map(str::to_owned);
            assert_eq!(line(&read), line(&before), "ids are made as before");
            if let Some((_, since)) = made.last_mut() {
                *since = now;
            }
            keys.issue(number, now);
            made.push((number, now));
            assert!(keys.text().contains(&format!("issue = {number}\n")));
            for (number, since) in made.iter().rev().skip(1).take(usize::from(NUMBERS) - 1) {
                let there = keys.read.iter().any(|one| one.number == *number);
                assert!(
                    there || now - *since >= READ_ON,
                    "{number} is read for as long as it may come"
                );
            }
            now += READ_ON / if round % 2 == 0 { 3 } else { 20 };
        }
        assert!(made.len() > 10, "they go on");
    }

    #[test]
    fn keys_take_the_place_of_others_once() {
        let mut keys = Keys::default();
        let former = keys.text();
        assert_eq!(keys.add("ab".repeat(16)), Some(1));
        let read = keys.text();
        let file = format!(
            "[[service]]\nname = \"quic4\"\n\n{former}\n[[service.backend]]\nname = \"b0\"\n"
        );
        let first = replaced(&file, &former, &read).expect("it has them");
        assert_eq!(first.matches("[[service.quic.config]]").count(), 2);
        // The new ones begin as the former ones do.
        assert_eq!(replaced(&first, &former, &read).as_deref(), Some(&first[..]));
        assert_eq!(replaced("[[service]]\n", &former, &read), None);
    }
}
