//! With whom there is to be a session: those that were given, and those that balancers name as the others of their
//! fleet. Without sockets: what is said comes in as an argument.

use super::Balancer;
use std::collections::{BTreeMap, HashMap};
use weir_rpc::MOST_BALANCERS;
use weir_rpc::message::{Balancers, Peer};

/// Who is told, and who has said so.
///
/// What a balancer says of others adds to what others say, and takes nothing from it: a balancer is left alone when
/// nobody that speaks names it any more, itself included. Who is given stays.
#[derive(Debug, Default)]
pub(super) struct Roster {
    given: Vec<Balancer>,
    /// What those that were given are called, as far as they have said it.
    names: HashMap<Balancer, String>,
    /// The others, by their names.
    learned: BTreeMap<String, Balancer>,
    /// The sessions that are open, and what was said last in each.
    open: HashMap<Balancer, Option<Balancers>>,
    /// Those that are known to be the same balancer as another one: it has one session.
    doubles: HashMap<Balancer, Balancer>,
}

/// Where somebody is that can be called.
fn callable(peer: &Peer) -> Option<Balancer> {
    let (host, port) = peer.at.clone()?;
    Some(Balancer { host, port })
}

impl Roster {
    /// With those that were given, and with what is left of an earlier time.
    pub fn new(given: &[Balancer]) -> Self {
        let mut different: Vec<Balancer> = Vec::new();
        for one in given {
            if !different.contains(one) {
                different.push(one.clone());
            }
        }
        Self { given: different, ..Self::default() }
    }

    /// What an agent before this one has been told.
    pub fn remember(
        &mut self,
        names: impl IntoIterator<Item = (Balancer, String)>,
        learned: impl IntoIterator<Item = (String, Balancer)>,
    ) {
        self.names.extend(names.into_iter().filter(|(one, _)| self.given.contains(one)));
        self.learned.extend(learned.into_iter().take(MOST_BALANCERS));
    }

    pub fn given(&self) -> impl Iterator<Item = (&Balancer, Option<&String>)> {
        self.given.iter().map(|one| (one, self.names.get(one)))
    }

    pub fn learned(&self) -> &BTreeMap<String, Balancer> {
        &self.learned
    }

    /// A session is open, and this was said in it; none: nothing of a fleet.
    pub fn says(&mut self, whom: &Balancer, list: Option<Balancers>) {
        let Some(list) = list else {
            self.open.insert(whom.clone(), None);
            return self.settle();
        };
        let given = self.given.contains(whom);
        if given {
            self.names.insert(whom.clone(), list.own.clone());
        }
        let same = self.open.iter().find(|(other, said)| {
            *other != whom && matches!(said, Some(said) if said.own == list.own)
        });
        if let Some((other, _)) = same {
            let other = other.clone();
            // Who was given stays.
            if given && !self.given.contains(&other) {
                self.doubles.insert(other, whom.clone());
            } else {
                self.doubles.insert(whom.clone(), other);
            }
        }
        for peer in &list.peers {
            let Some(at) = callable(peer) else { continue };
            // Each knows best where it is itself.
            let knows = |(other, said): (&Balancer, &Option<Balancers>)| {
                other != whom && matches!(said, Some(said) if said.own == peer.name)
            };
            let room = self.learned.contains_key(&peer.name) || self.learned.len() < MOST_BALANCERS;
            if room && !(peer.name != list.own && self.open.iter().any(knows)) {
                self.learned.insert(peer.name.clone(), at);
            }
        }
        self.open.insert(whom.clone(), Some(list));
        self.settle();
    }

    /// A session is over.
    pub fn lost(&mut self, whom: &Balancer) {
        self.open.remove(whom);
        self.settle();
    }

    /// Forgets whom nobody names any more. While nobody speaks of a fleet, all stay.
    fn settle(&mut self) {
        let lists: Vec<&Balancers> = self.open.values().flatten().collect();
        if lists.is_empty() {
            return;
        }
        let named =
            |name: &str| lists.iter().any(|list| list.peers.iter().any(|peer| peer.name == name));
        self.learned.retain(|name, _| named(name));
        let there: Vec<&Balancer> = self.given.iter().chain(self.learned.values()).collect();
        self.doubles.retain(|one, of| there.contains(&one) && there.contains(&&*of));
    }

