//! Keys of cookies that change under connections.

use super::Key;
use serde::{Deserialize, Serialize};
use weir_hash::HashKey;
use weir_steering::cheetah;
use xxhash_rust::xxh3::xxh3_64;

/// Keys that Cheetah's cookies are hidden under, where each cookie says under which: all are read, one issues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CookieKeys {
    /// By their numbers, 0 and 1; none where there is none.
    pub keys: [Option<Key>; cheetah::COOKIE_KEYS],
    /// The number of the one by which the cookies of new connections are made.
    pub issue: u8,
}

impl CookieKeys {
    /// The key of a number.
    pub(crate) fn key(&self, number: u8) -> Option<&Key> {
        self.keys.get(usize::from(number))?.as_ref()
    }

    /// The key that issues.
    pub(crate) fn issuing(&self) -> Option<&Key> {
        self.key(self.issue)
    }

    /// The number of a key in whose place the other has another one.
    pub(crate) fn replaced_by(&self, other: &Self) -> Option<usize> {
        let mut pairs = self.keys.iter().zip(&other.keys);
        pairs.position(|(now, next)| now.is_some() && next.is_some() && now != next)
    }

    /// As tables have them; `place`: what tells the service from others that are given the same keys.
    pub(crate) fn of_tables(&self, place: &[u8]) -> Option<cheetah::CookieKeys> {
        let drawn = |key: &Key| {
            let mut bytes = key.bytes()?.to_vec();
            bytes.extend(place);
            // Not what the same key gives a service as its seed.
            bytes.extend(b"cookies");
            Some(HashKey::from_seed(xxh3_64(&bytes)))
        };
        let keys = self.keys.each_ref().map(|key| key.as_ref().and_then(drawn));
        cheetah::CookieKeys::new(keys, self.issue.into())
    }
}
