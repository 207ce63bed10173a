//! Frames by interface: what counts as forwarded, as left to the kernel and as dropped.

mod one_backend;

use one_backend::USUAL;
use std::collections::BTreeMap;
use weir_dataplane::{BY_INTERFACE, Verdict, run_frame};
use weir_plane::InterfaceCounters;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol};

/// The loopback, which frames of test runs come by.
const LOOPBACK: u32 = 1;

fn datagram(to: &str) -> Vec<u8> {
    let [from, to] = ["10.1.0.1:4000", to].map(|end| end.parse().expect("an address"));
    Frame::new(FlowKey::new(from, to, Protocol::Udp)).payload(100).build()
}

#[test]
fn each_frame_is_in_one_number_of_its_interface() {
    let plane = one_backend::plane(BY_INTERFACE);
    assert_eq!(plane.interfaces().expect("readable"), Some(BTreeMap::new()));
    let mut broken = datagram("10.9.0.1:53");
    // A length that the frame has not.
    broken[38..40].copy_from_slice(&7u16.to_be_bytes());
    let frames = [
        (datagram("10.9.0.1:53"), Verdict::Transmit, 5),
        (datagram("10.9.0.1:54"), Verdict::Pass, 3),
        (broken, Verdict::Drop, 2),
    ];
    for (frame, verdict, times) in &frames {
        for _ in 0..*times {
            let found = run_frame(plane.program(), frame).expect("it runs").verdict;
            assert_eq!(found, *verdict);
        }
    }
    let counted = InterfaceCounters { forwarded: 5, passed: 3, dropped: 2 };
    let rows = plane.interfaces().expect("readable");
    assert_eq!(rows, Some(BTreeMap::from([(LOOPBACK, counted)])));
    let usual = one_backend::plane(USUAL);
    assert_eq!(usual.interfaces().expect("readable"), None, "nobody has asked for it");
}
