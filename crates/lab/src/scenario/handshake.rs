//! A change between the SYN of a connection and its first ACK.
//!
//! Before each change of the pool, clients connect while a filter at their interface keeps back
//! everything of these connections but the SYN: the client has the SYN+ACK and holds the connection
//! established, its backend waits for the ACK, and the balancer has seen nothing but the SYN. Then the
//! change is made, from its beginning to its end; then the filter goes, and the connections ask.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::balancer::PoolControl;
use crate::demo::DemoSpec;
use crate::error::Result;
use crate::lab::Lab;
use crate::topology::INTERFACE;
use crate::traffic::{Bench, HeldFlow, TrafficHandle};
use weir_testbed::{NetNs, process};

/// Source ports of held connections; Linux gives them to no other ([`Scenario::prepare`]).
///
/// [`Scenario::prepare`]: super::Scenario::prepare
pub(super) const PORTS: std::ops::RangeInclusive<u16> = 61_000..=u16::MAX;
/// Connections held over each change.
const HELD: usize = 200;
/// Number of the filter among those of its interface.
const PRIORITY: &str = "7";

/// Wraps a pool's control: each change by command falls into some handshakes.
pub(crate) struct Handshakes {
    lab: Arc<Lab>,
    inner: Arc<dyn PoolControl>,
    bench: Bench,
    next: AtomicUsize,
    /// Connections over which a change went, still open: the next change goes over them, too.
    open: Mutex<Vec<HeldFlow>>,
    each: usize,
}

impl Handshakes {
    pub(crate) fn new(
        lab: &Arc<Lab>,
        inner: Arc<dyn PoolControl>,
        traffic: &TrafficHandle,
        spec: &DemoSpec,
    ) -> Self {
        Self {
            lab: Arc::clone(lab),
            inner,
            bench: traffic.bench(),
            next: AtomicUsize::new(0),
            open: Mutex::default(),
            each: HELD.min(spec.traffic.connections),
        }
    }

    /// Asks once more on what is open, and closes it.
    pub(crate) fn end(&self) -> Result<()> {
        let rest = std::mem::take(&mut *self.open());
        self.bench.ask(rest).into_iter().for_each(|flow| self.bench.complete(flow));
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, Vec<HeldFlow>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change with handshakes around it.
    fn around(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let clients = self.lab.clients();
        let begun: Result<Vec<_>> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| hold_back(client).and_then(|()| self.begin(number)))
            .collect();
        let begun = begun.map(|all| self.bench.establish(all.into_iter().flatten().collect()));
        // A change without handshakes would go for one with them.
        let changed = if begun.is_ok() { change() } else { Ok(()) };
        // Whatever has failed, nothing stays held.
        let released = clients.iter().map(let_go).fold(Ok(()), Result::and);
        let held = begun?;
        released?;
        self.bench.met(if changed.is_ok() { held.len() } else { 0 });
        let fresh = self.bench.ask(held);
        let mut open = self.open();
        let before = std::mem::replace(&mut *open, fresh);
        self.bench.ask(before).into_iter().for_each(|flow| self.bench.complete(flow));
        changed
    }

    fn begin(&self, client: usize) -> Result<Vec<HeldFlow>> {
        let addresses = self.lab.spec().addresses_per_client;
        let share = self.each.div_ceil(self.lab.clients().len());
        let first = self.next.fetch_add(share, Relaxed);
        let ports = PORTS.len() - 1;
        self.lab.clients()[client].enter(|| {
            let (mut begun, mut refused) = (Vec::with_capacity(share), None);
            for number in first..first + share {
                let port = PORTS.start() + (number % ports) as u16;
                let address = number / ports % addresses;
                match self.bench.begin(client, address, port, number % 2 == 1) {
                    Ok(flow) => begun.push(flow),
                    // One that waited for the lab to be ready may have the port for a minute.
                    Err(error) => refused = Some(error),
                }
            }
            refused.filter(|_| begun.is_empty()).map_or(Ok(begun), Err)
        })?
    }
}

