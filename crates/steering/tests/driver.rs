//! The driver on a plane that is only memory: many services in one pass, and what becomes of each
//! when something is refused.

use std::collections::{BTreeMap, HashMap};
use weir_plane::{Bounds, Operation, Outcome, Soft, SoftError, VipKey};
use weir_steering::update::{self, Built, Failure, Judgement, Plane as _, Services};
use weir_steering::{
    Action, BackendId, BuildError, Codec, Concury, ConcuryConfig, Driver, Event, EventKind, Flags,
    Member, Role, ServiceId, ServiceState, SoftMemory,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

/// Services with four backends each: service `s` has the numbers `4 s` to `4 s + 3`.
struct Tables {
    services: BTreeMap<ServiceId, (Concury, Vec<Member>)>,
    /// Services that cannot be built.
    broken: Vec<ServiceId>,
    /// Services of which a backend was found down in this pass.
    kept_off: Vec<ServiceId>,
    /// Reports and pending flows that were taken up.
    taken: usize,
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        self.taken += 1;
        let (concury, _) = self.services.get_mut(&event.state.service).expect("known");
        match event.kind {
            EventKind::Start => concury.start(event.state.key, event.backend, 1).map(drop),
            EventKind::End => {
                concury.end(&event.state.key, 1);
                Ok(())
            }
        }
    }

    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), BuildError> {
        self.taken += 1;
        let (concury, _) = self.services.get_mut(&state.service).expect("known");
        concury.start(state.key, backend, 1).map(drop)
    }

    fn keeps_off(&self, service: ServiceId) -> bool {
        self.kept_off.contains(&service)
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        let known = self.services[&state.service].0.get(&state.key);
        known.is_some_and(|known| known.backend == backend)
    }

    fn build(&mut self, service: ServiceId) -> Result<Built, BuildError> {
        if self.broken.contains(&service) {
            return Err(BuildError::TooFewDcodes { members: 4, slots: 2 });
        }
        let (concury, members) = self.services.get_mut(&service).expect("known");
        let (image, report) = concury.draft(1, members, 1)?;
        let pins = report.pinned.into_iter();
        let pins = pins.map(|(key, at)| (ServiceState { service, key }, at)).collect();
        Ok(Built::new(image, pins))
    }

    fn published(&mut self, service: ServiceId) -> Vec<u64> {
        self.services.get_mut(&service).expect("known").0.publish_draft();
        Vec::new()
    }

    fn discard(&mut self, service: ServiceId) {
        self.services.get_mut(&service).expect("known").0.discard_draft().expect("keys differ");
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let (concury, members) = &self.services[&state.service];
        if !members.iter().any(|member| member.backend == backend) {
            Judgement::Lost
        } else if concury.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if concury.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}

type Outcomes = Vec<update::Outcome<Failure<SoftError, BuildError>>>;

struct World {
    plane: Soft,
    tables: Tables,
    driver: Driver<SoftError, BuildError>,
    /// Flows that live, with their backends.
    live: HashMap<FlowKey, BackendId>,
}

fn address(service: u32) -> std::net::SocketAddr {
    let [_, _, high, low] = service.to_be_bytes();
    ([192, 0, high, low], 80).into()
}

fn flow(service: u32, client: u32) -> FlowKey {
    FlowKey::new(
        ((0x0a00_0000 + client).to_be_bytes(), 999).into(),
        address(service),
        Protocol::Tcp,
    )
}

impl World {
    fn new(services: u32) -> Self {
        let mut plane = Soft::new(SoftMemory::new(100_000, 64, 64));
        let mut tables = Tables {
            services: BTreeMap::new(),
            broken: Vec::new(),
            kept_off: Vec::new(),
            taken: 0,
        };
        for service in 0..services {
            let members = (0..4).map(|n| Member {
                backend: BackendId::of((service * 4 + n) as u16),
                name: format!("b{n}"),
                weight: 1,
                role: Role::Serving,
            });
            let config = ConcuryConfig::unbounded(Codec::Othello, 6, service.into());
            tables.services.insert(ServiceId(service), (Concury::new(config), members.collect()));
            let address = flow(service, 0).dst;
            let vip = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
            plane.vips.insert(vip, ServiceId(service));
        }
        let mut world = Self { plane, tables, driver: Driver::new(), live: HashMap::new() };
        let outcomes = world.pass(0..services);
        assert!(outcomes.iter().all(|outcome| outcome.published && !outcome.is_unfinished()));
        world
    }

