//! The lookup face: the cookie of a packet, or what stands in for it.

use super::answers::Answered;
use super::layout::told;
use super::servers::ServiceServers;
use super::stateful::Stateful;
use super::stateless::Stateless;
use crate::decide::{Decide, Decision, NoCookie, Question, Why};
use crate::ids::BackendId;
use crate::memory::{Echoes, Former, Memory, TrackedFlow};
use crate::schedule;
use crate::table::Flags;
use std::sync::Arc;
use weir_hash::{HashKey, Key};
use weir_wire::Reason;

/// What to do with a packet whose cookie is no good.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Forged {
    /// Send it to a backend that the scheduler picks, and remember nothing. That backend answers
    /// with a reset, so a client whose backend is gone hears of it at once. Forgers reach what
    /// anyone reaches with a SYN.
    #[default]
    Schedule,
    /// Drop the packet.
    Refuse,
}

/// Cheetah's table: its keys and layout ([`Stateless`] or [`Stateful`]), and the servers of the
/// service. It is made anew for a change of the pool.
///
/// Its decisions ask the memory to [`schedule`](Memory::schedule) first packets, and where a flow
/// without a cookie is [`known`](Memory::known); the stateful form also for its slots
/// ([`WithSlots`](super::WithSlots)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table<S> {
    /// The keys and the layout of cookies.
    pub method: S,
    /// The servers of the service, by the numbers that cookies hide.
    pub servers: Arc<ServiceServers>,
}

impl<S> Table<S> {
    /// A table of a service with these servers.
    pub fn new(method: S, servers: impl Into<Arc<ServiceServers>>) -> Self {
        Self { method, servers: servers.into() }
    }
}

impl<K: Key> Decide<K> for Table<Stateless> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        self.method.codec().key()
    }

    #[inline]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let Self { method, servers } = self;
        if question.signals.starts && question.signals.echo.is_some() {
            if method.tells() {
                return tell(method, servers, question, memory);
            }
            let cookie = |backend: BackendId| {
                Some((backend, method.cookie_for(servers, question.hash, backend.get())?))
            };
            let repeated = if method.answers() { again(servers, question, memory) } else { None };
            let picked = repeated.or_else(|| pick(method.by(), servers, question, memory));
            let Some((backend, cookie)) = picked.and_then(cookie) else { return nobody() };
            if let (true, None, Some(number)) =
                (method.answers(), repeated, servers.number(backend.get()))
            {
                let counts = method.scheduling().has(Flags::COUNTS);
                memory.watch(question, Some(Answered::new(number).counted(counts)));
                if counts {
                    memory.count(backend, true);
                }
            }
            return first(backend, cookie);
        }
        match method.read(servers, question) {
            Ok(backend) if method.tells() => {
                let doubted =
                    memory.has_bare().then(|| doubted(servers, question, backend, memory));
                match doubted.flatten() {
                    Some(known) => Decision::to(known.get(), Why::Known(NoCookie::NotOurs)),
                    None => Decision::to(backend, Why::Cookie),
                }
            }
            Ok(backend) => {
                let restores = method.answers() && !question.signals.quoted;
                let number = servers.number(backend).filter(|_| restores);
                let echo =
                    number.and_then(|number| restored(number, question, Some(backend), memory));
                Decision { echo, ..Decision::to(backend, Why::Cookie) }
            }
            Err(why) => {
                let decision = without_cookie(
                    question,
                    (why, method.forged(), if method.tells() { Told::ByNumber } else { Told::No }),
                    method.by(),
                    servers,
                    memory,
                );
                let known = decision.backend.ok().and_then(|backend| BackendId::new(backend.get()));
                let counts = method.tells() && !question.signals.quoted;
                if let (true, Why::Known(NoCookie::NotOurs), Some(known)) =
                    (counts, decision.why, known)
                {
                    memory.note_bare(known);
                }
                decision
            }
        }
    }

    fn bytes(&self) -> usize {
        self.servers.bytes()
    }
}

impl<K: Key> Decide<K> for Table<Stateful> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        self.method.key()
    }

    #[inline]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        self.method.decide(&self.servers, question, memory)
    }

    fn bytes(&self) -> usize {
        self.servers.bytes()
    }
}

