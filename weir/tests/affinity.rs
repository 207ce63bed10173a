//! Affinity by client: all connections of a client, to whatever port, are on one backend; and
//! services have nothing to do with each other.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use common::{Held, METHODS, PATIENCE, WEB4};
use weir_lab::topology::{VIP4, client4};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

/// The last one belongs to a service of its own.
const PORTS: [u16; 4] = [8080, 8081, 9090, 80];
const CLIENT_ADDRESSES: usize = 40;
/// Addresses besides, which nobody has heard of before all changes are made.
const FRESH_ADDRESSES: usize = 30;

/// A service at all ports of the address but 80, with the lab's first three backends.
fn any_service(method: &str) -> String {
    let backends: String = (1..=3)
        .map(|n| format!("[[service.backend]]\nname = \"b{}\"\naddress = \"10.77.2.{n}\"\n", n - 1))
        .collect();
    format!(
        "\n[[service]]\nname = \"any\"\nvip = \"{VIP4}\"\nany_port = true\nmethod = \"{method}\"\n\
         affinity = \"client\"\n[service.check]\nport = 80\n{backends}"
    )
}

/// One connection of each client address to each port of the service.
fn hold_all(lab: &Lab) -> Vec<Held> {
    let mut all = Vec::new();
    for (client, netns) in lab.clients().iter().enumerate() {
        let inside = || {
            (0..CLIENT_ADDRESSES)
                .flat_map(|number| PORTS[..3].iter().map(move |port| (number, *port)))
                .map(|(number, port)| {
                    let from = SocketAddr::new(client4(client, number).into(), 0);
                    Held::open(from, SocketAddr::new(VIP4.into(), port)).expect("a connection")
                })
                .collect::<Vec<_>>()
        };
        all.extend(netns.enter(inside).unwrap());
    }
    all
}

/// The backend of each client address; more than one is a failure.
fn homes(held: &[Held]) -> BTreeMap<IpAddr, String> {
    let mut homes = BTreeMap::<IpAddr, BTreeSet<&str>>::new();
    for one in held {
        homes.entry(one.source.ip()).or_default().insert(&one.backend);
    }
    let single = |(client, backends): (IpAddr, BTreeSet<&str>)| {
        assert_eq!(backends.len(), 1, "{client} is on {backends:?}");
        (client, backends.into_iter().next().unwrap_or_default().to_string())
    };
    homes.into_iter().map(single).collect()
}

/// The fresh addresses of all clients.
fn fresh(lab: &Lab) -> impl Iterator<Item = (usize, SocketAddr)> {
    let numbers = CLIENT_ADDRESSES..CLIENT_ADDRESSES + FRESH_ADDRESSES;
    let all =
        (0..lab.clients().len()).flat_map(move |client| numbers.clone().map(move |n| (client, n)));
    all.map(|(client, number)| (client, SocketAddr::new(client4(client, number).into(), 0)))
}

/// Where a client that is unknown would be sent, without asking as one.
fn if_new(balancer: &Balancer, from: SocketAddr) -> String {
    let (from, to) = (format!("{}:1024", from.ip()), format!("{VIP4}:{}", PORTS[0]));
    let text = balancer.command(&["explain", "tcp", &from, &to, "--json"]).unwrap();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(said["known"], false, "{said}");
    // The one of its first packet is said if it is another than that of later ones.
    let first = said["backend_if_new"].as_str().or_else(|| said["backend"].as_str());
    first.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// `lines` are of the service with affinity by client.
fn client_affinity(method: &str, lines: &str) {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec {
        backends: 4,
        addresses_per_client: CLIENT_ADDRESSES + FRESH_ADDRESSES,
        more_ports: PORTS[..3].to_vec(),
        ..LabSpec::default()
    });
    let balancer = common::start_spec(
        &lab,
        BalancerSpec {
            method: method.into(),
            more_services: any_service(method)
                .replace("affinity = \"client\"\n", &format!("affinity = \"client\"\n{lines}")),
            ..BalancerSpec::new(common::WEIR, 4)
        },
    );
    let mut held = hold_all(&lab);
    let first = homes(&held);
    assert_eq!(first.len(), lab.clients().len() * CLIENT_ADDRESSES);
    let mut spread = BTreeMap::<&String, usize>::new();
    first.values().for_each(|home| *spread.entry(home).or_default() += 1);
    assert_eq!(spread.len(), 3, "{spread:?}");
    // 80 clients in three: less than 10 on one of them is less likely than one in a million.
    assert!(spread.values().all(|clients| *clients >= 10), "{spread:?}");

    let changes = [
        "backend add any b3 10.77.2.4 --weight 2",
        "backend drain any b0",
        "backend weight any b1 5",
        "backend drain any b0 --undo",
        "backend weight any b2 0",
    ];
    for change in changes {
        common::command(&balancer, change);
        common::assert_unbroken(&mut held, change, &balancer);
        // A client that is known goes to its backend with new connections too, also while that
        // backend gets no new clients.
        let again = hold_all(&lab);
        assert_eq!(homes(&again), first, "{method}: {change}");
        held.truncate(first.len() * 3);
        held.extend(again.into_iter().step_by(7));
    }
    // The backend that was added serves clients that are new: with jet once it was announced for long enough, in
    // which no client is silent.
    let until = Instant::now() + PATIENCE;
    while !fresh(&lab).any(|(_, from)| if_new(&balancer, from) == "b3") {
        common::assert_unbroken(&mut held, "while it is announced", &balancer);
        assert!(Instant::now() < until, "{method}: b3 gets no new client");
    }
    let went: Vec<String> = fresh(&lab)
        .map(|(client, from)| {
            let to = SocketAddr::new(VIP4.into(), PORTS[0]);
            let opened = lab.clients()[client].enter(|| Held::open(from, to)).unwrap();
            opened.expect("a connection").backend
        })
        .collect();
    assert!(went.iter().any(|backend| backend == "b3"), "{method}: {went:?}");
    // That changes nothing for those that were there before.
    assert_eq!(homes(&hold_all(&lab)), first, "{method}: beside new clients");
    common::assert_unbroken(&mut held, "beside new clients", &balancer);
    // The service at port 80 is another one, and places flows, not clients.
    common::reach_all(&lab, WEB4, 4);
}

