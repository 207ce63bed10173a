//! When certificates end, and what is said of those that end soon.

use crate::api::look_at_papers;
use crate::config::{Agents, Config};
use weir_fleet::StoreConfig;
use weir_rpc::tls::{self, now};

/// Certificates that end sooner are warned of.
const ENDS_SOON: i64 = 14 * 86_400;

/// When a certificate in DER ends, in seconds since 1970; none if it cannot be read.
pub(crate) fn ends(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// What there is to say of somebody's certificate that ends then; none if it holds for two weeks more.
pub(crate) fn warning(whose: &str, ends: i64) -> Option<String> {
    let left = ends.saturating_sub(now());
    if left <= 0 {
        return Some(format!("{whose} has ended"));
    }
    (left < ENDS_SOON).then(|| format!("{whose} ends in {}", lasting(left)))
}

/// Whether a certificate has ended that ends then, in seconds since 1970.
pub(crate) fn has_ended(ends: i64) -> bool {
    ends <= now()
}

/// What there is to say of the certificate by which a fleet's store knows this balancer.
pub(crate) fn warning_for_store(store: &StoreConfig) -> Option<String> {
    store.lapsed().or_else(|| {
        let (whose, own) = store.identity().ok().flatten()?;
        warning(&whose, own.ends)
    })
}

/// Why what `[agents]` names is of no use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Useless {
    /// The files cannot be used: whoever listens goes on with those that it has read before, if with any.
    Unread(String),
    /// The certificate is shown, and nobody takes it.
    Untaken(String),
}

impl Useless {
    /// The same in words.
    pub fn words(&self) -> &str {
        let (Self::Unread(why) | Self::Untaken(why)) = self;
        why
    }
}

/// What there is to say of the certificate that is shown to agents and other balancers, if it ends soon.
///
/// # Errors
/// [`Useless`], with the file.
pub(crate) fn look_for_agents(agents: &Agents) -> Result<Option<String>, Useless> {
    let files = agents.files();
    let unread = |error: tls::TlsError| Useless::Unread(error.to_string());
    files.server().map_err(unread)?;
    let own = files.identity().map_err(unread)?;
    let whose = format!("this balancer's certificate for agents ({})", files.certificate.display());
    if own.usage.client && !own.usage.server {
        let why = format!(
            "{whose} is an agent's, and agents take one for servers; `weir pki issue NAME --role balancer \
             --address ...` makes one"
        );
        return Err(Useless::Untaken(why));
    }
    if own.begins > now() {
        let why = format!("{whose} does not hold yet, by this host's clock: is that right?");
        return Err(Useless::Untaken(why));
    }
    match warning(&whose, own.ends) {
        Some(ended) if has_ended(own.ends) => Err(Useless::Untaken(ended)),
        soon => Ok(soon),
    }
}

/// What there is to say of certificates that a configuration names and that are of no use, where it comes into force.
pub(crate) fn of_no_use(config: &Config) -> Vec<String> {
    let api = config.api.tls.as_ref().and_then(|tls| look_at_papers(tls).err());
    let api = api.map(|why| format!("no API by TLS, and it is tried again: {why}"));
    let agents = config.agents.as_ref().and_then(|agents| look_for_agents(agents).err());
    let agents = agents.map(|useless| match useless {
        Useless::Unread(why) => format!(
            "agents: {why}; certificates that were read before stay in use, and it is tried again"
        ),
        Useless::Untaken(why) => format!("agents: {why}"),
    });
    api.into_iter().chain(agents).collect()
}

