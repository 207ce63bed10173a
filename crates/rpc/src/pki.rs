//! A small authority, for those who have none: a directory with its certificate and key, and with those that
//! it has signed (`weir pki`).

use crate::tls::{Identity, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::DnsName;
use serde::Serialize;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// What the authority's own files are called, without their ends.
pub const AUTHORITY: &str = "ca";
/// Days for which the authority holds, if nothing is said.
pub const AUTHORITY_DAYS: u32 = 3650;
/// Days for which what it signs holds, if nothing is said.
pub const DAYS: u32 = 365;
/// Clocks of hosts may differ by so much.
const BEFORE: Duration = Duration::hours(1);

/// Whom a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It serves, and agents call it.
    Balancer,
    /// It calls balancers, and speaks for backends.
    Agent,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file is there that would be written over.
    #[error("{}: it is there already, and stays as it is; use another directory or name, or remove it", .0.display())]
    There(PathBuf),
    /// The directory is no authority's.
    #[error("{}: there is no authority here; `weir pki init` makes one", .0.display())]
    NoAuthority(PathBuf),
    /// A name that cannot be one of a file and of a certificate.
    #[error("{0:?} is not a name; use 1 to 64 letters, digits and - _ . (and not \"ca\")")]
    Name(String),
    /// A certificate that would be of no use.
    #[error("{0}")]
    Useless(&'static str),
    /// A name that no host can have.
    #[error("{0:?} is no name of a host (letters, digits and - between dots; RFC 1123)")]
    Host(String),
    /// An address that no host can have.
    #[error(
        "{0} is not the address of one host; give one that it has, such as 10.0.0.21 or 2001:db8::21"
    )]
    Address(IpAddr),
    /// The key of an authority belongs to another certificate.
    #[error(
        "{}: it is not the key of {}, and what it signs nobody would take", key.display(), certificate.display()
    )]
    OtherKey {
        /// The key.
        key: PathBuf,
        /// The authority's certificate.
        certificate: PathBuf,
    },
    /// It would hold longer than who signs it.
    #[error(
        "the authority holds for {0} more days: give --days that many or fewer, or make a new one"
    )]
    TooLong(i64),
    /// A file cannot be written or read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file of the authority is not what it should be.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificate cannot be made.
    #[error("the certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
}

/// A certificate and its key, where they were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Issued {
    /// The file of the certificate, in PEM.
    pub certificate: PathBuf,
    /// The key, which its owner alone can read.
    pub key: PathBuf,
    /// When it ends, in seconds since 1970.
    pub ends: i64,
}

/// What is asked of an authority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Common name, and what the files are called.
    pub name: String,
    /// Whom it is for.
    pub role: Role,
    /// Of a balancer: where agents call it. Of an agent: the backends that it may speak for.
    pub addresses: Vec<IpAddr>,
    /// Names of a balancer's host by which agents call it.
    pub hosts: Vec<String>,
    /// For how long.
    pub days: u32,
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
}

/// Whether a host can have an address. One of the loopback interface is good where all is on one host.
fn is_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

/// For so many days from now on, and not longer than who signs it.
fn validity(params: &mut CertificateParams, days: u32, last: Option<i64>) -> Result<i64, PkiError> {
    let now = OffsetDateTime::now_utc();
    let wanted = now + Duration::days(days.into());
    let last = last.and_then(|last| OffsetDateTime::from_unix_timestamp(last).ok());
    if let Some(last) = last.filter(|last| wanted - *last > Duration::DAY) {
        return Err(PkiError::TooLong((last - now).whole_days().max(0)));
    }
    params.not_before = now - BEFORE;
    // An authority of as many days was made some time before.
    params.not_after = last.map_or(wanted, |last| last.min(wanted));
    Ok(params.not_after.unix_timestamp())
}

