//! What makes a host a backend: the services' addresses on its loopback device, settings of the kernel that go
//! with them, packets taken out of the tunnels that balancers put them in, and segments that leave room for
//! those. Everything that is changed is noted in a file before, and undone when the agent leaves, or by the
//! next one.

mod addresses;
mod examine;
mod netlink;
mod programs;
mod settings;
pub(crate) mod state;

pub use examine::{Server, cookies, examine};
pub use programs::{Decapsulated, How, decapsulation};

pub(crate) use netlink::addresses;

use crate::alone::Alone;
use crate::error::Error;
use crate::{Agent, Options};
use programs::{Programs, Told};
use state::{Change, State};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use weir_dataplane::Interface;
use weir_host::rtnetlink::interface_name;
use weir_plane::forward::Encapsulation;

/// Where it is noted what was changed, if nothing else is said: a place that a boot clears.
pub const DIRECTORY: &str = "/run/weir-agent";
/// Bytes of the headers of a TCP segment without options, over IPv4 and IPv6.
const HEADERS: [u32; 2] = [40, 60];
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Nobody asks for smaller segments (RFC 9293 section 3.7.1), so nothing smaller is said.
const LEAST_SEGMENT: u32 = 536;

/// How a host is to be made ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Names of the interfaces by which packets for the services come, or answers leave.
    pub interfaces: Vec<String>,
    /// The services' addresses.
    pub services: Vec<IpAddr>,
    /// The tunnels that packets come in; none if they come as they are.
    pub tunnels: Vec<Encapsulation>,
    /// Where tunnels may come from; empty: from anywhere.
    pub sources: Vec<Network>,
    /// How large segments clients are asked to send.
    pub segments: Segments,
}

/// Addresses of services that are of no use without a part of what makes a host ready: they wait for it, and all
/// others do not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// For what takes packets out of tunnels.
    pub tunnels: BTreeSet<IpAddr>,
    /// For cookies in timestamps.
    pub cookies: BTreeSet<IpAddr>,
}

/// The first of these interfaces, or the loopback, that is there and has IPv6 switched off.
pub(crate) fn without_ipv6(interfaces: &[String]) -> Option<String> {
    let off = |name: &&str| {
        let setting = format!("ipv6/conf/{name}/disable_ipv6");
        Interface::find(name).is_ok() && settings::read(&setting).map_or(true, |value| value == "1")
    };
    let found = ["lo"].into_iter().chain(interfaces.iter().map(String::as_str)).find(off);
    found.map(str::to_owned)
}

/// How large segments clients are asked to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Segments {
    /// So large that they fit into the tunnels, by the MTU of the interfaces.
    #[default]
    Auto,
    /// At most so many bytes.
    Most(u16),
    /// As large as the kernel says.
    AsTheyAre,
}

impl FromStr for Segments {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::AsTheyAre),
            _ => match text.parse() {
                Ok(most) if u32::from(most) >= LEAST_SEGMENT => Ok(Self::Most(most)),
                _ => Err(format!("is not auto, off, or a number from {LEAST_SEGMENT} to 65535")),
            },
        }
    }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// One of them.
    pub address: IpAddr,
    /// How many bits are the same.
    pub bits: u8,
}

