//! Where QUIC packets go by their destination id: the twin of `bpf/quic.h`.

use std::collections::BTreeMap;
use std::fmt;
use weir_steering::BackendId;
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs, ROTATION_SHIFT, Unroutable, routing_id};

/// What leads packets of one service by their QUIC ids: how an id is taken apart, and which backend
/// each server id stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRoutes {
    configs: QuicLbConfigs,
    servers: BTreeMap<(u8, Id), BackendId>,
}

/// Why an id leads nowhere; the service's method decides then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotLed {
    /// It is too short for a QUIC packet, or has an id that is longer than 20 bytes.
    #[error("the datagram has no QUIC id that could be routed by")]
    NoId,
    /// The id does not say which server it is of.
    #[error(transparent)]
    Unroutable(#[from] Unroutable),
    /// It names a server that there is not: the client has made it, or its backend is gone.
    #[error(
        "the connection id names server {server:?} in configuration {config}, which is none of the service's"
    )]
    NoServer {
        /// Number of its configuration.
        config: u8,
        /// The server id that it decodes to.
        server: Id,
    },
    /// The backend of the server is not in the data plane any more.
    #[error("the connection id is of a backend that has just gone")]
    Gone,
}

/// What became of the ids of packets. As the kernel's program counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum IdOutcome {
    /// It was decoded before, and the processor remembered to what.
    Remembered,
    /// It was decoded.
    Decoded,
    /// [`NotLed::NoId`].
    NoId,
    /// [`Unroutable::Unconfigured`] or [`Unroutable::UnknownConfig`].
    Unconfigured,
    /// [`Unroutable::Empty`] or [`Unroutable::TooShort`].
    TooShort,
    /// [`NotLed::NoServer`].
    NoServer,
    /// [`NotLed::Gone`].
    Gone,
}

impl IdOutcome {
    /// All, by their numbers.
    pub const ALL: [Self; 7] = [
        Self::Remembered,
        Self::Decoded,
        Self::NoId,
        Self::Unconfigured,
        Self::TooShort,
        Self::NoServer,
        Self::Gone,
    ];

    /// In snake case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Remembered => "remembered",
            Self::Decoded => "decoded",
            Self::NoId => "no_id",
            Self::Unconfigured => "unconfigured",
            Self::TooShort => "too_short",
            Self::NoServer => "no_server",
            Self::Gone => "gone",
        }
    }

    /// As a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Remembered => "led by an id that this processor has decoded lately",
            Self::Decoded => "led by an id that was decoded",
            Self::NoId => "no QUIC packet with an id that could be routed by; the method decided",
            Self::Unconfigured => "an id of a configuration that is not set; the method decided",
            Self::TooShort => "an id shorter than its configuration makes them; the method decided",
            Self::NoServer => "an id of no server, as clients make them; the method decided",
            Self::Gone => "an id of a backend that has just gone; the method decided",
        }
    }

    /// What becomes of an id that leads somewhere for the first time, or nowhere.
    pub fn of<T>(led: &Result<T, NotLed>) -> Self {
        match led {
            Ok(_) => Self::Decoded,
            Err(NotLed::NoId) => Self::NoId,
            Err(NotLed::Unroutable(Unroutable::Unconfigured | Unroutable::UnknownConfig(_))) => {
                Self::Unconfigured
            }
            Err(NotLed::Unroutable(Unroutable::Empty | Unroutable::TooShort { .. })) => {
                Self::TooShort
            }
            Err(NotLed::NoServer { .. }) => Self::NoServer,
            Err(NotLed::Gone) => Self::Gone,
        }
    }
}

impl fmt::Display for IdOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

/// Packets by what became of their ids.
pub type IdOutcomes = BTreeMap<IdOutcome, u64>;

impl IdRoutes {
    /// No servers yet.
    pub fn new(configs: QuicLbConfigs) -> Self {
        Self { configs, servers: BTreeMap::new() }
    }

    /// Leads ids of this server, in the configuration of this number, to a backend. The server id
    /// has the configuration's length; of two backends with one id the later one counts.
    pub fn lead(&mut self, config: u8, server: Id, backend: BackendId) {
        self.servers.insert((config, server), backend);
    }

    /// How ids are taken apart.
    pub fn configs(&self) -> impl Iterator<Item = &QuicLb> {
        self.configs.iter()
    }

    /// The servers: number of the configuration, server id, backend.
    pub fn servers(&self) -> impl Iterator<Item = (u8, &Id, BackendId)> {
        self.servers.iter().map(|((config, server), backend)| (*config, server, *backend))
    }

    /// The backend that a destination id leads to, and its configuration and server id.
    ///
    /// # Errors
    /// [`NotLed`].
    pub fn route(&self, id: &Id) -> Result<(BackendId, u8, Id), NotLed> {
        let server = self.configs.decode(id.as_bytes())?;
        let config = id.as_bytes()[0] >> ROTATION_SHIFT;
        let backend = self.servers.get(&(config, server));
        backend.map(|&at| (at, config, server)).ok_or(NotLed::NoServer { config, server })
    }

    /// The same of a whole datagram, the payload of a UDP packet.
    ///
    /// # Errors
    /// [`NotLed`].
    pub fn route_datagram(&self, payload: &[u8]) -> Result<BackendId, NotLed> {
        let id = routing_id(payload).ok_or(NotLed::NoId)?;
        self.route(&id).map(|(backend, ..)| backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_numbered_in_their_order() {
        for (number, outcome) in IdOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
        }
    }

    #[test]
    fn old_and_new_configurations_lead_side_by_side() {
        let old = QuicLb::new(0, 1, 7, None).expect("it is in range");
        let new = QuicLb::new(1, 3, 6, Some([7; 16])).expect("it is in range");
        let mut configs = QuicLbConfigs::default();
        configs.set(old.clone());
        configs.set(new.clone());
        let mut routes = IdRoutes::new(configs);
        let id = |bytes: &[u8]| Id::new(bytes).expect("it is short");
        routes.lead(0, id(&[9]), BackendId::of(4));
        routes.lead(1, id(&[9, 9, 9]), BackendId::of(4));
        let made = old.encode(&[9], &[1; 7], 0).expect("its lengths");
        assert_eq!(routes.route(&made), Ok((BackendId::of(4), 0, id(&[9]))));
        let made = new.encode(&[9, 9, 9], &[1; 6], 0).expect("its lengths");
        assert_eq!(routes.route(&made), Ok((BackendId::of(4), 1, id(&[9, 9, 9]))));
        let made = old.encode(&[8], &[1; 7], 0).expect("its lengths");
        let nobody = NotLed::NoServer { config: 0, server: id(&[8]) };
        assert_eq!(routes.route(&made), Err(nobody));
        assert_eq!(IdOutcome::of(&routes.route(&made)), IdOutcome::NoServer);
        assert_eq!(routes.route_datagram(&[0x40; 20]), Err(NotLed::NoId));
    }
}
