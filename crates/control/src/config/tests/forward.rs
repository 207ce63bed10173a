//! What a file may say of ways to forward.

use super::*;

/// How packets reach backends: defaults, ports, and backends of the other family.
/// Whose an answer is must be clear from a backend's address, port and protocol.
#[test]
fn answers_of_translated_backends_tell_whose_they_are() {
    let one = |name: &str, vip: &str, fields: &str, backend: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nvip = \"{vip}\"\nforward = \"nat\"\n{fields}\n\
             [service.check]\nenabled = false\n[[service.backend]]\nname = \"b\"\n{backend}\n"
        )
    };
    let text =
        |services: &[String]| format!("[balancer]\ninterfaces = [\"eth0\"]\n{}", services.concat());
    let at = "address = \"10.1.0.1\"";
    let own = |port: u16| format!("{at}\nport = {port}");
    let web = one("web", "10.0.0.1", "port = 80", at);
    let any = one("any", "10.0.0.1", "any_port = true", at);
    for (fine, second) in [
        ("another port", one("b", "10.0.0.2", "port = 80", &own(81))),
        ("another protocol", one("b", "10.0.0.2", "port = 80\nprotocol = \"udp\"", at)),
        ("another address", one("b", "10.0.0.2", "port = 80", "address = \"10.1.0.2\"")),
        ("the same after all", any.clone()),
    ] {
        let config = Config::parse(&text(&[web.clone(), second]), "weir.toml");
        assert!(config.is_ok(), "{fine}: {config:?}");
    }
    for (wrong, first, second) in [
        ("the same", &web, one("b", "10.0.0.2", "port = 80", at)),
        ("the same by its own", &web, one("b", "10.0.0.1", "port = 90", &own(80))),
        ("any", &any, one("b", "10.0.0.2", "any_port = true", at)),
        ("one of any", &any, one("b", "10.0.0.2", "port = 80", at)),
        ("one of any, with another port", &any, one("b", "10.0.0.1", "port = 80", &own(81))),
    ] {
        let error = Config::parse(&text(&[first.clone(), second]), "weir.toml").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("whose an answer from there is could not be told"),
            "{wrong}: {error}"
        );
        assert!(error.contains("service \"b\": backend \"b\": "), "{wrong}: {error}");
    }
    for (text_of, words) in [
        (
            one("a", "10.0.0.1", "any_port = true", &own(80)),
            "a service of any port leaves the port",
        ),
        (
            web.replace("nat", "l2").replace(at, &own(80)),
            "forward = \"l2\" leaves the port as it is",
        ),
        (web.replace("port = 80", "port = 80\nmethod = \"cheetah\""), "does not go with method"),
        (web.replace("10.1.0.1", "fd00::1"), "is not of the family"),
        (web.replace(at, &format!("{at}\nport = 0")), "port: 0 is out of range"),
    ] {
        let error = Config::parse(&text(&[text_of]), "weir.toml").unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    // Many ports of one address, each with its own check.
    let more = format!("[[service.backend]]\nname = \"c\"\n{}\n", own(81));
    let both = format!("{web}{more}").replace("enabled = false", "interval = \"1s\"");
    let config = Config::parse(&text(std::slice::from_ref(&both)), "weir.toml").unwrap();
    let service = &config.services[0];
    let check = service.check.as_ref().unwrap();
    let ports: Vec<u16> =
        service.backends.iter().map(|backend| service.check_port(check, backend)).collect();
    assert_eq!(ports, [80, 81]);
    let given = both.replace("interval = \"1s\"", "port = 99");
    let config = Config::parse(&text(&[given]), "weir.toml").unwrap();
    let service = &config.services[0];
    let check = service.check.as_ref().unwrap();
    assert!(service.backends.iter().all(|backend| service.check_port(check, backend) == 99));
}

