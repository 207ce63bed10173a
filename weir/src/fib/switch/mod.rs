//! `weir fib switch`: a network of forwarding nodes, and hosts that move.

mod lab;
mod node;
mod packet;
mod traffic;

use super::{Report, SwitchFib, SwitchOptions};
use anyhow::Context;
use lab::{Lab, mac};
use node::{Order, Tally};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use traffic::{Ping, Stream};
use weir_fib::{Cfw, Control, FibKey, Host, LudoFib, Mac, Network, Ofw, Topology};

/// Bits of OFW's fingerprints and CFW's digests.
const FINGERPRINT: u32 = 8;
const DIGEST: u32 = 13;

/// Silent hosts that move with each one that has traffic.
const SILENT_MOVES: usize = 100;

/// Time for hosts to settle before streams end and after.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
pub struct SwitchReport {
    fib: SwitchFib,
    seed: u64,
    nodes: u16,
    hosts: u16,
    keys: usize,
    seconds: f64,
    /// How frames are read and written.
    io: &'static str,
    moves: u64,
    updates: u64,
    messages: u64,
    message_bytes: f64,
    frames: u64,
    forwarded: u64,
    forwarded_per_s: f64,
    lookups: u64,
    lost: u64,
    misdirected: u64,
    aliens: u64,
    unattached: u64,
    refused: u64,
    bad_messages: u64,
    fib_bytes_per_node: f64,
    bits_per_key: f64,
    control_bytes: usize,
    pings: u64,
    pings_answered: u64,
    streams: usize,
    stream_bytes: u64,
    broken_streams: Vec<String>,
    /// Lookups of all keys at all nodes after the last change, and how many were wrong.
    checked_at_end: u64,
    wrong_at_end: u64,
    interrupted: bool,
}

impl Report for SwitchReport {
    fn held(&self) -> bool {
        self.lost + self.misdirected + self.wrong_at_end + self.bad_messages == 0
            && self.broken_streams.is_empty()
            && self.lookups > 0
            && self.pings_answered > 0
            && !self.interrupted
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{:?}: {} nodes, {} hosts, {} keys, {} over {:.1} s, WEIR_SEED={}\n\
             {} moves of hosts, {} updates, {} messages of {:.1} bytes\n\
             FIB {:.1} KB per node ({:.2} bits per key), control plane {:.2} MB\n\
             {} frames, {} forwarded ({:.0}/s), {} while their host was moving, {} refused, {} alien\n\
             {} lookups of valid keys: {} lost, {} misdirected\n\
             {} lookups at the end, {} wrong; {} messages refused\n\
             {} of {} pings answered; {} TCP streams, {:.1} MB, {} broken",
            self.fib,
            self.nodes,
            self.hosts,
            self.keys,
            self.io,
            self.seconds,
            self.seed,
            self.moves,
            self.updates,
            self.messages,
            self.message_bytes,
            self.fib_bytes_per_node / 1e3,
            self.bits_per_key,
            self.control_bytes as f64 / 1e6,
            self.frames,
            self.forwarded,
            self.forwarded_per_s,
            self.unattached,
            self.refused,
            self.aliens,
            self.lookups,
            self.lost,
            self.misdirected,
            self.checked_at_end,
            self.wrong_at_end,
            self.bad_messages,
            self.pings_answered,
            self.pings,
            self.streams,
            self.stream_bytes as f64 / 1e6,
            self.broken_streams.len(),
        );
        for broken in &self.broken_streams {
            text += &format!("\n  {broken}");
        }
        text
    }
}

pub fn run(options: &SwitchOptions) -> anyhow::Result<SwitchReport> {
    anyhow::ensure!(
        options.moves_per_second.is_finite() && options.moves_per_second >= 0.0,
        "--moves-per-second is a number from 0 on"
    );
    let seed = options.seed.unwrap_or_else(rand::random);
    let topology = Topology::isp(options.nodes.into(), seed);
    // Host number i always has slot i, at whatever node it is.
    let network = Arc::new(Network::new(topology, options.hosts));
    let keys = usize::from(options.hosts) + options.keys;
    match options.fib {
        SwitchFib::Ofw => run_with(Ofw::new(network, FINGERPRINT, keys, seed), options, seed),
        SwitchFib::Cfw => run_with(Cfw::new(network, DIGEST, keys, seed), options, seed),
        SwitchFib::Ludo => run_with(LudoFib::new(network, keys, seed)?, options, seed),
    }
}

