//! What is known of a first fragment is forgotten after a minute, whether or not a control plane turns its clock.

use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_hash::HashKey;
use weir_plane::VipKey;
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason, map_address};

/// The first and the second fragment of a datagram.
fn datagram() -> [Vec<u8>; 2] {
    let ends = ["10.1.0.1:4000", "10.9.0.1:53"].map(|end| end.parse().expect("an address"));
    let [from, to] = ends;
    let whole = Frame::new(FlowKey::new(from, to, Protocol::Udp)).payload(100).build();
    let mut parts = craft::fragments(&whole, 7, 64).into_iter();
    [(); 2].map(|()| parts.next().expect("it has two"))
}

#[test]
fn a_first_fragment_grows_old_without_a_control_plane() {
    let limits = Limits { services: 2, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
    let (mut plane, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
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

    let [first, later] = datagram();
    let clock = plane.clock();
    let run = |plane: &KernelPlane, frame: &[u8]| {
        run_frame(plane.program(), frame).expect("it runs").verdict
    };
    assert_eq!(run(&plane, &later), Verdict::Drop, "nothing is known of it");
    assert_eq!(run(&plane, &first), Verdict::Transmit);
    assert_eq!(run(&plane, &later), Verdict::Transmit);
    plane.age_fragments(61).expect("they can be written");
    assert_eq!(run(&plane, &later), Verdict::Drop, "its first one is too long ago");
    assert_eq!(plane.outcomes().expect("readable").get(&Reason::LaterFragment), Some(&(0, 2)));
    assert_eq!(run(&plane, &first), Verdict::Transmit);
    assert_eq!(run(&plane, &later), Verdict::Transmit);
    assert_eq!(plane.clock(), clock, "nobody has turned that");
}
