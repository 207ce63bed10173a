//! A P4 switch whose ports are this host's interfaces, and what of the host would be in its way (docs/p4.md).

use std::net::IpAddr;

use super::{DoctorInput, Finding, read};
use crate::config::{Config, Service};
use crate::neigh::{self, Taken};
use weir_plane_p4::Switch;

pub(super) fn examine(input: &DoctorInput, findings: &mut Vec<Finding>) {
    let DoctorInput { config, patience, .. } = input;
    let address = config.p4.thrift;
    findings.push(match Switch::look(&address.to_string(), *patience) {
        Ok(()) => {
            let said = format!("there is a switch at {address} that runs p4/weir.p4");
            Finding::ok("switch", said + "; let no other host reach this port (docs/p4.md)")
        }
        Err(error) if error.is_gone() => Finding::fail(
            "switch",
            error.to_string(),
            "start it in this network namespace: simple_switch weir.json --thrift-port PORT",
        ),
        Err(error) => Finding::fail(
            "switch",
            error.to_string(),
            "start it with p4/weir.p4 of this version, compiled by p4c-bm2-ss (docs/p4.md)",
        ),
    });
    let there = super::missing_interfaces(config);
    for name in &config.balancer.interfaces {
        findings.push(match there.contains(name) {
            false => Finding::ok("interface", format!("{name} is there")),
            true => Finding::fail("interface", format!("{name} is not there"), "see `ip link`"),
        });
    }
    let found = in_the_way(config);
    if found.is_empty() {
        let fine = "its stack leaves the packets of services to the switch";
        findings.push(Finding::ok("host", fine));
    }
    findings.extend(found.into_iter().map(|(what, mend)| Finding::fail("host", what, mend)));
}

/// What is in the plane's way, and what to do.
pub(crate) type Hindrance = (String, String);

/// What the host does with packets that the switch forwards, as its stack sees them, too; and what to do.
pub(crate) fn in_the_way(config: &Config) -> Vec<Hindrance> {
    let mut found = Vec::new();
    for service in &config.services {
        for vip in service.hosts() {
            found.extend(disturbs(config, service, vip));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// What its stack does with packets of one address, if that is not nothing.
fn disturbs(config: &Config, service: &Service, vip: IpAddr) -> Option<Hindrance> {
    let (name, family, bits) = match vip {
        IpAddr::V4(_) => (&service.name, "", 32),
        IpAddr::V6(_) => (&service.name, " -6", 128),
    };
    let leave_alone = format!("ip{family} route add blackhole {vip}/{bits}");
    match neigh::taken(vip)? {
        Taken::Answers => Some((
            format!(
                "{vip} of service {name:?} is an address of this host, which answers beside the switch"
            ),
            format!("take it off, and lead routers here by a route to {vip}"),
        )),
        // Without a route it says so to IPv6 senders; to those of IPv4 only as a router.
        Taken::Refused if vip.is_ipv6() => Some((
            format!(
                "this host has no route to {vip} of service {name:?}: its stack tells clients that there is no \
                 way, and they believe it"
            ),
            leave_alone,
        )),
        // Where answers come by, the host is a router.
        Taken::SentOn | Taken::Refused if !service.answers_come() => {
            let setting = forwards(config, vip)?;
            Some((
                format!(
                    "this host forwards ({setting}): packets to {vip} of service {name:?} go on twice"
                ),
                format!("{leave_alone}   (or sysctl -w {setting}=0)"),
            ))
        }
        _ => None,
    }
}

/// The setting by which the host forwards what comes in by one of the switch's ports, if it does. In IPv4 each
/// interface has its own.
fn forwards(config: &Config, vip: IpAddr) -> Option<String> {
    let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
    let all = ["all".to_owned()];
    let names = if vip.is_ipv4() { &config.balancer.interfaces[..] } else { &all };
    let on = |name: &&String| {
        let file = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        read(&file).is_some_and(|value| value != "0")
    };
    // In a setting's name dots and slashes change places, and the interface of a VLAN has a dot.
    let setting =
        |name: &String| format!("net.{family}.conf.{}.forwarding", name.replace('.', "/"));
    names.iter().find(on).map(setting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testnet::Pair;

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
        let pair = Pair::new();
        pair.lb.ip("address add 192.0.2.1/32 dev lo").unwrap();
        let found = pair.lb.enter(|| (of("192.0.2.1"), of("192.0.2.9"))).unwrap();
        assert_eq!(found, (1, 0));
    }

    /// Each by its name in what is said.
    #[test]
    fn the_stack_is_to_say_nothing() {
        let pair = Pair::new();
        let lb = &pair.lb;
        // Of a name as the interface of a VLAN has it.
        lb.ip("link add eth0.7 type veth peer name other\nlink set eth0.7 up").unwrap();
        let found = |vip: &str| {
            let text = format!(
                "[balancer]\nplane = \"p4\"\ninterfaces = [\"eth0.7\"]\n[[service]]\nname = \"web\"\nvip = \"{vip}\"\n\
                 port = 80\n[[service.backend]]\nname = \"b0\"\naddress = \"{vip}7\"\n"
            );
            let config = Config::parse(&text, "weir.toml").expect("it is good");
            let all: Vec<String> = in_the_way(&config)
                .into_iter()
                .map(|(what, mend)| format!("{what}: {mend}"))
                .collect();
            all.join("; ")
        };
        lb.enter(|| {
            let (v4, v6) = ("192.0.2.1", "2001:db8::1");
            for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                weir_testbed::sysctl(setting, "0").unwrap();
            }
            // Senders of IPv6 are told that there is no way.
            assert_eq!(found(v4), "");
            let said = found(v6);
            assert!(said.contains("no route to 2001:db8::1 of service \"web\""), "{said}");
            assert!(said.ends_with("ip -6 route add blackhole 2001:db8::1/128"), "{said}");
            // One interface alone forwards.
            weir_testbed::sysctl("ipv4/conf/eth0.7/forwarding", "1").unwrap();
            lb.ip("route add 192.0.2.0/24 dev eth0.7").unwrap();
            let said = found(v4);
            assert!(said.contains("forwards (net.ipv4.conf.eth0/7.forwarding)"), "{said}");
            assert!(said.contains("ip route add blackhole 192.0.2.1/32"), "{said}");
            lb.ip("route add blackhole 192.0.2.1/32\nroute add blackhole 2001:db8::1/128").unwrap();
            assert_eq!((found(v4), found(v6)), (String::new(), String::new()));
        })
        .unwrap();
    }
}
