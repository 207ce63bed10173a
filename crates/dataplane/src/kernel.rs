//! The data plane in the kernel: loading, pinning, publishing, counting.

use crate::abi::{
    BackendEntry, FlowBytes, Lane, OWN_MACS, OutcomeCounts, Plain, StateBytes, TrackedBytes,
};
use crate::error::{Context, Error};
use crate::link::{self, Interface, XdpMode};
use crate::mapped::Mapped;
use crate::reports::{self, Reports};
use crate::vips::VipTable;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use weir_steering::{
    Counters, ELEMENT_BYTES, Flags, Image, LaneCounters, ServiceState, TrackedFlow, VipKey,
    seen_tag,
};
use weir_wire::{FlowKey, Reason};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/weir.skel.rs"));
}

/// Offsets in `struct control`.
const CONTROL_BYTES: usize = OWN_MACS * 8 + 24;
const MARK_SIDE: usize = OWN_MACS * 8;
const SEEN_GENERATION: usize = MARK_SIDE + 4;
const ANY_PORT: usize = MARK_SIDE + 8;
const UNRECORDED: usize = MARK_SIDE + 16;

/// Offset of the flags in a table's header.
const FLAGS_OFFSET: usize = 52;

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// Sizes that are set when the data plane is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Services.
    pub services: u32,
    /// Backends of all services together, below 32,767.
    pub backends: u32,
    /// Entries of the pending table.
    pub pending_flows: u32,
    /// Entries of the *unreported* map.
    pub unreported_flows: u32,
    /// Entries of the connection table of `tracked`.
    pub tracked_flows: u32,
    /// UDP flows that are told from new ones.
    pub udp_flows: u32,
    /// Bytes of the event ring, a power of two.
    pub event_ring_bytes: u32,
    /// Bits of each of the two activity bitmaps.
    pub mark_bits: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            services: 256,
            backends: 4096,
            pending_flows: 65_536,
            unreported_flows: 262_144,
            tracked_flows: 262_144,
            udp_flows: 65_536,
            event_ring_bytes: 16 << 20,
            mark_bits: 8 << 20,
        }
    }
}

/// What opening a data plane found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// It was there already: tables, flows and counters of an earlier run are in it.
    pub resumed: bool,
    /// Limits that differ from the configuration, because they were set by an earlier run.
    pub kept_limits: Vec<String>,
}

/// How an interface was attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Which.
    pub interface: Interface,
    /// In generic mode, which is slower.
    pub generic: bool,
}

/// What publishing took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishReport {
    /// Bytes of the table's map.
    pub bytes: usize,
}

/// The data plane of one instance.
pub struct KernelPlane {
    maps: Maps,
    program: OwnedFd,
    pass: OwnedFd,
    vips: VipTable,
    control: Mapped,
    backends: Mapped,
    marks: Mapped,
    seen: Mapped,
    directory: Option<PathBuf>,
    sizes: Sizes,
}

struct Maps {
    tables: MapHandle,
    lanes: MapHandle,
    outcomes: MapHandle,
    pending: MapHandle,
    pinned: MapHandle,
    events: MapHandle,
    unreported: MapHandle,
    connections: MapHandle,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    services: u32,
    backends: u32,
    vip_slots: u32,
    mark_words: u32,
    seen_lines: u32,
}

/// Waits until every packet whose processing had begun is decided: an RCU grace period, which is
/// what MEMBARRIER_CMD_GLOBAL is documented to wait for.
///
/// # Errors
/// [`Error::System`] on kernels without membarrier.
pub fn grace() -> Result<(), Error> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: a system call without pointers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        .context(|| "wait for a grace period (membarrier)".into())
}

