//! States that are one by another name.

use super::state::{Cpu, Stage, State};
use super::{MAX_FLOWS, NONE};

impl State {
    /// A backend that the flow has not met.
    pub(super) fn fresh(&self, at: usize) -> u8 {
        let mut flow = self.flows[at];
        let mut top = 0;
        let mut meet = |backend: u8| {
            if backend != NONE {
                top = top.max(backend + 1);
            }
        };
        flow.backends().into_iter().for_each(|b| meet(*b));
        for cpu in self.cpus.iter().filter(|cpu| cpu.busy_with(at)) {
            [cpu.entry.owner, cpu.entry.second, cpu.backend].into_iter().for_each(&mut meet);
        }
        top
    }

    /// The representative of all states that differ only by names of backends, flows and CPUs.
    pub fn canonical(&self) -> State {
        let mut state = *self;
        for at in 0..MAX_FLOWS {
            let mut names = [NONE; 32];
            let mut count = 0;
            let mut rename = |backend: &mut u8| {
                if *backend != NONE {
                    let name = &mut names[usize::from(*backend)];
                    if *name == NONE {
                        *name = count;
                        count += 1;
                    }
                    *backend = *name;
                }
            };
            let State { flows, cpus, .. } = &mut state;
            flows[at].backends().into_iter().for_each(&mut rename);
            for cpu in cpus.iter_mut().filter(|cpu| cpu.busy_with(at)) {
                rename(&mut cpu.entry.owner);
                rename(&mut cpu.entry.second);
                rename(&mut cpu.backend);
            }
        }
        let mut order = [0u8, 1, 2];
        order.sort_by_key(|&at| (state.flows[usize::from(at)], self.working_on(at)));
        let flows = order.map(|at| state.flows[usize::from(at)]);
        for cpu in &mut state.cpus {
            if cpu.stage != Stage::Idle {
                let place = order.iter().position(|&at| at == cpu.flow);
                cpu.flow = place.unwrap_or_default() as u8;
            }
        }
        state.flows = flows;
        state.cpus.sort_unstable();
        state
    }

    pub(super) fn working_on(&self, flow: u8) -> usize {
        let busy = |cpu: &&Cpu| cpu.busy_with(usize::from(flow));
        self.cpus.iter().filter(busy).count()
    }
}
