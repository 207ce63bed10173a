//! The model: two CPUs, a few flows, one service's maps, and a control plane that is driven by
//! the real [`Update`].
//!
//! Backends are numbers that mean something only within one flow: the property compares the
//! backends of one flow's packets and nothing else, so states that differ by a renaming are one.
//! A table is, for each flow, the slot that its Dcode leads to. Where a flow that the build does
//! not contain falls is the adversary's choice in every build: another backend than ever before,
//! by chance the right one, or a reserved Dcode.

use crate::search;
use std::fmt::Write as _;
use weir_steering::{Action, Flags, Update};

/// No backend, no entry, nobody.
const NONE: u8 = u8::MAX;
const CPUS: usize = 2;
/// Flows that a model can have.
pub const MAX_FLOWS: usize = 3;
const RECORD: u8 = Flags::RECORD as u8;
const PENDING: u8 = Flags::PENDING as u8;

/// A departure from the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None: the protocol as it is.
    None,
    /// No grace after the flags are first set.
    NoFirstGrace,
    /// No grace between the swap and clearing RECORD.
    NoSecondGrace,
    /// No grace between clearing RECORD and settling.
    NoThirdGrace,
    /// Neither of those two: settling at once.
    SettleBeforeGrace,
    /// RECORD is not set before the table is published.
    RecordAfterPublish,
    /// Packets do not look at the pending table.
    NoPendingLookup,
    /// New flows are not noted while an update is built.
    NoNote,
    /// The table is published without PENDING.
    PublishWithoutPending,
    /// RECORD and PENDING are cleared together, before the pending flows are settled.
    StopPendingEarly,
    /// All pending entries are removed, whatever the table says of them.
    SettleAll,
    /// Reports are not drained.
    NoReports,
    /// The pending table is not read.
    NoPendingCollect,
    /// Neither is.
    NoCollect,
    /// A new flow that fell on a reserved Dcode is placed again but not noted.
    SecondPlacementNotNoted,
    /// States on reserved Dcodes are not pinned.
    NoPins,
    /// They are pinned after the table is published.
    PinAfterPublish,
    /// Pins that the next table will not need are removed before it is published.
    UnpinBeforePublish,
    /// They are removed while settling, when new flows are not noted any more.
    UnpinLate,
    /// A report is consumed before its record is durable.
    ConsumeBeforeLog,
    /// A restarted control plane resumes after Collect, with what it has in its log.
    RestartWithoutCollect,
    /// A first packet is reported before it is noted.
    ReportBeforeNote,
    /// Pins stay for good.
    NeverUnpin,
    /// A pin at another backend than the Dcode's is not followed.
    IgnoreStalePins,
    /// RECORD is stored before PENDING, in two steps.
    TwoStores,
    /// Two copies of a first SYN are decided at the same time on two CPUs.
    OverlappingFirstSyn,
    /// Forgetting an idle flow also deletes its pending entry.
    SweepDeletesPending,
    /// An update that fails ends there and then.
    FailureEnds,
    /// An update that fails clears both flags and ends.
    FailureClearsFlags,
    /// A grace period that failed counts as waited for.
    FailedGraceCounts,
    /// What a failed Collect has collected counts as everything.
    FailedCollectCounts,
    /// With an update that fails goes what was collected for it.
    FailureForgetsCollected,
    /// A table counts as published when it is built.
    DraftCountsAsPublished,
    /// When publishing has failed, the pins of the table that was to be stay, and those of the
    /// published one go.
    RetireForDraft,
    /// When publishing has failed, nothing is retired.
    KeepPinsOfDraft,
    /// No action is tried a second time.
    OneTry,
}

/// What to explore.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Flows that may start, up to [`MAX_FLOWS`].
    pub flows: usize,
    /// Updates in sequence.
    pub updates: u8,
    /// Times that the control plane may die.
    pub crashes: u8,
    /// Times that a flow may end, be forgotten, and another one with its key may start.
    pub reuses: u8,
    /// Actions that may fail.
    pub failures: u8,
    /// Departure from the protocol.
    pub fault: Fault,
}

/// The slot that a flow's Dcode leads to: a backend, or a reserved one and where a new flow would
/// be placed instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Entry {
    owner: u8,
    second: u8,
}

impl Entry {
    const EMPTY: Self = Self::free(NONE);

    const fn free(owner: u8) -> Self {
        Self { owner, second: NONE }
    }

    fn reserved(self) -> bool {
        self.second != NONE
    }
}

