//! Files of others, what becomes of them, and what does not.

use proptest::prelude::*;

use super::{Form, ImportError, Imported, import};
use crate::config::{Config, Forward, Protocol, Via, What};

fn good(form: Form, text: &str) -> (Imported, Config) {
    let imported = import(form, text, &[]).unwrap();
    let config = Config::parse(&imported.text, "weir.toml").unwrap();
    assert_eq!(config.services.len(), imported.services);
    let backends = config.services.iter().map(|service| service.backends.len()).sum::<usize>();
    assert_eq!(backends, imported.backends);
    (imported, config)
}

fn noted(imported: &Imported, line: usize, words: &str) {
    let found = imported.notes.iter().any(|note| note.line == line && note.text.contains(words));
    assert!(found, "line {line}: {words:?}: {:#?}", imported.notes);
    let comment = format!("#   line {line}: ");
    assert!(imported.text.contains(&comment), "{}", imported.text);
}

const KEEPALIVED: &str = r#"! Configuration File for keepalived
global_defs {
    router_id LVS_1
}
vrrp_instance VI_1 {
    interface eth1
    virtual_router_id 51
}
virtual_server_group web6 {
    2001:db8::80 80
    fwmark 7
}
virtual_server 192.0.2.80 443
{
    delay_loop 6
    lb_algo wlc      # weighted
    lb_kind DR
    persistence_timeout 50
    protocol TCP
    sorry_server 192.0.2.99 443
    virtualhost www.example.org
    real_server 192.0.2.11 443 {
        weight 3
        inhibit_on_failure
        SSL_GET {
            url { path "/healthz"
                  status_code 200 204-299
                  digest abcdef }
            connect_timeout 3
            retry 2
            delay_before_retry 3
        }
    }
    real_server 192.0.2.12 443 {
        TCP_CHECK {
            connect_port 8443
        }
        PING_CHECK { }
    }
}
virtual_server 192.0.2.80 53 {
    lvs_sched rr
    lvs_method TUN type gue port 6081
    protocol UDP
    quorum 2
    real_server 198.51.100.1 53 {
        DNS_CHECK { type A
 name example.org }
    }
    real_server 198.51.100.2 53 {
        MISC_CHECK {
            misc_path "/usr/lib/check 198.51.100.2"
            misc_timeout 4
            user nobody
        }
    }
}
virtual_server group web6 {
    lb_algo sh
    lb_kind NAT
    real_server 2001:db8::1 8080 { HTTP_GET { url { path / } } }
    real_server 2001:db8::1 8080 { weight 2 }
    real_server 192.0.2.1 8080 { weight 2 }
}
virtual_server fwmark 3 { real_server 192.0.2.1 80 { } }
virtual_server 192.0.2.81 123 {
    lvs_method NAT
    protocol UDP
    real_server 198.51.100.4 123 { UDP_CHECK { payload 0A0b
 require_reply 0c } }
    real_server 198.51.100.5 123 { UDP_CHECK { payload 0a } }
}
"#;

