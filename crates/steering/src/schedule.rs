//! Who gets a first packet, where that is not the hash's to say (docs/schedulers.md).
//!
//! A table with a scheduler has a *list* of backends that take new flows, and flags that say how one of
//! them is picked: by turns, the less loaded of two, or the least loaded. What a scheduler remembers
//! between two packets, whose turn it is and how loaded each backend is, is the [`Memory`]'s. The twin
//! of `bpf/schedulers.h`.

use crate::decide::Question;
use crate::ids::{BackendId, ServiceId};
use crate::memory::{Memory, TrackedFlow};
use crate::method::{Misfit, Setting, Settings};
use crate::methods::concury::{NEXT_TRY, SECOND_TRIES};
use crate::pool::{Member, shares};
use crate::registry::MethodId;
use crate::table::Flags;
use weir_hash::{HashKey, scale};
use weir_placement::Awrr;

/// The configuration's name for who gets a first packet.
pub const SCHEDULER: &str = "scheduler";
/// The configuration's name for what a scheduler counts as load.
pub const LOAD: &str = "load";
/// Entries of a list, unless more backends take new flows: a share is off by one entry at most.
const MOST_ENTRIES: u64 = 1 << 14;
/// Entries of a scheduler's list in any case: shares are rounded, each by half an entry at most.
pub(crate) const MOST_LISTED: usize = 2 * MOST_ENTRIES as usize;
/// Backends that `least` looks at.
pub const LEAST_MOST: usize = 128;
/// A load is less than this, so that it can be multiplied by a weight.
pub const MOST_LOAD: u64 = 1 << 47;
/// The largest load that is told, of the backends of a service: all others in proportion to it.
const TOLD: f64 = (1u64 << 32) as f64;

/// Who gets a first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scheduler {
    /// Its hash says, in proportion to the weights.
    #[default]
    Uniform,
    /// One after the other, weights aside.
    Rr,
    /// By turns, each as often as its weight says.
    Wrr,
    /// The same, where the weights follow the loads.
    Awrr,
    /// The less loaded of two that the hash draws.
    P2c,
    /// The least loaded of all.
    Least,
}

impl Scheduler {
    /// All of them, as the configuration calls them.
    pub const WORDS: &[&str] = &["uniform", "rr", "wrr", "awrr", "p2c", "least"];
    const ALL: [Self; 6] = [Self::Uniform, Self::Rr, Self::Wrr, Self::Awrr, Self::P2c, Self::Least];

    /// The one of a service; its method may have a choice of some of them only.
    pub fn of(settings: &Settings) -> Self {
        named(Self::WORDS, settings.word(SCHEDULER)).map_or(Self::Uniform, |at| Self::ALL[at])
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    /// Whether loads matter to it.
    pub fn reads_loads(self) -> bool {
        matches!(self, Self::Awrr | Self::P2c | Self::Least)
    }

    /// What a table says of it.
    pub fn flags(self, load: Load) -> Flags {
        let how = match self {
            Self::Uniform => 0,
            Self::Rr | Self::Wrr | Self::Awrr => Flags::TURNS,
            Self::P2c => Flags::TWO_CHOICES,
            Self::Least => Flags::LEAST,
        };
        Flags(how).with(Flags::COUNTS, self.reads_loads() && load == Load::Connections)
    }

    /// The backends that it picks from, ordered by number: as often as their weights say where that
    /// is what makes their shares.
    pub(crate) fn list(self, members: &[Member]) -> Vec<u16> {
        let mut list = match self {
            Self::Rr | Self::Least => {
                let takers = members.iter().filter(|member| member.effective_weight() > 0);
                takers.map(|member| member.backend.get()).collect()
            }
            _ => shares(members, MOST_ENTRIES),
        };
        list.sort_unstable();
        list
    }

    /// Whether it can pick among so many backends.
    ///
    /// # Errors
    /// [`Misfit`].
    pub(crate) fn fits(self, backends: usize) -> Result<(), Misfit> {
        let most = match self {
            Self::Uniform => return Ok(()),
            Self::Least => LEAST_MOST,
            _ => MOST_ENTRIES as usize,
        };
        if backends <= most {
            return Ok(());
        }
        let name = self.name();
        let wrong = format!("{name} picks among {most} backends at most, not {backends}");
        let right = match self {
            Self::Least => "use scheduler = \"p2c\", which looks at two".to_owned(),
            _ => "use scheduler = \"uniform\", or split the service".to_owned(),
        };
        Err(Misfit { setting: SCHEDULER, wrong, right })
    }
}

/// What a scheduler counts as load, always per unit of weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Load {
    /// Open connections, counted by the data plane.
    #[default]
    Connections,
    /// Packets from clients in a second.
    Packets,
    /// Bytes from clients in a second.
    Bytes,
    /// What somebody tells the control plane.
    Told,
}

impl Load {
    /// All of them, as the configuration calls them.
    pub const WORDS: &[&str] = &["connections", "packets", "bytes", "told"];
    const ALL: [Self; 4] = [Self::Connections, Self::Packets, Self::Bytes, Self::Told];

