//! Packets that say that something is wrong: when that begins, and until when it is to be said. First packets that are
//! dropped because more flows have begun during a change of a pool than are remembered meanwhile; packets without the
//! cookie that their backend was told; services whose answers are to pass here, and do not; connections that count in no
//! load; and frames that are lost on their way out.

mod lost;
mod uncounted;

use super::Engine;
use super::service::ServiceRuntime;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::warn;
use weir_plane::{LaneCounters, Plane};
use weir_steering::ServiceId;
use weir_wire::Reason;

/// Seconds after the last first packet that was dropped until they are over: whoever was refused has come again by
/// then, or has given up.
const REFUSED_ARE_OVER: u32 = 30;
/// The same of packets without a cookie: connections are silent for minutes.
const BARE_ARE_OVER: u32 = 300;
/// How many seconds lie between two looks for answers.
const LOOK_FOR_ANSWERS_EVERY: u32 = 5;
/// So long are answers looked for then, one service after the other; the rest of them is looked at the next time.
const LOOK_FOR_ANSWERS: Duration = Duration::from_millis(1);
/// So many packets of a service's connections, first ones apart, do not come without an answer that passes.
const ENOUGH: u64 = 300;

/// What is known of such packets.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// Dropped as `pending_full`.
    refused: Counted,
    /// Without the cookie that their backend was told.
    bare: Counted,
    /// Services whose answers are to pass here, by their numbers, and when they are looked at next.
    inline: BTreeMap<ServiceId, Unanswered>,
    again: u32,
    /// The service that was looked at last.
    last: Option<ServiceId>,
    /// Frames that are lost on their way out.
    lost: lost::Losses,
    /// Connections that count in no load.
    uncounted: uncounted::Uncounted,
}

/// Packets that are counted.
#[derive(Debug, Default)]
struct Counted {
    /// All that there were at the last look; none before the first one: those of an earlier run are over.
    all: Option<u64>,
    /// Those that are not over, and when the last of them were noticed.
    open: Option<(u64, u32)>,
}

impl Counted {
    /// Takes notice of those since the last look, of so many in all, which are over so many seconds after the last.
    /// Returns whether these are the first.
    fn look(&mut self, all: u64, now: u32, over: u32) -> bool {
        // Memory that is another one counts from the beginning.
        let before = self.all.replace(all);
        let more = before.map_or(0, |before| all.checked_sub(before).unwrap_or(all));
        let begins = self.open.is_none() && more > 0;
        self.open = match (self.open, more) {
            (Some((_, last)), 0) if now.saturating_sub(last) >= over => None,
            (open, 0) => open,
            (open, more) => Some((open.map_or(0, |(open, _)| open) + more, now)),
        };
        begins
    }
}

/// A service whose answers are to pass here.
#[derive(Debug)]
struct Unanswered {
    /// Packets of its connections that there were when an answer was seen last, or nobody waited for one.
    from: u64,
    /// Those since then, if no answer has passed.
    packets: u64,
}

impl Unanswered {
    /// Takes notice of so many packets of its connections. `answered` says whether an answer has passed of any
    /// connection that is remembered, none if there is none; it is asked only where that is worth a look. Returns
    /// whether it is to be said now.
    fn look<E>(
        &mut self,
        all: u64,
        answered: impl FnOnce() -> Result<Option<bool>, E>,
    ) -> Result<bool, E> {
        // Of backends that are gone nobody knows.
        self.from = self.from.min(all);
        let packets = all - self.from;
        if packets < ENOUGH {
            return Ok(false);
        }
        let begins = self.packets == 0;
        if answered()? == Some(false) {
            self.packets = packets;
            return Ok(begins);
        }
        *self = Self { from: all, packets: 0 };
        Ok(false)
    }
}

impl<P: Plane> Engine<P> {
    /// Says in the log what begins to go wrong. What cannot be read is looked at the next time.
    pub(super) fn look_lately(&mut self) {
        self.look_at_pending_full();
        self.look_at_bare();
        self.look_for_answers();
        self.look_at_lost();
    }

    fn look_at_pending_full(&mut self) {
        let Ok(outcomes) = self.plane.outcomes() else { return };
        let all = outcomes.get(&Reason::PendingFull).map_or(0, |(_, dropped)| *dropped);
        let now = self.now();
        if self.lately.refused.look(all, now, REFUSED_ARE_OVER)
            && let Some(said) = self.pending_full_warning()
        {
            warn!("{said}");
        }
    }

    /// What an operator should know of them.
    pub(super) fn pending_full_warning(&self) -> Option<String> {
        let (refused, _) = self.lately.refused.open?;
        let room = self.plane.limits().pending_flows;
        Some(format!(
            "{refused} first packets were dropped (pending_full): during a change of the pool {room} flows are \
             remembered that begin meanwhile, and there were more. They are sent again, and open connections are as \
             before; is this a flood? See limits.pending_flows"
        ))
    }

    fn look_at_bare(&mut self) {
        let (all, now) = (u64::from(self.plane.bare()), self.now());
        if !self.services.values().any(|service| service.configured.is_stamped_by_backends()) {
            // There is nobody left to write them.
            self.lately.bare = Counted { all: Some(all), open: None };
            return;
        }
        if !self.resumed {
            // Nobody has counted before.
            self.lately.bare.all.get_or_insert(0);
        }
        if self.lately.bare.look(all, now, BARE_ARE_OVER)
            && let Some(said) = self.bare_warning()
        {
            warn!("{said}");
        }
    }

