//! Services whose answers pass the balancer: its kernel forwards them.

#![forbid(unsafe_code)]

use super::{Finding, read};
use crate::config::Config;

pub(super) fn examine(config: &Config, findings: &mut Vec<Finding>) {
    for (ipv4, file, setting) in [
        (true, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (false, "/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        let mut services = config.services.iter();
        let found =
            services.find(|service| service.vip.is_ipv4() == ipv4 && service.answers_pass());
        if let Some(service) = found {
            findings.push(forwarding(&service.name, setting, read(file).as_deref()));
        }
    }
}

pub(super) fn forwarding(service: &str, setting: &str, value: Option<&str>) -> Finding {
    if value.is_some_and(|value| value != "0") {
        return Finding::ok("answers", format!("{setting} is on: answers are forwarded"));
    }
    Finding::fail(
        "answers",
        format!(
            "{setting} is off: the answers of service {service:?}, which pass here, go nowhere"
        ),
        format!("sysctl -w {setting}=1"),
    )
}
