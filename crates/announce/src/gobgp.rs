//! GoBGP, by its gRPC interface (version 3).

use crate::Route;
use crate::speaker::{Attributes, Error};
use hyper_util::rt::TokioIo;
use prost::Message;
use prost_types::Any;
use std::collections::BTreeSet;
use std::net::IpAddr;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

#[allow(missing_docs, clippy::all)]
mod api {
    tonic::include_proto!("apipb");
}

use api::gobgp_api_client::GobgpApiClient;

/// Networks that are asked for in one request.
const AT_A_TIME: usize = 500;

/// A GoBGP daemon that routes are told to, over its gRPC interface.
#[derive(Debug)]
pub struct Gobgp {
    pub(crate) name: String,
    api: String,
    attributes: Attributes,
    client: Option<GobgpApiClient<Channel>>,
    /// What it has been told by this process, with the attributes that hold.
    told: BTreeSet<Route>,
}

impl Gobgp {
    pub(crate) fn new(name: String, api: String, attributes: Attributes) -> Self {
        Self { name, api, attributes, client: None, told: BTreeSet::new() }
    }

    async fn client(&mut self) -> Result<GobgpApiClient<Channel>, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let channel = connect(&self.api).await;
        let channel = channel.map_err(|reason| self.unreachable(reason))?;
        Ok(self.client.insert(GobgpApiClient::new(channel)).clone())
    }

    pub(crate) async fn current(
        &mut self,
        known: &BTreeSet<Route>,
    ) -> Result<BTreeSet<Route>, Error> {
        let mut client = self.client().await?;
        let mut found = BTreeSet::new();
        for six in [false, true] {
            let all: Vec<&Route> = known.iter().filter(|route| route.is_ipv6() == six).collect();
            for some in all.chunks(AT_A_TIME) {
                let prefix = |route: &&Route| api::TableLookupPrefix { prefix: route.to_string() };
                let request = api::ListPathRequest {
                    table_type: 0,
                    family: Some(family(six)),
                    prefixes: some.iter().map(prefix).collect(),
                };
                let answer = client.list_path(request).await;
                let mut paths = match answer {
                    Ok(paths) => paths.into_inner(),
                    // It says so of a table in which nothing was found.
                    Err(status) if status.code() == Code::NotFound => continue,
                    Err(status) => return Err(self.failed(&status)),
                };
                while let Some(path) =
                    paths.message().await.map_err(|status| self.failed(&status))?
                {
                    let Some(destination) = path.destination else { continue };
                    let Ok(route) = destination.prefix.parse::<Route>() else { continue };
                    if known.contains(&route) && destination.paths.iter().any(is_its_own) {
                        found.insert(route);
                    }
                }
            }
        }
        // What it announces with other attributes than ours, or lost while it was away, is told anew.
        self.told.retain(|route| found.contains(route));
        Ok(found)
    }

    pub(crate) async fn set(
        &mut self,
        current: &BTreeSet<Route>,
        wanted: &BTreeSet<Route>,
    ) -> Result<(), Error> {
        let mut client = self.client().await?;
        for route in current.difference(wanted) {
            let path = api::Path { is_withdraw: true, ..self.path(*route) };
            let request = api::DeletePathRequest {
                table_type: 0,
                family: Some(family(route.is_ipv6())),
                path: Some(path),
            };
            client.delete_path(request).await.map_err(|status| self.failed(&status))?;
            self.told.remove(route);
        }
        for route in wanted {
            if current.contains(route) && self.told.contains(route) {
                continue;
            }
            let request = api::AddPathRequest { table_type: 0, path: Some(self.path(*route)) };
            client.add_path(request).await.map_err(|status| self.failed(&status))?;
            self.told.insert(*route);
        }
        Ok(())
    }

    fn path(&self, route: Route) -> api::Path {
        let nlri = any(
            "IPAddressPrefix",
            &api::IpAddressPrefix {
                prefix_len: route.length().into(),
                prefix: route.address().to_string(),
            },
        );
        let mut attributes = vec![any("OriginAttribute", &api::OriginAttribute { origin: 0 })];
        // The unspecified address: it puts its own there.
        attributes.push(match route.address() {
            IpAddr::V4(_) => any(
                "NextHopAttribute",
                &api::NextHopAttribute {
                    next_hop: self
                        .attributes
                        .next_hop
                        .map_or("0.0.0.0".into(), |one| one.to_string()),
                },
            ),
            IpAddr::V6(_) => any(
                "MpReachNLRIAttribute",
                &api::MpReachNlriAttribute {
                    family: Some(family(true)),
                    next_hops: vec![
                        self.attributes.next_hop6.map_or("::".into(), |one| one.to_string()),
                    ],
                    nlris: vec![nlri.clone()],
                },
            ),
        });
        if let Some(med) = self.attributes.med {
            attributes.push(any("MultiExitDiscAttribute", &api::MultiExitDiscAttribute { med }));
        }
        if !self.attributes.communities.is_empty() {
            let communities = self.attributes.communities.iter().map(|one| one.0).collect();
            attributes
                .push(any("CommunitiesAttribute", &api::CommunitiesAttribute { communities }));
        }
        api::Path {
            nlri: Some(nlri),
            pattrs: attributes,
            family: Some(family(route.is_ipv6())),
            ..api::Path::default()
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { speaker: self.name.clone(), reason }
    }

    fn failed(&mut self, status: &Status) -> Error {
        // The next one begins with a new connection.
        self.client = None;
        match status.code() {
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Unknown
                if status.metadata().is_empty() =>
            {
                self.unreachable(status.message().to_owned())
            }
            _ => Error::Refused { speaker: self.name.clone(), reason: status.message().to_owned() },
        }
    }
}

/// Whether a path is the speaker's own, and not learnt from a neighbour.
fn is_its_own(path: &api::Path) -> bool {
    !path.is_withdraw && path.neighbor_ip.parse::<IpAddr>().is_err()
}

fn family(six: bool) -> api::Family {
    api::Family { afi: if six { 2 } else { 1 }, safi: 1 }
}

/// A message with its name, as GoBGP takes what may be of several kinds.
fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/apipb.{name}"), value: message.encode_to_vec() }
}

async fn connect(api: &str) -> Result<Channel, String> {
    let said = |error: &dyn std::error::Error| {
        // The innermost cause is what a person can act on.
        let mut last = error;
        while let Some(source) = last.source() {
            last = source;
        }
        last.to_string()
    };
    if let Some(path) = api.strip_prefix("unix:") {
        let path = path.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // No name is looked up by a socket; the library wants one.
        let endpoint = Endpoint::from_static("http://localhost");
        return endpoint.connect_with_connector(connector).await.map_err(|error| said(&error));
    }
    let endpoint = Endpoint::from_shared(format!("http://{api}")).map_err(|error| said(&error))?;
    endpoint.connect().await.map_err(|error| said(&error))
}