/// So many seconds in words.
fn lasting(seconds: i64) -> String {
    tls::lasting(seconds).unwrap_or_else(|| "two minutes at most".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};
    use weir_fleet::{FleetError, TlsFiles};
    use weir_rpc::pki::{Request, Role, init, issue};

    #[test]
    fn a_certificate_for_the_store_is_named_with_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("lb.pem");
        let certificate = Some(file.clone());
        let mut store = StoreConfig {
            endpoints: vec!["https://10.0.0.9:2379".into()],
            prefix: "/weir".into(),
            tls: TlsFiles { certificate, ..TlsFiles::default() },
            user: None,
            password_file: None,
            wait: Duration::from_secs(3),
            withdraw_after: None,
        };
        assert_eq!(warning_for_store(&store), None, "there is no such file");
        let key = rcgen::KeyPair::generate().expect("a key");
        let failed = |store: &StoreConfig| {
            FleetError::Unreachable("operation was canceled".into()).by(store).to_string()
        };
        for (begins, ends, words) in [
            (1999, 2001, Some("has ended")),
            (2999, 3001, Some("does not hold yet")),
            (1999, 3001, None),
        ] {
            let mut wanted = rcgen::CertificateParams::new(Vec::new()).expect("no names");
            wanted.not_before = rcgen::date_time_ymd(begins, 1, 1);
            wanted.not_after = rcgen::date_time_ymd(ends, 1, 1);
            let made = wanted.self_signed(&key).expect("a certificate");
            fs::write(&file, made.pem()).expect("written");
            let (said, failed) = (warning_for_store(&store), failed(&store));
            match words {
                Some(words) => {
                    let said = said.expect("there is something to say");
                    assert!(said.contains(words) && said.contains("lb.pem"), "{said}");
                    assert!(failed.contains("canceled; ") && failed.contains(words), "{failed}");
                }
                None => assert_eq!(said, None, "{failed}"),
            }
            assert_eq!(failed.contains("certificate"), words.is_some(), "{failed}");
        }
        let mut wanted = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        wanted.not_after = (SystemTime::now() + Duration::from_secs(86_400 + 1800)).into();
        let made = wanted.self_signed(&key).expect("a certificate");
        fs::write(&file, made.pem()).expect("written");
        let said = warning_for_store(&store).expect("it ends soon");
        assert!(said.ends_with("lb.pem) ends in 24 hours"), "{said}");
        assert!(!failed(&store).contains("certificate"), "it holds yet");
        // It is shown to nobody.
        store.endpoints = vec!["http://10.0.0.9:2379".into()];
        assert_eq!(warning_for_store(&store), None);
    }

    #[test]
    fn a_store_is_told_with_the_doubt_that_it_trusts_another_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = |name: &str| {
            let home = folder.path().join(name);
            let ca = init(&home, "fleet", 30).expect("an authority").certificate;
            let addresses = vec!["192.0.2.9".parse().expect("an address")];
            let (name, hosts) = ("lb1".into(), Vec::new());
            let request = Request { name, role: Role::Agent, addresses, hosts, days: 20 };
            (issue(&home, &home, &request).expect("a certificate"), ca)
        };
        let ((own, ca), (_, other)) = (made("own"), made("other"));
        for (ca, is_doubted) in [(ca, false), (other, true)] {
            let (certificate, key) = (Some(own.certificate.clone()), Some(own.key.clone()));
            let store = StoreConfig {
                endpoints: vec!["https://10.0.0.9:2379".into()],
                prefix: "/weir".into(),
                tls: TlsFiles { ca: Some(ca), certificate, key },
                user: None,
                password_file: None,
                wait: Duration::from_secs(3),
                withdraw_after: None,
            };
            let failed = FleetError::Unreachable("canceled".into()).by(&store).to_string();
            let words = "lb1.pem is not signed by an authority in ";
            assert_eq!(failed.contains(words), is_doubted, "{failed}");
        }
    }

    /// What is shown to agents is looked at by whoever brings it into force, and what is good is not spoken of.
    #[test]
    fn what_is_of_no_use_for_agents_is_named_with_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path();
        let ca = init(home, "lab", 60).expect("an authority").certificate;
        let made = |name: &str, role, days| {
            let addresses = vec!["192.0.2.9".parse().expect("an address")];
            let request = Request { name: name.into(), role, addresses, hosts: Vec::new(), days };
            issue(home, home, &request).expect("a certificate")
        };
        let (good, other) = (made("lb", Role::Balancer, 20), made("other", Role::Balancer, 20));
        let (soon, late) = (made("soon", Role::Balancer, 5), made("late", Role::Balancer, 0));
        let agents = made("b0", Role::Agent, 20);
        let gone = home.join("gone.pem");
        let text = |certificate: &Path, key: &Path| {
            format!(
                "[balancer]\ninterfaces = [\"eth0\"]\n[agents]\nlisten = \"192.0.2.9:4479\"\n\
                 certificate = {certificate:?}\nkey = {key:?}\nca = {ca:?}\n[[service]]\nname = \"web\"\n\
                 vip = \"10.0.0.1\"\nport = 80\n[[service.backend]]\nname = \"b1\"\naddress = \"10.9.0.2\"\n"
            )
        };
        for (certificate, key, words, no_use) in [
            (&good.certificate, &good.key, "", false),
            (&soon.certificate, &soon.key, "soon.pem) ends in ", false),
            (&late.certificate, &late.key, "late.pem) has ended", true),
            (&agents.certificate, &agents.key, "b0.pem) is an agent's", true),
            (&good.certificate, &other.key, "lb.pem and ", true),
            (&gone, &good.key, "gone.pem: ", true),
        ] {
            let config = Config::parse(&text(certificate, key), "weir.toml").expect("good");
            let looked = look_for_agents(config.agents.as_ref().expect("it is there"));
            let said = looked.as_ref().map_or_else(
                |useless| useless.words().to_owned(),
                |soon| soon.clone().unwrap_or_default(),
            );
            assert!(said.contains(words), "{words}: {said}");
            assert_eq!(said.is_empty(), words.is_empty(), "{said}");
            let told = of_no_use(&config);
            assert_eq!(told.len(), usize::from(no_use), "{told:?}");
            assert!(told.iter().all(|one| one.contains(&said)), "{told:?}: {said}");
        }
    }

    #[test]
    fn an_end_is_warned_of_two_weeks_before_and_afterwards() {
        let said = |days: i64| warning("it", now() + days * 86_400 + 3600);
        assert_eq!(said(14), None);
        assert_eq!(said(13).as_deref(), Some("it ends in 13 days"));
        assert_eq!(said(0).map(|said| said.ends_with(" minutes")), Some(true));
        for (seconds, words) in [
            (172_800, "2 days"),
            (172_799, "47 hours"),
            (86_400, "24 hours"),
            (7199, "119 minutes"),
            (119, "two minutes at most"),
        ] {
            assert_eq!(lasting(seconds), words);
        }
        assert_eq!(said(-1).as_deref(), Some("it has ended"));
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut wanted = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        wanted.not_after = rcgen::date_time_ymd(2001, 9, 9);
        let made = wanted.self_signed(&key).expect("a certificate");
        assert_eq!(ends(made.der()), Some(999_993_600));
        assert_eq!(ends(b"no certificate"), None);
    }
}
