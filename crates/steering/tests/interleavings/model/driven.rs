//! A state as the driver's plane and its services, and the driver's parts on them.

use super::fault::Fault;
use super::state::{Entry, Flow, Op, Stage, State};
use super::{CPUS, NONE, PENDING, RECORD, Rules};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};
use weir_hash::HashKey;
use weir_steering::update::parts::{
    self, Collected, Collecting, Found, Kept, Part, Pins, Publishing,
};
use weir_steering::update::{Built, Draining, Judgement, Plane, Progress, Services};
use weir_steering::{
    BackendId, Event, EventKind, Flags, Image, Member, Role, ServiceId, ServiceState, StateKey,
    TrackedBuilder,
};

/// The service.
pub(super) const SERVICE: ServiceId = ServiceId(7);

/// It could not be done.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("refused")]
pub(super) struct Refused;

/// Some table: what a flow finds in it is the state's.
static IMAGE: LazyLock<Arc<Image>> = LazyLock::new(|| {
    let (backend, name) = (BackendId::of(1), "b1".to_owned());
    let member = Member { backend, name, weight: 1, role: Role::Serving };
    let builder = TrackedBuilder::new(HashKey::from_seed(1), 11, false);
    Arc::new(builder.build(1, &[member]).expect("a prime"))
});

fn key(at: usize) -> ServiceState {
    let mut address = [0; 16];
    address[0] = at as u8;
    ServiceState { service: SERVICE, key: StateKey { address, ..StateKey::default() } }
}

fn flow_of(state: &ServiceState) -> usize {
    usize::from(state.key.address[0])
}

fn backend(name: u8) -> BackendId {
    BackendId::of(name.into())
}

fn name(backend: BackendId) -> u8 {
    backend.get() as u8
}

/// What a part meets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meets {
    /// It comes to this flow's report next, and the pending table has been read; if not, all of a call happens at
    /// once.
    pub(super) at: Option<usize>,
    /// What the plane is asked to write fails; of pins, when these have been written or removed.
    pub(super) fails: Option<u8>,
}

/// A state while a part of the driver works on it.
struct World<'a> {
    state: RefCell<State>,
    rules: &'a Rules,
    meets: Meets,
    /// The flows whose pins it was asked to write or remove.
    asked: Cell<u8>,
}

