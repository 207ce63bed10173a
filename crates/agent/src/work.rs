//! What an agent does from its start to its end: the parts of this crate, put together. Nothing here catches signals
//! or prints: whoever runs it says when it is to end, and gets a line for each thing that happens.

use crate::asked::{Asked, Given, Kept, LINGERS, Said, Wish};
use crate::error::Error;
use crate::ready::{self, Decapsulated, Ready, Server, Wanted};
use crate::speak::{self, Speaking};
use crate::{Agent, Counts, Options, Service, left_without};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_host::rtnetlink::interface_name;

/// From one look at the interfaces to the next: somebody may have taken the programs away.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// From one look at what balancers have said to the next: packets may come already in the way that they say.
const HEAR_EVERY: Duration = Duration::from_millis(50);

/// What cannot be made ready is tried again after so long at most.
const TRY_AT_MOST: Duration = Duration::from_secs(60);

/// What the agent says, a line at a time.
pub type Say = fn(fmt::Arguments<'_>);
/// Waits so long. Returns whether the agent is to go on.
pub type Wait = fn(Duration) -> bool;

/// What a host is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    /// How it is to be made ready.
    pub wanted: Wanted,
    /// Services whose connections carry cookies.
    pub stamped: Vec<Service>,
    /// What should listen here, as far as that is known.
    pub servers: Vec<Server>,
}

impl Backend {
    /// One of these services, each of whose addresses and tunnels counts once.
    pub fn new(mut wanted: Wanted) -> Self {
        let mut once = BTreeSet::new();
        wanted.services.retain(|address| once.insert(*address));
        let mut different = Vec::new();
        for tunnel in wanted.tunnels.drain(..) {
            if !different.contains(&tunnel) {
                different.push(tunnel);
            }
        }
        wanted.tunnels = different;
        Self { wanted, stamped: Vec::new(), servers: Vec::new() }
    }
}

/// How an agent ends that makes a host ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// At once, and nothing is undone.
    Once,
    /// When it is told to, and nothing is undone.
    Keep,
    /// When it is told to, and everything is undone.
    Undo,
}

/// Undoes what an agent has left, as [`ready::undo`] does.
///
/// # Errors
/// [`Error`]; what could be undone is.
pub fn undo(directory: &Path, say: Say) -> Result<(), Error> {
    let undone = ready::undo(directory, &mut |what| say(what))?;
    Kept::open(directory)?.0.remove()?;
    if !undone {
        say(format_args!("there is nothing to undo in this network namespace"));
    }
    Ok(())
}

/// Only tells balancers, until the end.
///
/// # Errors
/// [`Error`], of the start.
pub fn tell(options: speak::Options, say: Say, wait: Wait) -> Result<(), Error> {
    let _speaking = Speaking::start(speak::Options { alone: true, ..options }, say)?;
    say(format_args!("tells balancers"));
    while wait(LOOK_EVERY) {}
    say(format_args!("ended"));
    Ok(())
}

/// Makes a host ready and keeps it so until the end. `timestamps`: how those are written, if any service's
/// connections carry cookies. `told`: whom to tell, and as whom. `directory`: where it is noted what was changed.
///
/// # Errors
/// [`Error`]. What was done until then is undone, as far as that can be.
pub fn serve(
    wanted: &Wanted,
    timestamps: Option<&Options>,
    told: Option<speak::Options>,
    directory: &Path,
    end: End,
    say: Say,
    wait: Wait,
) -> Result<(), Error> {
    let mut saying = move |what: fmt::Arguments<'_>| say(what);
    let mut agent = Ready::start(wanted, timestamps, directory, &mut saying)?;
    for warning in agent.warnings() {
        say(format_args!("warning: {warning}"));
    }
    let names = wanted.interfaces.join(", ");
    if end == End::Once {
        say(format_args!("ready at {names}; `weir agent --undo` undoes it"));
        return Ok(());
    }
    let told = told.map(|options| speak::Options { alone: false, ..options });
    let _speaking = match told.map(|options| Speaking::start(options, say)).transpose() {
        Ok(speaking) => speaking,
        Err(error) => {
            // What was done is undone, as always when not all can be done.
            let _ = agent.end(&mut saying);
            return Err(error);
        }
    };
    say(format_args!("ready at {names}"));
    let mut trouble = String::new();
    while wait(LOOK_EVERY) {
        let found = agent.mend(&mut saying).err().map(|error| error.to_string());
        let found = found.unwrap_or_default();
        // The same once a second would fill a disc.
        if found != trouble && !found.is_empty() {
            say(format_args!("{found}; tried again every second"));
        }
        trouble = found;
    }
    say_all(&agent, say)?;
    if end == End::Keep {
        say(format_args!("ended; all stays as it is at {names} (--keep)"));
        return Ok(());
    }
    agent.end(&mut saying).map_err(|source| Error::NotUndone(Box::new(source)))?;
    say(format_args!("ended; this host is as it was"));
    Ok(())
}

