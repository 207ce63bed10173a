//! A memory that only pretends: what `explain` and tests decide over.

use crate::decide::Question;
use crate::ids::{BackendId, ServiceId};
use crate::memory::{Echoes, EventKind, Memory, TrackedFlow};
use crate::schedule::BackendLoad;
use std::fmt;
use weir_hash::scale;

/// What a decision asked its memory, with the answer, or told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// It asked the pending table.
    Pending(Option<BackendId>),
    /// It noted the flow as pending.
    NotePending(BackendId),
    /// It asked the pins.
    Pinned(Option<BackendId>),
    /// It reported the start or the end of a flow.
    Report(BackendId, EventKind),
    /// It marked the flow as active.
    Mark,
    /// It asked whether a datagram's flow was seen recently.
    Seen(bool),
    /// It asked the connection table.
    Connection(Option<TrackedFlow>),
    /// It noted the flow in the connection table.
    Track(TrackedFlow),
    /// It asked for a backend's incarnation.
    Incarnation(BackendId, Option<u32>),
    /// It asked whether a backend is down.
    Down(BackendId, bool),
    /// It asked where a flow without a cookie lives.
    Known(Option<BackendId>),
    /// It remembered a flow without a cookie.
    Remember(BackendId),
    /// It had a backend picked.
    Schedule(Option<BackendId>),
    /// It asked whose turn it is.
    Turn(u64),
    /// It asked for the load of a backend.
    Load(BackendId, BackendLoad),
    /// It counted a connection that was opened, or has ended.
    Count(BackendId, bool),
    /// It took a slot, or found none.
    OpenSlot(BackendId, Option<u16>),
    /// It asked for a slot.
    Slot(u16, Option<BackendId>),
    /// It gave a slot back.
    CloseSlot(u16),
}

/// A note in words, and what its backends are called.
struct Words<'a> {
    note: Note,
    name: &'a dyn Fn(BackendId) -> String,
}

impl Note {
    /// In words, with the names of backends. One that has none is told by its number.
    pub fn words(&self, name: impl Fn(BackendId) -> Option<String>) -> String {
        let name = |backend: BackendId| name(backend).unwrap_or_else(|| backend.to_string());
        Words { note: *self, name: &name }.to_string()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |backend: BackendId| backend.to_string();
        fmt::Display::fmt(&Words { note: *self, name: &name }, f)
    }
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        let asked = |f: &mut fmt::Formatter<'_>, what: &str, found: Option<BackendId>| match found {
            Some(backend) => write!(f, "{what}: backend {}", name(backend)),
            None => write!(f, "{what}: no"),
        };
        match self.note {
            Note::Pending(found) => asked(f, "pending", found),
            Note::NotePending(backend) => {
                write!(f, "would note it as pending at {}", name(backend))
            }
            Note::Pinned(found) => asked(f, "pinned", found),
            Note::Report(backend, EventKind::Start) => {
                write!(f, "would report a start at {}", name(backend))
            }
            Note::Report(backend, EventKind::End) => {
                write!(f, "would report an end at {}", name(backend))
            }
            Note::Mark => f.write_str("would mark it as active"),
            Note::Seen(seen) => write!(f, "seen recently: {}", if seen { "yes" } else { "no" }),
            Note::Connection(found) => asked(f, "connection table", found.map(|c| c.backend)),
            Note::Track(entry) => write!(f, "would track it at {}", name(entry.backend)),
            Note::Incarnation(backend, found) => {
                let present = if found.is_some() { "yes" } else { "no" };
                write!(f, "backend {} present: {present}", name(backend))
            }
            Note::Down(backend, down) => {
                write!(f, "backend {} down: {}", name(backend), if down { "yes" } else { "no" })
            }
            Note::Known(found) => asked(f, "known without a cookie", found),
            Note::Remember(backend) => write!(f, "would remember it at {}", name(backend)),
            Note::Schedule(found) => asked(f, "scheduler", found),
            Note::Turn(turn) => write!(f, "turn {turn}"),
            Note::Load(backend, BackendLoad { value, weight }) => {
                write!(f, "load of backend {}: {value}, with weight {weight}", name(backend))
            }
            Note::Count(backend, true) => {
                write!(f, "would count one more connection at {}", name(backend))
            }
            Note::Count(backend, false) => {
                write!(f, "would count one connection less at {}", name(backend))
            }
            Note::OpenSlot(backend, _) => {
                write!(f, "would take a slot for it at {}", name(backend))
            }
            Note::Slot(part, found) => {
                write!(f, "slot of cookie {part:#x}: ")?;
                match found {
                    Some(backend) => write!(f, "backend {}", name(backend)),
                    None => f.write_str("no"),
                }
            }
            Note::CloseSlot(part) => write!(f, "would give back the slot of cookie {part:#x}"),
        }
    }
}

