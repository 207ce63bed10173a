//! What `ethtool` says about an interface: driver and receive offloads.

use std::ffi::{CStr, c_char};
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// `struct ethtool_drvinfo` of linux/ethtool.h.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [c_char; 32],
    version: [c_char; 32],
    firmware: [c_char; 32],
    bus: [c_char; 32],
    expansion: [c_char; 32],
    reserved: [c_char; 12],
    counts: [u32; 5],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// A structure of linux/ethtool.h that begins with its command.
///
/// # Safety
/// The layout is that which the kernel reads and writes for every command it is used with, and
/// every value of its bytes is valid.
unsafe trait Request {}

// SAFETY: repr(C) with the fields of the header file; the kernel writes 196 bytes of plain data.
unsafe impl Request for DriverInfo {}
// SAFETY: as above, 8 bytes.
unsafe impl Request for Value {}

/// The name of the driver.
pub(super) fn driver(interface: &str) -> Option<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        expansion: [0; 32],
        reserved: [0; 12],
        counts: [0; 5],
    };
    ask(interface, &mut info)?;
    let bytes = info.driver.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes).ok()?;
    Some(name.to_string_lossy().into_owned())
}

/// Whether the driver merges packets before XDP could see them (LRO).
pub(super) fn lro(interface: &str) -> Option<bool> {
    value(interface, ETHTOOL_GFLAGS).map(|flags| flags & ETH_FLAG_LRO != 0)
}

/// Whether the card takes VLAN tags off before XDP could see them (rx-vlan-offload).
pub(super) fn takes_tags_off(interface: &str) -> Option<bool> {
    value(interface, ETHTOOL_GFLAGS).map(|flags| flags & ETH_FLAG_RXVLAN != 0)
}

/// Whether the stack merges packets (GRO).
pub(super) fn gro(interface: &str) -> Option<bool> {
    value(interface, ETHTOOL_GGRO).map(|on| on != 0)
}

fn value(interface: &str, command: u32) -> Option<u32> {
    let mut value = Value { command, data: 0 };
    ask(interface, &mut value)?;
    Some(value.data)
}

fn ask<T: Request>(interface: &str, request: &mut T) -> Option<()> {
    // Any socket will do; it need not be connected to anything.
    let socket = UdpSocket::bind(("127.0.0.1", 0))
        .or_else(|_| UdpSocket::bind(("::1", 0)))
        .or_else(|_| UdpSocket::bind(("0.0.0.0", 0)))
        .ok()?;
    // SAFETY: ifreq is plain data, for which zeros are a value.
    let mut wanted: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= wanted.ifr_name.len() {
        return None;
    }
    for (to, from) in wanted.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    wanted.ifr_ifru.ifru_data = (request as *mut T).cast();
    // SAFETY: the name ends with a zero byte; the data pointer is to a live exclusive borrow of
    // a structure that the kernel knows (Request); the socket is open.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &mut wanted) };
    (result == 0).then_some(())
}
