//! What is said to one balancer.

use super::app::Word;
use super::dump::{self, Ends, Which};
use super::holds;
use super::kernel::ToldOf;
use super::load::{LoadOf, Look};
use super::log::Change;
use super::{Balancer, Common, own_addresses};
use crate::error::Error;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use weir_rpc::dial::{Shown, dial_and_look, resolve};
use weir_rpc::message::{self, Balancers, Connection, Kind};
use weir_rpc::tls::with_causes;
use weir_rpc::written::{self, Writer, Written};
use weir_rpc::{
    Collected, DumpBegin, DumpEnd, Dumped, Endpoints, FromAgent, FromBalancer, Health, Hello, Load,
    MOST_COLLECTED, MOST_OF_A_MESSAGE, PROTOCOL, QuicLb, Reached, Serving, Welcome, from_agent,
    from_balancer,
};
use weir_rpc::{quic, serving};

/// A balancer that cannot be reached is tried again after so long, and after up to twice as long each time.
const AGAIN: Duration = Duration::from_millis(100);
/// But never later than this.
const AGAIN_AT_MOST: Duration = Duration::from_secs(5);
/// Whoever could not be spoken to for so long is away: what it is besides is called, too.
const AWAY_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for a connection, for TLS, and for the first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A name that is not resolved by then is said to be so: whoever is asked may never answer.
const UNRESOLVED: Duration = Duration::from_secs(1);
/// A balancer that is silent is asked whether it is there; without an answer in so long it is not.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const ALIVE_WITHIN: Duration = Duration::from_secs(3);
/// Messages that wait for the balancer to take them: the log waits for these.
const WAITING: usize = 4;
/// Changes that are told in one message: each is an event of its own, and two where an agent lies.
const CHANGES: usize = MOST_OF_A_MESSAGE / if cfg!(feature = "laboratory") { 2 } else { 1 };
/// A load is told so often.
const LOAD_EVERY: Duration = Duration::from_secs(1);

/// Why a session has ended, or none came about.
#[derive(Debug)]
struct Ended(String);

impl<E: std::error::Error> From<E> for Ended {
    fn from(error: E) -> Self {
        Self(with_causes(error.to_string(), &error))
    }
}

/// What is heard of balancers.
#[derive(Debug)]
pub(super) enum News {
    /// The session is open, with whoever has shown this certificate, and this is what it says of its fleet; none:
    /// nothing.
    Says(Arc<[u8]>, Option<Balancers>),
    /// It is over, and is begun again.
    Lost,
    /// It could not be begun for a while.
    Away,
}

fn ended(why: impl Into<String>) -> Ended {
    Ended(why.into())
}

/// One balancer, again and again.
pub(super) struct Session {
    number: usize,
    balancer: Balancer,
    common: Arc<Common>,
    /// It was said that its name is not resolved.
    unresolved: AtomicBool,
}

/// The number of a connection's endpoint, and its port if that does not say it.
type Place = (u32, Option<u16>);

/// A session that is under way.
struct Open<'a> {
    of: &'a Session,
    to: mpsc::Sender<Written>,
    /// The number of the list of endpoints in force, and the endpoints by address and port.
    list: u64,
    endpoints: HashMap<(IpAddr, u16), u32>,
    /// The next change that the balancer is to be told; `None` before the first dump.
    cursor: Option<u64>,
    look: Look,
    /// What the balancer has shown.
    certificate: Arc<[u8]>,
}

impl Session {
    pub fn new(number: usize, balancer: Balancer, common: Arc<Common>) -> Self {
        Self { number, balancer, common, unresolved: AtomicBool::new(false) }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        (self.common.say)(format_args!("balancer {}: {what}", self.balancer));
    }

    /// Tells whoever looks after all sessions.
    async fn hears(&self, news: News) {
        let _ = self.common.news.send((self.number, news)).await;
    }

