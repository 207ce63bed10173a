use std::time::Duration;

use super::*;

mod forward;
mod methods;
mod tables;

use methods::method;

const EXAMPLE: &str = include_str!("../../../../examples/weir.toml");

/// One fault: the service lines (from line 4 on), the line of the problem, words of it.
struct Case {
    what: &'static str,
    text: &'static str,
    line: usize,
    words: &'static [&'static str],
}

const HEAD: &str = "[balancer]\ninterfaces = [\"eth0\"]\n\n";

fn service(fields: &str) -> String {
    format!(
        "{HEAD}[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\n{fields}\n\
         [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n"
    )
}

fn problems(text: &str) -> Vec<Problem> {
    match Config::parse(text, "weir.toml") {
        Ok(config) => panic!("no problem found in\n{text}\n{config:?}"),
        Err(error) => error.problems().to_vec(),
    }
}

/// Exactly one problem, on the line and with the words that are expected.
fn expect_one(what: &str, text: &str, line: usize, words: &[&str]) {
    let found = problems(text);
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 1, "{what}: {shown:#?}\n{text}");
    assert_eq!(found[0].line, line, "{what}: {shown:?}\n{text}");
    assert!(shown[0].starts_with(&format!("weir.toml:{line}: ")));
    for word in words {
        assert!(shown[0].contains(word), "{what}: no {word:?} in {shown:?}");
    }
}

#[test]
fn faults_of_one_service_field() {
    // The field stands on line 7 of the text.
    let cases = [
        (
            "port = 0",
            &[
                "service \"web\": port: 0 is not a port",
                "give 1..65535, or remove it and set any_port = true",
            ] as &[&str],
        ),
        ("port = 65536", &["port: 65536 is not a port"]),
        ("port = -1", &["port: -1 is not a port"]),
        (
            "port = 80\nmethod = \"maglev\"",
            &["method: \"maglev\" is not known", "concury, tracked"],
        ),
        ("port = 80\naffinity = \"cookie\"", &["affinity: \"cookie\"", "flow, client"]),
        ("port = 80\nprotocol = \"dccp\"", &["protocol: \"dccp\"", "tcp, udp, sctp"]),
        (
            "port = 80\nprotocol = \"sctp\"\ncheck.port = 81\nforward = \"nat\"",
            &["forward: \"nat\" does not go with protocol = \"sctp\"", "CRC32c", "\"ipip\""],
        ),
        (
            "port = 80\nprotocol = \"sctp\"\ncheck.port = 81\nmethod = \"cheetah\"",
            &["method: cheetah hides its cookies in timestamps of TCP", "\"concury\""],
        ),
        (
            "port = 80\nprotocol = \"sctp\"\ncheck.port = 81\nmss = 1400",
            &["mss: only TCP has segments", "remove it"],
        ),
        ("port = 80\ndcode_bits = 3", &["dcode_bits: 3 is out of range", "4..15"]),
        ("port = 80\ndcode_bits = 16", &["dcode_bits: 16 is out of range", "4..15"]),
        ("port = 80\ntable_size = 65537", &["table_size: is a setting of method = \"tracked\""]),
        (
            "port = 80\nidle_timeout = \"soon\"",
            &["idle_timeout: \"soon\" is not a duration", "2h15m"],
        ),
        (
            "port = 80\nidle_timeout = \"0s\"",
            &["idle_timeout: \"0s\" is out of range", "1s to 30days"],
        ),
        (
            "port = 80\nidle_timeout = 30",
            &["idle_timeout", "invalid type: integer `30`", "text in quotes", "such as \"30s\""],
        ),
        (
            "port = 80\ncheck.interval = 500",
            &["check.interval", "text in quotes with a unit, such as \"500ms\" or \"5s\""],
        ),
        ("port = 80\nforward = \"vxlan\"", &["forward: \"vxlan\"", "l2, ipip, gue, fou, gre"]),
        (
            "port = 80\ntunnel_port = 6080",
            &["tunnel_port: forward = \"l2\" has no port", "\"gue\" or \"fou\""],
        ),
        ("port = 80\nforward = \"fou\"\ntunnel_port = 0", &["tunnel_port: 0 is out of range"]),
        ("port = 80\nmss = 535", &["mss: 535 is out of range", "give 536..65495, or \"auto\""]),
        ("port = 80\nmss = \"small\"", &["mss: \"small\" is not known", "\"auto\""]),
        (
            "port = 80\nprotocol = \"udp\"\ncheck = { enabled = false }\nmss = 1400",
            &["mss: only TCP has segments"],
        ),
        (
            "port = 80\ncolour = \"red\"",
            &["unknown field `colour`", "the fields here are name, vip, protocol, port"],
        ),
        ("port = \"80\"", &["port: \"80\" is no range of ports", "a number without quotes"]),
        ("port = \"9-8\"", &["port: \"9-8\" is no range", "\"8000-8999\""]),
        ("port = [80]", &["invalid type: sequence", "[[service]] port"]),
        ("any_port = 1", &["invalid type: integer `1`", "true or false"]),
        ("port = 80\nname = \"again\"", &["duplicate key"]),
        ("port = = 80", &["port"]),
    ];
    for (fields, words) in cases {
        let line = 6 + fields.lines().count();
        expect_one(fields, &service(fields), line, words);
    }
    // What is missing has no line but the service's.
    let sctp = "port = 80\nprotocol = \"sctp\"";
    let words = ["the service has no TCP port of its own", "give the TCP port to check"];
    expect_one(sctp, &service(sctp), 4, &words);
}

