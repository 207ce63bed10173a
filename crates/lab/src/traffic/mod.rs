//! Thousands of connections that notice when one of them breaks.
//!
//! Each client namespace has a thread with a single-threaded runtime, and each connection is a
//! task on it. A connection remembers the backend that gave its first answer; every later answer
//! must come from there. How connections end, and what excuses a failure, is in [`Outcome`] and
//! `docs/lab.md`.

mod account;
mod flow;
mod held;
mod http;
mod spec;
mod stats;
mod upload;
mod verdict;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::agent::Lies;
use crate::error::{Doing, Error, Result};
use crate::events::PoolEvents;
use crate::lab::Lab;
use crate::topology;
use crate::witness::Witness;
use weir_testbed::process;

use flow::{Client, slot};
pub(crate) use flow::{REUSED, begin_connect};
pub(crate) use http::read_answer;
use spec::Planner;

pub(crate) use held::{Bench, HeldFlow};
pub use spec::{Kind, Mix, Target, TrafficSpec};
pub use stats::{
    BROKEN_KEPT, BackendSnapshot, BrokenConnection, KindSnapshot, Latency, Snapshot, Stats,
};
pub use verdict::{Failure, Outcome};

/// How often a client looks at what it is told.
const TICK: Duration = Duration::from_millis(20);
/// Files that are open besides connections.
const OTHER_FILES: usize = 600;

/// What all clients and the handle share.
#[derive(Debug)]
pub(crate) struct Shared {
    spec: TrafficSpec,
    stats: Arc<Stats>,
    events: Arc<PoolEvents>,
    witness: Witness,
    /// What the backends' agents say wrongly.
    lies: Lies,
    /// How clients of QUIC connect, if there are any.
    quic: Option<quinn::ClientConfig>,
    target: AtomicUsize,
    finish: AtomicBool,
    give_up: AtomicBool,
}

/// Starts the clients of a lab; see [`Traffic::start`].
#[derive(Debug)]
pub struct Traffic;

impl Traffic {
    /// Starts the clients of a lab.
    ///
    /// # Errors
    /// [`Error::BadSpec`] if the spec makes no sense or the system allows too few open files.
    pub fn start(lab: &Lab, spec: TrafficSpec) -> Result<TrafficHandle> {
        spec.check()?;
        let most = (process::raise_file_limit()? as usize).saturating_sub(OTHER_FILES);
        if spec.connections > most {
            return Err(Error::BadSpec(format!(
                "{} connections: this system's limit of open files allows {most}",
                spec.connections
            )));
        }
        let quic = match lab.quic() {
            Some(identity) => Some(identity.client(spec.quic_timeout)?),
            None if spec.mix.quic > 0.0 => {
                return Err(Error::BadSpec("clients of QUIC need servers of it".into()));
            }
            None => None,
        };
        let names = lab.backends().iter().map(|b| b.name().to_string()).collect();
        let shared = Arc::new(Shared {
            stats: Arc::new(Stats::new(names).without_promise(&spec.unpromised)),
            events: Arc::clone(lab.events()),
            witness: Witness::open(lab, spec.longest_without_answer() * 2)?,
            lies: lab.spec().agent.as_ref().map(|agent| agent.lies).unwrap_or_default(),
            quic,
            target: AtomicUsize::new(spec.connections),
            finish: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            spec,
        });
        let clients = lab.clients().len();
        let mut handle = TrafficHandle {
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(clients),
            started: Instant::now(),
            most,
        };
        for (index, netns) in lab.clients().iter().enumerate() {
            let planner = Planner::new(&shared.spec, index)?;
            let place = Place { index, clients, addresses: lab.spec().addresses_per_client };
            let shared = Arc::clone(&shared);
            // On an error the handle is dropped, which ends the threads before.
            handle.threads.push(netns.spawn(move || run_client(shared, planner, place))?);
        }
        Ok(handle)
    }
}

/// Running traffic. Dropping it gives up all connections at once.
#[derive(Debug)]
pub struct TrafficHandle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<weir_testbed::Result<Result<()>>>>,
    started: Instant,
    most: usize,
}

impl TrafficHandle {
    /// The counters, which go on counting.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// Makes connections step by step, on the same books.
    pub(crate) fn bench(&self) -> Bench {
        Bench(Arc::clone(&self.shared))
    }

