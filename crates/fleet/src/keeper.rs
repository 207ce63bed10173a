//! The task of a balancer that keeps it in touch with the store, and goes on without.
//!
//! A *session* reads everything at one revision and watches from there on. Whatever ends it (the connection is
//! lost, the member of the store has no leader, the revision was compacted away, the lease has run out), the
//! next one reads everything again: nothing is missed, however long it was away.

use crate::document::MOST_BYTES;
use crate::store::{
    ACKS, ANSWERS, BALANCERS, CONFIG, DOUBLES, LEADER, MEMBERS, QUESTIONS, STEP, TERM,
};
use crate::terms::Terms;
use crate::{Ack, Document, FleetError, Leader, Report, Seat, Sign, Step, Store, StoreConfig};
use etcd_client::{Event, EventType, WatchResponse};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

/// Seconds that a balancer which says nothing counts as alive.
const LEASE_SECONDS: i64 = 10;
/// The same.
pub const LEASE: Duration = Duration::from_secs(LEASE_SECONDS as u64);
/// How often the lease is kept, and so how soon it is noticed that the store does not answer.
const BEAT: Duration = Duration::from_secs(2);
/// Of an answer to that.
const BEAT_PATIENCE: Duration = Duration::from_secs(3);
/// After a session that has failed, at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Seconds that a question and its answers are kept.
const QUESTION_SECONDS: i64 = 5;
/// How long balancers have for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Questions that may wait.
const QUEUE: usize = 256;

/// What a balancer asks of its keeper.
pub enum Ask {
    /// To replace the shared configuration, if its last change was at this revision; 0: there is none.
    Put {
        /// The new one.
        document: Box<Document>,
        /// The revision.
        expected: i64,
        /// The revision of the new one.
        then: oneshot::Sender<Result<i64, FleetError>>,
    },
    /// To ask all balancers that live, this one included.
    Question {
        /// What is asked.
        question: Value,
        /// Their answers, by their names; none from who has not answered in time.
        then: oneshot::Sender<Result<BTreeMap<String, Option<Value>>, FleetError>>,
    },
    /// To write a step of the pools, as the leader that this balancer is, in the place of the one that the store
    /// is known to have.
    Step {
        /// The step.
        step: Box<Step>,
        /// The revision of the one that it goes on from; 0: there was none.
        expected: i64,
        /// The revision of the configuration that it goes by.
        document_at: i64,
        /// Whether it is there.
        then: oneshot::Sender<Result<(), FleetError>>,
    },
    /// No packet comes to this balancer any more when it ends: the others need not wait for its lease.
    Leave,
    /// To say how far this balancer is in a step.
    Ack(Ack),
    /// To forget a member that is away.
    Forget {
        /// Its name.
        name: String,
        /// Whether there was one.
        then: oneshot::Sender<Result<bool, FleetError>>,
    },
}

/// Where asks go.
pub type Asks = mpsc::Sender<Ask>;

/// What a keeper tells its balancer.
pub enum News {
    /// The store has this configuration, or none, at this revision.
    Config(Option<Box<Document>>, i64),
    /// The store has this step of the pools, or none, at this revision.
    Step(Option<Box<Step>>, i64),
    /// Who lives, who leads, or how far somebody is, is another than before.
    Others,
    /// Somebody asks all balancers.
    Question(Value, oneshot::Sender<Value>),
}

/// Keeps a balancer in touch with the store.
pub struct Keeper {
    config: StoreConfig,
    name: String,
    id: String,
    asks: mpsc::Receiver<Ask>,
    sign: watch::Receiver<Sign>,
    report: watch::Sender<Report>,
    news: mpsc::Sender<News>,
    /// Answers to questions of this balancer.
    waiting: HashMap<String, mpsc::Sender<(String, Value)>>,
    seat: Seat,
    /// What this balancer has said of it last.
    acked: Option<Ack>,
    /// No packet comes here any more.
    leaves: bool,
    /// The terms that it has heard of. A store that was restored from an old copy has lower ones.
    terms: Terms,
}

