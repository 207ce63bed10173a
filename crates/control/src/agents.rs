//! Where agents of backends call: gRPC over TLS, in which both sides show a certificate (docs/agent.md).
//!
//! Nobody gets further than TLS without a certificate of the authority. What a session says goes to the engine
//! a message at a time, and the next one is read when the engine has taken it: whoever says much waits, in its
//! own connection, and has no more of this process's memory than a message and a window of HTTP/2.

use crate::config::{Agents, Spoken};
use crate::engine::{Command, Newcomer, Order, Over, Said, Sender};
use crate::health::told::Word;
use crate::pace::Pace;
use crate::tables::Shelf;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};
use weir_rpc::message::{self, Fault};
use weir_rpc::tls::{Identity, not_let_in, now};
use weir_rpc::{
    Balancer, BalancerServer, Collect, Dump, FromAgent, FromBalancer, MOST_BYTES, Mark, TABLE_PART,
    TableAsked, TablePart, Tables, TablesServer, from_agent, from_balancer,
};

/// Sessions at once; further callers are closed.
const SESSIONS: usize = 8192;
/// Callers that are not through with TLS.
const CALLERS: usize = 256;
/// For TLS, and for the first message.
const PATIENCE: Duration = Duration::from_secs(5);
/// The engine hears so often how many were turned away.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// That the same caller is refused for the same reason is said again after so long.
const SAY_AGAIN: Duration = Duration::from_secs(3600);
/// An agent is asked so often how far it is.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// One that has not answered after so long is lost.
const MARK_WITHIN: Duration = Duration::from_secs(3);
/// What waits for an agent to take it.
const WAITING: usize = 16;
/// What an agent may send before it is read.
const WINDOW: u32 = 1 << 20;
/// How long an address that cannot be listened at is left alone.
const AGAIN: Duration = Duration::from_secs(2);

