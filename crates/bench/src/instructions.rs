//! `weir bench xdp --instructions`: BPF instructions that the program takes on every path.

use crate::Result;
use crate::error::Context;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The paths, the usual ones first.
    pub rows: Vec<Row>,
}

/// A path through the program, and what it costs there.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the packet meets.
    pub path: &'static str,
    /// Instructions until the verdict, without what the kernel's helpers do inside.
    pub instructions: u64,
    /// Of the other builds of the program, in the order in which they were given.
    pub beside: Vec<u64>,
}

/// Counts, for this build of the program and for those in the object files `beside`.
///
/// # Errors
///
/// A file cannot be read or is no build of the program; the kernel refuses one; or a packet did not
/// take its path.
pub fn run(beside: &[PathBuf]) -> Result<Report> {
    let others: Vec<Vec<u8>> = beside
        .iter()
        .map(|path| std::fs::read(path).with_context(|| path.display().to_string()))
        .collect::<Result<_, _>>()?;
    let counted = weir_dataplane::instructions::count(&others)?;
    let rows = counted.into_iter().filter_map(|row| {
        let (&instructions, beside) = row.instructions.split_first()?;
        Some(Row { path: row.path, instructions, beside: beside.to_vec() })
    });
    Ok(Report { rows: rows.collect() })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<44} {:>5} instructions", self.path, self.instructions)?;
        self.beside.iter().try_for_each(|other| write!(f, " ({other})"))
    }
}