/// The network while it runs.
struct World<C: Control<Mac>> {
    control: C,
    network: Network,
    /// Where each key is; the hosts with traffic come first.
    places: Vec<Host>,
    hosts: usize,
    orders: Vec<Sender<Order>>,
    nodes: Vec<JoinHandle<weir_lab::Result<std::io::Result<Tally>>>>,
    rng: ChaCha8Rng,
    updates: u64,
    messages: u64,
    bytes: u64,
    // Last, so that namespaces go when everything in them has ended.
    lab: Lab,
}

fn run_with<C>(mut control: C, options: &SwitchOptions, seed: u64) -> anyhow::Result<SwitchReport>
where
    C: Control<Mac>,
    C::Plane: 'static,
{
    let network = control.network().clone();
    let hosts = usize::from(options.hosts);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut places = Vec::with_capacity(hosts + options.keys);
    for key in 0..hosts + options.keys {
        let slot = if key < hosts { key } else { rng.random_range(0..hosts) };
        let place = Host { node: rng.random_range(0..options.nodes), slot: slot as u16 };
        control.insert(Mac::numbered(0, key as u64), place)?;
        places.push(place);
    }
    let lab = Lab::create(&network, &places[..hosts])?;
    let mut world = World {
        control,
        network,
        places,
        hosts,
        orders: Vec::new(),
        nodes: Vec::new(),
        rng,
        updates: 0,
        messages: 0,
        bytes: 0,
        lab,
    };
    world.start_nodes()?;
    let report = world.traffic(options, seed);
    // Nodes end when their orders do, before the laboratory goes.
    world.orders.clear();
    let mut tally = Tally::default();
    for node in world.nodes.drain(..) {
        tally.add(&node.join().map_err(|_| anyhow::anyhow!("a node panicked"))???);
    }
    let mut report = report?;
    report.frames = tally.frames;
    report.forwarded = tally.forwarded;
    report.forwarded_per_s = tally.forwarded as f64 / report.seconds;
    report.lookups = tally.lookups;
    report.lost = tally.lost;
    report.misdirected = tally.misdirected;
    report.aliens = tally.aliens;
    report.unattached = tally.unattached;
    report.refused = tally.refused;
    report.bad_messages = tally.bad_messages;
    report.fib_bytes_per_node = tally.fib_bytes as f64 / f64::from(options.nodes);
    report.bits_per_key = report.fib_bytes_per_node * 8.0 / report.keys as f64;
    Ok(report)
}

