//! Agents, as a balancer sees them: they call by TLS, list what they hold, tell what happens at a given rate, and
//! answer whatever they are asked. The connections are made up.

use crate::error::Context;
use crate::{Error, Result};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use weir_rpc::dial::dial;
use weir_rpc::message::{Connection, Kind, bytes_of};
use weir_rpc::tls::Files;
use weir_rpc::{
    BalancerClient, Collected, DumpBegin, DumpEnd, Dumped, Endpoints, Event, Events, FromAgent,
    FromBalancer, Hello, MOST_BYTES, MOST_OF_A_MESSAGE, PROTOCOL, Reached, from_agent,
    from_balancer,
};
use weir_steering::StateKey;
use weir_wire::map_address;

/// Messages that wait for the balancer to take them, as of a real agent.
const WAITING: usize = 4;
/// From one look at what has happened to the next, as of a real one to which much happens.
const TICK: Duration = Duration::from_millis(20);
/// The same where nothing happens.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// A balancer that does not listen yet is called again after so long.
const AGAIN: Duration = Duration::from_millis(20);
/// The port of clients.
const CLIENT_PORT: u16 = 4096;
/// The port of services.
pub const PORT: u16 = 80;

/// A connection by its number: clients are spread over 10.0.0.0/8, no two of them neighbours.
pub fn connection(endpoint: u32, number: u32) -> Connection {
    let spread = number.wrapping_mul(0x9e37_79b1) & 0x00ff_ffff;
    // Where all addresses have one, the next port begins.
    let port = CLIENT_PORT + (number >> 24) as u16;
    let client = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | spread));
    Connection { endpoint, client, client_port: port, port: None }
}

/// By what a balancer knows it.
pub fn key(one: &Connection) -> StateKey {
    StateKey { address: map_address(one.client), src_port: one.client_port, dst_port: PORT }
}

/// The same by its number.
pub fn key_of(number: u32) -> StateKey {
    key(&connection(0, number))
}

/// What all agents have in common.
pub struct Common {
    /// Where the balancer listens.
    pub port: u16,
    /// How many there are.
    pub agents: u32,
    /// Connections that live at the beginning, of all of them.
    pub held: u32,
    /// They end.
    pub stop: AtomicBool,
    /// Connections that open in a second, of all of them; from this moment on, and for so long.
    pub rate: u32,
    pub pace: Mutex<Option<(Instant, Duration)>>,
    /// So many may call at once; without a place they wait.
    pub calls: Semaphore,
    /// Connections that were told, opened and ended.
    pub told: AtomicU64,
    /// Sessions that have listed all.
    pub listed: AtomicU64,
    /// Those that have heard of a second service at their backends, and when the last of all has.
    pub changed: AtomicU64,
    pub changed_at: Mutex<Option<Instant>>,
}

/// One of them.
pub struct Agent {
    pub number: u32,
    pub address: IpAddr,
    pub files: Files,
    pub common: Arc<Common>,
}

struct Session {
    to: mpsc::Sender<FromAgent>,
    from: Streaming<FromBalancer>,
    list: u64,
    endpoint: Option<u32>,
    /// Whether it has heard of a second one.
    changed: bool,
    next: u64,
    /// Connections that have been opened and ended.
    opened: u32,
    ended: u32,
}

fn fault(why: impl Into<String>) -> Error {
    Error::Fault(why.into())
}

impl Agent {
    /// Speaks until it is to stop. A session that breaks is an error.
    pub async fn run(&self) -> Result<()> {
        let Some(mut session) = self.call().await? else { return Ok(()) };
        self.dump(&mut session).await?;
        self.common.listed.fetch_add(1, Ordering::SeqCst);
        let mut ticks = interval(if self.common.rate > 0 { TICK } else { IDLE_TICK });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stops() {
            tokio::select! {
                said = session.from.message() => {
                    let said = said.context("hearing a balancer")?;
                    self.hear(&mut session, said.ok_or_else(|| fault("a session has ended"))?).await?;
                }
                _ = ticks.tick() => self.tell(&mut session).await?,
            }
        }
        Ok(())
    }

    fn stops(&self) -> bool {
        self.common.stop.load(Ordering::SeqCst)
    }

