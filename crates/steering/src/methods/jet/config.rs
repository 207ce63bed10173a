//! What a service with JET can be configured with.

use crate::method::{self, Misfit, Needs, Setting, Settings};
use crate::registry::MethodId;
use crate::rows::{ROWS_SETTING, rows_fit};

/// The configuration's name for the seconds after which every flow counts as judged anew.
pub const WARM_UP: &str = "warm_up";
/// The configuration's name for what places the rows.
pub const PLACEMENT: &str = "placement";
/// The words for it. HRW for each row is what `table` is.
pub(super) const PLACEMENTS: &[&str] = &["table", "ring", "anchor"];

/// What places the rows of a table.
pub(crate) const PLACEMENT_SETTING: Setting = Setting::words(PLACEMENT, PLACEMENTS);

/// JET, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Jet;
    const NAME: &'static str = "jet";
    const SUMMARY: &'static str = "tracks only the flows that a foreseen change could move";
    const NEEDS: Needs = Needs { connections: true, first_datagrams: true, ..Needs::NOTHING };
    const SETTINGS: &'static [Setting] =
        &[ROWS_SETTING, Setting::number(WARM_UP, (0, 86_400), 120), PLACEMENT_SETTING];

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        rows_fit(settings, backends)
    }
}
