//! Backends that write the cookies themselves, in both planes: what a forger can do to others' connections.

use crate::{Builder, World, from_environment};
use rand::Rng;
use std::collections::BTreeMap;
use weir_hash::{HashKey, Key};
use weir_plane::{Outcome, Plane};
use weir_steering::{
    BackendId, Echoes, Flags, Image, MethodId, Role, ServiceConfig, Settings, StateKey, cheetah,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, TcpFlags};

const FLOWS: u16 = 400;
const BACKENDS: usize = 6;

/// The first service whose backends are told cookies, with backends of equal weight and load.
fn prepare(world: &mut World, method: MethodId) -> usize {
    let tells = |world: &World, at: usize| {
        let table = world.plane.oracle.tables.get(&world.tables.services[at].number);
        table.filter(|table| table.method() == method).is_some_and(|table| {
            let flags = table.header().flags();
            flags.has(Flags::TELLS) && !flags.has(Flags::COUNTS)
        })
    };
    let all = 0..world.tables.services.len();
    let at = all.into_iter().find(|at| tells(world, *at)).expect("a service of the kind");
    assert!(!world.tables.services[at].client);
    while world.tables.services[at].members.len() < BACKENDS {
        world.add_backend(at);
    }
    let members: Vec<BackendId> =
        world.tables.services[at].members.iter().map(|m| m.backend).collect();
    for (member, backend) in world.tables.services[at].members.iter_mut().zip(&members) {
        assert_eq!(member.backend, *backend);
        member.weight = 1;
    }
    members.iter().for_each(|backend| world.set_load(*backend, 1, Some(0)));
    publish(world, at);
    at
}

fn publish(world: &mut World, at: usize) {
    assert!(!matches!(world.tables.services[at].builder, Builder::None));
    world.begin_update(at);
    while world.updates(at) {
        world.step_update(at);
    }
    world.drain();
}

fn set_role(world: &mut World, at: usize, backend: BackendId, role: Role) {
    let members = &mut world.tables.services[at].members;
    members.iter_mut().find(|one| one.backend == backend).expect("a member").role = role;
    publish(world, at);
}

fn client(world: &World, at: usize, number: u16) -> FlowKey {
    let vip = &world.tables.services[at].vip;
    let address = weir_wire::unmap_address(&vip.address);
    let from = match address {
        std::net::IpAddr::V4(_) => format!("10.7.0.1:{}", 10_000 + number),
        std::net::IpAddr::V6(_) => format!("[fd07::1]:{}", 10_000 + number),
    };
    let to = (address, vip.port.unwrap_or(4)).into();
    FlowKey::new(from.parse().expect("an address"), to, vip.protocol)
}

/// Where a segment goes, by both planes.
fn send(world: &mut World, flow: FlowKey, flags: TcpFlags, echo: u32) -> BackendId {
    let frame = Frame::new(flow).tcp_flags(flags).timestamps(7, echo).build();
    match world.compare_frame(&frame) {
        Outcome::Forwarded(backend) => backend,
        other => panic!("{flow}: {other:?}"),
    }
}

/// What an agent at this backend makes the client echo; or at a number that is nobody's.
fn echo(world: &World, at: usize, flow: &FlowKey, backend: Option<BackendId>) -> u32 {
    let table = &world.plane.oracle.tables[&world.tables.services[at].number];
    let Image::Cheetah(table) = &**table else { panic!("no table of cheetah") };
    let cookies = &table.body().0;
    let key = StateKey::of_flow(flow);
    let cookie = match backend {
        Some(one) => {
            cookies.method.cookie(&cookies.servers, &key, one.get()).expect("in the service")
        }
        None => {
            let codec = cookies.method.codec();
            let nobody =
                (0..codec.numbers() as u16).find(|n| cookies.servers.backend(*n).is_none());
            let part = codec.hide_for(key.hash(codec.key()), nobody.expect("a free number"));
            cookies.method.layout().cookie(part, 0)
        }
    };
    u32::from(cookie) << 16 | 0x77
}

