//! The program before two programs (`bpf/hold.bpf.c`), and the word that says which of them decides.

use crate::error::{Context, Error};
use crate::kernel::front::found;
use crate::kernel::load::{XDP_HAS_FRAGS, missing, takes_frags};
use crate::kernel::monotonic;
use crate::kernel::program::{ENTRY_PREFIX, PREFIX, Program, pin_entry};
use crate::mapped::Mapped;
use crate::numbers::{HOLD_FORMER, HOLD_NEXT, HOLD_NOBODY, SIDE_FORMER, SIDE_NEXT};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};
use std::fs;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/hold.skel.rs"));
}

use skeleton::types;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hold.bpf.o"));
const ENTRY: &str = "weir_hold";
const SIDES: &str = "sides";
const WORDS: &str = ".data.hold";
/// Name of the pin of its words, beside the maps that are being filled.
pub(super) const WORDS_PIN: &str = "hold";

/// The words that packets and the control plane share.
pub(super) struct Words(Mapped);

impl Words {
    fn of(map: &MapHandle) -> Result<Self, Error> {
        Mapped::new(map, size_of::<types::hold>()).map(Self)
    }

    /// Those that are pinned in a directory; `None` if none are.
    pub fn open(directory: &Path) -> Result<Option<Self>, Error> {
        let pin = directory.join(WORDS_PIN);
        if !pin.exists() {
            return Ok(None);
        }
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        Self::of(&map).map(Some)
    }

    fn state(&self) -> &AtomicU32 {
        self.0.word32(offset_of!(types::hold, state))
    }

    /// Holds frames back for so long.
    pub fn begin(&self, time: Duration) {
        let until = monotonic() + time.as_nanos() as u64;
        self.0.word64(offset_of!(types::hold, until)).store(until, Ordering::SeqCst);
        self.state().store(HOLD_NOBODY, Ordering::SeqCst);
    }

    /// Has the new program decide from now on, if no frame has gone to the old one since [`begin`](Self::begin).
    /// Returns whether it does.
    pub fn commit(&self) -> bool {
        let (from, to) = (HOLD_NOBODY, HOLD_NEXT);
        self.state().compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Has the old program go on, unless the new one decides. Returns whether that does.
    pub fn end(&self) -> bool {
        let (from, to) = (HOLD_NOBODY, HOLD_FORMER);
        let found = self.state().compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        found == Err(HOLD_NEXT)
    }

    /// Frames that were dropped.
    pub fn held(&self) -> u64 {
        self.0.word64(offset_of!(types::hold, held)).load(Ordering::Relaxed)
    }
}

/// The program, loaded.
pub(super) struct Hold {
    entry: OwnedFd,
    sides: MapHandle,
    map: MapHandle,
    pub words: Words,
}

impl Hold {
    /// Loads it before these two; where there is no old one no packets come.
    pub fn load(former: Option<BorrowedFd<'_>>, next: &Program) -> Result<Self, Error> {
        let mut open = ObjectBuilder::default()
            .name("hold")
            .and_then(|builder| builder.open_memory(PROGRAM))
            .context(|| "open the program that holds frames back".into())?;
        // As those that it goes on in.
        if takes_frags() {
            open.progs_mut().for_each(|mut program| program.set_flags(XDP_HAS_FRAGS));
        }
        let object = open.load().context(|| "load the program that holds frames back".into())?;
        let entry = object.progs().find(|program| program.name() == ENTRY);
        let entry = entry.ok_or_else(|| missing("program", ENTRY))?;
        let entry = entry.as_fd().try_clone_to_owned();
        let entry = entry.context(|| "duplicate a program's descriptor".into())?;
        let (sides, map) = (found(&object, SIDES)?, found(&object, WORDS)?);
        let both = [(SIDE_FORMER, former), (SIDE_NEXT, Some(next.entry()))];
        for (side, program) in both {
            let Some(program) = program else { continue };
            let number = program.as_raw_fd().to_ne_bytes();
            sides
                .update(&side.to_ne_bytes(), &number, MapFlags::ANY)
                .context(|| "put a program behind the one that holds frames back".into())?;
        }
        let words = Words::of(&map)?;
        Ok(Self { entry, sides, map, words })
    }

    /// What links are given, after [`keep`](Self::keep).
    pub fn entry(&self) -> BorrowedFd<'_> {
        self.entry.as_fd()
    }

    fn number(&self) -> Result<u32, Error> {
        Ok(self.sides.info().context(|| format!("ask for map {SIDES}"))?.info.id)
    }

    /// Pins what it needs when this process is gone: what it goes on in among the parts of programs, with which that
    /// goes when no link has this one any more, and its words in the other directory.
    pub fn keep(&self, directory: &Path, made: &Path) -> Result<(), Error> {
        let number = self.number()?;
        let pin = directory.join(format!("{PREFIX}{number}"));
        if pin.exists() {
            // The number was another map's, which is gone.
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        let words = made.join(WORDS_PIN);
        for (map, pin) in [(&self.sides, &pin), (&self.map, &words)] {
            MapHandle::try_from(map)
                .and_then(|mut map| map.pin(pin))
                .context(|| format!("pin {}", pin.display()))?;
        }
        // Last, as with every program.
        pin_entry(self.entry(), number, directory)
    }

    /// Lets go of it: no link has it.
    pub fn forget(&self, directory: &Path) -> Result<(), Error> {
        let number = self.number()?;
        for pin in [PREFIX, ENTRY_PREFIX].map(|prefix| directory.join(format!("{prefix}{number}")))
        {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelPlane;
    use crate::run::{Verdict, run_frame};
    use weir_plane::Limits;

    /// Neighbours are found meanwhile, by frames with tags, too.
    #[test]
    fn only_ip_is_held_back_whatever_tags_it_has() {
        let [vlan, qinq, arp, ipv4, ipv6]: [u16; 5] = [0x8100, 0x88a8, 0x0806, 0x0800, 0x86dd];
        let limits = Limits { services: 2, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
        let (plane, _) = KernelPlane::open(None, &limits).expect("load (needs root)");
        let hold = Hold::load(None, &plane.program).expect("it loads");
        hold.words.begin(Duration::from_secs(3600));
        let cases: [(&[u16], Verdict); 7] = [
            (&[arp], Verdict::Pass),
            (&[vlan, arp], Verdict::Pass),
            (&[qinq, vlan, arp], Verdict::Pass),
            (&[ipv4], Verdict::Drop),
            (&[vlan, ipv6], Verdict::Drop),
            (&[qinq, vlan, ipv4], Verdict::Drop),
            (&[vlan, vlan, vlan, arp], Verdict::Drop),
        ];
        for (types, verdict) in cases {
            let mut frame = vec![2; 12];
            for (at, of) in types.iter().enumerate() {
                if at > 0 {
                    frame.extend([0, 1]);
                }
                frame.extend(of.to_be_bytes());
            }
            frame.resize(64, 0);
            let run = run_frame(hold.entry(), &frame).expect("it runs");
            assert_eq!(run.verdict, verdict, "{types:x?}");
        }
        assert_eq!(hold.words.held(), 4);
    }
}
