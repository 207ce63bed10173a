//! What a control plane needs of a plane, besides what updates do with it.

use crate::by_id::{IdOutcomes, IdRoutes};
use crate::caps::{CappedFlows, FlowCaps, FlowRoom};
use crate::counters::{InterfaceCounters, LaneCounters, Returned};
use crate::forward::{Mapping, MappingRules, NextHop, Segments, Translation, Tunnel};
use crate::held::HeldCounts;
use crate::limits::Limits;
use crate::listen::Listen;
use crate::pipeline::VipKey;
use crate::sources::SourceTable;
use crate::trace::{PrepareTrace, Samples, TraceCounts, Wanted};
use crate::user::UserStatus;
use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;
use weir_steering::cheetah::SlotCounts;
use weir_steering::{
    BackendId, BackendLoad, Echoes, Event, Image, Marks, Question, ServiceId, ServiceState, Side,
    TrackedFlow, seen_tag, update,
};
use weir_wire::{FlowKey, Reason};

/// What is done before a plane's memory has another size, and takes its time.
pub type PrepareResize<E> = Box<dyn FnOnce() -> Result<Box<dyn Any + Send>, E> + Send>;

/// Reads the connections of a service, as [`update::Plane::connections`] does, one by one.
pub type ReadConnections<E> =
    Box<dyn FnOnce(&mut dyn FnMut(ServiceState, BackendId)) -> Result<(), E> + Send>;

/// A backend as a plane knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend {
    /// Address of the backend, by which frames or tunnels reach it.
    pub address: IpAddr,
    /// Counts the uses of its number, so that what is remembered does not outlive it.
    pub incarnation: u32,
    /// Whether its health check has it up.
    pub up: bool,
    /// It is down, and packets for it are answered by resets.
    pub resets: bool,
    /// Where its frames go if the kernel's routing has no answer.
    pub hop: Option<Hop>,
    /// What its packets are put into; none if they reach it as they are.
    pub tunnel: Option<Tunnel>,
    /// How they are made its own; none if they stay the service's.
    pub translation: Option<Translation>,
    /// How large segments SYNs to it may ask for; none: as large as they like.
    pub segments: Option<Segments>,
}

/// The services that answers are of: by the backend's address, protocol and port. Without a port, those of
/// all ports that have no entry of their own, and the service has the same port.
pub type Translations = BTreeMap<VipKey, Translated>;

/// What becomes of answers that are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translated {
    /// The service that they are of: their source from then on.
    pub service: VipKey,
    /// Their backend, if its service limits segments: then what their SYN+ACKs ask for is lowered as what SYNs to it
    /// ask for is.
    pub limits: Option<BackendId>,
}

/// What became of the flows that a method with few of them put into the connection table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackedFlows {
    /// They are there.
    pub there: u64,
    /// Others took their places.
    pub evicted: u64,
}

/// Flows that are known to packets.
pub struct ArmedFlows {
    /// Flows that there is room for: so many, and each is among them if it was to be.
    pub room: usize,
    /// Whether one is, by its hash, exactly as packets find it.
    pub has: Box<dyn Fn(u64) -> bool + Send + Sync>,
}

/// A next hop and the interface that it is reached by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// MAC addresses of the next hop and of our interface.
    pub next: NextHop,
    /// The interface's number; 0 for the one that the packet came in by.
    pub ifindex: u32,
}

/// An interface that frames do not leave by as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Number of the interface, as the kernel counts them.
    pub ifindex: u32,
    /// How they leave.
    pub way: Way,
}

/// How frames leave by an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By the interface underneath, with a VLAN tag.
    Tagged {
        /// That interface's number.
        lower: u32,
        /// The tag's four bytes, as on the wire.
        tag: [u8; 4],
    },
    /// Not at all.
    None,
}

/// How a plane takes frames from an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attachment {
    /// The fastest way that the interface has.
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the network stack.
    Generic,
}

/// Interfaces have more Ethernet addresses than frames are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyMacs {
    /// Different addresses that they have.
    pub found: usize,
    /// With so many frames can be compared.
    pub most: usize,
}

