//! The control plane's side of the services in the test.

use weir_plane::VipKey;
use weir_steering::update::{Built, Judgement, Services};
use weir_steering::{Build, BuildError, Concury, Driver, Event, EventKind, Member, ServiceState};

use crate::twin::Refused;

pub enum Builder {
    Concury(Box<Concury>),
    /// Of a method without states.
    Stateless(Box<dyn Build>),
    /// A service whose table was never published.
    None,
}

pub struct Service {
    pub number: u32,
    pub vip: VipKey,
    pub client: bool,
    pub members: Vec<Member>,
    /// Backends that are no members any more, and that the published table may lead to.
    pub leaving: Vec<u16>,
    pub builder: Builder,
    pub driver: Driver<Refused, BuildError>,
    pub generation: u64,
}

/// All services, by number.
pub struct Tables {
    pub services: Vec<Service>,
    pub now: u32,
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        let now = self.now;
        let service = &mut self.services[event.state.service as usize];
        let known = service.members.iter().any(|m| m.backend == event.backend);
        let Builder::Concury(concury) = &mut service.builder else { return Ok(()) };
        match event.kind {
            EventKind::Start if known => {
                concury.start(event.state.key, event.backend, now)?;
            }
            EventKind::Start => {}
            EventKind::End => concury.end(&event.state.key, now),
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, backend: u16) -> Result<(), BuildError> {
        if let Builder::Concury(concury) = &mut self.services[state.service as usize].builder {
            concury.start(state.key, backend, self.now)?;
        }
        Ok(())
    }

    fn knows(&self, state: &ServiceState, backend: u16) -> bool {
        match &self.services[state.service as usize].builder {
            Builder::Concury(concury) => {
                concury.get(&state.key).is_some_and(|known| known.backend == backend)
            }
            _ => false,
        }
    }

    fn build(&mut self, number: u32) -> Result<Built, BuildError> {
        let service = &mut self.services[number as usize];
        let generation = service.generation + 1;
        match &mut service.builder {
            Builder::Concury(concury) => {
                let (image, report) = concury.draft(generation, &service.members, self.now)?;
                let pins = report.pinned.into_iter();
                let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
                Ok(Built { image, pins: pins.collect() })
            }
            Builder::Stateless(builder) => {
                let image = builder.draft(generation, &service.members, self.now)?.table;
                Ok(Built { image, pins: Vec::new() })
            }
            Builder::None => unreachable!("is not updated"),
        }
    }

    fn published(&mut self, number: u32) -> Vec<u64> {
        let service = &mut self.services[number as usize];
        service.generation += 1;
        match &mut service.builder {
            Builder::Concury(concury) => concury.publish_draft(),
            Builder::Stateless(builder) => builder.publish_draft(),
            Builder::None => unreachable!("is not updated"),
        }
        Vec::new()
    }

    fn discard(&mut self, number: u32) {
        match &mut self.services[number as usize].builder {
            Builder::Concury(concury) => concury.discard_draft().expect("keys differ"),
            Builder::Stateless(builder) => builder.discard_draft().expect("it has no states"),
            Builder::None => unreachable!("is not updated"),
        }
    }

    fn judge(&self, state: &ServiceState, backend: u16) -> Judgement {
        let Builder::Concury(concury) = &self.services[state.service as usize].builder else {
            return Judgement::Reserved;
        };
        if concury.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if concury.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}
