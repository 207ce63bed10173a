//! Cheetah under random histories: every packet of a live connection reaches its backend, forged
//! cookies reach nobody in particular, timestamps come back as they were, slots are given back.
//!
//! A run is made of its seed: `WEIR_SEED=n cargo test` repeats one.

mod seed;
#[path = "cheetah/stateless.rs"]
mod stateless;
#[path = "cheetah/table.rs"]
mod table;
#[path = "cheetah/tiers.rs"]
mod tiers;
#[path = "cheetah/timestamps.rs"]
mod timestamps;
#[path = "cheetah/told.rs"]
mod told;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_hash::Key;
use weir_steering::{
    BackendId, Decide, Decision, Member, Memory, NoCookie, Question, Role, Signals, StateKey, Why,
};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags};

/// The source of everything random in a test: `WEIR_SEED`, or another one each time.
fn seeded() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed::seed())
}

/// A flow to one service, a third of them IPv6.
fn flow(rng: &mut ChaCha8Rng) -> FlowKey {
    let port = rng.random_range(1_024..=u16::MAX);
    if rng.random_ratio(1, 3) {
        let mut address: [u8; 16] = rng.random();
        address[0] = 0x20;
        let service = "[2001:db8::1]:443".parse().unwrap();
        FlowKey::new((address, port).into(), service, Protocol::Tcp)
    } else {
        let service = "192.0.2.1:443".parse().unwrap();
        FlowKey::new((rng.random::<[u8; 4]>(), port).into(), service, Protocol::Tcp)
    }
}

/// A packet from a client, as far as Cheetah looks at it.
#[derive(Clone, Copy)]
struct Packet {
    flow: FlowKey,
    flags: TcpFlags,
    echo: Option<u32>,
}

impl Packet {
    fn question(&self, table: &impl Decide<StateKey>, now: u32) -> Question {
        let key = StateKey::of_flow(&self.flow);
        let signals = Signals::of_tcp(self.flags).with_echo(self.echo);
        Question { signals, now, ..Question::later(key, key.hash(table.hash_key())) }
    }
}

/// A caller's table of flows without cookies, and its scheduler. Each may be asked once.
struct Caller<N, S> {
    known: Option<N>,
    schedule: Option<S>,
    remembered: Option<u16>,
}

fn caller<N, S>(known: N, schedule: S) -> Caller<N, S>
where
    N: FnOnce() -> Option<u16>,
    S: FnMut(&[u16]) -> Option<u16>,
{
    Caller { known: Some(known), schedule: Some(schedule), remembered: None }
}

impl<N, S> Memory for Caller<N, S>
where
    N: FnOnce() -> Option<u16>,
    S: FnMut(&[u16]) -> Option<u16>,
{
    fn known(&mut self, _: &Question) -> Option<BackendId> {
        (self.known.take().expect("asked once"))().and_then(BackendId::new)
    }

    fn schedule(&mut self, _: &Question, serving: &[u16]) -> Option<BackendId> {
        (self.schedule.take().expect("asked once"))(serving).and_then(BackendId::new)
    }

    fn remember(&mut self, _: &Question, backend: BackendId) {
        assert_eq!(self.remembered.replace(backend.get()), None, "told once");
    }
}

/// What a decision means for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Cookie { backend: u16 },
    First { backend: u16, cookie: u16 },
    Known { backend: u16 },
    Track { backend: u16, why: NoCookie, cookie: Option<u16> },
    Astray { backend: u16, why: NoCookie },
    Refused { why: NoCookie },
    NoBackend,
}

/// The meaning of a decision, whose parts must agree with each other and with what the memory was
/// told.
fn verdict(decision: Decision, remembered: Option<u16>) -> Verdict {
    let Decision { backend, cookie, why, .. } = decision;
    let backend = match (backend.map(BackendId::get), why) {
        (Err(Reason::NoCookie), Why::Refused(why)) => return Verdict::Refused { why },
        (Err(Reason::NoBackend), Why::NoBackend) => return Verdict::NoBackend,
        (Err(_), _) => panic!("{decision:?}"),
        (Ok(backend), _) => backend,
    };
    let tracked = matches!(why, Why::Remembered(_)).then_some(backend);
    assert_eq!(remembered, tracked, "{decision:?}");
    match (why, cookie) {
        (Why::Cookie, None) => Verdict::Cookie { backend },
        (Why::Scheduled, Some(cookie)) => Verdict::First { backend, cookie },
        (Why::Known(_), None) => Verdict::Known { backend },
        (Why::Remembered(why), cookie) => Verdict::Track { backend, why, cookie },
        (Why::Astray(why), None) => Verdict::Astray { backend, why },
        _ => panic!("{decision:?}"),
    }
}

fn member(name: &str, backend: u16, role: Role) -> Member {
    Member { backend: BackendId::of(backend), name: name.to_owned(), weight: 1, role }
}

/// How many standard deviations chi-squared is off what a uniform source gives (Wilson and
/// Hilferty 1931).
fn deviation(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / counts.len() as f64;
    let chi_squared: f64 =
        counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    let freedom = (counts.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((chi_squared / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}
