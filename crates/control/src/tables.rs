//! Tables that all balancers of a fleet have alike: where those of this one lie for the others, and how it gets
//! theirs (docs/fleet.md, In step).

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;
use weir_rpc::dial::{DialError, Shown, dial_and_look, resolve};
use weir_rpc::tls::{Files, refusal, with_causes};
use weir_rpc::{TABLE_PART, TableAsked, TablesClient};
use weir_steering::digest_of;

/// Tables of a service that are kept: the one in force, and those that are to be.
const KEPT: usize = 3;
/// For a connection to another balancer, and for each part.
const PATIENCE: Duration = Duration::from_secs(1);
/// No table has more bytes: one of a hundred million states.
const MOST: usize = 1 << 29;

/// What one of several balancers has built, as it is sent.
pub type Bytes = Arc<Vec<u8>>;

/// The tables that this balancer has, for whoever asks.
#[derive(Debug, Default)]
pub struct Shelf {
    /// By service, the latest last, with their digests.
    tables: Mutex<HashMap<String, Vec<(String, Bytes)>>>,
}

impl Shelf {
    /// Has this table from now on.
    pub fn put(&self, service: &str, digest: &str, bytes: Bytes) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let of = tables.entry(service.to_owned()).or_default();
        of.retain(|(there, _)| there != digest);
        of.push((digest.to_owned(), bytes));
        let over = of.len().saturating_sub(KEPT);
        of.drain(..over);
    }

    /// The table of a service with this digest.
    pub fn get(&self, service: &str, digest: &str) -> Option<Bytes> {
        let tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let of = tables.get(service)?;
        of.iter().find(|(there, _)| there == digest).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Of services that are no more it has none.
    pub fn keep(&self, is_there: impl Fn(&str) -> bool) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|service, _| is_there(service));
    }
}

/// A table that is to be got from another balancer.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Of this service.
    pub service: String,
    /// With this digest.
    pub digest: String,
    /// Where it may be had, the likeliest place first: hosts and ports.
    pub peers: Vec<String>,
}

/// Gets it from the first that has it.
///
/// # Errors
/// Why nobody gave it, in words.
pub async fn get(wish: &Wish, files: &Files) -> Result<Vec<u8>, String> {
    let identity = files.identity().map_err(|error| error.to_string())?;
    if !identity.usage.client {
        return Err(format!(
            "{} is for servers only, and this balancer has to call the others for tables; `weir pki issue` with \
             --role balancer makes one for both",
            files.certificate.display()
        ));
    }
    if wish.peers.is_empty() {
        return Err("no other balancer says where its tables are".into());
    }
    let mut why = Vec::new();
    for peer in &wish.peers {
        match get_from(peer, wish, files).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => why.push(format!("{peer}: {error}")),
        }
    }
    Err(why.join("; "))
}

