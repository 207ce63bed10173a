//! What the kernel knows of a balancer under test: how long its program runs, and how many
//! connections its tables hold. `weir status` does not tell this.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{MapCore, MapHandle, Xdp, XdpFlags};
use nix::net::if_::if_nametoindex;

use crate::error::{Doing, Result};
use crate::lab::Lab;

pub(crate) use weir_testbed::programs::Measuring;

/// Runs of XDP programs while they were measured, by the program's number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(BTreeMap<u32, (u64, u64)>);

impl Runs {
    /// The programs at the interfaces of the lab's balancer.
    pub(crate) fn of(lab: &Lab) -> Result<Self> {
        let interfaces = lab.spec().topology.interfaces();
        let numbers = lab
            .balancer()
            .enter(|| -> io::Result<Vec<u32>> {
                // The query is of an interface; the descriptor of a program is not looked at.
                let none = File::open("/dev/null")?;
                interfaces
                    .iter()
                    .map(|interface| {
                        let index = if_nametoindex(*interface)?;
                        Xdp::new(none.as_fd())
                            .query_id(index as i32, XdpFlags::NONE)
                            .map_err(io::Error::other)
                    })
                    .collect()
            })?
            .doing(|| "asking for the balancer's XDP programs".into())?;
        let of_lab = ProgInfoIter::default().filter(|program| numbers.contains(&program.id));
        Ok(Self(of_lab.map(|one| (one.id, (one.run_time_ns, one.run_cnt))).collect()))
    }

    /// Nanoseconds for each run since `before`; none if none ran.
    pub(crate) fn mean_since(&self, before: &Self) -> Option<f64> {
        let (mut ns, mut runs) = (0, 0);
        for (number, now) in &self.0 {
            let then = before.0.get(number).copied().unwrap_or_default();
            ns += now.0.saturating_sub(then.0);
            runs += now.1.saturating_sub(then.1);
        }
        (runs > 0).then(|| ns as f64 / runs as f64)
    }
}

/// What the kernel's tables hold for connections, dead ones among them: these tables forget only what
/// is pushed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// Entries of the connection table.
    pub(crate) connections: u64,
    /// Entries of the table of timestamps, of connections whose answers pass the balancer.
    pub(crate) answers: u64,
    /// Bytes of the keys and values of both, without the kernel's own links.
    pub(crate) bytes: u64,
}

impl Entries {
    /// Counts the entries of an instance whose maps are pinned in this directory.
    pub(crate) fn of(pins: &Path) -> Result<Self> {
        let (connections, bytes) = table(&pins.join("connections"))?;
        let (answers, more) = table(&pins.join("answers"))?;
        Ok(Self { connections, answers, bytes: bytes + more })
    }
}

/// Number of a pinned table's entries, and bytes of their keys and values.
fn table(pin: &Path) -> Result<(u64, u64)> {
    let map = MapHandle::from_pinned_path(pin)
        .map_err(io::Error::other)
        .doing(|| format!("opening the table {}", pin.display()))?;
    // A walk that loses its place, because an entry went, begins anew.
    let count = map.keys().take(map.max_entries() as usize).count() as u64;
    Ok((count, count * u64::from(map.key_size() + map.value_size())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_since_then_count() {
        let runs = |all: &[(u32, u64, u64)]| {
            Runs(all.iter().map(|(number, ns, runs)| (*number, (*ns, *runs))).collect())
        };
        let before = runs(&[(7, 1000, 10), (8, 50, 1)]);
        assert_eq!(runs(&[(7, 1000, 10)]).mean_since(&before), None);
        assert_eq!(runs(&[(7, 4000, 20)]).mean_since(&before), Some(300.0));
        // A program that has come since then.
        assert_eq!(runs(&[(7, 1000, 10), (9, 500, 5)]).mean_since(&before), Some(100.0));
    }
}
