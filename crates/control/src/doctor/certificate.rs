//! The certificates that the API shows by TLS, and that a fleet's store is shown.

#![forbid(unsafe_code)]

use super::Finding;
use crate::api::look_at_papers;
use crate::certificates::{warning, warning_for_store};
use crate::config::Config;

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
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
    let ending = ends.and_then(|ends| warning("the certificate of the API by TLS", ends));
    findings.push(match ending {
        Some(said) => Finding::warn("certificate", said, format!("renew {file}, and weir reload")),
        None => Finding::ok("certificate", format!("{file} can be shown by TLS")),
    });
}

/// What there is to say of the certificate by which a fleet's store knows this balancer, if it ends soon or does not
/// hold.
pub fn of_store(config: &Config) -> Option<String> {
    config.store.as_ref().and_then(warning_for_store)
}

/// What is shown to a fleet's store.
pub(super) fn examine_store(config: &Config, findings: &mut Vec<Finding>) {
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
