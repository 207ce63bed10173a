//! HNLB: packets that a rule in the card has led to their backend's queue are rewritten and sent without a
//! look-up; all others are steered as ever.
//!
//! ```text
//! queue 0 ───────────────────────────────> pipeline: parse, service, decide, forward ──> backend
//!                                              │ first packets, ends, heavy connections
//!                                              v
//!                                           Offload ──> rules ──> card
//! queue n, trusted ──> plain? ── yes ──> forward to backend n   (parse, forward)
//!                        └────── no ───> pipeline
//! queue n, in doubt ─────────────────────> pipeline
//! ```
//! Which queues are trusted, the [`Ledger`](weir_offload::Ledger) says. What the card does is never believed for
//! more than that: a packet that could begin or end a connection is always steered.

use crate::plane::{Burst, Watch};
use crate::ports::{BURST, Fate, Frame, Ports};
use std::collections::HashMap;
use std::time::Duration;
use weir_offload::emulated::Nic;
use weir_offload::{Counts, Offload, Queue, Rules, Setup, Target, Wish};
use weir_plane::{Soft, Verdict};
use weir_steering::BackendId;
use weir_wire::{FlowKey, Packet, Protocol, TcpFlags, parse};

/// A burst plane beside a card that has rules.
#[derive(Debug)]
pub struct Hybrid<R> {
    burst: Burst,
    offload: Offload<R>,
    /// Which use of each backend's number is the present one.
    incarnations: HashMap<BackendId, u32>,
    shares: Shares,
    /// Connections that have begun in a burst.
    begun: Vec<FlowKey>,
    /// Milliseconds of the last tick.
    ticked: u64,
}

/// Which way packets have gone so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// By their queue, without a look-up.
    pub led: u64,
    /// By the pipeline, from queue 0.
    pub steered: u64,
    /// By the pipeline, from a backend's queue: it was in doubt, or they were not plain.
    pub steered_apart: u64,
}

/// What the pipeline decides, for the rules.
struct Watcher<'a, R> {
    offload: &'a mut Offload<R>,
    incarnations: &'a HashMap<BackendId, u32>,
    /// Connections that have begun.
    begun: &'a mut Vec<FlowKey>,
    now: u64,
}

impl<R> Watcher<'_, R> {
    fn target(&self, backend: BackendId) -> Option<Target> {
        let incarnation = *self.incarnations.get(&backend)?;
        Some(Target { backend, incarnation })
    }
}

impl<R: Rules> Watch for Watcher<'_, R> {
    #[inline]
    fn later(&mut self, number: u64, frame: &[u8], to: Option<BackendId>) {
        if let Wish::Yes(packets) = self.offload.wish(number)
            && let Some(target) = to.and_then(|to| self.target(to))
            && let Some(packet) = tcp(frame)
        {
            self.offload.offer(&packet.flow, target, packets, self.now);
        }
    }

    fn apart(&mut self, frame: &[u8], verdict: &Verdict) {
        let Some(packet) = tcp(frame) else { return };
        if packet.tcp_flags.starts() {
            let at = match verdict {
                Verdict::Forward { backend, .. } => self.target(*backend),
                _ => None,
            };
            self.offload.started(&packet.flow, at, self.now);
            self.begun.push(packet.flow);
        }
        if packet.tcp_flags.intersects(TcpFlags::FIN | TcpFlags::RST) {
            self.offload.ended(&packet.flow, self.now);
        }
    }
}

/// A packet that a rule can be for.
fn tcp(frame: &[u8]) -> Option<Packet> {
    parse(frame).ok().filter(|packet| packet.flow.protocol == Protocol::Tcp)
}

impl<R: Rules> Hybrid<R> {
    /// A plane with a card whose table is empty. What is drawn is drawn from the seed.
    pub fn new(soft: Soft, card: R, setup: Setup, seed: u64) -> Self {
        let mut new = Self {
            burst: Burst::new(soft),
            offload: Offload::new(card, setup, seed),
            incarnations: HashMap::new(),
            shares: Shares::default(),
            begun: Vec::new(),
            ticked: 0,
        };
        new.change(0, |_| ());
        new
    }

    /// The rules.
    pub fn offload(&mut self) -> &mut Offload<R> {
        &mut self.offload
    }

    /// What has been done with rules so far.
    pub fn counts(&self) -> Counts {
        self.offload.counts()
    }

    /// Which way packets have gone so far.
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// The plane. What is configured is changed by [`change`](Self::change).
    pub fn plane(&mut self) -> &mut Burst {
        &mut self.burst
    }

    /// Changes what is configured: tables, services, backends. Before the next packet, every rule is held
    /// against it: those of backends that are gone, or whose numbers others have, and those whose flows the
    /// software would send elsewhere, are in doubt from then on.
    pub fn change<T>(&mut self, now: u64, change: impl FnOnce(&mut Soft) -> T) -> T {
        let soft = self.burst.soft();
        let done = change(soft);
        let backends = soft.backends.iter();
        self.incarnations = backends.map(|(id, backend)| (*id, backend.incarnation)).collect();
        for target in self.offload.targets() {
            if self.incarnations.get(&target.backend) != Some(&target.incarnation) {
                self.offload.retire(target, now);
            }
        }
        let Self { burst, offload, incarnations, .. } = self;
        offload.look_at_all(now, &mut |flow| truth(burst, incarnations, flow));
        done
    }

