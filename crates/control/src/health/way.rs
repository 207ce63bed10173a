//! The way that a service's packets take to a backend, for checks that go by it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use weir_plane::forward::{Tunnel, nat};

use super::answer::Trouble;
use crate::config::{Balancer, Forward, Service, TunnelSources};
use crate::frames::{Frames, Port, Upper};
use crate::neigh::{self, NeighError, Neighbour};

const ETHERNET: usize = 14;
/// How often it is looked whether the neighbour has answered.
const LOOK: Duration = Duration::from_millis(20);
/// Of what goes by frames: a backend that has not the address and is a router must not pass it on to one that has.
const LAST_HOP: u8 = 1;
/// Where routers may be on the way.
const FAR: u8 = 64;

/// How a service's packets get to its backends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// The service's address that is asked, of a prefix the first.
    pub vip: IpAddr,
    /// What is done to packets.
    pub forward: Forward,
    /// Where tunnels begin.
    pub sources: TunnelSources,
    /// Addresses of services, none of which is this host's alone.
    pub vips: Arc<BTreeSet<IpAddr>>,
}

/// The way to one backend as it is now, and where its answers come in.
#[derive(Debug)]
pub(super) struct Passage {
    pub port: Port,
    /// The service's address and the port that is asked, as the sender sees it.
    pub service: SocketAddr,
    backend: IpAddr,
    hop: Neighbour,
    tunnel: Option<Tunnel>,
    translated: bool,
}

impl Way {
    /// That of a service to a backend. `vips`: the addresses of all services.
    pub fn of(
        service: &Service,
        backend: IpAddr,
        balancer: &Balancer,
        vips: Arc<BTreeSet<IpAddr>>,
    ) -> Self {
        let (vip, forward) = (service.address_for(backend), service.forward);
        Self { vip, forward, sources: balancer.tunnel_sources(), vips }
    }

    /// Finds it, to a backend's address and port; waits for its neighbour.
    pub(super) async fn find(
        &self,
        backend: SocketAddr,
        upper: Upper,
        frames: &Frames,
    ) -> Result<Passage, Trouble> {
        let (hop, found) = self.neighbour(backend.ip()).await?;
        let tunnel = match self.forward.encapsulation() {
            None => None,
            Some(encapsulation) => {
                let (source, spread) = self.sources.towards(backend.ip(), found);
                if source.is_none() {
                    let words = "this host has no address to begin the tunnel at (tunnel_source)";
                    return Err(Trouble::Host(words.into()));
                }
                Some(Tunnel { encapsulation, source, spread, mtu: 0 })
            }
        };
        let (vip, vips) = (self.vip, Arc::clone(&self.vips));
        let own = move || neigh::own_address(vip, backend.ip(), hop.ifindex, &vips);
        let source = spawn_blocking(own).await.ok().flatten().ok_or_else(|| {
            let family = if vip.is_ipv4() { "IPv4" } else { "IPv6" };
            Trouble::Host(format!("this host has no {family} address of its own to ask from"))
        })?;
        let port =
            frames.port(source, upper).await.map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    Trouble::Host("a check through the service needs CAP_NET_RAW".into())
                }
                _ => Trouble::Io(error),
            })?;
        let service = (self.vip, backend.port()).into();
        let translated = self.forward.is_nat();
        Ok(Passage { port, service, backend: backend.ip(), hop, tunnel, translated })
    }

    /// Where frames for a backend go, and our address on the way.
    async fn neighbour(&self, backend: IpAddr) -> Result<(Neighbour, Option<IpAddr>), Trouble> {
        loop {
            let (routed, vips) = (self.forward.passes_routers(), Arc::clone(&self.vips));
            let look = move || match routed {
                true => neigh::path(backend, &vips).map(|path| (path.next, path.source)),
                false => neigh::resolve_now(backend).map(|hop| (hop, None)),
            };
            let stopped = |error| Trouble::Host(format!("the look-up ended: {error}"));
            match spawn_blocking(look).await.map_err(stopped)? {
                Ok((Some(hop), source)) => return Ok((hop, source)),
                Ok((None, _)) => sleep(LOOK).await,
                Err(NeighError::NoRoute { .. }) => {
                    return Err(io::Error::from_raw_os_error(libc::ENETUNREACH).into());
                }
                Err(error @ NeighError::Kernel { .. }) => {
                    return Err(Trouble::Host(error.to_string()));
                }
                // Packets of clients do not get there either.
                Err(error) => return Err(Trouble::Answer(error.to_string())),
            }
        }
    }
}

impl Passage {
    /// The time to live that packets are to have.
    pub fn ttl(&self) -> u8 {
        match (self.translated, self.tunnel) {
            (true, _) => FAR,
            // One is taken where the tunnel begins.
            (false, Some(_)) => LAST_HOP + 1,
            (false, None) => LAST_HOP,
        }
    }

    /// Sends a packet for the service as the data plane would to this backend.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        let mut frame = self.framed(packet);
        let sent = match &self.tunnel {
            Some(tunnel) => tunnel.encapsulate(&mut frame, self.backend, None),
            None if self.translated => {
                nat::translate(&mut frame, nat::End::Destination, (self.backend, None), None)
            }
            None => Ok(()),
        };
        match sent {
            Ok(()) => self.port.send(self.hop.ifindex, &frame),
            Err(reason) => Err(io::Error::other(reason.description())),
        }
    }

    fn framed(&self, packet: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(ETHERNET + packet.len());
        frame.extend(self.hop.mac);
        frame.extend(self.hop.source_mac);
        frame.extend(if self.service.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        frame.extend(packet);
        frame
    }

    /// A packet that has come, as one from the service.
    fn taken(&self, packet: Vec<u8>) -> Option<Vec<u8>> {
        if !self.translated {
            return Some(packet);
        }
        // Of another sender it is not translated, and so it is nobody's.
        let mut frame = self.framed(&packet);
        nat::translate(&mut frame, nat::End::Source, (self.service.ip(), None), None).ok()?;
        frame.drain(..ETHERNET);
        (source_of(&packet) == Some(self.backend)).then_some(frame)
    }

    /// The next packet for us, from its IP header on; for ever without, if the sockets are gone.
    pub async fn receive(&mut self) -> Vec<u8> {
        loop {
            match self.port.receive().await {
                Some(packet) => {
                    if let Some(packet) = self.taken(packet) {
                        return packet;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// As [`receive`](Self::receive), if one has come.
    pub fn received(&mut self) -> Option<Vec<u8>> {
        let packet = self.port.received()?;
        self.taken(packet)
    }
}

fn source_of(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(*packet.get(12..)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*packet.get(8..)?.first_chunk::<16>()?)),
        _ => None,
    }
}
