//! The kernel's interfaces, routes and neighbour table, read over rtnetlink.
//!
//! The data plane asks `bpf_fib_lookup` for the next hop of a backend. Where that cannot
//! answer (forwarding is off on the interface, for example), the control plane finds it here
//! and publishes it.

#![forbid(unsafe_code)]

mod events;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::link::{
    BondMode, BondXmitHashPolicy, InfoBond, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage, LinkXdp, VlanProtocol, XdpAttached,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

pub use events::{Change, watch};
use weir_host::rtnetlink::{self, Asker};

/// The discard service, RFC 863: whoever listens there throws away what it gets.
const DISCARD: u16 = 9;

/// What questions of one piece of work have in common.
#[derive(Default)]
struct Common {
    /// The socket that they go by, once one was asked.
    asker: Option<Asker>,
    /// Interfaces that were asked for by their numbers.
    interfaces: HashMap<u32, Interface>,
}

thread_local! {
    static COMMON: RefCell<Option<Common>> = const { RefCell::new(None) };
}

/// Does a piece of work that asks about many addresses: by one socket, and about each interface once. The thread is to
/// stay in its network namespace meanwhile.
pub fn together<T>(work: impl FnOnce() -> T) -> T {
    /// Also if the work panics.
    struct End;

    impl Drop for End {
        fn drop(&mut self) {
            COMMON.set(None);
        }
    }

    if COMMON.with_borrow(Option::is_some) {
        return work();
    }
    COMMON.set(Some(Common::default()));
    let _end = End;
    work()
}

fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    COMMON.with_borrow_mut(|common| {
        let Some(common) = common else { return rtnetlink::ask(question, flags) };
        let mut asker = common.asker.take().map_or_else(Asker::new, Ok)?;
        let answers = asker.ask(question, flags)?;
        common.asker = Some(asker);
        Ok(answers)
    })
}

/// Why the kernel's tables have no answer.
#[derive(Debug, thiserror::Error)]
pub enum NeighError {
    /// The kernel refused a question over rtnetlink, or its answer made no sense.
    #[error("asking the kernel for {what}: {source}")]
    Kernel {
        /// What was asked for, for example `a neighbour`.
        what: &'static str,
        /// The error that the kernel gave.
        source: io::Error,
    },
    /// There is no interface of this name.
    #[error("there is no interface {name}; `ip link` lists them")]
    NoInterface {
        /// The name that was asked for.
        name: String,
    },
    /// The interface has no Ethernet address.
    #[error("interface {name} has no Ethernet address")]
    NotEthernet {
        /// The interface's name, or its number where only that is known.
        name: String,
    },
    /// No route leads to the address.
    #[error("no route to {address}: {source}; `ip route get {address}` shows the same")]
    NoRoute {
        /// The address that was asked for.
        address: IpAddr,
        /// The error that the kernel gave.
        source: io::Error,
    },
    /// Only a router leads to the address. What is sent there with a service's address, the router
    /// would send back.
    #[error(
        "{address} is behind the router {gateway}, and forward = \"l2\" sends frames to backends on a link of this host's only; a tunnel (ipip, gue, fou, gre) gets there, and nat"
    )]
    Gateway {
        /// The address that was asked for.
        address: IpAddr,
        /// The router.
        gateway: IpAddr,
    },
    /// The address belongs to this host.
    #[error("{address} belongs to this host itself")]
    Local {
        /// The address that was asked for.
        address: IpAddr,
    },
    /// The address is that of all hosts on a link.
    #[error("{address} is the broadcast address of a network that this host is on")]
    Broadcast {
        /// The address that was asked for.
        address: IpAddr,
    },
}

/// Where frames for an address go: the three things that a frame's header needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Destination MAC address.
    pub mac: [u8; 6],
    /// Number of the interface through which frames leave.
    pub ifindex: u32,
    /// MAC address of that interface.
    pub source_mac: [u8; 6],
}

/// The kernel's route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the interface through which packets leave.
    pub ifindex: u32,
    /// The router in between; `None` if the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel would use.
    pub source: Option<IpAddr>,
    /// The largest packet that the route takes, if it says so: set by hand, or found out on the way.
    pub mtu: Option<u32>,
}

