//! Certificates of `weir pki`, as rustls takes them.

use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use weir_rpc::pki::{self, PkiError, Request, Role};
use weir_rpc::tls::{Files, Identity, server_name};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const BACKEND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 21));

fn request(name: &str, role: Role, address: IpAddr) -> Request {
    let (name, addresses) = (name.to_owned(), vec![address]);
    Request { name, role, addresses, hosts: Vec::new(), days: 30 }
}

fn authority(directory: &Path) {
    pki::init(directory, "test", 100).unwrap();
    pki::issue(directory, directory, &request("lb", Role::Balancer, HERE)).unwrap();
    pki::issue(directory, directory, &request("b0", Role::Agent, BACKEND)).unwrap();
}

fn files(directory: &Path, name: &str, ca: &Path) -> Files {
    let at = |end: &str| directory.join(format!("{name}.{end}"));
    Files { certificate: at("pem"), key: at("key"), ca: ca.join("ca.pem") }
}

/// A session between two sides; whom the server has seen.
fn speak(server: &Files, client: &Files, name: &str) -> Result<Identity, String> {
    let (acceptor, connector) =
        (TlsAcceptor::from(server.server().unwrap()), TlsConnector::from(client.client().unwrap()));
    let name = server_name(name).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move {
        let (one, other) = tokio::io::duplex(1 << 16);
        let server = async {
            let mut stream = acceptor.accept(one).await.map_err(|error| error.to_string())?;
            stream.write_all(b"x").await.map_err(|error| error.to_string())?;
            let shown: &[CertificateDer<'_>] = stream.get_ref().1.peer_certificates().unwrap();
            Ok::<_, String>(Identity::of(&shown[0]).unwrap())
        };
        let client = async {
            let mut stream = connector.connect(name, other).await.map_err(|e| e.to_string())?;
            stream.read_u8().await.map_err(|error| error.to_string())
        };
        let (server, client) = tokio::join!(server, client);
        client?;
        server
    })
}

#[test]
fn both_sides_know_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    authority(own);
    let (lb, b0) = (files(own, "lb", own), files(own, "b0", own));
    let seen = speak(&lb, &b0, "10.0.0.9").unwrap();
    assert_eq!((seen.name.as_str(), seen.addresses), ("b0", vec![BACKEND]));
    assert!(seen.usage.client && !seen.usage.server && !seen.usage.authority);
    // Somebody else's address, whatever it leads to.
    assert!(speak(&lb, &b0, "10.0.0.10").is_err());
    // Roles cannot be exchanged: an agent is no balancer. A balancer that calls another one is known as such, and
    // refused where agents speak (`a_table_is_lent_to_balancers_alone` in crates/control/src/tables.rs).
    assert!(speak(&b0, &b0, "10.0.0.21").is_err());
    let seen = speak(&lb, &lb, "10.0.0.9").unwrap();
    assert!(seen.usage.client && seen.usage.server && !seen.usage.authority);
    // Of another authority that is called the same.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = elsewhere.path();
    authority(other);
    assert!(speak(&lb, &files(other, "b0", own), "10.0.0.9").is_err());
    assert!(speak(&lb, &files(own, "b0", other), "10.0.0.9").is_err());
    // Which each of them can tell before it speaks.
    assert_eq!([&lb, &b0].map(|own| own.foreign()), [None, None]);
    for (from, ca) in [(other, own), (own, other)] {
        let said = files(from, "b0", ca).foreign().expect("it is another's");
        let (certificate, ca) = (from.join("b0.pem"), ca.join("ca.pem"));
        let (certificate, ca) = (certificate.display(), ca.display());
        assert_eq!(said, format!("{certificate} is not signed by an authority in {ca}"));
    }
    // While an authority takes the place of another, there are two in one file.
    let both = elsewhere.path().join("both.pem");
    let texts = [own, other].map(|one| std::fs::read_to_string(one.join("ca.pem")).unwrap());
    std::fs::write(&both, texts.concat()).unwrap();
    assert_eq!(Files { ca: both, ..files(other, "b0", own) }.foreign(), None);
    // Ended, as one is that holds for no day.
    let ended = Request { days: 0, ..request("late", Role::Agent, BACKEND) };
    pki::issue(own, own, &ended).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let error = speak(&lb, &files(own, "late", own), "10.0.0.9").unwrap_err();
    assert!(error.to_lowercase().contains("expired"), "{error}");
}

