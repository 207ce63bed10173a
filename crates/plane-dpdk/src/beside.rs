//! The plane of `weir run --plane dpdk`: DPDK's ports around the memory of the program in the kernel.
//!
//! ```text
//!            ┌── segments in the middle of connections ──> Beside ──┐
//! device ────┤                                                      ├──> device
//!            └── all else ──> tap: the program, or the host ────────┘
//! ```
//! Each device has a tap that stands for it in the kernel. The program is attached to the taps, so what this
//! plane does not decide goes there and comes back, as do the frames of the host. While the memory is being
//! changed, the program decides everything.

use crate::{Buffers, Counts, Dpdk, Eal, Error, Memory, Pair};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::Interface;
use weir_dataplane::user::{Standing, UserMemory};
use weir_plane_burst::beside::Beside;
use weir_plane_burst::{BURST, Fate, Frame, Ports, Utilisation};

/// After a burst it looks for another one for at most so long before it naps.
const MOST_SPIN: Duration = Duration::from_micros(50);
const LEAST_SPIN: Duration = Duration::from_micros(1);
/// The first nap; each that finds nothing is followed by one of twice the length.
const FIRST_NAP: Duration = Duration::from_micros(10);
/// What does not stand in memory is looked at again: MTUs of ways, and whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What it says of itself, and whether devices are still there.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often it looks for memory to decide by, while it has none.
const OPEN_EVERY: Duration = Duration::from_millis(5);
/// A data plane that wants no plane in user space for so long will want none.
const UNWANTED: Duration = Duration::from_secs(1);

/// What the plane runs over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Devices, each after the name of the tap that stands for it.
    pub ports: Vec<(String, String)>,
    /// DPDK's memory.
    pub memory: Memory,
    /// It naps for at most so long when nothing comes; never, if that is 0.
    pub longest_nap: Duration,
}

impl Setup {
    fn open(&self) -> Result<Dpdk, Error> {
        let devices: Vec<&str> = self.ports.iter().map(|(_, device)| &**device).collect();
        let eal = Eal::start_for(self.memory, &devices)?;
        let pairs: Vec<Pair<'_>> =
            self.ports.iter().map(|(tap, device)| Pair { device, tap }).collect();
        Dpdk::open_pairs(eal, &pairs, Buffers::default())
    }
}

/// Why the plane ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What DPDK says.
    #[error(transparent)]
    Dpdk(#[from] Error),
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] weir_dataplane::Error),
}

/// Opens everything that the plane needs, and leaves it as it is: the process is to end then.
///
/// # Errors
/// What the plane would not begin for.
pub fn probe(setup: &Setup) -> Result<(), RunError> {
    setup.open()?.leave();
    Ok(())
}

/// Runs the plane over a data plane that is pinned in a directory, until `stop` is set, a device has gone away,
/// or it wants no plane any more. The process is to end then.
///
/// # Errors
/// [`RunError`] if it cannot begin, or go on.
pub fn run(directory: &Path, setup: &Setup, stop: &AtomicBool) -> Result<(), RunError> {
    // Before there is a device: a data plane that wants no plane loses no frame to one.
    drop(UserMemory::open(directory)?);
    let ports = setup.open()?;
    let taps = setup.ports.iter().map(|(tap, _)| Ok(Interface::find(tap)?.index));
    let taps: Result<Vec<u32>, weir_dataplane::Error> = taps.collect();
    let mut plane = Plane {
        directory: directory.to_owned(),
        taps: taps?,
        names: setup.ports.iter().map(|(tap, _)| tap.clone()).collect(),
        longest_nap: setup.longest_nap,
        ports,
        beside: Beside::default(),
        memory: None,
        util: Utilisation::default(),
        spin: LEAST_SPIN,
        slept: 0,
        told: Told::default(),
    };
    info!(ports = plane.taps.len(), "packets are decided in user space, by ports of DPDK");
    let done = plane.go_on(stop);
    if let Some(memory) = plane.memory.take() {
        memory.end();
    }
    plane.ports.leave();
    done
}

/// What was counted when it was told last.
#[derive(Default)]
struct Told {
    counts: Counts,
    missed: (u64, u64),
    slept: u64,
}

struct Plane {
    directory: PathBuf,
    /// Numbers of the taps, which are the interfaces of weir's configuration, and their names.
    taps: Vec<u32>,
    names: Vec<String>,
    longest_nap: Duration,
    ports: Dpdk,
    beside: Beside,
    /// None while it is being changed.
    memory: Option<UserMemory>,
    util: Utilisation,
    spin: Duration,
    slept: u64,
    told: Told,
}

