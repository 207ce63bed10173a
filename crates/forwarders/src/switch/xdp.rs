//! Ports by AF_XDP: a frame is never copied between the ring that it came by and the one that it
//! leaves by.

use super::ports::{BURST, Drops, Left, NotSent, Ports, Reason};
use crate::Result;
use std::time::{Duration, Instant};
use weir_dataplane::xsk::{Frame, XskConfig, XskPorts};

/// Chunks for each port, half of them in its fill ring, and for a node.
const PORT_CHUNKS: usize = 512;
const LEAST_CHUNKS: usize = 4096;
const MOST_CHUNKS: usize = 16_384;

/// How long a ring may take to empty; what is in it then is given back when the port goes.
const DRAIN: Duration = Duration::from_millis(20);

/// Entries of each ring.
const RING: u32 = 1024;

pub struct XdpPorts {
    ports: XskPorts,
    plugged: Vec<bool>,
}

impl Ports for XdpPorts {
    type Frame = Frame;

    fn open(ports: usize) -> Result<Self> {
        let chunks = (ports * PORT_CHUNKS).clamp(LEAST_CHUNKS, MOST_CHUNKS) as u32;
        let config = XskConfig { ports, chunks, ring: RING };
        Ok(Self { ports: XskPorts::open(config)?, plugged: vec![false; ports] })
    }

    fn plug(&mut self, port: u16, interface: u32) -> Result<()> {
        self.ports.plug(port.into(), interface)?;
        self.plugged[usize::from(port)] = true;
        Ok(())
    }

    fn pause(&mut self, port: u16) -> Result<()> {
        self.plugged[usize::from(port)] = false;
        let end = Instant::now() + DRAIN;
        while self.ports.unsent(port.into()) > 0 && Instant::now() < end {
            self.ports.flush()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn unplug(&mut self, port: u16) -> Left<Frame> {
        self.plugged[usize::from(port)] = false;
        let left = self.ports.unplug(port.into());
        Left { unread: left.unread, unsent: left.unsent }
    }

    fn receive(&mut self, patience: Duration, out: &mut Vec<Frame>) -> Result<()> {
        self.ports.receive(BURST, out);
        if out.is_empty() && !patience.is_zero() {
            self.ports.wait(patience)?;
            self.ports.receive(BURST, out);
        }
        Ok(())
    }

    fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.ports.bytes(frame)
    }

    fn send(&mut self, frame: Frame, port: u16) -> Result<(), NotSent<Frame>> {
        let port = usize::from(port);
        if self.plugged.get(port) != Some(&true) {
            return Err(NotSent::Unplugged(frame));
        }
        self.ports.send(frame, port).map_err(NotSent::Full)
    }

    fn flush(&mut self) -> Result<Vec<Frame>> {
        self.ports.flush()?;
        // What a port that is down did not take stays in its ring until it is up, or unplugged.
        Ok(Vec::new())
    }

    fn free(&mut self, frame: Frame) {
        self.ports.free(frame);
    }

    fn drops(&self) -> Drops {
        let (counted, mut drops) = (self.ports.drops(), Drops::default());
        drops.count(Reason::NoMemory, counted.no_chunk);
        drops.count(Reason::RxFull, counted.rx_ring_full);
        drops.count(Reason::DeviceFull, counted.device_full);
        drops.count(Reason::BadDescriptor, counted.bad_descriptors);
        drops
    }

    fn group_frames(&self) -> u64 {
        self.ports.group_frames().unwrap_or(0)
    }

    fn memory(&self) -> usize {
        self.ports.memory_bytes()
    }
}