    /// Until the runtime ends.
    pub async fn go_on(self) {
        let (mut wait, mut said) = (AGAIN, (String::new(), false));
        let (mut since, mut away) = (Instant::now(), false);
        loop {
            let mut welcomed = false;
            let Err(Ended(why)) = self.once(&mut welcomed).await else { continue };
            if welcomed {
                (wait, said) = (AGAIN, (String::new(), false));
                (since, away) = (Instant::now(), false);
                self.hears(News::Lost).await;
            } else if !away && since.elapsed() >= AWAY_AFTER {
                away = true;
                self.hears(News::Away).await;
            }
            let lapsed = holds::lapsed(&self.common.options.files);
            // The same every few seconds would fill a disc; for how long it has ended is another each time.
            let now = (why, lapsed.is_some());
            if now != said {
                let more = lapsed.map(|lapsed| format!("; {lapsed}")).unwrap_or_default();
                self.say(format_args!("{}{more}; tried again", now.0));
                said = now;
            }
            // Not all at once, when a balancer comes back.
            sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(AGAIN_AT_MOST);
        }
    }

    async fn connect(&self) -> Result<(Channel, Shown), Ended> {
        let Balancer { host, port } = &self.balancer;
        let alive = |endpoint: Endpoint| {
            endpoint
                .http2_keep_alive_interval(ALIVE_EVERY)
                .keep_alive_timeout(ALIVE_WITHIN)
                .keep_alive_while_idle(true)
        };
        let places = {
            let mut found = pin!(resolve(host, *port));
            tokio::select! {
                places = &mut found => places,
                () = sleep(UNRESOLVED) => {
                    if !self.unresolved.swap(true, Ordering::Relaxed) {
                        self.say(format_args!("the name {host} is not resolved yet; waits for it"));
                    }
                    found.await
                }
            }
        }?;
        self.unresolved.store(false, Ordering::Relaxed);
        Ok(dial_and_look(host, places, &self.common.options.files, alive).await?)
    }

    /// What it says of how packets come.
    fn served(&self, said: &Serving) -> Result<(), Ended> {
        let now = serving::serving(said)?;
        self.common.said.send_if_modified(|all| {
            let new = all.get(&self.balancer) != Some(&now);
            all.insert(self.balancer.clone(), now);
            new
        });
        Ok(())
    }

    /// What it says of how servers make QUIC ids.
    fn quic(&self, said: &QuicLb) -> Result<(), Ended> {
        let now = quic::quic_lb(said)?;
        self.common.quic.send_if_modified(|all| {
            let new = all.get(&self.balancer) != Some(&now);
            all.insert(self.balancer.clone(), now);
            new
        });
        Ok(())
    }

