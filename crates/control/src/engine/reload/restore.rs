//! What a start finds of an earlier run: services, their pools and their states, as they were left.

use super::{How, unless_breaking};
use crate::config::{Balancer, Config, PlaneKind, Service};
use crate::engine::document::{FILE, SavedService};
use crate::engine::forward::way_of;
use crate::engine::numbers::Numbers;
use crate::engine::places::pair;
use crate::engine::service::{ENDED, PoolMember, ServiceRuntime, log_path};
use crate::engine::sources::Listed;
use crate::engine::turn::InForce;
use crate::engine::{Engine, EngineError, pin_directory, tolerate};
use crate::store::{StateLog, StateRecord};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use tracing::{error, info, warn};
use weir_plane::{Listen, Plane};
use weir_steering::{BackendId, ServiceId};

impl<P: Plane> Engine<P> {
    /// The services that an earlier run has left and this file has, too, as they were left: what
    /// packets follow is taken up first, and changed then.
    ///
    /// # Errors
    /// If the data plane of an earlier run goes on, and what that has written of it is not there: who takes
    /// over without it knows no connection. `breaking`: all the same.
    pub(in crate::engine) fn restore(
        &mut self,
        config: &Config,
        breaking: bool,
    ) -> Result<(), EngineError> {
        let forwards =
            self.plane.services().iter().any(|(_, one)| self.plane.table_bytes(*one) > 0);
        if self.resumed && forwards && self.document.services.is_empty() && !breaking {
            let (name, run_dir) = (&config.balancer.name, config.balancer.run_dir.display());
            return Err(EngineError::Conflict(format!(
                "the data plane of {name} is that of an earlier run, and {run_dir} has nothing of that run: is it \
                 another run_dir, or was it emptied? Most connections would be unknown, and break with the next \
                 change; nothing has changed. Give it back, begin anew with weir unload --name {name}, or take over \
                 with --break-connections"
            )));
        }
        let saved: Vec<SavedService> = self.document.services.values().cloned().collect();
        if self.resumed
            && forwards
            && config.services.is_empty()
            && !breaking
            && !self.is_of_fleet()
        {
            let nothing = self.leaves_nothing(saved.len());
            return Err(unless_breaking(&nothing));
        }
        let mut numbers = self.numbers();
        let listed = self.plane.services();
        let configured: Vec<&Service> = saved.iter().map(|saved| &saved.configured).collect();
        let kept: BTreeSet<usize> =
            pair(&configured, &config.services).into_iter().flatten().collect();
        for (at, saved) in saved.into_iter().enumerate() {
            if kept.contains(&at) {
                self.restore_service(saved, config, &listed, &mut numbers)?;
            }
        }
        Ok(())
    }

    /// Whether a start has taken up all services that an earlier run has left. Reports of others would be lost if they
    /// were read: the file may be refused yet, and what was in force before has them.
    pub(super) fn has_all_left(&self) -> bool {
        self.services.len() == self.document.services.len()
    }

    /// Before a start judges its file it knows what packets have reported while nobody listened.
    pub(super) fn hear_what_waits(&mut self, how: How) {
        if how.start && self.resumed && self.has_all_left() {
            tolerate("take what packets have reported", self.drain_reports());
        }
    }

