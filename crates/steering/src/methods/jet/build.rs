//! The build face of JET: which rows are whose, which are watched, and since when.
//!
//! Every row has an *owner*, where its flows live that the connection table does not know. It goes
//! to another backend that serves only after all packets of the row were tracked for a warm-up
//! period, so a change that nobody foresaw is announced first: [`Build::due`] says when it can be
//! made. A row that the horizon wants has been tracked for long, so it changes hands at once.
//!
//! # Rows that stop asking
//!
//! A row whose flows are tracked asks the connection table, and goes on asking when they are tracked no
//! more, as what was tracked may live elsewhere. What [`Build::tell_connections`] is told ends that. What
//! holds at any time: *of a row that does not ask, no entry that counts names another backend than its
//! owner*, so that asking would change no answer. (An entry counts while its backend is there, in the same
//! use of its number.)
//!
//! - An entry is written where a row's flows are tracked, and else only over one that does not count, for
//!   the owner. So while packets follow one table, and none an older one, nothing comes into a row that is
//!   not tracked but entries for its owner.
//! - Therefore a table may be read at leisure once every packet that saw the one before is decided: a row
//!   without an entry for anybody but its owner is one still when the next table is seen, whatever has
//!   come meanwhile. It stops asking there if its owner is the same and its flows are not tracked. Packets
//!   that still follow the former table then write nothing into it but entries for that owner.
//! - A table that is published meanwhile ends what was found: it may have tracked the row.
//! - Later the row gets another owner only where the former is removed, whose entries do not count from
//!   then on; or after it was tracked, and so asks. Without a warm-up it may get one at once: then it asks.
//! - A look sees entries of the addresses and ports that the service has. Where it gets others, entries of an
//!   earlier time may be there that no look saw: after [`Build::ask_again`] all rows ask in the next table.

use super::columns::Columns;
use super::config::{Method, PLACEMENT, WARM_UP};
use super::table::{ASK, Body, TRACK};
use crate::BuildError;
use crate::ids::BackendId;
use crate::method::{Build, Built, Elsewhere, Publish, ServiceConfig, Settings};
use crate::pool::{Member, Role};
use crate::registry::{Image, MethodId};
use crate::rows::ROWS;
use crate::state::StateKey;
use crate::table::{Flags, Header, NO_BACKEND, SLOT_BACKEND, Table, slot_elements};
use std::collections::HashMap;
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// The flows of a row are not tracked.
const NEVER: u32 = u32::MAX;

/// Another table is worth it if at least one in so many of the rows that ask for what was tracked once
/// can stop asking. The last ones go one by one; nobody publishes a table a minute for one in thousands.
const WORTH: usize = 64;

/// A table, and what it does not say of itself.
#[derive(Clone, Debug)]
struct Version {
    image: Arc<Image>,
    /// Since when every packet of a row has been tracked.
    since: Vec<u32>,
    /// When the first row may change hands.
    due: Option<u32>,
    /// The rows that need not ask in the next table, as was found while this one was in force; empty if
    /// nothing was found that is worth one.
    clean: Vec<bool>,
    /// All rows ask, as they had to ask again.
    again: bool,
}

impl Version {
    /// The rows that ask for what was tracked once.
    fn asks_for_former(&self) -> Vec<bool> {
        let of = |body: &Body| -> Vec<bool> {
            let rows = body.owners().iter().zip(body.starts());
            rows.map(|(owner, start)| owner & ASK != 0 && start & TRACK == 0).collect()
        };
        body(&self.image).map(of).unwrap_or_default()
    }

    fn is_clean(&self, row: u32) -> bool {
        self.clean.get(row as usize).is_some_and(|clean| *clean)
    }
}

/// Builds tables of one service.
#[derive(Clone, Debug)]
pub struct JetBuilder {
    config: ServiceConfig,
    /// Follows the pool of the last draft.
    columns: Option<Columns>,
    published: Option<Version>,
    draft: Option<Version>,
    /// All rows are to ask in the next table.
    again: bool,
}