/// The way to an address, by whatever routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where frames go: to the address, or to the first router; `None` if that is not resolved yet.
    pub next: Option<Neighbour>,
    /// The first router, if there is one.
    pub gateway: Option<IpAddr>,
    /// Our own address on the way.
    pub source: Option<IpAddr>,
    /// The largest packet that it takes, in bytes.
    pub mtu: u32,
}

/// What the neighbour table says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The MAC address, confirmed lately or set by hand.
    Confirmed([u8; 6]),
    /// The MAC address, known from some time ago and not confirmed since.
    Stale([u8; 6]),
    /// The kernel asked for it and got no answer.
    Failed,
    /// The table has no entry, or the kernel is asking just now.
    Unknown,
}

/// A network interface, as rtnetlink describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number of the interface in its network namespace.
    pub index: u32,
    /// Name of the interface, for example `eth0`.
    pub name: String,
    /// Ethernet address; `None` for interfaces of other kinds, such as tunnels.
    pub mac: Option<[u8; 6]>,
    /// MTU: the largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it is a veth.
    pub veth: bool,
    /// What it is made of; `None` for hardware.
    pub kind: Option<Kind>,
    /// The bond or bridge that it is part of.
    pub master: Option<u32>,
    /// The interface underneath or at the other end, if it is in the same network namespace.
    pub link: Option<u32>,
    /// Whether an XDP program is attached.
    pub xdp: bool,
}

/// What an interface is made of, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A VLAN of the interface underneath.
    Vlan {
        /// Its number, 1 to 4094.
        id: u16,
        /// Whether its tag is 802.1Q; else it is another, such as 802.1ad.
        plain: bool,
    },
    /// A bridge.
    Bridge,
    /// Several interfaces that act as one.
    Bond {
        /// Why it has nothing to do with XDP programs, if that is so: `of mode balance-alb`.
        refuses: Option<String>,
    },
    /// Something else, by its name, such as `macvlan`.
    Other(String),
}

/// Where frames for `address` go; `None` if the neighbour is not resolved yet. Then, or if the
/// entry is old, a datagram without data is sent to the discard port of the address, which
/// makes the kernel resolve it: ask again a little later.
///
/// # Errors
/// [`NeighError::NoRoute`], [`NeighError::Local`], [`NeighError::Broadcast`], [`NeighError::NotEthernet`],
/// [`NeighError::Gateway`] if no frame can go there as things are.
pub async fn resolve(address: IpAddr) -> Result<Option<Neighbour>, NeighError> {
    // The kernel may make a question wait for others that configure interfaces.
    tokio::task::spawn_blocking(move || resolve_now(address)).await.unwrap_or_else(|stopped| {
        Err(NeighError::Kernel { what: "a neighbour", source: io::Error::other(stopped) })
    })
}

/// [`resolve`] for callers without a runtime.
///
/// # Errors
/// Those of [`resolve`].
pub fn resolve_now(address: IpAddr) -> Result<Option<Neighbour>, NeighError> {
    let route = route(address)?;
    if let Some(gateway) = route.gateway {
        return Err(NeighError::Gateway { address, gateway });
    }
    let interface = interface_by_index(route.ifindex)?;
    let source_mac = interface.mac.ok_or(NeighError::NotEthernet { name: interface.name })?;
    let found = neighbour(address, route.ifindex)?;
    if !matches!(found, Resolution::Confirmed(_)) {
        provoke(address, route.ifindex);
    }
    Ok(match found {
        Resolution::Confirmed(mac) | Resolution::Stale(mac) => {
            Some(Neighbour { mac, ifindex: route.ifindex, source_mac })
        }
        Resolution::Failed | Resolution::Unknown => None,
    })
}

