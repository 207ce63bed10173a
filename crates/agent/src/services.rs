//! The services whose connections carry cookies.

use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Of the map.
const MOST: usize = 4096;
/// Bytes of a key: an address as frames have it, and a port.
const KEY: usize = 24;

/// An address of a service, as clients know it, and its port unless it has all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Service {
    /// The address that clients send to, of IPv4 or IPv6.
    pub address: IpAddr,
    /// The port; `None` for all.
    pub port: Option<u16>,
}

impl Service {
    fn key(self) -> [u8; KEY] {
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let port = u64::from(self.port.unwrap_or(0).to_be());
        let mut key = [0; KEY];
        key[..16].copy_from_slice(&address.octets());
        key[16..].copy_from_slice(&port.to_ne_bytes());
        key
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(both) = text.parse::<SocketAddr>() {
            if both.port() == 0 {
                return Err("port 0 is none; without a port all of the address are meant".into());
            }
            return Ok(Self { address: both.ip(), port: Some(both.port()) });
        }
        let address = text.parse::<IpAddr>().map_err(|_| {
            "is not ADDRESS or ADDRESS:PORT, like 10.0.0.1, 10.0.0.1:80 or [2001:db8::1]:80"
                .to_string()
        })?;
        Ok(Self { address, port: None })
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// Makes these the services that the programs know, whatever an agent before has told them.
pub(crate) fn tell(map: &impl MapCore, services: &[Service]) -> Result<(), Error> {
    let wanted: HashSet<[u8; KEY]> = services.iter().map(|service| service.key()).collect();
    if wanted.len() > MOST {
        return Err(Error::TooMany { services: wanted.len(), most: MOST });
    }
    let told: Vec<Vec<u8>> = map.keys().collect();
    for old in told.iter().filter(|old| !wanted.contains(old.as_slice())) {
        map.delete(old).context(|| "forget a service".into())?;
    }
    for key in wanted {
        map.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY).context(|| "note a service".into())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Service;

    #[test]
    fn services_are_read_as_they_are_written() {
        for text in ["10.0.0.1", "10.0.0.1:80", "2001:db8::1", "[2001:db8::1]:443"] {
            assert_eq!(text.parse::<Service>().unwrap().to_string(), text);
        }
        for text in ["", "web", "10.0.0.1:0", "10.0.0.1:", "10.0.0.1:70000", "[2001:db8::1]"] {
            assert!(text.parse::<Service>().is_err(), "{text}");
        }
    }
}
