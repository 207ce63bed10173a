//! Histories of steps that are told, and not drawn.

mod behind;
mod copies;
mod turns;

use super::*;

pub(super) fn one_fleet(method: &'static str) -> Fleet {
    let seed = seeds()[0];
    println!("WEIR_SEED={seed}");
    let mut fleet = Fleet::new(seed, method, false);
    fleet.rest();
    fleet.agree();
    fleet
}

impl Fleet {
    /// Balancers and agents do what there is to do, once, but for the health checks, and the agents' words to one.
    pub(super) fn go_on(&mut self, deaf: Option<usize>) {
        self.go_on_without(None, deaf);
    }

    /// The same, while one balancer does nothing and hears nothing.
    fn go_on_without(&mut self, away: Option<usize>, deaf: Option<usize>) {
        for at in (0..BALANCERS).filter(|at| away != Some(*at)) {
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

    pub(super) fn is_frozen(&mut self, at: usize) -> bool {
        let engine = self.engine(at);
        let number = engine.services["a"].number;
        engine.plane.tables[&number].header().flags().has(Flags::FROZEN)
    }

    /// Whether all are through with a step that has b2 so.
    pub(super) fn all_have_b2(&self, down: bool) -> bool {
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
    let slow = parsed(&directory, &text, false).services[0].check.clone();
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
            fleet.engine(at).handle(Command::AgentGone(number));
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
            // Where the leader is the one that waits, all know from it why.
            for other in (0..BALANCERS).filter(|other| leads && *other != at) {
                let why = fleet.waits(other).unwrap_or_default();
                assert!(why.contains("agents of b1 to call again"), "{method}: {why}");
            }
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

/// A leader that does nothing says nothing: the others see that pools wait, and for whom. When it goes on there is
/// nothing more to say.
#[test]
fn who_waits_for_a_silent_leader_says_so() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = one_fleet(method);
        let (begun, leader) = (Instant::now(), fleet.leader);
        let others = || (0..BALANCERS).filter(move |at| *at != leader);
        let said = format!("of a, waits for {}, which leads", name(leader));
        fleet.pool.insert(2, 9);
        fleet.propose((leader + 1) % BALANCERS);
        for at in others() {
            while !fleet.waits(at).is_some_and(|why| why.contains(&said)) {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.go_on_without(Some(leader), None);
            }
            let warnings = fleet.engine(at).fleet_warnings();
            assert!(warnings.iter().any(|one| one.contains(&said)), "{warnings:?}");
        }
        for at in 0..BALANCERS {
            while fleet.waits(at).is_some() {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                fleet.go_on(None);
            }
        }
        fleet.rest();
        fleet.agree();
    }
}

impl Fleet {
    /// What a change of pools waits for, as a balancer says it.
    fn waits(&mut self, at: usize) -> Option<String> {
        self.engine(at).step_status()?.why
    }

    /// Where a packet of a client goes by one balancer, which does not look at what its packets report.
    pub(super) fn goes(&mut self, at: usize, client: u32, flags: TcpFlags) -> Option<u8> {
        let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
        let engine = self.engine(at);
        let Outcome::Forwarded(id) = engine.plane.process(&frame) else { return None };
        let service = &engine.services["a"];
        service.name_of(id)?.strip_prefix('b')?.parse().ok()
    }
}

/// An entry of a flow that is over, which a packet has left at one balancer, does not outlive a step: it would lead
/// the next connection of the same addresses and ports elsewhere than all others.
#[test]
fn nothing_stays_pending_that_is_over() {
    for method in [CONCURY, RESIDUE] {
        for restarts in [false, true] {
            let mut fleet = one_fleet(method);
            let begun = Instant::now();
            let at = (fleet.leader + 1) % BALANCERS;
            let open = |fleet: &Fleet| {
                let mut open = fleet.live.iter().filter(|(_, lives)| lives.1 == Phase::Open);
                open.next().map(|(client, lives)| (*client, lives.0))
            };
            let (client, home) = loop {
                assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
                match open(&fleet) {
                    Some(found) => break found,
                    None => fleet.client(),
                }
            };
            fleet.rest();
            let engine = fleet.engine(at);
            let service = &engine.services["a"];
            let other = service.pool.iter().find(|one| one.wanted.name != format!("b{home}"));
            let other = other.expect("there are others").id;
            let key = StateKey::of_flow(&flow(0, client));
            let state = weir_steering::ServiceState { service: service.number, key };
            engine.plane.memory.pending.insert(state, other);
            if restarts {
                fleet.restart(at);
                fleet.rest();
            }
            fleet.pool.insert(2, 9);
            fleet.propose(0);
            fleet.rest();
            let pending = weir_plane::Plane::pending_backend(&fleet.engine(at).plane, &state);
            assert_eq!(pending.expect("it can be read"), None, "{method}");
            assert_eq!(
                fleet.goes(at, client, TcpFlags::ACK),
                Some(home),
                "{}",
                fleet.looks(client)
            );
        }
    }
}

/// A balancer that keeps flows from a backend alone leads those home whose SYNs it has just let through, and has not
/// heard of.
#[test]
fn a_table_made_alone_knows_what_has_just_begun() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = one_fleet(method);
        let alone = (fleet.leader + 1) % BALANCERS;
        fleet.dead.insert(2);
        fleet.check_health(alone, 2);
        // The fleet has not said so for longer than anybody waits for that.
        std::thread::sleep(Duration::from_secs(2));
        let begun: Vec<u32> = (0..CLIENTS)
            .filter(|client| fleet.goes(alone, *client, TcpFlags::SYN) == Some(2))
            .collect();
        assert!(!begun.is_empty());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let guard = runtime.enter();
        fleet.engine(alone).go_on_in_step();
        drop(guard);
        assert!(fleet.keeps_off(alone));
        for client in begun {
            let went = fleet.goes(alone, client, TcpFlags::ACK);
            assert_eq!(went, Some(2), "{method}: {}", fleet.looks(client));
        }
    }
}