    fn pass(&mut self, services: impl IntoIterator<Item = u32>) -> Outcomes {
        self.driver.run(services.into_iter().map(ServiceId), &mut self.plane, &mut self.tables)
    }

    /// Flows start.
    fn start(&mut self, service: u32, clients: std::ops::Range<u32>) {
        for client in clients {
            let flow = flow(service, client);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            match self.plane.process(&frame) {
                Outcome::Forwarded(backend) => {
                    self.live.insert(flow, backend);
                }
                other => panic!("{flow}: {other:?}"),
            }
        }
    }

    /// Every packet of a live flow, first ones repeated, goes where the flow lives.
    fn check(&mut self) {
        for (flow, backend) in &self.live {
            for flags in [TcpFlags::ACK, TcpFlags::SYN] {
                let frame = Frame::new(*flow).tcp_flags(flags).build();
                assert_eq!(self.plane.process(&frame), Outcome::Forwarded(*backend), "{flow}");
            }
        }
    }

    fn drain(&mut self, service: u32, which: usize) -> BackendId {
        let (_, members) = self.tables.services.get_mut(&ServiceId(service)).expect("known");
        members[which].role = Role::Draining;
        members[which].backend
    }

    fn records(&self, service: u32) -> bool {
        self.plane.tables[&ServiceId(service)].header().flags().has(Flags::RECORD)
    }
}

#[test]
fn a_thousand_services_wait_as_often_as_one() {
    let mut one = World::new(1);
    let mut many = World::new(1_000);
    let mut waits = Vec::new();
    for world in [&mut one, &mut many] {
        let services = world.tables.services.len() as u32;
        for service in 0..services {
            world.start(service, 0..3);
            world.drain(service, 0);
        }
        let asked = |world: &World| {
            [Operation::Grace, Operation::Drain, Operation::ReadPending, Operation::ReadPins]
                .map(|operation| world.plane.asked(operation))
        };
        let before = asked(world);
        let outcomes = world.pass(0..services);
        assert_eq!(outcomes.len() as u32, services);
        assert!(outcomes.iter().all(|outcome| outcome.published && !outcome.is_unfinished()));
        let after = asked(world);
        waits.push([0, 1, 2, 3].map(|at| after[at] - before[at]));
        world.check();
    }
    println!("grace periods, drains, reads of pending, reads of pins: {waits:?}");
    assert_eq!(waits[0], waits[1]);
    assert_eq!(waits[0][0], 3);
}

/// Each operation is refused, from its first to its last in a pass, and often enough to be given
/// up: the services follow whole tables, none records, no flow is lost, and the next pass makes
/// up for it.
#[test]
fn whatever_is_refused_no_flow_is_lost() {
    use Operation::*;
    let mut seen = 0;
    for operation in
        [SetFlags, Grace, Drain, ReadPending, ForgetPending, ReadPins, Pin, Unpin, Show]
    {
        for granted in 0..40 {
            for refused in [1, 2, 3, 20] {
                let mut world = World::new(3);
                for service in 0..3 {
                    world.start(service, 0..30);
                }
                world.drain(1, 2);
                world.pass(0..3);
                world.start(1, 30..40);
                let draining = [world.drain(0, 0), world.drain(1, 1), world.drain(2, 3)];
                world.plane.refuse_after(operation, granted, refused);
                let outcomes = world.pass(0..3);
                world.plane.refuse_nothing();
                seen += outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
                for outcome in &outcomes {
                    // Only what cannot be cleared, however often it is tried, stays.
                    let flags_failed = operation == SetFlags && outcome.loose;
                    assert!(flags_failed || !world.records(outcome.service.0), "{operation:?}");
                }
                world.check();
                for service in 0..3 {
                    world.start(service, 100..110);
                }
                world.check();
                let again: Vec<u32> = outcomes
                    .iter()
                    .filter(|outcome| outcome.is_unfinished())
                    .map(|outcome| outcome.service.0)
                    .collect();
                for outcome in world.pass(again) {
                    assert!(outcome.published && !outcome.is_unfinished(), "{operation:?}");
                }
                world.check();
                for service in 0..3 {
                    assert!(!world.records(service), "{operation:?}");
                    world.live.clear();
                    world.start(service, 200..260);
                    assert!(world.live.values().all(|backend| !draining.contains(backend)));
                }
                assert!(world.plane.former.is_empty(), "room of an old table is left");
            }
        }
    }
    println!("{seen} services whose update failed");
    assert!(seen > 100);
}

