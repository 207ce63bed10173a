//! The process: sockets at the interfaces that the program is attached to, and a loop over them.
//!
//! It sleeps while nothing comes. After a burst it looks again for a while before it sleeps, longer where
//! that was worth it lately, and less where it was not.
//!
//! Each of its threads has sockets, rings, a part of the memory for frames, and a view of the data plane's memory. It
//! takes what it has received to the end. What they all write are marks and counts of backends, by atomic operations:
//! marks once for a flow and period, counts once for a burst and backend.

use super::{Card, Decides, Ruled, RulesOf, Wanted, veth};
use crate::ports::{AfXdp, BURST, Frame, Ports};
use crate::utilisation::Utilisation;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::card::FarEnd;
use weir_dataplane::user::{Standing, UserMemory};
use weir_dataplane::xsk::{XskConfig, XskPorts};
use weir_dataplane::{Error, KernelPlane, PinnedLink};
use weir_offload::Setup as RuleSetup;
use weir_offload::ntuple::Device;

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
    /// Its rules are of a card that no longer leads packets as it did; whoever runs the plane starts it anew.
    #[error(
        "{interface} is another card than its rules are of, or spreads packets over its queues"
    )]
    OtherCard {
        /// The interface.
        interface: String,
    },
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

/// What the plane is besides.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Its threads, 1 to [`PLANE_THREADS`](weir_dataplane::user::PLANE_THREADS).
    pub threads: usize,
    /// Rules of a card, which one thread alone can have.
    pub rules: Option<Wanted>,
}

/// A frame that a card has put into a queue is in the ring of its socket after so long.
const SETTLES: Duration = Duration::from_millis(100);

/// Runs the plane over a data plane that is pinned in a directory, until `stop` is set, that memory is
/// replaced, or it wants no plane any more. Each of its threads has the queues of interfaces whose numbers
/// are its own, counted round. `refused` is told why there are no rules, if there are to be some; the plane goes on
/// without.
///
/// # Errors
/// [`RunError`] if it cannot begin. What fails later is said, and gone around.
///
/// # Panics
/// With no thread, or more than [`PLANE_THREADS`](weir_dataplane::user::PLANE_THREADS).
pub fn run(
    directory: &Path,
    setup: &Setup,
    stop: &AtomicBool,
    refused: &dyn Fn(&str),
) -> Result<(), RunError> {
    let threads = setup.threads;
    let memory = |thread| Ok(UserMemory::open(directory)?.of_thread(thread, threads));
    let memories: Vec<UserMemory> = (0..threads).map(memory).collect::<Result<_, Error>>()?;
    let wanted = queues(directory)?;
    let most = queues_of(&wanted, 0, threads).len();
    let shares = XskPorts::open_behind(&memories[0], sockets_of(most, threads), threads)?;
    let mut refusal = None;
    let mut parts = Vec::new();
    for (thread, (memory, mut ports)) in memories.into_iter().zip(shares).enumerate() {
        let mut refused = BTreeSet::new();
        let own = queues_of(&wanted, thread, threads);
        let first = follow_interfaces(&mut ports, &own, &mut refused);
        refusal = refusal.or(first);
        parts.push(Part { thread, memory, ports, refused, rules: None });
    }
    let sockets: u64 = parts.iter().map(|part| in_use(&part.ports)).sum();
    if sockets == 0 {
        let why = refusal.map_or_else(|| "there is none".into(), |error| error.to_string());
        return Err(RunError::NoSockets { directory: directory.display().to_string(), why });
    }
    if let Some(idle) = parts.iter().find(|part| in_use(&part.ports) == 0) {
        let thread = idle.thread;
        warn!(thread, threads, "no interface has a queue for this thread, so it has nothing to do");
    }
    parts[0].rules = setup.rules.as_ref().and_then(|wanted| {
        let card = card(wanted, directory, threads);
        card.inspect_err(|why| {
            warn!(%why, "the plane goes on without rules of a card");
            refused(why);
        })
        .ok()
        .map(|(card, of)| HasRules { card, of, setup: wanted.setup() })
    });
    parts[0].memory.begin(sockets);
    parts[0].memory.take_edges(parts[0].rules.is_some());
    info!(sockets, threads, rules = parts[0].rules.is_some(), "packets are decided in user space");
    let share = |part: &Part| Share { sockets: in_use(&part.ports), ..Share::default() };
    let told = parts.iter().map(share).collect();
    let together = Together {
        threads,
        over: AtomicBool::new(false),
        state: Mutex::new(State { going: threads, told }),
    };
    let one = |part: Part| part.run(directory, &together, stop);
    thread::scope(|scope| {
        let one = &one;
        let mut parts = parts.into_iter();
        let first = parts.next();
        let others: Vec<_> = parts.map(|part| scope.spawn(move || one(part))).collect();
        let mut done = first.map_or(Ok(()), one);
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done = done.and(ended);
        }
        done
    })
}

