//! etcd, as far as a fleet uses it.
//!
//! ```text
//! PREFIX/config              the Document
//! PREFIX/members/NAME        the id of the balancer of this name; it stays when that is away
//! PREFIX/balancers/NAME      its Sign, under its lease
//! PREFIX/doubles/NAME/ID     the Sign of another balancer of that name, which is not of the fleet, under its lease
//! PREFIX/leader              the Leader, under its lease
//! PREFIX/term                the term of the last leader that there was; it only grows
//! PREFIX/step                the Step that the leader has written last
//! PREFIX/acks/NAME           its Ack of that, under its lease
//! PREFIX/questions/ID        a question to all balancers, under a lease of seconds
//! PREFIX/answers/ID/NAME     an answer, under a lease of seconds
//! ```

use crate::document::MOST_BYTES;
use crate::{Ack, Document, FleetError, Leader, Sign, Stage, Step, StoreConfig};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue,
    LeaseKeepAliveStream, LeaseKeeper, PutOptions, TlsOptions, Txn, TxnOp, TxnOpResponse,
    WatchOptions, WatchStream,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// A store that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(3);

/// The config key, and the document behind it.
pub(crate) const CONFIG: &str = "config";
pub(crate) const MEMBERS: &str = "members/";
pub(crate) const BALANCERS: &str = "balancers/";
pub(crate) const DOUBLES: &str = "doubles/";
pub(crate) const LEADER: &str = "leader";
pub(crate) const TERM: &str = "term";
pub(crate) const STEP: &str = "step";
pub(crate) const ACKS: &str = "acks/";
pub(crate) const QUESTIONS: &str = "questions/";
pub(crate) const ANSWERS: &str = "answers/";

/// Seconds for which it is told that a balancer was not started, as another one has its name.
const REFUSED_SECONDS: i64 = 60;

/// A connection to the store.
#[derive(Clone)]
pub struct Store {
    client: Client,
    prefix: String,
}

/// Everything of a fleet that is in the store, at one revision.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The revision.
    pub revision: i64,
    /// The shared configuration, with the revision of its last change; none: nobody has put one there.
    pub document: Option<(Document, i64)>,
    /// Ids of all members by their names.
    pub members: BTreeMap<String, String>,
    /// What those say of themselves that live.
    pub balancers: BTreeMap<String, Sign>,
    /// The same of others that have the name of one, by name and id.
    pub doubles: BTreeMap<String, Sign>,
    /// Who leads.
    pub seat: Seat,
    /// The last step of the pools, with its revision; none: there was none.
    pub step: Option<(Step, i64)>,
    /// What balancers have said of it.
    pub acks: BTreeMap<String, Ack>,
}

/// Who leads, as it is in the store, with what a transaction needs that replaces it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// The leader; none: the last one is gone.
    pub leader: Option<Leader>,
    /// Revision of the last change of that; 0: there is none.
    pub leader_at: i64,
    /// The term of the last leader; 0: there was none.
    pub term: u64,
    /// Revision of the last change of that.
    pub term_at: i64,
}

