//! The programs of `bpf/backend.bpf.c`, and where they are attached.

use super::addresses::{self, Is, PLACES};
use super::{Network, Wanted};
use crate::attach::Quiet;
use crate::error::{Context, Error};
use crate::skeleton::backend::{BackendSkelBuilder, types};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};
use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use weir_dataplane::{Interface, tunnel_number};
use weir_plane::forward::Encapsulation;

/// What the name of the program that takes packets out of tunnels is, for the kernel.
const DECAPSULATION: &str = "weir_decap";
const SEGMENTS: &str = "weir_segments";
/// Of the filter among those of an interface.
const PRIORITY: u32 = 0x7766;
const HANDLE: u32 = 1;
/// linux/bpf.h: frames may come in several buffers.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// linux/if_link.h.
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_FLAGS_REPLACE: u32 = 1 << 4;
const XDP_ATTACHED_SKB: u8 = 2;

/// Packets since the programs were attached by this agent. The order is that of `bpf/backend.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decapsulated {
    /// Taken out of their tunnels.
    pub taken: u64,
    /// Tunnels that do not end here: their packets' destination is none of this host's own addresses.
    pub elsewhere: u64,
    /// Packets in tunnels that are for no address of a service.
    pub strange: u64,
    /// Tunnels from elsewhere than the balancers' networks.
    pub untrusted: u64,
    /// Headers that contradict each other or the frame.
    pub damaged: u64,
    /// Tunnels in fragments, which were too large for the way.
    pub fragments: u64,
    /// Dropped: they met congestion on the way, and cannot say so (RFC 6040).
    pub congested: u64,
    /// Dropped: the kernel refused to cut the frame.
    pub refused: u64,
    /// SYN+ACKs whose segment size was lowered.
    pub lowered: u64,
}

impl Decapsulated {
    const NUMBER: u32 = 9;

    fn read(map: &MapHandle) -> Result<Self, Error> {
        let mut sums = [0u64; Self::NUMBER as usize];
        for (sum, key) in sums.iter_mut().zip(0..Self::NUMBER) {
            let found = map
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .context(|| "read the counters".into())?;
            let lanes = found.into_iter().flatten();
            *sum = lanes.filter_map(|lane| Some(u64::from_ne_bytes(*lane.first_chunk()?))).sum();
        }
        let [taken, elsewhere, strange, untrusted, damaged, fragments, congested, refused, lowered] =
            sums;
        Ok(Self {
            taken,
            elsewhere,
            strange,
            untrusted,
            damaged,
            fragments,
            congested,
            refused,
            lowered,
        })
    }
}

/// What the programs are told: they are loaded anew when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    pub(super) own: BTreeSet<IpAddr>,
    pub(super) services: BTreeSet<IpAddr>,
    pub(super) tunnels: Vec<Encapsulation>,
    pub(super) sources: Vec<Network>,
    /// The largest segments over IPv4 and IPv6; 0: as large as they are.
    pub(super) most: [u16; 2],
    /// Whether frames go back to where they came from, for the bench.
    pub(super) reflect: bool,
}

impl Told {
    pub(super) fn new(wanted: &Wanted, own: BTreeSet<IpAddr>, most: [u16; 2]) -> Self {
        let services = wanted.services.iter().copied().collect();
        let (tunnels, sources) = (wanted.tunnels.clone(), wanted.sources.clone());
        Self { own, services, tunnels, sources, most, reflect: false }
    }

    /// Whether there is anything to do for a program.
    pub(super) fn needs_programs(&self) -> bool {
        !self.tunnels.is_empty() || self.most != [0, 0]
    }
}

/// The programs, loaded.
#[derive(Debug)]
pub(super) struct Programs {
    decapsulation: OwnedFd,
    /// The same for frames in several buffers, where the kernel has them.
    in_buffers: Option<OwnedFd>,
    segments: OwnedFd,
    counts: MapHandle,
}

