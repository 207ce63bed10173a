//! A P4 switch whose ports are this host's interfaces, and what of the host would be in its way (docs/p4.md).

use std::net::TcpStream;

use super::{DoctorInput, Finding, read};
use crate::config::Config;
use crate::neigh;

pub(super) fn examine(input: &DoctorInput, findings: &mut Vec<Finding>) {
    let DoctorInput { config, patience, .. } = input;
    let address = config.p4.thrift;
    findings.push(match TcpStream::connect_timeout(&address, *patience) {
        Ok(_) => Finding::ok("switch", format!("there is a switch at {address}")),
        Err(error) => Finding::fail(
            "switch",
            format!("no switch at {address}: {error}"),
            "start it in this network namespace: simple_switch weir.json --thrift-port PORT",
        ),
    });
    let there = super::missing_interfaces(config);
    for name in &config.balancer.interfaces {
        findings.push(match there.contains(name) {
            false => Finding::ok("interface", format!("{name} is there")),
            true => Finding::fail("interface", format!("{name} is not there"), "see `ip link`"),
        });
    }
    let found = in_the_way(config).into_iter();
    findings.extend(found.map(|(what, mend)| Finding::fail("host", what, mend)));
}

/// What the host does with packets that the switch forwards, as its stack sees them, too; and what to do.
pub(crate) fn in_the_way(config: &Config) -> Vec<(String, String)> {
    let own = neigh::addresses().unwrap_or_default();
    let services = || config.services.iter();
    let local = services().flat_map(|service| {
        let vips = service.hosts().filter(|vip| own.iter().any(|(_, address)| address == vip));
        vips.map(move |vip| {
            let name = &service.name;
            (
                format!("{vip} of service {name:?} is an address of this host, which answers beside the switch"),
                format!("take it off, and lead routers here by a route to {vip}"),
            )
        })
    });
    let forwards = [
        (true, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (false, "/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ]
    .into_iter()
    .filter(|(ipv4, file, _)| {
        // Where answers come by, the host is a router.
        let concerned = services().any(|one| one.has_family(*ipv4) && !one.answers_come());
        concerned && read(file).is_some_and(|value| value != "0")
    })
    .map(|(_, _, setting)| {
        (
            format!("this host forwards ({setting}): packets of services go on twice"),
            format!("sysctl -w {setting}=0"),
        )
    });
    local.chain(forwards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_hosts_is_in_the_way() {
        let of = |vip: &str| {
            let text = format!(
                "[balancer]\nplane = \"p4\"\ninterfaces = [\"lo\"]\n[[service]]\nname = \"web\"\nvip = \"{vip}\"\n\
                 port = 80\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
            );
            let config = Config::parse(&text, "weir.toml").expect("it is good");
            let found = in_the_way(&config);
            found.into_iter().filter(|(what, _)| what.contains("answers beside")).count()
        };
        assert_eq!((of("127.0.0.1"), of("192.0.2.9")), (1, 0));
    }
}
