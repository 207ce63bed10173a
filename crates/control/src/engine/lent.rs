//! Work on the states of one service that takes long: millions of them are looked through, or a table is made of
//! them. It is done on another thread, which is lent the service's build face meanwhile, so that the engine attends
//! to what waits for no update and takes reports, whatever they come from. Those of the service itself are written
//! down, and taken up when its states are back.
//!
//! Nothing else of the engine goes on meanwhile: commands that ask or change states wait, and nobody but the other
//! thread has them. What is asked of the place where they were, such as how many there are, is as it was before.

use super::prefixes::Counted;
use super::service::{HALF_OPEN, ServiceRuntime, record};
use super::{Engine, EngineError, tolerate};
use crate::store::{Op, StateRecord};
use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use weir_plane::Plane;
use weir_steering::{
    BackendId, Build, BuildError, Built, Event, EventKind, Image, Member, MethodId, ServiceId,
    StateKey,
};

/// Fewer states than these are looked through, or made a table of, in some milliseconds.
const LENT_FROM: usize = 1 << 15;
/// Reports of the service that are kept while its states are lent. When there are as many, others wait where the data
/// plane puts them.
const MOST_KEPT: usize = 1 << 20;
/// Of those, what is taken up before the engine attends to something else: some milliseconds' worth.
const KEPT_AT_A_TIME: usize = 8192;
/// How often the engine looks whether something waits.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What stands in the place of a build face that is lent: what is read of it without its states, as it was.
struct Away {
    method: MethodId,
    published: Option<Arc<Image>>,
    states: usize,
    of_backends: HashMap<BackendId, Option<usize>>,
    refused: u64,
    control_bytes: usize,
}

impl Away {
    fn of(service: &ServiceRuntime) -> Self {
        let builder = &service.builder;
        let of = |id: BackendId| (id, builder.states_of(id));
        Self {
            method: builder.method(),
            published: builder.published().cloned(),
            states: builder.states(),
            of_backends: service.pool.iter().map(|member| of(member.id)).collect(),
            refused: builder.refused(),
            control_bytes: builder.control_bytes(),
        }
    }

    fn entry(&self, key: &StateKey) -> Option<u16> {
        let image = self.published.as_ref()?;
        Some(image.entry(weir_hash::Key::hash(key, &image.header().key)))
    }
}

impl Build for Away {
    fn method(&self) -> MethodId {
        self.method
    }

    fn draft(&mut self, _: u64, _: &[Member], _: u32) -> Result<Built, BuildError> {
        unreachable!("whoever drafts has the states")
    }

    fn publish_draft(&mut self) {}

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref()
    }

    fn states(&self) -> usize {
        self.states
    }

    fn states_of(&self, backend: BackendId) -> Option<usize> {
        self.of_backends.get(&backend).copied().flatten()
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn control_bytes(&self) -> usize {
        self.control_bytes
    }

    fn agrees(&self, key: &StateKey, backend: BackendId) -> bool {
        self.entry(key).is_some_and(|entry| backend == entry)
    }

    fn leads_to(&self, key: &StateKey, backend: BackendId) -> bool {
        self.entry(key).and_then(BackendId::of_slot) == Some(backend)
    }
}

impl ServiceRuntime {
    /// Whether it takes long to look at all its states.
    pub(super) fn has_many_states(&self) -> bool {
        self.builder.states() >= LENT_FROM
    }

    /// A report of it, while its states are lent. What has begun is written down, as it counts as taken: a control
    /// plane that dies now finds it there. So is what it knows already, for which a repeated SYN looks as well.
    pub(super) fn keep_event(&mut self, event: &Event, now: u32) -> Result<(), EngineError> {
        let Event { state, backend, kind } = *event;
        let mine = self.by_id(backend).is_some() && !self.is_told_of(backend);
        if let Some(kept) = &mut self.kept {
            kept.push_back((*event, now));
        }
        if kind == EventKind::Start && mine {
            let flags = if self.tells_half_open() { HALF_OPEN } else { 0 };
            let began = record(Op::Add, &state.key, Some(backend), now);
            if let Some(log) = &mut self.log {
                log.append(&StateRecord { flags, ..began })?;
            }
        }
        Ok(())
    }

    /// Takes up some of what was reported while its states were lent. Returns whether there is more.
    fn take_kept(&mut self, most: usize) -> Result<bool, EngineError> {
        let Some(mut kept) = self.kept.take() else { return Ok(false) };
        let part = kept.len().min(most);
        let mut taken = Ok(());
        for (event, now) in kept.drain(..part) {
            // What begins stands in the log.
            let log = match event.kind {
                EventKind::Start => self.log.take(),
                EventKind::End => None,
            };
            let took = self.remembered(|service| service.take_event(&event, now));
            self.log = log.or(self.log.take());
            taken = taken.and(took);
        }
        let more = !kept.is_empty();
        self.kept = more.then_some(kept);
        taken.map(|()| more)
    }

    /// Whether no report is taken for it: too many wait for its states to be back.
    pub(super) fn is_full_of_kept(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.len() >= MOST_KEPT)
    }
}

impl<P: Plane> Engine<P> {
    /// Whether the states of a service are lent.
    pub(super) fn has_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Does something with the states of a service, and attends to what waits for nothing if there are many of
    /// them. `None`: there is no such service.
    pub(super) fn lend<R: Send>(
        &mut self,
        number: ServiceId,
        work: impl FnOnce(&mut Counted) -> R + Send,
    ) -> Option<R> {
        let name = self.names.get(&number)?.clone();
        let service = self.services.get_mut(&name)?;
        if !service.has_many_states() {
            return Some(work(&mut service.builder));
        }
        let away = Counted::new(Box::new(Away::of(service)), service.seed);
        let mut states = std::mem::replace(&mut service.builder, away);
        service.kept = Some(VecDeque::new());
        self.lent = Some(name.clone());
        let engine = thread::current();
        #[cfg(test)]
        let slow = self.slow.clone();
        let done = thread::scope(|scope| {
            let worker = scope.spawn(|| {
                #[cfg(test)]
                if let Some(slow) = slow {
                    slow();
                }
                let done = work(&mut states);
                engine.unpark();
                done
            });
            while !worker.is_finished() {
                self.attend(true);
                if !self.take_meanwhile() {
                    thread::park_timeout(LOOK_EVERY);
                }
            }
            worker.join()
        });
        if let Some(service) = self.services.get_mut(&name) {
            service.builder = states;
        }
        self.lent = None;
        let done = done.unwrap_or_else(|panic| resume_unwind(panic));
        self.take_kept(&name);
        Some(done)
    }

    /// What was reported of a service while its states were lent is taken up, before anything else of it.
    fn take_kept(&mut self, name: &str) {
        while let Some(service) = self.services.get_mut(name) {
            match service.take_kept(KEPT_AT_A_TIME) {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => tolerate("take up what was reported meanwhile", Err(error)),
            }
            self.attend(true);
        }
    }

    /// Takes some of the reports that are there, in the midst of other work, so that they find room however long it
    /// takes. Returns whether there may be more.
    pub(super) fn take_meanwhile(&mut self) -> bool {
        let lent = self.lent.as_ref().and_then(|name| self.services.get(name));
        if self.turns || lent.is_some_and(ServiceRuntime::is_full_of_kept) {
            return false;
        }
        match self.take_some_reports() {
            Ok(more) => more,
            Err(error) => {
                tolerate("read reports", Err(error));
                false
            }
        }
    }
}
