//! What a balancer under simulation remembers: the memory that decisions of `weir_steering` ask.

use super::cheetah::CookieMemory;
use super::tables::{Connections, Table, Tracked};
use crate::flow::Traffic;
use crate::method::FlowRef;
use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use weir_hash::HashKey;
use weir_steering::{
    BackendId, ConnectionTable, Decision, EventKind, Memory, Question, TrackedFlow,
};

/// The memory of one balancer.
#[derive(Debug)]
pub struct Remembered {
    pub pending: HashMap<u64, BackendId>,
    pub pinned: HashMap<u64, BackendId>,
    /// What was reported, until the control plane takes it.
    pub reports: Vec<(BackendId, EventKind)>,
    pub connections: Option<Shared>,
    /// Which use of its number each server is, while it is there.
    pub incarnations: Incarnations,
    /// What a balancer with Cheetah remembers beside the cookies; none with other methods.
    pub cookies: Option<CookieMemory>,
    /// The slot of the flow whose packet is decided.
    slot: u32,
}

impl Remembered {
    /// What Cheetah remembers.
    pub fn of_cookies(cookies: CookieMemory) -> Self {
        Self { cookies: Some(cookies), ..Self::new(None) }
    }

    /// Nothing yet; with a connection table, if the method needs one.
    pub fn new(connections: Option<Shared>) -> Self {
        Self {
            pending: HashMap::new(),
            pinned: HashMap::new(),
            reports: Vec::new(),
            connections,
            incarnations: Incarnations::default(),
            cookies: None,
            slot: 0,
        }
    }

    /// Looks at the memory for a packet of this flow, and only looks.
    pub fn watch(&self, flow: FlowRef) -> Watch<'_> {
        Watch { memory: self, flow: flow.into(), effect: Cell::new(false) }
    }

    /// Makes ready for a packet of this flow that will be tracked. `gone` gets the slots of the
    /// flows that live and lose their entries to it.
    pub fn prepare(&mut self, flow: FlowRef, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        if let Some(connections) = &self.connections {
            connections.table_mut().prepare(flow.into(), traffic, gone);
        }
    }

    /// A server is gone. Entries of the kernel's table stay, and count for nothing; other tables
    /// drop them. `gone` gets the slots of the flows that an entry has led there.
    pub fn forget(&mut self, server: u16, gone: &mut Vec<u32>) {
        if let Some(connections) = &self.connections {
            connections.table_mut().forget(server, gone);
        }
    }

    /// Entries of the connection table.
    pub fn entries(&self) -> usize {
        self.connections.as_ref().map_or(0, |connections| connections.table().len())
    }

    /// Entries that were given up for lack of room.
    pub fn evictions(&self) -> u64 {
        self.connections.as_ref().map_or(0, |connections| connections.table().evictions())
    }

    /// The packets that are decided from now on are this flow's.
    pub fn enter(&mut self, flow: FlowRef) {
        self.slot = flow.slot;
    }

    /// A connection was opened at a server.
    pub fn opened(&mut self, server: u16) {
        if let Some(cookies) = &mut self.cookies {
            cookies.opened(server);
        }
    }

    /// The FIN of a connection has passed, and was decided so.
    pub fn closed(&mut self, decision: Decision) {
        if let Some(cookies) = &mut self.cookies {
            cookies.closed(decision);
        }
    }

    /// The flow has ended here.
    pub fn end(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        if let Some(connections) = &self.connections {
            connections.table_mut().end(flow.into(), traffic);
        }
        self.lost(flow);
    }

    /// The flow's server is gone.
    pub fn lost(&mut self, flow: FlowRef) {
        self.pending.remove(&flow.id);
        if let Some(cookies) = &mut self.cookies {
            cookies.forget(flow.id);
        }
    }

    /// An entry of a bucketed table counts for any use of its server's number: whoever removes a
    /// server drops them.
    fn incarnation_of(&self, backend: BackendId) -> Option<u32> {
        let incarnation = self.incarnations.of(backend)?;
        let connections = self.connections.as_ref();
        let told_apart = connections.is_none_or(|table| table.table().tells_incarnations());
        Some(if told_apart { incarnation } else { 0 })
    }

    fn connection(&self, flow: Tracked) -> Option<TrackedFlow> {
        self.connections.as_ref()?.table().peek(flow)
    }
}

impl Memory<u64> for Remembered {
    fn pending(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.pending.get(&question.key).copied()
    }

    fn note_pending(&mut self, question: &Question<u64>, backend: BackendId) -> bool {
        self.pending.insert(question.key, backend);
        true
    }

    fn pinned(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.pinned.get(&question.key).copied()
    }

    fn report(&mut self, _: &Question<u64>, backend: BackendId, kind: EventKind) {
        self.reports.push((backend, kind));
    }

    fn connection(&mut self, question: &Question<u64>) -> Option<TrackedFlow> {
        let flow = Tracked { id: question.key, slot: self.slot };
        self.connections.as_ref()?.table_mut().get(flow)
    }

    fn track(&mut self, question: &Question<u64>, entry: TrackedFlow) {
        if let Some(connections) = &self.connections {
            let flow = Tracked { id: question.key, slot: self.slot };
            connections.table_mut().insert(flow, entry);
        }
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        self.incarnation_of(backend)
    }

    fn known(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.cookies.as_ref()?.known(question.key)
    }

    fn remember(&mut self, question: &Question<u64>, backend: BackendId) {
        if let Some(cookies) = &mut self.cookies {
            cookies.remember(question, backend);
        }
    }

    fn schedule(&mut self, question: &Question<u64>, _: &[u16]) -> Option<BackendId> {
        self.cookies.as_mut()?.schedule(question)
    }

