//! The connections that there are: by sock_diag, as `ss` has them.

use crate::error::{Context, Error};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags, Timer};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// Dumps come in parts of at most 32 KiB.
const BUFFER: usize = 64 << 10;

/// An open connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Open {
    pub local: IpAddr,
    pub local_port: u16,
    pub remote: IpAddr,
    pub remote_port: u16,
}

/// Shows every TCP connection of this network namespace whose handshake is over and that has not ended, until
/// `visit` says that it is enough.
///
/// The kernel goes through its table in parts, and one that goes between two parts may hide another one: who
/// must miss none asks twice. What ends meanwhile may be shown all the same.
pub(super) fn each(visit: &mut dyn FnMut(Open) -> bool) -> Result<(), Error> {
    for family in [AF_INET, AF_INET6] {
        if !of_family(family, visit).context(|| "list the connections".into())? {
            break;
        }
    }
    Ok(())
}

/// Neither half-open ones, nor TIME_WAIT.
fn wanted() -> StateFlags {
    StateFlags::ESTABLISHED
        | StateFlags::FIN_WAIT1
        | StateFlags::FIN_WAIT2
        | StateFlags::CLOSE_WAIT
        | StateFlags::LAST_ACK
        | StateFlags::CLOSING
}

fn of_family(family: u8, visit: &mut dyn FnMut(Open) -> bool) -> io::Result<bool> {
    let socket_id = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: wanted(),
        socket_id,
    };
    let mut request = NetlinkMessage::from(SockDiagMessage::InetRequest(request));
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(5, 0))?;
    connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    send(socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let received = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..received];
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let used = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(used.max(4)..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                    let found = found.header;
                    // What is left of one whose socket has closed while its FIN was on the way: it is called
                    // FIN_WAIT2 here, and was told of as closed.
                    if found.timer == Some(Timer::TimeWait) {
                        continue;
                    }
                    let id = found.socket_id;
                    let open = Open {
                        local: id.source_address.to_canonical(),
                        local_port: id.source_port,
                        remote: id.destination_address.to_canonical(),
                        remote_port: id.destination_port,
                    };
                    if !visit(open) {
                        return Ok(false);
                    }
                }
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(true),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn open_connections_are_shown_and_no_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held: Vec<_> = (0..2000)
            .map(|_| {
                let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        // In TIME_WAIT at the server's end.
        for _ in 0..5 {
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            drop(listener.accept().unwrap());
            drop(client);
        }
        let mut found = Vec::new();
        each(&mut |open| {
            if open.local_port == port {
                found.push(open.remote_port);
            }
            true
        })
        .unwrap();
        let mut clients: Vec<u16> =
            held.iter().map(|(client, _)| client.local_addr().unwrap().port()).collect();
        found.sort_unstable();
        clients.sort_unstable();
        assert_eq!(found, clients);
    }
}
