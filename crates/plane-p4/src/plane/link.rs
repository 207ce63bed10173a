//! A switch that may be away, and what an earlier process has left in one.
//!
//! While it is away everything that is asked for is noted in the record, and nothing fails: no packet is
//! forwarded, and all of it is written when the switch is there again.

use super::{Core, PARTS};
use crate::error::Error;
use crate::layout::{Register, Table};
use crate::target::{Action, Target, Write, link_write};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use weir_steering::{Flags, ServiceId};

/// So long a switch that is away is left alone before it is looked for again; and after a look that took longer, so
/// many times as long: whoever waits for one that hangs has time for others.
const AGAIN: Duration = Duration::from_millis(200);
const TIMES: u32 = 4;

/// How it stands with the switch.
#[derive(Default)]
pub(super) struct Link {
    /// It is not filled before interfaces are attached.
    waits: bool,
    /// An earlier process has filled it, and nobody has taken that over yet.
    left: bool,
    /// Whether an earlier process had.
    was_filled: bool,
    /// Why it is away.
    away: Option<String>,
    /// When it is looked for again.
    again: Option<Instant>,
    /// It may have everything still: it has only not answered a question, and nothing was asked of it since that it
    /// does not know.
    silent: bool,
}

impl Link {
    /// The switch has all that is wanted.
    pub(super) fn filled(&mut self) {
        *self = Self { was_filled: self.was_filled, ..Self::default() };
    }
}

impl<T: Target> Core<T> {
    /// A plane on a switch that is left as it is until [`begin`](Self::begin).
    ///
    /// # Errors
    /// If it is not there, or runs another program.
    pub(crate) fn over(mut target: T) -> Result<Self, Error> {
        let read = target.read(&[(Register::Epoch, 0), (Register::Clock, 0)])?;
        let (epoch, clock) = (read[0], read[1]);
        let mut core = Self::empty(target);
        core.record.memory.now = clock as u32;
        core.lost = true;
        core.link =
            Link { waits: true, left: epoch != 0, was_filled: epoch != 0, ..Link::default() };
        Ok(core)
    }

    pub(super) fn into_target(self) -> T {
        self.target
    }

    pub(super) fn was_filled(&self) -> bool {
        self.link.was_filled
    }

