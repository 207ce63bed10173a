//! What processors keep of the ways to backends, forgotten by a program that runs on each of them: a lane that is
//! written from elsewhere loses what packets count meanwhile.

use super::load::missing;
use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys::{BPF_F_TEST_RUN_ON_CPU, bpf_prog_test_run_opts, bpf_test_run_opts};
use libbpf_rs::{MapHandle, ObjectBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use weir_steering::BackendId;

/// The program as it was compiled with this crate.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hops.bpf.o"));
const OBJECT: &str = "hops";
const LANES: &str = "lanes";

/// The program over the lanes of a plane.
pub(super) struct Hops {
    /// It holds the map that it uses.
    program: OwnedFd,
    cpus: u32,
}

impl Hops {
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`] if it cannot be loaded.
    pub fn over(lanes: &MapHandle) -> Result<Self, Error> {
        let mut open = ObjectBuilder::default()
            .name(OBJECT)
            .and_then(|builder| builder.open_memory(PROGRAM))
            .context(|| "open the program that forgets next hops".into())?;
        let mut own = open.maps_mut().find(|map| map.name() == LANES);
        let own = own.as_mut().ok_or_else(|| missing("map", LANES))?;
        own.reuse_fd(lanes.as_fd()).context(|| format!("use map {LANES}"))?;
        let object = open.load().context(|| "load the program that forgets next hops".into())?;
        let program = object.progs().next().ok_or_else(|| missing("program", OBJECT))?;
        let program = program.as_fd().try_clone_to_owned();
        let program = program.context(|| "duplicate a program".into())?;
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count CPUs".into())?;
        Ok(Self { program, cpus: u32::try_from(cpus).unwrap_or(u32::MAX) })
    }

    /// Has every processor forget the way to a backend.
    ///
    /// # Errors
    /// [`Error::System`] if a processor cannot be asked.
    pub fn forget(&self, backend: BackendId) -> Result<(), Error> {
        (0..self.cpus)
            .try_for_each(|cpu| self.forget_on(cpu, backend))
            .context(|| format!("forget the next hop of backend {backend}"))
    }

    fn forget_on(&self, cpu: u32, backend: BackendId) -> io::Result<()> {
        let arguments = [u64::from(backend.get())];
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as u64,
            ctx_in: arguments.as_ptr().cast(),
            ctx_size_in: size_of_val(&arguments) as u32,
            flags: BPF_F_TEST_RUN_ON_CPU,
            cpu,
            ..bpf_test_run_opts::default()
        };
        // SAFETY: a program of ours, and arguments that outlive the call.
        let failed = unsafe { bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        match io::Error::from_raw_os_error(-failed) {
            _ if failed == 0 => Ok(()),
            // It is switched off. By the time that it sends something it asks anew.
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            error => Err(error),
        }
    }
}
