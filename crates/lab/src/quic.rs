//! QUIC in a lab: the server of a backend, which makes its connection ids by what the agent beside it was told
//! (docs/quic.md), and clients' connections, which change their addresses and ports.

use std::fmt::{Display, Write};
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, ConnectionError, ConnectionId, ConnectionIdGenerator, Endpoint,
    EndpointConfig, IdleTimeout, Incoming, ReadError, ReadToEndError, ServerConfig, TokioRuntime,
    TransportConfig, VarInt, WriteError,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::error::{Doing, Error, Result};
use crate::topology::{QUIC_PORT, VIP4};
use crate::traffic::Failure;
use weir_testbed::NetNs;
use weir_wire::quic::{Id, QuicLb};

/// The service of QUIC.
pub(crate) const SERVICE: &str = "quic4";
/// The key that its ids are encrypted by at first.
pub(crate) const KEY: &str = "8f95f09245765f80256934e50c66207f";
/// Bytes of every id: a server of this stack has ids of one length.
const ID_LENGTH: usize = 13;
/// The number of ids whose server has no configuration.
const UNCONFIGURED: u8 = 7;
/// Who the servers are, in their certificate.
const NAME: &str = "lab";
/// The protocol that is spoken over it.
const PROTOCOL: &[u8] = b"weir-lab";
/// Bytes of a question or an answer, at most.
const MOST: usize = 128;
/// After so long a silence a server forgets a connection. Clients give up before.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// How its ids are made, by the configuration `issue` of these numbers and keys: three bytes of server id and nine of
/// nonce, encrypted.
pub(crate) fn config<'a>(issue: u8, keys: impl IntoIterator<Item = (u8, &'a str)>) -> String {
    let mut text = format!("[service.quic]\nissue = {issue}\n");
    for (number, key) in keys {
        let _ = write!(
            text,
            "\n[[service.quic.config]]\nconfig_id = {number}\nserver_id_length = 3\nnonce_length = 9\n\
             key = \"{key}\"\n"
        );
    }
    text
}

/// What the servers show, and what clients know them by.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    server: ServerConfig,
    certificate: CertificateDer<'static>,
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn no_tls(error: impl Display) -> Error {
    Error::NotReady { what: "TLS of QUIC".into(), seconds: 0.0, detail: format!(": {error}") }
}

fn transport(silence: Duration) -> Result<Arc<TransportConfig>> {
    let mut transport = TransportConfig::default();
    let silence = IdleTimeout::try_from(silence).map_err(no_tls)?;
    transport.max_idle_timeout(Some(silence)).enable_segmentation_offload(false);
    Ok(transport.into())
}

impl Identity {
    /// A certificate of its own for all servers of a lab.
    pub(crate) fn new() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(no_tls)?;
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key.into())
            .map_err(no_tls)?;
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        let tls = QuicServerConfig::try_from(tls).map_err(no_tls)?;
        let mut server = ServerConfig::with_crypto(Arc::new(tls));
        server.transport_config(transport(FORGOTTEN)?);
        Ok(Self { server, certificate })
    }

    /// For clients that give a connection up after so long a silence.
    pub(crate) fn client(&self, silence: Duration) -> Result<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(no_tls)?;
        let mut tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        let tls = QuicClientConfig::try_from(tls).map_err(no_tls)?;
        let mut client = ClientConfig::new(Arc::new(tls));
        client.transport_config(transport(silence)?);
        Ok(client)
    }
}

/// The agent's file, as far as a server needs it.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    service: Vec<Service>,
}

#[derive(Deserialize)]
struct Service {
    name: String,
    issue: u8,
    #[serde(default)]
    config: Vec<Config>,
}

#[derive(Deserialize)]
struct Config {
    config_id: u8,
    server_id: String,
    nonce_length: usize,
    encode_length: bool,
    key: Option<String>,
}

/// How ids are made.
#[derive(Clone, Debug)]
struct Issued {
    codec: QuicLb,
    server_id: Id,
}

