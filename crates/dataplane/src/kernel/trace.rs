//! Looking at packets: the program that notes what it does takes the place of the usual one.
//!
//! Both are made of the same sources over the same memory, so a packet goes the same way by either;
//! `bpf/trace.h` says what the other one does besides. It notes nothing beyond a time that is put off
//! again and again, so that whoever dies looking leaves nothing but its cost behind, and not even
//! that once a control plane is there again.

use super::KernelPlane;
use super::interfaces::BY_INTERFACE;
use super::load::{PROGRAM, load_over, missing};
use super::program::{ENTRY_PREFIX, Program};
use super::resize::pin_of;
use crate::abi::Plain;
use crate::error::{Context, Error};
use crate::numbers::TRACE_NONE;
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBufferBuilder};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};
use weir_plane::{Fate, Frame, Sample, SampledFlow, Samples, TraceCounts, Wanted};
use weir_steering::{BackendId, ServiceId};
use weir_wire::{Protocol, Reason, unmap_address};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/traced.skel.rs"));
}

use skeleton::types;

// SAFETY: generated from structures of integers and arrays of integers, for which bpf/trace.h makes
// padding an error.
unsafe impl Plain for types::sample {}
// SAFETY: as above.
unsafe impl Plain for types::wanted {}
// SAFETY: as above.
unsafe impl Plain for types::trace_counts {}

/// The program that notes what it does.
pub const TRACED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/traced.bpf.o"));

/// The rules of its source, by their numbers.
const RULES: &[&str] = include!(concat!(env!("OUT_DIR"), "/rules.rs"));

/// For so long after it was last said to go on, the program takes notes.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the same connections are drawn to be followed.
const DRAWN_FOR: Duration = Duration::from_secs(3600);

const XDP_ABORTED: u32 = 0;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// The maps that it has for itself; parts and twins are made anew with every program.
const OWN: [&str; 12] = [
    // Of the memory, where that counts by interface.
    "interfaces",
    "being_translated",
    "followed",
    "sampled",
    "wanted",
    "trace_counts",
    "samples",
    ".data.trails",
    "parts",
    "pending_twin",
    "connections_twin",
    "answers_twin",
];

/// The program that takes notes, loaded.
pub(crate) struct TraceProgram {
    /// The number of the usual program over the same memory.
    of: u32,
    program: Program,
    wanted: MapHandle,
    counts: MapHandle,
    samples: MapHandle,
}

/// A look at packets that is under way.
pub(super) struct Tracing {
    /// The usual program.
    plain: Program,
    /// What is wanted, for the program.
    map: MapHandle,
    wanted: types::wanted,
    /// When the flows that are followed were drawn.
    drawn: Instant,
    counts: MapHandle,
}

