//! Two tiers of balancers with real connections: stateless ones in front, of which any may get a packet, and
//! stateful ones behind, which join, drain and leave. No front has room to remember who went where.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Held, WEB4, WEB6, WEIR};
use serde_json::Value;
use weir_lab::demo::{self, DemoSpec};
use weir_lab::topology::Topology;
use weir_lab::view::Show;
use weir_lab::{AgentSpec, Balancer, BalancerSpec, Lab, LabSpec, PoolControl, Tiers};

/// Too few entries for the connections of a test: those that live on do so by their cookies.
const FORGETFUL: &str = "[limits]\ntracked_flows = 16";

fn lab() -> Arc<Lab> {
    let agent = Some(AgentSpec::new(WEIR));
    let topology = Topology::Tiers;
    common::lab_of(LabSpec { backends: 4, topology, agent, ..LabSpec::default() })
}

fn start(lab: &Arc<Lab>) -> Tiers {
    start_checked(lab, None)
}

fn start_checked(lab: &Arc<Lab>, member_port: Option<u16>) -> Tiers {
    let balancer_lines = FORGETFUL.into();
    let spec = BalancerSpec { balancer_lines, member_port, ..BalancerSpec::new(WEIR, 3) };
    Tiers::start(lab, &spec).expect("two tiers of weir run")
}

/// Whether both balancers in front have a stateful one up, or both have it down, in all services.
fn is_up(tiers: &Tiers, member: usize, up: bool) -> bool {
    let name = format!("b{member}");
    tiers.fronts().iter().all(|front| {
        let status = front.status().unwrap();
        let is = |service: &str| {
            let state = &common::backend(common::service(&status, service), &name)["state"];
            (state == "up") == up
        };
        common::SERVICES.into_iter().all(is)
    })
}

/// Connections in slots of a balancer's web services.
fn slots(balancer: &Balancer) -> u64 {
    let status = balancer.status().unwrap();
    let used =
        |name: &str| common::service(&status, name)["slots"]["used"].as_u64().expect("slots");
    used("web4") + used("web6")
}

/// Packets that a balancer has forwarded to the backends of its web services.
fn forwarded(balancer: &Balancer) -> u64 {
    let status: Value = balancer.status().unwrap();
    ["web4", "web6"].iter().map(|name| common::sum(common::service(&status, name), "packets")).sum()
}

/// The stateful balancer that each connection lives at: the one that forwards its packets.
fn homes(tiers: &Tiers, held: &mut [Held]) -> Vec<usize> {
    let all = || tiers.stateful().iter().map(forwarded).collect::<Vec<_>>();
    held.iter_mut()
        .map(|one| {
            // The last packets of the one before may still be on their way.
            let mut before = all();
            loop {
                thread::sleep(Duration::from_millis(20));
                let now = all();
                if now == before {
                    break;
                }
                before = now;
            }
            assert_eq!(one.trouble(), None);
            let after = all();
            let passed: Vec<usize> = (0..after.len()).filter(|n| after[*n] > before[*n]).collect();
            assert_eq!(passed.len(), 1, "{before:?} {after:?}: one balancer has the connection");
            passed[0]
        })
        .collect()
}

fn assert_unbroken(held: &mut [Held], when: &str) {
    let troubles = common::troubles(held);
    assert!(
        troubles.is_empty(),
        "{when}: {} of {} broken: {troubles:#?}",
        troubles.len(),
        held.len()
    );
}