    /// The one of a service.
    pub fn of(settings: &Settings) -> Self {
        named(Self::WORDS, settings.word(LOAD)).map_or(Self::Connections, |at| Self::ALL[at])
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

fn named(words: &[&str], word: Option<&str>) -> Option<usize> {
    words.iter().position(|one| Some(*one) == word)
}

/// The setting of a method where the first packet may go to any backend, as something remembers where.
pub(crate) const SCHEDULER_SETTING: Setting = Setting::words(SCHEDULER, Scheduler::WORDS);
/// The setting of what is load, where the data plane sees connections begin and end.
pub(crate) const LOAD_SETTING: Setting = Setting::words(LOAD, Load::WORDS);

/// The flags of a service's tables that its scheduler asks for.
pub(crate) fn flags(settings: &Settings) -> Flags {
    Scheduler::of(settings).flags(Load::of(settings))
}

/// The load of a backend, as packets compare it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackendLoad {
    /// In any unit, less than [`MOST_LOAD`]. Packets of both directions may count below zero for a
    /// moment.
    pub value: i64,
    /// The backend's weight.
    pub weight: u32,
}

impl BackendLoad {
    /// Loads that were told, in proportion to the largest.
    pub fn in_proportion(loads: &[f64]) -> Vec<i64> {
        let most = loads.iter().copied().fold(0.0, f64::max);
        let value = |load: f64| if most > 0.0 { (load / most * TOLD).round() as i64 } else { 0 };
        loads.iter().map(|load| value(*load)).collect()
    }

    /// Whether one more connection weighs less here than there.
    fn is_less_than(self, other: Self) -> bool {
        self.more() * u64::from(other.weight) < other.more() * u64::from(self.weight)
    }

    /// With one more connection.
    fn more(self) -> u64 {
        self.value.clamp(0, MOST_LOAD as i64 - 1) as u64 + 1
    }
}

/// What `awrr` multiplies the weight of each backend by: ten for the average load, more where there is
/// less (Cheetah, section 4.1, with alpha 0.5). Whose load is not known counts as average.
pub fn buckets(loads: &[Option<u64>]) -> Vec<u32> {
    let known = || loads.iter().copied().flatten();
    let (sum, n) = (known().sum(), known().count() as u64);
    let of =
        |load: Option<u64>| load.map_or(Awrr::BALANCED, |load| Awrr::buckets(500, load, sum, n));
    loads.iter().map(|load| of(*load) as u32).collect()
}

/// Why a method has no scheduler; `None` if it has one.
pub fn why_none(method: MethodId) -> Option<&'static str> {
    let settings = method.info().settings;
    if settings.iter().any(|setting| setting.name == SCHEDULER) {
        return None;
    }
    Some(match method {
        MethodId::Concury | MethodId::Residue => {
            "every new connection that does not go where its hash says would have to be noted as \
             pending until the next table, and first packets are dropped when the pending table is full"
        }
        MethodId::Jet => {
            "a packet of a row that nothing is tracked of follows its row without looking, and every \
             connection that was placed otherwise would have to be tracked"
        }
        _ => {
            "nothing remembers where a first packet went, so it must go where the hash of all others does"
        }
    })
}

/// Entries between one turn and the next, so that those of one backend are spread evenly and every entry
/// has its turn once in a cycle: about the golden section of the list, and without a common divisor with
/// its length. Of lists that are too long for a scheduler, 1.
pub(crate) fn stride(entries: usize) -> u16 {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    if !(3..=1 << 15).contains(&entries) {
        return 1;
    }
    let about = entries * 618 / 1_000;
    let found = (about.max(1)..entries).find(|stride| gcd(*stride, entries) == 1);
    found.unwrap_or(1) as u16
}

/// The entry of a list for a flow that begins, by what a table's flags say.
pub(crate) fn pick<K, M: Memory<K>>(
    flags: Flags,
    key: &HashKey,
    question: &Question<K>,
    list: &[u16],
    memory: &mut M,
) -> Option<BackendId> {
    let entries = list.len() as u32;
    let backend = |at: u32| list.get(at as usize).copied().and_then(BackendId::new);
    if entries == 0 {
        return None;
    }
    if flags.0 & Flags::SCHEDULER == Flags::LEAST {
        return least(question.hash, list, memory);
    }
    let mut hash = question.hash;
    let mut picked = None;
    for _ in 0..SECOND_TRIES {
        picked = if flags.has(Flags::TURNS) {
            backend(in_turn(question.service, entries, memory))
        } else {
            let first = scale(hash as u32, entries);
            let second = first + 1 + scale((hash >> 32) as u32, entries - 1);
            let second = if second >= entries { second - entries } else { second };
            of_two(backend(first), backend(second), memory)
        };
        if picked.is_some_and(|id| !memory.is_down(id)) {
            return picked;
        }
        hash = key.mix(hash.wrapping_add(NEXT_TRY));
    }
    picked
}

