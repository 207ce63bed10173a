//! A service with cookies, and packets of its connections.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_plane::forward::NextHop;
use weir_plane::{Backend, Hop, Plane, VipKey};
use weir_plane_p4::{Error, P4, Target};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Image, Member, MethodId, Role, ServiceConfig, ServiceId, Settings, cheetah,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

pub const SERVICE: ServiceId = ServiceId(0);
const VIP: &str = "10.9.0.1:80";

pub fn settings(method: MethodId, words: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::of(method);
    if [MethodId::Cheetah, MethodId::CheetahStateful].contains(&method) {
        settings.set_word(cheetah::ANSWERS, "backend").expect("it has such a setting");
    }
    for (name, word) in words {
        let set = match word.parse() {
            Ok(number) => settings.set(name, number),
            Err(_) => settings.set_word(name, word),
        };
        set.expect("it has such a setting");
    }
    settings
}

/// A pool of backends with these weights, by numbers from 0 on.
pub fn image(method: MethodId, words: &[(&str, &str)], weights: &[u32]) -> Arc<Image> {
    let config = ServiceConfig {
        settings: settings(method, words),
        client_affinity: false,
        udp: false,
        seed: 7,
        nonce: 7,
        capacity: 16,
        max_states: 100,
        idle_seconds: 300,
    };
    let mut builder = method.info().builder.expect("it has tables")(&config, None);
    let member = |(at, weight): (u16, &u32)| Member {
        backend: BackendId::of(at),
        name: format!("b{at}"),
        weight: *weight,
        role: Role::Serving,
    };
    let members: Vec<Member> = (0..).zip(weights).map(member).collect();
    builder.build(1, &members, 0).expect("it can be built").table
}

pub fn backend(number: u16) -> Backend {
    let next = NextHop { mac: [2, 0, 0, 1, 0, number as u8], source_mac: [2, 0, 0, 0, 0, 2] };
    Backend {
        address: Ipv4Addr::new(10, 8, 0, number as u8).into(),
        incarnation: 5,
        up: true,
        resets: false,
        hop: Some(Hop { next, ifindex: 0 }),
        tunnel: None,
        translation: None,
        segments: None,
    }
}

pub fn show<T: Target>(plane: &mut P4<T>, image: &Arc<Image>) -> Result<(), Error> {
    plane.show(SERVICE, image, image.header().flags())
}

/// A plane with this table.
pub fn filled<T: Target>(mut plane: P4<T>, image: &Arc<Image>, backends: u16) -> P4<T> {
    let vip: FlowKey = flow(0);
    let vip = VipKey { address: vip.dst, protocol: Protocol::Tcp, port: Some(80) };
    plane.set_service(vip, SERVICE).expect("there is room");
    for number in 0..backends {
        plane.set_backend(BackendId::of(number), Some(&backend(number))).expect("there is room");
    }
    show(&mut plane, image).expect("a switch can do it");
    plane
}

pub fn flow(number: u32) -> FlowKey {
    let [a, b, c, _] = (number << 8).to_be_bytes();
    let client = ([10, a, b, c], 4000).into();
    FlowKey::new(client, VIP.parse().expect("an address"), Protocol::Tcp)
}

pub fn frame(number: u32, flags: TcpFlags, echo: Option<u32>) -> Vec<u8> {
    let frame = Frame::new(flow(number)).tcp_flags(flags);
    match echo {
        Some(echo) => frame.timestamps(1, echo).build(),
        None => frame.build(),
    }
}
