//! Memory that another version has made, with other structures, becomes memory of this one: whatever step a control
//! plane dies after, packets go where they went, nothing that was noted or reported is lost, and what would be lost
//! is refused.

#[path = "world/another.rs"]
mod another;
mod world;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use weir_dataplane::{
    BY_INTERFACE, ConvertStep, Converted, Error, KernelPlane, Limits, LivePlane, Verdict, XdpMode,
    other,
};
use weir_plane::Plane;
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, ServiceId, TrackedFlow};
use weir_testbed::in_own_namespace;
use weir_testbed::xdp::Pinned;
use weir_wire::{TcpFlags, craft, map_address};
use world::{BACKENDS, SERVICES, SMALL, World, caps, flow, run_attached, send_again};

/// Stands for the other version's layout.
const SHAPES: u64 = 0x5eed;

/// The other version's program, and what its memory is made of.
fn another_version() -> (&'static [u8], &'static str, u64) {
    static BUILT: OnceLock<(Vec<u8>, String)> = OnceLock::new();
    let (object, described) = BUILT.get_or_init(|| {
        let mut sources = other::sources();
        another::change(&mut sources);
        let object = other::build(&sources, "another").unwrap_or_else(|why| panic!("{why}"));
        let described = other::describe(&object, "described");
        (object, described)
    });
    (object, described, SHAPES)
}

/// The same, built so that it counts by interface, in another order.
fn another_that_counts() -> (Vec<u8>, String) {
    let mut sources = other::sources();
    another::change(&mut sources);
    let counts = sources.get_mut("interfaces.h").expect("it is there");
    let before = "\t__u64 forwarded;\n\t__u64 passed;\n";
    assert_eq!(counts.matches(before).count(), 1);
    *counts = counts.replace(before, "\t__u64 passed;\n\t__u64 forwarded;\n");
    let program = sources.get_mut("weir.bpf.c").expect("it is there");
    *program = format!("#define WEIR_BY_INTERFACE\n{program}");
    let object = other::build(&sources, "another-counts").unwrap_or_else(|why| panic!("{why}"));
    let described = other::describe(&object, "described-counts");
    (object, described)
}

/// Has the other version's program and memory take the place of what is pinned, as if it had made them.
fn become_another(pins: &Path, last: Option<ConvertStep>) -> Option<Converted> {
    KernelPlane::convert(pins, another_version(), &SMALL, last).expect("it has a place for all")
}

fn begun(name: &str) -> World {
    let mut world = World::new(name);
    world.patient = true;
    let mut plane = world.open(&SMALL);
    world.fill(&mut plane);
    world.start(120);
    world.check("before");
    world
}

