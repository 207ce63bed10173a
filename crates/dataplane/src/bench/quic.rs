//! Services whose packets are led by their QUIC ids.

use super::tables::BACKENDS;
use super::{Method, PORT};
use crate::error::{Context, Error};
use crate::kernel::KernelPlane;
use std::io;
use weir_hash::HashKey;
use weir_plane::{IdRoutes, VipKey};
use weir_steering::{BackendId, Image, Member, Role, TrackedBuilder};
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs, QuicLbError};
use weir_wire::{Protocol, map_address};

/// Bytes of a server id.
const SERVER: u8 = 4;
/// Of a nonce, as the configuration has it if nothing is said; and that which makes one block with the
/// server id.
const NONCE: u8 = 8;
const NONCE_OF_A_BLOCK: u8 = 12;

fn server_id(backend: u16) -> [u8; SERVER as usize] {
    (u32::from(backend) * 0x9e37 + 7).to_be_bytes()
}

fn config(method: Method) -> Result<QuicLb, QuicLbError> {
    let nonce = if method == Method::QuicOnePass { NONCE_OF_A_BLOCK } else { NONCE };
    let key = (method != Method::QuicPlain).then_some([7; 16]);
    QuicLb::new(0, SERVER.into(), nonce.into(), key)
}

/// Makes the service, and so many ids of its servers, in turn.
pub(super) fn lead(plane: &mut KernelPlane, method: Method, ids: u32) -> Result<Vec<Id>, Error> {
    let service = method.service();
    let vip = VipKey {
        address: map_address(method.vip().into()),
        protocol: Protocol::Udp,
        port: Some(PORT),
    };
    let members: Vec<Member> = (0..BACKENDS)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect();
    let table: Image = TrackedBuilder::new(HashKey::from_seed(5), 65_537, false)
        .build(1, &members)
        .expect("65,537 is prime and large enough");
    plane.set_service(vip, service)?;
    plane.publish(service, &table)?;
    let refused = |error: QuicLbError| io::Error::other(error.to_string());
    let what = || "make QUIC ids".to_owned();
    let config = config(method).map_err(refused).context(what)?;
    let mut configs = QuicLbConfigs::default();
    configs.set(config.clone());
    let mut routes = IdRoutes::new(configs);
    for backend in 0..BACKENDS {
        let id = Id::new(&server_id(backend)).expect("it is short");
        routes.lead(0, id, BackendId::of(backend));
    }
    plane.set_id_routes(service, Some(&routes))?;
    let made = (0..ids).map(|n| {
        let mut nonce = vec![0; config.nonce_length()];
        nonce[..4].copy_from_slice(&n.to_le_bytes());
        let server = server_id((n % u32::from(BACKENDS)) as u16);
        config.encode(&server, &nonce, 0).map_err(refused).context(what)
    });
    made.collect()
}
