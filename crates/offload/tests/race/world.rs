//! The model: clients, a card, the software's knowledge of connections, and the real ledger.

use crate::search::{Model, Sink};
use std::hash::{Hash, Hasher};
use weir_offload::{
    Answer, Answered, Ledger, Limits, Location, Phase, Queue, Refusal, Rule, Rules as Table,
    Serial, Target,
};
use weir_steering::BackendId;
use weir_wire::{FlowKey, Protocol};

const QUEUES: usize = 2;
const BACKENDS: usize = 2;
const RING: usize = 2;

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Budget {
    pub flows: usize,
    pub places: usize,
    /// Connections that begin.
    pub starts: u8,
    /// Later packets.
    pub packets: u8,
    pub insertions: u8,
    /// Commands that the card loses.
    pub losses: u8,
    /// Commands that are given again.
    pub insists: u8,
    pub evictions: u8,
    /// Backends that go; the number of one that has gone may be used again.
    pub removals: u8,
    /// Looks of the software for connections that are silent.
    pub sweeps: u8,
}

/// What is left out, or what a card does that it must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    TakeQueuesAtTheirWord,
    FirstPacketsByQueue,
    FirstPacketsNotTold,
    EvictWithoutDoubt,
    NoDrain,
    ToldIsDone,
    NoRetirement,
    LateIsRefused,
    NoAudit,
    NoLastLook,
    CommandsOvertake,
    FalseAnswers,
}

pub struct Rules {
    pub budget: Budget,
    pub fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    First,
    Later,
    Last,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Frame {
    flow: usize,
    /// Which connection of its ports.
    connection: u8,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Command {
    serial: Serial,
    rule: Option<Rule>,
}

/// A card that carries commands out when the search says so.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Card {
    rules: Vec<Option<Rule>>,
    commands: Vec<Vec<Command>>,
    answers: Vec<Answer>,
    queues: [Vec<Frame>; QUEUES],
    /// Answers every command at once, before it is carried out.
    told_is_done: bool,
}

impl Table for Card {
    fn limits(&self) -> Limits {
        Limits { rules: self.rules.len(), queues: QUEUES as u16, ring: RING as u32, counts: false }
    }

    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        self.commands[at.0 as usize].push(Command { serial, rule: Some(*rule) });
        Ok(())
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        self.commands[at.0 as usize].push(Command { serial, rule: None });
        if self.told_is_done {
            self.answers.push(Answer { at, serial, what: Answered::Done });
        }
        Ok(())
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.answers.drain(..).for_each(take);
    }

    fn hits(&mut self, _: Location) -> Option<u64> {
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Client {
    connection: u8,
    lives: bool,
    /// Where the connection lives.
    home: Option<Target>,
    /// It has sent something since the last sweep.
    active: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    ledger: Ledger,
    card: Card,
    clients: Vec<Client>,
    /// What the software knows: which connection of the flow, and where it lives.
    known: Vec<Option<(u8, Target)>>,
    /// Of which it has seen a packet since the last sweep.
    marked: Vec<bool>,
    /// The use of each backend's number, while it is there.
    present: [Option<u32>; BACKENDS],
    used: [u32; BACKENDS],
    left: Budget,
    broken: bool,
}

fn flow(number: usize) -> FlowKey {
    let from = ([10, 0, 0, 1], 1_000 + number as u16).into();
    FlowKey::new(from, ([10, 9, 0, 1], 80).into(), Protocol::Tcp)
}

fn number(key: &FlowKey) -> usize {
    usize::from(key.src_port - 1_000)
}

impl State {
    fn target(&self, backend: usize) -> Option<Target> {
        let incarnation = self.present[backend]?;
        Some(Target { backend: BackendId::of(backend as u16), incarnation })
    }

    fn targets(&self) -> Vec<Target> {
        (0..BACKENDS).filter_map(|backend| self.target(backend)).collect()
    }

    fn is_there(&self, target: Target) -> bool {
        self.present[usize::from(target.backend.get())] == Some(target.incarnation)
    }

    fn frames(&self) -> usize {
        self.card.queues.iter().map(Vec::len).sum()
    }

    /// A client sends a packet: every queue that the card may lead it to.
    fn send(&self, frame: Frame, sink: &mut Sink<Self>, what: &str) {
        let key = flow(frame.flow);
        let mut queues = vec![0u16];
        for (rule, commands) in self.card.rules.iter().zip(&self.card.commands) {
            // A command that is under way may be half done: its rule or the one before, as it happens.
            let under_way = commands.first().and_then(|command| command.rule);
            for rule in [*rule, under_way].into_iter().flatten() {
                if rule.flow == key {
                    queues.push(rule.queue.0);
                }
            }
        }
        let sure = self.card.rules.iter().zip(&self.card.commands).any(|(rule, commands)| {
            commands.is_empty() && rule.is_some_and(|rule| rule.flow == key)
        });
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            if sure && queue == 0 || self.card.queues[usize::from(queue)].len() >= RING {
                continue;
            }
            let mut next = self.clone();
            next.card.queues[usize::from(queue)].push(frame);
            next.clients[frame.flow].active = true;
            sink.push(next, || format!("{what}: {frame:?} comes to queue {queue}"));
        }
    }

    fn deliver(&mut self, frame: Frame, to: Target) {
        let client = &mut self.clients[frame.flow];
        if !client.lives || client.connection != frame.connection {
            return;
        }
        let home = *client.home.get_or_insert(to);
        if home != to && self.is_there(home) {
            self.broken = true;
        }
    }

    /// Where the software may send a packet.
    fn steer(&self, frame: Frame) -> Vec<Target> {
        match self.known[frame.flow] {
            // Another connection of the same ports may be placed anew, or follow what is known.
            Some((connection, at)) if self.is_there(at) => match frame.kind {
                Kind::First if connection != frame.connection => self.targets(),
                _ => vec![at],
            },
            _ => self.targets(),
        }
    }
}

impl Rules {
    fn poll(&self, state: &State, queue: usize, sink: &mut Sink<State>) {
        let Some(&frame) = state.card.queues[queue].first() else { return };
        let mut begun = state.clone();
        begun.card.queues[queue].remove(0);
        let emptied = begun.card.queues[queue].is_empty();
        let place = Queue(queue as u16);
        let trusted = match self.fault {
            Fault::TakeQueuesAtTheirWord => begun.ledger.bound(place),
            _ => begun.ledger.trusted(place),
        };
        let by_queue = frame.kind == Kind::Later
            || frame.kind == Kind::First && self.fault == Fault::FirstPacketsByQueue;
        if let Some(target) = trusted.filter(|_| by_queue) {
            let mut next = begun;
            // A number leads to whoever has it now, which must be who the rule was made for.
            next.broken |= !next.is_there(target);
            next.deliver(frame, target);
            next.ledger.polled(place, 1, emptied);
            return sink.push(next, || format!("by {place}: {frame:?} to {target:?}"));
        }
        for to in begun.steer(frame) {
            let mut next = begun.clone();
            self.steered(&mut next, frame, to);
            next.ledger.polled(place, 1, emptied);
            let what = format!("steered from {place}: {frame:?} to {to:?}");
            if frame.kind == Kind::Later && next.left.insertions > 0 {
                let mut with = next.clone();
                with.left.insertions -= 1;
                if with.ledger.insert(flow(frame.flow), to, 0, &mut with.card).is_ok() {
                    sink.push(with, || format!("{what}; a rule is asked for"));
                }
            }
            sink.push(next, || what);
        }
    }

