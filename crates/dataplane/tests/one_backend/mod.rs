//! A plane with a service of datagrams at 10.9.0.1 port 53, and one backend.

use weir_dataplane::{BackendEntry, KernelPlane, Limits};
use weir_hash::HashKey;
use weir_plane::VipKey;
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_wire::{Protocol, map_address};

/// The usual build of the program.
pub const USUAL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o"));

/// The plane, by this build of the program.
pub fn plane(object: &[u8]) -> KernelPlane {
    let limits = Limits { services: 2, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
    let opened = KernelPlane::open_object(object, None, &limits);
    let (mut plane, _) = opened.expect("load (needs root)");
    let (id, service) = (BackendId::of(0), ServiceId(0));
    let address = map_address("10.9.0.1".parse().expect("an address"));
    let key = VipKey { address, protocol: Protocol::Udp, port: Some(53) };
    plane.set_service(key, service).expect("there is room");
    let entry = BackendEntry::new("10.9.0.2".parse().expect("an address"), 1);
    let entry = entry.with_next_hop([2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 1, 1], 0, true);
    plane.set_backend(id, &entry).expect("there is room");
    let members = [Member { backend: id, name: "b0".into(), weight: 1, role: Role::Serving }];
    let builder = TrackedBuilder::new(HashKey::from_seed(1), 251, false);
    plane.publish(service, &builder.build(1, &members).expect("it fits")).expect("there is room");
    plane
}