impl Programs {
    /// Loads them. They count where those before them did.
    pub(super) fn load(told: &Told, before: Option<&Self>) -> Result<Self, Error> {
        let counts = before.map(|programs| programs.counts.as_fd());
        let (decapsulation, segments, counts) = load(told, false, counts)?;
        // An older kernel refuses this one.
        let _quiet = Quiet::new();
        let in_buffers = load(told, true, Some(counts.as_fd())).ok().map(|found| found.0);
        Ok(Self { decapsulation, in_buffers, segments, counts })
    }

    pub(super) fn counts(&self) -> Result<Decapsulated, Error> {
        Decapsulated::read(&self.counts)
    }

    /// The numbers of the programs.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let all = [Some(&self.decapsulation), self.in_buffers.as_ref(), Some(&self.segments)];
        all.into_iter().flatten().filter_map(|one| id_of(one.as_fd())).collect()
    }

    /// Puts the program at an interface, or in the place of one of ours; returns how it runs there. `known`: the
    /// numbers of ours from before.
    pub(super) fn decapsulate_at(
        &self,
        interface: &Interface,
        known: &[u32],
    ) -> Result<How, Error> {
        let _quiet = Quiet::new();
        let candidates =
            || [Some(&self.decapsulation), self.in_buffers.as_ref()].into_iter().flatten();
        let what = || format!("attach the program that ends tunnels to {}", interface.name);
        let mut failure = io::Error::from_raw_os_error(libc::EINVAL);
        if let Some(present) = present(interface, known)? {
            if !present.ours {
                let interface = interface.name.clone();
                return Err(Error::Xdp { interface, program: present.name });
            }
            for program in candidates() {
                match attach(interface, program, present.flags(), present.program.as_ref()) {
                    Ok(()) => return Ok(present.how),
                    Err(error) => failure = error,
                }
            }
            return Err(failure).context(what);
        }
        for how in [How::Native, How::Generic] {
            for program in candidates() {
                let flags = how.flags() | XDP_FLAGS_UPDATE_IF_NOEXIST;
                match attach(interface, program, flags, None) {
                    Ok(()) => return Ok(how),
                    Err(error) => failure = error,
                }
            }
        }
        Err(failure).context(what)
    }

    /// Whether this very program is there.
    pub(super) fn is_at(&self, interface: &Interface) -> bool {
        let own = [Some(&self.decapsulation), self.in_buffers.as_ref()];
        let id = query(interface.index)
            .ok()
            .and_then(|found| (found.prog_id != 0).then_some(found.prog_id));
        id.is_some_and(|id| own.into_iter().flatten().any(|one| id_of(one.as_fd()) == Some(id)))
    }

    pub(super) fn lower_at(&self, interface: &Interface) -> Result<(), Error> {
        let _quiet = Quiet::new();
        let what = || format!("attach the program that lowers segment sizes to {}", interface.name);
        let hook = egress(interface.index);
        let mut options = filter(Some(self.segments.as_fd()));
        options.flags = libbpf_sys::BPF_TC_F_REPLACE;
        // SAFETY: both structures outlive the call, and say how large they are.
        done(unsafe { libbpf_sys::bpf_tc_attach(&raw const hook, &raw mut options) }).context(what)
    }

    /// Whether this very program is there.
    pub(super) fn lowers_at(&self, interface: &Interface) -> bool {
        let found = filter_at(interface.index);
        found.is_some() && found == id_of(self.segments.as_fd())
    }
}

/// The program that takes packets out of tunnels to these addresses of a host's own, to be run on frames. With
/// `reflect` it sends them back where they came from, for the bench.
///
/// # Errors
/// What the kernel refuses.
pub fn decapsulation(wanted: &Wanted, own: &[IpAddr], reflect: bool) -> Result<OwnedFd, Error> {
    let told = Told::new(wanted, own.iter().copied().collect(), [0, 0]);
    Ok(load(&Told { reflect, ..told }, false, None)?.0)
}

