//! Memory of another size takes the place of the memory in use: whatever step a control plane dies
//! after, packets go where they went, nothing that was noted or reported is lost, and the next one
//! goes on from a whole set.

mod world;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use weir_dataplane::{Limits, LivePlane, ResizeStep};
use weir_hash::Key as _;
use weir_plane::{Plane, TablesMoved, VipKey};
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Flags, HEADER_BYTES, ServiceId, StateKey, TrackedBuilder};
use weir_testbed::in_own_namespace;
use weir_wire::{Protocol, TcpFlags};
use world::{BACKENDS, LARGE, SERVICES, SMALL, World, caps, flow, members, send};

fn dies_after(step: ResizeStep, from: &Limits, to: &Limits) {
    let when = format!("{step:?}, {} services to {}", from.services, to.services);
    let mut world = World::new(&format!("resize-{step:?}-{}", from.services));
    let mut plane = world.open(from);
    world.fill(&mut plane);
    world.start(120);
    world.check(&when);
    let packets = (0..BACKENDS).map(|n| plane.lane(BackendId::of(n)).unwrap().packets).sum::<u64>();
    plane.resize_until(to, step).unwrap();
    world.check(&when);
    world.start(120);
    world.check(&when);
    // Killed.
    drop(plane);
    world.start(120);
    world.check(&when);
    let mut plane = world.open(to);
    let resumed = if step >= ResizeStep::Commit { to } else { from };
    assert_eq!(plane.limits().backends, resumed.backends, "{when}");
    world.check(&when);
    world.drain(&mut plane, &when);
    world.start(120);
    // What the next control plane does.
    plane.resize(to).unwrap();
    world.start(120);
    world.check(&when);
    world.drain(&mut plane, &when);
    world.assert_sizes(to);
    assert_eq!(plane.limits(), *to);
    assert!(
        (0..BACKENDS).map(|n| plane.lane(BackendId::of(n)).unwrap().packets).sum::<u64>() > packets
    );
    for service in 0..SERVICES.len() as u32 {
        assert!(plane.kernel.published(ServiceId(service)).unwrap().is_some());
    }
    let services = plane.kernel.services();
    assert_eq!(services.len(), SERVICES.len() + World::further().len());
    for at in World::further() {
        assert!(services.contains(&(at, ServiceId(0))), "{at:?}: {services:?}");
    }
    assert_eq!(plane.kernel.flow_caps(ServiceId(2)), Some(caps()));
    assert_eq!(plane.kernel.flow_caps(ServiceId(0)), None);
    let noted = plane.kernel.pending().unwrap().len();
    assert!(noted > 0, "nothing was pending");
}

#[test]
fn whatever_step_it_dies_after_packets_go_where_they_went() {
    for step in ResizeStep::ALL {
        for (from, to) in [(SMALL, LARGE), (LARGE, SMALL)] {
            in_own_namespace(|| dies_after(step, &from, &to)).expect("a namespace");
        }
    }
}

/// Who wants other sizes while the memory from before is still there is to try again; when it is gone, they come.
#[test]
fn a_second_change_is_told_to_wait_for_the_first() {
    in_own_namespace(|| {
        let mut world = World::new("resize-twice");
        let mut plane = world.open(&SMALL);
        world.fill(&mut plane);
        plane.resize(&LARGE).unwrap();
        let refused = plane.resize(&SMALL).unwrap_err();
        assert!(LivePlane::is_busy(&refused), "{refused}");
        assert!(refused.to_string().contains("another change of limits is under way"), "{refused}");
        assert_eq!(plane.limits(), LARGE);
        world.drain(&mut plane, "after the first");
        plane.resize(&SMALL).unwrap();
        world.drain(&mut plane, "after the second");
        assert_eq!(plane.limits(), SMALL);
    })
    .expect("a namespace");
}

