//! Faults in the methods themselves show up as broken connections.
//!
//! Each method is played as it is and with one fault, put in where `weir_steering` decides: between
//! the decision and its memory, or in what it answers. The worlds are those of the built-in
//! scenarios in smoke size. As it is nothing breaks; with the fault something must.

use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges};
use crate::methods::{Face, Remembered, Steered};
use weir_hash::HashKey;
use weir_steering::{BackendId, Decision, EventKind, Memory, Question, TrackedFlow, Why};

/// A mutation of a method: one thing that it does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The method as it is.
    None,
    /// The cookie that the server's answer carries has one bit inverted.
    CookieBit(u32),
    /// The pending table is not asked.
    NoPendingLook,
    /// Exceptions are not asked for: a flow goes where its row points.
    NoExceptionLook,
    /// The connection table forgets what it is told of one flow in eight.
    Forgets,
    /// Later packets of one flow in 64 read the row beside theirs.
    WrongRow,
}

/// The build face of a method, with a fault in its decisions.
#[derive(Debug)]
pub struct Faulty<F> {
    face: F,
    fault: Fault,
}

/// A method that decides with this fault.
pub fn with<F: Face>(method: Steered<F>, fault: Fault) -> Steered<Faulty<F>> {
    let Steered { face, memories } = method;
    Steered { face: Faulty { face, fault }, memories }
}

/// A memory that a faulty method asks.
struct Through<'a, M> {
    memory: &'a mut M,
    fault: Fault,
}

impl<M: Memory<u64>> Memory<u64> for Through<'_, M> {
    fn pending(&mut self, question: &Question<u64>) -> Option<BackendId> {
        match self.fault {
            Fault::NoPendingLook => None,
            _ => self.memory.pending(question),
        }
    }

    fn note_pending(&mut self, question: &Question<u64>, backend: BackendId) -> bool {
        self.memory.note_pending(question, backend)
    }

    fn pinned(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.memory.pinned(question)
    }

    fn report(&mut self, question: &Question<u64>, backend: BackendId, kind: EventKind) {
        self.memory.report(question, backend, kind);
    }

    fn mark(&mut self, question: &Question<u64>) {
        self.memory.mark(question);
    }

    fn is_armed(&mut self, question: &Question<u64>) -> bool {
        self.memory.is_armed(question)
    }

    fn connection(&mut self, question: &Question<u64>) -> Option<TrackedFlow> {
        self.memory.connection(question)
    }

    fn track(&mut self, question: &Question<u64>, entry: TrackedFlow) {
        if self.fault != Fault::Forgets || !question.key.is_multiple_of(8) {
            self.memory.track(question, entry);
        }
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        self.memory.incarnation(backend)
    }

    fn is_down(&mut self, backend: BackendId) -> bool {
        self.memory.is_down(backend)
    }

    fn known(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.memory.known(question)
    }

    fn remember(&mut self, question: &Question<u64>, backend: BackendId) {
        self.memory.remember(question, backend);
    }

    fn schedule(&mut self, question: &Question<u64>, serving: &[u16]) -> Option<BackendId> {
        self.memory.schedule(question, serving)
    }

    fn open_slot(&mut self, question: &Question<u64>, backend: BackendId) -> Option<u16> {
        self.memory.open_slot(question, backend)
    }

    fn slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.memory.slot(question, part)
    }

    fn close_slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.memory.close_slot(question, part)
    }
}

impl<F: Face> Face for Faulty<F> {
    const FINS: bool = F::FINS;

    fn hash_key(&self, balancer: u16) -> &HashKey {
        self.face.hash_key(balancer)
    }

    fn decide<M: Memory<u64>>(
        &self,
        balancer: u16,
        question: &Question<u64>,
        memory: &mut M,
    ) -> Decision {
        let mut question = *question;
        if self.fault == Fault::WrongRow
            && !question.signals.starts
            && question.key.is_multiple_of(64)
        {
            // Rows are chosen by the low half of the hash (of a ring, by all of it).
            let row = u32::MAX / self.face.rows().max(4_096) as u32 + 1;
            let low = (question.hash as u32).wrapping_add(row);
            question.hash = question.hash & !0xffff_ffff | u64::from(low);
        }
        let mut through = Through { memory, fault: self.fault };
        let decision = self.face.decide(balancer, &question, &mut through);
        match self.fault {
            Fault::CookieBit(bit) => {
                Decision { cookie: decision.cookie.map(|cookie| cookie ^ 1 << bit), ..decision }
            }
            Fault::NoExceptionLook if decision.why == Why::Exception => {
                Decision::to(self.face.row_points_at(&question), Why::Row)
            }
            _ => decision,
        }
    }

    fn rows(&self) -> usize {
        self.face.rows()
    }

    fn row_of(&self, hash: u64) -> u32 {
        self.face.row_of(hash)
    }

    fn change(
        &mut self,
        changes: &[Change],
        memories: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) {
        self.face.change(changes, memories, traffic, effects);
    }

    fn reported(&mut self, flow: FlowRef, server: u16, kind: EventKind) {
        self.face.reported(flow, server, kind);
    }

    fn ended(&mut self, flow: FlowRef) {
        self.face.ended(flow);
    }

