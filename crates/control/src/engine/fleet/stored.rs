//! What the store has, and whether it is followed.

use super::{Fleet, Wanted};
use crate::config::{Config, Source};
use crate::engine::{Engine, EngineError, FieldChange, PlanReport};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_fleet::{Document, Keys, text};
use weir_plane::Plane;

/// What could not be followed is tried again after so long.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);

/// What the store has, where that is not what this balancer follows.
pub(super) struct Behind {
    /// It is tried again; none: it never is, as it is older.
    pub(super) document: Option<Document>,
    revision: i64,
    pub(super) why: String,
    again: Instant,
}

impl Fleet {
    /// The revision of what a change takes the place of; none: the store was not heard yet. `whole`: it is a whole text.
    pub(super) fn replaces(&self, whole: bool) -> Option<i64> {
        let not_followed = self.behind.as_ref().filter(|_| whole);
        not_followed.map(|behind| behind.revision).or(self.revision)
    }

    /// The number of a change that is made now. `whole`: it is a whole text, which all are to follow, whatever each of
    /// them follows now.
    pub(super) fn next_change(&self, whole: bool) -> u64 {
        let last = self.with_report(|report| {
            let signs = report.balancers.values().filter(|_| whole);
            signs.map(|sign| sign.change).max().unwrap_or(0).max(report.change)
        });
        self.change().max(last).saturating_add(1)
    }

    /// The others that live and do not follow what the store has, and this balancer follows: the store has lost what they
    /// follow, which is a later change, or another one of that number.
    fn others_apart(&self) -> Vec<String> {
        let Some(followed) = self.cache.document.as_ref().filter(|_| self.is_followed()) else {
            return Vec::new();
        };
        self.with_report(|report| {
            // What the store has is on its way here still, or nothing is heard.
            if !report.reachable || report.change > followed.change {
                return Vec::new();
            }
            let digest = followed.digest();
            let others = report.balancers.iter().filter(|(_, sign)| {
                let another = sign.change == followed.change && sign.digest != digest;
                sign.id != self.cache.id && (sign.change > followed.change || another)
            });
            others.map(|(name, _)| name.clone()).collect()
        })
    }
}

