//! Follows what changes in the host's network: interfaces that go and come back, their addresses,
//! routes and neighbours.

use super::{Engine, EngineError, NEXT_HOPS_TRIES, PlaneResult, attachment, tolerate};
use crate::config::{Config, Source, XdpMode};
use crate::neigh::{self, Change, Interface, Kind, WayOut};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_dataplane::KernelPlane;
use weir_plane::{Backend, Device, Plane, TooManyMacs, Way};
use weir_steering::{BackendId, ServiceId};

/// After all next hops were looked up, that is not done again for so many times as long as it took:
/// where routes change all the time, the rest has its time.
const PAUSE: u32 = 4;
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// What an interface was when it was attached last: number and Ethernet address.
type Seen = Option<(u32, Option<[u8; 6]>)>;

/// What is to be followed yet, and what has been.
#[derive(Default)]
pub(super) struct Following {
    /// The interfaces of the configuration, as they were attached.
    pub seen: Vec<Seen>,
    /// Those that were there, and are not any more.
    gone: Vec<String>,
    /// All next hops are to be looked up, and not before.
    all: bool,
    not_before: Option<Instant>,
    /// There are more Ethernet addresses than frames are compared with.
    pub too_many_macs: Option<TooManyMacs>,
    /// What somebody has taken away from outside and could not be put back, in words.
    pub taken: Option<String>,
    /// Next hops that are being looked up, a part in each turn; whether only those that are missing.
    pub look: Option<(bool, Look)>,
}

/// Addresses of backends, and the backends that have them, each with its service.
pub(super) type Hosts = VecDeque<(IpAddr, Vec<(ServiceId, BackendId)>)>;

/// How far looking next hops up has come.
pub(super) struct Look {
    /// The addresses that are left, in their order, and who has them; none: it has not begun. One that goes
    /// meanwhile is passed over, and one that comes is looked up soon anyway.
    pub left: Option<Hosts>,
    /// All have been found until now.
    pub all_known: bool,
    pub over: bool,
}

/// What there is to say of an interface whose packets take the long way.
pub(super) fn slow(interface: &str) -> String {
    format!(
        "{interface} has no native XDP (or it was not asked for): packets are handled in the network stack, \
         several times slower"
    )
}

impl Look {
    pub fn new() -> Self {
        Self { left: None, all_known: true, over: false }
    }
}

impl Following {
    /// What `weir status` says of frames to others.
    pub fn said(&self) -> Option<String> {
        let TooManyMacs { found, most } = self.too_many_macs?;
        Some(format!(
            "balancer.interfaces, and the interfaces above them, have {found} Ethernet addresses, and frames are \
             compared with {most} at most: frames to any address are taken, so that what a switch floods for \
             other hosts may be delivered twice; give VLANs and MAC VLANs the addresses of the interfaces below \
             them, or balance on fewer interfaces"
        ))
    }

    /// What `weir status` says of those of these interfaces that are gone.
    pub fn gone<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = String> + 'a {
        self.gone.iter().filter(move |name| names.contains(name)).map(|name| {
            format!(
                "{name} of balancer.interfaces is gone (deleted, renamed, or in another network namespace): no \
                 packet comes by it; it is attached when it comes back"
            )
        })
    }

    /// Takes notice of those that were there and are not now, and of those that have come back.
    fn note_gone(&mut self, names: &[String], now: &[Seen]) {
        let there = |at: usize| self.seen.get(at).is_some_and(Option::is_some);
        let gone: Vec<String> = names
            .iter()
            .zip(now)
            .enumerate()
            .filter(|(at, (name, now))| now.is_none() && (there(*at) || self.gone.contains(name)))
            .map(|(_, (name, _))| name.clone())
            .collect();
        self.are_gone(gone);
    }

    /// These are, and others are not.
    fn are_gone(&mut self, gone: Vec<String>) {
        for interface in gone.iter().filter(|name| !self.gone.contains(name)) {
            warn!(interface, "an interface of the file is gone: no packet comes by it");
        }
        for interface in self.gone.iter().filter(|name| !gone.contains(name)) {
            info!(interface, "is back, or is not the file's any more");
        }
        self.gone = gone;
    }

    /// The interfaces are about to be attached. Returns whether some of them are only gone.
    pub fn attaching(&mut self, names: &[String], pins: &Path) -> bool {
        let gone = names.iter().filter(|name| is_only_gone(names, name, pins));
        self.are_gone(gone.cloned().collect());
        self.seen = names.iter().map(|name| seen(name)).collect();
        !self.gone.is_empty()
    }
}

fn seen(name: &str) -> Seen {
    neigh::interface(name).ok().map(|found| (found.index, found.mac))
}

