//! What a plane of memory can be asked, how often it was, and what it refuses on demand.

use super::Soft;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

/// What a [`Soft`] plane can be asked, and can be told to refuse.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Operation {
    /// Change the flags of a table.
    SetFlags,
    /// Wait for packets.
    Grace,
    /// Take the reports.
    Drain,
    /// Read the pending table.
    ReadPending,
    /// Remove from the pending table.
    ForgetPending,
    /// Read the pins.
    ReadPins,
    /// Pin a state.
    Pin,
    /// Remove pins.
    Unpin,
    /// Put a connection into the connection table.
    Track,
    /// Publish a table.
    Show,
    /// Take memory of another size.
    Resize,
    /// Let packets find a service.
    SetService,
    /// Remove a service.
    RemoveService,
    /// Change the sources that a service takes packets from.
    SetSources,
    /// Change how many new flows a service takes.
    SetFlowCaps,
    /// Read a published table back.
    ReadTable,
    /// Set what is known of a backend.
    SetBackend,
    /// Clear a backend's counters.
    ResetLane,
    /// Read counters.
    ReadCounters,
    /// Look a flow up in the pending or the connection table.
    LookUp,
    /// Begin another period of marks, and tell packets which connections live.
    FlipMarks,
    /// Tell which marks are waited for.
    Watch,
    /// Read the marks of a period.
    TakeMarks,
    /// Read single marks, or which connections packets know.
    ReadMarks,
    /// Sweep the slots of a connection table with cookies.
    SweepSlots,
    /// Read which flows were seen recently.
    ReadSeen,
    /// Put reports aside in a flood.
    PutAside,
    /// Take the addresses of interfaces.
    OwnMacs,
    /// Attach to interfaces.
    Attach,
    /// Make memory of another size, which takes its time.
    PrepareResize,
    /// Have another program see what is not its own.
    HandOn,
    /// Say how frames leave by interfaces.
    SetDevices,
    /// Name the members of bonds.
    SetMembers,
    /// Read what routers have said of ways.
    ReadPaths,
    /// Count what was lost on its way out.
    ReadLost,
    /// Forget where frames for a backend went.
    ForgetHop,
    /// Make what looks at packets, which takes its time.
    PrepareTrace,
    /// Look at packets.
    Trace,
    /// Go on looking.
    KeepTracing,
    /// Look no more.
    EndTrace,
    /// Read how many connections prefixes hold.
    ReadHeld,
    /// Set right how many they hold.
    CorrectHeld,
    /// Count those out that have ended.
    ReleaseHeld,
    /// Make memory in which tables stand side by side, which takes its time.
    PreparePacking,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 44] = [
        Self::SetFlags,
        Self::Grace,
        Self::Drain,
        Self::ReadPending,
        Self::ForgetPending,
        Self::ReadPins,
        Self::Pin,
        Self::Unpin,
        Self::Track,
        Self::Show,
        Self::Resize,
        Self::SetService,
        Self::RemoveService,
        Self::SetSources,
        Self::SetFlowCaps,
        Self::ReadTable,
        Self::SetBackend,
        Self::ResetLane,
        Self::ReadCounters,
        Self::LookUp,
        Self::FlipMarks,
        Self::Watch,
        Self::TakeMarks,
        Self::ReadMarks,
        Self::SweepSlots,
        Self::ReadSeen,
        Self::PutAside,
        Self::OwnMacs,
        Self::Attach,
        Self::PrepareResize,
        Self::HandOn,
        Self::SetDevices,
        Self::SetMembers,
        Self::ReadPaths,
        Self::ReadLost,
        Self::ForgetHop,
        Self::PrepareTrace,
        Self::Trace,
        Self::KeepTracing,
        Self::EndTrace,
        Self::ReadHeld,
        Self::CorrectHeld,
        Self::ReleaseHeld,
        Self::PreparePacking,
    ];
}

/// Why a [`Soft`] plane refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SoftError {
    /// It was told to.
    #[error("refused on demand: {0:?}")]
    OnDemand(Operation),
    /// There is no room: its bound is reached.
    #[error("no room: {0:?}")]
    Full(Operation),
}

/// Bounds of a [`Soft`] plane; none of them bounds it at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all tables, those that are superseded and not retired included.
    pub table_bytes: usize,
    /// Bytes of the largest table that finds room in a row, until its memory is made anew.
    pub piece: usize,
    /// The most pins, of all services together.
    pub pins: usize,
    /// The most services that packets can find.
    pub services: usize,
    /// Numbers of backends are below this.
    pub backends: usize,
    /// The most reports that wait.
    pub reports: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            table_bytes: usize::MAX,
            piece: usize::MAX,
            pins: usize::MAX,
            services: usize::MAX,
            backends: usize::MAX,
            reports: usize::MAX,
        }
    }
}

/// A refusal that is asked for.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// Times that it is still granted.
    granted: u32,
    /// Times that it is then refused.
    refused: u32,
}

/// What was asked of a plane, and what it is to refuse.
#[derive(Debug, Default)]
pub(super) struct Demand {
    asked: RefCell<BTreeMap<Operation, u64>>,
    refusals: RefCell<BTreeMap<Operation, Refusal>>,
}

/// What goes on between the steps of whoever asks a [`Soft`] plane for something.
#[derive(Default)]
pub struct Between(Option<Happens>);

type Happens = Box<dyn FnMut(&mut Soft) + Send>;

impl Between {
    /// This happens before each step that changes something.
    pub fn steps(happens: impl FnMut(&mut Soft) + Send + 'static) -> Self {
        Self(Some(Box::new(happens)))
    }
}

impl fmt::Debug for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Between(..)" } else { "Between" })
    }
}

impl Soft {
    /// As [`ask`](Self::ask), for what changes something.
    pub(super) fn ask_to(&mut self, operation: Operation) -> Result<(), SoftError> {
        if let Some(mut happens) = self.between.0.take() {
            happens(self);
            self.between.0.get_or_insert(happens);
        }
        self.ask(operation)
    }

    /// Grants an operation `granted` times more, and then refuses it `refused` times.
    pub fn refuse_after(&mut self, operation: Operation, granted: u32, refused: u32) {
        self.demand.refusals.borrow_mut().insert(operation, Refusal { granted, refused });
    }

    /// Refuses an operation from now on.
    pub fn refuse(&mut self, operation: Operation) {
        self.refuse_after(operation, 0, u32::MAX);
    }

    /// Refuses nothing any more.
    pub fn refuse_nothing(&mut self) {
        self.demand.refusals.borrow_mut().clear();
    }

    /// How often an operation was asked for.
    pub fn asked(&self, operation: Operation) -> u64 {
        self.demand.asked.borrow().get(&operation).copied().unwrap_or(0)
    }

    pub(super) fn ask(&self, operation: Operation) -> Result<(), SoftError> {
        *self.demand.asked.borrow_mut().entry(operation).or_default() += 1;
        let mut refusals = self.demand.refusals.borrow_mut();
        let Some(refusal) = refusals.get_mut(&operation) else { return Ok(()) };
        if refusal.granted > 0 {
            refusal.granted -= 1;
            return Ok(());
        }
        if refusal.refused > 0 {
            refusal.refused -= u32::from(refusal.refused < u32::MAX);
            return Err(SoftError::OnDemand(operation));
        }
        Ok(())
    }
}
