//! Every kind of check against servers that are well, wrong, slow and hostile.

use std::fs;
use std::future::Future;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;

use super::{Outcome, Passed, ask};
use crate::config::{Codes, Dns, Exchange, Grpc, Http, Record, Script, Tls, WeightIn, What};

/// For what must come, on a machine that is busy with other things as well.
const PATIENCE: Duration = Duration::from_secs(60);
/// For what does not come.
const SHORT: Duration = Duration::from_millis(700);

fn http() -> Http {
    Http {
        method: "GET".into(),
        path: "/healthz?deep=1".into(),
        host: None,
        headers: [("X-Check".to_owned(), "weir".to_owned())].into(),
        status: vec![Codes(200, 399)],
        body: None,
        answer_headers: [].into(),
        weight: None,
    }
}

/// A server that does the same with each connection.
async fn serve<F: Future<Output = ()> + Send + 'static>(
    each: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    address
}

/// Reads a request, up to the empty line.
async fn request(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(text).unwrap()
}

/// A server that answers every request alike, and closes.
async fn canned(answer: &'static str) -> SocketAddr {
    serve(move |mut stream| async move {
        request(&mut stream).await;
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    })
    .await
}

async fn said(address: SocketAddr, what: &What, limit: Duration) -> Outcome {
    ask(None, address, what, limit, (&[], None)).await
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed(Passed { said, .. }) => format!("+{said}"),
        other => other.to_string(),
    }
}

async fn expect(address: SocketAddr, what: What, words_of: &str) {
    let outcome = said(address, &what, PATIENCE).await;
    assert!(words(&outcome).contains(words_of), "{outcome:?}, not {words_of:?}: {what:?}");
}

