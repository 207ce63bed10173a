//! What QUIC ids cost in the kernel's program: the median time of single runs, each with an id that
//! was not seen before, and of ids that the processor remembers.
//!
//! ```text
//! cargo run --release -p weir-dataplane --example quic_ids    # as root
//! ```
//! The kernel's clock for one run is in every line alike, so differences say more than sums.

use libbpf_rs::libbpf_sys;
use rand::Rng;
use std::os::fd::{AsRawFd, BorrowedFd};
use weir_dataplane::{BackendEntry, KernelPlane, Limits};
use weir_hash::HashKey;
use weir_plane::{IdRoutes, VipKey};
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_wire::craft::Frame;
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs};
use weir_wire::{FlowKey, Protocol, map_address};

const RUNS: usize = 20_000;
const PAYLOAD: u16 = 200;

/// Nanoseconds of one run.
fn time(program: BorrowedFd<'_>, frame: &[u8]) -> u32 {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the pointer and the length describe a live buffer, and nothing is written back.
    let status = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    assert_eq!(status, 0, "a test run");
    assert_eq!(options.retval, 3, "it is sent back");
    options.duration
}

fn median(mut times: Vec<u32>) -> u32 {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut plane, _) = KernelPlane::open(None, &Limits::default())?;
    let entry = BackendEntry::new([10, 9, 1, 1].into(), 1).with_next_hop([2; 6], [4; 6], 0, true);
    plane.set_backend(BackendId::of(1), &entry)?;
    let vip = std::net::SocketAddr::from(([10, 9, 0, 1], 443));
    let key =
        VipKey { address: map_address(vip.ip()), protocol: Protocol::Udp, port: Some(vip.port()) };
    plane.set_service(key, ServiceId(0))?;
    let member =
        Member { backend: BackendId::of(1), name: "b1".into(), weight: 1, role: Role::Serving };
    plane.publish(
        ServiceId(0),
        &TrackedBuilder::new(HashKey::from_seed(1), 251, false).build(1, &[member])?,
    )?;
    let flow = FlowKey::new(([10, 8, 0, 1], 4000).into(), vip, Protocol::Udp);
    let mut frame = Frame::new(flow).payload(PAYLOAD).build();
    let at = frame.len() - usize::from(PAYLOAD);
    frame[at] = 0x40;
    let mut rng = rand::rng();
    let program = plane.program();
    let by_method = median((0..RUNS).map(|_| time(program, &frame)).collect());
    println!("{:<44}{by_method:>6} ns", "no ids: tracked, known flow");
    for (what, server, nonce, key) in [
        ("plain", 4, 8, None),
        ("encrypted, one pass", 4, 12, Some([7; 16])),
        ("encrypted, three passes", 4, 8, Some([7; 16])),
        ("encrypted, four passes", 8, 4, Some([7; 16])),
    ] {
        let config = QuicLb::new(0, server, nonce, key)?;
        let mut configs = QuicLbConfigs::default();
        configs.set(config.clone());
        let mut routes = IdRoutes::new(configs);
        let id = Id::new(&vec![9; server]).ok_or("its length")?;
        routes.lead(0, id, BackendId::of(1));
        plane.set_id_routes(ServiceId(0), Some(&routes))?;
        let mut new = Vec::new();
        let mut again = Vec::new();
        for _ in 0..RUNS {
            let nonce: Vec<u8> = (0..nonce).map(|_| rng.random()).collect();
            let made = config.encode(id.as_bytes(), &nonce, 0)?;
            let made = made.as_bytes();
            frame[at + 1..at + 1 + made.len()].copy_from_slice(made);
            new.push(time(plane.program(), &frame));
            again.push(time(plane.program(), &frame));
        }
        let (new, again) = (median(new), median(again));
        println!(
            "{:<44}{new:>6} ns, remembered {again:>4} ns",
            format!("{what}, id not seen before")
        );
    }
    Ok(())
}