/// The lease of a session.
#[derive(Clone, Copy)]
struct Lease {
    number: i64,
    /// It cannot have run out before.
    until: Instant,
}

/// The other ends of a keeper.
pub struct Ends {
    /// To ask it.
    pub asks: Asks,
    /// What this balancer says of itself.
    pub sign: watch::Sender<Sign>,
    /// What it knows.
    pub report: watch::Receiver<Report>,
    /// What it tells.
    pub news: mpsc::Receiver<News>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Why a session ends.
enum End {
    /// The balancer does.
    Stop,
    /// Something failed.
    Failed(FleetError),
}

impl From<FleetError> for End {
    fn from(error: FleetError) -> Self {
        Self::Failed(error)
    }
}

impl Keeper {
    /// A keeper for the balancer of this name, with an id that tells it from others of that name.
    pub fn new(config: StoreConfig, name: String, id: String) -> (Self, Ends) {
        let (asks, asked) = mpsc::channel(QUEUE);
        let (sign, signs) = watch::channel(Sign { id: id.clone(), ..Sign::default() });
        let (reports, report) = watch::channel(Report { since: now(), ..Report::default() });
        let (tell, news) = mpsc::channel(QUEUE);
        let keeper = Self {
            config,
            name,
            id,
            asks: asked,
            sign: signs,
            report: reports,
            news: tell,
            waiting: HashMap::new(),
            seat: Seat::default(),
            acked: None,
            leaves: false,
            terms: Terms::default(),
        };
        (keeper, Ends { asks, sign, report, news })
    }

    /// The same after a restart: a step of this term was followed before it.
    pub fn above(mut self, term: u64) -> Self {
        self.terms.hear(term);
        self
    }

    /// The same with the terms that were heard of before a restart: they are kept in this file, each before it counts.
    pub fn remembering(mut self, file: PathBuf) -> Self {
        self.terms.keep_in(file);
        self
    }

    /// Runs until nobody can ask it any more. It says good-bye to the others then.
    pub async fn run(mut self) {
        let mut again = AGAIN.0;
        loop {
            let begun = Instant::now();
            let error = match self.session().await {
                End::Stop => return,
                End::Failed(error) => error.by(&self.config),
            };
            self.lost(&error);
            if begun.elapsed() > AGAIN.1 {
                again = AGAIN.0;
            }
            if self.refuse_for(again, &error).await {
                return;
            }
            again = (again * 2).min(AGAIN.1);
        }
    }

    fn lost(&mut self, error: &FleetError) {
        let text = error.to_string();
        self.report.send_modify(|report| {
            if report.reachable || report.error.is_none() {
                warn!(store = %self.config, error = text, "goes on without the store");
                report.since = now();
            }
            report.reachable = false;
            report.error = Some(text);
            report.doubles.clear();
            // A session that fails before it has begun knows nothing newer.
            if !report.balancers.is_empty() {
                report.before = std::mem::take(&mut report.balancers);
            }
            report.acks.clear();
            (report.leader, report.leads_until) = (None, None);
        });
    }

