//! First packets that are dropped because more flows have begun during a change of a pool than are remembered meanwhile:
//! when that begins, and until when it is to be said.

use super::Engine;
use tracing::warn;
use weir_plane::Plane;
use weir_wire::Reason;

/// Seconds after the last one until they are over: whoever was refused has come again by then, or has given up.
const IS_OVER: u32 = 30;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// All that there were at the last look; none before the first one: those of an earlier run are over.
    all: Option<u64>,
    /// Those that are not over, and when the last of them were noticed.
    open: Option<(u64, u32)>,
}

impl Refused {
    /// Takes notice of those since the last look, of so many in all. Returns whether these are the first.
    fn look(&mut self, all: u64, now: u32) -> bool {
        // Memory that is another one counts from the beginning.
        let before = self.all.replace(all);
        let more = before.map_or(0, |before| all.checked_sub(before).unwrap_or(all));
        let begins = self.open.is_none() && more > 0;
        self.open = match (self.open, more) {
            (Some((_, last)), 0) if now.saturating_sub(last) >= IS_OVER => None,
            (open, 0) => open,
            (open, more) => Some((open.map_or(0, |(open, _)| open) + more, now)),
        };
        begins
    }
}

impl<P: Plane> Engine<P> {
    /// Says in the log when new flows find no room. What cannot be read is looked at the next time.
    pub(super) fn look_at_pending_full(&mut self) {
        let Ok(outcomes) = self.plane.outcomes() else { return };
        let all = outcomes.get(&Reason::PendingFull).map_or(0, |(_, dropped)| *dropped);
        let now = self.now();
        if self.pending_full.look(all, now)
            && let Some(said) = self.pending_full_warning()
        {
            warn!("{said}");
        }
    }

    /// What an operator should know of them.
    pub(super) fn pending_full_warning(&self) -> Option<String> {
        let (refused, _) = self.pending_full.open?;
        let room = self.plane.limits().pending_flows;
        Some(format!(
            "{refused} first packets were dropped (pending_full): during a change of the pool {room} flows are \
             remembered that begin meanwhile, and there were more. They are sent again, and open connections are as \
             before; is this a flood? See limits.pending_flows"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_until_it_is_over() {
        let mut refused = Refused::default();
        assert!(!refused.look(5, 100), "those of an earlier run");
        assert!(!refused.look(5, 101) && refused.open.is_none());
        assert!(refused.look(8, 102), "the first");
        assert!(!refused.look(10, 103), "more of the same");
        assert_eq!(refused.open, Some((5, 103)));
        assert!(!refused.look(10, 103 + IS_OVER - 1) && refused.open.is_some());
        assert!(!refused.look(10, 103 + IS_OVER) && refused.open.is_none());
        assert!(refused.look(2, 200), "counted from the beginning");
        assert_eq!(refused.open, Some((2, 200)));
    }
}
