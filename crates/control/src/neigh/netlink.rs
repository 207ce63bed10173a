//! One question to rtnetlink and its answers.
//!
//! `netlink-packet-route` knows the messages; the socket is ours. The kernel answers within
//! the `send`, so a crate that drives such sockets asynchronously would only add weight.

use std::io;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// The kernel sends dumps in parts of at most 32 KiB.
const BUFFER: usize = 64 << 10;
const SEQUENCE: u32 = 1;

/// Asks and collects the answers: one, or all of a dump.
pub(super) fn ask(
    question: RouteNetlinkMessage,
    flags: u16,
) -> io::Result<Vec<RouteNetlinkMessage>> {
    let dump = flags & netlink_packet_core::NLM_F_DUMP == netlink_packet_core::NLM_F_DUMP;
    let mut request = NetlinkMessage::from(question);
    request.header.flags = flags;
    request.header.sequence_number = SEQUENCE;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);

    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    // It answers at once; if it ever does not, an error is better than a thread that hangs.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
    connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    send(socket.as_raw_fd(), &bytes, MsgFlags::empty())?;

    let mut buffer = vec![0; BUFFER];
    let mut answers = Vec::new();
    loop {
        let received = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
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
                    if !dump {
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