#[test]
fn faults_of_ports() {
    expect_one(
        "both",
        &service("any_port = true\nport = 80\ncheck = { port = 80 }"),
        8,
        &["port = 80 and any_port = true contradict", "either"],
    );
    expect_one(
        "zero and any",
        &service("any_port = true\nport = 0\ncheck = { port = 80 }"),
        8,
        &["0 is not a port", "remove it: any_port"],
    );
    expect_one(
        "neither",
        &service(""),
        4,
        &["service \"web\": port: is missing", "any_port = true"],
    );
    expect_one("any_port false", &service("any_port = false"), 4, &["port: is missing"]);
}

#[test]
fn faults_of_checks() {
    let cases = [
        (
            "interval = \"0s\"",
            &["service \"web\": check: interval: \"0s\" is out of range"] as &[&str],
        ),
        ("interval = \"1 fortnight\"", &["interval: \"1 fortnight\" is not a duration"]),
        ("timeout = \"2s\"", &["timeout: \"2s\" is not less than the interval", "less than 2s"]),
        ("rise = 0", &["rise: 0 is out of range"]),
        ("fall = -4", &["fall: -4 is out of range"]),
        ("all_down = \"drop\"", &["all_down: \"drop\" is not known", "keep, refuse"]),
        ("port = 0", &["check: port: 0 is out of range"]),
        (
            "paths = \"/\"",
            &["unknown field `paths`", "enabled, type, interval, timeout, jitter, rise, fall"],
        ),
        ("jitter = 51", &["jitter: 51 is out of range", "give 0..50"]),
        ("flap_window = \"2h\"", &["flap_window: \"2h\" is out of range"]),
        (
            "type = \"ftp\"",
            &[
                "type: \"ftp\" is not known",
                "tcp, http, https, grpc, grpcs, dns, udp, script, agent",
            ],
        ),
        ("path = \"/\"", &["path: is a setting of checks with type = \"http\" or \"https\""]),
        ("command = [\"/bin/true\"]", &["is a setting of checks with type = \"script\"", "remove"]),
    ];
    for (field, words) in cases {
        expect_one(field, &service(&format!("port = 80\n[service.check]\n{field}")), 9, words);
    }
    let right = "give the TCP port to check";
    expect_one(
        "udp",
        &service("port = 53\nprotocol = \"udp\""),
        4,
        &["check: port: is missing", right],
    );
    expect_one(
        "any",
        &service("any_port = true\n[service.check]\nrise = 1"),
        8,
        &["check: port: is missing", right],
    );
    let of_kind = [
        ("http", "path = \"healthz\"", "path: \"healthz\" cannot be used", "begins with /"),
        ("http", "path = \"/a b\"", "path: \"/a b\" cannot be used", "% before"),
        ("http", "method = \"get\"", "method: \"get\" cannot be used", "GET, HEAD"),
        ("http", "host = \"a b\"", "host: \"a b\" cannot be used", "www.example.org"),
        ("http", "status = []", "status: the list is empty", "[200, \"300-399\"]"),
        ("http", "status = [99]", "status: \"99\" are no status codes", "100 to 599"),
        ("http", "status = [\"300-200\"]", "\"300-200\" are no status codes", "100 to 599"),
        ("http", "headers = { Host = \"x\" }", "\"Host\" is set by the check itself", "remove it"),
        ("http", "headers = { \"a b\" = \"x\" }", "\"a b\" is not the name of a header", "Accept"),
        ("http", "headers = { A = \"x\\n\" }", "is not the value of a header", "visible"),
        ("http", "body = \"\"", "body: \"\" cannot be used", "1 to 1024 bytes"),
        ("http", "method = \"HEAD\"\nbody = \"x\"", "an answer to HEAD has no body", "GET"),
        ("http", "verify = false", "is a setting of checks with type = \"https\"", "remove it"),
        ("https", "sni = \"a b\"", "sni: \"a b\" cannot be used", "a host name"),
        ("https", "ca = \"ca.pem\"", "ca: \"ca.pem\" cannot be used", "an absolute path"),
        ("https", "ca = \"/ca\"\nverify = false", "would not be asked", "remove one of them"),
        ("https", "expiry_warning = \"2y\"", "expiry_warning: \"2y\" is out of range", "give"),
        ("dns", "port = 53", "query: is missing", "query = \"example.org\""),
        ("dns", "port = 53\nquery = \"a..b\"", "query: \"a..b\" cannot be used", "example.org"),
        ("dns", "port = 53\nquery = \"a\"\nrecord = \"ANY\"", "\"ANY\" is not known", "AAAA"),
        ("dns", "query = \"a\"", "port: is missing", "give the UDP port to check"),
        ("udp", "port = 9\nexpect = \"x\"", "send: is missing", "send_hex in hexadecimal"),
        ("udp", "port = 9\nsend = \"x\"\nexpect = \"\"", "expect: 0 bytes", "give 1 to 1024"),
        ("udp", "port = 9\nsend = \"x\"\nexpect_hex = \"0g\"", "is not hexadecimal", "\"00ff\""),
        (
            "udp",
            "port = 9\nexpect = \"x\"\nsend = \"x\"\nsend_hex = \"00\"",
            "send and send_hex contradict each other",
            "give send as text",
        ),
        ("agent", "", "check: no agent says anything", "[agents]"),
        ("script", "", "command: is missing", "{address}"),
        ("script", "command = []", "command: begins with no absolute path", "{address}"),
        ("script", "command = [\"/x\"]\nuser = \"a b\"", "user: \"a b\" cannot be used", "nobody"),
    ];
    for (kind, fields, wrong, right) in of_kind {
        let text = service(&format!("port = 80\n[service.check]\ntype = {kind:?}\n{fields}"));
        let found = problems(&text);
        let said: Vec<String> = found.iter().map(ToString::to_string).collect();
        let words = said.join("\n");
        assert!(found.len() == 1 && words.contains(wrong) && words.contains(right), "{words}");
    }
    for fine in [
        "port = 53\nprotocol = \"udp\"\ncheck = { type = \"dns\", query = \".\", record = \"NS\" }",
        "any_port = true\ncheck = { type = \"script\", command = [\"/bin/true\"] }",
        "port = 53\nprotocol = \"udp\"\n[service.check]\nenabled = false",
        "any_port = true\ncheck = { enabled = false }",
        "any_port = true\ncheck = { port = 80 }",
    ] {
        assert!(Config::parse(&service(fine), "weir.toml").is_ok(), "{fine}");
    }
}