impl<C> World<C>
where
    C: Control<Mac>,
    C::Plane: 'static,
{
    fn start_nodes(&mut self) -> anyhow::Result<()> {
        for node in 0..self.network.nodes() {
            let plane = self.control.build(node);
            let ports = self.network.ports(node);
            let hosts = self.places[..self.hosts].iter().enumerate();
            let truth: HashMap<u64, u16> =
                hosts.map(|(host, &place)| (mac(host).0, self.network.port(node, place))).collect();
            let (sender, receiver) = channel();
            for (port, interface) in
                self.lab.wires(&self.network, node, &self.places[..self.hosts])?
            {
                sender.send(Order::Wire { port, interface: Some(interface) })?;
            }
            let run = move || node::run(plane, ports, truth, &receiver);
            self.nodes.push(self.lab.node(node).spawn(run)?);
            self.orders.push(sender);
        }
        Ok(())
    }

    fn order(&self, node: usize, order: Order) -> anyhow::Result<()> {
        self.orders[node].send(order).ok().context("a node has ended early")
    }

    /// Tells every node where a key is now.
    fn publish(&mut self, key: usize, place: Host) -> anyhow::Result<()> {
        let name = Mac::numbered(0, key as u64);
        self.control.insert(name, place)?;
        self.places[key] = place;
        self.updates += 1;
        for node in 0..self.network.nodes() {
            let message = self.control.message(node);
            if let Some(message) = &message {
                self.messages += 1;
                self.bytes += (message.len() - C::ENVELOPE) as u64;
            }
            let (port, watched) = (self.network.port(node, place), key < self.hosts);
            // A silent host's key needs no order where there is no message.
            if message.is_some() || watched {
                self.order(node, Order::Update { message, key: name, port, watched })?;
            }
        }
        Ok(())
    }

    /// Unplugs a host, plugs it in elsewhere, and tells the nodes; silent ones only on paper.
    fn move_one(&mut self) -> anyhow::Result<()> {
        let host = self.rng.random_range(0..self.hosts);
        let from = self.places[host];
        let elsewhere = self.rng.random_range(1..self.network.nodes()) as u16;
        let node = (from.node + elsewhere) % self.network.nodes() as u16;
        let to = Host { node, slot: from.slot };
        let old = self.network.port(from.node.into(), from);
        self.order(from.node.into(), Order::Wire { port: old, interface: None })?;
        let interface = self.lab.replug(host, from.node.into(), to.node.into())?;
        let new = self.network.port(to.node.into(), to);
        self.order(to.node.into(), Order::Wire { port: new, interface: Some(interface) })?;
        self.publish(host, to)?;
        for _ in 0..SILENT_MOVES.min(self.places.len() - self.hosts) {
            let key = self.rng.random_range(self.hosts..self.places.len());
            let node = self.rng.random_range(0..self.network.nodes()) as u16;
            self.publish(key, Host { node, slot: self.places[key].slot })?;
        }
        Ok(())
    }

    /// Moves hosts while they talk, then asks every node for every key.
    fn traffic(&mut self, options: &SwitchOptions, seed: u64) -> anyhow::Result<SwitchReport> {
        let stop = Arc::new(AtomicBool::new(false));
        let hosts = self.hosts;
        let started = Instant::now();
        let pings: Vec<Ping> = (0..hosts)
            .map(|host| Ping::start(&self.lab, host, (host + 1) % hosts, &stop))
            .collect::<anyhow::Result<_>>()?;
        let streams: Vec<Stream> = (0..hosts / 2)
            .map(|host| Stream::start(&self.lab, host, host + hosts / 2, &stop))
            .collect::<anyhow::Result<_>>()?;
        let moved = self.move_for(options.duration, options.moves_per_second, started);
        // Hosts stand still for a moment, so that nothing that is missing is on its way.
        weir_lab::sleep(SETTLE);
        stop.store(true, Ordering::Relaxed);
        let (mut sent, mut answered) = (0, 0);
        for ping in pings {
            let (requests, answers) = ping.finish()?;
            (sent, answered) = (sent + requests, answered + answers);
        }
        let (mut stream_bytes, mut broken_streams) = (0, Vec::new());
        let count = streams.len();
        for stream in streams {
            match stream.finish() {
                Ok(bytes) => stream_bytes += bytes,
                Err(error) => broken_streams.push(format!("{error:#}")),
            }
        }
        let elapsed = started.elapsed().as_secs_f64();
        let moves = moved?;
        let (checked_at_end, wrong_at_end) = self.check_all()?;
        Ok(SwitchReport {
            fib: options.fib,
            seed,
            nodes: options.nodes,
            hosts: options.hosts,
            keys: self.places.len(),
            seconds: elapsed,
            io: "AF_PACKET with recvmmsg",
            moves,
            updates: self.updates,
            messages: self.messages,
            message_bytes: self.bytes as f64 / self.messages.max(1) as f64,
            frames: 0,
            forwarded: 0,
            forwarded_per_s: 0.0,
            lookups: 0,
            lost: 0,
            misdirected: 0,
            aliens: 0,
            unattached: 0,
            refused: 0,
            bad_messages: 0,
            fib_bytes_per_node: 0.0,
            bits_per_key: 0.0,
            control_bytes: self.control.control_bytes(),
            pings: sent,
            pings_answered: answered,
            streams: count,
            stream_bytes,
            broken_streams,
            checked_at_end,
            wrong_at_end,
            interrupted: weir_lab::interrupted(),
        })
    }

    fn move_for(&mut self, time: Duration, rate: f64, started: Instant) -> anyhow::Result<u64> {
        let mut moves = 0;
        let gap = |moves: u64| Duration::from_secs_f64((moves as f64 + 1.0) / rate);
        while !weir_lab::interrupted() {
            let due = if rate > 0.0 { started + gap(moves).min(time) } else { started + time };
            weir_lab::sleep(due.saturating_duration_since(Instant::now()));
            if started.elapsed() >= time || weir_lab::interrupted() {
                break;
            }
            self.move_one()?;
            moves += 1;
        }
        Ok(moves)
    }

    fn check_all(&self) -> anyhow::Result<(u64, u64)> {
        let (answer, answers) = channel();
        for node in 0..self.network.nodes() {
            let keys = self.places.iter().enumerate().map(|(key, &place)| {
                (Mac::numbered(0, key as u64), self.network.port(node, place))
            });
            self.order(node, Order::Check { keys: keys.collect(), answer: answer.clone() })?;
        }
        drop(answer);
        let (mut nodes, mut wrong) = (0, 0);
        for found in answers {
            (nodes, wrong) = (nodes + 1, wrong + found);
        }
        anyhow::ensure!(nodes == self.network.nodes(), "a node has ended early");
        Ok(((nodes * self.places.len()) as u64, wrong))
    }
}