    /// Answers that there is no store, for so long. Returns whether the balancer ends.
    async fn refuse_for(&mut self, pause: Duration, error: &FleetError) -> bool {
        let over = sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return false,
                ask = self.asks.recv() => match ask {
                    None => return true,
                    Some(Ask::Ack(ack)) => self.acked = Some(ack),
                    Some(ask) => refuse(ask, &error.to_string()),
                },
            }
        }
    }

    async fn session(&mut self) -> End {
        match self.try_session().await {
            Err(end) => end,
            Ok(never) => never,
        }
    }

    async fn try_session(&mut self) -> Result<End, End> {
        let mut store = Store::connect(&self.config).await?;
        let seen = store.look().await?;
        let asked = Instant::now();
        let number = store.lease(LEASE_SECONDS).await?;
        let mut lease = Lease { number, until: asked + LEASE };
        let (mut keep, mut kept) = store.keep_lease(number).await?;
        let mut changes = store.watch(seen.revision).await?;
        let namesake = match seen.balancers.get(&self.name) {
            Some(sign) => sign.id != self.id,
            None => {
                let sign = bytes_of(self.sign.borrow().clone());
                !store.claim(&self.name, &self.id, sign, number).await?
            }
        };
        if !namesake && seen.members.get(&self.name) != Some(&self.id) {
            let key = format!("{MEMBERS}{}", self.name);
            store.write(&key, self.id.clone().into_bytes(), None).await?;
        }
        self.seat = seen.seat.clone();
        self.begun(&seen, namesake);
        self.report.send_modify(|report| report.lease_until = Some(lease.until));
        self.run_for_leader(&mut store, lease).await?;
        let (document, revision) =
            seen.document.map_or((None, 0), |(document, at)| (Some(document), at));
        // First the step: a configuration that is later waits for its end.
        let (step, step_at) = seen.step.map_or((None, 0), |(step, at)| (Some(step), at));
        self.tell(News::Step(step.map(Box::new), step_at)).await?;
        self.tell(News::Config(document.map(Box::new), revision)).await?;
        if let Some(ack) = self.acked.clone() {
            self.say(&mut store, number, &ack).await?;
        }
        self.sign.mark_changed();
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = changes.message() => self.changed(&mut store, lease, message).await?,
                ask = self.asks.recv() => match ask {
                    Some(Ask::Ack(ack)) => {
                        self.acked = Some(ack.clone());
                        self.say(&mut store, number, &ack).await?;
                    }
                    Some(Ask::Leave) => self.leaves = true,
                    Some(ask) => self.asked(&mut store, ask).await,
                    None => return Ok(self.end(&mut store, lease).await),
                },
                changed = self.sign.changed() => {
                    if changed.is_ok() {
                        let sign = self.sign.borrow_and_update().clone();
                        self.leads_if_fit(&mut store, lease).await?;
                        let bytes = bytes_of(sign);
                        let key = self.place();
                        store.write(&key, bytes, Some(number)).await?;
                    } else {
                        return Ok(self.end(&mut store, lease).await);
                    }
                }
                _ = beat.tick() => {
                    if self.terms.look() {
                        self.leads_if_fit(&mut store, lease).await?;
                    }
                    let asked = Instant::now();
                    keep.keep_alive().await.map_err(FleetError::from)?;
                    let answer = timeout(BEAT_PATIENCE, kept.message()).await;
                    let silent = || FleetError::Unreachable("it does not answer any more".into());
                    let answer = answer.map_err(|_| silent())?.map_err(FleetError::from)?;
                    let seconds = answer.map_or(0, |answer| u64::try_from(answer.ttl()).unwrap_or(0));
                    if seconds == 0 {
                        let why = "the lease of this balancer has run out; it is taken anew";
                        return Err(FleetError::Unreachable(why.into()).into());
                    }
                    lease.until = asked + Duration::from_secs(seconds);
                    self.report.send_modify(|report| {
                        report.leads_until = report.leads_until.map(|_| lease.until);
                        report.lease_until = Some(lease.until);
                    });
                }
            }
        }
    }

    /// Where it stands what this balancer says of itself: one whose name another one has is shown to the others, and is
    /// none of them.
    fn place(&self) -> String {
        match self.report.borrow().namesake {
            true => format!("{DOUBLES}{}/{}", self.name, self.id),
            false => format!("{BALANCERS}{}", self.name),
        }
    }

    /// The last words of a balancer that ends. Its packets go on without it, by what they follow, until it starts
    /// again: so the others wait for it as for one that was killed, until its lease has run out, and only the lead
    /// is given up at once.
    async fn end(&self, store: &mut Store, lease: Lease) -> End {
        if self.leaves {
            let _ = store.end_lease(lease.number).await;
        } else if self.report.borrow().leads_until.is_some() {
            let _ = store.resign(&self.seat).await;
        }
        End::Stop
    }

    fn begun(&mut self, seen: &crate::Seen, namesake: bool) {
        if namesake {
            warn!(
                name = self.name,
                "another balancer of this name is in the fleet; rename one of them"
            );
        }
        // What this one has said while another one had its name is there until that lease has run out.
        let own = format!("{}/{}", self.name, self.id);
        self.report.send_modify(|report| {
            if !report.reachable {
                info!(store = %self.config, revision = seen.revision, "in touch with the store");
                report.since = now();
                report.resyncs += u64::from(report.error.is_some());
            }
            report.reachable = true;
            report.error = None;
            report.namesake = namesake;
            report.change = seen.document.as_ref().map_or(0, |(document, _)| document.change);
            report.members = seen.members.keys().cloned().collect();
            report.balancers.clone_from(&seen.balancers);
            report.doubles.clone_from(&seen.doubles);
            report.doubles.remove(&own);
            report.before.clear();
            report.acks.clone_from(&seen.acks);
        });
        let steps = seen.step.iter().map(|(step, _)| step.term);
        let said = seen.acks.values().chain(&self.acked).map(|ack| ack.step.0);
        if let Some(term) = steps.chain(said).max() {
            self.terms.hear(term);
        }
        self.seat_taken(None);
    }

    /// What is known of the leader is another now. `own`: the lease, if the leader is this balancer by it.
    fn seat_taken(&mut self, own: Option<Lease>) {
        let Seat { leader, term, .. } = &self.seat;
        self.terms.hear(leader.as_ref().map_or(0, |leader| leader.term).max(*term));
        let before = self.report.borrow().leader.as_ref().map(|leader| leader.term);
        if let Some(leader) = leader.as_ref().filter(|leader| before != Some(leader.term)) {
            info!(
                leader = leader.name,
                term = leader.term,
                own = own.is_some(),
                "the fleet has a leader"
            );
        }
        let leader = leader.clone();
        self.report.send_modify(|report| {
            report.leader = leader;
            report.leads_until = own.map(|lease| lease.until);
        });
    }

    /// Takes the lead if nobody has it. So it does if it had it itself by another lease, which would run out
    /// some time: whoever comes after a break begins with a term of its own. And so does one that has heard since of a
    /// step from a later term, which others follow: none of its own would count there.
    async fn run_for_leader(&mut self, store: &mut Store, lease: Lease) -> Result<(), FleetError> {
        let leader = self.seat.leader.as_ref();
        let taken = leader.is_some_and(|leader| leader.id != self.id);
        let outdone = leader.is_some_and(|leader| leader.term < self.terms.highest());
        let leads = self.report.borrow().leads_until.is_some();
        if taken || leads && !outdone || self.report.borrow().namesake || !self.is_fit() {
            return Ok(());
        }
        let (name, id) = (self.name.clone(), self.id.clone());
        let term = self.terms.highest().max(self.seat.term) + 1;
        if !self.terms.has_kept(term) {
            return Ok(());
        }
        let leader = Leader { name, id, term, since: now() };
        // Who was first is told by the watch, as this one is if it was.
        store.lead(&leader, &self.seat, lease.number).await.map(drop)
    }

    /// Whether the others could follow this balancer if it led.
    fn is_fit(&self) -> bool {
        self.sign.borrow().unfit.is_none()
    }

    /// Gives the lead up where the others cannot follow this balancer any more, and runs for it where nobody has it and
    /// they can again.
    async fn leads_if_fit(&mut self, store: &mut Store, lease: Lease) -> Result<(), FleetError> {
        let leads = self.report.borrow().leads_until.is_some();
        if self.is_fit() {
            // Whoever leads takes a later term where it is outdone, and could not write one down before.
            let may = leads || self.seat.leader.is_none();
            return if may { self.run_for_leader(store, lease).await } else { Ok(()) };
        }
        if leads {
            // Before another one can lead.
            self.report.send_modify(|report| report.leads_until = None);
            store.resign(&self.seat).await?;
        }
        Ok(())
    }

    /// Takes a later term if this balancer leads, and may be outdone.
    async fn run_again(&mut self, store: &mut Store, lease: Lease) -> Result<(), FleetError> {
        let leads = self.report.borrow().leads_until.is_some();
        if leads { self.run_for_leader(store, lease).await } else { Ok(()) }
    }

    /// In the order in which it comes to them, so one after the other.
    async fn say(&self, store: &mut Store, lease: i64, ack: &Ack) -> Result<(), FleetError> {
        if self.report.borrow().namesake {
            return Ok(());
        }
        let bytes = serde_json::to_vec(ack).unwrap_or_default();
        store.write(&format!("{ACKS}{}", self.name), bytes, Some(lease)).await
    }

    async fn tell(&self, news: News) -> Result<(), End> {
        self.news.send(news).await.map_err(|_| End::Stop)
    }

    async fn changed(
        &mut self,
        store: &mut Store,
        lease: Lease,
        message: Result<Option<WatchResponse>, etcd_client::Error>,
    ) -> Result<(), End> {
        let ended = |why: String| FleetError::Unreachable(why);
        let message = message
            .map_err(FleetError::from)?
            .ok_or_else(|| ended("the watch has ended".into()))?;
        if message.canceled() {
            return Err(ended(match message.compact_revision() {
                0 => format!("the watch was cancelled: {}", message.cancel_reason()),
                at => format!("what came before revision {at} was compacted; all is read anew"),
            })
            .into());
        }
        for event in message.events() {
            self.event(store, lease, event).await?;
        }
        Ok(())
    }

    async fn event(&mut self, store: &mut Store, lease: Lease, event: &Event) -> Result<(), End> {
        let Some(pair) = event.kv() else { return Ok(()) };
        let Some(rest) = store.rest(pair.key()) else { return Ok(()) };
        let put = event.event_type() == EventType::Put;
        if rest == TERM {
            let found = if put { Some(store.term_of(pair)?) } else { None };
            (self.seat.term, self.seat.term_at) =
                found.map_or((0, 0), |term| (term, pair.mod_revision()));
            self.terms.hear(self.seat.term);
            // Somebody has changed it by hand just when this one ran for it.
            return Ok(self.run_for_leader(store, lease).await?);
        }
        if rest == LEADER {
            let found = if put { Some(store.leader_of(pair)?) } else { None };
            self.seat.leader_at = if put { pair.mod_revision() } else { 0 };
            self.seat.leader = found;
            self.seat_taken((put && pair.lease() == lease.number).then_some(lease));
            if put {
                // It may have become unfit while it ran.
                self.leads_if_fit(store, lease).await?;
            } else {
                self.run_for_leader(store, lease).await?;
            }
            return self.tell(News::Others).await;
        }
        if rest == STEP {
            let step = if put { Some(Box::new(store.step_of(pair)?)) } else { None };
            let at = if put { pair.mod_revision() } else { 0 };
            return self.tell(News::Step(step, at)).await;
        }
        if let Some(name) = rest.strip_prefix(ACKS) {
            let ack = put.then(|| serde_json::from_slice::<Ack>(pair.value()).ok()).flatten();
            if let Some(ack) = &ack {
                self.terms.hear(ack.step.0);
                self.run_again(store, lease).await?;
            }
            self.report.send_modify(|report| match ack {
                Some(ack) => drop(report.acks.insert(name.to_owned(), ack)),
                None => drop(report.acks.remove(name)),
            });
            return self.tell(News::Others).await;
        }
        if rest == CONFIG {
            let found = if put { Some(store.document_of(pair)?) } else { None };
            let (document, revision) = found.map_or((None, 0), |(found, at)| (Some(found), at));
            let change = document.as_ref().map_or(0, |document| document.change);
            self.report.send_modify(|report| report.change = change);
            return self.tell(News::Config(document.map(Box::new), revision)).await;
        }
        if let Some(name) = rest.strip_prefix(MEMBERS) {
            self.report.send_modify(|report| {
                if put {
                    report.members.insert(name.to_owned());
                } else {
                    report.members.remove(name);
                }
            });
        } else if let Some(name) = rest.strip_prefix(BALANCERS) {
            let sign = put.then(|| serde_json::from_slice::<Sign>(pair.value()).ok()).flatten();
            let namesake =
                name == self.name && sign.as_ref().is_some_and(|sign| sign.id != self.id);
            // What this one says of itself stands elsewhere from now on.
            if namesake {
                self.sign.mark_changed();
            }
            self.report.send_modify(|report| {
                report.namesake |= namesake;
                match sign {
                    Some(sign) => drop(report.balancers.insert(name.to_owned(), sign)),
                    None => drop(report.balancers.remove(name)),
                }
            });
            self.tell(News::Others).await?;
            if !put && name == self.name && self.report.borrow().namesake {
                // The other one is gone: a new session finds out whether the name is free.
                let why = "the balancer of the same name is gone".to_owned();
                return Err(FleetError::Unreachable(why).into());
            }
        } else if let Some(which) = rest.strip_prefix(DOUBLES) {
            let sign = put.then(|| serde_json::from_slice::<Sign>(pair.value()).ok()).flatten();
            self.report.send_modify(|report| match sign {
                Some(sign) => drop(report.doubles.insert(which.to_owned(), sign)),
                None => drop(report.doubles.remove(which)),
            });
        } else if let (Some(id), true) = (rest.strip_prefix(QUESTIONS), put) {
            self.answer(store, id.to_owned(), pair.value()).await?;
        } else if let (Some(rest), true) = (rest.strip_prefix(ANSWERS), put)
            && let Some((id, name)) = rest.split_once('/')
            && let Some(waits) = self.waiting.get(id)
            && let Ok(answer) = serde_json::from_slice(pair.value())
        {
            let _ = waits.try_send((name.to_owned(), answer));
        }
        Ok(())
    }

    /// Lets this balancer answer a question of another one, or of its own.
    async fn answer(&mut self, store: &Store, id: String, question: &[u8]) -> Result<(), End> {
        let Ok(question) = serde_json::from_slice(question) else { return Ok(()) };
        if self.report.borrow().namesake {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        self.tell(News::Question(question, answer)).await?;
        let (mut store, key) = (store.clone(), format!("{ANSWERS}{id}/{}", self.name));
        tokio::spawn(async move {
            let Ok(Ok(answer)) = timeout(ANSWER_PATIENCE, answered).await else { return };
            let bytes = serde_json::to_vec(&answer).unwrap_or_default();
            // Who asks does without an answer that cannot be sent.
            if let Ok(lease) = store.lease(QUESTION_SECONDS).await {
                let _ = store.write(&key, bytes, Some(lease)).await;
            }
        });
        Ok(())
    }

    async fn asked(&mut self, store: &mut Store, ask: Ask) {
        self.waiting.retain(|_, waits| !waits.is_closed());
        match ask {
            Ask::Put { document, expected, then } => {
                let mut store = store.clone();
                tokio::spawn(async move {
                    let _ = then.send(store.put(&document, expected).await);
                });
            }
            Ask::Step { step, expected, document_at, then } => {
                let (mut store, leader_at) = (store.clone(), self.seat.leader_at);
                // Who leads by now may be another one than when it was made up.
                let leader = self.seat.leader.as_ref();
                if leader.is_none_or(|leader| leader.id != self.id || leader.term != step.term) {
                    let _ =
                        then.send(Err(FleetError::Unreachable("another balancer leads".into())));
                    return;
                }
                tokio::spawn(async move {
                    let _ =
                        then.send(store.put_step(&step, expected, leader_at, document_at).await);
                });
            }
            // In the session.
            Ask::Ack(_) | Ask::Leave => {}
            Ask::Forget { name, then } => {
                let mut store = store.clone();
                tokio::spawn(async move {
                    let _ = then.send(store.forget(&name).await);
                });
            }
            Ask::Question { question, then } => {
                let id = format!("{:016x}", rand::random::<u64>());
                let (answers, answered) = mpsc::channel(QUEUE);
                self.waiting.insert(id.clone(), answers);
                let others: Vec<String> = self.report.borrow().balancers.keys().cloned().collect();
                let store = store.clone();
                tokio::spawn(async move {
                    let _ = then.send(question_all(store, &id, &question, others, answered).await);
                });
            }
        }
    }
}

