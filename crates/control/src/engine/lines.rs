//! What the log says of backends that go up or down, and of tables that packets follow: a line each, which says what
//! becomes of connections. Where a thousand change at once, as many lines as people read, and one for the rest.

use crate::config::DeadConnections;
use crate::pace::Pace;
use std::time::Duration;
use tracing::info;

/// Lines of a kind in a second.
const LINES: u32 = 20;

#[derive(Debug)]
pub(super) struct Lines {
    health: Pace,
    /// Of those that were not said: how many went up and down, and the connections that are known there.
    rest: Rest,
    moved: Pace,
    tables: Pace,
}

#[derive(Debug, Default)]
struct Rest {
    up: u64,
    down: u64,
    connections: usize,
}

/// A backend that goes up or down.
pub(super) struct Change<'a> {
    pub service: &'a str,
    pub backend: &'a str,
    pub up: bool,
    pub detail: &'a str,
    /// Those that are known there, if anybody knows.
    pub connections: Option<usize>,
    /// What becomes of them.
    pub fate: DeadConnections,
}

/// A table that packets follow.
pub(super) struct Table<'a> {
    pub service: &'a str,
    pub generation: u64,
    pub rounds: u32,
    pub took: Duration,
    /// Connections that are known, and stay where they are; none if nobody knows any.
    pub kept: Option<usize>,
    /// Those that are known of backends that have left.
    pub left: Option<usize>,
}

impl Lines {
    pub fn new() -> Self {
        let pace = || Pace::new(LINES);
        Self { health: pace(), rest: Rest::default(), moved: pace(), tables: pace() }
    }

    pub fn health(&mut self, change: &Change<'_>) {
        let Change { service, backend, up, detail, connections, fate } = change;
        if self.health.take().is_none() {
            *(if *up { &mut self.rest.up } else { &mut self.rest.down }) += 1;
            self.rest.connections += connections.unwrap_or(0);
            return;
        }
        self.say_rest_of_health();
        let they = match fate {
            _ if *up => "stay",
            DeadConnections::Keep => "stay",
            DeadConnections::Move => "move",
            DeadConnections::Reset => "are reset",
        };
        info!(service, backend, up, detail, connections, they, "health check");
    }

    pub fn moved(&self, service: &str, connections: Option<usize>) {
        if let Some(unsaid) = self.moved.take() {
            let unsaid = (unsaid > 0).then_some(unsaid);
            info!(service, connections, unsaid, "connections of a dead backend have moved");
        }
    }

    pub fn published(&self, table: &Table<'_>) {
        let Table { service, generation, rounds, took, kept, left } = table;
        if let Some(unsaid) = self.tables.take() {
            let (milliseconds, unsaid) = (took.as_millis() as u64, (unsaid > 0).then_some(unsaid));
            info!(service, generation, rounds, milliseconds, kept, left, unsaid, "published");
        }
    }

    /// Says what was too much for its second, once that is over.
    pub fn say_rest(&mut self) {
        if self.health.rest().is_some() {
            self.say_rest_of_health();
        }
        if let Some(tables) = self.tables.rest() {
            info!(tables, "published; a line each was too many");
        }
        if let Some(backends) = self.moved.rest() {
            info!(backends, "connections of dead backends have moved; a line each was too many");
        }
    }

    fn say_rest_of_health(&mut self) {
        let Rest { up, down, connections } = std::mem::take(&mut self.rest);
        if up + down > 0 {
            info!(up, down, connections, "health checks; a line each was too many");
        }
    }
}
