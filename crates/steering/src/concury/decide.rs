//! The lookup face of Concury; the twin of `bpf/steer_concury.h`.

use crate::image::{Flags, Image, NO_BACKEND, SLOT_BACKEND, SLOT_RESERVED};
use crate::lookup::{Decision, Question};
use crate::memory::{Event, EventKind, Memory};
use weir_wire::Reason;

/// Dcodes that a new flow tries after it fell on a reserved one. With a quarter of the Dcodes
/// reserved, which would be very many drained backends, all fail once in 65,536 times.
const SECOND_TRIES: usize = 8;

/// Backend of a new flow that fell on a draining backend's Dcode: further Dcodes from its hash.
pub fn place_again(image: &Image, hash: u64) -> u16 {
    let mut hash = hash;
    for _ in 0..SECOND_TRIES {
        hash = image.header().key.mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let entry = image.slots()[hash as usize & (image.slots().len() - 1)];
        if entry & SLOT_RESERVED == 0 {
            return entry;
        }
    }
    image.header().fallback
}

pub(crate) fn steer(image: &Image, question: &Question, memory: &mut impl Memory) -> Decision {
    let flags = image.header().flags;
    let entry = image.entry(question.hash);
    if flags.has(Flags::MARK) && !question.starts {
        memory.mark(question.hash);
    }
    let reserved = entry & SLOT_RESERVED != 0;
    let mut backend = entry & SLOT_BACKEND;
    let mut note = question.starts && flags.has(Flags::RECORD);
    let pending =
        (flags.has(Flags::PENDING) || reserved).then(|| memory.pending(&question.state)).flatten();
    if let Some(known) = pending {
        backend = known;
        note = false;
    } else if question.starts && reserved {
        if let Some(known) = memory.pinned(&question.state) {
            backend = known;
        } else {
            backend = place_again(image, question.hash);
            note = true;
        }
    }
    let drop = |reason| Decision { backend: Err(reason), new: question.starts };
    if backend == NO_BACKEND {
        return drop(Reason::NoBackend);
    }
    if note && !memory.note_pending(question.state, backend) {
        return drop(Reason::PendingFull);
    }
    let state = question.state;
    if question.starts {
        memory.report(Event { state, backend, kind: EventKind::Start });
    }
    if question.ends {
        memory.report(Event { state, backend, kind: EventKind::End });
    }
    Decision { backend: Ok(backend), new: question.starts }
}
