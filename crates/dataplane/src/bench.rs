//! `weir bench xdp`: a generator in live-frames mode over a veth pair, in a network namespace that
//! belongs to the bench alone (the crate `bench` makes both).
//!
//! ```text
//! bench_generate -> gen0 ==veth== lb0: reflector | weir -> gen0: bench_sink
//! ```
//! All of it runs on one CPU, one after the other, so the times add up, and the difference to a
//! reflector that only swaps MAC addresses is what the balancer costs.

use crate::error::{Context, Error};
use crate::kernel::KernelPlane;
use crate::{BackendEntry, Interface};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;
use weir_hash::HashKey;
use weir_plane::Limits;
use weir_plane::VipKey;
use weir_steering::{
    Codec, Concury, ConcuryConfig, Image, Member, Role, StateKey, TrackedBuilder, TrackedFlow,
};
use weir_wire::{FlowKey, Protocol, map_address};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/bench.skel.rs"));
}

const PORT: u16 = 80;
const BACKENDS: u16 = 64;
const BATCH: u32 = 64;

/// The program that frames are sent through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A program that swaps MAC addresses and sends the frame back: the floor.
    Reflector,
    /// The balancer, with a service of the method `concury`.
    Concury,
    /// The balancer, with a service of the method `tracked`.
    Tracked,
}

impl Subject {
    /// The subject in one word, as reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reflector => "reflector",
            Self::Concury => "concury",
            Self::Tracked => "tracked",
        }
    }

    fn vip(self) -> Ipv4Addr {
        match self {
            Self::Tracked => Ipv4Addr::new(198, 51, 100, 2),
            _ => Ipv4Addr::new(198, 51, 100, 1),
        }
    }
}

/// One measurement of one subject.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Nanoseconds per packet, everything included.
    pub nanoseconds: f64,
    /// Share of the packets that came back, 0 to 1.
    pub returned: f64,
}

/// Memory of the tables under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of concury's published table, whole, as the pool holds it.
    pub concury_bytes: usize,
    /// Bytes of it that are the DIP array and the header.
    pub concury_fixed_bytes: usize,
}

/// The bench's programs, attached to the ends of a veth pair.
pub struct XdpBench<'a> {
    skel: skeleton::BenchSkel<'a>,
    plane: KernelPlane,
    generator: Interface,
    balancer: Interface,
    /// What the tables take.
    pub memory: Memory,
}

/// Source address and port of flow `n`, as `bench_generate` writes them.
fn flow(n: u32, vip: Ipv4Addr) -> FlowKey {
    let source = Ipv4Addr::from(0x0a00_0000 | (n & 0xff_ffff));
    let port = 1024 + (n >> 24) as u16;
    FlowKey::new((source, port).into(), (vip, PORT).into(), Protocol::Tcp)
}

/// Storage for the programs of an [`XdpBench`].
pub type Storage = MaybeUninit<libbpf_rs::OpenObject>;

impl<'a> XdpBench<'a> {
    /// Loads tables for `flows` flows, all of them established. Generator and balancer are the ends
    /// of a veth pair in the namespace of the calling thread, which should stay on one CPU.
    ///
    /// # Errors
    /// Whatever the kernel refuses; this needs root.
    pub fn new(
        storage: &'a mut Storage,
        flows: u32,
        [generator, balancer]: [Interface; 2],
    ) -> Result<Self, Error> {
        let limits = Limits {
            // Room for all flows and half as many again: an LRU map evicts before it is full.
            tracked_flows: (flows + flows / 2).max(4096),
            ..Limits::default()
        };
        let (mut plane, _) = KernelPlane::open(None, &limits)?;
        for backend in 0..BACKENDS {
            let entry = BackendEntry::new(Ipv4Addr::new(192, 0, 2, 1).into(), 1).with_next_hop(
                generator.mac,
                balancer.mac,
                0,
                true,
            );
            plane.set_backend(backend, &entry)?;
        }
        let memory = publish_tables(&mut plane, flows)?;
        let open = skeleton::BenchSkelBuilder::default()
            .open(storage)
            .context(|| "open the bench programs".into())?;
        let skel = open.load().context(|| "load the bench programs".into())?;
        attach(skel.progs.bench_sink.as_fd(), generator.index)?;
        Ok(Self { skel, plane, generator, balancer, memory })
    }

