//! The process: sockets at the interfaces that the program is attached to, and a loop over them.
//!
//! It sleeps while nothing comes. After a burst it looks again for a while before it sleeps, longer where
//! that was worth it lately, and less where it was not.

use super::Beside;
use crate::ports::{AfXdp, BURST, Frame, Ports};
use crate::utilisation::Utilisation;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::user::{Standing, UserMemory};
use weir_dataplane::xsk::{XskConfig, XskPorts};
use weir_dataplane::{Error, KernelPlane};

/// Entries of a socket's rings.
const RING: u32 = 1024;
/// Sockets that there is room for, beside those at the start: interfaces come back.
const SPARE: usize = 8;
/// Sockets in all: the map that leads to them has so many entries (bpf/front.bpf.c).
const MOST_SOCKETS: usize = 256;
/// Chunks for each socket: half of them wait for frames, the others are on their way out.
const CHUNKS: usize = 2 * RING as usize;

/// It sleeps so long at a time, and looks after all else in between.
const NAP: Duration = Duration::from_millis(100);
/// After a burst it looks for another one for at most so long.
const MOST_SPIN: Duration = Duration::from_micros(50);
const LEAST_SPIN: Duration = Duration::from_micros(1);
/// What does not stand in memory is looked at again: MTUs of ways, and whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What it says of itself, and whether interfaces came or went.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// A frame that was led here before that ended is in a ring after so long.
const LAST_FRAMES: Duration = Duration::from_millis(5);

/// Why the plane ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] Error),
    /// The program is attached nowhere, or no interface takes a socket.
    #[error("no interface of {directory} takes an AF_XDP socket: {why}")]
    NoSockets {
        /// Where the data plane is pinned.
        directory: String,
        /// The first refusal.
        why: String,
    },
}

/// A queue of an interface.
type Queue = (u32, u32);

/// Runs the plane over a data plane that is pinned in a directory, until `stop` is set, that memory is
/// replaced, or it wants no plane any more.
///
/// # Errors
/// [`RunError`] if it cannot begin. What fails later is said, and gone around.
pub fn run(directory: &Path, stop: &AtomicBool) -> Result<(), RunError> {
    let memory = Rc::new(RefCell::new(UserMemory::open(directory)?));
    let wanted = queues(directory)?;
    let ports = XskPorts::open_behind(&memory.borrow(), sockets(wanted.len()))?;
    let lost = Rc::new(Cell::new((0u64, 0u64)));
    let (to_kernel, count) = (Rc::clone(&memory), Rc::clone(&lost));
    let give_back = move |frame: &[u8], interface, queue| {
        let (given, failed) = count.get();
        let done = to_kernel.borrow().give_back(frame, interface, queue);
        if let Err(error) = &done
            && failed == 0
        {
            warn!(%error, "a frame is lost");
        }
        count.set((given + 1, failed + u64::from(done.is_err())));
    };
    let mut plane = Plane {
        directory,
        ports: AfXdp::new(ports, Box::new(give_back)),
        beside: Beside::default(),
        util: Utilisation::default(),
        spin: LEAST_SPIN,
        slept: 0,
        received: 0,
        lost,
        told: Told::default(),
        refused: BTreeSet::new(),
        memory,
    };
    let refusal = plane.follow_interfaces(&wanted);
    if plane.sockets() == 0 {
        let why = refusal.map_or_else(|| "there is none".into(), |error| error.to_string());
        return Err(RunError::NoSockets { directory: directory.display().to_string(), why });
    }
    let sockets = plane.sockets();
    plane.memory.borrow().begin(sockets);
    info!(sockets, "packets are decided in user space");
    let done = plane.go_on(stop);
    plane.finish();
    done
}

/// Rings and memory for so many queues, and for a few that may come.
pub fn sockets(queues: usize) -> XskConfig {
    let ports = (queues + SPARE).min(MOST_SOCKETS);
    XskConfig { ports, chunks: (ports * CHUNKS) as u32, ring: RING }
}

/// The receive queues of the interfaces that the program is attached to.
fn queues(directory: &Path) -> Result<Vec<Queue>, Error> {
    let pinned = KernelPlane::left_in(directory)?.unwrap_or_default();
    let mut all = Vec::new();
    for interface in pinned.links.iter().map(|link| link.number).filter(|number| *number != 0) {
        all.extend((0..XskPorts::queues(interface)?).map(|queue| (interface, queue)));
    }
    Ok(all)
}

/// What was counted when it was told last.
#[derive(Default)]
struct Told {
    returned: u64,
    failed: u64,
    sent: u64,
    full: u64,
    received: u64,
    slept: u64,
    drops: weir_dataplane::xsk::XskDrops,
}

struct Plane<'a> {
    directory: &'a Path,
    ports: AfXdp<'a>,
    beside: Beside,
    util: Utilisation,
    spin: Duration,
    slept: u64,
    received: u64,
    /// Frames given back to the kernel, and those that it refused.
    lost: Rc<Cell<(u64, u64)>>,
    told: Told,
    /// Queues that took no socket, about which that was said.
    refused: BTreeSet<Queue>,
    memory: Rc<RefCell<UserMemory>>,
}

