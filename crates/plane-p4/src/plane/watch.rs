//! What packets have left behind on the switch: reports, pending flows, marks, tags of datagrams, counters.

use super::{Core, Counts};
use crate::error::Error;
use crate::layout::{
    MARK_WORDS, PENDING_PLACES, PENDING_WAYS, RING, Register, SEEN_LINES, SEEN_WAYS, STRANGER_WORDS,
};
use crate::state::{self, Noted};
use crate::target::{Target, Write};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use weir_hash::{Key, scale};
use weir_plane::{LaneCounters, Outcomes};
use weir_steering::cheetah::{PARTITION_SLOTS, SlotCounts};
use weir_steering::{
    BackendId, Event, EventKind, Flags, Marks, ServiceId, ServiceState, Side, seen_tag,
};
use weir_wire::Reason;

/// The words of pending flows.
pub(super) const PENDING: [Register; 4] =
    [Register::Pending0, Register::Pending1, Register::Pending2, Register::Pending3];
/// The words of reports.
const RINGS: [Register; 4] = [Register::Ring0, Register::Ring1, Register::Ring2, Register::Ring3];
/// Reports that are read in one go.
const MOST_READ: u64 = 1024;
/// So long nobody looks at the ring.
const PAUSE: Duration = Duration::from_millis(5);

impl<T: Target> Core<T> {
    /// Reads the reports that are in the ring: they wait here from then on.
    /// Looks at the same time whether the switch is still what it was.
    pub(super) fn fetch(&mut self) -> Result<(), Error> {
        match self.is_left() || self.look() {
            true => self.fetch_ring(),
            false => Ok(()),
        }
    }

    /// The same, of a switch that is there.
    pub(super) fn fetch_ring(&mut self) -> Result<(), Error> {
        if self.tail.is_none() {
            self.taken = self.read(&[(Register::RingTail, 0)])?[0];
            self.tail = Some(self.taken);
        }
        loop {
            let head = self.read(&[(Register::RingHead, 0)])?[0];
            let count = head.wrapping_sub(self.taken).min(MOST_READ);
            if count == 0 {
                return Ok(());
            }
            let at = |n: u64| (self.taken + n) as u32 & (RING - 1);
            let places: Vec<(Register, u32)> =
                (0..count).flat_map(|n| RINGS.map(|register| (register, at(n)))).collect();
            let words = self.read(&places)?;
            let reports = (self.taken..).zip(words.as_chunks::<4>().0);
            let events: Vec<(u64, Event)> = reports
                .filter_map(|(place, words)| Some((place, state::report(*words)?)))
                .collect();
            for (_, event) in &events {
                self.remember(event);
            }
            self.waiting.extend(events);
            self.taken += count;
        }
    }