impl World<'_> {
    fn each(&self, of: impl Fn(&Flow) -> u8) -> Vec<(ServiceState, BackendId)> {
        let state = self.state.borrow();
        let flows = state.flows[..self.rules.flows].iter().map(of).enumerate();
        let there = flows.filter(|(_, at)| *at != NONE);
        there.map(|(flow, at)| (key(flow), backend(at))).collect()
    }

    fn write(&self, pins: impl Iterator<Item = (usize, u8)>, ignored: bool) -> Result<(), Refused> {
        let fails = self.meets.fails;
        for (at, to) in pins {
            self.asked.set(self.asked.get() | 1 << at);
            if fails.is_none_or(|written| written >> at & 1 == 1) && !ignored {
                self.state.borrow_mut().flows[at].pinned = to;
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), Refused> {
        if self.meets.fails.is_some() { Err(Refused) } else { Ok(()) }
    }
}

/// The data plane.
pub(super) struct Maps<'a>(&'a World<'a>);

/// What the control plane knows.
pub(super) struct Known<'a>(&'a World<'a>);

impl Plane for Maps<'_> {
    type Error = Refused;

    fn is_full(_: &Refused) -> bool {
        false
    }

    fn set_flags(&mut self, _: ServiceId, record: bool, pending: bool) -> Result<(), Refused> {
        self.0.check()?;
        let flags = Flags::default().with(Flags::RECORD, record).with(Flags::PENDING, pending);
        self.0.state.borrow_mut().set_flags(self.0.rules, flags.0 as u8);
        Ok(())
    }

    fn freeze(&mut self, _: ServiceId, _: bool) -> Result<(), Refused> {
        Ok(())
    }

    fn grace(&mut self) -> Result<(), Refused> {
        self.0.check()
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Refused> {
        let mut draining = Draining::default();
        while self.drain_part(&mut draining, take)? {}
        Ok(())
    }

    /// Those that are there when it begins are certain to be taken. One is handed over, and consumed afterwards.
    /// (`left`: the flows whose reports they are, a bit for each.)
    fn drain_part(
        &mut self,
        draining: &mut Draining,
        take: &mut dyn FnMut(&Event),
    ) -> Result<bool, Refused> {
        let World { state, rules, meets, .. } = self.0;
        self.0.check()?;
        if matches!(rules.fault, Fault::NoReports | Fault::NoCollect) {
            return Ok(false);
        }
        let Some(left) = draining.left else {
            let there = self.0.each(|flow| flow.report);
            let left = there.iter().fold(0, |left, (state, _)| left | 1 << flow_of(state));
            draining.left = Some(left);
            return Ok(left != 0);
        };
        let at = meets.at.unwrap_or(left.trailing_zeros() as usize);
        let early = rules.fault == Fault::ConsumeBeforeLog;
        let flow = state.borrow().flows[at];
        if flow.todo != 2 {
            let (state, backend) = (key(at), backend(flow.report));
            take(&Event { state, backend, kind: EventKind::Start });
        }
        let flow = &mut state.borrow_mut().flows[at];
        if flow.todo == 2 && early {
            flow.log = flow.state;
        } else if early || flow.todo == 2 && flow.report == flow.log {
            // A later report of the same key stays for the next time. One to the same backend is one with it, and is
            // heard of by that.
            (flow.report, flow.idle) = (NONE, false);
        }
        let consumed = flow.todo == 2;
        flow.todo = if consumed { 0 } else { 2 };
        let left = left & !(usize::from(consumed) << at);
        draining.left = Some(left);
        Ok(left != 0)
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Refused> {
        self.0.check()?;
        let read = self.0.meets.at.is_some();
        Ok(self.0.each(|flow| if read { flow.found } else { flow.pending }))
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Refused> {
        let mut state = self.0.state.borrow_mut();
        states.iter().for_each(|gone| state.flows[flow_of(gone)].pending = NONE);
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Refused> {
        Ok(self.0.each(|flow| flow.pinned))
    }

    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Refused> {
        let ignored = matches!(self.0.rules.fault, Fault::NoPins | Fault::PinAfterPublish);
        self.0.write(pins.iter().map(|(state, to)| (flow_of(state), name(*to))), ignored)
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Refused> {
        let ignored = self.0.rules.fault == Fault::NeverUnpin;
        self.0.write(states.iter().map(|state| (flow_of(state), NONE)), ignored)
    }

    fn show(&mut self, _: ServiceId, _: &Arc<Image>, flags: Flags) -> Result<(), Refused> {
        self.0.check()?;
        let (mut state, rules) = (self.0.state.borrow_mut(), self.0.rules);
        for flow in &mut state.flows[..rules.flows] {
            flow.entry = flow.built;
        }
        // A superseded table's flags do not change any more: reading them now or later is one.
        let former = state.flags;
        for cpu in 0..CPUS {
            state.cpus[cpu].old = state.cpus[cpu].stage != Stage::Idle;
            if state.cpus[cpu].stage == Stage::ReadFlags {
                state.read_flags(cpu, former, rules);
            }
        }
        state.flags = flags.0 as u8 & (RECORD | PENDING);
        if rules.fault == Fault::PublishWithoutPending {
            state.flags &= !PENDING;
        }
        Ok(())
    }

    fn retire(&mut self, _: ServiceId) {}

    fn forget_seen(&mut self, _: ServiceId, _: &[u64]) {}
}

impl Services for Known<'_> {
    type Error = Refused;

    fn report(&mut self, event: &Event) -> Result<(), Refused> {
        let flow = &mut self.0.state.borrow_mut().flows[flow_of(&event.state)];
        flow.state = name(event.backend);
        flow.idle = false;
        if self.0.rules.fault != Fault::ConsumeBeforeLog {
            flow.log = flow.state;
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), Refused> {
        let flow = &mut self.0.state.borrow_mut().flows[flow_of(state)];
        (flow.state, flow.found, flow.idle) = (name(backend), NONE, false);
        Ok(())
    }

    fn avoids(&self, _: ServiceId) -> bool {
        let down = self.0.state.borrow().flows.iter().any(|flow| flow.down != NONE);
        down && self.0.rules.fault != Fault::ClearThoughDown
    }

    fn keeps_off(&self, _: ServiceId) -> bool {
        let kept_off = self.0.state.borrow().control.kept_off;
        kept_off && self.0.rules.fault != Fault::ClearThoughDown
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        self.0.state.borrow().flows[flow_of(state)].state == name(backend)
    }

    /// The adversary has made it already.
    fn build(&mut self, _: ServiceId) -> Result<Built, Refused> {
        Ok(Built::new(IMAGE.clone(), self.0.each(|flow| flow.built_pin)))
    }

    fn published(&mut self, _: ServiceId) -> Vec<u64> {
        for flow in &mut self.0.state.borrow_mut().flows[..self.0.rules.flows] {
            (flow.built, flow.built_pin) = (Entry::EMPTY, NONE);
        }
        Vec::new()
    }

    fn discard(&mut self, service: ServiceId) {
        self.published(service);
    }

    fn judge(&self, state: &ServiceState, at: BackendId) -> Judgement {
        let flow = self.0.state.borrow().flows[flow_of(state)];
        let draft = self.0.rules.fault == Fault::DraftCountsAsPublished;
        let table = if draft && flow.built != Entry::EMPTY { flow.built } else { flow.entry };
        if self.0.rules.fault == Fault::SettleAll || table == Entry::free(name(at)) {
            Judgement::Agreed
        } else if table.reserved() {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}

impl State {
    /// Something runs on this state. Returns what it says, and the flows whose pins it wanted to be others.
    pub(super) fn on<R>(
        &mut self,
        rules: &Rules,
        meets: Meets,
        run: impl FnOnce(&mut Maps<'_>, &mut Known<'_>) -> R,
    ) -> (R, u8) {
        let state = RefCell::new(*self);
        let world = World { state, rules, meets, asked: Cell::new(0) };
        let said = run(&mut Maps(&world), &mut Known(&world));
        let asked = world.asked.get();
        *self = world.state.into_inner();
        (said, asked)
    }

    /// What the driver remembers of pins.
    fn kept(&self, rules: &Rules) -> Kept {
        let flows = || self.flows[..rules.flows].iter().enumerate();
        let needed = || {
            let pins = flows().filter(|(_, flow)| flow.pin != NONE);
            Pins::of(&pins.map(|(at, flow)| (key(at), backend(flow.pin))).collect::<Vec<_>>())
        };
        Kept {
            needed: self.control.pins_known.then(needed),
            stale: flows().filter(|(_, flow)| flow.stale).map(|(at, _)| key(at)).collect(),
            beside: HashMap::default(),
            unread: self.control.unread,
            doubtful: self.control.doubtful,
        }
    }

    fn keep(&mut self, rules: &Rules, kept: &Kept) {
        for (at, flow) in self.flows[..rules.flows].iter_mut().enumerate() {
            let needed = kept.needed.as_ref().and_then(|pins| pins.at(&key(at)));
            flow.pin = needed.map_or(NONE, name);
            flow.stale = kept.stale.contains(&key(at));
        }
        self.control.pins_known = kept.needed.is_some();
        (self.control.unread, self.control.doubtful) = (kept.unread, kept.doubtful);
    }

    /// A part of *collect*, which comes to a flow's report if it comes to one.
    pub(super) fn collect_part(&mut self, rules: &Rules, at: usize) {
        let flows = || self.flows[..rules.flows].iter().enumerate();
        let begun = match self.control.op {
            Op::CollectBegin => Collected::Reports(Draining::default()),
            Op::Drain => {
                let left = flows().map(|(at, flow)| usize::from(flow.todo != 0) << at).sum();
                Collected::Reports(Draining { left: Some(left), aside: None })
            }
            Op::ReadPending => Collected::Tables,
            _ => {
                let found = flows().filter(|(_, flow)| flow.found != NONE);
                let found: Vec<_> =
                    found.map(|(at, flow)| Found::Pending(key(at), backend(flow.found))).collect();
                Collected::Found(found.into_iter())
            }
        };
        let mut collecting = Collecting::at(HashSet::from([SERVICE]), begun);
        let meets = Meets { at: Some(at), fails: None };
        let (more, _) = self.on(rules, meets, |plane, known| collecting.part(plane, known));
        if !more.expect("nothing fails") {
            return self.proceed(rules);
        }
        match collecting.place() {
            Collected::Reports(draining) => {
                let left = draining.left.unwrap_or(0);
                for (at, flow) in self.flows[..rules.flows].iter_mut().enumerate() {
                    flow.todo = if left >> at & 1 == 1 { flow.todo.max(1) } else { 0 };
                }
                self.control.op = Op::Drain;
            }
            Collected::Tables => {
                self.control.op = Op::ReadPending;
                if matches!(rules.fault, Fault::NoPendingCollect | Fault::NoCollect) {
                    self.collect_part(rules, at);
                } else {
                    self.flows[..rules.flows].iter_mut().for_each(|flow| flow.todo = 1);
                }
            }
            Collected::Found(_) => self.control.op = Op::TakeUp,
        }
    }

    /// The table that has been built, on its way to packets.
    fn publishing(&mut self, rules: &Rules, kept: &Kept) -> Publishing {
        let build = |_: &mut Maps<'_>, known: &mut Known<'_>| known.build(SERVICE);
        let built = self.on(rules, Meets::default(), build).0.expect("it is there");
        Publishing::of(SERVICE, built, kept, true, false)
    }

    /// What comes before a table is shown. If it fails, so many of its pins have been written. Returns the flows
    /// whose pins were to be written.
    pub(super) fn prepare(&mut self, rules: &Rules, fails: Option<u8>) -> u8 {
        let mut kept = self.kept(rules);
        let mut publishing = self.publishing(rules, &kept);
        let meets = Meets { at: None, fails };
        let (pinned, asked) = self.on(rules, meets, |plane, _| publishing.part(plane));
        if pinned.is_err() {
            drop(publishing.refused(&mut kept));
        } else {
            let (tracked, _) = self.on(rules, meets, |plane, _| publishing.part(plane));
            assert!(tracked.expect("nothing fails"), "it is to be shown yet");
        }
        self.keep(rules, &kept);
        asked
    }

    /// The table is shown, or cannot be.
    pub(super) fn show(&mut self, rules: &Rules, fails: Option<u8>) {
        let mut kept = self.kept(rules);
        let mut publishing = self.publishing(rules, &kept).at(Part::Show);
        self.on(rules, Meets { at: None, fails }, |plane, known| match publishing.part(plane) {
            Ok(more) => {
                assert!(!more, "it is the last part");
                publishing.shown(&mut kept, plane, known);
            }
            Err(Refused) => drop(publishing.refused(&mut kept)),
        });
        self.keep(rules, &kept);
    }

    /// Pins go that no table needs. Returns the flows whose pins were to go.
    pub(super) fn unpin(&mut self, rules: &Rules, fails: Option<u8>) -> u8 {
        let mut kept = BTreeMap::from([(SERVICE, self.kept(rules))]);
        let run = |plane: &mut Maps<'_>, known: &mut Known<'_>| {
            parts::unpin(&mut kept, plane, known).is_ok()
        };
        let (_, asked) = self.on(rules, Meets { at: None, fails }, run);
        self.keep(rules, &kept[&SERVICE]);
        asked
    }

    /// Whether a flow's pending entry is over, and how many such as it are left.
    pub(super) fn judged(&mut self, rules: &Rules, at: usize) -> (bool, u8) {
        let pending = self.flows[at].pending;
        let entry = (pending != NONE).then(|| (key(at), backend(pending)));
        let in_force = BTreeMap::from([(SERVICE, true)]);
        let judge =
            |_: &mut Maps<'_>, known: &mut Known<'_>| parts::Settling::of(entry, &in_force, known);
        let (settling, _) = self.on(rules, Meets::default(), judge);
        let left = settling.left.get(&SERVICE).copied().unwrap_or(0);
        (!settling.over.is_empty(), left as u8)
    }

    /// What the update is told of those that are left.
    pub(super) fn left(&mut self, rules: &Rules, left: u8) -> Progress {
        let update = self.control.update;
        let tell = |_: &mut Maps<'_>, known: &mut Known<'_>| {
            parts::settled(&update, SERVICE, left.into(), known)
        };
        self.on(rules, Meets::default(), tell).0
    }
}
