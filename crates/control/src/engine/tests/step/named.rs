//! Histories of steps that are told, and not drawn.

use super::*;

/// So long a test waits for what takes no time to speak of.
const PATIENCE: Duration = Duration::from_secs(120);

fn one_fleet(method: &'static str) -> Fleet {
    let seed = seeds()[0];
    println!("WEIR_SEED={seed}");
    let mut fleet = Fleet::new(seed, method);
    fleet.rest();
    fleet.agree();
    fleet
}

impl Fleet {
    /// Balancers and agents do what there is to do, once, but for the health checks, and the agents' words to one.
    fn go_on(&mut self, deaf: Option<usize>) {
        for at in 0..BALANCERS {
            while !self.members[at].items.is_empty() {
                self.hear(at);
            }
            for n in (1..=BACKENDS).filter(|_| deaf != Some(at)) {
                (0..20).for_each(|_| self.agent(at, n));
            }
            self.turn(at);
        }
        std::thread::sleep(Duration::from_millis(2));
    }

    fn keeps_off(&mut self, at: usize) -> bool {
        !self.engine(at).services["a"].dead_here.is_empty()
    }

    fn is_frozen(&mut self, at: usize) -> bool {
        let engine = self.engine(at);
        let number = engine.services["a"].number;
        engine.plane.tables[&number].header().flags().has(Flags::FROZEN)
    }

    /// Whether all are through with a step that has b2 so.
    fn all_have_b2(&self, down: bool) -> bool {
        let Some(step) = self.step.as_ref().filter(|step| step.stage == Stage::Done) else {
            return false;
        };
        let b2 = step.pools["a"].iter().find(|share| share.name == "b2");
        b2.is_some_and(|share| share.down == down) && self.done_by_all() >= step.number
    }
}

/// The fleet has a backend up again, and one balancer's own check is not so far: no flow is led elsewhere there.
#[test]
fn a_check_that_rises_later_is_no_death() {
    let mut fleet = one_fleet(CONCURY);
    fleet.dead.insert(2);
    fleet.rest();
    assert!(fleet.all_have_b2(true));
    // It has been so for longer than anybody waits for the fleet to say so.
    std::thread::sleep(Duration::from_secs(2));
    let text = shared(CONCURY, &fleet.pool);
    let text = text.replace("enabled = false", "interval = \"1h\"");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let slow = parsed(&directory, &text).services[0].check.clone();
    let late = (fleet.leader + 1) % BALANCERS;
    let service = fleet.engine(late).services.get_mut("a").expect("it is there");
    service.configured.backend_checks.insert("b2".into(), slow);
    fleet.dead.remove(&2);
    let begun = Instant::now();
    while !fleet.all_have_b2(false) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        (0..BALANCERS).filter(|at| *at != late).for_each(|at| fleet.check_health(at, 2));
        fleet.go_on(None);
        assert!(!fleet.keeps_off(late));
    }
    for _ in 0..50 {
        fleet.go_on(None);
        assert!(!fleet.keeps_off(late));
    }
}

/// A balancer that has kept flows from a backend alone does so until there is a table that knows what has begun in
/// that one's place; the leader makes one.
#[test]
fn who_kept_off_alone_waits_for_a_table() {
    let mut fleet = one_fleet(CONCURY);
    let alone = (fleet.leader + 1) % BALANCERS;
    fleet.dead.insert(2);
    fleet.check_health(alone, 2);
    fleet.dead.remove(&2);
    let begun = Instant::now();
    while !fleet.keeps_off(alone) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.turn(alone);
        std::thread::sleep(Duration::from_millis(2));
    }
    fleet.check_health(alone, 2);
    for _ in 0..5 {
        fleet.turn(alone);
        assert!(fleet.keeps_off(alone), "there is no other table yet");
    }
    assert_eq!(fleet.signs[&name(alone)].wait_for_table, ["a"]);
    let before = fleet.step_at_all();
    while fleet.keeps_off(alone) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    assert!(fleet.step_at_all() > before);
    fleet.rest();
    fleet.agree();
}

/// A control plane dies while its packets keep flows from starting, and the step is given up without it: flows start
/// before its agents have listed what they hold.
#[test]
fn who_comes_back_lets_flows_start_at_once() {
    for method in [CONCURY, RESIDUE] {
        let thawed = (0..10).any(|_| {
            let mut fleet = one_fleet(method);
            let at = (fleet.leader + 1) % BALANCERS;
            let begun = Instant::now();
            let before = fleet.step_at_all();
            while fleet.step_at_all() == before {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.change_pool();
                (0..20).for_each(|_| fleet.go_on(Some(at)));
            }
            while !fleet.is_frozen(at) {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.go_on(Some(at));
            }
            fleet.restart(at);
            assert!(fleet.is_frozen(at), "it has died so");
            while fleet.is_frozen(at) {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.go_on(Some(at));
            }
            // On a slow machine it has not waited for agents any more.
            fleet.engine(at).settles()
        });
        assert!(thawed, "{method}: not before agents have listed");
    }
}

/// An agent is lost for so long that its backend is observed. Nobody else can say what has begun there by another
/// balancer, so no pool changes before it calls again, or has been away for long; and new flows start meanwhile.
#[test]
fn a_change_waits_for_an_agent_that_was_lost() {
    for method in [CONCURY, RESIDUE] {
        for leads in [true, false] {
            let mut fleet = one_fleet(method);
            let at = if leads { fleet.leader } else { (fleet.leader + 1) % BALANCERS };
            let begun = Instant::now();
            let session = fleet.members[at].sessions.remove(&1).expect("it speaks");
            let number = session.number;
            fleet.members[at].cut.insert(1, (session, u32::MAX));
            fleet.engine(at).handle(Command::AgentGone(Some(number)));
            fleet.engine(at).give_up_lost();
            let before = fleet.committed.len();
            fleet.pool.insert(2, 9);
            fleet.propose(0);
            let mut said = false;
            for _ in 0..300 {
                fleet.go_on(None);
                assert_eq!(fleet.committed.len(), before, "{}", fleet.stands());
                assert!((0..BALANCERS).all(|at| !fleet.is_frozen(at)), "{}", fleet.stands());
                let warnings = fleet.engine(at).fleet_warnings();
                said |= warnings.iter().any(|one| one.contains("agents of b1 to call again"));
            }
            assert!(said, "{method}: whom it waits for");
            if leads {
                // It has been away for longer than anybody waits.
                fleet.engine(at).give_up_missed();
            } else {
                fleet.members[at].cut.get_mut(&1).expect("it is away").1 = 0;
            }
            while fleet.committed.len() == before {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.go_on(None);
            }
            fleet.members[at].cut.clear();
            fleet.rest();
            fleet.agree();
        }
    }
}
