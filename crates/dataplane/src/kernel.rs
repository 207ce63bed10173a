//! The data plane in the kernel: loading, pinning, publishing, counting.

use crate::abi::{
    BackendEntry, FlowBytes, Lane, OWN_MACS, OutcomeCounts, Plain, StateBytes, TrackedBytes, Vip,
};
use crate::error::{Context, Error};
use crate::link::{self, Interface, LINK_PREFIX, XdpMode};
use crate::mapped::Mapped;
use crate::reports::{self, Reports};
use crate::tables::Tables;
use crate::vips::{NO_TABLE, VipTable};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use weir_steering::{
    Counters, ELEMENT_BYTES, Flags, HEADER_BYTES, Image, LaneCounters, ServiceState, TrackedFlow,
    VipKey, seen_tag,
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

/// Sizes that are set when the data plane is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Services.
    pub services: u32,
    /// Bytes of the pool that holds the tables: twice what the tables in use take, since a new
    /// table is made beside the old one.
    pub table_bytes: u64,
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
            table_bytes: 64 << 20,
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

/// The data plane of one instance.
pub struct KernelPlane {
    maps: Maps,
    program: OwnedFd,
    vips: VipTable,
    keys: HashMap<u32, VipKey>,
    tables: Tables,
    control: Mapped,
    backends: Mapped,
    marks: Mapped,
    seen: Mapped,
    directory: Option<PathBuf>,
    sizes: Sizes,
}

struct Maps {
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
    pool_elements: u32,
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
            rodata.vip_shift = 64 - sizes.vip_slots.trailing_zeros();
            rodata.table_count = sizes.services * 2;
            rodata.pool_bytes = sizes.pool_elements * ELEMENT_BYTES as u32;
            rodata.backend_count = sizes.backends;
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
        let vips = VipTable::new(mapped(&maps.data_vips)?, sizes.vip_slots);
        let found = vips.services();
        let tables = Tables::new(
            mapped(&maps.data_tables)?,
            mapped(&maps.data_pool)?,
            sizes.pool_elements,
            &found,
        );
        // A service whose first table was never published cannot be told by its number.
        let keys = found.into_iter().filter(|(_, table)| *table != NO_TABLE);
        Ok(Self {
            keys: keys.map(|(key, table)| (table / 2, key)).collect(),
            vips,
            tables,
            maps: Maps {
                lanes: handle(&maps.lanes)?,
                outcomes: handle(&maps.outcomes)?,
                pending: handle(&maps.pending)?,
                pinned: handle(&maps.pinned)?,
                events: handle(&maps.events)?,
                unreported: handle(&maps.unreported)?,
                connections: handle(&maps.connections)?,
            },
            program: owned(skel.progs.weir_balance.as_fd())?,
            control: Mapped::new(&maps.data_control.as_fd(), CONTROL_BYTES)?,
            backends: mapped(&maps.data_backends)?,
            marks: mapped(&maps.data_marks)?,
            seen: mapped(&maps.data_seen)?,
            directory: directory.map(Path::to_owned),
            sizes,
        })
    }

    /// The program, for test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Attaches to interfaces; those that are attached already get this program in place of the
    /// one they have, without missing a packet. Frames to other hosts are left to the kernel.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::NoInterface`], or what the kernel says.
    pub fn attach(&self, names: &[String], mode: XdpMode) -> Result<Vec<Attached>, Error> {
        let found = self.accept_own_macs(names)?;
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("a data plane without pins")).context(|| "attach".into());
        };
        let mut attached = Vec::new();
        for interface in &found {
            let pin = directory.join(format!("{LINK_PREFIX}{}", interface.name));
            let generic = link::attach(self.program(), interface, mode, &pin)?;
            attached.push(Attached { interface: interface.clone(), generic });
        }
        link::detach_others(directory, &found)?;
        Ok(attached)
    }

    /// Makes the data plane take frames that are addressed to these interfaces, as their addresses
    /// are now.
    ///
    /// # Errors
    /// [`Error::NoInterface`].
    pub fn accept_own_macs(&self, names: &[String]) -> Result<Vec<Interface>, Error> {
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
        Ok(found)
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
            !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LINK_PREFIX))
        });
        for pin in pins {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        fs::remove_dir(directory).context(|| format!("remove {}", directory.display()))
    }

    /// Lets packets find a service, with the table that it has. Until the first table is published
    /// its packets are dropped as [`Reason::NoTable`].
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::ServicesFull`].
    pub fn set_service(&mut self, key: &VipKey, service: u32) -> Result<(), Error> {
        self.check_service(service)?;
        let table = self.tables.current(service).unwrap_or(NO_TABLE);
        self.vips.insert(key, table)?;
        self.keys.insert(service, *key);
        self.set_any_port();
        Ok(())
    }

    /// Removes a service and its table; its packets go to the kernel from now on.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn remove_service(&mut self, service: u32) -> Result<(), Error> {
        if let Some(key) = self.keys.remove(&service) {
            self.vips.remove(&key);
            self.set_any_port();
            grace()?;
        }
        self.tables.remove(service);
        Ok(())
    }

    /// The services in the data plane, by number.
    pub fn services(&self) -> Vec<(VipKey, u32)> {
        self.keys.iter().map(|(service, key)| (*key, *service)).collect()
    }

    fn set_any_port(&self) {
        let any = self.vips.services().iter().any(|(key, _)| key.port.is_none());
        self.control.word32(ANY_PORT).store(any.into(), Ordering::Relaxed);
    }

    /// Publishes a table: writes it beside the one in use, then lets packets see it. A packet sees
    /// the old table or the new one, whole; when this returns, no packet sees the old one, and its
    /// room is free again.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::PoolFull`], [`Error::Codec`]; the old table stays then.
    pub fn publish(&mut self, service: u32, image: &Image) -> Result<(), Error> {
        self.publish_with(service, image, image.header().flags)
    }

    /// As [`publish`](Self::publish), with other flags than the image's.
    ///
    /// # Errors
    /// As above.
    pub fn publish_with(&mut self, service: u32, image: &Image, flags: Flags) -> Result<(), Error> {
        self.show(service, image, flags)?;
        grace()?;
        self.tables.release(service);
        Ok(())
    }

    /// The first half of publishing: when it returns, packets that come in follow the new table.
    /// Follow it with [`grace`] and [`retire`](Self::retire).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn show(&mut self, service: u32, image: &Image, flags: Flags) -> Result<(), Error> {
        self.check_service(service)?;
        let number = self.tables.write(service, image, flags)?;
        if let Some(key) = self.keys.get(&service) {
            self.vips.insert(key, number)?;
        }
        Ok(())
    }

    /// Frees a service's former table, a grace period after [`show`](Self::show).
    pub fn retire(&mut self, service: u32) {
        self.tables.release(service);
    }

    /// Reads a published table back and checks its digest.
    ///
    /// # Errors
    /// [`Error::Table`] if it does not check out.
    pub fn published(&self, service: u32) -> Result<Option<Image>, Error> {
        self.tables.read(service).transpose().map_err(|source| Error::Table { service, source })
    }

    /// Sets or clears flags of the published table, in place. Packets see them at once; a grace
    /// period later no packet has missed them. A service without a table is left alone.
    pub fn set_flags(&self, service: u32, flag: u32, on: bool) {
        self.tables.set_flags(service, flag, on);
    }

    /// Bytes of the pool that published tables take, and bytes there are.
    pub fn pool_bytes(&self) -> (usize, usize) {
        self.tables.bytes()
    }

    /// Bytes of a service's published table: header, slots and cells.
    pub fn table_bytes(&self, service: u32) -> usize {
        self.tables.bytes_of(service)
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

    /// Takes UDP flows, by their hashes under the published table's key, out of the "seen recently"
    /// filter, so that their next packets count as first ones.
    pub fn forget_seen(&self, service: u32, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            let tag = seen_tag(hash, service);
            let line = weir_wire::hash::scale((tag >> 32) as u32, self.sizes.seen_lines) as usize;
            for way in 0..8 {
                let word = self.seen.word64((line * 8 + way) * 8);
                if word.load(Ordering::Relaxed) & !3 == tag & !3 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
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
        let word = hash as usize & (self.words.len() - 1);
        self.words[word] >> (hash >> 58) & 1 == 1
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
    /// A map of `wanted` entries.
    fn entries(&mut self, map: &mut libbpf_rs::OpenMapMut<'_>, wanted: u32) -> Result<u32, Error> {
        let name = map.name().to_string_lossy().into_owned();
        let mut entries = wanted.max(1);
        if let Some(found) = self.pinned(map, &name)? {
            let ours = (map.key_size(), map.value_size());
            let theirs = (found.key_size(), found.value_size());
            if ours != theirs {
                return Err(self.incompatible(&name, format!("{theirs:?} where {ours:?} is known")));
            }
            self.keep(&name, &mut entries, found.max_entries());
        }
        map.set_max_entries(entries).context(|| format!("size map {name}"))?;
        Ok(entries)
    }

    /// An array in a section of its own, of `wanted` elements of `element` bytes.
    fn array(
        &mut self,
        map: &mut libbpf_rs::OpenMapMut<'_>,
        element: usize,
        wanted: u32,
    ) -> Result<u32, Error> {
        let name = map.name().to_string_lossy().replace(".data.", "");
        let mut elements = wanted.max(1);
        if let Some(found) = self.pinned(map, &name)? {
            let bytes = found.value_size() as usize;
            if !bytes.is_multiple_of(element) {
                return Err(self.incompatible(
                    &name,
                    format!("{bytes} bytes do not hold elements of {element}"),
                ));
            }
            self.keep(&name, &mut elements, (bytes / element) as u32);
        }
        let bytes = elements * element as u32;
        map.set_value_size(bytes).context(|| format!("size array {name}"))?;
        Ok(elements)
    }

    /// The map of this name that an earlier run pinned; and this run's will be pinned there.
    fn pinned(
        &self,
        map: &mut libbpf_rs::OpenMapMut<'_>,
        name: &str,
    ) -> Result<Option<MapHandle>, Error> {
        let Some(directory) = self.directory else { return Ok(None) };
        let pin = directory.join(name);
        map.set_pin_path(&pin).context(|| format!("pin {name}"))?;
        if !pin.exists() {
            return Ok(None);
        }
        let found =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        Ok(Some(found))
    }

    fn keep(&mut self, name: &str, wanted: &mut u32, found: u32) {
        if *wanted != found {
            self.report
                .kept_limits
                .push(format!("{name}: {found} (the configuration asks for {wanted})"));
            *wanted = found;
        }
    }

    fn incompatible(&self, name: &str, detail: String) -> Error {
        let path = self.directory.unwrap_or(Path::new("")).join(name);
        Error::Incompatible { path, detail }
    }
}

fn size_maps(
    maps: &mut skeleton::OpenWeirMaps<'_>,
    limits: &Limits,
    sizer: &mut Sizer<'_>,
) -> Result<Sizes, Error> {
    const SEEN_WAYS: u32 = 8;
    sizer.array(&mut maps.data_control, CONTROL_BYTES, 1)?;
    sizer.entries(&mut maps.outcomes, 64)?;
    sizer.entries(&mut maps.pending, limits.pending_flows)?;
    sizer.entries(&mut maps.pinned, limits.unreported_flows)?;
    sizer.entries(&mut maps.events, limits.event_ring_bytes)?;
    sizer.entries(&mut maps.unreported, limits.unreported_flows)?;
    sizer.entries(&mut maps.connections, limits.tracked_flows)?;
    // A two-choice table stays below half full: each service has its entry and its address's.
    let vip_slots = (limits.services * 4 + 4).next_power_of_two();
    let mark_words = limits.mark_bits.div_ceil(64).next_power_of_two() * 2;
    let pool = limits.table_bytes.div_ceil(ELEMENT_BYTES as u64) as u32;
    // Twice the lines that full ones would need: few flows are evicted.
    let seen_lines = (limits.udp_flows * 2).div_ceil(SEEN_WAYS);
    let backends =
        sizer.array(&mut maps.data_backends, size_of::<BackendEntry>(), limits.backends)?;
    Ok(Sizes {
        services: sizer.array(&mut maps.data_tables, HEADER_BYTES, limits.services * 2)? / 2,
        backends: backends.min(sizer.entries(&mut maps.lanes, limits.backends)?),
        vip_slots: sizer.array(&mut maps.data_vips, size_of::<Vip>(), vip_slots)?,
        pool_elements: sizer.array(&mut maps.data_pool, ELEMENT_BYTES, pool)?,
        mark_words: sizer.array(&mut maps.data_marks, 8, mark_words)? / 2,
        seen_lines: sizer.array(&mut maps.data_seen, SEEN_WAYS as usize * 8, seen_lines)?,
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
