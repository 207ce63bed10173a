//! Whose program is on an interface that this instance is to have.

use super::{PlaneResult, loaded, pin_directory};
use crate::process::{PinnedElsewhere, pinned_elsewhere};
use crate::store::NameLock;
use weir_dataplane::{Error, Interface, KernelPlane};

/// An interface that another instance of this host has.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: the program there is that of the instance {name} of weir, {mend}")]
pub(super) struct Held {
    interface: String,
    /// The other instance.
    name: String,
    /// What can be done about it.
    mend: String,
}

/// An interface that has a program, which may be that of an instance whose pins are not seen here.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: another XDP program is attached, maybe that of weir: {elsewhere}")]
pub(super) struct MaybeHeld {
    interface: String,
    elsewhere: PinnedElsewhere,
}

/// The error with the name of the instance that has the interface, if that is why.
pub(super) fn named<E: std::error::Error + Send + Sync + 'static>(
    error: E,
) -> Box<dyn std::error::Error + Send + Sync> {
    let any: &(dyn std::error::Error + 'static) = &error;
    match any.downcast_ref::<Error>() {
        Some(Error::Occupied { interface }) => match holder(interface) {
            Some(held) => Box::new(held),
            None => match pinned_elsewhere().into_iter().find(|one| one.is_in_this_network) {
                Some(elsewhere) => Box::new(MaybeHeld { interface: interface.clone(), elsewhere }),
                None => Box::new(error),
            },
        },
        _ => Box::new(error),
    }
}

/// The instance whose link is on an interface; none if the program there is somebody else's, or that cannot be
/// told.
fn holder(interface: &str) -> Option<Held> {
    let program = Interface::find(interface).ok()?.program()?;
    let has_it = |name: &String| {
        let pinned = KernelPlane::left_in(&pin_directory(name)).plane().ok().flatten();
        // By its program: another network namespace may have an interface of the same name and number.
        pinned.is_some_and(|pinned| pinned.links.iter().any(|link| link.program == program))
    };
    let name = loaded().ok()?.into_iter().find(has_it)?;
    let mend = match NameLock::acquire(&pin_directory(&name)) {
        Ok(_) => format!(
            "which does not run, and whose packets go on; start it again, or `weir unload --name {name}` ends that"
        ),
        Err(_) => format!(
            "which runs; take {interface} out of its interfaces, or stop it and `weir unload --name {name}`"
        ),
    };
    Some(Held { interface: interface.to_owned(), name, mend })
}
