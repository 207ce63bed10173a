//! The switch's registers and tables, as `p4/weir.p4` and `p4/sizes.p4` have them.

/// Services, and places in the registers that have one for each.
pub const SERVICES: u32 = 256;
/// Backends.
pub const BACKENDS: u32 = 4096;
/// Cells of each of Concury's two arrays.
pub const CELLS: u32 = 524_288;
/// Entries of DIP arrays and rows.
pub const SLOTS: u32 = 524_288;
/// Sets of the pending table.
pub const PENDING_SETS: u32 = 2048;
/// Flows of a set.
pub const PENDING_WAYS: u32 = 4;
/// Places of pending flows; behind them are those of tracked ones.
pub const PENDING_PLACES: u32 = PENDING_SETS * PENDING_WAYS;
/// Sets of tracked flows.
pub const TRACKED_SETS: u32 = 16_384;
/// Places of tracked flows.
pub const TRACKED_PLACES: u32 = TRACKED_SETS * PENDING_WAYS;
/// Places of both.
pub const PLACES: u32 = PENDING_PLACES + TRACKED_PLACES;
/// Partitions of connections by index.
pub const PARTITIONS: u32 = 8;
/// Connections by index.
pub const CONNECTIONS: u32 = PARTITIONS * weir_steering::cheetah::PARTITION_SLOTS;
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
/// Ports. 0 stands for the one that a packet came in by, the last one for none.
pub const PORTS: u32 = 512;
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

            /// Those that hold tables, the largest ones: a packet reads nothing there but what was written for it.
            pub const OF_TABLES: [Self; 3] = [Self::Slots, Self::CellsA, Self::CellsB];
            /// Those that are read only where another one says that somebody is there, likewise.
            pub const BEHIND_OTHERS: [Self; 8] = [
                Self::Pending0,
                Self::Pending1,
                Self::Pending2,
                Self::Tracked,
                Self::Ring0,
                Self::Ring1,
                Self::Ring2,
                Self::Ring3,
            ];
            /// Those of connections by index, likewise large.
            pub const OF_SLOTS: [Self; 6] = [
                Self::SlotHigh,
                Self::SlotLow,
                Self::SlotWords,
                Self::FreeSlots,
                Self::SlotsUsed,
                Self::Hands,
            ];

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
    /// Of each backend, whether it is present and whether it is down, and its incarnation.
    States = "states", 32, BACKENDS;
    /// DIP arrays, rows, and the numbers of servers that take new connections.
    Slots = "slots", 16, SLOTS;
    /// Concury's array A; Cheetah's servers.
    CellsA = "cells_a", 16, CELLS;
    /// Concury's array B.
    CellsB = "cells_b", 16, CELLS;
    /// Pending flows, first word.
    Pending0 = "pending_0", 48, PLACES;
    /// Second word.
    Pending1 = "pending_1", 48, PLACES;
    /// Third word.
    Pending2 = "pending_2", 48, PLACES;
    /// Fourth word, with the backend plus one; of a tracked flow, the number of its server plus one.
    Pending3 = "pending_3", 48, PLACES;
    /// Of tracked flows their slots' places plus one, their backends' incarnations, and when they were used last.
    Tracked = "tracked", 63, TRACKED_PLACES;
    /// Seconds.
    Clock = "clock", 48, 1;
    /// Whose turn it is at each service.
    Turns = "turns", 48, SERVICES;
    /// Hashes of connections by index, their high halves.
    SlotHigh = "slot_high", 32, CONNECTIONS;
    /// Their low halves.
    SlotLow = "slot_low", 32, CONNECTIONS;
    /// When each was used last, how far it is, and the number and the backend of its server.
    SlotWords = "slot_words", 63, CONNECTIONS;
    /// Free slots of each partition.
    FreeSlots = "free_slots", 16, CONNECTIONS;
    /// Slots of each partition that are in use.
    SlotsUsed = "slots_used", 16, PARTITIONS;
    /// Where the search for slots whose time is up goes on in each partition.
    Hands = "hands", 16, PARTITIONS;
    /// Of each service what found no slot, or none of its own; and its first partition, and how many.
    SlotCounts = "slot_counts", 48, SERVICES * 4;
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
    /// By port, the index of the interface whose packets are taken, or 0; from [`PORTS`] on, of which one the port is.
    Links = "links", 32, PORTS * 2;
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
