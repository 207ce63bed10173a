//! The backends of a service, as steering sees them.

/// What a backend may get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// New connections in proportion to the weight, and its own.
    Serving,
    /// Its own connections only: draining, or weight 0.
    Draining,
    /// Down by its health check. It keeps its connections: if it is dead nothing is lost by that,
    /// and if the check was wrong nothing breaks. But a SYN goes elsewhere, even if it looks like
    /// a repetition.
    Down,
}

/// A backend of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Number in the data plane, below [`NO_BACKEND`](crate::NO_BACKEND).
    pub backend: u16,
    /// Stable name; placement derives from it.
    pub name: String,
    /// Share of new connections, relative to the other members.
    pub weight: u32,
    /// What it may get.
    pub role: Role,
}

impl Member {
    /// The weight that counts: 0 unless serving.
    pub fn effective_weight(&self) -> u32 {
        match self.role {
            Role::Serving => self.weight,
            Role::Draining | Role::Down => 0,
        }
    }
}
