//! What the methods are measured against (docs/baselines.md).
//!
//! | method | remembers | breaks when the pool changes |
//! |---|---|---|
//! | [`Ecmp`] | nothing | nearly every flow |
//! | [`Consistent`] | nothing | the flows that the placement moves |
//! | [`Chain`] | one former owner for each bucket | flows whose bucket has moved twice |
//! | [`Digest`] | a digest of every flow | none, but for flows that share a digest |
//! | [`MultiLevel`] | a shorter digest of every flow | the same, more often |

mod chain;
mod conn_table;
mod consistent;
mod ecmp;
mod service;

pub use chain::{Bucket, Chain};
pub use conn_table::{ConnTable, Digest, Digests, MultiLevel};
pub use consistent::{Consistent, Footprint};
pub use ecmp::Ecmp;

use crate::method::{Misfit, Needs, Setting, Settings};
use crate::methods::jet::PLACEMENT_SETTING;
use crate::registry::MethodId;
use crate::rows::{ROWS_SETTING, rows_fit};

use weir_hash::{HashKey, Key};

/// Flows that are hashed together: their hashes stay in registers and the first-level cache.
const BURST: usize = 32;

/// Hashes flows and hands the hashes on in bursts, with the room for their answers.
#[inline(always)]
fn by_hash<K: Key>(
    key: &HashKey,
    flows: &[K],
    out: &mut [u16],
    mut answer: impl FnMut(&[u64], &mut [u16]),
) {
    assert_eq!(flows.len(), out.len(), "one answer per flow");
    let mut hashes = [0; BURST];
    for (flows, out) in flows.chunks(BURST).zip(out.chunks_mut(BURST)) {
        let hashes = &mut hashes[..flows.len()];
        hashes.iter_mut().zip(flows).for_each(|(hash, flow)| *hash = flow.hash(key));
        answer(hashes, out);
    }
}

/// [`Ecmp`], as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EcmpMethod;

impl crate::method::Method for EcmpMethod {
    const ID: MethodId = MethodId::Ecmp;
    const NAME: &'static str = "ecmp";
    const SUMMARY: &'static str = "a hash modulo the size of the pool";
    const NEEDS: Needs = Needs::NOTHING;
}

/// [`Consistent`], as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsistentMethod;

impl crate::method::Method for ConsistentMethod {
    const ID: MethodId = MethodId::Consistent;
    const NAME: &'static str = "consistent";
    const SUMMARY: &'static str = "consistent hashing without a memory";
    const NEEDS: Needs = Needs::NOTHING;
    const SETTINGS: &'static [Setting] = &[ROWS_SETTING, PLACEMENT_SETTING];

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        rows_fit(settings, backends)
    }
}

/// [`Chain`], as the registry lists it.
#[derive(Debug)]
pub struct ChainMethod;

impl crate::method::Method for ChainMethod {
    const ID: MethodId = MethodId::Chain;
    const NAME: &'static str = "chain";
    const SUMMARY: &'static str = "buckets that know one former owner";
    const NEEDS: Needs = Needs::NOTHING;
}

/// [`Digest`], as the registry lists it.
#[derive(Debug)]
pub struct DigestMethod;

impl crate::method::Method for DigestMethod {
    const ID: MethodId = MethodId::Digest;
    const NAME: &'static str = "digest";
    const SUMMARY: &'static str = "a digest of every flow over Maglev hashing";
    const NEEDS: Needs = Needs { connections: true, ..Needs::NOTHING };
}

/// [`MultiLevel`], as the registry lists it.
#[derive(Debug)]
pub struct MultiLevelMethod;

impl crate::method::Method for MultiLevelMethod {
    const ID: MethodId = MethodId::MultiDigest;
    const NAME: &'static str = "multi-digest";
    const SUMMARY: &'static str = "a short digest of every flow in several tables";
    const NEEDS: Needs = Needs { connections: true, ..Needs::NOTHING };
}