#[test]
fn tunnels_and_where_they_begin() {
    let config = |head: &str, fields: &str, backend: &str| {
        format!(
            "[balancer]\ninterfaces = [\"eth0\"]\n{head}\n[[service]]\nname = \"web\"\n\
             vip = \"10.0.0.1\"\nport = 80\n{fields}\n[[service.backend]]\nname = \"b1\"\n\
             address = \"{backend}\"\n"
        )
    };
    let forward = |fields: &str, backend: &str| {
        let parsed = Config::parse(&config("", fields, backend), "weir.toml");
        parsed.unwrap_or_else(|error| panic!("{error}")).services[0].forward
    };
    assert_eq!(forward("", "10.0.0.11"), Forward::L2);
    assert_eq!(forward("forward = \"l2\"", "10.0.0.11"), Forward::L2);
    for (word, wanted) in [
        ("ipip", Forward::Ipip),
        ("gre", Forward::Gre),
        ("gue", Forward::Gue(6080)),
        ("fou", Forward::Fou(5555)),
    ] {
        for backend in ["10.0.0.11", "2001:db8::11"] {
            assert_eq!(forward(&format!("forward = {word:?}"), backend), wanted);
        }
    }
    assert_eq!(forward("forward = \"fou\"\ntunnel_port = 7", "10.0.0.11"), Forward::Fou(7));
    let saved = serde_json::to_string(&Forward::Gue(9)).unwrap();
    assert_eq!(serde_json::from_str::<Forward>(&saved).unwrap(), Forward::Gue(9));
    let wrong = problems(&config("", "", "2001:db8::11"));
    assert!(wrong[0].to_string().contains("or set forward to a tunnel"), "{}", wrong[0]);

    let source = |head: &str| {
        let parsed = Config::parse(&config(head, "", "10.0.0.11"), "weir.toml");
        parsed.map(|config| config.balancer.tunnel_sources())
    };
    let both =
        source("tunnel_source = \"172.16.0.0/16\"\ntunnel_source6 = \"2001:db8::2\"").unwrap();
    let (v4, v6) = ("10.9.9.9".parse().unwrap(), "2001:db8::11".parse().unwrap());
    assert_eq!(both.towards(v4, None), (Some("172.16.0.0".parse().unwrap()), 16));
    assert_eq!(both.towards(v6, None), (Some("2001:db8::2".parse().unwrap()), 0));
    let none = TunnelSources::default();
    assert_eq!(none.towards(v4, Some(v6)), (None, 0));
    assert_eq!(none.towards(v6, Some(v6)), (Some(v6), 0));
    for (line, word) in [
        ("tunnel_source = \"172.16.0.1/16\"", "has bits behind the prefix"),
        ("tunnel_source = \"172.16.0.1/16\"", "write 172.16.0.0/16"),
        ("tunnel_source = \"fd00::1\"", "neither an IPv4 address nor a prefix"),
        ("tunnel_source = \"10.0.0.0/0\"", "neither an IPv4 address nor a prefix"),
        ("tunnel_source = \"224.0.0.1\"", "not the address of one host"),
        ("tunnel_source6 = \"10.0.0.1\"", "not the IPv6 address of one host"),
    ] {
        let error = source(line).unwrap_err().to_string();
        assert!(error.starts_with("weir.toml:3: balancer: tunnel_source"), "{error}");
        assert!(error.contains(word), "{error}");
    }
}

/// Backends have the services' addresses, and take what comes from one for forged.
#[test]
fn no_tunnel_begins_at_an_address_of_a_service() {
    let parse = |source: &str, vip: &str, forward: &str| {
        let text = format!(
            "[balancer]\ninterfaces = [\"eth0\"]\n{source}\n[[service]]\nname = \"web\"\nvip = \"{vip}\"\n\
             port = 80\nforward = \"{forward}\"\n[service.check]\nenabled = false\n[[service.backend]]\n\
             name = \"b1\"\naddress = \"10.0.9.11\"\n"
        );
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    };
    for (source, vip, forward, whose) in [
        ("tunnel_source = \"10.0.0.1\"", "10.0.0.1", "ipip", Some("10.0.0.1")),
        ("tunnel_source = \"10.0.0.0/24\"", "10.0.0.1", "gre", Some("10.0.0.1")),
        ("tunnel_source = \"10.0.0.7\"", "10.0.0.0/24", "fou", Some("10.0.0.0/24")),
        ("tunnel_source6 = \"2001:db8::1\"", "2001:db8::1", "gue", Some("2001:db8::1")),
        ("tunnel_source = \"10.0.0.2\"", "10.0.0.1", "ipip", None),
        ("tunnel_source = \"10.0.1.0/24\"", "10.0.0.1", "gre", None),
        // Nobody asks for it.
        ("tunnel_source = \"10.0.0.1\"", "10.0.0.1", "l2", None),
    ] {
        match (parse(source, vip, forward), whose) {
            (Ok(_), None) => {}
            (Err(error), Some(whose)) => {
                let words = format!("service \"web\" has {whose}: its backends have that");
                assert!(error.starts_with("weir.toml:3: balancer: tunnel_source"), "{error}");
                assert!(error.contains(&words), "{error}");
            }
            (found, _) => panic!("{source}, {vip}, {forward}: {found:?}"),
        }
    }
}