/// Of which backends next hops are looked up.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    All,
    /// All, since something has changed: the kernel may be asking for some just now.
    Again,
    /// Those that have none yet.
    Missing,
    /// Those with these addresses.
    Neighbours(&'a BTreeSet<IpAddr>),
    /// Those with these numbers.
    Numbers(&'a HashSet<BackendId>),
}

impl Of<'_> {
    /// `first`: whose frames those to the backend are. `now`: what the plane knows of it.
    pub fn concerns(
        &self,
        id: BackendId,
        first: IpAddr,
        now: impl FnOnce() -> Option<Backend>,
    ) -> bool {
        match self {
            Self::All | Self::Again => true,
            Self::Missing => now().is_none_or(|backend| backend.hop.is_none()),
            Self::Neighbours(addresses) => addresses.contains(&first),
            Self::Numbers(numbers) => numbers.contains(&id),
        }
    }
}

/// The interfaces by these names, and those above them with addresses of their own that frames come
/// to through them: VLANs and MAC VLANs (VRRP has one for its address), bonds and bridges.
pub(super) fn own_and_above(names: &[String]) -> Vec<String> {
    let links = neigh::interfaces().unwrap_or_default();
    neigh::with_above(names, &links)
}

impl<P: Plane> Engine<P> {
    /// Has the program that the file names see what is none of weir's packets.
    pub(super) fn hand_on(&mut self, config: &Config) -> Result<(), EngineError> {
        let next = config.balancer.next_program.as_deref();
        let wrong = |error| EngineError::Invalid(format!("balancer.next_program: {error}"));
        if let Err(error) = self.plane.hand_on(next).plane().map_err(wrong) {
            // What goes on in the place of a file goes on with what is held, and nothing may be pinned there by now.
            let goes_on = self.instead.is_some() && self.resumed && self.attached.is_empty();
            if !goes_on || !self.plane.hand_on_as_before().plane()? {
                return Err(error);
            }
        }
        if let Some(next) = next {
            info!(next = %next.display(), "hands on what is none of its own");
        }
        Ok(())
    }

    /// The kernel has told of a change.
    pub(super) fn network_changed(&mut self, change: &Change) {
        if change.interfaces {
            tolerate("attach to interfaces again", self.follow_interfaces());
        }
        if change.interfaces || change.routes {
            self.network.all = true;
        } else {
            tolerate("look up next hops", self.refresh(Of::Neighbours(&change.neighbours)));
        }
        self.follow_network();
    }

    /// Looks all next hops up if a change asks for it, and it was not just now.
    pub(super) fn follow_network(&mut self) {
        let wait = self.network.not_before.is_some_and(|due| Instant::now() < due);
        if !self.network.all || wait {
            return;
        }
        self.network.all = false;
        let started = Instant::now();
        tolerate("forget interfaces that are gone", self.forget_gone_interfaces());
        self.hop_tries = NEXT_HOPS_TRIES;
        tolerate("look up next hops", self.refresh(Of::Again));
        self.set_targets();
        let pause = (started.elapsed() * PAUSE).max(LEAST_PAUSE);
        self.network.not_before = Some(Instant::now() + pause);
    }

    /// Takes frames to the interfaces and to those above them, as their addresses are now.
    pub(super) fn take_own_frames(&mut self) -> Result<(), EngineError> {
        let ours = own_and_above(&self.config.balancer.interfaces);
        let too_many = self.plane.accept_own_macs(&ours).plane()?;
        match too_many {
            Some(TooManyMacs { found, most }) if self.network.too_many_macs.is_none() => {
                warn!(
                    found,
                    most, "more Ethernet addresses than frames are compared with: all are taken"
                );
            }
            None if self.network.too_many_macs.is_some() => {
                info!("frames to other Ethernet addresses than the own ones are dropped again");
            }
            _ => {}
        }
        self.network.too_many_macs = too_many;
        Ok(())
    }

    /// Attaches to interfaces that have come back, and takes frames to new addresses of theirs.
    pub(super) fn follow_interfaces(&mut self) -> Result<(), EngineError> {
        if self.is_learning() {
            return Ok(());
        }
        let names = self.config.balancer.interfaces.clone();
        let now: Vec<Seen> = names.iter().map(|name| seen(name)).collect();
        self.network.note_gone(&names, &now);
        self.take_own_frames()?;
        let number = |seen: &Seen| seen.map(|(index, _)| index);
        let same = now.len() == self.network.seen.len()
            && now.iter().zip(&self.network.seen).all(|(a, b)| number(a) == number(b));
        if same {
            if now != self.network.seen {
                info!("interfaces have other Ethernet addresses");
                self.network.seen = now;
            }
            return Ok(());
        }
        self.attached = self.plane.reattach(&names, attachment(&self.config)).plane()?;
        self.tell_members(&names, &neigh::interfaces().unwrap_or_default())?;
        // Above, frames to what is not there were not taken.
        self.take_own_frames()?;
        self.network.seen = now;
        let attached: Vec<&str> = self.attached.iter().map(|a| a.interface.as_str()).collect();
        info!(?attached, "interfaces have changed");
        Ok(())
    }