/// As [`resolve_now`], by whatever routers. `except`: addresses that are not ours alone.
///
/// # Errors
/// Those of [`resolve`], but for [`NeighError::Gateway`].
pub fn path(address: IpAddr, except: &BTreeSet<IpAddr>) -> Result<Path, NeighError> {
    let route = route(address)?;
    let interface = interface_by_index(route.ifindex)?;
    let mtu = route.mtu.map_or(interface.mtu, |mtu| mtu.min(interface.mtu));
    let source_mac = interface.mac.ok_or(NeighError::NotEthernet { name: interface.name })?;
    let (gateway, ifindex) = (route.gateway, route.ifindex);
    let first = gateway.unwrap_or(address);
    let found = neighbour(first, ifindex)?;
    if !matches!(found, Resolution::Confirmed(_)) {
        provoke(first, ifindex);
    }
    let next = match found {
        Resolution::Confirmed(mac) | Resolution::Stale(mac) => {
            Some(Neighbour { mac, ifindex, source_mac })
        }
        Resolution::Failed | Resolution::Unknown => None,
    };
    Ok(Path { next, gateway, source: source_for(address, except), mtu })
}

/// Makes the kernel resolve the neighbour of an address. It is a hint: failure does not matter.
pub fn provoke(address: IpAddr, ifindex: u32) {
    let (any, to): (IpAddr, SocketAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), (address, DISCARD).into()),
        IpAddr::V6(v6) => {
            let scope = if v6.is_unicast_link_local() { ifindex } else { 0 };
            let to = SocketAddrV6::new(v6, DISCARD, 0, scope);
            (Ipv6Addr::UNSPECIFIED.into(), to.into())
        }
    };
    if let Ok(socket) = UdpSocket::bind((any, 0)) {
        let _ = socket.send_to(&[], to);
    }
}

/// Every interface.
///
/// # Errors
/// [`NeighError::Kernel`].
pub fn interfaces() -> Result<Vec<Interface>, NeighError> {
    let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = ask(question, NLM_F_DUMP).map_err(kernel("interfaces"))?;
    let links = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(describe(link)),
        _ => None,
    });
    Ok(links.collect())
}

/// How frames that an XDP program sends by an interface leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayOut {
    /// As they are.
    AsItIs,
    /// By the interface underneath, with a VLAN tag.
    Tagged {
        /// That interface's number.
        lower: u32,
        /// The tag's four bytes, as on the wire.
        tag: [u8; 4],
    },
}

/// How frames that an XDP program sends by an interface leave.
///
/// # Errors
/// What it is, if they are lost there: most interfaces that are made of software take no frames from
/// XDP programs, and the kernel drops them without a word to the program.
pub fn way_out(interface: &Interface, all: &[Interface]) -> Result<WayOut, String> {
    let by_name = |interface: &Interface| match &interface.kind {
        Some(Kind::Bond { refuses: Some(why) }) => {
            Err(format!("{} (a bond {why})", interface.name))
        }
        Some(Kind::Bond { refuses: None }) => {
            let mut members = all.iter().filter(|one| one.master == Some(interface.index));
            members.try_for_each(|member| {
                let below = takes_frames(member);
                below.map_err(|what| format!("{} (a bond over {what})", interface.name))
            })
        }
        _ => takes_frames(interface),
    };
    let Some(Kind::Vlan { id, plain }) = interface.kind else {
        return by_name(interface).map(|()| WayOut::AsItIs);
    };
    let lower = interface.link.and_then(|link| all.iter().find(|one| one.index == link));
    let lower = lower.ok_or_else(|| format!("{} (a VLAN of nothing here)", interface.name))?;
    if matches!(lower.kind, Some(Kind::Vlan { .. })) {
        return Err(format!("{} (a VLAN in a VLAN)", interface.name));
    }
    by_name(lower)?;
    let protocol: u16 = if plain { 0x8100 } else { 0x88a8 };
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = id.to_be_bytes();
    Ok(WayOut::Tagged { lower: lower.index, tag: [a, b, c, d] })
}

/// The interfaces by these names, and those above them whose frames come through them: VLANs and MAC VLANs (VRRP
/// has one for its address), bonds and bridges. `links`: all that there are.
pub fn with_above(names: &[String], links: &[Interface]) -> Vec<String> {
    let mut all = names.to_vec();
    let above = |low: &Interface, high: &Interface| {
        let on_it = match &high.kind {
            Some(Kind::Vlan { .. }) => true,
            Some(Kind::Other(kind)) => kind == "macvlan",
            _ => false,
        };
        high.link == Some(low.index) && on_it || low.master == Some(high.index)
    };
    let mut at = 0;
    while let Some(name) = all.get(at) {
        if let Some(low) = links.iter().find(|link| link.name == *name) {
            let found = links.iter().filter(|high| above(low, high) && !all.contains(&high.name));
            let found: Vec<String> = found.map(|high| high.name.clone()).collect();
            all.extend(found);
        }
        at += 1;
    }
    all
}

