//! Load by backend on a programmable switch: from the registers that the control plane writes, in memory.

use super::keys::BITS;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::number::short;
use crate::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::Ipv4Addr;
use weir_plane::{Backend, Hop, Plane, VipKey};
use weir_plane_p4::{Model, P4};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Build, Codec, Concury, ConcuryConfig, Flags, Member, Role, ServiceId,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const BACKENDS: u16 = 128;
/// Those of weight 0.
const NONE: [u16; 2] = [31, 96];
const NAME: &str = "weir: the switch’s registers in memory";
const VIP: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

const fn chart() -> Chart {
    Chart {
        title: "",
        x: Axis { label: "backend", scale: Scale::Linear },
        y: Axis { label: "connections by weight over the average", scale: Scale::Linear },
    }
}

/// The two that get nothing.
const QUOTES: &[Quote] = &[Quote {
    chart: 0,
    name: "two backends of weight 0",
    like: NAME,
    says: Says::Value,
    points: &[(31.0, 0.0), (96.0, 0.0)],
    source: "Concury, section 6.4",
}];

const WHY: &str = "The scatter is that of a hash: of n connections to a backend, about the root of \
    n; and a weight’s share of 4,096 Dcodes is off by one Dcode at most. The paper states no \
    number of connections. Which two backends have weight 0 is ours to choose.";

pub static FIG_20: Figure = Figure {
    id: "concury-fig20",
    title: "Normalised load of 128 backends on the switch, connections as from a trace",
    paper: "Concury, Figure 20",
    measures: "One service of 128 backends with weights from 1 to 8, two of them 0. First packets \
        of connections of clients whose numbers of connections follow a Zipf law, by the program \
        p4/weir.p4 as its twin in Rust runs it on the registers that the control plane has \
        written: no switch is needed. `make p4-test` shows that a switch decides as this twin does.",
    charts: &[chart()],
    quotes: QUOTES,
    note: "the figure’s values are not in the text, which says that the load is evenly \
        distributed and that the two backends with 0 have weight 0. Its trace may not be handed on.",
    why: WHY,
    times: ["1 s", "3 s", "15 s"],
    run: |setup| run(setup, true),
};

pub static FIG_21: Figure = Figure {
    id: "concury-fig21",
    title: "Normalised load of 128 backends on the switch, synthetic connections",
    paper: "Concury, Figure 21",
    measures: "As concury-fig20, with clients and ports drawn evenly.",
    charts: &[chart()],
    quotes: QUOTES,
    note: FIG_20.note,
    why: WHY,
    times: ["1 s", "3 s", "15 s"],
    run: |setup| run(setup, false),
};

fn fault(error: impl std::fmt::Display) -> Error {
    Error::Fault(error.to_string())
}

/// A switch with one service, and the weights of its backends.
fn switch(rng: &mut ChaCha8Rng) -> Result<(P4<Model>, Vec<u32>)> {
    let mut plane = P4::new(Model::default()).map_err(fault)?;
    let weight = |backend: u16, rng: &mut ChaCha8Rng| match NONE.contains(&backend) {
        true => 0,
        false => rng.random_range(1..=8),
    };
    let weights: Vec<u32> = (0..BACKENDS).map(|backend| weight(backend, rng)).collect();
    let mut members = Vec::new();
    for (number, weight) in (0..BACKENDS).zip(&weights) {
        let backend = BackendId::of(number);
        let known = Backend {
            address: Ipv4Addr::from(0x0a08_0000 + u32::from(number)).into(),
            incarnation: 0,
            up: true,
            resets: false,
            hop: Some(Hop { next: Default::default(), ifindex: 0 }),
            tunnel: None,
            translation: None,
            segments: None,
        };
        plane.set_backend(backend, Some(&known)).map_err(fault)?;
        members.push(Member {
            backend,
            name: format!("b{number}"),
            weight: *weight,
            role: Role::Serving,
        });
    }
    let vip = VipKey { address: map_address(VIP.into()), protocol: Protocol::Tcp, port: Some(443) };
    plane.set_service(vip, ServiceId(0)).map_err(fault)?;
    let mut concury: Concury = Concury::new(ConcuryConfig {
        codec: Codec::Othello,
        bits: BITS,
        client_affinity: false,
        udp: false,
        mark: false,
        capacity: 1 << 16,
        max_states: 1 << 22,
        idle_seconds: 300,
        seed: rng.random(),
    });
    let table = Build::build(&mut concury, 1, &members, 0)?.table;
    plane.show(ServiceId(0), &table, Flags::default()).map_err(fault)?;
    Ok((plane, weights))
}

fn run(setup: &Setup<'_>, skewed: bool) -> Result<Measured> {
    let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
    let (mut plane, weights) = switch(&mut rng)?;
    let connections: u32 = setup.size.pick(50_000, 500_000, 4_000_000);
    (setup.progress)("first packets through the registers");
    let mut reports = 0;
    for n in 0..connections {
        let client: u32 = match skewed {
            // Client k of 2^20 with a probability like 1 / k.
            true => 2f64.powf(rng.random_range(0.0..20.0)) as u32,
            false => rng.random(),
        };
        let client = Ipv4Addr::from(0x0b00_0000 ^ client.wrapping_mul(0x9e37_79b1) >> 4);
        let flow = FlowKey {
            src: map_address(client.into()),
            dst: map_address(VIP.into()),
            src_port: rng.random_range(1024..=u16::MAX),
            dst_port: 443,
            protocol: Protocol::Tcp,
        };
        let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
        plane.target().process(&frame);
        // As a control plane does, before the ring is full.
        if n % 8_192 == 0 {
            plane.drain(&mut |_| reports += 1).map_err(fault)?;
        }
    }
    plane.drain(&mut |_| reports += 1).map_err(fault)?;
    let lanes = plane.lanes().map_err(fault)?;
    let flows = |backend: usize| lanes.get(backend).map_or(0, |lane| lane.flows);
    let total: u64 = (0..weights.len()).map(flows).sum();
    if total != u64::from(connections) || reports != connections {
        let fault = format!("{connections} connections, {total} counted, {reports} reported");
        return Err(Error::Fault(fault));
    }
    let average = total as f64 / f64::from(weights.iter().sum::<u32>());
    let load = |backend: usize| match weights[backend] {
        0 => flows(backend) as f64,
        weight => flows(backend) as f64 / f64::from(weight) / average,
    };
    let loads: Vec<f64> = (0..weights.len()).map(load).collect();
    let weighted = (0..weights.len()).filter(|backend| weights[*backend] > 0);
    let (low, high) = weighted.fold((f64::MAX, 0f64), |(low, high), backend| {
        (low.min(loads[backend]), high.max(loads[backend]))
    });
    let points = loads.iter().enumerate().map(|(backend, load)| (backend as f64, *load));
    let facts = vec![format!(
        "{connections} connections: {} to {} of the average by weight, {} at the two of weight 0.",
        short(low),
        short(high),
        NONE.iter().map(|backend| flows(usize::from(*backend))).sum::<u64>()
    )];
    Ok(Measured { series: vec![Series::of(0, NAME, points)], facts })
}
