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
    RINGS.with_borrow_mut(|rings| {
        if rings.is_none() {
            match Eal::start(Memory { huge: false, megabytes: 256 }) {
                Ok(eal) => *rings = Some(open(eal)),
                Err(Error::NotBuilt) => return in_memory(burst, frame),
                Err(error) => panic!("{error}"),
            }
        }
        over_rings(burst, rings.as_mut().expect("it is open"), frame)
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

fn over_rings(burst: &mut Burst, rings: &mut Dpdk, frame: &[u8]) -> Done {
    rings.put(0, frame).expect("it fits");
    let mut frames = [Frame::default(); BURST];
    let mut count = 0;
    // The kernel's port has its turn, too.
    for _ in 0..2 {
        count = rings.receive(&mut frames).expect("it can receive");
        if count > 0 {
            break;
        }
    }
    assert_eq!(count, 1, "what was put in comes in");
    burst.process(rings.memory(), &mut frames[..1]);
    let Frame { fate, device, .. } = frames[0];
    frames[0].device = 0;
    rings.finish(&frames[..1]).expect("it can send");
    let [mut sent, mut passed] = [rings.take(0), rings.take(1)];
    let (to, other) = match fate {
        Fate::Pass | Fate::Route => (&mut passed, &mut sent),
        Fate::Send | Fate::Drop => (&mut sent, &mut passed),
    };
    assert!(other.is_empty(), "{fate:?}, and another port sends");
    assert_eq!(to.len(), usize::from(fate != Fate::Drop), "{fate:?}");
    Done { fate, device, found: to.pop().unwrap_or_default() }
}

fn in_memory(burst: &mut Burst, frame: &[u8]) -> Done {
    let mut memory = vec![0; HEADROOM + frame.len()];
    memory[HEADROOM..].copy_from_slice(frame);
    let mut places = [Frame { at: HEADROOM as u32, len: frame.len() as u32, ..Frame::default() }];
    burst.process(&mut memory, &mut places);
    let [Frame { at, len, fate, device, .. }] = places;
    let found = if fate == Fate::Drop { &[] } else { &memory[at as usize..][..len as usize] };
    Done { fate, device, found: found.to_vec() }
}
