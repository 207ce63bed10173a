//! How many connections each prefix of sources may hold: packets count those that begin, and here the counters are
//! set right by the connections that are known to live (docs/new-flows.md).

use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use std::collections::BTreeSet;
use std::time::Duration;
use weir_hash::Key;
use weir_plane::{HELD_CROWD, HeldCounts, Plane};
use weir_steering::{Known, Phase, ServiceId, ServiceState, StateKey};

/// A count is believed for so long, which is that of three sweeps: while nobody takes out what has ended, the
/// counters only grow, and would refuse everybody in the end.
const BELIEVED: Duration = Duration::from_secs(30);
/// Bits of a filter of connections that end; a power of two.
const ENDING_BITS: u64 = 1 << 20;

/// Connections by their hashes, of which others may look like one that is there.
#[derive(Default)]
struct Filter(Vec<u64>);

impl Filter {
    fn add(&mut self, hash: u64) {
        if self.0.is_empty() {
            self.0 = vec![0; (ENDING_BITS / 64) as usize];
        }
        let bit = hash % ENDING_BITS;
        self.0[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn has(&self, hash: u64) -> bool {
        let bit = hash % ENDING_BITS;
        self.0.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }
}

/// What a service must remember to count its connections.
#[derive(Default)]
pub(super) struct Held {
    /// Connections that have ended, which the data plane is not told yet.
    released: Vec<StateKey>,
    /// Those that were ending at the last sweep, and at the one before.
    ending: Filter,
    ended_before: Filter,
    /// When the last sweep was that these were found at.
    swept: u32,
    /// Connections of all prefixes of all services with a limit, at the last count.
    all: u32,
}

impl ServiceRuntime {
    /// Whether there is a limit to the connections of each prefix.
    pub fn limits_connections(&self) -> bool {
        self.configured.new_flows.is_some_and(|flows| flows.source_connections.is_some())
    }

    /// That nobody is refused by the limit, if that is so.
    pub fn crowd_warning(&self) -> Option<String> {
        let most = self.configured.new_flows?.source_connections?;
        let (all, crowd) = (self.held.all, u64::from(most) * u64::from(HELD_CROWD));
        (u64::from(all) >= crowd).then(|| {
            let service = &self.configured.name;
            format!(
                "service {service}: source_connections = {most} refuses nobody: all services with a limit have \
                 {all} connections, and from {crowd} on it would often refuse the wrong prefix"
            )
        })
    }

    /// Whether connections have ended that the data plane is not told of yet.
    pub fn has_released(&self) -> bool {
        !self.held.released.is_empty()
    }

    /// A connection that was known to live has ended.
    pub fn release(&mut self, key: &StateKey, known: Known) {
        if known.phase != Phase::Closing && self.limits_connections() {
            self.held.released.push(*key);
        }
    }

    /// Adds the connections that live. One whose client has said that it ends is over, unless packets go on to come
    /// from there: whoever says so of a connection that goes on has nothing of it. `swept`: when packets were
    /// looked for last.
    fn count_held(&mut self, counts: &mut HeldCounts, swept: u32) {
        // They are not among those that live.
        self.held.released.clear();
        let Some(caps) = self.caps().filter(|caps| caps.held.is_some()) else {
            self.held = Held::default();
            return;
        };
        let held = &mut self.held;
        let anew = held.swept != swept;
        if anew {
            held.swept = swept;
            held.ended_before = std::mem::take(&mut held.ending);
        }
        self.builder.each_state(&mut |key, known| {
            if known.phase == Phase::Closing {
                let hash = key.hash(&caps.key);
                if anew {
                    held.ending.add(hash);
                }
                // What was seen of it since its end may have been the end alone.
                if known.seen != swept || !held.ended_before.has(hash) {
                    return;
                }
            }
            counts.add(&caps, &key.address);
        });
        let builder = &self.builder;
        let lives =
            |key: &StateKey| builder.known(key).is_some_and(|known| known.phase != Phase::Closing);
        // Half-open ones, where agents tell what is open.
        let begun = self.young.each().filter(|(key, _)| !lives(key));
        begun.for_each(|(key, _)| counts.add(&caps, &key.address));
    }
}

impl<P: Plane> Engine<P> {
    /// Sets right what packets have counted, if any service has a limit.
    pub(super) fn count_held(&mut self) -> Result<(), EngineError> {
        if !self.services.values().any(ServiceRuntime::limits_connections) {
            return Ok(());
        }
        self.release_held()?;
        let before = self.plane.held().plane()?;
        self.counting = true;
        let counted = self.counted();
        self.counting = false;
        self.plane.correct_held(&before, &counted?, BELIEVED).plane()
    }

    /// The connections that live, with all that had begun before.
    fn counted(&mut self) -> Result<HeldCounts, EngineError> {
        // A packet reports its connection after it has counted it.
        self.plane.grace().plane()?;
        self.drain_until_here()?;
        let (swept, mut counts) = (self.swept, HeldCounts::default());
        self.services.values_mut().for_each(|service| service.count_held(&mut counts, swept));
        self.services.values_mut().for_each(|service| service.held.all = counts.all());
        Ok(counts)
    }

    /// Tells the data plane which connections have ended: their prefixes may begin others at once. Not during a
    /// count, which does not have them.
    pub(super) fn release_held(&mut self) -> Result<(), EngineError> {
        let ended = self.services.values().filter(|service| service.has_released());
        let ended = ended.map(|service| service.number).collect();
        self.release_held_of(&ended)
    }

    /// The same of some services: reports are taken many times a second, and there may be ten thousand services.
    pub(super) fn release_held_of(
        &mut self,
        services: &BTreeSet<ServiceId>,
    ) -> Result<(), EngineError> {
        if self.counting {
            return Ok(());
        }
        let mut ended = Vec::new();
        for &number in services {
            let service = self.names.get(&number).and_then(|name| self.services.get_mut(name));
            let Some(service) = service else { continue };
            let released = std::mem::take(&mut service.held.released);
            ended.extend(released.into_iter().map(|key| ServiceState { service: number, key }));
        }
        if ended.is_empty() { Ok(()) } else { self.plane.release_held(&ended).plane() }
    }
}
