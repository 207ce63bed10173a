//! Questions to rtnetlink and their answers.
//!
//! `netlink-packet-route` knows the messages; the socket is ours. The kernel answers within
//! the `send`, so a crate that drives such sockets asynchronously would only add weight.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// The kernel sends dumps in parts of at most 32 KiB.
const BUFFER: usize = 64 << 10;
const SEQUENCE: u32 = 1;

/// Who asks, by a socket of its own, in the network namespace that the thread was in at the beginning.
#[derive(Debug)]
pub struct Asker {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Asker {
    /// One for any number of questions.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn new() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        // It answers at once; if it ever does not, an error is better than a thread that hangs.
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// As [`ask`]. After an error another one is to be made: the rest of an answer may be on the way.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn ask(
        &mut self,
        question: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        ask_by(&self.socket, &mut self.buffer, question, flags)
    }
}

/// Asks and collects the answers: one, or all of a dump (`NLM_F_DUMP`), or until what is to be changed
/// is done (`NLM_F_ACK`). `NLM_F_REQUEST` is understood.
///
/// # Errors
/// What the kernel says.
pub fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    Asker::new()?.ask(question, flags)
}

fn ask_by(
    socket: &OwnedFd,
    buffer: &mut [u8],
    question: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let one = flags & NLM_F_DUMP != NLM_F_DUMP && flags & NLM_F_ACK == 0;
    let mut request = NetlinkMessage::from(question);
    request.header.flags = NLM_F_REQUEST | flags;
    request.header.sequence_number = SEQUENCE;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    send(socket.as_raw_fd(), &bytes, MsgFlags::empty())?;

    let mut answers = Vec::new();
    loop {
        let received = recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..received];
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            // Messages are padded to four bytes.
            let used = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(used.max(4)..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => {
                    answers.push(answer);
                    if one {
                        return Ok(answers);
                    }
                }
                NetlinkPayload::Error(error) => match error.code {
                    Some(_) => return Err(error.to_io()),
                    None => return Ok(answers),
                },
                NetlinkPayload::Done(_) => return Ok(answers),
                _ => {}
            }
        }
    }
}

/// Every address of this network namespace, with the number of the interface that has it.
///
/// # Errors
/// What the kernel says.
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    Ok(networks()?.into_iter().map(|(index, address, _)| (index, address)).collect())
}

/// The same, each with the length of its network's prefix.
///
/// # Errors
/// What the kernel says.
pub fn networks() -> io::Result<Vec<(u32, IpAddr, u8)>> {
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let one = |answer| {
        let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
        let (mut local, mut address) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(found) => local = Some(*found),
                AddressAttribute::Address(found) => address = Some(*found),
                _ => {}
            }
        }
        // With a peer, IFA_ADDRESS is the peer's and IFA_LOCAL is ours; IPv6 has no IFA_LOCAL
        // without a peer.
        Some((message.header.index, local.or(address)?, message.header.prefix_len))
    };
    Ok(ask(question, NLM_F_DUMP)?.into_iter().filter_map(one).collect())
}

/// Where the far end of a veth device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarEnd {
    /// The number that it has in its network namespace.
    pub index: u32,
    /// The number that this namespace knows that one by; none: it is this one.
    pub namespace: Option<i32>,
}

/// The far end of an interface of this network namespace; `None` if it is no veth device, or its far end is on the way
/// to another namespace.
///
/// # Errors
/// What the kernel says; that there is no such interface, for example.
pub fn far_end(interface: u32) -> io::Result<Option<FarEnd>> {
    let mut question = LinkMessage::default();
    question.header.index = interface;
    let answers = ask(RouteNetlinkMessage::GetLink(question), 0)?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let (mut veth, mut index, mut namespace) = (false, None, None);
    for attribute in link.into_iter().flat_map(|link| link.attributes) {
        match attribute {
            LinkAttribute::Link(number) => index = Some(number),
            LinkAttribute::LinkNetNsId(number) => namespace = Some(number),
            LinkAttribute::LinkInfo(info) => {
                veth = info.iter().any(|one| matches!(one, LinkInfo::Kind(InfoKind::Veth)));
            }
            _ => {}
        }
    }
    let index = index.filter(|number| veth && *number != 0);
    Ok(index.map(|index| FarEnd { index, namespace }))
}

/// The number that this network namespace knows another one by, if it does.
///
/// # Errors
/// What the kernel says; that the descriptor is of no network namespace, for example.
pub fn number_of_namespace(namespace: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut question = NsidMessage::default();
    question.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd() as u32));
    let answers = ask(RouteNetlinkMessage::GetNsId(question), 0)?;
    let number = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewNsId(found) => {
            found.attributes.into_iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(number) => Some(number),
                _ => None,
            })
        }
        _ => None,
    });
    // -1: it has none.
    Ok(number.filter(|number| *number >= 0))
}

/// The name of an interface, or its number if it is gone.
pub fn interface_name(index: u32) -> String {
    let name = nix::net::if_::if_indextoname(index).ok();
    let name = name.and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| format!("interface {index}"))
}