impl KernelPlane {
    /// Loads the data plane, or resumes the one pinned in `directory` (in a BPF file system) with
    /// this program. Without a directory nothing is pinned, and all goes with the process.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if another version's maps are pinned there; [`Error::Bpf`] with the
    /// verifier's words if the kernel refuses the program.
    pub fn open(directory: Option<&Path>, limits: &Limits) -> Result<(Self, OpenReport), Error> {
        let mut report = OpenReport::default();
        if let Some(directory) = directory {
            report.resumed = directory.join("control").exists();
            fs::create_dir_all(directory).context(|| format!("create {}", directory.display()))?;
        }
        let mut storage = MaybeUninit::uninit();
        let mut open = skeleton::WeirSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the XDP program".into())?;
        let mut sizer = Sizer { directory, report: &mut report };
        let sizes = size_maps(&mut open.maps, limits, &mut sizer)?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        if let Some(rodata) = rodata {
            rodata.vip_slots = sizes.vip_slots;
            rodata.mark_words = sizes.mark_words;
            rodata.seen_lines = sizes.seen_lines;
        }
        let skel = open.load().context(|| "load the XDP program".into())?;
        let plane = Self::of_skeleton(&skel, sizes, directory)?;
        if !report.resumed {
            plane.control.word32(SEEN_GENERATION).store(1, Ordering::Relaxed);
        }
        Ok((plane, report))
    }

