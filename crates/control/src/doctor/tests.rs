use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};

use super::*;
use crate::config::XdpMode;
use crate::neigh::Interface;
use crate::testnet::Pair;
use weir_testbed::{Namespaces, NetNs, link};

/// A balancer and a backend on one link, for IPv4 and IPv6.
struct Site {
    lb: NetNs,
    backend: NetNs,
    namespaces: Namespaces,
}

impl Site {
    fn new() -> Self {
        let Pair { lb, backend, namespaces } = Pair::new();
        lb.ip("addr add 10.0.0.1/32 dev eth0").unwrap();
        lb.ip("addr add 2001:db8::1/128 dev eth0 nodad").unwrap();
        // Answers must find their way back whatever their source is.
        backend.sysctl("ipv4/conf/eth0/rp_filter", "0").unwrap();
        Self { lb, backend, namespaces }
    }

    fn give_vip(&self) {
        self.backend.ip("addr add 10.0.0.1/32 dev lo").unwrap();
        self.backend.ip("addr add 2001:db8::1/128 dev lo nodad").unwrap();
    }

    fn listen(&self) -> [TcpListener; 2] {
        self.backend
            .enter(|| {
                // Dual-stack sockets are not to be relied on, so one for each family.
                [("10.0.0.1", 80), ("2001:db8::1", 80)].map(|at| TcpListener::bind(at).unwrap())
            })
            .unwrap()
    }

    /// Where the health check asks.
    fn listen_to_checks(&self) -> [TcpListener; 2] {
        let own = [("10.9.0.2", 80), ("fd09::2", 80)];
        self.backend.enter(|| own.map(|at| TcpListener::bind(at).unwrap())).unwrap()
    }

    /// Where nobody answers this takes as long, and on a busy machine even those who do are slow.
    fn examine(&self, text: &str) -> Vec<Finding> {
        self.examine_for(text, Duration::from_secs(5))
    }

    /// Where answers come, waiting costs nothing, and a machine that is busy is slow.
    fn examine_for(&self, text: &str, patience: Duration) -> Vec<Finding> {
        let mut input = DoctorInput::new(Config::parse(text, "weir.toml").unwrap());
        input.patience = patience;
        self.lb.enter(|| examine(&input)).unwrap()
    }
}

const CONFIG: &str = r#"
[balancer]
interfaces = ["eth0"]
[[service]]
name = "web"
vip = "10.0.0.1"
port = 80
[[service.backend]]
name = "b1"
address = "10.9.0.2"
[[service]]
name = "web6"
vip = "2001:db8::1"
port = 80
[[service.backend]]
name = "b1"
address = "fd09::2"
"#;

/// The findings of one check.
fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|one| one.check == check).collect()
}

