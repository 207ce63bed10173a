//! What is known of a first fragment is forgotten after a minute, whether or not a control plane turns its clock.

mod one_backend;

use weir_dataplane::{KernelPlane, Verdict, run_frame};
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason};

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
    let plane = one_backend::plane(one_backend::USUAL);
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