/// Makes a host ready for what balancers say, follows them as they say something else, and keeps it so until the end.
/// `given` goes before what they say. `told`: whom to tell and to hear. `directory`: where it is noted what was changed
/// and what was said.
///
/// # Errors
/// [`Error`]: of the start, or as something could not be undone. What cannot be made ready is said, and tried again.
pub fn follow(
    given: Given,
    told: speak::Options,
    directory: &Path,
    end: End,
    say: Say,
    wait: Wait,
) -> Result<(), Error> {
    let (kept, trouble) = Kept::open(directory)?;
    let left = if kept.is_known() { None } else { ready::left(directory)? };
    if let Some(changes) = &left {
        let changes = changes.display();
        let why = trouble.unwrap_or_else(|| nothing_said(&kept));
        say(format_args!(
            "warning: {why}; what an agent before this one has made ready ({changes}) stays until a balancer \
             says what it asks for"
        ));
    } else if let Some(why) = trouble {
        say(format_args!("warning: {why}; goes on without"));
    }
    let said = kept.said().clone();
    let directory = directory.to_owned();
    let mut following = Following {
        asked: Asked::new(given),
        kept,
        directory,
        left: if left.is_some() { Left::Unheard } else { Left::Known },
        agent: None,
        done: None,
        half: false,
        words: BTreeSet::new(),
        trouble: String::new(),
        say,
    };
    // Another agent, or a file that cannot be read, is the end of this one. All else may pass.
    match following.go_on(&said) {
        Err(error @ (Error::Running { .. } | Error::State { .. })) => return Err(error),
        result => following.note(result),
    }
    let told = speak::Options { alone: false, said, ..told };
    let speaking = match Speaking::start(told, say) {
        Ok(speaking) => speaking,
        Err(error) => {
            let _ = following.end(end);
            return Err(error);
        }
    };
    say(format_args!("makes ready what balancers say"));
    let mut heard = speaking.said();
    let (mut looked, mut pause) = (Instant::now(), LOOK_EVERY);
    while wait(HEAR_EVERY) {
        let changed = heard.has_changed().unwrap_or(false);
        if !changed && looked.elapsed() < pause {
            continue;
        }
        let said = heard.borrow_and_update().clone();
        let result = following.keep(&said).and_then(|()| following.go_on(&said));
        // The same again, which takes a while where programs are loaded for it.
        pause = match &result {
            Err(_) if !changed => (pause * 2).min(TRY_AT_MOST),
            _ => LOOK_EVERY,
        };
        looked = Instant::now();
        following.note(result);
    }
    drop(speaking);
    following.end(end)
}

/// What a host is to be by what balancers have said last to an agent that notes it in `directory`, and what there is to
/// say of that. Nothing is changed. Or why that is not known, in words.
///
/// # Errors
/// [`Error`], as this host does not tell its addresses, or which namespace and boot this is.
pub fn asked(
    given: Given,
    directory: &Path,
) -> Result<Result<(Backend, BTreeSet<String>), String>, Error> {
    let (kept, trouble) = Kept::open(directory)?;
    if !kept.is_known() {
        return Ok(Err(trouble.unwrap_or_else(|| nothing_said(&kept))));
    }
    let own = own_addresses()?;
    let mut wish = Asked::new(given).wish(kept.said(), &own, Instant::now());
    if let Some(interface) = ready::without_ipv6(&wish.wanted.interfaces) {
        wish.leave_out_ipv6(&interface);
    }
    let Wish { wanted, timestamps, words, .. } = wish;
    let stamped = timestamps.map(|options| options.services).unwrap_or_default();
    Ok(Ok((Backend { stamped, ..Backend::new(wanted) }, words)))
}

