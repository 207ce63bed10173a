//! The network while it runs: control plane, laboratory, and a thread for each node.

use super::keys::SwitchKey;
use super::lab::Lab;
use super::node::{self, Order, Start, Tally};
use super::packet::PacketPorts;
use super::ports::Kind;
use super::xdp::XdpPorts;
use crate::SocketKind;
use crate::error::{Context, ensure};
use crate::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use weir_fib::{Control, Host, Network};
use weir_testbed::interrupt::interrupted;

/// Silent keys that move with each host that has traffic.
const SILENT_MOVES: usize = 100;

/// The list that silent keys are drawn from.
const SILENT: u32 = 1;

/// A thread that forwards, and what it did.
type NodeThread = JoinHandle<weir_testbed::Result<Result<Tally>>>;

pub struct World<K, C: Control<K>>
where
    K: SwitchKey,
{
    pub control: C,
    pub network: Network,
    /// Where each host with traffic is.
    pub homes: Vec<Host>,
    pub keys: Vec<K>,
    /// Where each key leads.
    places: Vec<Host>,
    /// The host that each of the first keys belongs to; the others' hosts are silent.
    owners: Vec<usize>,
    orders: Vec<Sender<Order<K>>>,
    nodes: Vec<NodeThread>,
    rng: ChaCha8Rng,
    pub updates: u64,
    pub messages: u64,
    pub message_bytes: u64,
    // Last, so that namespaces go when everything in them has ended.
    pub lab: Lab,
}

