//! Where frames go: with and without the kernel's FIB, and when a backend's Ethernet address
//! changes.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use common::{Held, WEB4, WEB6, eventually};
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

fn hold_both(lab: &Lab, count: usize) -> Vec<Held> {
    let mut held = common::hold(lab, WEB4, count);
    held.extend(common::hold(lab, WEB6, count));
    held
}

fn switch_forwarding(lab: &Lab, on: bool) {
    let value = if on { "1" } else { "0" };
    for path in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
        common::sysctl(lab.balancer(), path, value);
    }
}

/// A next hop is kept for 64 jiffies, 640 ms at most.
fn let_next_hops_expire() {
    thread::sleep(Duration::from_millis(800));
}

fn dropped_without_next_hop(balancer: &Balancer) -> u64 {
    let status = balancer.status().unwrap();
    let outcomes = status["outcomes"].as_array().unwrap();
    let found = outcomes.iter().find(|one| one["reason"] == "no_next_hop");
    found.map_or(0, |one| one["dropped"].as_u64().unwrap())
}

#[test]
fn without_forwarding_the_neighbour_table_serves() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let mut held = hold_both(&lab, 40);
    switch_forwarding(&lab, false);
    for round in 0..3 {
        let_next_hops_expire();
        common::assert_unbroken(
            &mut held,
            &format!("without forwarding, round {round}"),
            &balancer,
        );
    }
    common::reach_all(&lab, WEB4, 3);
    common::reach_all(&lab, WEB6, 3);
    balancer.command(&["backend", "drain", "web4", "b0"]).unwrap();
    common::assert_unbroken(&mut held, "after a drain without forwarding", &balancer);

    // From the start, too: nothing was ever learnt from the FIB.
    balancer.kill();
    let name = format!("wl{}", lab.id());
    assert!(common::weir(&["unload", "--name", &name]).status.success());
    std::fs::remove_dir_all(lab.directory().join("weir")).unwrap();
    std::fs::create_dir(lab.directory().join("weir")).unwrap();
    balancer.launch().unwrap();
    lab.await_service(common::PATIENCE).unwrap();
    common::reach_all(&lab, WEB4, 3);
    common::reach_all(&lab, WEB6, 3);

    let mut held = hold_both(&lab, 40);
    switch_forwarding(&lab, true);
    let_next_hops_expire();
    common::assert_unbroken(&mut held, "with forwarding again", &balancer);
    println!("{} packets had no next hop", dropped_without_next_hop(&balancer));
}

/// How long it takes to ask every connection, which must be answered by its own backend.
fn all_answered(held: &mut [Held]) -> Duration {
    let started = Instant::now();
    // TCP repeats what was lost, so a connection that waits is not broken.
    let troubles = common::troubles(held);
    assert!(troubles.is_empty(), "{troubles:?}");
    started.elapsed()
}

/// How long until every connection is answered by its own backend again, and each backend gets new ones. How long
/// that may take is no promise: it takes TCP's own pauses, and a machine has other things to do.
fn recovery(lab: &Lab, held: &mut [Held]) -> Duration {
    let recovered = all_answered(held);
    for to in [WEB4, WEB6] {
        common::reach_all(lab, to, lab.backends().len());
    }
    recovered
}

#[test]
fn a_backend_with_a_new_ethernet_address_is_found() {
    let _alone = common::alone();
    for forwarding in [true, false] {
        let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
        let balancer = common::start(&lab, "concury", 3);
        switch_forwarding(&lab, forwarding);
        let mut held = hold_both(&lab, 30);
        all_answered(&mut held);
        // A backend that takes over an address says so (RFC 5227, RFC 4861 7.2.6).
        let b1 = lab.backend(1).netns();
        common::sysctl(b1, "ipv4/conf/all/arp_notify", "1");
        common::sysctl(b1, "ipv6/conf/eth0/ndisc_notify", "1");
        common::sysctl(b1, "ipv6/conf/all/ndisc_notify", "1");
        common::sh(b1, "ip link set dev eth0 address 02:77:00:00:02:f1");
        let took = recovery(&lab, &mut held);
        println!("forwarding {forwarding}: an announced address was taken up within {took:?}");
        drop(balancer);
    }
}

