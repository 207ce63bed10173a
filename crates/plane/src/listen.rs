//! What services listen on: addresses and prefixes of them, ports and blocks of them.
//!
//! A packet is for the service that says most exactly what it is for: first by address, where an address
//! comes before a prefix and a longer prefix before a shorter one, and then by port, where a port comes
//! before a block of ports, a smaller block before a larger one, and any port last.

use crate::pipeline::VipKey;
use std::net::IpAddr;
use weir_wire::{FlowKey, Protocol, map_address, unmap_address};

/// Bits of an address, and of those before an IPv4 address in one that is mapped.
const ADDRESS_BITS: u8 = 128;
const MAPPED_BITS: u8 = 96;
/// Bits of a port.
const PORT_BITS: u8 = 16;

/// An address or a prefix of addresses, and a port or a block of ports: those that share their first bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Listen {
    /// The first address, IPv4 mapped.
    pub address: [u8; 16],
    /// Bits that a destination has in common with it, 1..=128.
    pub address_bits: u8,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The first port.
    pub port: u16,
    /// Bits that a destination's port has in common with it, 0 (any) ..= 16 (this one).
    pub port_bits: u8,
    /// Tells connections of one client from one of its ports to several addresses of a service apart: 0 for
    /// one address of each family, and another number for each of the others. See [`Listen::salt_of`].
    pub salt: u16,
    /// Whether later fragments to the address are led by their source, as this is all that listens there on the
    /// protocol, and leads clients by theirs. Of one address and one port only.
    pub fragments: bool,
}

impl From<VipKey> for Listen {
    fn from(key: VipKey) -> Self {
        Self {
            address: key.address,
            address_bits: ADDRESS_BITS,
            protocol: key.protocol,
            port: key.port.unwrap_or(0),
            port_bits: if key.port.is_some() { PORT_BITS } else { 0 },
            salt: 0,
            fragments: false,
        }
    }
}

impl From<&VipKey> for Listen {
    fn from(key: &VipKey) -> Self {
        (*key).into()
    }
}

impl From<&Listen> for Listen {
    fn from(listen: &Listen) -> Self {
        *listen
    }
}

impl Listen {
    /// An address, or with fewer `bits` than its family has a prefix, and a block of ports.
    pub fn new(
        (address, bits): (IpAddr, u8),
        protocol: Protocol,
        (port, port_bits): Block,
    ) -> Self {
        let before = if address.is_ipv4() { MAPPED_BITS } else { 0 };
        let address = map_address(address);
        let address_bits = before + bits;
        Self { address, address_bits, protocol, port, port_bits, salt: 0, fragments: false }
    }

    /// The same without a salt and what fragments are led by: what is listened on, whoever does.
    pub fn place(self) -> Self {
        Self { salt: 0, fragments: false, ..self }
    }

    /// As a key, if it is one address, and one port or any.
    pub fn key(&self) -> Option<VipKey> {
        let Self { address, address_bits: ADDRESS_BITS, protocol, port, port_bits, .. } = *self
        else {
            return None;
        };
        let port = match port_bits {
            0 => None,
            PORT_BITS => Some(port),
            _ => return None,
        };
        Some(VipKey { address, protocol, port })
    }

    /// Whether one address is listened on, and no others.
    pub fn is_one_address(&self) -> bool {
        self.address_bits == ADDRESS_BITS
    }

    /// Whether packets for an address could be for it.
    pub fn has_address(&self, address: &[u8; 16]) -> bool {
        let differ = u128::from_be_bytes(self.address) ^ u128::from_be_bytes(*address);
        differ.checked_shr(u32::from(ADDRESS_BITS - self.address_bits)).unwrap_or(0) == 0
    }

    /// Whether packets of a flow could be for it.
    pub fn takes(&self, flow: &FlowKey) -> bool {
        let differ = u32::from(self.port ^ flow.dst_port);
        self.protocol == flow.protocol
            && differ >> (PORT_BITS - self.port_bits) == 0
            && self.has_address(&flow.dst)
    }

    /// Whether some packet could be for both.
    pub fn meets(&self, other: &Self) -> bool {
        let less = if self.address_bits < other.address_bits { self } else { other };
        let more = if self.address_bits < other.address_bits { other } else { self };
        let bits = self.port_bits.min(other.port_bits);
        self.protocol == other.protocol
            && u32::from(self.port ^ other.port) >> (PORT_BITS - bits) == 0
            && less.has_address(&more.address)
    }

    /// How exactly it says what it takes: the packet is for the one that is most exact.
    pub fn exactness(&self) -> (u8, u8) {
        (self.address_bits, self.port_bits)
    }

    /// Whether what tells two flows apart depends on the address that they are for.
    pub fn is_salted(&self) -> bool {
        self.salt != 0 || self.address_bits < ADDRESS_BITS
    }

    /// Bits of an address of a prefix that are not the prefix's, as far as they are among the last 64.
    pub fn host_bits(&self) -> u8 {
        (ADDRESS_BITS - self.address_bits).min(64)
    }

