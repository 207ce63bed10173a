//! The flows that are alive, and the packets they have yet to send.
//!
//! A flow sends its first packet when it starts; the others are uniform over its duration. They
//! are not drawn in advance: a flow remembers only how many are left and up to when it has been
//! looked at, and a question about an interval is answered by one draw. Of n packets, uniform over
//! (known, end], Binomial(n, share of the interval) lie in (known, t]; given that number j, the
//! others are again uniform over (t, end], and the last of the j is at a j-th root of a uniform
//! variable. So each answer has the distribution it would have had, had all packets been drawn
//! at the start, jointly with every answer given before.

use crate::method::{FlowRef, NOBODY, Route};
use crate::methods::{below, mix};
use crate::world::Engine;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Binomial, Distribution};

const NIL: u32 = u32::MAX;

/// A live flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub id: u64,
    pub end: f64,
    /// Packets up to here are known.
    pub known: f64,
    /// The last packet that is known.
    pub last: f64,
    /// A packet that has been drawn and is yet to be sent; infinite if there is none. Then
    /// `left` does not count it, and the others come after it.
    pub pending: f64,
    pub left: u64,
    /// Packets known to have gone to another server, and not counted yet.
    pub astray: u64,
    /// Tells the flow from others that used the same slot.
    pub serial: u32,
    /// The server that holds the connection.
    pub owner: u16,
    /// Where a packet sent now would end up.
    pub goes: u16,
    /// What its packets echo.
    pub echo: Option<u32>,
    /// The balancer that its packets reach.
    pub balancer: u16,
    pub row: u32,
    pub broken: bool,
    pub counted: bool,
    alive: bool,
    row_links: [u32; 2],
    owner_links: [u32; 2],
}

impl Flow {
    /// So many packets have gone where the flow goes.
    fn sent(&mut self, packets: u64) {
        self.left -= packets;
        if self.goes != self.owner && self.owner != NOBODY {
            self.astray += packets;
        }
    }

    /// Its packets take this way from now on.
    pub fn takes(&mut self, route: Route) {
        self.goes = route.end(self.owner);
    }
}

/// What a new flow is made of.
pub(crate) struct NewFlow {
    pub id: u64,
    pub start: f64,
    pub end: f64,
    /// With the first.
    pub packets: u64,
    pub row: u32,
    pub counted: bool,
}

/// The live flows, as methods may see them: by slot, by row, by server.
///
/// What a method learns here must be something that it could know where it runs: its own rows,
/// the load that it has given to each server, or the connections that a server reports.
pub struct Traffic {
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// First flow of each row.
    rows: Vec<u32>,
    /// First flow of each server, and how many it holds.
    servers: Vec<u32>,
    loads: Vec<u32>,
    weights: Vec<u32>,
    /// Balancers, and what the hash that spreads flows over them is salted with.
    balancers: u16,
    salt: u64,
    rng: ChaCha8Rng,
    now: f64,
    live: usize,
    serial: u32,
    /// Packet times, latest first, where they are drawn in advance.
    times: Option<Vec<Vec<f64>>>,
    /// Every packet is an event, so that nothing is unknown between two events.
    every_packet: bool,
}

impl Traffic {
    pub(crate) fn new(rows: usize, weights: &[u32], seed: u64, engine: Engine) -> Self {
        Self {
            flows: Vec::new(),
            free: Vec::new(),
            rows: vec![NIL; rows],
            servers: vec![NIL; weights.len()],
            loads: vec![0; weights.len()],
            weights: weights.to_vec(),
            balancers: 1,
            salt: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: 0.0,
            live: 0,
            serial: 0,
            times: (engine != Engine::Lazy).then(Vec::new),
            every_packet: engine == Engine::EveryPacket,
        }
    }

    /// The time, seconds.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Number of flows that have begun and not ended.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Live flows that a server holds.
    pub fn load(&self, server: u16) -> u32 {
        self.loads[usize::from(server)]
    }

    /// The weight of a server.
    pub fn weight(&self, server: u16) -> u32 {
        self.weights[usize::from(server)]
    }

    pub(crate) fn set_weight(&mut self, server: u16, weight: u32) {
        if let Some(known) = self.weights.get_mut(usize::from(server)) {
            *known = weight;
        }
    }

    /// Spreads the flows that come from now on over so many balancers, by a hash with this salt.
    pub(crate) fn spread(&mut self, balancers: u16, salt: u64) {
        (self.balancers, self.salt) = (balancers, salt);
    }

