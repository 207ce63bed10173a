//! What is pinned by another version of weir and cannot be taken over is refused, with words that help, and left as
//! it is. What can be: `convert.rs`.

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use weir_dataplane::{BackendEntry, Error, KernelPlane, Layout, Limits};
use weir_hash::HashKey;
use weir_plane::VipKey;
use weir_steering::{
    BackendId, Member, Role, ServiceId, ServiceState, StateKey, TrackedBuilder, TrackedFlow,
};
use weir_wire::{FlowKey, Protocol, map_address};

const SMALL: Limits = Limits {
    answered_flows: 16,
    translations: 64,
    slot_partitions: 1,
    services: 4,
    table_bytes: 1 << 16,
    backends: 16,
    pending_flows: 16,
    unreported_flows: 16,
    tracked_flows: 64,
    udp_flows: 16,
    event_ring_bytes: 4096,
    marked_flows: 128,
    stranger_bits: 1024,
    mappings: 1,
    list_prefixes: 16,
};

/// A directory for pins, removed when the test ends.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(format!("/sys/fs/bpf/weir-test-{name}-{}", std::process::id())))
    }

    fn open(&self) -> Result<(KernelPlane, weir_dataplane::OpenReport), Error> {
        KernelPlane::open(Some(&self.0), &SMALL)
    }

    fn map(&self, name: &str) -> MapHandle {
        MapHandle::from_pinned_path(self.0.join(name)).unwrap()
    }

    fn stamp(&self) -> Vec<u8> {
        self.map("layout").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap()
    }

    fn set_stamp(&self, value: &[u8]) {
        self.map("layout").update(&[0; 4], value, MapFlags::ANY).unwrap();
    }

    /// Changes what is written of the memory.
    fn describe(&self, text: &[u8]) {
        self.map("layout-text").update(&[0; 4], text, MapFlags::ANY).unwrap();
    }

    fn description(&self) -> Vec<u8> {
        self.map("layout-text").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap()
    }

    /// Every pin with the number of its map and all that is in it.
    fn contents(&self) -> BTreeMap<String, (u32, Vec<Vec<u8>>)> {
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let pins = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        // The guard's are links, and programs are no maps.
        let is_map = |pin: &PathBuf| {
            !["guard-", "entry-"].iter().any(|prefix| name(pin).starts_with(prefix))
        };
        let maps = pins.filter(is_map);
        maps.map(|pin| {
            let map = MapHandle::from_pinned_path(&pin).unwrap();
            let id = map.info().unwrap().info.id;
            let mut found = Vec::new();
            if map.map_type() != MapType::RingBuf {
                for key in map.keys() {
                    if map.map_type().is_percpu() {
                        found.extend(map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap());
                    } else {
                        found.extend(map.lookup(&key, MapFlags::ANY).unwrap());
                    }
                    found.push(key);
                }
            }
            found.sort();
            (name(&pin), (id, found))
        })
        .collect()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.0.exists() {
            KernelPlane::unload(&self.0).unwrap();
        }
    }
}

/// Something in every map that a program and a control plane fill.
fn fill(plane: &mut KernelPlane) {
    let vip = VipKey {
        address: map_address("10.1.0.1".parse().unwrap()),
        protocol: Protocol::Tcp,
        port: Some(80),
    };
    let member =
        Member { backend: BackendId::of(3), name: "b3".into(), weight: 1, role: Role::Serving };
    let table = TrackedBuilder::new(HashKey::from_seed(5), 251, false).build(7, &[member]).unwrap();
    plane
        .set_backend(BackendId::of(3), &BackendEntry::new("10.1.1.3".parse().unwrap(), 9))
        .unwrap();
    plane.set_service(vip, ServiceId(2)).unwrap();
    plane.publish(ServiceId(2), &table).unwrap();
    let flow = FlowKey::new(
        "10.2.0.1:1000".parse().unwrap(),
        "10.1.0.1:80".parse().unwrap(),
        Protocol::Tcp,
    );
    plane.track(&flow, TrackedFlow::new(BackendId::of(3), 9)).unwrap();
    let state = ServiceState { service: ServiceId(2), key: StateKey::of_flow(&flow) };
    plane.pin(&[(state, BackendId::of(3))]).unwrap();
}

/// Opening must fail as another version's data plane, and change nothing.
fn assert_refused(pins: &Pins) -> (Option<Layout>, Layout) {
    let before = pins.contents();
    let Err(error) = pins.open() else { panic!("a data plane of another layout was opened") };
    let text = error.to_string();
    for wanted in [&*pins.0.to_string_lossy(), "another version", "weir unload"] {
        assert!(text.contains(wanted), "{text}");
    }
    // It is on no interface.
    assert!(!text.contains("goes on forwarding"), "{text}");
    let Error::Layout { directory, found, expected, .. } = error else { panic!("{text}") };
    assert_eq!(directory, pins.0);
    assert!(text.contains(&expected.to_string()), "{text}");
    assert!(text.contains(&found.as_ref().map_or("not recorded".into(), |l| l.to_string())));
    assert_eq!(pins.contents(), before, "what is pinned has changed");
    (found, expected)
}