    /// Changes how many connections are open at a time. Fewer are reached as connections end.
    pub fn set_target(&self, connections: usize) {
        self.shared.target.store(connections.min(self.most), Relaxed);
    }

    /// Begins to end the run as [`TrafficHandle::finish`] does, and does not wait.
    pub fn wind_down(&self) {
        self.shared.finish.store(true, Relaxed);
    }

    /// Whether every connection has ended after [`TrafficHandle::wind_down`].
    pub fn is_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Ends the run politely: no new connections; those that are open make one last request, to
    /// see that they still sit at their backend, and close. Downloads and uploads are waited for.
    ///
    /// # Errors
    /// If a client could not run; connections that broke are no error but in the report.
    pub fn finish(self) -> Result<Report> {
        self.wind_down();
        self.report()
    }

    /// Ends the run at once: connections that are open are closed and not counted.
    ///
    /// # Errors
    /// As [`TrafficHandle::finish`].
    pub fn give_up(self) -> Result<Report> {
        self.shared.give_up.store(true, Relaxed);
        self.report()
    }

    fn report(mut self) -> Result<Report> {
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(result) => result??,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(Report {
            seed: self.shared.spec.seed,
            seconds: self.started.elapsed().as_secs_f64(),
            totals: self.shared.stats.snapshot(),
            broken_connections: self.shared.stats.broken(),
            unseen: self.shared.witness.lost(),
        })
    }
}

impl Drop for TrafficHandle {
    fn drop(&mut self) {
        self.shared.give_up.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A panic was printed already, and this may be an unwinding.
            let _ = thread.join();
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seed of the run; the same seed plans the same connections.
    pub seed: u64,
    /// Length of the run in seconds.
    pub seconds: f64,
    /// All counters at its end.
    #[serde(flatten)]
    pub totals: Snapshot,
    /// The first broken connections, [`BROKEN_KEPT`] at most.
    pub broken_connections: Vec<BrokenConnection>,
    /// SYNs and datagrams that arrived at a backend and were not noted, because nobody read them
    /// in time. With any, a verdict on a connection without an answer may be wrong.
    pub unseen: u64,
}

/// Which client this is.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    clients: usize,
    addresses: usize,
}

impl Place {
    /// This client's part of a number of connections.
    fn share(self, all: usize) -> usize {
        all / self.clients + usize::from(self.index < all % self.clients)
    }
}

fn run_client(shared: Arc<Shared>, planner: Planner, place: Place) -> Result<()> {
    let sources4 = (0..place.addresses).map(|n| topology::client4(place.index, n).into());
    let sources6 = (0..place.addresses).map(|n| topology::client6(place.index, n).into());
    let client = Rc::new(Client {
        shared,
        sources4: sources4.collect(),
        sources6: sources6.collect(),
        planner: RefCell::new(planner),
        slots: Cell::new(0),
        quota: Cell::new(0),
        finishing: Cell::new(false),
        finish: Notify::new(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "starting a runtime".into())?;
    LocalSet::new().block_on(&runtime, control(&client, place));
    Ok(())
}

/// Keeps as many connections going as there should be, until told to end.
async fn control(client: &Rc<Client>, place: Place) {
    let shared = &client.shared;
    let ramp = shared.spec.ramp as f64 / place.clients as f64;
    let (mut credit, mut last, mut number) = (0.0, Instant::now(), 0);
    while !shared.give_up.load(Relaxed) {
        if shared.finish.load(Relaxed) && !client.finishing.replace(true) {
            client.finish.notify_waiters();
        }
        if client.finishing.get() {
            if client.slots.get() == 0 {
                return;
            }
        } else {
            client.quota.set(place.share(shared.target.load(Relaxed)));
            credit += last.elapsed().as_secs_f64() * ramp;
            last = Instant::now();
            while client.slots.get() < client.quota.get() && credit >= 1.0 {
                credit -= 1.0;
                client.slots.set(client.slots.get() + 1);
                tokio::task::spawn_local(slot(Rc::clone(client), number));
                number += 1;
            }
            // Time spent at the target is not saved up for a burst.
            credit = credit.min((ramp * 0.1).max(1.0));
        }
        tokio::time::sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for clients in 1..5 {
            for all in [0, 1, 7, 1000] {
                let sum: usize = (0..clients)
                    .map(|index| Place { index, clients, addresses: 1 })
                    .map(|place| place.share(all))
                    .sum();
                assert_eq!(sum, all);
            }
        }
    }
}
