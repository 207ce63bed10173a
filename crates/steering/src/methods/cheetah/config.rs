//! What services with Cheetah can be configured with.

use super::Forged;
use crate::method::{self, Misfit, Needs, Setting, Settings};
use crate::registry::MethodId;
use crate::schedule::{self, LOAD, LOAD_SETTING, SCHEDULER_SETTING, Scheduler};
use crate::table::Flags;

/// The configuration's name for what becomes of packets whose cookies are no good.
pub const FORGED: &str = "forged";
/// The words for it, in the order of [`Forged`].
const FORGED_WORDS: &[&str] = &["schedule", "refuse"];
/// The configuration's name for who writes cookies into the backends' timestamps.
pub const ANSWERS: &str = "answers";
/// The words for it: the balancer, which the answers pass; or the backend, whose answers need not.
const ANSWERS_WORDS: &[&str] = &["inline", "backend"];
/// The configuration's name for the partitions of the table of connections.
pub const PARTITIONS: &str = "partitions";
/// The most partitions of one service.
pub const MOST_PARTITIONS: u32 = 1_024;
/// The configuration's name for the bits of the cookie that name a balancer of the second tier.
pub const TIER_BITS: &str = "tier_bits";
/// The most of them: each partition is cut into as many parts as there may be balancers.
pub const MOST_TIER_BITS: u32 = 6;
/// Numbers of servers that fit into a cookie.
pub const NUMBERS: u32 = 1 << 15;

/// What becomes of packets whose cookies are no good.
pub(super) fn forged(settings: &Settings) -> Forged {
    if settings.get(FORGED) == 0 { Forged::Schedule } else { Forged::Refuse }
}

/// Whether backends write the cookies into their timestamps, and answer clients directly.
pub fn answered_by_backends(settings: &Settings) -> bool {
    settings.word(ANSWERS) == Some(ANSWERS_WORDS[1])
}

/// How many servers the cookies of a service tell apart: in front of a second tier, the balancers
/// there.
pub fn numbers(settings: &Settings) -> u32 {
    let all = match settings.get(TIER_BITS) {
        0 => NUMBERS,
        bits => 1 << bits,
    };
    // One bit says under which key they are hidden.
    if settings.cookie_keys().is_some() { all / 2 } else { all }
}

fn numbers_fit(backends: usize, numbers: u32) -> Result<(), Misfit> {
    if backends <= numbers as usize {
        return Ok(());
    }
    let wrong = format!("a cookie tells {numbers} backends apart, not {backends}");
    let (setting, right) = match numbers {
        NUMBERS => (FORGED, "split the service".to_owned()),
        // Half of them, where a bit says under which key.
        numbers if numbers > 1 << MOST_TIER_BITS => (FORGED, "split the service".to_owned()),
        _ => (TIER_BITS, format!("give more bits, on both tiers, at most {MOST_TIER_BITS}")),
    };
    Err(Misfit { setting, wrong, right })
}

/// Answers have one way back, and go to nobody else's balancer.
fn tiers_fit(settings: &Settings) -> Result<(), Misfit> {
    if settings.get(TIER_BITS) == 0 || answered_by_backends(settings) {
        return Ok(());
    }
    let wrong =
        "with two tiers no balancer is in the way of all answers, so that none can write the \
                 cookies"
            .to_owned();
    let right = "set answers = \"backend\", on both tiers".to_owned();
    Err(Misfit { setting: TIER_BITS, wrong, right })
}

/// Stateless Cheetah, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatelessMethod;

impl method::Method for StatelessMethod {
    const ID: MethodId = MethodId::Cheetah;
    const NAME: &'static str = "cheetah";
    const SUMMARY: &'static str = "a cookie in the timestamps names the server";
    const NEEDS: Needs = Needs { connections: true, timestamps: true, ..Needs::NOTHING };
    const SETTINGS: &'static [Setting] = &[
        Setting::words(FORGED, FORGED_WORDS),
        Setting::words(ANSWERS, ANSWERS_WORDS),
        Setting::number(TIER_BITS, (0, MOST_TIER_BITS), 0),
        SCHEDULER_SETTING,
        LOAD_SETTING,
    ];

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        Scheduler::of(settings).fits(backends)?;
        if answered_by_backends(settings) && schedule::flags(settings).has(Flags::COUNTS) {
            let wrong = "connections that backends answer directly end where the balancer does not \
                         see it, so that it cannot count those that are open";
            let right = "set load = \"told\", or answers = \"inline\"".to_owned();
            return Err(Misfit { setting: LOAD, wrong: wrong.to_owned(), right });
        }
        tiers_fit(settings)?;
        numbers_fit(backends, numbers(settings))
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
    // A partition has 32,768 slots of 16 bytes: 512 KiB.
    const SETTINGS: &'static [Setting] = &[
        Setting::words(FORGED, FORGED_WORDS),
        Setting::words(ANSWERS, ANSWERS_WORDS),
        Setting::number(PARTITIONS, (1, MOST_PARTITIONS), 8),
        Setting::number(TIER_BITS, (0, MOST_TIER_BITS), 0),
        SCHEDULER_SETTING,
        LOAD_SETTING,
    ];

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        Scheduler::of(settings).fits(backends)?;
        if schedule::flags(settings).has(Flags::COUNTS) {
            let wrong = "slots end by time, so that cheetah-stateful cannot count the connections \
                         that are open";
            let right = "set load = \"told\", \"packets\" or \"bytes\"; or method = \"cheetah\"";
            let (setting, wrong, right) = (LOAD, wrong.to_owned(), right.to_owned());
            return Err(Misfit { setting, wrong, right });
        }
        tiers_fit(settings)?;
        numbers_fit(backends, NUMBERS)
    }
}