/// Connections of well-behaved backends, by number of the client.
fn open(world: &mut World, at: usize) -> BTreeMap<u16, BackendId> {
    let open = |number| {
        let flow = client(world, at, number);
        (number, send(world, flow, TcpFlags::SYN, 0))
    };
    (0..FLOWS).map(open).collect()
}

fn check(world: &mut World, at: usize, homes: &BTreeMap<u16, BackendId>, when: &str) {
    for (number, home) in homes {
        let flow = client(world, at, *number);
        let echo = echo(world, at, &flow, Some(*home));
        let to = send(world, flow, TcpFlags::ACK, echo);
        assert_eq!(to, *home, "{when}: connection {number}");
    }
}

/// SYNs in the name of all connections; how many of them went elsewhere.
fn forge(world: &mut World, at: usize, homes: &BTreeMap<u16, BackendId>) -> usize {
    let mut moved = 0;
    for (number, home) in homes {
        let flow = client(world, at, *number);
        // Some without timestamps: as good a SYN as any.
        let to = if number % 3 == 0 {
            match world.compare_frame(&Frame::new(flow).tcp_flags(TcpFlags::SYN).build()) {
                Outcome::Forwarded(backend) => backend,
                other => panic!("{other:?}"),
            }
        } else {
            send(world, flow, TcpFlags::SYN, 0)
        };
        moved += usize::from(to != *home);
    }
    moved
}

/// The sign that a backend writes no cookies, by somebody's own connections there.
fn sign(world: &mut World, at: usize, backends: &[BackendId]) {
    for number in FLOWS..20_000 {
        if backends.iter().all(|one| world.plane.oracle.echoes(*one).bare) {
            return;
        }
        let flow = client(world, at, number);
        let to = send(world, flow, TcpFlags::SYN, 0);
        if backends.contains(&to) {
            let forged = echo(world, at, &flow, None);
            assert_eq!(send(world, flow, TcpFlags::ACK, forged), to);
        }
    }
    panic!("not signed: {backends:?}");
}

/// Whoever forges echoes at any backends, and SYNs in the name of connections whose backends drain and go
/// down, one after the other and back again: each connection goes on where it began.
#[test]
fn a_forged_echo_moves_no_connection() {
    let mut world = World::with_tunnels(from_environment("WEIR_SEED", rand::random), false);
    let at = prepare(&mut world, MethodId::Cheetah);
    let backends: Vec<BackendId> =
        world.tables.services[at].members.iter().map(|one| one.backend).collect();
    backends.iter().for_each(|one| world.set_health(*one, true));
    let mut moved = 0;
    // Nobody is signed; the last one; the last three; all.
    for signed in [0, 1, 3, BACKENDS] {
        world.plane.oracle.memory.connections.clear();
        world.plane.kernel.kernel.forget_connections(world.tables.services[at].number).unwrap();
        let homes = open(&mut world, at);
        println!("{signed} signed, {moved} SYNs went elsewhere");
        sign(&mut world, at, &backends[BACKENDS - signed..]);
        check(&mut world, at, &homes, "before");
        for (one, role) in [
            (0, Role::Draining),
            (1, Role::Draining),
            (0, Role::Serving),
            (3, Role::Draining),
            (1, Role::Serving),
            (3, Role::Serving),
        ] {
            set_role(&mut world, at, backends[one], role);
            moved += forge(&mut world, at, &homes);
            check(&mut world, at, &homes, &format!("{signed} signed, {one} {role:?}"));
        }
        for (one, up) in [(2, false), (4, false), (2, true), (5, false), (4, true), (5, true)] {
            world.set_health(backends[one], up);
            moved += forge(&mut world, at, &homes);
            check(&mut world, at, &homes, &format!("{signed} signed, {one} up: {up}"));
        }
        for one in &backends {
            let echoes = world.plane.oracle.echoes(*one);
            assert_eq!(echoes, world.plane.kernel.echoes(*one));
            let wanted = backends[BACKENDS - signed..].contains(one);
            assert_eq!(echoes, Echoes { bare: wanted, own: signed > 0 }, "{one}");
        }
        // Entries that a flood has evicted: what is signed elsewhere counts for nothing.
        world.plane.oracle.memory.connections.clear();
        world.plane.kernel.kernel.forget_connections(world.tables.services[at].number).unwrap();
        if signed <= 1 {
            set_role(&mut world, at, backends[0], Role::Draining);
            let last = backends[BACKENDS - 1];
            set_role(&mut world, at, last, Role::Draining);
            moved += forge(&mut world, at, &homes);
            check(&mut world, at, &homes, &format!("{signed} signed, evicted"));
            set_role(&mut world, at, backends[0], Role::Serving);
            set_role(&mut world, at, last, Role::Serving);
        }
    }
    assert!(moved > 500, "{moved} SYNs went elsewhere");
}