fn load(
    told: &Told,
    in_buffers: bool,
    counts: Option<BorrowedFd<'_>>,
) -> Result<(OwnedFd, OwnedFd, MapHandle), Error> {
    let mut room = MaybeUninit::uninit();
    let mut open = BackendSkelBuilder::default()
        .open(&mut room)
        .context(|| "open the programs of backends".into())?;
    tell(open.maps.rodata_data.as_deref_mut().ok_or(Error::Object)?, told, in_buffers)?;
    if in_buffers {
        open.progs.weir_decap.set_flags(XDP_HAS_FRAGS);
    }
    if let Some(counts) = counts {
        open.maps.backend_counts.reuse_fd(counts).context(|| "keep the counters".into())?;
    }
    let skel = open.load().context(|| "load the programs of backends".into())?;
    let own = |fd: BorrowedFd<'_>| {
        fd.try_clone_to_owned().context(|| "duplicate a program's descriptor".into())
    };
    let counts =
        MapHandle::try_from(&skel.maps.backend_counts).context(|| "keep the counters".into())?;
    Ok((own(skel.progs.weir_decap.as_fd())?, own(skel.progs.weir_segments.as_fd())?, counts))
}

fn tell(data: &mut types::rodata, told: &Told, in_buffers: bool) -> Result<(), Error> {
    let (seed, table) =
        addresses::table(&told.own, &told.services).ok_or(Error::TooManyAddresses {
            services: told.services.len(),
            own: told.own.len(),
            most: addresses::MOST,
        })?;
    debug_assert_eq!(table.len(), PLACES);
    data.seed = seed;
    data.has_frags = in_buffers.into();
    data.reflect = told.reflect.into();
    [data.most_ipv4, data.most_ipv6] = told.most.map(u32::from);
    for (place, entry) in data.places.iter_mut().zip(table) {
        let (address, is) =
            entry.map_or(([0; 2], 0), |(address, is): ([u64; 2], Is)| (address, is as u64));
        (place.address, place.is) = (address, is);
    }
    for tunnel in &told.tunnels {
        data.tunnels |= 1 << tunnel_number(*tunnel);
    }
    let ports: Vec<(u16, u8)> = told
        .tunnels
        .iter()
        .filter_map(|tunnel| match *tunnel {
            Encapsulation::Fou(port) | Encapsulation::Gue(port) => {
                Some((port, tunnel_number(*tunnel)))
            }
            Encapsulation::Ipip | Encapsulation::Gre => None,
        })
        .collect();
    if ports.len() > data.ports.len() {
        return Err(Error::TooManyPorts { ports: ports.len(), most: data.ports.len() });
    }
    data.ports_used = ports.len() as u32;
    for (to, (port, tunnel)) in data.ports.iter_mut().zip(ports) {
        (to.number, to.tunnel) = (port.to_be(), tunnel.into());
    }
    if told.sources.len() > data.sources.len() {
        let (sources, most) = (told.sources.len(), data.sources.len());
        return Err(Error::TooManySources { sources, most });
    }
    data.sources_used = told.sources.len() as u32;
    for (to, network) in data.sources.iter_mut().zip(&told.sources) {
        to.mask = network.mask();
        let address = addresses::words(network.address);
        to.address = [address[0] & to.mask[0], address[1] & to.mask[1]];
    }
    Ok(())
}

/// How an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// In the driver.
    Native,
    /// In the network stack, with every driver, slower.
    Generic,
}

