//! The card of memory as what decides for something that leads packets: a program in the kernel. It says which rules
//! are in force when, and that carries it out.

use super::{Nic, Profile};
use crate::rule::{Answer, Limits, Location, Queue, Refusal, Rule, Rules, Serial};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use weir_wire::FlowKey;

/// What leads packets.
pub trait Leads {
    /// Why it could not.
    type Error;

    /// From now on packets of this flow go to one of these queues, as it happens: both are the same but while a rule
    /// changes. To the software's, as if there were no rule.
    ///
    /// # Errors
    /// Nothing has changed.
    fn lead(&mut self, flow: &FlowKey, queues: [Queue; 2]) -> Result<(), Self::Error>;
}

/// A card with rules whose packets something else leads. Capacity, delays, losses and refusals are the
/// [profile](Profile)'s; it has neither frames nor counts of each rule's packets.
///
/// What has come due is carried out at the next call, which is when whoever has it takes its answers.
#[derive(Debug)]
pub struct Mirrored<T> {
    nic: Nic<()>,
    to: T,
    begun: Instant,
    /// Where flows are led that are not all the software's.
    written: HashMap<FlowKey, [Queue; 2]>,
    /// Flows that are to be looked at, or that could not be led as they are to be.
    owed: HashSet<FlowKey>,
    failed: u64,
}

impl<T: Leads> Mirrored<T> {
    /// A card without rules, over what leads all packets to the software's queue. What happens by chance is drawn from
    /// the seed.
    pub fn new(profile: Profile, seed: u64, to: T) -> Self {
        Self {
            nic: Nic::new(Profile { counts: false, ..profile }, seed),
            to,
            begun: Instant::now(),
            written: HashMap::new(),
            owed: HashSet::new(),
            failed: 0,
        }
    }

    /// The card that decides.
    pub fn nic(&mut self) -> &mut Nic<()> {
        &mut self.nic
    }

    /// What leads packets.
    pub fn leads(&mut self) -> &mut T {
        &mut self.to
    }

    /// How often that could not do what it was to do, and was asked again.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// So much time has passed since it was made: what is due is carried out, and written.
    pub fn advance(&mut self, now: Duration) {
        let Self { nic, to, written, owed, failed, .. } = self;
        nic.advance_and_tell(now, &mut |flow| _ = owed.insert(*flow));
        nic.wavering(&mut |flow| _ = owed.insert(*flow));
        owed.retain(|flow| {
            let wanted = nic.may_lead(flow);
            let known = written.get(flow).copied().unwrap_or_default();
            if wanted == known {
                return false;
            }
            if to.lead(flow, wanted).is_err() {
                *failed += 1;
                return true;
            }
            match wanted {
                [Queue::SOFTWARE, Queue::SOFTWARE] => written.remove(flow),
                wanted => written.insert(*flow, wanted),
            };
            false
        });
    }

    fn follow(&mut self) {
        self.advance(self.begun.elapsed());
    }
}

