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

/// The ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ends {
    pub local: IpAddr,
    pub local_port: u16,
    pub remote: IpAddr,
    pub remote_port: u16,
}

/// Which connections are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// Those whose handshake is over and that have not ended.
    Open,
    /// Those that have begun here, and whose handshake is not over. What the kernel keeps in a SYN cookie only
    /// is not among them, as it has nothing of it; a connection to a server that waits for the first data before
    /// it accepts one (TCP_DEFER_ACCEPT) is, until those come.
    HalfOpen,
}

/// Shows every such TCP connection of this network namespace, until `visit` says that it is enough.
///
/// The kernel goes through its table in parts, and one that goes between two parts may hide another one: who
/// must miss none asks twice. What ends meanwhile may be shown all the same.
pub(super) fn each(which: Which, visit: &mut dyn FnMut(Ends) -> bool) -> Result<(), Error> {
    for family in [AF_INET, AF_INET6] {
        if !of_family(family, which, visit).context(|| "list the connections".into())? {
            break;
        }
    }
    Ok(())
}

/// TCP_NEW_SYN_RECV: a request, which becomes a socket when its handshake is over. It is shown as SYN_RECV, and a
/// kernel that is asked for that shows it, too; the name of the state is asked for all the same.
const REQUEST: StateFlags = StateFlags::from_bits_retain(1 << 12);

/// The states that a socket of such a connection has; neither has TIME_WAIT.
fn states(which: Which) -> StateFlags {
    match which {
        Which::Open => {
            StateFlags::ESTABLISHED
                | StateFlags::FIN_WAIT1
                | StateFlags::FIN_WAIT2
                | StateFlags::CLOSE_WAIT
                | StateFlags::LAST_ACK
                | StateFlags::CLOSING
        }
        Which::HalfOpen => StateFlags::SYN_RECV | REQUEST,
    }
}

fn of_family(family: u8, which: Which, visit: &mut dyn FnMut(Ends) -> bool) -> io::Result<bool> {
    let socket_id = if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: states(which),
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
                    let ends = Ends {
                        local: id.source_address.to_canonical(),
                        local_port: id.source_port,
                        remote: id.destination_address.to_canonical(),
                        remote_port: id.destination_port,
                    };
                    if !visit(ends) {
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
    use nix::{setsockopt_impl, sockopt_impl};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    sockopt_impl!(Deferred, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, u32);

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
        let mut clients: Vec<u16> =
            held.iter().map(|(client, _)| client.local_addr().unwrap().port()).collect();
        clients.sort_unstable();
        assert_eq!(shown(Which::Open, port), clients);
        assert_eq!(shown(Which::HalfOpen, port), [0u16; 0]);
    }

    /// The clients' ports of those that are shown of a server.
    fn shown(which: Which, port: u16) -> Vec<u16> {
        let mut found = Vec::new();
        each(which, &mut |one| {
            if one.local_port == port {
                found.push(one.remote_port);
            }
            true
        })
        .unwrap();
        found.sort_unstable();
        found
    }

    #[test]
    fn half_open_connections_are_shown_until_they_open() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            // It is half-open for the server until the client has said something.
            setsockopt(&listener, Deferred, &30).unwrap();
            let at = listener.local_addr().unwrap();
            let mut held: Vec<_> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
            let port = |client: &TcpStream| client.local_addr().unwrap().port();
            let mut clients: Vec<u16> = held.iter().map(port).collect();
            clients.sort_unstable();
            assert_eq!(shown(Which::HalfOpen, at.port()), clients);
            // The other ends are open.
            assert_eq!(shown(Which::Open, at.port()), [0u16; 0]);
            held[0].write_all(b"x").unwrap();
            let (_accepted, client) = listener.accept().unwrap();
            clients.retain(|one| *one != client.port());
            assert_eq!(shown(Which::HalfOpen, at.port()), clients);
            assert_eq!(shown(Which::Open, at.port()), [client.port()]);
        }
    }
}
