//! The UDP echo server of a backend: answers `b<N>:` and what it was sent, from the VIP where it has it.

use std::io::{self, Read};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Doing, Result};
use crate::topology::{ECHO_PORT, NAT_ECHO_PORT, VIP4, VIP6};
use weir_testbed::NetNs;

/// A running echo server; dropping it closes its sockets before `drop` returns.
#[derive(Debug)]
pub(crate) struct Echo {
    /// Closing it tells the thread to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<weir_testbed::Result<()>>>,
}

impl Echo {
    /// Starts the server; its sockets are bound when this returns.
    /// `own`: the addresses that it answers at, of a backend that has not the VIP.
    pub(crate) fn start(
        netns: &NetNs,
        name: &str,
        own: Option<(Ipv4Addr, Ipv6Addr)>,
    ) -> Result<Self> {
        let what = || format!("starting the echo server of {name}");
        // Bound to the VIP, so that answers come from the address that was asked.
        let sockets = netns
            .enter(|| -> io::Result<[UdpSocket; 2]> {
                let port = if own.is_some() { NAT_ECHO_PORT } else { ECHO_PORT };
                let (v4, v6) = own.unwrap_or((VIP4, VIP6));
                let sockets = [UdpSocket::bind((v4, port))?, UdpSocket::bind((v6, port))?];
                for socket in &sockets {
                    socket.set_nonblocking(true)?;
                }
                Ok(sockets)
            })?
            .doing(what)?;
        let (stop, stopped) = UnixStream::pair().doing(what)?;
        let name = name.to_string();
        let thread = netns.spawn(move || serve(&name, &sockets, stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

fn serve(name: &str, sockets: &[UdpSocket; 2], mut stopped: UnixStream) {
    let mut answer = format!("{name}:").into_bytes();
    let prefix = answer.len();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let mut waiting = [
            PollFd::new(sockets[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(sockets[1].as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut waiting, PollTimeout::NONE).is_err() {
            continue;
        }
        let stop = waiting[2].any().unwrap_or(true);
        if stop && matches!(stopped.read(&mut [0]), Ok(0)) {
            return;
        }
        for socket in sockets {
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                answer.truncate(prefix);
                answer.extend_from_slice(&buffer[..length]);
                // Best effort, as UDP is: the client asks again.
                let _ = socket.send_to(&answer, from);
            }
        }
    }
}