    fn of_skeleton(
        skel: &skeleton::WeirSkel<'_>,
        sizes: Sizes,
        directory: Option<&Path>,
    ) -> Result<Self, Error> {
        let handle = |map: &libbpf_rs::Map<'_>| {
            MapHandle::try_from(map).context(|| format!("map {:?}", map.name()))
        };
        let maps = &skel.maps;
        let mapped = |map: &libbpf_rs::Map<'_>| {
            let bytes = map.value_size() as usize * map.max_entries() as usize;
            Mapped::new(&map.as_fd(), bytes)
        };
        let owned = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().context(|| "duplicate a program's descriptor".into())
        };
        Ok(Self {
            maps: Maps {
                tables: handle(&maps.tables)?,
                lanes: handle(&maps.lanes)?,
                outcomes: handle(&maps.outcomes)?,
                pending: handle(&maps.pending)?,
                pinned: handle(&maps.pinned)?,
                events: handle(&maps.events)?,
                unreported: handle(&maps.unreported)?,
                connections: handle(&maps.connections)?,
            },
            program: owned(skel.progs.weir_balance.as_fd())?,
            pass: owned(skel.progs.weir_pass.as_fd())?,
            vips: VipTable::new(mapped(&maps.vips)?, sizes.vip_slots),
            control: Mapped::new(&maps.control.as_fd(), CONTROL_BYTES)?,
            backends: mapped(&maps.backends)?,
            marks: mapped(&maps.marks)?,
            seen: mapped(&maps.seen)?,
            directory: directory.map(Path::to_owned),
            sizes,
        })
    }

    /// The program, for test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// A program that passes every frame, for the far end of a veth.
    pub fn pass_program(&self) -> BorrowedFd<'_> {
        self.pass.as_fd()
    }

    /// Attaches to interfaces; those that are attached already get this program in place of the
    /// one they have, without missing a packet. Frames to other hosts are left to the kernel.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::NoInterface`], or what the kernel says.
    pub fn attach(&self, names: &[String], mode: XdpMode) -> Result<Vec<Attached>, Error> {
        let directory = self.directory.as_deref().unwrap_or(Path::new(""));
        let found: Vec<Interface> =
            names.iter().map(|name| Interface::find(name)).collect::<Result<_, _>>()?;
        for slot in 0..OWN_MACS {
            let mac = found.get(slot).map_or(0, |interface| {
                let [a, b, c, d, e, f] = interface.mac;
                u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
            });
            // With more interfaces than the program compares, it accepts any destination.
            let mac = if found.len() > OWN_MACS { 0 } else { mac };
            self.control.word64(slot * 8).store(mac, Ordering::Relaxed);
        }
        found
            .into_iter()
            .map(|interface| {
                let pin = directory.join(format!("link-{}", interface.name));
                let generic = link::attach(self.program(), &interface, mode, &pin)?;
                Ok(Attached { interface, generic })
            })
            .collect()
    }

    /// Removes the pins of a data plane: it is detached and its maps are freed.
    ///
    /// # Errors
    /// [`Error::System`] if a pin cannot be removed.
    pub fn unload(directory: &Path) -> Result<(), Error> {
        // Links first: a program without its pins goes on until its link is gone.
        let mut pins: Vec<_> = fs::read_dir(directory)
            .context(|| format!("read {}", directory.display()))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        pins.sort_by_key(|path| {
            !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("link-"))
        });
        for pin in pins {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        fs::remove_dir(directory).context(|| format!("remove {}", directory.display()))
    }

    /// Adds a service, or gives it another number.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::ServicesFull`].
    pub fn set_service(&mut self, key: &VipKey, service: u32) -> Result<(), Error> {
        self.check_service(service)?;
        self.vips.insert(key, service)?;
        self.set_any_port();
        Ok(())
    }

    /// Removes a service; its packets go to the kernel from now on.
    pub fn remove_service(&mut self, key: &VipKey) {
        self.vips.remove(key);
        self.set_any_port();
    }

    /// The services in the data plane.
    pub fn services(&self) -> Vec<(VipKey, u32)> {
        self.vips.services()
    }

    fn set_any_port(&self) {
        let any = self.vips.services().iter().any(|(key, _)| key.port.is_none());
        self.control.word32(ANY_PORT).store(any.into(), Ordering::Relaxed);
    }

    /// Publishes a table: fills a fresh map, then swaps it in. A packet sees the old table or the
    /// new one, whole; when this returns, no packet sees the old one, and it is freed.
    ///
    /// # Errors
    /// [`Error::Beyond`], or what the kernel says; the old table stays then.
    pub fn publish(&self, service: u32, image: &Image) -> Result<PublishReport, Error> {
        self.publish_with(service, image, image.header().flags)
    }

    /// As [`publish`](Self::publish), with other flags than the image's.
    ///
    /// # Errors
    /// As above.
    pub fn publish_with(
        &self,
        service: u32,
        image: &Image,
        flags: Flags,
    ) -> Result<PublishReport, Error> {
        let table = self.prepare(service, image, flags)?;
        self.swap(service, &table)?;
        Ok(PublishReport { bytes: image.bytes() })
    }

    /// The first half of publishing: a map with the table in it, which no packet sees yet.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn prepare(&self, service: u32, image: &Image, flags: Flags) -> Result<MapHandle, Error> {
        self.check_service(service)?;
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: BPF_F_MMAPABLE | BPF_F_INNER_MAP,
            ..Default::default()
        };
        let table = MapHandle::create(
            MapType::Array,
            Some("weir_table"),
            4,
            ELEMENT_BYTES as u32,
            image.elements() as u32,
            &options,
        )
        .context(|| format!("create a table of {} bytes", image.bytes()))?;
        let mut memory = Mapped::new(&table, image.bytes())?;
        image.write_to(memory.bytes_mut());
        memory.word32(FLAGS_OFFSET).store(flags.0, Ordering::Relaxed);
        Ok(table)
    }

    /// The second half: packets see the table from here on; returns after a grace period.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn swap(&self, service: u32, table: &MapHandle) -> Result<(), Error> {
        let fd = table.as_fd().as_raw_fd();
        self.maps
            .tables
            .update(&service.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("publish the table of service {service}"))
    }

    /// Kernel's number of the table that is published now; it changes the moment a swap is seen.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn table_id(&self, service: u32) -> Result<Option<u32>, Error> {
        let found = self
            .maps
            .tables
            .lookup(&service.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("look up the table of service {service}"))?;
        Ok(found.map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    fn table_memory(&self, service: u32) -> Result<Option<Mapped>, Error> {
        let Some(id) = self.table_id(service)? else {
            return Ok(None);
        };
        let table = MapHandle::from_map_id(id)
            .context(|| format!("open the table of service {service}"))?;
        let bytes = table.max_entries() as usize * ELEMENT_BYTES;
        Ok(Some(Mapped::new(&table, bytes)?))
    }

    /// Reads a published table back and checks its digest.
    ///
    /// # Errors
    /// [`Error::Table`] if it does not check out.
    pub fn published(&self, service: u32) -> Result<Option<Image>, Error> {
        let Some(memory) = self.table_memory(service)? else {
            return Ok(None);
        };
        let image = Image::read_from(&memory.to_vec())
            .map_err(|source| Error::Table { service, source })?;
        Ok(Some(image))
    }

    /// Sets or clears flags of the published table, in place. Packets see them at once; a grace
    /// period later no packet has missed them.
    ///
    /// # Errors
    /// [`Error::Bpf`]; a service without a table is not an error.
    pub fn set_flags(&self, service: u32, flag: u32, on: bool) -> Result<(), Error> {
        if let Some(memory) = self.table_memory(service)? {
            let word = memory.word32(FLAGS_OFFSET);
            if on {
                word.fetch_or(flag, Ordering::SeqCst);
            } else {
                word.fetch_and(!flag, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Withdraws a service's table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn withdraw(&self, service: u32) -> Result<(), Error> {
        reports::delete(&self.maps.tables, &service.to_ne_bytes())
    }

    /// Sets a backend's entry.
    ///
    /// # Errors
    /// [`Error::Beyond`].
    pub fn set_backend(&self, backend: u16, entry: &BackendEntry) -> Result<(), Error> {
        if u32::from(backend) >= self.sizes.backends {
            return Err(Error::Beyond {
                what: "backend",
                number: backend.into(),
                limit: self.sizes.backends,
            });
        }
        const FLAGS_WORD: usize = 8;
        self.backends.store_record(usize::from(backend), entry, FLAGS_WORD);
        Ok(())
    }

    /// A backend's entry.
    pub fn backend(&self, backend: u16) -> BackendEntry {
        self.backends.load_record(usize::from(backend))
    }

    /// Clears a backend's counters and its cached next hops, before its number is used anew.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn reset_lane(&self, backend: u16) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
        let zero = vec![vec![0u8; size_of::<Lane>()]; cpus];
        self.maps
            .lanes
            .update_percpu(&u32::from(backend).to_ne_bytes(), &zero, MapFlags::ANY)
            .context(|| format!("clear the counters of backend {backend}"))
    }

    /// Counters of a backend, over all CPUs.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn lane(&self, backend: u16) -> Result<LaneCounters, Error> {
        let key = u32::from(backend).to_ne_bytes();
        let mut sum = LaneCounters::default();
        for lane in lookup_percpu(&self.maps.lanes, &key)? {
            let lane = Lane::from_slice(&lane);
            sum.packets += lane.packets;
            sum.bytes += lane.bytes;
            sum.flows += lane.flows;
        }
        Ok(sum)
    }

    /// Packets that were not forwarded, by reason: (passed to the kernel, dropped).
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn outcomes(&self) -> Result<BTreeMap<Reason, (u64, u64)>, Error> {
        let mut found = BTreeMap::new();
        for &reason in Reason::ALL {
            let key = u32::from(reason.code()).to_ne_bytes();
            let (mut passed, mut dropped) = (0, 0);
            for counts in lookup_percpu(&self.maps.outcomes, &key)? {
                let counts = OutcomeCounts::from_slice(&counts);
                passed += counts.passed;
                dropped += counts.dropped;
            }
            if passed + dropped > 0 {
                found.insert(reason, (passed, dropped));
            }
        }
        Ok(found)
    }

    /// All counters, in the form that the oracle keeps them.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn counters(&self, backends: impl Iterator<Item = u16>) -> Result<Counters, Error> {
        let mut counters = Counters::default();
        for backend in backends {
            let lane = self.lane(backend)?;
            if lane != LaneCounters::default() {
                counters.lanes.insert(backend, lane);
            }
        }
        for (reason, (passed, dropped)) in self.outcomes()? {
            if passed > 0 {
                counters.passed.insert(reason, passed);
            }
            if dropped > 0 {
                counters.dropped.insert(reason, dropped);
            }
        }
        Ok(counters)
    }

    /// Flows that neither the ring nor the *unreported* map could take.
    pub fn unrecorded(&self) -> u64 {
        self.control.word64(UNRECORDED).load(Ordering::Relaxed)
    }

    /// The consumer of the reports.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn reports(&self) -> Result<Reports, Error> {
        let copy = |map: &MapHandle| MapHandle::try_from(map).context(|| "duplicate a map".into());
        Reports::new(copy(&self.maps.events)?, copy(&self.maps.unreported)?)
    }

    /// The flows in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        read_states(&self.maps.pending)
    }

    /// A flow's backend in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending_backend(&self, state: &ServiceState) -> Result<Option<u16>, Error> {
        let found = self
            .maps
            .pending
            .lookup(StateBytes::from(state).bytes(), MapFlags::ANY)
            .context(|| "look up a pending flow".into())?;
        Ok(found.map(|value| u32::from_ne_bytes([value[0], value[1], value[2], value[3]]) as u16))
    }

    /// Removes flows from the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn forget_pending<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        states.into_iter().try_for_each(|state| {
            reports::delete(&self.maps.pending, StateBytes::from(state).bytes())
        })
    }

    /// The pinned states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pinned(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        read_states(&self.maps.pinned)
    }

    /// Pins states.
    ///
    /// # Errors
    /// [`Error::Bpf`] when there is no room.
    pub fn pin(&self, states: &[(ServiceState, u16)]) -> Result<(), Error> {
        for (state, backend) in states {
            self.maps
                .pinned
                .update(
                    StateBytes::from(state).bytes(),
                    &u32::from(*backend).to_ne_bytes(),
                    MapFlags::ANY,
                )
                .context(|| "pin a state".into())?;
        }
        Ok(())
    }

    /// Unpins states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn unpin<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        states.into_iter().try_for_each(|state| {
            reports::delete(&self.maps.pinned, StateBytes::from(state).bytes())
        })
    }

    /// A tracked connection.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        let found = self
            .maps
            .connections
            .lookup(flow_bytes(flow).bytes(), MapFlags::ANY)
            .context(|| "look up a tracked connection".into())?;
        Ok(found.map(|value| {
            let entry = TrackedBytes::from_slice(&value);
            TrackedFlow { backend: entry.backend, incarnation: entry.incarnation }
        }))
    }

    /// Tracks a connection, for tests and benches.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn track(&self, flow: &FlowKey, entry: TrackedFlow) -> Result<(), Error> {
        let value =
            TrackedBytes { incarnation: entry.incarnation, backend: entry.backend, reserved: 0 };
        self.maps
            .connections
            .update(flow_bytes(flow).bytes(), value.bytes(), MapFlags::ANY)
            .context(|| "track a connection".into())
    }

    /// Switches to the other activity bitmap; a grace period later the one that was written until
    /// now is complete, and [`take_marks`](Self::take_marks) reads it.
    pub fn flip_marks(&self) {
        self.control.word32(MARK_SIDE).fetch_xor(1, Ordering::SeqCst);
    }

    /// Reads the activity bitmap that is not being written, and clears it.
    pub fn take_marks(&self) -> Marks {
        let half = self.sizes.mark_words as usize;
        let side = 1 - (self.control.word32(MARK_SIDE).load(Ordering::SeqCst) & 1) as usize;
        let words = (0..half)
            .map(|i| self.marks.word64((side * half + i) * 8).swap(0, Ordering::Relaxed))
            .collect();
        Marks { words }
    }

    /// Begins a new generation of the "seen recently" filter. A flow is known while it was seen in
    /// this generation or the one before.
    pub fn next_seen_generation(&self) {
        let word = self.control.word32(SEEN_GENERATION);
        let now = word.load(Ordering::Relaxed);
        word.store(if now >= 3 { 1 } else { now + 1 }, Ordering::SeqCst);
    }

    /// The UDP flows seen in this generation or the one before.
    pub fn seen_flows(&self) -> SeenFlows {
        let now = u64::from(self.control.word32(SEEN_GENERATION).load(Ordering::SeqCst));
        let before = if now == 1 { 3 } else { now - 1 };
        let tags = (0..self.sizes.seen_lines as usize * 8)
            .map(|i| self.seen.word64(i * 8).load(Ordering::Relaxed))
            .filter(|tag| tag & 3 == now || tag & 3 == before)
            .map(|tag| tag & !3)
            .collect();
        SeenFlows { tags }
    }

    fn check_service(&self, service: u32) -> Result<(), Error> {
        if service >= self.sizes.services {
            let limit = self.sizes.services;
            return Err(Error::Beyond { what: "service", number: service, limit });
        }
        Ok(())
    }
}

