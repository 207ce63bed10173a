//! Everything that a state of the system is made of.

use super::{CPUS, MAX_FLOWS, NONE};
use weir_steering::Update;

/// The slot that a flow's Dcode leads to: a backend, or a reserved one and where a new flow would
/// be placed instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Entry {
    pub(super) owner: u8,
    pub(super) second: u8,
}

impl Entry {
    pub(super) const EMPTY: Self = Self::free(NONE);

    pub(super) const fn free(owner: u8) -> Self {
        Self { owner, second: NONE }
    }

    pub(super) fn reserved(self) -> bool {
        self.second != NONE
    }
}

/// Everything that concerns one flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Flow {
    /// Backend of its first forwarded packet.
    pub(super) home: u8,
    /// Its slot in the published table, and in the one that is built.
    pub(super) entry: Entry,
    pub(super) built: Entry,
    pub(super) pending: u8,
    pub(super) pinned: u8,
    /// Where the published table needs it pinned, if it does; and the one that is built.
    pub(super) pin: u8,
    pub(super) built_pin: u8,
    /// Its pin was needed by a table before the published one.
    pub(super) stale: bool,
    /// The state before the update, for [`Fault::FailureForgetsCollected`].
    pub(super) before: u8,
    /// A report that is not consumed.
    pub(super) report: u8,
    /// The durable record, and the state in the control plane's memory.
    pub(super) log: u8,
    pub(super) state: u8,
    /// What *collect* has read in the pending table, and has not taken up.
    pub(super) found: u8,
    /// A backend that is down.
    pub(super) down: u8,
    /// It ended, and the control plane has heard of none since: it may be forgotten.
    pub(super) idle: bool,
    /// 0: done with in this step of the update, 1: to do, 2: half done.
    pub(super) todo: u8,
}

impl Flow {
    pub(super) const NEW: Self = Self {
        home: NONE,
        entry: Entry::EMPTY,
        built: Entry::EMPTY,
        pending: NONE,
        pinned: NONE,
        pin: NONE,
        built_pin: NONE,
        stale: false,
        before: NONE,
        report: NONE,
        log: NONE,
        state: NONE,
        found: NONE,
        down: NONE,
        idle: false,
        todo: 0,
    };

    pub(super) fn backends(&mut self) -> [&mut u8; 15] {
        [
            &mut self.home,
            &mut self.entry.owner,
            &mut self.entry.second,
            &mut self.built.owner,
            &mut self.built.second,
            &mut self.pending,
            &mut self.pinned,
            &mut self.pin,
            &mut self.built_pin,
            &mut self.report,
            &mut self.log,
            &mut self.state,
            &mut self.found,
            &mut self.before,
            &mut self.down,
        ]
    }
}

/// The next thing a packet's program does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    Idle,
    ReadFlags,
    LookPending,
    /// Is the backend down?
    LookDown,
    LookPinned,
    Note,
    Report,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Cpu {
    pub(super) stage: Stage,
    pub(super) flow: u8,
    pub(super) syn: bool,
    /// The slot in the table that the packet holds.
    pub(super) entry: Entry,
    pub(super) flags: u8,
    pub(super) backend: u8,
    pub(super) note: bool,
    /// A grace period waits for this packet.
    pub(super) waited: bool,
    /// It may have read flags that were cleared since.
    pub(super) early: bool,
    /// It holds a table that is not published any more. The next build overwrites that one.
    pub(super) old: bool,
}

impl Cpu {
    pub(super) const IDLE: Self = Self {
        stage: Stage::Idle,
        flow: NONE,
        syn: false,
        entry: Entry::EMPTY,
        flags: 0,
        backend: NONE,
        note: false,
        waited: false,
        early: false,
        old: false,
    };

    pub(super) fn busy_with(&self, flow: usize) -> bool {
        self.stage != Stage::Idle && usize::from(self.flow) == flow
    }
}

/// What the control plane is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Op {
    Rest,
    SetFlags(u8),
    GraceBegin,
    GraceEnd,
    CollectBegin,
    Drain,
    ReadPending,
    TakeUp,
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
pub(super) enum After {
    Record,
    Publish,
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Control {
    pub(super) update: Update,
    pub(super) op: Op,
    pub(super) after: After,
    pub(super) left: u8,
    pub(super) updates: u8,
    pub(super) crashes: u8,
    pub(super) failures: u8,
    pub(super) marks: u8,
    pub(super) drains: u8,
    /// A backend was found down since the update has begun.
    pub(super) kept_off: bool,
    /// Which pins the published table needs is known: it was published since the last start.
    pub(super) pins_known: bool,
    /// As the driver has it ([`Kept`](weir_steering::update::parts::Kept)).
    pub(super) unread: bool,
    pub(super) doubtful: bool,
}

/// A state of the whole system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) flows: [Flow; MAX_FLOWS],
    pub(super) cpus: [Cpu; CPUS],
    pub(super) flags: u8,
    pub(super) control: Control,
    pub(super) reuses: u8,
    /// A packet went elsewhere than the first one of its flow.
    pub broken: bool,
}
