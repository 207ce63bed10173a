//! `weir fleet`: what several balancers do together (docs/fleet.md).

use crate::control::{NO_BODY, request, say};
use crate::out;
use weir_cli::{FleetVerb, Instance};
use weir_control::api::Answer;
use weir_control::engine::FleetStatus;

pub fn run(instance: Instance, verb: FleetVerb, json: bool) -> anyhow::Result<()> {
    match verb {
        FleetVerb::Status => {
            let fleet: FleetStatus = request(instance, "GET", "/v1/fleet", NO_BODY)?;
            out::report(&fleet, json, || weir_watch::fleet(&fleet))
        }
        FleetVerb::Forget { name } => {
            let answer: Answer =
                request(instance, "DELETE", &format!("/v1/fleet/{name}"), NO_BODY)?;
            say(&answer, json)
        }
    }
}