#[tokio::test]
async fn a_page_is_asked_for_as_it_is_described() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let address = serve(move |mut stream| {
        let tell = tell.clone();
        async move {
            tell.send(request(&mut stream).await).unwrap();
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    expect(address, What::Http(http()), "+HTTP 204").await;
    let text = told.recv().await.unwrap();
    assert!(text.starts_with("GET /healthz?deep=1 HTTP/1.1\r\n"), "{text}");
    for line in ["x-check: weir", &format!("host: {address}"), "connection: close"] {
        assert!(text.lines().any(|one| one.eq_ignore_ascii_case(line)), "{line}: {text}");
    }
    let other = Http { method: "HEAD".into(), host: Some("a.example".into()), ..http() };
    expect(address, What::Http(other), "+HTTP 204").await;
    let text = told.recv().await.unwrap();
    assert!(text.starts_with("HEAD /healthz?deep=1 HTTP/1.1\r\n"), "{text}");
    assert!(text.to_lowercase().contains("\r\nhost: a.example\r\n"), "{text}");
}

#[tokio::test]
async fn an_answer_is_judged_by_status_headers_and_body() {
    let with = |change: &dyn Fn(&mut Http)| {
        let mut http = http();
        change(&mut http);
        What::Http(http)
    };
    let page = "HTTP/1.1 200 OK\r\nX-State: ready, primary\r\nContent-Length: 9\r\n\r\nall well\n";
    let page = canned(page).await;
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                  3\r\nall\r\n1\r\n \r\n3\r\nwel\r\n2\r\nl\n\r\n0\r\n\r\n";
    let chunks = canned(chunks).await;
    let until_closed = canned("HTTP/1.0 200 OK\r\n\r\nall well").await;
    for address in [page, chunks, until_closed] {
        expect(address, with(&|_| ()), "+HTTP 200").await;
        expect(address, with(&|http| http.body = Some("l wel".into())), "+HTTP 200").await;
        let body = with(&|http| http.body = Some("ill".into()));
        expect(address, body, "HTTP status 200, and the body is without what is expected").await;
    }
    let header = |name: &'static str, value: &'static str| {
        with(&move |http| drop(http.answer_headers.insert(name.into(), value.into())))
    };
    expect(page, header("x-state", "primary"), "+HTTP 200").await;
    expect(page, header("x-state", "standby"), "header x-state is without \"standby\"").await;
    expect(page, header("x-other", ""), "without the header x-other").await;
    let refused = canned("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
    expect(refused, with(&|_| ()), "HTTP status 503, not 200-399").await;
    let codes = vec![Codes(503, 503), Codes(204, 204)];
    expect(refused, with(&|http| http.status = codes.clone()), "+HTTP 503").await;
    let status = with(&|http| http.status = vec![Codes(200, 200), Codes(204, 299)]);
    expect(refused, status, "HTTP status 503, not 200, 204-299").await;
}

/// What a server sends is bounded in time and in memory, whatever it sends.
#[tokio::test]
async fn hostile_servers_fail_in_time() {
    let all = |http: &Http| What::Http(Http { body: Some("well".into()), ..http.clone() });
    let endless = |head: &'static str, part: &'static [u8], pause: Duration| {
        serve(move |mut stream| async move {
            request(&mut stream).await;
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(part).await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        })
    };
    let none = Duration::ZERO;
    let head = endless("HTTP/1.1 200 OK\r\n", b"X-Filler: ffffffffffffffffffffffffff\r\n", none);
    expect(head.await, all(&http()), "").await;
    let line = endless("HTTP/1.1 200 ", b"OOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOO", none).await;
    expect(line, all(&http()), "head is longer than 16 KiB").await;
    let body = endless("HTTP/1.1 200 OK\r\n\r\n", &[b'w'; 4096], none).await;
    expect(body, all(&http()), "first 64 KiB of the body are without what is expected").await;
    // Whoever asks for no body does not wait for the end of one that has none.
    expect(body, What::Http(http()), "+HTTP 200").await;
    // But one that does not go on hangs, whatever it has said before.
    let stalls = "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nwell";
    let stalls = endless(stalls, b".", Duration::from_millis(50)).await;
    for what in [What::Http(http()), all(&http())] {
        let outcome = said(stalls, &what, SHORT).await;
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }
    for (what, address) in [
        ("slow head", endless("", b"H", Duration::from_millis(50)).await),
        (
            "slow header",
            endless("HTTP/1.1 200 OK\r\n", b"X: y\r\n", Duration::from_millis(50)).await,
        ),
        ("slow body", endless("HTTP/1.1 200 OK\r\n\r\n", b".", Duration::from_millis(50)).await),
        ("continue", endless("", b"HTTP/1.1 100 Continue\r\n\r\n", none).await),
        (
            "silence",
            serve(|stream| async move {
                tokio::time::sleep(PATIENCE).await;
                drop(stream);
            })
            .await,
        ),
    ] {
        let begin = Instant::now();
        let outcome = said(address, &all(&http()), SHORT).await;
        assert!(matches!(outcome, Outcome::Failed(_)), "{what}: {outcome:?}");
        let took = begin.elapsed();
        assert!(took < PATIENCE / 2, "{what}: {took:?}");
        assert!(!words(&outcome).contains("head is longer"), "{what}: {outcome:?}");
    }
    let half = canned("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
    // Whether something is wanted of the body or not.
    for what in [all(&http()), What::Http(http())] {
        expect(half, what, "no whole HTTP answer: the connection was closed before its end").await;
    }
    let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n";
    expect(canned(chunk).await, What::Http(http()), "no whole HTTP answer").await;
    let nothing = canned("").await;
    expect(nothing, all(&http()), "closed before its end").await;
    let cut = canned("HTTP/1.1 200 OK\r\nX-Cu").await;
    expect(cut, all(&http()), "closed before its end").await;
    let garbage = canned("SSH-2.0-OpenSSH_9.2\r\n\r\n").await;
    expect(garbage, all(&http()), "no HTTP answer").await;
    let reset = serve(|stream| async move {
        stream.set_zero_linger().unwrap();
        drop(stream);
    });
    let outcome = said(reset.await, &all(&http()), PATIENCE).await;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
}

/// A weight is read, and of what is none the beginning is shown.
#[tokio::test]
async fn a_weight_that_is_none_is_shown() {
    for (said, shown) in [
        ("7", "+HTTP 200, weight 7,"),
        ("75%", "+HTTP 200, weight 75%,"),
        ("-1", "+HTTP 200, X-Weight is \"-1\", which is no weight,"),
        ("1001%", "+HTTP 200, X-Weight is \"1001%\", which is no weight,"),
        ("NaN%", "+HTTP 200, X-Weight is \"NaN%\", which is no weight,"),
        ("99999999999999999999", "+HTTP 200, X-Weight is \"99999999999999999999\", which is no"),
        (
            "1234567890123456789012345678901234567890",
            "+HTTP 200, X-Weight is \"12345678901234567890123456789012...\", which is no weight,",
        ),
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nX-Weight: {said}\r\nContent-Length: {}\r\n\r\n{said}",
            said.len()
        );
        let address = serve(move |mut stream| {
            let answer = answer.clone();
            async move {
                request(&mut stream).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        })
        .await;
        let weight = Some(WeightIn::Header("X-Weight".into()));
        expect(address, What::Http(Http { weight, ..http() }), shown).await;
        let weight = Some(WeightIn::Body(String::new()));
        let shown = shown.replace("X-Weight", "the weight in the body");
        expect(address, What::Http(Http { weight, ..http() }), &shown).await;
        let weight = Some(WeightIn::Header("X-Other".into()));
        let what = What::Http(Http { weight, ..http() });
        expect(address, what, "+HTTP 200, without a weight,").await;
    }
    let control = canned("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\u{1b}[2J").await;
    let weight = Some(WeightIn::Body(String::new()));
    let what = What::Http(Http { weight, ..http() });
    expect(control, what, "is \"\\u{1b}[2J\", which is no weight").await;
}

/// Certificates of a server, by an authority whose file is in the directory.
struct Authority {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut about = CertificateParams::new(Vec::new()).unwrap();
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = about.self_signed(&key).unwrap();
        fs::write(directory.path().join("ca.pem"), own.pem()).unwrap();
        Self { directory, issuer: Issuer::new(about, key) }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A server that answers by TLS, with a certificate that ends so many days from now.
    async fn serve(&self, name: &str, days: i64) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let mut about = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let now = time::OffsetDateTime::now_utc();
        about.not_before = now - time::Duration::days(400);
        about.not_after = now + time::Duration::days(days);
        let certificate = about.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        serve(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let name = stream.get_ref().1.server_name().unwrap_or("nobody").to_owned();
                request(&mut stream).await;
                let length = name.len();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        })
        .await
    }
}

fn https(ca: &Path, sni: Option<&str>, verify: bool, body: Option<&str>) -> What {
    What::Https {
        http: Http { body: body.map(str::to_owned), ..http() },
        tls: Tls {
            sni: sni.map(str::to_owned),
            verify,
            ca: ca.to_owned(),
            expiry_warning: Duration::from_secs(14 * 24 * 3600),
        },
    }
}

#[tokio::test]
async fn a_server_is_known_by_its_certificate() {
    let (ours, others) = (Authority::new(), Authority::new());
    let (ca, other) = (ours.file(), others.file());
    let good = ours.serve("www.example.org", 30).await;
    let name = Some("www.example.org");
    expect(good, https(&ca, name, true, Some("www.example.org")), "+HTTP 200").await;
    expect(good, https(&ca, Some("www.example.com"), true, None), "TLS: invalid peer cert").await;
    expect(good, https(&other, name, true, None), "TLS: invalid peer cert").await;
    expect(good, https(&ca, None, true, None), "TLS: invalid peer certificate").await;
    // Whoever is not to be looked at may be anybody, and is asked for by its name all the same.
    expect(good, https(&other, Some("else.example"), false, Some("else.example")), "+HTTP").await;
    let address = ours.serve("127.0.0.1", 30).await;
    expect(address, https(&ca, None, true, Some("nobody")), "+HTTP 200").await;
    let ended = ours.serve("www.example.org", -1).await;
    expect(
        ended,
        https(&ca, name, true, None),
        "TLS: invalid peer certificate: certificate expired",
    )
    .await;
    let now = time::OffsetDateTime::now_utc().unix_timestamp();
    for (server, days, verify) in [(good, 30, true), (ended, -1, false)] {
        let outcome = said(server, &https(&ca, name, verify, None), PATIENCE).await;
        let Outcome::Passed(Passed { certificate_ends: Some(ends), .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!((ends - now - days * 86_400).abs() < 3600, "{ends} {now} {days}");
    }
    // What this host lacks is not the server's doing.
    let missing = https(Path::new("/nowhere/ca.pem"), name, true, None);
    let outcome = said(good, &missing, PATIENCE).await;
    assert!(matches!(&outcome, Outcome::Unknown(why) if why.contains("/nowhere/ca.pem")));
    let empty = ours.directory.path().join("empty.pem");
    fs::write(&empty, "no certificate\n").unwrap();
    let outcome = said(good, &https(&empty, name, true, None), PATIENCE).await;
    assert!(matches!(&outcome, Outcome::Unknown(why) if why.contains("there is none in it")));
    // A file that changes is read again.
    fs::write(&empty, fs::read(&ca).unwrap()).unwrap();
    expect(good, https(&empty, name, true, None), "+HTTP 200").await;

    let plain = serve(|mut stream| async move {
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
        let _ = stream.read_u8().await;
    });
    expect(plain.await, https(&ca, name, true, None), "TLS").await;
    let closed = serve(|mut stream| async move {
        let _ = stream.read_u8().await;
        drop(stream);
    });
    let outcome = said(closed.await, &https(&ca, name, true, None), PATIENCE).await;
    assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    let silent = serve(|stream| async move {
        tokio::time::sleep(PATIENCE).await;
        drop(stream);
    });
    let outcome = said(silent.await, &https(&ca, name, true, None), SHORT).await;
    assert_eq!(words(&outcome), "connected, but not well within 700ms");
}

/// A server that answers each datagram with what `answers` makes of it.
async fn datagrams(
    answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
            for answer in answers(&bytes[..length]) {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    (address, task)
}

#[tokio::test]
async fn datagrams_are_answered_as_expected() {
    let (address, server) = datagrams(|asked| vec![[b"re: ", asked].concat()]).await;
    let exchange = |send: &str, expect: &[u8]| {
        What::Udp(Exchange { send: send.into(), expect: expect.into() })
    };
    expect(address, exchange("ping", b"re: ping"), "+answered").await;
    expect(address, exchange("ping", b"pong"), "an answer of 8 bytes without what is expec").await;
    server.abort();
    let _ = server.await;
    expect(address, exchange("ping", b"re: ping"), "connection refused").await;
    let (silent, _server) = datagrams(|_| Vec::new()).await;
    let outcome = said(silent, &exchange("ping", b"x"), SHORT).await;
    assert_eq!(words(&outcome), "no answer within 700ms");
}

#[tokio::test]
async fn a_dns_server_is_asked_for_a_record() {
    let what = What::Dns(Dns { query: "weir.example".into(), record: Record::A });
    let with = |code: u8, records: u8| {
        move |asked: &[u8]| {
            let mut answer = asked.to_vec();
            (answer[2], answer[3], answer[7]) = (0x84, code, records);
            vec![answer]
        }
    };
    let (good, _server) = datagrams(with(0, 1)).await;
    expect(good, what.clone(), "+DNS: 1 record").await;
    let (none, _server) = datagrams(with(3, 0)).await;
    expect(none, what.clone(), "DNS: NXDOMAIN").await;
    let (empty, _server) = datagrams(with(0, 0)).await;
    expect(empty, what.clone(), "DNS: no such record").await;
    // Answers to something else, garbage, and then the answer.
    let (noisy, _server) = datagrams(move |asked| {
        let mut other = with(3, 0)(asked).remove(0);
        other[0] ^= 1;
        vec![vec![], vec![7; 5], other, vec![0xff; 1500], with(0, 2)(asked).remove(0)]
    })
    .await;
    expect(noisy, what.clone(), "+DNS: 2 records").await;
    let (wrong, _server) = datagrams(|asked| vec![asked.to_vec()]).await;
    let outcome = said(wrong, &what, SHORT).await;
    assert_eq!(words(&outcome), "no answer within 700ms", "its own question is no answer");
}

#[tokio::test]
async fn a_grpc_server_is_asked_for_its_health() {
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic_health::ServingStatus;
    let (reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tonic::transport::Server::builder().add_service(service);
    let server = tokio::spawn(served.serve_with_incoming(TcpListenerStream::new(listener)));
    let asked = |service: &str| What::Grpc(Grpc { service: service.into(), host: None });
    expect(address, asked(""), "+gRPC SERVING").await;
    expect(address, asked("shop.v1.Carts"), "gRPC status NOT_FOUND: the server knows no service")
        .await;
    reporter.set_service_status("shop.v1.Carts", ServingStatus::NotServing).await;
    expect(address, asked("shop.v1.Carts"), "gRPC health NOT_SERVING, not SERVING").await;
    reporter.set_service_status("shop.v1.Carts", ServingStatus::Serving).await;
    expect(address, asked("shop.v1.Carts"), "+gRPC SERVING").await;
    server.abort();
    let _ = server.await;
    expect(address, asked(""), "connection refused").await;

    // A server of gRPC without that service, one of something else, and one that says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bare = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let server = tokio::spawn(bare.serve_with_incoming(TcpListenerStream::new(listener)));
    expect(address, asked(""), "gRPC status UNIMPLEMENTED: the server has no health service").await;
    server.abort();
    for said in ["HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-x\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, said.as_bytes()).await;
            }
        });
        expect(address, asked(""), "no HTTP/2 answer").await;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let outcome = said(listener.local_addr().unwrap(), &asked(""), SHORT).await;
    assert_eq!(words(&outcome), "connected, but not well within 700ms");
}

/// A script, executable for all.
fn script(directory: &Path, text: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let path = directory.join(format!("check{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    // Written by another process: while this one has it open for writing, a fork of another test may hold
    // it, and it cannot be run.
    let mut writer = std::process::Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    write!(writer.stdin.take().unwrap(), "#!/bin/sh\n{text}\n").unwrap();
    assert!(writer.wait().unwrap().success());
    path
}

#[tokio::test]
async fn scripts_are_bounded_and_run_as_nobody() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody must be able to read and write here.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let address: SocketAddr = "127.0.0.1:8080".parse().unwrap();
    let run = |text: &str, arguments: &[&str]| {
        let path = script(directory.path(), text).to_str().unwrap().to_owned();
        let command = [path].into_iter().chain(arguments.iter().map(|one| (*one).to_owned()));
        What::Script(Script { command: command.collect(), user: None })
    };
    expect(address, run("exit 0", &[]), "+the script succeeded").await;
    let told = "[ \"$1 $2\" = '127.0.0.1:8080 x' ] && [ $WEIR_ADDRESS:$WEIR_PORT = $1 ] && \
                [ \"$(id -un)\" = nobody ] && [ \"$(id -G)\" = \"$(id -g)\" ] && [ -z \"$HOME\" ] && \
                [ \"$PWD\" = / ] && [ ! -t 0 ]";
    expect(address, run(told, &["{address}:{port}", "x"]), "+the script succeeded").await;
    let fails = run("echo; echo '  replica is 40 s behind'; echo more >&2; exit 3", &[]);
    expect(address, fails, "the script ended with 3: replica is 40 s behind").await;
    let killed = run("kill -SEGV $$", &[]);
    expect(address, killed, "the script was killed by signal 11").await;
    let chatty = run("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", &[]);
    expect(address, chatty, "the script ended with 1: xxxx").await;
    let missing = Script { command: vec!["/nowhere/check".into()], user: None };
    expect(address, What::Script(missing), "unknown: /nowhere/check cannot be run").await;
    let nobody = Script { command: vec!["/bin/true".into()], user: Some("no-such-user".into()) };
    expect(address, What::Script(nobody), "there is no user no-such-user").await;
    let root = Script { command: vec!["/usr/bin/id".into()], user: Some("root".into()) };
    expect(address, What::Script(root), "+the script succeeded").await;

    // Whatever it started goes with it: after its time, and after its end.
    let list = directory.path().join("pids");
    let gone = |pid: &str| !Path::new("/proc").join(pid).exists();
    for (text, limit, words_of) in [
        ("sleep 1000 & echo $! $$ >LIST; sleep 1000", SHORT, "the script took longer than 700ms"),
        ("trap '' TERM; sleep 1000 & echo $! $$ >LIST; wait", SHORT, "took longer than 700ms"),
        ("sleep 1000 & echo $! $$ >LIST", PATIENCE, "+the script succeeded"),
        ("yes & echo $! $$ >LIST; exit 1", PATIENCE, "the script ended with 1"),
    ] {
        let _ = fs::remove_file(&list);
        let what = run(&text.replace("LIST", list.to_str().unwrap()), &[]);
        let outcome = said(address, &what, limit).await;
        assert!(words(&outcome).contains(words_of), "{text}: {outcome:?}");
        let end = Instant::now() + PATIENCE;
        // On a busy machine its time may be over before it has begun.
        let Ok(pids) = fs::read_to_string(&list) else { continue };
        while !pids.split_whitespace().all(gone) {
            assert!(Instant::now() < end, "{text}: {pids} are still there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
