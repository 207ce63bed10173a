//! The kernel's planes that set-ups stand in, and the network around them.

use crate::format::Setup;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_dataplane::user::UserMemory;
use weir_dataplane::{KernelPlane, Limits, LivePlane};
use weir_plane_burst::beside::Beside;
use weir_steering::ServiceId;
use weir_testbed::{link, sysctl};

pub const LIMITS: Limits = Limits {
    services: 64,
    table_bytes: 4 << 20,
    backends: 32,
    pending_flows: 4,
    unreported_flows: 1024,
    tracked_flows: 65_536,
    answered_flows: 65_536,
    translations: 64,
    slot_partitions: 16,
    udp_flows: 1024,
    event_ring_bytes: 1 << 16,
    marked_flows: 2 << 10,
    stranger_bits: 1 << 14,
    mappings: 128,
    list_prefixes: 4096,
};

/// The kernel's planes, one for each list of own addresses: such a list cannot be emptied again.
pub struct Kernels {
    object: Option<Vec<u8>>,
    planes: BTreeMap<Vec<[u8; 6]>, Kernel>,
    /// Whether a plane in user space stands beside each.
    beside: bool,
    limits: Limits,
}

/// A plane in user space beside one in the kernel, whose pins it goes by.
pub struct InUserSpace {
    pub memory: UserMemory,
    pub plane: Beside,
    /// Packets that it has sent.
    pub sent: u64,
    pins: PathBuf,
}

impl Drop for InUserSpace {
    fn drop(&mut self) {
        let _ = KernelPlane::unload(&self.pins);
    }
}

pub struct Kernel {
    pub live: LivePlane,
    /// Set-ups so far: services get other keys each time, and backends are others.
    pub turn: u32,
    /// The set-up whose services are there, and their numbers.
    pub standing: Option<(*const Setup, Vec<ServiceId>)>,
    pub beside: Option<InUserSpace>,
}

impl Kernel {
    /// The numbers of a set-up's services, if they are there; else those of another one go.
    pub fn standing(&mut self, setup: &Setup) -> Option<Vec<ServiceId>> {
        match self.standing.take() {
            // Slots of connections are the service's, whatever its table.
            Some((at, numbers)) if std::ptr::eq(at, setup) && !setup.has_slots() => Some(numbers),
            Some((_, numbers)) => {
                for number in numbers {
                    self.live.remove_service(number).expect("it is there");
                }
                None
            }
            None => None,
        }
    }
}

impl Kernels {
    /// Of the program, or of another build of it. In a network namespace of one's own.
    pub fn new(object: Option<Vec<u8>>) -> Self {
        enter_network();
        Self { object, planes: BTreeMap::new(), beside: false, limits: LIMITS }
    }

    /// Of the program, with room for so many flows that are tracked.
    #[allow(dead_code, reason = "the fuzzer's")]
    pub fn with_room(flows: u32) -> Self {
        let limits = Limits { tracked_flows: flows, answered_flows: flows, ..LIMITS };
        Self { limits, ..Self::new(None) }
    }

    /// The same networks, in which the fuzzer's clients are behind the router, too.
    #[allow(dead_code, reason = "the fuzzer's")]
    pub fn add_clients() {
        let routes = ["10.9.0.0/16 via 10.5.0.2", "fd09::/16 via 2001:db8:5::2"];
        let lines = routes.map(|route| format!("route replace {route}"));
        link::ip(&lines.join("\n")).expect("the way to the clients");
    }

    /// Of the program, with a plane in user space beside it.
    pub fn with_user_space() -> Self {
        Self { beside: true, ..Self::new(None) }
    }

    /// Packets that planes in user space have sent.
    pub fn sent_beside(&self) -> u64 {
        self.planes.values().filter_map(|kernel| kernel.beside.as_ref()).map(|one| one.sent).sum()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.planes.len()
    }

    pub fn of(&mut self, setup: &Setup) -> Result<&mut Kernel, String> {
        let macs: Vec<[u8; 6]> = setup.own_macs.iter().map(|mac| mac.0).collect();
        if !self.planes.contains_key(&macs) {
            let pins = self.beside.then(|| {
                let name = format!("weir-corpus-{}-{}", std::process::id(), self.planes.len());
                Path::new("/sys/fs/bpf").join(name)
            });
            let opened = match &self.object {
                Some(object) => KernelPlane::open_object(object, None, &self.limits),
                None => KernelPlane::open(pins.as_deref(), &self.limits),
            };
            let (mut kernel, _) = opened.map_err(|error| format!("load (needs root): {error}"))?;
            let beside = pins.map(|pins| {
                kernel.stand_in_front().expect("the program in front loads");
                let memory = UserMemory::open(&pins).expect("it is pinned");
                InUserSpace { memory, plane: Beside::default(), sent: 0, pins }
            });
            if !macs.is_empty() {
                kernel.accept_own_macs(&interfaces(&macs));
            }
            let live = LivePlane::new(kernel).expect("it is the only consumer");
            self.planes.insert(macs.clone(), Kernel { live, turn: 0, standing: None, beside });
        }
        Ok(self.planes.get_mut(&macs).expect("it is there"))
    }
}

/// Interfaces with these addresses.
fn interfaces(macs: &[[u8; 6]]) -> Vec<String> {
    let make = |mac: &[u8; 6]| {
        let mac = link::mac_text(*mac);
        let name = format!("m{}", mac.replace(':', ""));
        if !Path::new("/proc/sys/net/ipv4/conf").join(&name).exists() {
            link::ip(&format!("link add {name} address {mac} type veth")).expect("an interface");
        }
        name
    };
    macs.iter().map(make).collect()
}

/// The way to the clients leads by a router behind an interface of this namespace; one way takes less than
/// others, one is this host, and one is beside the router, where nobody answers.
fn enter_network() {
    if Path::new("/proc/sys/net/ipv4/conf/router").exists() {
        return;
    }
    for (file, value) in [
        ("ipv4/conf/all/forwarding", "1"),
        ("ipv4/conf/lo/forwarding", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
    ] {
        sysctl(file, value).expect("needs root");
    }
    let lines = [
        "link set lo up",
        "link add router address 02:00:00:00:05:01 type veth peer name far",
        "link set router up",
        "link set far up",
        "addr add 10.5.0.1/24 dev router",
        "addr add 2001:db8:5::1/64 dev router",
        "neigh add 10.5.0.2 lladdr 02:00:00:00:05:02 nud permanent dev router",
        "neigh add 2001:db8:5::2 lladdr 02:00:00:00:05:02 nud permanent dev router",
        "route add 10.1.0.0/16 via 10.5.0.2",
        "route add 10.1.9.0/24 via 10.5.0.2 mtu lock 600",
        "route add 2001:db8:1::/48 via 2001:db8:5::2",
        "route add 2001:db8:1:9::/64 via 2001:db8:5::2 mtu lock 1300",
    ];
    link::ip(&lines.join("\n")).expect("the network of the cases");
}