/// Every finding of a check (as many as given) has the verdict and the words.
fn expect(findings: &[Finding], check: &str, count: usize, verdict: Verdict, words: &[&str]) {
    let found = of(findings, check);
    assert_eq!(found.len(), count, "{check}: {findings:#?}");
    for one in found {
        assert_eq!(one.verdict, verdict, "{one:#?}");
        let text = format!("{} {}", one.detail, one.mend.as_deref().unwrap_or_default());
        for word in words {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        assert_eq!(one.mend.is_none(), verdict == Verdict::Ok, "{one:#?}");
    }
}

#[test]
fn a_backend_that_is_as_it_should_be() {
    let site = Site::new();
    site.give_vip();
    let _listeners = site.listen();
    // The server has the service's address alone: packets reach it, and the check does not.
    let found = site.examine_for(CONFIG, Duration::from_secs(60));
    expect(&found, "backend", 2, Verdict::Ok, &["accepts connections", "port 80"]);
    expect(&found, "check", 2, Verdict::Warn, &["port 80 fails: connection refused", "listen on"]);
    let _listeners = (_listeners, site.listen_to_checks());
    let found = site.examine_for(CONFIG, Duration::from_secs(60));
    expect(&found, "check", 2, Verdict::Ok, &["on port 80 succeeds"]);
    expect(&found, "backend", 2, Verdict::Ok, &["accepts connections", "port 80"]);
    expect(&found, "next-hop", 2, Verdict::Ok, &["on eth0"]);
    expect(&found, "vip", 2, Verdict::Ok, &["is on eth0"]);
    expect(&found, "interface", 1, Verdict::Ok, &["eth0 is up"]);
    expect(&found, "driver", 1, Verdict::Ok, &["veth has native XDP"]);
    expect(&found, "veth-peer", 1, Verdict::Warn, &["another network namespace", "XDP_PASS"]);
    expect(&found, "mtu", 1, Verdict::Ok, &["1500"]);
    expect(&found, "privileges", 1, Verdict::Ok, &[]);
    expect(&found, "kernel", 1, Verdict::Ok, &["Linux"]);
    expect(&found, "btf", 1, Verdict::Ok, &[]);
    assert!(passed(&found), "{}", render(&found));
}

#[test]
fn a_backend_where_nothing_listens() {
    let site = Site::new();
    site.give_vip();
    let found = site.examine(CONFIG);
    expect(
        &found,
        "backend",
        2,
        Verdict::Warn,
        &["nothing listens there on port 80", "start the server"],
    );
    // Without a port of its own, a RST is all that is needed.
    let any = CONFIG.replace("port = 80", "any_port = true\ncheck.port = 81");
    let found = site.examine(&any);
    expect(&found, "backend", 2, Verdict::Ok, &["has "]);
}

#[test]
fn a_backend_without_the_address() {
    let site = Site::new();
    let found = site.examine(CONFIG);
    let words = ["does not accept packets for", "dev lo", "ip addr add"];
    expect(&found, "backend", 2, Verdict::Fail, &words);
    let mend = of(&found, "backend")[0].mend.as_deref();
    assert!(mend.unwrap_or_default().contains("arp_ignore=1"));
    assert!(!passed(&found));
}

/// The backend routes, and behind it is a host that has the address and would answer.
#[test]
fn a_backend_that_passes_the_probe_on() {
    let mut site = Site::new();
    let (far, near) = (site.namespaces.add("far").unwrap(), &site.backend);
    let ends = [link::End::new("eth1").inside(near), link::End::new("eth0").inside(&far)];
    link::ip(&link::veth(&ends)).unwrap();
    near.sysctl("ipv4/ip_forward", "1").unwrap();
    near.sysctl("ipv6/conf/all/forwarding", "1").unwrap();
    near.sysctl("ipv4/conf/all/rp_filter", "0").unwrap();
    near.ip("addr add 10.8.0.1/24 dev eth1").unwrap();
    near.ip("addr add fd08::1/64 dev eth1 nodad").unwrap();
    near.ip("link set eth1 up").unwrap();
    far.ip("addr add 10.8.0.2/24 dev eth0").unwrap();
    far.ip("addr add fd08::2/64 dev eth0 nodad").unwrap();
    far.ip("link set eth0 up").unwrap();
    far.ip("route add default via 10.8.0.1").unwrap();
    far.ip("route add default via fd08::1").unwrap();
    far.ip("addr add 10.0.0.1/32 dev lo").unwrap();
    far.ip("addr add 2001:db8::1/128 dev lo nodad").unwrap();
    near.ip("route add 10.0.0.1/32 via 10.8.0.2").unwrap();
    near.ip("route add 2001:db8::1/128 via fd08::2").unwrap();
    let found = site.examine(CONFIG);
    expect(&found, "backend", 2, Verdict::Fail, &["does not accept"]);
}

#[test]
fn the_way_to_a_backend() {
    let site = Site::new();
    site.lb.ip("route add 10.77.0.0/16 via 10.9.0.2").unwrap();
    let expect_hop = |address: &str, verdict, words: &[&str]| {
        let found = site.examine(&CONFIG.replace("10.9.0.2", address));
        let hop = of(&found, "next-hop").into_iter().find(|one| one.detail.contains(address));
        let hop = hop.unwrap_or_else(|| panic!("{found:#?}"));
        assert_eq!(hop.verdict, verdict);
        for word in words {
            assert!(hop.detail.contains(word), "{hop:#?}");
        }
    };
    expect_hop("10.77.0.1", Verdict::Fail, &["behind the router 10.9.0.2"]);
    // `weir check` refuses it as well, on this host and on no other.
    let config = Config::parse(&CONFIG.replace("10.9.0.2", "10.77.0.1"), "weir.toml").unwrap();
    let refused = site.lb.enter(|| behind_routers(&config)).unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("10.77.0.1 is behind the router 10.9.0.2"), "{refused:?}");
    assert_eq!(site.backend.enter(|| behind_routers(&config)).unwrap(), Vec::<String>::new());
    expect_hop("192.0.2.1", Verdict::Fail, &["no route"]);
    expect_hop("10.9.0.1", Verdict::Fail, &["belongs to this host itself"]);
    expect_hop("10.9.0.99", Verdict::Fail, &["does not answer ARP"]);
}

