//! What services with Cheetah can be configured with.

use super::Forged;
use crate::method::{self, Misfit, Needs, Setting, Settings};
use crate::registry::MethodId;

/// The configuration's name for what becomes of packets whose cookies are no good.
pub const FORGED: &str = "forged";
/// The words for it, in the order of [`Forged`].
const FORGED_WORDS: &[&str] = &["schedule", "refuse"];
/// The configuration's name for the partitions of the table of connections.
pub const PARTITIONS: &str = "partitions";
/// Numbers of servers that fit into a cookie.
const NUMBERS: usize = 1 << 15;

/// What becomes of packets whose cookies are no good.
pub(super) fn forged(settings: &Settings) -> Forged {
    if settings.get(FORGED) == 0 { Forged::Schedule } else { Forged::Refuse }
}

fn numbers_fit(backends: usize) -> Result<(), Misfit> {
    if backends <= NUMBERS {
        return Ok(());
    }
    let wrong = format!("a cookie tells {NUMBERS} backends apart, not {backends}");
    Err(Misfit { setting: FORGED, wrong, right: "split the service".to_owned() })
}

/// Stateless Cheetah, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatelessMethod;

impl method::Method for StatelessMethod {
    const ID: MethodId = MethodId::Cheetah;
    const NAME: &'static str = "cheetah";
    const SUMMARY: &'static str = "a cookie in the timestamps names the server";
    const NEEDS: Needs = Needs { connections: true, timestamps: true, ..Needs::NOTHING };
    const SETTINGS: &'static [Setting] = &[Setting::words(FORGED, FORGED_WORDS)];

    fn fits(_: &Settings, backends: usize) -> Result<(), Misfit> {
        numbers_fit(backends)
    }
}

/// Stateful Cheetah, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatefulMethod;

impl method::Method for StatefulMethod {
    const ID: MethodId = MethodId::CheetahStateful;
    const NAME: &'static str = "cheetah-stateful";
    const SUMMARY: &'static str = "a cookie in the timestamps names a slot of a connection table";
    const NEEDS: Needs = Needs { connections: true, timestamps: true, ..Needs::NOTHING };
    // A partition has 32,768 slots of 16 bytes, and 2 for its stack: 576 KiB.
    const SETTINGS: &'static [Setting] =
        &[Setting::words(FORGED, FORGED_WORDS), Setting::number(PARTITIONS, (1, 1_024), 8)];

    fn fits(_: &Settings, backends: usize) -> Result<(), Misfit> {
        numbers_fit(backends)
    }
}
