//! Ports that are AF_XDP sockets: queues of interfaces, over one memory.

use super::{BURST, Fate, Frame, Ports};
use std::rc::Rc;
use weir_dataplane::Error;
use weir_dataplane::xsk::{self, XskPorts};

/// What becomes of frames that are the host's, or go where its routes lead: their bytes, and the interface
/// and the queue that they came by.
pub type Returned<'a> = dyn FnMut(&[u8], u32, u32) + 'a;

/// AF_XDP sockets as ports of a plane.
pub struct AfXdp<'a> {
    ports: XskPorts,
    /// Those that are with the plane, by the frames' buffers.
    held: Vec<Option<xsk::Frame>>,
    /// Numbers that none of them has.
    unheld: Vec<u32>,
    /// Whether frames may stay with the plane when others are finished.
    keeps: bool,
    received: Vec<xsk::Frame>,
    returned: Box<Returned<'a>>,
    /// The ports of each interface, of which the first is sent by.
    by_interface: Vec<(u32, usize)>,
    interfaces: Rc<[u32]>,
    sent: u64,
    full: u64,
}

impl<'a> AfXdp<'a> {
    /// Over these sockets. `returned` is given the frames whose [`Fate`] is to pass, or to be routed.
    pub fn new(ports: XskPorts, returned: Box<Returned<'a>>) -> Self {
        let received = Vec::with_capacity(BURST);
        let mut new = Self {
            ports,
            held: Vec::new(),
            unheld: Vec::new(),
            keeps: false,
            received,
            returned,
            by_interface: Vec::new(),
            interfaces: Rc::new([]),
            sent: 0,
            full: 0,
        };
        new.look_at_ports();
        new
    }

    /// Lets frames stay with the plane when it finishes others: from now on each has to be finished.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.keeps = true;
        self
    }

    /// The sockets, to plug ports in and out, when no frame is with the plane.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut XskPorts) -> T) -> T {
        let done = change(&mut self.ports);
        self.look_at_ports();
        done
    }

    /// The sockets.
    pub fn sockets(&self) -> &XskPorts {
        &self.ports
    }

    /// The interfaces that frames can be sent by.
    pub fn interfaces(&self) -> Rc<[u32]> {
        Rc::clone(&self.interfaces)
    }

    /// Frames that were given to interfaces.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames that were dropped as the ring of the port that they were to leave by was full.
    pub fn full(&self) -> u64 {
        self.full
    }

    fn look_at_ports(&mut self) {
        self.by_interface.clear();
        for port in 0..self.ports.numbers() {
            if let Some((interface, _)) = self.ports.place_of(port) {
                self.by_interface.push((interface, port));
            }
        }
        self.interfaces = self.by_interface.iter().map(|(interface, _)| *interface).collect();
    }

    /// The port that a frame leaves by: of its interface, that of the queue that it came by if it goes
    /// back.
    fn way_out(&self, came_by: usize, device: u32) -> Option<usize> {
        let back = self.ports.place_of(came_by);
        if device == 0 || back.is_some_and(|(interface, _)| interface == device) {
            return Some(came_by);
        }
        self.by_interface.iter().find(|(interface, _)| *interface == device).map(|(_, port)| *port)
    }

    fn send(&mut self, mut frame: xsk::Frame, shape: &Frame) -> Result<(), Error> {
        let to = self.way_out(frame.port(), shape.device);
        let fits = self.ports.reshape(&mut frame, shape.at as usize, shape.len as usize);
        let (Some(to), true) = (to, fits) else {
            self.full += 1;
            self.ports.free(frame);
            return Ok(());
        };
        let Err(frame) = self.ports.send(frame, to) else {
            self.sent += 1;
            return Ok(());
        };
        // The ring is full: what is in it leaves now, or this frame is one too many.
        self.ports.flush()?;
        match self.ports.send(frame, to) {
            Ok(()) => self.sent += 1,
            Err(frame) => {
                self.full += 1;
                self.ports.free(frame);
            }
        }
        Ok(())
    }
}

impl Ports for AfXdp<'_> {
    type Error = Error;

    fn receive(&mut self, frames: &mut [Frame; BURST]) -> Result<usize, Error> {
        if !self.keeps {
            self.held.clear();
            self.unheld.clear();
        }
        self.ports.receive(BURST, &mut self.received);
        let count = self.received.len();
        for (frame, to) in self.received.drain(..).zip(frames) {
            let buffer = self.unheld.pop().unwrap_or_else(|| {
                self.held.push(None);
                self.held.len() as u32 - 1
            });
            let (at, len) = (frame.at() as u32, frame.len() as u32);
            *to = Frame { at, len, buffer, ..Frame::default() };
            self.held[buffer as usize] = Some(frame);
        }
        Ok(count)
    }

    fn queue_of(&self, frame: &Frame) -> u16 {
        let held = self.held.get(frame.buffer as usize).and_then(Option::as_ref);
        let place = held.and_then(|frame| self.ports.place_of(frame.port()));
        place.map_or(0, |(_, queue)| queue as u16)
    }

    fn memory(&mut self) -> &mut [u8] {
        self.ports.memory_mut()
    }

    fn finish(&mut self, frames: &[Frame]) -> Result<(), Error> {
        for shape in frames {
            let held = self.held.get_mut(shape.buffer as usize).and_then(Option::take);
            let Some(frame) = held else { continue };
            self.unheld.push(shape.buffer);
            match shape.fate {
                Fate::Send => self.send(frame, shape)?,
                Fate::Drop => self.ports.free(frame),
                Fate::Pass | Fate::Route => {
                    if let Some((interface, queue)) = self.ports.place_of(frame.port()) {
                        (self.returned)(self.ports.bytes(&frame), interface, queue);
                    }
                    self.ports.free(frame);
                }
            }
        }
        // A burst may leave some behind, which nobody has finished.
        if !self.keeps {
            self.unheld.clear();
            for frame in self.held.drain(..).flatten() {
                self.ports.free(frame);
            }
        }
        self.ports.flush()
    }
}
