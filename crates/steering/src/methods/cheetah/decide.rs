//! The lookup face: the cookie of a packet, or what stands in for it.

use super::servers::ServiceServers;
use super::stateful::Stateful;
use super::stateless::Stateless;
use crate::decide::{Decide, Decision, NoCookie, Question, Why};
use crate::ids::BackendId;
use crate::memory::Memory;
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
            let cookie = |backend: BackendId| {
                Some((backend, method.cookie_for(servers, question.hash, backend.get())?))
            };
            return match pick(servers, question, memory).and_then(cookie) {
                None => nobody(),
                Some((backend, cookie)) => first(backend, cookie),
            };
        }
        match method.read(servers, question) {
            Ok(backend) => Decision::to(backend, Why::Cookie).new_if(question.signals.starts),
            Err(why) => without_cookie(question, why, method.forged(), servers, memory),
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
        if question.signals.starts && question.signals.echo.is_some() {
            return match pick(servers, question, memory) {
                None => nobody(),
                Some(backend) => match memory.open_slot(question, backend) {
                    Some(part) => first(backend, method.cookie(&question.key, part)),
                    // The front still has to find this balancer. No slot will answer.
                    None => {
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
                        let new = question.signals.starts;
                        return Decision::to(backend.get(), Why::Cookie).new_if(new);
                    }
                    // Its backend is gone, and so is the connection.
                    Some(_) => {
                        memory.close_slot(question, part);
                        NoCookie::NotOurs
                    }
                    None => NoCookie::NoSlot,
                }
            }
        };
        without_cookie(question, why, method.forged(), servers, memory)
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

/// Picks a backend for a new connection. What is not among the serving counts as none.
fn pick<K, M: Memory<K>>(
    servers: &ServiceServers,
    question: &Question<K>,
    memory: &mut M,
) -> Option<BackendId> {
    let picked = memory.schedule(question, servers.serving())?;
    servers.serves(picked.get()).then_some(picked)
}

/// The decision for a packet without a good cookie.
fn without_cookie<K, M: Memory<K>>(
    question: &Question<K>,
    why: NoCookie,
    forged: Forged,
    servers: &ServiceServers,
    memory: &mut M,
) -> Decision {
    let starts = question.signals.starts;
    // A first packet is placed even if the caller knows the flow: it is a new connection on old
    // ports. For a repeated SYN the caller's table says the same as before.
    let known = memory.known(question).filter(|backend| {
        servers.uses(backend.get()) && (!starts || servers.serves(backend.get()))
    });
    let decision = if let Some(backend) = known {
        Decision::to(backend.get(), Why::Known(why))
    } else {
        let lost = matches!(why, NoCookie::NotOurs | NoCookie::NoSlot);
        if lost && forged == Forged::Refuse {
            return Decision::drop(Reason::NoCookie, Why::Refused(why)).new_if(starts);
        }
        match pick(servers, question, memory) {
            None => Decision::drop(Reason::NoBackend, Why::NoBackend),
            Some(backend) if lost || question.signals.reset => {
                Decision::to(backend.get(), Why::Astray(why))
            }
            Some(backend) => {
                memory.remember(question, backend);
                Decision::to(backend.get(), Why::Remembered(why))
            }
        }
    };
    decision.new_if(starts)
}
