//! What the lookup face remembers and reports: a trait, and an implementation in plain memory
//! that mirrors the kernel's maps.

use crate::activity::{self, Marks, Side};
use crate::connections::TrackedFlows;
use crate::decide::Question;
use crate::ids::{BackendId, ByBackend, ServiceId};
use crate::methods::cheetah::{Answered, ConnTable};
use crate::schedule::BackendLoad;
use crate::state::{ServiceState, StateKey};
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU16;
use weir_hash::scale;
use weir_lookup::prefetch;
use weir_wire::{FlowKey, FragmentKey};

/// What a report is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// The first packet of a flow: a SYN; for UDP the first one seen.
    Start = 1,
    /// A packet with FIN or RST.
    End = 2,
}

/// A report of the data plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Event {
    /// The flow (or client) and its service.
    pub state: ServiceState,
    /// The backend that the packet went to.
    pub backend: BackendId,
    /// Whether it was a start or an end.
    pub kind: EventKind,
}

/// What an entry of the connection table has beside the backend, of a service with cookies: the number of a
/// server or of a slot. An option of it takes two bytes, as in the program's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Former(NonZeroU16);

impl Former {
    /// Of this number, which is less than 2^15 and counts from 0.
    pub fn new(number: u16) -> Self {
        Self(NonZeroU16::MIN.saturating_add(number))
    }

    /// The number, counted from 0.
    pub fn number(self) -> u16 {
        self.0.get() - 1
    }

    /// As the program's table has it: one more than the number, 0 for none.
    pub fn from_word(word: u16) -> Option<Self> {
        NonZeroU16::new(word).map(Self)
    }

    /// As the program's table has it.
    pub fn word(former: Option<Self>) -> u16 {
        former.map_or(0, |former| former.0.get())
    }
}

/// An entry of the connection table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrackedFlow {
    /// Where the connection lives.
    pub backend: BackendId,
    /// Which use of that number, as far as it fits, so that an entry does not outlive its backend.
    pub incarnation: u16,
    /// Cheetah's server that the flow was at before, or its slot; none: neither.
    pub former: Option<Former>,
    /// Whether it counts among the open connections of that backend.
    pub open: bool,
    /// Whether it has ended, as FIN or RST has said since its last first packet.
    pub ended: bool,
}

impl TrackedFlow {
    /// A connection at a backend in this use of its number, which does not count as open.
    pub fn new(backend: BackendId, incarnation: u32) -> Self {
        Self { backend, incarnation: incarnation as u16, former: None, open: false, ended: false }
    }

    /// Whether it is of this use of the backend's number.
    #[inline(always)]
    pub fn is_of(&self, incarnation: u32) -> bool {
        self.incarnation == incarnation as u16
    }
}

/// What the packets of flows that the connection table has at a backend echo, which is told cookies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Echoes {
    /// One echoed no good cookie.
    pub bare: bool,
    /// One echoed this backend's, since somebody's echoed none.
    pub own: bool,
}

/// [`Memory::connections`] knows nothing of the flow.
pub const NO_CONNECTION: u16 = u16::MAX;