    fn answer(&self, flow: FlowRef, now: f64, cookie: Option<u16>) -> Option<u32> {
        self.face.answer(flow, now, cookie)
    }

    fn placed(&mut self, server: u16, traffic: &mut Traffic, effects: &mut Effects) {
        self.face.placed(server, traffic, effects);
    }

    fn second(&self, flow: FlowRef) -> u16 {
        self.face.second(flow)
    }

    fn row_points_at(&self, question: &Question<u64>) -> u16 {
        self.face.row_points_at(question)
    }

    fn reports(&mut self, loads: &[(u16, u64)], memories: &mut [Remembered]) {
        self.face.reports(loads, memories);
    }

    fn gauges(&self, memories: &[Remembered]) -> Gauges {
        self.face.gauges(memories)
    }
}

mod tests {
    use super::*;
    use crate::engine::simulate;
    use crate::methods::{
        Buckets, Cheetah, Connections, Cookies, Eviction, Jet, Metric, Over, Published, Release,
        Residue, Scheduler, Tracked,
    };
    use crate::scenario::{Size, builtin};
    use crate::world::World;
    use weir_steering::{MethodId, Settings};

    /// The worlds of a built-in scenario in smoke size.
    fn worlds(scenario: &str) -> Vec<World> {
        let worlds = builtin(scenario, Size::Smoke).unwrap().worlds().unwrap();
        // A table of a balancer's own does not outlive a reshuffle.
        let calm = |world: &World| world.reshuffles_per_minute == 0.0;
        worlds.into_iter().filter(calm).collect()
    }

    /// As it is the method breaks nothing in the scenario's worlds, and with each fault something.
    fn shows<F: Face>(scenario: &str, make: impl Fn(&World) -> Steered<F>, faults: &[Fault]) {
        shows_in(&worlds(scenario), scenario, make, faults);
    }

    fn shows_in<F: Face>(
        worlds: &[World],
        scenario: &str,
        make: impl Fn(&World) -> Steered<F>,
        faults: &[Fault],
    ) {
        let broken = |fault| {
            let play = |world: &World| simulate(world, &mut with(make(world), fault)).broken;
            worlds.iter().map(play).sum::<u64>()
        };
        assert_eq!(broken(Fault::None), 0, "{scenario}: without a fault");
        for &fault in faults {
            let broken = broken(fault);
            println!("{scenario}, {fault:?}: {broken} broken");
            assert!(broken > 0, "{scenario}: {fault:?} does not show");
        }
    }

    #[test]
    fn concury() {
        let make = |world: &World| Published::concury(12, world).unwrap();
        shows("drain", make, &[Fault::NoPendingLook, Fault::WrongRow]);
    }

    #[test]
    fn tracked() {
        let make = |world: &World| Published::tracked(65_537, world, 1 << 20).unwrap();
        shows("drain", make, &[Fault::Forgets]);
    }

    #[test]
    fn residue() {
        let make = |world: &World| Residue::new(65_537, &world.server_weights()).unwrap();
        shows("residue", make, &[Fault::NoExceptionLook, Fault::WrongRow]);
        shows("drain", make, &[Fault::NoExceptionLook, Fault::WrongRow]);
    }

    /// As it is published, with the decisions that the kernel's program has.
    #[test]
    fn published_jet() {
        let make = |world: &World| published(MethodId::Jet, world);
        shows("ecmp", make, &[Fault::Forgets, Fault::WrongRow]);
    }

    fn published(method: MethodId, world: &World) -> Published {
        let settings = Settings::of(method);
        Published::new(settings, world, 1 << 20, Eviction::Kernel, Release::Never).unwrap()
    }

    /// At five departures a minute, where a horizon of 47 foresees every return in time.
    #[test]
    fn jet_and_full_tracking() {
        let table = Connections::new(1 << 17, Eviction::Buckets, Release::AtEnd);
        let jet = |world: &World| Jet::new(Over::Table, 65_537, world, table).unwrap();
        shows("ecmp", jet, &[Fault::Forgets, Fault::WrongRow]);
        let all = |world: &World| Tracked::new(Over::Table, 65_537, world, table).unwrap();
        shows("ecmp", all, &[Fault::Forgets]);
    }

    #[test]
    fn cheetah() {
        let make = |cookies| {
            move |world: &World| {
                let (kind, metric) = (Scheduler::RoundRobin, Metric::Connections);
                Cheetah::for_world(kind, metric, cookies, 1 << 17, world)
            }
        };
        let bits = [Fault::CookieBit(0), Fault::CookieBit(14)];
        // A packet whose cookie leads nowhere is an event, and a flow has 30,000.
        let few = |world| World { max_packets: 5, ..world };
        for scenario in ["cheetah-9", "drain"] {
            let worlds: Vec<World> = worlds(scenario).into_iter().map(few).collect();
            shows_in(&worlds, scenario, make(Cookies::Stateless), &bits);
            shows_in(&worlds, scenario, make(Cookies::Stateful), &bits);
        }
    }

    #[test]
    fn chain() {
        let make = |_: &World| Buckets::chain(46_800, &[1; 468]);
        shows("cheetah-2b", make, &[Fault::WrongRow]);
    }
}