/// What a row is to be.
struct Row {
    owner: u16,
    start: u16,
    track: bool,
    moves: bool,
}

impl JetBuilder {
    /// Goes on from a published table, if it is one of the same shape: its owners are kept, and
    /// every row that is to change hands warms up again.
    pub fn new(config: &ServiceConfig, published: Option<Arc<Image>>) -> Self {
        let rows = config.settings.get(ROWS) as usize;
        let key = HashKey::from_seed(config.seed);
        let published = published.filter(|image| {
            let same = |body: &Body| body.owners().len() == rows;
            let header = image.header();
            header.key == key
                && header.flags().has(Flags::CLIENT) == config.client_affinity
                && body(image).is_some_and(same)
        });
        let version = |image| Version {
            image,
            since: vec![NEVER; rows],
            due: None,
            clean: Vec::new(),
            again: false,
        };
        let config = config.clone();
        let published = published.map(version);
        Self { config, columns: None, published, draft: None, again: false }
    }

    fn setting(&self, name: &str) -> u32 {
        self.config.settings.get(name)
    }

    /// Where the pool places each row. What a failed draft has left is made anew.
    fn columns(&mut self, members: &[Member]) -> Result<Columns, BuildError> {
        if let Some(mut columns) = self.columns.take()
            && columns.follow(members).is_ok()
        {
            return Ok(columns);
        }
        Ok(Columns::new(self.setting(PLACEMENT), self.setting(ROWS), members)?)
    }

    /// A row whose flows live at `owner`, tracked since then.
    fn row(&self, owner: u16, since: u32, goal: u16, differs: bool, role: Role, now: u32) -> Row {
        let judged = since.min(now).saturating_add(self.setting(WARM_UP)) <= now;
        let hand_over = role == Role::Serving && (owner == goal || judged);
        let owner = if hand_over { goal } else { owner };
        // Who gets no new flows keeps those that it has. A first packet tells nothing of a client:
        // those that are there have to be known before others can be sent elsewhere.
        let unknown = role == Role::Draining && self.config.client_affinity && !judged;
        let stays = role == Role::Serving || unknown;
        let start = if stays { owner } else { goal };
        Row { owner, start, track: differs || owner != goal, moves: stays && owner != goal }
    }

    fn version(&self, columns: &Columns, generation: u64, pool: &[Member], now: u32) -> Version {
        let roles: HashMap<u16, Role> = pool
            .iter()
            .map(|m| (m.backend.get(), if m.weight == 0 { Role::Draining } else { m.role }))
            .collect();
        let former = self.published.as_ref();
        let before = former.and_then(|version| Some((body(&version.image)?, &version.since)));
        let rows = self.setting(ROWS);
        let (mut owners, mut starts) = (Vec::new(), Vec::new());
        let (mut since, mut due) = (Vec::new(), None);
        for at in 0..rows {
            let (goal, differs) = columns.at(at);
            let (was, tracked) = before.map_or((NO_BACKEND, NEVER), |(body, since)| {
                (body.owners()[at as usize], since[at as usize])
            });
            let lives = roles.get(&(was & SLOT_BACKEND));
            let row = match lives {
                Some(&role) => self.row(was & SLOT_BACKEND, tracked, goal, differs, role, now),
                // Nobody lives there whom the connection table does not know.
                None => Row { owner: goal, start: goal, track: differs, moves: false },
            };
            let tracked = if row.track { tracked.min(now) } else { NEVER };
            if row.moves {
                let at = tracked.saturating_add(self.setting(WARM_UP));
                due = Some(due.map_or(at, |due: u32| due.min(at)));
            }
            // Whoever was tracked in a row is still asked for, until it is known that nobody is there.
            let stays = row.owner == was & SLOT_BACKEND;
            let asked = was & ASK != 0 && !(stays && former.is_some_and(|one| one.is_clean(at)));
            let asks = self.again || row.track || asked || lives.is_some() && !stays;
            let ask = if asks { ASK } else { 0 };
            owners.push(row.owner | ask);
            starts.push(row.start | if row.track { TRACK } else { 0 });
            since.push(tracked);
        }
        let flags = Flags::default().with(Flags::CLIENT, self.config.client_affinity);
        let header = Header::new(HashKey::from_seed(self.config.seed), flags, generation, 0);
        let table = Table::new(header, Body::new(owners, starts));
        let (image, again) = (Arc::new(Image::from(table)), self.again);
        Version { image, since, due, clean: Vec::new(), again }
    }
}

