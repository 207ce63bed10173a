//! `parse` on arbitrary bytes: no panic, offsets within the frame, and a flow that
//! survives being crafted into a frame of its own.
//!
//! Needs no nightly compiler: `cargo fuzz run -s none parse`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::{Protocol, craft::Frame, parse};

fuzz_target!(|frame: &[u8]| {
    let packet = match parse(frame) {
        Ok(packet) => packet,
        Err(rejected) => {
            assert!(!rejected.reason.is_steering());
            return;
        }
    };
    let (l3, l4) = (usize::from(packet.l3_offset), usize::from(packet.l4_offset));
    let end = l3 + packet.ip_length as usize;
    let header_length = match packet.flow.protocol {
        Protocol::Tcp => 20,
        Protocol::Udp => 8,
        Protocol::Sctp => 16,
    };
    assert_eq!(l3, 14 + 4 * usize::from(packet.vlan_tags));
    assert!(l3 + 20 <= l4 && l4 + header_length <= end && end <= frame.len());

    let crafted = Frame::new(packet.flow).tcp_flags(packet.tcp_flags).build();
    let again = parse(&crafted).expect("a crafted frame is valid");
    assert_eq!(again.flow, packet.flow);
    assert_eq!(again.tcp_flags, packet.tcp_flags);
});