/// A backend's check has what it says, and else what the service's says; of another type only what all
/// checks have.
#[test]
fn backends_have_checks_of_their_own() {
    let check = "port = 80\n[service.check]\ntype = \"https\"\ninterval = \"3s\"\nhost = \"a.example\"\n\
                 path = \"/up\"\nall_down = \"refuse\"\n";
    let with = |own: &str| {
        let more = "[[service.backend]]\nname = \"own\"\naddress = \"10.0.0.99\"\ncheck = ";
        format!("{}\n{more}{own}\n", service(check))
    };
    let read = |own: &str| {
        let config = Config::parse(&with(own), "weir.toml").unwrap();
        let service = config.services[0].clone();
        let backend = service.backends.iter().find(|one| one.name == "own").unwrap();
        let other = service.check_of(&service.backends[0]).unwrap();
        assert_eq!(Some(other), service.check.as_ref());
        (service.check.clone().unwrap(), service.check_of(backend).cloned())
    };
    let tls = |check: &Check| match &check.what {
        What::Https { http, tls } => (http.path.clone(), http.host.clone(), tls.sni.clone()),
        other => panic!("{other:?}"),
    };
    let (shared, own) = read("{ path = \"/own\", rise = 7, port = 8443 }");
    let own = own.unwrap();
    let name = || Some("a.example".to_owned());
    assert_eq!(tls(&shared), ("/up".into(), name(), name()));
    assert_eq!(tls(&own), ("/own".into(), name(), name()));
    assert_eq!((own.rise, own.interval, own.port), (7, Duration::from_secs(3), 8443));
    assert_eq!((own.all_down, shared.rise, shared.port), (AllDown::Refuse, 2, 80));
    let (_, own) = read("{ type = \"tcp\" }");
    let own = own.unwrap();
    assert_eq!((own.what, own.interval, own.port), (What::Tcp, Duration::from_secs(3), 80));
    assert_eq!(read("{ enabled = false }").1, None);
    for (own, words) in [
        ("{ all_down = \"keep\" }", "all_down: is a setting of the service"),
        ("{ body = \"x\", method = \"HEAD\" }", "backend \"own\": check: body: an answer to HEAD"),
        ("{ type = \"tcp\", path = \"/\" }", "path: is a setting of checks with type"),
        ("{ timeout = \"4s\" }", "timeout: \"4s\" is not less than the interval"),
    ] {
        let said = Config::parse(&with(own), "weir.toml").unwrap_err();
        assert!(said.problems().len() == 1 && said.to_string().contains(words), "{said}");
    }
    // Both ways through JSON, in which runs hand it down.
    let config = Config::parse(&with("{ path = \"/own\" }"), "weir.toml").unwrap();
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
    let old = r#"{"interval":"2s","timeout":"1s","rise":2,"fall":3,"port":80}"#;
    let old: Check = serde_json::from_str(old).unwrap();
    assert_eq!((old.what, old.jitter, old.flap_window), (What::Tcp, 0, Duration::ZERO));
}

#[test]
fn faults_of_methods() {
    let tracked = "port = 80\nmethod = \"tracked\"\n";
    expect_one(
        "not prime",
        &service(&format!("{tracked}table_size = 65536")),
        9,
        &["65536 is not a prime", "next prime is 65537"],
    );
    expect_one("range", &service(&format!("{tracked}table_size = 1")), 9, &["1 is out of range"]);
    expect_one(
        "foreign",
        &service(&format!("{tracked}dcode_bits = 12")),
        9,
        &["dcode_bits", "concury"],
    );
    let many = |n: u32, fields: &str| {
        let mut text =
            format!("{HEAD}[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n{fields}\n");
        for at in 0..n {
            let address = std::net::Ipv4Addr::from(0x0a01_0000 + at);
            text += &format!("[[service.backend]]\nname = \"b{at}\"\naddress = \"{address}\"\n");
        }
        text
    };
    expect_one(
        "few codes",
        &many(3, "dcode_bits = 4"),
        8,
        &["3 backends, and dcode_bits = 4 allows 2", "set dcode_bits = 5"],
    );
    expect_one(
        "default codes",
        &many(513, ""),
        4,
        &["513 backends", "allows 512", "set dcode_bits = 13"],
    );
    let limits = "[limits]\nbackends = 5000\n";
    let text = many(4097, "dcode_bits = 15") + limits;
    expect_one("most codes", &text, 8, &["allows 4096", "method = \"tracked\""]);
    expect_one(
        "few rows",
        &many(4, "method = \"tracked\"\ntable_size = 3"),
        9,
        &["3 rows for 4 backends", "table_size = 401"],
    );
    let line = 9 + 3 * 10;
    let text = many(20, "") + "[limits]\nbackends = 10\n";
    expect_one("limits.backends", &text, line, &["20 backends in all", "limits.backends is 10"]);
    assert!(Config::parse(&many(512, ""), "weir.toml").is_ok());
}