impl Issued {
    /// By the agent's file; none while that says nothing of the service, or what this server cannot do.
    fn read(text: &str) -> Option<Self> {
        let file: File = toml::from_str(text).ok()?;
        let service = file.service.into_iter().find(|one| one.name == SERVICE)?;
        let config = service.config.into_iter().find(|one| one.config_id == service.issue)?;
        let server_id = Id::from_hex(&config.server_id)?;
        let key: Option<[u8; 16]> = match &config.key {
            Some(key) => Some(Id::from_hex(key)?.as_bytes().try_into().ok()?),
            None => None,
        };
        let (length, nonce) = (server_id.as_bytes().len(), config.nonce_length);
        let codec = QuicLb::new(service.issue, length, nonce, key).ok()?;
        let codec = if config.encode_length { codec } else { codec.without_length() };
        (codec.id_length() == ID_LENGTH).then_some(Self { codec, server_id })
    }

    fn id(&self, random: &[u8; ID_LENGTH]) -> Option<Id> {
        let nonce = &random[..self.codec.nonce_length()];
        self.codec.encode(self.server_id.as_bytes(), nonce, random[ID_LENGTH - 1]).ok()
    }
}

/// Inode and time of change of a file.
type Seen = (u64, i64, i64);

/// What the agent's file says just now. A new one takes the place of the old one, so its number tells them apart.
#[derive(Debug)]
struct Ids {
    file: PathBuf,
    last: Mutex<(Option<Seen>, Option<Issued>)>,
}

impl Ids {
    fn issued(&self) -> Option<Issued> {
        let seen = fs::metadata(&self.file).ok();
        let seen = seen.map(|file| (file.st_ino(), file.st_mtime(), file.st_mtime_nsec()));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != seen {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            *last = (seen, Issued::read(&text));
        }
        last.1.clone()
    }
}