    fn open_slot(&mut self, question: &Question<u64>, backend: BackendId) -> Option<u16> {
        self.cookies.as_mut()?.open_slot(question, backend)
    }

    fn slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.cookies.as_mut()?.slot(question, part)
    }

    fn close_slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.cookies.as_mut()?.close_slot(question.key, part)
    }
}

/// A memory that is asked and not changed: what a packet would do.
#[derive(Debug)]
pub struct Watch<'a> {
    memory: &'a Remembered,
    flow: Tracked,
    effect: Cell<bool>,
}

impl Watch<'_> {
    /// Whether the decision would have left something behind, apart from how recently an entry was
    /// used.
    pub fn effect(&self) -> bool {
        self.effect.get()
    }
}

impl Memory<u64> for Watch<'_> {
    fn pending(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.memory.pending.get(&question.key).copied()
    }

    fn note_pending(&mut self, _: &Question<u64>, _: BackendId) -> bool {
        self.effect.set(true);
        true
    }

    fn pinned(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.memory.pinned.get(&question.key).copied()
    }

    fn report(&mut self, _: &Question<u64>, _: BackendId, _: EventKind) {
        self.effect.set(true);
    }

    fn connection(&mut self, _: &Question<u64>) -> Option<TrackedFlow> {
        self.memory.connection(self.flow)
    }

    fn track(&mut self, _: &Question<u64>, _: TrackedFlow) {
        self.effect.set(true);
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        self.memory.incarnation_of(backend)
    }

    fn known(&mut self, question: &Question<u64>) -> Option<BackendId> {
        self.memory.cookies.as_ref()?.known(question.key)
    }

    fn remember(&mut self, _: &Question<u64>, _: BackendId) {
        self.effect.set(true);
    }

    fn schedule(&mut self, _: &Question<u64>, _: &[u16]) -> Option<BackendId> {
        self.effect.set(true);
        None
    }

    fn open_slot(&mut self, _: &Question<u64>, _: BackendId) -> Option<u16> {
        self.effect.set(true);
        None
    }

    fn slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.memory.cookies.as_ref()?.find_slot(question.key, part)
    }

    fn close_slot(&mut self, question: &Question<u64>, part: u16) -> Option<BackendId> {
        self.effect.set(true);
        self.slot(question, part)
    }
}

/// The use of its number that each server is.
#[derive(Clone, Default, Debug)]
pub struct Incarnations {
    uses: HashMap<u16, (u32, bool)>,
}

impl Incarnations {
    /// A server is there, again or for the first time.
    pub fn join(&mut self, server: u16) {
        let known = self.uses.entry(server).or_insert((0, true));
        if !known.1 {
            *known = (known.0 + 1, true);
        }
    }

    /// A server is gone.
    pub fn leave(&mut self, server: u16) {
        if let Some(known) = self.uses.get_mut(&server) {
            known.1 = false;
        }
    }

    fn of(&self, backend: BackendId) -> Option<u32> {
        self.uses.get(&backend.get()).filter(|known| known.1).map(|known| known.0)
    }
}

/// A connection table that a method of `weir_steering` works on, and that the simulator prepares.
#[derive(Clone, Debug)]
pub struct Shared {
    key: HashKey,
    table: Rc<RefCell<Table>>,
    /// The slots of the flows that have lost their entries since they were taken last.
    dropped: Rc<RefCell<Vec<u32>>>,
}

impl Shared {
    /// An empty table. Flows are hashed under `key`.
    pub fn new(key: HashKey, connections: Connections) -> Self {
        let Connections { capacity, eviction, release } = connections;
        let table = Rc::new(RefCell::new(Table::new(eviction, capacity, release, key)));
        Self { key, table, dropped: Rc::default() }
    }

    pub fn table(&self) -> Ref<'_, Table> {
        self.table.borrow()
    }

    pub fn table_mut(&self) -> std::cell::RefMut<'_, Table> {
        self.table.borrow_mut()
    }

    /// The slots of the flows whose entries [`ConnectionTable::retain`] has dropped.
    pub fn take_dropped(&self, into: &mut Vec<u32>) {
        into.append(&mut self.dropped.borrow_mut());
    }
}

/// For the passes through the whole table that a method makes by itself.
impl ConnectionTable for Shared {
    type Flow = u64;

    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    fn prefetch(&self, _: u64) {}

    fn get(&mut self, hash: u64, flow: &u64) -> Option<u16> {
        self.peek(hash, flow)
    }

    fn peek(&self, _: u64, _: &u64) -> Option<u16> {
        debug_assert!(false, "a method has asked for a flow without a packet");
        None
    }

    fn insert(&mut self, _: u64, _: u64, _: u16) {
        // Entries come by a decision, through the memory, which knows whose packet it is.
        debug_assert!(false, "a method has noted a flow without a packet");
    }

    fn remove(&mut self, _: u64, _: &u64) -> Option<u16> {
        debug_assert!(false, "a method has removed a flow without a packet");
        None
    }

    fn retain(&mut self, mut keep: impl FnMut(&u64, u16) -> bool) -> usize {
        let mut table = self.table.borrow_mut();
        let before = table.len();
        table.retain(|id, server| keep(&id, server), &mut self.dropped.borrow_mut());
        before - table.len()
    }

    fn for_each(&self, _: impl FnMut(&u64, u16)) {}

    fn len(&self) -> usize {
        self.table().len()
    }

    fn capacity(&self) -> Option<usize> {
        None
    }

    fn evictions(&self) -> u64 {
        self.table().evictions()
    }

    fn bytes(&self) -> usize {
        0
    }
}
