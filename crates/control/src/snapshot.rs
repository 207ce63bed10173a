//! `weir snapshot`: everything that a report of a fault needs, in one file, and `weir explain --snapshot`:
//! where a flow goes by the tables in it, without the balancer (docs/snapshot.md).

use crate::api::FlowRequest;
use crate::config::{Config, Forward};
use crate::doctor::{self, DoctorInput};
use crate::engine::{
    BackendStatus, Event, Explanation, HistoryReport, Inside, NatSourceStatus, ServiceStatus,
    Status, TableSnapshot, decode_table,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_plane::Listen;
use weir_plane::forward::mapping::has_client;
use weir_steering::{
    BackendId, Decide, Decision, Image, Note, Question, Recall, Rehearsal, ServiceId, Signals, Why,
    ask,
};
use weir_wire::{FlowKey, Protocol, Reason, unmap_address};

/// What a file begins with, and another program looks for.
pub const FORMAT: &str = "weir snapshot 1";
/// In the place of what is not told.
const LEFT_OUT: &str = "(left out)";

/// An instance at one moment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Always `weir snapshot 1`.
    pub format: String,
    /// When it was taken, in seconds since 1970.
    pub at: u64,
    /// The instance's file, where it is.
    pub file: String,
    /// What is in it, without keys and other secrets; a sentence if it cannot be read.
    pub configuration: Value,
    /// Services, backends, counters.
    pub status: Status,
    /// The tables that packets follow.
    pub tables: Vec<TableSnapshot>,
    /// What has been changed, when, by whom.
    pub history: HistoryReport,
    /// What has happened lately.
    pub events: Vec<Event>,
    /// What there is to know of the host that it runs on.
    pub host: Host,
    /// What `weir doctor` finds, without probes.
    pub findings: Vec<Value>,
}

/// What there is to know of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// System, release, version and machine, as `uname` has them.
    pub kernel: String,
    /// Name of the distribution, as `/etc/os-release` has it; none if it cannot be read.
    pub system: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Lines of /proc/meminfo, /proc/self/status and /proc/self/limits that matter.
    pub memory: Vec<String>,
    /// Settings of the kernel.
    pub settings: BTreeMap<String, String>,
    /// Interfaces, each with what /sys/class/net says.
    pub interfaces: BTreeMap<String, BTreeMap<String, String>>,
}

impl Host {
    /// Looks at this one.
    pub fn look(interfaces: &[String]) -> Self {
        let text = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let lines = |path: &str, begins: &[&str]| -> Vec<String> {
            let text = text(path).unwrap_or_default();
            let wanted = |line: &&str| begins.iter().any(|begin| line.starts_with(begin));
            text.lines().filter(wanted).map(str::to_owned).collect()
        };
        let kernel = nix::sys::utsname::uname().map_or_else(
            |error| error.to_string(),
            |name| {
                let parts = [name.sysname(), name.release(), name.version(), name.machine()];
                parts.map(|part| part.to_string_lossy().into_owned()).join(" ")
            },
        );
        let release = lines("/etc/os-release", &["PRETTY_NAME="]);
        let system = release.first().and_then(|line| line.split('"').nth(1)).map(str::to_owned);
        let mut memory = lines("/proc/meminfo", &["MemTotal", "MemAvailable", "SwapTotal"]);
        memory.extend(lines("/proc/self/status", &["VmRSS", "VmLck", "Threads", "CapEff"]));
        memory.extend(lines("/proc/self/limits", &["Max open files", "Max locked memory"]));
        let mut settings = BTreeMap::new();
        let mut names: Vec<String> = [
            "kernel/unprivileged_bpf_disabled",
            "net/core/bpf_jit_enable",
            "net/core/bpf_jit_harden",
            "net/ipv4/ip_forward",
            "net/ipv6/conf/all/forwarding",
            "net/ipv4/conf/all/rp_filter",
        ]
        .map(str::to_owned)
        .into();
        names.extend(interfaces.iter().map(|name| format!("net/ipv4/conf/{name}/rp_filter")));
        for name in names {
            if let Some(value) = text(&format!("/proc/sys/{name}")) {
                settings.insert(name.replace('/', "."), value);
            }
        }
        let of_interface = |name: &String| {
            let at = format!("/sys/class/net/{name}");
            let mut about = BTreeMap::new();
            for field in ["mtu", "operstate", "speed", "address", "ifindex", "type"] {
                if let Some(value) = text(&format!("{at}/{field}")) {
                    about.insert(field.to_owned(), value);
                }
            }
            let driver = fs::read_link(format!("{at}/device/driver")).ok();
            if let Some(driver) = driver.as_ref().and_then(|driver| driver.file_name()) {
                about.insert("driver".into(), driver.to_string_lossy().into_owned());
            }
            (name.clone(), about)
        };
        Self {
            kernel,
            system,
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            memory,
            settings,
            interfaces: interfaces.iter().map(of_interface).collect(),
        }
    }
}