/// The balancer's interface gets another address, then is taken away and comes back, under
/// connections. None breaks, and the balancer answers none of them itself. The control plane follows
/// within a moment; TCP's own pause before it repeats is what takes time.
#[test]
fn the_balancers_interface_may_change_and_come_back() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    // Neighbours are told of a new address (RFC 5227, RFC 4861 7.2.6).
    common::sysctl(lab.balancer(), "ipv4/conf/all/arp_notify", "1");
    common::sysctl(lab.balancer(), "ipv4/conf/default/arp_notify", "1");
    common::sysctl(lab.balancer(), "ipv6/conf/all/ndisc_notify", "1");
    common::sysctl(lab.balancer(), "ipv6/conf/eth0/ndisc_notify", "1");
    let balancer = common::start(&lab, "concury", 3);
    let mut held = hold_both(&lab, 30);
    all_answered(&mut held);
    // A client that has just heard of an address may take no other for a second: what is tried here
    // is the balancer, so the clients ask anew.
    let ask_anew = || {
        for client in lab.clients() {
            common::sh(client, "ip neigh flush all");
        }
    };
    common::sh(lab.balancer(), "ip link set dev eth0 address 02:77:00:00:ff:f1");
    ask_anew();
    let took = recovery(&lab, &mut held);
    println!("another address: {took:?}");
    lab.replace_balancer_interface().unwrap();
    ask_anew();
    let took = recovery(&lab, &mut held);
    println!("another interface: {took:?}");
    common::assert_unbroken(&mut held, "after the interface came back", &balancer);
    let status = balancer.status().unwrap();
    assert_eq!(status["interfaces"][0][0], "eth0", "{status}");
}

#[test]
fn a_new_ethernet_address_that_nobody_announced_keeps_nothing_down_for_long() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    // The kernel believes in an address for 15 to 45 seconds, and then asks for 10: here less.
    for (name, value) in [("base_reachable_time_ms", "1000"), ("delay_first_probe_time", "1")] {
        for family in ["ipv4", "ipv6"] {
            common::sysctl(lab.balancer(), &format!("{family}/neigh/eth0/{name}"), value);
        }
    }
    let balancer = common::start(&lab, "concury", 3);
    let b1 = lab.backend(1).netns();
    common::sh(b1, "ip link set dev eth0 address 02:77:00:00:02:f1");
    // New connections are kept from a backend that does not answer its health check, and it gets
    // them again when the kernel has found it.
    let state = || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "web4"), "b1")["state"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let down = eventually("b1 is down", || state() == "down");
    assert_eq!(common::shorts(&lab, WEB4, 300, 0, 4).len(), 2);
    let up = eventually("b1 is up again", || state() == "up");
    common::reach_all(&lab, WEB4, 3);
    println!("down after {down:?}, up again after {up:?} more");
}

/// The way to a backend leads by a veth whose peer has no program: the kernel takes no frame for it and
/// tells the program nothing.
#[test]
fn frames_lost_on_the_way_out_are_counted() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 3);
    let lost_by = |name: &str| {
        let status = balancer.status().unwrap();
        let lost = status["lost"].as_array().expect("this kernel tells").clone();
        lost.iter().find(|one| one["interface"] == name).and_then(|one| one["frames"].as_u64())
    };
    // Of the interfaces of the file it is always said, also after tables of other sizes have taken the
    // place of the first ones.
    assert!(lost_by("eth0").is_some());
    let file = fs::read_to_string(balancer.config()).unwrap();
    fs::write(balancer.config(), format!("{file}\n[limits]\nudp_flows = 4096\n")).unwrap();
    balancer.command(&["reload"]).unwrap();
    assert!(lost_by("eth0").is_some());
    assert_eq!(lost_by("v0"), None);
    let open = || (0..40).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect::<Vec<_>>();
    let sockets = lab.clients()[0].enter(open).unwrap();
    let send = || {
        for socket in &sockets {
            assert_eq!(socket.send_to(b"one", (WEB4.ip(), 5353)).unwrap(), 3);
        }
    };
    send();
    let lb = lab.balancer();
    common::sh(lb, "ip link add v0 type veth peer name v1");
    common::sh(lb, "ip link set v0 up");
    common::sh(lb, "ip link set v1 up");
    common::sh(lb, "ip neigh replace 10.77.2.2 lladdr 02:77:00:00:02:02 dev v0 nud permanent");
    common::sh(lb, "ip route replace 10.77.2.2/32 dev v0");
    eventually("they are counted", || {
        send();
        lost_by("v0") > Some(0)
    });
    let text = balancer.command(&["status"]).unwrap();
    let line = text.lines().find(|line| line.starts_with("frames lost on their way out"));
    assert!(
        line.is_some_and(|line| line.contains(" by eth0") && line.contains(" by v0")),
        "{text}"
    );
    common::sh(lb, "ip route del 10.77.2.2/32");
    let mut held = hold_both(&lab, 20);
    common::assert_unbroken(&mut held, "by the way there was", &balancer);
}