#[test]
fn virtual_servers_of_keepalived_become_services() {
    let (imported, config) = good(Form::Keepalived, KEEPALIVED);
    assert_eq!(config.balancer.interfaces, ["eth1"]);
    let [secure, dns, web6, time] = &config.services[..] else { panic!("{}", imported.text) };
    assert_eq!((secure.vip.to_string(), secure.port), ("192.0.2.80".into(), Some(443)));
    assert_eq!((secure.forward, secure.idle_timeout.as_secs()), (Forward::L2, 8100));
    assert_eq!(secure.affinity, crate::config::Affinity::Client);
    let [first, second, sorry] = &secure.backends[..] else { panic!("{}", imported.text) };
    assert!(sorry.backup && !first.backup && secure.check_of(sorry).is_none());
    assert_eq!((first.weight, second.weight), (3, 1));
    let check = secure.check_of(first).unwrap();
    let What::Https { http, tls } = &check.what else { panic!("{check:?}") };
    assert_eq!((http.path.as_str(), tls.verify), ("/healthz", false), "{check:?}");
    assert_eq!(http.host.as_deref(), Some("www.example.org"));
    assert_eq!((check.fall, check.rise, check.timeout.as_secs()), (3, 1, 3));
    assert_eq!((check.interval.as_secs(), check.via), (6, Via::Direct));
    let check = secure.check_of(second).unwrap();
    assert_eq!((&check.what, check.port), (&What::Tcp, 8443));

    assert_eq!((dns.protocol, dns.forward), (Protocol::Udp, Forward::Gue(6081)));
    assert_eq!(dns.method.name(), "tracked");
    let check = dns.check_of(&dns.backends[0]).unwrap();
    assert!(matches!(&check.what, What::Dns(dns) if dns.query == "example.org"), "{check:?}");
    let check = dns.check_of(&dns.backends[1]).unwrap();
    let What::Script(script) = &check.what else { panic!("{check:?}") };
    assert_eq!(script.command, ["/usr/lib/check", "198.51.100.2"]);

    let check = time.check_of(&time.backends[0]).unwrap();
    let What::Udp(exchange) = &check.what else { panic!("{check:?}") };
    assert_eq!((&exchange.send[..], &exchange.expect[..]), (&[10, 11][..], &[12][..]));
    assert!(time.check_of(&time.backends[1]).is_none());
    assert_eq!(web6.backends.len(), 1);
    assert_eq!((web6.forward, web6.backends[0].port), (Forward::Nat, Some(8080)));
    for (line, words) in [
        (2, "global_defs"),
        (5, "no VRRP"),
        (11, "firewall mark"),
        (16, "scheduler wlc"),
        (18, "persistence_timeout 50"),
        (24, "inhibit_on_failure"),
        (28, "digest"),
        (31, "delay_before_retry"),
        (38, "one check"),
        (45, "quorum"),
        (59, "weir hashes addresses and ports"),
        (62, "is there already"),
        (63, "is not of the family"),
        (65, "firewall mark"),
        (71, "require_reply"),
    ] {
        noted(&imported, line, words);
    }
}

/// What is said of clients does not make connections forgotten that are silent for less than others may be.
#[test]
fn clients_stay_together_and_no_connection_is_forgotten_sooner() {
    for (there, protocol, seconds) in [
        ("50", "TCP", 8100),
        ("", "TCP", 8100),
        ("10000", "TCP", 10_000),
        ("50", "UDP", 120),
        ("300", "UDP", 300),
    ] {
        let text = format!(
            "virtual_server 10.0.0.1 80 {{\n lb_kind DR\n persistence_timeout {there}\n protocol {protocol}\n\
             real_server 10.0.0.2 80 {{ }}\n}}\n"
        );
        let (imported, config) = good(Form::Keepalived, &text);
        let service = &config.services[0];
        let found = (service.affinity, service.idle_timeout.as_secs());
        assert_eq!(found, (crate::config::Affinity::Client, seconds), "{text}");
        noted(&imported, 3, "is forgotten when it was silent for");
    }
    let text = "-A -t 10.0.0.1:80 -s sh -p 50\n-a -t 10.0.0.1:80 -r 10.0.0.2:80 -g\n";
    let (imported, config) = good(Form::Ipvs, text);
    assert_eq!(config.services[0].idle_timeout.as_secs(), 8100);
    noted(&imported, 1, "-p 50");
    let short = CILIUM.replace(
        "sessionAffinity: ClientIP",
        "sessionAffinity: ClientIP\n      sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}",
    );
    let (imported, config) = good(Form::Cilium, &short);
    assert_eq!(config.services[0].idle_timeout.as_secs(), 8100);
    noted(&imported, 6, "timeoutSeconds 60");
}

