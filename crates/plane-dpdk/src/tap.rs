//! Interfaces of the kernel's at both ends: the tap that stands for a device, and the one that a device is at.

use crate::{Error, Pair};
use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use weir_dataplane::Interface;

/// `TUNSETIFF` of linux/if_tun.h.
const SET_INTERFACE: libc::c_ulong = 0x4004_54ca;

/// A tap.
pub struct Tap {
    pub index: u32,
    pub mac: [u8; 6],
}

impl Tap {
    /// Looks one up, and whether DPDK can have a queue of it: where there is none of this name, or another kind
    /// of interface, its driver would make one, or be refused without a reason.
    pub fn find(name: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Tap { interface: name.into(), why };
        let found = Interface::find(name).map_err(|_| wrong("it is not there".into()))?;
        attach(name).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => wrong("it is no tap with several queues".into()),
            Some(libc::EBUSY) => wrong("another process has all of its queues".into()),
            _ => wrong(format!("it cannot be opened by /dev/net/tun ({error})")),
        })?;
        Ok(Self { index: found.index, mac: found.mac })
    }

    /// Refuses a device at an interface at which the host answers, too: the kernel gets a copy of each frame
    /// there. It ignores those for another MAC address, the tap's; what goes to all are questions for addresses.
    pub fn suits(&self, pair: &Pair<'_>) -> Result<(), Error> {
        let Some(at) = pair.device.split(',').find_map(|part| part.strip_prefix("iface=")) else {
            return Ok(());
        };
        // One that is not there is the driver's to refuse.
        let Ok(interface) = Interface::find(at) else { return Ok(()) };
        let answers = |why, mend| {
            let (device, interface) = (pair.device.into(), at.to_owned());
            Err(Error::Answers { device, interface, why, mend })
        };
        if flags(at).is_some_and(|flags| flags & libc::IFF_NOARP == 0) {
            return answers("it resolves addresses", format!("`ip link set {at} arp off`"));
        }
        if has_address(at) {
            let mend = format!(
                "`ip addr flush dev {at}`, and give its addresses and routes to {}",
                pair.tap
            );
            return answers("it has an address", mend);
        }
        if interface.mac == self.mac {
            let mend = format!("give {at} another one (`ip link set {at} address ...`)");
            return answers("it has the MAC address of the tap", mend);
        }
        Ok(())
    }
}

/// Takes a queue of a tap, and lets it go.
fn attach(name: &str) -> io::Result<()> {
    // SAFETY: the path ends in a zero.
    let fd = unsafe {
        libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let tun = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = request(name);
    // As DPDK's driver opens it: the last who does says for all whether frames have a word in front.
    let kind = libc::IFF_TAP | libc::IFF_MULTI_QUEUE;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    ioctl(&tun, SET_INTERFACE, &mut request)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *to = byte as libc::c_char;
    }
    request
}

fn ioctl(fd: &OwnedFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is an ifreq, whose name ends in a zero.
    match unsafe { libc::ioctl(fd.as_raw_fd(), what as _, request) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn flags(name: &str) -> Option<libc::c_int> {
    // SAFETY: no memory is given.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = request(name);
    ioctl(&socket, libc::SIOCGIFFLAGS as libc::c_ulong, &mut request).ok()?;
    // SAFETY: the call has filled the flags.
    Some(libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Whether an interface has an address that others may ask for: any but those of its link alone.
fn has_address(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    let mut all: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call makes a list, or fails.
    if unsafe { libc::getifaddrs(&mut all) } != 0 {
        return false;
    }
    let (mut at, mut found) = (all, false);
    while !at.is_null() {
        // SAFETY: an entry of the list, whose name ends in a zero.
        let entry = unsafe { &*at };
        // SAFETY: as above.
        let own = unsafe { CStr::from_ptr(entry.ifa_name) } == name.as_c_str();
        found |= own && address(entry.ifa_addr).is_some_and(|address| !is_of_link(address));
        at = entry.ifa_next;
    }
    // SAFETY: the list that was made above, which nobody uses any more.
    unsafe { libc::freeifaddrs(all) };
    found
}

fn address(of: *const libc::sockaddr) -> Option<IpAddr> {
    if of.is_null() {
        return None;
    }
    // SAFETY: what its family says it is.
    unsafe {
        match libc::c_int::from((*of).sa_family) {
            libc::AF_INET => {
                let of = &*of.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(u32::from_be(of.sin_addr.s_addr).into()))
            }
            libc::AF_INET6 => {
                let of = &*of.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(of.sin6_addr.s6_addr.into()))
            }
            _ => None,
        }
    }
}

fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