/// Nothing but one program's parts is left of what was under way.
fn assert_tidy(world: &World, when: &str) {
    world.assert_sizes(&SMALL);
    let names = fs::read_dir(&world.pins).unwrap().map(|pin| pin.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    for prefix in ["parts-", "entry-"] {
        let parts = names.iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(parts, 1, "{when}: {names:?}");
    }
}

/// The next control plane finds all that was there.
fn goes_on(world: &mut World, when: &str) -> LivePlane {
    let mut plane = world.open(&SMALL);
    world.check(when);
    world.drain(&mut plane, when);
    world.start(60);
    plane.kernel.attach(&world.names, XdpMode::Auto).unwrap();
    world.start(60);
    world.check(when);
    world.drain(&mut plane, when);
    assert_tidy(world, when);
    assert_eq!(plane.limits(), SMALL, "{when}");
    for service in 0..SERVICES.len() as u32 {
        assert!(plane.kernel.published(ServiceId(service)).unwrap().is_some(), "{when}");
    }
    let services = plane.kernel.services();
    assert_eq!(services.len(), SERVICES.len() + World::further().len(), "{when}");
    for at in World::further() {
        assert!(services.contains(&(at, ServiceId(0))), "{when}: {at:?}: {services:?}");
    }
    assert_eq!(plane.kernel.flow_caps(ServiceId(2)), Some(caps()), "{when}");
    assert!(!plane.kernel.pending().unwrap().is_empty(), "{when}: nothing is pending");
    plane
}

fn packets(plane: &LivePlane) -> u64 {
    (0..BACKENDS).map(|n| plane.lane(BackendId::of(n)).unwrap().packets).sum()
}

#[test]
fn memory_of_another_layout_is_taken_over_and_given_back() {
    in_own_namespace(|| {
        let mut world = begun("convert");
        let plane = world.open(&SMALL);
        let counted = packets(&plane);
        drop(plane);
        let converted = become_another(&world.pins, None).expect("it was there");
        let maps: BTreeSet<&str> = converted.maps.iter().map(String::as_str).collect();
        let changed = [
            "backends",
            "caps",
            "connections",
            "control",
            "lanes",
            "pending",
            "pinned",
            "unreported",
            "vips",
        ];
        assert_eq!(maps, changed.into());
        // By the other program, over its memory.
        world.check("another version");
        world.start(120);
        world.check("flows that another version knows");
        let plane = goes_on(&mut world, "back");
        assert!(packets(&plane) > counted, "{} of {counted}", packets(&plane));
    })
    .expect("a namespace");
}

#[test]
fn whatever_step_it_dies_after_packets_go_where_they_went() {
    for step in ConvertStep::ALL {
        in_own_namespace(|| {
            let when = format!("{step:?}");
            let mut world = begun(&format!("convert-{step:?}"));
            assert_eq!(
                become_another(&world.pins, Some(step)).is_some(),
                step == ConvertStep::Move
            );
            // Killed.
            world.check(&when);
            world.start(120);
            world.check(&when);
            let _plane = goes_on(&mut world, &when);
        })
        .expect("a namespace");
    }
}

/// Flows start and go on all the time while memory becomes another's, to and fro. Frames may be dropped, and go
/// where they went when they are sent again.
#[test]
fn flows_that_start_meanwhile_are_not_lost() {
    in_own_namespace(|| {
        let mut world = begun("convert-traffic");
        let (stop, started) = (AtomicBool::new(false), AtomicU32::new(0));
        let flows = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut all = Vec::new();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let send = |n: u32, service: usize, client: u32, flags| {
                        let at = n as usize % world.names.len();
                        send_again(
                            &world.pins,
                            &world.names[at],
                            world.macs[at],
                            service,
                            client,
                            flags,
                        )
                    };
                    let (service, client) = (n as usize % SERVICES.len(), 10_000 + n);
                    if n < 4_000 {
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
            });
            for _ in 0..3 {
                let before = started.load(Ordering::Relaxed);
                while started.load(Ordering::Relaxed) < (before + 100).min(4_000) {
                    assert!(!traffic.is_finished(), "traffic has ended");
                    thread::yield_now();
                }
                let converted = become_another(&world.pins, None).expect("it was there");
                println!("{} frames were held for {:?}", converted.frames, converted.held);
                drop(world.open(&SMALL));
            }
            stop.store(true, Ordering::Relaxed);
            traffic.join().expect("no flow was broken");
        });
        world.flows.extend(flows.into_inner().unwrap());
        println!("{} flows", world.flows.len());
        let _plane = goes_on(&mut world, "at the end");
    })
    .expect("a namespace");
}