impl Snapshot {
    /// Puts one together, and looks at the host for it; that takes a moment.
    pub fn take(
        inside: Inside,
        status: Status,
        history: HistoryReport,
        events: Vec<Event>,
    ) -> Self {
        let Inside { config, file, tables } = inside;
        let configuration = match Config::text(&file).map(|text| text.parse::<toml::Table>()) {
            Ok(Ok(table)) => {
                let mut value = serde_json::to_value(table).unwrap_or_default();
                leave_out(&mut value, "");
                value
            }
            // What is wrong there may stand beside a key: not the words, only that it is so.
            Ok(Err(_)) => Value::String("the file is not TOML".into()),
            Err(error) => Value::String(error.to_string()),
        };
        // Refusals quote what they refuse.
        let differs = "the instance differs from its file, or its file would be refused";
        let drift = history.drift.as_ref().map(|_| differs.to_owned());
        let history = HistoryReport { drift, ..history };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let host = Host::look(&config.balancer.interfaces);
        let input = DoctorInput { probe: false, ..DoctorInput::new(config) }.beside(&status);
        let findings = doctor::examine(&input);
        let findings = findings.iter().filter_map(|one| serde_json::to_value(one).ok()).collect();
        Self {
            format: FORMAT.into(),
            at: now.as_secs(),
            file: file.display().to_string(),
            configuration,
            status,
            tables,
            history,
            events,
            host,
            findings,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// Why the text is none.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = |error| format!("it is no snapshot of this version of weir: {error}");
        let snapshot: Self =
            serde_json::from_str(text).map_err(|error| wrong(format!("{error}")))?;
        if snapshot.format == FORMAT {
            Ok(snapshot)
        } else {
            Err(wrong(format!("it begins with {:?}, not {FORMAT:?}", snapshot.format)))
        }
    }

    /// Where a flow went by the tables of the snapshot.
    ///
    /// # Errors
    /// If the request makes no sense, or the tables are not in the snapshot.
    pub fn explain(&self, request: &FlowRequest) -> Result<Explanation, String> {
        let protocol: Protocol =
            request.protocol.parse().map_err(|error| format!("protocol: {error}"))?;
        if request.source.is_ipv4() != request.destination.is_ipv4() {
            return Err("source and destination must be of one family".into());
        }
        request.has_what_it_may(protocol)?;
        if request.connection_id.is_some() {
            return Err("keys of QUIC ids are left out of snapshots: ask the balancer".into());
        }
        let flow = FlowKey::new(request.source, request.destination, protocol);
        let mut said = Explanation { flow: flow.to_string(), ..Explanation::default() };
        let Some((service, salt)) = self.service_of(&flow) else {
            self.explain_answer(&flow, &mut said);
            return Ok(said);
        };
        said.service = Some(service.name.clone());
        said.method = Some(service.method.clone());
        let Some(table) = self.tables.iter().find(|table| table.service == service.name) else {
            said.why = "the service had no published table; its packets were dropped".into();
            said.is_dropped(Reason::NoTable);
            return Ok(said);
        };
        let text = table.table.as_deref().ok_or(
            "the tables themselves are not in the snapshot: take one with weir snapshot --tables",
        )?;
        let image = decode_table(text)
            .map_err(|error| format!("the table of service {}: {error}", service.name))?;
        decide((service, salt), &image, &flow, &mut said);
        let is_it = |one: &&BackendStatus| said.backend.as_ref() == Some(&one.name);
        if let Some(backend) = service.backends.iter().find(is_it) {
            self.explain_way(service, backend, &flow, &mut said);
        }
        if service.sources.is_some() {
            said.source = Some("its lists of sources are not in the snapshot".into());
        }
        Ok(said)
    }

    /// How packets of a flow reached its backend, if not as they were.
    fn explain_way(
        &self,
        service: &ServiceStatus,
        backend: &BackendStatus,
        flow: &FlowKey,
        said: &mut Explanation,
    ) {
        let is_full_nat = service.forward == Forward::FullNat.name();
        if is_full_nat || service.forward == Forward::Nat.name() {
            said.is_translated(flow, backend.address, backend.port);
        }
        if is_full_nat {
            if has_client(flow, backend.address, backend.port) {
                said.from = Some(self.sources_of(backend, flow));
            } else {
                said.has_no_client(flow);
            }
        }
        if let Some(tunnel) = backend.tunnel {
            let port = service.tunnel_port;
            let port = port.map_or_else(String::new, |port| format!(" to port {port}"));
            let forward = format!("{}{port}", service.forward);
            said.is_tunnelled(forward, tunnel, backend.address);
        }
    }

    /// The sources that a flow could have towards a backend under full NAT.
    fn sources_of(&self, backend: &BackendStatus, flow: &FlowKey) -> String {
        let own = &backend.nat_sources;
        let may_be = |one: &&NatSourceStatus| {
            one.address.is_ipv4() == backend.address.is_ipv4()
                && (own.is_empty() || own.contains(&one.address))
        };
        let name = |one: &NatSourceStatus| {
            let (first, last) = one.ports;
            format!("{} ports {first} to {last}", one.address)
        };
        let all: Vec<String> = self.status.nat_sources.iter().filter(may_be).map(name).collect();
        let client = SocketAddr::from((unmap_address(&flow.src), flow.src_port));
        format!(
            "{client} becomes one of {}: which one is not in a snapshot",
            if all.is_empty() { "the balancer's sources".to_owned() } else { all.join(", ") }
        )
    }

    /// What became of packets to where no service was: those of backends may be translated.
    fn explain_answer(&self, flow: &FlowKey, said: &mut Explanation) {
        let (source, to) = (unmap_address(&flow.src), unmap_address(&flow.dst));
        let is_source = |one: &NatSourceStatus| {
            one.address == to && (one.ports.0..=one.ports.1).contains(&flow.dst_port)
        };
        if flow.protocol != Protocol::Sctp && self.status.nat_sources.iter().any(is_source) {
            said.is_for_full_nat();
            return;
        }
        let is_answer = |service: &ServiceStatus, backend: &BackendStatus| {
            // Of a service of any port they may come from any.
            let port = service.port.map(|port| backend.port.unwrap_or(port));
            backend.address == source && port.is_none_or(|port| port == flow.src_port)
        };
        let translated = self.status.services.iter().filter(|service| {
            service.forward == Forward::Nat.name()
                && service.protocol.parse::<Protocol>().is_ok_and(|one| one == flow.protocol)
                && service.backends.iter().any(|backend| is_answer(service, backend))
        });
        // Whose port it is goes before who takes any.
        let Some(service) = translated.max_by_key(|service| service.port.is_some()) else {
            said.why = "no service was configured at this destination; its packets were left to \
                        the kernel"
                .into();
            return;
        };
        let becomes = (service.vip, service.port.unwrap_or(flow.src_port));
        let source = (source, flow.src_port);
        let whose = (service.name.as_str(), service.method.as_str());
        said.is_answer(whose, source.into(), becomes.into(), None);
    }

    /// The service that takes a flow's packets, and what the flow's state is told apart by.
    fn service_of(&self, flow: &FlowKey) -> Option<(&ServiceStatus, u16)> {
        let of = |service: &'_ ServiceStatus| {
            let places = service.places();
            places.into_iter().filter(|at| at.takes(flow)).max_by_key(Listen::exactness)
        };
        let all = self.status.services.iter().filter_map(|service| Some((of(service)?, service)));
        let nearest = all.max_by_key(|(at, _)| at.exactness());
        nearest.map(|(at, service)| (service, at.salt_of(&flow.dst)))
    }
}

