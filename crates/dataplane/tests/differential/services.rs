//! The control plane's side of the services in the test.

use weir_plane::VipKey;
use weir_steering::update::{Built, Judgement, Services};
use weir_steering::{
    BackendId, Build, BuildError, Concury, Driver, Event, EventKind, Member, ServiceId,
    ServiceState,
};

use crate::twin::Refused;

pub enum Builder {
    Concury(Box<Concury>),
    /// Of another method, by the registry.
    Other(Box<dyn Build>),
    /// A service whose table was never published.
    None,
}

pub struct Service {
    pub number: ServiceId,
    pub vip: VipKey,
    pub client: bool,
    pub members: Vec<Member>,
    /// Backends that are no members any more, and that the published table may lead to.
    pub leaving: Vec<BackendId>,
    pub builder: Builder,
    pub driver: Driver<Refused, BuildError>,
    pub generation: u64,
}

/// All services, by number.
pub struct Tables {
    pub services: Vec<Service>,
    pub now: u32,
}

fn backend(number: u16) -> BackendId {
    BackendId::new(number).expect("a backend's number")
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        let now = self.now;
        let service = &mut self.services[event.state.service.index()];
        let known = service.members.iter().any(|m| m.backend == event.backend);
        match (&mut service.builder, event.kind) {
            (Builder::Concury(concury), EventKind::Start) if known => {
                concury.start(event.state.key, event.backend, now)?;
            }
            (Builder::Other(builder), EventKind::Start) if known => {
                builder.start(event.state.key, event.backend, now)?;
            }
            (Builder::Concury(concury), EventKind::End) => concury.end(&event.state.key, now),
            (Builder::Other(builder), EventKind::End) => builder.end(&event.state.key, now),
            _ => {}
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, at: BackendId) -> Result<(), BuildError> {
        match &mut self.services[state.service.index()].builder {
            Builder::Concury(concury) => {
                concury.start(state.key, at, self.now)?;
            }
            Builder::Other(builder) => {
                builder.start(state.key, at, self.now)?;
            }
            Builder::None => {}
        }
        Ok(())
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        match &self.services[state.service.index()].builder {
            Builder::Concury(concury) => {
                concury.get(&state.key).is_some_and(|known| known.backend == backend)
            }
            Builder::Other(builder) => {
                builder.known(&state.key).is_some_and(|known| known.backend == backend)
            }
            Builder::None => false,
        }
    }

    fn build(&mut self, number: ServiceId) -> Result<Built, BuildError> {
        let service = &mut self.services[number.index()];
        let generation = service.generation + 1;
        match &mut service.builder {
            Builder::Concury(concury) => {
                let (image, report) = concury.draft(generation, &service.members, self.now)?;
                let pins = report.pinned.into_iter();
                let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
                Ok(Built::new(image, pins.collect()))
            }
            Builder::Other(builder) => {
                let made = builder.draft(generation, &service.members, self.now)?;
                let pins = made.pinned.into_iter();
                let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
                Ok(Built::new(made.table, pins.collect()))
            }
            Builder::None => unreachable!("is not updated"),
        }
    }

    fn published(&mut self, number: ServiceId) -> Vec<u64> {
        let service = &mut self.services[number.index()];
        service.generation += 1;
        match &mut service.builder {
            Builder::Concury(concury) => concury.publish_draft(),
            Builder::Other(builder) => builder.publish_draft(),
            Builder::None => unreachable!("is not updated"),
        }
        Vec::new()
    }

    fn discard(&mut self, number: ServiceId) {
        match &mut self.services[number.index()].builder {
            Builder::Concury(concury) => concury.discard_draft().expect("keys differ"),
            Builder::Other(builder) => builder.discard_draft().expect("keys differ"),
            Builder::None => unreachable!("is not updated"),
        }
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let (agreed, reserved) = match &self.services[state.service.index()].builder {
            Builder::Concury(concury) => {
                (concury.agrees(&state.key, backend), concury.on_reserved(&state.key))
            }
            Builder::Other(builder) => (
                builder.agrees(&state.key, self::backend(backend.get())),
                builder.on_reserved(&state.key),
            ),
            Builder::None => (false, true),
        };
        if agreed {
            Judgement::Agreed
        } else if reserved {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}
