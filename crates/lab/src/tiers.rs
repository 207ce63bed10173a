//! Two tiers of balancers: stateless ones, which clients' routes lead to, in front of stateful ones. Both run
//! `weir run` as an operator would, with the method `cheetah` in front and `cheetah-stateful` behind.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::balancer::{self, Balancer, BalancerSpec, Node, PoolControl};
use crate::error::{Error, Result};
use crate::lab::Lab;
use crate::topology::{FRONTS, Role, STATEFUL, Topology};
use weir_testbed::interrupt::sleep;

/// What services of both tiers have. The bits tell more stateful balancers apart than a lab has.
const TIER: &str = "answers = \"backend\"\ntier_bits = 5\n";
/// From one change of the stateful balancers to the next.
const MEMBER_GAP: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(50);

/// The balancers of a lab of the topology `tiers`. Changes of the pool are made to all stateful ones.
#[derive(Debug)]
pub struct Tiers {
    lab: Arc<Lab>,
    fronts: Vec<Balancer>,
    stateful: Vec<Balancer>,
    /// Those that are in the pool of the fronts.
    members: Mutex<BTreeSet<usize>>,
    /// Held by what commands the control planes, and by what kills them.
    commanding: Mutex<()>,
}

impl Tiers {
    /// Starts all balancers by this example, whose method is replaced and whose lines for services are those
    /// of the stateful ones, and waits until a client reaches the service. All but one of the stateful balancers are in the pool of the
    /// fronts.
    ///
    /// # Errors
    /// [`Error::BadSpec`] in another topology, and as [`Balancer::start`].
    pub fn start(lab: &Arc<Lab>, example: &BalancerSpec) -> Result<Self> {
        if lab.spec().topology != Topology::Tiers {
            let wrong = "two tiers of balancers need the topology tiers".to_owned();
            return Err(Error::BadSpec(wrong));
        }
        let key = format!("{:032x}", rand::random::<u128>());
        let spec = |node, method: &str, pool| BalancerSpec {
            node,
            method: method.into(),
            service_lines: match node {
                Node::Stateful(_) => format!("{TIER}{}", example.service_lines),
                _ => format!("{TIER}cookie_key = \"{key}\"\n"),
            },
            balancer_lines: match (node, example.member_port) {
                (Node::Stateful(_), Some(port)) => {
                    format!("metrics = \"[::]:{port}\"\n{}", example.balancer_lines)
                }
                _ => example.balancer_lines.clone(),
            },
            pool,
            ..example.clone()
        };
        let stateful = (0..STATEFUL).map(|index| {
            let node = Node::Stateful(index);
            Balancer::start_alone(lab, spec(node, "cheetah-stateful", example.pool))
        });
        let stateful = stateful.collect::<Result<Vec<_>>>()?;
        let fronts = (0..FRONTS).map(|index| {
            Balancer::start_alone(lab, spec(Node::Front(index), "cheetah", STATEFUL - 1))
        });
        let fronts = fronts.collect::<Result<Vec<_>>>()?;
        let members = Mutex::new((0..STATEFUL - 1).collect());
        let commanding = Mutex::default();
        let tiers = Self { lab: Arc::clone(lab), fronts, stateful, members, commanding };
        lab.await_service(example.patience)?;
        Ok(tiers)
    }

    /// The balancers in front, in order.
    pub fn fronts(&self) -> &[Balancer] {
        &self.fronts
    }

    /// The stateful balancers, in order; the last one is not in the pool of the fronts at first.
    pub fn stateful(&self) -> &[Balancer] {
        &self.stateful
    }

    /// Adds a stateful balancer to the pool of the fronts, with the backends that the others have.
    pub fn join(&self, member: usize) -> Result<()> {
        self.fronts.iter().try_for_each(|front| front.add(member, 1))?;
        self.members.lock().unwrap_or_else(PoisonError::into_inner).insert(member);
        Ok(())
    }

    /// Removes one from the pool of the fronts; its connections are given up.
    pub fn leave(&self, member: usize) -> Result<()> {
        self.fronts.iter().try_for_each(|front| front.remove(member))?;
        self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(&member);
        Ok(())
    }

