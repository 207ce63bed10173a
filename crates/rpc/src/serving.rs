//! How a balancer says that its packets come, from the message as it comes to what it means and back.

use crate::generated as raw;
use crate::message::{Fault, address_of, bytes_of};
use crate::{MOST_OF_A_SERVICE, MOST_SERVED, MOST_VIPS};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// How packets reach a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Way {
    /// As they are.
    Plain,
    /// In another IP packet.
    Ipip,
    /// The same with a header that says which family is inside.
    Gre,
    /// In UDP, to this port.
    Fou(u16),
    /// In UDP, to this port, with a header that says which family is inside.
    Gue(u16),
}

/// What carries a service's packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// The addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Prefix {
    /// One of them.
    pub address: IpAddr,
    /// How many bits are the same.
    pub bits: u8,
}

impl Prefix {
    /// Whether it is one address.
    pub fn is_host(&self) -> bool {
        self.bits == if self.address.is_ipv4() { 32 } else { 128 }
    }
}

/// A service with a backend that the agent speaks for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Its name, for a person; no control characters.
    pub service: String,
    /// The backend's own address.
    pub backend: IpAddr,
    /// The addresses that clients send to.
    pub vips: Vec<Prefix>,
    /// What carries its packets.
    pub transport: Transport,
    /// Its port; none: not one alone.
    pub port: Option<u16>,
    /// How its packets come; none: in a way of a later version.
    pub way: Option<Way>,
    /// Whether the backend writes cookies into the timestamps of its answers.
    pub timestamps: bool,
}

/// The services of a list. One with a transport of a later version is left out.
///
/// # Errors
/// [`Fault`].
pub fn serving(said: &raw::Serving) -> Result<Vec<Served>, Fault> {
    let vips = said.served.iter().map(|one| one.vip.len()).sum();
    for (field, count, most) in
        [("served", said.served.len(), MOST_SERVED), ("vip", vips, MOST_VIPS)]
    {
        if count > most {
            return Err(Fault::TooMany { field, count });
        }
    }
    let all = said.served.iter().map(served).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().flatten().collect())
}

fn served(said: &raw::Served) -> Result<Option<Served>, Fault> {
    let transport = match raw::Transport::try_from(said.transport) {
        Ok(raw::Transport::Tcp) => Transport::Tcp,
        Ok(raw::Transport::Udp) => Transport::Udp,
        Ok(raw::Transport::Sctp) => Transport::Sctp,
        Err(_) => return Ok(None),
    };
    let port = port_of("port", said.port)?;
    let tunnel_port = || {
        let field = "tunnel_port";
        port_of(field, said.tunnel_port)?.ok_or(Fault::Range { field, value: 0 })
    };
    let way = match raw::Way::try_from(said.way) {
        Ok(raw::Way::L2) => Some(Way::Plain),
        Ok(raw::Way::Ipip) => Some(Way::Ipip),
        Ok(raw::Way::Gre) => Some(Way::Gre),
        Ok(raw::Way::Fou) => Some(Way::Fou(tunnel_port()?)),
        Ok(raw::Way::Gue) => Some(Way::Gue(tunnel_port()?)),
        Ok(raw::Way::Unknown) | Err(_) => None,
    };
    Ok(Some(Served {
        service: cut(&said.service),
        backend: address_of("backend", &said.backend)?,
        vips: said.vip.iter().map(prefix).collect::<Result<_, _>>()?,
        transport,
        port,
        way,
        timestamps: said.timestamps,
    }))
}

fn port_of(field: &'static str, value: u32) -> Result<Option<u16>, Fault> {
    let port = u16::try_from(value).map_err(|_| Fault::Range { field, value: value.into() })?;
    Ok((port != 0).then_some(port))
}

