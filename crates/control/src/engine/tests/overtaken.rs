//! Services that say more exactly what they take than another one does, under connections of that one.

use super::*;
use crate::config::Service;
use std::net::IpAddr;

fn flow_to(host: &str, client: u16) -> FlowKey {
    let to: IpAddr = host.parse().expect("an address");
    FlowKey::new(([192, 0, 2, 7], 4000 + client).into(), (to, 80).into(), Protocol::Tcp)
}

/// Service a at these addresses, and any port.
fn world(fields: &str, vips: &[&str]) -> World {
    let mut world = World::with(2, fields);
    let mut wanted = world.engine.config.clone();
    listen(&mut wanted.services[0], vips, None);
    world.engine.reload_as(wanted, true).expect("it was asked for");
    world
}

fn listen(service: &mut Service, vips: &[&str], port: Option<u16>) {
    service.vips = vips.iter().map(|vip| vip.parse().expect("it is one")).collect();
    service.vip = service.vips[0].address;
    if service.vips.len() == 1 && service.vips[0].is_host() {
        service.vips.clear();
    }
    service.port = port;
}

impl World {
    fn begin_at(&mut self, host: &str, clients: std::ops::Range<u16>) {
        for client in clients {
            let flow = flow_to(host, client);
            let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
            let Outcome::Forwarded(backend) = self.engine.plane.process(&frame) else {
                panic!("{flow} is not forwarded")
            };
            self.live.insert(flow, backend);
        }
        self.engine.drain_reports().expect("nothing is refused");
    }

    /// The file with one service more.
    fn with_own(&self, vips: &[&str], port: Option<u16>) -> Config {
        let mut wanted = self.engine.config.clone();
        let mut own = wanted.services[1].clone();
        own.name = "own".into();
        own.backends = (11..13).map(|n| backend(7, n)).collect();
        listen(&mut own, vips, port);
        wanted.services.push(own);
        wanted
    }

    fn plan_to(&self, wanted: &Config) -> PlanReport {
        self.engine.plan_to(wanted, &self.engine.source()).expect("it can be looked at")
    }

    /// How many connections of service a a plan says would break, of those that are known; it is refused.
    fn refused(&mut self, wanted: &Config, words: &str) -> (Option<usize>, Option<usize>) {
        let report = self.plan_to(wanted);
        let a = report.services.iter().find(|one| one.name == "a").expect("it is concerned");
        assert!(report.refused && a.change == "refused", "{a:?}");
        let why = a.why.as_ref().expect("it says why");
        assert!(why.starts_with("vip: connections to "), "{why}");
        let found = (a.connections, a.broken);
        let refused = self.engine.reload_as(wanted.clone(), false).expect_err("it would break");
        assert_eq!(refused.kind(), Kind::Conflict);
        let said = refused.to_string();
        assert!(said.contains(&format!("service a: {why}; {words}")), "{said}");
        assert!(said.contains("--break-connections"), "{said}");
        // Where there is no number, both say how many there may be.
        assert_eq!(a.broken_at_most.is_some(), a.connections.is_some() && a.broken.is_none());
        if let Some(most) = a.broken_at_most {
            assert!(said.contains(&format!("up to {most} known connection")), "{most}: {said}");
        }
        self.check();
        found
    }
}

/// It is said how many connections come under it, and refused, by a reload and at a start, unless it is asked for.
#[test]
fn a_more_exact_service_breaks_no_connection_unasked() {
    for method in ["concury", "tracked", "residue", "ecmp"] {
        let mut world = world(&format!("method = {method:?}"), &["10.0.0.1"]);
        world.begin_at("10.0.0.1", 0..20);
        let wanted = world.with_own(&["10.0.0.1"], Some(80));
        // Who has no states knows of no connection.
        let known = (method != "ecmp").then_some(20);
        let words = match known {
            Some(_) => "20 known connections break",
            None => "an unknown number of connections break",
        };
        let found = world.refused(&wanted, words);
        assert_eq!(found, (known, known), "{method}");
        // The same by a service that gets a second address.
        let mut second = world.engine.config.clone();
        listen(&mut second.services[1], &["10.0.0.2", "10.0.0.1"], Some(80));
        world.refused(&second, words);
        // What is at another port breaks nothing of what is known.
        if known.is_some() {
            let beside = world.with_own(&["10.0.0.1"], Some(81));
            assert!(!world.plan_to(&beside).refused);
            world.engine.reload_as(beside, false).expect("nothing breaks");
            world.check();
        }
        let done = world.engine.reload_as(wanted, true).expect("it was asked for");
        assert!(done.contains("service a: vip: ") && done.contains(words), "{done}");
    }
}

#[test]
fn a_start_refuses_it_as_well() {
    let mut world = world("", &["10.0.0.1"]);
    world.begin_at("10.0.0.1", 0..20);
    let wanted = world.with_own(&["10.0.0.1"], Some(80));
    let World { mut engine, live: _, directory: _directory } = world;
    engine.save().expect("it can be kept");
    let plane = std::mem::take(&mut engine.plane);
    drop(engine);
    let found = Found { resumed: true, ..Found::default() };
    let Err(refused) = over(plane, found, &wanted) else { panic!("it would break connections") };
    let said = refused.to_string();
    assert!(said.contains("known connections break"), "{said}");
    assert!(said.contains("--break-connections"), "{said}");
}

