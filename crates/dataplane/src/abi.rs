//! The shapes of the maps: types generated from bpf/abi.h, and how they become this crate's.

use crate::numbers;
use std::net::IpAddr;
use weir_plane::forward::{Encapsulation, Ports, Segments, Translation, Tunnel};
use weir_steering::{ServiceState, StateKey};
use weir_wire::hash::ports_word;
use weir_wire::{FlowKey, map_address, unmap_address};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/weir.skel.rs"));
}

pub(crate) use skeleton::types;

/// A plain structure without padding that may be copied to and from map memory.
///
/// # Safety
/// Any bytes are a valid value, and the type has no padding.
pub(crate) unsafe trait Plain: Copy {
    /// The value's bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the type has no padding, so all its bytes are initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// A value of bytes; short input is an error of the caller.
    fn from_slice(bytes: &[u8]) -> Self {
        assert!(bytes.len() >= size_of::<Self>(), "map value too short");
        // SAFETY: there are enough bytes, any bytes are a valid value, and the read is unaligned.
        unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() }
    }
}

// SAFETY: an integer.
unsafe impl Plain for u32 {}

macro_rules! plain {
    ($($name:ident),*) => {$(
        // SAFETY: generated from a structure of integers and arrays of integers, for which
        // bpf/abi.h makes padding an error.
        unsafe impl Plain for types::$name {}
    )*};
}

plain!(
    vip,
    kind,
    source_list,
    cap,
    backend,
    lane,
    device,
    path,
    outcome,
    state_key,
    service_state,
    event,
    unreported,
    flow_key,
    fragment,
    tracked,
    answer,
    slot,
    stack,
    load,
    quic_config,
    quic_server,
    translated,
    translation,
    returned,
    port_pool,
    origin,
    mapping
);

/// Flags of a [`BackendEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendFlags;

impl BackendFlags {
    /// The entry is in use.
    pub const PRESENT: u32 = numbers::BACKEND_PRESENT;
    /// The MAC addresses and the interface may be used when the FIB has no answer.
    pub const HAS_MAC: u32 = numbers::BACKEND_HAS_MAC;
    /// Never ask the FIB.
    pub const STATIC: u32 = numbers::BACKEND_STATIC;
    /// The address is IPv6.
    pub const IPV6: u32 = numbers::BACKEND_IPV6;
    /// Down by its health check.
    pub const DOWN: u32 = numbers::BACKEND_DOWN;
    /// Its tunnel has an address to begin at.
    pub const HAS_SOURCE: u32 = numbers::BACKEND_HAS_SOURCE;
    /// It is down, and what comes for it is answered by resets.
    pub const RESETS: u32 = numbers::BACKEND_RESETS;
}

/// What the data plane knows of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendEntry {
    /// Address, 16 bytes in network order, IPv4 as `::ffff:a.b.c.d`.
    pub address: [u8; 16],
    /// MAC address of the next hop, for when the FIB has no answer.
    pub mac: [u8; 6],
    /// Our own MAC address towards it.
    pub source_mac: [u8; 6],
    /// Number of the interface towards it; 0 for the one that the packet came in by.
    pub ifindex: u32,
    /// Any of [`BackendFlags`], added up.
    pub flags: u32,
    /// How often this backend number was given out, so that connections of a former bearer are not
    /// mistaken for this one's.
    pub incarnation: u32,
    /// Source address of its tunnel, IPv4 as `::ffff:a.b.c.d`; under full NAT the ports that its packets
    /// come from.
    pub source: [u8; 16],
    /// The largest packet that the way there takes, where the FIB does not say; 0: not known.
    pub mtu: u32,
    /// Port of a tunnel over UDP; or that the packet itself gets, 0: it stays.
    pub port: u16,
    /// Its tunnel's number (`TUNNEL_` in numbers.rs).
    pub tunnel: u8,
    /// Last bits of an IPv4 source that vary with the flow.
    pub spread: u8,
}

/// The number of a kind of tunnels, in all programs.
pub fn tunnel_number(encapsulation: Encapsulation) -> u8 {
    match encapsulation {
        Encapsulation::Ipip => numbers::TUNNEL_IPIP,
        Encapsulation::Gre => numbers::TUNNEL_GRE,
        Encapsulation::Fou(_) => numbers::TUNNEL_FOU,
        Encapsulation::Gue(_) => numbers::TUNNEL_GUE,
    }
}

impl BackendEntry {
    /// A backend that is present, with its next hop still unknown.
    pub fn new(address: IpAddr, incarnation: u32) -> Self {
        let family = if address.is_ipv6() { BackendFlags::IPV6 } else { 0 };
        Self {
            address: map_address(address),
            flags: BackendFlags::PRESENT | family,
            incarnation,
            ..Self::default()
        }
    }

    /// Up or down by its health check.
    pub fn with_health(mut self, up: bool) -> Self {
        self.flags |= if up { 0 } else { BackendFlags::DOWN };
        self
    }

    /// Whether what comes for it is answered by resets.
    pub fn with_resets(mut self, resets: bool) -> Self {
        self.flags |= if resets { BackendFlags::RESETS } else { 0 };
        self
    }

    /// With what its packets are put into.
    pub fn with_tunnel(mut self, tunnel: &Tunnel) -> Self {
        self.tunnel = tunnel_number(tunnel.encapsulation);
        self.port = match tunnel.encapsulation {
            Encapsulation::Ipip | Encapsulation::Gre => 0,
            Encapsulation::Fou(port) | Encapsulation::Gue(port) => port,
        };
        (self.mtu, self.spread) = (tunnel.mtu, tunnel.spread);
        if let Some(source) = tunnel.source {
            self.source = map_address(source);
            self.flags |= BackendFlags::HAS_SOURCE;
        }
        self
    }