/// An interface from which a plane takes frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// Whether frames are taken in the network stack (generic XDP), which is slower than in the
    /// driver.
    pub generic: bool,
}

/// What somebody else has taken away from a plane that runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakenAway {
    /// Interfaces that are there and whose frames it does not get any more, each with what was found.
    pub interfaces: Vec<(String, String)>,
    /// What is gone of that by which it outlives its process, in words.
    pub pins: Option<String>,
    /// What has become of that which keeps packets of services from this host's own sockets, in words.
    pub guard: Option<String>,
}

impl TakenAway {
    /// Whether all is as it was put.
    pub fn is_nothing(&self) -> bool {
        self.interfaces.is_empty() && self.pins.is_none() && self.guard.is_none()
    }
}

/// UDP flows seen recently.
#[derive(Clone, Debug, Default)]
pub struct SeenFlows {
    tags: HashSet<u64>,
}

impl SeenFlows {
    /// Of the tags in the filter's lines.
    pub fn new(tags: impl Iterator<Item = u64>) -> Self {
        Self { tags: tags.map(|tag| tag & !3).collect() }
    }

    /// Whether a flow of a service is among them.
    pub fn has(&self, hash: u64, service: ServiceId) -> bool {
        self.tags.contains(&(seen_tag(hash, service) & !3))
    }
}

/// Tables that were written a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TablesMoved {
    /// How often.
    pub tables: u64,
    /// How many bytes, in sum.
    pub bytes: u64,
}

impl TablesMoved {
    /// One more.
    pub fn add(&mut self, bytes: usize) {
        self.tables += 1;
        self.bytes += bytes as u64;
    }
}

/// What a published table says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    /// The digest that its contents had when it was written.
    pub digest: u64,
    /// States that it holds.
    pub states: u64,
}

/// Packets that were not forwarded, by reason: left to the kernel, and dropped.
pub type Outcomes = BTreeMap<Reason, (u64, u64)>;

/// A data plane as a control plane owns it: services, backends, counters and interfaces, beside
/// what an [update](update::Plane) does.
pub trait Plane: update::Plane {
    /// As [`drain`](update::Plane::drain), but takes at most `most` reports, and waits for the first
    /// one for at most `limit`, or until `wake` can be read. Reports that had to be put aside are
    /// left.
    ///
    /// # Errors
    /// Some may have been taken.
    fn wait(
        &mut self,
        limit: Duration,
        wake: Option<BorrowedFd<'_>>,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Self::Error>;

    /// Takes at most `most` of the reports that had to be put aside; returns whether there may be
    /// more.
    ///
    /// # Errors
    /// Some may have been taken.
    fn put_aside(&mut self, most: usize, take: &mut dyn FnMut(&Event))
    -> Result<bool, Self::Error>;

    /// States of all services that there is room to pin.
    fn pin_limit(&self) -> usize;

    /// How large its memory is.
    fn limits(&self) -> Limits;

    /// What keeps packets of services from the host's own network stack where no program takes them goes by the
    /// services as they were before memory of another size took the place of the former, if that could not be
    /// helped: tries again, and says why not. `None`: all is as it should be.
    fn go_on_guarding(&mut self) -> Option<String> {
        None
    }

    /// Makes its memory as large as these limits want it. Packets are forwarded as before at every
    /// moment, and what they note and report meanwhile is not lost: the next
    /// [`drain`](update::Plane::drain) begins with what was reported to memory that goes.
    ///
    /// # Errors
    /// If what is there does not fit, if memory cannot be had, or before that `drain`: all is as
    /// before then.
    fn resize(&mut self, limits: &Limits) -> Result<(), Self::Error>;

    /// Whether what is there has room within these limits, as far as that can be told before memory is made for them.
    /// Nothing is touched.
    ///
    /// # Errors
    /// What [`resize`](Self::resize) would refuse them with.
    fn fits_into(&self, _limits: &Limits) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Begins to resize: returns what is to be called first, on another thread since it may take seconds,
    /// while this plane goes on as usual. `None`: nothing has to change, or [`resize`](Self::resize) takes no
    /// time to speak of.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    fn prepare_resize(
        &self,
        _limits: &Limits,
    ) -> Result<Option<PrepareResize<Self::Error>>, Self::Error> {
        Ok(None)
    }