/// Whether an interface takes frames from XDP programs, of those that stand by themselves.
fn takes_frames(interface: &Interface) -> Result<(), String> {
    match &interface.kind {
        None => Ok(()),
        Some(Kind::Other(kind)) if matches!(kind.as_str(), "veth" | "tun" | "tap") => Ok(()),
        Some(Kind::Other(kind)) => Err(format!("{} ({kind})", interface.name)),
        Some(Kind::Bridge) => Err(format!("{} (a bridge)", interface.name)),
        Some(Kind::Vlan { .. }) => Err(format!("{} (a VLAN)", interface.name)),
        Some(Kind::Bond { .. }) => Err(format!("{} (a bond)", interface.name)),
    }
}

/// The number of an interface.
///
/// # Errors
/// [`NeighError::NoInterface`].
pub fn interface_index(name: &str) -> Result<u32, NeighError> {
    Ok(interface(name)?.index)
}

/// The Ethernet address of an interface.
///
/// # Errors
/// [`NeighError::NoInterface`], [`NeighError::NotEthernet`].
pub fn interface_mac(name: &str) -> Result<[u8; 6], NeighError> {
    interface(name)?.mac.ok_or_else(|| NeighError::NotEthernet { name: name.to_owned() })
}

/// The largest packet in bytes that an interface takes, without the Ethernet header.
///
/// # Errors
/// [`NeighError::NoInterface`].
pub fn interface_mtu(name: &str) -> Result<u32, NeighError> {
    Ok(interface(name)?.mtu)
}

/// An interface by name.
///
/// # Errors
/// [`NeighError::NoInterface`].
pub fn interface(name: &str) -> Result<Interface, NeighError> {
    let mut question = LinkMessage::default();
    question.attributes.push(LinkAttribute::IfName(name.to_owned()));
    get_link(question, name)
}

/// An interface by number.
///
/// # Errors
/// [`NeighError::NoInterface`].
pub fn interface_by_index(index: u32) -> Result<Interface, NeighError> {
    let known = |common: &Option<Common>| common.as_ref()?.interfaces.get(&index).cloned();
    if let Some(interface) = COMMON.with_borrow(known) {
        return Ok(interface);
    }
    let mut question = LinkMessage::default();
    question.header.index = index;
    let found = get_link(question, &format!("number {index}"))?;
    COMMON.with_borrow_mut(|common| {
        if let Some(common) = common {
            common.interfaces.insert(index, found.clone());
        }
    });
    Ok(found)
}

fn get_link(question: LinkMessage, name: &str) -> Result<Interface, NeighError> {
    let answers = match ask(RouteNetlinkMessage::GetLink(question), 0) {
        // ERANGE and EINVAL: the kernel does not take it for a name at all.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL)) =>
        {
            Vec::new()
        }
        answers => answers.map_err(kernel("an interface"))?,
    };
    let found = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    found.map(describe).ok_or_else(|| NeighError::NoInterface { name: name.to_owned() })
}

fn describe(link: LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        veth: false,
        kind: None,
        master: None,
        link: None,
        xdp: false,
    };
    let mut elsewhere = false;
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::Address(address) => interface.mac = ethernet(&address),
            LinkAttribute::Link(index) => interface.link = Some(index),
            LinkAttribute::Controller(index) => interface.master = Some(index),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(info) => {
                interface.veth =
                    info.iter().any(|one| matches!(one, LinkInfo::Kind(InfoKind::Veth)));
                interface.kind = kind_of(&info);
            }
            LinkAttribute::Xdp(xdp) => {
                interface.xdp = xdp.iter().any(|one| {
                    matches!(one, LinkXdp::Attached(how) if !matches!(how, XdpAttached::None))
                });
            }
            _ => {}
        }
    }
    if elsewhere {
        interface.link = None;
    }
    interface
}