/// Everything that concerns one flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Flow {
    /// Backend of its first forwarded packet.
    home: u8,
    /// Its slot in the published table, and in the one that is built.
    entry: Entry,
    built: Entry,
    pending: u8,
    pinned: u8,
    /// The published table needs the pin; and the one that is built.
    pin: bool,
    built_pin: bool,
    /// The state before the update, for [`Fault::FailureForgetsCollected`].
    before: u8,
    /// A report that is not consumed.
    report: u8,
    /// The durable record, and the state in the control plane's memory.
    log: u8,
    state: u8,
    /// It ended, and the control plane has heard of none since: it may be forgotten.
    idle: bool,
    /// 0: done with in this step of the update, 1: to do, 2: half done.
    todo: u8,
}

impl Flow {
    const NEW: Self = Self {
        home: NONE,
        entry: Entry::EMPTY,
        built: Entry::EMPTY,
        pending: NONE,
        pinned: NONE,
        pin: false,
        built_pin: false,
        before: NONE,
        report: NONE,
        log: NONE,
        state: NONE,
        idle: false,
        todo: 0,
    };

    fn backends(&mut self) -> [&mut u8; 11] {
        [
            &mut self.home,
            &mut self.entry.owner,
            &mut self.entry.second,
            &mut self.built.owner,
            &mut self.built.second,
            &mut self.pending,
            &mut self.pinned,
            &mut self.report,
            &mut self.log,
            &mut self.state,
            &mut self.before,
        ]
    }
}

/// The next thing a packet's program does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Stage {
    Idle,
    ReadFlags,
    LookPending,
    LookPinned,
    Note,
    Report,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Cpu {
    stage: Stage,
    flow: u8,
    syn: bool,
    /// The slot in the table that the packet holds.
    entry: Entry,
    flags: u8,
    backend: u8,
    note: bool,
    /// A grace period waits for this packet.
    waited: bool,
    /// It holds a table that is not published any more. The next build overwrites that one.
    old: bool,
}

impl Cpu {
    const IDLE: Self = Self {
        stage: Stage::Idle,
        flow: NONE,
        syn: false,
        entry: Entry::EMPTY,
        flags: 0,
        backend: NONE,
        note: false,
        waited: false,
        old: false,
    };

    fn busy_with(&self, flow: usize) -> bool {
        self.stage != Stage::Idle && usize::from(self.flow) == flow
    }
}

/// What the control plane is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Rest,
    SetFlags(u8),
    GraceBegin,
    GraceEnd,
    CollectBegin,
    Drain,
    ReadPending,
    Build,
    Swap,
    LatePins,
    SettleBegin,
    Settle,
    Unpin,
    /// While settling, for [`Fault::UnpinLate`].
    UnpinLate,
}

/// Why a grace period comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum After {
    Record,
    Publish,
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Control {
    update: Update,
    op: Op,
    after: After,
    left: u8,
    updates: u8,
    crashes: u8,
    failures: u8,
    /// Which pins the published table needs is known: it was published since the last start.
    pins_known: bool,
}

/// A state of the whole system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    flows: [Flow; MAX_FLOWS],
    cpus: [Cpu; CPUS],
    flags: u8,
    control: Control,
    reuses: u8,
    /// A packet went elsewhere than the first one of its flow.
    pub broken: bool,
}

/// Where successors go.
type Sink = search::Sink<State>;

/// All states in which a service can be found before anything happens.
pub fn initial(rules: &Rules) -> Vec<State> {
    let mut states = vec![State {
        flows: [Flow::NEW; MAX_FLOWS],
        cpus: [Cpu::IDLE; CPUS],
        flags: 0,
        control: Control {
            update: Update::begin(),
            op: Op::Rest,
            after: After::Record,
            left: 0,
            updates: rules.updates,
            crashes: rules.crashes,
            failures: rules.failures,
            pins_known: true,
        },
        reuses: rules.reuses,
        broken: false,
    }];
    for flow in 0..rules.flows {
        states = states
            .into_iter()
            .flat_map(|state| {
                state.slots_for(flow).into_iter().map(move |entry| {
                    let mut state = state;
                    state.flows[flow].entry = entry;
                    state
                })
            })
            .collect();
    }
    states
}

impl State {
    /// Whether flows that start are noted although no update is under way: the pending table would
    /// fill up, and then none could start.
    pub fn records_for_ever(&self) -> bool {
        self.control.op == Op::Rest && self.flags & RECORD != 0
    }