/// The control plane of a balancer that has kept flows from a backend alone is killed, and knows nothing of it any
/// more: it follows what the others do all the same.
#[test]
fn who_kept_off_alone_and_was_killed_follows_the_others() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = one_fleet(method);
        let begun = Instant::now();
        let alone = (fleet.leader + 1) % BALANCERS;
        fleet.dead.insert(2);
        fleet.check_health(alone, 2);
        while !fleet.keeps_off(alone) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.turn(alone);
            std::thread::sleep(Duration::from_millis(2));
        }
        fleet.dead.remove(&2);
        fleet.restart(alone);
        fleet.rest();
        fleet.agree();
    }
}

/// A balancer whose rows are not the leader's does not follow them: it goes on with its table, lets flows start by it
/// after the others, who do not wait for it, and says so.
#[test]
fn rows_that_are_not_the_leaders_are_not_followed() {
    let mut fleet = one_fleet(RESIDUE);
    let begun = Instant::now();
    let other = (fleet.leader + 1) % BALANCERS;
    let before = fleet.engine(other).services["a"].generation;
    fleet.differs = Some(other);
    let change = |fleet: &mut Fleet, weight: u32| {
        let made = fleet.committed.len();
        fleet.pool.insert(2, weight);
        fleet.propose(0);
        while fleet.committed.len() == made {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
        }
    };
    change(&mut fleet, 9);
    let step = fleet.step.clone().expect("it was made");
    assert!(step.rows.contains_key("a"), "{step:?}");
    let seen = |fleet: &mut Fleet, at: usize| {
        let service = &fleet.engine(at).services["a"];
        let image = service.builder.published().expect("a table");
        let said = service.trouble.as_ref().map(|trouble| trouble.what.clone());
        (service.generation, crate::engine::fleet::digest_of(service, image), said)
    };
    while fleet.is_frozen(other) {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    let (generation, digest, said) = seen(&mut fleet, other);
    let said = said.expect("it says so");
    assert!(said.contains("the leader's another: it is not followed"), "{said}");
    assert_eq!(generation, before, "packets follow the table of before");
    for at in (0..BALANCERS).filter(|at| *at != other) {
        let theirs = seen(&mut fleet, at);
        assert_eq!((&theirs.1, theirs.2), (&step.rows["a"], None), "who has the leader's follows");
        assert_ne!(theirs.1, digest);
    }
    // What it makes is the leader's again.
    fleet.differs = None;
    change(&mut fleet, 5);
    fleet.rest();
    fleet.agree();
}

/// What a change goes on without is said with names: of agents that do not answer, and of backends whose agents are
/// lost.
#[test]
fn lost_agents_are_named_by_their_backends() {
    let mut fleet = one_fleet(RESIDUE);
    let at = fleet.leader;
    let pools = fleet.step.as_ref().expect("it was made").pools.clone();
    let number = fleet.engine(at).collect_from_agents();
    let said = fleet.engine(at).unsaid(number, &pools);
    assert_eq!(said, ("b1, b2, b3".into(), String::new()));
    let session = fleet.members[at].sessions.remove(&1).expect("it speaks").number;
    fleet.engine(at).handle(Command::AgentGone(session));
    let said = fleet.engine(at).unsaid(number, &pools);
    assert_eq!(said, ("b2, b3".into(), "b1".into()));
}

/// Where a change waits for an agent that says nothing, that one is named, and none of the balancers, which wait for it
/// as their leader does.
#[test]
fn a_silent_agent_is_named_and_nobody_who_waits_for_it() {
    let mut fleet = one_fleet(RESIDUE);
    let begun = Instant::now();
    let leader = fleet.leader;
    fleet.pool.insert(3, 9);
    fleet.propose(0);
    let said = loop {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        for at in 0..BALANCERS {
            while !fleet.members[at].items.is_empty() {
                fleet.hear(at);
            }
            for n in (1..=BACKENDS).filter(|n| *n != 2) {
                (0..20).for_each(|_| fleet.agent(at, n));
            }
            fleet.turn(at);
        }
        let said = fleet.engine(leader).waits_as_leader().unwrap_or_default();
        if said.contains("collect") || said.contains("agents") {
            break said;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(said.contains("waits for the agents of b2, which"), "{said}");
    assert!(!said.contains("lb"), "{said}");
    fleet.rest();
    fleet.agree();
}

/// A step that is given up before agents were asked says nothing of them; one in which they did not answer in time
/// counts, until they answer again. The leader waits for longer after each that is given up, and begins anew with
/// that after a change.
#[test]
fn agents_are_deaf_only_if_they_were_asked() {
    let mut fleet = one_fleet(RESIDUE);
    let begun = Instant::now();
    let (leader, other) = (fleet.leader, (fleet.leader + 1) % BALANCERS);
    let away = (fleet.leader + 2) % BALANCERS;
    let deaf = |fleet: &mut Fleet, at: usize| {
        fleet.engine(at).fleet.as_ref().expect("it is of one").stepping.deaf()
    };
    let paused = |fleet: &mut Fleet| {
        let at = fleet.leader;
        fleet.engine(at).fleet.as_ref().expect("it is of one").stepping.pause_of_leader()
    };
    let stage = |fleet: &Fleet| fleet.step.as_ref().map(|step| step.stage);
    fleet.pool.insert(2, 9);
    fleet.propose(0);
    // One does not come to *freeze*, so that nobody asks.
    let before = fleet.given_up;
    while fleet.given_up < before + 2 {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        let freezes = stage(&fleet) == Some(Stage::Freeze);
        fleet.go_on_without(freezes.then_some(away), None);
        for at in 0..BALANCERS {
            assert_eq!(deaf(&mut fleet, at), 0, "{}", fleet.stands());
        }
    }
    // Agents do not answer one.
    let before = fleet.given_up;
    while deaf(&mut fleet, other) < 2 {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        let asks = stage(&fleet) == Some(Stage::Collect);
        fleet.go_on(asks.then_some(other));
    }
    assert!(fleet.given_up >= before + 2, "{}", fleet.stands());
    assert_eq!(deaf(&mut fleet, leader), 0, "the leader's have answered");
    let long = paused(&mut fleet);
    assert!(long.is_some_and(|pause| pause >= Duration::from_millis(800)), "{long:?}");
    // They do again.
    let made = fleet.committed.len();
    while fleet.committed.len() == made {
        assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
        fleet.go_on(None);
    }
    fleet.rest();
    assert_eq!(deaf(&mut fleet, other), 0);
    assert_eq!(paused(&mut fleet), None);
    fleet.agree();
}