fn kind_of(info: &[LinkInfo]) -> Option<Kind> {
    let kind = info.iter().find_map(|one| match one {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })?;
    Some(match kind {
        InfoKind::Vlan => {
            let data = info.iter().find_map(|one| match one {
                LinkInfo::Data(InfoData::Vlan(data)) => Some(data.as_slice()),
                _ => None,
            });
            let data = data.unwrap_or_default();
            let id = data.iter().find_map(|one| match one {
                InfoVlan::Id(id) => Some(*id),
                _ => None,
            });
            let other = |one: &InfoVlan| matches!(one, InfoVlan::Protocol(protocol) if *protocol != VlanProtocol::Ieee8021Q);
            Kind::Vlan { id: id.unwrap_or(0), plain: !data.iter().any(other) }
        }
        InfoKind::Bridge => Kind::Bridge,
        InfoKind::Bond => {
            let data = info.iter().find_map(|one| match one {
                LinkInfo::Data(InfoData::Bond(data)) => Some(data.as_slice()),
                _ => None,
            });
            Kind::Bond { refuses: bond_refuses(data.unwrap_or_default()) }
        }
        other => Kind::Other(other.to_string()),
    })
}

/// Why a bond neither runs XDP programs in its members nor takes frames from them: its driver can do both
/// in four of its seven modes (bond_xdp_check in Linux' drivers/net/bonding/bond_main.c).
fn bond_refuses(data: &[InfoBond]) -> Option<String> {
    let mode = data.iter().find_map(|one| match one {
        InfoBond::Mode(mode) => Some(mode),
        _ => None,
    });
    let by_source = data
        .iter()
        .any(|one| matches!(one, InfoBond::XmitHashPolicy(BondXmitHashPolicy::VlanSrcMac)));
    match mode? {
        BondMode::BalanceRr | BondMode::ActiveBackup => None,
        BondMode::BalanceXor | BondMode::Ieee8023Ad if by_source => {
            Some("with xmit_hash_policy vlan+srcmac".into())
        }
        BondMode::BalanceXor | BondMode::Ieee8023Ad => None,
        mode => Some(format!("of mode {mode}")),
    }
}

fn ethernet(address: &[u8]) -> Option<[u8; 6]> {
    address.try_into().ok()
}

/// Every address of this host, with the interface that has it.
///
/// # Errors
/// [`NeighError::Kernel`].
pub fn addresses() -> Result<Vec<(u32, IpAddr)>, NeighError> {
    weir_host::rtnetlink::addresses().map_err(kernel("addresses"))
}

/// The same, each with the length of its network's prefix.
///
/// # Errors
/// [`NeighError::Kernel`].
pub fn networks() -> Result<Vec<(u32, IpAddr, u8)>, NeighError> {
    weir_host::rtnetlink::networks().map_err(kernel("addresses"))
}

/// Our address for talking to `address`: the kernel's choice, or if that is one of `except`
/// another one of the interface's. `None` leaves it to the kernel.
pub fn source_for(address: IpAddr, except: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let route = route(address).ok()?;
    if route.source.is_some_and(|source| !except.contains(&source)) {
        return route.source;
    }
    let usable = |found: &IpAddr| {
        let local = match found {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        found.is_ipv4() == address.is_ipv4() && !local && !except.contains(found)
    };
    let ours = addresses().ok()?;
    ours.into_iter().filter(|(index, _)| *index == route.ifindex).map(|(_, a)| a).find(usable)
}

/// An address of ours, of the family of a service's, that a backend reached by an interface can answer to: none of
/// `except`.
pub fn own_address(
    vip: IpAddr,
    backend: IpAddr,
    ifindex: u32,
    except: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    if vip.is_ipv4() == backend.is_ipv4() {
        return source_for(backend, except);
    }
    let all = addresses().ok()?;
    let usable = |address: &IpAddr| {
        let local = match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_loopback(),
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_loopback(),
        };
        address.is_ipv4() == vip.is_ipv4() && !local && !except.contains(address)
    };
    let there = all.iter().filter(|(_, address)| usable(address));
    let best = there.clone().find(|(index, _)| *index == ifindex);
    best.or_else(|| there.clone().next()).map(|(_, address)| *address)
}