/// Why it is not known what was asked for, where the file that says it is not damaged.
fn nothing_said(kept: &Kept) -> String {
    format!("{}: there is none of this boot that says what was asked for", kept.path().display())
}

/// The addresses of this network namespace, by the names of their interfaces.
fn own_addresses() -> Result<Vec<(String, IpAddr)>, Error> {
    let own = ready::addresses()?.into_iter();
    Ok(own.map(|(index, one)| (interface_name(index), one)).collect())
}

/// What is known of what an agent before this one was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    /// All of it, or there is nothing that it has left.
    Known,
    /// Nothing, and no balancer has spoken yet: all that it has left stays as it is.
    Unheard,
    /// One has spoken, at that time. Others may be about to, so nothing is undone for a while.
    Heard(Instant),
}

/// An agent that makes a host ready for what balancers say.
struct Following {
    asked: Asked,
    kept: Kept,
    directory: PathBuf,
    left: Left,
    agent: Option<Ready>,
    /// What was made ready wholly.
    done: Option<(Wanted, Option<Options>)>,
    /// A change has begun, and not come to its end: what is done is not what the agent holds to be wanted.
    half: bool,
    /// Warnings that are so just now.
    words: BTreeSet<String>,
    trouble: String,
    say: Say,
}

impl Following {
    /// Keeps what is said for the next agent, once that is all that is asked for.
    fn keep(&mut self, said: &Said) -> Result<(), Error> {
        if self.left == Left::Known { self.kept.keep(said) } else { Ok(()) }
    }

    /// Makes the host what it is to be by now, or mends it if that is what it is.
    fn go_on(&mut self, said: &Said) -> Result<(), Error> {
        let say = self.say;
        let mut saying = move |what: fmt::Arguments<'_>| say(what);
        match self.left {
            Left::Unheard if said.is_empty() => {
                if self.agent.is_none() {
                    self.agent = Some(Ready::take_over(&[], &self.directory, &mut saying)?);
                }
                return Ok(());
            }
            Left::Unheard => self.left = Left::Heard(Instant::now()),
            Left::Heard(at) if at.elapsed() >= LINGERS => {
                // What was kept, and is not wanted, goes now.
                (self.left, self.half) = (Left::Known, true);
            }
            Left::Heard(_) | Left::Known => {}
        }
        let keeps = self.left != Left::Known;
        let own = own_addresses()?;
        let mut wish = self.asked.wish(said, &own, Instant::now());
        if let Some(agent) = self.agent.as_ref().filter(|_| keeps) {
            wish.keep(agent.given());
        }
        if let Some(interface) = ready::without_ipv6(&wish.wanted.interfaces) {
            // The services of the other family are made ready all the same.
            wish.leave_out_ipv6(&interface);
        }
        let Wish { wanted, timestamps, waiting, mut words } = wish;
        let now = (wanted, timestamps);
        let same = !self.half && self.done.as_ref() == Some(&now);
        let (wanted, timestamps) = (&now.0, now.1.as_ref());
        if self.agent.is_none() {
            let interfaces = &wanted.interfaces;
            self.agent = Some(Ready::take_over(interfaces, &self.directory, &mut saying)?);
        }
        match &mut self.agent {
            Some(agent) if same => agent.mend(&mut saying)?,
            Some(agent) => {
                self.half = true;
                agent.change(wanted, timestamps, &waiting, keeps, &mut saying)?;
                self.half = false;
            }
            None => {}
        }
        if let Some(agent) = self.agent.as_ref().filter(|_| !wanted.services.is_empty()) {
            words.extend(agent.warnings());
        }
        for word in words.difference(&self.words) {
            say(format_args!("warning: {word}"));
        }
        self.words = words;
        if !same {
            match wanted.interfaces.is_empty() {
                true if self.done.is_some() => say(format_args!("nothing is asked for any more")),
                true => say(format_args!("nothing is asked for yet")),
                false => say(format_args!("ready at {}", wanted.interfaces.join(", "))),
            }
            self.done = Some(now);
        }
        Ok(())
    }

