//! `weir bench xdp --instructions`: BPF instructions that the program takes on every path.

use crate::error::{Context, demand};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

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
    let others: Vec<Vec<u8>> = beside.iter().map(|path| read(path)).collect::<Result<_>>()?;
    let counted = weir_dataplane::instructions::count(&others).map_err(|error| {
        // Where this build cannot be counted either, no file is at fault.
        if weir_dataplane::instructions::count(&[]).is_err() {
            return Error::from(error);
        }
        let mut named = beside.iter().zip(&others).filter_map(|(path, object)| {
            let other = weir_dataplane::instructions::stacks(object).err()?;
            Some(Error::Fault(format!("{}: no build of the program: {other}", path.display())))
        });
        named.next().unwrap_or_else(|| Error::from(error))
    })?;
    let rows = counted.into_iter().filter_map(|row| {
        let (&instructions, beside) = row.instructions.split_first()?;
        Some(Row { path: row.path, instructions, beside: beside.to_vec() })
    });
    Ok(Report { rows: rows.collect() })
}

/// An object file of BPF; libbpf says of any other only that it has failed.
fn read(path: &Path) -> Result<Vec<u8>> {
    let object = std::fs::read(path).with_context(|| path.display().to_string())?;
    demand!(
        is_bpf(&object),
        "{}: no BPF object: give another build of the program, as clang -target bpf -c makes it",
        path.display()
    );
    Ok(object)
}

fn is_bpf(object: &[u8]) -> bool {
    const BPF: [u8; 2] = 247_u16.to_le_bytes();
    // An ELF file, whose header has the machine that it is for there.
    object.starts_with(b"\x7fELF") && object.get(18..20) == Some(&BPF[..])
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<44} {:>5} instructions", self.path, self.instructions)?;
        self.beside.iter().try_for_each(|other| write!(f, " ({other})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_bpf_object_is_refused_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        std::fs::write(&path, "root:x:0:0::/root:/bin/sh\n").unwrap();
        for path in [path, std::env::current_exe().unwrap()] {
            let said = run(std::slice::from_ref(&path)).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{}: no BPF object", path.display())), "{said}");
        }
        assert!(is_bpf(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0"));
    }
}
