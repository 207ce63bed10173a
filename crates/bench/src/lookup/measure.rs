//! Measuring one block of rows: the same flows, every method in turn, round by round.

use super::methods::{Method, Ready};
use super::stream::{Keys, Stream};
use super::subject::Subject;
use super::world::{Control, Window, World};
use crate::Result;
use crate::blocks::{self, Slow};
use crate::error::{Context, ensure};
use crate::neighbour::Away;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Packets whose keys are made before the clock runs: 32 KiB of keys, so that they come from a
/// near cache, and a clock that is read twice for each costs less than 0.1 %.
pub const BLOCK: usize = 4096;

/// How long a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// Until so many lookups are made, of all threads together.
    Lookups(usize),
    /// Until the lookups have taken so long.
    Time(Duration),
}

/// New flows and pool changes while readers are measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// New flows per second of measured time, of all threads together; as many end.
    pub new_states_per_s: f64,
    /// Time between two changes of the pool.
    pub change_every: Duration,
}

/// What a measurement comes to, of all readers together.
#[derive(Clone, Copy, Default, Debug)]
pub struct Done {
    /// Millions of lookups per second.
    pub rate: f64,
    /// New flows per second of measured time.
    pub new_per_s: f64,
}

/// What is measured of a method, and of its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Packets are decided in bursts of so many.
    Batched(usize),
    /// Packets are decided one after the other.
    Single,
}

/// One method while it is measured.
pub struct Entry {
    /// The method that is measured.
    pub method: &'static Method,
    /// Bytes that packets may read, of all threads.
    pub bytes: usize,
    /// Flows whose packets went astray before the measurement.
    pub wrong: usize,
    /// Changes of the pool so far.
    pub changes: u64,
    readers: Vec<Box<dyn Subject>>,
    bound: Vec<Box<dyn Subject>>,
    control: Box<dyn Control>,
    windows: Vec<Window>,
    followed: Vec<u64>,
    since_change: Duration,
}

impl Entry {
    /// Makes a method ready and asks it for every flow, in bursts and one at a time.
    ///
    /// # Errors
    ///
    /// A method that cannot be made, or sends more flows astray than its documentation says.
    pub fn new(method: &'static Method, world: &World, batch: usize) -> Result<Self> {
        let made = (method.make)(world).with_context(|| method.label())?;
        let Ready { mut readers, owners, control, reads, more_bytes, sharded, tolerated } = made;
        let mut wrong = 0;
        for (thread, reader) in readers.iter_mut().enumerate() {
            let owners = &owners[world.part(thread)];
            wrong += verify(reader.as_mut(), world.keys(thread), owners, batch);
        }
        ensure!(
            wrong as f64 <= tolerated * world.states as f64,
            "{}: {wrong} of {} flows are not sent to their own backends",
            method.label(),
            world.states
        );
        // Copies for several readers hold the same tables.
        let each = readers.iter().map(|reader| reader.bytes());
        let bytes = if sharded { each.sum() } else { each.max().unwrap_or(0) };
        let bytes = bytes + more_bytes;
        let bound = reads.subjects(world.threads, if sharded { world.threads } else { 1 });
        let window = |thread| Window::new(world.part(thread), world.states);
        Ok(Self {
            method,
            bytes,
            wrong,
            changes: 0,
            readers,
            bound,
            control,
            windows: (0..world.threads).map(window).collect(),
            followed: vec![0; world.threads],
            since_change: Duration::ZERO,
        })
    }

    /// Millions of lookups per second of the bound. Nothing changes there.
    pub fn bound_rate(
        &mut self,
        mode: Mode,
        amount: Amount,
        away: Option<Away>,
        streams: &mut [Stream],
    ) -> f64 {
        thread::scope(|scope| {
            let readers = readers(&mut self.bound, &self.windows, streams, None);
            total(spawn(scope, readers, mode, amount, away)).rate
        })
    }

    /// What the method's readers did.
    pub fn rate(
        &mut self,
        mode: Mode,
        amount: Amount,
        load: Option<Load>,
        away: Option<Away>,
        streams: &mut [Stream],
    ) -> Result<Done> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers = readers(&mut self.readers, &self.windows, streams, load);
            let readers = spawn(scope, readers, mode, amount, away);
            let mut writer = Writer {
                control: &mut *self.control,
                windows: &self.windows,
                followed: &mut self.followed,
                since_change: &mut self.since_change,
                changes: &mut self.changes,
            };
            let over = &over;
            let writer = load.map(|load| scope.spawn(move || writer.run(load, over)));
            let reached = total(readers);
            over.store(true, Ordering::Release);
            match writer.map(thread::ScopedJoinHandle::join) {
                Some(Ok(done)) => done.map(|()| reached),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => Ok(reached),
            }
        })
    }
}

fn readers<'a>(
    subjects: &'a mut [Box<dyn Subject>],
    windows: &'a [Window],
    streams: &'a mut [Stream],
    load: Option<Load>,
) -> Vec<Reader<'a>> {
    let threads = windows.len();
    let parts = subjects.iter_mut().zip(windows).zip(streams);
    let reader = |((subject, window), stream): ((&'a mut Box<dyn Subject>, _), _)| Reader {
        subject: &mut **subject,
        window,
        stream,
        new_per_s: load.map_or(0.0, |load| load.new_states_per_s) / threads as f64,
        slow: if load.is_some() { Slow::Kept } else { Slow::LeftOut },
    };
    parts.map(reader).collect()
}

fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    readers: Vec<Reader<'scope>>,
    mode: Mode,
    amount: Amount,
    away: Option<Away>,
) -> Vec<thread::ScopedJoinHandle<'scope, Done>> {
    let threads = readers.len();
    let run = |reader: Reader<'scope>| {
        scope.spawn(move || {
            if let Some(away) = away {
                // It worked when the neighbour was made.
                let _ = away.keep();
            }
            reader.run(mode, amount, threads)
        })
    };
    readers.into_iter().map(run).collect()
}

