//! The balancers of a fleet, as agents are told of them: one that is told of one of them finds all (docs/agent.md).

use super::super::Engine;
use super::{Order, Over};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_fleet::Report;
use weir_plane::Plane;
use weir_rpc::MOST_BALANCERS;
use weir_rpc::message::{Balancers, Peer};
use weir_rpc::tls::Identity;

/// Host and port.
type Place = (String, u16);

/// Host and port in one text; an address of IPv6 stands in brackets.
pub(in crate::engine) fn place(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What [`place`] has written.
fn placed(text: &str) -> Option<Place> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host.to_owned(), port.parse().ok()?))
}

/// What others call a balancer by that listens there: where it listens, if its certificate names that.
pub(super) fn host(own: &Identity, listen: IpAddr) -> Option<String> {
    if own.addresses.contains(&listen.to_canonical()) {
        return Some(listen.to_canonical().to_string());
    }
    let address = own.addresses.first().map(ToString::to_string);
    address.or_else(|| own.hosts.iter().find(|host| !host.starts_with('*')).cloned())
}

/// Where agents call the others, as far as they have said it.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// The others by their names; none: one that is away, and was away whenever this process looked.
    known: BTreeMap<String, Option<Place>>,
    /// The store was heard: who is not known is not of the fleet.
    heard: bool,
    /// What agents were told last.
    told: Option<weir_rpc::Balancers>,
}

impl Peers {
    /// What is known of all now. What was known of those that are away stays, and of all while the store is away.
    fn learn(&mut self, own: &str, report: &Report) {
        if !report.reachable {
            return;
        }
        self.heard = true;
        let before = std::mem::take(&mut self.known);
        let names: BTreeSet<&String> =
            report.members.iter().chain(report.balancers.keys()).collect();
        for name in names.into_iter().filter(|name| *name != own) {
            let at = match report.balancers.get(name) {
                None => before.get(name).cloned().flatten(),
                // A version from before agents were told has said where its tables are, which is the same place.
                Some(sign) => {
                    let at = sign.agents.as_deref().or(sign.tables.as_deref());
                    // It listens for no agents.
                    let Some(at) = at.and_then(placed) else { continue };
                    Some(at)
                }
            };
            self.known.insert(name.clone(), at);
        }
    }

    /// All of them, this one first; nothing before the others are known.
    fn all(&self, own: &str, at: Place) -> Option<Balancers> {
        if !self.heard {
            return None;
        }
        let first = Peer { name: own.to_owned(), at: Some(at) };
        let others =
            self.known.iter().map(|(name, at)| Peer { name: name.clone(), at: at.clone() });
        let peers = std::iter::once(first).chain(others).take(MOST_BALANCERS).collect();
        Some(Balancers { own: own.to_owned(), peers })
    }
}

impl<P: Plane> Engine<P> {
    /// Where agents call this balancer, if it listens for any.
    pub(in crate::engine) fn called_at(&self) -> Option<Place> {
        let listen = self.config.agents.as_ref()?.listen;
        let own = self.own_host().map(str::to_owned);
        // A certificate that cannot be read now may be there soon.
        let host = own.or_else(|| (!listen.ip().is_unspecified()).then(|| listen.ip().to_string()));
        Some((host?, listen.port()))
    }

    /// The balancers of the fleet, for agents; none if this is of none, or has not heard of the others yet.
    pub(super) fn balancers(&mut self) -> Option<weir_rpc::Balancers> {
        let own = &self.config.balancer.name;
        let (fleet, peers) = (self.fleet.as_ref()?, &mut self.agents.peers);
        fleet.with_report(|report| peers.learn(own, report));
        let at = self.called_at()?;
        self.agents.peers.all(own, at).as_ref().map(weir_rpc::Balancers::from)
    }