/// A bridge on the way: what an XDP program sends there is lost.
#[test]
fn a_backend_behind_a_bridge() {
    let site = Site::new();
    site.lb.ip("link add br0 type bridge\nlink set br0 up\naddr add 10.9.9.1/24 dev br0").unwrap();
    site.lb.ip("neigh add 10.9.9.2 lladdr 02:99:00:00:00:09 dev br0 nud permanent").unwrap();
    let config = CONFIG.replace("10.9.0.2", "10.9.9.2");
    let found = site.examine(&config);
    let hop = of(&found, "next-hop").into_iter().find(|one| one.detail.contains("10.9.9.2"));
    let hop = hop.expect("it is looked at");
    assert_eq!(hop.verdict, Verdict::Fail);
    assert!(hop.detail.contains("br0 (a bridge)"), "{hop:#?}");
    // The network stack can.
    let generic = config.replace("[balancer]", "[balancer]\nmode = \"generic\"");
    let found = site.examine(&generic);
    let hop = of(&found, "next-hop").into_iter().find(|one| one.detail.contains("10.9.9.2"));
    assert_eq!(hop.expect("it is looked at").verdict, Verdict::Ok);
}

/// Answers of translated backends that come by what is above an interface of weir's, a bridge or a VLAN, meet the filter
/// of that.
#[test]
fn the_filter_of_a_bridge_by_which_answers_come() {
    let site = Site::new();
    site.lb.ip("link add br0 type bridge\nlink set br0 up\nlink set eth0 master br0").unwrap();
    site.lb.ip("addr add 10.7.0.1/24 dev br0").unwrap();
    site.lb.sysctl("ipv4/conf/all/rp_filter", "0").unwrap();
    let own = "[[service.backend]]\nname = \"b1\"\naddress = \"10.9.0.2\"";
    let other = format!("forward = \"nat\"\n{}", own.replace("10.9.0.2", "10.7.0.2"));
    let config = Config::parse(&CONFIG.replace(own, &other), "weir.toml").unwrap();
    for (value, count) in [("1", 1), ("2", 0)] {
        site.lb.sysctl("ipv4/conf/br0/rp_filter", value).unwrap();
        let look = || {
            let mut findings = Vec::new();
            answers::examine(&config, &[], &mut findings);
            findings
        };
        let findings = site.lb.enter(look).unwrap();
        expect(&findings, "rp-filter", count, Verdict::Warn, &["br0", "rp_filter=2"]);
    }
}

#[test]
fn the_host_side_of_an_interface() {
    let site = Site::new();
    site.lb.sysctl("ipv4/conf/eth0/forwarding", "0").unwrap();
    site.lb.sysctl("ipv6/conf/eth0/forwarding", "1").unwrap();
    site.lb.sysctl("ipv4/conf/eth0/rp_filter", "1").unwrap();
    site.lb.ip("addr del 10.0.0.1/32 dev eth0").unwrap();
    site.lb.ip("addr del 2001:db8::1/128 dev eth0").unwrap();
    site.lb.ip("addr add 2001:db8::1/128 dev lo nodad").unwrap();
    site.lb.ip("link set eth0 mtu 4000").unwrap();
    let found = site.examine(CONFIG);
    let forwarding: Vec<Verdict> = of(&found, "forwarding").iter().map(|one| one.verdict).collect();
    assert_eq!(forwarding, [Verdict::Warn, Verdict::Ok], "{found:#?}");
    let mend = of(&found, "forwarding")[0].mend.as_deref();
    assert_eq!(mend, Some("sysctl -w net.ipv4.conf.eth0.forwarding=1"));
    expect(&found, "rp-filter", 1, Verdict::Warn, &["rp_filter=2"]);
    expect(&found, "mtu", 1, Verdict::Ok, &["MTU 4000", "several buffers"]);
    let vips = of(&found, "vip");
    assert!(vips[0].detail.contains("10.0.0.1 is on no interface"), "{vips:#?}");
    assert!(vips[0].mend.as_ref().unwrap().starts_with("ip addr add 10.0.0.1/32 dev eth0"));
    assert!(vips[1].detail.contains("2001:db8::1 is on lo only"), "{vips:#?}");

    site.lb.ip("link set eth0 down").unwrap();
    let found = site.examine(CONFIG);
    expect(&found, "interface", 1, Verdict::Fail, &["eth0 is down", "ip link set eth0 up"]);
    let found = site.examine(&CONFIG.replace("eth0", "eth7"));
    expect(&found, "interface", 1, Verdict::Fail, &["no interface eth7"]);
    expect(&found, "driver", 0, Verdict::Ok, &[]);
}

