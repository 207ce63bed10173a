//! What the data plane tells of flows: the ring, and the exact map behind it.

use crate::abi::{Plain, types};
use crate::entries;
use crate::error::{Context, Error};
use crate::ring::Ring;
use libbpf_rs::{MapCore, MapHandle};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;
use weir_steering::{BackendId, Event, EventKind};

/// A flow of the *unreported* map.
pub type Unreported = Event;

/// The consumer of the ring; at most one per data plane.
pub struct Reports {
    ring: Ring,
    unreported: MapHandle,
    /// Reports that the ring has room for.
    capacity: usize,
}

impl Reports {
    pub(crate) fn new(events: MapHandle, unreported: MapHandle) -> Result<Self, Error> {
        let ring = Ring::new(events)?;
        // A record has a header of eight bytes.
        let record = (size_of::<types::event>() + 8).next_multiple_of(8);
        let capacity = ring.size() / record;
        Ok(Self { ring, unreported, capacity })
    }

    /// Takes the reports that are there, and no more than fit into the ring: others come as fast as
    /// these are taken. A report counts as consumed when `sink` returns: what the
    /// sink stored durably before that is never lost, and may be seen twice after a crash.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel does not let a part of the ring be read.
    pub fn drain(&self, sink: impl FnMut(Event)) -> Result<(), Error> {
        self.take(self.capacity, sink).map(drop)
    }

    /// Takes all that is there: the reports in the ring, then what it had no room for.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Bpf`] if the kernel refuses.
    pub fn take_all(&self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        self.drain(|event| take(&event))?;
        let flows = self.take_unreported(usize::MAX)?;
        flows.iter().for_each(take);
        self.forget_unreported(&flows)
    }

    /// Takes at most `most` reports, and waits for the first one for at most `timeout`, or until
    /// `wake` can be read.
    ///
    /// # Errors
    /// As above; an interrupted wait is not an error.
    pub fn wait(
        &self,
        timeout: Duration,
        wake: Option<BorrowedFd<'_>>,
        most: usize,
        mut sink: impl FnMut(Event),
    ) -> Result<(), Error> {
        if self.take(most, &mut sink)? > 0 {
            return Ok(());
        }
        let milliseconds = timeout.as_millis().min(i32::MAX as u128) as libc::c_int;
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is passed over.
        let wake = wake.map_or(-1, |wake| wake.as_raw_fd());
        let mut ready = [readable(self.ring.readable().as_raw_fd()), readable(wake)];
        // SAFETY: as many pollfds as are there, which live; the ring's descriptor lives as long as
        // the ring, and the other one is borrowed.
        if unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, milliseconds) } < 0
        {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error).context(|| "wait for the event ring".into()),
            };
        }
        self.take(most, sink).map(drop)
    }

    /// Takes at most `most` reports that are there; returns how many.
    fn take(&self, most: usize, mut sink: impl FnMut(Event)) -> Result<usize, Error> {
        self.ring.take(most, |bytes| {
            if let Some(event) = decode(bytes) {
                sink(event);
            }
        })
    }

    /// Reads the flows that the ring had no room for, at most `most` of them. They stay until
    /// [`forget_unreported`](Self::forget_unreported), so that a crash in between loses none.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses.
    pub fn take_unreported(&self, most: usize) -> Result<Vec<Unreported>, Error> {
        let mut flows = Vec::new();
        entries::each(&self.unreported, |key, value| {
            if flows.len() >= most {
                return ControlFlow::Break(());
            }
            flows.extend(unreported(key, value));
            ControlFlow::Continue(())
        })?;
        Ok(flows)
    }

    /// As [`take_unreported`](Self::take_unreported), by a place in the map that only goes forward: `from` is where
    /// the part before has ended, and this one ends when `most` are reached. Returns them and where the next part
    /// begins; `None`: all that were there when the first part began have been among them.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses.
    pub(crate) fn part_of_unreported(
        &self,
        from: Option<u32>,
        most: usize,
    ) -> Result<(Vec<Unreported>, Option<u32>), Error> {
        let mut flows = Vec::new();
        let next = entries::part(&self.unreported, from, most, |key, value| {
            flows.extend(unreported(key, value));
        })?;
        Ok((flows, next))
    }

    /// Takes a part of the reports in the ring, of those that may have been there when `left` was none. Returns
    /// whether there are more.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses.
    pub(crate) fn drain_part(
        &self,
        left: &mut Option<usize>,
        most: usize,
        sink: impl FnMut(Event),
    ) -> Result<bool, Error> {
        let now = left.unwrap_or(self.capacity);
        let part = now.min(most);
        let taken = if part > 0 { self.take(part, sink)? } else { 0 };
        let rest = if taken < part { 0 } else { now - taken };
        *left = Some(rest);
        Ok(rest > 0)
    }

    /// Removes flows that were taken over from the *unreported* map.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel refuses; that an entry is gone already is not an error.
    pub fn forget_unreported(&self, flows: &[Unreported]) -> Result<(), Error> {
        let keys = flows.iter().map(|flow| types::service_state::from(&flow.state));
        entries::remove(&self.unreported, keys)
    }
}

/// An entry of the *unreported* map.
fn unreported(key: &[u8], value: &[u8]) -> Option<Unreported> {
    let note = types::unreported::from_slice(value);
    let state = types::service_state::from_slice(key).into();
    let backend = BackendId::new(note.backend)?;
    Some(Event { state, backend, kind: EventKind::Start })
}

fn decode(bytes: &[u8]) -> Option<Event> {
    if bytes.len() < size_of::<types::event>() {
        return None;
    }
    let raw = types::event::from_slice(bytes);
    let kind = [EventKind::Start, EventKind::End].into_iter().find(|k| *k as u8 == raw.kind)?;
    let state = types::service_state { service: raw.service, key: raw.key }.into();
    Some(Event { state, backend: BackendId::new(raw.backend)?, kind })
}

/// Deletes an entry; that it is gone already is no error.
pub(crate) fn delete(map: &MapHandle, key: &[u8]) -> Result<(), Error> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(error).context(|| format!("delete from map {:?}", map.name()))
        }
        _ => Ok(()),
    }
}
