//! A store that was restored from an old copy, and tables that differ for no reason.

use super::*;
use crate::engine::step::Commit;

impl Fleet {
    /// The pool has changed, and everybody is through with it.
    fn weighs(&mut self, weight: u32) {
        self.pool.insert(2, weight);
        self.propose(0);
        self.rest();
    }

    /// The store has this step again.
    fn restore(&mut self, step: Step) {
        self.step_at = self.revision + 1;
        self.step = Some(step.clone());
        let at = self.step_at;
        self.tell(&Item::Step(step, at));
    }

    fn digest(&mut self, at: usize) -> String {
        let service = &self.engine(at).services["a"];
        let image = service.builder.published().expect("a table");
        crate::engine::fleet::digest_of(service, image)
    }
}

/// A balancer that starts just then goes by what it has followed, and the leader puts that into the store again, also
/// if it has started itself.
#[test]
fn a_store_of_an_old_copy_gets_the_last_step_again() {
    for method in [CONCURY, RESIDUE] {
        for leads in [false, true] {
            let mut fleet = one_fleet(method);
            let copy = fleet.step.clone().expect("it was made");
            [9, 4].into_iter().for_each(|weight| fleet.weighs(weight));
            let last = fleet.step.clone().expect("it was made");
            assert!(last.id() > copy.id());
            let digest = fleet.digest(0);
            fleet.restore(copy);
            let at = if leads { fleet.leader } else { (fleet.leader + 1) % BALANCERS };
            fleet.restart(at);
            fleet.rest();
            fleet.agree();
            let step = fleet.step.clone().expect("it is there again");
            assert_eq!((step.id(), step.stage), (last.id(), Stage::Done), "{method}");
            assert_eq!((step.pools, step.tables), (last.pools, last.tables), "{method}");
            assert_eq!(fleet.digest(at), digest, "{method}: no table has changed");
        }
    }
}

/// The same where nobody has the step of the leader any more: its disc is another. It does not put that of the copy in
/// force, and all make another one.
#[test]
fn a_leader_that_has_only_the_copy_begins_a_step_above_all() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = one_fleet(method);
        let copy = fleet.step.clone().expect("it was made");
        [9, 4].into_iter().for_each(|weight| fleet.weighs(weight));
        let last = fleet.step.clone().expect("it was made");
        fleet.restore(copy);
        let at = fleet.leader;
        let kept = cache_path(&fleet.members[at].directory.path().join("weir.toml"));
        std::fs::remove_file(kept).expect("it was kept");
        fleet.restart(at);
        fleet.rest();
        fleet.agree();
        let step = fleet.step.clone().expect("another one");
        assert!(step.id() > last.id(), "{method}: {step:?}");
        assert_eq!(step.pools, last.pools, "{method}");
    }
}

/// Whatever the reason, all make their tables anew some seconds later; until then it is said.
#[test]
fn tables_that_differ_are_made_anew() {
    let mut fleet = one_fleet(RESIDUE);
    let begun = Instant::now();
    let (leader, other) = (fleet.leader, (fleet.leader + 1) % BALANCERS);
    let engine = fleet.engine(other);
    let service = engine.services.get_mut("a").expect("it is there");
    let number = service.number;
    let mut pool = service.agreed.clone().expect("it follows a step");
    pool[0].weight += 7;
    (service.agreed, service.dirty) = (Some(pool), true);
    engine.commits = Some(Commit::InStep);
    let failures = engine.publish(&[number]);
    engine.commits = None;
    assert!(failures.is_empty());
    let before = fleet.step_at_all();
    assert_ne!(fleet.digest(other), fleet.digest(leader));
    let mut said = false;
    while fleet.step_at_all() == before {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
        let warnings = fleet.engine(leader).fleet_warnings();
        said |= warnings.iter().any(|one| one.contains("service a: tables differ: "));
    }
    assert!(said, "{}", fleet.stands());
    fleet.rest();
    fleet.agree();
}
