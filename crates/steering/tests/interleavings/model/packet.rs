//! What packets do: one step of a program at a time.

use super::fault::Fault;
use super::state::{Cpu, Entry, Stage, State};
use super::text::{backend_text, flags_text, slot_text};
use super::{NONE, PENDING, RECORD, Rules, Sink};
use std::fmt::Write as _;

impl State {
    /// A packet arrives and its program reads the pointer to the published table.
    pub(super) fn arrivals(&self, cpu: usize, rules: &Rules, sink: &mut Sink) {
        for flow in 0..rules.flows {
            let started = self.flows[flow].home != NONE;
            let overlaps = self.cpus.iter().any(|other| other.busy_with(flow));
            if !started && overlaps && rules.fault != Fault::OverlappingFirstSyn {
                continue;
            }
            for syn in [true, false] {
                if !syn && !started {
                    continue;
                }
                let mut next = *self;
                next.cpus[cpu] = Cpu {
                    stage: Stage::ReadFlags,
                    flow: flow as u8,
                    syn,
                    entry: self.flows[flow].entry,
                    ..Cpu::IDLE
                };
                sink.push(next, || {
                    let kind = match (syn, started) {
                        (true, false) => "SYN",
                        (true, true) => "repeated SYN",
                        (false, _) => "data",
                    };
                    let slot = slot_text(self.flows[flow].entry);
                    format!("cpu {cpu}: {kind} of flow {flow} holds the table; slot: {slot}")
                });
            }
        }
    }

    pub(super) fn packet_step(&self, cpu: usize, rules: &Rules, sink: &mut Sink) {
        let mut next = *self;
        let packet = self.cpus[cpu];
        let mut text = String::new();
        let wanted = sink.labels.is_some();
        match packet.stage {
            Stage::Idle => return,
            Stage::ReadFlags => {
                next.read_flags(cpu, self.flags, rules);
                if wanted {
                    text = format!("reads flags: {}", flags_text(self.flags));
                }
            }
            Stage::LookPending => {
                let known = self.flows[usize::from(packet.flow)].pending;
                if known != NONE {
                    next.decided(cpu, known, false, rules);
                } else if packet.syn && packet.entry.reserved() {
                    next.cpus[cpu].stage = Stage::LookPinned;
                } else if packet.syn && rules.marks > 0 && packet.flags & PENDING != 0 {
                    next.cpus[cpu].stage = Stage::LookDown;
                } else {
                    next.decided(cpu, packet.entry.owner, packet.flags & RECORD != 0, rules);
                }
                if wanted {
                    text = format!("looks up pending: {}", backend_text(known));
                }
            }
            Stage::LookDown => {
                let is_down = self.flows[usize::from(packet.flow)].down == packet.entry.owner;
                if is_down {
                    next.cpus[cpu].entry.second = self.fresh(usize::from(packet.flow));
                    next.cpus[cpu].stage = Stage::LookPinned;
                } else {
                    next.decided(cpu, packet.entry.owner, packet.flags & RECORD != 0, rules);
                }
                if wanted {
                    let found = if is_down { "down" } else { "up" };
                    text = format!("finds {} {found}", backend_text(packet.entry.owner));
                }
            }
            Stage::LookPinned => {
                let known = self.flows[usize::from(packet.flow)].pinned;
                let stale = known != packet.entry.owner && rules.fault == Fault::IgnoreStalePins;
                if known != NONE && !stale {
                    next.decided(cpu, known, packet.flags & RECORD != 0, rules);
                } else {
                    let note = rules.fault != Fault::SecondPlacementNotNoted;
                    next.decided(cpu, packet.entry.second, note, rules);
                }
                if wanted {
                    text = format!("looks up pinned: {}", backend_text(known));
                }
            }
            Stage::Note => {
                next.flows[usize::from(packet.flow)].pending = packet.backend;
                next.cpus[cpu].note = false;
                if rules.fault == Fault::ReportBeforeNote {
                    next.forward(cpu, packet.backend);
                } else {
                    next.cpus[cpu].stage = Stage::Report;
                }
                if wanted {
                    text = format!("notes pending: {}", backend_text(packet.backend));
                }
            }
            Stage::Report => {
                next.flows[usize::from(packet.flow)].report = packet.backend;
                if packet.note {
                    next.cpus[cpu].stage = Stage::Note;
                } else {
                    next.forward(cpu, packet.backend);
                }
                if wanted {
                    text = format!("reports start at {}", backend_text(packet.backend));
                }
            }
        }
        if wanted && next.cpus[cpu].stage == Stage::Idle {
            let went = self.went(cpu);
            let _ = write!(text, "; forwarded to {}", backend_text(went));
            if next.broken {
                let home = self.flows[usize::from(packet.flow)].home;
                let _ = write!(text, ", but the flow lives at {}", backend_text(home));
            }
        }
        sink.push(next, || format!("cpu {cpu}: flow {}: {text}", packet.flow));
    }

    /// Where a packet goes whose next step is its last (for labels).
    pub(super) fn went(&self, cpu: usize) -> u8 {
        let packet = self.cpus[cpu];
        let pending = self.flows[usize::from(packet.flow)].pending;
        match packet.stage {
            Stage::LookPending if pending != NONE => pending,
            Stage::Note | Stage::Report => packet.backend,
            _ => packet.entry.owner,
        }
    }

    pub(super) fn read_flags(&mut self, cpu: usize, flags: u8, rules: &Rules) {
        let packet = &mut self.cpus[cpu];
        packet.flags = flags;
        let look = flags & PENDING != 0 && rules.fault != Fault::NoPendingLookup;
        if look || packet.entry.reserved() {
            packet.stage = Stage::LookPending;
        } else {
            let owner = packet.entry.owner;
            self.decided(cpu, owner, flags & RECORD != 0, rules);
        }
    }

    /// The packet's backend is known; what is left is to write. A data packet writes nothing, and
    /// where it goes depends on nothing that can still change, so it is forwarded here.
    pub(super) fn decided(&mut self, cpu: usize, backend: u8, note: bool, rules: &Rules) {
        let packet = &mut self.cpus[cpu];
        if !packet.syn {
            self.forward(cpu, backend);
            return;
        }
        let note = note && rules.fault != Fault::NoNote;
        packet.backend = backend;
        packet.note = note;
        packet.stage = if note && rules.fault != Fault::ReportBeforeNote {
            Stage::Note
        } else {
            Stage::Report
        };
        // Not read any more: forgetting them merges states.
        packet.entry = Entry::EMPTY;
        packet.flags = 0;
    }

    pub(super) fn forward(&mut self, cpu: usize, backend: u8) {
        let flow = &mut self.flows[usize::from(self.cpus[cpu].flow)];
        if flow.home == NONE && backend != flow.down {
            flow.home = backend;
        }
        self.broken |= flow.home != NONE && flow.home != backend;
        self.cpus[cpu] = Cpu::IDLE;
    }
}