/// What may be asked of a memory without changing it. A data plane that explains its decisions
/// answers these; the others answer as [`Memory`]'s defaults do.
pub trait Recall<K = crate::StateKey> {
    /// See [`Memory::pending`].
    fn pending(&self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }
    /// Whether the pending table has room for another flow.
    fn pending_has_room(&self) -> bool {
        true
    }
    /// See [`Memory::pinned`].
    fn pinned(&self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }
    /// See [`Memory::is_armed`].
    fn is_armed(&self, question: &Question<K>) -> bool {
        let _ = question;
        false
    }
    /// See [`Memory::seen_before`]. It does not count as seen. None: nobody knows, and it is taken for one that was.
    fn seen_before(&self, question: &Question<K>) -> Option<bool> {
        let _ = question;
        None
    }
    /// See [`Memory::connection`]. It does not count as used.
    fn connection(&self, question: &Question<K>) -> Option<TrackedFlow> {
        let _ = question;
        None
    }
    /// See [`Memory::incarnation`].
    fn incarnation(&self, backend: BackendId) -> Option<u32> {
        let _ = backend;
        Some(0)
    }
    /// See [`Memory::is_down`].
    fn is_down(&self, backend: BackendId) -> bool {
        let _ = backend;
        false
    }
    /// See [`Memory::known`].
    fn known(&self, question: &Question<K>) -> Option<BackendId> {
        let _ = question;
        None
    }
    /// See [`Memory::turn`]. It is nobody's yet.
    fn turn(&self, service: ServiceId) -> u64 {
        let _ = service;
        0
    }
    /// See [`Memory::load`].
    fn load(&self, backend: BackendId) -> BackendLoad {
        let _ = backend;
        BackendLoad { value: 0, weight: 1 }
    }
    /// See [`Memory::has_bare`].
    fn has_bare(&self) -> bool {
        false
    }
    /// See [`Memory::echoes`].
    fn echoes(&self, backend: BackendId) -> Echoes {
        let _ = backend;
        Echoes::default()
    }
    /// See [`Memory::slot`]. The packet does not count.
    fn slot(&self, question: &Question<K>, part: u16) -> Option<BackendId> {
        let _ = (question, part);
        None
    }
}

/// A decision rehearsed: answers come from a real memory, nothing in it changes, and everything
/// that was asked or told is written down.
#[derive(Debug)]
pub struct Rehearsal<'a, R> {
    real: &'a R,
    notes: Vec<Note>,
}

impl<'a, R> Rehearsal<'a, R> {
    /// Over a real memory.
    pub fn new(real: &'a R) -> Self {
        Self { real, notes: Vec::new() }
    }

    /// What was asked and told, in order.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn note<T: Copy>(&mut self, note: impl FnOnce(T) -> Note, answer: T) -> T {
        self.notes.push(note(answer));
        answer
    }
}

impl<K, R: Recall<K>> Memory<K> for Rehearsal<'_, R> {
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        let found = self.real.pending(question);
        self.note(Note::Pending, found)
    }

    fn note_pending(&mut self, _: &Question<K>, backend: BackendId) -> bool {
        self.notes.push(Note::NotePending(backend));
        self.real.pending_has_room()
    }

    fn pinned(&mut self, question: &Question<K>) -> Option<BackendId> {
        let found = self.real.pinned(question);
        self.note(Note::Pinned, found)
    }

    fn report(&mut self, _: &Question<K>, backend: BackendId, kind: EventKind) {
        self.notes.push(Note::Report(backend, kind));
    }

    fn mark(&mut self, _: &Question<K>) {
        self.notes.push(Note::Mark);
    }

    fn is_armed(&mut self, question: &Question<K>) -> bool {
        self.real.is_armed(question)
    }

    fn seen_before(&mut self, question: &Question<K>) -> bool {
        match self.real.seen_before(question) {
            Some(seen) => self.note(Note::Seen, seen),
            None => true,
        }
    }

    fn connection(&mut self, question: &Question<K>) -> Option<TrackedFlow> {
        let found = self.real.connection(question);
        self.note(Note::Connection, found)
    }

    fn track(&mut self, _: &Question<K>, entry: TrackedFlow) {
        self.notes.push(Note::Track(entry));
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        let found = self.real.incarnation(backend);
        self.note(|found| Note::Incarnation(backend, found), found)
    }

    fn is_down(&mut self, backend: BackendId) -> bool {
        let down = self.real.is_down(backend);
        self.note(|down| Note::Down(backend, down), down)
    }

    fn known(&mut self, question: &Question<K>) -> Option<BackendId> {
        let found = self.real.known(question);
        self.note(Note::Known, found)
    }

    fn remember(&mut self, _: &Question<K>, backend: BackendId) {
        self.notes.push(Note::Remember(backend));
    }

    fn schedule(&mut self, question: &Question<K>, serving: &[u16]) -> Option<BackendId> {
        let at = scale(question.hash as u32, serving.len() as u32) as usize;
        let picked = serving.get(at).copied().and_then(BackendId::new);
        self.note(Note::Schedule, picked)
    }

    fn turn(&mut self, service: ServiceId) -> u64 {
        let turn = self.real.turn(service);
        self.note(Note::Turn, turn)
    }

    fn load(&mut self, backend: BackendId) -> BackendLoad {
        let load = self.real.load(backend);
        self.note(|load| Note::Load(backend, load), load)
    }

    fn count(&mut self, backend: BackendId, opened: bool) {
        self.notes.push(Note::Count(backend, opened));
    }

    fn has_bare(&self) -> bool {
        self.real.has_bare()
    }

    fn echoes(&mut self, backend: BackendId) -> Echoes {
        self.real.echoes(backend)
    }

    fn open_slot(&mut self, _: &Question<K>, backend: BackendId) -> Option<u16> {
        self.note(|part| Note::OpenSlot(backend, part), Some(0))
    }

    fn slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        let found = self.real.slot(question, part);
        self.note(|found| Note::Slot(part, found), found)
    }

    fn close_slot(&mut self, question: &Question<K>, part: u16) -> Option<BackendId> {
        self.notes.push(Note::CloseSlot(part));
        self.real.slot(question, part)
    }
}
