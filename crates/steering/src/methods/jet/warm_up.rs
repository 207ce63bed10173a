//! How long a backend must have been on the horizon.

use super::JetError;
use std::time::Duration;

/// When which backend may join (JET, section 2.3.1).
///
/// Only an announced backend waits: until every flow has sent a packet, and thus has been judged
/// with it on the horizon. A retired one need not wait: all flows were judged with it in W or in
/// H from their first packet on.
#[derive(Clone, Debug)]
pub(super) struct WarmUp {
    period: Duration,
    announced: Vec<(u16, Duration)>,
    /// Nobody may join until a period after this.
    disturbed: Option<Duration>,
}

impl WarmUp {
    pub fn new(period: Duration) -> Self {
        Self { period, announced: Vec::new(), disturbed: None }
    }

    pub fn announce(&mut self, backend: u16, now: Duration) {
        self.announced.push((backend, now));
    }

    /// The backend has left the horizon.
    pub fn leave(&mut self, backend: u16) {
        self.announced.retain(|&(other, _)| other != backend);
    }

    /// A change that nobody foresaw. (Of Anchor's stack of removed buckets it takes the one that
    /// the horizon would have got first, so the horizon now reaches one deeper, to a bucket with
    /// which no flow has been judged.)
    pub fn disturb(&mut self, now: Duration) {
        self.disturbed = Some(now);
    }

    pub fn check(&self, backend: u16, now: Duration) -> Result<(), JetError> {
        let announced = self.announced.iter().find(|(other, _)| *other == backend);
        let since = announced.map(|&(_, at)| at).max(self.disturbed);
        let left =
            since.map_or(Duration::ZERO, |at| at.saturating_add(self.period).saturating_sub(now));
        if left.is_zero() { Ok(()) } else { Err(JetError::TooEarly { backend, left }) }
    }
}
