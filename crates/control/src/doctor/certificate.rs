//! The certificate that the API shows by TLS.

#![forbid(unsafe_code)]

use super::Finding;
use crate::api::look_at_papers;
use crate::certificates::warning;
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
