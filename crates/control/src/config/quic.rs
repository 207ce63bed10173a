//! What leads a service's packets by their QUIC ids (draft-ietf-quic-load-balancers-21).

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fmt::Write;
use weir_plane::IdRoutes;
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs, QuicLbError};

/// How the servers of a service make connection ids, and the balancer reads them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quic {
    /// The configurations, at least one, each with a number of its own: those that ids on the way
    /// may still be of.
    pub configs: Vec<QuicConfig>,
    /// Number of the configuration that servers make new ids by.
    pub issue: u8,
    /// Server ids that are given, by the backend's name; all others are made of the name.
    pub server_ids: BTreeMap<String, String>,
}

/// One configuration of QUIC-LB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuicConfig {
    /// Its number, 0 to 6, the first three bits of its ids.
    pub config_id: u8,
    /// Bytes of the server id, 1 to 15.
    pub server_id_length: u8,
    /// Bytes of the nonce, 4 to 18; 19 with the server id at most.
    pub nonce_length: u8,
    /// Key under which the server id is hidden.
    pub key: Option<Key>,
    /// Whether the first byte of an id tells its length.
    pub encode_length: bool,
}

/// A key of 16 bytes. Its `Debug` text does not tell it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Of 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let key = Self(text.to_ascii_lowercase());
        key.bytes().map(|_| key)
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Option<[u8; 16]> {
        Id::from_hex(&self.0)?.as_bytes().try_into().ok()
    }
}

impl QuicConfig {
    /// As a codec.
    ///
    /// # Errors
    /// [`QuicLbError`]
    pub fn codec(&self) -> Result<QuicLb, QuicLbError> {
        let key = self.key.as_ref().and_then(Key::bytes);
        let (server, nonce) = (self.server_id_length.into(), self.nonce_length.into());
        let codec = QuicLb::new(self.config_id, server, nonce, key)?;
        Ok(if self.encode_length { codec } else { codec.without_length() })
    }
}

impl Quic {
    /// The server id of a backend in a configuration: the one that is given, if it has the
    /// configuration's length, or else one that is made of the backend's name, so that it is the
    /// same on every balancer and after every restart.
    pub fn server_id(&self, backend: &str, length: usize) -> Id {
        let given = self.server_ids.get(backend).and_then(|text| Id::from_hex(text));
        given.filter(|id| id.as_bytes().len() == length).unwrap_or_else(|| derived(backend, length))
    }

    /// What leads packets to these backends, by name and number.
    pub fn routes<'a>(&self, backends: impl Iterator<Item = (&'a str, u16)> + Clone) -> IdRoutes {
        let mut configs = QuicLbConfigs::default();
        self.configs.iter().filter_map(|one| one.codec().ok()).for_each(|one| configs.set(one));
        let mut routes = IdRoutes::new(configs);
        for config in &self.configs {
            for (name, number) in backends.clone() {
                let id = self.server_id(name, config.server_id_length.into());
                routes.lead(config.config_id, id, number);
            }
        }
        routes
    }

    /// Two of these backends that have one server id, and the length of the ids.
    pub fn clash<'a>(
        &self,
        backends: impl Iterator<Item = &'a str> + Clone,
    ) -> Option<(&'a str, &'a str, u8)> {
        self.configs.iter().map(|config| config.server_id_length).find_map(|length| {
            let mut taken = HashMap::new();
            backends.clone().find_map(|name| {
                let before = taken.insert(self.server_id(name, length.into()), name)?;
                Some((before, name, length))
            })
        })
    }

    /// What the servers of a service must know to make ids, as `docs/quic.md` describes the file.
    pub fn for_servers<'a>(
        &self,
        service: &str,
        backends: impl Iterator<Item = (&'a str, std::net::IpAddr)> + Clone,
    ) -> String {
        let mut out = format!(
            "# Written by weir for the servers of the service {service:?}: how they make connection ids,\n\
             # as draft-ietf-quic-load-balancers-21 says. docs/quic.md describes it. Keys are secret.\n\
             issue = {}\n",
            self.issue
        );
        for config in &self.configs {
            let _ = write!(
                out,
                "\n[[config]]\nconfig_id = {}\nserver_id_length = {}\nnonce_length = {}\n\
                 encode_length = {}\n",
                config.config_id,
                config.server_id_length,
                config.nonce_length,
                config.encode_length
            );
            if let Some(Key(key)) = &config.key {
                let _ = writeln!(out, "key = {key:?}");
            }
        }
        for (name, address) in backends {
            let _ = write!(out, "\n[[server]]\nbackend = {name:?}\naddress = \"{address}\"\n");
            for config in &self.configs {
                let id = self.server_id(name, config.server_id_length.into());
                let _ = writeln!(out, "server_id.{} = \"{id:?}\"", config.config_id);
            }
        }
        out
    }
}

/// Bytes that look random and depend on the name alone: FNV-1a, and the finalizer of splitmix64 for
/// each eight of them.
fn derived(name: &str, length: usize) -> Id {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let word = |at: u64| {
        let mut word = hash.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31).to_be_bytes()
    };
    let bytes = [word(1), word(2)].concat();
    Id::new(&bytes[..length.min(bytes.len())]).expect("it has at most 16 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quic(lengths: &[u8]) -> Quic {
        let configs = (0..).zip(lengths).map(|(config_id, &server_id_length)| QuicConfig {
            config_id,
            server_id_length,
            nonce_length: 4,
            key: None,
            encode_length: false,
        });
        Quic { configs: configs.collect(), issue: 0, server_ids: BTreeMap::new() }
    }

    /// They stand in files of servers: another version of weir must make the same.
    #[test]
    fn derived_ids_stay() {
        assert_eq!(format!("{:?}", derived("b1", 15)), "0a6ddf22fe07b3060df01ad31e1670");
        assert_eq!(format!("{:?}", derived("b1", 3)), "0a6ddf");
    }

    #[test]
    fn given_ids_count_where_they_have_the_length() {
        let mut quic = quic(&[2, 5]);
        quic.server_ids.insert("b1".into(), "0a0B".into());
        assert_eq!(quic.server_id("b1", 2).as_bytes(), [0x0a, 0x0b]);
        assert_eq!(quic.server_id("b1", 5), derived("b1", 5));
        assert_eq!(quic.clash(["b1", "b2"].into_iter()), None);
        quic.server_ids.insert("b2".into(), "0a0b".into());
        assert_eq!(quic.clash(["b1", "b2"].into_iter()), Some(("b1", "b2", 2)));
    }

    #[test]
    fn the_key_is_not_printed() {
        let key = Key::from_hex("000102030405060708090a0b0c0d0e0F").expect("it has 16 bytes");
        assert_eq!(format!("{key:?}"), "Key(..)");
        assert!(Key::from_hex("00").is_none() && Key::from_hex(&"0g".repeat(16)).is_none());
    }
}