/// Makes an authority in a directory, which is made if it is not there.
///
/// # Errors
/// [`PkiError`]; nothing is written over.
pub fn init(directory: &Path, name: &str, days: u32) -> Result<Issued, PkiError> {
    make(directory)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = called(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ends = validity(&mut params, days, None)?;
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    write_both(directory, AUTHORITY, &certificate.pem(), &key.serialize_pem(), ends)
}

/// Makes a directory for keys, if it is not there.
fn make(directory: &Path) -> Result<(), PkiError> {
    let file = |source| PkiError::File { path: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(file)
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// Has the authority of a directory sign a certificate, which is written to another one, which is made if it is not
/// there.
///
/// # Errors
/// [`PkiError`]; nothing is written over.
pub fn issue(authority: &Path, to: &Path, request: &Request) -> Result<Issued, PkiError> {
    let Request { name, role, addresses, hosts, days } = request;
    if !is_name(name) || name == AUTHORITY {
        return Err(PkiError::Name(name.clone()));
    }
    match role {
        Role::Agent if addresses.is_empty() => {
            return Err(PkiError::Useless(
                "an agent speaks for the backends whose addresses its certificate names: give them \
                 with --address (where it is a balancer that calls a fleet's store, its own)",
            ));
        }
        Role::Agent if !hosts.is_empty() => {
            return Err(PkiError::Useless("an agent's certificate names addresses, no hosts"));
        }
        Role::Balancer if addresses.is_empty() && hosts.is_empty() => {
            return Err(PkiError::Useless(
                "agents call a balancer by an address or a name of its certificate: give one with \
                 --address or --host",
            ));
        }
        Role::Agent | Role::Balancer => {}
    }
    if let Some(bad) = hosts.iter().find(|host| DnsName::try_from(host.as_str()).is_err()) {
        return Err(PkiError::Host(bad.clone()));
    }
    if let Some(bad) = addresses.iter().find(|address| !is_host(**address)) {
        return Err(PkiError::Address(*bad));
    }
    let [ca, ca_key] = paths(authority, AUTHORITY);
    if !ca.exists() {
        return Err(PkiError::NoAuthority(authority.to_owned()));
    }
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|source| PkiError::File { path: path.to_owned(), source })
    };
    let mut params = CertificateParams::new(hosts.clone())?;
    let ends = validity(&mut params, *days, Some(Identity::of_file(&ca)?.ends))?;
    let signing = KeyPair::from_pem(&read(&ca_key)?)?;
    if Identity::key_of_file(&ca)? != signing.subject_public_key_info() {
        return Err(PkiError::OtherKey { key: ca_key, certificate: ca });
    }
    let issuer = Issuer::from_ca_cert_pem(&read(&ca)?, signing)?;
    params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
    params.distinguished_name = called(name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages = match role {
        // Balancers of a fleet call each other.
        Role::Balancer => {
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
        }
        Role::Agent => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    make(to)?;
    write_both(to, name, &certificate.pem(), &key.serialize_pem(), ends)
}

/// Where certificate and key stand.
fn paths(directory: &Path, name: &str) -> [PathBuf; 2] {
    ["pem", "key"].map(|end| directory.join(format!("{name}.{end}")))
}

fn write_both(
    directory: &Path,
    name: &str,
    certificate: &str,
    key: &str,
    ends: i64,
) -> Result<Issued, PkiError> {
    let [to, key_to] = paths(directory, name);
    for path in [&to, &key_to] {
        if path.symlink_metadata().is_ok() {
            return Err(PkiError::There(path.clone()));
        }
    }
    // The key first: a certificate without one would look as if it could be used.
    write(&key_to, key, 0o600)?;
    if let Err(error) = write(&to, certificate, 0o644) {
        let _ = fs::remove_file(&key_to);
        return Err(error);
    }
    Ok(Issued { certificate: to, key: key_to, ends })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => PkiError::There(path.to_owned()),
        _ => PkiError::File { path: path.to_owned(), source },
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|source| {
        let _ = fs::remove_file(path);
        failed(source)
    })
}

/// A file of a certificate, and whose that is.
pub type Listed = (PathBuf, Result<Identity, TlsError>);

/// The certificates of a directory, by the names of their files; one that cannot be read is none, and says why.
///
/// # Errors
/// [`PkiError`] if the directory cannot be read.
pub fn list(directory: &Path) -> Result<Vec<Listed>, PkiError> {
    let file = |source| PkiError::File { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(file)? {
        let path = entry.map_err(file)?.path();
        if path.extension().is_some_and(|end| end == "pem") {
            found.push((path.clone(), Identity::of_file(&path)));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// A certificate, for those who want to know whom it is for and when it ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Shown {
    /// Its file.
    pub file: PathBuf,
    /// What the holder is called.
    pub name: String,
    /// `authority`, `balancer`, `agent`, or `none` of these.
    pub role: &'static str,
    /// Addresses in it.
    pub addresses: Vec<IpAddr>,
    /// Names of hosts in it.
    pub hosts: Vec<String>,
    /// When it ends, in seconds since 1970.
    pub ends: i64,
    /// Whether it has ended.
    pub ended: bool,
}

/// The certificates of a directory, and why files that should be some are none. `now`: seconds since 1970.
///
/// # Errors
/// [`PkiError`] if the directory cannot be read.
pub fn shown(directory: &Path, now: i64) -> Result<(Vec<Shown>, Vec<TlsError>), PkiError> {
    let (mut shown, mut unread) = (Vec::new(), Vec::new());
    for (file, found) in list(directory)? {
        match found {
            Ok(identity) => shown.push(Shown {
                file,
                role: role(&identity),
                ended: identity.ends <= now,
                ends: identity.ends,
                name: identity.name,
                addresses: identity.addresses,
                hosts: identity.hosts,
            }),
            Err(error) => unread.push(error),
        }
    }
    Ok((shown, unread))
}

fn role(identity: &Identity) -> &'static str {
    match identity.usage {
        usage if usage.authority => "authority",
        usage if usage.server => "balancer",
        usage if usage.client => "agent",
        _ => "none",
    }
}
