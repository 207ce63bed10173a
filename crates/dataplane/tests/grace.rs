//! What the control plane may rely on in time: a grace period, and for how long a next hop is kept.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, grace, run_frame};
use weir_hash::HashKey;
use weir_plane::VipKey;
use weir_steering::{BackendId, Image, Member, Role, ServiceId, TrackedBuilder};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

fn flow() -> FlowKey {
    FlowKey::new(([10, 1, 1, 1], 4000).into(), ([10, 0, 0, 1], 80).into(), Protocol::Tcp)
}

fn syn() -> Vec<u8> {
    Frame::new(flow()).tcp_flags(TcpFlags::SYN).build()
}

/// A table of one backend.
fn table(backend: u16) -> Image {
    let member = Member {
        backend: BackendId::of(backend),
        name: "b".into(),
        weight: 1,
        role: Role::Serving,
    };
    TrackedBuilder::new(HashKey::from_seed(5), 251, false).build(1, &[member]).unwrap()
}

fn plane() -> KernelPlane {
    let limits = Limits { services: 4, table_bytes: 1 << 16, ..Limits::default() };
    let (mut plane, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
    let FlowKey { dst, dst_port, protocol, .. } = flow();
    plane
        .set_service(VipKey { address: dst, protocol, port: Some(dst_port) }, ServiceId(0))
        .unwrap();
    for backend in 1..=2 {
        set_hop(&plane, backend, backend as u8);
    }
    plane.publish(ServiceId(0), &table(1)).unwrap();
    plane
}

fn set_hop(plane: &KernelPlane, backend: u16, mac: u8) {
    let entry = BackendEntry::new([10, 2, 0, 1].into(), u32::from(backend));
    plane
        .set_backend(BackendId::of(backend), &entry.with_next_hop([mac; 6], [4; 6], 0, true))
        .unwrap();
}

/// The calling thread stays on the first CPU.
fn stay_on_one_cpu() {
    // SAFETY: an all-zero set is valid, and the call reads no more than it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert_eq!(done, 0);
}

/// From the system call `refused` on the calling thread gets EINVAL, as kernels answer that cannot.
fn refuse(refused: libc::c_long) {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, refused as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: the filter lives until the calls return, and concerns this thread alone.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Packets and control plane share one CPU, and the kernel refuses membarrier, as it does where ticks
/// are off: after a grace period no packet follows the table before.
#[test]
fn a_grace_period_waits_on_one_cpu() {
    const CHANGES: u16 = 60;
    let mut plane = plane();
    let program = plane.program().try_clone_to_owned().unwrap();
    let (stop, packets) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, sent) = (stop.clone(), packets.clone());
    let sender = std::thread::spawn(move || {
        stay_on_one_cpu();
        let mut port = 0u16;
        while !stopped.load(Ordering::Relaxed) {
            // Another flow each time: none is tracked.
            port = port.wrapping_add(1);
            let frame = Frame::new(FlowKey { src_port: port, ..flow() }).tcp_flags(TcpFlags::SYN);
            run_frame(program.as_fd(), &frame.build()).unwrap();
            sent.fetch_add(1, Ordering::Relaxed);
        }
    });
    let changes = std::thread::spawn(move || {
        stay_on_one_cpu();
        refuse(libc::SYS_membarrier);
        let mut followed = [0, 0];
        for change in 0..CHANGES {
            let new = change % 2 + 1;
            // A tracked flow stays where it is: its backend is another one from here on.
            let image = table(new);
            plane.show(ServiceId(0), &image, image.header().flags()).unwrap();
            set_absent(&plane, 3 - new);
            grace().unwrap();
            let old = plane.lane(BackendId::of(3 - new)).unwrap().packets;
            let before = packets.load(Ordering::Relaxed);
            while packets.load(Ordering::Relaxed) < before + 200 {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(
                plane.lane(BackendId::of(3 - new)).unwrap().packets,
                old,
                "after change {change}"
            );
            plane.retire(ServiceId(0));
            set_hop(&plane, 3 - new, 3 - new as u8);
            followed[usize::from(new) - 1] += plane.lane(BackendId::of(new)).unwrap().packets;
        }
        followed
    });
    let followed = changes.join();
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    assert!(followed.unwrap().iter().all(|packets| *packets > 1_000));
}

/// Whoever is tracked there is to be placed anew.
fn set_absent(plane: &KernelPlane, backend: u16) {
    plane.set_backend(BackendId::of(backend), &BackendEntry::default()).unwrap();
}

/// The FIB is asked once in 64 jiffies for each backend and CPU, in odd ones and in even ones.
#[test]
fn a_next_hop_is_asked_for_once() {
    const TIMES: u32 = 400;
    stay_on_one_cpu();
    let plane = plane();
    let mut asked = 0;
    for _ in 0..TIMES {
        plane.reset_lane(BackendId::of(1)).unwrap();
        set_hop(&plane, 1, 8);
        assert_eq!(run_frame(plane.program(), &syn()).unwrap().frame[..6], [8; 6]);
        set_hop(&plane, 1, 6);
        let next = run_frame(plane.program(), &syn()).unwrap().frame;
        asked += u32::from(next[..6] == [6; 6]);
        std::thread::sleep(Duration::from_millis(1));
    }
    // A machine that stops for so long may ask now and then.
    assert!(asked * 10 < TIMES, "asked anew {asked} times of {TIMES}");
}