/// A UDP service with this text for its ids.
fn with_ids(quic: &str) -> String {
    format!(
        "[balancer]\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"h3\"\nvip = \"10.0.0.1\"\n\
         protocol = \"udp\"\nport = 443\ncheck.enabled = false\n\
         backend = [{{ name = \"b1\", address = \"10.0.0.11\" }}, \
         {{ name = \"b2\", address = \"10.0.0.12\" }}]\n{quic}"
    )
}

#[test]
fn faults_of_quic_ids() {
    let one = "config_id = 1\nserver_id_length = 2\n";
    let config = |more: &str| format!("[[service.quic.config]]\n{one}{more}\n");
    let good = config("nonce_length = 6");
    let key = "key = \"8f95f09245765f80256934e50c6620\"";
    let cases: [(String, &[&str]); 11] = [
        ("[service.quic]\n".into(), &["quic: config: is missing", "[[service.quic.config]]"]),
        (config("nonce_length = 3"), &["nonce_length: 3 is out of range", "give 4..18"]),
        (config("nonce_length = 18"), &["18 and a server_id_length of 2", "give 4..17"]),
        (config(""), &["config number 1: nonce_length: is missing", "give 4..18"]),
        (config(&format!("nonce_length = 6\n{key}")), &["key: is not 16 bytes", "32 of 0-9"]),
        (config("nonce_length = 6\nlength = 3"), &["unknown field `length`"]),
        (good.repeat(2), &["config_id: configuration 1 is on line 11", "from 0 to 6"]),
        (
            good.replace("config_id = 1", "config_id = 7"),
            &["config_id: 7 is out of range", "give 0..6"],
        ),
        (
            format!("[service.quic]\nissue = 2\n{good}"),
            &["issue: there is no configuration 2", "give one of 1"],
        ),
        (
            format!("{good}[service.quic.server_ids]\nb3 = \"0a0b\"\n"),
            &["server_ids.b3: the service has no backend of this name"],
        ),
        (
            format!("{good}[service.quic.server_ids]\nb1 = \"0a0b0c\"\n"),
            &["server_ids.b1: \"0a0b0c\" is no server id", "give 2 bytes in hexadecimal"],
        ),
    ];
    for (quic, words) in cases {
        let found = problems(&with_ids(&quic));
        let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert_eq!(found.len(), 1, "{quic}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{quic}: {text}"));
        // Not even most of a key.
        assert!(!text.contains("8f95"), "{text}");
    }
    let twice = format!("{good}[service.quic.server_ids]\nb1 = \"0a0b\"\nb2 = \"0A0B\"\n");
    let text = problems(&with_ids(&twice))[0].to_string();
    assert!(text.contains("\"b1\" and \"b2\" have one server id of 2 bytes"), "{text}");
    let tcp = with_ids(&good).replace("\"udp\"", "\"tcp\"");
    assert!(problems(&tcp)[0].to_string().contains("QUIC goes over UDP"));
    let config = Config::parse(&with_ids(&good), "weir.toml").expect("it is good");
    assert_eq!(config.services[0].quic.as_ref().map(|quic| quic.issue), Some(1));
    let json = serde_json::to_string(&config).expect("it is plain");
    assert_eq!(serde_json::from_str::<Config>(&json).expect("it is the same"), config);
}

