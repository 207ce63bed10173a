//! What the protocol can be without, to see that it breaks.

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
    /// Packets stop asking for pending flows although a backend was found down meanwhile.
    ClearThoughDown,
    /// A backend may be found down between settling and the end of the update.
    MarkBeforeClear,
    /// And right after it, without waiting for packets under way.
    MarkWithoutGrace,
    /// What is reported while a table is built counts as if it were in it.
    ReportCountsAsBuilt,
    /// No action is tried a second time.
    OneTry,
}
