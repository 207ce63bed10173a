//! The control plane's side of the services.

use weir_steering::update::{Built, Judgement, Services};
use weir_steering::{
    BackendId, Build, BuildError, Driver, Event, EventKind, Member, MethodId, ServiceConfig,
    ServiceId, ServiceState, Settings,
};

/// Seconds after which the software forgets a connection that is silent.
pub const IDLE_SECONDS: u32 = 20;

pub struct Service {
    pub method: MethodId,
    pub builder: Box<dyn Build>,
    pub members: Vec<Member>,
    pub driver: Driver<weir_plane::SoftError, BuildError>,
    generation: u64,
}

pub struct Tables {
    pub services: Vec<Service>,
    pub now: u32,
}

impl Service {
    /// `client_affinity`: all connections of a client are at one backend.
    pub fn new(method: MethodId, client_affinity: bool, seed: u64) -> Self {
        let mut settings = Settings::of(method);
        for setting in method.info().settings {
            // Small tables: many connections share rows.
            let small = setting.words.is_empty()
                && (setting.range.0..=setting.range.1).contains(&251)
                && setting.name != weir_steering::cheetah::PARTITIONS;
            if small {
                settings.set(setting.name, 251).expect("it is in range");
            }
        }
        let config = ServiceConfig {
            settings,
            client_affinity,
            udp: false,
            seed,
            nonce: 0,
            capacity: 64,
            max_states: 100_000,
            idle_seconds: IDLE_SECONDS,
        };
        let builder = method.info().builder.expect("it is published")(&config, None);
        Self { method, builder, members: Vec::new(), driver: Driver::new(), generation: 0 }
    }
}

impl Tables {
    fn of(&mut self, service: ServiceId) -> &mut Service {
        &mut self.services[service.index()]
    }
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        let now = self.now;
        let service = self.of(event.state.service);
        let known = service.members.iter().any(|member| member.backend == event.backend);
        match event.kind {
            EventKind::Start if known => {
                service.builder.start(event.state.key, event.backend, now)?;
            }
            EventKind::Start => {}
            EventKind::End => service.builder.end(&event.state.key, now),
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, at: BackendId) -> Result<(), BuildError> {
        let now = self.now;
        let service = self.of(state.service);
        if service.members.iter().any(|member| member.backend == at) {
            service.builder.start(state.key, at, now)?;
        }
        Ok(())
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        let known = self.services[state.service.index()].builder.known(&state.key);
        known.is_some_and(|known| known.backend == backend)
    }

    fn build(&mut self, number: ServiceId) -> Result<Built, BuildError> {
        let now = self.now;
        let service = self.of(number);
        let made = service.builder.draft(service.generation + 1, &service.members, now)?;
        let pins = made.pinned.into_iter();
        let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
        Ok(Built::new(made.table, pins.collect()))
    }

    fn published(&mut self, number: ServiceId) -> Vec<u64> {
        let service = self.of(number);
        service.generation += 1;
        service.builder.publish_draft();
        Vec::new()
    }

    fn discard(&mut self, number: ServiceId) {
        self.of(number).builder.discard_draft().expect("keys differ");
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let service = &self.services[state.service.index()];
        if !service.members.iter().any(|member| member.backend == backend) {
            Judgement::Lost
        } else if service.builder.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if service.builder.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}
