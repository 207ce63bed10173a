//! Memory by index: the cookie hides the place of the connection in a table (section 3.2), alone
//! or behind a stateless balancer (section 3.2, "a hybrid datacenter architecture").

use super::decide::Forged;
use super::layout::{Codec, Layout};
use super::table::ConnTable;
use crate::decide::Question;
use crate::ids::BackendId;
use crate::memory::{Memory, TrackedFlow};
use crate::table::Flags;
use std::borrow::BorrowMut;
use weir_hash::{HashKey, Key};

/// What a stateful balancer must know to be found by the stateless ones in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tier {
    /// Key under which the balancers in front hide numbers.
    pub key: HashKey,
    /// This balancer's number among the front's servers.
    pub number: u16,
}

/// Stateful Cheetah for one service. With its servers it is a [`Table`](super::Table); the
/// connections are in the memory of its decisions, [`WithSlots`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stateful {
    layout: Layout,
    key: HashKey,
    front: Option<(Codec, u16)>,
    forged: Forged,
    answers: bool,
    tells: bool,
    scheduling: Flags,
}

impl Stateful {
    /// For connections in a table under `key` whose index has the layout's back bits; behind a
    /// front, with its `tier`.
    pub fn new(layout: Layout, key: HashKey, tier: Option<Tier>, forged: Forged) -> Self {
        let front = tier.map(|tier| (Codec::new(tier.key, layout.front_bits()), tier.number));
        Self {
            layout,
            key,
            front,
            forged,
            answers: false,
            tells: false,
            scheduling: Flags::default(),
        }
    }

    /// The same, where the balancer itself writes cookies into the answers, which pass it, and keeps
    /// what it displaces ([`Answered`](super::Answered)). The connections' table must be under this
    /// method's key then, and there must be no front.
    #[must_use]
    pub fn with_answers(self, answers: bool) -> Self {
        Self { answers, ..self }
    }

    /// Whether the balancer writes the cookies.
    pub fn answers(&self) -> bool {
        self.answers
    }

    /// The same, where backends write cookies into their answers, and first packets
    /// [tell](super::told) them.
    #[must_use]
    pub fn with_told(self, tells: bool) -> Self {
        Self { tells, ..self }
    }

    /// Whether backends write the cookies, and first packets tell them.
    pub fn tells(&self) -> bool {
        self.tells
    }

    /// The same, where first packets go where a scheduler says, by what these flags say of it. Open
    /// connections are not counted.
    #[must_use]
    pub(super) fn scheduled(self, flags: Flags) -> Self {
        Self { scheduling: Flags(flags.0 & Flags::SCHEDULER), ..self }
    }

    /// What the table's flags say of its scheduler.
    pub(super) fn scheduling(&self) -> Flags {
        self.scheduling
    }

    /// What hides the place of a connection in its partition.
    pub fn codec(&self) -> Codec {
        Codec::new(self.key, self.layout.back_bits())
    }

    /// How the 16 bits are shared out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The key of the connections' table.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// What becomes of packets whose cookies are no good.
    pub fn forged(&self) -> Forged {
        self.forged
    }

    fn front<K: Key>(&self, flow: &K) -> Option<u16> {
        self.front.as_ref().map(|(codec, number)| codec.hide(flow, *number))
    }

    /// The cookie of a flow in a slot of which this is the hidden place.
    pub(super) fn cookie<K: Key>(&self, flow: &K, part: u16) -> u16 {
        self.layout.cookie(self.front(flow).unwrap_or(0), part)
    }

    /// The cookie of a slot of which this is the hidden place, where backends write cookies: what the
    /// front has told them stands in the echo of the first packet, and stays there.
    pub(super) fn passed_on(&self, echo: u32, part: u16) -> u16 {
        self.layout.cookie(self.layout.split(echo).front, part)
    }

    /// The cookie of a flow without a slot, for the front.
    pub(super) fn front_cookie<K: Key>(&self, flow: &K) -> Option<u16> {
        self.front(flow).map(|front| self.layout.cookie(front, 0))
    }
}

/// A memory with connections by index, its own or borrowed ones; for everything else it asks
/// another one.
#[derive(Clone, Debug)]
pub struct WithSlots<S = ConnTable, M = ()> {
    /// The slots of connections, by index.
    pub slots: S,
    /// The rest of the memory.
    pub rest: M,
}

impl<K: Key, S: BorrowMut<ConnTable>, M: Memory<K>> Memory<K> for WithSlots<S, M> {
    fn known(&mut self, question: &Question<K>) -> Option<BackendId> {
        self.rest.known(question)
    }

    fn remember(&mut self, question: &Question<K>, backend: BackendId) {
        self.rest.remember(question, backend);
    }

    fn schedule(&mut self, question: &Question<K>, serving: &[u16]) -> Option<BackendId> {
        self.rest.schedule(question, serving)
    }

    fn open_slot(&mut self, question: &Question<K>, backend: BackendId) -> Option<u16> {
        self.slots.borrow_mut().open(&question.key, backend.get(), question.now).ok()
    }

    #[inline]
    fn slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        self.slots.borrow_mut().asked(question, part)
    }

    fn close_slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        self.slots.borrow_mut().close(&question.key, part).and_then(BackendId::new)
    }

    fn connection(&mut self, question: &Question<K>) -> Option<TrackedFlow> {
        self.rest.connection(question)
    }

    fn track(&mut self, question: &Question<K>, entry: TrackedFlow) {
        self.rest.track(question, entry);
    }

    fn slot_closes(&mut self, question: &Question<K>, part: u16) -> bool {
        self.slots.borrow().closes(&question.key, part)
    }

    fn lost_cookie(&mut self, question: &Question<K>, part: u16) {
        self.slots.borrow_mut().note_lost(&question.key, part);
    }

    fn end(&mut self, question: &Question<K>) {
        self.rest.end(question);
    }

    fn bytes(&self) -> usize {
        self.slots.borrow().bytes() + self.rest.bytes()
    }
}