    fn restore_service(
        &mut self,
        saved: SavedService,
        config: &Config,
        listed: &[(Listen, ServiceId)],
        numbers: &mut Numbers,
    ) -> Result<(), EngineError> {
        let SavedService {
            number,
            seed,
            generation,
            configured,
            in_force,
            log,
            salts,
            numbered,
            sources,
            backends,
        } = saved;
        let number = ServiceId(number);
        // What the data plane has under this number is this service's only if it is known here
        // whose numbers its slots hold.
        let places: HashSet<Listen> = configured.places().into_iter().collect();
        let listed = listed.iter().filter(|(at, of)| *of == number && places.contains(&at.place()));
        let listed: Vec<&Listen> = listed.map(|(at, _)| at).collect();
        let ours = !listed.is_empty();
        let published = match ours {
            true => self
                .plane
                .published(number)
                .map_err(|error| unreadable(&configured.name, &config.balancer, &error))?,
            false => None,
        };
        // It may have been published, and the process have died before that was written down.
        let in_force = in_force.filter(|before| {
            published.as_ref().is_none_or(|image| image.method() == before.method.id())
        });
        let mut made = configured.clone();
        // A place is another only where that was asked for, although connections break.
        if let Some(InForce { method, affinity, cookie_key, cookie_keys, place: _ }) = in_force {
            (made.method, made.affinity) = (method, affinity);
            (made.cookie_key, made.cookie_keys) = (cookie_key, cookie_keys);
        }
        let before = published.as_ref().map_or(0, |image| image.header().generation);
        let log = log.unwrap_or_else(|| configured.name.clone());
        let (limits, run_dir) = (&config.limits, &config.balancer.run_dir);
        let now = self.now();
        let (mut runtime, records) = ServiceRuntime::new(
            ((number, seed), true),
            made,
            log,
            limits,
            run_dir,
            published,
            now,
        )?;
        runtime.restore_refusals(limits, ours);
        runtime.builder.resume_numbers(&numbered);
        // Of a table without states there is nothing to be lost.
        let had = runtime.builder.published().is_some_and(|image| image.header().states > 0);
        let lost = runtime.log.as_ref().and_then(StateLog::lost).filter(|_| ours && had);
        // The start may be refused yet, and the next one is to say it, too.
        if let (Some(_), Some(log)) = (lost, runtime.log.as_mut()) {
            log.note_lost();
        }
        let missing = runtime.log.as_ref().map_or(0, StateLog::missing);
        let log = log_path(run_dir, &runtime.log_name);
        let why =
            lost.map(|lost| format!("{} {lost}: connections of an earlier run are", log.display()));
        let missing = (ours && missing > 0).then(|| {
            format!(
                "{} could not grow in an earlier run: up to {missing} connections that began while the disc was \
                 full are",
                log.display()
            )
        });
        let mut lost: Vec<String> = why.into_iter().chain(missing).collect();
        runtime.configured = configured;
        runtime.listed = match config.balancer.plane {
            PlaneKind::P4 if sources.is_some() => {
                let service = &runtime.configured.name;
                error!(service, "a switch has no lists of sources: those of commands are left out");
                Listed::default()
            }
            _ => Listed::restored(sources, now),
        };
        runtime.lay_over();
        if let Some(salts) = salts {
            runtime.salts = salts;
        }
        // What packets go by, whatever could not be written down.
        listed.into_iter().for_each(|at| runtime.salts.adopt(at));
        runtime.generation = generation.max(before);
        // Numbers that were another's after all that is written down.
        let mut others: HashSet<BackendId> = HashSet::new();
        for backend in backends {
            let (wanted, former) = (backend.wanted(), BackendId::new(backend.id));
            let found = backend.found.clone();
            let up = backend.up || runtime.configured.check_of(&wanted).is_none();
            let member = match former.filter(|id| numbers.give_again(id.get().into())) {
                Some(former) => self.member(former, wanted, up, false),
                None => self.allot(wanted, up, (numbers, 0))?,
            };
            // Before the data plane is told that it is the former one's again.
            let given = self.plane.backend(member.id).map_or(0, |entry| entry.incarnation);
            if ours && Some(member.id) == former && given > member.incarnation {
                others.insert(member.id);
            }
            let way = way_of(&runtime.configured, &member.wanted, &self.config.balancer.nat);
            self.install(&member, way, Some(member.id) != former)?;
            let proven = up || !backend.unproven;
            runtime.pool.push(PoolMember { found, proven, ..member });
        }
        let whole = lost.is_empty();
        let untold = self.restore_states(&mut runtime, &records, (ours, &others), whole)?;
        lost.extend((untold > 0).then(|| untold_in_words(untold, run_dir)));
        runtime.lost = (!lost.is_empty()).then(|| {
            let what = format!("{} not known", lost.join(" not known, and "));
            let service = &runtime.configured.name;
            warn!(service, what, "they may break with a change of the pool");
            what
        });
        self.names.insert(number, runtime.configured.name.clone());
        self.services.insert(runtime.configured.name.clone(), runtime);
        Ok(())
    }

