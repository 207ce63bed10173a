//! The pool as the methods of `weir_steering` are told of it.

use crate::method::Change;
use weir_placement::{Candidate, Incremental, PoolError};
use weir_steering::{BackendId, Member, Role};

/// The members of the one service, in the order in which they came, and the weights of all servers
/// there will ever be.
#[derive(Clone, Debug)]
pub(super) struct Members {
    members: Vec<Member>,
    weights: Vec<u32>,
}

impl Members {
    /// No members yet. A server that has no weight here has the weight 1.
    pub fn new(weights: &[u32]) -> Self {
        Self { members: Vec::new(), weights: weights.to_vec() }
    }

    pub fn all(&self) -> &[Member] {
        &self.members
    }

    pub fn get(&self, server: u16) -> Option<&Member> {
        self.members.iter().find(|member| member.backend == server)
    }

    pub fn weight(&self, server: u16) -> u32 {
        self.weights.get(usize::from(server)).copied().unwrap_or(1)
    }

    /// What the server is called.
    pub fn name(server: u16) -> String {
        format!("server {server}")
    }

    pub fn follow(&mut self, change: Change) {
        let place = |server| self.members.iter().position(|member| member.backend == server);
        match change {
            Change::Add(server) => {
                // No table can lead to a number beyond these.
                let Some(backend) = BackendId::new(server) else { return };
                let (name, weight) = (Self::name(server), self.weight(server));
                let member = Member { backend, name, weight, role: Role::Serving };
                match place(server) {
                    Some(at) => self.members[at] = member,
                    None => self.members.push(member),
                }
            }
            Change::Drain(server) => {
                if let Some(at) = place(server) {
                    self.members[at].role = Role::Draining;
                }
            }
            Change::Remove(server) => self.members.retain(|member| member.backend != server),
            Change::Reweight(server, weight) => {
                let number = usize::from(server);
                self.weights.resize(self.weights.len().max(number + 1), 1);
                self.weights[number] = weight;
                if let Some(at) = place(server) {
                    self.members[at].weight = weight;
                }
            }
            Change::Expect(_) | Change::Unexpect(_) => {}
        }
    }

    /// The members as placements know them: one that drains has no weight.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        self.members.iter().map(|member| Candidate {
            name: &member.name,
            backend: member.backend.get(),
            weight: member.effective_weight(),
        })
    }

    /// Follows a change, and a placement with it, of which all members that serve are part.
    pub fn place(
        &mut self,
        change: Change,
        placement: &mut impl Incremental,
    ) -> Result<(), PoolError> {
        let server = change.server();
        let serving = |members: &Self| members.get(server).is_some_and(|m| m.role == Role::Serving);
        let served = serving(self);
        self.follow(change);
        let (name, weight) = (Self::name(server), self.weight(server));
        match (served, serving(self)) {
            (false, true) => placement.add(Candidate { name: &name, backend: server, weight }),
            (true, false) => placement.remove(server),
            (true, true) => placement.reweight(server, weight),
            (false, false) => Ok(()),
        }
    }
}
