//! What is announced: a network.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network that is announced: nearly always one address, with the whole length of its family.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Route {
    address: IpAddr,
    length: u8,
}

/// Why something is no route.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a network such as 192.0.2.7/32 or 2001:db8::7/128")]
pub struct RouteError(String);

impl Route {
    /// The route of one address.
    pub fn of(address: IpAddr) -> Self {
        Self { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// A network; the bits of the address behind the prefix are cleared. None if the prefix is longer than
    /// an address of the family.
    pub fn network(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32u32.checked_sub(length.into())?).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128u32.checked_sub(length.into())?).unwrap_or(0);
                IpAddr::V6((address.to_bits() & mask).into())
            }
        };
        Some(Self { address, length })
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of its prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_ipv6()
            && Self::network(address, self.length).is_some_and(|network| network == *self)
    }

    /// Whether it is of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        let wrong = || RouteError(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let (address, length) =
            (address.parse().map_err(|_| wrong())?, length.parse().map_err(|_| wrong())?);
        Self::network(address, length).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Route {
    type Error = RouteError;

    fn try_from(text: String) -> Result<Self, RouteError> {
        text.parse()
    }
}

impl From<Route> for String {
    fn from(route: Route) -> Self {
        route.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_read_as_it_is_written() {
        for text in ["192.0.2.7/32", "2001:db8::7/128", "10.0.0.0/8", "0.0.0.0/0", "::/0"] {
            assert_eq!(text.parse::<Route>().map(|route| route.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("10.1.2.3/8".parse(), Ok::<Route, RouteError>("10.0.0.0/8".parse().unwrap()));
        for text in ["", "192.0.2.7", "192.0.2.7/33", "::/129", "a/1", "1.2.3.4/-1", "1.2.3.4/"] {
            assert!(text.parse::<Route>().is_err(), "{text}");
        }
    }
}