/// Activity since the bitmap was last taken.
#[derive(Clone, Debug)]
pub struct Marks {
    words: Vec<u64>,
}

impl Marks {
    /// The bitmap, in words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether a flow with this hash may have sent something.
    pub fn has(&self, hash: u64) -> bool {
        let word = weir_wire::hash::scale((hash >> 26) as u32, self.words.len() as u32);
        self.words[word as usize] >> (hash >> 58) & 1 == 1
    }
}

/// UDP flows seen recently.
#[derive(Clone, Debug)]
pub struct SeenFlows {
    tags: std::collections::HashSet<u64>,
}

impl SeenFlows {
    /// Whether a flow of a service is among them.
    pub fn has(&self, hash: u64, service: u32) -> bool {
        self.tags.contains(&(seen_tag(hash, service) & !3))
    }
}

/// Sets a map's size and pin; a map that is pinned already keeps its size.
struct Sizer<'a> {
    directory: Option<&'a Path>,
    report: &'a mut OpenReport,
}

impl Sizer<'_> {
    fn size(&mut self, map: &mut libbpf_rs::OpenMapMut<'_>, wanted: u32) -> Result<u32, Error> {
        let name = map.name().to_string_lossy().into_owned();
        let mut entries = wanted.max(1);
        if let Some(directory) = self.directory {
            let pin = directory.join(&name);
            if pin.exists() {
                let found = MapHandle::from_pinned_path(&pin)
                    .context(|| format!("open {}", pin.display()))?;
                check_layout(map, &found, &pin)?;
                if found.max_entries() != entries {
                    self.report.kept_limits.push(format!(
                        "{name}: {} entries (the configuration asks for {entries})",
                        found.max_entries()
                    ));
                    entries = found.max_entries();
                }
            }
            map.set_pin_path(&pin).context(|| format!("pin {name}"))?;
        }
        map.set_max_entries(entries).context(|| format!("size map {name}"))?;
        Ok(entries)
    }
}

