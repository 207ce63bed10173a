//! What both tests against the oracle begin with, and what is the same in every step of theirs.

use crate::services::{Builder, Service, Tables};
use crate::twin::{Refused, Twin};
use weir_dataplane::{KernelPlane, Limits};
use weir_plane::{Soft, VipKey};
use weir_steering::update::{Failure, Outcome};
use weir_steering::{
    BackendId, BuildError, Driver, MethodId, Role, ServiceConfig, ServiceId, Settings, SoftMemory,
};

/// The link's own address of frames that leave.
pub const OURS: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The least of everything; each test has more of what it is about.
pub const LIMITS: Limits = Limits {
    services: 64,
    table_bytes: 1 << 20,
    backends: 256,
    pending_flows: 400,
    unreported_flows: 65_536,
    tracked_flows: 65_536,
    answered_flows: 1,
    translations: 64,
    slot_partitions: 1,
    udp_flows: 128,
    event_ring_bytes: 1 << 20,
    marked_flows: 2 << 10,
    stranger_bits: 1 << 16,
    mappings: 1,
    list_prefixes: 1,
};

/// A number of the environment, which is printed so that the run can be had again.
pub fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

/// Where frames to a backend go.
pub fn mac(backend: BackendId) -> [u8; 6] {
    let [high, low] = backend.get().to_be_bytes();
    [2, 0, 0, 1, high, low]
}

/// An oracle that remembers as many pending flows as the program.
pub fn oracle(limits: &Limits) -> Soft {
    Soft::new(SoftMemory::new(limits.pending_flows as usize, 1 << 10, 32))
}

/// The build face of a method, by the registry, with a small table.
pub fn builder(settings: Settings, client_affinity: bool, udp: bool, seed: u64) -> Builder {
    let method = settings.method();
    let config = ServiceConfig {
        settings,
        client_affinity,
        udp,
        seed,
        nonce: 0,
        capacity: 16,
        max_states: 100_000,
        idle_seconds: if method == MethodId::CheetahStateful { 300 } else { 1_000_000 },
    };
    Builder::Other(method.info().builder.expect("it is published")(&config, None))
}

/// A service without backends, which both planes know.
pub fn service(
    kernel: &mut KernelPlane,
    oracle: &mut Soft,
    number: ServiceId,
    vip: VipKey,
    client: bool,
    builder: Builder,
) -> Service {
    kernel.set_service(vip, number).expect("there is room");
    oracle.vips.insert(vip, number);
    Service {
        number,
        vip,
        client,
        members: Vec::new(),
        leaving: Vec::new(),
        builder,
        driver: Driver::new(),
        generation: 0,
    }
}

/// What a backend becomes that is neither added nor removed.
pub fn next_role(role: Role) -> Role {
    match role {
        Role::Serving => Role::Draining,
        Role::Draining => Role::Down,
        Role::Down => Role::Serving,
    }
}

/// Whether a service is being updated.
pub fn updates(tables: &Tables, at: usize) -> bool {
    !tables.services[at].driver.is_idle()
}

/// One action of a service's update, and how those ended that it was the last of.
pub fn step(
    plane: &mut Twin,
    tables: &mut Tables,
    at: usize,
) -> Vec<Outcome<Failure<Refused, BuildError>>> {
    let mut driver = std::mem::take(&mut tables.services[at].driver);
    driver.step(plane, tables);
    let outcomes = driver.outcomes();
    tables.services[at].driver = driver;
    outcomes
}