impl KernelPlane {
    /// What loads the program that takes notes, which takes the verifier a second or more: on another
    /// thread than this plane's. It is for this plane as it is now.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn trace_program(
        &self,
    ) -> Result<impl FnOnce() -> Result<TraceProgram, Error> + Send + 'static, Error> {
        if self.directory.is_none() {
            return Err(io::Error::other("a data plane without pins")).context(|| "trace".into());
        }
        let by_interface = self.maps.interfaces.is_some();
        let usual = [PROGRAM, BY_INTERFACE];
        let other = self.object.as_deref().is_some_and(|object| !usual.contains(&object));
        if other || self.former.is_some() {
            let source =
                io::Error::other("its program is another build, or its memory is changing");
            return Err(source).context(|| "trace".into());
        }
        let memory = self.pinned_memory()?;
        let (sizes, of) = (self.sizes, self.plain().number()?);
        Ok(move || {
            let loaded = load_over(TRACED, &memory, &OWN, &sizes, by_interface)?;
            let map = |name: &str| {
                let map = loaded.maps().find(|map| map.name() == name);
                let map = map.ok_or_else(|| missing("map", name))?;
                MapHandle::try_from(&map).context(|| format!("duplicate map {name}"))
            };
            let (wanted, counts, samples) = (map("wanted")?, map("trace_counts")?, map("samples")?);
            Ok(TraceProgram { of, program: Program::of(&loaded)?, wanted, counts, samples })
        })
    }

    /// All maps of this memory, by the names of their pins, those that are not pinned included.
    pub(super) fn pinned_memory(&self) -> Result<HashMap<String, MapHandle>, Error> {
        let mut memory = HashMap::new();
        let Some(directory) = &self.directory else { return Ok(memory) };
        let entries =
            fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            // What is no map, as a link or a program, is none of the program's.
            if name.starts_with(ENTRY_PREFIX) {
                continue;
            }
            if let Ok(map) = MapHandle::from_pinned_path(pin_of(directory, &name)) {
                memory.insert(name, map);
            }
        }
        for (name, map) in &self.shared {
            let map = MapHandle::try_from(map).context(|| format!("duplicate map {name}"))?;
            memory.insert((*name).to_owned(), map);
        }
        Ok(memory)
    }

    /// What decides packets, looked at or not.
    pub(super) fn plain_program(&self) -> BorrowedFd<'_> {
        self.plain().entry()
    }

    /// The usual program, while another one has its place.
    pub(super) fn beside_trace(&mut self) -> Option<&mut Program> {
        self.tracing.as_mut().map(|tracing| &mut tracing.plain)
    }

    /// The usual program.
    fn plain(&self) -> &Program {
        self.tracing.as_ref().map_or(&self.program, |tracing| &tracing.plain)
    }

    /// Puts the program that takes notes in the place of the usual one, without missing a packet.
    ///
    /// # Errors
    /// What the kernel says, or that the program was loaded for other memory. All is as it was then.
    pub(crate) fn trace(
        &mut self,
        program: TraceProgram,
        wanted: &Wanted,
    ) -> Result<Box<dyn Samples>, Error> {
        self.end_trace()?;
        if program.of != self.program.number()? || self.former.is_some() {
            let source = io::Error::other("its memory has changed meanwhile; try again");
            return Err(source).context(|| "trace".into());
        }
        let TraceProgram { mut program, wanted: map, counts, samples, .. } = program;
        program.hand_on(self.program.next()?)?;
        let mut tracing = Tracing {
            plain: program,
            map,
            wanted: for_program(wanted),
            drawn: Instant::now(),
            counts,
        };
        tracing.go_on()?;
        std::mem::swap(&mut self.program, &mut tracing.plain);
        self.tracing = Some(tracing);
        let replaced = self.put_in_links();
        if replaced.is_err() {
            // Some links may have it; whichever has, packets go the same way.
            let _ = self.end_trace();
        }
        replaced.map(|()| Box::new(Ring { map: samples }) as Box<dyn Samples>)
    }

    /// Says that somebody still looks. `None` if nobody does, as the program was replaced.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(crate) fn keep_tracing(&mut self) -> Result<Option<TraceCounts>, Error> {
        let Some(tracing) = &mut self.tracing else { return Ok(None) };
        tracing.draw_anew();
        tracing.go_on()?;
        tracing.counts().map(Some)
    }

    /// Puts the usual program back. Without a trace it does nothing.
    ///
    /// # Errors
    /// What the kernel says; it is to be called again then.
    pub(crate) fn end_trace(&mut self) -> Result<(), Error> {
        let Some(mut tracing) = self.tracing.take() else { return Ok(()) };
        std::mem::swap(&mut self.program, &mut tracing.plain);
        let replaced = self.put_in_links();
        if replaced.is_err() {
            std::mem::swap(&mut self.program, &mut tracing.plain);
            self.tracing = Some(tracing);
        }
        replaced
    }

    /// Puts the program into all links; no packet follows another one when it returns.
    fn put_in_links(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        self.program.keep(directory)?;
        let replaced = self.links.replace_all(directory, self.link_entry());
        self.went_past_front();
        replaced?;
        self.grace()?;
        self.program.forget_others(directory)
    }
}

impl Tracing {
    /// Now and then other connections are followed: those of which the following has begun stay among them
    /// for one more time.
    fn draw_anew(&mut self) {
        if self.drawn.elapsed() >= DRAWN_FOR {
            self.drawn = Instant::now();
            self.wanted.salt_before = std::mem::replace(&mut self.wanted.salt, rand::random());
        }
    }

    fn go_on(&self) -> Result<(), Error> {
        let mut wanted = self.wanted;
        wanted.until = monotonic() + PATIENCE.as_nanos() as u64;
        let key = 0u32.to_ne_bytes();
        self.map
            .update(&key, wanted.bytes(), MapFlags::ANY)
            .context(|| "say what is looked at".into())
    }

    fn counts(&self) -> Result<TraceCounts, Error> {
        let key = 0u32.to_ne_bytes();
        let each = self.counts.lookup_percpu(&key, MapFlags::ANY);
        let each = each.context(|| "count what was looked at".into())?.unwrap_or_default();
        let sum = |mut all: TraceCounts, bytes: &Vec<u8>| {
            let one = types::trace_counts::from_slice(bytes);
            all.seen += one.seen;
            all.matched += one.matched;
            all.lost += one.lost;
            all.followed += one.followed;
            all.checked += one.checked;
            all.moved += one.moved;
            all.orphaned += one.orphaned;
            all
        };
        Ok(each.iter().fold(TraceCounts::default(), sum))
    }
}

