//! Weights that backends say, slow starts, backups, and what becomes of a dead backend's connections.

use super::*;
use crate::config::{Check, DeadConnections, Http, Spoken, WeightIn, What};
use std::collections::BTreeSet;
use weir_steering::Phase;
use weir_wire::Reason;

/// A check that no test makes.
pub(super) fn usual_check(interval: Duration) -> Check {
    Check {
        what: What::Tcp,
        interval,
        timeout: interval / 2,
        jitter: 0,
        rise: 1,
        fall: 1,
        flap_window: Duration::ZERO,
        via: Default::default(),
        port: 80,
        backends_port: false,
        weight_step: 10,
        weight_every: Duration::ZERO,
        slow_start: Duration::ZERO,
        slow_start_curve: 1,
        all_down: Default::default(),
        dead_connections: Default::default(),
    }
}

fn checked(change: impl FnOnce(&mut Check)) -> World {
    let mut world = World::new(1);
    let mut check = usual_check(Duration::from_secs(1));
    change(&mut check);
    world.service().configured.check = Some(check);
    world
}

/// One whose tasks never run: nobody is asked.
fn idle() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn asks_weight(check: &mut Check) {
    check.what = What::Http(Http {
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Default::default(),
        status: Vec::new(),
        body: None,
        answer_headers: Default::default(),
        weight: Some(WeightIn::Header("x-weight".into())),
    });
}

impl World {
    fn service(&mut self) -> &mut ServiceRuntime {
        self.engine.services.get_mut("a").expect("there")
    }

    /// Its check says so, some time ago.
    fn check_says(&mut self, name: &str, up: bool, spoken: Option<Spoken>, ago: u64) -> BackendId {
        let service = self.service();
        let id = service.member(name).expect("there").id;
        let target = service.target(id);
        let at = Instant::now() - Duration::from_secs(ago);
        let change = Transition { id: target, up, spoken, detail: "said".into(), at };
        self.engine.handle(Command::Health(vec![change]));
        self.upkeep();
        self.service().member(name).expect("there").id
    }

    fn effective(&self, name: &str) -> f64 {
        let status = self.engine.status().expect("readable");
        let backends = &status.services[0].backends;
        backends.iter().find(|one| one.name == name).expect("there").effective_weight
    }

    /// Segments in the middle of all live flows go where they live, also to a backend that is down: a SYN
    /// does not.
    fn stays(&mut self) {
        for (flow, backend) in &self.live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            assert_eq!(self.engine.plane.process(&frame), Outcome::Forwarded(*backend), "{flow}");
        }
    }

    /// How many of new flows go to a backend.
    fn share(&mut self, of: BackendId, clients: std::ops::Range<u32>) -> f64 {
        let all = clients.len() as f64;
        self.start(0, clients).into_iter().filter(|went| *went == of).count() as f64 / all
    }
}

#[test]
fn a_weight_that_is_said_counts_and_moves_nobody() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(asks_weight);
    world.start(0, 0..300);
    let id = world.check_says("b1", true, Some(Spoken::Percent(50)), 0);
    assert!((world.effective("b1") - 0.5).abs() < 1e-9);
    let share = world.share(id, 1000..3000);
    assert!((0.13..0.27).contains(&share), "{share}, not about 0.2");
    world.check();
    let id = world.check_says("b1", true, Some(Spoken::Weight(0)), 0);
    assert_eq!(world.share(id, 3000..3300), 0.0);
    world.check();
    // If nobody wants anything, somebody has to take it.
    world.check_says("b2", true, Some(Spoken::Percent(0)), 0);
    world.check_says("b3", true, Some(Spoken::Weight(0)), 0);
    let share = world.share(id, 4000..5000);
    assert!((0.2..0.5).contains(&share), "{share}");
    world.check();
    // What is not asked any more is forgotten.
    world.service().configured.check = Some(usual_check(Duration::from_secs(1)));
    world.upkeep();
    assert!((world.effective("b1") - 1.0).abs() < 1e-9);
    world.check();
    // An operator's 0 comes first.
    let mut world = checked(asks_weight);
    let none = world.ask(|reply| Command::Weight("a".into(), "b1".into(), 0, reply));
    none.expect("it can be");
    let id = world.check_says("b1", true, Some(Spoken::Weight(9)), 0);
    assert_eq!(world.share(id, 0..300), 0.0);
}