#[test]
fn memory_of_another_layout_is_refused_and_left_alone() {
    let pins = Pins::new("layout");
    let (mut plane, report) = pins.open().unwrap();
    assert!(!report.resumed);
    fill(&mut plane);
    let table = plane.published(ServiceId(2)).unwrap().unwrap();
    drop(plane);
    let stamp = pins.stamp();

    // Another layout, in which a number means something else.
    let mut other = stamp.clone();
    other[0] ^= 1;
    pins.set_stamp(&other);
    let described = pins.description();
    let mut strange = described.clone();
    // In the name of the first number.
    strange[0] ^= 1;
    pins.describe(&strange);
    let (found, expected) = assert_refused(&pins);
    assert_eq!(found.unwrap().shapes, expected.shapes ^ 1);
    pins.describe(&described);

    // The structures are the same, but the tables of a method have another layout; or there may be
    // tables of a method that this program does not know.
    let own = expected.methods[&table_method(&stamp)];
    for (method, layout) in [(table_method(&stamp), own + 1), (200, 1)] {
        let mut other = stamp.clone();
        let at = size_of::<u64>() + usize::from(method) * size_of::<u16>();
        other[at..][..2].copy_from_slice(&layout.to_le_bytes());
        pins.set_stamp(&other);
        assert_eq!(assert_refused(&pins).0.unwrap().methods[&method], layout);
    }

    // No stamp, as the first versions left their data planes.
    pins.set_stamp(&stamp);
    let mut map = pins.map("layout");
    fs::remove_file(pins.0.join("layout")).unwrap();
    assert_eq!(assert_refused(&pins).0, None);

    // What was refused was not harmed.
    map.pin(pins.0.join("layout")).unwrap();
    let (plane, report) = pins.open().unwrap();
    assert!(report.resumed && report.converted.is_none());
    assert_eq!(plane.published(ServiceId(2)).unwrap().unwrap(), table);
    drop(plane);

    // Another layout, by its stamp, whose maps say that all of it is the same here: they go on.
    let ids = |pins: &Pins| -> BTreeMap<String, u32> {
        let all = pins.contents().into_iter().filter(|(name, _)| !name.starts_with("layout"));
        all.filter(|(name, _)| !name.starts_with("parts-"))
            .map(|(name, (id, _))| (name, id))
            .collect()
    };
    let before = ids(&pins);
    pins.set_stamp(&other);
    let (plane, report) = pins.open().unwrap();
    assert!(report.resumed);
    assert_eq!(report.converted.expect("it was another one's").maps, Vec::<String>::new());
    assert_eq!(plane.published(ServiceId(2)).unwrap().unwrap(), table);
    assert_eq!((ids(&pins), pins.stamp()), (before, stamp));
}

/// The first versions did not write down what their memory is made of. Who goes on with such memory, which is its own,
/// does so.
#[test]
fn memory_that_is_not_described_is_described() {
    let pins = Pins::new("described");
    drop(pins.open().unwrap());
    let (stamp, described) = (pins.stamp(), pins.description());
    fs::remove_file(pins.0.join("layout-text")).unwrap();
    let mut other = stamp.clone();
    other[0] ^= 1;
    pins.set_stamp(&other);
    // Of such a version nobody knows what it is made of.
    assert!(assert_refused(&pins).0.is_some());
    pins.set_stamp(&stamp);
    let (_, report) = pins.open().unwrap();
    assert!(report.resumed && report.converted.is_none());
    assert_eq!((pins.stamp(), pins.description()), (stamp, described));
}

/// The one method that a stamp names.
fn table_method(stamp: &[u8]) -> u8 {
    let layouts = stamp[size_of::<u64>()..].chunks_exact(size_of::<u16>());
    let named: Vec<u8> = (0..=u8::MAX)
        .zip(layouts)
        .filter(|(_, layout)| *layout != [0, 0])
        .map(|(method, _)| method)
        .collect();
    assert_eq!(named.len(), 1, "one table was published: {named:?}");
    named[0]
}

/// A control plane that was killed while it made its data plane leaves some maps, all empty: the next
/// one makes the others.
#[test]
fn a_data_plane_that_was_half_made_is_completed() {
    let pins = Pins::new("half");
    drop(pins.open().unwrap());
    let all = pins.contents();
    for name in all.keys().filter(|name| *name != "layout").skip(3) {
        fs::remove_file(pins.0.join(name)).unwrap();
    }
    drop(pins.open().unwrap());
    let now = pins.contents();
    assert!(now.keys().eq(all.keys()));
    assert_eq!(now["layout"], all["layout"]);
    let control = |contents: &BTreeMap<String, (u32, Vec<Vec<u8>>)>| contents["control"].1.clone();
    assert_eq!(control(&now), control(&all));
}
