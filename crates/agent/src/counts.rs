//! What the programs count, in packets.

use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// Packets since the agent was started. The order is that of `bpf/agent.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// SYNs that told a cookie.
    pub opened: u64,
    /// Answers that went out with a cookie.
    pub written: u64,
    /// Packets of clients that had a cookie, in whose place the backend got its own timestamp.
    pub restored: u64,
    /// Connections of which nothing was known, brought back by a packet of their clients.
    pub resumed: u64,
    /// Packets of known connections with another cookie than theirs, left as they were.
    pub foreign: u64,
    /// Packets that the kernel did not let change.
    pub failed: u64,
}

impl Counts {
    const NUMBER: u32 = 6;

    pub(crate) fn read(map: &MapHandle) -> Result<Self, Error> {
        let mut sums = [0u64; Self::NUMBER as usize];
        for (sum, key) in sums.iter_mut().zip(0..Self::NUMBER) {
            let found = map
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .context(|| "read the counters".into())?;
            let lanes = found.into_iter().flatten();
            *sum = lanes.filter_map(|lane| Some(u64::from_ne_bytes(*lane.first_chunk()?))).sum();
        }
        let [opened, written, restored, resumed, foreign, failed] = sums;
        Ok(Self { opened, written, restored, resumed, foreign, failed })
    }
}