/// The route to an address.
///
/// # Errors
/// [`NeighError::NoRoute`], [`NeighError::Local`], [`NeighError::Broadcast`].
pub fn route(address: IpAddr) -> Result<Route, NeighError> {
    let mut question = RouteMessage::default();
    question.header.address_family = family(address);
    question.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    question.attributes.push(RouteAttribute::Destination(address.into()));
    let no_route = |source| NeighError::NoRoute { address, source };
    let answers = match ask(RouteNetlinkMessage::GetRoute(question), 0) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput
            ) =>
        {
            return Err(no_route(error));
        }
        answers => answers.map_err(kernel("a route"))?,
    };
    let found = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let unreachable = || no_route(io::ErrorKind::NetworkUnreachable.into());
    let found = found.ok_or_else(unreachable)?;
    match found.header.kind {
        RouteType::Unicast => read_route(&found).ok_or_else(unreachable),
        RouteType::Local => Err(NeighError::Local { address }),
        RouteType::Broadcast => Err(NeighError::Broadcast { address }),
        _ => Err(unreachable()),
    }
}

/// What this host's own stack does with a packet to an address that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It answers: the address is its own.
    Answers,
    /// It drops it and says nothing, whatever else is set.
    Dropped,
    /// It tells the sender that there is no way.
    Refused,
    /// It sends it on, where it forwards; else it drops it and says nothing.
    SentOn,
}

/// What this host's own stack does with packets to an address; none where it cannot be told.
pub fn taken(address: IpAddr) -> Option<Taken> {
    match route(address) {
        Ok(_) => Some(Taken::SentOn),
        Err(NeighError::Local { .. }) => Some(Taken::Answers),
        Err(NeighError::NoRoute { source, .. }) => Some(match source.kind() {
            // What the kernel says of a blackhole.
            io::ErrorKind::InvalidInput => Taken::Dropped,
            _ => Taken::Refused,
        }),
        Err(_) => None,
    }
}

fn read_route(message: &RouteMessage) -> Option<Route> {
    let mut ifindex = None;
    let mut gateway = None;
    let mut source = None;
    let mut mtu = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(via) => {
                use netlink_packet_route::route::RouteVia;
                gateway = match via {
                    RouteVia::Inet(v4) => Some((*v4).into()),
                    RouteVia::Inet6(v6) => Some((*v6).into()),
                    _ => None,
                };
            }
            RouteAttribute::PrefSource(address) => source = ip(address),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(Route { ifindex: ifindex?, gateway, source, mtu })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// What the neighbour table has for an address on the link of an interface.
///
/// # Errors
/// [`NeighError::Kernel`].
pub fn neighbour(address: IpAddr, ifindex: u32) -> Result<Resolution, NeighError> {
    let mut question = NeighbourMessage::default();
    question.header.family = family(address);
    question.header.ifindex = ifindex;
    question.attributes.push(NeighbourAttribute::Destination(address.into()));
    let answers = match ask(RouteNetlinkMessage::GetNeighbour(question), 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Resolution::Unknown),
        answers => answers.map_err(kernel("a neighbour"))?,
    };
    let found = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
        _ => None,
    });
    Ok(found.map_or(Resolution::Unknown, |entry| read_neighbour(&entry)))
}

fn read_neighbour(entry: &NeighbourMessage) -> Resolution {
    let mac = entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(address) => ethernet(address),
        _ => None,
    });
    use NeighbourState::{Delay, Failed, Noarp, Permanent, Probe, Reachable, Stale};
    match (entry.header.state, mac) {
        (Reachable | Permanent | Noarp, Some(mac)) => Resolution::Confirmed(mac),
        (Stale | Delay | Probe, Some(mac)) => Resolution::Stale(mac),
        (Failed, _) => Resolution::Failed,
        _ => Resolution::Unknown,
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn kernel(what: &'static str) -> impl FnOnce(io::Error) -> NeighError {
    move |source| NeighError::Kernel { what, source }
}