/// Waits for an answer, but not for ever.
pub(crate) async fn patiently<T>(
    asked: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, FleetError> {
    match timeout(PATIENCE, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(FleetError::Unreachable(format!("no answer in {PATIENCE:?}"))),
    }
}

/// The same of a change: it may have been sent, and the answer be lost.
fn unanswered(error: FleetError) -> FleetError {
    match error {
        FleetError::Unreachable(_) => FleetError::Unknown,
        error => error,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FleetError> {
    std::fs::read(path).map_err(FleetError::io("read", path))
}

fn options(config: &StoreConfig) -> Result<ConnectOptions, FleetError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(PATIENCE)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if config.is_tls() {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &config.tls.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
        }
        if let (Some(certificate), Some(key)) = (&config.tls.certificate, &config.tls.key) {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        options = options.with_tls(tls);
    }
    if let (Some(user), Some(file)) = (&config.user, &config.password_file) {
        let password =
            String::from_utf8_lossy(&read(file)?).trim_end_matches(['\r', '\n']).to_owned();
        options = options.with_user(user, password);
    }
    Ok(options)
}

impl Store {
    /// Connects. Files are read each time, so that new certificates and passwords count.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn connect(config: &StoreConfig) -> Result<Self, FleetError> {
        let options = options(config)?;
        let client = patiently(Client::connect(&config.endpoints, Some(options))).await?;
        Ok(Self { client, prefix: config.prefix.trim_end_matches('/').to_owned() })
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    /// What a key is called below the prefix.
    pub(crate) fn rest<'k>(&self, key: &'k [u8]) -> Option<&'k str> {
        std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix('/')
    }

    fn document(&self, pair: &KeyValue) -> Result<(Document, i64), FleetError> {
        let corrupt = |reason| FleetError::Corrupt { key: self.key(CONFIG), reason };
        Ok((Document::parse(pair.value()).map_err(corrupt)?, pair.mod_revision()))
    }

    /// Everything that is there.
    ///
    /// # Errors
    /// [`FleetError`]; [`FleetError::Corrupt`] if the shared configuration is not one.
    pub async fn look(&mut self) -> Result<Seen, FleetError> {
        let options = GetOptions::new().with_prefix();
        let key = self.key("");
        let mut answer = patiently(self.client.get(key, Some(options))).await?;
        let mut seen = Seen {
            revision: answer.header().map_or(0, etcd_client::ResponseHeader::revision),
            ..Seen::default()
        };
        for pair in answer.take_kvs() {
            let Some(rest) = self.rest(pair.key()) else { continue };
            if rest == CONFIG {
                seen.document = Some(self.document(&pair)?);
            } else if rest == LEADER {
                let leader = self.leader_of(&pair)?;
                (seen.seat.leader, seen.seat.leader_at) = (Some(leader), pair.mod_revision());
            } else if rest == TERM {
                (seen.seat.term, seen.seat.term_at) = (self.term_of(&pair)?, pair.mod_revision());
            } else if rest == STEP {
                seen.step = Some((self.step_of(&pair)?, pair.mod_revision()));
            } else if let Some(name) = rest.strip_prefix(ACKS) {
                if let Ok(ack) = serde_json::from_slice(pair.value()) {
                    seen.acks.insert(name.to_owned(), ack);
                }
            } else if let Some(name) = rest.strip_prefix(MEMBERS) {
                let id = String::from_utf8_lossy(pair.value()).into_owned();
                seen.members.insert(name.to_owned(), id);
            } else if let Some(name) = rest.strip_prefix(BALANCERS) {
                // One of a later version may say what is not understood here.
                if let Ok(sign) = serde_json::from_slice(pair.value()) {
                    seen.balancers.insert(name.to_owned(), sign);
                }
            } else if let Some(which) = rest.strip_prefix(DOUBLES)
                && let Ok(sign) = serde_json::from_slice(pair.value())
            {
                seen.doubles.insert(which.to_owned(), sign);
            }
        }
        Ok(seen)
    }

    /// Replaces the shared configuration, if it is the one that was expected: by the revision of its last
    /// change; 0: none. Returns its own revision.
    ///
    /// # Errors
    /// [`FleetError::Conflict`] if it is another one, [`FleetError::Unknown`] if there is no answer.
    pub async fn put(&mut self, document: &Document, expected: i64) -> Result<i64, FleetError> {
        let bytes = document.to_bytes();
        if bytes.len() > MOST_BYTES {
            return Err(FleetError::Large { bytes: bytes.len(), most: MOST_BYTES });
        }
        let key = self.key(CONFIG);
        let transaction = Txn::new()
            .when([Compare::mod_revision(key.clone(), CompareOp::Equal, expected)])
            .and_then([TxnOp::put(key.clone(), bytes, None)])
            .or_else([TxnOp::get(key, None)]);
        let answer = patiently(self.client.txn(transaction)).await.map_err(unanswered)?;
        if answer.succeeded() {
            return Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision));
        }
        let there = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(got) => got.kvs().first().and_then(|pair| self.document(pair).ok()),
            _ => None,
        });
        let (has, by) = there.map_or((0, "nobody".into()), |(there, _)| (there.change, there.by));
        Err(FleetError::Conflict { expected: document.change.saturating_sub(1), has, by })
    }

    /// Reads who leads.
    pub(crate) fn leader_of(&self, pair: &KeyValue) -> Result<Leader, FleetError> {
        serde_json::from_slice(pair.value()).map_err(|error| self.corrupt(LEADER, &error))
    }

    /// Reads the term of the last leader.
    pub(crate) fn term_of(&self, pair: &KeyValue) -> Result<u64, FleetError> {
        serde_json::from_slice(pair.value()).map_err(|error| self.corrupt(TERM, &error))
    }

    /// Reads the step of the pools.
    pub(crate) fn step_of(&self, pair: &KeyValue) -> Result<Step, FleetError> {
        serde_json::from_slice(pair.value()).map_err(|error| {
            let key = self.key(STEP);
            let reason = format!(
                "it is not what weir writes ({error}); put the same weir on all balancers, or delete it"
            );
            FleetError::Corrupt { key, reason }
        })
    }

    /// Writes a step, if the last one is of this revision (0: there is none), the lead is held since that one,
    /// and, where it begins, the shared configuration is of that one: so no balancer hears of a configuration
    /// that is later than the step before it hears of the step.
    ///
    /// # Errors
    /// [`FleetError::Large`]; [`FleetError::Unreachable`] if there is no answer, or something is another.
    pub async fn put_step(
        &mut self,
        step: &Step,
        expected: i64,
        leader_at: i64,
        document_at: i64,
    ) -> Result<(), FleetError> {
        let bytes = serde_json::to_vec(step).unwrap_or_default();
        if bytes.len() > MOST_BYTES {
            return Err(FleetError::Large { bytes: bytes.len(), most: MOST_BYTES });
        }
        let is_so = |key: String, at| Compare::mod_revision(key, CompareOp::Equal, at);
        let mut when = vec![is_so(self.key(STEP), expected), is_so(self.key(LEADER), leader_at)];
        if step.stage == Stage::Prepare {
            when.push(is_so(self.key(CONFIG), document_at));
        }
        let put = [TxnOp::put(self.key(STEP), bytes, None)];
        let answer = patiently(self.client.txn(Txn::new().when(when).and_then(put))).await?;
        let moved = || FleetError::Unreachable("the store has gone on meanwhile".into());
        answer.succeeded().then_some(()).ok_or_else(moved)
    }

    fn corrupt(&self, rest: &str, error: &serde_json::Error) -> FleetError {
        let key = self.key(rest);
        let reason = format!(
            "it is not what weir writes ({error}); delete it, and a leader is elected anew"
        );
        FleetError::Corrupt { key, reason }
    }

    /// Takes the lead for as long as a lease lives, if nobody was faster than this look at the store. Returns
    /// whether that is so.
    pub(crate) async fn lead(
        &mut self,
        leader: &Leader,
        seat: &Seat,
        lease: i64,
    ) -> Result<bool, FleetError> {
        let (place, term) = (self.key(LEADER), self.key(TERM));
        let bytes = serde_json::to_vec(leader).unwrap_or_default();
        let is_so = |key: &str, at| Compare::mod_revision(key, CompareOp::Equal, at);
        let transaction = Txn::new()
            .when([is_so(&place, seat.leader_at), is_so(&term, seat.term_at)])
            .and_then([
                TxnOp::put(place, bytes, Some(PutOptions::new().with_lease(lease))),
                TxnOp::put(term, leader.term.to_string(), None),
            ]);
        Ok(patiently(self.client.txn(transaction)).await?.succeeded())
    }

    /// Gives up the lead, if it is the one that was seen last.
    pub(crate) async fn resign(&mut self, seat: &Seat) -> Result<(), FleetError> {
        let place = self.key(LEADER);
        let own = Compare::mod_revision(place.clone(), CompareOp::Equal, seat.leader_at);
        let transaction = Txn::new().when([own]).and_then([TxnOp::delete(place, None)]);
        patiently(self.client.txn(transaction)).await.map(drop)
    }

    /// A lease of so many seconds.
    pub(crate) async fn lease(&mut self, seconds: i64) -> Result<i64, FleetError> {
        Ok(patiently(self.client.lease_grant(seconds, None)).await?.id())
    }

    pub(crate) async fn keep_lease(
        &mut self,
        lease: i64,
    ) -> Result<(LeaseKeeper, LeaseKeepAliveStream), FleetError> {
        patiently(self.client.lease_keep_alive(lease)).await
    }

    pub(crate) async fn end_lease(&mut self, lease: i64) -> Result<(), FleetError> {
        patiently(self.client.lease_revoke(lease)).await.map(drop)
    }

    /// Writes what goes with a lease; without one, what stays.
    pub(crate) async fn write(
        &mut self,
        rest: &str,
        bytes: Vec<u8>,
        lease: Option<i64>,
    ) -> Result<(), FleetError> {
        let options = lease.map(|lease| PutOptions::new().with_lease(lease));
        let key = self.key(rest);
        patiently(self.client.put(key, bytes, options)).await.map(drop)
    }

    /// Says what a balancer says of itself by its name, where nobody does. Returns whether the name is its own: of two
    /// that come at once one has it.
    pub(crate) async fn claim(
        &mut self,
        name: &str,
        id: &str,
        sign: Vec<u8>,
        lease: i64,
    ) -> Result<bool, FleetError> {
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        let key = self.key(&format!("{BALANCERS}{name}"));
        let options = PutOptions::new().with_lease(lease);
        let transaction = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key.clone(), sign, Some(options))])
            .or_else([TxnOp::get(key, None)]);
        let answer = patiently(self.client.txn(transaction)).await?;
        if answer.succeeded() {
            return Ok(true);
        }
        let there = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(got) => got.kvs().first().map(|pair| pair.value().to_vec()),
            _ => None,
        });
        // What is not understood is no other balancer's.
        let other = there.and_then(|sign| serde_json::from_slice::<Named>(&sign).ok());
        Ok(other.is_none_or(|other| other.id == id))
    }

    /// Tells the fleet of a balancer that is not started, as another one that lives has its name.
    ///
    /// # Errors
    /// [`FleetError`].
    pub async fn tell_double(&mut self, name: &str, sign: &Sign) -> Result<(), FleetError> {
        let lease = self.lease(REFUSED_SECONDS).await?;
        let bytes = serde_json::to_vec(sign).unwrap_or_default();
        self.write(&format!("{DOUBLES}{name}/{}", sign.id), bytes, Some(lease)).await
    }

    /// Forgets a member that is away. Returns whether there was one.
    ///
    /// # Errors
    /// [`FleetError`]; [`FleetError::Unknown`] if there is no answer.
    pub async fn forget(&mut self, name: &str) -> Result<bool, FleetError> {
        let key = self.key(&format!("{MEMBERS}{name}"));
        let answer = patiently(self.client.delete(key, None)).await.map_err(unanswered)?;
        Ok(answer.deleted() > 0)
    }

    /// Everything that changes after a revision.
    pub(crate) async fn watch(&mut self, after: i64) -> Result<WatchStream, FleetError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(after + 1);
        let key = self.key("");
        patiently(self.client.watch(key, Some(options))).await
    }

    /// Reads a document that came by the watch.
    pub(crate) fn document_of(&self, pair: &KeyValue) -> Result<(Document, i64), FleetError> {
        self.document(pair)
    }
}
