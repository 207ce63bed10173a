//! Connections that somebody else than the driver leads, on the same books.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Shared;
use super::account::Account;
use super::flow::begin_connect;
use super::http::{SMALL, parse_head};
use super::spec::Kind;
use super::verdict::Failure;
use crate::error::Result;
use crate::topology;
use crate::witness::Key;
use weir_testbed::interrupt::interrupted;

/// What a stepwise connection is counted as.
const KIND: Kind = Kind::Keepalive;

/// Makes connections step by step, and keeps the books on them.
#[derive(Clone)]
pub(crate) struct Bench(pub(crate) Arc<Shared>);

/// A connection between two steps.
pub(crate) struct HeldFlow {
    stream: TcpStream,
    account: Account,
}

impl Bench {
    /// Sends a SYN from an address and a port of a client, whose namespace the calling thread is in.
    ///
    /// # Errors
    /// If the port cannot be had: the lab has gone wrong.
    pub(crate) fn begin(
        &self,
        client: usize,
        address: usize,
        port: u16,
        ipv6: bool,
    ) -> Result<HeldFlow> {
        let target = &self.0.spec.target;
        let (from, to): (IpAddr, IpAddr) = match ipv6 {
            true => (topology::client6(client, address).into(), target.v6.into()),
            false => (topology::client4(client, address).into(), target.v4.into()),
        };
        let (source, to) = (SocketAddr::new(from, port), SocketAddr::new(to, target.web_port));
        let started = Instant::now();
        let stream = begin_connect(source, to)
            .map_err(|failure| crate::Error::BadSpec(format!("a held connection: {failure}")))?;
        self.0.stats.begin(KIND);
        let key = Key { udp: false, source, target: to };
        let account = Account { kind: KIND, started, key: Some(key), backend: None, answers: 0 };
        Ok(HeldFlow { stream, account })
    }

    /// Waits until all have their SYN+ACK; returns those that got it.
    pub(crate) fn establish(&self, flows: Vec<HeldFlow>) -> Vec<HeldFlow> {
        let patience = self.0.spec.timeout;
        self.step(flows, |flow| flow.established(patience))
    }

    /// Sends a request on all, and waits for the answers; returns those that got one of their own
    /// backend.
    pub(crate) fn ask(&self, flows: Vec<HeldFlow>) -> Vec<HeldFlow> {
        let sent = self
            .step(flows, |flow| flow.stream.write_all(SMALL).map_err(|error| Failure::of(&error)));
        // One deadline for all of them: each waits in turn, and a network that is gone would take as
        // many times as long.
        let late = Instant::now() + self.0.spec.timeout;
        self.step(sent, |flow| {
            let left = late.saturating_duration_since(Instant::now());
            let left = if interrupted() { Duration::ZERO } else { left };
            let timeout = Some(left.max(Duration::from_millis(1)));
            let local = |error: io::Error| Failure::Local(error.to_string());
            flow.stream.set_read_timeout(timeout).map_err(local)?;
            flow.answered(&self.0)
        })
    }

    /// Closes a connection that did all that it was to do.
    pub(crate) fn complete(&self, flow: HeldFlow) {
        flow.account.close(&self.0, Ok(()), true);
    }

    /// Notes that what the scenario is about happened so many times.
    pub(crate) fn met(&self, times: usize) {
        self.0.stats.met(times as u64);
    }

    fn step(
        &self,
        flows: Vec<HeldFlow>,
        mut take: impl FnMut(&mut HeldFlow) -> Result<(), Failure>,
    ) -> Vec<HeldFlow> {
        let mut good = Vec::with_capacity(flows.len());
        for mut flow in flows {
            match take(&mut flow) {
                Ok(()) => good.push(flow),
                // Its port is taken again before long.
                Err(failure) => flow.account.close(&self.0, Err(failure), true),
            }
        }
        good
    }
}

impl HeldFlow {
    fn established(&mut self, patience: Duration) -> Result<(), Failure> {
        let late = self.account.started + patience;
        loop {
            let left = late.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Timeout("connect"));
            }
            let mut waiting = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut waiting, wait) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => break,
                Err(error) => return Err(Failure::Local(io::Error::from(error).to_string())),
            }
        }
        let local = |error: io::Error| Failure::Local(error.to_string());
        if let Some(error) = self.stream.take_error().map_err(local)? {
            return Err(Failure::of_connect(&error));
        }
        self.stream.set_nonblocking(false).map_err(local)
    }

    fn answered(&mut self, shared: &Shared) -> Result<(), Failure> {
        let mut buffer = [0; 512];
        let mut filled = 0;
        loop {
            let got = match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => return Err(Failure::Eof),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Failure::Timeout("answer"));
                }
                Err(error) => return Err(Failure::of(&error)),
            };
            filled += got;
            let Some(head) = parse_head(&buffer[..filled])? else { continue };
            let text = || String::from_utf8_lossy(head.backend).into_owned();
            let met = shared.stats.backend(head.backend);
            let Some(met) = met else { return Err(Failure::Garbled(text())) };
            match self.account.backend {
                None => {
                    self.account.backend = Some((met, Instant::now()));
                    shared.stats.first_answer(met);
                }
                Some((own, _)) if own == met => {}
                Some(_) => return Err(Failure::Moved { to: text() }),
            }
            if filled as u64 >= head.length as u64 + head.body {
                self.account.answers += 1;
                shared.stats.answer(met, head.body, None);
                return Ok(());
            }
        }
    }
}