/// Sum of the readers' rates.
fn total(readers: Vec<thread::ScopedJoinHandle<'_, Done>>) -> Done {
    let join = |reader: thread::ScopedJoinHandle<'_, Done>| {
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    };
    readers.into_iter().map(join).fold(Done::default(), |all, one| Done {
        rate: all.rate + one.rate,
        new_per_s: all.new_per_s + one.new_per_s,
    })
}

/// Asks for every flow twice. Returns how many went astray either time.
fn verify(
    reader: &mut dyn Subject,
    keys: impl Iterator<Item = u64>,
    owners: &[u16],
    batch: usize,
) -> usize {
    let keys: Vec<u64> = keys.collect();
    let mut wrong = 0;
    let (mut bursts, mut alone) = ([0; BLOCK], [0; BLOCK]);
    for (keys, owners) in keys.chunks(BLOCK).zip(owners.chunks(BLOCK)) {
        let (bursts, alone) = (&mut bursts[..keys.len()], &mut alone[..keys.len()]);
        reader.batched(batch, keys, bursts);
        reader.single(keys, alone);
        let answers = bursts.iter().zip(alone.iter());
        wrong += answers.zip(owners).filter(|((a, b), owner)| a != owner || b != owner).count();
    }
    wrong
}

/// One thread's part of a measurement.
struct Reader<'a> {
    subject: &'a mut dyn Subject,
    window: &'a Window,
    stream: &'a mut Stream,
    new_per_s: f64,
    slow: Slow,
}

impl Reader<'_> {
    /// Only the lookups are timed, and the ends of flows; an eighth of them is done before, without
    /// being counted.
    fn run(mut self, mode: Mode, amount: Amount, threads: usize) -> Done {
        let (lookups, limit) = match amount {
            Amount::Lookups(all) => (all.div_ceil(threads).max(BLOCK), Duration::MAX),
            Amount::Time(limit) => (usize::MAX, limit),
        };
        let (warm_lookups, warm_limit) = (lookups.min(1 << 30) / 8, limit.min(MINUTE) / 8);
        self.work(mode, warm_lookups, warm_limit);
        let before = self.window.turned();
        let blocks = self.work(mode, lookups, limit);
        let new = self.window.turned() - before;
        let spent = blocks.iter().sum::<Duration>().as_secs_f64();
        let new_per_s = if new == 0 { 0.0 } else { new as f64 / spent };
        Done { rate: blocks::rate(blocks, BLOCK, self.slow), new_per_s }
    }

    /// Returns how long each block took.
    fn work(&mut self, mode: Mode, lookups: usize, limit: Duration) -> Vec<Duration> {
        let (mut slots, mut keys, mut out) = ([0; BLOCK], [0; BLOCK], [0; BLOCK]);
        let (mut ended, mut blocks) = (Vec::new(), Vec::new());
        let (mut done, mut spent, mut due) = (0, Duration::ZERO, 0.0);
        while done < lookups && spent < limit {
            self.stream.fill(&mut slots);
            self.window.keys(&slots, &mut keys);
            let new = (due as usize).min(BLOCK / 2);
            due -= new as f64;
            self.replace(new, &mut keys, &mut ended);
            let started = Instant::now();
            match mode {
                Mode::Batched(burst) => self.subject.batched(burst, &keys, &mut out),
                Mode::Single => self.subject.single(&keys, &mut out),
            }
            self.subject.end(&ended);
            let block = started.elapsed();
            black_box(&out);
            self.window.advance(new as u64);
            spent += block;
            done += BLOCK;
            due += self.new_per_s * block.as_secs_f64();
            blocks.push(block);
        }
        blocks
    }

    /// Puts the first packets of new flows between the others. Each takes the place of the flow
    /// that is the oldest.
    fn replace(&self, new: usize, keys: &mut [u64], ended: &mut Vec<u64>) {
        ended.clear();
        let turned = self.window.turned();
        for i in 0..new {
            let (old, first) = self.window.replacement(turned + i as u64);
            ended.push(old);
            keys[i * BLOCK / new] = first;
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// The control plane's thread.
struct Writer<'a> {
    control: &'a mut dyn Control,
    windows: &'a [Window],
    followed: &'a mut [u64],
    since_change: &'a mut Duration,
    changes: &'a mut u64,
}

impl Writer<'_> {
    /// Follows the readers until they are done: every flow that has begun is reported, and the
    /// pool changes when it is time.
    fn run(&mut self, load: Load, over: &AtomicBool) -> Result<()> {
        let mut last = Instant::now();
        while !over.load(Ordering::Acquire) {
            self.follow()?;
            let now = Instant::now();
            *self.since_change += now - last;
            last = now;
            if *self.since_change >= load.change_every {
                *self.since_change = Duration::ZERO;
                *self.changes += 1;
                self.control.change()?;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.follow()
    }

    fn follow(&mut self) -> Result<()> {
        for (window, followed) in self.windows.iter().zip(&mut *self.followed) {
            let turned = window.turned();
            while *followed < turned {
                let (old, new) = window.replacement(*followed);
                self.control.turnover(old, new)?;
                *followed += 1;
            }
        }
        Ok(())
    }
}

/// The streams of a block's threads, from the beginning.
///
/// # Errors
///
/// As [`Keys::stream`].
pub fn streams(keys: &Keys, world: &World) -> Result<Vec<Stream>> {
    let stream = |thread| keys.stream(world.part(thread).len(), thread, world.seed);
    (0..world.threads).map(stream).collect()
}