/// The pool of a snapshot, and a memory that knows no flow.
struct Pool<'a>(&'a ServiceStatus);

impl Pool<'_> {
    fn find(&self, backend: BackendId) -> Option<&BackendStatus> {
        self.0.backends.iter().find(|one| one.number == backend.get())
    }
}

impl Recall for Pool<'_> {
    fn incarnation(&self, backend: BackendId) -> Option<u32> {
        self.find(backend).map(|_| 0)
    }

    fn is_down(&self, backend: BackendId) -> bool {
        self.find(backend).is_some_and(|one| one.state == "down")
    }
}

fn decide(
    (service, salt): (&ServiceStatus, u16),
    image: &Image,
    flow: &FlowKey,
    said: &mut Explanation,
) {
    let pool = Pool(service);
    let mut later = Rehearsal::new(&pool);
    let signals = Signals { salt, ..Signals::LATER };
    let question = ask(image, ServiceId(service.number), flow, signals, 0, &mut later);
    let decided: Decision = image.decide(&question, &mut later);
    let first = Question { signals: Signals { salt, ..Signals::FIRST }, ..question };
    let first = image.decide(&first, &mut Rehearsal::new(&pool));
    let notes: Vec<Note> = later.notes().to_vec();
    said.generation = Some(image.header().generation);
    said.digest = Some(format!("{:016x}", image.header().digest));
    said.hash = Some(format!("{:016x}", question.hash));
    said.code = decided.row;
    said.reserved = decided.why == Why::Reserved;
    match decided.backend.map(|id| pool.find(id)) {
        Ok(Some(backend)) => {
            said.backend = Some(backend.name.clone());
            said.address = Some(backend.address.to_string());
            said.state = Some(backend.state.clone());
        }
        Ok(None) => {}
        Err(reason) => said.is_dropped(reason),
    }
    said.has_asked(&notes, |id| pool.find(id).map(|one| one.name.clone()));
    if first.backend != decided.backend {
        let name = first.backend.ok().and_then(|id| pool.find(id));
        said.backend_if_new = name.map(|backend| backend.name.clone());
    }
    said.why = format!(
        "{}; by the table alone: connections that the balancer remembered besides (pending, pinned, in the \
         connection table, by cookies) are not in a snapshot",
        decided.why
    );
}

