//! Whether there is memory for the data plane, which is taken at once when it is made.

#![forbid(unsafe_code)]

use weir_dataplane::KernelPlane;
use weir_dataplane::memory::{Needed, available};

use super::Finding;
use crate::config::Config;
use crate::engine::{pin_directory, wanted_limits};

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    // What is there has been taken.
    if pin_directory(&config.balancer.name).exists() {
        return;
    }
    if let Ok(needed) = KernelPlane::memory_for(&wanted_limits(config)) {
        findings.push(finding(&needed, available()));
    }
}

/// What keeps a first start of a configuration from getting memory here, if anything does.
pub fn short_of_memory(config: &Config) -> Option<String> {
    let mut findings = Vec::new();
    examine(config, &mut findings);
    let short = findings.into_iter().find(|one| one.verdict == super::Verdict::Fail)?;
    Some(format!("{}; {}", short.detail, short.mend.unwrap_or_default()))
}

pub(super) fn finding(needed: &Needed, available: Option<u64>) -> Finding {
    let takes = format!(
        "the data plane takes {} at the start, {} of them limits.table_bytes",
        mebibytes(needed.bytes),
        mebibytes(needed.table_bytes)
    );
    match available {
        None => Finding::ok("memory", format!("{takes}; what is available is not known")),
        Some(available) if needed.bytes > available => {
            Finding::fail("memory", takes, needed.advice(Some(available)))
        }
        Some(available) if needed.bytes + needed.table_bytes > available => Finding::warn(
            "memory",
            format!(
                "{takes}, and those twice while it is made anew: {} are available",
                mebibytes(available)
            ),
            "lower limits.table_bytes, or free memory before it is changed",
        ),
        Some(available) => {
            Finding::ok("memory", format!("{takes}, of {} available", mebibytes(available)))
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
