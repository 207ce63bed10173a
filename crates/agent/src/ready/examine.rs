//! What is wrong with a backend, in the words of `weir doctor`.

use super::programs::{self, Decapsulated};
use super::{Wanted, describe, netlink, own_addresses, settings};
use crate::{Service, alone, attach, maps};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_dataplane::Interface;
use weir_host::Finding;
use weir_host::rtnetlink::interface_name;

/// A service whose server should be on this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Server {
    /// The service's address.
    pub address: IpAddr,
    /// Its port; none if it has all.
    pub port: u16,
    /// Whether it is one of UDP.
    pub udp: bool,
}

const AGENT: &str = "`weir agent` does it, and keeps it so";

/// Looks at the network namespace of the calling thread; changes nothing and sends nothing.
pub fn examine(wanted: &Wanted, servers: &[Server]) -> Vec<Finding> {
    let mut found = vec![agent()];
    for name in &wanted.interfaces {
        found.push(interface(name));
    }
    vips(wanted, &mut found);
    kernel(wanted, &mut found);
    for interface in wanted.present() {
        tunnels(wanted, &interface, &mut found);
        segments(wanted, &interface, &mut found);
    }
    found.extend(servers.iter().map(listens));
    found
}

/// Looks whether cookies are written into the timestamps of what these services answer.
pub fn cookies(wanted: &Wanted, services: &[Service]) -> Vec<Finding> {
    if services.is_empty() {
        return Vec::new();
    }
    let all = services.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let look = |interface: Interface| {
        let name = interface.name;
        if attach::is_at(interface.index) {
            let detail = format!("{name}: cookies are written into the timestamps of {all}");
            return Finding::ok("cookies", detail);
        }
        let mend = match maps::look() {
            Ok(()) => AGENT.to_owned(),
            Err(error) => format!("{error}; then {AGENT}"),
        };
        let detail = format!("{name}: nothing writes cookies into the timestamps of {all}");
        Finding::warn("cookies", detail, mend)
    };
    wanted.present().into_iter().map(look).collect()
}

fn agent() -> Finding {
    match alone::running() {
        Some((pid, interfaces)) => {
            Finding::ok("agent", format!("process {pid} looks after {interfaces}"))
        }
        None => Finding::warn(
            "agent",
            "none runs here: what is set is not looked after",
            "run `weir agent`, in a unit that restarts it",
        ),
    }
}

fn interface(name: &str) -> Finding {
    match (Interface::find(name), netlink::is_up(name)) {
        (Ok(_), Ok(true)) => Finding::ok("interface", format!("{name} is up")),
        (Ok(_), _) => {
            let mend = format!("ip link set {name} up");
            Finding::fail("interface", format!("{name} is down"), mend)
        }
        (Err(_), _) => {
            Finding::fail("interface", format!("there is no {name}"), "`ip link` lists them")
        }
    }
}

fn vips(wanted: &Wanted, found: &mut Vec<Finding>) {
    let present = match netlink::addresses() {
        Ok(present) => present,
        Err(error) => {
            found.push(Finding::fail("vip", error.to_string(), "is rtnetlink there?"));
            return;
        }
    };
    if !netlink::is_up("lo").unwrap_or(true) {
        found.push(Finding::fail("vip", "lo is down, so its addresses are not this host's", AGENT));
    }
    for &address in &wanted.services {
        let on = |index: u32| present.contains(&(index, address));
        let elsewhere =
            present.iter().find(|(index, one)| *index != netlink::LOOPBACK && *one == address);
        let (bits, more) =
            if address.is_ipv4() { (32, "scope host") } else { (128, "nodad preferred_lft 0") };
        let add = format!("ip addr add {address}/{bits} dev lo {more}");
        found.push(match elsewhere {
            Some((index, _)) => {
                let name = interface_name(*index);
                Finding::fail(
                    "vip",
                    format!(
                        "{address} is on {name}, where this host answers for it past the balancer"
                    ),
                    format!("ip addr del {address}/... dev {name}, and {add}"),
                )
            }
            None if on(netlink::LOOPBACK) => Finding::ok("vip", format!("{address} is on lo")),
            None => Finding::fail(
                "vip",
                format!("{address} is not on lo, so packets for it are not this host's"),
                format!("{AGENT}; by hand: {add}"),
            ),
        });
    }
}