    /// The balancer that a flow's packets reach by the present spread.
    pub(crate) fn balancer_of(&self, id: u64) -> u16 {
        if self.balancers == 1 {
            return 0;
        }
        below(mix(id ^ self.salt), usize::from(self.balancers)) as u16
    }

    /// The live flows of one of the method's rows.
    pub fn in_row(&self, row: u32) -> impl Iterator<Item = FlowRef> + '_ {
        self.walk(self.rows[row as usize], |flow| flow.row_links[1])
    }

    /// What the servers report when they are asked for the connections of a row: each with the
    /// server that holds it.
    pub fn listed(&self, row: u32) -> impl Iterator<Item = (FlowRef, u16)> + '_ {
        let held = |flow: FlowRef| {
            let holder = self.flows[flow.slot as usize].owner;
            (holder != NOBODY).then_some((flow, holder))
        };
        self.in_row(row).filter_map(held)
    }

    /// The live flows that a server holds.
    pub(crate) fn held_by(&self, server: u16) -> impl Iterator<Item = FlowRef> + '_ {
        self.walk(self.servers[usize::from(server)], |flow| flow.owner_links[1])
    }

    fn walk(&self, first: u32, next: fn(&Flow) -> u32) -> impl Iterator<Item = FlowRef> + '_ {
        let some = |slot: u32| (slot != NIL).then_some(slot);
        std::iter::successors(some(first), move |&slot| some(next(&self.flows[slot as usize])))
            .map(|slot| self.refer(slot))
    }

    /// When the flow in this slot sent its last packet; never later than now.
    pub fn last_packet(&mut self, slot: u32) -> f64 {
        let now = self.now;
        self.advance(slot, now);
        self.flows[slot as usize].last
    }

    pub(crate) fn refer(&self, slot: u32) -> FlowRef {
        let flow = &self.flows[slot as usize];
        FlowRef { slot, id: flow.id, echo: flow.echo, balancer: flow.balancer }
    }

    pub(crate) fn set_now(&mut self, now: f64) {
        self.now = now;
    }

    pub(crate) fn flow(&self, slot: u32) -> &Flow {
        &self.flows[slot as usize]
    }

    pub(crate) fn flow_mut(&mut self, slot: u32) -> &mut Flow {
        &mut self.flows[slot as usize]
    }

    /// Whether the slot still holds the flow with this serial number.
    pub(crate) fn is(&self, slot: u32, serial: u32) -> bool {
        let flow = &self.flows[slot as usize];
        flow.alive && flow.serial == serial
    }

    pub(crate) fn slots_in_row(&self, row: u32, out: &mut Vec<u32>) {
        out.extend(self.in_row(row).map(|flow| flow.slot));
    }

    pub(crate) fn insert(&mut self, new: NewFlow) -> u32 {
        let slot = self.free.pop().unwrap_or(self.flows.len() as u32);
        self.serial = self.serial.wrapping_add(1);
        let mut flow = Flow {
            id: new.id,
            end: new.end,
            known: new.start,
            last: new.start,
            pending: f64::INFINITY,
            left: new.packets - 1,
            astray: 0,
            serial: self.serial,
            owner: NOBODY,
            goes: NOBODY,
            echo: None,
            balancer: self.balancer_of(new.id),
            row: new.row,
            broken: false,
            counted: new.counted,
            alive: true,
            row_links: [NIL; 2],
            owner_links: [NIL; 2],
        };
        if let Some(times) = &mut self.times {
            let span = new.end - new.start;
            let rng = &mut self.rng;
            let mut drawn: Vec<f64> =
                (1..new.packets).map(|_| new.start + span * rng.random::<f64>()).collect();
            drawn.sort_by(|a, b| b.total_cmp(a));
            times.resize(times.len().max(slot as usize + 1), Vec::new());
            times[slot as usize] = drawn;
        }
        let head = self.rows[new.row as usize];
        flow.row_links[1] = head;
        if slot as usize == self.flows.len() {
            self.flows.push(flow);
        } else {
            self.flows[slot as usize] = flow;
        }
        if head != NIL {
            self.flows[head as usize].row_links[0] = slot;
        }
        self.rows[new.row as usize] = slot;
        self.live += 1;
        slot
    }

    /// Gives a flow to a server, from nobody or from another one.
    pub(crate) fn give(&mut self, slot: u32, server: u16) {
        self.leave_owner(slot);
        let head = self.servers[usize::from(server)];
        let flow = &mut self.flows[slot as usize];
        flow.owner = server;
        flow.owner_links = [NIL, head];
        if head != NIL {
            self.flows[head as usize].owner_links[0] = slot;
        }
        self.servers[usize::from(server)] = slot;
        self.loads[usize::from(server)] += 1;
    }

    /// The flow's server is gone, the flow is not.
    pub(crate) fn orphan(&mut self, slot: u32) {
        self.leave_owner(slot);
        self.flows[slot as usize].owner = NOBODY;
        self.flows[slot as usize].echo = None;
    }

    fn leave_owner(&mut self, slot: u32) {
        let flow = &self.flows[slot as usize];
        let (owner, [before, after]) = (usize::from(flow.owner), flow.owner_links);
        if flow.owner == NOBODY {
            return;
        }
        match before {
            NIL => self.servers[owner] = after,
            before => self.flows[before as usize].owner_links[1] = after,
        }
        if after != NIL {
            self.flows[after as usize].owner_links[0] = before;
        }
        self.loads[owner] -= 1;
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.leave_owner(slot);
        let flow = &mut self.flows[slot as usize];
        flow.alive = false;
        flow.owner = NOBODY;
        let (row, [before, after]) = (flow.row as usize, flow.row_links);
        match before {
            NIL => self.rows[row] = after,
            before => self.flows[before as usize].row_links[1] = after,
        }
        if after != NIL {
            self.flows[after as usize].row_links[0] = before;
        }
        self.free.push(slot);
        self.live -= 1;
    }

    /// Learns what the flow has sent up to `t`. All of that went where the flow goes.
    pub(crate) fn advance(&mut self, slot: u32, t: f64) {
        let flow = &mut self.flows[slot as usize];
        if self.every_packet || flow.pending < f64::INFINITY || t <= flow.known {
            return; // nothing unknown lies before t
        }
        let t = t.min(flow.end);
        if let Some(times) = &mut self.times {
            let times = &mut times[slot as usize];
            let mut sent = 0;
            while let Some(last) = times.pop_if(|next| *next <= t) {
                flow.last = last;
                sent += 1;
            }
            flow.sent(sent);
            flow.known = t;
            return;
        }
        let span = flow.end - flow.known;
        let sent = if flow.left == 0 || span <= 0.0 {
            0
        } else {
            binomial(&mut self.rng, flow.left, ((t - flow.known) / span).min(1.0))
        };
        if sent > 0 {
            let u: f64 = self.rng.random();
            flow.last = flow.known + (t - flow.known) * u.powf(1.0 / sent as f64);
            flow.sent(sent);
        }
        flow.known = t;
    }

    /// Draws the next packet after now, if there is one, and makes it pending.
    pub(crate) fn draw_next(&mut self, slot: u32) -> Option<f64> {
        let flow = &mut self.flows[slot as usize];
        if flow.pending < f64::INFINITY {
            return None; // drawn already
        }
        let now = self.now;
        self.advance(slot, now);
        let flow = &mut self.flows[slot as usize];
        if let Some(times) = &mut self.times {
            let next = times[slot as usize].pop()?;
            flow.pending = next;
            flow.left -= 1;
            return Some(next);
        }
        if flow.left == 0 {
            return None;
        }
        // The first of n uniform packets: 1 - (1 - u)^(1/n), and u is as good as 1 - u.
        let u: f64 = self.rng.random();
        let share = 1.0 - u.powf(1.0 / flow.left as f64);
        flow.pending = flow.known + (flow.end - flow.known) * share;
        flow.left -= 1;
        Some(flow.pending)
    }

    /// The pending packet is sent.
    pub(crate) fn send_pending(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        flow.known = flow.pending;
        flow.last = flow.pending;
        flow.pending = f64::INFINITY;
    }

    /// Whether the flow will send another packet after now.
    pub(crate) fn sends_again(&mut self, slot: u32) -> bool {
        let now = self.now;
        self.advance(slot, now);
        let flow = &self.flows[slot as usize];
        flow.left > 0 || flow.pending < f64::INFINITY
    }
}

fn binomial(rng: &mut ChaCha8Rng, n: u64, p: f64) -> u64 {
    if p >= 1.0 {
        return n;
    }
    match Binomial::new(n, p) {
        Ok(law) => law.sample(rng).min(n),
        Err(_) => 0, // p is not a number: an interval without length
    }
}
