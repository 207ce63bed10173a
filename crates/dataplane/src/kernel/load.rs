//! Loading the data plane, resuming one that is pinned, and removing it.

use super::by_id::ByIds;
use super::convert::{self, Converted};
use super::front;
use super::guard::GUARD_PREFIX;
use super::interfaces;
use super::lost::Lost;
use super::program::Program;
use super::resize::{Former, pin_of};
use super::size::{Sizer, size_maps};
use super::stamp::{Found, Layout, STAMP_PIN, Stamp};
use super::{KernelPlane, Maps, Sizes};
use crate::abi::types;
use crate::error::{Context, Error};
use crate::link::{self, LINK_PREFIX};
use crate::mapped::{Mapped, Parted};
use crate::memory::{self, Needed};
use crate::slots::Slots;
use crate::sources::Lists;
use crate::tables::{Tables, service_of};
use crate::vips::{NO_TABLE, VipTable};
use libbpf_rs::{
    ErrorKind, MapCore, MapHandle, MapType, Object, ObjectBuilder, OpenObject, libbpf_sys,
};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use weir_plane::{Limits, Listen};
use weir_steering::ELEMENT_BYTES;

/// The program as it was compiled with this crate.
pub(super) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o"));
/// The object's name, and that of its constants, which libbpf makes of it.
const OBJECT: &str = "weir_bpf";
const CONSTANTS: &str = "weir_bpf.rodata";
/// The program takes frames in several buffers (linux/bpf.h, BPF_F_XDP_HAS_FRAGS).
pub(super) const XDP_HAS_FRAGS: u32 = 1 << 5;

/// What opening a data plane found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// Whether it was there already, with tables, flows and counters of an earlier run.
    pub resumed: bool,
    /// How memory of another layout has become this program's, if there was any.
    pub converted: Option<Converted>,
    /// Why there is no [guard](KernelPlane::guard), if there is none.
    pub unguarded: Option<String>,
    /// Why frames that are lost on their way out are not counted, if they are not.
    pub uncounted: Option<String>,
}

impl KernelPlane {
    /// Loads the data plane, or resumes the one pinned in `directory` (in a BPF file system) with
    /// this program; one of another layout becomes one of this layout, if that can be (`convert`). Without a directory nothing is pinned, and all goes with the process.
    ///
    /// # Errors
    /// [`Error::Layout`] if a data plane of another layout is pinned there that cannot be taken over, which is
    /// left as it is; [`Error::Incompatible`] if a map there has a size that no limits explain; [`Error::Bpf`] with
    /// the verifier's words if the kernel refuses the program.
    pub fn open(directory: Option<&Path>, limits: &Limits) -> Result<(Self, OpenReport), Error> {
        Self::open_object(PROGRAM, directory, limits)
    }

    /// As [`open`](Self::open), with another build of the program, as an object file: with one more
    /// method, say.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::System`] if the object is not such a program.
    pub fn open_object(
        object: &[u8],
        directory: Option<&Path>,
        limits: &Limits,
    ) -> Result<(Self, OpenReport), Error> {
        Self::open_inspected(Some(object), directory, limits, |_| Ok(()))
            .map(|(plane, report, ())| (plane, report))
    }