impl Stateful {
    /// The decision for a service with these servers.
    #[inline]
    pub(super) fn decide<K: Key, M: Memory<K>>(
        &self,
        servers: &ServiceServers,
        question: &Question<K>,
        memory: &mut M,
    ) -> Decision {
        let method = self;
        if question.signals.starts && question.signals.echo.is_some() && method.tells() {
            return tell_slot(method, servers, question, memory);
        }
        if question.signals.starts && question.signals.echo.is_some() {
            let repeated = if method.answers() {
                again_by_slot(method, servers, question, memory)
            } else {
                None
            };
            if let Some((backend, part)) = repeated {
                return first(backend, method.cookie(&question.key, part));
            }
            return match pick(method.by(), servers, question, memory) {
                None => nobody(),
                Some(backend) => match memory.open_slot(question, backend) {
                    Some(part) => {
                        if method.answers() {
                            let index = method.codec().reveal_for(question.hash, part);
                            memory.watch(question, Some(Answered::new(index)));
                        }
                        first(backend, method.cookie(&question.key, part))
                    }
                    // The front still has to find this balancer. No slot will answer.
                    None => {
                        if method.answers() {
                            memory.watch(question, None);
                        }
                        memory.remember(question, backend);
                        let why = Why::Remembered(NoCookie::TableFull);
                        let cookie = method.front_cookie(&question.key);
                        Decision { cookie, ..Decision::to(backend.get(), why).new_if(true) }
                    }
                },
            };
        }
        let why = match question.signals.valid_echo() {
            None => NoCookie::NoTimestamp,
            Some(echo) => {
                let part = method.layout().split(echo).back;
                match memory.slot(question, part) {
                    Some(backend) if servers.uses(backend.get()) => {
                        let echo = if method.answers() && !question.signals.quoted {
                            let index = method.codec().reveal_for(question.hash, part);
                            restored(index, question, None, memory)
                        } else {
                            None
                        };
                        let new = question.signals.starts;
                        let decision = Decision::to(backend.get(), Why::Cookie).new_if(new);
                        return Decision { echo, ..decision };
                    }
                    // Its backend is gone, and so is the connection.
                    Some(_) => {
                        memory.close_slot(question, part);
                        NoCookie::NotOurs
                    }
                    None => {
                        memory.lost_cookie(question, part);
                        NoCookie::NoSlot
                    }
                }
            }
        };
        let how = (why, method.forged(), if method.tells() { Told::BySlot } else { Told::No });
        without_cookie(question, how, method.by(), servers, memory)
    }
}

fn nobody() -> Decision {
    Decision::drop(Reason::NoBackend, Why::NoBackend).new_if(true)
}

/// The first packet of a connection that can carry cookies. Nothing to remember; everything that
/// the backend sends must carry the cookie ([`Answer::outgoing`](crate::Answer::outgoing)).
fn first(backend: BackendId, cookie: u16) -> Decision {
    let decision = Decision::to(backend.get(), Why::Scheduled).new_if(true);
    Decision { cookie: Some(cookie), ..decision }
}

/// The same where the backend writes the cookie: the packet tells it. The flow is remembered, for the
/// SYN may come again, and the backend may write none.
fn tell<K: Key, M: Memory<K>>(
    method: &Stateless,
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Decision {
    let followed = followed(servers, question, memory);
    let picked = followed.or_else(|| pick(method.by(), servers, question, memory));
    let Some(backend) = picked else { return nobody() };
    let Some(cookie) = method.cookie_for(servers, question.hash, backend.get()) else {
        return nobody();
    };
    if followed.is_none() {
        note_placed(servers, question, backend, memory);
    }
    Decision { echo: Some(told(cookie)), ..first(backend, cookie) }
}

/// What the connection table says of a flow of a service whose backends write the cookies: where it lives,
/// and the number of the server where it was before, as far as they are still in the service.
fn entry_of<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> (Option<BackendId>, Option<u16>) {
    let Some(entry) = memory.connection(question) else { return (None, None) };
    let latest = Some(entry.backend).filter(|latest| {
        servers.uses(latest.get())
            && memory.incarnation(*latest).is_some_and(|now| entry.is_of(now))
    });
    let former = entry.former.map(Former::number);
    (latest, former.filter(|former| servers.backend(*former).is_some()))
}

/// Where the first packet of a flow goes that the connection table has; none if it is to be placed.
///
/// Nobody knows whether a SYN in the name of a known flow is sent anew, is a new connection on old ports, or is
/// forged, nor whether the connection at the old backend goes on. So a flow whose backend takes no new
/// connections is placed anew, and its entry keeps both: neither loses what its cookie says for the other
/// ([`doubted`]). There is no room for a third: then the SYN follows one of the two.
fn followed<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Option<BackendId> {
    let (latest, former) = entry_of(servers, question, memory);
    let up = latest.filter(|latest| !memory.is_down(*latest));
    // One that writes no cookies is followed while it drains, too: only the entry leads there.
    if let Some(up) = up
        && (memory.echoes(up).bare || servers.serves(up.get()))
    {
        return Some(up);
    }
    let before = former.and_then(|former| BackendId::new(servers.backend(former)?));
    if let Some(before) = before
        && !memory.is_down(before)
        && (latest.is_some() && up.is_none() || servers.serves(before.get()))
    {
        note(servers, question, (before, latest), memory);
        return Some(before);
    }
    up.filter(|_| former.is_some())
}

/// Notes where such a flow was placed.
fn note_placed<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    backend: BackendId,
    memory: &mut M,
) {
    let (latest, former) = entry_of(servers, question, memory);
    let former = former.and_then(|former| BackendId::new(servers.backend(former)?));
    if latest.is_none() || former.is_none() {
        let other = latest.or(former).filter(|other| *other != backend);
        note(servers, question, (backend, other), memory);
    }
}

