//! Concury (docs/concury.md; Concury sections 5.2 to 5.6).

mod build;
mod codec;
mod config;
mod decide;
mod dip_array;
mod forwarder;
mod parcel;
mod states;
mod table;

pub use build::{BuildReport, Concury, SYN_SECONDS, State};
pub use codec::{Codec, Codes};
pub use config::ConcuryConfig;
pub use decide::{NEXT_TRY, SECOND_TRIES};
pub use forwarder::Pending;
pub use parcel::{NoParcel, Parcel, digest_of};
pub use table::Body;

use crate::method::{
    self, Build, InFleet, Misfit, Needs, Publish, ServiceConfig, Setting, Settings,
};
use crate::registry::{Image, MethodId};
use crate::table::slot_elements;
use std::sync::Arc;
use weir_lookup::Geometry;

/// The configuration's name for the bits of a Dcode.
pub const DCODE_BITS: &str = "dcode_bits";
/// Dcodes that each backend should have at least, so that shares come close to weights, and adding
/// one does not move every code.
pub const CODES_PER_BACKEND: usize = 8;

/// So many backends a service may have with Dcodes of so many bits.
const fn most_backends(bits: u32) -> usize {
    (1 << bits) / CODES_PER_BACKEND
}

/// The fewest bits of a Dcode with which a service may have so many backends; none: it cannot.
pub fn dcode_bits_for(backends: usize) -> Option<u32> {
    let (least, largest) = <Method as method::Method>::SETTINGS[0].range;
    (least..=largest).find(|&bits| most_backends(bits) >= backends)
}

/// Concury, as the registry lists it.
#[derive(Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Concury;
    const NAME: &'static str = "concury";
    const SUMMARY: &'static str = "a compact table from flows to codes, built from all states";
    const NEEDS: Needs =
        Needs { states: true, first_datagrams: true, connections: false, timestamps: false };
    const SETTINGS: &'static [Setting] = &[Setting::number(DCODE_BITS, (4, 15), 12)];
    const IN_FLEET: InFleet = InFleet::Shared;

    fn row_name(row: u32) -> String {
        format!("Dcode {row} of the DIP array")
    }

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        let bits = settings.get(DCODE_BITS);
        let allowed = most_backends(bits);
        if backends <= allowed {
            return Ok(());
        }
        let right = match dcode_bits_for(backends) {
            Some(needed) => format!("set dcode_bits = {needed}"),
            None => "split the service, or set method = \"tracked\"".to_owned(),
        };
        let wrong = format!("{backends} backends, and dcode_bits = {bits} allows {allowed}");
        Err(Misfit { setting: DCODE_BITS, wrong, right })
    }
}

impl Publish for Method {
    type Body = Body;

    fn most_elements(settings: &Settings, states: usize) -> usize {
        let bits = settings.get(DCODE_BITS);
        let Geometry { chunks_a, chunks_b, .. } = Geometry::largest_for_keys(bits, states);
        slot_elements(1 << bits) + chunks_a as usize + chunks_b as usize
    }

    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        let config = ConcuryConfig {
            codec: Codec::Othello,
            bits: config.settings.get(DCODE_BITS),
            client_affinity: config.client_affinity,
            udp: config.udp,
            mark: !config.udp,
            capacity: config.capacity,
            max_states: config.max_states,
            idle_seconds: config.idle_seconds,
            seed: config.nonce,
        };
        Box::new(match published {
            Some(image) => Concury::resume(config, image),
            None => Concury::new(config),
        })
    }
}