    /// With whom there is to be a session.
    pub fn wanted(&self) -> Vec<Balancer> {
        let mut wanted: Vec<Balancer> = Vec::new();
        let known = |name: &String| self.given.iter().any(|one| self.names.get(one) == Some(name));
        let others = self.learned.iter().filter(|(name, _)| !known(name)).map(|(_, at)| at);
        for one in self.given.iter().chain(others) {
            if !wanted.contains(one) && !self.doubles.contains_key(one) {
                wanted.push(one.clone());
            }
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Balancer {
        text.parse().expect("a balancer")
    }

    /// What one of them says; an entry is a name, or a name and where it is.
    fn list(own: &str, all: &[&str]) -> Option<Balancers> {
        let peers = all.iter().map(|one| match one.split_once(' ') {
            None => Peer { name: (*one).into(), at: None },
            Some((name, place)) => {
                let Balancer { host, port } = at(place);
                Peer { name: name.into(), at: Some((host, port)) }
            }
        });
        Some(Balancers { own: own.into(), peers: peers.collect() })
    }

    fn wanted(roster: &Roster) -> Vec<String> {
        roster.wanted().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_name_finds_all_and_follows_them() {
        let mut roster = Roster::new(&[at("lb.example")]);
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // It is itself among them, by another name, and is told once.
        roster.says(&at("lb.example"), list("a", &["a 10.0.0.1", "b 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        roster.says(&at("10.0.0.2"), list("b", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3:80"]));
        assert_eq!(wanted(&roster).len(), 3, "one of them knows of another one");
        // It goes when nobody names it any more.
        roster.says(&at("10.0.0.2"), list("b", &["a 10.0.0.1", "b 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        // One that the others have forgotten, and that names itself, is spoken to until it is silent.
        roster.says(&at("lb.example"), list("a", &["a 10.0.0.1"]));
        assert_eq!(wanted(&roster).len(), 2);
        roster.lost(&at("10.0.0.2"));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
    }

    #[test]
    fn who_is_away_is_called_on_and_on() {
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        roster.says(&at("10.0.0.1"), list("a", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster).len(), 3);
        // A balancer that was started anew knows the names of those that are away, and not where they are.
        roster.says(&at("10.0.0.1"), list("a", &["a 10.0.0.1", "b", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster).len(), 3);
        // While it has not heard of its fleet, or nobody speaks, nothing goes.
        roster.says(&at("10.0.0.1"), None);
        assert_eq!(wanted(&roster).len(), 3);
        roster.lost(&at("10.0.0.1"));
        assert_eq!(wanted(&roster).len(), 3);
        // Nor when one of no fleet says hello.
        roster.says(&at("10.0.0.3"), None);
        assert_eq!(wanted(&roster).len(), 3);
        // It has moved: whoever is first to hear of it says so, and what others say later counts no more.
        roster.says(&at("10.0.0.1"), list("a", &["a 10.0.0.1", "b 10.0.0.4", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.4:4479", "10.0.0.3:4479"]);
        roster.says(&at("10.0.0.4"), list("b", &["a 10.0.0.1", "b 10.0.0.4", "c 10.0.0.3"]));
        roster.says(&at("10.0.0.3"), list("c", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.4:4479", "10.0.0.3:4479"]);
    }

    #[test]
    fn a_balancer_has_one_session_whatever_it_is_called_by() {
        // Given by a name, and known from before by its address.
        let mut roster = Roster::new(&[at("lb.example"), at("lb.example:4479")]);
        roster.remember([], [("a".to_owned(), at("10.0.0.1"))]);
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.1:4479"]);
        roster.says(&at("10.0.0.1"), list("a", &["a 10.0.0.1"]));
        roster.says(&at("lb.example"), list("a", &["a 10.0.0.1"]));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // The other way round the same.
        let mut roster = Roster::new(&[at("lb.example")]);
        roster.remember([], [("b".to_owned(), at("10.0.0.1"))]);
        roster.says(&at("lb.example"), list("a", &["a 10.0.0.1", "b 10.0.0.1"]));
        roster.says(&at("10.0.0.1"), list("a", &["a 10.0.0.1", "b 10.0.0.1"]));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // It does not begin again when that one is lost for a moment.
        roster.lost(&at("10.0.0.1"));
        roster.lost(&at("lb.example"));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // Who is remembered by its name is not called by its address at all.
        let mut roster = Roster::new(&[at("lb.example")]);
        roster.remember(
            [(at("lb.example"), "a".to_owned()), (at("other.example"), "b".to_owned())],
            [("a".to_owned(), at("10.0.0.1")), ("b".to_owned(), at("10.0.0.2"))],
        );
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
    }

    #[test]
    fn nobody_makes_it_call_the_whole_world() {
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        for round in 0..4 {
            let names: Vec<String> = (0..MOST_BALANCERS)
                .map(|n| format!("x{round}-{n} 10.{round}.0.1:{}", n + 1))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            roster.says(&at(&format!("10.9.0.{round}")), list(&format!("x{round}"), &names));
        }
        assert_eq!(roster.learned().len(), MOST_BALANCERS);
        assert_eq!(roster.wanted().len(), MOST_BALANCERS + 1);
    }
}