    async fn call(&self) -> Result<Option<Session>> {
        let mut place = std::pin::pin!(self.common.calls.acquire());
        // Until it is welcomed.
        let _place = loop {
            tokio::select! {
                place = &mut place => break place,
                () = sleep(IDLE_TICK) => if self.stops() { return Ok(None) },
            }
        };
        let channel = loop {
            if self.stops() {
                return Ok(None);
            }
            match dial("127.0.0.1", self.common.port, &self.files, |endpoint| endpoint).await {
                Ok(channel) => break channel,
                Err(_) => sleep(AGAIN).await,
            }
        };
        let mut client = BalancerClient::new(channel).max_decoding_message_size(MOST_BYTES);
        let (to, messages) = mpsc::channel(WAITING);
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            instance: [self.number; 4].into_iter().flat_map(u32::to_le_bytes).collect(),
            addresses: vec![bytes_of(self.address)],
            first: 0,
            next: 0,
        };
        let _ = to.try_send(FromAgent { what: Some(from_agent::What::Hello(hello)) });
        let answer = client.speak(ReceiverStream::new(messages)).await;
        let mut from = answer.context("calling a balancer")?.into_inner();
        let first = from.message().await.context("hearing a balancer")?;
        let Some(from_balancer::What::Welcome(welcome)) = first.and_then(|first| first.what) else {
            return Err(fault("an agent is not welcomed"));
        };
        let mut session = Session {
            to,
            from,
            list: 0,
            endpoint: None,
            changed: false,
            next: 0,
            opened: 0,
            ended: 0,
        };
        session.set(&welcome.endpoints.unwrap_or_default());
        Ok(Some(session))
    }

    async fn hear(&self, session: &mut Session, said: FromBalancer) -> Result<()> {
        match said.what {
            Some(from_balancer::What::Endpoints(list)) => {
                session.set(&list);
                if list.endpoint.len() > 1 && !std::mem::replace(&mut session.changed, true) {
                    self.common.has_changed();
                }
                self.dump(session).await
            }
            Some(from_balancer::What::Dump(_)) => self.dump(session).await,
            Some(from_balancer::What::Mark(mark)) => {
                let connections = u64::from(self.held() + session.opened - session.ended);
                let reached = Reached { mark: mark.mark, connections, lost: 0 };
                session.say(from_agent::What::Reached(reached)).await
            }
            Some(from_balancer::What::Collect(collect)) => {
                let (number, connection) = (collect.number, Vec::new());
                let collected = Collected { number, connection, last: true };
                session.say(from_agent::What::Collected(collected)).await
            }
            _ => Ok(()),
        }
    }

    /// Of what lives at the beginning, its part.
    fn held(&self) -> u32 {
        let Common { held, agents, .. } = *self.common;
        held / agents + u32::from(self.number < held % agents)
    }

    /// The number of a connection of its own, among all of all agents.
    fn own(&self, n: u32) -> u32 {
        n * self.common.agents + self.number
    }

    /// Lists what there is, twice, as a real one does.
    async fn dump(&self, session: &mut Session) -> Result<()> {
        let begin = DumpBegin { next: session.next, endpoints: session.list };
        session.say(from_agent::What::DumpBegin(begin)).await?;
        let live: Vec<u32> = (0..self.held())
            .chain(self.held() + session.ended..self.held() + session.opened)
            .collect();
        for _ in 0..2 {
            for part in live.chunks(MOST_OF_A_MESSAGE) {
                let Some(endpoint) = session.endpoint else { break };
                let one = |n: &u32| connection(endpoint, self.own(*n)).into();
                let dumped = Dumped { connection: part.iter().map(one).collect() };
                session.say(from_agent::What::Dumped(dumped)).await?;
            }
        }
        session.say(from_agent::What::DumpEnd(DumpEnd {})).await
    }

    /// Tells what has happened by now at the given rate: connections live for a tenth of a second, and all have ended
    /// when the time is over.
    async fn tell(&self, session: &mut Session) -> Result<()> {
        let pace = *self.common.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some((since, time)), Some(endpoint)) = (pace, session.endpoint) else { return Ok(()) };
        let rate = f64::from(self.common.rate) / f64::from(self.common.agents);
        let by = |time: Duration| (time.as_secs_f64() * rate) as u32;
        let elapsed = since.elapsed();
        let opened = by(elapsed.min(time));
        let over = elapsed >= time + LIFE;
        let ended = if over { opened } else { by(elapsed.saturating_sub(LIFE).min(time)) };
        let event = |kind: Kind, n: u32| Event {
            kind: weir_rpc::Kind::from(kind).into(),
            connection: Some(connection(endpoint, self.own(self.held() + n)).into()),
        };
        let told = (session.opened..opened).map(|n| event(Kind::Opened, n));
        let told = told.chain((session.ended..ended).map(|n| event(Kind::Closed, n)));
        let told: Vec<Event> = told.collect();
        for part in told.chunks(MOST_OF_A_MESSAGE) {
            let (first, next) = (session.next, session.next + part.len() as u64);
            let events = Events { first, next, event: part.to_vec() };
            session.say(from_agent::What::Events(events)).await?;
            session.next = next;
        }
        let whole = ended - session.ended;
        (session.opened, session.ended) = (opened, ended);
        self.common.told.fetch_add(u64::from(whole), Ordering::SeqCst);
        Ok(())
    }
}

impl Common {
    /// One more has heard of a second service.
    fn has_changed(&self) {
        if self.changed.fetch_add(1, Ordering::SeqCst) + 1 == u64::from(self.agents) {
            let mut at = self.changed_at.lock().unwrap_or_else(PoisonError::into_inner);
            *at = Some(Instant::now());
        }
    }
}

/// So long a connection lives.
const LIFE: Duration = Duration::from_millis(100);

impl Session {
    fn set(&mut self, list: &Endpoints) {
        self.list = list.number;
        self.endpoint = list.endpoint.first().map(|endpoint| endpoint.id);
    }

    async fn say(&self, what: from_agent::What) -> Result<()> {
        let said = self.to.send(FromAgent { what: Some(what) }).await;
        said.map_err(|_| fault("the balancer has ended a session"))
    }
}