fn check_layout(
    map: &libbpf_rs::OpenMapMut<'_>,
    found: &MapHandle,
    pin: &Path,
) -> Result<(), Error> {
    let (key, value) = (map.key_size(), map.value_size());
    if (found.key_size(), found.value_size()) == (key, value) {
        return Ok(());
    }
    Err(Error::Incompatible {
        path: pin.to_owned(),
        detail: format!(
            "key and value of {} and {} bytes where this version has {key} and {value}",
            found.key_size(),
            found.value_size()
        ),
    })
}

fn size_maps(
    maps: &mut skeleton::OpenWeirMaps<'_>,
    limits: &Limits,
    sizer: &mut Sizer<'_>,
) -> Result<Sizes, Error> {
    const SEEN_WAYS: u32 = 8;
    sizer.size(&mut maps.control, 1)?;
    sizer.size(&mut maps.outcomes, 64)?;
    sizer.size(&mut maps.pending, limits.pending_flows)?;
    sizer.size(&mut maps.pinned, limits.unreported_flows)?;
    sizer.size(&mut maps.events, limits.event_ring_bytes)?;
    sizer.size(&mut maps.unreported, limits.unreported_flows)?;
    sizer.size(&mut maps.connections, limits.tracked_flows)?;
    // A two-choice table stays below half full: each service has its entry and its address's.
    let vip_slots = sizer.size(&mut maps.vips, limits.services * 5 + 16)?;
    let mark_words = sizer.size(&mut maps.marks, limits.mark_bits.div_ceil(64) * 2)? / 2;
    Ok(Sizes {
        services: sizer.size(&mut maps.tables, limits.services)?,
        backends: sizer
            .size(&mut maps.backends, limits.backends)?
            .min(sizer.size(&mut maps.lanes, limits.backends)?),
        vip_slots,
        mark_words,
        // Twice the lines that full buckets would need: few flows are evicted.
        seen_lines: sizer.size(&mut maps.seen, (limits.udp_flows * 2).div_ceil(SEEN_WAYS))?,
    })
}

fn lookup_percpu(map: &MapHandle, key: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let found =
        map.lookup_percpu(key, MapFlags::ANY).context(|| format!("read map {:?}", map.name()))?;
    Ok(found.unwrap_or_default())
}

fn read_states(map: &MapHandle) -> Result<Vec<(ServiceState, u16)>, Error> {
    let entries = reports::read_all(map)?;
    Ok(entries
        .into_iter()
        .map(|(key, value)| {
            let backend = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]) as u16;
            (StateBytes::from_slice(&key).into(), backend)
        })
        .collect())
}

fn flow_bytes(flow: &FlowKey) -> FlowBytes {
    FlowBytes {
        src: flow.src,
        dst: flow.dst,
        src_port: flow.src_port.to_be(),
        dst_port: flow.dst_port.to_be(),
        protocol: flow.protocol.number().into(),
    }
}
