//! How the history of a balancer names the changes of its fleet: by the fleet's number, and by what was done.

use crate::engine::Engine;
use weir_fleet::Document;
use weir_plane::Plane;

/// What a document says of how it was asked for, where nobody has said what that does.
const BARE: [&str; 4] = ["apply", "reload", "rollback", "start"];

impl<P: Plane> Engine<P> {
    /// What is remembered from now on is this change.
    pub(super) fn begin_following(&mut self, document: &Document) {
        let bare = BARE.contains(&document.what.as_str()) || document.what.is_empty();
        if let Some(fleet) = &mut self.fleet {
            let said = (!bare).then(|| document.what.clone());
            fleet.following = Some((document.change, said));
        }
    }

    pub(super) fn end_following(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.following = None;
        }
    }

    /// The fleet's number of what is remembered now; none: it is this balancer's own.
    pub(in crate::engine) fn number_in_fleet(&self, what: &str) -> Option<u64> {
        let fleet = self.fleet.as_ref()?;
        match what {
            "start" => Some(fleet.change()).filter(|change| *change > 0),
            _ => fleet.following.as_ref().map(|(change, _)| *change),
        }
    }

    /// What the change has done that is followed now, in the words of the balancer that was asked.
    pub(in crate::engine) fn words_of_fleet(&self) -> Option<String> {
        self.fleet.as_ref()?.following.as_ref()?.1.clone()
    }
}