fn kernel(wanted: &Wanted, found: &mut Vec<Finding>) {
    if wanted.has_ipv4() {
        match settings::wrong(&wanted.interfaces) {
            Err(error) => {
                found.push(Finding::fail("settings", error.to_string(), "is /proc mounted?"))
            }
            Ok(wrong) if wrong.is_empty() => {
                let detail = "arp_ignore, arp_announce and rp_filter are as backends need them";
                found.push(Finding::ok("settings", detail));
            }
            Ok(wrong) => found.extend(wrong.into_iter().map(|one| {
                let name = one.name.replace('/', ".");
                let detail =
                    format!("net.{name} is {}, and should be {}, {}", one.is, one.wanted, one.why);
                let mend = format!("{AGENT}; by hand: sysctl -w net.{name}={}", one.wanted);
                Finding::fail("settings", detail, mend)
            })),
        }
    }
    if wanted.services.iter().any(IpAddr::is_ipv6) {
        for name in ["lo"].into_iter().chain(wanted.interfaces.iter().map(String::as_str)) {
            let setting = format!("ipv6/conf/{name}/disable_ipv6");
            if settings::read(&setting).is_ok_and(|value| value == "1") {
                found.push(Finding::fail(
                    "settings",
                    format!("IPv6 is off at {name}"),
                    format!("sysctl -w net.ipv6.conf.{name}.disable_ipv6=0"),
                ));
            }
        }
    }
}

fn tunnels(wanted: &Wanted, interface: &Interface, found: &mut Vec<Finding>) {
    if wanted.tunnels.is_empty() {
        return;
    }
    let name = &interface.name;
    let kinds = wanted.tunnels.iter().map(|one| describe(*one)).collect::<Vec<_>>().join(", ");
    let counts = match programs::counted_at(interface) {
        Ok(Some(Ok(counts))) => counts,
        Ok(Some(Err(other))) => {
            found.push(Finding::fail(
                "tunnels",
                format!("{name} has another XDP program ({other:?}), so nothing of weir's takes packets out of {kinds}"),
                "use the kernel's tunnel devices, as docs/forwarding.md has it, or take the program away",
            ));
            return;
        }
        Ok(None) => {
            found.push(Finding::fail(
                "tunnels",
                format!("{name}: no program of weir's takes packets out of {kinds}"),
                format!(
                    "{AGENT}; or set up the kernel's tunnel devices, as docs/forwarding.md has it"
                ),
            ));
            return;
        }
        Err(error) => {
            found.push(Finding::fail("tunnels", error.to_string(), "run it as root"));
            return;
        }
    };
    let Decapsulated { taken, .. } = counts;
    found
        .push(Finding::ok("tunnels", format!("{name}: {taken} packets were taken out of {kinds}")));
    for (count, what, mend) in [
        (
            counts.elsewhere,
            "tunnels that do not end at an address of this host",
            "is the backend's address in the balancer's file this host's own?",
        ),
        (
            counts.strange,
            "packets in tunnels for addresses that are no service's here",
            "give the agent all services that have this host as a backend (--vip)",
        ),
        (
            counts.untrusted,
            "tunnels from other networks than those of --from",
            "give it those of all balancers; or who sends them?",
        ),
        (
            counts.damaged,
            "tunnels with damaged headers",
            "what stands between balancer and backend?",
        ),
        (
            counts.fragments,
            "tunnels that came in fragments",
            "raise the MTU on the way, or ask for smaller segments (--mss)",
        ),
        (
            counts.congested,
            "packets dropped that met congestion on the way and cannot carry its mark",
            "nothing, if they are few: it is what RFC 6040 asks for",
        ),
        (counts.refused, "packets that the kernel refused to cut", "please report it"),
    ] {
        if count > 0 {
            found.push(Finding::warn("tunnels", format!("{name}: {count} {what}"), mend));
        }
    }
}