    /// Hands over what waits, and only then gives its places back: whoever ends before has left it in the ring.
    pub(super) fn hand_over(
        &mut self,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Error> {
        let most = most.min(self.waiting.len());
        self.waiting.drain(..most).for_each(|(_, event)| take(&event));
        let value = self.waiting.first().map_or(self.taken, |(place, _)| *place);
        let given = self.tail.is_none_or(|tail| tail == value);
        let tail = Write::Set { register: Register::RingTail, index: 0, value };
        if !given && self.write_if_there(&[tail])? {
            self.tail = Some(value);
        }
        Ok(())
    }

    /// What a switch that is started anew would not know of a flow: that it lives elsewhere than its table says.
    fn remember(&mut self, event: &Event) {
        let Event { state, backend, kind } = event;
        if *kind == EventKind::End {
            return;
        }
        // One that was found in the pending table stays noted as long as packets ask there.
        let versions = self.versions.get(&state.service);
        let asks =
            versions.is_some_and(|versions| versions.flags.has(Flags::RECORD | Flags::PENDING));
        if !asks || self.noted.get(state) != Some(backend) {
            self.note(state, *backend);
        }
    }

    pub(super) fn note(&mut self, state: &ServiceState, backend: BackendId) {
        let table = self.record.tables.get(&state.service);
        let leads = table.and_then(|table| table.plain(&state.key));
        if leads == Some(backend) {
            self.noted.remove(state);
        } else {
            self.noted.insert(*state, backend);
        }
    }

    /// Waits for reports.
    pub(super) fn wait_for_reports(
        &mut self,
        limit: Duration,
        wake: Option<BorrowedFd<'_>>,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Error> {
        let end = Instant::now() + limit;
        loop {
            self.fetch()?;
            let rest = end.saturating_duration_since(Instant::now());
            if !self.waiting.is_empty() || rest.is_zero() {
                break;
            }
            let pause = rest.min(PAUSE);
            let Some(wake) = wake else {
                std::thread::sleep(pause);
                continue;
            };
            let mut wakes = [PollFd::new(wake, PollFlags::POLLIN)];
            // In whole milliseconds, and not in none: that would ask again and again through the last one.
            let pause = pause.as_micros().div_ceil(1000) as u16;
            // A signal is no reason to end.
            if poll(&mut wakes, PollTimeout::from(pause)).is_ok_and(|ready| ready > 0) {
                self.fetch()?;
                break;
            }
        }
        self.hand_over(most, take)
    }

    /// All pending flows, with their places.
    pub(super) fn read_pending(&mut self) -> Result<Vec<(ServiceState, BackendId, u32)>, Error> {
        if !self.is_there() {
            return Ok(self.noted.iter().map(|(state, backend)| (*state, *backend, 0)).collect());
        }
        let last = self.read_all(Register::Pending3)?;
        // Those that are only tracked stand behind them.
        let used: Vec<u32> = (0..PENDING_PLACES)
            .zip(&last)
            .filter(|(_, word)| **word & 0xffff != 0)
            .map(|(at, _)| at)
            .collect();
        let places: Vec<(Register, u32)> =
            used.iter().flat_map(|at| PENDING.map(|register| (register, *at))).collect();
        let words = self.read(&places)?;
        let found = words.as_chunks::<4>().0.iter().zip(used).filter_map(|(words, at)| {
            let (state, backend) = state::pending(*words)?;
            Some((state, backend, at))
        });
        let found: Vec<_> = found.collect();
        // What is there, whatever reports have told; but not of a switch that was started anew meanwhile.
        if self.read(&[(Register::Epoch, 0)])?[0] == self.epoch {
            self.noted = found.iter().map(|(state, backend, _)| (*state, *backend)).collect();
        }
        Ok(found)
    }

    /// The places of a state's set, with what is there.
    fn sets(
        &mut self,
        states: &[ServiceState],
    ) -> Result<Vec<(u32, ServiceState, BackendId)>, Error> {
        let places: Vec<(Register, u32)> = states
            .iter()
            .flat_map(|state| state::sets_of(&self.key, &state.key))
            .flat_map(|first| first..first + PENDING_WAYS)
            .flat_map(|at| PENDING.map(|register| (register, at)))
            .collect();
        let words = self.read(&places)?;
        let at = places.iter().step_by(PENDING.len()).map(|(_, at)| *at);
        let found = at.zip(words.as_chunks::<4>().0).filter_map(|(at, words)| {
            let (state, backend) = state::pending(*words)?;
            Some((at, state, backend))
        });
        Ok(found.collect())
    }

    /// Forgets the flows of a service that are tracked.
    pub(super) fn forget_tracked(&mut self, service: ServiceId) -> Result<(), Error> {
        if !self.is_there() {
            self.leaves_out();
            return Ok(());
        }
        let last = self.read_all(Register::Pending3)?;
        let its = |word: u64| word & 0xffff != 0 && word >> 16 & 0xffff == u64::from(service.0);
        let of = (0..).zip(last).skip(PENDING_PLACES as usize).filter(|(_, word)| its(*word));
        let register = Register::Pending3;
        let writes: Vec<Write> =
            of.map(|(index, _)| Write::Set { register, index, value: 0 }).collect();
        self.write(&writes)
    }

    /// The number of the server of a tracked flow, and what is noted of it.
    pub(super) fn find_tracked(
        &mut self,
        state: &ServiceState,
    ) -> Result<Option<(u16, Noted)>, Error> {
        let sets = state::tracked_sets_of(&self.key, &state.key);
        for at in sets.into_iter().flat_map(|first| first..first + PENDING_WAYS) {
            let words = self.read(&PENDING.map(|register| (register, at)))?;
            let words = words.first_chunk::<4>().and_then(|words| state::pending(*words));
            if let Some((other, number)) = words
                && other == *state
            {
                let noted = self.read(&[(Register::Tracked, at - PENDING_PLACES)])?[0];
                return Ok(Some((number.get(), Noted::of_word(noted))));
            }
        }
        Ok(None)
    }

    /// How full the connections of a service are, and what they have refused.
    pub(super) fn count_slots(&mut self, service: ServiceId) -> Result<Option<SlotCounts>, Error> {
        let partitions = self.versions.get(&service).map_or((0, 0), |of| of.partitions);
        if partitions.1 == 0 {
            return Ok(None);
        }
        let used: Vec<(Register, u32)> = (partitions.0..partitions.0 + partitions.1)
            .map(|partition| (Register::SlotsUsed, partition))
            .collect();
        let used = self.read(&used)?.into_iter().sum();
        let counts = [0, 1, 2].map(|kind| (Register::SlotCounts, service.0 * 4 + kind));
        let counts = self.read(&counts)?;
        let slots = u64::from(partitions.1) * u64::from(PARTITION_SLOTS);
        let &[full, stale, foreign] = &counts[..] else { return Ok(None) };
        Ok(Some(SlotCounts { used, slots, full, stale, foreign }))
    }

    /// Gives the places of these flows back, if they have any.
    pub(super) fn remove_pending(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        for state in states {
            self.noted.remove(state);
        }
        if !self.is_there() {
            self.leaves_out();
            return Ok(());
        }
        let wanted: std::collections::HashSet<&ServiceState> = states.iter().collect();
        let places = self.sets(states)?;
        let gone = places.iter().filter(|(_, state, _)| wanted.contains(state));
        let writes: Vec<Write> = gone
            .map(|(at, ..)| Write::Set { register: Register::Pending3, index: *at, value: 0 })
            .collect();
        self.write(&writes)
    }

    /// Where a flow is pending.
    pub(super) fn find_pending(
        &mut self,
        state: &ServiceState,
    ) -> Result<Option<BackendId>, Error> {
        if !self.is_there() {
            return Ok(self.noted.get(state).copied());
        }
        let found = self.sets(&[*state])?;
        Ok(found.iter().find(|(_, other, _)| other == state).map(|(_, _, backend)| *backend))
    }

    /// Gives lanes to flows in the half that is not written, and has packets write that one.
    pub(super) fn turn_marks(
        &mut self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, Error> {
        let words = weir_steering::arm(weir_steering::words_for(flows, MARK_WORDS as usize), known);
        let before = self.side();
        let half = 1 - self.half;
        let first = half as u32 * MARK_WORDS;
        let register = Register::Marks;
        let mut writes =
            vec![Write::Fill { register, from: first, to: first + MARK_WORDS, value: 0 }];
        let filled = (first..).zip(&words).filter(|(_, word)| **word != 0);
        writes.extend(filled.map(|(index, word)| Write::Set { register, index, value: *word }));
        let value = u64::from(first) << 24 | (words.len() as u64 - 1);
        writes.push(Write::Set { register: Register::MarkSide, index: 0, value });
        self.write(&writes)?;
        (self.half, self.armed) = (half, words);
        Ok(before)
    }

    pub(super) fn side(&self) -> Side {
        Side { first: self.half as u32 * MARK_WORDS, mask: self.armed.len() as u32 - 1 }
    }

    /// The marks of a half.
    pub(super) fn marks_of(&mut self, side: Side) -> Result<Marks, Error> {
        if !self.is_there() {
            // No packet came by.
            return Ok(Marks::new(vec![0; side.words()], vec![0; STRANGER_WORDS as usize]));
        }
        let words = self.read_all(Register::Marks)?;
        let words = words.get(side.first as usize..).and_then(|all| all.get(..side.words()));
        let words = words.map(<[u64]>::to_vec).unwrap_or_default();
        let halves = self.read_all(Register::Strangers)?;
        let from = if side.first == 0 { 0 } else { STRANGER_WORDS as usize * 2 };
        let halves = &halves[from..][..STRANGER_WORDS as usize * 2];
        let strangers = halves.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 32);
        Ok(Marks::new(words, strangers.collect()))
    }

    pub(super) fn clear_marks(&mut self, side: Side) -> Result<(), Error> {
        let from = if side.first == 0 { 0 } else { STRANGER_WORDS * 2 };
        let fill =
            |register, from, count| Write::Fill { register, from, to: from + count, value: 0 };
        self.write(&[
            fill(Register::Marks, side.first, MARK_WORDS),
            fill(Register::Strangers, from, STRANGER_WORDS * 2),
        ])
    }

    /// The tags of datagrams' flows that were seen in this generation, and, where `before` says so, the last one.
    pub(super) fn seen_tags(&mut self, before: bool) -> Result<Vec<u64>, Error> {
        if !self.is_there() {
            return Ok(Vec::new());
        }
        let high = self.read_all(Register::SeenHigh)?;
        let low = self.read_all(Register::SeenLow)?;
        let tags = high.iter().zip(&low).map(|(high, low)| high << 32 | low);
        let now = self.generation;
        let before = match (before, now) {
            (false, _) => now,
            (true, 1) => 3,
            (true, _) => now - 1,
        };
        Ok(tags.filter(|tag| tag & 3 == now || tag & 3 == before).collect())
    }

    /// Takes those out that were last seen when a generation had this number before.
    pub(super) fn clear_seen_of(&mut self, generation: u64) -> Result<(), Error> {
        if !self.is_there() {
            return Ok(());
        }
        let low = self.read_all(Register::SeenLow)?;
        let old = (0..).zip(low).filter(|(_, low)| low & 3 == generation);
        let writes: Vec<Write> = old
            .flat_map(|(index, _)| {
                let clear = |register| Write::Set { register, index, value: 0 };
                [Register::SeenHigh, Register::SeenLow].map(clear)
            })
            .collect();
        self.write(&writes)
    }

    /// Takes flows of datagrams out of the filter.
    pub(super) fn remove_seen(&mut self, service: ServiceId, hashes: &[u64]) -> Result<(), Error> {
        if !self.is_there() {
            self.leaves_out();
            return Ok(());
        }
        let tags: Vec<u64> = hashes.iter().map(|hash| seen_tag(*hash, service) & !3).collect();
        let line = |tag: &u64| scale((*tag >> 32) as u32, SEEN_LINES) * SEEN_WAYS;
        let places: Vec<u32> =
            tags.iter().map(line).flat_map(|first| first..first + SEEN_WAYS).collect();
        let elements: Vec<(Register, u32)> = places
            .iter()
            .flat_map(|at| [(Register::SeenHigh, *at), (Register::SeenLow, *at)])
            .collect();
        let words = self.read(&elements)?;
        let found = places.iter().zip(words.as_chunks::<2>().0);
        let wanted: std::collections::HashSet<u64> = tags.into_iter().collect();
        let gone = found.filter(|(_, [high, low])| wanted.contains(&((high << 32 | low) & !3)));
        let writes: Vec<Write> = gone
            .flat_map(|(at, _)| {
                [Register::SeenHigh, Register::SeenLow].map(|register| Write::Set {
                    register,
                    index: *at,
                    value: 0,
                })
            })
            .collect();
        self.write(&writes)
    }

    /// Reads the counters. They go on from what they were when the switch was started anew.
    /// Of one that is away they stay what they were.
    pub(super) fn count(&mut self) -> Result<(), Error> {
        if !self.is_there() {
            return Ok(());
        }
        let counted = self.count_now();
        self.after(counted)
    }

    fn count_now(&mut self) -> Result<(), Error> {
        let packets = self.read_all(Register::LanePackets)?;
        let bytes = self.read_all(Register::LaneBytes)?;
        let flows = self.read_all(Register::LaneFlows)?;
        let passed = self.read_all(Register::Passed)?;
        let dropped = self.read_all(Register::Dropped)?;
        let lost = self.read(&[(Register::RingLost, 0)])?[0];
        let numbers = packets.len().max(self.before.lanes.len());
        let lane = |at: usize| {
            let base = self.before.lanes.get(at).copied().unwrap_or_default();
            let of = |all: &[u64]| all.get(at).copied().unwrap_or(0);
            LaneCounters {
                packets: base.packets + of(&packets),
                bytes: base.bytes + of(&bytes),
                flows: base.flows + of(&flows),
            }
        };
        let mut lanes: Vec<LaneCounters> = (0..numbers).map(lane).collect();
        let used = lanes.iter().rposition(|lane| *lane != LaneCounters::default());
        lanes.truncate(used.map_or(0, |at| at + 1));
        let mut outcomes = self.before.outcomes.clone();
        for (code, (passed, dropped)) in (0..).zip(passed.iter().zip(&dropped)) {
            let counted = (*passed, *dropped) != (0, 0);
            if let Some(reason) = Reason::from_code(code).filter(|_| counted) {
                let (before_passed, before_dropped) = outcomes.entry(reason).or_default();
                *before_passed += passed;
                *before_dropped += dropped;
            }
        }
        self.counted = Counts { lanes, outcomes, lost: self.before.lost + lost };
        Ok(())
    }

    /// The switch was started anew: its counters begin at zero.
    pub(super) fn add_up(&mut self) {
        self.before = self.counted.clone();
    }

    pub(super) fn lanes_now(&self) -> Vec<LaneCounters> {
        self.counted.lanes.clone()
    }

    pub(super) fn outcomes_now(&self) -> Outcomes {
        self.counted.outcomes.clone()
    }

    pub(super) fn lost_now(&self) -> u64 {
        self.counted.lost
    }

    /// Before a backend's number is used anew.
    pub(super) fn clear_lane(&mut self, id: BackendId) -> Result<(), Error> {
        let index = u32::from(id.get());
        let registers = [Register::LanePackets, Register::LaneBytes, Register::LaneFlows];
        let writes = registers.map(|register| Write::Set { register, index, value: 0 });
        self.write_even_before(&writes)?;
        for counts in [&mut self.before, &mut self.counted] {
            if let Some(lane) = counts.lanes.get_mut(id.index()) {
                *lane = LaneCounters::default();
            }
        }
        Ok(())
    }
}

/// Where a table leads a flow that nothing else is known of.
trait Plain {
    fn plain(&self, key: &weir_steering::StateKey) -> Option<BackendId>;
}

impl Plain for weir_steering::Image {
    fn plain(&self, key: &weir_steering::StateKey) -> Option<BackendId> {
        let hash = key.hash(&self.header().key);
        match self {
            Self::Concury(table) => BackendId::of_slot(table.body().entry(hash)),
            Self::Residue(table) => BackendId::new(table.body().route(hash).0),
            _ => None,
        }
    }
}