/// The card whose rules are wanted, or why there is none.
fn card(
    wanted: &Wanted,
    directory: &Path,
    threads: usize,
) -> Result<(Card, Option<Whose>), String> {
    if threads > 1 {
        return Err(format!("{threads} threads share the queues, and rules need a single one"));
    }
    match wanted.card {
        RulesOf::Emulated => Ok((wanted.emulated(), None)),
        RulesOf::RteFlow => {
            Err("rte_flow rules are of devices of DPDK's, and there are none".into())
        }
        RulesOf::Ntuple => {
            let link = only_link(directory)?;
            let mut device = Device::open(&link.interface).map_err(|why| why.to_string())?;
            device.leads_to_the_first_queue().map_err(|why| why.to_string())?;
            device.flush(wanted.rules).map_err(|why| why.to_string())?;
            Ok((wanted.of(device, SETTLES, RING), Some(Whose { link, far: None })))
        }
        RulesOf::Veth => {
            let link = only_link(directory)?;
            let (card, far) = veth::card(wanted, &link.interface)?;
            Ok((wanted.of(card, SETTLES, RING), Some(Whose { link, far: Some(far) })))
        }
    }
}

/// The interface that the program is attached to, if it is one.
fn only_link(directory: &Path) -> Result<PinnedLink, String> {
    let pinned = KernelPlane::left_in(directory).map_err(|error| error.to_string())?;
    let links = pinned.unwrap_or_default().links;
    match &links[..] {
        [link] => Ok(link.clone()),
        links => Err(format!("rules are of one card, and there are {} interfaces", links.len())),
    }
}

/// Whose rules they are.
#[derive(Clone)]
struct Whose {
    link: PinnedLink,
    /// Where a program plays the card, if one does.
    far: Option<FarEnd>,
}

/// What a thread begins with.
struct Part {
    thread: usize,
    memory: UserMemory,
    ports: XskPorts,
    refused: BTreeSet<Queue>,
    rules: Option<HasRules>,
}

/// Rules, and what they are given by.
struct HasRules {
    card: Card,
    setup: RuleSetup,
    /// The interface whose they are, if it is one.
    of: Option<Whose>,
}

/// Whether packets that no rule matches still come by the first queue, and all of one interface: what stands behind a
/// queue would be taken for a backend's otherwise. An interface that is gone has no queues.
fn still_leads(Whose { link, far }: &Whose, wanted: &[Queue]) -> bool {
    let leads = || match far {
        Some(far) => far.has_card(),
        None => Device::open(&link.interface)
            .and_then(|device| device.leads_to_the_first_queue())
            .is_ok(),
    };
    wanted.is_empty() || wanted.iter().all(|(interface, _)| *interface == link.number) && leads()
}

impl Part {
    fn run(self, directory: &Path, together: &Together, stop: &AtomicBool) -> Result<(), RunError> {
        let Self { thread, memory, ports, refused, rules } = self;
        let of_card = rules.as_ref().and_then(|rules| rules.of.clone());
        let by = |rules: HasRules| Decides::by((rules.card, rules.setup));
        let mut decides = rules.map_or_else(Decides::default, by);
        if let Decides::WithRules(offloaded) = &mut decides {
            offloaded.begin_anew(&memory, 0);
        }
        let memory = Rc::new(RefCell::new(memory));
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
        let ports = AfXdp::new(ports, Box::new(give_back));
        let mut plane = Plane {
            thread,
            together,
            directory,
            ports: match decides {
                Decides::Alone(_) => ports,
                Decides::WithRules(_) => ports.keeping(),
            },
            decides,
            begun: Instant::now(),
            util: Utilisation::default(),
            spin: LEAST_SPIN,
            slept: 0,
            received: 0,
            lost,
            told: Told::default(),
            ruled: Ruled::default(),
            refused,
            of_card,
            memory,
        };
        let over = Over(&together.over);
        let done = plane.go_on(stop);
        drop(over);
        plane.finish();
        done
    }
}