/// A backend without an agent, once that is known, keeps its connections while it drains, whoever sends SYNs
/// in their names.
#[test]
fn a_signed_backend_keeps_its_connections_while_it_drains() {
    let mut world = World::with_tunnels(from_environment("WEIR_SEED", rand::random), false);
    let at = prepare(&mut world, MethodId::Cheetah);
    let backends: Vec<BackendId> =
        world.tables.services[at].members.iter().map(|one| one.backend).collect();
    backends.iter().for_each(|one| world.set_health(*one, true));
    let homes = open(&mut world, at);
    let bare = backends[0];
    sign(&mut world, at, &[bare]);
    set_role(&mut world, at, bare, Role::Draining);
    forge(&mut world, at, &homes);
    let mut there = 0;
    for (number, home) in homes.iter().filter(|(_, home)| **home == bare) {
        // Whatever is in the echo, also the cookies of the others.
        for named in backends.iter().copied().map(Some).chain([None]) {
            let flow = client(&world, at, *number);
            let echo = echo(&world, at, &flow, named);
            assert_eq!(send(&mut world, flow, TcpFlags::ACK, echo), *home);
            there += 1;
        }
    }
    assert!(there > 100, "{there}");
}

/// The same with cookies that name slots: nobody moves a connection by a SYN in its name, also when the
/// connection table has lost it; and whoever's backend writes no cookies is led by that table, whatever is
/// echoed.
#[test]
fn connections_by_index_stay_where_backends_write_the_cookies() {
    let mut world = World::with_tunnels(from_environment("WEIR_SEED", rand::random), false);
    let at = prepare(&mut world, MethodId::CheetahStateful);
    let number = world.tables.services[at].number;
    let backends: Vec<BackendId> =
        world.tables.services[at].members.iter().map(|one| one.backend).collect();
    backends.iter().for_each(|one| world.set_health(*one, true));
    let homes = open(&mut world, at);
    let echoes = |world: &World| -> BTreeMap<u16, u32> {
        let table = &world.plane.oracle.tables[&number];
        let Image::CheetahStateful(table) = &**table else { panic!("no table of the kind") };
        let codec = table.body().0.method.method.codec();
        let echo = |number: &u16| {
            let flow = client(world, at, *number);
            let entry = world.plane.oracle.connection(&flow).unwrap().expect("it is tracked");
            let index = entry.former.expect("it has a slot").number();
            let hash = StateKey::of_flow(&flow).hash(codec.key());
            (*number, u32::from(codec.hide_for(hash, index)) << 16 | 0x77)
        };
        homes.keys().map(echo).collect()
    };
    let cookies = echoes(&world);
    let check = |world: &mut World, cookies: &BTreeMap<u16, u32>, when: &str| {
        for (number, home) in &homes {
            let flow = client(world, at, *number);
            assert_eq!(send(world, flow, TcpFlags::ACK, cookies[number]), *home, "{when}");
        }
    };
    check(&mut world, &cookies, "at first");
    set_role(&mut world, at, backends[0], Role::Draining);
    set_role(&mut world, at, backends[1], Role::Draining);
    // Those with timestamps follow their connection, to its slot.
    for (number, home) in &homes {
        let flow = client(&world, at, *number);
        assert_eq!(send(&mut world, flow, TcpFlags::SYN, 0), *home);
    }
    assert_eq!(echoes(&world), cookies, "the slots are the same");
    check(&mut world, &cookies, "SYNs while backends drain");
    // Backends without an agent: anything in the echo.
    for (number, home) in &homes {
        let flow = client(&world, at, *number);
        let anything = world.rng.random();
        assert_eq!(send(&mut world, flow, TcpFlags::ACK, anything), *home);
    }
    for (one, up) in [(0, false), (1, false), (2, false), (0, true), (3, false), (2, true)] {
        world.set_health(backends[one], up);
        forge(&mut world, at, &homes);
        check(&mut world, &cookies, &format!("{one} up: {up}"));
    }
    world.plane.oracle.memory.connections.clear();
    world.plane.kernel.kernel.forget_connections(number).unwrap();
    let moved = forge(&mut world, at, &homes);
    assert!(moved > 100, "{moved} SYNs went elsewhere");
    check(&mut world, &cookies, "evicted");
}