    /// Takes up the states of a service. Returns how many of them are connections at backends that nothing tells of that
    /// was written down, though packets follow its table. `ours`: they do. `others`: numbers of the pool that were
    /// another's. `whole`: the log has lost nothing.
    fn restore_states(
        &self,
        runtime: &mut ServiceRuntime,
        records: &[StateRecord],
        (ours, others): (bool, &HashSet<BackendId>),
        whole: bool,
    ) -> Result<usize, EngineError> {
        let now = self.now();
        let ids: HashSet<BackendId> = runtime.pool.iter().map(|member| member.id).collect();
        let (mut untold, mut gone) = (0, 0);
        for record in records {
            match BackendId::new(record.backend) {
                Some(backend) if ids.contains(&backend) && !others.contains(&backend) => {
                    runtime.restore(record, backend, now)?;
                }
                Some(backend)
                    if ours
                        && record.flags & ENDED == 0
                        && (others.contains(&backend) || self.is_untold(backend)) =>
                {
                    untold += 1;
                }
                _ => gone += 1,
            }
        }
        // Left by a process that died between a removal and this. The number may be another backend's soon.
        if gone > 0 && untold == 0 && whole {
            // Where there is no room it stays as it is.
            let _ = runtime.rewrite_log(now);
        }
        if !records.is_empty() {
            info!(service = runtime.configured.name, states = records.len(), "states restored");
        }
        Ok(untold)
    }

    /// Whether a backend got its number after all that is written down. A removal leaves the number there, and is written
    /// down before the states go; an addition is written down before it has any.
    fn is_untold(&self, backend: BackendId) -> bool {
        let told = self.document.incarnations.get(&backend.get()).copied();
        let given = self.plane.backend(backend).map(|entry| entry.incarnation);
        told.is_none_or(|told| given.is_some_and(|given| given > told))
    }

    /// What is known is written down whole, and nothing is missing in that. Not before the start has come to its end:
    /// one that is refused leaves to the next what there is to be said.
    pub(in crate::engine) fn write_down_whole(&mut self) {
        let now = self.now();
        for runtime in self.services.values_mut().filter(|runtime| runtime.lost.is_some()) {
            let written = runtime.rewrite_log(now);
            runtime.written(written);
        }
    }
}

/// What a start says of a table that packets follow and that does not check out: it cannot be told where they go.
fn unreadable(service: &str, balancer: &Balancer, error: &dyn std::error::Error) -> EngineError {
    if balancer.plane == PlaneKind::P4 {
        return EngineError::Plane(format!("service {service}: {error}").into());
    }
    let (name, pins) = (&balancer.name, pin_directory(&balancer.name));
    EngineError::Plane(
        format!(
            "service {service}: {error}: the pins of the data plane in {} are damaged or incomplete, and without its \
             tables nobody can go on from it. What is attached goes on forwarding. weir unload --name {name} removes \
             it, and the next start begins anew: connections that no log in {} has break then",
            pins.display(),
            balancer.run_dir.display()
        )
        .into(),
    )
}

/// That so many connections are at backends of which nothing is written down.
fn untold_in_words(untold: usize, run_dir: &Path) -> String {
    let file = run_dir.join(FILE);
    let (are, they) = match untold {
        1 => ("1 connection is at a backend".to_owned(), "it is"),
        many => (format!("{many} connections are at backends"), "they are"),
    };
    format!(
        "{are} of which neither {} nor its log tells, as if changes had been lost there: {they}",
        file.display()
    )
}
