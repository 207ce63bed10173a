//! A program that plays a network card with rules, at the far end of a veth device: **emulated**.
//!
//! ```text
//! far end                                                              this end
//! frame ──> weir_card: rule of its flow ─┬─ hit ──> transmit queue n ──> receive queue n
//!                                        └─ miss ─> transmit queue 0 ──> receive queue 0
//! ```
//! Here rules are in force from the call on that enters them, and so many as there is memory for. Capacity, delays,
//! losses and refusals are those of the card that decides about them (`weir_offload::emulated`).

use crate::error::{Context, Error};
use crate::link::Interface;
use crate::xsk::XskPorts;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, PrintCallback, PrintLevel, TC_EGRESS, TcHook, set_print,
};
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use weir_host::rtnetlink;
use weir_wire::FlowKey;

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/card.skel.rs"));
}

/// Where the program stands among the filters of the far end.
const PRIORITY: u32 = 0x7763;
const HANDLE: u32 = 1;
/// Where namespaces with names are.
const NAMED: &str = "/run/netns";
/// The host's own.
const OF_THE_HOST: &str = "/proc/1/ns/net";

/// What became of frames on their way through the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CardCounts {
    /// Led by a rule.
    pub hits: u64,
    /// Of no rule, to the first queue.
    pub misses: u64,
    /// Dropped, as a socket had sent them, for which the kernel keeps a queue, and there was no memory for a copy without.
    pub dropped: u64,
}

/// The far end of a veth device, with the program.
#[derive(Clone, Debug)]
pub struct FarEnd {
    /// None: that of this process.
    namespace: Option<Arc<File>>,
    index: u32,
    program: Arc<OwnedFd>,
    /// The program's number.
    number: u32,
}

/// A card with rules, for as long as it lives. What a process leaves that is killed stays in force until the next one
/// takes its place, as a card's rules do.
pub struct VethCard {
    rules: MapHandle,
    counts: MapHandle,
    end: FarEnd,
    queues: u16,
}

impl Drop for VethCard {
    fn drop(&mut self) {
        // A far end that is gone has no program.
        let _ = self.end.inside(|| {
            let _quiet = Quiet::new();
            let mut hook = self.end.hook();
            if hook.query().ok() == Some(self.end.number) {
                let _ = hook.detach();
            }
        });
    }
}

impl VethCard {
    /// A card without rules at the far end of an interface of this thread's namespace. It has room for so many flows.
    ///
    /// # Errors
    /// If the interface is no veth device, the namespace of its far end is not found among those with names, the host's
    /// and this one, or the kernel does not take the program; this needs root.
    pub fn open(interface: &str, flows: u32) -> Result<Self, Error> {
        let near = Interface::find(interface)?.index;
        let what = || format!("play a card at the far end of {interface}");
        let found = rtnetlink::far_end(near).context(what)?;
        let far = found.ok_or_else(|| not_there("it is no veth device")).context(what)?;
        let namespace = far.namespace.map(namespace_of).transpose().context(what)?;
        let mut storage = MaybeUninit::uninit();
        let mut open = skeleton::CardSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the program that plays a card".into())?;
        let rules = &mut open.maps.card_rules;
        rules.set_max_entries(flows.max(1)).context(|| "size the map card_rules".into())?;
        let skel = open.load().context(|| "load the program that plays a card".into())?;
        let handle = |map: &libbpf_rs::Map<'_>| {
            MapHandle::try_from(map).context(|| format!("map {:?}", map.name()))
        };
        let (rules, counts) = (handle(&skel.maps.card_rules)?, handle(&skel.maps.card_counts)?);
        let program = skel.progs.weir_card.as_fd().try_clone_to_owned();
        let program = program.context(|| "duplicate a program's descriptor".into())?;
        let mut end = FarEnd { namespace, index: far.index, program: Arc::new(program), number: 0 };
        let (number, far_queues) = end.inside(|| end.attach()).context(what)??;
        end.number = number;
        let queues = XskPorts::queues(near)?.min(far_queues).min(u16::MAX.into()) as u16;
        Ok(Self { rules, counts, end, queues })
    }

    /// Queues that frames can be led to, the first included.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// The far end, to look whether the program still stands there.
    pub fn far_end(&self) -> &FarEnd {
        &self.end
    }

    /// From now on frames of this flow go to one of these queues, as it happens; both may be the same. A frame that is
    /// on its way through the program at this moment may still go where it would have gone before.
    ///
    /// # Errors
    /// [`Error::Bpf`]: there is no room, and nothing has changed.
    pub fn lead(&self, flow: &FlowKey, queues: [u16; 2]) -> Result<(), Error> {
        let key = key_of(flow);
        let [before, after] = queues.map(u64::from);
        let word = u64::from(check_of(&key)) | before << 32 | after << 48;
        let bytes = bytes_of(&key);
        let done = self.rules.update(&bytes, &word.to_ne_bytes(), MapFlags::ANY);
        done.context(|| format!("enter a rule for {flow}"))
    }

    /// From now on frames of this flow go to the first queue, but for those on their way through the program at this
    /// moment. That there was no rule is no error.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn forget(&self, flow: &FlowKey) -> Result<(), Error> {
        crate::reports::delete(&self.rules, &bytes_of(&key_of(flow)))
    }

    /// What became of frames since it was opened.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn counts(&self) -> Result<CardCounts, Error> {
        let count = |at: u32| -> Result<u64, Error> {
            let each = self.counts.lookup_percpu(&at.to_ne_bytes(), MapFlags::ANY);
            let each = each.context(|| "read the counts of a card".into())?.unwrap_or_default();
            let words = each.iter().filter_map(|value| <[u8; 8]>::try_from(&value[..]).ok());
            Ok(words.map(u64::from_ne_bytes).sum())
        };
        // As bpf/card.bpf.c numbers them.
        Ok(CardCounts { hits: count(0)?, misses: count(1)?, dropped: count(2)? })
    }
}

