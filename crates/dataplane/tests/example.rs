//! The method of docs/add-a-method.md, made of one folder, one header and one line of the registry:
//! it is built by name, loaded, published, steered by in the kernel as in Rust, and explained.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, SocketAddr};
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_plane::VipKey;
use weir_steering::{
    BackendId, Build, Member, MethodId, Recall, Rehearsal, Role, ServiceConfig, ServiceId,
    Settings, SoftMemory, Why, decide,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

const PACKETS: u32 = 100_000;

struct Service {
    address: SocketAddr,
    protocol: Protocol,
    members: Vec<Member>,
    builder: Box<dyn Build>,
}

/// A memory with nothing in it.
struct Nothing;

impl Recall for Nothing {}

fn mac(backend: u16) -> [u8; 6] {
    let [high, low] = backend.to_be_bytes();
    [2, 0, 0, 1, high, low]
}

/// One service for each family, protocol and affinity.
fn services(rng: &mut ChaCha8Rng) -> Vec<Service> {
    let method = MethodId::named("example").expect("the registry lists it");
    let mut all = Vec::new();
    for address in ["10.9.0.1:80", "[fd09::1]:80"] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for client_affinity in [false, true] {
                let mut address: SocketAddr = address.parse().unwrap();
                address.set_port(80 + u16::from(client_affinity));
                let config = ServiceConfig {
                    settings: Settings::of(method),
                    client_affinity,
                    udp: protocol == Protocol::Udp,
                    seed: rng.random(),
                    nonce: 0,
                    capacity: 16,
                    max_states: 16,
                    idle_seconds: 60,
                };
                let builder = method.info().builder.expect("its tables can be published");
                let builder = builder(&config, None);
                all.push(Service { address, protocol, members: Vec::new(), builder });
            }
        }
    }
    all
}

fn change_pool(members: &mut Vec<Member>, rng: &mut ChaCha8Rng) {
    let backend = BackendId::of(rng.random_range(0..16));
    match members.iter().position(|member| member.backend == backend) {
        Some(at) if rng.random_bool(0.5) => drop(members.remove(at)),
        Some(at) => members[at].role = *[Role::Serving, Role::Draining].choose(rng).unwrap(),
        None => members.push(Member {
            backend,
            name: format!("b{backend}"),
            weight: rng.random_range(1..5),
            role: Role::Serving,
        }),
    }
}

fn flow(service: &Service, rng: &mut ChaCha8Rng) -> FlowKey {
    let n: u32 = rng.random_range(0..5000);
    let source: IpAddr = if service.address.is_ipv4() {
        IpAddr::from([10, 8, (n >> 8) as u8, n as u8])
    } else {
        IpAddr::from([0xfd08, 0, 0, 0, 0, 0, 0, n as u16])
    };
    FlowKey::new((source, rng.random_range(1000..1010)).into(), service.address, service.protocol)
}

#[test]
fn one_folder_one_header_and_one_line_make_a_method() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let limits = Limits { services: 8, backends: 16, table_bytes: 1 << 20, ..Limits::default() };
    let (mut kernel, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
    for backend in 0..16 {
        let entry = BackendEntry::new("10.9.1.1".parse().unwrap(), 1);
        let entry = entry.with_next_hop(mac(backend), [2, 0, 0, 0, 0, 9], 0, true);
        kernel.set_backend(BackendId::of(backend), &entry).unwrap();
    }
    let mut services = services(&mut rng);
    for (number, service) in services.iter().enumerate() {
        let Service { address, protocol, .. } = *service;
        let (address, port) = (map_address(address.ip()), Some(address.port()));
        kernel.set_service(&VipKey { address, protocol, port }, ServiceId(number as u32)).unwrap();
    }
    let mut soft = SoftMemory::new(16, 16, 16);
    let (mut forwarded, mut refused, mut new) = (0, 0, 0);
    for packet in 0..PACKETS {
        let number = rng.random_range(0..services.len());
        let service = &mut services[number];
        if packet % 512 == 0 || service.builder.published().is_none() {
            change_pool(&mut service.members, &mut rng);
            let generation = u64::from(packet) + 1;
            let built = service.builder.build(generation, &service.members, 0).unwrap();
            assert_eq!((built.pinned.len(), built.orphans.len()), (0, 0));
            kernel.publish(ServiceId(number as u32), &built.table).unwrap();
            let back =
                kernel.published(ServiceId(number as u32)).unwrap().expect("it was published");
            assert_eq!(back, *built.table);
        }
        let flow = flow(service, &mut rng);
        let flags = *[TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN].choose(&mut rng).unwrap();
        let frame = Frame::new(flow).tcp_flags(flags).build();
        let run = run_frame(kernel.program(), &frame).unwrap();
        let table = service.builder.published().expect("it was published");
        let decision = decide(table, ServiceId(number as u32), &flow, flags, &mut soft);
        match decision.backend {
            Ok(backend) => {
                assert_eq!(run.verdict, Verdict::Transmit, "{flow}");
                assert_eq!(run.frame[..6], mac(backend.get()), "{flow}");
                forwarded += 1;
                new += u64::from(decision.new);
            }
            Err(reason) => {
                assert_eq!((run.verdict, reason), (Verdict::Drop, Reason::NoBackend), "{flow}");
                refused += 1;
            }
        }
        // Explained: the same decision over a memory that writes down what it is asked.
        let mut rehearsal = Rehearsal::new(&Nothing);
        assert_eq!(decide(table, ServiceId(number as u32), &flow, flags, &mut rehearsal), decision);
        assert_eq!(rehearsal.notes(), []);
        assert_eq!(decision.why, Why::Row);
        let row = decision.row.expect("it is always a row");
        assert_eq!((table.method().info().row_name)(row), format!("row {row}"));
    }
    assert!(
        forwarded > u64::from(PACKETS) / 2 && new > 1000,
        "{forwarded} of {PACKETS}, {new} new"
    );
    let counted = kernel.counters((0..16).map(BackendId::of)).unwrap();
    assert_eq!(counted.lanes.values().map(|lane| lane.packets).sum::<u64>(), forwarded);
    assert_eq!(counted.lanes.values().map(|lane| lane.flows).sum::<u64>(), new);
    assert_eq!(counted.dropped.get(&Reason::NoBackend).copied().unwrap_or(0), refused);
    assert!(kernel.pending().unwrap().is_empty());
    let mut reports = 0;
    kernel.reports().unwrap().drain(|_| reports += 1).unwrap();
    assert_eq!(reports, 0, "it reports nothing");
}
