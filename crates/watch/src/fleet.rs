//! What `weir fleet status` shows.

use crate::text::{Text, table};
use weir_control::engine::FleetStatus;

/// The balancers of a fleet, what they follow and in what they differ.
pub fn fleet(fleet: &FleetStatus) -> String {
    let mut text = Text::default();
    let seconds = std::time::Duration::from_secs(fleet.seconds);
    let long = humantime::format_duration(seconds);
    match &fleet.error {
        None => text.line(format_args!("{}; it answers since {long}", fleet.store)),
        Some(error) => text.line(format_args!("{}; without it for {long}: {error}", fleet.store)),
    }
    if let Some(made) = &fleet.made {
        text.line(format_args!("{} follows {made}", fleet.name));
    }
    if let Some(leader) = &fleet.leader {
        text.line(format_args!("{} leads, term {}", leader.name, leader.term));
    }
    if let Some(step) = &fleet.step {
        let mut said = format!("pools in step: {}, {}", step.number, step.stage);
        if !step.services.is_empty() {
            said += &format!(", of {}", step.services.join(", "));
        }
        if !step.waits_for.is_empty() {
            said += &format!("; waits for {}", step.waits_for.join(", "));
        }
        if let Some(why) = &step.why {
            said += &format!("; {why}");
        }
        text.line(format_args!("{said}"));
    }
    let mut lines =
        table(&["balancer", "role", "change", "lag", "version", "announces", "configuration"]);
    for one in &fleet.balancers {
        let sign = one.sign.clone().unwrap_or_default();
        let known = one.sign.is_some();
        let shown = |text: String| if known { text } else { "-".into() };
        lines.add_row([
            one.name.clone(),
            one.role.clone(),
            shown(sign.change.to_string()),
            shown(one.lag.to_string()),
            shown(sign.version),
            shown(announces(&sign.announced, &sign.announced_unknown)),
            shown(sign.digest),
        ]);
    }
    text.line(format_args!("{lines}"));
    let mut lines = table(&["service", "balancer", "method", "generation", "up", "table"]);
    let mut services: Vec<_> = fleet
        .balancers
        .iter()
        .flat_map(|one| {
            one.sign.iter().flat_map(|sign| &sign.services).map(move |service| (service, one))
        })
        .collect();
    services.sort_by_key(|(service, one)| (&service.name, &one.name));
    for (service, one) in services {
        lines.add_row([
            service.name.clone(),
            one.name.clone(),
            service.method.clone(),
            service.generation.to_string(),
            format!("{} of {}", service.up, service.backends),
            service.digest.clone().unwrap_or_else(|| "none".into()),
        ]);
    }
    text.line(format_args!("{lines}"));
    for sentence in &fleet.disagreements {
        text.line(format_args!("warning: {sentence}"));
    }
    text.all()
}

/// What a balancer announces, as far as it is known.
fn announces(announced: &[String], unknown: &[String]) -> String {
    match (announced, unknown) {
        ([], []) => "nothing".into(),
        ([], _) => "unknown".into(),
        (_, []) => announced.join(", "),
        _ => format!("{}; unknown: {}", announced.join(", "), unknown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A speaker that does not answer may announce what it was told before.
    #[test]
    fn what_is_not_known_to_be_announced_is_not_called_nothing() {
        let shown = |announced: &[&str], unknown: &[&str]| {
            let sign = json!({
                "id": "1", "version": "1", "change": 3, "digest": "0a", "services": [], "drained": false,
                "announced": announced, "announced_unknown": unknown,
            });
            let status = json!({
                "name": "lb1", "store": "etcd", "reachable": true, "seconds": 1, "change": 3, "resyncs": 0,
                "balancers": [{ "name": "lb1", "role": "drained", "sign": sign, "lag": 0 }],
                "disagreements": [],
            });
            fleet(&serde_json::from_value(status).expect("a status"))
        };
        let (one, two) = ("192.0.2.1/32", "192.0.2.2/32");
        let said = shown(&[], &[]);
        assert!(said.contains("nothing") && !said.contains("unknown"), "{said}");
        let said = shown(&[], &[one]);
        assert!(said.contains("unknown") && !said.contains("nothing"), "{said}");
        let said = shown(&[one], &[]);
        assert!(said.contains(one) && !said.contains("unknown"), "{said}");
        let said = shown(&[one], &[two]);
        assert!(said.contains("192.0.2.1/32; unknown: 192.0.2.2/32"), "{said}");
    }
}
