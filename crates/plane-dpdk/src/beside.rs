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
//!
//! Each of its threads has a queue of every device and of every tap, buffers, and a view of the memory. It takes
//! what it has received to the end. What they all write are marks and counts of backends, by atomic operations:
//! marks once for a flow and period, counts once for a burst and backend.

use crate::card::Together as OneCard;
use crate::{Buffers, Counts, Dpdk, Eal, Error, Memory, Pair, Share};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::Interface;
use weir_dataplane::user::{Standing, UserMemory};
use weir_offload::{Limits, Rules};
use weir_plane_burst::beside::{Beside, Decides, Ruled, RulesOf, Wanted};
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
/// A frame that a device has put into a queue is found there after so long.
const SETTLES: Duration = Duration::from_millis(100);
/// Frames that may be on their way to the ring of a queue: those of a tap are in the kernel's queues before.
const ON_THEIR_WAY: u32 = 2048;
/// How often it looks for memory to decide by, while it has none.
const OPEN_EVERY: Duration = Duration::from_millis(5);
/// A data plane that wants no plane in user space for so long will want none.
const UNWANTED: Duration = Duration::from_secs(1);

/// What the plane runs over.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Devices, each after the name of the tap that stands for it.
    pub ports: Vec<(String, String)>,
    /// DPDK's memory.
    pub memory: Memory,
    /// It naps for at most so long when nothing comes; never, if that is 0.
    pub longest_nap: Duration,
    /// Rules of a card, which one thread alone can have.
    pub rules: Option<Wanted>,
    /// How many threads there are, 1 to [`PLANE_THREADS`](weir_dataplane::user::PLANE_THREADS).
    pub threads: u16,
}

impl Setup {
    fn open(&self) -> Result<Vec<Share>, Error> {
        let devices: Vec<&str> = self.ports.iter().map(|(_, device)| &**device).collect();
        let eal = Eal::start_for(self.memory, &devices)?;
        let pairs: Vec<Pair<'_>> =
            self.ports.iter().map(|(tap, device)| Pair { device, tap }).collect();
        match &self.rules {
            Some(Wanted { card: RulesOf::RteFlow, queues, .. }) if self.threads == 1 => {
                Dpdk::open_pairs_led(eal, &pairs, *queues, Buffers::default())
            }
            _ => Dpdk::open_pairs_for(eal, &pairs, self.threads, Buffers::default()),
        }
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
    setup.open()?.into_iter().for_each(Share::leave);
    Ok(())
}

/// Runs the plane over a data plane that is pinned in a directory, until `stop` is set, a device has gone away,
/// or it wants no plane any more. The process is to end then. `refused` is told why there are no rules, if there are
/// to be some; the plane goes on without.
///
/// # Errors
/// [`RunError`] if it cannot begin, or go on.
pub fn run(
    directory: &Path,
    setup: &Setup,
    stop: &AtomicBool,
    refused: &(dyn Fn(&str) + Sync),
) -> Result<(), RunError> {
    // Before there is a device: a data plane that wants no plane loses no frame to one.
    drop(UserMemory::open(directory)?);
    let shares = setup.open()?;
    let taps = setup.ports.iter().map(|(tap, _)| Ok(Interface::find(tap)?.index));
    let taps: Result<Vec<u32>, weir_dataplane::Error> = taps.collect();
    let taps = taps?;
    let wanted = setup.rules.as_ref().and_then(|wanted| {
        let why = match wanted.card {
            RulesOf::Ntuple => "ntuple rules are the kernel's, which has no card that DPDK has",
            RulesOf::Veth => {
                "the card is played at an interface of the kernel's, which DPDK has not"
            }
            RulesOf::Emulated | RulesOf::RteFlow if shares.len() == 1 => return Some(wanted),
            RulesOf::Emulated | RulesOf::RteFlow => {
                "several threads share the queues, and rules need a single one"
            }
        };
        go_without(why, refused);
        None
    });
    let together = Together { threads: shares.len(), ..Together::default() };
    info!(
        ports = taps.len(),
        threads = shares.len(),
        "packets are decided in user space, by ports of DPDK"
    );
    all_of(shares, &together.over, |thread, share: Share| {
        share.enter().map_err(RunError::from).and_then(|ports| {
            let by_rules = |wanted| by_rules(wanted, &ports, taps.len(), refused);
            let decides = wanted.map_or_else(Decides::default, by_rules);
            let mut plane = Plane {
                thread,
                together: &together,
                directory: directory.to_owned(),
                taps: taps.clone(),
                names: setup.ports.iter().map(|(tap, _)| tap.clone()).collect(),
                longest_nap: setup.longest_nap,
                ports: match decides {
                    Decides::Alone(_) => ports,
                    Decides::WithRules(_) => ports.keeping(),
                },
                decides,
                ruled: Ruled::default(),
                started: Instant::now(),
                memory: None,
                util: Utilisation::default(),
                spin: LEAST_SPIN,
                slept: 0,
                told: Told::default(),
            };
            let done = plane.go_on(stop);
            let done = done.and(plane.let_go());
            plane.ports.leave();
            done
        })
    })
}

/// Says why there are no rules, which were to be some.
fn go_without(why: &str, refused: &(dyn Fn(&str) + Sync)) {
    warn!(%why, "the plane goes on without rules of a card");
    refused(why);
}

/// What decides by the rules that are wanted; without any, where one of the devices takes none.
fn by_rules(
    wanted: &Wanted,
    ports: &Dpdk,
    devices: usize,
    refused: &(dyn Fn(&str) + Sync),
) -> Decides {
    if wanted.card != RulesOf::RteFlow {
        return Decides::by_rules(wanted);
    }
    let each = (0..devices).map(|device| ports.flows(device, wanted.rules));
    match each.collect::<Result<Vec<_>, _>>() {
        Ok(each) => {
            let card = wanted.of(OneCard::new(each), SETTLES, ON_THEIR_WAY);
            let Limits { rules, queues, .. } = card.limits();
            info!(rules, queues, devices, "the devices take rules (rte_flow)");
            Decides::by((card, wanted.setup()))
        }
        Err(why) => {
            go_without(&why.to_string(), refused);
            Decides::default()
        }
    }
}

/// Runs one thread for each share, the first one here, until all have ended. What ends one ends all: a device is
/// gone, no plane is wanted, or one has panicked.
fn all_of<S: Send, E: Send>(
    shares: Vec<S>,
    over: &AtomicBool,
    one: impl Fn(usize, S) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let one = |thread: usize, share: S| {
        let _ends = EndsAll(over);
        one(thread, share)
    };
    thread::scope(|scope| {
        let one = &one;
        let mut shares = (0..).zip(shares);
        let first = shares.next();
        let others: Vec<_> =
            shares.map(|(thread, share)| scope.spawn(move || one(thread, share))).collect();
        let mut done = first.map_or(Ok(()), |(thread, share)| one(thread, share));
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done = done.and(ended);
        }
        done
    })
}