#[test]
fn commands_of_checks_are_taken_apart_as_by_a_shell() {
    let command = |path: &str| {
        let text = format!(
            "virtual_server 10.0.0.1 80 {{\n lb_kind DR\n real_server 10.0.0.2 80 {{ MISC_CHECK {{\n\
             misc_path {path}\n}} }}\n}}\n"
        );
        let (imported, config) = good(Form::Keepalived, &text);
        let service = &config.services[0];
        match service.check_of(&service.backends[0]).map(|check| &check.what) {
            Some(What::Script(script)) => script.command.clone(),
            None => {
                noted(&imported, 4, "a quotation mark in it is not closed");
                Vec::new()
            }
            other => panic!("{path}: {other:?}"),
        }
    };
    for (path, words) in [
        ("/usr/bin/check a  b", &["/usr/bin/check", "a", "b"][..]),
        (r#""/usr/bin/check 'a b' c""#, &["/usr/bin/check", "a b", "c"]),
        ("/usr/bin/check 'a b' c", &["/usr/bin/check", "a b", "c"]),
        (r#"/usr/bin/check "a b" c"#, &["/usr/bin/check", "a b", "c"]),
        (r#""/usr/bin/check \"a 'b'\" ''""#, &["/usr/bin/check", "a 'b'", ""]),
        (r"/usr/bin/check a\ b", &["/usr/bin/check", "a b"]),
        ("\"/usr/bin/check 'a b\"", &[]),
        ("/usr/bin/check 'a b", &[]),
    ] {
        assert_eq!(command(path), words, "{path}");
    }
}

#[test]
fn a_check_has_the_virtual_host_that_is_said_closest_to_it() {
    for (of_check, of_url, host) in [
        ("", "", "server.example"),
        ("virtualhost check.example\n", "", "check.example"),
        ("virtualhost check.example\n", "virtualhost url.example\n", "url.example"),
        ("", "virtualhost url.example\n", "url.example"),
    ] {
        let text = format!(
            "virtual_server 10.0.0.1 80 {{\n lb_kind DR\n virtualhost server.example\n\
             real_server 10.0.0.2 80 {{ HTTP_GET {{\n{of_check}url {{ path /\n{of_url}}} }} }}\n}}\n"
        );
        let (imported, config) = good(Form::Keepalived, &text);
        let service = &config.services[0];
        let check = service.check_of(&service.backends[0]).unwrap();
        let What::Http(http) = &check.what else { panic!("{check:?}") };
        assert_eq!(http.host.as_deref(), Some(host), "{}", imported.text);
        assert!(!imported.text.contains("virtualhost:"), "{}", imported.text);
    }
    let text = "virtual_server 10.0.0.1 80 {\n lb_kind DR\n real_server 10.0.0.2 80 { TCP_CHECK {\n\
                virtualhost a.example\n} }\n}\n";
    noted(&good(Form::Keepalived, text).0, 4, "virtualhost: weir's checks have nothing like it");
}

/// It would be a hundred checks in a second.
#[test]
fn no_time_between_checks_is_the_usual_one() {
    let text = "virtual_server 10.0.0.1 80 {\n delay_loop 0\n lb_kind DR\n\
                real_server 10.0.0.2 80 { TCP_CHECK { } }\n}\n";
    let (imported, config) = good(Form::Keepalived, text);
    noted(&imported, 2, "delay_loop \"0\"");
    let service = &config.services[0];
    let check = service.check_of(&service.backends[0]).expect("it is checked");
    assert_eq!(check.interval.as_secs(), 60);
}

/// Nothing that stands in a file is left out in silence.
#[test]
fn what_follows_on_a_line_is_noted() {
    let text = "virtual_server 10.0.0.1 80 lb_algo rr {\n lb_kind NAT protocol UDP\n lb_algo rr delay_loop 3\n\
                real_server 10.0.0.2 8080 weight 3 {\n weight 2 weight 4\n TCP_CHECK {\n\
                connect_timeout 3 retry 2\n}\n}\n sorry_server 10.0.0.3 80 inhibit\n}\n\
                virtual_server 10.0.0.4 80 {\n lb_kind TUN type gue port 6080 nocsum\n\
                real_server 10.0.0.2 80 { HTTP_GET {\n url { path / status_code 200\n} } }\n}\n";
    let (imported, config) = good(Form::Keepalived, text);
    assert_eq!((config.services.len(), config.services[0].protocol), (2, Protocol::Tcp));
    for (line, words) in [
        (1, "(lb_algo rr)"),
        (2, "lb_kind: what follows on its line is not read (protocol UDP)"),
        (3, "(delay_loop 3)"),
        (4, "(weight 3)"),
        (5, "(weight 4)"),
        (7, "(retry 2)"),
        (10, "(inhibit)"),
        (15, "(status_code 200)"),
    ] {
        noted(&imported, line, words);
    }
    assert!(imported.notes.iter().all(|note| note.line != 13), "{:#?}", imported.notes);
}

#[test]
fn tables_of_ipvs_become_services() {
    let text = "-A -t 10.0.0.1:80 -s wrr\n-a -t 10.0.0.1:80 -r 10.0.0.11:80 -g -w 2\n\
                -a -t 10.0.0.1:80 -r 10.0.0.12:80 -g -w 0 -x 100 -y 0\n\
                -a -t 10.0.0.1:80 -r 10.0.0.13:80 -m -w 1\n\
                -A -u [2001:db8::1]:53 -s mh -p 300 -M 64\n\
                -a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 1 --tun-type gue --tun-port 6080 --tun-nocsum\n\
                -A -f 5 -s rr\n-a -f 5 -r 10.0.0.11:0 -m -w 1\n\
                -A -t 10.0.0.2:http -s rr\n\
                -A -t 10.0.0.3:80 -s sed\n-a -t 10.0.0.3:80 -r 10.0.0.14:8080 -m -w 70000\n";
    let (imported, config) = good(Form::Ipvs, text);
    let [web, dns, nat] = &config.services[..] else { panic!("{}", imported.text) };
    assert_eq!((web.method.name(), web.forward), ("tracked", Forward::L2));
    assert_eq!(web.backends.iter().map(|one| one.weight).collect::<Vec<_>>(), [2, 0]);
    assert_eq!((dns.forward, dns.check.is_none()), (Forward::Gue(6080), true));
    assert_eq!(dns.idle_timeout.as_secs(), 300);
    assert_eq!((nat.backends[0].port, nat.backends[0].weight), (Some(8080), 65_535));
    for (line, words) in [
        (3, "-x 100"),
        (4, "another way"),
        (5, "-M 64"),
        (5, "-p 300"),
        (7, "firewall mark"),
        (9, "with -n"),
        (10, "health checks"),
    ] {
        noted(&imported, line, words);
    }
    for (text, line, words) in [
        ("-A -t 10.0.0.1:80 -s", 1, "-s has no value"),
        ("\n-Z", 2, "is no option"),
        ("-A -t 10.0.0.1:80 -p soon", 1, "-p needs seconds"),
        ("-a -r 10.0.0.1:80", 1, "no service"),
    ] {
        let error = import(Form::Ipvs, text, &[]).unwrap_err();
        let ImportError::Text { line: at, wrong } = &error else { panic!("{error}") };
        assert!(*at == line && wrong.contains(words), "{text}: {error}");
    }
}

const CILIUM: &str = "services:
  - metadata: {name: echo, namespace: test, annotations: {service.cilium.io/lb-algorithm: maglev}}
    spec:
      clusterIP: 10.96.0.7
      sessionAffinity: ClientIP
      externalTrafficPolicy: Local
      loadBalancerSourceRanges: [10.0.0.0/8]
      ports:
      - {name: http, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080}
      - {name: dns, port: 53, protocol: UDP}
      - {name: x, port: 9, protocol: SCTP}
      type: LoadBalancer
    status:
      loadBalancer:
        ingress:
        - ip: 172.16.1.1
        - ip: fd00::1
  - metadata: {name: inside, namespace: test}
    spec: {ports: [{port: 80}]}
endpoints:
  - metadata: {name: echo-1, namespace: test, labels: {kubernetes.io/service-name: echo}}
    addressType: IPv4
    endpoints:
    - addresses: [2.2.2.2]
      conditions: {ready: true}
    - addresses: [2.2.2.3]
      conditions: {ready: false, serving: true, terminating: true}
    - addresses: [2.2.2.4]
      conditions: {ready: false}
    ports:
    - {name: http, port: 8080, protocol: TCP}
    - {name: dns, port: 53, protocol: UDP}
";

/// Under NAT it would need another checksum over the whole packet.
#[test]
fn services_of_sctp_are_taken_over_but_under_nat() {
    let text = "virtual_server 192.0.2.80 3868 {\n lb_kind DR\n protocol SCTP\n\
                real_server 192.0.2.11 3868 { TCP_CHECK { connect_port 22 } }\n\
                real_server 192.0.2.12 3868 { TCP_CHECK { } }\n\
                real_server 192.0.2.13 3868 { }\n}\n\
                virtual_server 192.0.2.81 3868 {\n lb_kind NAT\n protocol SCTP\n\
                real_server 192.0.2.11 3868 { }\n}\n";
    let (imported, config) = good(Form::Keepalived, text);
    let [diameter] = &config.services[..] else { panic!("{}", imported.text) };
    assert_eq!((diameter.protocol, diameter.forward), (Protocol::Sctp, Forward::L2));
    let port = |at: usize| diameter.check_of(&diameter.backends[at]).map(|check| check.port);
    assert_eq!([port(0), port(1), port(2)], [Some(22), Some(3868), None]);
    noted(&imported, 9, "weir does not translate SCTP");

    let text = "-A --sctp-service 10.0.0.1:3868 -s rr\n\
                -a --sctp-service 10.0.0.1:3868 -r 10.0.0.11:3868 -i -w 1\n\
                -a --sctp-service 10.0.0.1:3868 -r 10.0.0.12:3868 -m -w 1\n";
    let (imported, config) = good(Form::Ipvs, text);
    let [diameter] = &config.services[..] else { panic!("{}", imported.text) };
    assert_eq!((diameter.protocol, diameter.forward), (Protocol::Sctp, Forward::Ipip));
    assert_eq!((diameter.backends.len(), diameter.check.is_none()), (1, true));
    noted(&imported, 3, "weir does not translate SCTP");
}

#[test]
fn a_state_file_of_cilium_becomes_services() {
    let (imported, config) = good(Form::Cilium, CILIUM);
    let [web, dns] = &config.services[..] else { panic!("{}", imported.text) };
    assert_eq!(
        (web.name.as_str(), web.port, web.forward),
        ("test-echo-80", Some(80), Forward::Nat)
    );
    assert_eq!(web.backends.len(), 2);
    assert_eq!((web.backends[0].port, web.backends[1].drain), (Some(8080), true));
    assert_eq!(web.idle_timeout.as_secs(), 10_800);
    assert!(web.lists.is_some());
    assert_eq!((dns.protocol, dns.check.is_none()), (Protocol::Udp, true));
    for (line, words) in [
        (2, "lb-algorithm"),
        (4, "clusterIP"),
        (6, "externalTrafficPolicy"),
        (9, "nodePort 30080"),
        (11, "SCTP"),
        (18, "no address that clients outside reach"),
        (28, "not ready"),
    ] {
        noted(&imported, line, words);
    }
    // JSON is read by the same reader.
    let json = r#"{"services": [{"metadata": {"name": "a", "namespace": "n"}, "spec": {"ports": [{"port": 1}],
        "externalIPs": ["10.0.0.1"]}}], "endpoints": [{"metadata": {"namespace": "n", "labels":
        {"kubernetes.io/service-name": "a"}}, "ports": [{"port": 1}], "endpoints": [{"addresses": ["10.0.0.2"]}]}]}"#;
    let (_, config) = good(Form::Cilium, json);
    assert_eq!(config.services[0].backends[0].address.to_string(), "10.0.0.2");
    for text in ["", "# nothing\n", "services: []\n"] {
        let error = import(Form::Cilium, text, &[]).unwrap_err();
        assert!(matches!(error, ImportError::Nothing { .. }), "{text}: {error}");
    }
    for text in ["services: [", "- a\n", "a: &x 1\nb: *x\n", "services: {a: !!int b}\n\t- x"] {
        let error = import(Form::Cilium, text, &[]).unwrap_err();
        assert!(matches!(error, ImportError::Text { .. }), "{text}: {error}");
    }
}