#[test]
fn a_veth_whose_peer_is_here_too() {
    let mut namespaces = Namespaces::new("test");
    let (ns, none) = (namespaces.add("veth").unwrap(), namespaces.add("none").unwrap());
    ns.ip("link add eth0 type veth peer name eth1").unwrap();
    ns.ip("link set eth0 up").unwrap();
    ns.ip("link set eth1 up").unwrap();
    let site = Site { lb: ns, backend: none, namespaces };
    let found = site.examine("[balancer]\ninterfaces = [\"eth0\"]");
    expect(
        &found,
        "veth-peer",
        1,
        Verdict::Fail,
        &["its peer eth1 runs no XDP program", "frames sent back are lost", "set eth1 xdp"],
    );
    // That is enough until the queue stands still.
    let on = site.lb.command("ethtool").unwrap().args(["-K", "eth1", "gro", "on"]).status();
    assert!(on.unwrap().success());
    let found = site.examine("[balancer]\ninterfaces = [\"eth0\"]");
    let words = ["until weir run is started again", "ethtool -K eth1 gro off"];
    expect(&found, "veth-peer", 1, Verdict::Fail, &words);
    let found = site.examine("[balancer]\ninterfaces = [\"eth0\"]\nmode = \"generic\"");
    expect(&found, "veth-peer", 0, Verdict::Ok, &[]);
    expect(&found, "driver", 1, Verdict::Warn, &["generic mode", "mode = \"auto\""]);
}

#[test]
fn kernels_and_rights() {
    for (release, verdict) in [
        ("6.18.44-fc", Verdict::Ok),
        ("5.15.0", Verdict::Ok),
        ("5.14.21-suse", Verdict::Fail),
        ("4.19", Verdict::Fail),
        ("", Verdict::Warn),
        ("next", Verdict::Warn),
    ] {
        assert_eq!(host::kernel(release).verdict, verdict, "{release}");
    }
    let mask = |caps: &[u32]| caps.iter().fold(0, |mask, cap| mask | 1u64 << cap);
    for (caps, verdict) in [
        (&[12u32, 13, 38, 39] as &[u32], Verdict::Ok),
        (&[12, 13, 39], Verdict::Warn),
        (&[12, 13, 21], Verdict::Ok),
        (&[12, 39], Verdict::Warn),
        (&[13, 39], Verdict::Fail),
        (&[12, 13], Verdict::Fail),
        (&[], Verdict::Fail),
    ] {
        assert_eq!(host::privileges(mask(caps)).verdict, verdict, "{caps:?}");
    }
    assert_eq!(host::effective("Name:\tweir\nCapEff:\t0000000000003000\n"), 0x3000);
    assert_eq!(host::effective(""), 0);
    assert_eq!(host::btf(false).verdict, Verdict::Fail);
    assert_eq!(host::jit(Some("0")).verdict, Verdict::Warn);
    assert_eq!(host::jit(Some("1")).verdict, Verdict::Ok);
}

