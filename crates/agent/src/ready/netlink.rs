//! Addresses, interfaces and filters of the kernel's, over rtnetlink and ioctls.

use crate::error::{Context, Error};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::tc::{TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::sys::socket::{AddressFamily as SocketFamily, SockFlag, SockType, socket};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use weir_host::rtnetlink::{self, ask};

/// The loopback device's number, in every network namespace.
pub(super) const LOOPBACK: u32 = 1;
/// A lifetime without an end.
const FOR_EVER: u32 = u32::MAX;

/// Every address of this network namespace, with the number of its interface.
pub(crate) fn addresses() -> Result<Vec<(u32, IpAddr)>, Error> {
    rtnetlink::addresses().context(|| "ask for addresses".into())
}

/// An address of the loopback device that nothing is sent from unless it is asked for: of host scope in IPv4,
/// deprecated in IPv6, where scopes are no choice (RFC 6724 section 5, rule 3).
fn on_loopback(address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = LOOPBACK;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    match address {
        IpAddr::V4(address) => {
            message.header.family = AddressFamily::Inet;
            // The kernel gives the device its own network.
            message.header.prefix_len = if address.is_loopback() { 8 } else { 32 };
            message.header.scope = AddressScope::Host;
        }
        IpAddr::V6(_) => {
            message.header.family = AddressFamily::Inet6;
            message.header.prefix_len = 128;
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            let mut lifetimes = CacheInfo::default();
            lifetimes.ifa_preferred = 0;
            lifetimes.ifa_valid = FOR_EVER;
            message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        }
    }
    message
}

/// Adds an address to the loopback device. One that is there is no error.
pub(super) fn add_to_loopback(address: IpAddr) -> Result<(), Error> {
    let question = RouteNetlinkMessage::NewAddress(on_loopback(address));
    match ask(question, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        added => added.map(drop).context(|| format!("put {address} on lo")),
    }
}

/// Takes an address from the loopback device. Returns whether it was there.
pub(super) fn remove_from_loopback(address: IpAddr) -> Result<bool, Error> {
    match ask(RouteNetlinkMessage::DelAddress(on_loopback(address)), NLM_F_ACK) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(false),
        removed => removed.map(|_| true).context(|| format!("take {address} from lo")),
    }
}

/// Whether an interface has filters, whosever they are, at its discipline clsact.
pub(super) fn has_filters(index: u32) -> Result<bool, Error> {
    // TC_H_CLSACT with TC_H_MIN_INGRESS, and with TC_H_MIN_EGRESS.
    for minor in [0xfff2, 0xfff3] {
        let mut message = TcMessage::default();
        message.header.index = index as i32;
        message.header.parent = TcHandle { major: 0xffff, minor };
        let answers = ask(RouteNetlinkMessage::GetTrafficFilter(message), NLM_F_DUMP)
            .context(|| format!("ask for the filters of interface {index}"))?;
        if !answers.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ioctl(number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    let fd = socket(SocketFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: these requests read the name and a plain member of the structure, and write the latter.
    if unsafe { libc::ioctl(fd.as_raw_fd(), number as _, &raw mut *request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The largest packet that an interface takes.
pub(super) fn mtu(name: &str) -> Result<u32, Error> {
    let mut request = request(name);
    ioctl(libc::SIOCGIFMTU, &mut request).context(|| format!("ask for the MTU of {name}"))?;
    // SAFETY: the call has filled this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as u32)
}

/// Whether an interface is up.
pub(super) fn is_up(name: &str) -> Result<bool, Error> {
    let mut request = request(name);
    ioctl(libc::SIOCGIFFLAGS, &mut request).context(|| format!("ask whether {name} is up"))?;
    // SAFETY: the call has filled this member of the union.
    Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }) & libc::IFF_UP != 0)
}

/// Sets an interface up or down.
pub(super) fn set_up(name: &str, up: bool) -> Result<(), Error> {
    let what = || format!("set {name} {}", if up { "up" } else { "down" });
    let mut request = request(name);
    ioctl(libc::SIOCGIFFLAGS, &mut request).context(what)?;
    // SAFETY: the call has filled this member of the union.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    let flags = if up { flags | libc::IFF_UP } else { flags & !libc::IFF_UP };
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(libc::SIOCSIFFLAGS, &mut request).context(what)
}