impl Network {
    /// As the programs have it; an IPv4 address has 96 bits in front.
    fn mask(self) -> [u64; 2] {
        let bits = u32::from(self.bits) + if self.address.is_ipv4() { 96 } else { 0 };
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        addresses::words(IpAddr::V6(mask.into()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not an address or a network, like 192.0.2.1 or 2001:db8::/64".to_owned();
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

impl Wanted {
    fn has_ipv4(&self) -> bool {
        self.services.iter().any(IpAddr::is_ipv4)
    }

    /// The interfaces, as far as they are there.
    fn present(&self) -> Vec<Interface> {
        self.interfaces.iter().filter_map(|name| Interface::find(name).ok()).collect()
    }

    /// Bytes that tunnels need at most; of tunnels over IPv6 only if one can end here.
    fn overhead(&self, own: &BTreeSet<IpAddr>) -> u32 {
        let global = |address: &&IpAddr| match address {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        };
        let ends = own.iter().filter(global);
        let each = ends.flat_map(|end| self.tunnels.iter().map(|one| one.overhead(*end) as u32));
        each.max().unwrap_or(0)
    }

    /// The largest segments over IPv4 and IPv6 that clients are asked to send; 0: nothing is asked for.
    fn most(&self, own: &BTreeSet<IpAddr>) -> Result<[u16; 2], Error> {
        match self.segments {
            Segments::AsTheyAre => return Ok([0, 0]),
            Segments::Most(most) => return Ok([most, most]),
            Segments::Auto if self.tunnels.is_empty() => return Ok([0, 0]),
            Segments::Auto => {}
        }
        let mut least = u32::from(u16::MAX);
        for interface in &self.interfaces {
            least = least.min(netlink::mtu(interface)?);
        }
        let room = least.saturating_sub(self.overhead(own));
        Ok(HEADERS.map(|headers| room.saturating_sub(headers).max(LEAST_SEGMENT) as u16))
    }
}

/// This host's own addresses: all that are no service's, and that others can send to.
fn own_addresses(services: &[IpAddr]) -> Result<BTreeSet<IpAddr>, Error> {
    let all = netlink::addresses()?.into_iter().map(|(_, address)| address);
    Ok(all.filter(|address| !services.contains(address) && !address.is_loopback()).collect())
}

/// What the agent says, a line at a time.
pub type Say<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

/// How a host is made ready for something else.
#[derive(Clone, Copy)]
struct Turn {
    /// All of it or nothing: an address whose part cannot be done keeps all others back.
    whole: bool,
    /// What is wanted no more stays for now.
    keeps: bool,
}

/// A backend that is ready as long as this lives, and until [`end`](Self::end). Dropping it leaves all as it
/// is.
#[derive(Debug)]
pub struct Ready {
    wanted: Wanted,
    state: State,
    told: Told,
    /// None if packets come as they are.
    programs: Option<Programs>,
    timestamps: Option<Agent>,
    /// How they are written; none: not at all.
    stamping: Option<Options>,
    waiting: Waiting,
    /// Held as long as this is the network namespace's agent; tells others what it looks after.
    alone: Alone,
}

impl Ready {
    /// Makes the host ready, and says each thing that it does. What an agent before this one has left is taken
    /// over, as far as it is still wanted, and undone as far as it is not. `timestamps`: services whose
    /// connections carry cookies, if there are any. `directory`: where it is noted what was changed.
    ///
    /// # Errors
    /// [`Error`]. What this agent has done until then is undone.
    pub fn start(
        wanted: &Wanted,
        timestamps: Option<&Options>,
        directory: &Path,
        say: Say<'_>,
    ) -> Result<Self, Error> {
        let mut ready = Self::take_over(&wanted.interfaces, directory, say)?;
        let left: Vec<Change> = ready.state.changes().to_vec();
        let started = ready.turn_to(wanted, timestamps, Turn { whole: true, keeps: false }, say);
        match started {
            Ok(()) => Ok(ready),
            Err(error) => {
                // What was there before goes on; what is new goes.
                let new = |change: &&Change| !left.contains(change);
                let changes: Vec<_> = ready.state.changes().iter().filter(new).cloned().collect();
                for change in changes.iter().rev() {
                    let _ = undo_one(&mut ready.state, change, say);
                }
                Err(error)
            }
        }
    }

    /// Is this network namespace's agent, and leaves what an agent before this one has left as it is, until
    /// [`change`](Self::change). `interfaces`: those that are known to be wanted by now.
    ///
    /// # Errors
    /// [`Error`]. Nothing is changed.
    pub fn take_over(interfaces: &[String], directory: &Path, say: Say<'_>) -> Result<Self, Error> {
        // All that can be wrong with names is found before anything is changed.
        crate::attach::find(interfaces)?;
        let alone = Alone::claim(&claimed(interfaces))?;
        let state = State::read(directory)?;
        if !state.changes().is_empty() {
            let path = state.path().display();
            say(format_args!("takes over what an agent before this one has left ({path})"));
        }
        let wanted = Wanted {
            interfaces: Vec::new(),
            services: Vec::new(),
            tunnels: Vec::new(),
            sources: Vec::new(),
            segments: Segments::AsTheyAre,
        };
        let told = Told::new(&wanted, BTreeSet::new(), [0, 0]);
        Ok(Self {
            wanted,
            state,
            told,
            programs: None,
            timestamps: None,
            stamping: None,
            waiting: Waiting::default(),
            alone,
        })
    }

    /// Makes the host ready for something else, and says each thing that it does: what is wanted no more is undone,
    /// unless it is to be kept for now (`keeps`), all else goes on without a packet lost. A part that cannot be done
    /// keeps only those addresses back that wait for it.
    ///
    /// # Errors
    /// [`Error`], the first one. What has come so far stays, and the same again goes on from there.
    pub fn change(
        &mut self,
        wanted: &Wanted,
        timestamps: Option<&Options>,
        waiting: &Waiting,
        keeps: bool,
        say: Say<'_>,
    ) -> Result<(), Error> {
        self.waiting.clone_from(waiting);
        self.turn_to(wanted, timestamps, Turn { whole: false, keeps }, say)
    }

    fn turn_to(
        &mut self,
        wanted: &Wanted,
        timestamps: Option<&Options>,
        Turn { whole, keeps }: Turn,
        say: Say<'_>,
    ) -> Result<(), Error> {
        crate::attach::find(&wanted.interfaces)?;
        let own = own_addresses(&wanted.services)?;
        let told = Told::new(wanted, own.clone(), wanted.most(&own)?);
        let loaded = self.load(told);
        if whole && loaded.is_err() {
            return loaded;
        }
        self.wanted = wanted.clone();
        self.alone.tells(&claimed(&wanted.interfaces));
        let mut result = self.restamp(timestamps);
        let left: Vec<Change> = self.state.changes().to_vec();
        for change in left.iter().rev().filter(|_| !keeps) {
            if !is_wanted(change, &self.wanted, &self.told, timestamps) {
                result = result.and(undo_one(&mut self.state, change, say));
            }
        }
        if whole && result.is_err() {
            return result;
        }
        let stamps = timestamps.filter(|_| self.timestamps.is_none());
        result.and(self.reach(loaded, stamps, whole, say))
    }

    /// Loads the programs that are needed for this, unless they are there. If they cannot be loaded, those before stay.
    fn load(&mut self, told: Told) -> Result<(), Error> {
        if !told.needs_programs() {
            self.programs = None;
        } else if told != self.told || self.programs.is_none() {
            self.programs = Some(Programs::load(&told, self.programs.as_ref())?);
        }
        self.told = told;
        Ok(())
    }

    /// The services' addresses that this agent, or one before it, has given this host.
    pub fn given(&self) -> Vec<IpAddr> {
        let address = |one: &Change| match one {
            Change::Address(address) => Some(*address),
            _ => None,
        };
        self.state.changes().iter().filter_map(address).collect()
    }

    /// Lets go of the programs that write cookies if they are to do so for others, or elsewhere, from now on; those that
    /// come in their place go on with what they know.
    fn restamp(&mut self, timestamps: Option<&Options>) -> Result<(), Error> {
        if self.stamping.as_ref() == timestamps && self.timestamps.is_some() {
            return Ok(());
        }
        self.stamping = timestamps.cloned();
        let Some(mut agent) = self.timestamps.take() else { return Ok(()) };
        let Some(options) = timestamps else { return Ok(()) };
        let of = |change: &&Change| matches!(change, Change::Timestamps { .. });
        let Some(noted) = self.state.changes().iter().find(of).cloned() else { return Ok(()) };
        if let Change::Timestamps { interfaces } = &noted {
            let here = |name: &&String| options.interfaces.contains(name);
            let gone: Vec<String> = interfaces.iter().filter(|name| !here(name)).cloned().collect();
            if !gone.is_empty() {
                self.state.note(Change::Timestamps { interfaces: options.interfaces.clone() })?;
                agent.leave(&gone)?;
                self.state.forget(&noted)?;
            }
        }
        Ok(())
    }

    /// Does whatever is not done: at the start all of it, later what somebody else has undone. The addresses
    /// come last, as packets are taken from then on. `loaded`: whether the programs are there that tunnels need.
    fn reach(
        &mut self,
        loaded: Result<(), Error>,
        timestamps: Option<&Options>,
        whole: bool,
        say: Say<'_>,
    ) -> Result<(), Error> {
        self.set(say)?;
        let attached = loaded.and_then(|()| self.attach(say));
        if whole && attached.is_err() {
            return attached;
        }
        let written = timestamps.map_or(Ok(()), |options| self.write_timestamps(options, say));
        if whole && written.is_err() {
            return written;
        }
        let present = netlink::addresses()?;
        let is_here = |address: IpAddr| present.iter().any(|(_, one)| *one == address);
        let (mut result, mut wait) = (Ok(()), BTreeSet::new());
        for (part, done, all) in [
            ("packets out of tunnels", attached, &self.waiting.tunnels),
            ("cookies in timestamps", written, &self.waiting.cookies),
        ] {
            let Err(source) = done else { continue };
            let services = self.wanted.services.iter().copied();
            let addresses: Vec<IpAddr> =
                services.filter(|one| all.contains(one) && !is_here(*one)).collect();
            wait.extend(addresses.iter().copied());
            result = result.and(Err(Error::Part { part, addresses, source: Box::new(source) }));
        }
        result.and(self.give_addresses(&wait, say))
    }

    /// Settings come first, so that nobody hears of the addresses.
    fn set(&mut self, say: Say<'_>) -> Result<(), Error> {
        if self.wanted.has_ipv4() {
            for wrong in settings::wrong(&self.wanted.interfaces)? {
                let settings::Wrong { name, is: was, wanted, why } = wrong;
                // An older note of it is about what somebody has changed since.
                let of_it = |change: &&Change| matches!(change, Change::Setting { name: one, .. } if *one == name);
                if let Some(old) = self.state.changes().iter().find(of_it).cloned() {
                    self.state.forget(&old)?;
                }
                let is = wanted.to_owned();
                self.state.note(Change::Setting { name: name.clone(), was: was.clone(), is })?;
                settings::write(&name, wanted)?;
                let name = name.replace('/', ".");
                say(format_args!("net.{name} = {wanted} (was {was}), {why}"));
            }
        }
        if !self.wanted.services.is_empty() && !netlink::is_up("lo")? {
            let bare = !netlink::addresses()?.contains(&(netlink::LOOPBACK, LOCALHOST));
            self.state.note(Change::Loopback { bare })?;
            netlink::set_up("lo", true)?;
            say(format_args!("lo is up"));
        }
        if self.wanted.services.iter().any(IpAddr::is_ipv6)
            && let Some(interface) = without_ipv6(&self.wanted.interfaces)
        {
            return Err(Error::NoIpv6 { interface });
        }
        Ok(())
    }

    fn attach(&mut self, say: Say<'_>) -> Result<(), Error> {
        let Some(programs) = &self.programs else { return Ok(()) };
        for interface in self.wanted.present() {
            let (name, index) = (&interface.name, interface.index);
            if self.told.most != [0, 0] && !programs.lowers_at(&interface) {
                clsact(&mut self.state, &interface)?;
                self.state.note(Change::Segments { interface: name.clone(), index })?;
                self.state.note_programs(&programs.numbers())?;
                programs.lower_at(&interface)?;
                let [ipv4, ipv6] = self.told.most;
                say(format_args!(
                    "{name}: SYN+ACKs of the services ask for segments of at most {ipv4} bytes over \
                     IPv4, {ipv6} over IPv6"
                ));
            }
            if !self.wanted.tunnels.is_empty() && !programs.is_at(&interface) {
                self.state.note(Change::Decapsulation { interface: name.clone(), index })?;
                self.state.note_programs(&programs.numbers())?;
                let how = programs.decapsulate_at(&interface, &self.state.programs())?;
                let tunnels = self.wanted.tunnels.iter().map(|one| describe(*one));
                let tunnels = tunnels.collect::<Vec<_>>().join(", ");
                let generic = match how {
                    How::Native => "",
                    How::Generic => ", in generic mode, as its driver has no other",
                };
                say(format_args!("{name}: takes packets out of {tunnels}{generic}"));
            }
        }
        Ok(())
    }

    fn give_addresses(&mut self, wait: &BTreeSet<IpAddr>, say: Say<'_>) -> Result<(), Error> {
        let present = netlink::addresses()?;
        for &address in &self.wanted.services {
            if wait.contains(&address) || present.iter().any(|(_, one)| *one == address) {
                continue;
            }
            self.state.note(Change::Address(address))?;
            netlink::add_to_loopback(address)?;
            say(format_args!("{address} is on lo"));
        }
        Ok(())
    }

    fn write_timestamps(&mut self, options: &Options, say: Say<'_>) -> Result<(), Error> {
        // Before anything is noted that would have to be undone.
        crate::maps::look()?;
        for interface in self.wanted.present() {
            clsact(&mut self.state, &interface)?;
        }
        let mut interfaces = options.interfaces.clone();
        let before =
            self.state.changes().iter().find(|one| matches!(one, Change::Timestamps { .. }));
        let before = before.cloned();
        if let Some(old) = &before
            && let Change::Timestamps { interfaces: others } = old
        {
            interfaces
                .extend(others.iter().filter(|one| !options.interfaces.contains(one)).cloned());
            self.state.forget(old)?;
        }
        let note = Change::Timestamps { interfaces };
        self.state.note(note.clone())?;
        let agent = match Agent::start_alone(options) {
            // Nothing has come of it, so there is nothing to undo.
            Err(error) if before.is_none() => {
                self.state.forget(&note)?;
                return Err(error);
            }
            started => started?,
        };
        let (names, flows) = (options.interfaces.join(", "), agent.flows());
        let again = if agent.took_over() { ", and goes on with those that were known" } else { "" };
        say(format_args!(
            "{names}: writes cookies into timestamps, remembers {flows} connections{again}"
        ));
        self.timestamps = Some(agent);
        Ok(())
    }

    /// What is worth knowing at the start beside what is done.
    pub fn warnings(&self) -> Vec<String> {
        let Ok(present) = netlink::addresses() else { return Vec::new() };
        let mut all = Vec::new();
        for (index, address) in present {
            if index != netlink::LOOPBACK && self.wanted.services.contains(&address) {
                let name = interface_name(index);
                all.push(format!(
                    "{address} is a service's, and on {name}: this host answers for it there, past \
                     the balancer"
                ));
            }
        }
        if !self.wanted.tunnels.is_empty() && self.wanted.sources.is_empty() {
            all.push(
                "takes tunnels from any address; --from lets the balancers' networks in only"
                    .into(),
            );
        }
        all
    }

    /// Looks whether all is as it was made, and mends what is not.
    ///
    /// # Errors
    /// [`Error`], of the first thing that cannot be mended.
    pub fn mend(&mut self, say: Say<'_>) -> Result<(), Error> {
        let mut loaded = Ok(());
        if self.programs.is_some() {
            let own = own_addresses(&self.wanted.services)?;
            // An interface may be away just now.
            let most = self.wanted.most(&own).unwrap_or(self.told.most);
            let told = Told::new(&self.wanted, own, most);
            let moved = told.own != self.told.own;
            loaded = self.load(told);
            if moved && loaded.is_ok() {
                say(format_args!("this host's addresses have changed"));
            }
        }
        let missing = if self.timestamps.is_none() { self.stamping.clone() } else { None };
        let reached = self.reach(loaded, missing.as_ref(), false, say);
        let mended = self.timestamps.as_mut().map_or(Ok(Vec::new()), Agent::mend);
        for name in mended.as_deref().unwrap_or_default() {
            say(format_args!("{name}: the programs that write cookies were gone; put back"));
        }
        reached.and(mended.map(drop))
    }

    /// What the programs have counted, if there are any.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn counts(&self) -> Result<Option<Decapsulated>, Error> {
        self.programs.as_ref().map(Programs::counts).transpose()
    }

    /// What the programs that write cookies have counted, if they are there.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn stamped(&self) -> Result<Option<crate::Counts>, Error> {
        self.timestamps.as_ref().map(Agent::counts).transpose()
    }

    /// Undoes everything, and says so.
    ///
    /// # Errors
    /// The first thing that could not be undone; all others are.
    pub fn end(mut self, say: Say<'_>) -> Result<(), Error> {
        let is_address = |one: &&Change| matches!(one, Change::Address(_));
        let addresses: Vec<_> = self.state.changes().iter().filter(is_address).cloned().collect();
        let mut result = Ok(());
        for change in addresses.iter().rev() {
            result = result.and(undo_one(&mut self.state, change, say));
        }
        if let Some(agent) = self.timestamps.take() {
            let change = Change::Timestamps { interfaces: self.wanted.interfaces.clone() };
            let left = crate::left_without(agent.carried());
            // What is left of it, also of agents before this one, is undone with all else.
            if agent.end().is_ok() && self.state.changes().contains(&change) {
                self.state.forget(&change)?;
                say(format_args!("writes no more cookies{left}"));
            }
        }
        result.and(undo_all(&mut self.state, say))
    }
}

/// What another agent, or a doctor, is told of the interfaces that this one has.
fn claimed(interfaces: &[String]) -> Vec<String> {
    match interfaces {
        [] => vec!["none just now: balancers say which".to_owned()],
        _ => interfaces.to_vec(),
    }
}

/// Undoes what an agent has left that was killed, or that was to leave it. Returns whether there was any.
///
/// # Errors
/// [`Error::Running`]; or the first thing that could not be undone; all others are.
pub fn undo(directory: &Path, say: Say<'_>) -> Result<bool, Error> {
    let _alone = Alone::claim(&["no interface (weir agent --undo)".to_owned()])?;
    let mut state = State::read(directory)?;
    let any = !state.changes().is_empty();
    undo_all(&mut state, say)?;
    Ok(any)
}

/// The file that says what an agent has left that was killed, or that was to leave it; none, if there is nothing.
///
/// # Errors
/// [`Error`], as the file cannot be read.
pub fn left(directory: &Path) -> Result<Option<PathBuf>, Error> {
    let state = State::read(directory)?;
    Ok((!state.changes().is_empty()).then(|| state.path().to_owned()))
}

/// Gives an interface the discipline that filters need, unless it has it.
fn clsact(state: &mut State, interface: &Interface) -> Result<(), Error> {
    let change = Change::Clsact { interface: interface.name.clone(), index: interface.index };
    let known = state.changes().contains(&change);
    state.note(change.clone())?;
    if !programs::add_clsact(interface)? && !known {
        state.forget(&change)?;
    }
    Ok(())
}

/// Whether a change that another agent has left is one that this one would make.
fn is_wanted(change: &Change, wanted: &Wanted, told: &Told, timestamps: Option<&Options>) -> bool {
    let is_here = |name: &String, index: u32| {
        wanted.interfaces.contains(name)
            && Interface::find(name).is_ok_and(|one| one.index == index)
    };
    match change {
        Change::Loopback { .. } => !wanted.services.is_empty(),
        Change::Setting { name, .. } => match name.split('/').nth(2) {
            Some("all") => wanted.has_ipv4(),
            Some(interface) => {
                wanted.has_ipv4() && wanted.interfaces.iter().any(|one| one == interface)
            }
            None => false,
        },
        Change::Address(address) => wanted.services.contains(address),
        Change::Clsact { interface, index } => {
            is_here(interface, *index) && (told.most != [0, 0] || timestamps.is_some())
        }
        Change::Segments { interface, index } => is_here(interface, *index) && told.most != [0, 0],
        Change::Decapsulation { interface, index } => {
            is_here(interface, *index) && !wanted.tunnels.is_empty()
        }
        // Whoever takes over goes on with the connections that are known.
        Change::Timestamps { .. } => timestamps.is_some(),
    }
}

/// In the other order than it was done: the addresses go first, the settings last.
fn undo_all(state: &mut State, say: Say<'_>) -> Result<(), Error> {
    let mut result = Ok(());
    for change in state.changes().to_vec().iter().rev() {
        result = result.and(undo_one(state, change, say));
    }
    result
}

/// Undoes a change, unless somebody else has changed the same thing since.
fn undo_one(state: &mut State, change: &Change, say: Say<'_>) -> Result<(), Error> {
    // By its number: it may have got another name since.
    let find = |index: u32| {
        Interface::find(&interface_name(index)).ok().filter(|interface| interface.index == index)
    };
    match change {
        Change::Loopback { bare } => {
            let others = netlink::addresses()?;
            let others = others.iter().filter(|(index, _)| *index == netlink::LOOPBACK);
            if others.filter(|(_, address)| !address.is_loopback()).count() > 0 {
                say(format_args!("lo has got addresses since, and stays up"));
            } else {
                netlink::set_up("lo", false)?;
                if *bare {
                    netlink::remove_from_loopback(LOCALHOST)?;
                }
                say(format_args!("lo is down, as before"));
            }
        }
        Change::Setting { name, was, is } => {
            let shown = name.replace('/', ".");
            match settings::exists(name).then(|| settings::read(name)).transpose()? {
                Some(now) if now == *is => {
                    settings::write(name, was)?;
                    say(format_args!("net.{shown} = {was}, as before"));
                }
                Some(now) if now != *was => {
                    say(format_args!("net.{shown} has become {now} since, and stays so"));
                }
                _ => {}
            }
        }
        Change::Address(address) => {
            if netlink::remove_from_loopback(*address)? {
                say(format_args!("{address} is gone from lo"));
            }
        }
        Change::Clsact { index, .. } => {
            if let Some(found) = find(*index)
                && !netlink::has_filters(found.index)?
            {
                programs::remove_clsact(&found)?;
            }
        }
        Change::Segments { interface, index } => {
            if let Some(found) = find(*index)
                && programs::stop_lowering_at(&found, &state.programs())?
            {
                say(format_args!("{interface}: segment sizes stay as they are"));
            }
        }
        Change::Decapsulation { interface, index } => {
            if let Some(found) = find(*index)
                && programs::stop_decapsulation_at(&found, &state.programs())?
            {
                say(format_args!("{interface}: takes no more packets out of tunnels"));
            }
        }
        Change::Timestamps { interfaces } => {
            let here = interfaces.iter().filter(|name| Interface::find(name).is_ok());
            let options = Options { interfaces: here.cloned().collect(), ..Options::default() };
            let left = crate::left_without(Agent::clear(&options)?);
            say(format_args!("writes no more cookies{left}"));
        }
    }
    state.forget(change)
}

/// A tunnel, for a person.
fn describe(tunnel: Encapsulation) -> String {
    match tunnel {
        Encapsulation::Ipip => "ipip".into(),
        Encapsulation::Gre => "gre".into(),
        Encapsulation::Fou(port) => format!("fou (port {port})"),
        Encapsulation::Gue(port) => format!("gue (port {port})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(tunnels: Vec<Encapsulation>, segments: Segments) -> Wanted {
        Wanted {
            interfaces: vec!["lo".into()],
            services: vec![IpAddr::from([10, 0, 0, 1])],
            tunnels,
            sources: Vec::new(),
            segments,
        }
    }

    #[test]
    fn segments_leave_room_for_the_largest_tunnel_that_can_end_here() {
        let v4 = BTreeSet::from([IpAddr::from([192, 0, 2, 1])]);
        let both: BTreeSet<IpAddr> =
            v4.iter().copied().chain(["2001:db8::1".parse().unwrap()]).collect();
        let local: BTreeSet<IpAddr> =
            v4.iter().copied().chain(["fe80::1".parse().unwrap()]).collect();
        let tunnels = || vec![Encapsulation::Ipip, Encapsulation::Gue(6080)];
        let wanted_ = wanted(tunnels(), Segments::Auto);
        assert_eq!(wanted_.overhead(&v4), 32);
        assert_eq!(wanted_.overhead(&local), 32);
        assert_eq!(wanted_.overhead(&both), 52);
        // The loopback device's packets are as large as there are.
        let largest = wanted_.most(&both).unwrap();
        assert_eq!(largest, [65_535 - 52 - 40, 65_535 - 52 - 60]);
        assert_eq!(wanted(tunnels(), Segments::Most(1200)).most(&both).unwrap(), [1200, 1200]);
        assert_eq!(wanted(tunnels(), Segments::AsTheyAre).most(&both).unwrap(), [0, 0]);
        assert_eq!(wanted(Vec::new(), Segments::Auto).most(&both).unwrap(), [0, 0]);
    }

    #[test]
    fn networks_and_segment_sizes_are_read() {
        for text in ["10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32", "::/0", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.1".parse::<Network>().unwrap().bits, 32);
        for text in ["", "10.0.0.0/33", "10.0.0.0/", "web", "2001:db8::/129", "1.2.3.4/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        let mask = "10.0.0.0/8".parse::<Network>().unwrap().mask();
        assert_eq!(mask, addresses::words("ffff:ffff:ffff:ffff:ffff:ffff:ff00:0".parse().unwrap()));
        assert_eq!("::/0".parse::<Network>().unwrap().mask(), [0, 0]);
        assert_eq!("auto".parse(), Ok(Segments::Auto));
        assert_eq!("off".parse(), Ok(Segments::AsTheyAre));
        assert_eq!("1380".parse(), Ok(Segments::Most(1380)));
        assert!("100".parse::<Segments>().is_err() && "large".parse::<Segments>().is_err());
    }
}