#[test]
fn drivers_and_offloads() {
    let interface = Interface {
        index: 2,
        name: "eth0".to_owned(),
        mac: Some([2; 6]),
        mtu: 9000,
        up: true,
        running: true,
        veth: false,
        kind: None,
        master: None,
        link: None,
        xdp: false,
    };
    use XdpMode::{Auto, Generic, Native};
    for (driver, mode, verdict, words) in [
        ("ixgbe", Auto, Verdict::Ok, "ixgbe has native XDP"),
        ("ixgbe", Generic, Verdict::Warn, "though ixgbe has"),
        ("e1000", Auto, Verdict::Warn, "use generic mode"),
        ("e1000", Native, Verdict::Warn, "will not start"),
        ("", Auto, Verdict::Warn, "(unnamed)"),
        ("e1000", Generic, Verdict::Warn, "generic mode, several times slower"),
    ] {
        let found = interface::native(&interface, driver, mode);
        assert_eq!(found.verdict, verdict, "{found:?}");
        assert!(found.detail.contains(words), "{found:?}");
    }
    assert_eq!(interface::mtu(&interface, "ixgbe", Auto).verdict, Verdict::Warn);
    assert_eq!(interface::mtu(&interface, "ixgbe", Generic).verdict, Verdict::Ok);
    let offloads = |lro, gro, mode| interface::offloads("eth0", lro, gro, mode).verdict;
    assert_eq!(offloads(Some(true), None, Auto), Verdict::Warn);
    assert_eq!(offloads(Some(false), Some(true), Auto), Verdict::Ok);
    assert_eq!(offloads(None, Some(true), Generic), Verdict::Warn);
    assert_eq!(offloads(None, None, Generic), Verdict::Ok);
}

/// Tags that the card takes off, and VLANs in VLANs, are found before packets are lost by them.
#[test]
fn vlans_that_packets_are_lost_by() {
    use XdpMode::{Auto, Generic};
    let interface = |index, name: &str, below: Option<u32>| Interface {
        index,
        name: name.to_owned(),
        mac: Some([2; 6]),
        mtu: 1500,
        up: true,
        running: true,
        veth: false,
        kind: below.map(|_| neigh::Kind::Vlan { id: index as u16, plain: true }),
        master: None,
        link: below,
        xdp: false,
    };
    let eth0 = interface(2, "eth0", None);
    let (a, b) = (interface(3, "eth0.3", Some(2)), interface(4, "eth0.4", Some(2)));
    let (inner, other) = (interface(5, "eth0.4.5", Some(4)), interface(6, "eth1.6", Some(9)));
    let all = [eth0.clone(), a, b.clone(), other.clone()];
    let vlans = |on: &Interface, all: &[Interface], off, mode| {
        interface::vlans(on, all, off, mode).map(|one| (one.verdict, one.detail, one.mend))
    };
    let (verdict, detail, _) = vlans(&eth0, &all, Some(false), Auto).expect("it has VLANs");
    assert!(verdict == Verdict::Ok && detail.ends_with("eth0.3, eth0.4"), "{detail}");
    let (verdict, detail, mend) = vlans(&eth0, &all, Some(true), Generic).expect("tags are off");
    assert!(verdict == Verdict::Warn && detail.contains("rx-vlan-offload"), "{detail}");
    assert_eq!(mend.as_deref(), Some("ethtool -K eth0 rxvlan off"));
    // Without a VLAN no tag comes.
    assert_eq!(vlans(&eth0, &[eth0.clone(), other], Some(true), Auto), None);
    let all = [&all[..], std::slice::from_ref(&inner)].concat();
    for on in [&eth0, &b] {
        let (verdict, detail, _) = vlans(on, &all, None, Auto).expect("one is in another");
        assert!(verdict == Verdict::Warn && detail.contains("eth0.4.5 is a VLAN in"), "{detail}");
        assert!(detail.contains("no_way_out"), "{detail}");
        let (verdict, ..) = vlans(on, &all, None, Generic).expect("it has VLANs");
        assert_eq!(verdict, Verdict::Ok);
    }
    assert_eq!(vlans(&inner, &all, None, Auto), None);
}