    /// What its packets are put into; none if they reach it as they are.
    pub fn tunnel(&self) -> Option<Tunnel> {
        let encapsulation = match self.tunnel {
            numbers::TUNNEL_IPIP => Encapsulation::Ipip,
            numbers::TUNNEL_GRE => Encapsulation::Gre,
            numbers::TUNNEL_FOU => Encapsulation::Fou(self.port),
            numbers::TUNNEL_GUE => Encapsulation::Gue(self.port),
            _ => return None,
        };
        let source = self.flags & BackendFlags::HAS_SOURCE != 0;
        let source = source.then(|| unmap_address(&self.source));
        Some(Tunnel { encapsulation, source, spread: self.spread, mtu: self.mtu })
    }

    /// With how its packets are made its own.
    pub fn with_translation(mut self, translation: &Translation) -> Self {
        let &Translation { port, mtu, ports } = translation;
        (self.tunnel, self.port, self.mtu) = (numbers::TUNNEL_NAT, port.unwrap_or(0), mtu);
        if let Some(Ports { first, addresses, first_port, ports }) = ports {
            self.tunnel = numbers::TUNNEL_FULL_NAT;
            let (reserved, reserved2) = (0, 0);
            let pool =
                types::port_pool { ports, first_port, first, addresses, reserved, reserved2 };
            self.source.copy_from_slice(pool.bytes());
        }
        self
    }

    /// How its packets are made its own; none if they stay the service's.
    pub fn translation(&self) -> Option<Translation> {
        let port = (self.port != 0).then_some(self.port);
        let ports = match self.tunnel {
            numbers::TUNNEL_NAT => None,
            numbers::TUNNEL_FULL_NAT => {
                let pool = types::port_pool::from_slice(&self.source);
                let types::port_pool { ports, first_port, first, addresses, .. } = pool;
                Some(Ports { first, addresses, first_port, ports })
            }
            _ => return None,
        };
        Some(Translation { port, mtu: self.mtu, ports })
    }

    /// With how large segments SYNs to it may ask for.
    pub fn with_segments(mut self, segments: Option<Segments>) -> Self {
        let most = match segments {
            None => 0,
            Some(Segments::Auto) => numbers::MSS_AUTO,
            Some(Segments::Most(most)) => most.into(),
        };
        self.flags &= (1 << numbers::BACKEND_MSS_SHIFT) - 1;
        self.flags |= most << numbers::BACKEND_MSS_SHIFT;
        self
    }

    /// How large segments SYNs to it may ask for.
    pub fn segments(&self) -> Option<Segments> {
        match self.flags >> numbers::BACKEND_MSS_SHIFT {
            0 => None,
            numbers::MSS_AUTO => Some(Segments::Auto),
            most => Some(Segments::Most(most as u16)),
        }
    }

    /// With a next hop for when the FIB has no answer; `fixed`: never ask the FIB.
    pub fn with_next_hop(
        mut self,
        mac: [u8; 6],
        source_mac: [u8; 6],
        ifindex: u32,
        fixed: bool,
    ) -> Self {
        (self.mac, self.source_mac, self.ifindex) = (mac, source_mac, ifindex);
        self.flags |= BackendFlags::HAS_MAC | if fixed { BackendFlags::STATIC } else { 0 };
        self
    }
}

impl From<&BackendEntry> for types::backend {
    fn from(entry: &BackendEntry) -> Self {
        let &BackendEntry { address, mac, source_mac, ifindex, flags, incarnation, .. } = entry;
        let &BackendEntry { source, mtu, tunnel, spread, .. } = entry;
        let port = entry.port.to_be();
        Self {
            address,
            mac,
            source_mac,
            ifindex,
            flags,
            incarnation,
            source,
            mtu,
            port,
            tunnel,
            spread,
        }
    }
}

impl From<types::backend> for BackendEntry {
    fn from(raw: types::backend) -> Self {
        let types::backend { address, mac, source_mac, ifindex, flags, incarnation, .. } = raw;
        let types::backend { source, mtu, tunnel, spread, .. } = raw;
        let port = u16::from_be(raw.port);
        Self {
            address,
            mac,
            source_mac,
            ifindex,
            flags,
            incarnation,
            source,
            mtu,
            port,
            tunnel,
            spread,
        }
    }
}

impl From<&ServiceState> for types::service_state {
    fn from(state: &ServiceState) -> Self {
        Self { service: state.service.0, key: types::state_key::from_slice(&state.key.to_bytes()) }
    }
}

impl From<types::service_state> for ServiceState {
    fn from(raw: types::service_state) -> Self {
        let mut key = [0; size_of::<types::state_key>()];
        key.copy_from_slice(raw.key.bytes());
        Self { service: raw.service.into(), key: StateKey::from_bytes(&key) }
    }
}

impl From<&FlowKey> for types::flow_key {
    fn from(flow: &FlowKey) -> Self {
        Self {
            src: address_words(&flow.src),
            dst: address_words(&flow.dst),
            ports: ports_word(flow.src_port, flow.dst_port),
            protocol: flow.protocol.number().into(),
        }
    }
}

/// An address as the program loads it.
pub(crate) fn address_words(address: &[u8; 16]) -> [u64; 2] {
    let words = address.as_chunks().0;
    [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])]
}