    async fn once(&self, welcomed: &mut bool) -> Result<(), Ended> {
        let addresses = own_addresses(&self.common.options.files)?;
        let (channel, shown) = self.connect().await?;
        let (to, messages) = mpsc::channel::<Written>(WAITING);
        let hello = {
            let log = self.log();
            Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").into(),
                instance: self.common.instance.to_vec(),
                addresses: addresses.iter().copied().map(message::bytes_of).collect(),
                first: log.first(),
                next: log.next(),
            }
        };
        let _ = to.try_send(FromAgent { what: Some(from_agent::What::Hello(hello)) }.into());
        let messages = ReceiverStream::new(messages);
        let answer = written::speak(channel, messages).await;
        let refused = |status| refused(status, &shown);
        let answer = answer.map_err(refused)?;
        let mut answers = answer.into_inner();
        let silent = || ended("it does not answer");
        let first = timeout(PATIENCE, answers.message()).await.map_err(|_| silent())?;
        let Some(FromBalancer { what: Some(from_balancer::What::Welcome(welcome)) }) =
            first.map_err(refused)?
        else {
            return Err(ended("it does not welcome the agent"));
        };
        message::same_version(welcome.protocol)?;
        let balancers = welcome.balancers.as_ref().map(message::balancers).transpose()?;
        if let Some(serving) = &welcome.serving {
            self.served(serving)?;
        }
        if let Some(ids) = &welcome.quic_lb {
            self.quic(ids)?;
        }
        *welcomed = true;
        let certificate = shown.certificate();
        self.hears(News::Says(Arc::clone(&certificate), balancers)).await;
        let endpoints = HashMap::new();
        let look = Look::now();
        let mut open = Open { of: self, to, list: 0, endpoints, cursor: None, look, certificate };
        open.begin(welcome).await?;
        let mut grown = self.common.kernel.grown.clone();
        let mut health = self.common.health.clone();
        open.tell_health().await?;
        let mut loads = interval(LOAD_EVERY);
        loads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                said = answers.message() => match said.map_err(refused)? {
                    Some(said) => open.hear(said).await?,
                    None => return Err(ended("it has ended the session")),
                },
                changed = grown.changed() => {
                    changed?;
                    open.tell_changes().await?;
                }
                changed = health.changed(), if self.common.options.health.is_some() => {
                    changed?;
                    open.tell_health().await?;
                }
                _ = loads.tick() => open.tell_load().await?,
            }
        }
    }

    fn log(&self) -> MutexGuard<'_, super::log::Log> {
        self.common.kernel.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a balancer says that ends a session.
fn refused(status: tonic::Status, shown: &Shown) -> Ended {
    match status.code() {
        tonic::Code::PermissionDenied
        | tonic::Code::InvalidArgument
        | tonic::Code::FailedPrecondition
        | tonic::Code::ResourceExhausted
        | tonic::Code::DeadlineExceeded
        | tonic::Code::Unauthenticated => ended(format!("refused: {}", status.message())),
        _ => {
            let words = format!("the session broke: {}", status.message());
            let words = with_causes(words, &status);
            match shown.refusal().filter(|why| !words.contains(why)) {
                Some(why) => ended(format!("{words}: {why}")),
                None => ended(words),
            }
        }
    }
}

