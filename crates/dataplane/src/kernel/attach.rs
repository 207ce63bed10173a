//! Which interfaces the program takes frames from, and which of these are for it.

use super::KernelPlane;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::link::{self, Interface, LINK_PREFIX, XdpMode};
use crate::numbers::OWN_MACS;
use std::io;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

/// An interface that frames are taken from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The interface, with its name and addresses.
    pub interface: Interface,
    /// Whether the program runs in generic mode, which is slower.
    pub generic: bool,
}

impl KernelPlane {
    /// Attaches to interfaces; those that are attached already get this program in place of the
    /// one they have, without missing a packet. Frames to other hosts are left to the kernel.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::NoInterface`], or what the kernel says.
    pub fn attach(&self, names: &[String], mode: XdpMode) -> Result<Vec<Attached>, Error> {
        // Nothing is changed if one is missing.
        let found: Vec<Interface> =
            names.iter().map(|name| Interface::find(name)).collect::<Result<_, _>>()?;
        self.accept_own_macs(names)?;
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("a data plane without pins")).context(|| "attach".into());
        };
        let mut attached = Vec::new();
        for interface in &found {
            let pin = directory.join(format!("{LINK_PREFIX}{}", interface.name));
            let generic = link::attach(self.program(), interface, mode, &pin)?;
            attached.push(Attached { interface: interface.clone(), generic });
        }
        link::detach_others(directory, &found)?;
        Ok(attached)
    }

    /// Makes the data plane take frames that are addressed to these interfaces, as their addresses
    /// are now. Those that are missing are left out.
    ///
    /// # Errors
    /// [`Error::NoInterface`].
    pub fn accept_own_macs(&self, names: &[String]) -> Result<Vec<Interface>, Error> {
        let looked: Vec<_> = names.iter().map(|name| Interface::find(name)).collect();
        let found: Vec<&Interface> = looked.iter().flatten().collect();
        // One that is missing concerns none of the others. But an empty list accepts all.
        if !found.is_empty() {
            self.set_own_macs(&found);
        }
        looked.into_iter().collect()
    }

    fn set_own_macs(&self, found: &[&Interface]) {
        let first = offset_of!(types::control, own_macs);
        for slot in 0..OWN_MACS {
            let mac = found.get(slot).map_or(0, |interface| {
                let [a, b, c, d, e, f] = interface.mac;
                u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
            });
            // With more interfaces than the program compares, it accepts any destination.
            let mac = if found.len() > OWN_MACS { 0 } else { mac };
            self.control.word64(first + slot * size_of::<u64>()).store(mac, Ordering::Relaxed);
        }
    }
}
