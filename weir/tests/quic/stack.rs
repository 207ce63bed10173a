//! Servers and clients of quinn: servers that make ids by weir's file, and answer with their own
//! name; in QUIC alone, and as little of HTTP/3 (RFC 9114) as another stack's client needs.

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig,
    IdleTimeout, RecvStream, SendStream, ServerConfig, TokioRuntime, TransportConfig,
};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weir_lab::NetNs;
use weir_wire::quic::{Id, QuicLb};

pub const NAME: &str = "lab";
/// Of this test, and HTTP/3.
const OURS: &[u8] = b"weir";
const HTTP: &[u8] = b"h3";
/// Bytes of every id: a server has ids of one length.
pub const ID_LENGTH: usize = 13;
/// The number of ids whose server has no configuration.
const UNCONFIGURED: u8 = 7;
/// After so long a silence a connection is lost.
const SILENCE: Duration = Duration::from_secs(8);

/// Makes ids as the file says at that moment; of nobody, as long as it does not name the server.
struct Ids {
    file: PathBuf,
    address: IpAddr,
}

impl Ids {
    fn by_file(&self, random: [u8; ID_LENGTH]) -> Option<Id> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        let file: toml::Table = text.parse().ok()?;
        let issue = file["issue"].as_integer()?;
        let all = |name: &str| file.get(name).and_then(toml::Value::as_array);
        let config =
            all("config")?.iter().find(|one| one["config_id"].as_integer() == Some(issue))?;
        let number = |field: &str| config[field].as_integer().map(|number| number as usize);
        let key = config.get("key").and_then(toml::Value::as_str).and_then(Id::from_hex);
        let key = key.map(|key| key.as_bytes().try_into().expect("a key has 16 bytes"));
        let (server_id, nonce) = (number("server_id_length")?, number("nonce_length")?);
        let codec = QuicLb::new(issue as u8, server_id, nonce, key).expect("weir has checked it");
        let codec = if config["encode_length"].as_bool()? { codec } else { codec.without_length() };
        let address = self.address.to_string();
        let mut servers = all("server")?.iter();
        let server = servers.find(|one| one["address"].as_str() == Some(&address))?;
        let id = Id::from_hex(server["server_id"][issue.to_string()].as_str()?)?;
        Some(codec.encode(id.as_bytes(), &random[..nonce], random[ID_LENGTH - 1]).expect("lengths"))
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random: [u8; ID_LENGTH] = rand::random();
        match self.by_file(random) {
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

/// A certificate for all servers, and what trusts it.
pub struct Certificate {
    certificate: rustls::pki_types::CertificateDer<'static>,
    key: Vec<u8>,
}

impl Certificate {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        Self { certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() }
    }

    fn server(&self) -> ServerConfig {
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(self.key.clone());
        let chain = vec![self.certificate.clone()];
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain, key.into())
            .expect("its key");
        tls.alpn_protocols = vec![OURS.to_vec(), HTTP.to_vec()];
        let tls = QuicServerConfig::try_from(tls).expect("TLS 1.3");
        let mut config = ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(transport());
        config
    }

    fn client(&self) -> ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let mut tls = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![OURS.to_vec()];
        let tls = QuicClientConfig::try_from(tls).expect("TLS 1.3");
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(transport());
        config
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IdleTimeout::try_from(SILENCE).expect("it is short")));
    transport.keep_alive_interval(Some(SILENCE / 8));
    transport.enable_segmentation_offload(false);
    transport.into()
}

/// A socket of a namespace.
fn socket(netns: &NetNs, address: SocketAddr) -> io::Result<UdpSocket> {
    netns.enter(|| UdpSocket::bind(address)).expect("the lab's namespace")
}