    /// Fills a switch that has waited for it.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        if !self.link.waits {
            return Ok(());
        }
        self.fill()
    }

    /// Whether the switch is there and filled. One that is away is looked for now and then.
    pub(super) fn is_there(&mut self) -> bool {
        if !self.lost {
            return true;
        }
        let begun = Instant::now();
        if self.link.waits || self.link.again.is_some_and(|again| begun < again) {
            return false;
        }
        match self.return_to() {
            Ok(()) => true,
            Err(error) => {
                self.is_away(&error);
                self.link.again = Some(Instant::now() + AGAIN.max(begun.elapsed() * TIMES));
                false
            }
        }
    }

    /// Goes on with a switch that was away: as it is, if it was only silent, or else from the beginning.
    fn return_to(&mut self) -> Result<(), Error> {
        self.target.find()?;
        let epoch = self.target.read(&[(Register::Epoch, 0)])?[0];
        let ours = epoch != 0 && epoch == self.epoch;
        if ours && self.link.silent {
            tracing::info!("the switch answers again, and has everything");
            // What is written now and then was left out meanwhile.
            let set = |register, value| Write::Set { register, index: 0, value };
            let clock = set(Register::Clock, self.record.memory.now.into());
            self.target.write(&[clock, set(Register::SeenGeneration, self.generation)])?;
            (self.lost, self.seen) = (false, Instant::now());
            self.link.filled();
            return Ok(());
        }
        // One that was not started anew has what packets have left there since it was last read.
        self.link.left = ours;
        self.fill()?;
        tracing::info!("the switch is filled");
        Ok(())
    }

    fn is_away(&mut self, error: &Error) {
        self.lost = true;
        if self.link.away.is_none() {
            tracing::warn!(%error, "the switch is away; it is looked for again and again");
        }
        self.link.away = Some(error.to_string());
    }

    /// What there is to know of a switch that is away.
    pub(super) fn trouble(&self) -> Option<String> {
        let why = self.link.away.as_ref()?;
        Some(format!("the switch forwards nothing, and it is tried again ({why})"))
    }

    /// Whether the switch is what it was; if not, it is filled anew. Returns whether it is there.
    pub(super) fn look(&mut self) -> bool {
        if !self.lost {
            let found = self.target.read_soon(&[(Register::Epoch, 0)]);
            self.doubt(&found);
            match found {
                Ok(found) if found[0] == self.epoch => {
                    self.seen = Instant::now();
                    return true;
                }
                Ok(_) => {
                    tracing::warn!("the switch was started anew");
                    self.lost = true;
                }
                Err(error) => tracing::warn!(%error, "the switch does not answer"),
            }
        }
        self.is_there()
    }

    /// Does this on the switch, or if it is away lets the record keep it. After an error nobody knows what is in
    /// the switch: it is filled anew then.
    pub(super) fn write(&mut self, writes: &[Write]) -> Result<(), Error> {
        if !self.is_there() {
            self.leaves_out();
            return Ok(());
        }
        let done = self.target.write(writes);
        self.wrote(done)
    }

    /// Does what is done again soon: one that is away may go on without it. Returns whether it was there.
    pub(super) fn write_if_there(&mut self, writes: &[Write]) -> Result<bool, Error> {
        match self.is_left() || self.is_there() {
            true => self.write_even_before(writes).map(|()| !self.lost || self.link.waits),
            false => Ok(false),
        }
    }

    /// Whether it is one that an earlier process has filled, and forwards by that.
    pub(super) fn is_left(&self) -> bool {
        self.link.waits && self.link.left
    }

    /// The same, also on a switch that waits to be filled.
    pub(super) fn write_even_before(&mut self, writes: &[Write]) -> Result<(), Error> {
        match self.link.waits {
            true => self.target.write(writes),
            false => self.write(writes),
        }
    }

    /// Opens a port whose packets are taken, and returns its number; of one that is away, when it is filled.
    pub(super) fn open(&mut self, name: &str, ifindex: u32) -> Result<Option<u32>, Error> {
        if self.lost {
            self.leaves_out();
            return Ok(None);
        }
        let added = self.target.add_port(name, ifindex);
        // What is wrong with one interface says nothing of the switch.
        if let Err(Error::Port { .. } | Error::Interface { .. }) = &added {
            return added.map(Some);
        }
        let mut port = None;
        let done = added.and_then(|number| {
            port = Some(number);
            self.target.write(&[link_write(number, ifindex)])
        });
        self.wrote(done).map(|()| port)
    }

    /// As [`after`](Self::after), of a change that may have been made in part.
    pub(super) fn wrote(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        self.link.silent &= done.is_ok();
        self.after(done)
    }

    /// Something is not changed, as the switch is away: it has to be filled.
    pub(super) fn leaves_out(&mut self) {
        self.link.silent = false;
    }

    /// What a change has come to: one that the switch's end has cut off is noted like any other.
    pub(super) fn after(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        match done {
            Err(error) if error.is_gone() => self.is_away(&error),
            Err(error) => {
                self.lost = true;
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(())
    }

    pub(super) fn read(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        let read = self.target.read(elements);
        self.doubt(&read);
        read
    }

    pub(super) fn read_all(&mut self, register: Register) -> Result<Vec<u64>, Error> {
        let read = self.target.read_all(register);
        self.doubt(&read);
        read
    }

    fn doubt<V>(&mut self, read: &Result<V, Error>) {
        if !self.lost && read.as_ref().is_err_and(Error::is_gone) {
            (self.lost, self.link.silent) = (true, true);
        }
    }

    /// Before a switch is emptied that an earlier process has filled: no packet is decided any more, and what
    /// packets left there is taken. A flow that lives elsewhere than the tables say which are written next is
    /// pending then, as before. Returns whether it is known what its tables' registers hold.
    pub(super) fn take_over(&mut self) -> Result<bool, Error> {
        if !std::mem::take(&mut self.link.left) {
            return Ok(false);
        }
        // While packets are decided still: it takes longer than all that follows.
        for (at, register) in PARTS.into_iter().enumerate() {
            let held = self.target.read_all(register)?;
            self.held[at] = held.into_iter().map(|value| value as u32).collect();
        }
        let closed = Write::Default { table: Table::PlaneKeys, action: Action::bare("no_table") };
        self.target.write(&[closed])?;
        // From here on it is read like one's own; if it goes away meanwhile, nobody fills it from in here.
        (self.lost, self.link.waits) = (false, true);
        let taken = self.take_what_is_left();
        (self.lost, self.link.waits) = (true, false);
        match taken {
            // No packet is decided before it is filled.
            Err(error) if !error.is_gone() => {
                tracing::warn!(%error, "what packets have left on the switch is lost in part");
                Ok(true)
            }
            taken => taken.map(|()| true),
        }
    }

    fn take_what_is_left(&mut self) -> Result<(), Error> {
        match self.wait_until_decided() {
            Err(error @ Error::Stuck) => tracing::warn!(%error, "its packets are not waited for"),
            waited => waited?,
        }
        self.count()?;
        self.keep_connections()?;
        self.keep_marks()?;
        let pending = self.read_pending()?;
        for (state, backend, _) in pending {
            self.note(&state, backend);
        }
        self.fetch_ring()?;
        let tables = &self.record.tables;
        self.waiting.retain(|(_, event)| tables.contains_key(&event.state.service));
        self.noted.retain(|state, _| tables.contains_key(&state.service));
        // Until the next table leads all of them, packets ask for pending flows.
        let asked: HashSet<ServiceId> = self.noted.keys().map(|state| state.service).collect();
        for service in asked {
            let Some(versions) = self.versions.get_mut(&service) else { continue };
            versions.flags = versions.flags.with(Flags::PENDING, true);
            if let Some(table) = self.record.tables.get(&service) {
                table.set_flags(versions.flags);
            }
        }
        Ok(())
    }
}
