//! Two choices on top of consistent hashing (JET, section 6.3).

use crate::score::{STEP, mix};
use crate::traits::Horizon;

/// What becomes of a new flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Where the flow goes.
    pub backend: u16,
    /// Whether it must be tracked.
    pub track: bool,
}

/// The paper's naive integration of the power of two choices into JET: "the CH result can serve
/// as one of the two choices. The connection is registered in the CT if it is unsafe *or the
/// choice disagrees with the hash result*."
///
/// (Section 6.3 is about choices, not about table sizes that are powers of two.) The second
/// choice is the placement's answer for another hash of the same flow, so weights hold for both.
/// `load` is any measure per unit of weight that is comparable between backends. Equal loads
/// follow the first choice, which need not be tracked: about half of the flows.
///
/// It is for first packets only: a later packet would find other loads.
pub fn choose_of_two<P, L>(
    placement: &P,
    hash: u64,
    mut load: impl FnMut(u16) -> L,
) -> Option<Choice>
where
    P: Horizon + ?Sized,
    L: PartialOrd,
{
    let first = placement.verdict(hash)?;
    let second = placement.lookup(mix(hash ^ STEP))?;
    if second != first.backend && load(second) < load(first.backend) {
        return Some(Choice { backend: second, track: true });
    }
    Some(Choice { backend: first.backend, track: first.may_differ })
}
