//! An engine over a P4 switch (docs/p4.md): nothing of it is in the kernel.

use super::kept::{Begun, may_have_socket};
use super::network::may_attach_beside;
use super::{Engine, EngineError, Found, Starting};
use crate::config::{Config, PlaneKind, Source, Table, place_of};
use crate::store::RunLock;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use weir_plane_p4::{P4, Switch};

impl Engine<P4<Switch>> {
    /// Finds the switch, and [goes on over it](Self::over). What an earlier run has left there forwards packets
    /// until all is known that it is to be filled with.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn on_switch(
        config: Config,
        config_path: PathBuf,
        health: crate::health::Checker,
        plane: Option<PlaneKind>,
        starting: Starting,
    ) -> Result<Self, EngineError> {
        let from = Source::File(config_path.clone());
        may_attach_beside(&config, &from)?;
        let begun = Begun::at(&config.balancer);
        let lock = RunLock::await_free(&config.balancer.run_dir)?;
        crate::store::check_logs(&config.balancer.run_dir)?;
        super::Document::read(&config.balancer.run_dir)?;
        may_have_socket(&config.balancer)?;
        let address = config.p4.thrift.to_string();
        let place = place_of(&config_path, Table::P4, "thrift");
        let claim = claim(config.p4.thrift.port()).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                let held = format!("{place}[p4]: another weir fills the switch at {address}");
                EngineError::Conflict(held)
            }
            _ => EngineError::Plane(Box::new(error)),
        })?;
        let found = Switch::connect(&address).and_then(P4::over);
        let switch = found.map_err(|error| {
            let mend = match error.is_gone() {
                true => {
                    "; start it before weir, in this network namespace: simple_switch weir.json \
                     --thrift-port PORT, where weir.json is p4/weir.p4 compiled (docs/p4.md)"
                }
                false => "",
            };
            EngineError::Plane(format!("{place}[p4]: {error}{mend}").into())
        })?;
        let Starting { breaking, fleet, instead } = starting;
        let resumed = switch.was_filled();
        let found = Found { resumed, warnings: Vec::new(), breaking, fleet, instead };
        let resolve = crate::neigh::resolve_now;
        let mut engine = Self::over(switch, found, config, config_path, health, resolve, lock)?;
        engine.claim = Some(claim);
        engine.in_the_way = Some(crate::doctor::in_the_way);
        engine.host_warnings().for_each(|warning| tracing::warn!("{warning}"));
        engine.told_plane = plane;
        super::memory::give_back();
        begun.stays();
        Ok(engine)
    }
}

/// Held while this process fills the switch there: two would each take the other's writes for a restart. Such
/// names are of a network namespace, as the switch's loopback is. Its server listens on every address, so that its
/// port says which one it is.
fn claim(port: u16) -> io::Result<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("weir-p4-{port}"))?;
    UnixListener::bind_addr(&name)
}