/// The less loaded of two; of two of which one takes no new flow the other.
fn of_two<K, M: Memory<K>>(
    one: Option<BackendId>,
    other: Option<BackendId>,
    memory: &mut M,
) -> Option<BackendId> {
    let mut takes = |id: Option<BackendId>| id.is_some_and(|id| !memory.is_down(id));
    if takes(one) != takes(other) {
        return if takes(one) { one } else { other };
    }
    match (one, other) {
        (Some(first), Some(second)) => {
            let less = memory.load(second).is_less_than(memory.load(first));
            if less { other } else { one }
        }
        _ => one,
    }
}

fn in_turn<K, M: Memory<K>>(service: ServiceId, entries: u32, memory: &mut M) -> u32 {
    let turn = memory.turn(service) % u64::from(entries);
    (turn * u64::from(stride(entries as usize)) % u64::from(entries)) as u32
}

/// The least loaded; of equals the first after a place that the hash says.
fn least<K, M: Memory<K>>(hash: u64, list: &[u16], memory: &mut M) -> Option<BackendId> {
    let start = scale(hash as u32, list.len() as u32) as usize;
    let mut best = None;
    for step in 0..list.len().min(LEAST_MOST) {
        let at = (start + step) % list.len();
        let Some(id) = BackendId::new(list[at]).filter(|id| !memory.is_down(*id)) else { continue };
        let here = memory.load(id);
        if here.weight > 0 && best.is_none_or(|(_, least)| here.is_less_than(least)) {
            best = Some((id, here));
        }
    }
    best.map_or_else(|| BackendId::new(list[start]), |(id, _)| Some(id))
}

/// What a first packet, FIN or RST says of a connection: the first one opens it, the others end it, each once.
/// The connection table says so from then on, and where open ones are counted (`COUNTS`) the backend's load does.
/// What was counted once is left to those that count. A client outlives its connections.
pub(crate) fn recount<K, M: Memory<K>>(question: &Question<K>, memory: &mut M, flags: Flags) {
    let (counts, client) = (flags.has(Flags::COUNTS), flags.has(Flags::CLIENT));
    let Some(entry) = memory.connection(question) else { return };
    let opens = question.signals.starts;
    if entry.open && !counts {
        return;
    }
    let said = TrackedFlow { open: opens && counts, ended: !opens && !client, ..entry };
    if said != entry {
        memory.track(question, said);
    }
    if said.open != entry.open {
        memory.count(entry.backend, opens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Role;

    fn member(backend: u16, weight: u32) -> Member {
        Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight,
            role: Role::Serving,
        }
    }

    #[test]
    fn every_entry_has_its_turn_once_in_a_cycle() {
        for entries in (1..=600).chain([4_096, 16_384, 1 << 15]) {
            let step = usize::from(stride(entries));
            let mut seen = vec![false; entries];
            (0..entries).for_each(|turn| seen[turn * step % entries] = true);
            assert!(seen.iter().all(|seen| *seen), "{entries} entries, {step} apart");
        }
        assert_eq!(stride(65_537), 1, "no list is so long");
    }

    #[test]
    fn the_turns_of_one_backend_are_spread() {
        let list = Scheduler::Wrr.list(&[member(0, 5), member(1, 1), member(2, 1)]);
        let step = usize::from(stride(list.len()));
        let turns: Vec<u16> = (0..7).map(|turn| list[turn * step % 7]).collect();
        let longest = turns.chunk_by(|a, b| a == b).map(<[u16]>::len).max();
        assert_eq!(longest, Some(3), "{turns:?}");
    }

    #[test]
    fn loads_are_compared_by_weight_and_never_overflow() {
        let load = |value, weight| BackendLoad { value, weight };
        assert!(load(2, 2).is_less_than(load(2, 1)), "two of twice the weight");
        assert!(!load(4, 2).is_less_than(load(1, 1)), "5 / 2 and 2 / 1");
        assert!(!load(i64::MAX, 1).is_less_than(load(0, 65_535)));
        assert!(load(-7, 1).is_less_than(load(1, 1)), "below zero is zero");
        assert_eq!(BackendLoad::in_proportion(&[0.5, 0.0, 0.25]), [1 << 32, 0, 1 << 31]);
        assert_eq!(BackendLoad::in_proportion(&[0.0, 0.0]), [0, 0]);
        let huge = BackendLoad::in_proportion(&[f64::MAX, 1.0]);
        assert_eq!(huge, [1 << 32, 0]);
    }

    #[test]
    fn lists_are_of_those_that_take_new_flows() {
        let mut members = vec![member(4, 2), member(1, 1), member(3, 0)];
        members.push(Member { role: Role::Draining, ..member(2, 1) });
        assert_eq!(Scheduler::Rr.list(&members), [1, 4]);
        assert_eq!(Scheduler::Wrr.list(&members), [1, 4, 4]);
        assert_eq!(Scheduler::P2c.list(&[]), []);
    }
}