/// What ends one thread ends all, also if it is a mistake: nobody else takes what comes by its queues.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the threads of the plane have together.
struct Together {
    threads: usize,
    /// One has ended, so that all do.
    over: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Threads that have not finished.
    going: usize,
    /// What each has told last.
    told: Vec<Share>,
}

/// A thread's last second: util and util+, in millionths, and its sockets.
#[derive(Default)]
struct Share {
    utilisation: u64,
    plus: u64,
    sockets: u64,
}

impl Together {
    /// Rarely: once a second, and at the end.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

/// Rings and memory for so many queues, and for a few that may come.
pub fn sockets(queues: usize) -> XskConfig {
    sockets_of(queues, 1)
}

/// The same for each of several threads.
fn sockets_of(queues: usize, threads: usize) -> XskConfig {
    let ports = (queues + SPARE).min(MOST_SOCKETS / threads);
    XskConfig { ports, chunks: (ports * CHUNKS) as u32, ring: RING }
}

/// The queues of a thread. A thread sends by the interfaces of which it has a queue, so first ones are together.
fn queues_of(all: &[Queue], thread: usize, threads: usize) -> Vec<Queue> {
    let own = |queue: &Queue| queue.1 as usize % threads == thread;
    all.iter().copied().filter(own).collect()
}

/// How many ports have a socket.
fn in_use(ports: &XskPorts) -> u64 {
    (0..ports.numbers()).filter(|port| ports.place_of(*port).is_some()).count() as u64
}

/// Plugs in what is new and out what is gone; returns the first refusal. `refused`: about which that was said.
fn follow_interfaces(
    ports: &mut XskPorts,
    wanted: &[Queue],
    refused: &mut BTreeSet<Queue>,
) -> Option<Error> {
    let mut first = None;
    let numbers = ports.numbers();
    for port in 0..numbers {
        let gone = |place: &Queue| !wanted.contains(place);
        if let Some((interface, queue)) = ports.place_of(port).filter(gone) {
            info!(interface, queue, "socket closed");
            let left = ports.unplug(port);
            left.unread.into_iter().chain(left.unsent).for_each(|frame| ports.free(frame));
        }
    }
    for &(interface, queue) in wanted {
        if (0..numbers).any(|port| ports.place_of(port) == Some((interface, queue))) {
            continue;
        }
        let Some(port) = (0..numbers).find(|port| ports.place_of(*port).is_none()) else {
            warn!(interface, queue, "no room for another socket; the kernel decides its packets");
            break;
        };
        match ports.plug_queue(port, interface, queue) {
            Ok(()) => _ = refused.remove(&(interface, queue)),
            Err(error) => {
                if refused.insert((interface, queue)) {
                    warn!(%error, "the kernel decides the packets of this queue");
                }
                first = first.or(Some(error));
            }
        }
    }
    refused.retain(|queue| wanted.contains(queue));
    first
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
    thread: usize,
    together: &'a Together,
    directory: &'a Path,
    ports: AfXdp<'a>,
    decides: Decides,
    /// Times of rules count from here.
    begun: Instant,
    util: Utilisation,
    spin: Duration,
    slept: u64,
    received: u64,
    /// Frames given back to the kernel, and those that it refused.
    lost: Rc<Cell<(u64, u64)>>,
    told: Told,
    ruled: Ruled,
    /// Queues that took no socket, about which that was said.
    refused: BTreeSet<Queue>,
    /// The interface whose rules they are.
    of_card: Option<Whose>,
    memory: Rc<RefCell<UserMemory>>,
}

impl Plane<'_> {
    /// The loop.
    fn go_on(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        let begun = Instant::now();
        let (mut looked, mut told, mut last) = (begun, begun, begun);
        while !stop.load(Ordering::Relaxed) && !self.together.over.load(Ordering::Relaxed) {
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
                self.decides.refresh();
                if self.memory.borrow().standing() == Standing::Over {
                    break;
                }
            }
            if now - told > TELL_EVERY {
                self.look_after(now - told)?;
                told = now;
            }
        }
        Ok(())
    }

    /// A burst, if one is there; returns how many frames were decided.
    fn turn(&mut self) -> Result<usize, RunError> {
        let interfaces = self.ports.interfaces();
        let sends_by = |interface| interfaces.contains(&interface);
        let count = match &mut self.decides {
            Decides::Alone(beside) => {
                let mut frames = [Frame::default(); BURST];
                let count = self.ports.receive(&mut frames)?;
                let frames = &mut frames[..count];
                if count > 0 {
                    let memory = self.memory.borrow();
                    beside.process(&memory, &sends_by, self.ports.memory(), frames);
                }
                self.ports.finish(frames)?;
                count
            }
            Decides::WithRules(offloaded) => {
                let (memory, now) = (self.memory.borrow(), self.begun.elapsed());
                offloaded.turn(&mut self.ports, &memory, &sends_by, now)?
            }
        };
        self.received += count as u64;
        Ok(count)
    }

    /// No frame is with the plane when this returns: ports may change.
    fn let_all_go(&mut self) -> Result<(), RunError> {
        let interfaces = self.ports.interfaces();
        let sends_by = |interface| interfaces.contains(&interface);
        if let Decides::WithRules(offloaded) = &mut self.decides {
            let (memory, now) = (self.memory.borrow(), self.begun.elapsed());
            offloaded.drain(&mut self.ports, &memory, &sends_by, now)?;
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), RunError> {
        self.slept += 1;
        Ok(self.ports.sockets().wait_readable(NAP).map(drop)?)
    }

    /// What is due every second: interfaces, the program behind, and what is told.
    fn look_after(&mut self, since: Duration) -> Result<(), RunError> {
        self.let_all_go()?;
        match queues(self.directory) {
            Ok(wanted) => {
                if let Some(whose) = &self.of_card
                    && !still_leads(whose, &wanted)
                {
                    let interface = whose.link.interface.clone();
                    return Err(RunError::OtherCard { interface });
                }
                let own = queues_of(&wanted, self.thread, self.together.threads);
                let refused = &mut self.refused;
                self.ports.change(|ports| follow_interfaces(ports, &own, refused));
            }
            Err(error) => warn!(%error, "cannot look which interfaces there are"),
        }
        if let Err(error) = self.memory.borrow_mut().follow_balancer() {
            warn!(%error, "cannot look for the program in the kernel");
        }
        self.tell(since);
        Ok(())
    }

    fn tell(&mut self, since: Duration) {
        let (sockets, drops) = (in_use(self.ports.sockets()), self.ports.sockets().drops());
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
        // Held to the end: counts are read, and written.
        let mut state = self.together.state();
        let (utilisation, plus) = (millionths(util.util()), millionths(plus));
        state.told[self.thread] = Share { utilisation, plus, sockets };
        let sum = |of: fn(&Share) -> u64| state.told.iter().map(of).sum::<u64>();
        let threads = self.together.threads as u64;
        let rules = match &self.decides {
            Decides::Alone(_) => Ruled::default(),
            Decides::WithRules(offloaded) => Ruled::of(offloaded),
        };
        let ruled = std::mem::replace(&mut self.ruled, rules);
        self.memory.borrow().count(|counts| {
            rules.add_to(counts, &ruled);
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
            counts.utilisation = sum(|share| share.utilisation) / threads;
            counts.utilisation_plus = sum(|share| share.plus) / threads;
            counts.sockets = sum(|share| share.sockets);
        });
        drop(state);
        self.told = now;
        self.util.start_over();
    }

    /// What is in the rings is still decided; then no more comes.
    fn finish(&mut self) {
        if !self.memory.borrow().is_leaving() {
            // The front program stops at once when nobody is ready.
            self.memory.borrow().take_no_more();
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
        let mut state = self.together.state();
        state.going -= 1;
        // Before that other threads may still be at what they have.
        if state.going == 0 {
            self.memory.borrow().end();
        }
    }
}