impl Plane<'_> {
    fn sockets(&self) -> u64 {
        let ports = self.ports.sockets();
        (0..ports.numbers()).filter(|port| ports.place_of(*port).is_some()).count() as u64
    }

    /// Plugs in what is new and out what is gone; returns the first refusal.
    fn follow_interfaces(&mut self, wanted: &[Queue]) -> Option<Error> {
        let mut first = None;
        let numbers = self.ports.sockets().numbers();
        for port in 0..numbers {
            let gone = |place: &Queue| !wanted.contains(place);
            if let Some((interface, queue)) = self.ports.sockets().place_of(port).filter(gone) {
                info!(interface, queue, "socket closed");
                let left = self.ports.change(|ports| ports.unplug(port));
                self.ports.change(|ports| {
                    left.unread.into_iter().chain(left.unsent).for_each(|frame| ports.free(frame));
                });
            }
        }
        for &(interface, queue) in wanted {
            let ports = self.ports.sockets();
            let place = |port: &usize| ports.place_of(*port);
            if (0..numbers).any(|port| place(&port) == Some((interface, queue))) {
                continue;
            }
            let Some(port) = (0..numbers).find(|port| place(port).is_none()) else {
                warn!(
                    interface,
                    queue, "no room for another socket; the kernel decides its packets"
                );
                break;
            };
            let plugged = self.ports.change(|ports| ports.plug_queue(port, interface, queue));
            match plugged {
                Ok(()) => _ = self.refused.remove(&(interface, queue)),
                Err(error) => {
                    if self.refused.insert((interface, queue)) {
                        warn!(%error, "the kernel decides the packets of this queue");
                    }
                    first = first.or(Some(error));
                }
            }
        }
        self.refused.retain(|queue| wanted.contains(queue));
        first
    }

    /// The loop.
    fn go_on(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        let begun = Instant::now();
        let (mut looked, mut told, mut last) = (begun, begun, begun);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            self.util.begin(now - begun);
            let count = self.turn()?;
            if count > 0 {
                last = Instant::now();
                self.util.end(last - begun, count as u64);
            } else if now - last > self.spin {
                self.sleep()?;
                // What came while it would have looked for it makes it look longer the next time.
                let soon = last.elapsed() < MOST_SPIN;
                self.spin = if soon { self.spin * 2 } else { self.spin / 2 };
                self.spin = self.spin.clamp(LEAST_SPIN, MOST_SPIN);
            }
            if self.memory.borrow().is_leaving() {
                break;
            }
            if now - looked > LOOK_EVERY {
                looked = now;
                self.beside.refresh();
                if self.memory.borrow().standing() == Standing::Over {
                    break;
                }
            }
            if now - told > TELL_EVERY {
                self.look_after(now - told);
                told = now;
            }
        }
        Ok(())
    }

    /// A burst, if one is there.
    fn turn(&mut self) -> Result<usize, RunError> {
        let mut frames = [Frame::default(); BURST];
        let count = self.ports.receive(&mut frames)?;
        let frames = &mut frames[..count];
        if count > 0 {
            self.received += count as u64;
            let interfaces = self.ports.interfaces();
            let sends_by = |interface| interfaces.contains(&interface);
            self.beside.process(&self.memory.borrow(), &sends_by, self.ports.memory(), frames);
        }
        self.ports.finish(frames)?;
        Ok(count)
    }

    fn sleep(&mut self) -> Result<(), RunError> {
        self.slept += 1;
        Ok(self.ports.sockets().wait_readable(NAP).map(drop)?)
    }

    /// What is due every second: interfaces, the program behind, and what is told.
    fn look_after(&mut self, since: Duration) {
        match queues(self.directory) {
            Ok(wanted) => _ = self.follow_interfaces(&wanted),
            Err(error) => warn!(%error, "cannot look which interfaces there are"),
        }
        if let Err(error) = self.memory.borrow_mut().follow_balancer() {
            warn!(%error, "cannot look for the program in the kernel");
        }
        self.tell(since);
    }

    fn tell(&mut self, since: Duration) {
        let (sockets, drops) = (self.sockets(), self.ports.sockets().drops());
        let (returned, failed) = self.lost.get();
        let now = Told {
            returned,
            failed,
            sent: self.ports.sent(),
            full: self.ports.full(),
            received: self.received,
            slept: self.slept,
            drops,
        };
        let (before, util) = (&self.told, self.util);
        let plus = match sockets {
            0 | 1 => util.util_plus(BURST as u64),
            _ => util.util_plus_of_queues(BURST as u64 / 2),
        };
        let millionths = |share: f64| (share * 1e6) as u64;
        let more = |now: u64, before: u64| now.saturating_sub(before);
        self.memory.borrow().count(|counts| {
            counts.received += more(now.received, before.received);
            counts.sent += more(now.sent, before.sent);
            counts.returned += more(now.returned, before.returned);
            counts.return_failed += more(now.failed, before.failed);
            counts.rx_ring_full += more(drops.rx_ring_full, before.drops.rx_ring_full);
            counts.no_chunk += more(drops.no_chunk, before.drops.no_chunk);
            counts.device_full += more(drops.device_full, before.drops.device_full);
            counts.device_full += more(now.full, before.full);
            counts.bad_descriptors += more(drops.bad_descriptors, before.drops.bad_descriptors);
            counts.bursts += util.bursts();
            counts.sleeps += more(now.slept, before.slept);
            counts.busy_nanoseconds += util.times().1.as_nanos() as u64;
            counts.nanoseconds += since.as_nanos() as u64;
            counts.utilisation = millionths(util.util());
            counts.utilisation_plus = millionths(plus);
            counts.sockets = sockets;
        });
        self.told = now;
        self.util.start_over();
    }

    /// What is in the rings is still decided; then no more comes.
    fn finish(&mut self) {
        if !self.memory.borrow().is_leaving() {
            // The front program stops at once when nobody is ready.
            self.memory.borrow().end();
        }
        let end = Instant::now() + LAST_FRAMES;
        while Instant::now() < end {
            match self.turn() {
                Ok(0) => thread::sleep(LAST_FRAMES / 10),
                Ok(_) => {}
                Err(error) => {
                    warn!(%error, "cannot finish");
                    break;
                }
            }
        }
        self.tell(Duration::ZERO);
        self.memory.borrow().end();
    }
}
