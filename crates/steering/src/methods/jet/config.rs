//! What a service with JET can be configured with.

use crate::method::{self, Misfit, Needs, Setting, Settings};
use crate::registry::MethodId;

/// The configuration's name for the rows of the table.
pub const ROWS: &str = "rows";
/// The configuration's name for the seconds after which every flow counts as judged anew.
pub const WARM_UP: &str = "warm_up";
/// The configuration's name for what places the rows.
pub const PLACEMENT: &str = "placement";
/// The words for it. HRW for each row is what `table` is.
pub(super) const PLACEMENTS: &[&str] = &["table", "ring", "anchor"];
/// Rows that each backend should have at least.
const ROWS_PER_BACKEND: usize = 10;

/// JET, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Jet;
    const NAME: &'static str = "jet";
    const SUMMARY: &'static str = "tracks only the flows that a foreseen change could move";
    const NEEDS: Needs = Needs { connections: true, ..Needs::NOTHING };
    // 2^22 rows of four bytes are 16 MiB for one service.
    const SETTINGS: &'static [Setting] = &[
        Setting::number(ROWS, (16, 1 << 22), 1 << 16),
        Setting::number(WARM_UP, (0, 86_400), 120),
        Setting::words(PLACEMENT, PLACEMENTS),
    ];

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        let rows = settings.get(ROWS);
        if backends * ROWS_PER_BACKEND <= rows as usize {
            return Ok(());
        }
        let wrong = format!("{rows} rows for {backends} backends are uneven shares");
        let right = match (backends * 100).next_power_of_two() {
            wanted if wanted <= 1 << 22 => format!("set rows = {wanted}"),
            _ => "split the service".to_owned(),
        };
        Err(Misfit { setting: ROWS, wrong, right })
    }
}
