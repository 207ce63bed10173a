//! Flows that the data plane knows: reported, pending, pinned and tracked ones.

use super::KernelPlane;
use crate::abi::{Plain, types};
use crate::error::{Context, Error};
use crate::reports::{self, Reports};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_steering::{ServiceState, TrackedFlow};
use weir_wire::FlowKey;

impl KernelPlane {
    /// The consumer of the reports.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn reports(&self) -> Result<Reports, Error> {
        let copy = |map: &MapHandle| MapHandle::try_from(map).context(|| "duplicate a map".into());
        Reports::new(copy(&self.maps.events)?, copy(&self.maps.unreported)?)
    }

    /// The flows in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        read_states(&self.maps.pending)
    }

    /// A flow's backend in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending_backend(&self, state: &ServiceState) -> Result<Option<u16>, Error> {
        let found = self
            .maps
            .pending
            .lookup(types::service_state::from(state).bytes(), MapFlags::ANY)
            .context(|| "look up a pending flow".into())?;
        Ok(found.map(|value| u32::from_ne_bytes([value[0], value[1], value[2], value[3]]) as u16))
    }

    /// Removes flows from the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn forget_pending<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        states.into_iter().try_for_each(|state| {
            reports::delete(&self.maps.pending, types::service_state::from(state).bytes())
        })
    }

    /// The pinned states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pinned(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        read_states(&self.maps.pinned)
    }

    /// Pins states.
    ///
    /// # Errors
    /// [`Error::PinsFull`] when there is no room.
    pub fn pin(&self, states: &[(ServiceState, u16)]) -> Result<(), Error> {
        for (state, backend) in states {
            let pinned = self.maps.pinned.update(
                types::service_state::from(state).bytes(),
                &u32::from(*backend).to_ne_bytes(),
                MapFlags::ANY,
            );
            match pinned {
                // What a hash map without room says.
                Err(error) if error.kind() == libbpf_rs::ErrorKind::TooBig => {
                    return Err(Error::PinsFull { limit: self.pin_limit() as u32 });
                }
                pinned => pinned.context(|| "pin a state".into())?,
            }
        }
        Ok(())
    }

    /// States of all services that there is room to pin.
    pub fn pin_limit(&self) -> usize {
        self.maps.pinned.max_entries() as usize
    }

    /// Unpins states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn unpin<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        states.into_iter().try_for_each(|state| {
            reports::delete(&self.maps.pinned, types::service_state::from(state).bytes())
        })
    }

    /// A tracked connection.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        let found = self
            .maps
            .connections
            .lookup(types::flow_key::from(flow).bytes(), MapFlags::ANY)
            .context(|| "look up a tracked connection".into())?;
        Ok(found.map(|value| {
            let entry = types::tracked::from_slice(&value);
            TrackedFlow { backend: entry.backend, incarnation: entry.incarnation }
        }))
    }

    /// Tracks a connection, for tests and benches.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn track(&self, flow: &FlowKey, entry: TrackedFlow) -> Result<(), Error> {
        let value =
            types::tracked { incarnation: entry.incarnation, backend: entry.backend, reserved: 0 };
        self.maps
            .connections
            .update(types::flow_key::from(flow).bytes(), value.bytes(), MapFlags::ANY)
            .context(|| "track a connection".into())
    }
}

fn read_states(map: &MapHandle) -> Result<Vec<(ServiceState, u16)>, Error> {
    let entries = reports::read_all(map)?;
    Ok(entries
        .into_iter()
        .map(|(key, value)| {
            let backend = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]) as u16;
            (types::service_state::from_slice(&key).into(), backend)
        })
        .collect())
}
