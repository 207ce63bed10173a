//! Packets that a dead backend gets: what is lost by that, and for how long.

use super::named::one_fleet;
use super::*;
use std::collections::BTreeSet;

impl Fleet {
    /// Whether a backend is dead as the fleet has it, and this balancer does not know that yet.
    pub(super) fn not_heard(&self, at: usize, n: u8) -> bool {
        let name = format!("b{n}");
        let down = |pool: &[weir_fleet::Share]| pool.iter().any(|one| one.name == name && one.down);
        let said = self.step.as_ref().and_then(|step| step.pools.get("a"));
        let engine = self.members[at].engine.as_ref().expect("it runs");
        let known = engine.services["a"].agreed.as_ref();
        said.is_some_and(|pool| down(pool)) && !known.is_some_and(|pool| down(pool))
    }

    /// A SYN of a client came to a dead backend by this balancer.
    pub(super) fn note_lost(&mut self, client: u32, at: usize, n: u8) {
        self.at_the_dead.insert((client, at, n), None);
    }

    /// An agent has told a balancer all that its backend holds.
    pub(super) fn note_listed(&mut self, at: usize, n: u8) {
        let step = self.step_at_all();
        for ((_, by, to), listed) in &mut self.at_the_dead {
            if (*by, *to) == (at, n) {
                listed.get_or_insert(step);
            }
        }
    }

    /// Whether a segment of a client is lost that goes to this backend by this balancer: the backend is dead, or the
    /// balancer has not heard that it is, or takes the client for one of those that died there.
    pub(super) fn is_lost(&self, client: u32, at: usize, n: u8) -> bool {
        self.dead.contains(&n) || self.not_heard(at, n) || self.takes_for_dead(client, at, n)
    }

    /// Whether a SYN of a client came to a backend by this very balancer when that was dead: where no agent told of it
    /// then, the balancer takes the client for that one's, and others do not that have not seen the SYN, or have made their
    /// tables anew. That is over with the next step after the backend's agent has listed what it holds (docs/fleet.md, In
    /// step).
    fn takes_for_dead(&self, client: u32, at: usize, n: u8) -> bool {
        let Some(listed) = self.at_the_dead.get(&(client, at, n)) else { return false };
        let engine = self.members[at].engine.as_ref().expect("it runs");
        let done = engine.fleet.as_ref().expect("it is of one").stepping.done_for();
        listed.is_none_or(|listed| {
            self.committed.range(listed + 1..).next().is_none_or(|step| *step > done)
        })
    }

    /// A backend's machine is off, and nobody waits for its agent any more.
    fn goes_off(&mut self, n: u8) {
        self.dead.insert(n);
        self.off.insert(n);
        *self.born.entry(n).or_default() += 1;
        for at in 0..BALANCERS {
            let session = self.members[at].sessions.remove(&n).expect("it speaks");
            self.engine(at).handle(Command::AgentGone(session.number));
            self.engine(at).give_up_lost();
        }
    }
}

/// A SYN comes by one balancer to a backend that is dead, and whose agent is, so that this balancer takes it for a
/// connection there. When the fleet has that one down, the SYN goes elsewhere when it comes again, to the same place by
/// whichever balancer. Until the next step with the dead one's agent, nobody but the balancer that has seen the first SYN
/// may lead another packet of the client there, and not even that one once a SYN has come to it again.
#[test]
fn a_syn_that_came_to_the_dead_goes_elsewhere_when_it_comes_again() {
    let mut fleet = one_fleet(CONCURY);
    let (begun, seen) = (Instant::now(), fleet.leader);
    fleet.goes_off(2);
    let client = (0..CLIENTS).find(|one| fleet.goes(seen, *one, TcpFlags::SYN) == Some(2));
    let client = client.expect("some go there");
    (0..BALANCERS).for_each(|at| fleet.check_health(at, 2));
    while !fleet.all_have_b2(true) || (0..BALANCERS).any(|at| fleet.is_frozen(at)) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    let others = (0..BALANCERS).filter(|at| *at != seen);
    let went: BTreeSet<Option<u8>> =
        others.clone().map(|at| fleet.goes(at, client, TcpFlags::SYN)).collect();
    let home = went.first().copied().flatten().expect("it goes to somebody");
    assert!(went.len() == 1 && home != 2, "{went:?}\n{}", fleet.looks(client));
    for at in others {
        let went = fleet.goes(at, client, TcpFlags::ACK);
        assert_eq!(went, Some(home), "lb{at}: {}", fleet.looks(client));
    }
    // What was half-open for long it has forgotten.
    let went = fleet.goes(seen, client, TcpFlags::ACK);
    assert!(went == Some(2) || went == Some(home), "{went:?}\n{}", fleet.looks(client));
    for flags in [TcpFlags::SYN, TcpFlags::ACK] {
        let went = fleet.goes(seen, client, flags);
        assert_eq!(went, Some(home), "{flags:?}: {}", fleet.looks(client));
    }
    fleet.live.insert(client, (home, Phase::Open));
    fleet.happens(home, Kind::Opened, client);
    fleet.note_lost(client, seen, 2);
    fleet.dead.remove(&2);
    fleet.off.remove(&2);
    assert!(fleet.takes_for_dead(client, seen, 2));
    while !fleet.all_have_b2(false) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        (0..BALANCERS).for_each(|at| fleet.check_health(at, 2));
        fleet.go_on(None);
    }
    fleet.rest();
    fleet.agree();
    for at in 0..BALANCERS {
        assert!(!fleet.takes_for_dead(client, at, 2), "{}", fleet.stands());
        let went = fleet.goes(at, client, TcpFlags::ACK);
        assert_eq!(went, Some(home), "lb{at}: {}", fleet.looks(client));
    }
}
