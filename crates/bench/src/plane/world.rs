//! What is measured: frames of flows, and planes in which all of them are established.

use crate::Result;
use crate::error::{demand, ensure};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_plane::forward::{Encapsulation, NextHop, Tunnel};
use weir_plane::{Backend, Hop, Soft, VipKey};
use weir_plane_burst::ports::Stock;
use weir_steering::{
    BackendId, Build, HEADER_BYTES, Image, Member, MethodId, Role, SLOT_BACKEND, SLOT_RESERVED,
    ServiceConfig, ServiceId, ServiceState, Settings, SoftMemory, StateKey, TrackedFlow,
    TrackedFlows,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// Backends of the service that serve, and those that stand by, for the method with a horizon.
const BACKENDS: u16 = 64;
const STANDBY: u16 = 6;
/// Services beside the one that packets are for.
const OTHER_SERVICES: u32 = 63;
const PORT: u16 = 80;
const VIP: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SERVICE: ServiceId = ServiceId(0);
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TUNNEL_SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Bytes of a frame, if nothing else is asked for.
pub const FRAME_BYTES: usize = 64;
/// The most bytes of a stock of frames.
const STOCK_BYTES: usize = 1 << 30;
/// Where a client's address and port stand in one.
const CLIENT_AT: usize = 26;
const CLIENT_PORT_AT: usize = 34;
/// Clients; the rest of a flow's number is its port.
const CLIENTS: u32 = 1 << 16;

/// How frames get to backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forward {
    /// With other MAC addresses.
    L2,
    /// In another packet, IPv4 in IPv4.
    Ipip,
}

impl Forward {
    /// All that are measured.
    pub const ALL: [Self; 2] = [Self::L2, Self::Ipip];

    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Ipip => "ipip",
        }
    }
}

/// The methods that are measured.
pub const METHODS: [MethodId; 4] =
    [MethodId::Concury, MethodId::Residue, MethodId::Jet, MethodId::Tracked];

/// The flow of a number: its client's address and port.
fn client(number: u32) -> (Ipv4Addr, u16) {
    let address = Ipv4Addr::from(0x0a64_0000 + number % CLIENTS);
    (address, 1024 + (number / CLIENTS) as u16)
}

fn key(number: u32) -> StateKey {
    StateKey::of_flow(&flow(number))
}

/// The five-tuple of a number.
pub fn flow(number: u32) -> FlowKey {
    let (address, port) = client(number);
    FlowKey::new((address, port).into(), (VIP, PORT).into(), Protocol::Tcp)
}

/// A segment of each flow, in random order, in frames of so many bytes; or of flows that are drawn, as many as there
/// is room for.
pub fn stock(flows: u32, bytes: usize, seed: u64) -> Stock {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    if flows as usize * bytes > STOCK_BYTES {
        let order: Vec<u32> =
            (0..STOCK_BYTES / bytes).map(|_| rng.random_range(0..flows)).collect();
        return stock_of(&order, bytes);
    }
    let mut order: Vec<u32> = (0..flows).collect();
    order.shuffle(rng);
    stock_of(&order, bytes)
}