/// Starts a server that is called `name` on a backend with this address, at the place `at`.
pub fn serve(
    certificate: &Certificate,
    netns: &NetNs,
    at: SocketAddr,
    (name, address): (String, IpAddr),
    file: &Path,
) -> Endpoint {
    let mut config = EndpointConfig::default();
    let file = file.to_owned();
    config.cid_generator(move || Box::new(Ids { file: file.clone(), address }));
    let socket = socket(netns, at).expect("a socket of the service");
    let endpoint =
        Endpoint::new(config, Some(certificate.server()), socket, Arc::new(TokioRuntime));
    let endpoint = endpoint.expect("an endpoint");
    let listening = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = listening.accept().await {
            let name = name.clone();
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else { return };
                let data = connection.handshake_data().and_then(|data| {
                    data.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?.protocol
                });
                if data.as_deref() == Some(HTTP) {
                    speak_http(&connection).await;
                } else {
                    answer_all(&connection, &name).await;
                }
            });
        }
    });
    endpoint
}

async fn answer_all(connection: &Connection, name: &str) {
    while let Ok((mut out, mut question)) = connection.accept_bi().await {
        let Ok(_) = question.read_to_end(64).await else { return };
        let _ = out.write_all(name.as_bytes()).await;
        let _ = out.finish();
    }
}

/// Bytes of an answer over HTTP/3, sent in so many parts with a pause between them: long enough for
/// the client to change its address in the middle.
pub const PARTS: usize = 40;
pub const PART: usize = 4096;
pub const PAUSE: Duration = Duration::from_millis(100);

/// One control stream with settings, and an answer for each request.
async fn speak_http(connection: &Connection) {
    let Ok(mut control) = connection.open_uni().await else { return };
    // Stream type 0, and an empty SETTINGS frame (sections 6.2.1 and 7.2.4).
    let _ = control.write_all(&[0, 4, 0]).await;
    while let Ok((out, question)) = connection.accept_bi().await {
        tokio::spawn(answer_http(out, question));
    }
}

async fn answer_http(mut out: SendStream, mut question: RecvStream) -> Option<()> {
    question.read_to_end(1 << 16).await.ok()?;
    // HEADERS with ":status: 200", entry 25 of the static table (RFC 9204 appendix A).
    out.write_all(&[1, 3, 0, 0, 0xc0 | 25]).await.ok()?;
    // DATA, its length as a varint of four bytes (RFC 9000 section 16).
    let length = (PARTS * PART) as u32 | 2 << 30;
    out.write_all(&[0]).await.ok()?;
    out.write_all(&length.to_be_bytes()).await.ok()?;
    for _ in 0..PARTS {
        out.write_all(&[b'x'; PART]).await.ok()?;
        tokio::time::sleep(PAUSE).await;
    }
    out.finish().ok()
}

/// A connection that moves from address to address.
pub struct Mover {
    netns: NetNs,
    endpoint: Endpoint,
    connection: Connection,
    /// Who answered first.
    pub server: String,
    pub asked: u64,
    pub moved: u64,
}

impl Mover {
    pub async fn open(
        certificate: &Certificate,
        netns: &NetNs,
        from: IpAddr,
        to: SocketAddr,
    ) -> Result<Self, String> {
        let socket = socket(netns, (from, 0).into()).map_err(|error| error.to_string())?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)
            .map_err(|error| error.to_string())?;
        let connecting = endpoint.connect_with(certificate.client(), to, NAME);
        let connection = connecting.expect("a name").await.map_err(|error| error.to_string())?;
        let netns = netns.clone();
        let mut mover =
            Self { netns, endpoint, connection, server: String::new(), asked: 0, moved: 0 };
        mover.server = mover.ask().await?;
        Ok(mover)
    }

    async fn ask(&mut self) -> Result<String, String> {
        let ask = async {
            let (mut out, mut answer) = self.connection.open_bi().await?;
            out.write_all(b"who?").await?;
            out.finish()?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer.read_to_end(64).await?)
        };
        let answered = tokio::time::timeout(SILENCE * 2, ask).await;
        let answer = answered.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
        self.asked += 1;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Goes on from another address, and another port.
    pub fn go_to(&mut self, from: IpAddr) {
        let socket = socket(&self.netns, (from, 0).into()).expect("the address is the client's");
        self.endpoint.rebind(socket).expect("another socket");
        self.moved += 1;
    }

    /// What is wrong, if something is.
    pub async fn check(&mut self) -> Result<(), String> {
        let name = self.ask().await?;
        if name != self.server {
            return Err(format!("moved from {} to {name}", self.server));
        }
        Ok(())
    }
}