/// Lines of the log that have all these words.
fn lines_with(balancer: &Balancer, words: &[&str]) -> usize {
    let log = common::log(balancer);
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// How long until the log has more such lines than `before`.
fn logged(balancer: &Balancer, words: &[&str], before: usize) -> Duration {
    let started = Instant::now();
    while lines_with(balancer, words) <= before {
        assert!(started.elapsed() < common::PATIENCE, "no further line has {words:?}");
        thread::sleep(Duration::from_millis(1));
    }
    started.elapsed()
}

/// In which interfaces that go and come are followed.
const SOON: Duration = Duration::from_millis(100);
/// Changes that are made until enough of them were followed so soon.
const CHANGES: usize = 40;

/// Whether three of the last five were. A machine that is busy is late now and then; who only looked every second or
/// two would be in time for one in ten.
fn are_soon(latencies: &[Duration]) -> bool {
    let last = latencies.iter().rev().take(5);
    latencies.len() >= 5 && last.filter(|latency| **latency < SOON).count() >= 3
}

/// With nobody looking for an hour, what follows a change is the kernel's event.
#[test]
fn events_alone_are_enough() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
    let lb = lab.balancer();
    // Neighbours are told of a new address (RFC 5227, RFC 4861 7.2.6).
    for netns in [lb, lab.backend(1).netns()] {
        for path in ["ipv4/conf/all", "ipv4/conf/default"] {
            common::sysctl(netns, &format!("{path}/arp_notify"), "1");
        }
        for path in ["ipv6/conf/all", "ipv6/conf/eth0"] {
            common::sysctl(netns, &format!("{path}/ndisc_notify"), "1");
        }
    }
    let spec = BalancerSpec {
        balancer_lines: "look_every = \"1h\"\n".into(),
        ..BalancerSpec::new(common::WEIR, 3)
    };
    let balancer = common::start_spec(&lab, spec);
    // What packets go by is what the control plane has found, and not the kernel's FIB.
    switch_forwarding(&lab, false);
    common::sysctl(lb, "ipv4/conf/default/forwarding", "0");
    common::sysctl(lb, "ipv6/conf/default/forwarding", "0");
    let mut held = hold_both(&lab, 30);
    all_answered(&mut held);
    let mut follow = |what: &str| {
        for client in lab.clients() {
            common::sh(client, "ip neigh flush all");
        }
        let took = recovery(&lab, &mut held);
        println!("{what}: all connections answer after {took:?}");
    };

    let mut latencies = Vec::new();
    let words = ["interfaces have other Ethernet addresses"];
    for round in 0..CHANGES {
        let before = lines_with(&balancer, &words);
        common::sh(lb, &format!("ip link set dev eth0 address 02:77:00:00:fe:{round:02x}"));
        latencies.push(logged(&balancer, &words, before));
        if are_soon(&latencies) {
            break;
        }
    }
    println!("another Ethernet address is known after {latencies:?}");
    assert!(are_soon(&latencies), "not within {SOON:?}");
    follow("another Ethernet address");

    let mut latencies = Vec::new();
    let words = ["interfaces have changed", "\"eth0\""];
    for _ in 0..CHANGES {
        let before = lines_with(&balancer, &words);
        lab.replace_balancer_interface().unwrap();
        latencies.push(logged(&balancer, &words, before));
        if are_soon(&latencies) {
            break;
        }
    }
    println!("another interface is attached after {latencies:?}");
    assert!(are_soon(&latencies), "not within {SOON:?}");
    follow("another interface");

    common::sh(lab.backend(1).netns(), "ip link set dev eth0 address 02:77:00:00:02:f1");
    follow("a backend's other Ethernet address");

    // An address of its own for the service's, as VRRP has it, which moves on once.
    let client = &lab.clients()[0];
    common::sh(
        lb,
        "ip link add vrrp0 link eth0 address 00:00:5e:00:01:07 type macvlan mode private",
    );
    common::sh(lb, "ip link set vrrp0 up");
    for mac in ["00:00:5e:00:01:07", "00:00:5e:00:01:08"] {
        common::sh(lb, &format!("ip link set dev vrrp0 address {mac}"));
        let vip = WEB4.ip();
        common::sh(client, &format!("ip neigh replace {vip} lladdr {mac} dev eth0 nud permanent"));
        eventually("frames to the virtual address are taken", || {
            common::troubles(&mut held).is_empty()
        });
    }
    common::assert_unbroken(&mut held, "at the end", &balancer);
}