fn prefix(said: &raw::Prefix) -> Result<Prefix, Fault> {
    let address = address_of("vip", &said.address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match u8::try_from(said.bits) {
        Ok(bits) if bits <= most => Ok(Prefix { address, bits }),
        _ => Err(Fault::Range { field: "bits", value: said.bits.into() }),
    }
}

/// A name that can be shown, and is not too long.
pub(crate) fn cut(name: &str) -> String {
    crate::message::cut(name, MOST_OF_A_SERVICE)
}

impl From<&Served> for raw::Served {
    fn from(one: &Served) -> Self {
        let (way, tunnel_port) = match one.way {
            None => (raw::Way::Unknown, 0),
            Some(Way::Plain) => (raw::Way::L2, 0),
            Some(Way::Ipip) => (raw::Way::Ipip, 0),
            Some(Way::Gre) => (raw::Way::Gre, 0),
            Some(Way::Fou(port)) => (raw::Way::Fou, port),
            Some(Way::Gue(port)) => (raw::Way::Gue, port),
        };
        let transport = match one.transport {
            Transport::Tcp => raw::Transport::Tcp,
            Transport::Udp => raw::Transport::Udp,
            Transport::Sctp => raw::Transport::Sctp,
        };
        let prefix =
            |vip: &Prefix| raw::Prefix { address: bytes_of(vip.address), bits: vip.bits.into() };
        Self {
            service: cut(&one.service),
            backend: bytes_of(one.backend),
            vip: one.vips.iter().map(prefix).collect(),
            transport: transport.into(),
            port: one.port.unwrap_or(0).into(),
            way: way.into(),
            tunnel_port: tunnel_port.into(),
            timestamps: one.timestamps,
        }
    }
}

/// The message of these, and how many of them have no room in it.
pub fn message(all: &[Served]) -> (raw::Serving, usize) {
    let mut vips = 0;
    let room = all.iter().take(MOST_SERVED).take_while(|one| {
        vips += one.vips.len();
        vips <= MOST_VIPS
    });
    let served: Vec<raw::Served> = room.map(Into::into).collect();
    let left = all.len() - served.len();
    (raw::Serving { served }, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FromBalancer, MOST_BYTES, from_balancer};
    use prost::Message;

    fn one(service: &str, vips: usize) -> Served {
        let vip =
            |n: usize| Prefix { address: (u128::MAX - n as u128).to_be_bytes().into(), bits: 128 };
        Served {
            service: service.into(),
            backend: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff".parse().expect("an address"),
            vips: (0..vips).map(vip).collect(),
            transport: Transport::Sctp,
            port: Some(u16::MAX),
            way: Some(Way::Gue(u16::MAX)),
            timestamps: true,
        }
    }

    #[test]
    fn what_is_said_comes_as_it_was_said_and_the_largest_has_room() {
        let name = "n".repeat(MOST_OF_A_SERVICE);
        let all = vec![one(&name, MOST_VIPS / MOST_SERVED); MOST_SERVED];
        let (said, left) = message(&all);
        assert_eq!((serving(&said), left), (Ok(all.clone()), 0));
        let what = from_balancer::What::Serving(said.clone());
        let bytes = FromBalancer { what: Some(what) }.encoded_len();
        assert!(bytes <= MOST_BYTES, "{bytes}");
        // What has no room is counted, and never sent.
        let more: Vec<Served> = all.iter().cloned().chain([one("more", 1)]).collect();
        assert_eq!(message(&more), (said.clone(), 1));
        let (few, left) = message(&[one("a", MOST_VIPS), one("b", 1)]);
        assert_eq!((few.served.len(), left), (1, 1));
        let mut more = said;
        more.served.push((&one("more", 1)).into());
        assert!(serving(&more).expect_err("too many").to_string().contains("1025"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_what_is_new_is_passed_over() {
        let raw_of = |change: fn(&mut raw::Served)| {
            let mut raw = raw::Served::from(&one("web", 1));
            change(&mut raw);
            raw::Serving { served: vec![raw] }
        };
        type Spoilt = (fn(&mut raw::Served), &'static str);
        let wrong: [Spoilt; 6] = [
            (|raw| raw.port = 70_000, "port: 70000"),
            (|raw| raw.tunnel_port = 0, "tunnel_port: 0"),
            (|raw| raw.tunnel_port = 70_000, "tunnel_port: 70000"),
            (|raw| raw.backend.clear(), "backend: 0 bytes"),
            (|raw| raw.vip[0].bits = 129, "bits: 129"),
            (|raw| raw.vip[0].address = vec![1; 3], "vip: 3 bytes"),
        ];
        for (change, words) in wrong {
            let said = serving(&raw_of(change)).expect_err(words).to_string();
            assert!(said.contains(words), "{said}");
        }
        let way = serving(&raw_of(|raw| raw.way = 77)).expect("it is taken");
        assert_eq!(way[0].way, None);
        assert_eq!(serving(&raw_of(|raw| raw.transport = 77)), Ok(Vec::new()));
        let named = serving(&raw_of(|raw| raw.service = format!("a\n{}", "\u{fc}".repeat(40))));
        assert_eq!(named.expect("it is taken")[0].service, format!("a{}", "\u{fc}".repeat(31)));
    }
}