/// Takes out what nobody else is to know. `at`: the name of the table that it stands in.
pub(crate) fn leave_out(value: &mut Value, at: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let secret = match name.as_str() {
                    "cookie_key" | "cookie_keys" | "send" | "send_hex" | "expect"
                    | "expect_hex" | "body" => true,
                    // In [api] it is the name of a file.
                    "key" => at != "api",
                    // Each of them may be a password.
                    _ => at == "headers" || at == "answer_headers",
                };
                match (secret, name.as_str(), &mut *value) {
                    (true, ..) => *value = LEFT_OUT.into(),
                    // What is run is known; what it is told may be a password.
                    (_, "command", Value::Array(words)) => {
                        words.iter_mut().skip(1).for_each(|word| *word = LEFT_OUT.into());
                    }
                    // So may be what is asked for.
                    (_, "path", Value::String(path)) => {
                        if let Some(end) = path.find('?') {
                            path.replace_range(end + 1.., LEFT_OUT);
                        }
                    }
                    _ => leave_out(value, name),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| leave_out(item, at)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_stays() {
        let text = r#"
            [api]
            key = "/etc/weir/api.key"
            [[service]]
            name = "web"
            cookie_key = "SECRET1"
            cookie_keys = ["SECRET12", "SECRET13"]
            [service.check]
            headers = { Authorization = "SECRET2", Host = "SECRET3" }
            send = "SECRET4"
            expect_hex = "SECRET5"
            command = ["/usr/bin/check", "--password", "SECRET6"]
            path = "/health?token=SECRET9"
            body = "SECRET10"
            answer_headers = { X-Key = "SECRET11" }
            [[service.quic.config]]
            config_id = 1
            key = "SECRET7"
            [[service.backend]]
            name = "b1"
            [service.backend.check]
            headers = { X-Token = "SECRET8" }
        "#;
        let mut value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        leave_out(&mut value, "");
        let shown = value.to_string();
        assert!(!shown.contains("SECRET"), "{shown}");
        for kept in
            ["/etc/weir/api.key", "/health?", "/usr/bin/check", "Authorization", "b1", "config_id"]
        {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
    }
}