/// A start that would not get its memory is told before.
#[test]
fn memory_is_compared_with_what_there_is() {
    const MIB: u64 = 1 << 20;
    let needed = weir_dataplane::memory::Needed { bytes: 300 * MIB, table_bytes: 160 * MIB };
    let short = memory::finding(&needed, Some(200 * MIB));
    expect(&[short], "memory", 1, Verdict::Fail, &["300 MiB", "160 MiB", "limits.table_bytes to"]);
    let tight = memory::finding(&needed, Some(400 * MIB));
    expect(&[tight], "memory", 1, Verdict::Warn, &["400 MiB are available", "made anew"]);
    for available in [None, Some(500 * MIB)] {
        expect(&[memory::finding(&needed, available)], "memory", 1, Verdict::Ok, &["300 MiB"]);
    }
    // What is reckoned has each limit in it.
    let bytes = |limits: &str| {
        let text = format!("{CONFIG}\n[limits]\n{limits}");
        let config = Config::parse(&text, "weir.toml").unwrap();
        let needed =
            weir_dataplane::KernelPlane::memory_for(&crate::engine::wanted_limits(&config));
        needed.unwrap()
    };
    let (first, more) = (bytes("table_bytes = 83886080"), bytes("table_bytes = 167772160"));
    assert_eq!((first.table_bytes, more.table_bytes), (80 * MIB, 160 * MIB));
    assert!(more.bytes > more.table_bytes && more.bytes >= first.bytes + 80 * MIB);
    assert!(bytes("udp_flows = 4194304").bytes > more.bytes);
}

#[test]
fn findings_as_text_and_as_json() {
    let findings = [
        Finding::ok("kernel", "Linux 6.18"),
        Finding::warn("vip", "nobody has it", "add it"),
        Finding::fail("backend", "silent", "one\ntwo"),
    ];
    let text = "ok    kernel      Linux 6.18\n\
                warn  vip         nobody has it\n                  -> add it\n\
                FAIL  backend     silent\n                  -> one\n                  -> two\n\
                1 ok, 1 to look at, 1 failed\n";
    assert_eq!(render(&findings), text);
    assert!(!passed(&findings) && passed(&findings[..2]));
    let json = serde_json::to_value(&findings[1]).unwrap();
    let expected = serde_json::json!({
        "check": "vip", "verdict": "warn", "detail": "nobody has it", "mend": "add it"
    });
    assert_eq!(json, expected);
}

#[test]
fn answers_are_forwarded_or_go_nowhere() {
    // As `weir init --prepare` leaves it: each interface's own setting is on, and nothing is said of all.
    let look = |ipv4: bool, on: &[&str]| {
        let names = BTreeSet::from(["eth0".to_owned(), "eth1.7".to_owned()]);
        answers::forwarding("web", ipv4, &names, |file| {
            let name = file.strip_suffix("/forwarding")?.rsplit('/').next()?;
            Some(if on.contains(&name) { "1" } else { "0" }.to_owned())
        })
    };
    assert_eq!(look(true, &["eth0", "eth1.7"]).verdict, Verdict::Ok);
    assert_eq!(look(false, &["eth0", "eth1.7", "all"]).verdict, Verdict::Ok);
    // The kernel itself forwards nothing in IPv6 then.
    let found = look(false, &["eth0", "eth1.7"]);
    assert_eq!(found.verdict, Verdict::Warn, "{}", found.detail);
    let found = look(true, &["all", "eth0"]);
    assert_eq!(found.verdict, Verdict::Fail);
    let words = "net.ipv4.conf.eth1/7.forwarding is off";
    assert!(found.detail.contains(words), "{}", found.detail);
    assert_eq!(found.mend.as_deref(), Some("sysctl -w net.ipv4.conf.eth1/7.forwarding=1"));
    let names = BTreeSet::from(["eth0".to_owned()]);
    assert_eq!(answers::forwarding("web", true, &names, |_| None).verdict, Verdict::Fail);
    // Only services with cookies ask.
    let ask = |method: &str| {
        let text = CONFIG.replace("port = 80", &format!("port = 80\nmethod = {method:?}"));
        let mut findings = Vec::new();
        answers::examine(&Config::parse(&text, "weir.toml").unwrap(), &[], &mut findings);
        findings.len()
    };
    assert_eq!((ask("concury"), ask("tracked")), (0, 0));
    assert!(ask("cheetah") > 0);
    // Under full NAT all of them are named.
    let text = CONFIG
        .replace("port = 80", "port = 80\nforward = \"fullnat\"")
        .replace("[\"eth0\"]", "[\"eth0\"]\nnat_sources = [\"10.0.0.2\", \"2001:db8::2\"]");
    let mut findings = Vec::new();
    answers::examine(&Config::parse(&text, "weir.toml").unwrap(), &[], &mut findings);
    let alone = of(&findings, "sources");
    let words = "connections of services \"web\", \"web6\" are known to this balancer alone";
    assert!(alone.iter().any(|one| one.detail.contains(words)), "{findings:?}");
    let text = "port = 80\nmethod = \"cheetah\"\nanswers = \"backend\"";
    let direct = Config::parse(&CONFIG.replace("port = 80", text), "weir.toml").unwrap();
    let mut findings = Vec::new();
    answers::examine(&direct, &[], &mut findings);
    assert_eq!(findings.len(), 0, "its answers do not pass");
}

