//! Backends that are in maintenance by the calendar: they drain, whatever else is said of them, and serve again
//! when it is over.
//!
//! Whether one is in maintenance is never remembered but looked up in its windows, by the wall clock: so a
//! restart in the middle of one begins with a table that has it drain, and a clock that is set needs no care.
//! What is remembered is what the last look found, so that a table is made when it changes.

use super::service::{PoolMember, ServiceRuntime};
use super::{Engine, Happening};
use crate::config::maintenance::{self, wall_clock, written};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};
use tracing::info;
use weir_plane::Plane;

/// When a backend is in maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MaintenanceStatus {
    /// Until when it is, as RFC 3339 has it; none: it is not now.
    pub until: Option<String>,
    /// When it is next; none: never again.
    pub next: Option<String>,
    /// Its windows, as the file has them.
    pub windows: Vec<String>,
}

impl ServiceRuntime {
    /// Until when a backend is in maintenance; none: it is not.
    pub fn away_until(&self, member: &PoolMember) -> Option<SystemTime> {
        let windows = self.configured.maintenance.get(&member.wanted.name)?;
        maintenance::until(windows, wall_clock())
    }

    /// Whether a backend gets no new connections, as somebody or the calendar says.
    pub fn drains(&self, member: &PoolMember) -> bool {
        member.wanted.drain || member.is_gone() || self.away_until(member).is_some()
    }

    /// Whether new connections may come to a backend, as far as its check is not concerned.
    pub fn takes_new(&self, member: &PoolMember) -> bool {
        member.wanted.takes_new() && !member.is_gone() && self.away_until(member).is_none()
    }

    /// Those that are in maintenance now.
    pub fn away_now(&self) -> BTreeSet<String> {
        if self.configured.maintenance.is_empty() {
            return BTreeSet::new();
        }
        let away = self.pool.iter().filter(|member| self.away_until(member).is_some());
        away.map(|member| member.wanted.name.clone()).collect()
    }

    /// What is to be told of a backend's windows, if it has any.
    pub fn maintenance_of(&self, member: &PoolMember) -> Option<MaintenanceStatus> {
        let windows = self.configured.maintenance.get(&member.wanted.name)?;
        let now = wall_clock();
        Some(MaintenanceStatus {
            until: maintenance::until(windows, now).map(written),
            next: maintenance::next(windows, now).map(written),
            windows: windows.iter().map(ToString::to_string).collect(),
        })
    }
}

impl<P: Plane> Engine<P> {
    /// Has a table made for services of which the calendar says something else than at the last look.
    pub(super) fn look_at_calendar(&mut self) {
        for (name, service) in &mut self.services {
            let away = service.away_now();
            if away == service.away {
                continue;
            }
            service.dirty = true;
            if let Some(trouble) = &mut service.trouble {
                trouble.again = Instant::now();
            }
            for backend in away.symmetric_difference(&service.away) {
                let begins = away.contains(backend);
                let Some(member) = service.member(backend) else { continue };
                let until = service.away_until(member).map(written);
                info!(service = name, backend, begins, until, "maintenance");
                self.events.push(Happening::Maintenance {
                    service: name.clone(),
                    backend: backend.clone(),
                    begins,
                    until,
                });
            }
            service.away = away;
        }
    }

    /// What a command says that has a backend serve again, which it does not before its maintenance is over.
    pub(super) fn warning_of_maintenance(&self, service: &str, backend: &str) -> String {
        let until = self.services.get(service).and_then(|service| {
            service.member(backend).and_then(|member| service.away_until(member))
        });
        until.map_or_else(String::new, |until| {
            format!(
                "; it is in maintenance until {}, and gets no new connections before: to end that, change \
                 `maintenance` of the backend in the file, and weir reload",
                written(until)
            )
        })
    }
}