async fn connect(peer: &str, files: &Files) -> Result<(Channel, Shown), String> {
    let (host, port) = peer.rsplit_once(':').ok_or("it is no host with a port")?;
    let port = port.parse::<u16>().map_err(|_| "it is no host with a port")?;
    let host = host.trim_matches(['[', ']']);
    let channel =
        async { dial_and_look(host, resolve(host, port).await?, files, |endpoint| endpoint).await };
    let late = |_| "no answer in time".to_owned();
    timeout(PATIENCE, channel).await.map_err(late)?.map_err(|error: DialError| {
        let mut last: &(dyn Error + 'static) = &error;
        while let Some(source) = last.source() {
            last = source;
        }
        let alert = last.downcast_ref::<io::Error>().and_then(refusal);
        alert.unwrap_or_else(|| last.to_string())
    })
}

/// What another balancer says, or why it says nothing.
fn in_words(status: &Status, shown: &Shown, files: &Files) -> String {
    match shown.refusal().filter(|_| status.source().is_some()) {
        Some(why) => match files.foreign() {
            Some(foreign) => format!("{why}; {foreign}"),
            None => why,
        },
        None => with_causes(status.message().to_owned(), status),
    }
}

async fn get_from(peer: &str, wish: &Wish, files: &Files) -> Result<Vec<u8>, String> {
    let (channel, shown) = connect(peer, files).await?;
    let mut client = TablesClient::new(channel).max_decoding_message_size(2 * TABLE_PART);
    let asked = TableAsked { service: wish.service.clone(), digest: wish.digest.clone() };
    let late = |_| "no answer in time".to_owned();
    let said = |status: Status| in_words(&status, &shown, files);
    let answer = timeout(PATIENCE, client.table(asked)).await.map_err(late)?.map_err(said)?;
    let (mut parts, mut bytes) = (answer.into_inner(), Vec::new());
    while let Some(part) = timeout(PATIENCE, parts.message()).await.map_err(late)?.map_err(said)? {
        bytes.extend(part.bytes);
        if bytes.len() > MOST {
            return Err(format!("a table of more than {MOST} bytes"));
        }
    }
    let found = digest_of(&bytes);
    if found == wish.digest {
        Ok(bytes)
    } else {
        Err(format!("a table with digest {found} where {} was asked for", wish.digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::serve;
    use crate::config::Agents;
    use crate::engine::channel;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
    use std::time::Instant;
    use tokio::sync::watch;
    use weir_rpc::pki::{Request, Role, init, issue};
    use weir_rpc::{BalancerClient, FromAgent, Hello, PROTOCOL, from_agent};

    /// Whole and unchanged to who shows a balancer's certificate, to nobody else; and a balancer is no agent.
    #[test]
    fn a_table_is_lent_to_balancers_alone() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        init(home.path(), "test", 30).expect("an authority");
        let certified = |name: &str, role| {
            let (addresses, hosts) = (vec![here], Vec::new());
            let request = Request { name: name.into(), role, addresses, hosts, days: 10 };
            let issued = issue(home.path(), home.path(), &request).expect("signed");
            let ca = home.path().join("ca.pem");
            Files { certificate: issued.certificate, key: issued.key, ca }
        };
        let balancer = certified("lb", Role::Balancer);
        let agent = certified("b0", Role::Agent);
        let free = TcpListener::bind((here, 0)).expect("a port");
        let listen: SocketAddr = free.local_addr().expect("it is bound");
        drop(free);
        let bytes: Vec<u8> = (0..300_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let shelf = Arc::new(Shelf::default());
        let digest = digest_of(&bytes);
        shelf.put("web", &digest, Arc::new(bytes.clone()));
        shelf.put("bad", "0123", Arc::new(bytes.clone()));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (engine, _commands) = channel(64).expect("descriptors");
            let Files { certificate, key, ca } = balancer.clone();
            let agents = Agents { listen, certificate, key, ca, learn: Duration::ZERO };
            let (_wanted, at) = watch::channel(Some(agents));
            let (trouble, _trouble) = watch::channel(None);
            tokio::spawn(serve((engine, shelf), at, trouble));
            let peers = vec![listen.to_string()];
            let wish = |service: &str, digest: &str| Wish {
                service: service.into(),
                digest: digest.into(),
                peers: peers.clone(),
            };
            let limit = Instant::now() + Duration::from_secs(60);
            let got = loop {
                match get(&wish("web", &digest), &balancer).await {
                    Err(_) if Instant::now() < limit => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    got => break got,
                }
            };
            assert!(got.expect("it is lent") == bytes, "other bytes came");
            for (service, digest, files, why) in [
                ("web", "0", &balancer, "this balancer has it not"),
                ("api", &*digest, &balancer, "this balancer has it not"),
                ("bad", "0123", &balancer, "where 0123 was asked for"),
                ("web", &*digest, &agent, "the certificate of b0 is no balancer's"),
            ] {
                let refused = get(&wish(service, digest), files).await.expect_err(why);
                assert!(refused.contains(why), "{refused}");
            }
            let nobody = Wish { peers: Vec::new(), ..wish("web", &digest) };
            assert!(get(&nobody, &balancer).await.is_err());
            let hello = Hello {
                protocol: PROTOCOL,
                version: "1".into(),
                instance: vec![1; 16],
                addresses: vec![Ipv4Addr::LOCALHOST.octets().to_vec()],
                first: 0,
                next: 0,
            };
            let hello = FromAgent { what: Some(from_agent::What::Hello(hello)) };
            let (channel, _) = connect(&peers[0], &balancer).await.expect("TLS lets it in");
            let mut client = BalancerClient::new(channel);
            let said = client.speak(tokio_stream::iter([hello])).await.expect("it is heard");
            let refused = said.into_inner().message().await.expect_err("no agent's");
            assert!(refused.message().contains("a balancer's and no agent's"), "{refused}");
        });
    }

    #[test]
    fn a_shelf_keeps_the_latest_tables_of_each_service() {
        let shelf = Shelf::default();
        for n in 0..5u8 {
            shelf.put("a", &n.to_string(), Arc::new(vec![n]));
        }
        shelf.put("b", "9", Arc::new(vec![9]));
        shelf.put("a", "2", Arc::new(vec![2]));
        shelf.put("a", "5", Arc::new(vec![5]));
        let has = |service: &str, digest: &str| shelf.get(service, digest).is_some();
        assert_eq!(
            ["1", "2", "3", "4", "5"].map(|digest| has("a", digest)),
            [false, true, false, true, true]
        );
        assert!(has("b", "9") && !has("c", "9"));
        shelf.keep(|service| service == "a");
        assert!(!has("b", "9") && has("a", "5"));
    }
}
