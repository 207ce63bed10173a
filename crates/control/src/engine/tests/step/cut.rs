//! Balancers that the store does not answer any more, in each stage of a step: whatever the others do meanwhile, no
//! flow that one balancer has let start is led elsewhere by another, for as long as the lease of the one that is cut
//! off lasts; and for ever where it is withdrawn then.

use super::*;
use weir_fleet::LEASE;

impl Fleet {
    pub(super) fn who_is_cut(&self) -> Option<usize> {
        (0..BALANCERS).find(|at| self.members[*at].apart)
    }

    /// The store does not answer a balancer any more. Its lease, and with it what it has said, stays.
    pub(super) fn cut_off(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.apart = true;
        member.report.send_modify(|report| {
            *report = std::mem::take(report).leading(None);
            report.reachable = false;
            report.error = Some("it does not answer".into());
            (report.leader, report.lease_until) = (None, Some(far()));
            (report.acks, report.balancers) = (BTreeMap::new(), BTreeMap::new());
        });
    }

    /// The lease of a balancer that is cut off has run out, as far as it can tell.
    fn is_over(&mut self, at: usize) {
        let now = tokio::time::Instant::now();
        self.members[at].report.send_modify(|report| report.lease_until = Some(now));
        let engine = self.engine(at);
        engine.look_at_fleet();
        // Which takes its time.
        engine.ahead += 10;
        engine.look_at_fleet();
    }

    /// The same, and so it is in the store.
    fn expire(&mut self, at: usize) {
        self.is_over(at);
        self.acks.remove(&name(at));
        self.signs.remove(&name(at));
        self.tell(&Item::Gone(name(at)));
        if self.leader == at {
            self.change_leader();
        }
    }

    /// The store answers a balancer again: it reads all anew, and says again what it has said.
    pub(super) fn rejoin(&mut self, at: usize) {
        if self.leader == at {
            // By another lease than before.
            self.term += 1;
            let term = self.term;
            self.tell(&Item::Lead { leader: at, term });
        }
        let (acks, signs) = (self.acks.clone(), self.signs.clone());
        let (change, step) = (self.document.change, self.step.clone());
        let member = &mut self.members[at];
        member.apart = false;
        member.report.send_modify(|report| {
            (report.reachable, report.error, report.change) = (true, None, change);
            report.lease_until = Some(far());
            (report.acks, report.balancers) = (acks, signs);
        });
        member.items.clear();
        member.items.push_back(Item::Lead { leader: self.leader, term: self.term });
        member.items.extend(step.map(|step| Item::Step(step, self.step_at)));
        let (document, document_at) = (Box::new(self.document.clone()), self.document_at);
        member.items.push_back(Item::Config(document, document_at));
        let (said, sign) = (member.said.clone(), member.sign.borrow_and_update().clone());
        if let Some(ack) = said {
            self.acks.insert(name(at), ack.clone());
            self.tell(&Item::Ack(name(at), ack));
        }
        self.signs.insert(name(at), sign.clone());
        self.tell(&Item::Sign(name(at), Box::new(sign)));
    }

    /// Everybody has everybody up.
    fn all_are_up(&self) -> bool {
        let pools = self.step.as_ref().map(|step| &step.pools);
        let down = pools.is_some_and(|pools| pools.values().flatten().any(|share| share.down));
        let up = |member: &Member| {
            let service = &member.engine.as_ref().expect("it runs").services["a"];
            service.pool.iter().all(|one| one.up) && service.dead_here.is_empty()
        };
        self.dead.is_empty() && !down && self.members.iter().all(up)
    }

    /// One is cut off, or is back; or its lease runs out, where it is withdrawn first.
    pub(super) fn change_cut(&mut self) {
        let Some(at) = self.who_is_cut() else {
            if self.all_are_up() {
                let at = self.rng.random_range(0..BALANCERS);
                self.cut_off(at);
            }
            return;
        };
        let late = self.engine(at).ahead < 60 && self.signs.contains_key(&name(at));
        if self.strict && late && self.rng.random_bool(0.5) {
            self.expire(at);
            assert!(self.engine(at).is_apart(), "it is withdrawn by now");
        } else {
            self.rejoin(at);
        }
    }