    /// Puts the subject behind the veth and sends it `packets` packets of `flows` flows, drawn at
    /// random by `seed`.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn run(
        &mut self,
        subject: Subject,
        flows: u32,
        packets: u32,
        seed: u64,
    ) -> Result<Sample, Error> {
        let program = match subject {
            Subject::Reflector => self.skel.progs.bench_reflect.as_fd(),
            _ => self.plane.program(),
        };
        attach(program, self.balancer.index)?;
        let data = self.skel.maps.bss_data.as_deref_mut().expect("the bench has .bss");
        data.settings.draws = seed;
        data.settings.flows = flows;
        data.settings.vip = u32::from(subject.vip()).to_be();
        data.settings.vip_port = PORT.to_be();
        data.settings.egress = self.generator.index;
        data.settings.destination_mac = self.balancer.mac;
        data.settings.own_mac = self.generator.mac;
        let before = data.sunk;
        let started = Instant::now();
        generate(self.skel.progs.bench_generate.as_fd(), packets)?;
        let elapsed = started.elapsed();
        let data = self.skel.maps.bss_data.as_deref().expect("the bench has .bss");
        let returned = data.sunk - before;
        Ok(Sample {
            nanoseconds: elapsed.as_nanos() as f64 / f64::from(packets),
            returned: returned as f64 / f64::from(packets),
        })
    }
}

fn publish_tables(plane: &mut KernelPlane, flows: u32) -> Result<Memory, Error> {
    let members: Vec<Member> = (0..BACKENDS)
        .map(|backend| Member {
            backend,
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect();
    let concury = concury_table(&members, flows, Subject::Concury.vip());
    let tracked = TrackedBuilder::new(HashKey::from_seed(2), 65_537, false)
        .build(1, &members)
        .expect("65,537 is prime and large enough");
    for (service, subject, image) in
        [(0, Subject::Concury, &concury), (1, Subject::Tracked, &tracked)]
    {
        let vip = VipKey {
            address: map_address(subject.vip().into()),
            protocol: Protocol::Tcp,
            port: Some(PORT),
        };
        plane.set_service(&vip, service)?;
        plane.publish(service, image)?;
    }
    for n in 0..flows {
        let entry = TrackedFlow { backend: (n % u32::from(BACKENDS)) as u16, incarnation: 1 };
        plane.track(&flow(n, Subject::Tracked.vip()), entry)?;
    }
    let view = concury.view().map_or(0, |view| view.bytes());
    let bytes = plane.table_bytes(0);
    Ok(Memory { concury_bytes: bytes, concury_fixed_bytes: bytes - view })
}

/// A service's table with `flows` established flows.
pub fn concury_table(members: &[Member], flows: u32, vip: Ipv4Addr) -> Image {
    let config = ConcuryConfig {
        codec: Codec::Othello,
        bits: 12,
        client_affinity: false,
        udp: false,
        mark: true,
        capacity: flows as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
        seed: 1,
    };
    let mut concury = Concury::new(config);
    for n in 0..flows {
        let key = StateKey::of_flow(&flow(n, vip));
        let backend = members[n as usize % members.len()].backend;
        concury.start(key, backend, 0).expect("keys are different");
    }
    let (image, _) = concury.build(1, members, 1000).expect("64 backends fit");
    (*image).clone()
}

fn generate(program: BorrowedFd<'_>, packets: u32) -> Result<(), Error> {
    const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
    let frame = [0u8; 64];
    let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: packets as i32,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: BATCH,
        ..Default::default()
    };
    // SAFETY: the input buffer outlives the call; there is no output buffer.
    let done =
        unsafe { libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| "generate frames (BPF_PROG_RUN, live frames)".into())
}

/// Attaches in native mode, in place of whatever is there.
fn attach(program: BorrowedFd<'_>, ifindex: u32) -> Result<(), Error> {
    const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
    // SAFETY: numbers and a null pointer for the options.
    let done = unsafe {
        libbpf_rs::libbpf_sys::bpf_xdp_attach(
            ifindex as i32,
            program.as_raw_fd(),
            XDP_FLAGS_DRV_MODE,
            std::ptr::null(),
        )
    };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| format!("attach to interface {ifindex}"))
}

impl XdpBench<'_> {
    /// Nanoseconds of one program run on one established flow, without a network: the average of
    /// `repeat` runs in the kernel.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn bare(&self, subject: Subject, repeat: u32) -> Result<u32, Error> {
        let program = match subject {
            Subject::Reflector => self.skel.progs.bench_reflect.as_fd(),
            _ => self.plane.program(),
        };
        let frame = weir_wire::craft::Frame::new(flow(7, subject.vip())).build();
        crate::run::run_repeated(program, &frame, repeat)
    }
}