    /// Decides a burst that was taken out of a queue, at `now` in milliseconds; `emptied`: the queue had no
    /// more. Writes into each frame what it leaves with, as [`Burst::process`] does.
    ///
    /// # Panics
    /// As [`Burst::process`].
    pub fn process(
        &mut self,
        queue: Queue,
        memory: &mut [u8],
        frames: &mut [Frame],
        emptied: bool,
        now: u64,
    ) {
        let Self { burst, offload, incarnations, shares, begun, .. } = self;
        let all = frames.len() as u32;
        let mut at = 0;
        while at < frames.len() {
            let rest = &mut frames[at..];
            let mut watch = Watcher {
                offload: &mut *offload,
                incarnations: &*incarnations,
                begun: &mut *begun,
                now,
            };
            let Some(target) = watch.offload.trusted(queue) else {
                burst.process_watched(memory, rest, &mut watch);
                *shares.way(queue) += rest.len() as u64;
                look_at_clients(burst, offload, incarnations, begun, now);
                break;
            };
            if let Some(sample) = watch.offload.sample(rest.len() as u32)
                && let Some(packet) = bytes(memory, &rest[sample as usize]).and_then(tcp)
            {
                watch.offload.used(&packet.flow, now);
            }
            let led = burst.lead(memory, rest, target.backend);
            shares.led += led as u64;
            at += led;
            // What is not plain may begin a connection elsewhere: then the queue is trusted no more.
            if let Some(frame) = frames.get_mut(at..=at) {
                burst.process_watched(memory, frame, &mut watch);
                *shares.way(queue) += 1;
                at += 1;
                look_at_clients(burst, offload, incarnations, begun, now);
            }
        }
        offload.polled(queue, all, emptied);
    }

    /// Time has passed, in milliseconds: answers of the card are taken, commands given again, rules looked at.
    /// To be called between bursts; it does something once in a millisecond.
    pub fn tick(&mut self, now: u64) {
        if now == self.ticked {
            return;
        }
        self.ticked = now;
        let Self { burst, offload, incarnations, .. } = self;
        offload.tick(now, &mut |flow| truth(burst, incarnations, flow));
    }
}

impl Shares {
    fn way(&mut self, queue: Queue) -> &mut u64 {
        if queue == Queue::SOFTWARE { &mut self.steered } else { &mut self.steered_apart }
    }
}

fn bytes<'a>(memory: &'a [u8], frame: &Frame) -> Option<&'a [u8]> {
    memory.get(frame.at as usize..)?.get(..frame.len as usize)
}

/// Where the software would send a packet of this flow, which counts as alive there.
fn truth(
    burst: &mut Burst,
    incarnations: &HashMap<BackendId, u32>,
    flow: &FlowKey,
) -> Option<Target> {
    let backend = burst.where_to(flow)?;
    Some(Target { backend, incarnation: *incarnations.get(&backend)? })
}

/// Connections have begun: with client affinity, where such a one goes all of its client do.
fn look_at_clients<R: Rules>(
    burst: &mut Burst,
    offload: &mut Offload<R>,
    incarnations: &HashMap<BackendId, u32>,
    begun: &mut Vec<FlowKey>,
    now: u64,
) {
    for flow in begun.drain(..) {
        if burst.has_client_affinity(&flow) {
            offload.look_at_client(&flow, now, &mut |flow| truth(burst, incarnations, flow));
        }
    }
}

/// Over an *emulated* card: the frames that ports hand over are led to its queues by its rules, and the queues
/// are then served in turn.
impl Hybrid<Nic<Frame>> {
    /// Takes what has come in through the card and the plane, and sends it; returns how many frames were taken
    /// out of the card's queues.
    ///
    /// # Errors
    /// Those of the ports.
    pub fn turn<P: Ports>(&mut self, ports: &mut P, now: Duration) -> Result<usize, P::Error> {
        let mut frames = [Frame::default(); BURST];
        let count = ports.receive(&mut frames)?;
        let card = self.offload.card();
        card.advance(now);
        for frame in &frames[..count] {
            let flow = bytes(ports.memory(), frame).and_then(parsed_by_cards);
            if let Err(mut lost) = card.receive(flow.as_ref(), *frame) {
                lost.fate = Fate::Drop;
                ports.finish(&[lost])?;
            }
        }
        let queues = card.limits().queues;
        let mut taken = 0;
        let milliseconds = now.as_millis() as u64;
        for queue in (0..queues).map(Queue) {
            let mut count = 0;
            let emptied = self.offload.card().poll(queue, BURST, &mut |frame| {
                frames[count] = frame;
                count += 1;
            });
            let burst = &mut frames[..count];
            self.process(queue, ports.memory(), burst, emptied, milliseconds);
            ports.finish(burst)?;
            taken += count;
        }
        self.tick(milliseconds);
        Ok(taken)
    }
}

/// The flow of a frame as a card finds it: of whole TCP packets only.
fn parsed_by_cards(frame: &[u8]) -> Option<FlowKey> {
    tcp(frame).map(|packet| packet.flow)
}