/// The memory of a data plane: what a decision may ask beside its table, and where it leaves what
/// is to be remembered or reported.
///
/// Everything is asked and told about the flow of a [`Question`]. A method uses a few of these;
/// the others have an answer for a data plane that has no such memory.
pub trait Memory<K = StateKey> {
    /// The backend of a flow in the pending table.
    #[inline(always)]
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }

    /// Notes a flow in the pending table; false if there is no room, or no such table.
    #[inline(always)]
    fn note_pending(&mut self, question: &Question<K>, backend: BackendId) -> bool {
        let _ = (question, backend);
        false
    }

    /// The backend of a pinned flow: one on a reserved row whose first packet may be repeated.
    #[inline(always)]
    fn pinned(&mut self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }

    /// Reports that a flow starts or ends at a backend.
    #[inline(always)]
    fn report(&mut self, question: &Question<K>, backend: BackendId, kind: EventKind) {
        let _ = (question, backend, kind);
    }

    /// Marks a flow as active.
    #[inline(always)]
    fn mark(&mut self, question: &Question<K>) {
        let _ = question;
    }

    /// Asks for what [`mark_burst`](Self::mark_burst) reads of flows with these hashes.
    #[inline(always)]
    fn fetch_marks(&self, hashes: &[u64]) {
        let _ = hashes;
    }

    /// Marks many flows as active, in the middle of their connections.
    #[inline(always)]
    fn mark_burst(&mut self, keys: &[K], hashes: &[u64])
    where
        K: Copy,
    {
        for (key, hash) in keys.iter().zip(hashes) {
            self.mark(&Question::later(*key, *hash));
        }
    }

    /// Whether a flow is known to live, as far as [`mark`](Self::mark) can tell: of a flow that is not,
    /// this says so but one in 100,000 times.
    #[inline(always)]
    fn is_armed(&mut self, question: &Question<K>) -> bool {
        let _ = question;
        false
    }

    /// Whether a UDP flow was seen recently; it is from now on.
    #[inline(always)]
    fn seen_before(&mut self, question: &Question<K>) -> bool {
        let _ = question;
        true
    }

    /// A flow of the connection table. It counts as used now.
    #[inline(always)]
    fn connection(&mut self, question: &Question<K>) -> Option<TrackedFlow> {
        let _ = question;
        None
    }

    /// Notes a flow in the connection table, or another entry for one that is there.
    #[inline(always)]
    fn track(&mut self, question: &Question<K>, entry: TrackedFlow) {
        let _ = (question, entry);
    }

    /// The connection table's answers for many flows at once: `out` gets the backend of each, or
    /// [`NO_CONNECTION`]. Returns whether all were found; `None` if there is no faster way than
    /// one after the other.
    #[inline(always)]
    fn connections(&mut self, keys: &[K], out: &mut [u16]) -> Option<bool> {
        let _ = (keys, out);
        None
    }

    /// Whether noting a flow can change what the connection table answers for others that it
    /// answered before.
    const SHADOWS: bool = false;

    /// Whether entries of the connection table are to say which connections have ended.
    const ENDS: bool = false;

    /// Asks for the memory that [`connection`](Self::connection) will read of a flow with this
    /// hash.
    #[inline(always)]
    fn prefetch_connection(&self, hash: u64) {
        let _ = hash;
    }

    /// The present incarnation of a backend, if it is present.
    #[inline(always)]
    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        let _ = backend;
        Some(0)
    }

    /// Whether a backend is down by its health check.
    #[inline(always)]
    fn is_down(&mut self, backend: BackendId) -> bool {
        let _ = backend;
        false
    }

    /// Where a table of the caller's has a flow that can carry no cookie.
    #[inline(always)]
    fn known(&mut self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }

    /// Remembers a flow that can carry no cookie in the table that [`known`](Self::known) asks.
    #[inline(always)]
    fn remember(&mut self, question: &Question<K>, backend: BackendId) {
        let _ = (question, backend);
    }

    /// Picks one of the backends that take new flows, which are ordered. Unless the memory has a
    /// scheduler, the flow's hash picks.
    #[inline]
    fn schedule(&mut self, question: &Question<K>, serving: &[u16]) -> Option<BackendId> {
        let at = scale(question.hash as u32, serving.len() as u32) as usize;
        serving.get(at).copied().and_then(BackendId::new)
    }

    /// Whose turn it is among the backends of a service: a number that grows by one with each call.
    #[inline(always)]
    fn turn(&mut self, service: ServiceId) -> u64 {
        let _ = service;
        0
    }

    /// The load of a backend.
    #[inline(always)]
    fn load(&mut self, backend: BackendId) -> BackendLoad {
        let _ = backend;
        BackendLoad { value: 0, weight: 1 }
    }

    /// A connection was opened at a backend, or has ended.
    #[inline(always)]
    fn count(&mut self, backend: BackendId, opened: bool) {
        let _ = (backend, opened);
    }

    /// Takes a slot of the table of connections by index, and answers how a cookie hides its
    /// place; none if there is no room.
    #[inline(always)]
    fn open_slot(&mut self, question: &Question<K>, backend: BackendId) -> Option<u16> {
        let _ = (question, backend);
        None
    }

    /// The backend of the connection whose place this part of a cookie hides, if it is this
    /// flow's. The packet counts as its latest, unless it is a first one.
    #[inline(always)]
    fn slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        let _ = (question, part);
        None
    }

    /// Whether that connection has ended, and its slot only lingers.
    #[inline(always)]
    fn slot_closes(&mut self, question: &Question<K>, part: u16) -> bool {
        let _ = (question, part);
        false
    }

    /// Gives that slot back; answers where its connection lived, if it is this flow's.
    #[inline(always)]
    fn close_slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        let _ = (question, part);
        None
    }

    /// Counts a cookie that led to no slot of its flow.
    #[inline(always)]
    fn lost_cookie(&mut self, question: &Question<K>, part: u16) {
        let _ = (question, part);
    }

    /// What is remembered of a connection whose answers pass here, to be changed.
    #[inline(always)]
    fn answered(&mut self, question: &Question<K>) -> Option<&mut Answered> {
        let _ = question;
        None
    }

    /// Remembers this of a connection whose answers pass here; or nothing any more.
    #[inline(always)]
    fn watch(&mut self, question: &Question<K>, known: Option<Answered>) {
        let _ = (question, known);
    }

    /// Notes that a packet of a flow that is known at a backend did not echo the cookie that this was
    /// told.
    #[inline(always)]
    fn note_bare(&mut self, backend: BackendId) {
        let _ = backend;
    }

    /// Whether there has been one, at any backend.
    #[inline(always)]
    fn has_bare(&self) -> bool {
        false
    }

    /// Notes that a packet of a flow that is known at a backend echoed the cookie that this was told.
    #[inline(always)]
    fn note_own(&mut self, backend: BackendId) {
        let _ = backend;
    }

    /// What has been noted of a backend.
    #[inline(always)]
    fn echoes(&mut self, backend: BackendId) -> Echoes {
        let _ = backend;
        Echoes::default()
    }

    /// What became of the first fragment of a packet, if that is known, and its backend is still there in the
    /// same use of its number.
    #[inline(always)]
    fn fragment(&mut self, of: &FragmentKey) -> Option<First> {
        let _ = of;
        None
    }

    /// Notes what becomes of the first fragment of a packet.
    #[inline(always)]
    fn note_fragment(&mut self, of: &FragmentKey, first: First) {
        let _ = (of, first);
    }

    /// Forgets what became of the first fragment of a packet.
    #[inline(always)]
    fn forget_fragment(&mut self, of: &FragmentKey) {
        let _ = of;
    }

    /// The time, in seconds from any fixed moment on.
    #[inline(always)]
    fn now(&self) -> u32 {
        0
    }

    /// Bytes that packets may read, from the allocations.
    fn bytes(&self) -> usize {
        0
    }

    /// The flow of a question has ended: what is remembered of it, if anything, may go.
    #[inline(always)]
    fn end(&mut self, question: &Question<K>) {
        let _ = question;
    }
}

