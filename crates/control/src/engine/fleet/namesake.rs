//! Two balancers of one name: the one that was first is of the fleet, and the other one takes no part in it. Nobody
//! waits for that one in a step, and no agent calls it, so it would break connections if routers led to it.

use crate::engine::{Engine, EngineError};
use std::time::{Duration, Instant};
use tracing::warn;
use weir_fleet::{FleetError, LEASE, Report, Seen, Sign, Store, StoreConfig};
use weir_plane::Plane;

/// A balancer that has lost what it kept of its fleet has another id than before, and what it said of itself is there
/// for as long as its lease: so long a start waits for that.
const PATIENCE: Duration = LEASE.saturating_add(Duration::from_secs(2));
/// It looks again after so long.
const AGAIN: Duration = Duration::from_millis(500);

async fn look(config: &StoreConfig) -> Result<Seen, FleetError> {
    Store::connect(config).await?.look().await
}

/// What the store has, once no other balancer lives by this name.
///
/// # Errors
/// [`EngineError::Conflict`] if one does, and goes on to.
pub(super) async fn own_name(
    config: &StoreConfig,
    name: &str,
    id: &str,
    mut seen: Seen,
) -> Result<Seen, EngineError> {
    let begun = Instant::now();
    let mut said = false;
    while let Some(other) = seen.balancers.get(name).filter(|sign| sign.id != id).map(place) {
        if begun.elapsed() >= PATIENCE {
            tell(config, name, id).await;
            return Err(EngineError::Conflict(format!(
                "balancer.name: a balancer of the fleet that lives is called {name}{other}; give this one another name"
            )));
        }
        if !std::mem::replace(&mut said, true) {
            warn!(
                name,
                "a balancer of this name is in the fleet; waits until its lease has run out"
            );
        }
        tokio::time::sleep(AGAIN).await;
        // Where it does not answer now, what it has said last counts.
        if let Ok(now) = look(config).await {
            seen = now;
        }
    }
    Ok(seen)
}

/// The others are to know why it is not started.
async fn tell(config: &StoreConfig, name: &str, id: &str) {
    let version = env!("CARGO_PKG_VERSION").into();
    let sign = Sign { id: id.to_owned(), version, ..Sign::default() };
    let told = async { Store::connect(config).await?.tell_double(name, &sign).await };
    if let Err(error) = told.await {
        warn!(%error, "the fleet is not told of it");
    }
}

/// Where a balancer is, as far as it says so.
fn place(sign: &Sign) -> String {
    let at = sign.agents.as_ref().or(sign.tables.as_ref());
    at.map(|at| format!(" (its agents call {at})")).unwrap_or_default()
}

/// What a balancer of this name has to say of another one of it.
pub(super) fn warning(report: &Report, name: &str) -> Option<String> {
    if report.namesake {
        let other = report.balancers.get(name).map(place).unwrap_or_default();
        return Some(format!(
            "another balancer of the fleet has the name of this one{other}; set balancer.name: this one is of no \
             fleet until then, and is not announced"
        ));
    }
    let mut doubles = report.doubles.iter().filter_map(|(which, sign)| {
        let (of, _) = which.rsplit_once('/')?;
        (of == name).then(|| place(sign))
    });
    let other = doubles.next()?;
    Some(format!(
        "another balancer has the name of this one{other}, and is not of the fleet; set balancer.name there"
    ))
}

impl<P: Plane> Engine<P> {
    /// Whether another balancer of the fleet has the name of this one, which takes no part in it therefore.
    pub(in crate::engine) fn is_double(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.with_report(|report| report.namesake))
    }
}
