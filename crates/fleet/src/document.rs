//! What all balancers of a fleet must have alike.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the layout. One that is higher is of a later weir, and is not followed.
const VERSION: u32 = 1;
/// Bytes of a document at most: etcd takes 1.5 MiB in a request by default.
pub(crate) const MOST_BYTES: usize = 1_400_000;

/// The shared configuration, and with it what it leaves open and must be the same everywhere. It is replaced
/// as a whole, so that a balancer which has missed some changes needs only the last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of the layout.
    version: u32,
    /// Counts changes, from 1 on.
    pub change: u64,
    /// The last change that was asked for even where it breaks connections; a balancer that is behind that
    /// one follows in the same way.
    pub breaking: u64,
    /// When it was made, in seconds since 1970, by the clock of who made it.
    pub at: u64,
    /// Name of the balancer that made it.
    pub by: String,
    /// Who asked that balancer for it.
    pub who: String,
    /// What was asked for, in words.
    pub what: String,
    /// The services, as a configuration file has them.
    pub text: String,
    /// What the text leaves open, by the names of the services.
    pub services: BTreeMap<String, Keys>,
}

impl Document {
    /// A document of this version; who makes it fills in the rest.
    pub fn new(change: u64, text: String, services: BTreeMap<String, Keys>) -> Self {
        Self {
            version: VERSION,
            change,
            breaking: 0,
            at: 0,
            by: String::new(),
            who: String::new(),
            what: String::new(),
            text,
            services,
        }
    }

    /// Reads what is in the store or on the disc.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let not_ours = |error| format!("it is not what weir writes: {error}");
        let Versioned { version } = serde_json::from_slice(bytes).map_err(not_ours)?;
        if version != VERSION {
            return Err(format!(
                "it is of version {version}, and this weir reads {VERSION}; put the same weir on all balancers"
            ));
        }
        serde_json::from_slice(bytes).map_err(not_ours)
    }

    /// As it is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Digest of what balancers decide by, hexadecimal: who has the same decides alike.
    pub fn digest(&self) -> String {
        let decides = serde_json::to_vec(&(&self.text, &self.services)).unwrap_or_default();
        format!("{:016x}", xxh3_64(&decides))
    }
}

/// What the text of a service leaves open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    /// Seed of its hash keys.
    pub seed: u64,
    /// What tells its addresses apart, as the engine writes it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub salts: Value,
    /// The servers that its cookies name, by their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Numbered>,
}

/// A server that has a number: the number is its place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// Name of the server.
    pub name: String,
    /// Which departure it was when it left; none: it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_as_it_was_and_others_are_refused() {
        let keys = Keys {
            seed: u64::MAX - 1,
            salts: serde_json::json!([{ "vip": "10.0.0.1", "salt": 3 }]),
            servers: vec![
                Numbered { name: "a".into(), left: None },
                Numbered { name: "b".into(), left: Some(4) },
            ],
        };
        let services = BTreeMap::from([("web".to_owned(), keys)]);
        let document = Document::new(7, "[[service]]\n".into(), services);
        assert_eq!(Document::parse(&document.to_bytes()).as_ref(), Ok(&document));
        let later = String::from_utf8(document.to_bytes()).unwrap();
        let later = later.replace("\"version\":1", "\"version\":2,\"more\":0");
        assert!(Document::parse(later.as_bytes()).unwrap_err().contains("version 2"));
        assert!(Document::parse(b"{}").is_err() && Document::parse(b"").is_err());
        let mut other = document.clone();
        other.at += 1;
        assert_eq!(other.digest(), document.digest());
        other.services.get_mut("web").unwrap().seed -= 1;
        assert_ne!(other.digest(), document.digest());
    }
}