    /// All balancers and agents go on for a while, and clients come by all that are announced.
    fn go_on_with_clients(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.go_on(None);
            (0..200).for_each(|_| self.client());
        }
    }

    /// All go on, with clients, until a balancer that is cut off lets flows start, as its lease has run out.
    fn starts_alone(&mut self, at: usize) {
        let begun = Instant::now();
        while self.is_frozen(at) {
            assert!(begun.elapsed() < PATIENCE, "{}", self.stands());
            self.go_on_with_clients(Duration::from_millis(50));
        }
    }

    /// A step has come so far as the store has it, and this balancer has said so, and maybe more.
    fn reach(&mut self, at: usize, stage: Stage, all: bool) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "{}", self.stands());
            let step = self.step.clone().filter(|step| step.stage == stage);
            let said = |at: usize| {
                let ack = self.acks.get(&name(at)).zip(step.as_ref());
                ack.is_some_and(|(ack, step)| (ack.step, ack.stage) == (step.id(), stage))
            };
            if (0..BALANCERS).filter(|one| all || *one == at).all(said) {
                return;
            }
            (0..200).for_each(|_| self.client());
            self.go_on(None);
        }
    }

    fn changed(method: &'static str, strict: bool) -> Self {
        let seed = seeds()[0];
        println!("WEIR_SEED={seed}");
        let mut fleet = Fleet::new(seed, method, strict);
        fleet.rest();
        fleet.agree();
        fleet.go_on_with_clients(Duration::from_millis(50));
        fleet.pool.insert(2, 9);
        fleet.propose(0);
        fleet
    }

    fn comes_to_rest(&mut self) {
        self.rest();
        self.agree();
        (0..2_000).for_each(|_| self.client());
        assert!(self.replay().made > 0);
    }
}

/// Longer than the leader waits for whoever knows of *commit*.
const LONG: Duration = Duration::from_millis(3_600);

fn who_is_cut_off_leads_nobody_astray(method: &'static str) {
    let stages = [Stage::Prepare, Stage::Freeze, Stage::Collect, Stage::Commit];
    for (stage, strict) in stages
        .map(|stage| (stage, stage == Stage::Collect))
        .into_iter()
        .chain([(Stage::Collect, false)])
    {
        println!("{method}: {stage}, {strict}");
        let mut fleet = Fleet::changed(method, strict);
        let cut = (fleet.leader + 1) % BALANCERS;
        fleet.reach(cut, stage, false);
        let before = fleet.committed.len();
        fleet.cut_off(cut);
        fleet.go_on_with_clients(LONG);
        let word = stage >= Stage::Freeze;
        assert_eq!(fleet.is_frozen(cut), word, "{stage}: {}", fleet.stands());
        if stage < Stage::Commit {
            // Nor have the others gone on without it.
            assert_eq!(fleet.committed.len(), before, "{stage}: {}", fleet.stands());
        }
        fleet.expire(cut);
        assert_eq!(fleet.engine(cut).is_apart(), strict);
        let begun = Instant::now();
        while fleet.committed.len() == before {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            match strict {
                true => fleet.go_on_with_clients(Duration::from_millis(10)),
                // What its packets do now is what the page says.
                false => fleet.go_on(None),
            }
        }
        (0..20).for_each(|_| fleet.go_on(None));
        assert_eq!(fleet.is_frozen(cut), strict, "{stage}: {}", fleet.stands());
        // Whoever keeps its word for longer than its lease notes that.
        let lapses = |mark: &Mark| mark.did == Did::Lapses && mark.by == cut.to_string();
        assert_eq!(fleet.trace.iter().any(lapses), strict, "{stage}: {}", fleet.stands());
        if strict {
            fleet.go_on_with_clients(Duration::from_millis(200));
        }
        fleet.rejoin(cut);
        if strict {
            fleet.go_on_with_clients(Duration::from_millis(200));
        }
        fleet.comes_to_rest();
    }
}

#[test]
fn who_is_cut_off_in_a_step_keeps_its_word() {
    who_is_cut_off_leads_nobody_astray(RESIDUE);
}

#[test]
fn who_is_cut_off_in_a_step_keeps_its_word_where_all_follow_one_table() {
    who_is_cut_off_leads_nobody_astray(CONCURY);
}

/// The leader is cut off when all have said *collect*, and comes back: what has begun at it meanwhile, when its lease
/// had run out as far as it could tell, the others have not been told of. So it does not go on by what they have said.
#[test]
fn a_leader_that_comes_back_does_not_go_on_by_old_words() {
    for method in [CONCURY, RESIDUE] {
        for over in [false, true] {
            let mut fleet = Fleet::changed(method, false);
            let leader = fleet.leader;
            fleet.reach(leader, Stage::Collect, true);
            fleet.cut_off(leader);
            fleet.go_on_with_clients(Duration::from_millis(500));
            assert!(fleet.is_frozen(leader));
            if over {
                // A store that has stood still has all leases yet.
                fleet.is_over(leader);
                fleet.starts_alone(leader);
            }
            fleet.rejoin(leader);
            fleet.go_on_with_clients(Duration::from_millis(500));
            fleet.comes_to_rest();
        }
    }
}

