//! What changes in the kernel's interfaces, addresses, routes and neighbours, as it happens.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt,
    socket, sockopt,
};

use super::{Resolution, read_neighbour};

/// Groups of rtnetlink that are listened to, as bits (linux/rtnetlink.h, RTMGRP_*): links,
/// neighbours, and addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;
const BUFFER: usize = 64 << 10;
/// Room for a burst: the kernel drops what does not fit, and says so.
const ROOM: usize = 4 << 20;
/// Changes come in bursts: what follows so soon is told together.
const GATHER: Duration = Duration::from_millis(5);

/// What has changed since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// An interface: it is new, gone, up, down, or has another address.
    pub interfaces: bool,
    /// An address of this host's, or a route; or more than could be told apart.
    pub routes: bool,
    /// Neighbours with another Ethernet address than before, or with none any more.
    pub neighbours: BTreeSet<IpAddr>,
}

impl Change {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Listens in the network namespace of the calling thread, on a thread of its own, and tells what
/// changes until `tell` says that nobody wants to know.
///
/// # Errors
/// If the kernel gives no such socket, or the system no thread.
pub fn watch(tell: impl FnMut(Change) -> bool + Send + 'static) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    // Without the right to exceed the system's limit, its limit is what there is.
    if setsockopt(&socket, sockopt::RcvBufForce, &ROOM).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &ROOM)?;
    }
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    let listen = move || Listener { socket, macs: HashMap::new() }.run(tell);
    thread::Builder::new().name("netlink".into()).spawn(listen).map(drop)
}

struct Listener {
    socket: OwnedFd,
    /// What neighbours had when they were last heard of.
    macs: HashMap<(u32, IpAddr), Option<[u8; 6]>>,
}

impl Listener {
    fn run(mut self, mut tell: impl FnMut(Change) -> bool) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut change = Change::default();
            if !self.take(&mut buffer, MsgFlags::empty(), &mut change) {
                // It cannot be read at all: whoever listens polls as well.
                return;
            }
            thread::sleep(GATHER);
            while self.take(&mut buffer, MsgFlags::MSG_DONTWAIT, &mut change) {}
            if !change.is_empty() && !tell(change) {
                return;
            }
        }
    }

    /// Takes what is there; whether there was something.
    fn take(&mut self, buffer: &mut [u8], flags: MsgFlags, change: &mut Change) -> bool {
        let received = match recv(self.socket.as_raw_fd(), buffer, flags) {
            Ok(received) => received,
            Err(Errno::EINTR) => return true,
            // Some were lost.
            Err(Errno::ENOBUFS) => {
                (change.interfaces, change.routes) = (true, true);
                return true;
            }
            Err(_) => return false,
        };
        let mut rest = &buffer[..received];
        while !rest.is_empty() {
            let Ok(message) = NetlinkMessage::<Message>::deserialize(rest) else {
                // Of a kind that is not known here.
                (change.interfaces, change.routes) = (true, true);
                break;
            };
            // Messages are padded to four bytes.
            let used = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(used.max(4)..).unwrap_or_default();
            if let NetlinkPayload::InnerMessage(message) = message.payload {
                self.note(&message, change);
            }
        }
        true
    }

    fn note(&mut self, message: &Message, change: &mut Change) {
        match message {
            Message::NewLink(_) | Message::DelLink(_) => change.interfaces = true,
            Message::NewAddress(_)
            | Message::DelAddress(_)
            | Message::NewRoute(_)
            | Message::DelRoute(_) => change.routes = true,
            Message::NewNeighbour(entry) => {
                // While the kernel asks, it is as it was.
                let mac = match read_neighbour(entry) {
                    Resolution::Confirmed(mac) | Resolution::Stale(mac) => Some(mac),
                    Resolution::Failed => None,
                    Resolution::Unknown => return,
                };
                if let Some(address) = address_of(entry)
                    && self.macs.insert((entry.header.ifindex, address), mac) != Some(mac)
                {
                    change.neighbours.insert(address);
                }
            }
            Message::DelNeighbour(entry) => {
                if let Some(address) = address_of(entry) {
                    self.macs.remove(&(entry.header.ifindex, address));
                }
            }
            _ => {}
        }
    }
}

fn address_of(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some((*v4).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some((*v6).into()),
        _ => None,
    })
}