    /// This build of the program, or the one given; `inspect` sees what was loaded.
    pub(crate) fn open_inspected<R>(
        object: Option<&[u8]>,
        directory: Option<&Path>,
        limits: &Limits,
        inspect: impl FnOnce(&Object) -> Result<R, Error>,
    ) -> Result<(Self, OpenReport, R), Error> {
        let mut report = OpenReport::default();
        let mut stamp = None;
        if let Some(directory) = directory {
            // Before anything is written.
            convert::recover(directory)?;
            stamp = match Stamp::look(directory)? {
                Found::Nothing => None,
                Found::Own(stamp) => Some(stamp.complete(directory)?),
                Found::Other(other) => {
                    let program = convert::Version::own(object.unwrap_or(PROGRAM));
                    let converted = convert::take_over(
                        directory,
                        program,
                        limits,
                        (&other, Layout::own().shapes),
                        None,
                    );
                    report.converted = converted?;
                    match Stamp::look(directory)? {
                        Found::Own(stamp) => Some(stamp),
                        _ => return Err(other.refuse("it has become another one meanwhile".into())),
                    }
                }
            };
            report.resumed = stamp.is_some();
            fs::create_dir_all(directory).context(|| format!("create {}", directory.display()))?;
            stamp = Some(stamp.map_or_else(|| Stamp::make(directory), Ok)?);
        }
        let place = |name: &str| directory.map(|directory| pin_of(directory, name));
        let loaded = Loading::of(object.unwrap_or(PROGRAM), &place);
        let (loaded, sizes) = loaded.load(limits)?;
        let mut plane = Self::of_object(&loaded, sizes, directory, stamp)?;
        plane.object = object.map(<[u8]>::to_vec);
        plane.former = directory.map(Former::left_behind).transpose()?.flatten();
        plane.arrive()?;
        plane.mend()?;
        plane.count_tunnels();
        plane.begin_to_watch()?;
        let generation = plane.control.word32(offset_of!(types::control, seen_generation));
        if generation.load(Ordering::Relaxed) == 0 {
            generation.store(1, Ordering::Relaxed);
        }
        if directory.is_some() {
            report.unguarded = plane.guard().err().map(|error| error.to_string());
            match Lost::count() {
                Ok(lost) => plane.lost = Some(lost),
                Err(error) => report.uncounted = Some(error.to_string()),
            }
        }
        let seen = inspect(&loaded)?;
        Ok((plane, report, seen))
    }

    /// The kernel's memory that one with these limits takes when it is made. Nothing is made.
    ///
    /// # Errors
    /// [`Error::Bpf`] if this program's own object cannot be read.
    pub fn memory_for(limits: &Limits) -> Result<Needed, Error> {
        Loading::of(PROGRAM, &|_| None).memory(limits)
    }