impl FarEnd {
    /// Whether the program still stands there: nobody has taken it away, or the device.
    pub fn has_card(&self) -> bool {
        let looked = self.inside(|| {
            let _quiet = Quiet::new();
            self.hook().query().ok()
        });
        looked.ok().flatten() == Some(self.number)
    }

    fn hook(&self) -> TcHook {
        let mut hook = TcHook::new(self.program.as_fd());
        hook.ifindex(self.index as i32).attach_point(TC_EGRESS);
        hook.priority(PRIORITY).handle(HANDLE).replace(true);
        hook
    }

    /// Puts the program at an interface of this thread's namespace, in the place of one that a process has left.
    /// Returns its number, and how many queues the interface sends by.
    fn attach(&self) -> Result<(u32, u32), Error> {
        let _quiet = Quiet::new();
        let what = || format!("attach the program that plays a card to interface {}", self.index);
        let mut hook = self.hook();
        hook.create().context(what)?;
        hook.attach().context(what)?;
        Ok((hook.query().context(what)?, XskPorts::transmit_queues(self.index)?))
    }

    /// Does something in its namespace.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some(namespace) = &self.namespace else { return Ok(work()) };
        let joined = thread::scope(|scope| {
            let inside = || {
                // SAFETY: a descriptor and a flag; what changes is the namespace of this thread alone, which ends here.
                if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(work())
            };
            scope.spawn(inside).join()
        });
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// While it lives libbpf says nothing: that there is a discipline already, or no filter, is no trouble.
struct Quiet(Option<(PrintLevel, PrintCallback)>);

impl Quiet {
    fn new() -> Self {
        Self(set_print(None))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_print(self.0.take());
    }
}

fn not_there(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// The namespace that this one knows by a number.
fn namespace_of(number: i32) -> io::Result<Arc<File>> {
    let named = fs::read_dir(NAMED).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in std::iter::once(PathBuf::from(OF_THE_HOST)).chain(named) {
        // One may go while it is looked at, and what is left of it is no namespace.
        let Ok(file) = File::open(&path) else { continue };
        if rtnetlink::number_of_namespace(file.as_fd()).ok().flatten() == Some(number) {
            return Ok(Arc::new(file));
        }
    }
    Err(not_there(&format!(
        "the other end is in a network namespace that is neither the host's nor one with a name in {NAMED} (ip netns \
         attach gives it one)"
    )))
}

/// A flow as the program has it: addresses and ports in the order of the wire, then the protocol.
type Key = [u64; 5];

fn key_of(flow: &FlowKey) -> Key {
    let half = |address: &[u8; 16], at| {
        address[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let ports = u32::from(flow.src_port.to_be()) | u32::from(flow.dst_port.to_be()) << 16;
    let last = u64::from(ports) | u64::from(flow.protocol.number()) << 32;
    [half(&flow.src, 0), half(&flow.src, 8), half(&flow.dst, 0), half(&flow.dst, 8), last]
}

fn bytes_of(key: &Key) -> Vec<u8> {
    key.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// As `check_of` of bpf/card.bpf.c.
fn check_of([src0, src1, dst0, dst1, last]: &Key) -> u32 {
    let mix = |state: u64, word: &u64| {
        let state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^ state >> 32
    };
    [last, src0, src1, dst0, dst1].into_iter().fold(0, mix) as u32
}