fn body(image: &Image) -> Option<&Body> {
    match image {
        Image::Jet(table) => Some(table.body()),
        _ => None,
    }
}

impl Publish for Method {
    type Body = Body;

    fn most_elements(settings: &Settings, _: usize) -> usize {
        2 * slot_elements(settings.get(ROWS) as usize)
    }

    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(JetBuilder::new(config, published))
    }
}

impl Build for JetBuilder {
    fn method(&self) -> MethodId {
        MethodId::Jet
    }

    fn draft(&mut self, generation: u64, pool: &[Member], now: u32) -> Result<Built, BuildError> {
        self.draft = None;
        let columns = self.columns(pool)?;
        let version = self.version(&columns, generation, pool, now);
        let table = version.image.clone();
        (self.columns, self.draft) = (Some(columns), Some(version));
        Ok(Built { table, pinned: Vec::new(), orphans: Vec::new(), astray: 0 })
    }

    fn publish_draft(&mut self) {
        if let Some(draft) = self.draft.take() {
            // One that was drafted before it was said is not it.
            self.again &= !draft.again;
            self.published = Some(draft);
        }
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.draft = None;
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref().map(|version| &version.image)
    }

    fn due(&self, now: u32) -> bool {
        self.published.as_ref().is_some_and(|version| {
            let asks_less = !version.clean.is_empty();
            self.again || version.due.is_some_and(|due| due <= now) || asks_less
        })
    }

    fn ask_again(&mut self) {
        self.again = true;
    }

    fn asks_for_former(&self) -> bool {
        self.published.as_ref().is_some_and(|one| one.asks_for_former().contains(&true))
    }

    fn elsewhere(&self) -> Elsewhere {
        let Some(image) = self.published().cloned() else { return Box::new(|_, _| false) };
        // One says all of its row.
        let mut told = vec![false; body(&image).map_or(0, |body| body.owners().len())];
        Box::new(move |flow, backend| {
            let Some(body) = body(&image) else { return false };
            let row = body.row(flow.hash(&image.header().key)) as usize;
            let is_elsewhere = body.owners()[row] & SLOT_BACKEND != backend.get();
            is_elsewhere && !std::mem::replace(&mut told[row], true)
        })
    }

    fn tell_connections(&mut self, connections: &mut dyn Iterator<Item = (StateKey, BackendId)>) {
        let Some(version) = &mut self.published else { return };
        let mut clean = version.asks_for_former();
        let asking = clean.iter().filter(|asks| **asks).count();
        let Some(body) = body(&version.image) else { return };
        let key = &version.image.header().key;
        for (flow, backend) in connections {
            let row = body.row(flow.hash(key)) as usize;
            // One at the owner changes nothing.
            clean[row] &= body.owners()[row] & SLOT_BACKEND == backend.get();
        }
        let free = clean.iter().filter(|free| **free).count();
        let is_worth_it = free > 0 && free * WORTH >= asking;
        version.clean = if is_worth_it { clean } else { Vec::new() };
    }

    fn control_bytes(&self) -> usize {
        self.published
            .as_ref()
            .map_or(0, |version| size_of_val(&version.since[..]) + size_of_val(&version.clean[..]))
    }
}