#[test]
fn a_backend_that_comes_up_grows_to_its_weight() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|check| check.slow_start = Duration::from_secs(90));
    world.start(0, 0..300);
    world.check_says("b1", false, None, 0);
    let id = world.check_says("b1", true, None, 0);
    assert!((world.effective("b1") - 0.1).abs() < 1e-9);
    let share = world.share(id, 1000..5000);
    assert!((0.01..0.1).contains(&share), "{share}, not about 0.048");
    world.check_says("b1", false, None, 0);
    world.check_says("b1", true, None, 45);
    assert!((world.effective("b1") - 0.5).abs() < 1e-9);
    world.check_says("b1", false, None, 0);
    world.check_says("b1", true, None, 91);
    assert!((world.effective("b1") - 1.0).abs() < 1e-9);
    world.check();
    // Alone it takes everything, and the setting may go away under it.
    world.check_says("b1", false, None, 0);
    let id = world.check_says("b1", true, None, 0);
    world.check_says("b2", false, None, 0);
    world.check_says("b3", false, None, 0);
    assert_eq!(world.share(id, 6000..6100), 1.0);
    world.service().configured.check = Some(usual_check(Duration::from_secs(1)));
    world.upkeep();
    assert!((world.effective("b1") - 1.0).abs() < 1e-9);
}

#[test]
fn a_backup_serves_while_no_other_does() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|_| {});
    world.service().member_mut("b3").expect("there").wanted.backup = true;
    world.service().dirty = true;
    world.upkeep();
    let spare = world.service().member("b3").expect("there").id;
    assert_eq!(world.share(spare, 0..300), 0.0);
    world.check_says("b1", false, None, 0);
    assert_eq!(world.share(spare, 300..600), 0.0);
    world.check_says("b2", false, None, 0);
    assert_eq!(world.share(spare, 1000..1200), 1.0);
    world.check_says("b1", true, None, 0);
    assert_eq!(world.share(spare, 2000..2200), 0.0);
    let state = world.engine.status().unwrap().services[0].backends[2].state.clone();
    assert_eq!(state, "backup");
    // With all down, the others take what comes.
    world.check_says("b1", false, None, 0);
    world.check_says("b3", false, None, 0);
    assert_eq!(world.share(spare, 3000..3200), 0.0);
    for name in ["b1", "b2", "b3"] {
        world.check_says(name, true, None, 0);
    }
    world.check();
}

#[test]
fn connections_of_a_dead_backend_move_if_that_is_wanted() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|check| check.dead_connections = DeadConnections::Move);
    world.start(0, 0..600);
    let dead = world.service().member("b1").expect("there").id;
    let theirs: Vec<FlowKey> =
        world.live.iter().filter(|(_, at)| **at == dead).map(|(flow, _)| *flow).collect();
    assert!(theirs.len() > 100);
    let number = world.check_says("b1", false, None, 0);
    assert_ne!(number, dead);
    world.live.retain(|_, at| *at != dead);
    // Nobody else has noticed.
    world.check();
    for flow in &theirs {
        let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
        match world.engine.plane.process(&frame) {
            Outcome::Forwarded(went) => assert!(went != dead && went != number, "{flow}: {went:?}"),
            other => panic!("{flow}: {other:?}"),
        }
    }
    assert_eq!(world.engine.status().unwrap().services[0].backends[0].state, "down");
    assert_eq!(world.warnings(), Vec::<String>::new());
    let again = world.check_says("b1", true, None, 0);
    assert_eq!(again, number);
    assert!(world.share(again, 2000..2300) > 0.2);
    world.check();
    // A restart finds it under its new number.
    let saved = &world.engine.document.services["a"].backends[0];
    assert_eq!((saved.id, saved.name.as_str()), (number.get(), "b1"));
    // While nobody is up, they stay.
    for name in ["b1", "b2"] {
        world.check_says(name, false, None, 0);
    }
    let last = world.service().member("b3").expect("there").id;
    assert_eq!(world.check_says("b3", false, None, 0), last);
    // Without the setting they stay in any case.
    let mut world = checked(|_| {});
    world.start(0, 0..300);
    let before = world.service().member("b1").expect("there").id;
    assert_eq!(world.check_says("b1", false, None, 0), before);
    world.stays();
}