impl Open<'_> {
    async fn send(&self, what: from_agent::What) -> Result<(), Ended> {
        self.send_written(FromAgent { what: Some(what) }.into()).await
    }

    async fn send_written(&self, message: Written) -> Result<(), Ended> {
        self.to.send(message).await.map_err(|_| ended("the session broke"))
    }

    async fn begin(&mut self, welcome: Welcome) -> Result<(), Ended> {
        let Welcome { version, resume, have, endpoints, .. } = welcome;
        let count = self.set(endpoints.unwrap_or_default()).await?;
        let goes_on = resume && self.of.log().read(have, 0).is_some();
        let how = if goes_on { ", which knows all until it was lost" } else { "" };
        self.of.say(format_args!("connected (weir {version}){how}; told of {count} endpoints"));
        if goes_on {
            self.cursor = Some(have);
            self.tell_changes().await
        } else {
            self.dump().await
        }
    }

    async fn hear(&mut self, said: FromBalancer) -> Result<(), Ended> {
        match said.what {
            Some(from_balancer::What::Endpoints(list)) => {
                self.set(list).await?;
                self.dump().await
            }
            Some(from_balancer::What::Dump(_)) => self.dump().await,
            Some(from_balancer::What::Mark(mark)) => {
                self.tell_all().await?;
                let lost = self.of.log().lost();
                let connections = self.connections();
                self.send(from_agent::What::Reached(Reached { mark: mark.mark, connections, lost }))
                    .await
            }
            Some(from_balancer::What::Collect(collect)) => self.collect(collect.number).await,
            Some(from_balancer::What::Balancers(list)) => {
                let list = Some(message::balancers(&list)?);
                self.of.hears(News::Says(Arc::clone(&self.certificate), list)).await;
                Ok(())
            }
            Some(from_balancer::What::Serving(serving)) => self.of.served(&serving),
            Some(from_balancer::What::QuicLb(ids)) => self.of.quic(&ids),
            // Of a later version.
            Some(from_balancer::What::Welcome(_)) | None => Ok(()),
        }
    }

    fn connections(&self) -> u64 {
        self.of.common.kernel.open.load(Ordering::Relaxed).max(0) as u64
    }

    /// Takes a list of endpoints, and answers how many there are.
    async fn set(&mut self, list: Endpoints) -> Result<usize, Ended> {
        let endpoints = message::endpoints(&list)?;
        let key = |one: &message::Endpoint| (one.address, one.port.unwrap_or(0));
        self.endpoints = endpoints.iter().map(|one| (key(one), one.id)).collect();
        self.list = list.number;
        let told: ToldOf = self.endpoints.keys().copied().collect();
        self.of.common.tell(self.of.number, told).await?;
        Ok(endpoints.len())
    }

    /// Where a connection is.
    fn endpoint(&self, local: IpAddr, port: u16) -> Option<Place> {
        let exact = self.endpoints.get(&(local, port)).map(|id| (*id, None));
        exact.or_else(|| self.endpoints.get(&(local, 0)).map(|id| (*id, Some(port))))
    }

    fn connection(&self, ends: Ends) -> Option<Connection> {
        let Ends { local, local_port, remote, remote_port } = ends;
        let (endpoint, port) = self.endpoint(local, local_port)?;
        Some(Connection { endpoint, client: remote, client_port: remote_port, port })
    }

    /// Connections of a part of a list, as they are told.
    fn listed(&self, part: Vec<Ends>, which: Which) -> impl Iterator<Item = Connection> {
        let lies = self.of.common.options.lies;
        let told = move |port| !(lies.omits(port) || which == Which::Open && lies.ends(port));
        let told = part.into_iter().filter(move |ends| told(ends.remote_port));
        told.filter_map(|ends| self.connection(ends))
    }

    /// Writes what is told of changes: mostly themselves. Most are of the endpoint of the one before.
    fn write(&self, changes: &[Change], first: u64, next: u64) -> Written {
        let lies = self.of.common.options.lies;
        let mut writer = Writer::with_room(changes.len());
        let mut last: Option<((IpAddr, u16), Option<Place>)> = None;
        for change in changes {
            let Change { kind, local, local_port, remote, remote_port } = *change;
            let found = match last {
                Some((at, found)) if at == (local, local_port) => found,
                _ => self.endpoint(local, local_port),
            };
            last = Some(((local, local_port), found));
            let Some((endpoint, port)) = found else { continue };
            let one = Connection { endpoint, client: remote, client_port: remote_port, port };
            match (lies.omits(remote_port), lies.ends(remote_port)) {
                (false, false) => writer.push(kind, one),
                (false, true) if kind == Kind::Opened => {
                    writer.push(Kind::Opened, one);
                    writer.push(Kind::Closed, one);
                }
                (true, _) | (false, true) => {}
            }
        }
        writer.finish(first, next)
    }

    /// Tells all that has happened until now, also what the log does not have yet.
    async fn tell_all(&mut self) -> Result<(), Ended> {
        if !self.of.common.kernel.flush().await {
            return Err(ended("connections are followed no more"));
        }
        self.tell_changes().await
    }

    /// Tells all that the log has.
    async fn tell_changes(&mut self) -> Result<(), Ended> {
        loop {
            let Some(first) = self.cursor else { return Ok(()) };
            let Some((next, changes)) = self.of.log().read(first, CHANGES) else {
                // It has happened faster than the balancer could be told.
                self.dump().await?;
                continue;
            };
            if next == first {
                return Ok(());
            }
            self.send_written(self.write(&changes, first, next)).await?;
            self.cursor = Some(next);
        }
    }

    /// Lists all connections that there are, twice: what the first list missed since something else went just
    /// then, the second one has. What has ended meanwhile is told afterwards.
    async fn dump(&mut self) -> Result<(), Ended> {
        let next = self.of.log().next();
        self.send(from_agent::What::DumpBegin(DumpBegin { next, endpoints: self.list })).await?;
        for _ in 0..2 {
            let (found, mut parts) = mpsc::channel::<Vec<Ends>>(1);
            let listing = tokio::task::spawn_blocking(move || list(Which::Open, &found));
            while let Some(part) = parts.recv().await {
                let here = self.listed(part, Which::Open);
                let connection: Vec<_> = here.map(Into::into).collect();
                if !connection.is_empty() {
                    self.send(from_agent::What::Dumped(Dumped { connection })).await?;
                }
            }
            listing.await??;
        }
        self.send(from_agent::What::DumpEnd(DumpEnd {})).await?;
        self.cursor = Some(next);
        Ok(())
    }

    /// Tells all that has happened, and then what is half-open. That is listed first, twice as in a dump: what
    /// opens while it is listed, and is not found any more, is among what has happened by then. The other way
    /// round it would be in neither.
    async fn collect(&mut self, number: u64) -> Result<(), Ended> {
        let mut half_open = HashSet::new();
        for _ in 0..2 {
            let (found, mut parts) = mpsc::channel::<Vec<Ends>>(1);
            let listing = tokio::task::spawn_blocking(move || list(Which::HalfOpen, &found));
            while half_open.len() < MOST_COLLECTED
                && let Some(part) = parts.recv().await
            {
                half_open.extend(self.listed(part, Which::HalfOpen));
            }
            // Whoever lists need not go on.
            drop(parts);
            listing.await??;
        }
        self.tell_all().await?;
        let mut rest = half_open.into_iter().take(MOST_COLLECTED);
        loop {
            let part = rest.by_ref().take(MOST_OF_A_MESSAGE);
            let connection = part.map(Into::into).collect();
            let last = rest.len() == 0;
            let part = Collected { number, connection, last };
            self.send(from_agent::What::Collected(part)).await?;
            if last {
                return Ok(());
            }
        }
    }

    async fn tell_load(&mut self) -> Result<(), Ended> {
        let now = Look::now();
        let cpu = now.busy_since(std::mem::replace(&mut self.look, now));
        let (connections, run_queue) = (self.connections(), now.running);
        let common = &self.of.common;
        let asked = common.options.load.as_ref();
        let load = asked.and_then(|of| match of {
            LoadOf::Cpu => Some(cpu * 100.0),
            LoadOf::RunQueue => Some(run_queue.into()),
            LoadOf::Connections => Some(connections as f64),
            LoadOf::Said(_) => *common.load.borrow(),
        });
        let unknown = asked.is_some() && load.is_none();
        self.send(from_agent::What::Load(Load { cpu, run_queue, connections, load, unknown })).await
    }

    /// Tells whether the application is well.
    async fn tell_health(&mut self) -> Result<(), Ended> {
        let common = &self.of.common;
        let Some(asked) = &common.options.health else { return Ok(()) };
        let Some(word) = common.health.borrow().clone() else { return Ok(()) };
        let every = u32::try_from(asked.every.as_millis()).unwrap_or(u32::MAX);
        let Word { good, why, weight } = (*word).clone();
        let weight = weight.unwrap_or_default();
        self.send(from_agent::What::Health(Health { good, why, weight, every_ms: every })).await
    }
}

/// Shows all such connections, a message's worth at a time. An error if they cannot be listed.
fn list(which: Which, to: &mpsc::Sender<Vec<Ends>>) -> Result<(), Error> {
    let mut part = Vec::new();
    let mut listened = true;
    dump::each(which, &mut |one| {
        part.push(one);
        if part.len() == MOST_OF_A_MESSAGE {
            listened = to.blocking_send(std::mem::take(&mut part)).is_ok();
        }
        listened
    })?;
    if !part.is_empty() {
        let _ = to.blocking_send(part);
    }
    Ok(())
}
