//! The layouts that the maps share with bpf/types.h.

use std::net::IpAddr;
use weir_steering::{ServiceState, StateKey};
use weir_wire::map_address;

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

/// `struct vip`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vip {
    pub high: u64,
    pub low: u64,
    pub port_protocol: u32,
    pub table: u32,
    pub reserved: u64,
}

pub(crate) const VIP_IN_USE: u32 = 1 << 24;

/// Flags of a [`BackendEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendFlags;

impl BackendFlags {
    /// The entry is in use.
    pub const PRESENT: u32 = 1;
    /// The MAC addresses and the interface may be used when the FIB has no answer.
    pub const HAS_MAC: u32 = 2;
    /// Never ask the FIB.
    pub const STATIC: u32 = 4;
    /// The address is IPv6.
    pub const IPV6: u32 = 8;
    /// Down by its health check.
    pub const DOWN: u32 = 16;
}

/// `struct backend`: what the data plane knows of a backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendEntry {
    /// Address, IPv4 mapped.
    pub address: [u8; 16],
    /// Next hop, if the FIB has no answer.
    pub mac: [u8; 6],
    /// Our address towards it.
    pub source_mac: [u8; 6],
    /// Egress interface; 0 for the one that the packet came in by.
    pub ifindex: u32,
    /// [`BackendFlags`].
    pub flags: u32,
    /// Counts the uses of this number.
    pub incarnation: u32,
    reserved: [u32; 6],
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

/// `struct lane`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lane {
    pub packets: u64,
    pub bytes: u64,
    pub flows: u64,
    pub resolved: u64,
    pub mac: [u8; 6],
    pub source_mac: [u8; 6],
    pub ifindex: u32,
    pub reserved: [u64; 2],
}

/// `struct outcome`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutcomeCounts {
    pub passed: u64,
    pub dropped: u64,
}

pub(crate) const OWN_MACS: usize = 8;

/// `struct service_state`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateBytes {
    pub service: u32,
    pub key: [u8; 20],
}

impl From<&ServiceState> for StateBytes {
    fn from(state: &ServiceState) -> Self {
        Self { service: state.service, key: state.key.to_bytes() }
    }
}

impl From<StateBytes> for ServiceState {
    fn from(bytes: StateBytes) -> Self {
        Self { service: bytes.service, key: StateKey::from_bytes(&bytes.key) }
    }
}

/// `struct event`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventBytes {
    pub service: u32,
    pub backend: u16,
    pub kind: u8,
    pub reserved: u8,
    pub key: [u8; 20],
    pub reserved2: u32,
}

/// `struct unreported`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreportedBytes {
    pub backend: u16,
    pub kind: u8,
    pub reserved: u8,
}

/// `struct flow_key`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowBytes {
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub src_port: u16,
    pub dst_port: u16,
    pub protocol: u32,
}

/// `struct tracked`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackedBytes {
    pub incarnation: u32,
    pub backend: u16,
    pub reserved: u16,
}

macro_rules! plain {
    ($($name:ident = $size:literal),* $(,)?) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: integers and arrays of them only; the size above is the sum of the fields'.
        unsafe impl Plain for $name {}
    )*};
}

plain! {
    Vip = 32,
    BackendEntry = 64,
    Lane = 64,
    OutcomeCounts = 16,
    StateBytes = 24,
    EventBytes = 32,
    UnreportedBytes = 4,
    FlowBytes = 40,
    TrackedBytes = 8,
}
