//! Tables that the adversary can make, their pins, and publishing one.

use super::fault::Fault;
use super::state::{Entry, Flow, Op, Stage, State};
use super::{CPUS, NONE, PENDING, RECORD, Rules, Sink};

impl State {
    /// Every table that the adversary can make of the states, with the pins that it needs.
    pub(super) fn tables(&self, rules: &Rules) -> Vec<State> {
        let mut tables = vec![*self];
        for at in 0..rules.flows {
            tables = tables
                .into_iter()
                .flat_map(|state| {
                    state.slots_for(at).into_iter().map(move |entry| {
                        let mut state = state;
                        state.flows[at].built = entry;
                        state
                    })
                })
                .collect();
        }
        // A state is pinned while its SYN may be repeated: an idle one may be or not.
        for at in 0..rules.flows {
            tables = tables
                .into_iter()
                .flat_map(|mut state| {
                    let flow = &mut state.flows[at];
                    flow.built_pin = false;
                    let known = flow.state != NONE && flow.built.reserved();
                    let must = known && !flow.idle;
                    let mut pinned = state;
                    pinned.flows[at].built_pin = true;
                    [(!must).then_some(state), known.then_some(pinned)]
                })
                .flatten()
                .collect();
        }
        tables
    }

    /// Builds a table, and pins.
    pub(super) fn build(&self, rules: &Rules, sink: &mut Sink) {
        for mut next in self.tables(rules) {
            for flow in &mut next.flows[..rules.flows] {
                match rules.fault {
                    Fault::NoPins | Fault::PinAfterPublish => {}
                    _ if flow.built_pin => flow.pinned = flow.state,
                    Fault::UnpinBeforePublish => flow.pinned = NONE,
                    _ => {}
                }
            }
            next.control.op = Op::Swap;
            // There are two places for tables, and a packet still reads in the other one.
            let torn = self.cpus.iter().any(|cpu| cpu.old);
            next.broken |= torn;
            sink.push(next, || {
                let note = if torn { " over the one that a packet holds" } else { "" };
                format!("control: pins, and builds a table{note}")
            });
        }
    }

    /// The slots that a flow may have in a table of the present states.
    pub(super) fn slots_for(&self, at: usize) -> Vec<Entry> {
        let flow = &self.flows[at];
        let fresh = self.fresh(at);
        // The pool of an update has a backend that was found down since.
        let serves = self.control.kept_off && flow.down != NONE;
        if flow.state != NONE && flow.state == flow.down && !serves {
            return vec![Entry { owner: flow.state, second: fresh }];
        }
        if flow.state != NONE {
            // At its backend, or at its backend's reserved Dcode.
            return vec![Entry::free(flow.state), Entry { owner: flow.state, second: fresh }];
        }
        let mut slots = vec![Entry::free(fresh), Entry { owner: fresh, second: fresh + 1 }];
        let in_flight = self.cpus.iter().filter(|cpu| cpu.busy_with(at));
        let chosen = [flow.home, flow.pending]
            .into_iter()
            .chain(in_flight.map(|cpu| cpu.backend))
            .find(|&backend| backend != NONE && (serves || backend != flow.down));
        if serves {
            slots.push(Entry::free(flow.down));
        }
        if let Some(right) = chosen {
            slots.push(Entry::free(right));
            slots.push(Entry { owner: right, second: fresh });
            slots.push(Entry { owner: fresh, second: right });
        }
        slots
    }

    pub(super) fn swap(&mut self, rules: &Rules) {
        for flow in &mut self.flows[..rules.flows] {
            flow.entry = std::mem::replace(&mut flow.built, Entry::EMPTY);
            flow.pin = std::mem::take(&mut flow.built_pin);
        }
        self.control.pins_known = true;
        // A superseded table's flags do not change any more: reading them now or later is one.
        let former = self.flags;
        for cpu in 0..CPUS {
            self.cpus[cpu].old = self.cpus[cpu].stage != Stage::Idle;
            if self.cpus[cpu].stage == Stage::ReadFlags {
                self.read_flags(cpu, former, rules);
            }
        }
        self.flags = match rules.fault {
            Fault::PublishWithoutPending => RECORD,
            _ => RECORD | PENDING,
        };
        if rules.fault == Fault::PinAfterPublish {
            self.control.op = Op::LatePins;
        } else {
            self.proceed(rules);
        }
    }

    /// After a restart, what is known tells.
    pub(super) fn needs_pin(&self, flow: &Flow) -> bool {
        if self.control.pins_known { flow.pin } else { flow.pinned == flow.state }
    }

    /// This state with each subset of the built table's pins inserted, the whole of them apart.
    pub(super) fn pinned(&self, rules: &Rules) -> Vec<State> {
        let wanted: Vec<usize> = (0..rules.flows).filter(|&at| self.flows[at].built_pin).collect();
        let subsets = 0..(1usize << wanted.len()).max(2) - 1;
        subsets
            .map(|subset| {
                let mut state = *self;
                for (bit, &at) in wanted.iter().enumerate() {
                    if subset >> bit & 1 == 1 {
                        state.flows[at].pinned = state.flows[at].state;
                    }
                }
                state
            })
            .collect()
    }

    /// This state with each subset of the pins removed that no table needs.
    pub(super) fn unpinned(&self, rules: &Rules) -> Vec<State> {
        let stale = |flow: &Flow| !self.needs_pin(flow) && flow.pinned != NONE;
        let stale: Vec<usize> = (0..rules.flows).filter(|&at| stale(&self.flows[at])).collect();
        (0..1usize << stale.len())
            .map(|subset| {
                let mut state = *self;
                for (bit, &at) in stale.iter().enumerate() {
                    if subset >> bit & 1 == 1 {
                        state.flows[at].pinned = NONE;
                    }
                }
                state
            })
            .collect()
    }
}
