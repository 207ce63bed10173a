//! A change of method, which all make in step, and what comes between it and the step that makes it.

use super::*;
use std::collections::BTreeSet;

/// From one method to the other, and the name of the first.
const TURNS: [(&str, &str, &str); 2] =
    [(RESIDUE, CONCURY, "residue"), (CONCURY, RESIDUE, "concury")];

impl Fleet {
    /// A fleet whose method is to be another, which waits, as the leader has lost the agent of b1.
    fn waiting_to_turn(from: &'static str, to: &'static str) -> Self {
        let mut fleet = one_fleet(from);
        let leader = fleet.leader;
        let session = fleet.members[leader].sessions.remove(&1).expect("it speaks");
        let number = session.number;
        fleet.members[leader].cut.insert(1, (session, u32::MAX));
        fleet.engine(leader).handle(Command::AgentGone(number));
        fleet.method = to;
        fleet.propose(0);
        while (0..BALANCERS).any(|at| !fleet.turns(at)) {
            fleet.go_on(None);
        }
        fleet
    }

    /// Whether a balancer is to follow another method than its packets do.
    fn turns(&mut self, at: usize) -> bool {
        self.engine(at).services["a"].turn.is_some()
    }

    fn follows(&mut self, at: usize) -> String {
        self.engine(at).services["a"].in_force.method.name().into()
    }

    /// The agent calls again, and all turn.
    fn turn_all(&mut self) {
        let (begun, leader) = (Instant::now(), self.leader);
        self.members[leader].cut.get_mut(&1).expect("it is away").1 = 0;
        while (0..BALANCERS).any(|at| self.turns(at)) {
            assert!(begun.elapsed() < PATIENCE, "{}", self.stands());
            (1..=BACKENDS).for_each(|n| (0..BALANCERS).for_each(|at| self.check_health(at, n)));
            self.go_on(None);
        }
        self.members[leader].cut.clear();
        self.rest();
        self.agree();
    }
}

/// Agents are listened to until the step is made, and through it: connections that begin meanwhile, at whichever
/// balancer, are led home by all.
#[test]
fn what_begins_before_a_method_turns_is_told_to_all() {
    for (from, to, name) in TURNS {
        let mut fleet = Fleet::waiting_to_turn(from, to);
        let before = fleet.committed.len();
        for _ in 0..60 {
            fleet.go_on(None);
            (0..100).for_each(|_| fleet.client());
        }
        assert_eq!(fleet.committed.len(), before, "{}", fleet.stands());
        for at in 0..BALANCERS {
            assert_eq!(fleet.follows(at), name);
            let service = &fleet.engine(at).services["a"];
            for n in ["b2", "b3"] {
                let id = service.member(n).expect("it is there").id;
                assert!(service.is_told_of(id), "{from}: lb{at} does not listen to {n}");
            }
        }
        let open: Vec<(u32, u8)> = fleet
            .live
            .iter()
            .filter(|(_, lives)| lives.1 == Phase::Open)
            .map(|(client, lives)| (*client, lives.0))
            .collect();
        assert!(!open.is_empty());
        fleet.turn_all();
        for (client, home) in open {
            for at in 0..BALANCERS {
                let went = fleet.goes(at, client, TcpFlags::ACK);
                assert_eq!(went, Some(home), "{from}, lb{at}: {}", fleet.looks(client));
            }
        }
    }
}

/// Whoever is killed meanwhile goes on by the method that the others follow, and turns with them; what is waited for
/// is said, also in the answer to the change.
#[test]
fn who_starts_again_before_a_method_turns_does_not_turn_alone() {
    for (from, to, name) in TURNS {
        let mut fleet = Fleet::waiting_to_turn(from, to);
        let (begun, before) = (Instant::now(), fleet.committed.len());
        let other = (fleet.leader + 1) % BALANCERS;
        let concerned = BTreeSet::from(["a".to_owned()]);
        let said = fleet.engine(other).in_step_words(&concerned);
        assert_eq!(said, "; the method of a changes in step with the others");
        fleet.restart(other);
        let is_over = |fleet: &mut Fleet| {
            let step = fleet.step_at_all();
            let engine = fleet.engine(other);
            let stepping = &engine.fleet.as_ref().expect("it is of one").stepping;
            !engine.settles() && stepping.done_for() == step
        };
        while !is_over(&mut fleet) || fleet.is_frozen(other) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
            assert_eq!(fleet.follows(other), name, "{}", fleet.stands());
        }
        while fleet.waits(other).is_none() {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
        }
        assert_eq!(fleet.committed.len(), before, "{}", fleet.stands());
        let digests: BTreeSet<String> = (0..BALANCERS)
            .map(|at| {
                let service = &fleet.engine(at).services["a"];
                let image = service.builder.published().expect("a table");
                crate::engine::fleet::digest_of(service, image)
            })
            .collect();
        assert_eq!(digests.len(), 1, "{}", fleet.stands());
        assert_eq!(fleet.engine(other).pools_that_wait(), ["a"]);
        fleet.turn_all();
    }
}

/// A backend that dies meanwhile gets no new flow, by the method that packets follow.
#[test]
fn the_dead_are_left_out_before_a_method_turns() {
    for (from, to, name) in TURNS {
        let mut fleet = Fleet::waiting_to_turn(from, to);
        let (begun, before) = (Instant::now(), fleet.committed.len());
        fleet.dead.insert(2);
        let others: Vec<usize> = (0..BALANCERS).filter(|at| *at != fleet.leader).collect();
        let leads_there = |fleet: &mut Fleet, at: usize| {
            (0..CLIENTS).any(|client| fleet.goes(at, client, TcpFlags::SYN) == Some(2))
        };
        let has_heard = |fleet: &mut Fleet, at: usize| {
            fleet.engine(at).services["a"].agreed.iter().flatten().any(|share| share.down)
        };
        while others.iter().any(|at| !has_heard(&mut fleet, *at)) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            (0..BALANCERS).for_each(|at| fleet.check_health(at, 2));
            fleet.go_on(None);
        }
        while others.iter().any(|at| fleet.is_frozen(*at)) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
        }
        for at in others {
            assert_eq!(fleet.follows(at), name, "{}", fleet.stands());
            assert!(!leads_there(&mut fleet, at), "{}", fleet.stands());
        }
        assert_eq!(fleet.committed.len(), before, "{}", fleet.stands());
        fleet.dead.remove(&2);
        fleet.turn_all();
    }
}
