//! What the doctor of a backend says of an agent that does what balancers say: what they have asked for last, and
//! whether they take its certificate.

use crate::asked::Given;
use crate::error::Error;
use crate::ready::Wanted;
use crate::speak::{self, Credentials};
use crate::work::{self, Backend};
use std::path::Path;
use weir_host::Finding;

/// What this host is to be, as balancers have said last to the agent that notes it in `directory`. `meant`: somebody says
/// that there is one; if not, and none has noted anything, nothing is found and there is none.
///
/// # Errors
/// [`Error`], of the host.
pub fn asked(
    given: Given,
    directory: &Path,
    meant: bool,
    findings: &mut Vec<Finding>,
) -> Result<Option<Backend>, Error> {
    let Given { interfaces, sources, segments, .. } = given.clone();
    let (backend, words) = match work::asked(given, directory)? {
        Ok(asked) => asked,
        Err(_) if !meant => return Ok(None),
        Err(why) => {
            let mend = "`weir agent --balancer` hears it, and writes it down; or say what the host is to be with \
                        --config or --vip";
            findings.push(Finding::fail("asked", why, mend));
            let (services, tunnels) = (Vec::new(), Vec::new());
            let wanted = Wanted { interfaces, services, tunnels, sources, segments };
            return Ok(Some(Backend::new(wanted)));
        }
    };
    let detail = match backend.wanted.services.len() {
        0 => "balancers ask this host for nothing".to_owned(),
        1 => "balancers ask this host for 1 address".to_owned(),
        all => format!("balancers ask this host for {all} addresses"),
    };
    findings.push(Finding::ok("asked", detail));
    let mend = "look at the services of the balancers that have a backend here";
    findings.extend(words.into_iter().map(|word| Finding::warn("asked", word, mend)));
    Ok(Some(backend))
}

/// Whether the agent will show its certificate, and balancers will take it.
pub fn certificate(credentials: &Credentials) -> Vec<Finding> {
    let looked = credentials.files().and_then(|files| {
        let warnings = speak::look_at(&files)?;
        Ok((files, warnings))
    });
    let mend = "`weir pki issue NAME --role agent --address ...` makes one, where the authority is";
    let (files, warnings) = match looked {
        Ok(looked) => looked,
        Err(error) => return vec![Finding::fail("certificate", error.to_string(), mend)],
    };
    let mut findings: Vec<Finding> =
        warnings.into_iter().map(|word| Finding::warn("certificate", word, mend)).collect();
    // An agent goes on, as the address may come yet, and calls nobody until then.
    if let Err(error) = speak::own_addresses(&files) {
        let words = format!("{error}: the agent calls no balancer");
        findings.push(Finding::fail("certificate", words, mend));
    }
    if findings.is_empty() {
        let detail = format!("{} is an agent's, and holds", files.certificate.display());
        findings.push(Finding::ok("certificate", detail));
    }
    findings
}