    /// What an operator should know if backends write no cookies that should.
    pub(super) fn bare_warning(&self) -> Option<String> {
        let (packets, _) = self.lately.bare.open?;
        let stamped = |service: &&ServiceRuntime| service.configured.is_stamped_by_backends();
        let of = |service: &ServiceRuntime| {
            let bare = service.pool.iter().filter(|member| self.plane.echoes(member.id).bare);
            let name = &service.configured.name;
            bare.map(|member| format!("{name}/{}", member.wanted.name)).collect::<Vec<_>>()
        };
        let mut services = self.services.values().filter(stamped).peekable();
        services.peek()?;
        let backends = services.flat_map(of).collect::<Vec<_>>().join(", ");
        let whose = if backends.is_empty() { backends } else { format!(" ({backends})") };
        Some(format!(
            "{packets} packets of services with answers = \"backend\" did not have the cookie that their backend \
             was told{whose}: no `weir agent` writes it there, or not for this service (beside --vip it needs \
             --service ADDRESS:PORT; with --config, the file of now), or it has lost its memory, or somebody forges. \
             Its flows are looked up in the connection table, which costs these services a look-up for each packet; \
             limits.tracked_flows must hold those that are open"
        ))
    }

    fn look_for_answers(&mut self) {
        let now = self.now();
        let stamped = || self.services.values().filter(|one| one.configured.is_stamped_here());
        if stamped().next().is_none() {
            self.lately.inline.clear();
            return;
        }
        if now < self.lately.again {
            return;
        }
        self.lately.again = now.saturating_add(LOOK_FOR_ANSWERS_EVERY);
        let Ok(lanes) = self.plane.lanes() else { return };
        let mut all: Vec<(ServiceId, u64)> =
            stamped().map(|service| (service.number, of_connections(service, &lanes))).collect();
        all.sort_unstable();
        let is_one = |number: &ServiceId| all.binary_search_by_key(number, |one| one.0).is_ok();
        self.lately.inline.retain(|number, _| is_one(number));
        // Each look may read much of the memory of answers: those behind the last one have their turn first.
        let last = self.lately.last;
        let behind = all.partition_point(|one| Some(one.0) <= last);
        all.rotate_left(behind);
        let (begun, mut begin) = (Instant::now(), Vec::new());
        for (number, all) in all {
            let unanswered = || Unanswered { from: all, packets: 0 };
            let known = self.lately.inline.entry(number).or_insert_with(unanswered);
            let mut asked = false;
            let answered = || {
                asked = true;
                self.plane.has_answered(number)
            };
            if known.look(all, answered).unwrap_or(false) {
                begin.push(number);
            }
            if asked {
                self.lately.last = Some(number);
                if begun.elapsed() >= LOOK_FOR_ANSWERS {
                    break;
                }
            }
        }
        for number in begin {
            if let Some(said) = self.unanswered_warning(number) {
                warn!("{said}");
            }
        }
    }

    /// What an operator should know of services whose answers are to pass here, and do not.
    pub(super) fn unanswered_warnings(&self) -> Vec<String> {
        let numbers = self.lately.inline.keys();
        numbers.filter_map(|number| self.unanswered_warning(*number)).collect()
    }

    fn unanswered_warning(&self, number: ServiceId) -> Option<String> {
        let packets = self.lately.inline.get(&number).map(|known| known.packets)?;
        let service = self.services.get(self.names.get(&number)?)?;
        (packets > 0 && service.configured.is_stamped_here()).then(|| {
            format!(
                "service {}: {packets} packets of its connections have come, and no answer of its backends passed \
                 here, into which this balancer is to write the cookies (answers = \"inline\"): without them \
                 connections break with the next change of the pool. Where backends answer clients directly, give \
                 answers = \"backend\", and each backend a `weir agent`; else make this host the backends' router, \
                 and take the service's address off its interfaces",
                service.configured.name
            )
        })
    }
}

/// Packets that went to a service's backends, but for those that began something.
fn of_connections(service: &ServiceRuntime, lanes: &[LaneCounters]) -> u64 {
    let lanes = service.pool.iter().filter_map(|member| lanes.get(member.id.index()));
    lanes.map(|lane| lane.packets.saturating_sub(lane.flows)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_until_it_is_over() {
        const OVER: u32 = 30;
        let mut refused = Counted::default();
        assert!(!refused.look(5, 100, OVER), "those of an earlier run");
        assert!(!refused.look(5, 101, OVER) && refused.open.is_none());
        assert!(refused.look(8, 102, OVER), "the first");
        assert!(!refused.look(10, 103, OVER), "more of the same");
        assert_eq!(refused.open, Some((5, 103)));
        assert!(!refused.look(10, 103 + OVER - 1, OVER) && refused.open.is_some());
        assert!(!refused.look(10, 103 + OVER, OVER) && refused.open.is_none());
        assert!(refused.look(2, 200, OVER), "counted from the beginning");
        assert_eq!(refused.open, Some((2, 200)));
    }

    #[test]
    fn answers_are_missed_when_many_packets_have_had_none() {
        let mut service = Unanswered { from: 50, packets: 0 };
        let mut look = |all: u64, answered: Option<bool>| {
            let begins = service.look(all, || Ok::<_, ()>(answered)).expect("it can be read");
            (begins, service.packets)
        };
        assert_eq!(look(50 + ENOUGH - 1, Some(false)), (false, 0), "they may be on their way");
        assert_eq!(look(50 + ENOUGH, Some(false)), (true, ENOUGH));
        assert_eq!(look(60 + ENOUGH, Some(false)), (false, ENOUGH + 10), "it is told already");
        assert_eq!(look(70 + ENOUGH, Some(true)), (false, 0), "one has passed");
        assert_eq!(look(70 + 2 * ENOUGH, None), (false, 0), "nobody waits for any");
        assert_eq!(look(10, Some(false)), (false, 0), "backends are gone");
        assert_eq!(look(10 + ENOUGH, Some(false)), (true, ENOUGH));
    }
}
