//! The DIP array: Dcode -> backend, in proportion to the weights, moved as little as possible
//! (Concury section 5.2).

use crate::BuildError;
use crate::ids::BackendId;
use crate::pool::Member;
use crate::table::{NO_BACKEND, SLOT_BACKEND, SLOT_RESERVED};
use std::collections::HashMap;

/// Computes the next DIP array from the former one, `previous`: an entry for each Dcode, which is
/// a backend, a backend with [`SLOT_RESERVED`], or [`NO_BACKEND`]. There are as many as before, a
/// power of two. At first all are [`NO_BACKEND`].
///
/// Serving backends get slots in proportion to their weights, each at least one. `keeps(backend)`
/// tells whether a member that gets no new flows still has connections: it then keeps one slot, a
/// reserved one. A slot changes its owner only if the owner has too many or is gone: the states on
/// all other slots keep their Dcodes, and so do nearly all flows that are not yet known.
///
/// # Errors
/// [`BuildError::TooFewDcodes`] if there are more backends that need a slot than slots.
pub(super) fn assign(
    previous: &[u16],
    members: &[Member],
    keeps: impl Fn(BackendId) -> bool,
) -> Result<Vec<u16>, BuildError> {
    let slots = previous.len();
    let reserved: Vec<u16> = members
        .iter()
        .filter(|m| m.effective_weight() == 0 && keeps(m.backend))
        .map(|m| m.backend.get())
        .collect();
    let serving = members.iter().filter(|m| m.effective_weight() > 0).count();
    if reserved.len() + serving > slots {
        return Err(BuildError::TooFewDcodes { members: reserved.len() + serving, slots });
    }
    let mut next = vec![NO_BACKEND; slots];
    reserve(previous, &reserved, &mut next);
    let quotas = quotas(members, slots - reserved.len());
    let mut wanted: HashMap<u16, usize> = quotas.iter().copied().collect();
    for at in scattered(slots) {
        let owner = previous[at] & SLOT_BACKEND;
        if next[at] == NO_BACKEND
            && let Some(quota) = wanted.get_mut(&owner).filter(|quota| **quota > 0)
        {
            next[at] = owner;
            *quota -= 1;
        }
    }
    let mut rest: Vec<_> = quotas.iter().map(|q| (q.0, wanted[&q.0])).collect();
    rest.retain(|q| q.1 > 0);
    for at in scattered(slots) {
        if next[at] == NO_BACKEND
            && let Some(last) = rest.last_mut()
        {
            next[at] = last.0;
            last.1 -= 1;
            if last.1 == 0 {
                rest.pop();
            }
        }
    }
    Ok(next)
}

/// One slot for each backend in `reserved`: one it owns already if there is one (its reserved one
/// first), so that as few of its states as possible change their Dcode.
fn reserve(previous: &[u16], reserved: &[u16], next: &mut [u16]) {
    let entries = reserved.iter().flat_map(|&backend| [backend | SLOT_RESERVED, backend]);
    let mut owned: HashMap<u16, Vec<usize>> = entries.map(|entry| (entry, Vec::new())).collect();
    for (at, entry) in previous.iter().enumerate() {
        if let Some(places) = owned.get_mut(entry) {
            places.push(at);
        }
    }
    let mut any = scattered(previous.len());
    for &backend in reserved {
        let marked = backend | SLOT_RESERVED;
        let free = |at: &usize| next[*at] == NO_BACKEND;
        let own = owned[&marked].iter().chain(&owned[&backend]).copied().find(free);
        if let Some(at) = own.or_else(|| any.find(free)) {
            next[at] = marked;
        }
    }
}