impl<T: Leads> Rules for Mirrored<T> {
    fn limits(&self) -> Limits {
        self.nic.limits()
    }

    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        self.follow();
        self.nic.insert(at, rule, serial)
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        self.follow();
        self.nic.delete(at, serial)
    }

    /// An answer is true: as long as something could not be written, there are none.
    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.follow();
        if self.owed.is_empty() {
            self.nic.answers(take);
        }
    }

    fn hits(&mut self, _: Location) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Delay;
    use super::*;
    use crate::rule::Answered;
    use weir_wire::Protocol;

    /// Room for so many flows; takes nothing while it is busy.
    #[derive(Debug, Default)]
    struct Table {
        rules: HashMap<FlowKey, [Queue; 2]>,
        busy: bool,
    }

    impl Leads for Table {
        type Error = ();

        fn lead(&mut self, flow: &FlowKey, queues: [Queue; 2]) -> Result<(), ()> {
            if self.busy {
                return Err(());
            }
            match queues {
                [Queue::SOFTWARE, Queue::SOFTWARE] => self.rules.remove(flow),
                queues => self.rules.insert(*flow, queues),
            };
            Ok(())
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    fn flow(number: u16) -> FlowKey {
        let from = ([10, 0, 0, 1], 1024 + number).into();
        FlowKey::new(from, ([10, 9, 0, 1], 80).into(), Protocol::Tcp)
    }

    /// One that carries commands out an hour later, so that only the time that it is told counts.
    fn card() -> Mirrored<Table> {
        let profile =
            Profile { delay: Delay::Fixed(HOUR), wavering: HOUR / 4, ..Profile::sound(8, 4) };
        Mirrored::new(profile, 1, Table::default())
    }

    fn answers(card: &mut Mirrored<Table>) -> Vec<(Location, Answered)> {
        let mut all = Vec::new();
        card.answers(&mut |answer| all.push((answer.at, answer.what)));
        all
    }

    fn led(card: &mut Mirrored<Table>, number: u16) -> Option<[u16; 2]> {
        card.leads().rules.get(&flow(number)).map(|queues| queues.map(|queue| queue.0))
    }

    #[test]
    fn rules_lead_from_their_time_on_and_to_either_queue_before() {
        let mut card = card();
        card.insert(Location(3), &Rule { flow: flow(1), queue: Queue(2) }, Serial(1)).unwrap();
        card.advance(HOUR / 2);
        assert_eq!(led(&mut card, 1), None);
        card.advance(HOUR * 7 / 8);
        assert_eq!(led(&mut card, 1), Some([0, 2]));
        assert!(answers(&mut card).is_empty());
        card.advance(HOUR * 2);
        assert_eq!(led(&mut card, 1), Some([2, 2]));
        assert_eq!(answers(&mut card), [(Location(3), Answered::Done)]);
        // A rule at a lower place counts, and the other one does when that has gone.
        card.insert(Location(0), &Rule { flow: flow(1), queue: Queue(3) }, Serial(1)).unwrap();
        card.advance(HOUR * 4);
        assert_eq!(led(&mut card, 1), Some([3, 3]));
        card.delete(Location(0), Serial(2)).unwrap();
        card.advance(HOUR * 4 + HOUR * 7 / 8);
        assert_eq!(led(&mut card, 1), Some([3, 2]));
        card.advance(HOUR * 6);
        assert_eq!(led(&mut card, 1), Some([2, 2]));
        card.delete(Location(3), Serial(2)).unwrap();
        card.advance(HOUR * 8);
        assert_eq!(led(&mut card, 1), None);
    }

    /// What was deleted leads packets for as long as it could not be taken away.
    #[test]
    fn nothing_is_answered_before_it_is_so() {
        let mut card = card();
        card.insert(Location(0), &Rule { flow: flow(1), queue: Queue(1) }, Serial(1)).unwrap();
        card.advance(HOUR * 2);
        assert_eq!(answers(&mut card).len(), 1);
        card.delete(Location(0), Serial(2)).unwrap();
        card.leads().busy = true;
        card.advance(HOUR * 4);
        assert!(answers(&mut card).is_empty());
        assert!(card.failed() > 0 && led(&mut card, 1) == Some([1, 1]));
        card.leads().busy = false;
        assert_eq!(answers(&mut card), [(Location(0), Answered::Done)]);
        assert_eq!(led(&mut card, 1), None);
    }

    #[test]
    fn what_the_card_loses_and_drops_leads_nothing() {
        let mut card = card();
        card.nic().profile().lost = 1.0;
        card.insert(Location(0), &Rule { flow: flow(1), queue: Queue(1) }, Serial(1)).unwrap();
        card.nic().profile().lost = 0.0;
        card.insert(Location(1), &Rule { flow: flow(2), queue: Queue(1) }, Serial(1)).unwrap();
        card.advance(HOUR * 2);
        assert_eq!((led(&mut card, 1), led(&mut card, 2)), (None, Some([1, 1])));
        card.nic().profile().dropped = 1.0;
        card.advance(HOUR * 4);
        assert_eq!((led(&mut card, 2), card.nic().statistics().dropped), (None, 1));
        let beyond = card.insert(Location(8), &Rule { flow: flow(3), queue: Queue(1) }, Serial(1));
        assert_eq!(beyond, Err(Refusal::NoPlace(Location(8))));
    }
}