#[test]
fn what_is_deep_is_refused_and_not_followed() {
    let deep = "[".repeat(100_000);
    let dashes = "- ".repeat(100_000);
    let apart = format!("endpoints:\n{}", "-   ".repeat(100_000));
    let tabs = format!("endpoints:\n{}", "-\t".repeat(100_000));
    let questions = "? ".repeat(100_000);
    let steps: String = (0..2000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    for text in [deep, dashes, apart, tabs, questions, steps] {
        assert!(matches!(import(Form::Cilium, &text, &[]), Err(ImportError::Text { .. })));
    }
    let braces = "a {\n".repeat(100_000);
    assert!(matches!(import(Form::Keepalived, &braces, &[]), Err(ImportError::Text { .. })));
    for text in ["}", "a {", "virtual_server 10.0.0.1 80 {\n real_server 10.0.0.2 80 {\n}\n"] {
        let error = import(Form::Keepalived, text, &[]).unwrap_err();
        assert!(matches!(error, ImportError::Text { .. }), "{text}: {error}");
    }
}

#[test]
fn a_block_without_a_name_is_no_fault_of_the_reader() {
    let text = "virtual_server 10.0.0.1 80 {\n protocol UDP\n\
                real_server 10.0.0.2 80 { UDP_CHECK { { } payload 0a\n require_reply 0b\n } }\n}\n\
                virtual_server_group g {\n {\n }\n}\n";
    let (imported, config) = good(Form::Keepalived, text);
    assert!(config.services[0].check.is_some(), "{}", imported.text);
    noted(&imported, 8, "\"\" is no address");
}

/// More than the usual limits hold.
#[test]
fn many_services_get_limits_of_their_own() {
    let service = |n: u32| {
        let vip = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        let of = |n: u32| format!(" real_server 10.64.0.{n} 80 {{ TCP_CHECK {{ }} }}\n");
        let servers: String = (1..=10).map(of).collect();
        format!("virtual_server {vip} 80 {{\n lb_kind DR\n{servers}}}\n")
    };
    let text: String = (1..=500).map(service).collect();
    let (imported, config) = good(Form::Keepalived, &text);
    assert_eq!((imported.services, imported.backends), (500, 5000));
    assert_eq!((config.limits.services, config.limits.backends), (500, 5000));
}

/// What is read once may not become more than any balancer has, whatever names it.
#[test]
fn what_multiplies_is_bounded() {
    let groups: String = (0..200).map(|n| format!("10.1.{n}.0-255 80\n")).collect();
    let servers: String = (0..100).map(|n| format!("real_server 10.2.0.{n} 80 {{ }}\n")).collect();
    let server = format!("virtual_server group g {{\nlb_kind DR\n{servers}}}\n").repeat(50);
    let text = format!("virtual_server_group g {{\n{groups}}}\n{server}");
    let (imported, config) = good(Form::Keepalived, &text);
    assert_eq!((config.services.len(), imported.backends), (327, 327 * 100));
    noted(&imported, 203, "left out");
}

#[test]
fn the_form_is_guessed_and_interfaces_are_told() {
    assert_eq!(Form::guess(KEEPALIVED), Some(Form::Keepalived));
    assert_eq!(Form::guess("\n-A -t 10.0.0.1:80 -s rr"), Some(Form::Ipvs));
    assert_eq!(Form::guess(CILIUM), Some(Form::Cilium));
    assert_eq!(Form::guess("{\"services\": []}"), Some(Form::Cilium));
    assert_eq!(Form::guess("[balancer]"), None);
    let imported = import(Form::Keepalived, KEEPALIVED, &["lan0".into(), "lan1".into()]).unwrap();
    assert!(imported.text.contains("interfaces = [\"lan0\", \"lan1\"]"), "{}", imported.text);
    let error = import(Form::Keepalived, KEEPALIVED, &["lan0".into(), "lan0".into()]).unwrap_err();
    assert!(matches!(error, ImportError::Refused(_)), "{error}");
}

/// Words of the forms, some of them broken, in any order.
fn salad(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    let word = prop_oneof![
        6 => proptest::sample::select(words).prop_map(str::to_owned),
        1 => "[ -~]{0,12}",
        1 => any::<u32>().prop_map(|number| number.to_string()),
        1 => any::<std::net::IpAddr>().prop_map(|address| address.to_string()),
    ];
    let end = proptest::sample::select(&[" ", " ", " ", "\n", "\n  ", "{", "}", ": "][..]);
    proptest::collection::vec((word, end), 0..120)
        .prop_map(|all| all.into_iter().map(|(word, end)| word + end).collect())
}

const OF_KEEPALIVED: &[&str] = &[
    "virtual_server",
    "10.0.0.1 80 {\n",
    "10.0.0.1-9 80 {\n",
    "group",
    "g",
    "virtual_server_group g {\n10.0.0.3 80\n}\n",
    "real_server 10.0.1.1 80 {\n",
    "real_server 10.0.1.2 8080 {\n",
    "}\n",
    "}\n}\n",
    "lb_algo wlc\n",
    "lb_kind NAT\n",
    "lvs_method TUN type gue port\n",
    "protocol UDP\n",
    "delay_loop",
    "nan",
    "-1",
    "1e300",
    "weight",
    "TCP_CHECK {\n}\n",
    "HTTP_GET { url {\n path /a b\n status_code 200 x\n } }\n",
    "SSL_GET {\n",
    "MISC_CHECK {\n misc_path",
    "\"/a b\"\n",
    "DNS_CHECK {\n",
    "connect_timeout",
    "retry",
    "user",
    "persistence_timeout",
    "\"",
    "!",
    "\\",
];
const OF_IPVS: &[&str] = &[
    "-A",
    "-a",
    "-t",
    "-u",
    "-f",
    "10.0.0.1:80",
    "[::1]:80",
    "10.0.0.2:0",
    "-s",
    "wlc",
    "rr",
    "-p",
    "-r",
    "-w",
    "1",
    "-m",
    "-g",
    "-i",
    "--tun-type",
    "gue",
    "--tun-port",
    "6080",
    "\n-A -t 10.0.0.1:80 -s rr\n",
    "\n-a -t 10.0.0.1:80 -r 10.0.0.9:80 -m -w 1\n",
    "-x",
    "-M",
];
const OF_CILIUM: &[&str] = &[
    "services:\n",
    "endpoints:\n",
    "- metadata:\n",
    "    name: a\n",
    "  spec:\n",
    "    ports:\n",
    "    - port: 80\n",
    "  status: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}\n",
    "labels: {kubernetes.io/service-name: a}",
    "[",
    "]",
    "{",
    "}",
    "&a",
    "*a",
    "!!x",
    "|\n",
    ">\n",
    "'",
    "\"",
    "? ",
    "- ",
    "---\n",
    "\t",
    "endpoints: [{addresses: [10.0.0.2]}]",
];

fn reads_or_refuses(form: Form, text: &str) {
    match import(form, text, &[]) {
        Ok(imported) => {
            Config::parse(&imported.text, "weir.toml").expect("what is written passes");
        }
        Err(ImportError::Text { line, .. }) => {
            assert!(line >= 1 && line <= text.lines().count() + 1)
        }
        Err(ImportError::Nothing { .. }) => {}
        Err(ImportError::Refused(why)) => panic!("{why}\n{text}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_keepalived_file_is_read_or_refused(text in salad(OF_KEEPALIVED)) {
        reads_or_refuses(Form::Keepalived, &text);
    }

    #[test]
    fn any_table_of_ipvs_is_read_or_refused(text in salad(OF_IPVS)) {
        reads_or_refuses(Form::Ipvs, &text);
    }

    #[test]
    fn any_state_file_is_read_or_refused(text in salad(OF_CILIUM)) {
        reads_or_refuses(Form::Cilium, &text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*", lines in proptest::collection::vec("[ -~\t]{0,40}", 0..20)) {
        for form in [Form::Keepalived, Form::Ipvs, Form::Cilium] {
            reads_or_refuses(form, &text);
            reads_or_refuses(form, &lines.join("\n"));
        }
    }

    /// A file that somebody cut, or wrote other bytes into.
    #[test]
    fn a_damaged_file_is_read_or_refused(at in any::<prop::sample::Index>(), with in "[ -~\n]{0,6}", keep in any::<bool>()) {
        for (form, text) in [(Form::Keepalived, KEEPALIVED), (Form::Cilium, CILIUM)] {
            let at = at.index(text.len());
            let rest = if keep { &text[(at + with.len()).min(text.len())..] } else { "" };
            reads_or_refuses(form, &format!("{}{with}{rest}", &text[..at]));
        }
    }
}