/// No memory at all.
impl<K> Memory<K> for () {}

/// The backend of a flow by the connection table, if its [entry counts](counts).
#[inline(always)]
pub(crate) fn live_connection<K, M: Memory<K>>(
    question: &Question<K>,
    memory: &mut M,
) -> Option<BackendId> {
    let known = memory.connection(question)?;
    counts(known, question, memory).then_some(known.backend)
}

/// Whether an entry of the connection table counts: its backend is present, in the same incarnation.
/// A first packet does not follow an entry to a backend that is down.
#[inline(always)]
pub(crate) fn counts<K, M: Memory<K>>(
    known: TrackedFlow,
    question: &Question<K>,
    memory: &mut M,
) -> bool {
    let backend = known.backend;
    memory.incarnation(backend).is_some_and(|now| known.is_of(now))
        && !(question.signals.starts && memory.is_down(backend))
}

/// Tag of a flow in the "seen recently" filter, without the generation in its low two bits.
pub fn seen_tag(hash: u64, service: ServiceId) -> u64 {
    hash.wrapping_add(u64::from(service.0).wrapping_mul(SEEN_STRIDE))
}

/// Tags in a line of the "seen recently" filter.
pub const SEEN_WAYS: usize = 8;
/// Keeps equal hashes of two services apart in it.
pub const SEEN_STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The kernel's maps in plain memory; sizes as they are there.
#[derive(Debug, Default)]
pub struct SoftMemory {
    /// The pending table: flows that started during an update, with their backends.
    pub pending: HashMap<ServiceState, BackendId>,
    /// The most flows that the pending table holds.
    pub pending_limit: usize,
    /// States on reserved rows whose first packets may be repeated, with their backends.
    pub pinned: HashMap<ServiceState, BackendId>,
    /// Reports that nobody has taken yet, the oldest first.
    pub events: Vec<Event>,
    /// Words with lanes of armed flows, both halves.
    pub marks: Vec<u64>,
    /// Bits of flows that are not armed, both halves.
    pub strangers: Vec<u64>,
    /// The marks that are written now.
    pub mark_side: Side,
    /// The filter of the flows that are watched; `None`: all are.
    pub watched: Option<Vec<u64>>,
    /// The one that takes its place.
    pub watched_next: Option<Vec<u64>>,
    /// The "seen recently" filter: lines of tags of UDP flows.
    pub seen: Vec<[u64; SEEN_WAYS]>,
    /// Generation of new tags in that filter, 1 to 3.
    pub seen_generation: u64,
    /// The connection table, unbounded unless another one is put here.
    pub connections: TrackedFlows,
    /// Incarnations of the backends that are present.
    pub incarnations: ByBackend<u32>,
    /// Backends that are down by their health checks.
    pub down: HashSet<BackendId>,
    /// Packets of known flows that did not echo the cookie that their backend was told.
    pub bare: u32,
    /// What connections at backends that are told cookies echo.
    pub echoes: HashMap<BackendId, Echoes>,
    /// Connections whose answers pass here, unbounded here.
    pub answers: HashMap<ServiceState, Answered>,
    /// Connections by index, for each service that has such a table.
    pub slots: HashMap<ServiceId, ConnTable>,
    /// Turns that were taken, by service.
    pub turns: HashMap<ServiceId, u64>,
    /// Loads of backends.
    pub loads: HashMap<BackendId, BackendLoad>,
    /// What became of first fragments, in which use of the backend's number, and when: unbounded here.
    pub fragments: HashMap<FragmentKey, (First, u32, u32)>,
    /// The clock by which first fragments grow old, in seconds. Not [`now`](Self::now): in the kernel it goes on
    /// while there is no control plane.
    pub fragment_clock: u32,
    /// Seconds from any fixed moment on.
    pub now: u32,
}

