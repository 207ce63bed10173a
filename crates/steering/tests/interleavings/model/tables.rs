//! Tables that the adversary can make, and the pins that they need.

use super::fault::Fault;
use super::state::{Entry, Op, State};
use super::{NONE, Rules, Sink};

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
                    flow.built_pin = NONE;
                    let known = flow.state != NONE && flow.built.reserved();
                    let must = known && !flow.idle;
                    let mut pinned = state;
                    pinned.flows[at].built_pin = pinned.flows[at].state;
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
            next.prepare(rules, None);
            for flow in &mut next.flows[..rules.flows] {
                if rules.fault == Fault::UnpinBeforePublish && flow.built_pin == NONE {
                    flow.pinned = NONE;
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
}
