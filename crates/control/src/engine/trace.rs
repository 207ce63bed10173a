//! `weir trace`: packets as they come, with what became of each and why.
//!
//! The data plane takes notes only while somebody looks (`weir_dataplane`, `kernel/trace.rs`). They come
//! out of a ring that a thread of its own reads, since the engine has other things to do; it gives
//! numbers their names and hands lines to whoever asked. Who asked, and is gone, ends the thread, and
//! the thread's end has the engine put the usual program back.

use super::commands::TraceReply;
use super::{Command, Engine, EngineError, PlaneResult, Sender};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};
use weir_host::rtnetlink::interface_name;
use weir_plane::{Fate, Frame, Plane, Prefix, PrefixError, Sample, Samples, TraceCounts, Wanted};
use weir_steering::{BackendId, ServiceId};
use weir_wire::{Protocol, Reason};

/// How often the plane is told that somebody still looks, and whoever looks is told the counts.
const EVERY: Duration = Duration::from_secs(1);
/// Lines that may wait for whoever looks. The ring has room for two thousand samples more.
const LINES: usize = 1024;
/// How long the thread waits for a sample before it looks whether anybody is still there.
const PATIENCE: Duration = Duration::from_millis(100);

/// Which packets to look at; what is left out matches all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TraceRequest {
    /// Those for this service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Those that go to this backend of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Those whose flow has an end in this network: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Those whose flow has an end with this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `tcp`, `udp` or `sctp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `sent`, `passed` or `dropped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fate: Option<String>,
    /// Those that were not forwarded for this reason, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of all those, one in so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceLine {
    /// A packet.
    Packet(Box<TracedPacket>),
    /// What became of all packets since the trace began; once a second.
    Counts(TraceTotals),
    /// There is no more, and why.
    Ended(String),
}

/// What became of packets since a trace began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceTotals {
    /// All that came.
    pub seen: u64,
    /// Those that were asked for.
    pub matched: u64,
    /// Of these, those that are not told since they came faster than they were read.
    pub lost: u64,
}

/// A packet, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TracedPacket {
    /// When it came: nanoseconds since 1970.
    pub time: u64,
    /// The interface that it came in by.
    pub interface: String,
    /// Its queue there.
    pub queue: u32,
    /// `tcp`, `udp` or `sctp`; none if it has no flow that could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Where its flow comes from. Of an ICMP error, the flow that it quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// Where its flow goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    /// Flags of a TCP segment: `SYN`, `ACK`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// The service that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The backend that it goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// `sent`, `passed` (to this host's kernel) or `dropped`.
    pub fate: String,
    /// The reason's name, if it went to no backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The interface that it left by, if it left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
    /// The rules of the program that it went through, in their order.
    pub rules: Vec<String>,
    /// There were more of them; the first are left out.
    #[serde(default)]
    pub more_rules: bool,
    /// Bytes of the frame as it came.
    pub length: u32,
    /// The first of them, hexadecimal.
    pub frame: String,
    /// Bytes of the frame as it left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_after: Option<u32>,
    /// The first of them, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_after: Option<String>,
}

/// A trace that is under way.
pub(super) struct Trace {
    /// Told apart from one that began after it.
    number: u64,
    wanted: Wanted,
    /// Until the program is loaded: whoever is to be answered, and the lines for him.
    reply: Option<oneshot::Sender<TraceReply>>,
    taken: Option<mpsc::Receiver<TraceLine>>,
    names: Arc<RwLock<Names>>,
    /// The thread is to end.
    over: Arc<AtomicBool>,
    lines: mpsc::Sender<TraceLine>,
    /// Lines that nobody took in time.
    untold: Arc<std::sync::atomic::AtomicU64>,
    renewed: Instant,
}

impl Trace {
    /// Whether it is there to follow connections alone.
    fn untold_to_all(&self) -> bool {
        self.wanted.untold
    }

    /// Whether nobody is there for it any more.
    fn is_left(&self) -> bool {
        let hung_up = self.reply.as_ref().is_some_and(oneshot::Sender::is_closed);
        !self.untold_to_all() && (self.lines.is_closed() || hung_up)
    }
}

/// What came of loading a program.
pub type Loaded = Result<Box<dyn Any + Send>, Box<dyn std::error::Error + Send + Sync>>;

/// Where the thread of a trace gets the notes from.
pub type GiveSamples = std_mpsc::Sender<Box<dyn Samples>>;

