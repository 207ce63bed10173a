// How much room there is. The control plane refuses what does not fit; the crate `plane-p4` has the same
// numbers (src/layout.rs), and a test reads them from here.

const bit<32> SERVICES = 256;
const bit<32> BACKENDS = 4096;
const bit<32> CELLS = 524288; // of each of Concury's two arrays, of all services and both versions together
const bit<32> SLOTS = 524288; // entries of DIP arrays, rows of residue and servers' lists, likewise
// Sets of the pending table, of PENDING_WAYS flows each; behind them those of tracked flows; and all their places.
const bit<32> PENDING_SETS = 2048; const bit<32> PENDING_WAYS = 4; const bit<32> PENDING_PLACES = 8192;
const bit<32> TRACKED_SETS = 16384; const bit<32> TRACKED_PLACES = 65536; const bit<32> PLACES = 73728;
const bit<32> RING = 16384; // reports that the control plane has not taken yet; a power of two
// Words of activity marks in each of two halves, powers of two.
const bit<32> MARK_WORDS = 8192; const bit<32> STRANGER_WORDS = 8192;
// Lines of the filter of datagrams seen recently, of SEEN_WAYS tags each.
const bit<32> SEEN_LINES = 4096; const bit<32> SEEN_WAYS = 8;
const bit<32> PARTITIONS = 8; const bit<32> CONNECTIONS = 262144; // of 32,768 connections by index each
const bit<32> SLOT_COUNTS = 1024;
const bit<32> REASONS = 64; // their numbers are below this