/// Slots for each serving backend: largest remainders, ties by order; a backend with a weight has
/// at least one.
fn quotas(members: &[Member], slots: usize) -> Vec<(u16, usize)> {
    let total: u64 = members.iter().map(|m| u64::from(m.effective_weight())).sum();
    if total == 0 {
        return Vec::new();
    }
    let mut shares: Vec<(u16, usize, u64)> = members
        .iter()
        .filter(|m| m.effective_weight() > 0)
        .map(|m| {
            let exact = u64::from(m.effective_weight()) * slots as u64;
            (m.backend.get(), (exact / total) as usize, exact % total)
        })
        .collect();
    let given: usize = shares.iter().map(|s| s.1).sum();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(shares[i].2));
    for &i in order.iter().take(slots - given) {
        shares[i].1 += 1;
    }
    while let Some(poor) = shares.iter().position(|s| s.1 == 0) {
        let Some(rich) = (0..shares.len()).max_by_key(|&i| shares[i].1) else {
            break;
        };
        shares[rich].1 -= 1;
        shares[poor].1 += 1;
    }
    shares.into_iter().map(|s| (s.0, s.1)).collect()
}

/// All slots in an order that mixes them: an odd multiplier modulo a power of two.
fn scattered(slots: usize) -> impl Iterator<Item = usize> {
    (0..slots).map(move |i| i.wrapping_mul(0x9e37_79b1) & (slots - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Role;

    fn member(backend: u16, weight: u32, role: Role) -> Member {
        let backend = BackendId::of(backend);
        Member { backend, name: format!("b{backend}"), weight, role }
    }

    fn count(slots: &[u16], entry: u16) -> usize {
        slots.iter().filter(|&&slot| slot == entry).count()
    }

    fn empty() -> Vec<u16> {
        vec![NO_BACKEND; 4096]
    }

    #[test]
    fn shares_follow_weights() {
        let pool = [1, 2, 5].map(|w| member(w as u16, w, Role::Serving));
        let slots = assign(&empty(), &pool, |_| false).unwrap();
        assert_eq!([1, 2, 5].map(|b| count(&slots, b)), [512, 1024, 2560]);
    }

    #[test]
    fn a_change_moves_no_more_slots_than_it_must() {
        let mut pool: Vec<_> = (0..8).map(|b| member(b, 1, Role::Serving)).collect();
        let before = assign(&empty(), &pool, |_| false).unwrap();
        pool.push(member(8, 1, Role::Serving));
        let after = assign(&before, &pool, |_| false).unwrap();
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!(moved, count(&after, 8));
        assert!((455..=456).contains(&moved), "{moved}");
    }

    #[test]
    fn a_draining_backend_keeps_one_reserved_slot_of_its_own() {
        let mut pool: Vec<_> = (0..4).map(|b| member(b, 1, Role::Serving)).collect();
        let before = assign(&empty(), &pool, |_| false).unwrap();
        pool[2].role = Role::Draining;
        let after = assign(&before, &pool, |b| b == 2).unwrap();
        assert_eq!(count(&after, 2), 0);
        assert_eq!(count(&after, 2 | SLOT_RESERVED), 1);
        let at = after.iter().position(|&s| s == 2 | SLOT_RESERVED).unwrap();
        assert_eq!(before[at], 2);
        let idle = assign(&after, &pool, |_| false).unwrap();
        assert_eq!(count(&idle, 2 | SLOT_RESERVED), 0);
        assert_eq!(count(&idle, NO_BACKEND), 0);
    }

    #[test]
    fn no_serving_backend_leaves_no_slot_for_new_flows() {
        let pool = [member(1, 0, Role::Serving), member(2, 9, Role::Draining)];
        let slots = assign(&empty(), &pool, |b| b == 2).unwrap();
        assert_eq!(count(&slots, NO_BACKEND), 4095);
        assert_eq!(count(&slots, 2 | SLOT_RESERVED), 1);
    }

    #[test]
    fn tiny_weights_get_a_slot_and_too_many_backends_are_refused() {
        let mut pool: Vec<_> = (0..15).map(|b| member(b, 1, Role::Serving)).collect();
        pool[0].weight = 60_000;
        let slots = assign(&[NO_BACKEND; 16], &pool, |_| false).unwrap();
        assert!((0..15).all(|b| count(&slots, b) >= 1));
        pool.extend((15..18).map(|b| member(b, 1, Role::Serving)));
        assert!(assign(&[NO_BACKEND; 16], &pool, |_| false).is_err());
    }
}
