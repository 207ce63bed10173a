//! Where frames go: with and without the kernel's FIB, and when a backend's Ethernet address
//! changes.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Held, WEB4, WEB6, eventually};
use weir_lab::{Balancer, Lab, LabSpec};

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
    assert_eq!(common::shorts(&lab, WEB4, 300, 0, 1).len(), 3);
    assert_eq!(common::shorts(&lab, WEB6, 300, 0, 1).len(), 3);
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
    assert_eq!(common::shorts(&lab, WEB4, 300, 0, 2).len(), 3);
    assert_eq!(common::shorts(&lab, WEB6, 300, 0, 2).len(), 3);

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

/// How long until every connection is answered by its own backend again. `before` is how long
/// answers take where nothing is lost: a machine that is busy with other things is given more time.
fn recovery(lab: &Lab, held: &mut [Held], limit: Duration, before: Duration) -> Duration {
    let started = Instant::now();
    let took = all_answered(held);
    assert!(took < limit + 50 * before, "{took:?}; before: {before:?}");
    for to in [WEB4, WEB6] {
        assert_eq!(common::shorts(lab, to, 200, 0, 3).len(), lab.backends().len());
    }
    started.elapsed()
}

#[test]
fn a_backend_with_a_new_ethernet_address_is_found() {
    let _alone = common::alone();
    for forwarding in [true, false] {
        let lab = common::lab_of(LabSpec { backends: 3, ..LabSpec::default() });
        let balancer = common::start(&lab, "concury", 3);
        switch_forwarding(&lab, forwarding);
        let mut held = hold_both(&lab, 30);
        let before = all_answered(&mut held);
        // A backend that takes over an address says so (RFC 5227, RFC 4861 7.2.6).
        let b1 = lab.backend(1).netns();
        common::sysctl(b1, "ipv4/conf/all/arp_notify", "1");
        common::sysctl(b1, "ipv6/conf/eth0/ndisc_notify", "1");
        common::sysctl(b1, "ipv6/conf/all/ndisc_notify", "1");
        common::sh(b1, "ip link set dev eth0 address 02:77:00:00:02:f1");
        // The FIB's answer is kept for 640 ms at most; the neighbour table is read every 5 s, and
        // TCP doubles its pauses meanwhile.
        let limit = Duration::from_secs(if forwarding { 5 } else { 14 });
        let took = recovery(&lab, &mut held, limit, before);
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
    let before = all_answered(&mut held);
    // A client that has just heard of an address may take no other for a second: what is tried here
    // is the balancer, so the clients ask anew.
    let ask_anew = || {
        for client in lab.clients() {
            common::sh(client, "ip neigh flush all");
        }
    };
    common::sh(lab.balancer(), "ip link set dev eth0 address 02:77:00:00:ff:f1");
    ask_anew();
    let took = recovery(&lab, &mut held, Duration::from_secs(60), before);
    println!("another address: {took:?}");
    lab.replace_balancer_interface().unwrap();
    ask_anew();
    let took = recovery(&lab, &mut held, Duration::from_secs(60), before);
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
    assert_eq!(common::shorts(&lab, WEB4, 300, 0, 5).len(), 3);
    println!("down after {down:?}, up again after {up:?} more");
}