#[test]
fn faults_of_backends() {
    let base = service("port = 80");
    let cases = [
        Case {
            what: "weight",
            text: "weight = 65536",
            line: 11,
            words: &["service \"web\": backend \"b1\": weight: 65536 is out of range", "0..65535"],
        },
        Case { what: "negative", text: "weight = -1", line: 11, words: &["weight: -1"] },
        Case {
            what: "zero total",
            text: "weight = 0",
            line: 4,
            words: &["service would have no backend for new connections"],
        },
        Case {
            what: "all drain",
            text: "drain = true",
            line: 4,
            words: &["service would have no backend for new connections"],
        },
        Case {
            what: "duplicate name",
            text: "[[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.12\"",
            line: 12,
            words: &["backend \"b1\": name", "on line 9 already"],
        },
        Case {
            what: "duplicate address",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"10.0.0.11\"",
            line: 13,
            words: &["10.0.0.11 is the address of backend \"b1\" already"],
        },
        Case {
            what: "family",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"2001:db8::1\"",
            line: 13,
            words: &["not of the family of the vip 10.0.0.1", "IPv4"],
        },
        Case {
            what: "bad address",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"10.0.0.300\"",
            line: 13,
            words: &["\"10.0.0.300\" is not an IP address"],
        },
        Case {
            what: "loopback",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"127.0.0.1\"",
            line: 13,
            words: &["backend \"b2\": address: 127.0.0.1 is a loopback address", "10.0.0.11"],
        },
        Case {
            what: "this network",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"0.0.0.7\"",
            line: 13,
            words: &["0.0.0.7 is of 0.0.0.0/8", "10.0.0.11"],
        },
        Case {
            what: "multicast",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"239.1.2.3\"",
            line: 13,
            words: &["239.1.2.3 is not the address of one host", "10.0.0.11"],
        },
        Case {
            what: "broadcast",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"255.255.255.255\"",
            line: 13,
            words: &["255.255.255.255 is not the address of one host", "10.0.0.11"],
        },
        Case {
            what: "vip as backend",
            text: "[[service.backend]]\nname = \"b2\"\naddress = \"10.0.0.1\"",
            line: 13,
            words: &["is the vip of the service itself"],
        },
        Case {
            what: "no address",
            text: "[[service.backend]]\nname = \"b2\"",
            line: 11,
            words: &["backend \"b2\": address: is missing"],
        },
        Case {
            what: "no name",
            text: "[[service.backend]]\naddress = \"10.0.0.12\"",
            line: 11,
            words: &["backend number 2: name: is missing"],
        },
        Case {
            what: "unknown",
            text: "wieght = 3",
            line: 11,
            words: &["unknown field `wieght`", "name, address, port, weight, drain"],
        },
    ];
    for case in cases {
        expect_one(case.what, &format!("{base}{}\n", case.text), case.line, case.words);
    }
    let none = format!("{HEAD}[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n");
    expect_one("none", &none, 4, &["no backends", "[[service.backend]]"]);
    expect_one(
        "bad vip",
        &none.replace("10.0.0.1\"", "10.0.0.1/33\"").replace(
            "port = 80",
            "port = 80\n[[service.backend]]\nname=\"b\"\naddress=\"10.0.0.2\"",
        ),
        6,
        &["vip: 10.0.0.1/33 is no prefix"],
    );
}

#[test]
fn faults_of_what_is_looked_up() {
    let base = service("port = 80");
    let entry = |fields: &str| format!("{base}[[service.discover]]\nname = \"web\"\n{fields}\n");
    let config =
        Config::parse(&entry("dns = \"web.example.org\"\nservers = [\"::1\"]"), "f").unwrap();
    let found = &config.services[0].discover[0];
    assert_eq!(found.records.to_string(), "dns web.example.org");
    assert_eq!(found.servers, ["[::1]:53".parse().unwrap()]);
    assert_eq!((found.weight, found.most, found.every.as_secs()), (1, 64, 30));
    assert_eq!(found.leave_after.as_secs(), 3600);
    let no_backend = format!(
        "{HEAD}[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\
         [[service.discover]]\nname = \"web\"\nsrv = \"_http._tcp.example.org.\"\n"
    );
    let alone = Config::parse(&no_backend, "f").unwrap();
    assert!(alone.services[0].backends.is_empty());
    for (fields, line, words) in [
        ("", 11, "discover \"web\": says not what is asked for"),
        ("dns = \"a.b\"\nsrv = \"_a._tcp.b\"", 14, "srv: dns is given, too"),
        ("dns = \"10.0.0.1\"", 13, "dns: 10.0.0.1 is an address"),
        ("dns = \"a..b\"", 13, "\"a..b\" is not a domain name"),
        ("dns = \"a b\"", 13, "is not a domain name"),
        ("dns = \"a.b\"\nport = 80", 14, "port: packets keep their port"),
        ("srv = \"a.b\"\nweight = 2", 14, "weight: is not for srv"),
        ("dns = \"a.b\"\nweight = 0", 14, "weight: 0 is out of range"),
        ("dns = \"a.b\"\nmost = 2000", 14, "most: 2000 is out of range"),
        ("dns = \"a.b\"\nevery = \"1ms\"", 14, "every: \"1ms\" is out of range"),
        ("dns = \"a.b\"\nservers = []", 14, "servers: 0 are listed"),
        ("dns = \"a.b\"\nservers = [\"ns.b\"]", 14, "is not the address of a name server"),
        ("dns = \"a.b\"\nserver = 1", 14, "unknown field `server`"),
        (
            "dns = \"a.b\"\nnat_sources = [\"10.0.0.2\"]",
            14,
            "nat_sources: packets get a source of this host's with forward = \"fullnat\" only",
        ),
        (
            "dns = \"a.b\"\n[[service.discover]]\nname = \"web\"\ndns = \"c.d\"",
            15,
            "is on line 12 already",
        ),
    ] {
        expect_one(words, &entry(fields), line, &[words]);
    }
    let long = entry("dns = \"a.b\"")
        .replace("name = \"web\"\ndns", "name = \"longer-than-sixteen\"\ndns");
    expect_one("long", &long, 12, &["1 to 16 letters"]);
    let nat = entry("dns = \"a.b\"\nport = 8080")
        .replace("port = 80\n[[", "port = 80\nforward = \"nat\"\n[[");
    assert_eq!(Config::parse(&nat, "f").unwrap().services[0].discover[0].port, Some(8080));
    let full_nat = |own: &str| {
        let text = entry(&format!("dns = \"a.b\"\nnat_sources = [{own}]"))
            .replace("port = 80\n[[", "port = 80\nforward = \"fullnat\"\n[[");
        let sources = "nat_sources = [\"10.0.0.2\", \"10.0.0.3\", \"2001:db8::2\"]";
        text.replacen("[balancer]\n", &format!("[balancer]\n{sources}\n"), 1)
    };
    let config = Config::parse(&full_nat("\"10.0.0.3\""), "f").unwrap();
    let second: std::net::IpAddr = "10.0.0.3".parse().unwrap();
    assert_eq!(config.services[0].discover[0].nat_sources, [second]);
    for (own, words) in [
        ("\"10.0.0.4\"", "\"10.0.0.4\" is not one of balancer.nat_sources"),
        ("\"2001:db8::2\"", "2001:db8::2 is not of the family of the backend's address"),
        ("", "nat_sources: the list is empty"),
    ] {
        expect_one(words, &full_nat(own), 16, &[words]);
    }
    let fleet = entry("dns = \"a.b\"").replace("port = 80\n", "port = 80\nmethod = \"tracked\"\n");
    let fleet = fleet + "[store]\nkind = \"etcd\"\nendpoints = [\"http://a:1\"]\n";
    expect_one("fleet", &fleet, 4, &["discover: the balancers of a fleet"]);
}

