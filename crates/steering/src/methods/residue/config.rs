//! What a service with residue can be configured with.

use crate::method::{self, InFleet, Misfit, Needs, Setting, Settings};
use crate::registry::MethodId;
use crate::rows::{ROWS_SETTING, rows_fit};

/// residue, as the registry lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method;

impl method::Method for Method {
    const ID: MethodId = MethodId::Residue;
    const NAME: &'static str = "residue";
    const SUMMARY: &'static str = "a table of rows, and an exact map of what changes left behind";
    const NEEDS: Needs =
        Needs { states: true, first_datagrams: true, connections: false, timestamps: false };
    const SETTINGS: &'static [Setting] = &[ROWS_SETTING];
    const IN_FLEET: InFleet = InFleet::InStep;

    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        rows_fit(settings, backends)
    }
}
