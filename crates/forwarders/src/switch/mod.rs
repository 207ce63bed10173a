//! `weir fib switch`: a network of forwarding nodes, and hosts that move.

mod compare;
mod keys;
mod lab;
mod node;
mod packet;
mod ports;
mod report;
mod traffic;
mod world;
mod xdp;

use crate::Result;
use crate::error::demand;
use crate::{SwitchFib, SwitchKeys, SwitchOptions};
use keys::SwitchKey;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use report::Frames;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use traffic::{Ping, Stream};
use weir_fib::{Cfw, Control, Flow, Host, Ipv4, Ipv6, LudoFib, Mac, Network, Ofw, Topology};
use weir_testbed::interrupt::{interrupted, sleep};
use world::World;

pub use compare::CompareReport;
pub use report::SwitchReport;

/// Bits of OFW's fingerprints and CFW's digests.
const FINGERPRINT: u32 = 8;
const DIGEST: u32 = 13;

/// Time for hosts to settle before streams end and after.
const SETTLE: Duration = Duration::from_secs(1);

/// What is done with a network, whatever its keys and FIBs are.
trait Task {
    type Report;

    fn run<K: SwitchKey, C: Control<K>>(&self, world: World<K, C>) -> Result<Self::Report>
    where
        C::Plane: 'static;
}

/// A network with hosts at their homes.
struct Scene<'a> {
    options: &'a SwitchOptions,
    network: Arc<Network>,
    homes: Vec<Host>,
    seed: u64,
}

impl Scene<'_> {
    /// Makes the network with the keys and FIBs of the options.
    fn play<T: Task>(self, task: &T) -> Result<T::Report> {
        // Every port has two.
        weir_testbed::process::raise_file_limit()?;
        match self.options.key {
            SwitchKeys::Mac => self.with_keys::<Mac, T>(task),
            SwitchKeys::Ipv4 => self.with_keys::<Ipv4, T>(task),
            SwitchKeys::Ipv6 => self.with_keys::<Ipv6, T>(task),
            SwitchKeys::FiveTuple => self.with_keys::<Flow, T>(task),
        }
    }

    fn with_keys<K: SwitchKey, T: Task>(self, task: &T) -> Result<T::Report> {
        let keys = K::of_hosts(self.homes.len()).len() + self.options.keys;
        let (network, seed) = (Arc::clone(&self.network), self.seed);
        match self.options.fib {
            SwitchFib::Ofw => {
                self.with_fib::<K, _, T>(Ofw::new(network, FINGERPRINT, keys, seed), task)
            }
            SwitchFib::Cfw => self.with_fib::<K, _, T>(Cfw::new(network, DIGEST, keys, seed), task),
            SwitchFib::Ludo => self.with_fib::<K, _, T>(LudoFib::new(network, keys, seed)?, task),
        }
    }

    fn with_fib<K, C, T>(self, control: C, task: &T) -> Result<T::Report>
    where
        K: SwitchKey,
        C: Control<K>,
        C::Plane: 'static,
        T: Task,
    {
        task.run(World::new(control, self.homes, self.options.keys, self.seed)?)
    }
}

/// Lets hosts of a network talk while they move.
///
/// # Errors
///
/// Options that cannot be, or a namespace, a socket or a node that fails.
pub fn run(options: &SwitchOptions) -> Result<SwitchReport> {
    demand!(
        options.moves_per_second.is_finite() && options.moves_per_second >= 0.0,
        "--moves-per-second is a number from 0 on"
    );
    let seed = options.seed.unwrap_or_else(weir_testbed::draw_seed);
    let topology = Topology::isp(options.nodes.into(), seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Host number i always has slot i, at whatever node it is.
    let homes = (0..options.hosts)
        .map(|slot| Host { node: rng.random_range(0..options.nodes), slot })
        .collect();
    let network = Arc::new(Network::new(topology, options.hosts));
    Scene { options, network, homes, seed }.play(&Moving { options, seed })
}

/// Sends frames through a chain of nodes, by AF_XDP and by packet sockets in turn.
///
/// # Errors
///
/// As for [`run`].
pub fn compare(options: &SwitchOptions) -> Result<CompareReport> {
    let seed = options.seed.unwrap_or_else(weir_testbed::draw_seed);
    // A host at each end.
    let homes = vec![Host { node: 0, slot: 0 }, Host { node: options.nodes - 1, slot: 1 }];
    let network = Arc::new(Network::new(Topology::line(options.nodes.into()), 2));
    Scene { options, network, homes, seed }.play(&compare::Comparison { options })
}

/// Hosts move while they talk.
struct Moving<'a> {
    options: &'a SwitchOptions,
    seed: u64,
}