/// Stateful balancers join, drain and leave; every client changes to the other front; backends come and drain;
/// all control planes die. Only the connections of the balancer that leaves are given up.
#[test]
fn members_of_the_second_tier_come_and_go() {
    let _alone = common::alone();
    let lab = lab();
    let tiers = start(&lab);
    common::reach_all(&lab, WEB4, 3);
    let mut held = common::hold_both(&lab, 96);
    assert_unbroken(&mut held, "at first");
    for one in &tiers.stateful()[..3] {
        assert!(slots(one) > 0, "each has its part");
    }
    assert_eq!(forwarded(&tiers.stateful()[3]), 0, "it is not in the pool");

    tiers.join(3).unwrap();
    assert_unbroken(&mut held, "when a balancer had joined");
    held.extend(common::hold_both(&lab, 48));
    common::eventually("the new one gets connections", || {
        held.extend(common::hold_both(&lab, 4));
        slots(&tiers.stateful()[3]) > 2
    });
    tiers.swap_routes(1).unwrap();
    assert_unbroken(&mut held, "by the other front");

    tiers.add(3, 1).unwrap();
    tiers.drain(0).unwrap();
    assert_unbroken(&mut held, "when backends had changed");
    tiers.set_draining(0, true).unwrap();
    assert_unbroken(&mut held, "while a balancer drains");
    let full = slots(&tiers.stateful()[0]);
    held.extend(common::hold_both(&lab, 32));
    assert_eq!(slots(&tiers.stateful()[0]), full, "no new connections while it drains");

    tiers.crash(Duration::from_millis(500)).unwrap();
    assert_unbroken(&mut held, "after the death of all control planes");
    tiers.swap_routes(0).unwrap();
    assert_unbroken(&mut held, "by the first front again");

    let at = homes(&tiers, &mut held);
    let gone = at.iter().filter(|home| **home == 0).count();
    assert!(gone > 4 && gone < held.len() / 2, "{gone} of {} connections", held.len());
    tiers.leave(0).unwrap();
    let (mut theirs, mut others): (Vec<_>, Vec<_>) =
        held.into_iter().zip(at).partition(|(_, home)| *home == 0);
    let mut others: Vec<Held> = others.drain(..).map(|(one, _)| one).collect();
    assert_unbroken(&mut others, "when a balancer had left");
    // By chance a packet without a slot comes to its backend all the same; all others are reset at once.
    let lost: Vec<String> = theirs.iter_mut().filter_map(|(one, _)| one.trouble()).collect();
    assert!(!lost.is_empty() && lost.iter().all(|why| why.contains("reset")), "{lost:#?}");
    common::reach_all(&lab, WEB6, 3);
}

/// Short connections to both web services, one after the other without a pause, none of which may fail.
#[derive(Default)]
struct Load {
    /// Rounds of them that are over, of either service.
    rounds: [AtomicUsize; 2],
    over: AtomicBool,
}