/// What became of the first fragment of a packet, which the others follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum First {
    /// It went to this backend.
    To(BackendId),
    /// It was for no service, and is the kernel's.
    Kernel,
    /// It is a backend's, of this flow towards its client, and was translated.
    Back(FlowKey),
}

/// So many seconds fragments follow their first one: hosts put them together within 30 seconds (Linux), or
/// 60 (RFC 8200 section 4.5).
pub const FRAGMENT_SECONDS: u32 = 60;

impl SoftMemory {
    /// An empty memory: room for so many pending flows, words of each half of the activity marks, of
    /// either kind (a power of two), and lines of the "seen recently" filter.
    pub fn new(pending_limit: usize, mark_words: usize, seen_lines: usize) -> Self {
        Self {
            pending_limit,
            marks: vec![0; mark_words * 2],
            strangers: vec![0; mark_words * 2],
            seen: vec![[0; SEEN_WAYS]; seen_lines],
            seen_generation: 1,
            ..Self::default()
        }
    }

    /// The half that is written, 0 or 1.
    fn written(&self) -> usize {
        usize::from(self.mark_side.first != 0)
    }

    /// Arms flows, by their hashes, in the half that is not written.
    pub fn arm(&mut self, hashes: &mut dyn Iterator<Item = u64>, flows: usize) -> Side {
        let half = self.marks.len() / 2;
        let first = (1 - self.written()) * half;
        let words = activity::arm(activity::words_for(flows, half), hashes);
        self.marks[first..][..words.len()].copy_from_slice(&words);
        self.watched_next = Some(vec![0; activity::watched_words_for(flows)]);
        Side { first: first as u32, mask: words.len() as u32 - 1 }
    }

    /// Watches these flows from now on, by their hashes, and those reported since the last
    /// [`arm`](Self::arm).
    pub fn watch(&mut self, hashes: &mut dyn Iterator<Item = u64>) {
        let mut words = self.watched_next.take();
        for hash in hashes {
            set_watched(&mut words, hash);
        }
        self.watched = words;
    }

    /// Watches all flows until the next [`watch`](Self::watch).
    pub fn watch_all(&mut self) {
        self.watched = None;
    }

    /// The marks of a half, which are cleared.
    pub fn take_marks(&mut self, side: Side) -> Marks {
        let half = self.strangers.len() / 2;
        let take = |words: &mut [u64]| words.iter_mut().map(std::mem::take).collect();
        let lanes = take(&mut self.marks[side.first as usize..][..side.words()]);
        let at = usize::from(side.first != 0);
        Marks::new(lanes, take(&mut self.strangers[at * half..][..half]))
    }