/// Notes that a flow lives at one backend, and was at another before.
fn note<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    (backend, former): (BackendId, Option<BackendId>),
    memory: &mut M,
) {
    let Some(incarnation) = memory.incarnation(backend) else { return };
    let former = former.and_then(|former| servers.number(former.get())).map(Former::new);
    memory.track(question, TrackedFlow { former, ..TrackedFlow::new(backend, incarnation) });
}

/// Where a flow lives whose cookie names another backend, after there have been packets that did not echo
/// the cookie that their backend was told: some of those look right by chance. Not if that backend is known
/// to write cookies, or the flow was at the one that is named.
fn doubted<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    named: u16,
    memory: &mut M,
) -> Option<BackendId> {
    let (latest, former) = entry_of(servers, question, memory);
    let latest = latest?;
    if latest == named {
        memory.note_own(latest);
        return None;
    }
    let was_there = former.and_then(|former| servers.backend(former)) == Some(named);
    let believed = memory.echoes(latest) == Echoes { own: true, bare: false };
    (!was_there && !believed).then_some(latest)
}

/// Where the first packet of a connection that has not ended went before. Two of them at two backends
/// would be answered twice, and the cookie is one's; and whoever sends a SYN in the name of a live
/// connection must not move it.
fn again<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Option<BackendId> {
    let number = memory.answered(question)?.live()?;
    let backend = BackendId::new(servers.backend(number)?)?;
    (!memory.is_down(backend)).then_some(backend)
}