fn segments(wanted: &Wanted, interface: &Interface, found: &mut Vec<Finding>) {
    if wanted.tunnels.is_empty() {
        return;
    }
    let name = &interface.name;
    let (Ok(own), Ok(mtu)) = (own_addresses(&wanted.services), netlink::mtu(name)) else { return };
    let room = mtu.saturating_sub(wanted.overhead(&own));
    let most = wanted.most(&own).unwrap_or([0, 0]);
    let detail = format!("{name}: packets of up to {room} bytes get through the tunnels");
    found.push(if most == [0, 0] {
        Finding::warn(
            "segments",
            format!("{detail}, and clients are not asked for smaller ones"),
            "leave --mss at auto, unless the links to this backend take larger packets",
        )
    } else if programs::is_lowered_at(interface) {
        Finding::ok("segments", format!("{detail}, and clients of TCP are asked to send such"))
    } else {
        Finding::warn(
            "segments",
            format!("{detail}, and clients of TCP may send larger ones"),
            format!("{AGENT}; by hand: ip route change default ... advmss {}", most[1]),
        )
    });
}

fn listens(server: &Server) -> Finding {
    let Server { address, port, udp } = *server;
    let protocol = if udp { "udp" } else { "tcp" };
    let files = [protocol.to_owned(), format!("{protocol}6")];
    let sockets = files
        .iter()
        .filter_map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).ok());
    let there = sockets.flat_map(|text| text.lines().filter_map(socket).collect::<Vec<_>>()).any(
        |(local, at, state)| {
            let any = match address {
                // A socket of IPv6 without IPV6_V6ONLY, which the file does not show, takes both.
                IpAddr::V4(_) => {
                    local == IpAddr::from(Ipv4Addr::UNSPECIFIED)
                        || local == IpAddr::from(Ipv6Addr::UNSPECIFIED)
                }
                IpAddr::V6(_) => local == IpAddr::from(Ipv6Addr::UNSPECIFIED),
            };
            at == port && (udp || state == LISTEN) && (any || local == address)
        },
    );
    if there {
        return Finding::ok(
            "server",
            format!("{protocol} port {port}: a server is there for {address}"),
        );
    }
    Finding::fail(
        "server",
        format!("nothing listens at {address}, {protocol} port {port}"),
        "start the server; it must listen at this address or at all",
    )
}

/// Of the kernel's `enum`, in hexadecimal.
const LISTEN: u32 = 0x0a;

/// Address, port and state of a line of /proc/net/tcp, tcp6, udp or udp6.
fn socket(line: &str) -> Option<(IpAddr, u16, u32)> {
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = u32::from_str_radix(fields.nth(1)?, 16).ok()?;
    // Words as the host has them of what is on the wire.
    let word = |at: usize| {
        Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes())
    };
    let address: IpAddr = match address.len() {
        8 => word(0)?.into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let octets: [u8; 16] = words.as_flattened().try_into().ok()?;
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_host::Verdict;

    #[test]
    fn sockets_are_read_as_the_kernel_writes_them() {
        let line = "   0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000";
        assert_eq!(socket(line), Some(([127, 0, 0, 1].into(), 80, LISTEN)));
        let line = "   1: B80D0120000000000000000001000000:01BB 00000000000000000000000000000000:0000 07 0";
        assert_eq!(socket(line), Some(("2001:db8::1".parse().unwrap(), 443, 7)));
        assert_eq!(socket("  sl  local_address rem_address   st tx_queue"), None);
        for line in ["", "0:", "0: zz:zz 1 2", "0: 0100007F:0050", "0: 0100007:0050 0 0A"] {
            assert_eq!(socket(line), None, "{line}");
        }
    }

    #[test]
    fn a_server_that_listens_is_found_and_another_is_not() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let server = Server { address: [127, 0, 0, 1].into(), port, udp: false };
        assert_eq!(listens(&server).verdict, Verdict::Ok);
        assert_eq!(listens(&Server { udp: true, ..server }).verdict, Verdict::Fail);
        drop(here);
        // A process that another test starts has a copy of it until it runs its program.
        let gone = || listens(&server).verdict == Verdict::Fail;
        assert!((0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            gone()
        }));
    }
}