    /// Tells all agents who the balancers are, if that is another list than the last one.
    pub(super) fn tell_balancers(&mut self) {
        let now = self.balancers();
        if now == self.agents.peers.told {
            return;
        }
        self.agents.peers.told.clone_from(&now);
        let Some(list) = now else { return };
        let speakers = self.agents.speakers.iter();
        let deaf = speakers.filter(|(_, one)| {
            one.newcomer.orders.try_send(Order::Balancers(list.clone())).is_err()
        });
        for session in deaf.map(|(session, _)| *session).collect::<Vec<u64>>() {
            self.agents.lose(session, Over::Deaf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_fleet::Sign;

    fn named(all: &Balancers) -> Vec<String> {
        let at = |at: &Place| place(&at.0, at.1);
        let one =
            |peer: &Peer| format!("{} {}", peer.name, peer.at.as_ref().map_or("?".into(), at));
        all.peers.iter().map(one).collect()
    }

    fn sign(agents: Option<&str>, tables: Option<&str>) -> Sign {
        let (agents, tables) = (agents.map(Into::into), tables.map(Into::into));
        Sign { agents, tables, ..Sign::default() }
    }

    #[test]
    fn agents_are_told_of_all_that_were_not_forgotten() {
        let mut peers = Peers::default();
        let own = ("10.0.0.1".to_owned(), 4479);
        let now = |peers: &mut Peers, report: &Report| {
            peers.learn("lb1", report);
            peers.all("lb1", own.clone()).map(|all| named(&all))
        };
        let mut report = Report::default();
        assert_eq!(now(&mut peers, &report), None, "the store was not heard");
        report.reachable = true;
        report.members = ["lb1", "lb2", "lb3", "lb4", "lb5"].map(String::from).into();
        report.balancers = [
            ("lb1", sign(Some("10.9.9.9:1"), None)),
            ("lb2", sign(Some("[2001:db8::2]:4479"), Some("10.0.0.2:4479"))),
            ("lb3", sign(None, Some("10.0.0.3:4479"))),
            // It listens for no agents.
            ("lb4", sign(None, None)),
        ]
        .map(|(name, sign)| (name.to_owned(), sign))
        .into();
        let all = ["lb1 10.0.0.1:4479", "lb2 [2001:db8::2]:4479", "lb3 10.0.0.3:4479", "lb5 ?"];
        let all = all.map(String::from).to_vec();
        assert_eq!(now(&mut peers, &report), Some(all.clone()));
        // One dies, and the store does.
        report.balancers.remove("lb2");
        assert_eq!(now(&mut peers, &report), Some(all.clone()));
        (report.reachable, report.balancers) = (false, BTreeMap::new());
        assert_eq!(now(&mut peers, &report), Some(all.clone()));
        // It is forgotten, and another one joins.
        report.reachable = true;
        report.members = ["lb1", "lb3", "lb6"].map(String::from).into();
        report.balancers.insert("lb6".into(), sign(Some("lb6.example:80"), None));
        let all = ["lb1 10.0.0.1:4479", "lb3 10.0.0.3:4479", "lb6 lb6.example:80"];
        assert_eq!(now(&mut peers, &report), Some(all.map(String::from).to_vec()));
        // More than there is room for.
        for n in 0..MOST_BALANCERS {
            report.balancers.insert(format!("x{n}"), sign(Some("10.0.0.1:1"), None));
        }
        let all = now(&mut peers, &report).expect("a list");
        assert_eq!((all.len(), &*all[0]), (MOST_BALANCERS, "lb1 10.0.0.1:4479"));
    }

    #[test]
    fn a_balancer_is_called_by_what_its_certificate_names() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let named = |addresses: &[&str], hosts: &[&str]| Identity {
            addresses: addresses.iter().map(|one| address(one)).collect(),
            hosts: hosts.iter().map(|&one| one.to_owned()).collect(),
            ..Identity::default()
        };
        let here = address("10.0.0.1");
        for (own, wanted) in [
            (named(&["10.0.0.9", "10.0.0.1"], &["lb"]), Some("10.0.0.1")),
            (named(&["10.0.0.9"], &["lb"]), Some("10.0.0.9")),
            (named(&[], &["*.example", "lb.example"]), Some("lb.example")),
            (named(&[], &["*.example"]), None),
        ] {
            assert_eq!(host(&own, here).as_deref(), wanted);
        }
        for (host, port) in [("10.0.0.1", 1), ("2001:db8::1", 4479), ("lb.example", 65_535)] {
            assert_eq!(placed(&place(host, port)), Some((host.to_owned(), port)));
        }
        assert_eq!(placed("lb"), None);
        assert_eq!(placed("lb:70000"), None);
    }
}