impl Plane {
    fn go_on(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        let begun = Instant::now();
        let (mut looked, mut told, mut last) = (begun, begun, begun);
        // When it began to have no memory, and when it last looked for some.
        let (mut without, mut tried) = (begun, None::<Instant>);
        let mut nap = FIRST_NAP;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if self.memory.is_none() && tried.is_none_or(|tried| now - tried > OPEN_EVERY) {
                tried = Some(now);
                match self.begin() {
                    Ok(true) => {}
                    // What is being changed may take its time.
                    Ok(false) => without = now,
                    // Directories are renamed while memory is taken over.
                    Err(_) if now - without < UNWANTED && self.directory.exists() => {}
                    Err(error) => {
                        info!(%error, "no plane in user space is wanted any more");
                        return Ok(());
                    }
                }
            }
            self.util.begin(now - begun);
            let count = self.turn()?;
            if count > 0 {
                last = Instant::now();
                nap = FIRST_NAP;
                self.util.end(last - begun, count);
            } else if now - last > self.spin && !self.longest_nap.is_zero() {
                self.slept += 1;
                thread::sleep(nap.min(self.longest_nap));
                // What came while it would have looked for it makes it look longer the next time.
                let soon = last.elapsed() < MOST_SPIN;
                self.spin = if soon { self.spin * 2 } else { self.spin / 2 };
                self.spin = self.spin.clamp(LEAST_SPIN, MOST_SPIN);
                nap = (nap * 2).min(self.longest_nap);
            }
            if self.memory.as_ref().is_some_and(UserMemory::is_leaving) {
                self.let_go();
                (without, tried) = (now, None);
            }
            if now - looked > LOOK_EVERY {
                looked = now;
                self.beside.refresh();
                let over = |memory: &UserMemory| memory.standing() == Standing::Over;
                if self.memory.as_ref().is_some_and(over) {
                    self.let_go();
                    (without, tried) = (now, None);
                }
            }
            if now - told > TELL_EVERY {
                self.still_there()?;
                self.tell(now - told);
                told = now;
            }
        }
        Ok(())
    }

    /// Decides by the memory from now on; false while it is being changed.
    fn begin(&mut self) -> Result<bool, RunError> {
        let Some(memory) = UserMemory::open_settled(&self.directory)? else { return Ok(false) };
        memory.begin(self.taps.len() as u64);
        self.beside = Beside::default();
        self.memory = Some(memory);
        Ok(true)
    }

    /// Decides by it no more: what is at hand has been finished.
    fn let_go(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.end();
        }
    }

    /// A burst, if one is there; returns how many frames it was at, those of the kernel included.
    fn turn(&mut self) -> Result<u64, RunError> {
        let mut frames = [Frame::default(); BURST];
        let before = self.ports.counts().from_kernel;
        let count = self.ports.receive(&mut frames)?;
        let frames = &mut frames[..count];
        if count > 0 {
            match &self.memory {
                Some(memory) if !memory.is_leaving() => {
                    let taps = &self.taps;
                    let sends_by = |interface| taps.contains(&interface);
                    self.beside.process(memory, &sends_by, self.ports.memory(), frames);
                }
                _ => frames.iter_mut().for_each(|frame| frame.fate = Fate::Pass),
            }
        }
        self.ports.finish(frames)?;
        Ok(count as u64 + self.ports.counts().from_kernel - before)
    }

    /// Refuses to go on without a device, or with a tap that is another one by now.
    fn still_there(&self) -> Result<(), RunError> {
        self.ports.still_there()?;
        for (name, index) in self.names.iter().zip(&self.taps) {
            if Interface::find(name)?.index != *index {
                let (interface, why) = (name.clone(), "it was made anew".to_owned());
                return Err(Error::Tap { interface, why }.into());
            }
        }
        Ok(())
    }

    fn tell(&mut self, since: Duration) {
        let now =
            Told { counts: self.ports.counts(), missed: self.ports.missed(), slept: self.slept };
        let (before, util) = (&self.told, self.util);
        let millionths = |share: f64| (share * 1e6) as u64;
        let more = |now: u64, before: u64| now.saturating_sub(before);
        let lost = |counts: &Counts| counts.full + counts.no_port + counts.no_kernel;
        if lost(&now.counts) > 0 && lost(&before.counts) == 0 {
            warn!(counts = ?now.counts, "frames are lost");
        }
        let Some(memory) = &self.memory else { return };
        memory.count(|counts| {
            counts.received += more(now.counts.received, before.counts.received);
            counts.sent += more(now.counts.sent, before.counts.sent);
            counts.returned += more(now.counts.to_kernel, before.counts.to_kernel);
            counts.return_failed += more(now.counts.no_kernel, before.counts.no_kernel);
            counts.rx_ring_full += more(now.missed.0, before.missed.0);
            counts.no_chunk += more(now.missed.1, before.missed.1);
            counts.device_full += more(now.counts.full, before.counts.full);
            counts.device_full += more(now.counts.no_port, before.counts.no_port);
            counts.bad_descriptors += more(now.counts.foreign, before.counts.foreign);
            counts.bursts += util.bursts();
            counts.sleeps += more(now.slept, before.slept);
            counts.busy_nanoseconds += util.times().1.as_nanos() as u64;
            counts.nanoseconds += since.as_nanos() as u64;
            counts.utilisation = millionths(util.util());
            counts.utilisation_plus = millionths(util.util_plus(BURST as u64));
            counts.sockets = self.taps.len() as u64;
        });
        self.told = now;
        self.util.start_over();
    }
}
