//! What the burst plane's frames come and go by: memory, or rings of DPDK where the tests are built with it
//! (`--features weir-plane-dpdk/dpdk`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_plane_burst::{BURST, Burst, Fate, Frame, HEADROOM, Ports};
use weir_plane_dpdk::{Buffers, Dpdk, Eal, Error, Memory};

/// What became of a frame.
pub struct Done {
    pub fate: Fate,
    pub device: u32,
    /// Its bytes; of one that is dropped, none.
    pub found: Vec<u8>,
}

/// Of rings, whose names differ.
static NUMBER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static RINGS: RefCell<Option<Dpdk>> = const { RefCell::new(None) };
}

/// A frame through the plane.
pub fn through(burst: &mut Burst, frame: &[u8]) -> Done {
    through_as_one(burst, &[frame]).pop().expect("a frame has gone through")
}

/// Frames through the plane, as one burst.
pub fn through_as_one<F: AsRef<[u8]>>(burst: &mut Burst, frames: &[F]) -> Vec<Done> {
    RINGS.with_borrow_mut(|rings| {
        if rings.is_none() {
            match Eal::start(Memory { huge: false, megabytes: 256 }) {
                Ok(eal) => *rings = Some(open(eal)),
                Err(Error::NotBuilt) => return in_memory(burst, frames),
                Err(error) => panic!("{error}"),
            }
        }
        over_rings(burst, rings.as_mut().expect("it is open"), frames)
    })
}

/// A ring that stands for all interfaces, and one that is the kernel's.
fn open(eal: Eal) -> Dpdk {
    let number = 2 * NUMBER.fetch_add(1, Ordering::Relaxed);
    let [ring, kernel] = [number, number + 1].map(|number| format!("net_ring{number}"));
    // For the longest frame of the corpus.
    let buffers = Buffers { count: 255, room: 16 << 10, ring: 64 };
    Dpdk::open(eal, &[&ring], Some(&kernel), buffers).expect("there are rings")
}

fn over_rings<F: AsRef<[u8]>>(burst: &mut Burst, rings: &mut Dpdk, all: &[F]) -> Vec<Done> {
    for frame in all {
        rings.put(0, frame.as_ref()).expect("it fits");
    }
    let mut frames = [Frame::default(); BURST];
    let mut count = 0;
    // The kernel's port has its turn, too.
    for _ in 0..2 {
        count = rings.receive(&mut frames).expect("it can receive");
        if count > 0 {
            break;
        }
    }
    assert_eq!(count, all.len(), "what was put in comes in");
    let frames = &mut frames[..count];
    burst.process(rings.memory(), frames);
    let fates: Vec<(Fate, u32)> = frames.iter().map(|frame| (frame.fate, frame.device)).collect();
    frames.iter_mut().for_each(|frame| frame.device = 0);
    rings.finish(frames).expect("it can send");
    let [mut sent, mut passed] = [0, 1].map(|port| rings.take(port).into_iter());
    let done = fates.into_iter().map(|(fate, device)| {
        let found = match fate {
            Fate::Send => sent.next().expect("it is sent"),
            Fate::Pass | Fate::Route => passed.next().expect("it is the kernel's"),
            Fate::Drop => Vec::new(),
        };
        Done { fate, device, found }
    });
    let done = done.collect();
    assert!(sent.next().is_none() && passed.next().is_none(), "a port sends what it should not");
    done
}

fn in_memory<F: AsRef<[u8]>>(burst: &mut Burst, all: &[F]) -> Vec<Done> {
    let mut memory = Vec::new();
    let mut places = Vec::new();
    for frame in all {
        let frame = frame.as_ref();
        memory.resize(memory.len() + HEADROOM, 0);
        let (at, len) = (memory.len() as u32, frame.len() as u32);
        memory.extend_from_slice(frame);
        places.push(Frame { at, len, ..Frame::default() });
    }
    burst.process(&mut memory, &mut places);
    let done = places.into_iter().map(|Frame { at, len, fate, device, .. }| {
        let found = if fate == Fate::Drop { &[] } else { &memory[at as usize..][..len as usize] };
        Done { fate, device, found: found.to_vec() }
    });
    done.collect()
}