/// With one up that takes new connections, packets for a dead backend are answered by resets, and no others;
/// it is over when it comes back, when nobody is up any more, and when the file says so.
#[test]
fn connections_of_a_dead_backend_are_reset_if_that_is_wanted() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|check| check.dead_connections = DeadConnections::Reset);
    world.engine.plane.nanoseconds = 1 << 40;
    weir_plane::Plane::set_reset_rate(&mut world.engine.plane, 1_000_000);
    world.start(0, 0..600);
    let [b1, b2] = ["b1", "b2"].map(|name| world.service().member(name).expect("there").id);
    let live = world.live.clone();
    let outcomes = |world: &mut World, at: BackendId| -> BTreeSet<String> {
        world.engine.plane.nanoseconds += 1 << 40;
        let theirs = live.iter().filter(|(_, there)| **there == at).take(40);
        let frames: Vec<_> =
            theirs.map(|(flow, _)| Frame::new(*flow).tcp_flags(TcpFlags::ACK).build()).collect();
        assert_eq!(frames.len(), 40);
        frames.iter().map(|frame| format!("{:?}", world.engine.plane.process(frame))).collect()
    };
    let forwarded = |at: BackendId| BTreeSet::from([format!("{:?}", Outcome::Forwarded(at))]);
    let reset = BTreeSet::from([format!("{:?}", Outcome::Dropped(Reason::ResetSent))]);
    assert_eq!(world.check_says("b1", false, None, 0), b1, "it keeps its number");
    assert_eq!(outcomes(&mut world, b1), reset);
    assert_eq!(outcomes(&mut world, b2), forwarded(b2));
    world.upkeep();
    assert_eq!(outcomes(&mut world, b1), reset, "looking after next hops changes nothing");
    // New connections go elsewhere; and with nobody up, the checks may be what is wrong.
    for name in ["b2", "b3"] {
        world.check_says(name, false, None, 0);
    }
    assert_eq!(outcomes(&mut world, b1), forwarded(b1));
    assert_eq!(outcomes(&mut world, b2), forwarded(b2));
    world.check_says("b3", true, None, 0);
    assert_eq!(outcomes(&mut world, b1), reset);
    assert_eq!(outcomes(&mut world, b2), reset);
    world.check_says("b1", true, None, 0);
    assert_eq!(outcomes(&mut world, b1), forwarded(b1));
    assert_eq!(outcomes(&mut world, b2), reset);
    // A reload without the setting.
    let mut config = world.engine.config.clone();
    for service in &mut config.services {
        if let Some(check) = &mut service.check {
            check.dead_connections = DeadConnections::Keep;
        }
    }
    world.engine.reload_as(config, false).unwrap();
    assert_eq!(outcomes(&mut world, b2), forwarded(b2));
    world.check_says("b2", true, None, 0);
    world.check();
}