    fn steered(&self, next: &mut State, frame: Frame, to: Target) {
        let key = flow(frame.flow);
        match frame.kind {
            Kind::First => {
                next.known[frame.flow] = Some((frame.connection, to));
                match self.fault {
                    Fault::FirstPacketsNotTold => {}
                    Fault::EvictWithoutDoubt => {
                        let place = next.ledger.of_flow(&key).map(|(at, _)| at);
                        if let Some(at) = place {
                            next.ledger.evict(at, 0, &mut next.card);
                        }
                    }
                    _ => {
                        next.ledger.started(&key, Some(to), 0, &mut next.card);
                    }
                }
            }
            Kind::Later => {}
            Kind::Last => {
                if let Some((at, _)) = next.ledger.of_flow(&key) {
                    next.ledger.evict(at, 0, &mut next.card);
                }
            }
        }
        // An end forgets nothing: late packets may come, or another connection has begun before it came.
        next.marked[frame.flow] = true;
        next.deliver(frame, to);
    }

    fn clients(&self, state: &State, sink: &mut Sink<State>) {
        for (number, client) in state.clients.iter().enumerate() {
            let frame = |kind| Frame { flow: number, connection: client.connection, kind };
            if !client.lives {
                if state.left.starts > 0 {
                    let mut next = state.clone();
                    next.left.starts -= 1;
                    let connection = client.connection + 1;
                    let begun = Client { connection, lives: true, home: None, active: true };
                    next.clients[number] = begun;
                    let first = Frame { connection, ..frame(Kind::First) };
                    next.send(first, sink, "begins");
                }
                continue;
            }
            if client.home.is_none() {
                continue;
            }
            if state.left.packets > 0 {
                let mut next = state.clone();
                next.left.packets -= 1;
                next.send(frame(Kind::Later), sink, "sends");
            }
            let mut next = state.clone();
            next.clients[number].lives = false;
            sink.push(next.clone(), || format!("flow {number} ends unseen"));
            next.send(frame(Kind::Last), sink, "ends");
        }
    }