    pub(super) fn of_object(
        object: &Object,
        sizes: Sizes,
        directory: Option<&Path>,
        stamp: Option<Stamp>,
    ) -> Result<Self, Error> {
        let found = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            map.ok_or_else(|| missing("map", name))
        };
        let handle = |name: &str| {
            MapHandle::try_from(&found(name)?).context(|| format!("duplicate map {name}"))
        };
        let array = |name: &str| {
            let map = found(&format!(".data.{name}"))?;
            let bytes = map.value_size() as usize * map.max_entries() as usize;
            Ok::<_, Error>((map, bytes))
        };
        let mapped = |name: &str| array(name).and_then(|(map, bytes)| Mapped::new(&map, bytes));
        let parted = |name: &str| array(name).and_then(|(map, bytes)| Parted::new(&map, bytes));
        let shared = SHARED.iter().map(|name| Ok::<_, Error>((*name, handle(name)?)));
        let vips = VipTable::new(mapped("vips")?, sizes.vip_slots, mapped("control")?);
        let listed = vips.services();
        let services: Vec<_> = listed.iter().map(|(at, leads)| (*at, leads.table)).collect();
        let slots = Slots::new(parted("slots")?, mapped("stacks")?, sizes.partitions);
        let (headers, pool) = (mapped("tables")?, parted("pool")?);
        let tables = Tables::new(headers, pool, sizes.pool_elements, slots, &services);
        let lists = Lists::new(mapped("lists")?, parted("sources")?, sizes.source_words, &listed);
        // A service whose first table was never published cannot be told by its number.
        let mut keys: HashMap<_, Vec<Listen>> = HashMap::new();
        for (at, table) in services.into_iter().filter(|(_, table)| *table != NO_TABLE) {
            keys.entry(service_of(table)).or_default().push(at);
        }
        Ok(Self {
            keys,
            ids: ByIds::found(&listed),
            capped: super::caps::found(&listed),
            held_count: 0,
            vips,
            tables,
            lists,
            maps: Maps {
                lanes: handle("lanes")?,
                outcomes: handle("outcomes")?,
                vips: handle(".data.vips")?,
                control: handle(".data.control")?,
                pending: handle("pending")?,
                pinned: handle("pinned")?,
                events: handle("events")?,
                unreported: handle("unreported")?,
                connections: handle("connections")?,
                answers: handle("answers")?,
                devices: handle("devices")?,
                paths: handle("paths")?,
                quic_configs: handle("quic_configs")?,
                quic_servers: handle("quic_servers")?,
                quic_outcomes: handle("quic_outcomes")?,
                translations: handle("translations")?,
                returned: handle("returned")?,
                interfaces: interfaces::map_of(object)?,
            },
            program: Program::of(object)?,
            control: mapped("control")?,
            backends: mapped("backends")?,
            loads: mapped("loads")?,
            turns: mapped("turns")?,
            entered: mapped("entered")?,
            caps: mapped("caps")?,
            untold: mapped("untold")?,
            marks: parted("marks")?,
            strangers: parted("strangers")?,
            watched: parted("watched")?,
            seen: parted("seen")?,
            mappings: mapped("mappings")?,
            origins: mapped("origins")?,
            directory: directory.map(Path::to_owned),
            sizes,
            stamp,
            object: None,
            shared: shared.collect::<Result<_, _>>()?,
            kept: super::taken::kept(object)?,
            links: super::links::Links::default(),
            tracing: None,
            lost: None,
            hops: OnceLock::new(),
            former: None,
            front: None,
        })
    }

    /// Removes the pins of a data plane: it is detached and its maps are freed.
    ///
    /// # Errors
    /// [`Error::System`] if a pin cannot be removed.
    pub fn unload(directory: &Path) -> Result<(), Error> {
        let mut pins: Vec<_> = fs::read_dir(directory)
            .context(|| format!("read {}", directory.display()))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        // Links first: a program without its pins goes on until its link is gone. Then the stamp:
        // without it, what may be left by a call that is cut short is not resumed.
        pins.sort_by_key(|path| match path.file_name().map(|name| name.to_string_lossy()) {
            Some(name) if name.starts_with(LINK_PREFIX) => 0,
            Some(name) if name.starts_with(GUARD_PREFIX) => 1,
            Some(name) if name == STAMP_PIN => 2,
            _ => 3,
        });
        let process = front::Process::of(directory);
        for pin in pins {
            if pin.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LINK_PREFIX)) {
                link::end(&pin);
            }
            let removed = if pin.is_dir() { remove_set(&pin) } else { fs::remove_file(&pin) };
            removed.context(|| format!("remove {}", pin.display()))?;
        }
        fs::remove_dir(directory).context(|| format!("remove {}", directory.display()))?;
        if let Some(process) = process {
            process.wait();
        }
        Ok(())
    }
}

/// Removes a directory of pins.
pub(super) fn remove_set(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(directory)
}

/// A program to be loaded.
pub(super) struct Loading<'a> {
    /// The object file.
    pub object: &'a [u8],
    /// Where each map is pinned.
    pub place: &'a dyn Fn(&str) -> Option<PathBuf>,
    /// Where the twins of maps are pinned, if what is noted in these is noted in their twins, too.
    pub twins: Option<&'a dyn Fn(&str) -> PathBuf>,
    /// How many entries a map gets that is not pinned yet, or bytes, if it is an array, whatever the limits are.
    pub counts: &'a dyn Fn(&str) -> Option<u32>,
}

/// Maps that are not pinned, since what is in them is found out again, or is soon of no use.
pub(super) const SHARED: [&str; 7] =
    ["buckets", "fragments", "held", "held_flows", "quic_known", "source_buckets", "ways"];
/// Maps that have twins.
pub(super) const TWINS: [&str; 3] = ["pending", "connections", "answers"];

/// What the kernel keeps beside key and value of an entry, and for each bucket of a hash map (`struct htab_elem` and
/// `struct bucket` of kernel/bpf/hashtab.c).
const ENTRY_BYTES: u64 = 64;
const BUCKET_BYTES: u64 = 16;

