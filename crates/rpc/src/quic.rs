//! How servers make QUIC connection ids, as a balancer says it (draft-ietf-quic-load-balancers-21).

use crate::MOST_QUIC;
use crate::generated as raw;
use crate::message::{Fault, address_of, bytes_of};
use crate::serving::cut;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// A key of 16 bytes. Its `Debug` text does not tell it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// One configuration, as one server has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Config {
    /// Its number, 0 to 6.
    pub config_id: u8,
    /// The server's own id, of 1 to 15 bytes.
    pub server_id: Vec<u8>,
    /// Bytes of the nonce, 4 to 18; 19 with the server id at most.
    pub nonce_length: u8,
    /// Under which the server id is hidden.
    pub key: Option<Key>,
    /// Whether the first byte of an id tells its length.
    pub encode_length: bool,
}

/// A service whose packets are led by ids, as one of its servers has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Service {
    /// The service's name.
    pub service: String,
    /// The backend's name.
    pub backend: String,
    /// The backend's own address.
    pub address: IpAddr,
    /// Number of the configuration that new ids are made by; it is among the others.
    pub issue: u8,
    /// Those that ids are read by, each with a number of its own.
    pub configs: Vec<Config>,
}

/// The services of a list.
///
/// # Errors
/// [`Fault`].
pub fn quic_lb(said: &raw::QuicLb) -> Result<Vec<Service>, Fault> {
    let count = said.service.len();
    if count > MOST_QUIC {
        return Err(Fault::TooMany { field: "service", count });
    }
    said.service.iter().map(service).collect()
}

fn service(said: &raw::QuicLbService) -> Result<Service, Fault> {
    let configs = said.config.iter().map(config).collect::<Result<Vec<_>, _>>()?;
    let numbers: BTreeSet<u8> = configs.iter().map(|one| one.config_id).collect();
    if numbers.len() < configs.len() {
        return Err(Fault::TooMany { field: "config of one config_id", count: configs.len() });
    }
    let issue = u8::try_from(said.issue).ok().filter(|issue| numbers.contains(issue));
    Ok(Service {
        service: cut(&said.service),
        backend: cut(&said.backend),
        address: address_of("address", &said.address)?,
        issue: issue.ok_or(Fault::Range { field: "issue", value: said.issue.into() })?,
        configs,
    })
}

fn config(said: &raw::QuicLbConfig) -> Result<Config, Fault> {
    let wrong = |field, value: u64| Fault::Range { field, value };
    let config_id = u8::try_from(said.config_id).ok().filter(|number| *number <= 6);
    let server = said.server_id.len();
    if !(1..=15).contains(&server) {
        return Err(wrong("bytes of server_id", server as u64));
    }
    let nonce = u8::try_from(said.nonce_length).ok();
    let nonce =
        nonce.filter(|nonce| (4..=18).contains(nonce) && usize::from(*nonce) + server <= 19);
    let key = match said.key.len() {
        0 => None,
        bytes => {
            let key = <[u8; 16]>::try_from(said.key.as_slice());
            Some(Key(key.map_err(|_| wrong("bytes of key", bytes as u64))?))
        }
    };
    Ok(Config {
        config_id: config_id.ok_or(wrong("config_id", said.config_id.into()))?,
        server_id: said.server_id.clone(),
        nonce_length: nonce.ok_or(wrong("nonce_length", said.nonce_length.into()))?,
        key,
        encode_length: said.encode_length,
    })
}

impl From<&Service> for raw::QuicLbService {
    fn from(one: &Service) -> Self {
        let config = |config: &Config| raw::QuicLbConfig {
            config_id: config.config_id.into(),
            server_id: config.server_id.clone(),
            nonce_length: config.nonce_length.into(),
            key: config.key.map(|key| key.0.to_vec()).unwrap_or_default(),
            encode_length: config.encode_length,
        };
        Self {
            service: cut(&one.service),
            backend: cut(&one.backend),
            address: bytes_of(one.address),
            issue: one.issue.into(),
            config: one.configs.iter().map(config).collect(),
        }
    }
}

/// The message of these, and how many of them have no room in it.
pub fn message(all: &[Service]) -> (raw::QuicLb, usize) {
    let service: Vec<raw::QuicLbService> = all.iter().take(MOST_QUIC).map(Into::into).collect();
    let left = all.len() - service.len();
    (raw::QuicLb { service }, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromBalancer, MOST_BYTES, from_balancer};
    use prost::Message;

    fn one() -> Service {
        let config = |config_id| Config {
            config_id,
            server_id: vec![7; 15],
            nonce_length: 4,
            key: Some(Key([9; 16])),
            encode_length: true,
        };
        Service {
            service: "s".repeat(64),
            backend: "b".repeat(64),
            address: "2001:db8::1".parse().expect("an address"),
            issue: 6,
            configs: (0..7).map(config).collect(),
        }
    }

    #[test]
    fn what_is_said_comes_as_it_was_said_and_the_largest_has_room() {
        let all = vec![one(); MOST_QUIC];
        let (said, left) = message(&all);
        assert_eq!((quic_lb(&said), left), (Ok(all.clone()), 0));
        let what = from_balancer::What::QuicLb(said.clone());
        assert!(FromBalancer { what: Some(what) }.encoded_len() <= MOST_BYTES);
        let more: Vec<Service> = all.into_iter().chain([one()]).collect();
        assert_eq!(message(&more), (said.clone(), 1));
        let mut more = said;
        more.service.push((&one()).into());
        assert!(quic_lb(&more).is_err());
        assert!(!format!("{:?}", one()).contains('9'), "the key is not printed");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        type Spoilt = (fn(&mut raw::QuicLbService), &'static str);
        let wrong: [Spoilt; 9] = [
            (|raw| raw.issue = 7, "issue: 7"),
            (|raw| raw.config.clear(), "issue: 6"),
            (|raw| raw.address = vec![1; 5], "address: 5 bytes"),
            (|raw| raw.config[0].config_id = 7, "config_id: 7"),
            (|raw| raw.config[0].config_id = 1, "config of one config_id"),
            (|raw| raw.config[0].server_id.clear(), "bytes of server_id: 0"),
            (|raw| raw.config[0].server_id.push(7), "bytes of server_id: 16"),
            (|raw| raw.config[0].nonce_length = 5, "nonce_length: 5"),
            (|raw| raw.config[0].key.truncate(15), "bytes of key: 15"),
        ];
        for (change, words) in wrong {
            let mut raw = raw::QuicLbService::from(&one());
            change(&mut raw);
            let said = quic_lb(&raw::QuicLb { service: vec![raw] }).expect_err(words).to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