/// Of a prefix with one port each state says to which address its connection is; with more ports it does not, and
/// then it is said how many there may be.
#[test]
fn connections_to_a_part_of_a_prefix_are_counted() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = world(&format!("method = {method:?}"), &["10.3.0.0/24"]);
        let hosts = ["10.3.0.0", "10.3.0.9", "10.3.0.130"];
        for host in hosts {
            world.begin_at(host, 0..9);
        }
        let part = world.with_own(&["10.3.0.128/25"], Some(80));
        let (known, broken) = world.refused(&part, "up to ");
        assert_eq!((known, broken), (Some(27), None), "{method}");
        // Of any port, all could be to another one.
        let whole = world.with_own(&["10.3.0.0/24"], Some(80));
        world.refused(&whole, "up to 27 known connections break");
        let mut one_port = world.engine.config.clone();
        one_port.services[0].port = Some(80);
        world.engine.reload_as(one_port, false).expect("nothing breaks");
        world.check();
        let part = world.with_own(&["10.3.0.128/25"], Some(80));
        let found = world.refused(&part, "9 known connections break");
        assert_eq!(found, (Some(27), Some(9)), "{method}");
        let beside = world.with_own(&["10.3.0.64/26"], Some(80));
        world.engine.reload_as(beside, false).expect("nobody is there");
        world.check();
    }
}

/// An address that its service listens on as before, in a prefix that has no room for its salt: its connections would
/// end, so they are a reason to refuse it, and the plan says as many as the refusal.
#[test]
fn an_address_that_cannot_keep_its_salt_breaks_no_connection_unasked() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = World::with(2, &format!("method = {method:?}"));
        let mut wanted = world.engine.config.clone();
        listen(&mut wanted.services[0], &["10.0.0.7", "10.8.1.1"], Some(80));
        world.engine.reload_as(wanted, true).expect("it was asked for");
        let mut wider = world.engine.config.clone();
        listen(&mut wider.services[0], &["10.0.0.7", "10.8.1.0/24"], Some(80));
        world.begin_at("10.0.0.7", 0..9);
        assert!(!world.plan_to(&wider).refused, "nobody is connected there");
        world.begin_at("10.8.1.1", 0..12);
        let found = world.refused(&wider, "12 known connections break");
        assert_eq!(found, (Some(21), Some(12)), "{method}");
        let done = world.engine.reload_as(wider, true).expect("it was asked for");
        assert!(done.contains("service a: vip: connections to 10.8.1.1 port 80 end"), "{done}");
        assert!(done.contains("12 known connections break"), "{done}");
        world.live.retain(|flow, _| *flow == flow_to("10.0.0.7", flow.src_port - 4000));
        assert_eq!(world.live.len(), 9);
        world.check();
        // What ended is known no more. Entries of a connection table are left to their own time.
        if method != "tracked" {
            let known = world.engine.count_known(&world.engine.services["a"]);
            assert_eq!(known, Some(9), "{method}");
        }
        // Narrowed again, it has what it has in the prefix.
        world.begin_at("10.8.1.1", 20..26);
        let mut back = world.engine.config.clone();
        listen(&mut back.services[0], &["10.0.0.7", "10.8.1.1"], Some(80));
        world.engine.reload_as(back, false).expect("nothing of it ends");
        world.drain("a", "b2").expect("nothing is refused");
        world.check();
    }
}

/// An address that is given up is named by a plan, with what is known to end.
#[test]
fn a_plan_says_to_which_addresses_connections_end() {
    for method in ["concury", "tracked", "residue"] {
        let mut world = World::with(2, &format!("method = {method:?}"));
        let mut wanted = world.engine.config.clone();
        listen(&mut wanted.services[0], &["10.0.0.7", "10.0.0.8"], Some(80));
        world.engine.reload_as(wanted, true).expect("it was asked for");
        world.begin_at("10.0.0.7", 0..12);
        world.begin_at("10.0.0.8", 0..5);
        let mut wanted = world.with_own(&["10.0.0.8"], Some(80));
        listen(&mut wanted.services[0], &["10.0.0.7"], Some(80));
        let report = world.plan_to(&wanted);
        let a = report.services.iter().find(|one| one.name == "a").expect("it is concerned");
        assert!(!report.refused && a.change == "changed", "{a:?}");
        assert_eq!(a.why.as_deref(), Some("connections to 10.0.0.8 end"));
        assert_eq!((a.connections, a.broken), (Some(17), Some(5)), "{method}");
        let vips = a.fields.iter().find(|one| one.field == "vips").expect("they change");
        assert_eq!(vips.from, serde_json::json!(["10.0.0.7", "10.0.0.8"]));
        assert_eq!(vips.to, serde_json::json!(["10.0.0.7"]));
    }
}