    fn card(&self, state: &State, sink: &mut Sink<State>) {
        for place in 0..state.card.rules.len() {
            let at = Location(place as u32);
            let commands = state.card.commands[place].len();
            let choices =
                if self.fault == Fault::CommandsOvertake { commands } else { commands.min(1) };
            for which in 0..choices {
                let mut next = state.clone();
                let command = next.card.commands[place].remove(which);
                let false_answer = self.fault == Fault::FalseAnswers && command.rule.is_none();
                if !false_answer {
                    next.card.rules[place] = command.rule;
                }
                if self.fault != Fault::ToldIsDone || command.rule.is_some() {
                    let what = Answered::Done;
                    next.card.answers.push(Answer { at, serial: command.serial, what });
                }
                sink.push(next, || format!("the card has carried out {command:?} at {at}"));
                if state.left.losses > 0 {
                    let mut next = state.clone();
                    next.left.losses -= 1;
                    let lost = next.card.commands[place].remove(which);
                    sink.push(next, || format!("the card loses {lost:?} at {at}"));
                }
            }
            let inserting =
                state.ledger.at(at).is_some_and(|entry| entry.phase == Phase::Inserting);
            if state.left.insists > 0 && state.ledger.at(at).is_some() {
                let mut next = state.clone();
                next.left.insists -= 1;
                if self.fault == Fault::LateIsRefused && inserting {
                    let serial = next.card.commands[place].first().map(|command| command.serial);
                    let serial = serial.unwrap_or_default();
                    let what = Answered::Refused(Refusal::Other);
                    next.ledger.answered(&Answer { at, serial, what }, 0);
                } else {
                    next.ledger.insist(at, 1, 0, &mut next.card);
                }
                sink.push(next, || format!("patience ends at {at}"));
            }
            if state.left.evictions > 0 && state.ledger.at(at).is_some() {
                let mut next = state.clone();
                next.left.evictions -= 1;
                next.ledger.evict(at, 0, &mut next.card);
                sink.push(next, || format!("the rule at {at} is evicted"));
            }
        }
        if !state.card.answers.is_empty() {
            let mut next = state.clone();
            let answer = next.card.answers.remove(0);
            let gone = next.ledger.answered(&answer, 0);
            // Since the last look it may have led packets.
            if let Some(gone) = gone.filter(|_| self.fault != Fault::NoLastLook) {
                let flow = number(&gone.rule.flow);
                next.marked[flow] |= next.known[flow].is_some();
            }
            if self.fault == Fault::NoDrain {
                next.ledger.polled(Queue(1), u32::MAX, true);
            }
            sink.push(next, || format!("{answer:?} arrives"));
        }
    }

    fn pool(&self, state: &State, sink: &mut Sink<State>) {
        for backend in 0..BACKENDS {
            let Some(target) = state.target(backend) else {
                let mut next = state.clone();
                next.used[backend] += 1;
                next.present[backend] = Some(next.used[backend]);
                sink.push(next, || format!("backend {backend} is another one now"));
                continue;
            };
            if state.left.removals == 0 {
                continue;
            }
            let mut next = state.clone();
            next.left.removals -= 1;
            next.present[backend] = None;
            for known in &mut next.known {
                *known = known.filter(|(_, at)| *at != target);
            }
            if self.fault != Fault::NoRetirement {
                next.ledger.retire(target, 0, &mut next.card);
            }
            sink.push(next, || format!("backend {backend} goes"));
        }
    }

    /// The software looks at every rule, as if a packet of its flow had come, and then forgets who was silent.
    fn sweep(&self, state: &State, sink: &mut Sink<State>) {
        if state.left.sweeps == 0 || state.frames() > 0 {
            return;
        }
        let mut next = state.clone();
        next.left.sweeps -= 1;
        if self.fault != Fault::NoAudit {
            for place in 0..next.card.rules.len() {
                let at = Location(place as u32);
                let Some(entry) = next.ledger.at(at) else { continue };
                let (flow, target) = (number(&entry.rule.flow), entry.target);
                if let Some((_, home)) = next.known[flow] {
                    next.marked[flow] = true;
                    if home != target {
                        next.ledger.doubt(at, 0, &mut next.card);
                    }
                }
            }
        }
        for (flow, client) in next.clients.iter_mut().enumerate() {
            if !next.marked[flow] {
                next.known[flow] = None;
                // Who was silent is not promised anything.
                client.lives &= client.active;
            }
            client.active = false;
            next.marked[flow] = false;
        }
        sink.push(next, || "the software forgets who was silent".into());
    }
}

impl Model for Rules {
    type State = State;

    fn initial(&self) -> Vec<State> {
        let Budget { flows, places, .. } = self.budget;
        let card = Card {
            rules: vec![None; places],
            commands: vec![Vec::new(); places],
            answers: Vec::new(),
            queues: [const { Vec::new() }; QUEUES],
            told_is_done: self.fault == Fault::ToldIsDone,
        };
        vec![State {
            ledger: Ledger::new(&card.limits()),
            card,
            clients: vec![Client::default(); flows],
            known: vec![None; flows],
            marked: vec![false; flows],
            present: [Some(1); BACKENDS],
            used: [1; BACKENDS],
            left: self.budget,
            broken: false,
        }]
    }

    fn hash(&self, state: &State, hasher: &mut impl Hasher) {
        state.hash(hasher);
    }

    fn successors(&self, state: &State, sink: &mut Sink<State>) {
        self.clients(state, sink);
        (0..QUEUES).for_each(|queue| self.poll(state, queue, sink));
        self.card(state, sink);
        self.pool(state, sink);
        self.sweep(state, sink);
    }

    fn broken(&self, state: &State) -> bool {
        state.broken
    }
}
