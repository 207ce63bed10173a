//! What telling a connection costs: its opening and its end, written by an agent, read by a balancer, and taken up in
//! what that knows. In one thread, without sockets; [`replay`](super::replay) has all the rest.

use super::{Request, agents, known, pool, spread};
use crate::error::{Context, ensure};
use crate::plane::used;
use crate::{Result, Spread};
use prost::Message;
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use weir_rpc::message::{self, Connection, Kind};
use weir_rpc::written::Writer;
use weir_rpc::{FromAgent, MOST_OF_A_MESSAGE, from_agent};
use weir_steering::{BackendId, Build, Known, MethodId, Phase, StateKey};

/// Connections of a message, each with its opening and its end.
const OF_A_MESSAGE: usize = MOST_OF_A_MESSAGE / 2;
/// Messages of a round.
const MESSAGES: usize = 50;

/// Nanoseconds of processor time for each connection that opens and ends.
#[derive(Clone, Debug, Serialize)]
pub struct Reporting {
    /// Connections that are known besides.
    pub states: u32,
    /// Connections of a round.
    pub connections: usize,
    /// The agent puts both events into a message and writes it.
    pub encode_ns: Spread,
    /// The balancer reads it, and checks what it means.
    pub decode_ns: Spread,
    /// And takes it up: known, and forgotten.
    pub apply_ns: Spread,
    /// All three.
    pub whole_ns: Spread,
}

impl fmt::Display for Reporting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection told, open and closed, beside {} states: ", self.states)?;
        spread(f, "encode", &self.encode_ns, "ns")?;
        spread(f, ", decode", &self.decode_ns, "ns")?;
        spread(f, ", apply", &self.apply_ns, "ns")?;
        spread(f, "; all", &self.whole_ns, "ns")
    }
}

/// A connection that is open.
pub(super) fn open(backend: BackendId) -> Known {
    Known { backend, phase: Phase::Open, born: 0, seen: 0 }
}

pub(super) fn run(request: &Request) -> Result<Reporting> {
    let members = pool(request.backends, 1);
    let mut builder = known(MethodId::Residue, request.states, &members)?;
    let before = builder.states();
    let mut samples = Vec::new();
    for round in 0..request.rounds {
        let first = request.states + round * (MESSAGES * OF_A_MESSAGE) as u32;
        samples.push(measure(builder.as_mut(), first)?);
        ensure!(builder.states() == before, "{} states, and {before} before", builder.states());
    }
    let column = |at: usize| Spread::of(samples.iter().map(|row| row[at]));
    let whole_ns = Spread::of(samples.iter().map(|row| row.iter().sum()));
    Ok(Reporting {
        states: request.states,
        connections: MESSAGES * OF_A_MESSAGE,
        encode_ns: column(0),
        decode_ns: column(1),
        apply_ns: column(2),
        whole_ns,
    })
}

/// Does some work, and adds what it took of the processor.
fn timed<T>(account: &mut Duration, work: impl FnOnce() -> T) -> T {
    let begun = used();
    let made = work();
    *account += used().saturating_sub(begun);
    made
}

fn measure(builder: &mut dyn Build<StateKey>, first: u32) -> Result<[f64; 3]> {
    let mut accounts = [Duration::ZERO; 3];
    let [encode, decode, apply] = &mut accounts;
    let mut next = 0;
    for number in 0..MESSAGES as u32 {
        let from = first + number * OF_A_MESSAGE as u32;
        let told = from..from + OF_A_MESSAGE as u32;
        // All open, then all end: none of them twice in a row.
        let of = |kind: Kind| told.clone().map(move |n| (kind, agents::connection(0, n)));
        let told: Vec<(Kind, Connection)> = of(Kind::Opened).chain(of(Kind::Closed)).collect();
        let bytes = timed(encode, || {
            let mut writer = Writer::with_room(told.len());
            told.iter().for_each(|(kind, one)| writer.push(*kind, *one));
            writer.finish(next, next + told.len() as u64)
        });
        next += told.len() as u64;
        let read = timed(decode, || {
            let bytes: &[u8] = bytes.as_ref();
            let said = FromAgent::decode(bytes).context("reading a message")?;
            let Some(from_agent::What::Events(events)) = said.what else { return Ok(Vec::new()) };
            Ok::<_, crate::Error>(message::events(&events).context("reading a message")?)
        })?;
        ensure!(read == told, "a message is read as another one");
        timed(apply, || {
            for (kind, one) in &read {
                let key = agents::key(one);
                match (kind, builder.known(&key)) {
                    (Kind::Opened, None) => builder.adopt(key, open(BackendId::of(0)))?,
                    (Kind::Closed, Some(_)) => builder.forget(&key),
                    _ => {}
                }
            }
            Ok::<_, crate::Error>(())
        })?;
    }
    let connections = (MESSAGES * OF_A_MESSAGE) as f64;
    Ok(accounts.map(|account| account.as_nanos() as f64 / connections))
}
