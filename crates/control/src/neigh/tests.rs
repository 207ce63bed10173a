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
fn backends_behind_a_router_are_refused() {
    let pair = Pair::new();
    let lb = &pair.lb;
    lb.ip("route add 10.77.0.0/16 via 10.9.0.2").unwrap();
    lb.ip("route add fd77::/64 via fd09::2").unwrap();
    lb.enter(|| {
        for (text, gateway) in [("10.77.1.1", "10.9.0.2"), ("fd77::1", "fd09::2")] {
            let route = route(address(text)).unwrap();
            assert_eq!(route.gateway, Some(address(gateway)));
            assert!(route.source.is_some());
            let error = resolve_now(address(text)).unwrap_err();
            assert!(matches!(error, NeighError::Gateway { .. }), "{error}");
            assert!(error.to_string().contains(&format!("behind the router {gateway}")), "{error}");
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
            // The kernel takes an address of IPv6 for its own a moment after it was given.
            let begun = std::time::Instant::now();
            let error = loop {
                match resolve_now(address(text)) {
                    Err(error) => break error,
                    Ok(found) => {
                        assert!(begun.elapsed() < Duration::from_secs(60), "{text}: {found:?}")
                    }
                }
                sleep(Duration::from_millis(10));
            };
            assert!(matches!(error, NeighError::Local { .. }), "{text}: {error}");
        }
        let error = resolve_now(address("10.9.0.255")).unwrap_err();
        assert!(matches!(error, NeighError::Broadcast { .. }), "{error}");
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
fn ways_out_are_told_by_what_an_interface_is() {
    let interface = |index: u32, kind: Option<Kind>, link: Option<u32>| Interface {
        index,
        name: format!("if{index}"),
        mac: Some([2; 6]),
        mtu: 1500,
        up: true,
        running: true,
        veth: false,
        kind,
        master: None,
        link,
        xdp: false,
    };
    let other = |kind: &str| Some(Kind::Other(kind.to_owned()));
    let vlan = |plain| Some(Kind::Vlan { id: 0x123, plain });
    let all = [
        interface(1, None, None),
        interface(2, Some(Kind::Bond { refuses: None }), None),
        interface(3, Some(Kind::Bridge), None),
        interface(4, vlan(true), Some(1)),
        interface(5, vlan(false), Some(2)),
        interface(6, vlan(true), Some(4)),
        interface(7, vlan(true), Some(3)),
        interface(8, vlan(true), Some(99)),
        interface(9, other("macvlan"), Some(1)),
        interface(10, other("veth"), None),
    ];
    let tagged = |lower, tag| Some(WayOut::Tagged { lower, tag });
    let ways: Vec<Option<WayOut>> = all.iter().map(|one| way_out(one, &all).ok()).collect();
    let plain = Some(WayOut::AsItIs);
    let right = [
        plain,
        plain,
        None,
        tagged(1, [0x81, 0, 1, 0x23]),
        tagged(2, [0x88, 0xa8, 1, 0x23]),
        None,
        None,
        None,
        None,
        plain,
    ];
    assert_eq!(ways, right);
    assert_eq!(way_out(&all[2], &all).unwrap_err(), "if3 (a bridge)");

    // A bond takes what its mode and each of its members take.
    let bond = |index, why: Option<&str>| {
        interface(index, Some(Kind::Bond { refuses: why.map(str::to_owned) }), None)
    };
    let mut bonds = [
        bond(1, None),
        interface(2, None, None),
        interface(3, other("veth"), None),
        bond(4, Some("of mode balance-alb")),
        interface(5, vlan(true), Some(4)),
    ];
    (bonds[1].master, bonds[2].master) = (Some(1), Some(1));
    assert_eq!(way_out(&bonds[0], &bonds), Ok(WayOut::AsItIs));
    assert_eq!(way_out(&bonds[3], &bonds).unwrap_err(), "if4 (a bond of mode balance-alb)");
    assert_eq!(way_out(&bonds[4], &bonds).unwrap_err(), "if4 (a bond of mode balance-alb)");
    bonds[2].kind = other("dummy");
    assert_eq!(way_out(&bonds[0], &bonds).unwrap_err(), "if1 (a bond over if3 (dummy))");
}

#[test]
fn bonds_work_in_the_modes_that_have_xdp() {
    use netlink_packet_route::link::{BondMode, BondXmitHashPolicy, InfoBond};
    let refuses =
        |mode, policy| bond_refuses(&[InfoBond::Mode(mode), InfoBond::XmitHashPolicy(policy)]);
    for mode in [BondMode::BalanceRr, BondMode::ActiveBackup] {
        assert_eq!(refuses(mode, BondXmitHashPolicy::VlanSrcMac), None);
    }
    for mode in [BondMode::BalanceXor, BondMode::Ieee8023Ad] {
        assert_eq!(refuses(mode, BondXmitHashPolicy::Layer34), None);
        let why = refuses(mode, BondXmitHashPolicy::VlanSrcMac);
        assert_eq!(why.as_deref(), Some("with xmit_hash_policy vlan+srcmac"));
    }
    for (mode, name) in [
        (BondMode::Broadcast, "broadcast"),
        (BondMode::BalanceTlb, "balance-tlb"),
        (BondMode::BalanceAlb, "balance-alb"),
    ] {
        let why = refuses(mode, BondXmitHashPolicy::Layer2);
        assert_eq!(why, Some(format!("of mode {name}")));
    }
}

/// What the kernel tells of is told on, once for what comes together.
#[test]
fn changes_are_told_as_they_happen() {
    let pair = Pair::new();
    let (tell, told) = std::sync::mpsc::channel();
    let telling = move |change| tell.send((change, std::time::Instant::now())).is_ok();
    pair.lb.enter(|| watch(telling).unwrap()).unwrap();
    let expect = |what: &str, lines: &str, is: &dyn Fn(&Change) -> bool| {
        let started = std::time::Instant::now();
        pair.lb.ip(lines).unwrap();
        loop {
            let next = told.recv_timeout(Duration::from_secs(120));
            let (change, at) = next.unwrap_or_else(|_| panic!("{what} is not told"));
            if is(&change) {
                println!("{what}: told after {:?}", at.saturating_duration_since(started));
                return;
            }
        }
    };
    expect("an address", "link set eth0 address 02:99:00:00:00:07", &|c| c.interfaces);
    expect("a route", "route add 10.80.0.0/16 via 10.9.0.2", &|c| c.routes);
    let neighbour = address("10.9.0.77");
    let is = |c: &Change| c.neighbours.contains(&neighbour);
    for mac in ["02:99:00:00:00:08", "02:99:00:00:00:09"] {
        let line = format!("neigh replace 10.9.0.77 lladdr {mac} dev eth0 nud permanent");
        expect("a neighbour", &line, &is);
    }
    expect("an interface that is gone", "link del eth0", &|c| c.interfaces);
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

/// One socket and what it has learnt serve for all of them, also after a question that the kernel refuses, and no
/// longer than for the work.
#[test]
fn questions_that_are_asked_together_have_the_answers_that_they_have_apart() {
    let pair = Pair::new();
    let asked = pair.lb.enter(|| {
        let index = interface_index("eth0").unwrap();
        let ask = || (interface_by_index(index).unwrap(), route(address("10.9.0.2")).unwrap());
        let apart = ask();
        together(|| {
            for _ in 0..2 {
                assert!(interface_by_index(index + 1000).is_err());
                assert_eq!(together(ask), apart);
                let all = interfaces().unwrap();
                assert!(all.iter().any(|one| (one.index, one.mac) == (index, apart.0.mac)));
            }
            assert!(COMMON.with_borrow(Option::is_some));
        });
        assert!(COMMON.with_borrow(Option::is_none));
    });
    asked.unwrap();
}