#[test]
fn a_service_that_cannot_be_built_does_not_touch_the_others() {
    let mut world = World::new(5);
    for service in 0..5 {
        world.start(service, 0..20);
        world.drain(service, 1);
    }
    let before = world.plane.tables[&ServiceId(2)].header().digest;
    world.tables.broken.push(ServiceId(2));
    for outcome in world.pass(0..5) {
        assert_eq!(outcome.published, outcome.service != ServiceId(2));
        match outcome.failure {
            Some(Failure::Service { action, source }) => {
                assert_eq!((outcome.service, action), (ServiceId(2), Action::Publish));
                assert_eq!(*source, BuildError::TooFewDcodes { members: 4, slots: 2 });
            }
            other => assert!(other.is_none() && outcome.service != ServiceId(2)),
        }
        assert!(!world.records(outcome.service.0));
    }
    assert_eq!(world.plane.tables[&ServiceId(2)].header().digest, before);
    world.check();
    // A table that was built and not published counts for nothing.
    world.tables.broken.clear();
    assert!(world.pass([2])[0].published);
    world.check();
}

/// A backend is found down before each step of a pass in turn, and flows start before each: those that it does not
/// get stay where they are placed instead, also when the pass is over and the next one has not begun.
#[test]
fn whoever_is_kept_from_a_backend_stays_where_it_went() {
    const STEPS: usize = 32;
    let (mut went, mut pending) = (0, 0);
    for (mark, begin) in (0..STEPS).flat_map(|mark| (0..STEPS).map(move |begin| (mark, begin))) {
        let mut world = World::new(2);
        (0..2).for_each(|service| world.start(service, 0..20));
        world.drain(0, 1);
        world.driver.begin([ServiceId(0), ServiceId(1)]);
        let down = world.tables.services[&ServiceId(0)].1[0].backend;
        let (mut marked, mut settled, mut steps) = (false, false, 0);
        loop {
            if steps >= mark && !marked && !world.driver.is_clearing() {
                world.plane.memory.down.insert(down);
                world.tables.kept_off.push(ServiceId(0));
                marked = true;
            }
            if steps == begin {
                world.start(0, 100..130);
                went += usize::from(marked);
            }
            if marked {
                // What goes there all the same, as packets do not ask for pending flows, is lost.
                world.live.retain(|_, backend| *backend != down);
            }
            world.check();
            let Some(action) = world.driver.step(&mut world.plane, &mut world.tables) else {
                break;
            };
            settled |= marked && action == Action::Settle;
            steps += 1;
        }
        assert!(steps < STEPS);
        assert!(world.driver.outcomes().iter().all(|outcome| outcome.published));
        let asks =
            |world: &World| world.plane.tables[&ServiceId(0)].header().flags().has(Flags::PENDING);
        assert_eq!(asks(&world), settled, "{mark} of {steps}");
        pending += usize::from(asks(&world));
        // The next one knows.
        world.tables.kept_off.clear();
        world.tables.services.get_mut(&ServiceId(0)).expect("there").1[0].role = Role::Down;
        assert!(world.pass([0]).iter().all(|outcome| outcome.published));
        assert!(!asks(&world), "packets ask for flows that nobody notes");
        world.live.retain(|_, backend| *backend != down);
        world.check();
    }
    println!("flows began {went} times; packets went on asking after {pending} passes");
}

/// With room for one table more than there are, a pass goes on as others retire theirs.
#[test]
fn services_wait_for_the_room_that_others_leave() {
    let mut world = World::new(8);
    for service in 0..8 {
        world.start(service, 0..20);
        world.drain(service, 1);
    }
    let tables = world.plane.table_bytes();
    let one = world.plane.tables.values().map(|image| image.bytes()).max().expect("eight");
    world.plane.bounds = Bounds { table_bytes: tables + one * 2, ..Bounds::default() };
    let outcomes = world.pass(0..8);
    assert!(outcomes.iter().all(|outcome| outcome.published && !outcome.is_unfinished()));
    world.check();
    // Without any, each says so and stays as it is.
    world.plane.bounds.table_bytes = world.plane.table_bytes();
    for service in 0..8 {
        world.drain(service, 2);
    }
    for outcome in world.pass(0..8) {
        assert!(!outcome.published && !outcome.loose && !world.records(outcome.service.0));
        let Some(Failure::Plane { action, source }) = outcome.failure else { panic!("no reason") };
        assert_eq!((action, *source), (Action::Publish, SoftError::Full(Operation::Show)));
    }
    world.check();
}

