//! What takes long is done beside: reports find room meanwhile, and questions and failures are attended to.

use super::*;
use crate::neigh::Change;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Connections of a service that has many.
const MANY: u32 = 40_000;
/// Reports that find room by default, as docs/concury.md has it.
const ROOM: usize = 490_000;
/// Longest that work waits for what is to happen beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two services, of which the first has many connections; reports find as much room as by default.
fn crowded() -> World {
    let memory = SoftMemory::new(1_000_000, 64, 64);
    let mut world = World::over(memory, 2, |_| ());
    let limits = Limits::default();
    world.engine.plane.bounds.reports = limits.event_ring_bytes as usize / (size_of::<Event>() + 8)
        + limits.unreported_flows as usize;
    for from in (0..MANY).step_by(10_000) {
        world.start(0, from..from + 10_000);
        world.engine.drain_until_here().expect("nothing is refused");
    }
    world
}

/// Waits on the lent states' thread until something is so.
fn until(what: &'static str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "not while the states are lent: {what}");
        thread::yield_now();
    }
}

/// A table takes so long to build that many more connections are reported than there is room for. All are known: none
/// moves with the next changes, of this service or the other.
#[test]
fn a_flood_beside_a_long_update_is_recorded() {
    const CAME: usize = 700_000;
    /// Connections that begin between two looks.
    const AT_A_TIME: u32 = 4_000;
    let mut world = crowded();
    const { assert!(ROOM < CAME * 3 / 4) };
    let (came, floods) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    // One in so many is looked at.
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let (count, on, look) = (came.clone(), floods.clone(), seen.clone());
    world.engine.plane.between = Between::steps(move |plane: &mut Soft| {
        if !on.load(Ordering::SeqCst) || count.load(Ordering::SeqCst) >= CAME {
            return;
        }
        let first = count.fetch_add(AT_A_TIME as usize, Ordering::SeqCst) as u32;
        for number in first..first + AT_A_TIME {
            // A few of those begin at the service whose table is built.
            let service = u8::from(number % 64 != 0);
            let flow = flow(service, MANY + number);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            let went = plane.process(&frame);
            if number % 512 < 2 {
                look.lock().expect("whole").insert(flow, went);
            }
        }
    });
    let (count, on) = (came.clone(), floods.clone());
    world.engine.slow = Some(Arc::new(move || {
        on.store(true, Ordering::SeqCst);
        until("a flood is over", || count.load(Ordering::SeqCst) >= CAME);
    }));
    world.drain("a", "b1").expect("nothing is refused");
    world.engine.slow = None;
    world.engine.plane.between = Between::default();
    assert!(came.load(Ordering::SeqCst) >= CAME);
    assert_eq!(world.engine.status().expect("readable").unrecorded_flows, 0);
    for (flow, went) in std::mem::take(&mut *seen.lock().expect("whole")) {
        let Outcome::Forwarded(backend) = went else { panic!("{flow}: {went:?}") };
        world.live.insert(flow, backend);
    }
    world.check();
    for service in ["a", "b"] {
        world.drain(service, "b2").expect("nothing is refused");
        world.check();
        world
            .ask(|reply| Command::Drain(service.into(), "b2".into(), false, reply))
            .expect("it can");
    }
    assert_eq!(world.engine.status().expect("readable").unrecorded_flows, 0);
}

/// Next hops that were looked up.
static LOOKED_UP: AtomicUsize = AtomicUsize::new(0);

/// While a table is built, and while idle connections are looked for, status is answered, a backend that fails is kept
/// from new connections, and a change of the network is followed. Where a connection goes is said when that is over.
#[test]
fn what_is_urgent_waits_for_no_table() {
    let mut world = crowded();
    let (sender, mut commands) = channel(64).expect("descriptors");
    world.engine.urgent = commands.urgent();
    world.engine.resolve = |_| {
        LOOKED_UP.fetch_add(1, Ordering::SeqCst);
        Ok(None)
    };
    let work: [fn(&mut World); 2] = [
        |world| drop(world.drain("a", "b1").expect("nothing is refused")),
        |world| world.engine.sweep().expect("nothing is refused"),
    ];
    for (round, work) in work.into_iter().enumerate() {
        let service = &world.engine.services["b"];
        let member = service.member(["b1", "b2"][round]).expect("there");
        let (id, address) = (member.id, member.wanted.address);
        let fails = Transition {
            id: service.target(id),
            up: false,
            spoken: None,
            detail: "no answer".into(),
            at: Instant::now(),
        };
        assert!(world.engine.plane.backend(id).expect("there").up);
        let (asks, explained) = (sender.clone(), Arc::new(Mutex::new(None)));
        let answer = explained.clone();
        LOOKED_UP.store(0, Ordering::SeqCst);
        let once = AtomicBool::new(false);
        world.engine.slow = Some(Arc::new(move || {
            if once.swap(true, Ordering::SeqCst) {
                return;
            }
            let (reply, explains) = oneshot::channel();
            let send = |command| asks.try_send(command).expect("there is room");
            send(Command::Explain(Box::new(flow(0, 3)), None, reply));
            send(Command::Health(vec![fails.clone()]));
            let neighbours = [address].into();
            send(Command::Network(Change { neighbours, ..Change::default() }));
            until("a next hop is looked up", || LOOKED_UP.load(Ordering::SeqCst) > 0);
            let (reply, mut status) = oneshot::channel();
            send(Command::Status(reply));
            until("status is answered", || status.try_recv().is_ok_and(|said| said.is_ok()));
            *answer.lock().expect("whole") = Some(explains);
        }));
        work(&mut world);
        world.engine.slow = None;
        assert!(!world.engine.plane.backend(id).expect("there").up, "it is kept from new ones");
        let mut explains = explained.lock().expect("whole").take().expect("work was lent");
        // The next time that it attends to anything.
        world.engine.attend(false);
        let said = explains.try_recv().expect("answered").expect("it is known");
        assert!(said.known, "{said:?}");
        world.check();
    }
}

/// What a guard goes by that could not be put in place anew stands in the status, until it could.
#[test]
fn a_stale_guard_is_said_until_it_is_renewed() {
    let mut world = World::new(1);
    let said = |world: &World| world.warnings().iter().any(|one| one.contains("the guard"));
    assert!(!said(&world));
    world.engine.plane.stale_guard = Some("no memory".into());
    world.engine.go_on_guarding();
    assert!(said(&world));
    world.engine.plane.stale_guard = None;
    world.engine.go_on_guarding();
    assert!(!said(&world));
}
