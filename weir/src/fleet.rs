//! `weir fleet`: what several balancers do together (docs/fleet.md).

use crate::control::{NO_BODY, request, say};
use crate::out;
use weir_cli::{FleetVerb, Instance};
use weir_control::api::{Answer, quoted};
use weir_control::engine::FleetStatus;

pub fn run(instance: Instance, verb: FleetVerb, json: bool) -> anyhow::Result<()> {
    match verb {
        FleetVerb::Status => {
            let fleet: FleetStatus = request(instance, "GET", "/v1/fleet", NO_BODY)?;
            out::report(&fleet, json, || weir_watch::fleet(&fleet))
        }
        FleetVerb::Forget { name } => {
            let path = format!("/v1/fleet/{}", quoted(&name));
            let answer: Answer = request(instance, "DELETE", &path, NO_BODY)?;
            say(&answer, json)
        }
    }
}