/// Ends the load, also where a test fails that would wait for it otherwise.
struct Ends<'a>(&'a Load);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Load {
    /// Does some work under it.
    fn beside(lab: &Lab, work: impl FnOnce(&Self)) {
        let load = Self::default();
        thread::scope(|scope| {
            let _ends = Ends(&load);
            for (to, rounds) in [WEB4, WEB6].into_iter().zip(&load.rounds) {
                let load = &load;
                scope.spawn(move || {
                    // Ports that were used a moment ago are not used again.
                    for part in (0..8).cycle() {
                        if load.over.load(Ordering::Relaxed) {
                            break;
                        }
                        common::shorts(lab, to, 40, part, rand::random());
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            work(&load);
        });
    }

    /// Waits until all connections that are open now have ended, and others are.
    fn pass(&self) {
        let now = || self.rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
        let before = now();
        common::eventually("the load goes on", || {
            now().iter().zip(before).all(|(now, before)| *now >= before + 2)
        });
    }
}

/// Members that drain are removed, one after another has joined, while connections come and go through both
/// fronts. None of these breaks, and none of those that other members hold; what the removed one still had is
/// reset.
#[test]
fn members_are_removed_under_load() {
    let _alone = common::alone();
    let lab = lab();
    let tiers = start(&lab);
    common::reach_all(&lab, WEB4, 3);
    let mut held = common::hold_both(&lab, 64);
    let at = homes(&tiers, &mut held);
    let mut of: [Vec<Held>; 4] = Default::default();
    held.into_iter().zip(at).for_each(|(one, home)| of[home].push(one));
    assert!(of[..3].iter().all(|one| one.len() > 2), "each has its part");
    Load::beside(&lab, |load| {
        load.pass();
        for (leaves, joins) in [(0, 3), (1, 0)] {
            tiers.join(joins).unwrap();
            tiers.set_draining(leaves, true).unwrap();
            // What it got until now has ended, but for what is held.
            load.pass();
            tiers.leave(leaves).unwrap();
            load.pass();
            let lost = common::troubles(&mut std::mem::take(&mut of[leaves]));
            assert!(!lost.is_empty() && lost.iter().all(|why| why.contains("reset")), "{lost:#?}");
            of.iter_mut().for_each(|one| assert_unbroken(one, "when a member was removed"));
        }
    });
}

/// The machine of a stateful balancer dies. The connections that it has are lost, and hear of it when it is
/// taken out of the fronts' pools; no other notices. Who comes new waits until the fronts' checks have noticed,
/// and goes to another. Then it is back.
#[test]
fn the_death_of_a_stateful_balancer_breaks_its_own_connections_only() {
    let _alone = common::alone();
    let lab = lab();
    let tiers = start_checked(&lab, Some(9469));
    common::eventually("the fronts see all members", || (0..3).all(|n| is_up(&tiers, n, true)));
    common::reach_all(&lab, WEB4, 3);
    let mut held = common::hold_both(&lab, 96);
    let at = homes(&tiers, &mut held);
    let gone = at.iter().filter(|home| **home == 0).count();
    assert!(gone > 4 && gone < held.len() / 2, "{gone} of {} connections", held.len());
    let (theirs, others): (Vec<_>, Vec<_>) =
        held.into_iter().zip(at).partition(|(_, home)| *home == 0);
    let mut theirs: Vec<Held> = theirs.into_iter().map(|(one, _)| one).collect();
    let mut others: Vec<Held> = others.into_iter().map(|(one, _)| one).collect();

    tiers.die(0).unwrap();
    assert_unbroken(&mut others, "when a balancer has died");
    // Their SYNs are sent again until the fronts know better.
    others.extend(common::hold_both(&lab, 48));
    common::eventually("the fronts see that it is dead", || is_up(&tiers, 0, false));
    let noticed = std::time::Instant::now();
    others.extend(common::hold_both(&lab, 48));
    println!("48 connections in {:?} when it was noticed", noticed.elapsed());
    tiers.swap_routes(1).unwrap();
    for alive in &tiers.stateful()[1..] {
        alive.add(3, 1).unwrap();
        alive.drain(1).unwrap();
    }
    assert_unbroken(&mut others, "while it is dead, by the other front");

    tiers.leave(0).unwrap();
    let lost = common::troubles(&mut theirs);
    assert!(!lost.is_empty() && lost.iter().all(|why| why.contains("reset")), "{lost:#?}");
    assert_unbroken(&mut others, "when it was taken out");

    tiers.revive(0).unwrap();
    tiers.stateful()[0].add(3, 1).unwrap();
    tiers.stateful()[0].drain(1).unwrap();
    tiers.join(0).unwrap();
    common::eventually("it is seen again", || is_up(&tiers, 0, true));
    let before = forwarded(&tiers.stateful()[0]);
    common::eventually("it gets new connections", || {
        others.extend(common::hold_both(&lab, 8));
        forwarded(&tiers.stateful()[0]) > before
    });
    assert_unbroken(&mut others, "when it is back");
}

/// Thousands of connections, while backends change, and the balancers of the second tier.
#[test]
fn churn_of_both_tiers_breaks_nothing() {
    let _alone = common::alone();
    let seed = common::seed();
    let mut spec = DemoSpec::new(WEIR, seed);
    spec.lab.topology = Topology::Tiers;
    spec.lab.agent = Some(AgentSpec::new(WEIR));
    spec.lab.backends = 8;
    spec.balancer.pool = 6;
    spec.balancer.method = "cheetah-stateful".into();
    spec.traffic.connections = 1_000;
    spec.traffic.mix.udp = 0.0;
    (spec.traffic.timeout, spec.traffic.detection) = (common::PATIENCE, Duration::from_secs(20));
    spec.goals.changes = 8;
    spec.show = Show::LinesOnError;
    let report = demo::run(spec).unwrap();
    println!("{}\n{}", report.table(), report.line());
    assert!(report.held(), "{:?}", report.fault());
}