    /// The same once a second would fill a disc.
    fn note(&mut self, result: Result<(), Error>) {
        let found = result.err().map(|error| error.to_string()).unwrap_or_default();
        if found != self.trouble && !found.is_empty() {
            (self.say)(format_args!("{found}; tried again and again"));
        }
        self.trouble = found;
    }

    fn end(mut self, end: End) -> Result<(), Error> {
        let say = self.say;
        let Some(agent) = self.agent.take() else {
            say(format_args!("ended"));
            return Ok(());
        };
        say_all(&agent, say)?;
        if end == End::Keep {
            say(format_args!("ended; all stays as it is (--keep)"));
            return Ok(());
        }
        let ended = agent.end(&mut move |what: fmt::Arguments<'_>| say(what));
        ended.map_err(|source| Error::NotUndone(Box::new(source)))?;
        self.kept.remove()?;
        say(format_args!("ended; this host is as it was"));
        Ok(())
    }
}

/// What the programs of an agent have counted.
fn say_all(agent: &Ready, say: Say) -> Result<(), Error> {
    if let Some(counts) = agent.counts()? {
        say_decapsulated(&counts, say);
    }
    if let Some(counts) = agent.stamped()? {
        say_counts(&counts, say);
    }
    Ok(())
}

/// Only writes cookies into timestamps, until the end. `keep`: the programs go on then.
///
/// # Errors
/// [`Error`].
pub fn stamp(options: &Options, keep: bool, say: Say, wait: Wait) -> Result<(), Error> {
    let mut agent = Agent::start(options)?;
    let (names, flows) = (options.interfaces.join(", "), options.flows);
    if agent.took_over() {
        let size = match agent.flows() == flows {
            true => String::new(),
            false => format!(", in a table of {}, not of {flows}", agent.flows()),
        };
        say(format_args!("took over what an agent before this one knew of connections{size}"));
    }
    say(format_args!(
        "writes cookies into timestamps at {names}; remembers {} connections; maps in {}",
        agent.flows(),
        agent.pins().display()
    ));
    while wait(LOOK_EVERY) {
        match agent.mend() {
            Ok(mended) => {
                for name in mended {
                    say(format_args!("the programs were gone from {name}; put back"));
                }
            }
            Err(error) => say(format_args!("{error}; tried again")),
        }
    }
    if keep {
        say_counts(&agent.counts()?, say);
        say(format_args!("ended; the programs go on at {names} (--keep)"));
        return Ok(());
    }
    let carried = agent.carried();
    say_counts(&agent.end()?, say);
    say(format_args!("ended; the programs are gone from {names}{}", left_without(carried)));
    Ok(())
}

fn say_counts(counts: &Counts, say: Say) {
    let Counts { opened, written, restored, resumed, foreign, failed } = counts;
    say(format_args!(
        "{opened} SYNs with a cookie, {written} answers written, {restored} timestamps \
         restored, {resumed} connections brought back by their cookies, {foreign} packets with another \
         cookie than their connection's, {failed} packets that could not be changed"
    ));
}

fn say_decapsulated(counts: &Decapsulated, say: Say) {
    let Decapsulated {
        taken,
        elsewhere,
        strange,
        untrusted,
        damaged,
        fragments,
        congested,
        refused,
        lowered,
    } = counts;
    say(format_args!(
        "{taken} packets taken out of tunnels, {lowered} segment sizes lowered; left to the kernel: \
         {elsewhere} to other hosts, {strange} for no service, {untrusted} from elsewhere, {damaged} \
         damaged, {fragments} in fragments; dropped: {congested} without room for the mark of congestion, \
         {refused} that could not be cut"
    ));
}
