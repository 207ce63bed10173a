//! Looks up backends in the domain name system, and tells the engine what it finds.
//!
//! Each entry is asked again when its answer is not valid any more (its time to live), but not within a second,
//! and after `every` at the latest. What gives nothing is tried again with growing pauses. A service's name
//! (`srv`) is resolved whole or not at all: with one target that nobody answers about it would seem that its
//! backends were gone.

use crate::config::{Discover, Records};
use crate::engine::{Answer, Command, Record, Sender, Sought};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// Look-ups at once.
const AT_ONCE: usize = 32;
/// The shortest pause between two look-ups.
const SOONEST: Duration = Duration::from_secs(1);
/// The longest after one that gave nothing.
const AGAIN: Duration = Duration::from_secs(30);
/// For one question to one name server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Targets of a service that are resolved.
const MOST_TARGETS: usize = 1024;

/// Looks up what the engine wants until that ends.
pub async fn run(engine: Sender, mut wanted: watch::Receiver<Arc<[Sought]>>) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut seekers: HashMap<Sought, Seeker> = HashMap::new();
    loop {
        let now = Arc::clone(&wanted.borrow_and_update());
        let there: HashSet<&Sought> = now.iter().collect();
        seekers.retain(|sought, _| there.contains(sought));
        for sought in now.iter() {
            seekers.entry(sought.clone()).or_insert_with_key(|sought| {
                let (engine, room) = (engine.clone(), Arc::clone(&room));
                Seeker(tokio::spawn(seek(engine, sought.clone(), room)))
            });
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// A task that ends with this.
struct Seeker(JoinHandle<()>);

impl Drop for Seeker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn seek(engine: Sender, sought: Sought, room: Arc<Semaphore>) {
    let mut failures = 0;
    loop {
        let found = {
            let _place = room.acquire().await;
            look_up(&sought).await
        };
        let every = sought.discover.every;
        let (answer, pause): (Answer, _) = match found {
            Ok((records, valid)) => {
                failures = 0;
                (Ok(records), valid.clamp(SOONEST, every.max(SOONEST)))
            }
            Err(why) => {
                let pause = (SOONEST * (1 << failures)).min(AGAIN).min(every);
                failures = (failures + 1).min(10);
                (Err(why), pause.max(SOONEST))
            }
        };
        let command = Command::LookedUp(Box::new(sought.clone()), answer);
        if engine.send(command).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// The records, and for how long they are valid.
async fn look_up(sought: &Sought) -> Result<(Vec<Record>, Duration), String> {
    let Discover { records, servers, weight, .. } = &sought.discover;
    let resolver = resolver(servers)?;
    match records {
        Records::Dns(name) => {
            let (addresses, valid) = addresses(&resolver, name, sought.ipv4).await?;
            let of = |address| Record { address, port: None, weight: *weight, backup: false };
            Ok((addresses.into_iter().map(of).collect(), valid))
        }
        Records::Srv(name) => targets(&resolver, name, sought.ipv4).await,
    }
}

/// A resolver of its own for each look-up, since what this host has for name servers may change.
fn resolver(servers: &[SocketAddr]) -> Result<TokioResolver, String> {
    let mut builder = if servers.is_empty() {
        let system = TokioResolver::builder_tokio();
        system.map_err(|error| format!("cannot read /etc/resolv.conf: {error}"))?
    } else {
        let server = |address: &SocketAddr| {
            let at = |mut connection: ConnectionConfig| {
                connection.port = address.port();
                connection
            };
            let ways = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
            NameServerConfig::new(address.ip(), true, ways)
        };
        let servers = servers.iter().map(server).collect();
        let config = ResolverConfig::from_name_servers(servers);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        builder.options_mut().use_hosts_file = ResolveHosts::Never;
        builder
    };
    let ResolverOpts { cache_size, timeout, .. } = builder.options_mut();
    (*cache_size, *timeout) = (0, TIMEOUT);
    builder.build().map_err(|error| error.to_string())
}

/// The addresses of a name, and for how long they are valid.
async fn addresses(
    resolver: &TokioResolver,
    name: &str,
    ipv4: bool,
) -> Result<(Vec<IpAddr>, Duration), String> {
    let kind = if ipv4 { RecordType::A } else { RecordType::AAAA };
    let found = resolver.lookup(name, kind).await.map_err(|error| words(&error, name, kind))?;
    let address = |data: &RData| match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    };
    let all = found.answers().iter().filter_map(|record| address(&record.data)).collect();
    Ok((all, left(found.valid_until())))
}

/// The targets of a service with their addresses, and for how long all of that is valid.
async fn targets(
    resolver: &TokioResolver,
    name: &str,
    ipv4: bool,
) -> Result<(Vec<Record>, Duration), String> {
    let found = resolver.lookup(name, RecordType::SRV).await;
    let found = found.map_err(|error| words(&error, name, RecordType::SRV))?;
    let mut valid = left(found.valid_until());
    let services = found.answers().iter().filter_map(|record| match &record.data {
        // A dot says that there is no such service.
        RData::SRV(service) if !service.target.is_root() => Some(service),
        _ => None,
    });
    let services: Vec<_> = services.take(MOST_TARGETS).collect();
    let first = services.iter().map(|service| service.priority).min();
    let mut records = Vec::new();
    let mut known: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for service in services {
        let target = service.target.to_ascii();
        if !known.contains_key(&target) {
            let (all, of_it) = addresses(resolver, &target, ipv4).await?;
            valid = valid.min(of_it);
            known.insert(target.clone(), all);
        }
        records.extend(known[&target].iter().map(|address| Record {
            address: *address,
            port: Some(service.port).filter(|port| *port != 0),
            // Those of weight 0 are to get very little, and with none but those all are alike.
            weight: service.weight.max(1),
            backup: Some(service.priority) != first,
        }));
    }
    Ok((records, valid))
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn words(error: &NetError, name: &str, kind: RecordType) -> String {
    if error.is_nx_domain() {
        return format!("there is no name {name}");
    }
    if error.is_no_records_found() {
        return format!("{name} has no {kind} record");
    }
    format!("{name}: {error}")
}