impl<K, C> World<K, C>
where
    K: SwitchKey,
    C: Control<K>,
    C::Plane: 'static,
{
    /// Makes the network with hosts at their homes, and `silent` keys anywhere.
    pub fn new(mut control: C, homes: Vec<Host>, silent: usize, seed: u64) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let network = control.network().clone();
        let (mut keys, owners): (Vec<K>, Vec<usize>) = K::of_hosts(homes.len()).into_iter().unzip();
        let mut places: Vec<Host> = owners.iter().map(|&host| homes[host]).collect();
        for number in 0..silent {
            let node = rng.random_range(0..network.nodes()) as u16;
            places.push(Host { node, slot: rng.random_range(0..network.slots()) });
            keys.push(K::numbered(SILENT, number as u64));
        }
        for (&key, &place) in keys.iter().zip(&places) {
            control.insert(key, place)?;
        }
        let lab = Lab::create(&network, &homes, K::FAMILY)?;
        Ok(Self {
            control,
            network,
            homes,
            keys,
            places,
            owners,
            orders: Vec::new(),
            nodes: Vec::new(),
            rng,
            updates: 0,
            messages: 0,
            message_bytes: 0,
            lab,
        })
    }

    /// Starts the nodes with sockets as wished; which they have, and why not the better ones.
    pub fn start(&mut self, wish: SocketKind) -> Result<(Kind, Option<String>)> {
        let fallback = match wish {
            SocketKind::Packet => None,
            SocketKind::Xdp => {
                self.start_with(Kind::Xdp).context("AF_XDP was refused")?;
                return Ok((Kind::Xdp, None));
            }
            SocketKind::Auto => match self.start_with(Kind::Xdp) {
                Ok(()) => return Ok((Kind::Xdp, None)),
                Err(_) if interrupted() => return Err(Error::Failed("interrupted".into())),
                Err(error) => Some(format!("{error:#}")),
            },
        };
        if let Some(reason) = &fallback {
            eprintln!("weir: packet sockets, since AF_XDP was refused: {reason}");
        }
        self.start_with(Kind::Packet)?;
        Ok((Kind::Packet, fallback))
    }

    fn start_with(&mut self, kind: Kind) -> Result<()> {
        let all: Vec<usize> = (0..self.network.nodes()).collect();
        let planes = self.control.build_many(&all);
        let (ready, answers) = channel();
        for (node, plane) in planes.into_iter().enumerate() {
            let watched = self.owners.iter().enumerate();
            let truth =
                watched.map(|(key, _)| (self.keys[key], self.network.port(node, self.places[key])));
            let start = Start {
                plane,
                ports: self.network.ports(node),
                wires: self.lab.wires(&self.network, node, &self.homes)?,
                truth: truth.collect(),
            };
            let (orders, receiver) = channel();
            let ready = ready.clone();
            let thread = self.lab.node(node).spawn(move || match kind {
                Kind::Xdp => node::run::<K, _, XdpPorts>(start, &receiver, ready),
                Kind::Packet => node::run::<K, _, PacketPorts>(start, &receiver, ready),
            })?;
            self.nodes.push(thread);
            self.orders.push(orders);
        }
        drop(ready);
        let opened: Vec<Result<()>> = answers.iter().collect();
        let count = opened.len();
        let result = opened.into_iter().collect::<Result<()>>();
        if result.is_err() || count < all.len() {
            let ended = self.stop();
            result?;
            ended?;
            return Err(Error::Failed("a node ended early".into()));
        }
        Ok(())
    }

    /// Ends the nodes; what they did together.
    pub fn stop(&mut self) -> Result<Tally> {
        // A node ends when its orders do.
        self.orders.clear();
        let mut tally = Tally::default();
        let mut failure = None;
        for node in self.nodes.drain(..) {
            let ended = node.join().map_err(|_| Error::Failed("a node panicked".into()));
            match ended.and_then(|ended| ended?) {
                Ok(did) => tally.add(&did),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(tally), Err)
    }

    fn order(&self, node: u16, order: Order<K>) -> Result<()> {
        let sent = self.orders[usize::from(node)].send(order);
        sent.map_err(|_| Error::Failed("a node has ended early".into()))
    }

    /// Gives an order and waits until it is carried out.
    fn order_done(
        &self,
        node: u16,
        order: impl FnOnce(Sender<Result<()>>) -> Order<K>,
    ) -> Result<()> {
        let (done, answer) = channel();
        self.order(node, order(done))?;
        answer.recv().context("a node has ended early")?
    }

    /// Tells every node where a key is now.
    fn publish(&mut self, key: usize, place: Host) -> Result<()> {
        let name = self.keys[key];
        self.control.insert(name, place)?;
        self.places[key] = place;
        self.updates += 1;
        for node in 0..self.network.nodes() {
            let message = self.control.message(node);
            if let Some(message) = &message {
                self.messages += 1;
                self.message_bytes += (message.len() - weir_fib::ENVELOPE) as u64;
            }
            let (port, watched) = (self.network.port(node, place), key < self.owners.len());
            // A silent host's key needs no order where there is no message.
            if message.is_some() || watched {
                self.order(node as u16, Order::Update { message, key: name, port, watched })?;
            }
        }
        Ok(())
    }

    /// Unplugs a host, plugs it in elsewhere, and tells the nodes; silent ones only on paper.
    ///
    /// Nothing is lost on our side of the plug: what had come by the old port is forwarded before
    /// the interface goes, and what the host is sent meanwhile is held.
    pub fn move_one(&mut self) -> Result<()> {
        let host = self.rng.random_range(0..self.homes.len());
        let (from, nodes) = (self.homes[host], self.network.nodes() as u16);
        let to = Host { node: (from.node + self.rng.random_range(1..nodes)) % nodes, ..from };
        let port = |place: Host| self.network.port(place.node.into(), place);
        let (old, new) = (port(from), port(to));
        self.order_done(from.node, |done| Order::Pause { port: old, done })?;
        self.lab.down(host, from.node.into())?;
        self.order_done(from.node, |done| Order::Unplug { port: old, done })?;
        let interface = self.lab.carry(host, from.node.into(), to.node.into())?;
        self.order_done(to.node, |done| Order::Plug { port: new, interface, done })
            .with_context(|| format!("plugging host {host} in at node {}", to.node))?;
        self.lab.up(host, to.node.into())?;
        self.homes[host] = to;
        for key in 0..self.owners.len() {
            if self.owners[key] == host {
                self.publish(key, to)?;
            }
        }
        let silent = self.owners.len()..self.keys.len();
        for _ in 0..SILENT_MOVES.min(silent.len()) {
            let key = self.rng.random_range(silent.clone());
            let node = self.rng.random_range(0..nodes);
            self.publish(key, Host { node, ..self.places[key] })?;
        }
        Ok(())
    }

    /// Asks every node for every key: how many lookups, and how many were wrong.
    pub fn check_all(&self) -> Result<(u64, u64)> {
        let (answer, answers) = channel();
        for node in 0..self.network.nodes() {
            let keys = self.keys.iter().zip(&self.places);
            let keys = keys.map(|(&key, &place)| (key, self.network.port(node, place))).collect();
            self.order(node as u16, Order::Check { keys, answer: answer.clone() })?;
        }
        drop(answer);
        let (mut nodes, mut wrong) = (0, 0);
        for found in answers {
            (nodes, wrong) = (nodes + 1, wrong + found);
        }
        ensure!(nodes == self.network.nodes(), "a node has ended early");
        Ok(((nodes * self.keys.len()) as u64, wrong))
    }
}

impl<K: SwitchKey, C: Control<K>> Drop for World<K, C> {
    /// Nodes end before their namespaces do.
    fn drop(&mut self) {
        self.orders.clear();
        for node in self.nodes.drain(..) {
            let _ = node.join();
        }
    }
}
