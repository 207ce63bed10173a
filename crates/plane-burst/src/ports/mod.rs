//! Where bursts of frames come from and go to.

mod af_xdp;
mod memory;

pub use af_xdp::{AfXdp, Returned};
pub use memory::{Memory, Sent, Stock};

/// The most frames of a burst.
pub const BURST: usize = 64;
/// Bytes in front of a received frame that are the plane's to use: for the headers of a tunnel, or for what
/// a message to a sender is larger by than the packet that it is about.
pub const HEADROOM: usize = 128;

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// It goes nowhere; its buffer is free.
    #[default]
    Drop,
    /// It is sent by the interface of [`Frame::device`].
    Send,
    /// It is sent where the host's routes lead: an answer on its way to a client.
    Route,
    /// It is the host's.
    Pass,
}

/// A frame in the memory of its ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Frame {
    /// Where it begins, from the beginning of the memory.
    pub at: u32,
    /// Its length in bytes, from the Ethernet header on.
    pub len: u32,
    /// Its buffer, in the ports' own terms.
    pub buffer: u32,
    /// What is to be done with it.
    pub fate: Fate,
    /// The interface that it is sent by; 0: the one that it came in by.
    pub device: u32,
}

/// Ports that frames come in and go out by, in memory that they share with the plane.
///
/// A buffer belongs to the plane from [`receive`](Self::receive) to [`finish`](Self::finish). Each frame has
/// [`HEADROOM`] bytes of its buffer in front of it.
pub trait Ports {
    /// Why they cannot go on.
    type Error;

    /// Takes frames that have come in, at most as many as there is room for; returns how many.
    ///
    /// # Errors
    /// If the ports are of no more use.
    fn receive(&mut self, frames: &mut [Frame; BURST]) -> Result<usize, Self::Error>;

    /// The memory that frames are in.
    fn memory(&mut self) -> &mut [u8];

    /// The queue that a frame, which is with the plane, came by; where there is one, the first.
    fn queue_of(&self, _: &Frame) -> u16 {
        0
    }

    /// Whether a queue may hold more than the last [`receive`](Self::receive), which took so many frames in all, has
    /// taken out of it.
    fn may_have_left(&self, _queue: u16, received: usize) -> bool {
        // All of them are asked for a burst.
        received == BURST
    }

    /// Does with each frame what its fate says; the buffers are the ports' again.
    ///
    /// # Errors
    /// If the ports are of no more use.
    fn finish(&mut self, frames: &[Frame]) -> Result<(), Self::Error>;
}