/// From now on the service's cookies are made by one of these keys.
fn set_keys(world: &mut World, at: usize, tier_bits: u64, keys: [Option<u64>; 2], issue: usize) {
    let mut settings = Settings::of(MethodId::Cheetah);
    settings.set_word(cheetah::ANSWERS, "backend").expect("a word of it");
    settings.set(cheetah::TIER_BITS, tier_bits).expect("in range");
    let keys = keys.map(|seed| seed.map(HashKey::from_seed));
    let config = ServiceConfig {
        settings: settings.with_cookie_keys(cheetah::CookieKeys::new(keys, issue)),
        client_affinity: false,
        udp: false,
        seed: 4_711,
        nonce: 0,
        capacity: 16,
        max_states: 100_000,
        idle_seconds: 1_000_000,
    };
    let builder = MethodId::Cheetah.info().builder.expect("it is published");
    world.tables.services[at].builder = Builder::Other(builder(&config, None));
    publish(world, at);
}

/// Keys of cookies change: both planes read each cookie under the key that it says, tell the one that issues, and
/// know none that is gone.
#[test]
fn cookies_say_under_which_key_they_are() {
    for tier_bits in [0, 5] {
        let mut world = World::with_tunnels(from_environment("WEIR_SEED", rand::random), false);
        let at = prepare(&mut world, MethodId::Cheetah);
        let number = world.tables.services[at].number;
        let members = &world.tables.services[at].members;
        let backends: Vec<BackendId> = members.iter().map(|one| one.backend).collect();
        backends.iter().for_each(|one| world.set_health(*one, true));
        let mut all: Vec<(u64, FlowKey, BackendId, u32)> = Vec::new();
        for (step, (keys, issue)) in [
            ([Some(1), None], 0),
            ([Some(1), Some(2)], 0),
            ([Some(1), Some(2)], 1),
            ([None, Some(2)], 1),
            ([Some(3), Some(2)], 1),
            ([Some(3), Some(2)], 0),
        ]
        .into_iter()
        .enumerate()
        {
            set_keys(&mut world, at, tier_bits, keys, issue);
            let key = keys[issue].expect("it issues");
            for client_number in 0..100 {
                let flow = client(&world, at, step as u16 * 100 + client_number);
                let home = send(&mut world, flow, TcpFlags::SYN, 0);
                let echo = echo(&world, at, &flow, Some(home));
                all.push((key, flow, home, echo));
            }
            // Nobody is led by what the connection table knows.
            world.plane.oracle.memory.connections.clear();
            world.plane.kernel.kernel.forget_connections(number).expect("it can be cleared");
            for (key, flow, home, echo) in &all {
                let to = send(&mut world, *flow, TcpFlags::ACK, *echo);
                assert!(to == *home || !keys.contains(&Some(*key)), "step {step}, {flow}");
            }
            for client_number in 0..200 {
                let flow = client(&world, at, 5_000 + client_number);
                let anything = world.rng.random();
                send(&mut world, flow, TcpFlags::ACK, anything);
            }
        }
    }
}