/// What another version uses, and nobody here knows, is not thrown away. Nothing has changed then, and packets go on.
#[test]
fn what_would_be_lost_is_refused_before_anything_is_touched() {
    in_own_namespace(|| {
        let mut world = begun("convert-refused");
        become_another(&world.pins, None).expect("it was there");
        let caps = MapHandle::from_pinned_path(world.pins.join("caps")).unwrap();
        let numbers = |world: &World| -> BTreeSet<_> {
            let pins = fs::read_dir(&world.pins).unwrap().map(|pin| pin.unwrap().path());
            let is_map = |pin: &PathBuf| {
                let name = pin.file_name().unwrap().to_string_lossy();
                !["link-", "guard-", "entry-"].iter().any(|prefix| name.starts_with(prefix))
            };
            let id = |pin: &Path| MapHandle::from_pinned_path(pin).unwrap().info().unwrap().info.id;
            pins.filter(is_map).map(|pin| (id(&pin), pin)).collect()
        };
        let before = numbers(&world);
        // Its first field, of the first service.
        let set = |novelty: u64| {
            let mut value = caps.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
            value[..8].copy_from_slice(&novelty.to_ne_bytes());
            caps.update(&[0; 4], &value, MapFlags::ANY).unwrap();
        };
        set(7);
        let refused = [
            KernelPlane::open(Some(&world.pins), &SMALL).map(drop),
            KernelPlane::left_in(&world.pins).map(drop),
        ];
        for refused in refused {
            let error = refused.expect_err("a field that nobody knows is in use");
            let text = error.to_string();
            assert!(matches!(error, Error::Layout { .. }), "{text}");
            for words in ["another version", "caps: novelty is not known here", "weir unload"] {
                assert!(text.contains(words), "{text}");
            }
            assert_eq!(numbers(&world), before);
            world.check("refused");
            world.start(30);
        }
        set(0);
        let left = KernelPlane::left_in(&world.pins).unwrap().expect("it is there");
        assert_eq!(left.links.len(), world.names.len());
        assert_eq!(left.own_macs.len(), world.macs.len());
        assert_eq!(numbers(&world), before, "a look changes nothing");
        let _plane = goes_on(&mut world, "with nothing that is not known");
    })
    .expect("a namespace");
}

/// Whether frames are counted by interface is a setting: the counters are carried over by who has it, and by who has
/// not.
#[test]
fn maps_that_only_another_build_has_are_carried_over() {
    in_own_namespace(|| {
        let mut world = World::new("convert-interfaces");
        world.patient = true;
        let counting = |world: &World| {
            let opened = KernelPlane::open_object(BY_INTERFACE, Some(&world.pins), &SMALL);
            LivePlane::new(opened.expect("load (needs root)").0).expect("its reports")
        };
        let forwarded = |plane: &LivePlane| -> u64 {
            let all = plane.kernel.interfaces().unwrap().expect("it counts");
            all.values().map(|one| one.forwarded).sum()
        };
        let mut plane = counting(&world);
        world.fill(&mut plane);
        world.start(60);
        let counted = forwarded(&plane);
        assert!(counted >= 60, "{counted}");
        drop(plane);
        let (object, described) = another_that_counts();
        let version = (&object[..], &described[..], SHAPES);
        let become_it = |world: &World| {
            let converted = KernelPlane::convert(&world.pins, version, &SMALL, None);
            let converted = converted.expect("it has a place for all").expect("it was there");
            assert!(converted.maps.iter().any(|name| name == "interfaces"), "{converted:?}");
        };
        become_it(&world);
        world.check("another version");
        KernelPlane::left_in(&world.pins).expect("it can be taken over").expect("it is there");
        // Without the setting, and twice, since nothing but the pin is left of it then.
        for _ in 0..2 {
            drop(world.open(&SMALL));
            become_it(&world);
        }
        let plane = counting(&world);
        assert!(forwarded(&plane) >= counted, "{} of {counted}", forwarded(&plane));
        drop(plane);
        let _plane = goes_on(&mut world, "without");
    })
    .expect("a namespace");
}

/// What sees the packets that are passed on goes along, by a pin of its own.
#[test]
fn the_program_behind_goes_along() {
    in_own_namespace(|| {
        let world = begun("convert-next");
        let kept = |world: &World| {
            let pins = fs::read_dir(&world.pins).unwrap().map(|pin| pin.unwrap().file_name());
            pins.filter(|name| name.to_string_lossy().ends_with("-next")).count()
        };
        let ping = |world: &World| {
            let [from, to] = ["10.8.0.1", "10.77.0.1"].map(|one| map_address(one.parse().unwrap()));
            let frame = craft::icmp((from, to), [8, 0], 1, b"hello");
            run_attached(&world.pins, &world.names[0], world.macs[0], frame).verdict
        };
        assert_eq!((ping(&world), kept(&world)), (Verdict::Pass, 0));
        let pin = format!("/sys/fs/bpf/weir-test-convert-behind-{}", std::process::id());
        let next = Pinned::without_pings(Path::new(&pin), true).expect("a program");
        let mut plane = world.open(&SMALL);
        plane.kernel.attach(&world.names, XdpMode::Auto).unwrap();
        plane.kernel.hand_on(Some(Path::new(&pin))).unwrap();
        drop(next);
        assert_eq!((ping(&world), kept(&world)), (Verdict::Drop, 1));
        drop(plane);
        become_another(&world.pins, None).expect("it was there");
        assert_eq!(ping(&world), Verdict::Drop);
        assert!(kept(&world) > 0);
        let plane = world.open(&SMALL);
        assert_eq!(ping(&world), Verdict::Drop);
        drop(plane);
        // Nobody asks for it any more.
        let plane = world.open(&SMALL);
        plane.kernel.attach(&world.names, XdpMode::Auto).unwrap();
        assert_eq!((ping(&world), kept(&world)), (Verdict::Pass, 0));
    })
    .expect("a namespace");
}

