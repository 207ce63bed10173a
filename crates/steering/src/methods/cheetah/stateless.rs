//! No memory: the cookie hides the number of the server (paper, section 3.1).

use super::decide::Forged;
use super::keys::CookieKeys;
use super::layout::{Codec, Layout};
use super::servers::ServiceServers;
use crate::decide::{NoCookie, Question};
use crate::table::Flags;
use weir_hash::{HashKey, Key};

/// Stateless Cheetah for one service; or, with a layout that leaves a back part, the front of two
/// tiers, whose servers are the stateful balancers behind. With its servers it is a
/// [`Table`](super::Table).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stateless {
    layout: Layout,
    codec: Codec,
    forged: Forged,
    answers: bool,
    tells: bool,
    scheduling: Flags,
    keys: Option<CookieKeys>,
}

impl Stateless {
    /// Cookies under `key`, which must outlive restarts and be the same on all balancers.
    pub fn new(key: HashKey, layout: Layout, forged: Forged) -> Self {
        let codec = Codec::new(key, layout.front_bits());
        let (answers, tells, scheduling) = (false, false, Flags::default());
        Self { layout, codec, forged, answers, tells, scheduling, keys: None }
    }

    /// The same, where the lowest bit of this tier's part of a cookie says under which of two keys the others hide the
    /// number. There are half as many numbers then.
    #[must_use]
    pub fn with_keys(self, keys: Option<CookieKeys>) -> Self {
        let bits = self.layout.front_bits().saturating_sub(keys.is_some().into());
        Self { codec: Codec::new(*self.codec.key(), bits), keys, ..self }
    }

    /// The keys that may change, if they are told apart.
    pub fn keys(&self) -> Option<CookieKeys> {
        self.keys
    }

    /// The same, where the balancer itself writes cookies into the answers, which pass it, and keeps
    /// what it displaces ([`Answered`](super::Answered)).
    #[must_use]
    pub fn with_answers(self, answers: bool) -> Self {
        Self { answers, ..self }
    }

    /// The same, where backends write cookies into their answers, and first packets
    /// [tell](super::told) them.
    #[must_use]
    pub fn with_told(self, tells: bool) -> Self {
        Self { tells, ..self }
    }

    /// The same, where first packets go where a scheduler says, by what these flags say of it.
    #[must_use]
    pub(super) fn scheduled(self, flags: Flags) -> Self {
        Self { scheduling: Flags(flags.0 & (Flags::SCHEDULER | Flags::COUNTS)), ..self }
    }

    /// What the table's flags say of its scheduler.
    pub(super) fn scheduling(&self) -> Flags {
        self.scheduling
    }

    /// Whether the balancer writes the cookies.
    pub fn answers(&self) -> bool {
        self.answers
    }

    /// Whether backends write the cookies, and first packets tell them.
    pub fn tells(&self) -> bool {
        self.tells
    }

    /// What hides the numbers; [`AllServers`](super::AllServers) needs to know how many there are.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// How the 16 bits are shared out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What becomes of packets whose cookies are no good.
    pub fn forged(&self) -> Forged {
        self.forged
    }

    /// Where the cookie of a packet leads, without anything else being asked. The question's hash
    /// is under the [`codec`](Self::codec)'s key.
    ///
    /// # Errors
    /// [`NoCookie::NoTimestamp`] and [`NoCookie::NotOurs`].
    #[inline]
    pub fn read<K>(
        &self,
        servers: &ServiceServers,
        question: &Question<K>,
    ) -> Result<u16, NoCookie> {
        let echo = question.signals.valid_echo().ok_or(NoCookie::NoTimestamp)?;
        let part = self.layout.split(echo).front;
        let number = match &self.keys {
            None => Some(self.codec.reveal_for(question.hash, part)),
            Some(keys) => keys.reveal(&self.codec, question.hash, part),
        };
        number.and_then(|number| servers.backend(number)).ok_or(NoCookie::NotOurs)
    }

    /// The cookie of a flow that lives at `backend`, to put into what the backend sends; `None` if
    /// the service does not use the backend. The back part is zero.
    pub fn cookie<K: Key>(&self, servers: &ServiceServers, flow: &K, backend: u16) -> Option<u16> {
        self.cookie_for(servers, flow.hash(self.codec.key()), backend)
    }

    /// The same of a flow with this hash under the [`codec`](Self::codec)'s key.
    #[inline]
    pub fn cookie_for(&self, servers: &ServiceServers, hash: u64, backend: u16) -> Option<u16> {
        let number = servers.number(backend)?;
        let part = match &self.keys {
            None => self.codec.hide_for(hash, number),
            Some(keys) => keys.hide(&self.codec, hash, number)?,
        };
        Some(self.layout.cookie(part, 0))
    }
}