#[derive(Default)]
struct Names {
    services: HashMap<ServiceId, String>,
    backends: HashMap<BackendId, String>,
}

impl<P: Plane> Engine<P> {
    /// Begins to look: a thread loads the program, has it put in place ([`trace_loaded`](Self::trace_loaded),
    /// which answers), and reads what it notes. It says by `commands` how far it is.
    pub(super) fn begin_trace(
        &mut self,
        request: &TraceRequest,
        commands: Sender,
        reply: oneshot::Sender<TraceReply>,
    ) {
        match self.load_trace(request, commands) {
            Ok(()) => {
                if let Some(trace) = &mut self.trace {
                    trace.reply = Some(reply);
                }
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn load_trace(&mut self, request: &TraceRequest, commands: Sender) -> Result<(), EngineError> {
        let wanted = self.wanted(request)?;
        self.load_for(wanted, commands)
    }

    /// As [`begin_trace`](Self::begin_trace), for whatever is wanted.
    pub(super) fn load_for(&mut self, wanted: Wanted, commands: Sender) -> Result<(), EngineError> {
        if self.trace.as_ref().is_some_and(|trace| !trace.is_left() && !trace.untold_to_all()) {
            let busy = "another trace is under way; one at a time";
            return Err(EngineError::Conflict(busy.into()));
        }
        self.end_trace();
        let Some(prepare) = self.plane.prepare_trace().plane()? else {
            let cannot = "this data plane cannot tell what it does with packets";
            return Err(EngineError::Invalid(cannot.into()));
        };
        self.traces += 1;
        let (lines, taken) = mpsc::channel(LINES);
        let trace = Trace {
            number: self.traces,
            wanted,
            reply: None,
            taken: Some(taken),
            names: Arc::new(RwLock::new(self.names_of_all())),
            over: Arc::default(),
            untold: Arc::default(),
            lines,
            renewed: Instant::now(),
        };
        let reader = Reader {
            names: Arc::clone(&trace.names),
            over: Arc::clone(&trace.over),
            untold: Arc::clone(&trace.untold),
            lines: trace.lines.clone(),
            interfaces: HashMap::new(),
        };
        let number = trace.number;
        let spawned = thread::Builder::new().name("trace".into()).spawn(move || {
            let (give, given) = std_mpsc::channel();
            let _ = commands.blocking_send(Command::TraceLoaded(number, prepare(), give));
            if let Ok(samples) = given.recv() {
                reader.read(samples);
            }
            let _ = commands.blocking_send(Command::TraceEnded(number));
        });
        spawned.map_err(|error| EngineError::Plane(Box::new(error)))?;
        self.trace = Some(trace);
        Ok(())
    }

    /// The program of a trace is loaded, or cannot be: puts it in place, and answers whoever asked.
    pub(super) fn trace_loaded(&mut self, number: u64, loaded: Loaded, give: GiveSamples) {
        let Some(trace) = self.trace.as_mut().filter(|trace| trace.number == number) else {
            return;
        };
        // To follow connections nobody asks for an answer.
        let asked = trace.reply.take().and_then(|reply| Some((reply, trace.taken.take()?)));
        if asked.is_none() && !trace.untold_to_all() {
            return;
        }
        trace.renewed = Instant::now();
        let wanted = trace.wanted;
        let installed = loaded.map_err(EngineError::Plane).and_then(|program| {
            let samples = self.plane.trace(program, &wanted).plane()?;
            let cannot = || "this data plane cannot tell what it does with packets".to_owned();
            samples.ok_or_else(|| EngineError::Invalid(cannot()))
        });
        match installed {
            Ok(samples) => {
                match &asked {
                    Some(_) => {
                        info!(
                            "somebody looks at packets; the program that takes notes is in place"
                        );
                    }
                    None => {
                        info!("connections are followed; the program that takes notes is in place")
                    }
                }
                self.following.begun(wanted.follow);
                if let (Some(trace), Some(_)) = (&self.trace, &asked) {
                    // So that whoever asked knows that it has begun.
                    let _ = trace.lines.try_send(TraceLine::Counts(TraceTotals::default()));
                }
                let _ = give.send(samples);
                // Whoever asked may be gone: then the thread finds that nobody reads.
                if let Some((reply, taken)) = asked {
                    let _ = reply.send(Ok(taken));
                }
            }
            Err(error) => {
                self.end_trace();
                match asked {
                    Some((reply, _)) => drop(reply.send(Err(error))),
                    None => self.following.failed(&error),
                }
            }
        }
    }

    /// The thread of a trace has ended: nobody reads it any more.
    pub(super) fn trace_ended(&mut self, number: u64) {
        if self.trace.as_ref().is_some_and(|trace| trace.number == number) {
            self.end_trace();
        }
    }

    /// Puts the usual program back, if another one is there.
    pub(super) fn end_trace(&mut self) {
        let Some(trace) = self.trace.take() else { return };
        trace.over.store(true, Ordering::Relaxed);
        if let Ok(Some(counts)) = self.plane.keep_tracing() {
            self.following.counted(counts);
        }
        self.following.ended();
        match self.plane.end_trace().plane() {
            Ok(()) => info!("nobody looks at packets any more; the usual program is in place"),
            Err(error) => {
                warn!(%error, "cannot put the usual program back; packets go the same way");
                // To be tried again.
                self.trace = Some(trace);
            }
        }
    }

    /// Whether somebody looks, or connections are followed.
    pub(super) fn is_tracing(&self) -> bool {
        self.trace.is_some()
    }

    /// One connection in so many is followed, and nobody looks.
    pub(super) fn following_alone(&self) -> Option<u32> {
        let trace = self.trace.as_ref().filter(|trace| trace.untold_to_all());
        trace.map(|trace| trace.wanted.follow)
    }

    /// What is due for a trace that is under way.
    pub(super) fn go_on_tracing(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        if trace.renewed.elapsed() < EVERY {
            return;
        }
        trace.renewed = Instant::now();
        if trace.over.load(Ordering::Relaxed) || trace.is_left() {
            return self.end_trace();
        }
        let told = !trace.untold_to_all();
        // It is not in place yet.
        if trace.reply.is_some() || !told && !self.following.is_going() {
            return;
        }
        let names = self.names_of_all();
        let Some(trace) = &self.trace else { return };
        *trace.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        let why = match self.plane.keep_tracing().plane() {
            Ok(Some(counts)) => {
                self.following.counted(counts);
                let TraceCounts { seen, matched, lost, .. } = counts;
                let lost = lost + trace.untold.load(Ordering::Relaxed);
                let counts = TraceLine::Counts(TraceTotals { seen, matched, lost });
                // Whoever has not taken the lines before this one hears of later ones.
                if told {
                    let _ = trace.lines.try_send(counts);
                }
                return;
            }
            Ok(None) => "the memory of the data plane has changed its size".to_owned(),
            Err(error) => error.to_string(),
        };
        let _ = trace.lines.try_send(TraceLine::Ended(why));
        self.end_trace();
    }

    fn names_of_all(&self) -> Names {
        let members = self.services.values().flat_map(|service| &service.pool);
        Names {
            services: self.names.clone(),
            backends: members.map(|member| (member.id, member.wanted.name.clone())).collect(),
        }
    }

    fn wanted(&self, request: &TraceRequest) -> Result<Wanted, EngineError> {
        let invalid = |field: &str, text: &str, right: &str| {
            EngineError::Invalid(format!("{field}: {text:?} is not {right}"))
        };
        let service = match &request.service {
            Some(name) => Some(self.service(name)?),
            None => None,
        };
        let backend = match (&request.backend, &request.service) {
            (Some(backend), Some(service)) => Some(self.find(service, backend)?.id),
            (Some(_), None) => {
                let which = "backend: names of backends are a service's; give service, too";
                return Err(EngineError::Invalid(which.into()));
            }
            _ => None,
        };
        let network = |text: &String| {
            network_of(text).ok_or_else(|| {
                invalid("host", text, "an address or a network, as 192.0.2.7 or 2001:db8::/32")
            })
        };
        let protocol = |text: &String| {
            text.parse::<Protocol>().map_err(|_| invalid("protocol", text, "tcp, udp or sctp"))
        };
        let fate = |text: &String| match &text[..] {
            "sent" => Ok(Fate::Sent),
            "passed" => Ok(Fate::Passed),
            "dropped" => Ok(Fate::Dropped),
            _ => Err(invalid("fate", text, "sent, passed or dropped")),
        };
        let reason = |text: &String| {
            let named = Reason::ALL.iter().copied().find(|reason| reason.name() == text);
            named.ok_or_else(|| invalid("reason", text, "a reason that weir status prints"))
        };
        Ok(Wanted {
            network: request.host.as_ref().map(network).transpose()?,
            port: request.port,
            protocol: request.protocol.as_ref().map(protocol).transpose()?,
            service: service.map(|service| service.number),
            backend,
            reason: request.reason.as_ref().map(reason).transpose()?,
            fate: request.fate.as_ref().map(fate).transpose()?,
            every: request.every.unwrap_or(1),
            untold: false,
            follow: self.config.balancer.follow_flows,
        })
    }
}

/// An address or a network, by any address that is in it.
fn network_of(text: &str) -> Option<Prefix> {
    match text.parse() {
        Err(PrefixError::Behind(_, _, network)) => Some(network),
        parsed => parsed.ok(),
    }
}

/// What reads the ring.
struct Reader {
    names: Arc<RwLock<Names>>,
    over: Arc<AtomicBool>,
    untold: Arc<std::sync::atomic::AtomicU64>,
    lines: mpsc::Sender<TraceLine>,
    /// Names of interfaces by their numbers.
    interfaces: HashMap<u32, String>,
}

impl Reader {
    fn read(mut self, samples: Box<dyn Samples>) {
        let followed = samples.follow(PATIENCE, &mut |sample| {
            if let Some(sample) = sample {
                let line = TraceLine::Packet(Box::new(self.told(&sample)));
                // Whoever reads too slowly is told how many it has missed.
                if self.lines.try_send(line).is_err() {
                    self.untold.fetch_add(1, Ordering::Relaxed);
                }
            }
            !self.over.load(Ordering::Relaxed) && !self.lines.is_closed()
        });
        if let Err(error) = followed {
            let _ = self.lines.try_send(TraceLine::Ended(error.to_string()));
        }
    }

    fn interface(&mut self, index: u32) -> String {
        let name = self.interfaces.entry(index).or_insert_with(|| interface_name(index));
        name.clone()
    }

    fn told(&mut self, sample: &Sample) -> TracedPacket {
        let interface = self.interface(sample.ifindex);
        let way = sample.way.unwrap_or(sample.ifindex);
        let out = (sample.fate == Fate::Sent).then(|| self.interface(way));
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let number = |number: usize| format!("number {number}");
        let service = |id: ServiceId| {
            names.services.get(&id).cloned().unwrap_or_else(|| number(id.0 as usize))
        };
        let backend =
            |id: BackendId| names.backends.get(&id).cloned().unwrap_or_else(|| number(id.index()));
        let since = sample.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let flow = sample.flow.as_ref();
        TracedPacket {
            time: since.as_nanos() as u64,
            interface,
            queue: sample.queue,
            protocol: flow.map(|flow| flow.protocol.to_string()),
            source: flow.map(|flow| flow.source.into()),
            destination: flow.map(|flow| flow.destination.into()),
            flags: flow
                .filter(|flow| flow.protocol == Protocol::Tcp)
                .map_or_else(Vec::new, |flow| flags_of(flow.tcp_flags)),
            service: sample.service.map(service),
            backend: sample.backend.map(backend),
            fate: match sample.fate {
                Fate::Sent => "sent",
                Fate::Passed => "passed",
                Fate::Dropped => "dropped",
            }
            .into(),
            reason: sample.reason.map(|reason| reason.name().into()),
            out,
            rules: sample.rules.iter().map(|&rule| rule.to_owned()).collect(),
            more_rules: sample.more_rules,
            length: sample.before.length,
            frame: hexadecimal(&sample.before),
            length_after: sample.after.as_ref().map(|after| after.length),
            frame_after: sample.after.as_ref().map(hexadecimal),
        }
    }
}

fn hexadecimal(frame: &Frame) -> String {
    use std::fmt::Write;
    frame.head.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// RFC 9293 section 3.1, from the first bit on.
fn flags_of(flags: u8) -> Vec<String> {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0);
    set.map(|(_, name)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_addresses_with_or_without_a_prefix() {
        for (text, network) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(
                network_of(text).map(|network| network.to_string()).as_deref(),
                Some(network)
            );
        }
        for wrong in ["", "192.0.2.0/33", "2001:db8::/129", "192.0.2.0/", "a", "10.0.0.1/-1"] {
            assert_eq!(network_of(wrong), None, "{wrong}");
        }
    }
}
