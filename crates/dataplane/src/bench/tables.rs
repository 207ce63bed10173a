//! The tables under test, as a control plane would have made them.

use super::{Memory, Method, PORT, flow};
use crate::error::Error;
use crate::kernel::KernelPlane;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_plane::VipKey;
use weir_steering::cheetah::{
    self, AllServers, Body, Forged, Form, Layout, Partitioned, ServiceServers, Slots, Stateless,
    Table as Cookies,
};
use weir_steering::{
    BackendId, Build, Codec, Concury, ConcuryConfig, Flags, Header, Image, Member, MethodId, Role,
    SLOT_BACKEND, SLOT_RESERVED, ServiceConfig, Settings, StateKey, Table, TrackedBuilder,
    TrackedFlow,
};
use weir_wire::{Protocol, map_address};

/// Backends of each service.
pub(super) const BACKENDS: u16 = 64;
/// Those that stand by beside them, for the method with a horizon.
pub(super) const STANDBY: u16 = 6;

/// Partitions of stateful Cheetah for so many connections, with a quarter to spare.
pub fn partitions(flows: u32) -> u32 {
    (flows + flows / 4).div_ceil(cheetah::PARTITION_SLOTS).max(1)
}

/// Publishes a table of each method, in which all flows are established. Returns what the tables take,
/// and the cookies of the flows that have slots.
pub(super) fn publish(plane: &mut KernelPlane, flows: u32) -> Result<(Memory, Vec<u16>), Error> {
    let members: Vec<Member> =
        (0..BACKENDS).map(|backend| member(backend, Role::Serving)).collect();
    let concury = concury_table(&members, flows, Method::Concury.vip());
    let tracked = TrackedBuilder::new(HashKey::from_seed(2), 65_537, false)
        .build(1, &members)
        .expect("65,537 is prime and large enough");
    let jet = jet_table(plane, members.clone(), flows)?;
    let residue = residue_table(&members, flows);
    let cheetah = cheetah_table();
    let stateful = stateful_table(&members, partitions(flows));
    for (method, image) in [
        (Method::Concury, &concury),
        (Method::Tracked, &tracked),
        (Method::Jet, &*jet),
        (Method::Residue, &*residue),
        (Method::Cheetah, &cheetah),
        (Method::CheetahStateful, &stateful),
    ] {
        let vip = VipKey {
            address: map_address(method.vip().into()),
            protocol: Protocol::Tcp,
            port: Some(PORT),
        };
        plane.set_service(vip, method.service())?;
        plane.publish(method.service(), image)?;
    }
    for n in 0..flows {
        let entry = TrackedFlow::new(BackendId::of((n % u32::from(BACKENDS)) as u16), 1);
        plane.track(&flow(n, Method::Tracked.vip()), entry)?;
    }
    let key = stateful.header().key;
    let mut connections = (0..flows).map(|n| {
        let hash = StateKey::of_flow(&flow(n, Method::CheetahStateful.vip())).hash(&key);
        let backend = (n % u32::from(BACKENDS)) as u16;
        // The servers' numbers are in the order of the pool.
        (hash, backend, backend)
    });
    let cookies = plane.fill_slots(Method::CheetahStateful.service(), &mut connections)?;
    let Image::Jet(rows) = &*jet else { unreachable!("it was built by jet") };
    let asks = rows.body().owners().iter().filter(|owner| **owner & SLOT_RESERVED != 0).count();
    let Image::Residue(lines) = &*residue else { unreachable!("it was built by residue") };
    let bytes = plane.table_bytes(Method::Concury.service());
    let memory = Memory {
        concury_bytes: bytes,
        concury_fixed_bytes: bytes - concury.view().map_or(0, |view| view.bytes()),
        residue_rows: lines.body().rows().len(),
        jet_rows: rows.body().owners().len(),
        jet_asks: asks,
    };
    Ok((memory, cookies))
}

fn member(backend: u16, role: Role) -> Member {
    Member { backend: BackendId::of(backend), name: format!("b{backend}"), weight: 1, role }
}