/// Dropped at the end of a thread, also of one that panics: otherwise the others would go on without it, with memory
/// that it holds for ever, and nobody would start the process anew.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the threads of the plane have together.
#[derive(Default)]
struct Together {
    threads: usize,
    /// One has ended, so that all do.
    over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Threads that decide by a memory.
    deciding: usize,
    /// The number of the memory that was begun last.
    begun: u32,
    /// Of the last second, by thread: util and util+, in millionths.
    shares: Vec<(u64, u64)>,
}

impl Together {
    /// Rarely: when memory is taken and let go, and once a second.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

/// What was counted when it was told last.
#[derive(Default)]
struct Told {
    counts: Counts,
    missed: (u64, u64),
    slept: u64,
}

struct Plane<'a> {
    thread: usize,
    together: &'a Together,
    directory: PathBuf,
    /// Numbers of the taps, which are the interfaces of weir's configuration, and their names.
    taps: Vec<u32>,
    names: Vec<String>,
    longest_nap: Duration,
    ports: Dpdk,
    decides: Decides,
    ruled: Ruled,
    /// Times of rules count from here.
    started: Instant,
    /// None while it is being changed.
    memory: Option<UserMemory>,
    util: Utilisation,
    spin: Duration,
    slept: u64,
    told: Told,
}