/// Nanoseconds of the clock that the program reads.
pub(super) fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn for_program(wanted: &Wanted) -> types::wanted {
    let (address, mask) = wanted.network.map_or_else(Default::default, |one| one.words());
    let verdicts = match wanted.fate {
        _ if wanted.untold => 0,
        None => u32::MAX,
        Some(Fate::Sent) => 1 << XDP_TX | 1 << XDP_REDIRECT,
        Some(Fate::Passed) => 1 << XDP_PASS,
        Some(Fate::Dropped) => 1 << XDP_DROP | 1 << XDP_ABORTED,
    };
    types::wanted {
        until: 0,
        address,
        mask,
        port: wanted.port.map_or(0, |port| u16::from_ne_bytes(port.to_be_bytes()).into()),
        protocol: wanted.protocol.map_or(0, |protocol| protocol.number().into()),
        service: wanted.service.map_or(TRACE_NONE, |service| service.0),
        backend: wanted.backend.map_or(TRACE_NONE, |backend| backend.index() as u32),
        reason: wanted.reason.map_or(TRACE_NONE, |reason| reason.code().into()),
        verdicts,
        every: wanted.every,
        follow: wanted.follow,
        salt: rand::random(),
        salt_before: rand::random(),
    }
}

/// The ring of samples.
struct Ring {
    map: MapHandle,
}

impl Samples for Ring {
    fn follow(
        self: Box<Self>,
        patience: Duration,
        take: &mut dyn FnMut(Option<Sample>) -> bool,
    ) -> io::Result<()> {
        let found: Rc<RefCell<Vec<Sample>>> = Rc::default();
        let sink = Rc::clone(&found);
        let mut builder = RingBufferBuilder::new();
        let odd = |error: libbpf_rs::Error| io::Error::other(error.to_string());
        let offset = clock_offset();
        builder
            .add(&self.map, move |bytes| {
                sink.borrow_mut().extend(decode(bytes, offset));
                0
            })
            .map_err(odd)?;
        let ring = builder.build().map_err(odd)?;
        loop {
            // What comes while these are taken is for the next turn: the ring is bounded.
            match ring.poll(patience) {
                Ok(()) => {}
                Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
                Err(error) => return Err(odd(error)),
            }
            let batch = std::mem::take(&mut *found.borrow_mut());
            let idle = batch.is_empty();
            for sample in batch {
                if !take(Some(sample)) {
                    return Ok(());
                }
            }
            if idle && !take(None) {
                return Ok(());
            }
        }
    }
}

/// What the clock of the program was at the beginning of the calendar's.
fn clock_offset() -> SystemTime {
    let (now, since) = (SystemTime::now(), monotonic());
    now.checked_sub(Duration::from_nanos(since)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn decode(bytes: &[u8], offset: SystemTime) -> Option<Sample> {
    if bytes.len() < size_of::<types::sample>() {
        return None;
    }
    let raw = types::sample::from_slice(bytes);
    let address = |words: [u64; 2]| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        unmap_address(&bytes)
    };
    let port = |word: u32| u16::from_be((word & 0xffff) as u16);
    let flow = Protocol::from_number(raw.protocol).map(|protocol| SampledFlow {
        source: (address(raw.src), port(raw.ports)),
        destination: (address(raw.dst), port(raw.ports >> 16)),
        protocol,
        tcp_flags: raw.tcp_flags,
    });
    let frame = |length: u32, head: &[u8], kept: u16| Frame {
        length,
        head: head[..usize::from(kept).min(head.len())].to_vec(),
    };
    let met = raw.rule_count as usize;
    // The newest ones stand in a ring.
    let rules =
        (met.saturating_sub(raw.rules.len())..met).map(|at| raw.rules[at % raw.rules.len()]);
    let fate = match raw.verdict {
        XDP_TX | XDP_REDIRECT => Fate::Sent,
        XDP_PASS => Fate::Passed,
        _ => Fate::Dropped,
    };
    Some(Sample {
        time: offset + Duration::from_nanos(raw.time),
        ifindex: raw.ifindex,
        queue: raw.queue,
        flow,
        service: (raw.service != TRACE_NONE).then_some(ServiceId(raw.service)),
        backend: u16::try_from(raw.backend).ok().and_then(BackendId::new),
        fate,
        reason: u8::try_from(raw.reason).ok().and_then(Reason::from_code),
        way: (fate == Fate::Sent && raw.way != 0 && raw.way != raw.ifindex).then_some(raw.way),
        rules: rules.filter_map(|rule| RULES.get(usize::from(rule)).copied()).collect(),
        more_rules: met > raw.rules.len(),
        before: frame(raw.length, &raw.before, raw.kept),
        after: (fate == Fate::Sent).then(|| frame(raw.length_after, &raw.after, raw.kept_after)),
    })
}