/// The build face of a method with its defaults.
fn builder(method: MethodId, flows: u32) -> Box<dyn Build> {
    let config = ServiceConfig {
        settings: Settings::of(method),
        client_affinity: false,
        udp: false,
        seed: 1,
        nonce: 1,
        capacity: flows as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
    };
    method.info().builder.expect("the kernel's methods are published")(&config, None)
}

/// JET's table, whose unsafe flows are in the connection table.
fn jet_table(
    plane: &KernelPlane,
    mut members: Vec<Member>,
    flows: u32,
) -> Result<Arc<Image>, Error> {
    members.extend((BACKENDS..BACKENDS + STANDBY).map(|id| member(id, Role::Draining)));
    let mut builder = builder(MethodId::Jet, flows);
    let image = builder.build(1, &members, 0).expect("70 backends fit").table;
    let Image::Jet(table) = &*image else { unreachable!("it was built by jet") };
    for n in 0..flows {
        let flow = flow(n, Method::Jet.vip());
        let row = table.body().row(StateKey::of_flow(&flow).hash(&table.header().key)) as usize;
        if table.body().starts()[row] & SLOT_RESERVED != 0 {
            let backend = table.body().owners()[row] & SLOT_BACKEND;
            plane.track(&flow, TrackedFlow::new(BackendId::of(backend), 1))?;
        }
    }
    Ok(image)
}

/// residue's table. Of flows that are where their rows say it knows nothing, so nothing is said of
/// them.
fn residue_table(members: &[Member], flows: u32) -> Arc<Image> {
    let mut builder = builder(MethodId::Residue, flows);
    let rows = builder.build(1, members, 0).expect("64 backends fit").table;
    let Image::Residue(table) = &*rows else { unreachable!("it was built by residue") };
    for n in 0..flows {
        let key = StateKey::of_flow(&flow(n, Method::Residue.vip()));
        let row = table.body().row(key.hash(&table.header().key));
        if row % 13 == 0 && n % 10 < 3 {
            let elsewhere = (table.body().rows()[row as usize] + 1) % BACKENDS;
            let backend = BackendId::new(elsewhere).expect("below 64");
            builder.start(key, backend, 0).expect("keys are different");
        }
    }
    builder.build(2, members, 0).expect("64 backends fit").table
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

/// A table in which each number that a cookie can hide leads to a backend, so that any cookie is good:
/// the largest that there is.
fn cheetah_table() -> Image {
    let mut all = AllServers::new(cheetah::NUMBERS);
    let members: Vec<Member> = (0..cheetah::NUMBERS)
        .map(|number| Member {
            backend: BackendId::of((number % u32::from(BACKENDS)) as u16),
            name: format!("b{number}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect();
    for member in &members {
        all.join(&member.name).expect("there is a number for each");
    }
    let servers = ServiceServers::new(&all, &members).expect("all have joined");
    let key = HashKey::from_seed(3);
    let method = Stateless::new(key, Layout::stateless(), Forged::Schedule);
    let header = Header::new(key, Flags::default(), 1, 0);
    Image::from(Table::new(header, Body(Cookies::new(method, servers))))
}

/// A table without connections yet.
fn stateful_table(members: &[Member], partitions: u32) -> Image {
    let mut all = AllServers::new(cheetah::NUMBERS);
    for member in members {
        all.join(&member.name).expect("there is a number for each");
    }
    let servers = ServiceServers::new(&all, members).expect("all have joined");
    let key = HashKey::from_seed(4);
    let slots = Slots { partitions, idle_seconds: u32::MAX };
    let method = <Partitioned as Form>::new(
        key,
        Forged::Schedule,
        slots,
        Flags::default(),
        Layout::stateful(),
    );
    let header = Header::new(key, Flags::default(), 1, 0);
    Image::from(Table::new(header, Body(Cookies::new(method, servers))))
}

/// The hashes of all flows of a method's service, under the key of its published table.
pub(super) fn hashes(
    plane: &KernelPlane,
    method: Method,
    flows: u32,
) -> Result<impl Iterator<Item = u64>, Error> {
    let table = plane.published(method.service())?.expect("each service has its table");
    let key = table.header().key;
    Ok((0..flows).map(move |n| StateKey::of_flow(&flow(n, method.vip())).hash(&key)))
}
