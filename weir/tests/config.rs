//! A bad configuration is refused with words that help, and changes nothing that runs.

mod common;

use std::fs;
use std::process::Output;

use common::{WEB4, eventually, stderr};
use weir_lab::traffic::Traffic;
use weir_lab::{LabSpec, TrafficSpec};

const GOOD: &str = r#"[balancer]
interfaces = ["eth0"]

[[service]]
name = "web"
vip = "10.0.0.1"
port = 80

[[service.backend]]
name = "b1"
address = "10.0.0.11"

[[service.backend]]
name = "b2"
address = "10.0.0.12"
"#;

/// A way to spoil a file.
struct Fault {
    /// Replaced, where it occurs first, ...
    old: &'static str,
    /// ... by this, and the problem is on the line where this begins, ...
    new: &'static str,
    /// ... so many lines below.
    below: usize,
    /// What is wrong, and what would be right.
    words: &'static [&'static str],
}

/// Faults that can be put into any file that has a service at port 80.
const FAULTS: &[Fault] = &[
    Fault {
        old: "port = 80\n",
        new: "port = 80\ncolour = \"red\"\n",
        below: 1,
        words: &["colour", "unknown field", "the fields here are name, vip, protocol, port"],
    },
    Fault {
        old: "port = 80\n",
        new: "port = \"80\"\n",
        below: 0,
        words: &["port", "\"80\" is no range of ports", "give a number without quotes"],
    },
    Fault {
        old: "port = 80\n",
        new: "port = 0\nany_port = true\n",
        below: 0,
        words: &["port", "0 is not a port", "remove it: any_port = true is all that is needed"],
    },
    Fault {
        old: "port = 80\n",
        new: "port = 80\nany_port = true\n",
        below: 0,
        words: &[
            "port",
            "contradict each other",
            "or a range such as \"8000-8999\", or any_port = true",
        ],
    },
    Fault {
        old: "port = 80\n",
        new: "port = 0\n",
        below: 0,
        words: &["port", "0 is not a port", "give 1..65535"],
    },
    Fault { old: "port = 80\n", new: "port = = 80\n", below: 0, words: &["port"] },
    Fault {
        old: "address = \"",
        new: "address = \"somewhere ",
        below: 0,
        words: &["address", "is not an IP address", "give one such as"],
    },
    Fault {
        old: "[[service.backend]]\n",
        new: "[[service.backend]]\nname = \"odd\"\naddress = \"2001:db8::1\"\n\n\
              [[service.backend]]\n",
        below: 2,
        words: &["backend \"odd\"", "is not of the family of the vip", "give an IPv4 address"],
    },
    Fault {
        old: "[[service]]\n",
        new: "[[service]]\nname = \"web4\"\nvip = \"10.99.0.1\"\nport = 81\n\
              [[service.backend]]\nname = \"b1\"\naddress = \"10.99.0.2\"\nweight = 0\n\n\
              [[service]]\n",
        below: 0,
        words: &["no backend for new connections", "give at least one backend a weight above 0"],
    },
];

/// The file with the fault, and the line of the problem.
fn spoil(good: &str, fault: &Fault) -> (String, usize) {
    let at = good.find(fault.old).expect("a place for the fault");
    let line = good[..at].matches('\n').count() + 1 + fault.below;
    (good.replacen(fault.old, fault.new, 1), line)
}

