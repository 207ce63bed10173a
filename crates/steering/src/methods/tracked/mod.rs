//! `tracked`: every connection in a bounded LRU table, new ones placed by Maglev
//! (docs/tracked.md).

mod build;
mod decide;

pub use build::TrackedBuilder;
pub use decide::Tracking;

use crate::method::{
    self, Build, Misfit, Needs, Publish, ServiceConfig, Setting, Settings, next_prime,
};
use crate::registry::{Image, MethodId};
use crate::rows::Rows;
use crate::schedule::{LOAD_SETTING, Load, MOST_LISTED, SCHEDULER_SETTING, Scheduler};
use crate::table::slot_elements;
use std::sync::Arc;
use weir_hash::HashKey;

/// The configuration's name for the slots of the Maglev table.
pub const TABLE_SIZE: &str = "table_size";

/// Tracked, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Tracked;
    const NAME: &'static str = "tracked";
    const SUMMARY: &'static str = "a connection table, and a Maglev table for new connections";
    const NEEDS: Needs = Needs { connections: true, ..Needs::NOTHING };
    const TRACKS_ALL: bool = true;
    // 2^24 slots of two bytes are 32 MiB for one service.
    const SETTINGS: &'static [Setting] =
        &[Setting::prime(TABLE_SIZE, (2, 1 << 24), 65_537), SCHEDULER_SETTING, LOAD_SETTING];

    fn row_name(row: u32) -> String {
        format!("slot {row} of the Maglev table")
    }

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        Scheduler::of(settings).fits(backends)?;
        let size = settings.get(TABLE_SIZE);
        if backends <= size as usize {
            return Ok(());
        }
        let wrong = format!("{size} rows for {backends} backends leave some without one");
        let right = format!("set table_size = {}", next_prime(backends as u64 * 100));
        Err(Misfit { setting: TABLE_SIZE, wrong, right })
    }
}

impl Publish for Method {
    type Body = Rows<Self>;

    fn most_elements(settings: &Settings, _: usize) -> usize {
        slot_elements(match Scheduler::of(settings) {
            Scheduler::Uniform => settings.get(TABLE_SIZE) as usize,
            _ => MOST_LISTED,
        })
    }

    fn builder(config: &ServiceConfig, _: Option<Arc<Image>>) -> Box<dyn Build> {
        let (key, size) = (HashKey::from_seed(config.seed), config.settings.get(TABLE_SIZE));
        let builder = TrackedBuilder::new(key, size, config.client_affinity);
        let (scheduler, load) = (Scheduler::of(&config.settings), Load::of(&config.settings));
        Box::new(builder.scheduled(scheduler, load))
    }
}
