//! Interfaces that frames do not leave by as they are.

use super::KernelPlane;
use crate::abi::{Plain, types};
use crate::error::{Context, Error};
use crate::numbers::DEVICE_REFUSED;
use crate::reports;
use libbpf_rs::{MapCore, MapFlags};
use weir_plane::{Device, Way};

impl KernelPlane {
    /// Sets how frames leave by these interfaces, and that by all others they leave as they are.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there is no room for so many.
    pub fn set_devices(&self, devices: &[Device]) -> Result<(), Error> {
        let map = &self.maps.devices;
        for device in devices {
            let entry = match device.way {
                Way::Tagged { lower, tag } => {
                    types::device { lower, vlan: u32::from_ne_bytes(tag), ..Default::default() }
                }
                Way::None => types::device { flags: DEVICE_REFUSED, ..Default::default() },
            };
            map.update(&device.ifindex.to_ne_bytes(), entry.bytes(), MapFlags::ANY)
                .context(|| format!("note interface {}", device.ifindex))?;
        }
        let known = |key: &[u8]| devices.iter().any(|one| one.ifindex.to_ne_bytes() == key);
        let gone: Vec<Vec<u8>> = map.keys().filter(|key| !known(key)).collect();
        gone.iter().try_for_each(|key| reports::delete(map, key))
    }

    /// Sets the members of bonds that the program is on: the kernel runs it in each of them, and names
    /// them when it loses a frame.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there are too many.
    pub fn set_members(&self, members: &[u32]) -> Result<(), Error> {
        self.lost.as_ref().map_or(Ok(()), |lost| lost.take_from_members(members))
    }
}