/// Flows start and go on all the time while sizes change to and fro.
#[test]
fn flows_that_start_meanwhile_are_not_lost() {
    in_own_namespace(|| {
        let mut world = World::new("resize-traffic");
        let mut plane = world.open(&SMALL);
        world.fill(&mut plane);
        world.drain(&mut plane, "at first");
        let (stop, started) = (AtomicBool::new(false), AtomicU32::new(0));
        let flows = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let traffic = || {
                let mut all = Vec::new();
                let at = |n: u32| n as usize % world.names.len();
                let send = |n: u32, service: usize, client: u32, flags| {
                    let name = &world.names[at(n)];
                    send(&world.pins, name, world.macs[at(n)], service, client, flags)
                };
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (service, client) = (n as usize % SERVICES.len(), 10_000 + n);
                    if n < 8_000 {
                        let backend = send(n, service, client, TcpFlags::SYN);
                        // By the other interface.
                        assert_eq!(send(n + 1, service, client, TcpFlags::ACK), backend);
                        all.push((service, client, backend));
                        started.fetch_add(1, Ordering::Relaxed);
                    }
                    let (service, client, backend) = all[n as usize * 7 % all.len()];
                    let flags = if n % 2 == 0 { TcpFlags::ACK } else { TcpFlags::SYN };
                    assert_eq!(send(n, service, client, flags), backend, "{service} {client}");
                }
                flows.lock().unwrap().extend(all);
            };
            let traffic = scope.spawn(traffic);
            let mut reported = BTreeSet::new();
            for limits in [LARGE, SMALL, LARGE, SMALL, LARGE] {
                let before = started.load(Ordering::Relaxed);
                while started.load(Ordering::Relaxed) < (before + 100).min(8_000) {
                    assert!(!traffic.is_finished(), "traffic has ended");
                    thread::yield_now();
                }
                plane.resize(&limits).unwrap();
                plane.drain(&mut |event| reported.extend([event.state])).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            traffic.join().expect("no flow was broken");
            plane.drain(&mut |event| reported.extend([event.state])).unwrap();
            world.reported.extend(reported);
        });
        world.flows.extend(flows.into_inner().unwrap());
        println!("{} flows", world.flows.len());
        world.check("at the end");
        world.drain(&mut plane, "at the end");
        world.assert_sizes(&LARGE);
    })
    .expect("a namespace");
}

/// Marks of activity grow, whichever half of them packets write, and whatever step a control plane dies after: who
/// was known to packets is so still, and whoever has sent something is known to live.
#[test]
fn marks_that_grow_forget_nobody() {
    for step in ResizeStep::ALL {
        for flips in [1, 2] {
            in_own_namespace(|| marks_grow(step, flips)).expect("a namespace");
        }
    }
}

fn marks_grow(step: ResizeStep, flips: usize) {
    let when = format!("{step:?}, after {flips} flips");
    let grown = Limits { marked_flows: 1 << 16, ..SMALL };
    let mut world = World::new(&format!("resize-marks-{step:?}-{flips}"));
    let mut plane = world.open(&SMALL);
    world.fill(&mut plane);
    plane.kernel.set_flags(ServiceId(0), Flags::MARK, true);
    let key = plane.kernel.published(ServiceId(0)).unwrap().unwrap().header().key;
    let hash = |client: u32| StateKey::of_flow(&flow(0, client)).hash(&key);
    let known: Vec<u64> = (0..200).map(hash).collect();
    let next = |plane: &mut LivePlane| {
        let side = plane.flip_marks(&mut known.iter().copied(), known.len()).unwrap();
        plane.grace().unwrap();
        plane.take_marks(side).unwrap()
    };
    for _ in 0..flips {
        next(&mut plane);
    }
    let speak = |world: &mut World, clients: std::ops::Range<u32>| {
        for client in clients {
            world.send(0, client, TcpFlags::ACK);
        }
    };
    speak(&mut world, 0..40);
    plane.resize_until(&grown, step).unwrap();
    speak(&mut world, 40..80);
    // Killed.
    drop(plane);
    speak(&mut world, 80..120);
    let mut plane = world.open(&grown);
    speak(&mut world, 120..140);
    plane.drain(&mut |_| ()).unwrap();
    plane.resize(&grown).unwrap();
    speak(&mut world, 140..160);
    plane.drain(&mut |_| ()).unwrap();
    assert_eq!(plane.limits(), grown, "{when}");
    let armed = plane.armed().unwrap();
    assert!(armed.room >= 1 << 16, "{when}: {}", armed.room);
    assert!(known.iter().all(|hash| (armed.has)(*hash)), "{when}: not all are known");
    // In both halves.
    for spoken in [160, 20] {
        let marks = next(&mut plane);
        for client in 0..200 {
            assert_eq!(marks.has(hash(client)), client < spoken, "{when}: client {client}");
        }
        speak(&mut world, 0..20);
    }
    // They do not shrink while they are in use.
    plane.resize(&SMALL).unwrap();
    plane.drain(&mut |_| ()).unwrap();
    assert_eq!(plane.limits(), grown, "{when}");
}

