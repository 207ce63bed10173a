//! From messages as they come to what they mean: whoever sent them may be hostile.

use crate::generated as raw;
use crate::tls::server_name;
use crate::{MOST_BALANCERS, MOST_ENDPOINTS, MOST_OF_A_MESSAGE, MOST_OF_A_NAME, PROTOCOL};
use crate::{MOST_OF_A_WEIGHT, MOST_OF_WORDS};
use std::net::IpAddr;
use std::time::Duration;

/// What is wrong with a message. The session ends by it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// Another version.
    #[error(
        "it speaks version {0} of the protocol, and this is version {PROTOCOL}: run the same weir on both"
    )]
    Protocol(u32),
    /// It must begin with another message.
    #[error("the first message is not {0}")]
    First(&'static str),
    /// A message without content, of a newer version maybe, where one is needed.
    #[error("a message says nothing")]
    Nothing,
    /// Bytes that are no address.
    #[error("{field}: {bytes} bytes are no address")]
    Address {
        /// Which field.
        field: &'static str,
        /// How many.
        bytes: usize,
    },
    /// A number out of range.
    #[error("{field}: {value} is not in range")]
    Range {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// More of something than a message may have.
    #[error("{field}: {count} of them in a message")]
    TooMany {
        /// Which field.
        field: &'static str,
        /// How many.
        count: usize,
    },
}

/// An end of a connection on a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Connection {
    /// Number of the endpoint.
    pub endpoint: u32,
    /// The client's address.
    pub client: IpAddr,
    /// The client's port.
    pub client_port: u16,
    /// The backend's port, where the endpoint is one of any port.
    pub port: Option<u16>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The handshake is over.
    Opened,
    /// No packet of it comes any more.
    Closed,
    /// It has ended, and late packets may come.
    Lingers,
}

/// Where connections end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// By which they are told.
    pub id: u32,
    /// Address on the backend.
    pub address: IpAddr,
    /// Port there; none: any.
    pub port: Option<u16>,
}

/// A balancer of a fleet, as another one names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// What it is called.
    pub name: String,
    /// Host and port where agents call it; none: that is not known.
    pub at: Option<(String, u16)>,
}

/// The balancers of a fleet, as one of them knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Balancers {
    /// What the one that speaks is called; empty: it does not say.
    pub own: String,
    /// All of them.
    pub peers: Vec<Peer>,
}

/// The bytes of an address; an IPv4 address that is written as one of IPv6 is one of IPv4.
pub fn bytes_of(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address of 4 or 16 bytes.
///
/// # Errors
/// [`Fault::Address`].
pub fn address_of(field: &'static str, bytes: &[u8]) -> Result<IpAddr, Fault> {
    let fault = Fault::Address { field, bytes: bytes.len() };
    let address = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).map(IpAddr::from),
        _ => return Err(fault),
    };
    address.map(|address| address.to_canonical()).map_err(|_| fault)
}

fn port_of(field: &'static str, value: u32) -> Result<u16, Fault> {
    u16::try_from(value).map_err(|_| Fault::Range { field, value: value.into() })
}

fn few(field: &'static str, count: usize, most: usize) -> Result<(), Fault> {
    if count > most { Err(Fault::TooMany { field, count }) } else { Ok(()) }
}

/// Whether the other side speaks this version.
///
/// # Errors
/// [`Fault::Protocol`].
pub fn same_version(protocol: u32) -> Result<(), Fault> {
    if protocol == PROTOCOL { Ok(()) } else { Err(Fault::Protocol(protocol)) }
}

/// The addresses in a Hello of this version.
///
/// # Errors
/// [`Fault`].
pub fn hello(hello: &raw::Hello) -> Result<Vec<IpAddr>, Fault> {
    same_version(hello.protocol)?;
    if hello.instance.len() != 16 {
        return Err(Fault::Range { field: "instance", value: hello.instance.len() as u64 });
    }
    if hello.next < hello.first {
        return Err(Fault::Range { field: "next", value: hello.next });
    }
    few("addresses", hello.addresses.len(), MOST_ENDPOINTS)?;
    hello.addresses.iter().map(|bytes| address_of("addresses", bytes)).collect()
}

impl TryFrom<&raw::Connection> for Connection {
    type Error = Fault;

    fn try_from(said: &raw::Connection) -> Result<Self, Fault> {
        let port = port_of("port", said.port)?;
        Ok(Self {
            endpoint: said.endpoint,
            client: address_of("client", &said.client)?,
            client_port: port_of("client_port", said.client_port)?,
            port: (port != 0).then_some(port),
        })
    }
}

impl From<Connection> for raw::Connection {
    fn from(one: Connection) -> Self {
        Self {
            endpoint: one.endpoint,
            client: bytes_of(one.client),
            client_port: one.client_port.into(),
            port: one.port.unwrap_or(0).into(),
        }
    }
}

impl From<Kind> for raw::Kind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Opened => Self::Opened,
            Kind::Closed => Self::Closed,
            Kind::Lingers => Self::Lingers,
        }
    }
}

