//! Who asks, and what they may do.

use crate::config::{Client, Identity, Role};
use crate::history::Who;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::net::SocketAddr;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// By which way somebody came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The Unix socket.
    Socket,
    /// TLS, with a certificate.
    Tls,
    /// Plain HTTP, for the page.
    Web,
}

/// Whoever asks, as far as it is known for sure. What they may do is looked up for each request, as a
/// reload may change it.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub way: Way,
    /// What the audit log and the history call them.
    pub who: Who,
    /// Where they ask from; at the socket nowhere.
    pub from: Option<SocketAddr>,
    /// The names in their certificate.
    names: Vec<String>,
    /// The groups that they are in.
    groups: BTreeSet<String>,
}

impl Caller {
    /// The process at the other end of the socket, as the kernel tells it.
    pub fn at_socket(uid: Option<u32>, gid: Option<u32>, pid: Option<i32>) -> Self {
        let user = uid.and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
        let mut groups: Vec<Gid> = gid.map(Gid::from_raw).into_iter().collect();
        if let Some(user) = &user
            && let Ok(name) = CString::new(user.name.as_str())
        {
            groups.extend(getgrouplist(&name, user.gid).unwrap_or_default());
        }
        let name_of = |gid: &Gid| Group::from_gid(*gid).ok().flatten().map(|group| group.name);
        let name = match (user, uid) {
            (Some(user), _) => user.name,
            (None, Some(uid)) => format!("uid {uid}"),
            (None, None) => "somebody".into(),
        };
        Self {
            way: Way::Socket,
            who: Who { name, uid, pid },
            from: None,
            names: Vec::new(),
            groups: groups.iter().filter_map(name_of).collect(),
        }
    }

    /// Whoever has the key of a certificate, which was verified.
    pub fn with_certificate(certificate: &[u8], from: SocketAddr) -> Self {
        let names = names_of(certificate);
        let name = names.first().map_or("no name", String::as_str);
        let who = Who::nobody(&format!("certificate {name}"));
        Self { way: Way::Tls, who, from: Some(from), names, groups: BTreeSet::new() }
    }

    /// Somebody with a browser.
    pub fn anybody(from: SocketAddr) -> Self {
        let who = Who::nobody(&format!("the page, from {}", from.ip()));
        Self { way: Way::Web, who, from: Some(from), names: Vec::new(), groups: BTreeSet::new() }
    }

    /// What they may do; the most of what is said of them.
    pub fn role(&self, clients: &[Client], web: Option<Role>) -> Option<Role> {
        match self.way {
            Way::Web => return web,
            // Whoever runs the process, and root, may do all that it can do anyway.
            Way::Socket
                if self.who.uid.is_some_and(|uid| uid == 0 || uid == Uid::current().as_raw()) =>
            {
                return Some(Role::Admin);
            }
            Way::Socket | Way::Tls => {}
        }
        let fits = |client: &&Client| match (&client.who, self.way) {
            (Identity::Certificate(name), Way::Tls) => name == "*" || self.names.contains(name),
            (Identity::User(name), Way::Socket) => self.who.uid.is_some() && *name == self.who.name,
            (Identity::Group(name), Way::Socket) => self.groups.contains(name),
            _ => false,
        };
        clients.iter().filter(fits).map(|client| client.role).max()
    }
}

/// Common names and alternative names, the common name first.
fn names_of(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let common = certificate.subject().iter_common_name();
    let mut names: Vec<String> =
        common.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect();
    names.extend(alternatives(&certificate));
    names
}

fn alternatives(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn client(who: Identity, role: Role) -> Client {
        Client { who, role }
    }

    #[test]
    fn a_certificate_has_the_most_that_is_said_of_its_names() {
        let names = vec!["deploy.example".to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).expect("parameters");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let caller = Caller::with_certificate(certificate.der(), FROM);
        assert_eq!(caller.who.name, "certificate alice");
        let named = |name: &str| Identity::Certificate(name.into());
        let role = |clients: &[Client]| caller.role(clients, Some(Role::Admin));
        assert_eq!(role(&[]), None, "a certificate alone is nobody");
        assert_eq!(role(&[client(named("bob"), Role::Admin)]), None);
        assert_eq!(role(&[client(named("*"), Role::Read)]), Some(Role::Read));
        let both =
            [client(named("alice"), Role::Read), client(named("deploy.example"), Role::Operate)];
        assert_eq!(role(&both), Some(Role::Operate));
        // The same words about a user are about somebody else.
        assert_eq!(role(&[client(Identity::User("alice".into()), Role::Admin)]), None);
    }

    #[test]
    fn at_the_socket_it_is_the_user_that_counts() {
        let root = Caller::at_socket(Some(0), Some(0), Some(1));
        assert_eq!((root.who.name.as_str(), root.role(&[], None)), ("root", Some(Role::Admin)));
        let other = Caller::at_socket(Some(65_534), Some(65_534), Some(1));
        assert_eq!(other.role(&[], None), None);
        let user = client(Identity::User(other.who.name.clone()), Role::Operate);
        assert_eq!(other.role(&[user], None), Some(Role::Operate));
        let group = client(Identity::Group("nogroup".into()), Role::Read);
        assert_eq!(other.role(&[group], None), Some(Role::Read));
        let everybody = client(Identity::Certificate("*".into()), Role::Admin);
        assert_eq!(other.role(&[everybody], None), None);
        let unknown = Caller::at_socket(None, None, None);
        assert_eq!(
            unknown.role(&[client(Identity::User("somebody".into()), Role::Admin)], None),
            None
        );
    }

    #[test]
    fn the_page_has_its_own_role() {
        let caller = Caller::anybody(FROM);
        let all = [client(Identity::Certificate("*".into()), Role::Admin)];
        assert_eq!(caller.role(&all, None), None);
        assert_eq!(caller.role(&all, Some(Role::Read)), Some(Role::Read));
    }
}