#[test]
fn faults_between_services() {
    let other = |name: &str, fields: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nvip = \"10.0.0.1\"\n{fields}\n[[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n"
        )
    };
    let base = service("port = 80");
    expect_one(
        "name",
        &(base.clone() + &other("web", "port = 81")),
        12,
        &["service \"web\": name: a service of this name is on line 5"],
    );
    expect_one(
        "port",
        &(base.clone() + &other("www", "port = 80")),
        14,
        &["service \"www\"", "10.0.0.1 tcp port 80 belongs to service \"web\" already"],
    );
    let any = "any_port = true\ncheck.port = 80";
    let text = base.clone() + &other("rest", any) + &other("more", any);
    expect_one(
        "any_port",
        &text,
        22,
        &["service \"more\"", "any port belongs to service \"rest\""],
    );
    let fine = base.clone()
        + &other("rest", any)
        + &other("dns", "port = 80\nprotocol = \"udp\"\ncheck.port = 80");
    assert!(Config::parse(&fine, "weir.toml").is_ok());
    let limited = base + &other("www", "port = 81") + "[limits]\nservices = 1\n";
    expect_one("limits.services", &limited, 11, &["2 services, and limits.services is 1"]);
}

#[test]
fn faults_of_balancer_and_limits() {
    let cases = [
        Case {
            what: "name",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nname = \"Weir 1\"",
            line: 3,
            words: &["balancer: name: \"Weir 1\" is not a name", "a-z"],
        },
        Case {
            what: "mode",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nmode = \"fast\"",
            line: 3,
            words: &["mode: \"fast\"", "auto, native, generic"],
        },
        Case {
            what: "look_every",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nlook_every = \"2h\"",
            line: 3,
            words: &["look_every: \"2h\" is out of range; give 1s to 1h"],
        },
        Case {
            what: "icmp_per_second",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nicmp_per_second = -1",
            line: 3,
            words: &["icmp_per_second: -1 is out of range; give 0..1000000"],
        },
        Case {
            what: "next_program",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nnext_program = \"next\"",
            line: 3,
            words: &["next_program: \"next\" is not an absolute path"],
        },
        Case {
            what: "next_program in user space",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nplane = \"af-xdp\"\nnext_program = \"/next\"",
            line: 4,
            words: &["next_program: a plane in user space (af-xdp) hands no packets on"],
        },
        Case {
            what: "count_interfaces in user space",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nplane = \"af-xdp\"\ncount_interfaces = true",
            line: 4,
            words: &[
                "count_interfaces: a plane in user space (af-xdp) does not count by interface",
            ],
        },
        Case {
            what: "run_dir",
            text: "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = \"run\"",
            line: 3,
            words: &["run_dir: \"run\" is not an absolute path"],
        },
        Case {
            what: "no interfaces",
            text: "[balancer]",
            line: 1,
            words: &["balancer: interfaces: is missing"],
        },
        Case {
            what: "empty interfaces",
            text: "[balancer]\ninterfaces = []",
            line: 2,
            words: &["interfaces: the list is empty"],
        },
        Case {
            what: "bad interface",
            text: "[balancer]\ninterfaces = [\"a/b\"]",
            line: 2,
            words: &["\"a/b\" is not an interface name"],
        },
        Case {
            what: "twice",
            text: "[balancer]\ninterfaces = [\n\"a\",\n\"a\"]",
            line: 4,
            words: &["\"a\" is listed twice"],
        },
        Case { what: "nothing", text: "", line: 1, words: &["balancer: interfaces: is missing"] },
        Case {
            what: "unknown table",
            text: "[balancer]\ninterfaces = [\"a\"]\n[servce]\nname = \"x\"",
            line: 3,
            words: &[
                "unknown field `servce`",
                "balancer, af_xdp, dpdk, offload, p4, limits, api, agents, announce, store, service",
            ],
        },
        Case {
            what: "syntax",
            text: "[balancer\ninterfaces = [\"a\"]",
            line: 1,
            words: &["unclosed table"],
        },
        Case {
            what: "open text",
            text: "[balancer]\ninterfaces = [\"a]\n",
            line: 2,
            words: &["interfaces"],
        },
        Case {
            what: "a number for a table",
            text: "balancer = 1",
            line: 1,
            words: &["invalid type: integer `1`", "a table"],
        },
    ];
    for case in cases {
        expect_one(case.what, case.text, case.line, case.words);
    }
    let limits = [
        ("services = 0", "services: 0 is out of range"),
        ("backends = 32768", "give 1..32767"),
        ("pending_flows = -1", "pending_flows: -1 is out of range"),
        ("tracked_flows = 99999999999", "tracked_flows: 99999999999 is out of range"),
        ("udp_flows = 0", "udp_flows: 0 is out of range"),
        (
            "event_ring_bytes = 1000000",
            "event_ring_bytes: 1000000 is not a power of two; for example 1048576",
        ),
        ("event_ring_bytes = 1024", "event_ring_bytes: 1024 is out of range"),
        ("event_ring_bytes = -2", "not a power of two; for example 4096"),
        ("states_per_service = 0", "states_per_service: 0"),
        ("states_per_prefix = -1", "states_per_prefix: -1 is out of range; give 0..268435456"),
        (
            "states_per_prefix = 4194305",
            "4194305 is more than states_per_service, 4194304, and would never count; give less, or 0",
        ),
    ];
    for (field, words) in limits {
        expect_one(field, &format!("{HEAD}[limits]\n{field}\n"), 5, &[words]);
    }
}