#[test]
fn nothing_is_written_over_and_keys_are_their_owners() {
    let directory = tempfile::tempdir().unwrap();
    let own = &directory.path().join("pki");
    authority(own);
    let mode = |name: &str| own.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(own.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    for name in ["ca", "lb", "b0"] {
        assert_eq!(mode(&format!("{name}.key")), 0o600, "{name}");
    }
    let before = std::fs::read(own.join("ca.key")).unwrap();
    assert!(matches!(pki::init(own, "test", 10), Err(PkiError::There(_))));
    let again = pki::issue(own, own, &request("b0", Role::Agent, BACKEND));
    assert!(matches!(again, Err(PkiError::There(_))));
    // A key alone is in the way, too.
    std::fs::remove_file(own.join("b0.pem")).unwrap();
    let again = pki::issue(own, own, &request("b0", Role::Agent, BACKEND));
    assert!(matches!(again, Err(PkiError::There(_))));
    assert!(!own.join("b0.pem").exists());
    assert_eq!(std::fs::read(own.join("ca.key")).unwrap(), before);
}

#[test]
fn what_would_be_of_no_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    let none = pki::issue(own, own, &request("b0", Role::Agent, BACKEND));
    assert!(matches!(none, Err(PkiError::NoAuthority(_))));
    pki::init(own, "test", 10).unwrap();
    for name in ["", "ca", "../b0", "a/b", ".hidden", "with space"] {
        let refused = pki::issue(own, own, &request(name, Role::Agent, BACKEND));
        assert!(matches!(refused, Err(PkiError::Name(_))), "{name}");
    }
    for role in [Role::Agent, Role::Balancer] {
        let nameless = Request { addresses: Vec::new(), ..request("b0", role, BACKEND) };
        assert!(matches!(pki::issue(own, own, &nameless), Err(PkiError::Useless(_))));
    }
    for address in ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255"] {
        let addresses = vec![address.parse().unwrap()];
        let nobodys = Request { addresses, ..request("b0", Role::Balancer, BACKEND) };
        let refused = pki::issue(own, own, &nobodys);
        assert!(matches!(refused, Err(PkiError::Address(_))), "{address}");
    }
    let long = Request { days: 11, ..request("b0", Role::Agent, BACKEND) };
    let error = pki::issue(own, own, &long).unwrap_err().to_string();
    assert!(error.contains("more days"), "{error}");
    assert_eq!(pki::list(own).unwrap().len(), 1);
    // As many as the authority was made for, a moment ago: it ends with that.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let same = Request { days: 10, ..request("b0", Role::Agent, BACKEND) };
    let issued = pki::issue(own, own, &same).unwrap();
    assert_eq!(issued.ends, Identity::of_file(&own.join("ca.pem")).unwrap().ends);
}

#[test]
fn files_that_are_none_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    authority(own);
    let good = files(own, "b0", own);
    let empty = own.join("empty");
    std::fs::write(&empty, "").unwrap();
    let wrong = [
        Files { certificate: empty.clone(), ..good.clone() },
        Files { key: empty.clone(), ..good.clone() },
        Files { ca: empty.clone(), ..good.clone() },
    ];
    for files in wrong {
        let error = files.client().map(drop).unwrap_err().to_string();
        assert!(error.contains("empty"), "{error}");
    }
    let mixed = Files { key: own.join("lb.key"), ..good };
    let error = mixed.client().map(drop).unwrap_err().to_string();
    assert!(error.contains("lb.key") && error.contains("b0.pem"), "{error}");
}