impl<'a> Loading<'a> {
    /// With maps that are pinned in such places.
    pub fn of(object: &'a [u8], place: &'a dyn Fn(&str) -> Option<PathBuf>) -> Self {
        Self { object, place, twins: None, counts: &|_| None }
    }

    /// The names of the maps that are pinned.
    pub fn pinned(object: &[u8]) -> Result<BTreeSet<String>, Error> {
        let names = RefCell::new(BTreeSet::new());
        let place = |name: &str| {
            names.borrow_mut().insert(name.to_owned());
            None
        };
        let loading = Loading::of(object, &place);
        let mut open = loading.open()?;
        size_maps(&mut loading.sizer(&mut open), &Limits::default())?;
        Ok(names.take())
    }

    /// Loads it with maps of these sizes; those that are pinned keep theirs.
    pub fn load(&self, limits: &Limits) -> Result<(Object, Sizes), Error> {
        let mut open = self.open()?;
        let mut sizer = self.sizer(&mut open);
        let sizes = size_maps(&mut sizer, limits)?;
        if let Some(twin) = self.twins {
            for name in TWINS {
                let pin = twin(name);
                sizer
                    .map(&format!("{name}_twin"))?
                    .reuse_pinned_map(&pin)
                    .context(|| format!("open {}", pin.display()))?;
            }
        }
        let frags = takes_frags();
        let told = Told { twins: self.twins.is_some(), frags, by_interface: false };
        set_constants(&mut sizer, &sizes, told)?;
        drop(sizer);
        if frags {
            open.progs_mut().for_each(|mut program| program.set_flags(XDP_HAS_FRAGS));
        }
        match open.load() {
            Ok(loaded) => Ok((loaded, sizes)),
            Err(source) if source.kind() == ErrorKind::OutOfMemory => {
                let needed = self.memory(limits)?;
                Err(Error::NoMemory { needed, available: memory::available(), source })
            }
            Err(error) => Err(error).context(|| "load the XDP program".into()),
        }
    }

    /// What its maps take when they are made, as near as can be said without making them.
    fn memory(&self, limits: &Limits) -> Result<Needed, Error> {
        let mut open = self.open()?;
        let mut sizer = self.sizer(&mut open);
        let sizes = size_maps(&mut sizer, limits)?;
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())? as u64;
        let bytes = sizer.maps.values().map(|map| {
            let entries = u64::from(map.max_entries());
            let [key, value] =
                [map.key_size(), map.value_size()].map(|size| u64::from(size).next_multiple_of(8));
            match map.map_type() {
                MapType::Array => entries * value,
                MapType::PercpuArray => entries * value * cpus,
                MapType::LruHash => entries * (key + value + ENTRY_BYTES),
                // Entries are made as they are needed.
                MapType::Hash => entries.next_power_of_two() * BUCKET_BYTES,
                MapType::RingBuf => entries,
                _ => 0,
            }
        });
        let table_bytes = u64::from(sizes.pool_elements) * ELEMENT_BYTES as u64;
        Ok(Needed { bytes: bytes.sum(), table_bytes })
    }

    /// The maps that are pinned with other sizes than these. Loads nothing.
    pub fn differing(&self, limits: &Limits) -> Result<Vec<String>, Error> {
        let mut open = self.open()?;
        let mut sizer = self.sizer(&mut open);
        size_maps(&mut sizer, limits)?;
        Ok(sizer.kept)
    }

    pub fn open(&self) -> Result<OpenObject, Error> {
        ObjectBuilder::default()
            .name(OBJECT)
            .and_then(|builder| builder.open_memory(self.object))
            .context(|| "open the XDP program".into())
    }

    fn sizer<'b>(&'b self, open: &'b mut OpenObject) -> Sizer<'b> {
        let maps = open.maps_mut().map(|map| (map.name().to_string_lossy().into_owned(), map));
        let (place, counts) = (self.place, self.counts);
        Sizer { maps: maps.collect(), place, counts, kept: Vec::new() }
    }
}

