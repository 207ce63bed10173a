//! The driver itself beside the model, on random walks: each action ends as the model's does, with packets
//! between any two.

use super::driven::{Meets, Refused, SERVICE};
use super::state::{Entry, Flow, Op, State};
use super::{NONE, Rules, Sink, initial};
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, HashSet};
use weir_steering::{Action, Driver};

/// How often each action was performed, and how often it could not be.
pub type Performed = BTreeMap<Action, [usize; 2]>;

/// A walk until all updates are over. The driver knows nothing of the fault.
///
/// # Errors
/// If the model does not follow the driver: what was performed then.
pub fn walk(rules: &Rules, rng: &mut impl Rng, performed: &mut Performed) -> Result<(), String> {
    let mut state = *initial(rules).choose(rng).expect("there are some");
    // A driver begins as after a restart.
    state.control.pins_known = false;
    let mut driver = Driver::<Refused, Refused>::new();
    loop {
        for _ in 0..rng.random_range(0..12) {
            state = state.some_step(rules, rng).unwrap_or(state);
        }
        if state.control.op == Op::Rest {
            if !driver.is_idle() {
                return Err("the driver goes on".into());
            } else if state.control.updates == 0 {
                return Ok(());
            }
            state.control.updates -= 1;
            state.begin_update(rules);
            driver.outcomes();
            driver.begin([SERVICE]);
        } else if state.control.crashes > 0 && rng.random_ratio(1, 25) {
            state.crash(rules);
            driver = Driver::new();
            driver.begin([SERVICE]);
        } else {
            let fails = state.control.failures > 0 && rng.random_ratio(1, 6);
            let action = state.control.update.action().ok_or("the model goes on")?;
            performed.entry(action).or_default()[usize::from(fails)] += 1;
            state = state.perform(rules, rng, &mut driver, fails)?;
        }
    }
}

impl State {
    fn some_step(&self, rules: &Rules, rng: &mut impl Rng) -> Option<State> {
        let mut sink = Sink { states: Vec::new(), labels: None };
        self.meanwhile(rules, &mut sink);
        sink.states.choose(rng).copied()
    }

    /// One action: the driver's at once, and of all ways through the model's the one that ends like it.
    fn perform(
        &self,
        rules: &Rules,
        rng: &mut impl Rng,
        driver: &mut Driver<Refused, Refused>,
        fails: bool,
    ) -> Result<State, String> {
        let action = self.control.update.action();
        let tables = self.tables(rules);
        let table = tables.choose(rng).filter(|_| action == Some(Action::Publish));
        let mut driven = *table.unwrap_or(self);
        let meets = Meets { at: None, fails: fails.then(|| rng.random()) };
        let real = Rules { fault: super::Fault::None, ..*rules };
        // What is collected takes several steps.
        loop {
            let step = |driver: &mut Driver<_, _>, state: &mut State| {
                state.on(&real, meets, |plane, known| driver.step(plane, known)).0
            };
            let performed = step(driver, &mut driven);
            if performed != action {
                return Err(format!("{performed:?}, where the model does {action:?}"));
            }
            if action != Some(Action::Collect) || fails || driver.builds().is_some() {
                break;
            }
        }
        if action == Some(Action::Grace) && !fails {
            return Ok(self.waits(rules, rng));
        }
        let pins = table.map(|table| table.flows.map(|flow| flow.built_pin));
        let same = |end: &&State| {
            let remembered = match pins {
                Some(_) if fails => end.control.doubtful,
                Some(pins) => end.flows.map(|flow| flow.pin) == pins,
                None => true,
            };
            remembered && end.seen() == driven.seen()
        };
        let ends = self.outcomes(rules, fails);
        ends.iter().find(same).copied().ok_or_else(|| {
            let how = if fails { ", which fails" } else { "" };
            format!("{action:?}{how}: {:?}, and then {:?}", self.seen(), driven.seen())
        })
    }

    /// Packets that are under way go on until a grace period is over.
    fn waits(&self, rules: &Rules, rng: &mut impl Rng) -> State {
        let mut state = *self;
        while state.control.update == self.control.update && state.control.op != Op::Rest {
            let mut sink = Sink { states: Vec::new(), labels: None };
            state.without_failures(rules, &mut sink);
            state.meanwhile(rules, &mut sink);
            state = *sink.states.choose(rng).expect("a packet can go on");
        }
        state
    }

    fn without_failures(&self, rules: &Rules, sink: &mut Sink) {
        let failures = self.control.failures;
        let mut state = *self;
        state.control.failures = 0;
        state.control_steps(rules, sink);
        sink.states.iter_mut().for_each(|next| next.control.failures = failures);
    }

    /// All states in which the action under way can end, with nothing beside it, or in which it fails.
    fn outcomes(&self, rules: &Rules, fails: bool) -> Vec<State> {
        let (mut ends, mut seen) = (Vec::new(), HashSet::new());
        let mut way = vec![*self];
        while let Some(state) = way.pop() {
            let mut sink = Sink { states: Vec::new(), labels: None };
            state.without_failures(rules, &mut sink);
            for next in sink.states.drain(..).filter(|next| seen.insert(*next)) {
                let over = next.control.update != self.control.update;
                if !over && next.control.op != Op::Rest {
                    way.push(next);
                } else if !fails {
                    ends.push(next);
                }
            }
            if fails {
                state.failures(rules, &mut sink);
                ends.append(&mut sink.states);
            }
        }
        ends
    }

    /// What packets can tell, and what is known of flows: all but what the model's control plane notes down
    /// for itself.
    fn seen(&self) -> (Vec<Flow>, u8) {
        let flows = self.flows.iter().map(|flow| Flow {
            built: Entry::EMPTY,
            pin: NONE,
            built_pin: NONE,
            stale: false,
            before: NONE,
            found: NONE,
            todo: 0,
            ..*flow
        });
        (flows.collect(), self.flags)
    }
}
