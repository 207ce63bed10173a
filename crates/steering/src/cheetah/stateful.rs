//! Memory by index: the cookie hides the place of the connection in a table (section 3.2), alone
//! or behind a stateless balancer (section 3.2, "a hybrid datacenter architecture").

use super::layout::{Codec, Layout};
use super::servers::ServiceServers;
use super::table::ConnTable;
use super::verdict::{Forged, NoCookie, Question, Verdict, pick, without_cookie};
use weir_lookup::HashKey;
use weir_wire::FlowKey;

/// What a stateful balancer must know to be found by the stateless ones in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tier {
    /// The front's key.
    pub key: HashKey,
    /// This balancer's number among the front's servers.
    pub number: u16,
}

/// Stateful Cheetah for one service.
#[derive(Clone, Debug)]
pub struct Stateful {
    layout: Layout,
    table: ConnTable,
    front: Option<(Codec, u16)>,
    forged: Forged,
}

impl Stateful {
    /// With a table whose index has the layout's back bits; behind a front, with its `tier`.
    pub fn new(layout: Layout, table: ConnTable, tier: Option<Tier>, forged: Forged) -> Self {
        let front = tier.map(|tier| (Codec::new(tier.key, layout.front_bits()), tier.number));
        Self { layout, table, front, forged }
    }

    /// The connections.
    pub fn table(&self) -> &ConnTable {
        &self.table
    }

    /// The connections, to sweep them or to close one that the backend reports as closed.
    pub fn table_mut(&mut self) -> &mut ConnTable {
        &mut self.table
    }

    /// Decides a packet at second `now`. `known` asks the caller's table of flows without cookies,
    /// `schedule` picks one of the backends that take new connections; each is called at most once.
    pub fn decide(
        &mut self,
        servers: &ServiceServers,
        question: &Question,
        now: u32,
        known: impl FnOnce() -> Option<u16>,
        schedule: impl FnMut(&[u16]) -> Option<u16>,
    ) -> Verdict {
        if question.flags.starts() && question.echo.is_some() {
            return match pick(servers, schedule) {
                None => Verdict::NoBackend,
                Some(backend) => self.first(&question.flow, backend, now),
            };
        }
        let why = match question.valid_echo() {
            None => NoCookie::NoTimestamp,
            Some(echo) => {
                let (flow, part) = (&question.flow, self.layout.split(echo).back);
                match self.table.packet(flow, part, question.flags, now) {
                    Some(backend) if servers.uses(backend) => return Verdict::Cookie { backend },
                    // Its backend is gone, and so is the connection.
                    Some(_) => {
                        self.table.close(flow, part);
                        NoCookie::NotOurs
                    }
                    None => NoCookie::NoSlot,
                }
            }
        };
        without_cookie(question, why, self.forged, servers, known, schedule)
    }

    fn first(&mut self, flow: &FlowKey, backend: u16, now: u32) -> Verdict {
        let front = self.front.as_ref().map(|(codec, number)| codec.hide(flow, *number));
        match self.table.open(flow, backend, now) {
            Ok(back) => {
                let cookie = self.layout.cookie(front.unwrap_or(0), back);
                Verdict::First { backend, cookie }
            }
            // The front still has to find this balancer. No slot will answer to the back part.
            Err(_) => Verdict::Track {
                backend,
                why: NoCookie::TableFull,
                cookie: front.map(|front| self.layout.cookie(front, 0)),
            },
        }
    }
}
