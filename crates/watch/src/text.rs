//! How lines and tables are put together.

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use std::fmt::{Display, Write};

/// Lines, one after the other.
#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    /// One more.
    pub(crate) fn line(&mut self, line: impl Display) {
        // A string takes all.
        let _ = writeln!(self.0, "{line}");
    }

    /// All of them.
    pub(crate) fn all(self) -> String {
        self.0
    }
}

/// A table without lines, for people and for `awk`.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec());
    table
}