impl PoolControl for Handshakes {
    fn add(&self, backend: usize, weight: u32) -> Result<()> {
        self.around(|| self.inner.add(backend, weight))
    }

    fn remove(&self, backend: usize) -> Result<()> {
        self.around(|| self.inner.remove(backend))
    }

    fn drain(&self, backend: usize) -> Result<()> {
        self.around(|| self.inner.drain(backend))
    }

    fn undrain(&self, backend: usize) -> Result<()> {
        self.around(|| self.inner.undrain(backend))
    }

    fn set_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.around(|| self.inner.set_weight(backend, weight))
    }

    /// The file is read some time after the signal, so a change of its own would not certainly fall
    /// into a handshake.
    fn reload_with_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.inner.reload_with_weight(backend, weight)
    }

    fn crash(&self, away: Duration) -> Result<()> {
        self.inner.crash(away)
    }

    fn has_noticed(&self, backend: usize) -> Result<bool> {
        self.inner.has_noticed(backend)
    }

    fn refused(&self) -> BTreeMap<&'static str, u64> {
        self.inner.refused()
    }

    fn tell_load(&self, backend: usize, load: f64) -> Result<bool> {
        self.inner.tell_load(backend, load)
    }
}

/// Drops what has a source port of [`PORTS`], is TCP and no SYN, on its way out.
fn hold_back(client: &NetNs) -> Result<()> {
    tc(client, "qdisc", &["replace", "dev", INTERFACE, "clsact"])?;
    let mut program = format!("{}", filter().len());
    for (code, jt, jf, k) in filter() {
        // Writing to a string cannot fail.
        let _ = write!(program, ",{code} {jt} {jf} {k}");
    }
    let at = ["add", "dev", INTERFACE, "egress", "prio", PRIORITY];
    tc(client, "filter", &[&at[..], &["bpf", "da", "bytecode", &program]].concat())
}

fn let_go(client: &NetNs) -> Result<()> {
    tc(client, "filter", &["del", "dev", INTERFACE, "egress", "prio", PRIORITY])
}

fn tc(client: &NetNs, object: &str, words: &[&str]) -> Result<()> {
    let mut tc = client.command("tc")?;
    tc.arg(object).args(words);
    process::run(tc, "")?;
    Ok(())
}

/// Classic BPF: code, jumps, value. Its result is a verdict of `linux/pkt_cls.h`. IPv6 extension
/// headers do not occur here.
fn filter() -> [(u32, u8, u8, u32); 15] {
    use crate::classic::{
        ANY, AT_LEAST, BYTE, BYTE_AFTER_HEAD, EQUAL, HALF, HALF_AFTER_HEAD, HEAD, HEAD_OF_IPV4,
        JUMP, RETURN,
    };
    const PASS: u32 = 0;
    const DROP: u32 = 2;
    const SYN: u32 = 2;
    let tcp = libc::IPPROTO_TCP as u32;
    [
        (HALF, 0, 0, 12),
        (EQUAL, 0, 3, libc::ETH_P_IP as u32),
        (BYTE, 0, 0, 14 + 9),
        (HEAD_OF_IPV4, 0, 0, 14),
        (JUMP, 0, 0, 3),
        (EQUAL, 0, 7, libc::ETH_P_IPV6 as u32),
        (HEAD, 0, 0, 40),
        (BYTE, 0, 0, 14 + 6),
        (EQUAL, 0, 4, tcp),
        (HALF_AFTER_HEAD, 0, 0, 14),
        (AT_LEAST, 0, 2, (*PORTS.start()).into()),
        (BYTE_AFTER_HEAD, 0, 0, 14 + 13),
        (ANY, 0, 1, SYN),
        (RETURN, 0, 0, PASS),
        (RETURN, 0, 0, DROP),
    ]
}