/// Makes ids as the file says at that moment; of nobody, as long as that says nothing.
struct Generator(Arc<Ids>);

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random: [u8; ID_LENGTH] = rand::random();
        match self.0.issued().and_then(|issued| issued.id(&random)) {
            Some(id) => ConnectionId::new(id.as_bytes()),
            None => {
                random[0] |= UNCONFIGURED << 5;
                ConnectionId::new(&random)
            }
        }
    }

    fn cid_len(&self) -> usize {
        ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A running server; dropping it ends it as a crash would, without a word to its clients.
#[derive(Debug)]
pub(crate) struct QuicServer {
    /// Dropping it tells the thread to end.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<weir_testbed::Result<()>>>,
}

impl QuicServer {
    /// Starts the server; its socket is bound when this returns. `ids`: the file of its agent, which need not be there
    /// yet. Until it is no connection begins.
    pub(crate) fn start(
        netns: &NetNs,
        name: &str,
        identity: &Identity,
        ids: &Path,
    ) -> Result<Self> {
        let what = || format!("starting the QUIC server of {name}");
        // Bound to the VIP, so that answers come from the address that was asked.
        let socket = netns.enter(|| UdpSocket::bind((VIP4, QUIC_PORT)))?.doing(what)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.doing(what)?;
        let ids = Arc::new(Ids { file: ids.to_owned(), last: Mutex::default() });
        let (name, config) = (name.to_owned(), identity.server.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = netns.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(socket, config, &name, &ids) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for QuicServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

async fn serve(socket: UdpSocket, server: ServerConfig, name: &str, ids: &Arc<Ids>) {
    let mut config = EndpointConfig::default();
    let own = Arc::clone(ids);
    config.cid_generator(move || Box::new(Generator(Arc::clone(&own))));
    let endpoint = Endpoint::new(config, Some(server), socket, Arc::new(TokioRuntime));
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            tracing::error!("the QUIC server of {name}: {error}");
            return;
        }
    };
    while let Some(incoming) = endpoint.accept().await {
        // A connection without an id of this server would be lost as soon as it moves. Its client asks again.
        if ids.issued().is_none() {
            incoming.ignore();
            continue;
        }
        tokio::spawn(answer(incoming, format!("{name}:").into_bytes()));
    }
}

/// Answers `b<N>:` and what was asked, on every stream.
async fn answer(incoming: Incoming, prefix: Vec<u8>) {
    let Ok(connection) = incoming.await else { return };
    while let Ok((mut out, mut question)) = connection.accept_bi().await {
        let Ok(asked) = question.read_to_end(MOST).await else { continue };
        let answer = [&prefix[..], &asked].concat();
        if out.write_all(&answer).await.is_ok() {
            let _ = out.finish();
        }
    }
}

/// A client's connection. Dropping it closes it.
pub(crate) struct Peer {
    endpoint: Endpoint,
    connection: Connection,
}

fn lost(error: &ConnectionError) -> Failure {
    use ConnectionError::{ApplicationClosed, ConnectionClosed, LocallyClosed, Reset, TimedOut};
    match error {
        TimedOut => Failure::Timeout("packets of QUIC"),
        Reset => Failure::Reset,
        ConnectionClosed(_) | ApplicationClosed(_) | LocallyClosed => Failure::Eof,
        other => Failure::Garbled(other.to_string()),
    }
}

fn local(error: impl Display) -> Failure {
    Failure::Local(error.to_string())
}

impl Peer {
    /// Connects by this socket.
    pub(crate) async fn open(
        config: &ClientConfig,
        socket: UdpSocket,
        to: SocketAddr,
    ) -> Result<Self, Failure> {
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime);
        let endpoint = endpoint.map_err(local)?;
        let connecting = endpoint.connect_with(config.clone(), to, NAME).map_err(local)?;
        let connection = connecting.await.map_err(|error| lost(&error))?;
        Ok(Self { endpoint, connection })
    }

    /// Goes on by another socket, with another address and port.
    pub(crate) fn move_to(&self, socket: UdpSocket) -> Result<(), Failure> {
        self.endpoint.rebind(socket).map_err(local)
    }

    /// What the server answers.
    pub(crate) async fn ask(&self, question: &[u8]) -> Result<Vec<u8>, Failure> {
        let opened = self.connection.open_bi().await;
        let (mut out, mut answer) = opened.map_err(|error| lost(&error))?;
        out.write_all(question).await.map_err(|error| match error {
            WriteError::ConnectionLost(error) => lost(&error),
            other => Failure::Garbled(other.to_string()),
        })?;
        out.finish().map_err(|error| Failure::Garbled(error.to_string()))?;
        answer.read_to_end(MOST).await.map_err(|error| match error {
            ReadToEndError::Read(ReadError::ConnectionLost(error)) => lost(&error),
            other => Failure::Garbled(other.to_string()),
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0), b"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "[[service]]\nname = \"quic4\"\nbackend = \"b1\"\naddress = \"10.77.2.2\"\nissue = 2\n\n\
                        [[service.config]]\nconfig_id = 0\nserver_id = \"0a5b\"\nserver_id_length = 2\n\
                        nonce_length = 10\nencode_length = false\n\n\
                        [[service.config]]\nconfig_id = 2\nserver_id = \"0a5be7\"\nserver_id_length = 3\n\
                        nonce_length = 9\nencode_length = false\nkey = \"8f95f09245765f80256934e50c66207f\"\n";

    #[test]
    fn ids_are_made_as_the_agents_file_says_and_of_nobody_without_it() {
        let issued = Issued::read(SAID).expect("it names the service");
        let id = issued.id(&[7; ID_LENGTH]).expect("it has the lengths");
        assert_eq!(id.as_bytes().len(), ID_LENGTH);
        let server = issued.codec.decode(id.as_bytes()).expect("its own");
        assert_eq!(Some(server), Id::from_hex("0a5be7"));
        let others = [("quic4", "quic6"), ("issue = 2", "issue = 3"), ("= 9", "= 10")];
        for (one, other) in others {
            assert!(Issued::read(&SAID.replace(one, other)).is_none(), "{other}");
        }
        assert!(Issued::read("").is_none());
        let ids = Ids { file: "/none/such".into(), last: Mutex::default() };
        let made = Generator(Arc::new(ids)).generate_cid();
        assert_eq!((made.len(), made[0] >> 5), (ID_LENGTH, UNCONFIGURED));
    }
}