    /// Begins to make its memory anew, as large as it is, with all tables side by side: if one has found no room in a
    /// row, though there is enough in sum, and the others could not be moved out of its way. What it returns is
    /// called and handed on as that of [`prepare_resize`](Self::prepare_resize). `None`: no table waits for that.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    fn prepare_packing(&mut self) -> Result<Option<PrepareResize<Self::Error>>, Self::Error> {
        Ok(None)
    }

    /// As [`resize`](Self::resize) to these limits, with what that has returned.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    fn resize_prepared(
        &mut self,
        limits: &Limits,
        _prepared: Box<dyn Any + Send>,
    ) -> Result<(), Self::Error> {
        self.resize(limits)
    }

    /// Begins to read [the connections](update::Plane::connections) of a service: returns what is to be called, on
    /// another thread since it may take seconds, while this plane goes on as usual. It goes by the places and
    /// the backends of this moment. `None`: it takes no time to speak of.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_connections(
        &self,
        _service: ServiceId,
    ) -> Result<Option<ReadConnections<Self::Error>>, Self::Error> {
        Ok(None)
    }

    /// Lets packets find a service there, with the table that it has. Without one they are dropped as
    /// [`Reason::NoTable`]. It is found at all places that it was given so; where another service was, it
    /// is found from now on, without a moment in between.
    ///
    /// # Errors
    /// If there is no room for another place.
    fn set_service(&mut self, at: impl Into<Listen>, service: ServiceId)
    -> Result<(), Self::Error>;

    /// Does not let packets find a service there any more, but where else it is. Does nothing if it is not
    /// there.
    ///
    /// # Errors
    /// If packets under way cannot be waited for.
    fn leave_place(&mut self, at: &Listen, service: ServiceId) -> Result<(), Self::Error>;

    /// Removes a service and its tables; its packets are the kernel's from now on.
    ///
    /// # Errors
    /// If packets under way cannot be waited for: the tables stay then.
    fn remove_service(&mut self, service: ServiceId) -> Result<(), Self::Error>;

    /// Where packets find services.
    fn services(&self) -> Vec<(Listen, ServiceId)>;

    /// Leads packets of a service by their QUIC ids first, from now on; `None`: no more. It holds
    /// whether or not packets find the service yet, and until the service is removed.
    ///
    /// # Errors
    /// If there is no room for so many configurations or servers; some may be led then.
    fn set_id_routes(
        &mut self,
        service: ServiceId,
        routes: Option<&IdRoutes>,
    ) -> Result<(), Self::Error>;

    /// What became of packets that could be led by their ids, of all services.
    ///
    /// # Errors
    /// If that cannot be read.
    fn id_outcomes(&self) -> Result<IdOutcomes, Self::Error> {
        Ok(IdOutcomes::new())
    }

    /// Takes packets of a service from these sources alone, from now on; `None`: from all. A packet is
    /// judged by the sources before or by these, and none by those before when this returns. It holds
    /// whether or not packets find the service yet, and until the service is removed.
    ///
    /// # Errors
    /// If there is no room for them; those before hold then.
    fn set_sources(
        &mut self,
        service: ServiceId,
        sources: Option<&SourceTable>,
    ) -> Result<(), Self::Error>;

    /// The digest of the sources that packets of a service are taken from; `None`: all are.
    fn source_digest(&self, service: ServiceId) -> Option<u64>;

    /// Takes so many new flows of a service from now on; `None`: any number. What it has taken counts under
    /// the new rates, and no packet of a connection that there is is refused by them. It holds whether or not
    /// packets find the service yet, and until the service is removed.
    ///
    /// # Errors
    /// If it cannot be set.
    fn set_flow_caps(
        &mut self,
        service: ServiceId,
        caps: Option<&FlowCaps>,
    ) -> Result<(), Self::Error>;

    /// How many new flows of a service are taken; `None`: any number.
    fn flow_caps(&self, service: ServiceId) -> Option<FlowCaps>;

    /// How many new flows of a service would be taken of a source just now; `None`: any number, or nobody knows.
    ///
    /// # Errors
    /// If it cannot be read.
    fn flow_room(
        &self,
        _service: ServiceId,
        _source: &[u8; 16],
    ) -> Result<Option<FlowRoom>, Self::Error> {
        Ok(None)
    }

    /// New flows that were not taken of a service, since it has caps.
    fn capped_flows(&self, service: ServiceId) -> CappedFlows;

    /// What the counters say of connections that prefixes of sources hold, of all services. Who knows of no
    /// limits has none.
    ///
    /// # Errors
    /// If they cannot be read.
    fn held(&self) -> Result<HeldCounts, Self::Error> {
        Ok(HeldCounts::default())
    }

    /// Sets these counters right, which said `before` when `counted` was begun to be found out: what was counted
    /// since stays. That is believed for so long; without a later one no connection is refused by a limit then,
    /// nor before the first one since the limit was set.
    ///
    /// # Errors
    /// If they cannot be written.
    fn correct_held(
        &mut self,
        _before: &HeldCounts,
        _counted: &HeldCounts,
        _lasts: Duration,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Connections that were counted have ended.
    ///
    /// # Errors
    /// If the counters cannot be written.
    fn release_held(&mut self, _ended: &[ServiceState]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Translates the answers of these backends, from now on, and of no others.
    ///
    /// # Errors
    /// If there is no room for so many; some may be translated then.
    fn set_translations(&mut self, wanted: &Translations) -> Result<(), Self::Error>;

    /// Makes mappings under full NAT by these rules from now on. Connections keep what they have as long as
    /// the key, and the ports of their backends, stay.
    ///
    /// # Errors
    /// If it cannot be set.
    fn set_mapping_rules(&mut self, rules: &MappingRules) -> Result<(), Self::Error>;

    /// The rules that mappings are made by, if there are any.
    fn mapping_rules(&self) -> Option<MappingRules>;

    /// Places in the table of mappings.
    fn mapping_places(&self) -> usize;

    /// The mapping that stands at a place, whether or not its time is up.
    fn mapping(&self, place: usize) -> Option<Mapping>;

    /// The tick that mappings grow old by.
    fn mapping_tick(&self) -> u32;

    /// Answers that were translated.
    ///
    /// # Errors
    /// If that cannot be read.
    fn returned(&self) -> Result<Returned, Self::Error>;

    /// Reads a published table back and checks it.
    ///
    /// # Errors
    /// If it is damaged.
    fn published(&self, service: ServiceId) -> Result<Option<Image>, Self::Error>;

    /// What the published table says of itself, without reading and checking all of it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn described(&self, service: ServiceId) -> Result<Option<Described>, Self::Error>;

    /// Bytes of a service's published table.
    fn table_bytes(&self, service: ServiceId) -> usize;

    /// Bytes that tables take, and bytes that there are for them.
    fn pool_bytes(&self) -> (usize, usize);

    /// Tables that were written a second time since the start, so that room is in a row: within the memory of all
    /// tables, and into other memory.
    fn tables_moved(&self) -> [TablesMoved; 2] {
        [TablesMoved::default(); 2]
    }

    /// Sets what is known of a backend; `None`: it is gone.
    ///
    /// # Errors
    /// If its number is beyond the plane's bound.
    fn set_backend(&mut self, id: BackendId, backend: Option<&Backend>) -> Result<(), Self::Error>;

    /// What is known of a backend.
    fn backend(&self, id: BackendId) -> Option<Backend>;

    /// How loaded a backend is, as its packets find it.
    fn load(&self, id: BackendId) -> BackendLoad;

    /// Says how loaded a backend is. `value`: none leaves it to packets, which count connections.
    fn set_load(&mut self, id: BackendId, weight: u32, value: Option<i64>);

    /// Adds to it, while packets count.
    fn add_load(&mut self, id: BackendId, by: i64);

    /// The connections of a service that count as open, by backend, of those that are remembered:
    /// packets do not see which ones are forgotten.
    ///
    /// # Errors
    /// If they cannot be read.
    fn open_connections(&self, service: ServiceId)
    -> Result<BTreeMap<BackendId, i64>, Self::Error>;

    /// Turns of a service's scheduler so far.
    fn turn(&self, service: ServiceId) -> u64;

    /// Clears a backend's counters, before its number is used anew.
    ///
    /// # Errors
    /// If they cannot be written.
    fn reset_lane(&mut self, id: BackendId) -> Result<(), Self::Error>;

    /// The counters of all backends, by number. One that is missing has counted nothing.
    ///
    /// # Errors
    /// If they cannot be read.
    fn lanes(&self) -> Result<Vec<LaneCounters>, Self::Error>;

    /// Packets that were not forwarded.
    ///
    /// # Errors
    /// If they cannot be read.
    fn outcomes(&self) -> Result<Outcomes, Self::Error>;

    /// Flows whose reports found no room anywhere.
    fn unrecorded(&self) -> u64;

    /// A flow's backend in the pending table.
    ///
    /// # Errors
    /// If it cannot be read.
    fn pending_backend(&self, state: &ServiceState) -> Result<Option<BackendId>, Self::Error>;

    /// Removes the connections of a service from the connection table.
    ///
    /// # Errors
    /// Some may have been removed.
    fn forget_connections(&mut self, service: ServiceId) -> Result<(), Self::Error>;

    /// How many flows of a service with JET are in the connection table, and how many were evicted.
    ///
    /// # Errors
    /// If it cannot be read.
    fn tracked_flows(&self, _service: ServiceId) -> Result<TrackedFlows, Self::Error> {
        Ok(TrackedFlows::default())
    }

    /// A flow in the connection table.
    ///
    /// # Errors
    /// If it cannot be read.
    fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Self::Error>;

    /// The number of the server at which a connection lives whose answers pass here, as far as that is
    /// remembered.
    ///
    /// # Errors
    /// If it cannot be read.
    fn answered(&self, _flow: &FlowKey) -> Result<Option<u16>, Self::Error> {
        Ok(None)
    }

    /// Whether an answer has passed here of any connection of a service, of those that are remembered for that; none
    /// if none is, or this plane does not tell.
    ///
    /// # Errors
    /// If it cannot be read.
    fn has_answered(&self, _service: ServiceId) -> Result<Option<bool>, Self::Error> {
        Ok(None)
    }

    /// Sets the clock by which connections by index grow old, in seconds; it never goes back.
    fn set_clock(&mut self, _seconds: u32) {}

    /// Packets of known flows that did not echo the cookie that their backend was told: it writes none.
    fn bare(&self) -> u32 {
        0
    }

    /// What connections at a backend echo that is told cookies, as far as it was looked at.
    fn echoes(&self, _id: BackendId) -> Echoes {
        Echoes::default()
    }

    /// That clock. It goes on from where it stood when the control plane ended.
    fn clock(&self) -> u32 {
        0
    }

    /// Where the connection lives whose place a part of a cookie hides, if it is the question's flow.
    ///
    /// # Errors
    /// If it cannot be read.
    fn slot(&self, _question: &Question, _part: u16) -> Result<Option<BackendId>, Self::Error> {
        Ok(None)
    }

    /// How full a service's table of connections by index is; none if it has none.
    fn slot_counts(&self, _service: ServiceId) -> Option<SlotCounts> {
        None
    }

    /// Looks over the next slots of a service, and gives back those whose time is up and those whose
    /// backend `keep` does not want. Returns how many.
    ///
    /// # Errors
    /// If they cannot be read; some may be back then.
    fn sweep_slots(
        &mut self,
        _service: ServiceId,
        _steps: u32,
        _keep: &dyn Fn(BackendId) -> bool,
    ) -> Result<u32, Self::Error> {
        Ok(0)
    }

    /// Begins to mark active flows anew. `known`: the hashes of the flows that are to be told from
    /// all others, about `flows` of them, those first for which there must be room. Returns where
    /// the marks until now are: a grace period later they are complete, and
    /// [`take_marks`](Self::take_marks) returns them.
    ///
    /// # Errors
    /// If they cannot be written; they go on as before then.
    fn flip_marks(
        &mut self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, Self::Error>;

    /// From here on the packets of these flows are noticed, by their hashes, and those of flows that
    /// were reported since the last [`flip_marks`](Self::flip_marks); the packets of others need not be.
    /// Before the first call, and from where packets follow a table with another hash key, all are.
    ///
    /// # Errors
    /// If they cannot be written; it goes on as before then.
    fn watch(&mut self, due: &mut dyn Iterator<Item = u64>) -> Result<(), Self::Error>;

    /// The marks before the last [`flip_marks`](Self::flip_marks), which are cleared.
    ///
    /// # Errors
    /// If they cannot be read; none is cleared then.
    fn take_marks(&mut self, side: Side) -> Result<Marks, Self::Error>;

    /// Which of the flows with these hashes have sent something since the last
    /// [`flip_marks`](Self::flip_marks), first packets apart; a few that have not are among them.
    ///
    /// # Errors
    /// If that cannot be read.
    fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, Self::Error>;

    /// Whether a flow with this hash is known to packets.
    ///
    /// # Errors
    /// If that cannot be read.
    fn is_armed(&self, hash: u64) -> Result<bool, Self::Error>;

    /// The flows that are known to packets, until the next [`flip_marks`](Self::flip_marks).
    ///
    /// # Errors
    /// If they cannot be read.
    fn armed(&self) -> Result<ArmedFlows, Self::Error>;

    /// The UDP flows seen in this generation of the filter, and, where `before` says so, in the one before.
    ///
    /// # Errors
    /// If they cannot be read.
    fn seen_flows(&self, before: bool) -> Result<SeenFlows, Self::Error>;

    /// Whether a UDP flow of a service, by its hash, is among those of both: exactly as its next packet would find it.
    ///
    /// # Errors
    /// If that cannot be read.
    fn is_seen(&self, hash: u64, service: ServiceId) -> Result<bool, Self::Error> {
        Ok(self.seen_flows(true)?.has(hash, service))
    }

    /// Begins a new generation of the "seen recently" filter.
    fn next_seen_generation(&mut self);

    /// Begins to look at packets: returns what is to be called first, on another thread since it may
    /// take seconds. `None`: this plane has no way to.
    ///
    /// # Errors
    /// What the plane says.
    fn prepare_trace(&self) -> Result<Option<PrepareTrace>, Self::Error> {
        Ok(None)
    }

    /// Looks at packets, with what that has returned; a look that is under way ends.
    ///
    /// # Errors
    /// What the plane says; nobody looks then.
    fn trace(
        &mut self,
        _prepared: Box<dyn Any + Send>,
        _wanted: &Wanted,
    ) -> Result<Option<Box<dyn Samples>>, Self::Error> {
        Ok(None)
    }

    /// Says that somebody still looks, which is to be said every few seconds. `None` if nobody does:
    /// something else has ended it.
    ///
    /// # Errors
    /// What the plane says.
    fn keep_tracing(&mut self) -> Result<Option<TraceCounts>, Self::Error> {
        Ok(None)
    }

    /// Looks no more.
    ///
    /// # Errors
    /// What the plane says; it is to be tried again then.
    fn end_trace(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Flows whose activity it would tell from that of all others with these limits. That part of its memory may
    /// grow, and does not shrink while it is in use; this says what it has, if it is the same for all limits.
    fn marked_by(&self, limits: &Limits) -> u32 {
        let _ = limits;
        self.limits().marked_flows
    }

    /// Takes frames that are addressed to these interfaces, as their addresses are now. One that is
    /// not there is left out. If they have more addresses than frames can be compared with, frames to any are
    /// taken, and it says so.
    ///
    /// # Errors
    /// If that cannot be set.
    fn accept_own_macs(
        &mut self,
        interfaces: &[String],
    ) -> Result<Option<TooManyMacs>, Self::Error>;

    /// Has another program see what this plane passes to the kernel as none of its own: the one that is pinned
    /// there, or none. Planes that are no XDP programs have no such thing.
    ///
    /// # Errors
    /// If there is none, or it cannot follow this one; all stays as it was then.
    fn hand_on(&mut self, _program: Option<&Path>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The same by the program that an earlier run has handed packets on to, whatever is pinned there by now. Returns
    /// whether it has.
    ///
    /// # Errors
    /// As there.
    fn hand_on_as_before(&mut self) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// Takes frames from these interfaces, and from no others.
    ///
    /// # Errors
    /// If one cannot be attached; those before it may be.
    fn attach(
        &mut self,
        interfaces: &[String],
        how: Attachment,
    ) -> Result<Vec<Attached>, Self::Error>;

    /// As [`attach`](Self::attach), of those that are there: one may have gone, or have come back as
    /// another interface of its name.
    ///
    /// # Errors
    /// If one that is there cannot be attached; the others are.
    fn reattach(
        &mut self,
        interfaces: &[String],
        how: Attachment,
    ) -> Result<Vec<Attached>, Self::Error> {
        self.attach(interfaces, how)
    }

    /// What somebody else has taken away, from outside, of what lets it take frames from those of these interfaces
    /// that are there, and of what outlives this process.
    fn taken_away(&self, _interfaces: &[String]) -> TakenAway {
        TakenAway::default()
    }

    /// Makes anew what outlives this process, where it was taken away. Interfaces are to be
    /// [attached again](Self::reattach) then.
    ///
    /// # Errors
    /// If not all of it can be made; what can be is.
    fn put_back(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Sets how frames leave by these interfaces; by all others they leave as they are.
    ///
    /// # Errors
    /// If there is no room for so many.
    fn set_devices(&mut self, _devices: &[Device]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The limit, by its name in `[limits]`, that an error is about.
    fn limit_of(_error: &Self::Error) -> Option<&'static str> {
        None
    }

    /// Whether nothing is wrong but that the plane is at something else, so that the same works later.
    fn is_busy(_error: &Self::Error) -> bool {
        false
    }

    /// Sets the members of bonds that frames are taken from: what comes in by these interfaces and is
    /// [`lost`](Self::lost) counts, too.
    ///
    /// # Errors
    /// What the plane says, for example that it has no room for so many.
    fn set_members(&mut self, _members: &[u32]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Sets how many ICMP errors, and how many replies to echo requests, each processor may send in a second.
    /// 0: none, as at first; echo requests are the kernel's then.
    fn set_message_rates(&mut self, _errors: u32, _echoes: u32) {}

    /// Sets how many resets, of connections whose backend is down, each processor may send in a second. 0:
    /// none, as at first.
    fn set_reset_rate(&mut self, _resets: u32) {}

    /// What a router has said of the MTU of the way to a backend behind a tunnel, while it holds.
    ///
    /// # Errors
    /// If it cannot be read.
    fn path_mtu(&self, _to: IpAddr) -> Result<Option<u32>, Self::Error> {
        Ok(None)
    }

    /// Frames that were sent and lost before they left, by the number of the interface that they were to
    /// leave by; 0 where that is not known. `None` if nobody tells.
    ///
    /// # Errors
    /// If they cannot be read.
    fn lost(&self) -> Result<Option<BTreeMap<u32, u64>>, Self::Error> {
        Ok(None)
    }

    /// What became of frames, by the number of the interface that they came by; 0 stands for those that are not
    /// told apart. `None` if nobody counts that.
    ///
    /// # Errors
    /// If they cannot be read.
    fn interfaces(&self) -> Result<Option<BTreeMap<u32, InterfaceCounters>>, Self::Error> {
        Ok(None)
    }

    /// What a plane in user space beside this one tells of itself; `None` if none is wanted.
    fn user_space(&self) -> Option<UserStatus> {
        None
    }

    /// Why it decides no packets just now, if it does not, and what is done about it.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Forgets where frames for a backend went, where a plane keeps that: the next packet asks anew.
    ///
    /// # Errors
    /// If it cannot be written.
    fn forget_hop(&mut self, _backend: BackendId) -> Result<(), Self::Error> {
        Ok(())
    }
}
