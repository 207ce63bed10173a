//! No memory: the cookie hides the number of the server (paper, section 3.1).

use super::layout::{Codec, Layout};
use super::servers::ServiceServers;
use super::verdict::{Forged, NoCookie, Question, Verdict, pick, without_cookie};
use weir_lookup::HashKey;
use weir_wire::FlowKey;

/// Stateless Cheetah for one service; or, with a layout that leaves a back part, the front of two
/// tiers, whose servers are the stateful balancers behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stateless {
    layout: Layout,
    codec: Codec,
    forged: Forged,
}

impl Stateless {
    /// Cookies under `key`, which must outlive restarts and be the same on all balancers.
    pub fn new(key: HashKey, layout: Layout, forged: Forged) -> Self {
        Self { layout, codec: Codec::new(key, layout.front_bits()), forged }
    }

    /// What hides the numbers; [`AllServers`](super::AllServers) needs to know how many there are.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Where the cookie leads, without anything else being asked.
    ///
    /// # Errors
    /// [`NoCookie::NoTimestamp`] and [`NoCookie::NotOurs`].
    #[inline]
    pub fn read(&self, servers: &ServiceServers, question: &Question) -> Result<u16, NoCookie> {
        let echo = question.valid_echo().ok_or(NoCookie::NoTimestamp)?;
        let number = self.codec.reveal(&question.flow, self.layout.split(echo).front);
        servers.backend(number).ok_or(NoCookie::NotOurs)
    }

    /// The cookie of a flow that lives at `backend`, to put into what the backend sends; `None` if
    /// the service does not use the backend. The back part is zero.
    pub fn cookie(&self, servers: &ServiceServers, flow: &FlowKey, backend: u16) -> Option<u16> {
        let part = self.codec.hide(flow, servers.number(backend)?);
        Some(self.layout.cookie(part, 0))
    }

    /// Decides a packet. `known` asks the caller's table of flows without cookies, `schedule` picks
    /// one of the backends that take new connections; each is called at most once.
    pub fn decide(
        &self,
        servers: &ServiceServers,
        question: &Question,
        known: impl FnOnce() -> Option<u16>,
        schedule: impl FnMut(&[u16]) -> Option<u16>,
    ) -> Verdict {
        if question.flags.starts() && question.echo.is_some() {
            return match pick(servers, schedule) {
                None => Verdict::NoBackend,
                Some(backend) => match self.cookie(servers, &question.flow, backend) {
                    None => Verdict::NoBackend,
                    Some(cookie) => Verdict::First { backend, cookie },
                },
            };
        }
        match self.read(servers, question) {
            Ok(backend) => Verdict::Cookie { backend },
            Err(why) => without_cookie(question, why, self.forged, servers, known, schedule),
        }
    }
}