impl Plane<'_> {
    fn go_on(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        let begun = Instant::now();
        let (mut looked, mut told, mut last) = (begun, begun, begun);
        // When it began to have no memory, and when it last looked for some.
        let (mut without, mut tried) = (begun, None::<Instant>);
        let mut nap = FIRST_NAP;
        while !stop.load(Ordering::Relaxed) && !self.together.over.load(Ordering::Relaxed) {
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
                self.let_go()?;
                (without, tried) = (now, None);
            }
            if now - looked > LOOK_EVERY {
                looked = now;
                self.decides.refresh();
                let over = |memory: &UserMemory| memory.standing() == Standing::Over;
                if self.memory.as_ref().is_some_and(over) {
                    self.let_go()?;
                    (without, tried) = (now, None);
                }
            }
            if now - told > TELL_EVERY {
                if self.thread == 0 {
                    self.still_there()?;
                }
                self.tell(now - told);
                told = now;
            }
        }
        Ok(())
    }

    /// Decides by the memory from now on; false while it is being changed.
    fn begin(&mut self) -> Result<bool, RunError> {
        let Some(memory) = UserMemory::open_settled(&self.directory)? else { return Ok(false) };
        let memory = memory.of_thread(self.thread, self.together.threads);
        let mut state = self.together.state();
        // The first of the threads says that packets are decided by this memory.
        if state.deciding == 0 || state.begun != memory.number() {
            memory.begin((self.taps.len() * self.together.threads) as u64);
            state.begun = memory.number();
        }
        state.deciding += 1;
        drop(state);
        match &mut self.decides {
            Decides::Alone(beside) => *beside = Beside::default(),
            Decides::WithRules(offloaded) => {
                offloaded.begin_anew(&memory, self.started.elapsed().as_millis() as u64);
            }
        }
        self.memory = Some(memory);
        Ok(true)
    }

    /// Decides by it no more: what is at hand has been finished. When all threads have let go, that is said.
    fn let_go(&mut self) -> Result<(), RunError> {
        if let (Decides::WithRules(offloaded), Some(memory)) = (&mut self.decides, &self.memory) {
            let taps = &self.taps;
            let sends_by = |interface| taps.contains(&interface);
            offloaded.drain(&mut self.ports, memory, &sends_by, self.started.elapsed())?;
        }
        if let Some(memory) = self.memory.take() {
            let mut state = self.together.state();
            state.deciding -= 1;
            if state.deciding == 0 {
                memory.end();
            }
        }
        Ok(())
    }

    /// A burst, if one is there; returns how many frames it was at, those of the kernel included.
    fn turn(&mut self) -> Result<u64, RunError> {
        let before = self.ports.counts().from_kernel;
        let taps = &self.taps;
        let sends_by = |interface| taps.contains(&interface);
        let memory = self.memory.as_ref().filter(|memory| !memory.is_leaving());
        let count = match (&mut self.decides, memory) {
            (Decides::WithRules(offloaded), Some(memory)) => {
                offloaded.turn(&mut self.ports, memory, &sends_by, self.started.elapsed())?
            }
            (decides, memory) => {
                let mut frames = [Frame::default(); BURST];
                let count = self.ports.receive(&mut frames)?;
                let frames = &mut frames[..count];
                match (decides, memory) {
                    (Decides::Alone(beside), Some(memory)) if count > 0 => {
                        beside.process(memory, &sends_by, self.ports.memory(), frames);
                    }
                    _ => frames.iter_mut().for_each(|frame| frame.fate = Fate::Pass),
                }
                self.ports.finish(frames)?;
                count
            }
        };
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
        // Held to the end: counts are read, and written.
        let mut state = self.together.state();
        state.shares.resize(self.together.threads, (0, 0));
        // A turn takes a burst of a device, and what the kernel has sent by each tap.
        let plus = util.util_plus_of_queues(BURST as u64 / 2);
        state.shares[self.thread] = (millionths(util.util()), millionths(plus));
        let threads = self.together.threads as u64;
        let sum = |of: fn(&(u64, u64)) -> u64| state.shares.iter().map(of).sum::<u64>() / threads;
        let rules = match &self.decides {
            Decides::Alone(_) => Ruled::default(),
            Decides::WithRules(offloaded) => Ruled::of(offloaded),
        };
        let ruled = std::mem::replace(&mut self.ruled, rules);
        memory.count(|counts| {
            rules.add_to(counts, &ruled);
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
            counts.utilisation = sum(|share| share.0);
            counts.utilisation_plus = sum(|share| share.1);
            counts.sockets = self.taps.len() as u64 * threads;
        });
        drop(state);
        self.told = now;
        self.util.start_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Threads that go on until it is over; the one with this number ends by itself.
    fn ends(
        which: usize,
        how: impl Fn() -> Result<(), &'static str> + Sync,
    ) -> Result<(), &'static str> {
        let over = AtomicBool::new(false);
        all_of(vec![(); 3], &over, |thread, ()| {
            let begun = Instant::now();
            while thread != which && !over.load(Ordering::Relaxed) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{thread} goes on for ever");
                thread::yield_now();
            }
            if thread == which { how() } else { Ok(()) }
        })
    }

    #[test]
    fn what_ends_one_thread_ends_all() {
        for which in 0..3 {
            assert_eq!(ends(which, || Ok(())), Ok(()));
            assert_eq!(ends(which, || Err("gone")), Err("gone"));
            let panics = || ends(which, || panic!("as a test wants it"));
            let said = catch_unwind(AssertUnwindSafe(panics)).expect_err("the process is to end");
            assert_eq!(said.downcast_ref::<&str>(), Some(&"as a test wants it"));
        }
    }
}