#[test]
fn clients_stay_together_with_concury() {
    client_affinity("concury", "");
}

#[test]
fn clients_stay_together_with_tracked() {
    client_affinity("tracked", "");
}

#[test]
fn clients_stay_together_with_residue() {
    client_affinity("residue", "");
}

/// A change is announced, and in force when all clients that have sent something meanwhile are known.
#[test]
fn clients_stay_together_with_jet() {
    client_affinity("jet", "warm_up = 20\n");
}

#[test]
fn a_change_of_one_service_leaves_the_others_alone() {
    let lab = common::lab(4);
    for method in METHODS {
        let balancer = common::start_spec(
            &lab,
            BalancerSpec {
                method: method.into(),
                more_services: any_service(method),
                ..BalancerSpec::new(common::WEIR, 4)
            },
        );
        let without = |tables: Vec<(String, u64, String)>| {
            tables.into_iter().filter(|(name, ..)| name != "any").collect::<Vec<_>>()
        };
        let all = || common::tables(&balancer.status().unwrap());
        let before = all();
        for change in ["backend drain any b0", "backend remove any b1", "backend weight any b2 9"] {
            common::command(&balancer, change);
        }
        let after = all();
        assert_eq!(without(before.clone()), without(after.clone()));
        let own = |tables: &[(String, u64, String)]| {
            tables.iter().find(|(name, ..)| name == "any").cloned().unwrap()
        };
        let (old, new) = (own(&before), own(&after));
        assert!(new.1 == old.1 + 3 && new.2 != old.2, "{old:?} {new:?}");
        drop(balancer);
        std::fs::remove_dir_all(lab.directory().join("weir")).unwrap();
        let name = format!("wl{}", lab.id());
        assert!(common::weir(&["unload", "--name", &name]).status.success());
    }
}

#[test]
fn services_come_and_go_and_the_others_stay_as_they_are() {
    let lab = common::lab_of(LabSpec {
        backends: 4,
        addresses_per_client: CLIENT_ADDRESSES,
        more_ports: PORTS[..3].to_vec(),
        ..LabSpec::default()
    });
    let another = SocketAddr::new(VIP4.into(), PORTS[0]);
    let ask = || {
        let from = SocketAddr::new(client4(0, 0).into(), 0);
        lab.clients()[0].enter(|| Held::open(from, another)).unwrap()
    };
    for method in METHODS {
        let balancer = common::start(&lab, method, 4);
        let read = |text: &str| {
            std::fs::write(balancer.config(), text).unwrap();
            balancer.command(&["reload"]).unwrap();
        };
        let tables = || common::tables(&balancer.status().unwrap());
        let without = std::fs::read_to_string(balancer.config()).unwrap();
        let with = format!("{without}{}", any_service(method));
        let mut held = common::hold(&lab, WEB4, 60);
        let before = tables();
        for turn in 0..3 {
            ask().expect_err("a service that is not there");
            read(&with);
            let after = tables();
            assert_eq!(after.len(), before.len() + 1);
            assert!(before.iter().all(|table| after.contains(table)), "{before:?} {after:?}");
            let mut own = common::hold(&lab, another, 100);
            assert_eq!(common::spread(&own).len(), 3, "{method}, turn {turn}");
            common::assert_unbroken(&mut own, "a service that came", &balancer);
            common::assert_unbroken(&mut held, "another service came", &balancer);
            read(&without);
            assert_eq!(tables(), before, "{method}, turn {turn}");
            common::assert_unbroken(&mut held, "another service went", &balancer);
        }
        drop(balancer);
        std::fs::remove_dir_all(lab.directory().join("weir")).unwrap();
        let name = format!("wl{}", lab.id());
        assert!(common::weir(&["unload", "--name", &name]).status.success());
    }
}
