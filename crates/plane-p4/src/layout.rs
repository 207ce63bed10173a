//! The switch's registers and tables, as `p4/weir.p4` and `p4/sizes.p4` have them.

/// Services, and places in the registers that have one for each.
pub const SERVICES: u32 = 256;
/// Backends.
pub const BACKENDS: u32 = 4096;
/// Cells of each of Concury's two arrays.
pub const CELLS: u32 = 524_288;
/// Entries of DIP arrays and rows.
pub const SLOTS: u32 = 262_144;
/// Sets of the pending table.
pub const PENDING_SETS: u32 = 2048;
/// Flows of a set.
pub const PENDING_WAYS: u32 = 4;
/// Reports that wait.
pub const RING: u32 = 16_384;
/// Words of marks in a half.
pub const MARK_WORDS: u32 = 8192;
/// Words of strangers in a half.
pub const STRANGER_WORDS: u32 = 8192;
/// Lines of the filter of datagrams.
pub const SEEN_LINES: u32 = 4096;
/// Tags of a line.
pub const SEEN_WAYS: u32 = 8;
/// Reasons are below this.
pub const REASONS: u32 = 64;
/// Entries of `exceptions`.
pub const EXCEPTIONS: u32 = 262_144;
/// Pinned states.
pub const PINS: u32 = 65_536;

macro_rules! registers {
    ($($(#[doc = $text:literal])* $variant:ident = $name:literal, $bits:literal, $size:expr;)*) => {
        /// A register array of the program.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub enum Register {
            $($(#[doc = $text])* $variant,)*
        }

        impl Register {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in the program.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits of an element.
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }

            /// Elements.
            pub const fn size(self) -> u32 {
                match self { $(Self::$variant => $size,)* }
            }
        }
    };
}

registers! {
    /// Of each service, whether it has a table and which of its two, and its flags.
    Selectors = "selectors", 48, SERVICES;
    /// Of each backend, whether it is present and whether it is down.
    States = "states", 32, BACKENDS;
    /// DIP arrays and rows.
    Slots = "slots", 16, SLOTS;
    /// Concury's array A.
    CellsA = "cells_a", 16, CELLS;
    /// Concury's array B.
    CellsB = "cells_b", 16, CELLS;
    /// Pending flows, first word.
    Pending0 = "pending_0", 48, PENDING_SETS * PENDING_WAYS;
    /// Second word.
    Pending1 = "pending_1", 48, PENDING_SETS * PENDING_WAYS;
    /// Third word.
    Pending2 = "pending_2", 48, PENDING_SETS * PENDING_WAYS;
    /// Fourth word, with the backend plus one.
    Pending3 = "pending_3", 48, PENDING_SETS * PENDING_WAYS;
    /// Reports, first word.
    Ring0 = "ring_0", 48, RING;
    /// Second word.
    Ring1 = "ring_1", 48, RING;
    /// Third word.
    Ring2 = "ring_2", 48, RING;
    /// Fourth word, with the backend and its kind.
    Ring3 = "ring_3", 48, RING;
    /// Reports written.
    RingHead = "ring_head", 48, 1;
    /// Reports taken.
    RingTail = "ring_tail", 48, 1;
    /// Reports that found no room.
    RingLost = "ring_lost", 48, 1;
    /// Words of marks, both halves.
    Marks = "marks", 64, MARK_WORDS * 2;
    /// Halves of the words of strangers, both halves of the time.
    Strangers = "strangers", 32, STRANGER_WORDS * 4;
    /// Which half is written.
    MarkSide = "mark_side", 48, 1;
    /// Tags of datagrams' flows, their high halves.
    SeenHigh = "seen_high", 32, SEEN_LINES * SEEN_WAYS;
    /// Their low halves, with the generation.
    SeenLow = "seen_low", 32, SEEN_LINES * SEEN_WAYS;
    /// The generation that is written.
    SeenGeneration = "seen_generation", 48, 1;
    /// Packets to each backend.
    LanePackets = "lane_packets", 48, BACKENDS;
    /// Their bytes.
    LaneBytes = "lane_bytes", 48, BACKENDS;
    /// Flows that began.
    LaneFlows = "lane_flows", 48, BACKENDS;
    /// Packets left alone, by reason.
    Passed = "passed", 48, REASONS;
    /// Packets dropped, by reason.
    Dropped = "dropped", 48, REASONS;
    /// Packets whose processing has begun.
    Begun = "begun", 48, 1;
    /// And has ended.
    Ended = "ended", 48, 1;
    /// What was written when it was filled.
    Epoch = "epoch", 48, 1;
}

macro_rules! tables {
    ($($(#[doc = $text:literal])* $variant:ident = $name:literal, $size:expr, [$($bits:literal),*];)*) => {
        /// A table of the program.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub enum Table {
            $($(#[doc = $text])* $variant,)*
        }

        impl Table {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in the program.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Entries at most.
            pub const fn size(self) -> u32 {
                match self { $(Self::$variant => $size,)* }
            }

            /// Bits of each part of its key.
            pub const fn key_bits(self) -> &'static [u32] {
                match self { $(Self::$variant => &[$($bits),*],)* }
            }
        }
    };
}

tables! {
    /// Services by address, protocol and port.
    Services = "services", 1024, [128, 8, 16];
    /// Services that take any port.
    AnyPort = "any_port", 1024, [128, 8];
    /// Addresses of services.
    Addresses = "addresses", 1024, [128];
    /// Our MAC addresses.
    OwnMacs = "own_macs", 64, [48];
    /// Published tables: where they are in the registers.
    Images = "images", 512, [32];
    /// The key of the pending table; without it nothing is decided.
    PlaneKeys = "plane_keys", 1, [];
    /// Pinned states.
    Pins = "pins", PINS, [16, 128, 32];
    /// Residue's exceptions.
    Exceptions = "exceptions", EXCEPTIONS, [32, 64];
    /// How a backend is reached.
    Backends = "backends", BACKENDS, [16];
}