impl How {
    fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// An XDP program that an interface has.
struct Present {
    how: How,
    name: String,
    ours: bool,
    /// Its descriptor, if it is ours, and one may be had: without `CAP_SYS_ADMIN`, as under the packaged unit, the
    /// kernel says its number only.
    program: Option<OwnedFd>,
}

impl Present {
    /// For what takes its place, or takes it away: only if it is still there, where that can be said.
    fn flags(&self) -> u32 {
        self.how.flags() | if self.program.is_some() { XDP_FLAGS_REPLACE } else { 0 }
    }
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn query(index: u32) -> io::Result<libbpf_sys::bpf_xdp_query_opts> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options outlive the call, which fills them.
    done(unsafe { libbpf_sys::bpf_xdp_query(index as i32, 0, &raw mut options) })?;
    Ok(options)
}

fn present(interface: &Interface, known: &[u32]) -> Result<Option<Present>, Error> {
    let found = query(interface.index)
        .context(|| format!("ask for the XDP program of {}", interface.name))?;
    let ids = [found.prog_id, found.drv_prog_id, found.skb_prog_id, found.hw_prog_id];
    let Some(id) = ids.into_iter().find(|id| *id != 0) else { return Ok(None) };
    let how = if found.attach_mode == XDP_ATTACHED_SKB { How::Generic } else { How::Native };
    let Some(program) = by_id(id) else {
        let (name, ours) = (format!("number {id}"), known.contains(&id));
        return Ok(Some(Present { how, name, ours, program: None }));
    };
    let name = name_of(program.as_fd());
    let ours = name == DECAPSULATION;
    Ok(Some(Present { how, name, ours, program: ours.then_some(program) }))
}

/// Whether an interface has a program of ours that takes packets out of tunnels, and what it has counted;
/// or the name of another one that it has.
pub(super) fn counted_at(
    interface: &Interface,
) -> Result<Option<Result<Decapsulated, String>>, Error> {
    let Some(present) = present(interface, &[])? else { return Ok(None) };
    let Some(program) = present.program else { return Ok(Some(Err(present.name))) };
    Ok(Some(Ok(counts_of(program.as_fd()).unwrap_or_default())))
}

/// What a program counts, found by the maps that it uses.
fn counts_of(program: BorrowedFd<'_>) -> Option<Decapsulated> {
    let mut ids = [0u32; 16];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: ids.len() as u32,
        map_ids: ids.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most as many bytes, and numbers, as it is told that there are.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    if failed != 0 {
        return None;
    }
    let used = (info.nr_map_ids as usize).min(ids.len());
    let maps = ids[..used].iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    let counts = maps.into_iter().find(|map| map.max_entries() == Decapsulated::NUMBER)?;
    Decapsulated::read(&counts).ok()
}

fn attach(
    interface: &Interface,
    program: &OwnedFd,
    flags: u32,
    old: Option<&OwnedFd>,
) -> io::Result<()> {
    let options = libbpf_sys::bpf_xdp_attach_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_attach_opts>() as _,
        old_prog_fd: old.map_or(0, AsRawFd::as_raw_fd),
        ..Default::default()
    };
    // SAFETY: numbers, and options that outlive the call.
    done(unsafe {
        libbpf_sys::bpf_xdp_attach(
            interface.index as i32,
            program.as_raw_fd(),
            flags,
            &raw const options,
        )
    })
}

/// Takes our program from an interface, whichever agent has put it there. Returns whether it was there. `known`: the
/// numbers of ours.
pub(super) fn stop_decapsulation_at(interface: &Interface, known: &[u32]) -> Result<bool, Error> {
    let _quiet = Quiet::new();
    let Some(present) = present(interface, known)?.filter(|present| present.ours) else {
        return Ok(false);
    };
    let options = libbpf_sys::bpf_xdp_attach_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_attach_opts>() as _,
        old_prog_fd: present.program.as_ref().map_or(0, AsRawFd::as_raw_fd),
        ..Default::default()
    };
    // SAFETY: numbers, and options that outlive the call.
    let result = unsafe {
        libbpf_sys::bpf_xdp_detach(interface.index as i32, present.flags(), &raw const options)
    };
    done(result).context(|| format!("detach from {}", interface.name))?;
    Ok(true)
}