/// What a killed process has left of maps that are known on one side only is in nobody's way, if nothing is in it.
#[test]
fn empty_maps_that_were_left_behind_are_in_nobodys_way() {
    in_own_namespace(|| {
        let mut world = begun("convert-left");
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let novelty = world.pins.join("novelties");
        let mut map =
            MapHandle::create(MapType::Array, Some("novelties"), 4, 8, 1, &options).unwrap();
        map.pin(&novelty).unwrap();
        assert_eq!(become_another(&world.pins, Some(ConvertStep::Commit)), None);
        assert!(novelty.exists());
        // The next one ends what was begun.
        let plane = goes_on(&mut world, "after one that was killed");
        assert!(!novelty.exists());
        drop((plane, map));
    })
    .expect("a namespace");
    in_own_namespace(|| {
        let mut world = begun("convert-empty");
        assert!(become_another(&world.pins, None).is_some());
        // As if the other version had no map of that name.
        let text = MapHandle::from_pinned_path(world.pins.join("layout-text")).unwrap();
        let written = text.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written.matches("\npaths: ").count(), 1);
        let renamed = written.replace("\npaths: ", "\nqaths: ");
        text.update(&[0; 4], renamed.as_bytes(), MapFlags::ANY).unwrap();
        let paths = MapHandle::from_pinned_path(world.pins.join("paths")).unwrap();
        let key = vec![1; paths.key_size() as usize];
        let value = vec![1; paths.value_size() as usize];
        paths.update(&key, &value, MapFlags::ANY).unwrap();
        let refused = KernelPlane::left_in(&world.pins).expect_err("something is in it");
        assert!(refused.to_string().contains("paths: "), "{refused}");
        paths.delete(&key).unwrap();
        let _plane = goes_on(&mut world, "with an empty one");
    })
    .expect("a namespace");
}

/// A full table of connections becomes larger by what processors keep free. That keeps no other limit from its
/// change, and ends when there is room.
#[test]
fn a_full_table_keeps_no_limit_from_its_change() {
    in_own_namespace(|| {
        let mut world = World::new("convert-full");
        let spare = 128 * libbpf_rs::num_possible_cpus().unwrap() as u32;
        let limits = Limits { tracked_flows: spare + 300, ..SMALL };
        let mut plane = world.open(&limits);
        world.fill(&mut plane);
        for client in 0..limits.tracked_flows {
            let entry = TrackedFlow::new(BackendId::of(0), 1);
            plane.kernel.track(&flow(2, 20_000 + client), entry).unwrap();
        }
        drop(plane);
        become_another(&world.pins, None).expect("it was there");
        let mut plane = world.open(&limits);
        let carried = plane.limits().tracked_flows;
        assert!(carried > limits.tracked_flows, "{carried}");
        let smaller = Limits { pending_flows: limits.pending_flows - 1_000, ..limits };
        plane.resize(&smaller).unwrap();
        plane.drain(&mut |_| ()).unwrap();
        let kept = Limits { tracked_flows: carried, ..smaller };
        assert_eq!(plane.limits(), kept);
        let connections = MapHandle::from_pinned_path(world.pins.join("connections")).unwrap();
        let keys: Vec<_> = connections.keys().collect();
        keys.iter().for_each(|key| connections.delete(key).unwrap());
        plane.resize(&smaller).unwrap();
        plane.drain(&mut |_| ()).unwrap();
        assert_eq!(plane.limits(), smaller);
    })
    .expect("a namespace");
}