impl<P: Plane> Engine<P> {
    /// Whether the store has another configuration than the one that this balancer follows.
    pub(super) fn is_behind(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.behind.is_some())
    }

    /// Whether others follow another configuration than the one that the store has, and that this balancer follows.
    pub(super) fn others_are_apart(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| !fleet.others_apart().is_empty())
    }

    /// Whether a text differs from what this balancer follows in what is its own, and in nothing else.
    pub(super) fn mends_own(&self, parts: &text::Parts) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| {
            let followed = fleet.cache.document.is_some() && fleet.shared() == parts.shared;
            followed && fleet.own != parts.own
        })
    }

    /// The keys of a service that others may follow, and this balancer cannot.
    pub(super) fn keys_not_followed(&self, service: &str) -> Option<&Keys> {
        self.fleet.as_ref()?.behind.as_ref()?.document.as_ref()?.services.get(service)
    }

    /// What there is to say of that beside what was done.
    pub(super) fn behind_words(&self) -> String {
        let behind = self.fleet.as_ref().and_then(|fleet| fleet.behind.as_ref());
        let words =
            |behind: &Behind| format!("; what the store has is not followed: {}", behind.why);
        let apart = || {
            let others = self.fleet.as_ref().map(Fleet::others_apart).unwrap_or_default();
            match &others[..] {
                [] => String::new(),
                others => format!(
                    "; not followed by {}: weir apply of the file that is right puts that in force everywhere",
                    others.join(", ")
                ),
            }
        };
        behind.map_or_else(apart, words)
    }

    /// Refuses a change that would be made of what this balancer follows, where the store has another one: the others may
    /// follow that, or a later one than this, and nobody who asks for a weight means all the rest of the text.
    pub(super) fn follows_store(&self) -> Result<(), EngineError> {
        let Some(fleet) = &self.fleet else { return Ok(()) };
        let Some(behind) = &fleet.behind else { return Ok(()) };
        let Some(document) = &behind.document else {
            return Err(EngineError::Conflict(format!("nothing has changed: {}", behind.why)));
        };
        Err(EngineError::Conflict(format!(
            "this balancer follows change {}, and not change {} of the fleet (by {}): {}; nothing has changed. \
             weir apply of the file that is right puts that in force everywhere",
            fleet.change(),
            document.change,
            document.by,
            behind.why
        )))
    }

    /// What a file, or a text, would change, here and in the store.
    pub(in crate::engine) fn plan_in_fleet(
        &self,
        from: Option<Source>,
    ) -> Result<PlanReport, EngineError> {
        // Without one it is asked what a reload would do.
        let whole = from.is_some();
        let mut report = self.plan_of(from)?;
        // Its own part alone needs no store.
        let own = !report.settings.is_empty() && report.services.is_empty();
        let differ = whole && !own && (self.is_behind() || self.others_are_apart());
        if let Some(fleet) = self.fleet.as_ref().filter(|_| differ) {
            let stored = fleet.with_report(|report| report.change);
            report.settings.push(FieldChange {
                field: "store.change".into(),
                from: stored.into(),
                to: fleet.next_change(true).into(),
            });
            report.changes = true;
        }
        Ok(report)
    }

    /// Nobody has put a configuration into the store, or it has lost it: it gets what is in force here.
    pub(super) fn store_is_empty(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        fleet.revision = Some(0);
        fleet.behind = None;
        if fleet.proposing {
            return;
        }
        let shared = match &fleet.cache.document {
            Some(document) => document.text.clone(),
            None => match Config::text(&self.config_path)
                .map_err(EngineError::from)
                .and_then(|text| Ok(text::split(&text)?.shared))
            {
                Ok(shared) => shared,
                Err(error) => {
                    return warn!(%error, "the fleet gets no configuration from this balancer");
                }
            },
        };
        // Who has no services has none to give.
        if shared.is_empty() {
            return;
        }
        info!("the store has no configuration; it gets the one of this balancer");
        let said = Some("the store was empty".to_owned());
        let (what, breaking, whole) = ("start", false, false);
        self.propose(Wanted { shared, own: None, said, what, breaking, whole }, None);
    }

    pub(super) fn store_has(&mut self, document: Document, revision: i64) {
        let Some(fleet) = &mut self.fleet else { return };
        if let Some(kept) = &fleet.cache.document {
            // Of two that decide alike it does not matter who made them.
            let alike = document.change == kept.change && document.digest() == kept.digest();
            if *kept == document || alike {
                (fleet.revision, fleet.behind) = (Some(revision), None);
                return;
            }
            if document.change <= kept.change {
                let why = format!(
                    "the store has change {} ({}), which is not the change {} that this balancer follows: was it \
                     restored from a copy? This balancer goes on as it is; weir apply on the one that is right \
                     puts its configuration in force everywhere",
                    document.change, document.by, kept.change
                );
                fleet.revision = Some(revision);
                return self.not_followed(None, revision, why);
            }
        }
        match self.follow_document(document.clone(), revision, None) {
            Ok(_) | Err(EngineError::Unfinished(_)) => {}
            Err(error) => self.not_followed(Some(document), revision, error.to_string()),
        }
    }

    pub(super) fn not_followed(&mut self, document: Option<Document>, revision: i64, why: String) {
        let Some(fleet) = &mut self.fleet else { return };
        if fleet.behind.as_ref().is_none_or(|behind| behind.why != why) {
            warn!(why, "what the store has is not followed");
        }
        let again = Instant::now() + FOLLOW_AGAIN;
        fleet.behind = Some(Behind { document, revision, why, again });
    }

    /// Tries again what could not be followed, and says what this balancer does.
    pub(in crate::engine) fn look_at_fleet(&mut self) {
        let due = self.fleet.as_mut().filter(|fleet| !fleet.stepping.is_in_step());
        let due = due.and_then(|fleet| {
            let behind = fleet.behind.as_mut().filter(|behind| behind.again <= Instant::now())?;
            behind.again = Instant::now() + FOLLOW_AGAIN;
            Some((behind.document.clone()?, behind.revision))
        });
        if let Some((document, revision)) = due {
            self.store_has(document, revision);
        }
        self.look_whether_apart();
        self.look_whether_pools_wait();
        self.say_caught_up();
        self.tell_fleet();
    }
}