/// Backends do not answer to what is no address of this host alone.
#[test]
fn sources_of_full_nat_are_addresses_that_backends_can_answer_to() {
    for (source, words) in [
        ("127.0.0.1", "127.0.0.1 is a loopback address"),
        ("::1", "::1 is a loopback address"),
        ("0.0.0.0", "\"0.0.0.0\" is not the address of one host"),
        ("::", "\"::\" is not the address of one host"),
        ("0.1.2.3", "0.1.2.3 is of 0.0.0.0/8"),
        ("224.0.0.1", "\"224.0.0.1\" is not the address of one host"),
        ("255.255.255.255", "\"255.255.255.255\" is not the address of one host"),
        ("169.254.1.2", "169.254.1.2 is a link-local address"),
        ("fe80::1", "fe80::1 is a link-local address"),
    ] {
        let sources = format!("interfaces = [\"eth0\"]\nnat_sources = [\"{source}\"]");
        let text = service("port = 80").replacen("interfaces = [\"eth0\"]", &sources, 1);
        expect_one(source, &text, 3, &["balancer: nat_sources: ", words, "addresses of this host"]);
    }
    for (source, words) in [
        ("tunnel_source = \"127.0.0.1\"", "127.0.0.1 is a loopback address"),
        ("tunnel_source = \"127.1.0.0/16\"", "127.1.0.0/16 is a loopback address"),
        ("tunnel_source6 = \"::1\"", "is not the IPv6 address of one host"),
    ] {
        let sources = format!("interfaces = [\"eth0\"]\n{source}");
        let text = service("port = 80").replacen("interfaces = [\"eth0\"]", &sources, 1);
        expect_one(source, &text, 3, &[words]);
    }
}

/// Whatever the way to forward: a balancer with a backend's address would take that off the network, and a backend with
/// a service's would be the balancer itself.
#[test]
fn backends_have_other_addresses_than_the_balancer() {
    let text = |forward: &str, vip: &str, address: &str| {
        format!(
            "[balancer]\ninterfaces = [\"eth0\"]\nnat_sources = [\"10.0.0.2\"]\n[[service]]\nname = \"web\"\n\
             vip = \"10.0.0.1\"\nport = 80\nforward = \"{forward}\"\n[[service.backend]]\nname = \"b1\"\n\
             address = \"{address}\"\n[[service]]\nname = \"other\"\nvip = {vip}\nport = 81\n\
             [[service.backend]]\nname = \"b1\"\naddress = \"10.9.0.1\"\n"
        )
    };
    for forward in ["l2", "ipip", "gre", "gue", "fou", "nat", "fullnat"] {
        for (vip, address, words) in [
            ("\"10.0.0.3\"", "10.0.0.2", "10.0.0.2 is one of balancer.nat_sources"),
            ("\"10.0.0.3\"", "10.0.0.3", "10.0.0.3 is the vip of service \"other\""),
            (
                "[\"2001:db8::3\", \"10.0.3.0/24\"]",
                "10.0.3.7",
                "10.0.3.7 is one of the vip 10.0.3.0/24 of service \"other\"",
            ),
        ] {
            let words = [
                "service \"web\": backend \"b1\": address: ",
                words,
                "give the backend's own address",
            ];
            expect_one(forward, &text(forward, vip, address), 11, &words);
        }
        let fine = Config::parse(&text(forward, "\"10.0.3.0/24\"", "10.0.4.7"), "weir.toml");
        assert!(fine.is_ok(), "{forward}: {fine:?}");
    }
    // One address of two services is told once, as the service's own.
    let both = text("l2", "\"10.0.0.1\"", "10.0.0.1");
    expect_one("both", &both, 11, &["10.0.0.1 is the vip of the service itself"]);
}

#[test]
fn services_have_addresses_that_clients_can_reach() {
    for (vip, words) in [
        ("127.0.0.5", "127.0.0.5 is a loopback address"),
        ("127.0.0.0/8", "127.0.0.0/8 is a loopback address"),
        ("::1", "::1 is a loopback address"),
        ("0.0.0.0", "0.0.0.0 is not the address of one host"),
        ("0.0.0.7", "0.0.0.7 is of 0.0.0.0/8"),
        ("::", ":: is not the address of one host"),
        ("224.0.0.1", "224.0.0.1 is not the address of one host"),
        ("ff02::1", "ff02::1 is not the address of one host"),
        ("255.255.255.255", "255.255.255.255 is not the address of one host"),
        ("255.255.255.0/24", "255.255.255.0/24 is not the address of one host"),
    ] {
        let text = service("port = 80").replacen("\"10.0.0.1\"", &format!("\"{vip}\""), 1);
        expect_one(vip, &text, 6, &["service \"web\": vip: ", words, "give one such as 10.0.0.1"]);
    }
}