fn assert_says(text: &str, place: &str, words: &[&str]) {
    for word in words.iter().chain([&place]) {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

fn assert_failed(output: &Output) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn check_and_run_say_what_is_wrong_where_and_what_would_be_right() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    let name = path.to_str().unwrap();
    fs::write(&path, GOOD).unwrap();
    let output = common::weir(&["check", name]);
    assert!(output.status.success(), "{}", stderr(&output));
    // A file may be checked before it goes to its host.
    fs::write(&path, GOOD.replace("\"eth0\"", "\"nope0\"")).unwrap();
    let output = common::weir(&["check", name]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = common::stdout(&output);
    assert!(said.contains("good; 1 service; this host has no nope0, so weir run would"), "{said}");
    // A store that is spoken to in the clear is no error; on this host it is not even told.
    for (endpoint, told) in [("http://10.0.0.9:2379", true), ("http://127.0.0.1:2379", false)] {
        let fleet = format!(
            "[balancer]\ninterfaces = [\"eth0\"]\n[store]\nkind = \"etcd\"\nendpoints = [{endpoint:?}]\n\
             [[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\nmethod = \"tracked\"\n\
             [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.2\"\n"
        );
        fs::write(&path, fleet).unwrap();
        let output = common::weir(&["check", name]);
        assert!(output.status.success(), "{}", stderr(&output));
        let said = common::stdout(&output);
        let warned = said.contains("warning: [store] speaks to http://10.0.0.9:2379 without TLS");
        assert_eq!(warned, told, "{said}");
    }
    fs::write(&path, GOOD).unwrap();

    let duplicate = Fault {
        old: "[[service]]\n",
        new: "[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\
              [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.2\"\n\n[[service]]\n",
        below: 9,
        words: &[
            "a service of this name is on line 5 already",
            "rename one of them",
            "10.0.0.1 tcp port 80 belongs to service \"web\" already",
            "give it another address, protocol or port",
        ],
    };
    let twins = Fault {
        old: "10.0.0.12",
        new: "10.0.0.11",
        below: 0,
        words: &["backend \"b2\"", "10.0.0.11 is the address of backend \"b1\" already"],
    };
    for fault in FAULTS.iter().chain([&duplicate, &twins]) {
        let (text, line) = spoil(GOOD, fault);
        fs::write(&path, &text).unwrap();
        for verb in ["check", "run"] {
            let output = common::weir(&[verb, "--config", name]);
            assert_failed(&output);
            assert_says(&stderr(&output), &format!("{name}:{line}"), fault.words);
        }
    }
    // Every problem is told, not only the first.
    fs::write(&path, GOOD.replace("port = 80", "port = 0").replace("10.0.0.12", "here")).unwrap();
    let output = common::weir(&["check", "--config", name]);
    assert_says(&stderr(&output), &format!("{name}:7"), &["0 is not a port"]);
    assert_says(&stderr(&output), &format!("{name}:15"), &["is not an IP address"]);

    // A file that is not one yet.
    for arguments in [&["check", "-"][..], &["check", "--config", "-"]] {
        let output = common::weir_fed(arguments, GOOD);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(common::stdout(&output).starts_with("<stdin>: good; 1 service"), "{output:?}");
        let output = common::weir_fed(arguments, &GOOD.replace("port = 80", "port = 0"));
        assert_failed(&output);
        assert_says(&stderr(&output), "<stdin>:7", &["0 is not a port"]);
        let output = common::weir_fed(arguments, "[balancer]\ninclude = [\"conf.d/*.toml\"]\n");
        assert_failed(&output);
        assert_says(&stderr(&output), "<stdin>:2", &["include"]);
    }

    let missing = directory.path().join("none.toml");
    for verb in ["check", "run", "doctor"] {
        let output = common::weir(&[verb, "--config", missing.to_str().unwrap()]);
        assert_failed(&output);
        assert_says(&stderr(&output), missing.to_str().unwrap(), &["cannot read", "No such file"]);
        assert_eq!(stderr(&output).contains("weir init"), verb == "run", "{}", stderr(&output));
    }
    // A directory is none, and has nothing in it afterwards.
    let folder = directory.path().join("weir.d");
    fs::create_dir(&folder).unwrap();
    let names = || {
        let all = fs::read_dir(directory.path()).unwrap().map(|one| one.unwrap().file_name());
        all.collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    for verb in ["check", "run", "doctor"] {
        let output = common::weir(&[verb, "--config", folder.to_str().unwrap()]);
        assert_failed(&output);
        assert_says(&stderr(&output), folder.to_str().unwrap(), &["cannot read", "is a directory"]);
        assert_eq!(names(), before, "{verb}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{verb}");
    }
}

#[test]
fn a_running_instance_keeps_its_tables_whatever_it_is_told_to_read() {
    let lab = common::lab_of(LabSpec { backends: 3, clients: 1, ..LabSpec::default() });
    let balancer = common::start(&lab, "concury", 2);
    let config = balancer.config().to_path_buf();
    let good = fs::read_to_string(&config).unwrap();
    let traffic =
        Traffic::start(&lab, TrafficSpec { connections: 200, ..TrafficSpec::default() }).unwrap();
    let mut held = common::hold(&lab, WEB4, 20);
    let before = common::tables(&balancer.status().unwrap());
    for fault in FAULTS {
        let (text, line) = spoil(&good, fault);
        fs::write(&config, &text).unwrap();
        let logged = common::log(&balancer).len();
        balancer.hang_up();
        let news = || common::log(&balancer)[logged..].to_string();
        eventually("a word in the log", || news().contains("configuration not reloaded"));
        // What a terminal shows of the same message is one thing; a log quotes it.
        let unquoted = news().replace("\\\"", "\"");
        assert_says(&unquoted, &format!("{}:{line}", config.display()), fault.words);
        let mut warned = String::new();
        eventually("a word in the status", || {
            let status = balancer.status().unwrap();
            let warnings = status["warnings"].as_array().unwrap().iter();
            warned = warnings.filter_map(|one| one.as_str()).collect::<Vec<_>>().join("\n");
            warned.contains("refused at the last SIGHUP")
        });
        assert_says(&warned, &format!("{}:{line}", config.display()), fault.words);

        let socket = balancer.socket();
        let output = common::weir(&["reload", "--socket", socket.to_str().unwrap()]);
        assert_failed(&output);
        assert_says(&stderr(&output), &format!("{}:{line}", config.display()), fault.words);
        assert_eq!(common::tables(&balancer.status().unwrap()), before, "{}", fault.new);
    }
    // What contradicts the running balancer is refused too, and the line is named.
    let contradictions = [
        ("name = \"wl", "name = \"xx", 0, "restart it"),
        ("interfaces = [\"eth0\"", "interfaces = [\"eth0\", \"eth9\"", 0, "eth9"),
        ("port = 80\n", "port = 80\naffinity = \"client\"\n", 1, "--break-connections"),
    ];
    for (old, new, below, words) in contradictions {
        let at = good.find(old).expect("a place for the contradiction");
        let line = good[..at].matches('\n').count() + 1 + below;
        fs::write(&config, good.replacen(old, new, 1)).unwrap();
        let refused = balancer.command(&["reload"]).unwrap_err().to_string();
        assert_says(&refused, &format!("{}:{line}: ", config.display()), &[words]);
        assert_eq!(common::tables(&balancer.status().unwrap()), before, "{new}");
    }

    // Backends are written in order, each with its weight: the last one is b1.
    let services: Vec<String> = good
        .split("[[service]]")
        .map(|part| match part.rsplit_once("weight = 1\n") {
            Some((before, after)) => format!("{before}weight = 7\n{after}"),
            None => part.to_string(),
        })
        .collect();
    fs::write(&config, services.join("[[service]]")).unwrap();
    balancer.command(&["reload"]).unwrap();
    let status = balancer.status().unwrap();
    let web = common::service(&status, "web4");
    assert_eq!(common::backend(web, "b1")["weight"], 7);
    for (old, new) in before.iter().zip(common::tables(&status)) {
        assert!(new.1 > old.1 && new.2 != old.2, "{old:?} {new:?}");
    }
    common::assert_unbroken(&mut held, "after all reloads", &balancer);
    let report = traffic.finish().unwrap();
    assert_eq!(report.totals.broken, 0, "{:?}", report.broken_connections);
    assert!(report.totals.answers > 200, "{report:?}");
}

/// The example shows every setting that the reference names, as it says of itself.
#[test]
fn the_example_shows_every_setting() {
    let reference = include_str!("../../docs/configuration.md");
    let example = include_str!("../../examples/weir.toml");
    let shown = |name: &str| {
        example.lines().any(|line| {
            let line = line.trim_start_matches(['#', ' ']);
            line.split_once(" =").is_some_and(|(first, _)| first == name)
                || line == format!("[[service.quic.{name}]]")
        })
    };
    let before_errors = reference.split("\n## Errors").next().unwrap();
    let names: Vec<&str> = before_errors
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"))
        .flat_map(|(names, _)| names.split(", ").map(|name| name.trim_matches('`')))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !shown(name)).collect();
    assert!(missing.is_empty(), "not in examples/weir.toml: {missing:?}");
}

/// Nothing listens where something else does, nor where packets are a service's.
#[test]
fn listeners_and_services_have_places_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    let name = path.to_str().unwrap();
    let check = |metrics: &str, web: &str, service: &str| {
        let lines = format!("interfaces = [\"eth0\"]\nmetrics = \"{metrics}\"\nweb = \"{web}\"");
        let text = GOOD.replace("interfaces = [\"eth0\"]", &lines).replace("port = 80", service);
        fs::write(&path, text).unwrap();
        common::weir(&["check", name])
    };
    for (metrics, web, service) in [
        ("127.0.0.1:9469", "127.0.0.1:8080", "port = 80"),
        ("127.0.0.1:80", "10.0.0.1:81", "port = 80"),
        ("10.0.0.2:80", "10.0.0.2:81", "port = 80"),
        // At the service's address they are its own, and at all others there is the listener.
        ("0.0.0.0:9469", "0.0.0.0:8080", "any_port = true\ncheck.enabled = false"),
        ("[::]:9469", "127.0.0.1:8080", "any_port = true\ncheck.enabled = false"),
        ("0.0.0.0:9469", "[fd00::1]:9469", "port = 80"),
        ("10.0.0.1:53", "10.0.0.1:54", "port = 53\nprotocol = \"udp\"\ncheck.enabled = false"),
    ] {
        let output = check(metrics, web, service);
        assert!(output.status.success(), "{metrics} {web} {service}: {}", stderr(&output));
    }
    for (metrics, web, service, line, words) in [
        (
            "127.0.0.1:8080",
            "127.0.0.1:8080",
            "port = 80",
            4,
            "balancer: web: 127.0.0.1:8080 is taken by balancer: metrics on line 3; give it another",
        ),
        (
            "0.0.0.0:8080",
            "127.0.0.1:8080",
            "port = 80",
            4,
            "is taken by balancer: metrics on line 3, which is 0.0.0.0:8080",
        ),
        (
            "10.0.0.9:8080",
            "[::]:8080",
            "port = 80",
            4,
            "is taken by balancer: metrics on line 3, which is 10.0.0.9:8080",
        ),
        (
            "10.0.0.1:80",
            "127.0.0.1:8080",
            "port = 80",
            3,
            "balancer: metrics: 10.0.0.1:80 is taken by service \"web\" on line 9, which gets packets to \
             10.0.0.1 tcp port 80",
        ),
        ("0.0.0.0:80", "127.0.0.1:8080", "port = 80", 3, "is taken by service \"web\" on line 9"),
        ("127.0.0.1:9", "[::]:85", "port = \"80-89\"\ncheck.port = 80", 4, "tcp ports 80-89"),
        ("10.0.0.1:9", "127.0.0.1:8", "any_port = true\ncheck.enabled = false", 3, "tcp any port"),
    ] {
        let output = check(metrics, web, service);
        assert_failed(&output);
        assert_says(&stderr(&output), &format!("{name}:{line}"), &[words]);
    }
}