    /// Asks for what [`mark_hashes`](Self::mark_hashes) reads of nearly every flow.
    #[inline]
    pub fn fetch_watched(&self, hashes: &[u64]) {
        if let Some(words) = &self.watched {
            let mask = words.len() as u32 - 1;
            hashes.iter().for_each(|hash| prefetch(words, activity::watch_bits(*hash, mask).0));
        }
    }

    /// Marks the flows with these hashes as active.
    #[inline]
    pub fn mark_hashes(&mut self, hashes: &[u64]) {
        let Some(words) = &self.watched else {
            return hashes.iter().for_each(|hash| self.mark_hash(*hash));
        };
        // Nearly always none of a burst is watched.
        let mask = words.len() as u32 - 1;
        let is_watched = |hash: u64| {
            let (at, bits) = activity::watch_bits(hash, mask);
            words[at] & bits == bits
        };
        let some = hashes.iter().fold(false, |some, hash| some | is_watched(*hash));
        if some {
            hashes.iter().for_each(|hash| self.mark_hash(*hash));
        }
    }

    /// Marks the flow with this hash as active.
    #[inline]
    pub fn mark_hash(&mut self, hash: u64) {
        if let Some(words) = &self.watched {
            let (at, bits) = activity::watch_bits(hash, words.len() as u32 - 1);
            if words[at] & bits != bits {
                return;
            }
        }
        let half = self.strangers.len() / 2;
        let first = self.written() * half;
        let strangers = &mut self.strangers[first..][..half];
        activity::mark(&mut self.marks, self.mark_side, strangers, hash);
    }

    /// Whether a flow has sent something since the marks that are written now were begun.
    pub fn is_marked(&self, hash: u64) -> bool {
        let (side, half) = (self.mark_side, self.strangers.len() / 2);
        let first = if side.first == 0 { 0 } else { half };
        let word = |at| self.marks[side.first as usize + at];
        activity::is_marked(word, side.words(), |at| self.strangers[first + at], half, hash)
    }

    /// Begins a new generation of the filter of UDP flows. Who was seen last when one had this number before is
    /// not to be known again by it.
    pub fn next_seen_generation(&mut self) {
        self.seen_generation = self.seen_generation % 3 + 1;
        let old = self.seen.iter_mut().flatten().filter(|tag| **tag & 3 == self.seen_generation);
        old.for_each(|tag| *tag = 0);
    }

    /// Takes a UDP flow out of the "seen recently" filter, so that its next datagram is reported
    /// as a first one.
    pub fn forget_seen(&mut self, hash: u64, service: ServiceId) {
        let tag = seen_tag(hash, service);
        let line = scale((tag >> 32) as u32, self.seen.len() as u32) as usize;
        for entry in &mut self.seen[line] {
            if *entry & !3 == tag & !3 {
                *entry = 0;
            }
        }
    }
}

fn set_watched(words: &mut Option<Vec<u64>>, hash: u64) {
    if let Some(words) = words {
        let (at, bits) = activity::watch_bits(hash, words.len() as u32 - 1);
        words[at] |= bits;
    }
}

impl Memory for SoftMemory {
    const ENDS: bool = true;

    fn fragment(&mut self, of: &FragmentKey) -> Option<First> {
        let &(first, incarnation, then) = self.fragments.get(of)?;
        if self.fragment_clock.wrapping_sub(then) > FRAGMENT_SECONDS {
            return None;
        }
        match first {
            First::To(backend) if self.incarnations.get(&backend) != Some(&incarnation) => None,
            known => Some(known),
        }
    }

    fn note_fragment(&mut self, of: &FragmentKey, first: First) {
        let incarnation = match first {
            First::To(backend) => self.incarnations.get(&backend).copied().unwrap_or(0),
            First::Kernel | First::Back(_) => 0,
        };
        self.fragments.insert(*of, (first, incarnation, self.fragment_clock));
    }

    fn forget_fragment(&mut self, of: &FragmentKey) {
        self.fragments.remove(of);
    }

    fn pending(&mut self, question: &Question) -> Option<BackendId> {
        self.pending.get(&question.state()).copied()
    }

    fn note_pending(&mut self, question: &Question, backend: BackendId) -> bool {
        let state = question.state();
        if self.pending.len() >= self.pending_limit && !self.pending.contains_key(&state) {
            return false;
        }
        self.pending.insert(state, backend);
        true
    }

    fn pinned(&mut self, question: &Question) -> Option<BackendId> {
        self.pinned.get(&question.state()).copied()
    }

