//! The certificates that the API shows by TLS, that agents are shown, and that a fleet's store is shown.

#![forbid(unsafe_code)]

use super::Finding;
use crate::api::look_at_papers;
use crate::certificates::{Useless, look_for_agents, warning, warning_for_store};
use crate::config::Config;

const OF_API: &str = "the certificate of the API by TLS";

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    examine_api(config, findings);
    examine_agents(config, findings);
    examine_store(config, findings);
}

fn examine_api(config: &Config, findings: &mut Vec<Finding>) {
    let Some(tls) = &config.api.tls else { return };
    let file = tls.certificate.display();
    let ends = match look_at_papers(tls) {
        Ok(ends) => ends,
        // Packets are balanced all the same.
        Err(why) => {
            findings.push(Finding::warn(
                "certificate",
                format!("no API by TLS: {why}"),
                "mend the files that [api] names, and weir reload; or run weir doctor as who may read them",
            ));
            return;
        }
    };
    let ending = ends.and_then(|ends| warning(OF_API, ends));
    findings.push(match ending {
        Some(said) => Finding::warn("certificate", said, format!("renew {file}, and weir reload")),
        None => Finding::ok("certificate", format!("{file} can be shown by TLS")),
    });
}

/// What is shown to agents, and to other balancers of a fleet.
fn examine_agents(config: &Config, findings: &mut Vec<Finding>) {
    let Some(agents) = &config.agents else { return };
    let file = agents.certificate.display();
    let renew = || format!("renew {file}, and weir reload");
    findings.push(match look_for_agents(agents) {
        // A first start is refused.
        Err(Useless::Unread(why)) => Finding::fail(
            "certificate",
            format!("agents cannot be shown it: {why}"),
            "mend the files that [agents] names, and weir reload; or run weir doctor as who may read them",
        ),
        Err(Useless::Untaken(why)) => {
            Finding::fail("certificate", format!("no agent calls: {why}"), renew())
        }
        Ok(Some(soon)) => Finding::warn("certificate", soon, renew()),
        Ok(None) => Finding::ok("certificate", format!("{file} can be shown to agents")),
    });
}

/// What there is to say of the certificates that agents and clients of the API are to be shown, on the host that the
/// configuration is for: of those that are of no use, or end soon.
pub fn of_listeners(config: &Config) -> Vec<String> {
    let api = config.api.tls.as_ref().and_then(|tls| match look_at_papers(tls) {
        Ok(ends) => ends.and_then(|ends| warning(OF_API, ends)),
        Err(why) => Some(format!("no API by TLS: {why}")),
    });
    let agents = config.agents.as_ref().and_then(|agents| match look_for_agents(agents) {
        Ok(soon) => soon,
        Err(useless) => Some(format!("agents: {}", useless.words())),
    });
    api.into_iter().chain(agents).collect()
}

/// What there is to say of the certificate by which a fleet's store knows this balancer, if it ends soon or does not
/// hold.
pub fn of_store(config: &Config) -> Option<String> {
    config.store.as_ref().and_then(warning_for_store)
}

/// What is shown to a fleet's store.
fn examine_store(config: &Config, findings: &mut Vec<Finding>) {
    let Some(store) = &config.store else { return };
    if let Some(said) = store.warning() {
        findings.push(Finding::warn("store", said, "encrypt it (docs/fleet.md, The store)"));
    }
    let Some(file) = store.own_certificate() else { return };
    let renew = || format!("renew {}; a new one counts from the next try on", file.display());
    findings.push(match (store.identity(), store.lapsed(), of_store(config)) {
        (Err(why), ..) => Finding::fail(
            "store",
            format!("the fleet's store is not reached: {why}"),
            "mend the file that [store] names; or run weir doctor as who may read it",
        ),
        (_, Some(said), _) => Finding::fail(
            "store",
            format!("the fleet's store refuses this balancer: {said}"),
            renew(),
        ),
        (_, _, Some(said)) => Finding::warn("store", said, renew()),
        _ => Finding::ok("store", format!("{} can be shown to the fleet's store", file.display())),
    });
}
