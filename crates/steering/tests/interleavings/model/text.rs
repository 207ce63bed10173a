//! Words for labels of steps.

use super::state::Entry;
use super::{NONE, PENDING, RECORD};

pub(super) fn backend_text(backend: u8) -> String {
    match backend {
        NONE => "none".to_owned(),
        name => format!("backend {name}"),
    }
}

pub(super) fn slot_text(entry: Entry) -> String {
    match entry.second {
        NONE => backend_text(entry.owner),
        second => format!(
            "reserved for {}, second choice {}",
            backend_text(entry.owner),
            backend_text(second)
        ),
    }
}

pub(super) fn flags_text(flags: u8) -> &'static str {
    match (flags & RECORD != 0, flags & PENDING != 0) {
        (true, true) => "RECORD PENDING",
        (true, false) => "RECORD",
        (false, true) => "PENDING",
        (false, false) => "none",
    }
}