    fn report(&mut self, question: &Question, backend: BackendId, kind: EventKind) {
        set_watched(&mut self.watched, question.hash);
        set_watched(&mut self.watched_next, question.hash);
        self.events.push(Event { state: question.state(), backend, kind });
    }

    fn mark(&mut self, question: &Question) {
        self.mark_hash(question.hash);
    }

    fn is_armed(&mut self, question: &Question) -> bool {
        activity::is_armed(|at| self.marks[at], self.mark_side, question.hash)
    }

    fn seen_before(&mut self, question: &Question) -> bool {
        let tag = seen_tag(question.hash, question.service);
        let line = scale((tag >> 32) as u32, self.seen.len() as u32) as usize;
        let now = self.seen_generation & 3;
        let before = if now == 1 { 3 } else { now - 1 };
        let alive = |entry: u64| entry & 3 == now || entry & 3 == before;
        let fallback = (tag >> 29) as usize % SEEN_WAYS;
        let tag = tag & !3;
        let line = &mut self.seen[line];
        let mut victim = None;
        for (way, entry) in line.iter_mut().enumerate() {
            if *entry & !3 == tag {
                let known = alive(*entry);
                *entry = tag | now;
                return known;
            }
            if !alive(*entry) && victim.is_none() {
                victim = Some(way);
            }
        }
        line[victim.unwrap_or(fallback)] = tag | now;
        false
    }

    fn connection(&mut self, question: &Question) -> Option<TrackedFlow> {
        self.connections.look_up(&question.state())
    }

    fn track(&mut self, question: &Question, entry: TrackedFlow) {
        self.connections.insert(question.state(), entry);
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        self.incarnations.get(&backend).copied()
    }

    fn is_down(&mut self, backend: BackendId) -> bool {
        self.down.contains(&backend)
    }

    /// The connection table has it.
    fn known(&mut self, question: &Question) -> Option<BackendId> {
        live_connection(question, self)
    }

    fn remember(&mut self, question: &Question, backend: BackendId) {
        if let Some(incarnation) = self.incarnation(backend) {
            self.track(question, TrackedFlow::new(backend, incarnation));
        }
    }

    fn note_bare(&mut self, backend: BackendId) {
        self.bare = self.bare.saturating_add(1);
        self.echoes.entry(backend).or_default().bare = true;
    }

    fn note_own(&mut self, backend: BackendId) {
        self.echoes.entry(backend).or_default().own = true;
    }

    fn echoes(&mut self, backend: BackendId) -> Echoes {
        self.echoes.get(&backend).copied().unwrap_or_default()
    }

    fn has_bare(&self) -> bool {
        self.bare > 0
    }

    fn answered(&mut self, question: &Question) -> Option<&mut Answered> {
        self.answers.get_mut(&question.state())
    }

    fn watch(&mut self, question: &Question, known: Option<Answered>) {
        let _ = match known {
            Some(known) => self.answers.insert(question.state(), known),
            None => self.answers.remove(&question.state()),
        };
    }

    fn turn(&mut self, service: ServiceId) -> u64 {
        let next = self.turns.entry(service).or_default();
        let turn = *next;
        *next += 1;
        turn
    }

    fn load(&mut self, backend: BackendId) -> BackendLoad {
        self.loads.get(&backend).copied().unwrap_or_default()
    }

    fn count(&mut self, backend: BackendId, opened: bool) {
        self.loads.entry(backend).or_default().value += if opened { 1 } else { -1 };
    }

    fn open_slot(&mut self, question: &Question, backend: BackendId) -> Option<u16> {
        let slots = self.slots.get_mut(&question.service)?;
        slots.open(&question.key, backend.get(), question.now).ok()
    }

    fn slot(&mut self, question: &Question, part: u16) -> Option<BackendId> {
        self.slots.get_mut(&question.service)?.asked(question, part)
    }

    fn slot_closes(&mut self, question: &Question, part: u16) -> bool {
        let slots = self.slots.get(&question.service);
        slots.is_some_and(|slots| slots.closes(&question.key, part))
    }

    fn close_slot(&mut self, question: &Question, part: u16) -> Option<BackendId> {
        let slots = self.slots.get_mut(&question.service)?;
        slots.close(&question.key, part).and_then(BackendId::new)
    }

    fn lost_cookie(&mut self, question: &Question, part: u16) {
        if let Some(slots) = self.slots.get_mut(&question.service) {
            slots.note_lost(&question.key, part);
        }
    }

    fn now(&self) -> u32 {
        self.now
    }
}
