//! A balancer to which no table gets through: the others wait for it once, it goes on with the configurations that come,
//! and no step is made for it before it has made up for what it has missed.

use super::*;

impl Fleet {
    fn change_at(&mut self, at: usize) -> u64 {
        self.engine(at).fleet.as_ref().expect("it is of one").change()
    }

    /// What a balancer has said in the step that the store has.
    fn said_in_step(&self, at: usize) -> Option<&Ack> {
        let step = self.step.as_ref()?;
        self.acks.get(&name(at)).filter(|ack| ack.step == step.id())
    }

    fn left_behind(&self, at: usize) -> Option<String> {
        self.signs.get(&name(at))?.left_behind.clone()
    }
}

#[test]
fn who_gets_no_table_is_waited_for_once_and_follows_what_comes() {
    let mut fleet = one_fleet(CONCURY);
    let begun = Instant::now();
    let (leader, other) = (fleet.leader, (fleet.leader + 1) % BALANCERS);
    let stage = |fleet: &Fleet| fleet.step.as_ref().map(|step| step.stage);
    fleet.tableless = Some(other);
    let made = fleet.committed.len();
    fleet.pool.insert(2, 9);
    fleet.propose(0);
    while fleet.committed.len() == made {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
        let said = fleet.said_in_step(other);
        assert!(said.is_none_or(|ack| !ack.lags), "nobody knows of it yet: {said:?}");
    }

    // In the next step the others know, and a change that comes in its course is followed after it.
    fleet.pool.insert(2, 5);
    fleet.propose(0);
    while stage(&fleet) != Some(Stage::Freeze) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    fleet.pool.insert(3, 7);
    fleet.propose(0);
    let (made, mut lagged) = (fleet.committed.len(), false);
    let change = fleet.document.change;
    while fleet.change_at(other) != change || fleet.committed.len() < made + 2 {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
        let commits = stage(&fleet) == Some(Stage::Commit);
        lagged |= commits && fleet.said_in_step(other).is_some_and(|ack| ack.lags);
    }
    assert!(lagged, "it has said that nobody need wait: {}", fleet.stands());

    // It lets flows start by the table of before, and all say so, and why.
    while fleet.is_frozen(other) || fleet.left_behind(other).is_none() {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    fleet.go_on(None);
    let why = "the table of service a did not come: nobody";
    assert_eq!(fleet.left_behind(other).as_deref(), Some(why));
    let warnings = fleet.engine(other).fleet_warnings().join("\n");
    assert!(warnings.contains(why) && !warnings.contains("says nothing of it"), "{warnings}");
    let status = fleet.engine(leader).fleet_status().expect("it is of one");
    let there = status.balancers.iter().find(|one| one.name == name(other));
    assert_eq!(there.map(|one| &*one.role), Some("behind"));
    let said = status.disagreements.join("\n");
    let words = format!("{} does not follow the last change of pools in step: {why}", name(other));
    assert!(said.contains(&words), "{said}");

    // Its table differs, which another step would not mend.
    let (made, since) = (fleet.committed.len(), Instant::now());
    while since.elapsed() < Duration::from_secs(8) {
        fleet.go_on(None);
        assert_eq!(fleet.committed.len(), made, "{}", fleet.stands());
    }

    // It makes up for all that by itself.
    fleet.tableless = None;
    fleet.rest();
    fleet.agree();
    let behind = |fleet: &Fleet| {
        let ack = &fleet.acks[&name(other)];
        ack.late || ack.lags || fleet.left_behind(other).is_some()
    };
    while behind(&fleet) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
}

/// Nobody tells it who is dead: its own checks count. The table that it then waits for is of no step that others make
/// for it.
#[test]
fn who_was_left_behind_keeps_off_the_dead_by_its_own_checks() {
    let mut fleet = one_fleet(CONCURY);
    let begun = Instant::now();
    let other = (fleet.leader + 1) % BALANCERS;
    fleet.tableless = Some(other);
    for weight in [9, 5] {
        let made = fleet.committed.len();
        fleet.pool.insert(2, weight);
        fleet.propose(0);
        while fleet.committed.len() == made {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
        }
    }
    while fleet.is_frozen(other) || fleet.left_behind(other).is_none() {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    fleet.dead.insert(1);
    fleet.check_health(other, 1);
    fleet.dead.remove(&1);
    while !fleet.keeps_off(other) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    fleet.check_health(other, 1);
    while fleet.signs[&name(other)].wait_for_table.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    let (made, since) = (fleet.step_at_all(), Instant::now());
    while since.elapsed() < Duration::from_secs(8) {
        fleet.go_on(None);
        assert_eq!(fleet.step_at_all(), made, "{}", fleet.stands());
    }
    fleet.tableless = None;
    fleet.rest();
    fleet.agree();
    assert!(!fleet.keeps_off(other));
}