/// A control plane that dies may not have written down whom it has seen alive, and has packets notice no more: the next
/// one is told anew, before it has looked itself.
#[test]
fn whoever_begins_is_told_who_lives() {
    in_own_namespace(|| {
        let mut world = World::new("begins-to-watch");
        let mut plane = world.open(&SMALL);
        world.fill(&mut plane);
        plane.kernel.set_flags(ServiceId(0), Flags::MARK, true);
        let key = plane.kernel.published(ServiceId(0)).unwrap().unwrap().header().key;
        let hash = |client: u32| StateKey::of_flow(&flow(0, client)).hash(&key);
        let known: Vec<u64> = (0..40).map(hash).collect();
        plane.flip_marks(&mut known.iter().copied(), known.len()).unwrap();
        // Nobody is watched.
        plane.watch(&mut std::iter::empty()).unwrap();
        let speak = |world: &mut World| {
            for client in 0..40 {
                world.send(0, client, TcpFlags::ACK);
            }
        };
        speak(&mut world);
        let marked = |plane: &LivePlane| {
            plane.are_marked(&known).unwrap().into_iter().filter(|marked| *marked).count()
        };
        assert!(marked(&plane) < 20, "hardly any, by chance: {}", marked(&plane));
        drop(plane);
        let plane = world.open(&SMALL);
        speak(&mut world);
        assert_eq!(marked(&plane), 40);
    })
    .expect("a namespace");
}

/// What goes on meanwhile ends with this, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table of the connection table's method that fills so many elements of the pool.
fn table_of(elements: u32) -> weir_steering::Image {
    let is_prime = |n: &u32| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    let size = (2..=elements * 2048).rev().find(is_prime).expect("a prime");
    let builder = TrackedBuilder::new(weir_hash::HashKey::from_seed(5), size, false);
    let table = builder.build(1, &members(false)).unwrap();
    assert_eq!(table.elements(), elements as usize);
    table
}