/// Segments of these flows, one after the other, in frames of so many bytes.
pub fn stock_of(order: &[u32], bytes: usize) -> Stock {
    let frame = Frame::new(flow(0)).macs(OWN_MAC, CLIENT_MAC).tcp_flags(TcpFlags::ACK);
    let frame = frame.payload((bytes - 54) as u16).build();
    Stock::filled(order.len(), bytes, |at, to| {
        let (address, port) = client(order[at]);
        to.copy_from_slice(&frame);
        to[CLIENT_AT..CLIENT_AT + 4].copy_from_slice(&address.octets());
        to[CLIENT_PORT_AT..CLIENT_PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        // The header's checksum, which the TTL's is worked out from: RFC 1624.
        let old = u32::from(u16::from_be_bytes([to[24], to[25]]));
        let (first, _) = client(0);
        let half = |address: Ipv4Addr| (u32::from(address) >> 16) + (u32::from(address) & 0xffff);
        let mut sum = (!old & 0xffff) + (0xffff - half(first) % 0xffff) + half(address);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        to[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
    })
}

fn backend(number: u16, forward: Forward) -> Backend {
    let [high, low] = number.to_be_bytes();
    let next = NextHop { mac: [2, 0xbe, 0, 0, high, low], source_mac: OWN_MAC };
    let tunnel = Tunnel {
        encapsulation: Encapsulation::Ipip,
        source: Some(TUNNEL_SOURCE.into()),
        spread: 0,
        mtu: 1500,
    };
    Backend {
        address: IpAddr::from([10, 9, 1 + high, low]),
        incarnation: 1,
        up: true,
        resets: false,
        hop: Some(Hop { next, ifindex: 0 }),
        tunnel: (forward == Forward::Ipip).then_some(tunnel),
        translation: None,
        segments: None,
    }
}

/// A method's table with all flows established.
pub struct Tables {
    method: MethodId,
    /// Backends that serve.
    backends: u16,
    image: Arc<Image>,
    /// Flows that the connection table has.
    tracked: Vec<(u32, BackendId)>,
}

impl Tables {
    /// Of so many flows.
    pub fn new(method: MethodId, flows: u32) -> Result<Self> {
        Self::of_pool(method, flows, BACKENDS)
    }

    /// Of so many flows at so many backends.
    pub fn of_pool(method: MethodId, flows: u32, backends: u16) -> Result<Self> {
        demand!((1..=BACKENDS).contains(&backends), "{backends} backends: 1 to {BACKENDS}");
        let nth = |number| nth(number, backends);
        let config = ServiceConfig {
            settings: Settings::of(method),
            client_affinity: false,
            udp: false,
            seed: 1,
            nonce: 1,
            capacity: if method == MethodId::Concury { flows as usize } else { 0 },
            max_states: usize::MAX,
            idle_seconds: u32::MAX,
        };
        let Some(make) = method.info().builder else { unreachable!("{method} is published") };
        let mut builder = make(&config, None);
        let mut members: Vec<Member> = (0..backends).map(|id| member(id, Role::Serving)).collect();
        if method == MethodId::Jet {
            members.extend((backends..backends + STANDBY).map(|id| member(id, Role::Draining)));
        }
        let mut tracked = Vec::new();
        let image = match method {
            MethodId::Concury => {
                for number in 0..flows {
                    builder.start(key(number), nth(number), 0)?;
                }
                builder.build(1, &members, 1000)?.table
            }
            MethodId::Residue => residue(&mut *builder, &members, flows, backends)?,
            _ => builder.build(1, &members, 0)?.table,
        };
        match &*image {
            Image::Tracked(_) => tracked.extend((0..flows).map(|number| (number, nth(number)))),
            Image::Jet(table) => {
                for number in 0..flows {
                    let row = table.body().row(key(number).hash(&table.header().key)) as usize;
                    if table.body().starts()[row] & SLOT_RESERVED != 0 {
                        let owner = table.body().owners()[row] & SLOT_BACKEND;
                        tracked.push((number, BackendId::of(owner)));
                    }
                }
            }
            _ => {}
        }
        Ok(Self { method, backends, image, tracked })
    }

    /// Bytes that packets read of the table and of what is remembered beside it, and how many reads of
    /// random places a packet takes: of cells, of rows, or of a connection's entry.
    pub fn memory(&self, flows: u32) -> (usize, usize) {
        // The connection table is made three quarters full.
        let entry = size_of::<(ServiceState, TrackedFlow)>() * 4 / 3;
        match self.method {
            MethodId::Concury => (self.image.bytes() - HEADER_BYTES, 2),
            MethodId::Tracked => (flows as usize * entry, 1),
            _ => (self.image.bytes() - HEADER_BYTES, 1),
        }
    }

    /// A plane with this table, shared with others; its memory is its own.
    pub fn plane(&self, flows: u32, forward: Forward) -> Soft {
        let words = (flows as usize).next_power_of_two().max(1 << 10);
        let mut soft = Soft::new(SoftMemory::new(1 << 16, words, 256));
        soft.own_macs = vec![OWN_MAC];
        let vip = |address: u32, port| VipKey {
            address: map_address(Ipv4Addr::from(address).into()),
            protocol: Protocol::Tcp,
            port: Some(port),
        };
        soft.vips.insert(vip(VIP.into(), PORT), SERVICE);
        soft.tables.insert(SERVICE, self.image.clone());
        for other in 1..=OTHER_SERVICES {
            soft.vips.insert(vip(u32::from(VIP) + other, PORT), ServiceId(other));
            soft.tables.insert(ServiceId(other), self.image.clone());
        }
        for number in 0..BACKENDS + STANDBY {
            let id = BackendId::of(number);
            soft.backends.insert(id, backend(number, forward));
            soft.memory.incarnations.insert(id, 1);
        }
        // At three quarters full, as it is counted in `memory`.
        let room = self.tracked.len();
        soft.memory.connections = TrackedFlows::with_room(HashKey::from_seed(2), room);
        for &(number, backend) in &self.tracked {
            let state = ServiceState { service: SERVICE, key: key(number) };
            soft.memory.connections.insert(state, TrackedFlow::new(backend, 1));
        }
        if self.method.needs().states {
            // As a control plane leaves it that has looked at all flows lately.
            let hash_key = self.image.header().key;
            let mut hashes = (0..flows).map(|number| key(number).hash(&hash_key));
            let side = soft.memory.arm(&mut hashes, flows as usize);
            soft.memory.mark_side = side;
            soft.memory.watch(&mut std::iter::empty());
        }
        soft
    }

    /// Where a flow lives, if the bench has put it there.
    pub fn known(&self, number: u32) -> Option<BackendId> {
        match self.method {
            MethodId::Concury | MethodId::Tracked => Some(nth(number, self.backends)),
            _ => None,
        }
    }
}

/// The backend of a flow that the bench places.
fn nth(number: u32, backends: u16) -> BackendId {
    BackendId::of((number % u32::from(backends)) as u16)
}

fn member(backend: u16, role: Role) -> Member {
    Member { backend: BackendId::of(backend), name: format!("b{backend}"), weight: 1, role }
}

/// residue's table after a change of the pool: three in ten flows of every thirteenth row live elsewhere, up to
/// a quarter million.
fn residue(
    builder: &mut dyn Build,
    members: &[Member],
    flows: u32,
    backends: u16,
) -> Result<Arc<Image>> {
    const MOST: u32 = 1 << 18;
    let rows = builder.build(1, members, 0)?.table;
    let Image::Residue(table) = &*rows else { unreachable!("it was built by residue") };
    let mut exceptions = 0;
    for number in 0..flows {
        let key = key(number);
        let row = table.body().row(key.hash(&table.header().key));
        if row % 13 == 0 && number % 10 < 3 && exceptions < MOST {
            exceptions += 1;
            let elsewhere = (table.body().rows()[row as usize] + 1) % backends;
            builder.start(key, BackendId::of(elsewhere), 0)?;
        }
    }
    Ok(builder.build(2, members, 0)?.table)
}

/// What the sum of the first eight bytes of so many frames must be once the plane has sent them: what the
/// pipeline makes of each by itself, and where the bench has put the flow.
pub fn wanted_sum(tables: &Tables, soft: &mut Soft, stock: &Stock, frames: usize) -> Result<u64> {
    let mut sum = 0u64;
    for frame in stock.each().cycle().take(frames) {
        let outcome = soft.process(frame);
        let weir_plane::Outcome::Forwarded(id) = outcome else {
            ensure!(false, "a frame of an established flow: {outcome:?}");
            continue;
        };
        let address = Ipv4Addr::from([26, 27, 28, 29].map(|at| frame[at]));
        let port = u16::from_be_bytes([frame[34], frame[35]]);
        let number = u32::from(port - 1024) * CLIENTS + (u32::from(address) - 0x0a64_0000);
        if let Some(known) = tables.known(number) {
            ensure!(id == known, "flow {number} lives at {known} and was sent to {id}");
        }
        let hop = soft.backends[&id].hop.map(|hop| hop.next).unwrap_or_default();
        let mut head = [0; 8];
        head[..6].copy_from_slice(&hop.mac);
        head[6..].copy_from_slice(&hop.source_mac[..2]);
        sum = sum.wrapping_add(u64::from_le_bytes(head));
    }
    Ok(sum)
}
