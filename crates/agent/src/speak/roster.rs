//! With whom there is to be a session: those that were given, and those that balancers name as the others of their
//! fleet. Without sockets: what is said comes in as an argument.

use super::Balancer;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use weir_rpc::MOST_BALANCERS;
use weir_rpc::message::{Balancers, Peer};

/// Whom a session is open with.
#[derive(Debug)]
struct Speaker {
    /// What it has shown: a name alone can be said by anybody.
    certificate: Arc<[u8]>,
    /// What it said last; none: nothing of a fleet.
    list: Option<Balancers>,
}

impl Speaker {
    fn is(&self, name: &str) -> bool {
        self.list.as_ref().is_some_and(|list| list.own == name)
    }
}

/// Whose double somebody is, and by what that was seen.
#[derive(Debug)]
struct Double {
    of: Balancer,
    name: String,
    certificate: Arc<[u8]>,
}

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
    /// The sessions that are open.
    open: HashMap<Balancer, Speaker>,
    /// Those that could not be spoken to for a while: nobody is left out for them.
    away: HashSet<Balancer>,
    /// Those that are known to be the same balancer as another one: it has one session.
    doubles: HashMap<Balancer, Double>,
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

    /// A session is open with whoever has shown this certificate, and this was said in it; none: nothing of a fleet.
    pub fn says(&mut self, whom: &Balancer, certificate: &Arc<[u8]>, list: Option<Balancers>) {
        self.away.remove(whom);
        if let Some(list) = &list {
            self.learn(whom, certificate, list);
        }
        // It may lead to another balancer than before.
        let same = |double: &Double| {
            let named = list.as_ref().is_none_or(|list| list.own == double.name);
            named && double.certificate == *certificate
        };
        self.doubles.retain(|_, double| double.of != *whom || same(double));
        if let Some(Balancers { own, .. }) = list.as_ref().filter(|list| !list.own.is_empty()) {
            let given = self.given.contains(whom);
            if given {
                self.names.insert(whom.clone(), own.clone());
            }
            let same = self.open.iter().find(|(other, speaker)| {
                *other != whom && speaker.is(own) && speaker.certificate == *certificate
            });
            if let Some((other, _)) = same {
                // Who was given stays.
                let (one, of) = match given && !self.given.contains(other) {
                    true => (other.clone(), whom.clone()),
                    false => (whom.clone(), other.clone()),
                };
                let (name, certificate) = (own.clone(), Arc::clone(certificate));
                self.doubles.insert(one, Double { of, name, certificate });
            }
        }
        self.open.insert(whom.clone(), Speaker { certificate: Arc::clone(certificate), list });
        self.settle();
    }

    /// Where the others are, as one of them says.
    fn learn(&mut self, whom: &Balancer, certificate: &Arc<[u8]>, list: &Balancers) {
        for peer in &list.peers {
            let Some(at) = callable(peer) else { continue };
            // Each knows best where it is itself, and what it is called is not enough to be it.
            let own = peer.name == list.own;
            let knows = |(other, speaker): (&Balancer, &Speaker)| {
                let itself = own && speaker.certificate == *certificate;
                other != whom && speaker.is(&peer.name) && !itself
            };
            let room = self.learned.contains_key(&peer.name) || self.learned.len() < MOST_BALANCERS;
            if room && !self.open.iter().any(knows) {
                self.place(&peer.name, at);
            }
        }
    }

    fn place(&mut self, name: &str, at: Balancer) {
        if self.learned.get(name) != Some(&at) {
            // Who is there now may be another one than whose double it was.
            self.doubles.remove(&at);
            self.learned.insert(name.to_owned(), at);
        }
    }

    /// A session is over.
    pub fn lost(&mut self, whom: &Balancer) {
        let list = self.open.remove(whom).and_then(|speaker| speaker.list);
        if let Some(Balancers { own, .. }) = list
            && !self.open.values().any(|speaker| speaker.is(&own))
        {
            // What the others said of it counted for nothing until now.
            let lists = self.open.values().filter_map(|speaker| speaker.list.as_ref());
            let named = lists.flat_map(|list| &list.peers).filter(|peer| peer.name == own);
            let places: BTreeSet<Balancer> = named.filter_map(callable).collect();
            if let Some(now) = self.learned.get(&own)
                && !places.contains(now)
                && let Some(first) = places.into_iter().next()
            {
                self.place(&own, first);
            }
        }
        self.settle();
    }

    /// It could not be spoken to for a while. What else the same balancer is called by is tried.
    pub fn away(&mut self, whom: &Balancer) {
        self.away.insert(whom.clone());
        self.doubles.retain(|_, double| double.of != *whom);
        self.lost(whom);
    }

    /// Forgets whom nobody names any more. While nobody speaks of a fleet, all stay.
    fn settle(&mut self) {
        let lists: Vec<&Balancers> =
            self.open.values().filter_map(|speaker| speaker.list.as_ref()).collect();
        if lists.is_empty() {
            return;
        }
        let named =
            |name: &str| lists.iter().any(|list| list.peers.iter().any(|peer| peer.name == name));
        self.learned.retain(|name, _| named(name));
        let there: HashSet<&Balancer> = self.given.iter().chain(self.learned.values()).collect();
        self.doubles.retain(|one, double| there.contains(one) && there.contains(&double.of));
        self.away.retain(|one| there.contains(one));
    }

    /// With whom there is to be a session.
    pub fn wanted(&self) -> Vec<Balancer> {
        let mut wanted: Vec<Balancer> = Vec::new();
        let reached = || self.given.iter().filter(|one| !self.away.contains(*one));
        let known = |name: &String| reached().any(|one| self.names.get(one) == Some(name));
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

    /// Each has a certificate of its own, by its name.
    fn says(roster: &mut Roster, whom: &str, list: Option<Balancers>) {
        let name = list.as_ref().map_or("", |list| &list.own).to_owned();
        roster.says(&at(whom), &name.as_bytes().into(), list);
    }

    fn wanted(roster: &Roster) -> Vec<String> {
        roster.wanted().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_name_finds_all_and_follows_them() {
        let mut roster = Roster::new(&[at("lb.example")]);
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // It is itself among them, by another name, and is told once.
        says(&mut roster, "lb.example", list("a", &["a 10.0.0.1", "b 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        says(&mut roster, "10.0.0.2", list("b", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3:80"]));
        assert_eq!(wanted(&roster).len(), 3, "one of them knows of another one");
        // It goes when nobody names it any more.
        says(&mut roster, "10.0.0.2", list("b", &["a 10.0.0.1", "b 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        // One that the others have forgotten, and that names itself, is spoken to until it is silent.
        says(&mut roster, "lb.example", list("a", &["a 10.0.0.1"]));
        assert_eq!(wanted(&roster).len(), 2);
        roster.lost(&at("10.0.0.2"));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
    }

    #[test]
    fn who_is_away_is_called_on_and_on() {
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster).len(), 3);
        // A balancer that was started anew knows the names of those that are away, and not where they are.
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster).len(), 3);
        // While it has not heard of its fleet, or nobody speaks, nothing goes.
        says(&mut roster, "10.0.0.1", None);
        assert_eq!(wanted(&roster).len(), 3);
        roster.lost(&at("10.0.0.1"));
        assert_eq!(wanted(&roster).len(), 3);
        // Nor when one of no fleet says hello.
        says(&mut roster, "10.0.0.3", None);
        assert_eq!(wanted(&roster).len(), 3);
        // It has moved: whoever is first to hear of it says so, and what others say later counts no more.
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.4", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.4:4479", "10.0.0.3:4479"]);
        says(&mut roster, "10.0.0.4", list("b", &["a 10.0.0.1", "b 10.0.0.4", "c 10.0.0.3"]));
        says(&mut roster, "10.0.0.3", list("c", &["a 10.0.0.1", "b 10.0.0.2", "c 10.0.0.3"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.4:4479", "10.0.0.3:4479"]);
    }

    #[test]
    fn a_balancer_has_one_session_whatever_it_is_called_by() {
        // Given by a name, and known from before by its address.
        let mut roster = Roster::new(&[at("lb.example"), at("lb.example:4479")]);
        roster.remember([], [("a".to_owned(), at("10.0.0.1"))]);
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.1:4479"]);
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1"]));
        says(&mut roster, "lb.example", list("a", &["a 10.0.0.1"]));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        // The other way round the same.
        let mut roster = Roster::new(&[at("lb.example")]);
        roster.remember([], [("b".to_owned(), at("10.0.0.1"))]);
        says(&mut roster, "lb.example", list("a", &["a 10.0.0.1", "b 10.0.0.1"]));
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.1"]));
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
            says(&mut roster, &format!("10.9.0.{round}"), list(&format!("x{round}"), &names));
        }
        assert_eq!(roster.learned().len(), MOST_BALANCERS);
        assert_eq!(roster.wanted().len(), MOST_BALANCERS + 1);
    }

    #[test]
    fn a_name_that_leads_to_another_balancer_leaves_nobody_out() {
        let all = ["a 10.0.0.1", "b 10.0.0.2"];
        let mut roster = Roster::new(&[at("lb.example")]);
        says(&mut roster, "lb.example", list("a", &all));
        says(&mut roster, "10.0.0.2", list("b", &all));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        // The first one dies, and its name leads to the other one.
        roster.lost(&at("lb.example"));
        says(&mut roster, "lb.example", list("b", &all));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.1:4479"]);
        roster.lost(&at("10.0.0.2"));
        says(&mut roster, "10.0.0.1", list("a", &all));
        // And back again.
        roster.lost(&at("lb.example"));
        says(&mut roster, "lb.example", list("a", &all));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        // Another one comes to be where a double was.
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "x 10.0.0.2"]));
        says(&mut roster, "10.0.0.2", list("a", &["a 10.0.0.1", "x 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479"]);
        roster.lost(&at("10.0.0.2"));
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.2"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.2:4479"]);
    }

    #[test]
    fn who_is_not_reached_as_it_was_given_is_called_where_the_others_say() {
        let all = ["a 10.0.0.1", "b 10.0.0.2"];
        let mut roster = Roster::new(&[at("lb.example")]);
        // Also by what an agent before it was told.
        let before = [("a".to_owned(), at("10.0.0.1")), ("b".to_owned(), at("10.0.0.2"))];
        roster.remember([(at("lb.example"), "a".to_owned())], before);
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        let everyone = ["lb.example:4479", "10.0.0.1:4479", "10.0.0.2:4479"];
        roster.away(&at("lb.example"));
        assert_eq!(wanted(&roster), everyone);
        says(&mut roster, "10.0.0.2", list("b", &all));
        says(&mut roster, "10.0.0.1", list("a", &all));
        assert_eq!(wanted(&roster), everyone);
        // It is reached again, and has one session.
        says(&mut roster, "lb.example", list("a", &all));
        assert_eq!(wanted(&roster), ["lb.example:4479", "10.0.0.2:4479"]);
        // That is over for a moment, and then for longer.
        roster.lost(&at("10.0.0.1"));
        roster.lost(&at("lb.example"));
        assert_eq!(wanted(&roster).len(), 2);
        roster.away(&at("lb.example"));
        assert_eq!(wanted(&roster), everyone);
        // Of two names that were given, too.
        let mut roster = Roster::new(&[at("lb.example"), at("lb2.example")]);
        says(&mut roster, "lb.example", list("a", &["a"]));
        says(&mut roster, "lb2.example", list("a", &["a"]));
        assert_eq!(wanted(&roster), ["lb.example:4479"]);
        roster.lost(&at("lb2.example"));
        roster.away(&at("lb.example"));
        assert_eq!(wanted(&roster), ["lb.example:4479", "lb2.example:4479"]);
    }

    #[test]
    fn nobody_takes_anothers_session_by_its_name() {
        let all = ["a 10.0.0.1", "b 10.0.0.2", "m 10.0.0.3"];
        let everyone = ["10.0.0.1:4479", "10.0.0.2:4479", "10.0.0.3:4479"];
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        says(&mut roster, "10.0.0.1", list("a", &all));
        says(&mut roster, "10.0.0.2", list("b", &all));
        let lies = list("b", &["b 10.0.0.9", "m 10.0.0.3"]);
        roster.says(&at("10.0.0.3"), &b"m"[..].into(), lies);
        assert_eq!(wanted(&roster), everyone);
        assert!(roster.doubles.is_empty());
        // What others say of one that speaks counts when it is silent.
        let mut roster = Roster::new(&[at("10.0.0.1")]);
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.2"]));
        says(&mut roster, "10.0.0.2", list("b", &["a 10.0.0.1", "b 10.0.0.2"]));
        says(&mut roster, "10.0.0.1", list("a", &["a 10.0.0.1", "b 10.0.0.4"]));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.2:4479"]);
        roster.lost(&at("10.0.0.2"));
        assert_eq!(wanted(&roster), ["10.0.0.1:4479", "10.0.0.4:4479"]);
        // Those that do not say what they are called are not the same for that.
        let mut roster = Roster::new(&[at("10.0.0.1"), at("10.0.0.2")]);
        says(&mut roster, "10.0.0.1", list("", &[]));
        says(&mut roster, "10.0.0.2", list("", &[]));
        assert_eq!(wanted(&roster).len(), 2);
    }
}
