//! What the control plane may rely on in time: a grace period, and for how long a next hop is kept.

use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, grace, run_frame, wait_for_programs};
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
    stay_on(0);
}

fn stay_on(cpu: usize) {
    // SAFETY: an all-zero set is valid, and the call reads no more than it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
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

/// A program that takes a millisecond or more: it counts in the first word of a map that it has begun, and in the
/// second that it is over.
struct Slow {
    program: OwnedFd,
    counts: memmap2::MmapMut,
}

impl Slow {
    fn load() -> Self {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("slow"), 4, 16, 1, &options).unwrap();
        // An instruction: code, registers, offset, constant.
        let op = |code: u8, to: u8, from: u8, offset: i16, constant: i32| {
            let mut bytes = [code, from << 4 | to, 0, 0, 0, 0, 0, 0];
            bytes[2..4].copy_from_slice(&offset.to_ne_bytes());
            bytes[4..].copy_from_slice(&constant.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        let count = |offset| [op(0xb7, 1, 0, 0, 1), op(0xdb, 6, 1, offset, 0)];
        let program: Vec<u64> = [
            // r6 = the map's value
            vec![op(0x18, 6, 2, 0, map.as_fd().as_raw_fd()), 0],
            count(0).to_vec(),
            vec![
                op(0xb7, 7, 0, 0, 0),
                // The time, 30,000 times: bpf_ktime_get_ns.
                op(0x85, 0, 0, 0, 5),
                op(0x07, 7, 0, 0, 1),
                op(0xa5, 7, 0, -3, 30_000),
            ],
            count(8).to_vec(),
            // XDP_PASS
            vec![op(0xb7, 0, 0, 0, 2), op(0x95, 0, 0, 0, 0)],
        ]
        .concat();
        // SAFETY: the instructions live until the call returns; names end with a zero.
        let loaded = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_XDP,
                c"slow".as_ptr(),
                c"GPL".as_ptr(),
                program.as_ptr().cast(),
                program.len() as _,
                std::ptr::null_mut(),
            )
        };
        assert!(loaded >= 0, "load: {}", std::io::Error::from_raw_os_error(-loaded));
        // SAFETY: the descriptor is new and ours; the map is one page, which nothing else maps.
        unsafe {
            let counts =
                memmap2::MmapOptions::new().len(4096).map_mut(map.as_fd().as_raw_fd()).unwrap();
            Self { program: OwnedFd::from_raw_fd(loaded), counts }
        }
    }

    fn count(&self, word: usize) -> u64 {
        // SAFETY: both words are in the page, and aligned.
        unsafe { (*self.counts.as_ptr().cast::<AtomicU64>().add(word)).load(Ordering::SeqCst) }
    }
}

/// Both ways to wait end after every program that had begun, wherever it runs. On the processor of whoever waits a
/// program is over before the scheduler runs anybody else. So with one processor nobody can look while one runs: there
/// one has begun since the last time, and it is over.
#[test]
fn a_grace_period_waits_for_slow_programs_on_every_cpu() {
    const TIMES: u32 = 100;
    let slow = Arc::new(Slow::load());
    let cpus = std::thread::available_parallelism().unwrap().get();
    for wait in [grace, wait_for_programs] {
        for cpu in 0..cpus {
            let stop = Arc::new(AtomicBool::new(false));
            let (run, stopped) = (slow.clone(), stop.clone());
            let runner = std::thread::spawn(move || {
                stay_on(cpu);
                while !stopped.load(Ordering::Relaxed) {
                    run_frame(run.program.as_fd(), &syn()).unwrap();
                }
            });
            let (mut waited, mut seen) = (0, slow.count(0));
            while waited < TIMES {
                let over = if cpus == 1 { seen } else { slow.count(1) };
                let begun = slow.count(0);
                if begun == over {
                    std::thread::yield_now();
                    continue;
                }
                wait().unwrap();
                assert!(slow.count(1) >= begun, "the program on CPU {cpu} was not waited for");
                (waited, seen) = (waited + 1, begun);
            }
            stop.store(true, Ordering::Relaxed);
            runner.join().unwrap();
        }
    }
}

/// Where the processors cannot be visited, the kernel's own wait serves.
#[test]
fn a_grace_period_needs_no_visits() {
    // Whoever is asked to visit is made by the first thread that waits, and inherits its filter: so a process of
    // its own, this test once more.
    if std::env::var_os("WEIR_REFUSED").is_none() {
        let test = std::env::current_exe().unwrap();
        let done = std::process::Command::new(test)
            .args(["--exact", "a_grace_period_needs_no_visits"])
            .env("WEIR_REFUSED", "1")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        return;
    }
    refuse(libc::SYS_sched_setaffinity);
    let slow = Arc::new(Slow::load());
    let (run, stop) = (slow.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let runner = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            run_frame(run.program.as_fd(), &syn()).unwrap();
        }
    });
    for _ in 0..30 {
        let begun = slow.count(0);
        grace().unwrap();
        assert!(slow.count(1) >= begun);
    }
    stop.store(true, Ordering::Relaxed);
    runner.join().unwrap();
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
