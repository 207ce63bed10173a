use std::thread::sleep;
use std::time::Duration;

use super::*;
use crate::testnet::Pair;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Asks until there is an answer; the first answer must be that there is none yet.
fn resolve_soon(wanted: IpAddr) -> Neighbour {
    assert_eq!(resolve_now(wanted).unwrap(), None, "{wanted}");
    // A machine that is busy with other things is slow.
    for _ in 0..6000 {
        sleep(Duration::from_millis(20));
        if let Some(found) = resolve_now(wanted).unwrap() {
            return found;
        }
    }
    panic!("{wanted} is not resolved");
}

#[test]
fn backends_on_the_link_are_resolved() {
    let pair = Pair::new();
    let (lb, backend) = (&pair.lb, &pair.backend);
    let mac = backend.enter(|| interface_mac("eth0").unwrap()).unwrap();
    lb.enter(|| {
        let expected = Neighbour {
            mac,
            ifindex: interface_index("eth0").unwrap(),
            source_mac: interface_mac("eth0").unwrap(),
        };
        for text in ["10.9.0.2", "fd09::2"] {
            assert_eq!(resolve_soon(address(text)), expected, "{text}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(resolve(address("10.9.0.2"))).unwrap();
        assert_eq!(found, Some(expected));
    })
    .unwrap();
}

#[test]
fn backends_behind_a_router_get_the_routers_address() {
    let pair = Pair::new();
    let (lb, backend) = (&pair.lb, &pair.backend);
    lb.ip("route add 10.77.0.0/16 via 10.9.0.2").unwrap();
    lb.ip("route add fd77::/64 via fd09::2").unwrap();
    let mac = backend.enter(|| interface_mac("eth0").unwrap()).unwrap();
    lb.enter(|| {
        for (text, gateway) in [("10.77.1.1", "10.9.0.2"), ("fd77::1", "fd09::2")] {
            let route = route(address(text)).unwrap();
            assert_eq!(route.gateway, Some(address(gateway)));
            assert!(route.source.is_some());
            assert_eq!(resolve_soon(address(text)).mac, mac);
        }
    })
    .unwrap();
}

#[test]
fn what_cannot_be_reached_is_said() {
    let pair = Pair::new();
    let lb = &pair.lb;
    lb.ip("route add unreachable 10.78.0.0/16").unwrap();
    lb.enter(|| {
        for text in ["192.0.2.1", "10.78.0.1", "2001:db8::1"] {
            let error = resolve_now(address(text)).unwrap_err();
            assert!(matches!(error, NeighError::NoRoute { .. }), "{text}: {error}");
        }
        for text in ["10.9.0.1", "fd09::1", "127.0.0.1", "::1"] {
            let error = resolve_now(address(text)).unwrap_err();
            assert!(matches!(error, NeighError::Local { .. }), "{text}: {error}");
        }
        // On the link, and nobody has it.
        assert_eq!(resolve_now(address("10.9.0.99")).unwrap(), None);
        for name in ["eth1", "", "a-name-far-too-long-for-an-interface", "é"] {
            let error = interface_index(name).unwrap_err();
            assert!(matches!(error, NeighError::NoInterface { .. }), "{name}: {error}");
        }
    })
    .unwrap();
}

#[test]
fn a_neighbour_that_failed_is_told_apart() {
    let pair = Pair::new();
    let lb = &pair.lb;
    lb.sysctl("ipv4/neigh/eth0/mcast_solicit", "1").unwrap();
    lb.sysctl("ipv4/neigh/eth0/retrans_time_ms", "20").unwrap();
    lb.enter(|| {
        let nobody = address("10.9.0.99");
        let index = interface_index("eth0").unwrap();
        assert_eq!(neighbour(nobody, index).unwrap(), Resolution::Unknown);
        provoke(nobody, index);
        let failed = || neighbour(nobody, index).unwrap() == Resolution::Failed;
        let soon = (0..6000).any(|_| {
            sleep(Duration::from_millis(20));
            failed()
        });
        assert!(soon, "{:?}", neighbour(nobody, index));
    })
    .unwrap();
}

#[test]
fn interfaces_and_addresses_are_described() {
    let pair = Pair::new();
    let lb = &pair.lb;
    lb.ip("link set eth0 mtu 1400").unwrap();
    lb.ip("addr add 10.0.0.1/32 dev lo").unwrap();
    lb.enter(|| {
        let eth0 = interface("eth0").unwrap();
        assert!(eth0.up && eth0.running && eth0.veth && !eth0.xdp, "{eth0:?}");
        assert_eq!((eth0.mtu, eth0.link), (1400, None));
        assert_eq!(interface_mtu("eth0").unwrap(), 1400);
        assert_eq!(interface_by_index(eth0.index).unwrap(), eth0);
        let lo = interface("lo").unwrap();
        assert!(!lo.veth && lo.mac == Some([0; 6]));
        let all = addresses().unwrap();
        for (index, text) in [
            (eth0.index, "10.9.0.1"),
            (eth0.index, "fd09::1"),
            (lo.index, "10.0.0.1"),
            (lo.index, "::1"),
        ] {
            assert!(all.contains(&(index, address(text))), "{text} in {all:?}");
        }
    })
    .unwrap();
    lb.ip("link set eth0 down").unwrap();
    lb.enter(|| assert!(!interface("eth0").unwrap().up)).unwrap();
}