/// Loads another build of the program over memory that is there: all its maps but its own ones.
pub(super) fn load_over(
    object: &[u8],
    memory: &HashMap<String, MapHandle>,
    own: &[&str],
    sizes: &Sizes,
    by_interface: bool,
) -> Result<Object, Error> {
    let loading = Loading::of(object, &|_| None);
    let mut open = loading.open()?;
    let mut sizer = loading.sizer(&mut open);
    for (name, map) in &mut sizer.maps {
        let section = name.strip_prefix(".data.");
        let Some(there) = memory.get(section.unwrap_or(name)) else {
            if name.contains(".rodata") || own.contains(&&name[..]) {
                continue;
            }
            return Err(missing("map", name));
        };
        let what = || format!("share map {name}");
        if section.is_some() {
            // So that the memory that libbpf sees it by has its size, too.
            map.set_value_size(there.value_size()).context(what)?;
        }
        map.reuse_fd(there.as_fd()).context(what)?;
    }
    let frags = takes_frags();
    set_constants(&mut sizer, sizes, Told { twins: false, frags, by_interface })?;
    drop(sizer);
    if frags {
        open.progs_mut().for_each(|mut program| program.set_flags(XDP_HAS_FRAGS));
    }
    open.load().context(|| "load the XDP program".into())
}

pub(super) fn missing(what: &str, name: &str) -> Error {
    let source = io::Error::other(format!("there is no {what} {name} in it"));
    Error::System { what: "open the XDP program".into(), source }
}

/// What the program is told beside sizes.
#[derive(Clone, Copy)]
struct Told {
    /// What is noted is noted in twins, too.
    twins: bool,
    /// Frames come in several buffers.
    frags: bool,
    /// Frames are counted by interface, where the build leaves that open.
    by_interface: bool,
}

/// Sets what the verifier folds into the program.
fn set_constants(sizer: &mut Sizer<'_>, sizes: &Sizes, told: Told) -> Result<(), Error> {
    let constants = sizer.map(CONSTANTS)?.initial_value_mut().unwrap_or_default();
    if constants.len() < offset_of!(types::rodata, has_frags) + size_of::<u32>() {
        return Err(missing("room for the sizes in", CONSTANTS));
    }
    macro_rules! set {
        ($($field:ident = $value:expr;)*) => {$(
            let value: u32 = $value;
            constants[offset_of!(types::rodata, $field)..][..4]
                .copy_from_slice(&value.to_ne_bytes());
        )*};
    }
    set! {
        vip_slots = sizes.vip_slots;
        vip_shift = 64 - sizes.vip_slots.trailing_zeros();
        table_count = sizes.services * 2;
        pool_bytes = sizes.pool_elements * ELEMENT_BYTES as u32;
        backend_count = sizes.backends;
        mark_words = sizes.mark_words;
        stranger_words = sizes.stranger_words;
        seen_lines = sizes.seen_lines;
        partition_count = sizes.partitions;
        source_count = sizes.source_words;
        untold_room = sizes.untold_room;
        mapping_count = sizes.mappings;
        known_ids = sizes.known_ids;
        twins = told.twins.into();
        has_frags = told.frags.into();
        by_interface = told.by_interface.into();
    }
    Ok(())
}

/// Whether the kernel has frames in several buffers (Linux 5.18): it takes a program that does.
pub(super) fn takes_frags() -> bool {
    let code = |code: u32| libbpf_sys::bpf_insn { code: code as u8, ..Default::default() };
    // r0 = 0 (XDP_ABORTED); exit
    let program = [
        code(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K),
        code(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT),
    ];
    let options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        prog_flags: XDP_HAS_FRAGS,
        ..Default::default()
    };
    // SAFETY: name and licence are NUL-terminated; instructions, whose number is right, and options
    // outlive the call.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"frags".as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            (&raw const options).cast_mut(),
        )
    };
    if fd < 0 {
        return false;
    }
    // SAFETY: a fresh descriptor that nobody else owns, and nobody needs.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    true
}