/// What hosts found out.
struct Talk {
    seconds: f64,
    moves: u64,
    pings: u64,
    pings_answered: u64,
    streams: usize,
    stream_bytes: u64,
    broken_streams: Vec<String>,
}

impl Task for Moving<'_> {
    type Report = SwitchReport;

    fn run<K: SwitchKey, C: Control<K>>(&self, mut world: World<K, C>) -> Result<SwitchReport>
    where
        C::Plane: 'static,
    {
        let (sockets, fallback) = world.start(self.options.sockets)?;
        let talked = self.talk(&mut world);
        let checked = if talked.is_ok() { world.check_all() } else { Ok((0, 0)) };
        // A node that failed says why; that others could not reach it follows from it.
        let tally = world.stop()?;
        let (talk, (checked_at_end, wrong_at_end)) = (talked?, checked?);
        let (nodes, keys) = (f64::from(self.options.nodes), world.keys.len());
        let fib_bytes_per_node = tally.fib_bytes as f64 / nodes;
        Ok(SwitchReport {
            fib: self.options.fib,
            key: self.options.key,
            seed: self.seed,
            nodes: self.options.nodes,
            hosts: self.options.hosts,
            keys,
            seconds: talk.seconds,
            sockets,
            fallback,
            moves: talk.moves,
            updates: world.updates,
            messages: world.messages,
            message_bytes: world.message_bytes as f64 / world.messages.max(1) as f64,
            frames: Frames::of(&tally, talk.seconds),
            fib_bytes_per_node,
            bits_per_key: fib_bytes_per_node * 8.0 / keys as f64,
            control_bytes: world.control.control_bytes(),
            frame_bytes_per_node: tally.frame_bytes as f64 / nodes,
            pings: talk.pings,
            pings_answered: talk.pings_answered,
            streams: talk.streams,
            stream_bytes: talk.stream_bytes,
            broken_streams: talk.broken_streams,
            checked_at_end,
            wrong_at_end,
            interrupted: interrupted(),
        })
    }
}

impl Moving<'_> {
    /// Lets hosts talk, and moves them meanwhile.
    fn talk<K: SwitchKey, C: Control<K>>(&self, world: &mut World<K, C>) -> Result<Talk>
    where
        C::Plane: 'static,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let hosts = world.homes.len();
        let started = Instant::now();
        let pings: Vec<Ping> = (0..hosts)
            .map(|host| Ping::start(&world.lab, host, (host + 1) % hosts, &stop))
            .collect::<Result<_>>()?;
        let streams: Vec<Stream> = (0..hosts / 2)
            .map(|host| Stream::start(&world.lab, host, host + hosts / 2, &stop))
            .collect::<Result<_>>()?;
        let moved = self.move_hosts(world, started);
        // Hosts stand still for a moment, so that nothing that is missing is on its way.
        sleep(SETTLE);
        stop.store(true, Ordering::Relaxed);
        let mut talk = Talk {
            seconds: 0.0,
            moves: 0,
            pings: 0,
            pings_answered: 0,
            streams: streams.len(),
            stream_bytes: 0,
            broken_streams: Vec::new(),
        };
        for ping in pings {
            let (requests, answers) = ping.finish()?;
            (talk.pings, talk.pings_answered) =
                (talk.pings + requests, talk.pings_answered + answers);
        }
        for stream in streams {
            match stream.finish() {
                Ok(bytes) => talk.stream_bytes += bytes,
                Err(error) => talk.broken_streams.push(format!("{error:#}")),
            }
        }
        talk.seconds = started.elapsed().as_secs_f64();
        talk.moves = moved?;
        Ok(talk)
    }

    fn move_hosts<K: SwitchKey, C: Control<K>>(
        &self,
        world: &mut World<K, C>,
        started: Instant,
    ) -> Result<u64>
    where
        C::Plane: 'static,
    {
        let (time, rate) = (self.options.duration, self.options.moves_per_second);
        let mut moves = 0;
        let gap = |moves: u64| Duration::from_secs_f64((moves as f64 + 1.0) / rate);
        while !interrupted() {
            let due = if rate > 0.0 { started + gap(moves).min(time) } else { started + time };
            sleep(due.saturating_duration_since(Instant::now()));
            if started.elapsed() >= time || interrupted() {
                break;
            }
            world.move_one()?;
            moves += 1;
        }
        Ok(moves)
    }
}