#[test]
fn a_store_is_where_etcd_is_and_its_services_are_those_that_several_can_serve() {
    let store = |lines: &str| format!("{HEAD}[store]\n{lines}");
    let etcd = |lines: &str| {
        store(&format!("kind = \"etcd\"\nendpoints = [\"https://a.example:2379\"]\n{lines}"))
    };
    let good = etcd(
        "prefix = \"/lbs\"\nca = \"/ca.pem\"\ncertificate = \"/c.pem\"\nkey = \"/c.key\"\nuser = \"w\"\n\
         password_file = \"/p\"\nwait = \"1s\"\nwithdraw_after = \"30s\"\n",
    );
    let config = Config::parse(&good, "f").unwrap();
    let found = config.store.expect("it is there");
    assert_eq!(found.to_string(), "etcd at https://a.example:2379, under /lbs");
    assert_eq!((found.wait.as_secs(), found.withdraw_after.map(|t| t.as_secs())), (1, Some(30)));
    assert_eq!(Config::parse(&store("kind = \"file\"\n"), "f").unwrap().store, None);
    for (text, line, words) in [
        (store("kind = \"zookeeper\"\n"), 5, "give one of"),
        (store("kind = \"etcd\"\n"), 4, "endpoints: is missing"),
        (store("kind = \"file\"\nprefix = \"/x\"\n"), 6, "prefix: is not of this kind"),
        (store("kind = \"etcd\"\nendpoints = [\"10.0.0.1:2379\"]\n"), 6, "is not where an etcd is"),
        (
            store("kind = \"etcd\"\nendpoints = [\"http://a:1\", \"https://a:1\"]\n"),
            6,
            "some are encrypted and some are not",
        ),
        (
            store("kind = \"etcd\"\nendpoints = [\"http://a:1\"]\nca = \"/ca.pem\"\n"),
            7,
            "nothing is encrypted",
        ),
        (etcd("certificate = \"/c.pem\"\n"), 4, "key: is missing"),
        (etcd("user = \"w\"\n"), 4, "password_file: is missing"),
        (etcd("prefix = \"weir\"\n"), 7, "is not a prefix of keys"),
        (etcd("withdraw_after = \"1s\"\n"), 7, "withdraw_after"),
    ] {
        expect_one(words, &text, line, &[words]);
    }
    let with = |lines: &str| {
        etcd(&format!(
            "[[service]]\nname = \"a\"\nvip = \"10.0.0.1\"\nport = 80\n{lines}\n[[service.backend]]\nname = \"b\"\n\
             address = \"10.0.0.2\"\n"
        ))
    };
    for good in
        ["method = \"cheetah\"\nanswers = \"backend\"", "method = \"tracked\"", "method = \"jet\""]
    {
        Config::parse(&with(good), "f").unwrap_or_else(|error| panic!("{good}: {error}"));
    }
    for (bad, words) in [
        ("", "states: each balancer sees the connections that come by it"),
        (
            "protocol = \"udp\"\ncheck = { enabled = false }",
            "no agent tells of flows without connections",
        ),
        ("method = \"residue\"", "states: each balancer sees the connections that come by it"),
        ("method = \"cheetah-stateful\"", "places in one balancer's memory"),
        ("method = \"cheetah\"", "answers: answers pass one balancer"),
        ("method = \"jet\"\nplacement = \"anchor\"", "placement: AnchorHash goes by the order"),
    ] {
        expect_one(bad, &with(bad), 7, &[words]);
    }
}

#[test]
fn every_problem_is_reported_in_the_order_of_the_file() {
    let text = "[balancer]\nname = \"W\"\n[limits]\nservices = 0\n[[service]]\nname = \"a\"\n\
        vip = \"x\"\nport = 0\nmethod = \"y\"\n[[service.backend]]\nname = \"b\"\naddress = \"z\"\n\
        weight = 99999\n[[service]]\nname = \"a\"\n";
    let found = problems(text);
    let lines: Vec<usize> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 4, 7, 8, 9, 12, 13, 14, 14, 14, 15], "{found:#?}");
    let text = Config::parse(text, "f").unwrap_err().to_string();
    assert_eq!(text.lines().count(), 12);
}

#[test]
fn columns_count_characters() {
    let text = service("port = 80\ncheck = { timeout = \"1µs\" } # é");
    let found = &problems(&text)[0];
    assert_eq!((found.line, found.column), (8, 21), "{found}");
}

