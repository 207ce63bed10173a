//! Rates of other forwarders than steering methods, over ports of memory: whatever says of a burst where its frames
//! go. Several are measured in turn.

use super::{BUFFERS, together, used};
use std::time::Duration;
use weir_plane_burst::ports::{Memory, Stock};
use weir_plane_burst::{BURST, Frame, Ports};

/// What says where frames go. Cores share it.
pub trait Forwarder: Sync {
    /// Sets the fate of each frame of a burst, of at most [`BURST`] frames in this memory.
    fn decide(&self, memory: &mut [u8], frames: &mut [Frame]);
}

/// A core's port.
struct Core<'a>(Memory<'a>);

impl Core<'_> {
    /// Takes a burst to its end; returns how many frames it had.
    fn turn(&mut self, forwarder: &dyn Forwarder, mut each: impl FnMut(&Frame)) -> usize {
        let ports = &mut self.0;
        let mut frames = [Frame::default(); BURST];
        let Ok(count) = ports.receive(&mut frames);
        let frames = &mut frames[..count];
        forwarder.decide(ports.memory(), frames);
        frames.iter().for_each(&mut each);
        let Ok(()) = ports.finish(frames);
        count
    }

    /// The time that so many packets take of the processor.
    fn send(&mut self, forwarder: &dyn Forwarder, packets: u64) -> Duration {
        let begin = used();
        let mut sent = 0;
        while sent < packets {
            sent += self.turn(forwarder, |_| ()) as u64;
        }
        used().saturating_sub(begin)
    }
}

/// Hands over what becomes of so many frames, a multiple of a burst at least, with their numbers in the stock.
pub fn decided(
    stock: &Stock,
    forwarder: &dyn Forwarder,
    frames: usize,
    mut each: impl FnMut(usize, &Frame),
) {
    let mut core = Core(Memory::new(stock, 0, BUFFERS));
    let mut number = 0;
    while number < frames {
        core.turn(forwarder, |frame| {
            each(number % stock.frames(), frame);
            number += 1;
        });
    }
}

/// Millions of packets per second of the processors' time: of each forwarder, for each number of cores, of all rounds.
/// In a measurement each core sends as many packets as stand beside the forwarder, by a port of its own.
pub fn rates(
    stock: &Stock,
    forwarders: &[(&dyn Forwarder, u64)],
    cores: &[usize],
    rounds: usize,
) -> Vec<Vec<Vec<f64>>> {
    let most = cores.iter().copied().max().unwrap_or(1);
    let port = |core| Core(Memory::new(stock, core * (stock.frames() / most), BUFFERS));
    let mut all: Vec<Core<'_>> = (0..most).map(port).collect();
    let mut found = vec![vec![Vec::new(); cores.len()]; forwarders.len()];
    for round in 0..rounds {
        for (at, &count) in cores.iter().enumerate() {
            // The order turns, so that none always follows the same other.
            for turn in 0..forwarders.len() {
                let which = (turn + round) % forwarders.len();
                let (forwarder, packets) = forwarders[which];
                let send = |core: &mut Core<'_>| core.send(forwarder, packets);
                found[which][at].push(together(&mut all[..count], packets, send));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_plane_burst::Fate;

    /// Sends by the interface that the first byte says.
    struct ByFirst;

    impl Forwarder for ByFirst {
        fn decide(&self, memory: &mut [u8], frames: &mut [Frame]) {
            for frame in frames {
                (frame.fate, frame.device) = (Fate::Send, memory[frame.at as usize].into());
            }
        }
    }

    #[test]
    fn each_frame_is_decided_and_every_forwarder_has_a_rate_of_each_round() {
        let stock = Stock::new((0..100u8).map(|n| vec![n; 64]));
        let mut seen = 0;
        decided(&stock, &ByFirst, 300, |number, frame| {
            assert_eq!((frame.fate, frame.device), (Fate::Send, number as u32));
            seen += 1;
        });
        assert!(seen >= 300, "{seen}");
        let found = rates(&stock, &[(&ByFirst, 5_000), (&ByFirst, 500)], &[1, 2], 3);
        assert_eq!(found.len(), 2);
        for by_cores in found {
            assert_eq!(by_cores.len(), 2);
            assert!(by_cores.iter().all(|rounds| rounds.len() == 3));
            assert!(by_cores.iter().flatten().all(|rate| *rate > 0.0));
        }
    }
}