fn egress(index: u32) -> libbpf_sys::bpf_tc_hook {
    libbpf_sys::bpf_tc_hook {
        sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
        ifindex: index as i32,
        attach_point: libbpf_sys::BPF_TC_EGRESS,
        ..Default::default()
    }
}

fn filter(program: Option<BorrowedFd<'_>>) -> libbpf_sys::bpf_tc_opts {
    libbpf_sys::bpf_tc_opts {
        sz: size_of::<libbpf_sys::bpf_tc_opts>() as _,
        prog_fd: program.map_or(0, |program| program.as_raw_fd()),
        priority: PRIORITY,
        handle: HANDLE,
        ..Default::default()
    }
}

/// The number of the program in our place among the filters.
fn filter_at(index: u32) -> Option<u32> {
    let _quiet = Quiet::new();
    let (hook, mut options) = (egress(index), filter(None));
    // SAFETY: both structures outlive the call, and say how large they are.
    let found = unsafe { libbpf_sys::bpf_tc_query(&raw const hook, &raw mut options) };
    (found == 0).then_some(options.prog_id)
}

/// Takes our filter from an interface. Returns whether it was there. `known`: the numbers of our programs.
pub(super) fn stop_lowering_at(interface: &Interface, known: &[u32]) -> Result<bool, Error> {
    let _quiet = Quiet::new();
    let ours = |id| match by_id(id) {
        Some(program) => name_of(program.as_fd()) == SEGMENTS,
        None => known.contains(&id),
    };
    if !filter_at(interface.index).is_some_and(ours) {
        return Ok(false);
    }
    let (hook, options) = (egress(interface.index), filter(None));
    // SAFETY: both structures outlive the call, and say how large they are.
    done(unsafe { libbpf_sys::bpf_tc_detach(&raw const hook, &raw const options) })
        .context(|| format!("take the filter from {}", interface.name))?;
    Ok(true)
}

/// Whether our filter is at an interface.
pub(super) fn is_lowered_at(interface: &Interface) -> bool {
    let found = filter_at(interface.index).and_then(by_id);
    found.is_some_and(|program| name_of(program.as_fd()) == SEGMENTS)
}

/// Gives an interface the discipline clsact. Returns whether it had none.
pub(super) fn add_clsact(interface: &Interface) -> Result<bool, Error> {
    let _quiet = Quiet::new();
    let mut hook = both(interface.index);
    // SAFETY: the structure outlives the call, and says how large it is.
    match done(unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) }) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        made => made.map(|()| true).context(|| format!("add clsact to {}", interface.name)),
    }
}

pub(super) fn remove_clsact(interface: &Interface) -> Result<(), Error> {
    let _quiet = Quiet::new();
    let mut hook = both(interface.index);
    // SAFETY: the structure outlives the call, and says how large it is.
    match done(unsafe { libbpf_sys::bpf_tc_hook_destroy(&raw mut hook) }) {
        // Somebody was faster.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()),
        gone => gone.context(|| format!("remove clsact from {}", interface.name)),
    }
}

/// The discipline has both ways, and is removed as a whole.
fn both(index: u32) -> libbpf_sys::bpf_tc_hook {
    let attach_point = libbpf_sys::BPF_TC_INGRESS | libbpf_sys::BPF_TC_EGRESS;
    libbpf_sys::bpf_tc_hook { attach_point, ..egress(index) }
}

fn by_id(id: u32) -> Option<OwnedFd> {
    // SAFETY: a system call with a number; what it returns is a new descriptor, or negative.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    // SAFETY: the descriptor was opened just now, and nobody else has it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn id_of(program: BorrowedFd<'_>) -> Option<u32> {
    crate::attach::info(program).map(|info| info.id)
}

fn name_of(program: BorrowedFd<'_>) -> String {
    crate::attach::name(program).unwrap_or_default()
}
