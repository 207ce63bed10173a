//! Devices that have their rules together.

use std::collections::VecDeque;
use weir_offload::{Answer, Answered, Limits, Location, Refusal, Rule, Rules, Serial};

/// The rules of several devices as those of one card: packets of a flow may come by any of them, so each has the rule.
/// Their drivers answer at once, with what they have done.
#[derive(Debug)]
pub struct Together<R> {
    devices: Vec<R>,
    answers: VecDeque<Answer>,
}

impl<R: Rules> Together<R> {
    /// Of these devices.
    pub fn new(devices: Vec<R>) -> Self {
        Self { devices, answers: VecDeque::new() }
    }

    /// What each device has answered is known.
    fn heard(&mut self) {
        self.devices.iter_mut().for_each(|device| device.answers(&mut |_| ()));
    }
}

impl<R: Rules> Rules for Together<R> {
    fn limits(&self) -> Limits {
        let of_each = || self.devices.iter().map(Rules::limits);
        Limits {
            rules: of_each().map(|limits| limits.rules).min().unwrap_or(0),
            queues: of_each().map(|limits| limits.queues).min().unwrap_or(1),
            // What all of them hold for a queue.
            ring: of_each().fold(0, |all, limits| all.saturating_add(limits.ring)),
            counts: false,
        }
    }

    /// Where one device refuses what others have taken, theirs go again. They may have led packets meanwhile, so that
    /// is no refusal, after which the queue would count as one that has never led any: it is not answered.
    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        for number in 0..self.devices.len() {
            if let Err(refused) = self.devices[number].insert(at, rule, serial) {
                for before in &mut self.devices[..number] {
                    // One that stays is told again, as whoever is not answered has it deleted.
                    let _ = before.delete(at, serial);
                }
                self.heard();
                return if number == 0 { Err(refused) } else { Ok(()) };
            }
        }
        self.heard();
        self.answers.push_back(Answer { at, serial, what: Answered::Done });
        Ok(())
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        let mut done = Ok(());
        for device in &mut self.devices {
            done = done.and(device.delete(at, serial));
        }
        self.heard();
        done?;
        self.answers.push_back(Answer { at, serial, what: Answered::Done });
        Ok(())
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.answers.drain(..).for_each(take);
    }

    fn hits(&mut self, _: Location) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_offload::Queue;
    use weir_wire::{FlowKey, Protocol};

    /// A device that answers at once, or refuses.
    struct Device {
        rules: Vec<(Location, Rule)>,
        queues: u16,
        refuses: bool,
        keeps: bool,
        said: Vec<Answer>,
    }

    fn device(queues: u16) -> Device {
        Device { rules: Vec::new(), queues, refuses: false, keeps: false, said: Vec::new() }
    }

    impl Rules for Device {
        fn limits(&self) -> Limits {
            Limits {
                rules: 16 / usize::from(self.queues),
                queues: self.queues,
                ring: 10,
                counts: true,
            }
        }

        fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
            if self.refuses {
                return Err(Refusal::Busy);
            }
            self.rules.push((at, *rule));
            self.said.push(Answer { at, serial, what: Answered::Done });
            Ok(())
        }

        fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
            if self.keeps {
                return Err(Refusal::Other);
            }
            self.rules.retain(|(place, _)| *place != at);
            self.said.push(Answer { at, serial, what: Answered::Done });
            Ok(())
        }

        fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
            self.said.drain(..).for_each(take);
        }

        fn hits(&mut self, _: Location) -> Option<u64> {
            Some(0)
        }
    }

    fn rule(port: u16) -> Rule {
        let from = ([10, 0, 0, 1], port).into();
        let flow = FlowKey::new(from, ([10, 0, 0, 2], 80).into(), Protocol::Tcp);
        Rule { flow, queue: Queue(1) }
    }

    fn answered(together: &mut Together<Device>) -> Vec<(Location, Serial)> {
        let mut all = Vec::new();
        together.answers(&mut |answer| all.push((answer.at, answer.serial)));
        all
    }

    #[test]
    fn each_device_has_each_rule_and_all_have_what_the_least_one_has() {
        let mut together = Together::new(vec![device(4), device(2)]);
        let limits = Limits { rules: 4, queues: 2, ring: 20, counts: false };
        assert_eq!(together.limits(), limits);
        let at = Location(3);
        together.insert(at, &rule(1), Serial(1)).expect("both take it");
        assert_eq!(answered(&mut together), [(at, Serial(1))]);
        for device in &together.devices {
            assert_eq!(device.rules, [(at, rule(1))]);
        }
        together.delete(at, Serial(2)).expect("both let it go");
        assert_eq!(answered(&mut together), [(at, Serial(2))]);
        assert!(together.devices.iter().all(|device| device.rules.is_empty()));
    }

    #[test]
    fn a_rule_that_one_device_refuses_is_nowhere_and_is_not_answered() {
        let mut together = Together::new(vec![device(2), device(2)]);
        together.devices[0].refuses = true;
        let refused = together.insert(Location(0), &rule(1), Serial(1));
        assert_eq!(refused, Err(Refusal::Busy), "nothing has changed anywhere");
        together.devices[0].refuses = false;
        together.devices[1].refuses = true;
        together.insert(Location(0), &rule(1), Serial(2)).expect("the first has led some");
        assert!(answered(&mut together).is_empty());
        assert!(together.devices.iter().all(|device| device.rules.is_empty()));
    }

    #[test]
    fn a_deletion_is_answered_when_no_device_has_the_rule() {
        let mut together = Together::new(vec![device(2), device(2)]);
        together.insert(Location(0), &rule(1), Serial(1)).expect("both take it");
        assert_eq!(answered(&mut together), [(Location(0), Serial(1))]);
        together.devices[0].keeps = true;
        let kept = together.delete(Location(0), Serial(2));
        assert_eq!(kept, Err(Refusal::Other));
        assert!(answered(&mut together).is_empty());
        together.devices[0].keeps = false;
        together.delete(Location(0), Serial(3)).expect("it goes now");
        assert_eq!(answered(&mut together), [(Location(0), Serial(3))]);
        assert!(together.devices.iter().all(|device| device.rules.is_empty()));
    }
}
