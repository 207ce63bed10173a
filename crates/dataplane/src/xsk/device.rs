//! Questions about interfaces of this thread's namespace.

use crate::error::{Context, Error};
use std::io;
use std::os::fd::AsRawFd;

/// An interface's name in this thread's namespace, or its number.
pub(super) fn name_of(interface: u32) -> String {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call asks for.
    let found = unsafe { libc::if_indextoname(interface, name.as_mut_ptr().cast()) };
    let name = std::ffi::CStr::from_bytes_until_nul(&name).ok().filter(|_| !found.is_null());
    name.map_or_else(|| interface.to_string(), |name| name.to_string_lossy().into_owned())
}

/// A socket has one queue; frames of other queues would go to the kernel.
pub(super) fn one_queue(interface: u32) -> Result<(), Error> {
    let (name, queues) = (name_of(interface), queues(interface)?);
    if queues <= 1 {
        return Ok(());
    }
    let source = io::Error::new(io::ErrorKind::Unsupported, "an AF_XDP socket serves one");
    Err(Error::System { what: format!("interface {name} has {queues} receive queues"), source })
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// How many receive queues an interface has.
pub(super) fn queues(interface: u32) -> Result<u32, Error> {
    Ok(channels(interface)?.map_or(1, |channels| (channels.rx + channels.combined).max(1)))
}

/// How many queues an interface sends by.
pub(super) fn transmit_queues(interface: u32) -> Result<u32, Error> {
    Ok(channels(interface)?.map_or(1, |channels| (channels.tx + channels.combined).max(1)))
}

/// Its queues; a device that cannot say has one.
fn channels(interface: u32) -> Result<Option<Channels>, Error> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let name = name_of(interface);
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0));
    let socket = socket.context(|| "open a socket to ask for queues".into())?;
    // SAFETY: the request names a device and points to the structure that the command fills.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    Ok((done >= 0).then_some(channels))
}