async fn question_all(
    mut store: Store,
    id: &str,
    question: &Value,
    others: Vec<String>,
    mut answered: mpsc::Receiver<(String, Value)>,
) -> Result<BTreeMap<String, Option<Value>>, FleetError> {
    let lease = store.lease(QUESTION_SECONDS).await?;
    let bytes = serde_json::to_vec(question).unwrap_or_default();
    store.write(&format!("{QUESTIONS}{id}"), bytes, Some(lease)).await?;
    let mut all: BTreeMap<String, Option<Value>> =
        others.into_iter().map(|name| (name, None)).collect();
    let until = Instant::now() + ANSWER_PATIENCE;
    while all.values().any(Option::is_none) {
        let Ok(Some((name, answer))) = tokio::time::timeout_at(until, answered.recv()).await else {
            break;
        };
        all.insert(name, Some(answer));
    }
    Ok(all)
}

/// A sign as it is stored: without its services, where there are more than a request has room for.
fn bytes_of(mut sign: Sign) -> Vec<u8> {
    let bytes = serde_json::to_vec(&sign).unwrap_or_default();
    if bytes.len() <= MOST_BYTES {
        return bytes;
    }
    sign.services.clear();
    serde_json::to_vec(&sign).unwrap_or_default()
}

/// Answers that there is no store.
fn refuse(ask: Ask, why: &str) {
    let error = || FleetError::without(why, "");
    // It has waited for a session that has failed meanwhile, and was not sent.
    let unsent = || FleetError::without(why, "; nothing has changed");
    match ask {
        Ask::Put { then, .. } => drop(then.send(Err(unsent()))),
        Ask::Step { then, .. } => drop(then.send(Err(error()))),
        // Kept until there is a session.
        Ask::Ack(_) => {}
        // Without a session there is no lease that the others wait for.
        Ask::Leave => {}
        Ask::Forget { then, .. } => drop(then.send(Err(unsent()))),
        Ask::Question { then, .. } => drop(then.send(Err(error()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that has waited for a session which failed was not sent, and its answer says so.
    #[test]
    fn what_was_not_sent_has_changed_nothing() {
        let why = FleetError::Unreachable("no answer in 3s".into()).to_string();
        let words = format!("{why}; nothing has changed");
        let (then, mut put) = oneshot::channel();
        let document = Box::new(Document::new(2, String::new(), BTreeMap::new()));
        refuse(Ask::Put { document, expected: 1, then }, &why);
        let said = put.try_recv().expect("it is answered").expect_err("there is no store");
        assert_eq!(said.to_string(), words);
        let (then, mut forgotten) = oneshot::channel();
        refuse(Ask::Forget { name: "lb2".into(), then }, &why);
        let said = forgotten.try_recv().expect("it is answered").expect_err("there is no store");
        assert_eq!(said.to_string(), words);
    }
}
