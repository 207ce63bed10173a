//! Floods: segments of flows that nobody has, as fast as one thread can send them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

use crate::error::{Doing, Result};
use crate::frames::FrameSender;
use crate::lab::Lab;
use crate::topology::{INTERFACE, Role, Topology, VIP4, WEB_PORT};

/// Frames between two looks at whether to go on.
const BURST: usize = 512;
/// Where an IPv4 frame without VLAN tags has its source address, and TCP its source port and its
/// checksum.
const SOURCE: usize = 26;
const PORT: usize = 34;
const CHECKSUM: usize = 50;

/// What a flood is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FloodKind {
    /// SYNs, each of which may begin a connection.
    Syn,
    /// ACKs in the middle of connections that nobody has.
    Ack,
}

impl FloodKind {
    /// The name a person types.
    pub fn name(self) -> &'static str {
        match self {
            Self::Syn => "syn",
            Self::Ack => "ack",
        }
    }

    fn flags(self) -> TcpFlags {
        match self {
            Self::Syn => TcpFlags::SYN,
            Self::Ack => TcpFlags::ACK,
        }
    }
}

/// A flood from random addresses of 198.18.0.0/15, which no route leads to: what backends answer
/// goes nowhere.
#[derive(Debug)]
pub struct Flood {
    sender: FrameSender,
    random: StdRng,
    frames: Vec<Vec<u8>>,
    pause: Duration,
}

impl Flood {
    /// A flood to a service at an IPv4 address, sent at the first client's interface. After each 512
    /// frames it waits for `pause`.
    ///
    /// # Errors
    /// If the process lacks CAP_NET_RAW, or the lab is gone.
    pub fn new(
        lab: &Lab,
        kind: FloodKind,
        target: SocketAddr,
        seed: u64,
        pause: Duration,
    ) -> Result<Self> {
        let sender = FrameSender::open(&lab.clients()[0], INTERFACE)?;
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, 0, 0)), 0);
        // The router of a fleet spreads a flood as it does everything.
        let first = match lab.spec().topology {
            Topology::Fleet => Role::Router,
            _ => Role::Balancer,
        };
        let template = Frame::new(FlowKey::new(from, target, Protocol::Tcp))
            .macs(first.mac(), Role::Client(0).mac())
            .tcp_flags(kind.flags())
            .build();
        let frames = vec![template; BURST];
        Ok(Self { sender, random: StdRng::seed_from_u64(seed), frames, pause })
    }

    /// Sends until `stop` is set; `sent` is called with the number of frames of each burst.
    ///
    /// # Errors
    /// What the system says to a frame.
    pub fn run(&mut self, stop: &AtomicBool, mut sent: impl FnMut(u64)) -> Result<()> {
        while !stop.load(Relaxed) {
            for frame in &mut self.frames {
                let host = 0xc612_0000 | self.random.random_range(0..1u32 << 17);
                redirect(frame, host, self.random.random_range(1..=u16::MAX));
            }
            self.sender.send(&self.frames)?;
            sent(BURST as u64);
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause);
            }
        }
        Ok(())
    }
}

/// Floods to the web service of IPv4 beside all that happens in a lab, each as fast as a thread can send. Dropping it
/// ends them.
#[derive(Debug)]
pub(crate) struct Floods {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    sent: Vec<(FloodKind, Arc<AtomicU64>)>,
}

impl Floods {
    /// Starts them.
    ///
    /// # Errors
    /// As [`Flood::new`], or if no thread can be had.
    pub(crate) fn begin(lab: &Lab, kinds: &[FloodKind], seed: u64) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut floods = Self { stop, threads: Vec::new(), sent: Vec::new() };
        for kind in kinds {
            let target = SocketAddr::from((VIP4, WEB_PORT));
            let seed = seed ^ *kind as u64;
            let mut flood = Flood::new(lab, *kind, target, seed, Duration::ZERO)?;
            let (stop, sent) = (Arc::clone(&floods.stop), Arc::new(AtomicU64::new(0)));
            floods.sent.push((*kind, Arc::clone(&sent)));
            let work = move || flood.run(&stop, |more| _ = sent.fetch_add(more, Relaxed));
            let thread = thread::Builder::new().name("flood".into());
            floods.threads.push(thread.spawn(work).doing(|| "starting a thread".into())?);
        }
        Ok(floods)
    }

    /// Segments that were sent so far, of each kind.
    pub(crate) fn sent(&self) -> BTreeMap<&'static str, u64> {
        self.sent.iter().map(|(kind, sent)| (kind.name(), sent.load(Relaxed))).collect()
    }

    /// Ends them.
    ///
    /// # Errors
    /// What one of them failed with.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    }
}

impl Drop for Floods {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A panic was printed already, and this may be an unwinding.
            let _ = thread.join();
        }
    }
}

/// Gives a frame another source, and both checksums with it (RFC 1624): to build each frame anew
/// would take longer than to send it.
fn redirect(frame: &mut [u8], host: u32, port: u16) {
    let mut changed = 0u32;
    let write = |frame: &mut [u8], at: usize, value: u16| {
        let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        u32::from(!old) + u32::from(value)
    };
    changed += write(frame, SOURCE, (host >> 16) as u16);
    changed += write(frame, SOURCE + 2, host as u16);
    let address = changed;
    changed += write(frame, PORT, port);
    for (at, change) in [(24, address), (CHECKSUM, changed)] {
        let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
        let mut sum = u32::from(!old) + change;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_with_another_source_is_as_if_built_for_it() {
        let to = SocketAddr::from((VIP4, WEB_PORT));
        let build = |host: u32, port| {
            let from = SocketAddr::from((Ipv4Addr::from(host), port));
            Frame::new(FlowKey::new(from, to, Protocol::Tcp)).tcp_flags(TcpFlags::SYN).build()
        };
        let mut random = StdRng::seed_from_u64(1);
        let mut frame = build(0xc612_0000, 0);
        for _ in 0..1000 {
            let (host, port) = (random.random(), random.random());
            redirect(&mut frame, host, port);
            assert_eq!(frame, build(host, port));
        }
    }
}