/// Listens where `wanted` says, and goes on until it is dropped. What is in the way stands in `trouble`.
pub async fn serve(
    (engine, shelf): (Sender, Arc<Shelf>),
    mut wanted: watch::Receiver<Option<Agents>>,
    trouble: watch::Sender<Option<String>>,
) {
    let sessions = Arc::new(AtomicU64::new(0));
    loop {
        let Some(agents) = wanted.borrow_and_update().clone() else {
            trouble.send_replace(None);
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        match listen(&agents).await {
            Ok((listener, tls)) => {
                trouble.send_replace(None);
                info!(address = %agents.listen, "listens for agents");
                let (engine, shelf) = (engine.clone(), Arc::clone(&shelf));
                let (sessions, refused) = (Arc::clone(&sessions), Arc::default());
                let served = Served { engine, shelf, sessions, refused };
                served.until_another(listener, tls, &agents, &mut wanted, &trouble).await;
            }
            Err(why) => {
                if trouble.borrow().as_ref() != Some(&why) {
                    warn!(why, "cannot listen for agents");
                }
                trouble.send_replace(Some(why));
                let changed = wanted.changed();
                if let Ok(Err(_)) = timeout(AGAIN, changed).await {
                    return;
                }
            }
        }
        if wanted.has_changed().is_err() {
            return;
        }
    }
}

async fn listen(agents: &Agents) -> Result<(TcpListener, TlsAcceptor), String> {
    let tls = agents.files().server().map_err(|error| error.to_string())?;
    let listener = TcpListener::bind(agents.listen).await;
    let listener = listener.map_err(|error| format!("{}: {error}", agents.listen))?;
    Ok((listener, TlsAcceptor::from(tls)))
}

/// Who a caller is.
#[derive(Clone, Debug)]
struct Caller {
    from: SocketAddr,
    identity: Identity,
}

/// A connection of a caller that TLS has let in.
struct LetIn {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    _place: OwnedSemaphorePermit,
}

impl Connected for LetIn {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for LetIn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LetIn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}

struct Served {
    engine: Sender,
    shelf: Arc<Shelf>,
    sessions: Arc<AtomicU64>,
    /// Callers that were turned away, of whom the engine has not heard yet.
    refused: Arc<AtomicU64>,
}

impl Served {
    /// Until agents are to be listened for elsewhere, or nowhere.
    async fn until_another(
        self,
        listener: TcpListener,
        tls: TlsAcceptor,
        agents: &Agents,
        wanted: &mut watch::Receiver<Option<Agents>>,
        trouble: &watch::Sender<Option<String>>,
    ) {
        let (let_in, incoming) = mpsc::channel::<io::Result<LetIn>>(1);
        // Sessions end when it is dropped.
        let (open, over) = watch::channel(());
        let speaking = Speaking {
            engine: self.engine.clone(),
            refused: Arc::clone(&self.refused),
            sessions: self.sessions,
            over: over.clone(),
        };
        let service = BalancerServer::new(speaking).max_decoding_message_size(MOST_BYTES);
        let server = Server::builder()
            .http2_keepalive_interval(Some(MARK_EVERY))
            .http2_keepalive_timeout(Some(MARK_WITHIN))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_concurrent_streams(1)
            .add_service(service)
            .add_service(TablesServer::new(Lending {
                refused: Arc::clone(&self.refused),
                shelf: self.shelf,
            }))
            .serve_with_incoming(ReceiverStream::new(incoming));
        let server = tokio::spawn(server);
        let (callers, places) =
            (Arc::new(Semaphore::new(CALLERS)), Arc::new(Semaphore::new(SESSIONS)));
        let (mut tls, mut ca) = (tls, agents.ca.clone());
        let mut tick = interval(TELL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                changed = wanted.changed() => {
                    let now = wanted.borrow_and_update().clone();
                    let same = |now: &Agents| now.listen == agents.listen;
                    let Some(now) = now.filter(|now| changed.is_ok() && same(now)) else { break };
                    // The files may be others, or have been renewed. Sessions go on.
                    match now.files().server() {
                        Ok(renewed) => {
                            (tls, ca) = (TlsAcceptor::from(renewed), now.ca);
                            trouble.send_replace(None);
                        }
                        Err(error) => {
                            let why = format!("{error}; the ones before stay in use");
                            warn!(why, "cannot read the certificates for agents");
                            trouble.send_replace(Some(why));
                        }
                    }
                    continue;
                }
                accepted = listener.accept() => accepted,
                _ = tick.tick() => {
                    tell_refused(&self.engine, &self.refused).await;
                    // What could not be read is tried again.
                    let unread = trouble.borrow().is_some();
                    let now = wanted.borrow().clone().filter(|_| unread);
                    if let Some(now) = now
                        && let Ok(renewed) = now.files().server()
                    {
                        (tls, ca) = (TlsAcceptor::from(renewed), now.ca);
                        trouble.send_replace(None);
                    }
                    continue;
                }
            };
            let Ok((stream, from)) = accepted else {
                // No descriptor is left, most likely.
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(caller) = Arc::clone(&callers).try_acquire_owned() else { continue };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let (tls, let_in, refused) = (tls.clone(), let_in.clone(), Arc::clone(&self.refused));
            let ca = ca.clone();
            tokio::spawn(async move {
                let _caller = caller;
                match timeout(PATIENCE, handshake((tls, &ca), stream, from)).await {
                    Ok(Ok((stream, caller))) => {
                        let _ = let_in.send(Ok(LetIn { stream, caller, _place: place })).await;
                    }
                    Ok(Err(why)) => turn_away(&refused, from, &why),
                    Err(_) => turn_away(&refused, from, "it was too slow"),
                }
            });
        }
        tell_refused(&self.engine, &self.refused).await;
        drop(open);
        server.abort();
    }
}

/// `ca`: the authorities that a caller's certificate is held against.
async fn handshake(
    (tls, ca): (TlsAcceptor, &Path),
    stream: TcpStream,
    from: SocketAddr,
) -> Result<(TlsStream<TcpStream>, Caller), String> {
    let _ = stream.set_nodelay(true);
    let stream = tls.accept(stream).await.map_err(|error| not_let_in(&error, ca))?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
    let identity = shown.and_then(|first| Identity::of(first));
    let identity = identity.ok_or("its certificate cannot be read")?;
    Ok((stream, Caller { from, identity }))
}

/// Says so when it begins and when the reason is another, and counts it: whoever reaches the port and calls a thousand
/// times fills no log, and takes no more of the engine's time than a command a second.
fn turn_away(refused: &AtomicU64, from: SocketAddr, why: &str) {
    static PACE: Pace = Pace::new(1);
    static SAID: Refusals = Refusals::new();
    static UNSAID: AtomicU64 = AtomicU64::new(0);
    refused.fetch_add(1, Ordering::Relaxed);
    let (caller, now) = (from.ip(), Instant::now());
    if SAID.has_lately(caller, why, now) {
        UNSAID.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if let Some(unsaid) = PACE.take() {
        SAID.note(caller, why, now);
        let unsaid = unsaid + UNSAID.swap(0, Ordering::Relaxed);
        warn!(%from, why, unsaid, "an agent, or another balancer, was refused");
    }
}

/// Why callers were refused, as it was said last. An agent or a balancer whose certificate is of no use calls again for as
/// long as that is so.
struct Refusals(Mutex<BTreeMap<IpAddr, (String, Instant)>>);

impl Refusals {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Whether the same was said of this caller not long ago.
    fn has_lately(&self, caller: IpAddr, why: &str, now: Instant) -> bool {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(&caller).is_some_and(|(before, at)| before == why && is_lately(*at, now))
    }

    /// It is said now. Where too many call it is as if nothing had been said of this one.
    fn note(&self, caller: IpAddr, why: &str, now: Instant) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= CALLERS {
            said.retain(|_, (_, at)| is_lately(*at, now));
        }
        if said.len() < CALLERS || said.contains_key(&caller) {
            said.insert(caller, (why.to_owned(), now));
        }
    }
}

fn is_lately(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < SAY_AGAIN
}

/// Tells the engine how many were refused since it was told last.
async fn tell_refused(engine: &Sender, refused: &AtomicU64) {
    let count = refused.swap(0, Ordering::Relaxed);
    if count > 0 {
        let _ = engine.send(Command::AgentsRefused(count)).await;
    }
}

/// The service.
struct Speaking {
    engine: Sender,
    refused: Arc<AtomicU64>,
    sessions: Arc<AtomicU64>,
    over: watch::Receiver<()>,
}

#[tonic::async_trait]
impl Balancer for Speaking {
    type SpeakStream = ReceiverStream<Result<FromBalancer, Status>>;

    async fn speak(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::SpeakStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::unauthenticated("there is no certificate"))?;
        let (to, answers) = mpsc::channel(WAITING);
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let (engine, refused) = (self.engine.clone(), Arc::clone(&self.refused));
        let session = Session { number, caller, engine, refused, to };
        let heard = request.into_inner();
        let mut over = self.over.clone();
        tokio::spawn(async move {
            let (to, engine) = (session.to.clone(), session.engine.clone());
            let closed = || Status::unavailable("this balancer listens elsewhere, or ends");
            let ended = tokio::select! {
                ended = session.hear(heard) => ended,
                _ = over.changed() => closed(),
            };
            let _ = engine.send(Command::AgentGone(number)).await;
            let _ = to.try_send(Err(ended));
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// Tables for other balancers.
struct Lending {
    refused: Arc<AtomicU64>,
    shelf: Arc<Shelf>,
}

#[tonic::async_trait]
impl Tables for Lending {
    type TableStream = ReceiverStream<Result<TablePart, Status>>;

    async fn table(
        &self,
        request: Request<TableAsked>,
    ) -> Result<Response<Self::TableStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::unauthenticated("there is no certificate"))?;
        if !caller.identity.usage.server {
            let name = &caller.identity.name;
            let why = format!("the certificate of {name} is no balancer's, and asks for a table");
            turn_away(&self.refused, caller.from, &why);
            return Err(Status::permission_denied(why));
        }
        let TableAsked { service, digest } = request.into_inner();
        let table = self.shelf.get(&service, &digest);
        let table = table.ok_or_else(|| Status::not_found("this balancer has it not"))?;
        let (to, parts) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            for part in table.chunks(TABLE_PART) {
                let sent = to.send(Ok(TablePart { bytes: part.to_vec() }));
                // Who does not read has no more of this process than what waits for it.
                if !matches!(timeout(PATIENCE, sent).await, Ok(Ok(()))) {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(parts)))
    }
}

struct Session {
    number: u64,
    caller: Caller,
    engine: Sender,
    refused: Arc<AtomicU64>,
    to: mpsc::Sender<Result<FromBalancer, Status>>,
}

fn faulty(fault: Fault) -> Status {
    Status::invalid_argument(fault.to_string())
}

fn engine_ended() -> Status {
    Status::unavailable("this balancer ends")
}

fn deaf() -> Status {
    Status::deadline_exceeded("it does not listen")
}

/// Why the engine has ended a session; without a word it has ended itself, which is no other agent's doing.
fn over(why: Option<Over>) -> Status {
    match why {
        Some(Over::Another) => Status::aborted("another agent speaks for this backend"),
        Some(Over::Deaf) => deaf(),
        Some(Over::Gone) | None => engine_ended(),
    }
}

impl Session {
    /// The session, until it ends; why it did.
    async fn hear(&self, mut heard: Streaming<FromAgent>) -> Status {
        match self.go_on(&mut heard).await {
            Ok(()) => Status::ok("the agent has ended the session"),
            Err(status) => {
                let (from, why) = (self.caller.from, status.message());
                info!(%from, why, "the session of an agent ends");
                status
            }
        }
    }

    fn refuse(&self, why: String) -> Status {
        turn_away(&self.refused, self.caller.from, &why);
        Status::permission_denied(why)
    }

    async fn go_on(&self, heard: &mut Streaming<FromAgent>) -> Result<(), Status> {
        let (orders, mut ordered) = mpsc::channel(WAITING);
        let (end, mut ended) = oneshot::channel();
        self.begin(heard, orders, end).await?;
        let mut marks = interval(MARK_EVERY);
        marks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut mark, mut asked) = (0u64, None::<Instant>);
        loop {
            tokio::select! {
                // What it has said is heard before it is judged for being late.
                biased;
                why = &mut ended => return Err(over(why.ok())),
                said = heard.message() => {
                    let Some(said) = said? else { return Ok(()) };
                    let Some(what) = said.what else { continue };
                    if let from_agent::What::Reached(reached) = &what
                        && reached.mark != mark
                    {
                        continue;
                    }
                    let lag = asked.map_or(Duration::ZERO, |asked| asked.elapsed());
                    if matches!(what, from_agent::What::Reached(_)) {
                        asked = None;
                    }
                    if let Some(said) = said_by(what, lag).map_err(faulty)? {
                        let begun = Instant::now();
                        if let Err(status) = self.say(said).await {
                            // The engine may have ended the session before it heard this.
                            return Err(ended.try_recv().map_or(status, |why| over(Some(why))));
                        }
                        // What this process takes its time for is not the agent's delay.
                        asked = asked.map(|asked| asked + begun.elapsed());
                    }
                }
                Some(order) = ordered.recv() => {
                    let what = match order {
                        Order::Endpoints(list) => from_balancer::What::Endpoints(list),
                        Order::Dump => from_balancer::What::Dump(Dump {}),
                        Order::Collect(number) => from_balancer::What::Collect(Collect { number }),
                        Order::Balancers(list) => from_balancer::What::Balancers(list),
                        Order::Serving(serving) => from_balancer::What::Serving(serving),
                        Order::QuicLb(ids) => from_balancer::What::QuicLb(ids),
                    };
                    self.tell(what)?;
                }
                _ = marks.tick() => match asked {
                    Some(asked) if asked.elapsed() > MARK_WITHIN => {
                        return Err(Status::deadline_exceeded("it does not say how far it is"));
                    }
                    Some(_) => {}
                    None => {
                        if self.caller.identity.ends <= now() {
                            return Err(Status::permission_denied("its certificate has ended"));
                        }
                        mark += 1;
                        asked = Some(Instant::now());
                        self.tell(from_balancer::What::Mark(Mark { mark }))?;
                    }
                },
            }
        }
    }

    /// Hello and Welcome.
    async fn begin(
        &self,
        heard: &mut Streaming<FromAgent>,
        orders: mpsc::Sender<Order>,
        end: oneshot::Sender<Over>,
    ) -> Result<(), Status> {
        let late = |_| Status::deadline_exceeded("it does not say hello");
        let first = timeout(PATIENCE, heard.message()).await.map_err(late)??;
        let Some(FromAgent { what: Some(from_agent::What::Hello(hello)) }) = first else {
            return Err(faulty(Fault::First("Hello")));
        };
        let addresses = message::hello(&hello).map_err(faulty)?;
        let identity = &self.caller.identity;
        if identity.usage.server {
            let why = format!(
                "the certificate of {} is for servers, too, so a balancer's and no agent's",
                identity.name
            );
            return Err(self.refuse(why));
        }
        for address in &addresses {
            if !identity.addresses.contains(address) {
                let why = format!("the certificate of {} does not name {address}", identity.name);
                return Err(self.refuse(why));
            }
        }
        let newcomer = Newcomer {
            session: self.number,
            name: identity.name.clone(),
            ends: identity.ends,
            from: self.caller.from,
            version: hello.version.chars().filter(|c| c.is_ascii_graphic()).take(64).collect(),
            instance: hello.instance.try_into().unwrap_or_default(),
            addresses,
            orders,
            end,
        };
        let (reply, answer) = oneshot::channel();
        let call = Command::AgentCalls(Box::new(newcomer), reply);
        self.engine.send(call).await.map_err(|_| engine_ended())?;
        match answer.await.map_err(|_| engine_ended())? {
            Ok(welcome) => self.tell(from_balancer::What::Welcome(welcome)),
            Err(why) => Err(Status::failed_precondition(why)),
        }
    }

    /// Tells the engine, and waits until that has taken it.
    async fn say(&self, said: Said) -> Result<(), Status> {
        let (reply, answer) = oneshot::channel();
        let command = Command::AgentSays(self.number, said, reply);
        self.engine.send(command).await.map_err(|_| engine_ended())?;
        answer.await.map_err(|_| engine_ended())?.map_err(Status::invalid_argument)
    }

    fn tell(&self, what: from_balancer::What) -> Result<(), Status> {
        let told = self.to.try_send(Ok(FromBalancer { what: Some(what) }));
        told.map_err(|_| deaf())
    }
}

/// What a message means for the engine; none: nothing.
fn said_by(what: from_agent::What, lag: Duration) -> Result<Option<Said>, Fault> {
    Ok(Some(match what {
        from_agent::What::Hello(_) => return Err(Fault::First("the only Hello")),
        from_agent::What::Events(said) => {
            let events = message::events(&said)?;
            Said::Events { first: said.first, next: said.next, events }
        }
        from_agent::What::DumpBegin(said) => {
            Said::DumpBegin { next: said.next, list: said.endpoints }
        }
        from_agent::What::Dumped(said) => Said::Dumped(message::dumped(&said)?),
        from_agent::What::DumpEnd(_) => Said::DumpEnd,
        from_agent::What::Reached(said) => {
            Said::Reached { lag, connections: said.connections, lost: said.lost }
        }
        from_agent::What::Collected(said) => {
            let connections = message::collected(&said)?;
            Said::Collected { number: said.number, connections, last: said.last }
        }
        from_agent::What::Load(said) => {
            let load = message::load(&said)?;
            let unknown = said.unknown && load.is_none();
            Said::Load { cpu: said.cpu, run_queue: said.run_queue, load, unknown }
        }
        from_agent::What::Health(said) => {
            let message::Health { good, why, weight, every } = message::health(&said);
            let weight = Spoken::parse(weight.as_bytes());
            Said::Health(Word { good, why, weight, every })
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said_when_it_begins_and_when_it_changes() {
        let (said, begun) = (Refusals::new(), Instant::now());
        let at = |n: u32| IpAddr::from(n.to_be_bytes());
        assert!(!said.has_lately(at(1), "expired", begun));
        said.note(at(1), "expired", begun);
        assert!(said.has_lately(at(1), "expired", begun));
        assert!(!said.has_lately(at(1), "unknown", begun), "for another reason");
        assert!(!said.has_lately(at(2), "expired", begun), "another one");
        assert!(!said.has_lately(at(1), "expired", begun + SAY_AGAIN), "long ago");
        // However many call, no more are kept, and what was said of those stays.
        (2..2000).for_each(|n| said.note(at(n), "expired", begun));
        assert_eq!(said.0.lock().expect("nobody has failed").len(), CALLERS);
        said.note(at(1), "unknown", begun);
        assert!(said.has_lately(at(1), "unknown", begun));
        said.note(at(3000), "expired", begun + SAY_AGAIN);
        assert_eq!(said.0.lock().expect("nobody has failed").len(), 1);
    }

    #[test]
    fn only_another_agent_is_said_to_be_one() {
        let another = over(Some(Over::Another));
        assert_eq!(another.code(), tonic::Code::Aborted);
        for why in [Some(Over::Deaf), Some(Over::Gone), None] {
            assert!(!over(why).message().contains("another agent"), "{why:?}");
        }
        // A balancer that stops says so, whichever of its parts goes first.
        assert_eq!(over(None).message(), "this balancer ends");
    }
}
