//! What the program decides by.

use weir_steering::cheetah::{ANSWERS, PARTITIONS, TIER_BITS, answered_by_backends};
use weir_steering::{DCODE_BITS, MethodId, Misfit, ROWS, SCHEDULER, Settings};

/// The methods that `p4/methods` has.
pub const METHODS: &[MethodId] =
    &[MethodId::Concury, MethodId::Residue, MethodId::Cheetah, MethodId::CheetahStateful];

/// Whether a switch does what a service with one of them is set to.
///
/// # Errors
/// [`Misfit`], for the first setting that it cannot do.
pub fn fits(settings: &Settings) -> Result<(), Misfit> {
    let misfit = |setting, wrong: &str, right: &str| {
        Err(Misfit { setting, wrong: wrong.to_owned(), right: right.to_owned() })
    };
    if !matches!(settings.method(), MethodId::Cheetah | MethodId::CheetahStateful) {
        return Ok(());
    }
    if !answered_by_backends(settings) {
        let right = "set answers = \"backend\", and run weir agent on every backend";
        return misfit(ANSWERS, "a switch writes no cookies into answers", right);
    }
    if settings.get(TIER_BITS) > 0 {
        return misfit(TIER_BITS, "a switch shares cookies with no other tier", "leave it out");
    }
    // `awrr` gives turns by weights that the control plane makes of loads.
    if settings.word(SCHEDULER).is_some_and(|word| ["p2c", "least"].contains(&word)) {
        let right = "set scheduler = \"uniform\", \"rr\" or \"wrr\"";
        return misfit(SCHEDULER, "a switch does not pick by load", right);
    }
    let most = crate::layout::PARTITIONS;
    if settings.method() == MethodId::CheetahStateful && settings.get(PARTITIONS) > most {
        let right = format!("give at most {most} (PARTITIONS in p4/sizes.p4)");
        return misfit(PARTITIONS, "a switch has no room for so many connections", &right);
    }
    Ok(())
}

/// Entries of `slots` that the tables of such a service take, both of them: packets follow one while the next one is
/// written. Lists of servers, which are as long as pools are, count for nothing here.
pub fn slots_of(settings: &Settings) -> u64 {
    match settings.method() {
        MethodId::Concury => 2 << settings.get(DCODE_BITS),
        MethodId::Residue => 2 * u64::from(settings.get(ROWS)),
        _ => 0,
    }
}
