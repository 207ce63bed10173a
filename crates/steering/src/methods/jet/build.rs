//! The build face of JET: which rows are whose, which are watched, and since when.
//!
//! Every row has an *owner*, where its flows live that the connection table does not know. It goes
//! to another backend that serves only after all packets of the row were tracked for a warm-up
//! period, so a change that nobody foresaw is announced first: [`Build::due`] says when it can be
//! made. A row that the horizon wants has been tracked for long, so it changes hands at once.

use super::columns::Columns;
use super::config::{Method, PLACEMENT, WARM_UP};
use super::table::{ASK, Body, TRACK};
use crate::BuildError;
use crate::method::{Build, Built, Publish, ServiceConfig, Settings};
use crate::pool::{Member, Role};
use crate::registry::{Image, MethodId};
use crate::rows::ROWS;
use crate::table::{Flags, Header, NO_BACKEND, SLOT_BACKEND, Table, slot_elements};
use std::collections::HashMap;
use std::sync::Arc;
use weir_hash::HashKey;

/// The flows of a row are not tracked.
const NEVER: u32 = u32::MAX;

/// A table, and what it does not say of itself.
#[derive(Clone, Debug)]
struct Version {
    image: Arc<Image>,
    /// Since when every packet of a row has been tracked.
    since: Vec<u32>,
    /// When the first row may change hands.
    due: Option<u32>,
}

/// Builds tables of one service.
#[derive(Clone, Debug)]
pub struct JetBuilder {
    config: ServiceConfig,
    /// Follows the pool of the last draft.
    columns: Option<Columns>,
    published: Option<Version>,
    draft: Option<Version>,
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
        let version = |image| Version { image, since: vec![NEVER; rows], due: None };
        let config = config.clone();
        Self { config, columns: None, published: published.map(version), draft: None }
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
            let row = match roles.get(&(was & SLOT_BACKEND)) {
                Some(&role) => self.row(was & SLOT_BACKEND, tracked, goal, differs, role, now),
                // Nobody lives there whom the connection table does not know.
                None => Row { owner: goal, start: goal, track: differs, moves: false },
            };
            let tracked = if row.track { tracked.min(now) } else { NEVER };
            if row.moves {
                let at = tracked.saturating_add(self.setting(WARM_UP));
                due = Some(due.map_or(at, |due: u32| due.min(at)));
            }
            // Whoever was tracked in a row is still asked for.
            let ask = if row.track { ASK } else { was & ASK };
            owners.push(row.owner | ask);
            starts.push(row.start | if row.track { TRACK } else { 0 });
            since.push(tracked);
        }
        let flags = Flags::default().with(Flags::CLIENT, self.config.client_affinity);
        let header = Header::new(HashKey::from_seed(self.config.seed), flags, generation, 0);
        let table = Table::new(header, Body::new(owners, starts));
        Version { image: Arc::new(Image::from(table)), since, due }
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
        self.published = self.draft.take().or(self.published.take());
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.draft = None;
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref().map(|version| &version.image)
    }

    fn due(&self, now: u32) -> bool {
        let due = self.published.as_ref().and_then(|version| version.due);
        due.is_some_and(|due| due <= now)
    }

    fn control_bytes(&self) -> usize {
        self.published.as_ref().map_or(0, |version| size_of_val(&version.since[..]))
    }
}