    /// A stateful balancer dies as a machine does whose power fails: its control plane is killed, and no
    /// packet comes to it or from it any more.
    pub fn die(&self, member: usize) -> Result<()> {
        self.stateful[member].kill();
        self.set_port(member, "down")
    }

    /// One that died is back. The fronts have it in their pools if nobody has taken it out.
    pub fn revive(&self, member: usize) -> Result<()> {
        self.set_port(member, "up")?;
        self.stateful[member].launch()
    }

    fn set_port(&self, member: usize, state: &str) -> Result<()> {
        let port = Role::Stateful(member).name();
        Ok(self.lab.switch().ip(&format!("link set {port} {state}\n"))?)
    }

    /// Keeps new connections away from one, or lets it have them again.
    pub fn set_draining(&self, member: usize, drain: bool) -> Result<()> {
        self.fronts.iter().try_for_each(|front| match drain {
            true => front.drain(member),
            false => front.undrain(member),
        })
    }

    /// Does some work while stateful balancers join and drain in turns, and clients change between the
    /// fronts. What goes wrong with that is an error, after the work.
    pub(crate) fn churned<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        crate::churn::beside(|over| self.churn(over), work)
    }

    fn churn(&self, over: &AtomicBool) -> Result<()> {
        let new = STATEFUL - 1;
        let steps: [&dyn Fn() -> Result<()>; 5] = [
            &|| self.join_once(new),
            &|| self.set_draining(0, true),
            &|| self.swap_routes(1),
            &|| self.set_draining(0, false),
            &|| self.set_draining(new, true).and_then(|()| self.set_draining(new, false)),
        ];
        for (turn, step) in steps.iter().cycle().enumerate() {
            let began = Instant::now();
            while began.elapsed() < MEMBER_GAP {
                if over.load(Ordering::Relaxed) || !sleep(POLL) {
                    return Ok(());
                }
            }
            {
                let _alone = self.commanding.lock().unwrap_or_else(PoisonError::into_inner);
                step()?;
            }
            tracing::debug!("change {turn} of the tiers");
        }
        Ok(())
    }

    fn join_once(&self, member: usize) -> Result<()> {
        let there = self.members.lock().unwrap_or_else(PoisonError::into_inner).contains(&member);
        if there { Ok(()) } else { self.join(member) }
    }

    /// Makes each client send by the front that is so many further on than its number says.
    pub fn swap_routes(&self, by: usize) -> Result<()> {
        (0..self.lab.clients().len())
            .try_for_each(|client| self.lab.route_by(client, (client + by) % FRONTS))
    }

    fn all(&self, change: impl Fn(&Balancer) -> Result<()>) -> Result<()> {
        self.stateful.iter().try_for_each(change)
    }
}

impl PoolControl for Tiers {
    fn add(&self, backend: usize, weight: u32) -> Result<()> {
        self.all(|one| one.add(backend, weight))
    }

    fn remove(&self, backend: usize) -> Result<()> {
        self.all(|one| one.remove(backend))
    }

    fn drain(&self, backend: usize) -> Result<()> {
        self.all(|one| one.drain(backend))
    }

    fn undrain(&self, backend: usize) -> Result<()> {
        self.all(|one| one.undrain(backend))
    }

    fn set_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.all(|one| one.set_weight(backend, weight))
    }

    fn reload_with_weight(&self, backend: usize, weight: u32) -> Result<()> {
        self.all(|one| one.reload_with_weight(backend, weight))
    }

    /// Of every control plane of both tiers, at once.
    fn crash(&self, away: Duration) -> Result<()> {
        let _alone = self.commanding.lock().unwrap_or_else(PoisonError::into_inner);
        let both = || self.fronts.iter().chain(&self.stateful);
        both().for_each(Balancer::kill);
        sleep(away);
        both().try_for_each(Balancer::launch)
    }

    fn has_noticed(&self, backend: usize) -> Result<bool> {
        balancer::all_noticed(self.stateful.iter(), backend)
    }

    fn tell_load(&self, backend: usize, load: f64) -> Result<bool> {
        let told = self.stateful.iter().map(|one| one.tell_load(backend, load));
        told.into_iter().try_fold(true, |all, told| Ok(all && told?))
    }
}