#[test]
fn example_parses_and_resolves() {
    let config = Config::parse(EXAMPLE, "examples/weir.toml").unwrap();
    assert_eq!(config.balancer.name, "weir");
    assert_eq!(config.balancer.socket_path(), PathBuf::from("/run/weir/weir.sock"));
    assert_eq!(config.limits, Limits::default());
    let web = config.service("web").unwrap();
    assert_eq!(method(&web.method), ("concury", vec![("dcode_bits", 12)]));
    assert_eq!(web.idle_timeout, Duration::from_secs(8100));
    let check = web.check.as_ref().unwrap();
    assert_eq!((check.port, check.timeout), (80, Duration::from_millis(500)));
    assert_eq!(web.backends[1].weight, 2);
    let six = config.service("web6").unwrap();
    let settings = vec![("table_size", 65_537), ("scheduler", 0), ("load", 0)];
    assert_eq!(method(&six.method), ("tracked", settings));
    let check = six.check.as_ref().unwrap();
    assert_eq!((check.interval, check.rise, check.fall), (Duration::from_secs(2), 2, 3));
    let games = config.service("games").unwrap();
    assert_eq!((games.port, games.affinity), (None, Affinity::Client));
}

/// The commented-out settings of the example are real fields, and show the real defaults.
#[test]
fn example_shows_the_defaults() {
    let shown: String = EXAMPLE
        .lines()
        .map(|line| {
            let setting = line.strip_prefix("# ").filter(|rest| {
                rest.split_once(" = ")
                    .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            });
            setting.unwrap_or(line).to_owned() + "\n"
        })
        .collect();
    assert_ne!(shown, EXAMPLE);
    let shown = Config::parse(&shown, "shown").unwrap();
    assert_eq!(shown, Config::parse(EXAMPLE, "as it is").unwrap());
}

#[test]
fn resolved_configuration_survives_json() {
    let config = Config::parse(EXAMPLE, "examples/weir.toml").unwrap();
    let json = serde_json::to_string(&config).unwrap();
    assert!(json.contains("\"idle_timeout\":\"2h 15m\""), "{json}");
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Config::load("no/such/weir.toml").unwrap_err();
    assert!(error.to_string().starts_with("cannot read no/such/weir.toml: "));
    assert!(error.problems().is_empty());
}

/// A quarter of what a service may have, unless the file says it; 0 turns it off.
#[test]
fn source_prefixes_have_a_share_of_the_states() {
    let of_prefix = |lines: &str| {
        let text = format!("{}[limits]\n{lines}\n", service("port = 80\n"));
        Config::parse(&text, "weir.toml").unwrap().limits.states_per_prefix
    };
    assert_eq!(of_prefix(""), 1 << 20);
    assert_eq!(of_prefix("states_per_service = 1000"), 250);
    assert_eq!(of_prefix("states_per_service = 3"), 1);
    assert_eq!(of_prefix("states_per_service = 1000\nstates_per_prefix = 1000"), 1000);
    assert_eq!(of_prefix("states_per_prefix = 0"), 0);
}

/// What later fragments are led by has to be all that tells whose they are.
#[test]
fn fragments_by_source_are_of_one_service() {
    let read = |services: &[String]| {
        let text = format!("[balancer]\ninterfaces = [\"eth0\"]\n{}", services.concat());
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    };
    let one = |name: &str, lines: &str| {
        format!(
            "[[service]]\nname = {name:?}\n{lines}\n[service.check]\nenabled = false\n[[service.backend]]\n\
             name = \"b\"\naddress = \"10.9.0.1\"\n"
        )
    };
    let by_source = "affinity = \"client\"\nfragments = \"source\"";
    let web = "vip = \"10.0.0.1\"\nport = 80";
    let good = read(&[one("a", &format!("{web}\n{by_source}"))]).unwrap();
    assert!(good.services[0].fragments_by_source);
    // Another protocol is told apart, and another address.
    for other in
        ["vip = \"10.0.0.1\"\nport = 80\nprotocol = \"udp\"", "vip = \"10.0.0.2\"\nport = 80"]
    {
        read(&[one("a", &format!("{web}\n{by_source}")), one("b", other)]).unwrap();
    }
    for (lines, other, words) in [
        ("fragments = \"source\"", None, "flows are led by their ports"),
        ("fragments = \"last\"", None, "first, source"),
        (by_source, Some("vip = \"10.0.0.1\"\nport = 81"), "does not say which of both"),
        (by_source, Some("vip = \"10.0.0.0/24\"\nport = 81"), "does not say which of both"),
    ] {
        let other = other.map(|lines| one("b", lines));
        let services: Vec<String> =
            [one("a", &format!("{web}\n{lines}"))].into_iter().chain(other).collect();
        let said = read(&services).unwrap_err();
        assert!(said.contains(words), "{lines}: {said}");
    }
    for at in ["vip = \"10.0.0.0/24\"\nport = 80", "vip = \"10.0.0.1\"\nport = \"80-89\""] {
        let said = read(&[one("a", &format!("{at}\n{by_source}"))]).unwrap_err();
        assert!(said.contains("a later fragment"), "{at}: {said}");
    }
}

/// A key may have any character in it; a terminal that shows the problem must not follow it.
#[test]
fn what_a_problem_quotes_is_written_out() {
    let found = problems("[balancer]\ninterfaces = [\"lo\"]\n\"a\\u001b[2J\\r\\nb\" = 1\n");
    let shown = found[0].to_string();
    assert!(!shown.contains(char::is_control) && shown.contains("\\u{1b}[2J"), "{shown:?}");
}