/// The events of a message, each with what becomes of its connection. Those of a kind that this version does
/// not know are left out.
///
/// # Errors
/// [`Fault`].
pub fn events(said: &raw::Events) -> Result<Vec<(Kind, Connection)>, Fault> {
    few("event", said.event.len(), MOST_OF_A_MESSAGE)?;
    if said.next < said.first {
        return Err(Fault::Range { field: "next", value: said.next });
    }
    let mut events = Vec::with_capacity(said.event.len());
    for event in &said.event {
        let kind = match raw::Kind::try_from(event.kind) {
            Ok(raw::Kind::Opened) => Kind::Opened,
            Ok(raw::Kind::Closed) => Kind::Closed,
            Ok(raw::Kind::Lingers) => Kind::Lingers,
            Err(_) => continue,
        };
        let connection = event.connection.as_ref().ok_or(Fault::Nothing)?;
        events.push((kind, connection.try_into()?));
    }
    Ok(events)
}

/// The connections of a part of a dump.
///
/// # Errors
/// [`Fault`].
pub fn dumped(said: &raw::Dumped) -> Result<Vec<Connection>, Fault> {
    few("connection", said.connection.len(), MOST_OF_A_MESSAGE)?;
    said.connection.iter().map(TryInto::try_into).collect()
}

/// The connections of a part of an answer to Collect.
///
/// # Errors
/// [`Fault`].
pub fn collected(said: &raw::Collected) -> Result<Vec<Connection>, Fault> {
    few("connection", said.connection.len(), MOST_OF_A_MESSAGE)?;
    said.connection.iter().map(TryInto::try_into).collect()
}

/// A load that can be gone by: no negative number, and none that is not a number.
///
/// # Errors
/// [`Fault::Range`].
pub fn load(said: &raw::Load) -> Result<Option<f64>, Fault> {
    let good = |value: &f64| value.is_finite() && *value >= 0.0;
    if !good(&said.cpu) {
        return Err(Fault::Range { field: "cpu", value: said.cpu.to_bits() });
    }
    match said.load {
        Some(load) if !good(&load) => Err(Fault::Range { field: "load", value: load.to_bits() }),
        load => Ok(load),
    }
}

/// Whether an application is well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// It is.
    pub good: bool,
    /// In words that can be shown.
    pub why: String,
    /// The weight that it says is its own, as it says it; empty: none.
    pub weight: String,
    /// After so long it says so again.
    pub every: Duration,
}

/// What an agent says of its application's health. Nothing in it can be wrong: words are cut.
pub fn health(said: &raw::Health) -> Health {
    Health {
        good: said.good,
        why: cut(&said.why, MOST_OF_WORDS),
        weight: cut(&said.weight, MOST_OF_A_WEIGHT),
        every: Duration::from_millis(said.every_ms.into()),
    }
}

/// A text that can be shown, and is not too long.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).collect();
    let end = (0..=most.min(shown.len())).rev().find(|at| shown.is_char_boundary(*at));
    shown.truncate(end.unwrap_or(0));
    shown
}

/// The endpoints of a list.
///
/// # Errors
/// [`Fault`].
pub fn endpoints(said: &raw::Endpoints) -> Result<Vec<Endpoint>, Fault> {
    few("endpoint", said.endpoint.len(), MOST_ENDPOINTS)?;
    let one = |said: &raw::Endpoint| {
        let port = port_of("port", said.port)?;
        let address = address_of("address", &said.address)?;
        Ok(Endpoint { id: said.id, address, port: (port != 0).then_some(port) })
    };
    said.endpoint.iter().map(one).collect()
}

/// The balancers of a list. Nameless ones are left out, and those with names that are too long or have control
/// characters; whoever speaks and is called so has an empty name. Where one is that no certificate could name is not known.
///
/// # Errors
/// [`Fault`].
pub fn balancers(said: &raw::Balancers) -> Result<Balancers, Fault> {
    few("peer", said.peer.len(), MOST_BALANCERS)?;
    let good = |name: &str| name.len() <= MOST_OF_A_NAME && !name.contains(char::is_control);
    let named = said.peer.iter().filter(|peer| !peer.name.is_empty() && good(&peer.name));
    let peers = named.map(|peer| {
        let port = u16::try_from(peer.port).ok().filter(|port| *port != 0);
        let at = port.filter(|_| server_name(&peer.host).is_ok());
        Peer { name: peer.name.clone(), at: at.map(|port| (peer.host.clone(), port)) }
    });
    let own = if good(&said.own) { said.own.clone() } else { String::new() };
    Ok(Balancers { own, peers: peers.collect() })
}

impl From<&Balancers> for raw::Balancers {
    fn from(all: &Balancers) -> Self {
        let peer = all.peers.iter().map(|peer| {
            let (host, port) = peer.at.clone().unwrap_or_default();
            raw::Peer { name: peer.name.clone(), host, port: port.into() }
        });
        Self { own: all.own.clone(), peer: peer.collect() }
    }
}

impl From<Endpoint> for raw::Endpoint {
    fn from(one: Endpoint) -> Self {
        let port = one.port.unwrap_or(0).into();
        Self { id: one.id, address: bytes_of(one.address), port }
    }
}