/// A reset that the balancer has sent ends its connection, as the client's own would: a minute later nobody knows
/// it. What has been silent stays; so does another connection that has begun elsewhere with the same ports.
#[test]
fn what_the_balancer_has_reset_is_forgotten() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|check| check.dead_connections = DeadConnections::Reset);
    world.engine.plane.nanoseconds = 1 << 40;
    weir_plane::Plane::set_reset_rate(&mut world.engine.plane, 1_000_000);
    world.start(0, 0..600);
    for _ in 0..2 {
        world.engine.ahead += 40;
        world.check();
        world.engine.sweep().unwrap();
    }
    let [b1, b2] = ["b1", "b2"].map(|name| world.service().member(name).expect("there").id);
    let of = |world: &World, id: BackendId| -> Vec<FlowKey> {
        world.live.iter().filter(|(_, there)| **there == id).map(|(flow, _)| *flow).collect()
    };
    let (theirs, others) = (of(&world, b1), of(&world, b2));
    let (told, silent) = theirs.split_at(theirs.len() / 2);
    assert!(told.len() > 20 && !others.is_empty());
    assert_eq!(world.check_says("b1", false, None, 0), b1, "it keeps its number");
    for flow in told {
        world.engine.plane.nanoseconds += 1 << 30;
        let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
        assert_eq!(world.engine.plane.process(&frame), Outcome::Dropped(Reason::ResetSent));
    }
    world.engine.drain_reports().unwrap();
    let phase = |world: &World, flow: &FlowKey| {
        let known = world.engine.services["a"].known(&StateKey::of_flow(flow));
        known.map(|known| known.phase)
    };
    assert!(told.iter().all(|flow| phase(&world, flow) == Some(Phase::Closing)));
    assert!(silent.iter().all(|flow| phase(&world, flow) == Some(Phase::Open)));
    // A report of a reset that comes after the next connection with these ports has begun is none of that one's.
    let key = StateKey::of_flow(&others[0]);
    let state = ServiceState { service: world.service().number, key };
    let late = Event { state, backend: b1, kind: EventKind::End };
    let now = world.engine.now();
    world.service().take_event(&late, now).unwrap();
    assert_eq!(phase(&world, &others[0]), Some(Phase::Open));
    for _ in 0..4 {
        world.engine.ahead += 40;
        world.engine.sweep().unwrap();
    }
    assert!(told.iter().all(|flow| phase(&world, flow).is_none()));
    assert!(silent.iter().all(|flow| phase(&world, flow) == Some(Phase::Open)));
    assert_eq!(world.service().states_of(b1), Some(silent.len()));
    // They go on where they were if it comes back.
    world.check_says("b1", true, None, 0);
    for flow in told {
        world.live.remove(flow);
    }
    world.stays();
}

/// A number that cannot be had changes nothing but that the backend is down.
#[test]
fn connections_that_cannot_move_stay() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|check| check.dead_connections = DeadConnections::Move);
    world.start(0, 0..300);
    let before = world.service().member("b1").expect("there").id;
    world.engine.plane.refuse(Operation::Show);
    assert_eq!(world.check_says("b1", false, None, 0), before);
    world.engine.plane.refuse_nothing();
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
    world.stays();
}

/// One that was added while all others are down waits for its check, over a restart, too: there may be nothing at its
/// address. Who has been up once is kept like the others, and so is who has never been where nobody else could be.
#[test]
fn who_has_never_been_up_is_not_kept_where_others_have() {
    let runtime = idle();
    let _inside = runtime.enter();
    let mut world = checked(|_| ());
    for name in ["b1", "b2", "b3"] {
        world.health("a", name, false);
    }
    let add = |world: &mut World, n: u8| {
        let added = Box::new(backend(0, n));
        world.ask(|reply| Command::Add("a".into(), added, reply)).expect("it is new");
        world.engine.services["a"].member(&format!("b{n}")).expect("there").id
    };
    let new = add(&mut world, 4);
    world.upkeep();
    let went: HashSet<BackendId> = world.start(0, 0..300).into_iter().collect();
    assert!(went.len() == 3 && !went.contains(&new), "{went:?}");
    let unproven = |world: &mut World| -> Vec<String> {
        world.engine.save().expect("it can be kept");
        let saved = &world.engine.document.services["a"].backends;
        saved.iter().filter(|one| one.unproven).map(|one| one.name.clone()).collect()
    };
    assert_eq!(unproven(&mut world), ["b4"]);
    for up in [true, false] {
        world.health("a", "b4", up);
        world.upkeep();
    }
    assert!(unproven(&mut world).is_empty());
    let went: HashSet<BackendId> = world.start(0, 300..700).into_iter().collect();
    assert!(went.len() == 4 && went.contains(&new), "{went:?}");
    let last = add(&mut world, 5);
    for name in ["b1", "b2", "b3", "b4"] {
        world.drain("a", name).expect("nothing is refused");
    }
    world.upkeep();
    assert!(world.start(0, 700..750).iter().all(|went| *went == last));
}
