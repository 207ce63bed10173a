//! `tracked`: every connection in a bounded LRU table, new ones placed by Maglev.

use crate::BuildError;
use crate::image::{Flags, Header, Image, Method, NO_BACKEND, SLOT_BACKEND};
use crate::lookup::{Decision, Question};
use crate::memory::Memory;
use crate::pool::Member;
use weir_lookup::HashKey;
use weir_placement::{Candidate, Maglev};
use weir_wire::hash::scale;
use weir_wire::{FlowKey, Reason};

/// An entry of the connection table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrackedFlow {
    /// Where the connection lives.
    pub backend: u16,
    /// Which use of that number, so that an entry does not outlive its backend.
    pub incarnation: u32,
}

pub(crate) fn steer(image: &Image, question: &Question, memory: &mut impl Memory) -> Decision {
    let client = image.header().flags.has(Flags::CLIENT);
    let flow =
        if client { FlowKey { src_port: 0, dst_port: 0, ..question.flow } } else { question.flow };
    if let Some(known) = memory.connection(&flow)
        && memory.incarnation(known.backend) == Some(known.incarnation)
        && !(question.starts && memory.is_down(known.backend))
    {
        return Decision { backend: Ok(known.backend), new: question.starts };
    }
    let slot = scale(question.hash as u32, image.header().slots);
    let backend = image.slots()[slot as usize] & SLOT_BACKEND;
    match memory.incarnation(backend) {
        None => Decision { backend: Err(Reason::NoBackend), new: question.starts },
        Some(incarnation) => {
            memory.track(flow, TrackedFlow { backend, incarnation });
            Decision { backend: Ok(backend), new: true }
        }
    }
}

/// The build face: a Maglev table; the connections are the data plane's own affair.
#[derive(Clone, Debug)]
pub struct TrackedBuilder {
    key: HashKey,
    size: u32,
    flags: Flags,
}

impl TrackedBuilder {
    /// Tables of `size` slots (prime), hashed under a key that should outlive restarts.
    pub fn new(key: HashKey, size: u32, client_affinity: bool) -> Self {
        Self { key, size, flags: Flags::default().with(Flags::CLIENT, client_affinity) }
    }

    /// Builds the table of a pool.
    ///
    /// # Errors
    /// [`BuildError::Maglev`] for a size that is not prime or too small.
    pub fn build(&self, generation: u64, members: &[Member]) -> Result<Image, BuildError> {
        let candidates: Vec<_> = members
            .iter()
            .map(|member| Candidate {
                name: &member.name,
                backend: member.backend,
                weight: member.effective_weight(),
            })
            .collect();
        let table = Maglev::build(self.size, &candidates)?;
        let slots = table.slots().iter().map(|slot| slot & SLOT_BACKEND).collect();
        let header = Header {
            key: self.key,
            chunks_a: 0,
            chunks_b: 0,
            slots: 0,
            flags: self.flags,
            fallback: NO_BACKEND,
            bits: 0,
            method: Method::Tracked,
            generation,
            digest: 0,
            states: 0,
        };
        Ok(Image::new(header, slots, None))
    }
}