/// The same of one that does not lead, and another one that comes to lead meanwhile, which finds all old words there.
#[test]
fn a_leader_that_comes_new_does_not_go_on_by_old_words() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = Fleet::changed(method, false);
        let (leader, cut) = (fleet.leader, (fleet.leader + 1) % BALANCERS);
        fleet.reach(leader, Stage::Collect, true);
        fleet.cut_off(leader);
        fleet.cut_off(cut);
        fleet.is_over(cut);
        fleet.starts_alone(cut);
        assert!(fleet.is_frozen(leader), "{}", fleet.stands());
        fleet.rejoin(leader);
        fleet.members[leader].report.send_modify(|report| {
            *report = std::mem::take(report).leading(None);
        });
        fleet.leader = (leader + 2) % BALANCERS;
        fleet.term += 1;
        let (leader, term) = (fleet.leader, fleet.term);
        fleet.tell(&Item::Lead { leader, term });
        fleet.go_on_with_clients(Duration::from_millis(500));
        fleet.rejoin(cut);
        fleet.go_on_with_clients(Duration::from_millis(500));
        fleet.comes_to_rest();
    }
}

/// A control plane that has given its word is killed, and the next one does not hear the store: the word stands.
#[test]
fn who_starts_again_without_the_store_keeps_the_word_of_the_one_before() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = Fleet::changed(method, false);
        let cut = (fleet.leader + 1) % BALANCERS;
        fleet.reach(cut, Stage::Collect, false);
        let born = Instant::now();
        fleet.restart(cut);
        fleet.cut_off(cut);
        let begun = Instant::now();
        while fleet.engine(cut).settles() || begun.elapsed() < Duration::from_secs(1) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on_with_clients(Duration::from_millis(50));
            // By then the lease of the one before has run out.
            let over = born.elapsed() >= LEASE;
            assert!(over || fleet.is_frozen(cut), "{}", fleet.stands());
        }
        fleet.rejoin(cut);
        fleet.comes_to_rest();
        assert!(!fleet.is_frozen(cut));
    }
}

/// The same, and the store answers the next one just long enough for it to hear of the step, and to keep flows from
/// starting for it once more. The others may go on by what the one before has said.
#[test]
fn who_starts_again_in_a_step_keeps_the_word_of_the_one_before() {
    for (method, strict) in [(CONCURY, false), (RESIDUE, true), (RESIDUE, false)] {
        let mut fleet = Fleet::changed(method, strict);
        let cut = (fleet.leader + 1) % BALANCERS;
        fleet.reach(cut, Stage::Collect, false);
        let born = Instant::now();
        fleet.restart(cut);
        let known = fleet.trace.len();
        let freezes = |mark: &Mark| mark.did == Did::Freezes && mark.by == cut.to_string();
        let begun = Instant::now();
        while !fleet.trace[known..].iter().any(freezes) {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            while !fleet.members[cut].items.is_empty() {
                fleet.hear(cut);
            }
            if fleet.engine(cut).settles() {
                (1..=BACKENDS).for_each(|n| (0..20).for_each(|_| fleet.agent(cut, n)));
            }
            fleet.turn(cut);
        }
        fleet.cut_off(cut);
        fleet.go_on_with_clients(Duration::from_secs(1));
        let over = !strict && born.elapsed() >= LEASE;
        assert!(over || fleet.is_frozen(cut), "{method} {strict}: {}", fleet.stands());
        fleet.rejoin(cut);
        fleet.comes_to_rest();
        assert!(!fleet.is_frozen(cut));
    }
}

/// It hears of the step that has another backend before the configuration that says what that is.
#[test]
fn who_comes_back_follows_a_table_when_it_knows_all_whom_that_leads_to() {
    for method in [CONCURY, RESIDUE] {
        let mut fleet = Fleet::changed(method, false);
        fleet.rest();
        let (leader, before) = (fleet.leader, fleet.committed.len());
        let cut = (leader + 1) % BALANCERS;
        fleet.cut_off(cut);
        let another = (1..=BACKENDS).find(|n| !fleet.pool.contains_key(n)).expect("one is left");
        fleet.pool.insert(another, 9);
        fleet.propose(leader);
        fleet.expire(cut);
        let begun = Instant::now();
        while fleet.committed.len() == before {
            assert!(begun.elapsed() < PATIENCE, "{}", fleet.stands());
            fleet.go_on(None);
        }
        fleet.rejoin(cut);
        fleet.comes_to_rest();
    }
}