/// The balancer writes into answers, and has the service's address: its kernel forwards none of them.
#[test]
fn an_address_of_this_host_is_in_the_way_of_answers() {
    let of = |method: &str, vip: &str| {
        let text = CONFIG.replace("port = 80", &format!("port = 80\n{method}"));
        let mut config = Config::parse(&text, "weir.toml").unwrap();
        for service in &mut config.services {
            service.vip = vip.parse().unwrap();
            service.vips.clear();
        }
        config
    };
    let found = answers::inline_here(&of("method = \"cheetah\"", "127.0.0.1"));
    // Who accepts packets from its own addresses hears the same, less loudly.
    assert!(!found.is_empty() && found.iter().all(|one| one.verdict != Verdict::Ok), "{found:?}");
    assert!(answers::inline_here(&of("method = \"cheetah\"", "192.0.2.77")).is_empty());
    let told = "method = \"cheetah\"\nanswers = \"backend\"";
    assert!(answers::inline_here(&of(told, "127.0.0.1")).is_empty());
    assert!(answers::inline_here(&of("method = \"tracked\"", "127.0.0.1")).is_empty());

    let [v4, v6]: [IpAddr; 2] = ["10.0.0.1", "2001:db8::1"].map(|vip| vip.parse().unwrap());
    let found = answers::own_address("web", v4, "eth0", false);
    assert_eq!(found.verdict, Verdict::Fail);
    assert!(found.detail.starts_with("10.0.0.1 of service \"web\" is an address of this host"));
    let mend = found.mend.unwrap_or_default();
    assert!(mend.contains("answers = \"backend\" in service \"web\""), "{mend}");
    assert!(mend.ends_with("ip addr del 10.0.0.1/32 dev eth0"), "{mend}");
    for (vip, accepted) in [(v4, true), (v6, false)] {
        assert_eq!(answers::own_address("web", vip, "eth0", accepted).verdict, Verdict::Warn);
    }
}

/// What a file does not name is taken from the instance, but for what leaves.
#[test]
fn backends_that_run_beside_the_file_are_looked_at_too() {
    let config = Config::parse(CONFIG, "weir.toml").unwrap();
    let service = &config.services[0];
    let backend = |name: &str, leaving: bool| {
        serde_json::json!({ "name": name, "number": 1, "address": "10.0.0.77", "weight": 1, "state": "up",
            "leaving": leaving, "nat_sources": ["10.0.0.2"], "check": { "up": true, "detail": "assumed" },
            "states": 0, "packets": 0, "bytes": 0, "flows": 0 })
    };
    let known = service.backends[0].name.as_str();
    let backends = [backend(known, false), backend("added", false), backend("gone", true)];
    let service = |name: &str| {
        serde_json::json!({ "name": name, "number": 0, "vip": "10.0.0.1", "protocol": "tcp", "port": 80,
            "method": "concury", "affinity": "flow", "generation": 4, "digest": "", "states": 0,
            "published_states": 0, "refused_states": 0, "table_bytes": 1, "control_bytes": 1,
            "last_update_ms": null, "backends": backends })
    };
    let services = [service(&config.services[0].name), service("unknown")];
    let status = serde_json::json!({ "name": "weir", "version": "0", "pid": 1, "uptime_seconds": 5,
        "resumed": false, "interfaces": [], "warnings": [], "services": services, "outcomes": [],
        "unrecorded_flows": 0, "reports": 0, "pending_flows": 0, "table_bytes_used": 0, "table_bytes": 0 });
    let status = serde_json::from_value(status).unwrap();
    let name = config.services[0].name.clone();
    let input = DoctorInput::new(config).beside(&status);
    let [(service, added)] = &input.running[..] else { panic!("{:?}", input.running) };
    assert_eq!((service, added.name.as_str()), (&name, "added"));
    assert_eq!(added.nat_sources, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
}
