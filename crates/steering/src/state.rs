//! What identifies a state: the flow, or with client affinity the client.

use crate::ids::ServiceId;
use weir_hash::{HashKey, Key};
use weir_wire::FlowKey;
use weir_wire::hash::{hash_address, ports_word};

/// Key of a state within its service: 20 bytes. Destination address and protocol belong to the
/// service; the destination port varies only in a service that takes several ports, or has several addresses
/// of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct StateKey {
    /// Source address, 16 bytes in network order, IPv4 as `::ffff:a.b.c.d`.
    pub address: [u8; 16],
    /// Source port, host order; 0 with client affinity.
    pub src_port: u16,
    /// Destination port, host order, XORed with what tells the addresses of its service apart; 0 with client
    /// affinity.
    pub dst_port: u16,
}

impl StateKey {
    /// The key of a flow.
    pub fn of_flow(flow: &FlowKey) -> Self {
        Self { address: flow.src, src_port: flow.src_port, dst_port: flow.dst_port }
    }

    /// The key of a flow to one of several addresses of a service; `salt` tells which.
    pub fn of_flow_to(flow: &FlowKey, salt: u16) -> Self {
        Self { dst_port: flow.dst_port ^ salt, ..Self::of_flow(flow) }
    }

    /// The key of a flow's client.
    pub fn of_client(flow: &FlowKey) -> Self {
        Self { address: flow.src, src_port: 0, dst_port: 0 }
    }

    /// As the kernel maps and the state log hold it: address, then the ports in network order.
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.address);
        bytes[16..18].copy_from_slice(&self.src_port.to_be_bytes());
        bytes[18..].copy_from_slice(&self.dst_port.to_be_bytes());
        bytes
    }

    /// The inverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; 20]) -> Self {
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[..16]);
        Self {
            address,
            src_port: u16::from_be_bytes([bytes[16], bytes[17]]),
            dst_port: u16::from_be_bytes([bytes[18], bytes[19]]),
        }
    }
}

impl Key for StateKey {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        hash_address(key, &self.address, ports_word(self.src_port, self.dst_port))
    }
}

/// A state's key together with the service that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ServiceState {
    /// Number of the service.
    pub service: ServiceId,
    /// Key of the state within the service.
    pub key: StateKey,
}