/// A service whose pins find no room is refused, with none of them left, and the others go on.
#[test]
fn pins_without_room_are_taken_back() {
    let mut world = World::new(3);
    world.start(0, 0..400);
    (1..3).for_each(|service| world.start(service, 0..20));
    for service in 0..3 {
        world.drain(service, 0);
    }
    world.plane.bounds.pins = 60;
    for outcome in world.pass(0..3) {
        assert_eq!(outcome.published, outcome.service != ServiceId(0), "{outcome:?}");
        assert!(!world.records(outcome.service.0));
    }
    assert!(world.plane.memory.pinned.keys().all(|state| state.service != ServiceId(0)));
    world.check();
    world.plane.bounds.pins = 1_000;
    assert!(world.pass([0])[0].published);
    assert!(world.plane.memory.pinned.keys().any(|state| state.service == ServiceId(0)));
    world.check();
}

/// However many reports there are, no step takes long; whatever comes meanwhile, however fast, they come to an end; and
/// what was there at the beginning is known, and so is what was not.
#[test]
fn what_a_flood_reports_is_collected_in_parts() {
    /// More than one step may take up.
    const MOST: usize = 10_000;
    let mut world = World::new(2);
    world.plane.memory.pending_limit = usize::MAX;
    world.start(0, 0..40_000);
    world.drain(0, 1);
    world.driver.begin([ServiceId(0)]);
    let (mut parts, mut next, mut pending) = (0, 0, 40_000);
    loop {
        let before = world.tables.taken;
        let Some(action) = world.driver.step(&mut world.plane, &mut world.tables) else { break };
        let taken = world.tables.taken - before;
        assert!(taken <= MOST, "{taken} by one step");
        if action == Action::Collect {
            parts += 1;
            assert!(parts < 400, "it goes on for as long as there are reports");
            // Faster than they are taken.
            world.start(1, next..next + 12_000);
            next += 12_000;
            // Those of this service come to an end, as otherwise some are pending still.
            if parts < 10 {
                world.start(0, pending..pending + 500);
                pending += 500;
            }
        }
    }
    println!("{parts} parts, {next} flows of another service, {} of this one", pending - 40_000);
    assert!(parts > 5);
    assert!(world.driver.outcomes().iter().all(|one| one.published && !one.is_unfinished()));
    assert!(!world.records(0));
    world.check();
    world.drain(1, 0);
    assert!(world.pass(0..2).iter().all(|one| one.published));
    world.check();
}

/// Reports are taken up between any two steps, and while a table is built that does not know of them, also if that is
/// thrown away: the next one does.
#[test]
fn what_is_reported_beside_a_draft_is_in_the_next_table() {
    for fails in [false, true] {
        let mut world = World::new(1);
        world.start(0, 0..200);
        let mut next = 200;
        for round in 0..6 {
            world.drain(0, round % 3);
            let (_, members) = world.tables.services.get_mut(&ServiceId(0)).expect("known");
            members[(round + 1) % 3].role = Role::Serving;
            world.driver.begin([ServiceId(0)]);
            loop {
                if let Some(service) = world.driver.builds() {
                    let built = world.tables.build(service);
                    // It begins, and is taken up, beside the draft.
                    world.start(0, next..next + 30);
                    next += 30;
                    let World { plane, tables, .. } = &mut world;
                    plane.drain(&mut |event| tables.report(event).expect("there is room")).unwrap();
                    world.driver.built(service, built);
                    if fails && round % 2 == 0 {
                        world.plane.refuse_after(Operation::Show, 0, 1);
                    }
                }
                world.check();
                if world.driver.step(&mut world.plane, &mut world.tables).is_none() {
                    break;
                }
            }
            world.driver.outcomes();
            world.check();
        }
        assert!(next > 300);
    }
}