    /// What the destination port of a state is XORed with, so that the same ports of a client lead to
    /// another state at another address: the salt, and of a prefix what tells its addresses apart, folded
    /// to 16 bits. Of one port, and prefixes of up to 2^16 addresses, no two addresses have the same.
    pub fn salt_of(&self, address: &[u8; 16]) -> u16 {
        let host = u128::from_be_bytes(*address) as u64;
        let mask = u64::MAX.checked_shr(64 - u32::from(self.host_bits())).unwrap_or(0);
        let host = host & mask;
        let host = host ^ host >> 32;
        self.salt ^ (host ^ host >> 16) as u16
    }

    /// In words: address, prefix length if it is a prefix.
    pub fn vip(&self) -> (IpAddr, u8) {
        let address = unmap_address(&self.address);
        let before = if address.is_ipv4() { MAPPED_BITS } else { 0 };
        (address, self.address_bits.saturating_sub(before))
    }
}

/// Kinds of prefixes and blocks of ports, by the bits of both, that packets can be asked to be for.
pub const KINDS: usize = 64;

/// A block of ports: the first one, and how many of its bits all of them have.
pub type Block = (u16, u8);

/// The fewest blocks that ports from `first` to `last` are made of, at most 30.
pub fn blocks(first: u16, last: u16) -> Vec<Block> {
    let (mut at, end) = (u32::from(first), u32::from(last) + 1);
    let mut all = Vec::new();
    while at < end {
        // As large as it may be where it begins, and as what is left.
        let aligned = at.trailing_zeros().min(16);
        let left = (end - at).ilog2();
        let size = aligned.min(left);
        all.push((at as u16, (16 - size) as u8));
        at += 1 << size;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: &str, bits: u8, port: u16, port_bits: u8) -> Listen {
        Listen::new((address.parse().expect("an address"), bits), Protocol::Tcp, (port, port_bits))
    }

    fn flow(address: &str, port: u16) -> FlowKey {
        let client = "192.0.2.1:4000".parse().expect("an address");
        let vip = std::net::SocketAddr::new(address.parse().expect("an address"), port);
        FlowKey::new(client, vip, Protocol::Tcp)
    }

    /// Each port of a range is in one block, and no other one is in any.
    #[test]
    fn blocks_are_the_range() {
        for (first, last) in
            [(1, 65535), (8000, 8999), (80, 80), (1, 2), (65535, 65535), (0, 65535)]
        {
            let all = blocks(first, last);
            assert!(all.len() <= 30, "{first}-{last}: {all:?}");
            for port in 0..=u16::MAX {
                let within = |&&(at, bits): &&Block| u32::from(at ^ port) >> (16 - bits) == 0;
                let found = all.iter().filter(within).count();
                assert_eq!(
                    found,
                    usize::from((first..=last).contains(&port)),
                    "{first}-{last} {port}"
                );
            }
        }
        assert_eq!(blocks(0, 65535), [(0, 0)]);
    }

    #[test]
    fn prefixes_and_blocks_take_what_is_theirs() {
        let net = on("10.0.0.0", 24, 8000, 13);
        assert!(net.takes(&flow("10.0.0.7", 8007)) && net.takes(&flow("10.0.0.255", 8000)));
        assert!(!net.takes(&flow("10.0.1.0", 8000)) && !net.takes(&flow("10.0.0.7", 8008)));
        assert!(!net.takes(&flow("::a00:7", 8000)));
        let six = on("2001:db8::", 32, 0, 0);
        assert!(six.takes(&flow("2001:db8:ffff::1", 1)) && !six.takes(&flow("2001:db9::1", 1)));
        assert_eq!((net.vip(), six.vip().1), (("10.0.0.0".parse().expect("one"), 24), 32));
    }

    /// Those that some packet could be for, and only those.
    #[test]
    fn what_meets_has_a_packet_in_common() {
        let (net, one) = (on("10.0.0.0", 24, 8000, 13), on("10.0.0.9", 32, 0, 0));
        assert!(net.meets(&one) && one.meets(&net) && net.meets(&on("10.0.0.0", 8, 8001, 16)));
        assert!(!net.meets(&on("10.0.0.9", 32, 8008, 16)));
        assert!(!net.meets(&on("10.0.1.9", 32, 0, 0)));
    }

    /// The addresses of a prefix are told apart, with any salt.
    #[test]
    fn no_two_addresses_of_a_prefix_have_one_salt() {
        for (net, bits) in [("10.1.0.0", 16), ("2001:db8::", 112)] {
            let mut net = on(net, bits, 80, 16);
            net.salt = 77;
            let mut seen = std::collections::HashSet::new();
            for host in 0..=u16::MAX {
                let mut address = net.address;
                address[14..].copy_from_slice(&host.to_be_bytes());
                assert!(seen.insert(net.salt_of(&address)));
            }
        }
        let one = on("10.1.2.3", 32, 80, 16);
        assert_eq!(one.salt_of(&one.address), 0);
        assert!(!one.is_salted() && on("10.0.0.0", 31, 80, 16).is_salted());
    }
}