    /// All that can happen next.
    pub fn successors(&self, rules: &Rules, sink: &mut Sink) {
        for cpu in 0..CPUS {
            if self.cpus[cpu].stage == Stage::Idle {
                // Idle CPUs are interchangeable.
                if cpu == 0 || self.cpus[0].stage != Stage::Idle {
                    self.arrivals(cpu, rules, sink);
                }
            } else {
                self.packet_step(cpu, rules, sink);
            }
        }
        self.ends(rules, sink);
        self.control_steps(rules, sink);
        if self.control.crashes > 0 {
            let mut next = *self;
            next.crash(rules);
            sink.push(next, || "control: killed; restarts with its log and updates anew".into());
        }
    }

    /// A packet arrives and its program reads the pointer to the published table.
    fn arrivals(&self, cpu: usize, rules: &Rules, sink: &mut Sink) {
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

    /// Flows end, and are forgotten.
    fn ends(&self, rules: &Rules, sink: &mut Sink) {
        for (at, flow) in self.flows.iter().enumerate().take(rules.flows) {
            let mut next = *self;
            if self.reuses > 0
                && flow.home != NONE
                && !self.cpus.iter().any(|cpu| cpu.busy_with(at))
            {
                next.reuses -= 1;
                next.flows[at].home = NONE;
                next.flows[at].idle = true;
                sink.push(next, || format!("flow {at} ends; its key may be used again"));
            }
            // The control plane is one thread: not between a record and its report.
            if flow.idle && flow.state != NONE && flow.todo != 2 {
                let mut next = *self;
                next.flows[at].state = NONE;
                next.flows[at].log = NONE;
                if rules.fault == Fault::SweepDeletesPending {
                    next.flows[at].pending = NONE;
                }
                sink.push(next, || format!("control: forgets flow {at}, which was idle"));
            }
        }
    }

    fn packet_step(&self, cpu: usize, rules: &Rules, sink: &mut Sink) {
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
                } else {
                    next.decided(cpu, packet.entry.owner, packet.flags & RECORD != 0, rules);
                }
                if wanted {
                    text = format!("looks up pending: {}", backend_text(known));
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
    fn went(&self, cpu: usize) -> u8 {
        let packet = self.cpus[cpu];
        let pending = self.flows[usize::from(packet.flow)].pending;
        match packet.stage {
            Stage::LookPending if pending != NONE => pending,
            Stage::Note | Stage::Report => packet.backend,
            _ => packet.entry.owner,
        }
    }

    fn read_flags(&mut self, cpu: usize, flags: u8, rules: &Rules) {
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
    fn decided(&mut self, cpu: usize, backend: u8, note: bool, rules: &Rules) {
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

    fn forward(&mut self, cpu: usize, backend: u8) {
        let flow = &mut self.flows[usize::from(self.cpus[cpu].flow)];
        if flow.home == NONE {
            flow.home = backend;
        }
        self.broken |= flow.home != backend;
        self.cpus[cpu] = Cpu::IDLE;
    }

    /// One step of the control plane, with all its outcomes.
    fn control_steps(&self, rules: &Rules, sink: &mut Sink) {
        let mut next = *self;
        if self.control.failures > 0 {
            self.failures(rules, sink);
        }
        match self.control.op {
            Op::Rest if self.control.updates == 0 => {}
            Op::Rest => {
                next.control.updates -= 1;
                next.begin_update(rules);
                sink.push(next, || "control: begins an update".into());
            }
            Op::SetFlags(flags) => {
                let first = flags & RECORD | self.flags & PENDING;
                if rules.fault == Fault::TwoStores && self.flags != first {
                    next.flags = first;
                } else {
                    next.flags = flags;
                    next.proceed(rules);
                }
                sink.push(next, || format!("control: sets flags: {}", flags_text(next.flags)));
            }
            Op::GraceBegin => {
                for cpu in &mut next.cpus {
                    cpu.waited = cpu.stage != Stage::Idle;
                }
                next.control.op = Op::GraceEnd;
                sink.push(next, || "control: begins to wait for packets".into());
            }
            Op::GraceEnd if self.cpus.iter().any(|cpu| cpu.waited) => {}
            Op::GraceEnd => {
                next.proceed(rules);
                sink.push(next, || "control: has waited for them".into());
            }
            Op::CollectBegin => {
                next.collect_begin(rules);
                sink.push(next, || "control: begins to collect".into());
            }
            Op::Drain | Op::ReadPending | Op::Settle => self.each_flow(rules, sink),
            Op::Build => self.build(rules, sink),
            Op::Swap => {
                next.swap(rules);
                sink.push(next, || {
                    let mut text = "control: publishes the table".to_owned();
                    for flow in 0..rules.flows {
                        let slot = slot_text(self.flows[flow].built);
                        let _ = write!(text, "; flow {flow}: {slot}");
                    }
                    let reading = |cpu: &&Cpu| cpu.stage == Stage::ReadFlags;
                    if self.cpus.iter().any(|cpu| reading(&cpu)) {
                        let _ = write!(text, "; packets that hold the old one read its flags");
                    }
                    text
                });
            }
            Op::LatePins => {
                for flow in &mut next.flows[..rules.flows] {
                    if flow.pin {
                        flow.pinned = flow.state;
                    }
                }
                next.proceed(rules);
                sink.push(next, || "control: pins".into());
            }
            Op::SettleBegin => {
                next.control.left = 0;
                next.begin_flows(rules, Op::Settle, |_| true);
                sink.push(next, || "control: begins to settle".into());
            }
            Op::Unpin | Op::UnpinLate => {
                for flow in &mut next.flows[..rules.flows] {
                    if !self.needs_pin(flow) && rules.fault != Fault::NeverUnpin {
                        flow.pinned = NONE;
                    }
                }
                match self.control.op {
                    Op::Unpin => next.proceed(rules),
                    _ => next.settled(rules),
                }
                sink.push(next, || "control: removes pins that no table needs".into());
            }
        }
    }

    /// Drain, ReadPending, Settle: one flow at a time, in any order.
    fn each_flow(&self, rules: &Rules, sink: &mut Sink) {
        for at in 0..rules.flows {
            let now = self.flows[at];
            if now.todo == 0 {
                continue;
            }
            let mut next = *self;
            let flow = &mut next.flows[at];
            let text = match (self.control.op, now.todo) {
                (Op::Drain, 1) if rules.fault == Fault::ConsumeBeforeLog => {
                    flow.state = now.report;
                    flow.report = NONE;
                    flow.idle = false;
                    flow.todo = 2;
                    "consumes its report"
                }
                (Op::Drain, 1) => {
                    flow.log = now.report;
                    flow.todo = 2;
                    "logs its report"
                }
                (Op::Drain, _) if rules.fault == Fault::ConsumeBeforeLog => {
                    flow.log = now.state;
                    flow.todo = 0;
                    "logs its report"
                }
                (Op::Drain, _) => {
                    flow.state = now.log;
                    flow.idle = false;
                    flow.todo = 0;
                    // A later report of the same key stays for the next time.
                    if now.report == now.log {
                        flow.report = NONE;
                    }
                    "consumes its report"
                }
                (Op::ReadPending, _) => {
                    if now.pending != NONE {
                        flow.state = now.pending;
                        flow.idle = false;
                    }
                    flow.todo = 0;
                    "reads its pending entry"
                }
                (_, 1) => {
                    let draft = rules.fault == Fault::DraftCountsAsPublished;
                    let table =
                        if draft && now.built != Entry::EMPTY { now.built } else { now.entry };
                    let agrees = table == Entry::free(now.pending);
                    if now.pending == NONE {
                        flow.todo = 0;
                    } else if agrees || rules.fault == Fault::SettleAll {
                        flow.todo = 2;
                    } else {
                        flow.todo = 0;
                        next.control.left += u8::from(!table.reserved());
                    }
                    "compares its pending entry"
                }
                (_, _) => {
                    flow.pending = NONE;
                    flow.todo = 0;
                    "deletes its pending entry"
                }
            };
            next.flows_done(rules);
            sink.push(next, || format!("control: flow {at}: {text}"));
        }
    }

    fn begin_flows(&mut self, rules: &Rules, op: Op, todo: impl Fn(&Flow) -> bool) {
        self.control.op = op;
        for flow in &mut self.flows[..rules.flows] {
            flow.todo = u8::from(todo(flow));
        }
        self.flows_done(rules);
    }

    fn flows_done(&mut self, rules: &Rules) {
        if self.flows.iter().any(|flow| flow.todo != 0) {
            return;
        }
        match self.control.op {
            Op::Drain => self.read_pending(rules),
            Op::ReadPending => self.proceed(rules),
            _ if rules.fault == Fault::UnpinLate => self.control.op = Op::UnpinLate,
            _ => self.settled(rules),
        }
    }

    /// Only the reports that are there now are certain to be drained.
    fn collect_begin(&mut self, rules: &Rules) {
        if matches!(rules.fault, Fault::NoReports | Fault::NoCollect) {
            self.read_pending(rules);
        } else {
            self.begin_flows(rules, Op::Drain, |flow| flow.report != NONE);
        }
    }

    fn read_pending(&mut self, rules: &Rules) {
        if matches!(rules.fault, Fault::NoPendingCollect | Fault::NoCollect) {
            self.proceed(rules);
        } else {
            self.begin_flows(rules, Op::ReadPending, |_| true);
        }
    }

    /// Every table that the adversary can make of the states, with the pins that it needs.
    fn tables(&self, rules: &Rules) -> Vec<State> {
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
    fn build(&self, rules: &Rules, sink: &mut Sink) {
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
    fn slots_for(&self, at: usize) -> Vec<Entry> {
        let flow = &self.flows[at];
        let fresh = self.fresh(at);
        if flow.state != NONE {
            // At its backend, or at its backend's reserved Dcode.
            return vec![Entry::free(flow.state), Entry { owner: flow.state, second: fresh }];
        }
        let mut slots = vec![Entry::free(fresh), Entry { owner: fresh, second: fresh + 1 }];
        let in_flight = self.cpus.iter().filter(|cpu| cpu.busy_with(at));
        let chosen = [flow.home, flow.pending]
            .into_iter()
            .chain(in_flight.map(|cpu| cpu.backend))
            .find(|&backend| backend != NONE);
        if let Some(right) = chosen {
            slots.push(Entry::free(right));
            slots.push(Entry { owner: right, second: fresh });
            slots.push(Entry { owner: fresh, second: right });
        }
        slots
    }

    fn swap(&mut self, rules: &Rules) {
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

    fn settled(&mut self, rules: &Rules) {
        let left = std::mem::take(&mut self.control.left);
        self.control.update.settled(usize::from(left));
        self.begin_action(rules);
    }

    fn begin_update(&mut self, rules: &Rules) {
        self.control.update = match rules.fault {
            Fault::OneTry => Update::begin_with_tries(1),
            _ => Update::begin(),
        };
        for flow in &mut self.flows[..rules.flows] {
            flow.built = Entry::EMPTY;
            if rules.fault == Fault::FailureForgetsCollected {
                flow.before = flow.state;
            }
        }
        self.begin_action(rules);
    }

    /// The action is performed: on to the next one.
    fn proceed(&mut self, rules: &Rules) {
        self.control.update.done();
        self.begin_action(rules);
    }

    /// Asks the protocol for the action to perform, and leaves out what the fault leaves out.
    fn begin_action(&mut self, rules: &Rules) {
        self.control.op = loop {
            let Some(action) = self.control.update.action() else {
                break Op::Rest;
            };
            match action {
                Action::SetFlags { record, pending } => {
                    let word =
                        Flags::default().with(Flags::RECORD, record).with(Flags::PENDING, pending);
                    self.control.after = if record { After::Record } else { After::Stop };
                    match rules.fault {
                        Fault::RecordAfterPublish if record => {}
                        Fault::StopPendingEarly if !record => break Op::SetFlags(0),
                        _ => break Op::SetFlags(word.0 as u8),
                    }
                }
                Action::Grace => {
                    let skipped = match self.control.after {
                        After::Record => rules.fault == Fault::NoFirstGrace,
                        After::Publish => {
                            matches!(rules.fault, Fault::NoSecondGrace | Fault::SettleBeforeGrace)
                        }
                        After::Stop => {
                            matches!(rules.fault, Fault::NoThirdGrace | Fault::SettleBeforeGrace)
                        }
                    };
                    if !skipped {
                        break Op::GraceBegin;
                    }
                }
                Action::Collect => break Op::CollectBegin,
                Action::Publish => {
                    self.control.after = After::Publish;
                    break Op::Build;
                }
                Action::Retire if rules.fault == Fault::UnpinLate => {}
                Action::Retire => break Op::Unpin,
                Action::Settle => break Op::SettleBegin,
            }
            self.control.update.done();
        };
    }

    /// The operation under way fails: before it has done anything, or in the middle.
    fn failures(&self, rules: &Rules, sink: &mut Sink) {
        let text = match self.control.op {
            Op::Rest | Op::GraceEnd | Op::LatePins | Op::UnpinLate => return,
            Op::SetFlags(_) => "cannot set the flags",
            Op::GraceBegin => "cannot wait for packets",
            Op::CollectBegin | Op::Drain | Op::ReadPending => "cannot collect",
            Op::Build => "cannot build a table, or pin all that it needs",
            Op::Swap => "cannot publish the table",
            Op::SettleBegin | Op::Settle => "cannot settle",
            Op::Unpin => "cannot remove pins",
        };
        let partly = match self.control.op {
            // Some of its pins may stand, but not all: that is when publishing fails.
            Op::Build => self.tables(rules).iter().flat_map(|state| state.pinned(rules)).collect(),
            Op::Unpin => self.unpinned(rules),
            _ => vec![*self],
        };
        for mut next in partly {
            next.control.failures -= 1;
            next.fail(rules);
            sink.push(next, || format!("control: {text}"));
        }
    }

    /// After a restart, what is known tells.
    fn needs_pin(&self, flow: &Flow) -> bool {
        if self.control.pins_known { flow.pin } else { flow.pinned == flow.state }
    }

    /// This state with each subset of the built table's pins inserted, the whole of them apart.
    fn pinned(&self, rules: &Rules) -> Vec<State> {
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
    fn unpinned(&self, rules: &Rules) -> Vec<State> {
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

    /// What the protocol makes of it, less what the fault leaves out.
    fn fail(&mut self, rules: &Rules) {
        let publishing = matches!(self.control.op, Op::Build | Op::Swap);
        self.control.left = 0;
        for flow in &mut self.flows[..rules.flows] {
            flow.todo = 0;
            if rules.fault != Fault::DraftCountsAsPublished {
                flow.built = Entry::EMPTY;
            }
            let draft = std::mem::take(&mut flow.built_pin);
            if publishing && rules.fault == Fault::RetireForDraft {
                flow.pin = draft;
            }
            if rules.fault == Fault::FailureForgetsCollected {
                (flow.state, flow.log) = (flow.before, flow.before);
            }
        }
        let action = self.control.update.action();
        match rules.fault {
            Fault::FailureEnds | Fault::FailureClearsFlags => {
                if rules.fault == Fault::FailureClearsFlags {
                    self.flags = 0;
                }
                self.control.op = Op::Rest;
                return;
            }
            Fault::FailedGraceCounts if action == Some(Action::Grace) => {
                return self.proceed(rules);
            }
            Fault::FailedCollectCounts if action == Some(Action::Collect) => {
                return self.proceed(rules);
            }
            _ => {
                self.control.update.failed();
            }
        }
        if publishing && rules.fault == Fault::KeepPinsOfDraft {
            self.control.update.done();
        }
        self.begin_action(rules);
    }

    /// What is in the kernel and on the disk stays.
    fn crash(&mut self, rules: &Rules) {
        for flow in &mut self.flows[..rules.flows] {
            flow.state = flow.log;
            flow.built = Entry::EMPTY;
            flow.pin = false;
            flow.built_pin = false;
            flow.todo = 0;
        }
        for cpu in &mut self.cpus {
            cpu.waited = false;
        }
        self.control.crashes -= 1;
        self.control.left = 0;
        self.control.pins_known = false;
        self.begin_update(rules);
        if rules.fault == Fault::RestartWithoutCollect {
            while self.control.op != Op::CollectBegin {
                self.proceed(rules);
            }
            self.proceed(rules);
        }
    }

    /// A backend that the flow has not met.
    fn fresh(&self, at: usize) -> u8 {
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

    fn working_on(&self, flow: u8) -> usize {
        let busy = |cpu: &&Cpu| cpu.busy_with(usize::from(flow));
        self.cpus.iter().filter(busy).count()
    }
}

fn backend_text(backend: u8) -> String {
    match backend {
        NONE => "none".to_owned(),
        name => format!("backend {name}"),
    }
}

fn slot_text(entry: Entry) -> String {
    match entry.second {
        NONE => backend_text(entry.owner),
        second => format!(
            "reserved for {}, second choice {}",
            backend_text(entry.owner),
            backend_text(second)
        ),
    }
}

fn flags_text(flags: u8) -> &'static str {
    match (flags & RECORD != 0, flags & PENDING != 0) {
        (true, true) => "RECORD PENDING",
        (true, false) => "RECORD",
        (false, true) => "PENDING",
        (false, false) => "none",
    }
}