/// Tables of other services have cut up the pool, and a larger one finds room all the same: they are moved, or packed
/// into other memory, under packets, which go where they went.
#[test]
fn a_table_finds_room_wherever_it_is_free() {
    in_own_namespace(|| {
        let limits = Limits { table_bytes: 1 << 20, ..LARGE };
        let mut world = World::new("resize-scattered");
        let mut plane = world.open(&limits);
        world.fill(&mut plane);
        world.start(120);
        let digests = |plane: &LivePlane| -> Vec<Option<u64>> {
            let of = |n| plane.kernel.published(ServiceId(n)).expect("it is whole");
            (0..30).map(|n| of(n).map(|table| table.header().digest)).collect()
        };
        // Packets find each, and follow its table.
        let publish = |plane: &mut LivePlane, service: u32, elements: u32| {
            let port = Some(1000 + service as u16);
            let at = VipKey { address: flow(0, 0).dst, protocol: Protocol::Tcp, port };
            plane.kernel.set_service(at, ServiceId(service)).unwrap();
            let published = plane.kernel.publish(ServiceId(service), &table_of(elements));
            published.map_err(|error| error.to_string())
        };
        let remove = |plane: &mut LivePlane, service: u32| {
            plane.kernel.remove_service(ServiceId(service)).unwrap();
        };
        let waits = |plane: &mut LivePlane| plane.prepare_packing().expect("it can be asked");
        let stop = AtomicBool::new(false);
        let flows = world.flows.clone();
        thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (service, client, backend) = flows[sent % flows.len()];
                    let at = sent % world.names.len();
                    let (name, mac) = (&world.names[at], world.macs[at]);
                    let went = send(&world.pins, name, mac, service, client, TcpFlags::ACK);
                    assert_eq!(went, backend, "service {service}, client {client}");
                    sent += 1;
                }
            });
            let ends = Stop(&stop);
            // One in the middle that is larger than what is free at either side of it cannot be moved.
            for (service, elements) in [(3, 90), (4, 40), (3, 110)] {
                publish(&mut plane, service, elements).expect("there is room");
            }
            remove(&mut plane, 4);
            let error = publish(&mut plane, 5, 120).expect_err("no room in a row");
            assert!(error.contains("in pieces"), "{error}");
            let before = digests(&plane);
            let prepared = waits(&mut plane).expect("one waits for it")().expect("there is memory");
            let bounds = plane.limits();
            plane.resize_prepared(&bounds, prepared).expect("all of them fit");
            assert_eq!((plane.limits(), digests(&plane)), (bounds, before));
            let [moved, packed] = plane.tables_moved();
            assert_eq!(moved, TablesMoved::default());
            // Headers stand in memory of their own.
            let (used, _) = plane.kernel.pool_bytes();
            let bytes = used + packed.tables as usize * HEADER_BYTES;
            assert!(
                packed.tables > 3 && packed.bytes as usize == bytes,
                "{packed:?}, {used} bytes"
            );
            plane.drain(&mut |_| ()).unwrap();
            publish(&mut plane, 5, 120).expect("all that is free is in a row");
            let error = publish(&mut plane, 6, 120).expect_err("the sum is too little");
            assert!(error.contains("raise limits.table_bytes"), "{error}");
            assert!(waits(&mut plane).is_none(), "that would not help");
            // Smaller is refused where no table could be changed any more.
            let (used, _) = plane.kernel.pool_bytes();
            let smaller = Limits { table_bytes: used as u64 + 4096, ..bounds };
            let error = plane.resize(&smaller).expect_err("no room for a second copy").to_string();
            assert!(error.contains("limits.table_bytes cannot be lowered"), "{error}");

            // Small ones as many as there is room for, every second of which goes: one that needs two of the
            // holes has others moved.
            (3..7).for_each(|service| remove(&mut plane, service));
            let full = (3..30).find(|service| publish(&mut plane, *service, 16).is_err());
            let full = full.expect("no pool is so large");
            assert!(full > 12, "{full} tables");
            (3..=full).step_by(2).for_each(|service| remove(&mut plane, service));
            let before = digests(&plane);
            publish(&mut plane, 30, 33).expect("others make room");
            assert_eq!(digests(&plane), before);
            assert!(waits(&mut plane).is_none(), "nobody waits for room");
            let [moved, again] = plane.tables_moved();
            assert!(moved.tables > 0 && moved.bytes > 0, "{moved:?}");
            assert_eq!(again, packed, "none of them was packed");
            drop(ends);
            traffic.join().expect("packets go where they went");
        });
        world.check("at the end");
    })
    .expect("a namespace");
}

/// What does not fit is refused, by name, and nothing has changed.
#[test]
fn what_does_not_fit_is_refused() {
    in_own_namespace(|| {
        let mut world = World::new("resize-refused");
        let mut plane = world.open(&LARGE);
        world.fill(&mut plane);
        world.start(600);
        let pending = plane.kernel.pending().unwrap().len() as u32;
        assert!(pending > 3, "{pending} flows are pending");
        let refused = [
            (Limits { services: 2, ..LARGE }, "limits.services cannot be lowered to 2"),
            (Limits { backends: 5, ..LARGE }, "backend number 5 is in use"),
            (Limits { pending_flows: pending / 2, ..LARGE }, "limits.pending_flows"),
            (Limits { unreported_flows: 3, ..SMALL }, "limits.unreported_flows"),
            (Limits { table_bytes: 2048, ..LARGE }, "limits.table_bytes"),
        ];
        for (limits, words) in refused {
            let error = plane.resize(&limits).expect_err("it does not fit").to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(plane.limits(), LARGE);
            world.assert_sizes(&LARGE);
            world.start(30);
            world.check(words);
            world.drain(&mut plane, words);
        }
        plane.kernel.set_flags(ServiceId(0), Flags::RECORD, true);
        plane.resize(&SMALL).unwrap();
        let flags = plane.kernel.published(ServiceId(0)).unwrap().unwrap().header().flags();
        assert!(flags.has(Flags::RECORD), "flags are carried over");
        world.check("smaller");
    })
    .expect("a namespace");
}