/// The same where it has a slot. The slot of one that has ended is given back: the new connection of
/// the flow must not meet it.
fn again_by_slot<K: Key, M: Memory<K>>(
    method: &Stateful,
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Option<(BackendId, u16)> {
    let known = memory.answered(question)?;
    let (index, live) = (known.number(), known.live().is_some());
    let part = method.codec().hide_for(question.hash, index);
    let backend = memory.slot(question, part)?;
    if live && servers.uses(backend.get()) && !memory.is_down(backend) {
        return Some((backend, part));
    }
    memory.close_slot(question, part);
    None
}

/// The first packet of a connection by index whose backend writes the cookie. No answer says how far a
/// connection is, so every flow is in the connection table, too, and its entry names its slot. A known flow
/// follows it unless its backend is down, so that nobody moves a live connection by a SYN in its name; to the
/// same slot, unless that is closing or gone.
fn tell_slot<K: Key, M: Memory<K>>(
    method: &Stateful,
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Decision {
    let said = question.signals.echo.unwrap_or(0);
    let telling = |backend, part| {
        let cookie = method.passed_on(said, part);
        Decision { echo: Some(told(cookie)), ..first(backend, cookie) }
    };
    let latest = entry_of(servers, question, memory).0;
    let latest = latest.filter(|latest| !memory.is_down(*latest));
    if let Some(backend) = latest {
        let index = memory.connection(question).and_then(|entry| entry.former).map(Former::number);
        let part = index.map(|index| method.codec().hide_for(question.hash, index));
        let there = |part: &u16| {
            memory.slot(question, *part) == Some(backend) && !memory.slot_closes(question, *part)
        };
        if let Some(part) = part.filter(there) {
            return telling(backend, part);
        }
    }
    let Some(backend) = latest.or_else(|| pick(method.by(), servers, question, memory)) else {
        return nobody();
    };
    let part = memory.open_slot(question, backend);
    if let Some(incarnation) = memory.incarnation(backend) {
        let index = part.map(|part| method.codec().reveal_for(question.hash, part));
        let entry = TrackedFlow::new(backend, incarnation);
        memory.track(question, TrackedFlow { former: index.map(Former::new), ..entry });
    }
    match part {
        Some(part) => telling(backend, part),
        None => {
            let why = Why::Remembered(NoCookie::TableFull);
            Decision::to(backend.get(), why).new_if(true)
        }
    }
}

/// The TSecr that the backend must get in place of the cookie, which hides this number. `counts`: the
/// backend among whose open connections this one may count.
fn restored<K, M: Memory<K>>(
    number: u16,
    question: &Question<K>,
    counts: Option<u16>,
    memory: &mut M,
) -> Option<u32> {
    let echo = question.signals.valid_echo()?;
    if memory.answered(question).is_none_or(|known| known.number() != number) {
        memory.watch(question, Some(Answered::new(number)));
    }
    let known = memory.answered(question)?;
    let left = question.signals.ends && known.end();
    let echo = known.incoming(echo);
    if let Some(backend) = counts.filter(|_| left).and_then(BackendId::new) {
        memory.count(backend, false);
    }
    Some(echo)
}

/// Whether backends are told cookies, and what those hide.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    No,
    ByNumber,
    BySlot,
}

/// What a table says of its scheduler, and the key of its hash; none where the memory picks.
type By<'a> = Option<(Flags, &'a HashKey)>;

impl Stateless {
    fn by(&self) -> By<'_> {
        let flags = self.scheduling();
        (flags.0 & Flags::SCHEDULER != 0).then(|| (flags, self.codec().key()))
    }
}

impl Stateful {
    fn by(&self) -> By<'_> {
        let flags = self.scheduling();
        (flags.0 & Flags::SCHEDULER != 0).then(|| (flags, self.key()))
    }
}

/// Picks a backend for a new connection. What is not among the serving counts as none.
fn pick<K, M: Memory<K>>(
    by: By<'_>,
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Option<BackendId> {
    let serving = servers.serving();
    let picked = match by {
        None => memory.schedule(question, serving)?,
        Some((flags, key)) => schedule::pick(flags, key, question, serving, memory)?,
    };
    servers.serves(picked.get()).then_some(picked)
}

/// The decision for a packet without a good cookie.
fn without_cookie<K, M: Memory<K>>(
    question: &Question<K>,
    (why, forged, told): (NoCookie, Forged, Told),
    by: By<'_>,
    servers: &ServiceServers,
    memory: &mut M,
) -> Decision {
    let starts = question.signals.starts;
    // A first packet is placed even if the caller knows the flow: it is a new connection on old
    // ports. For a repeated SYN the caller's table says the same as before.
    let known = if starts && told == Told::ByNumber {
        followed(servers, question, memory)
    } else {
        memory.known(question).filter(|backend| {
            servers.uses(backend.get())
                && (!starts || told == Told::BySlot || servers.serves(backend.get()))
        })
    };
    let decision = if let Some(backend) = known {
        Decision::to(backend.get(), Why::Known(why))
    } else {
        if question.signals.quoted {
            return Decision::drop(Reason::UnknownQuote, Why::UnknownQuote);
        }
        let lost = matches!(why, NoCookie::NotOurs | NoCookie::NoSlot);
        if lost && forged == Forged::Refuse {
            return Decision::drop(Reason::NoCookie, Why::Refused(why)).new_if(starts);
        }
        match pick(by, servers, question, memory) {
            None => Decision::drop(Reason::NoBackend, Why::NoBackend),
            Some(backend) if lost || question.signals.reset => {
                Decision::to(backend.get(), Why::Astray(why))
            }
            Some(backend) => {
                if told == Told::ByNumber {
                    note_placed(servers, question, backend, memory);
                } else {
                    memory.remember(question, backend);
                }
                Decision::to(backend.get(), Why::Remembered(why))
            }
        }
    };
    // Where a flow that nobody knew is remembered, it begins as far as anybody can tell.
    decision.new_if(starts || matches!(decision.why, Why::Remembered(_)))
}