    /// Whether frames are taken in the network stack alone, where a program can send by anything.
    pub(super) fn is_generic(&self) -> bool {
        self.config.balancer.mode == XdpMode::Generic
            || !self.attached.is_empty() && self.attached.iter().all(|one| one.generic)
    }

    /// Tells the plane by which interfaces frames leave tagged, or cannot leave.
    pub(super) fn tell_devices(&mut self) -> Result<(), EngineError> {
        let Ok(links) = neigh::interfaces() else { return Ok(()) };
        let generic = self.is_generic();
        let devices: Vec<Device> = links
            .iter()
            .filter_map(|link| {
                let way = match neigh::way_out(link, &links) {
                    Ok(WayOut::AsItIs) => return None,
                    Ok(WayOut::Tagged { lower, tag }) => Way::Tagged { lower, tag },
                    Err(_) if generic => return None,
                    Err(_) => Way::None,
                };
                Some(Device { ifindex: link.index, way })
            })
            .collect();
        self.plane.set_devices(&devices).plane()?;
        self.tell_members(&self.config.balancer.interfaces.clone(), &links)
    }

    /// Tells the plane by which interfaces frames come that are taken from a bond: its program runs in the
    /// members of it, and those are what the kernel names when it loses a frame.
    pub(super) fn tell_members(
        &mut self,
        names: &[String],
        links: &[Interface],
    ) -> Result<(), EngineError> {
        let bond = |link: &&Interface| {
            matches!(link.kind, Some(Kind::Bond { .. })) && names.contains(&link.name)
        };
        let bonds: Vec<u32> = links.iter().filter(bond).map(|bond| bond.index).collect();
        let member = |link: &&Interface| link.master.is_some_and(|bond| bonds.contains(&bond));
        let members: Vec<u32> = links.iter().filter(member).map(|link| link.index).collect();
        self.plane.set_members(&members).plane()
    }

    /// Next hops by interfaces that are gone are none.
    fn forget_gone_interfaces(&mut self) -> Result<(), EngineError> {
        let Ok(links) = neigh::interfaces() else { return Ok(()) };
        let there: HashSet<u32> = links.iter().map(|link| link.index).collect();
        for member in self.services.values().flat_map(|service| &service.pool) {
            let Some(backend) = self.plane.backend(member.id) else { continue };
            if backend.hop.is_some_and(|hop| hop.ifindex != 0 && !there.contains(&hop.ifindex)) {
                let entry = Backend { hop: None, ..backend };
                self.plane.set_backend(member.id, Some(&entry)).plane()?;
                self.plane.forget_hop(member.id).plane()?;
            }
        }
        Ok(())
    }
}

/// Whether the interfaces are there and no one else's, as far as can be seen without touching anything.
pub(super) fn may_attach(
    config: &Config,
    from: &Source,
    directory: &Path,
) -> Result<(), EngineError> {
    for name in &config.balancer.interfaces {
        // One that was there, and may be again: what is said of it is a warning.
        if let Err(error) = weir_dataplane::Interface::find(name)
            && !is_only_gone(&config.balancer.interfaces, name, directory)
        {
            return Err(error).of_interfaces(from);
        }
        if KernelPlane::is_occupied(directory, name) {
            let interface = name.clone();
            return Err(weir_dataplane::Error::Occupied { interface }).of_interfaces(from);
        }
    }
    Ok(())
}

/// The same for interfaces that are ports of a switch: a program there would take packets before it.
pub(super) fn may_attach_beside(config: &Config, from: &Source) -> Result<(), EngineError> {
    // No directory of pins is that of a switch, so that every program is another's.
    may_attach(config, from, Path::new("/nowhere"))
}

/// Whether an interface is not there that the data plane pinned in a directory was attached to, while others are.
pub(super) fn is_only_gone(all: &[String], name: &str, pins: &Path) -> bool {
    let is_there = |name: &str| weir_dataplane::Interface::find(name).is_ok();
    !is_there(name)
        && KernelPlane::was_attached(pins, name)
        && all.iter().any(|other| is_there(other))
}
