//! A changed file never breaks what need not break: idle times, settings and methods change under
//! real connections, by a reload, at a start, and around a SIGKILL in the middle; what would break
//! connections is refused, unless it is asked for.

mod common;

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::Held;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use weir_lab::topology::Topology;
use weir_lab::{Balancer, BalancerSpec, Lab, LabSpec};

const POOL: usize = 4;

/// What the services' descriptions may say, one after the other.
const FIELDS: &[&str] = &[
    "method = \"concury\"",
    "method = \"concury\"\nidle_timeout = \"10m\"",
    "method = \"concury\"\ndcode_bits = 9\nidle_timeout = \"3h\"",
    "method = \"tracked\"",
    "method = \"residue\"",
    "method = \"tracked\"\ntable_size = 1009\nidle_timeout = \"1h\"",
    "method = \"residue\"\nrows = 4096",
    "method = \"concury\"\ndcode_bits = 13",
];

/// Writes them into the file, in place of what stands there for every service.
fn write(balancer: &Balancer, fields: &str) {
    let text = fs::read_to_string(balancer.config()).unwrap();
    let mut services = text.split("method = ");
    let mut new = services.next().unwrap().to_owned();
    for service in services {
        let rest = service.split_once("[service.check]").unwrap().1;
        new += &format!("{fields}\n\n[service.check]{rest}");
    }
    fs::write(balancer.config(), new).unwrap();
}

fn start(lab: &Arc<Lab>) -> Balancer {
    common::start_spec(lab, BalancerSpec::new(common::WEIR, POOL))
}

/// What was lost on the way shows when tables are built anew.
fn change_pools(balancer: &Balancer, held: &mut [Held], when: &str) {
    let weight = 1 + held.len() % 7;
    common::command_all(balancer, |service| format!("backend drain {service} b1"));
    common::command_all(balancer, |service| format!("backend weight {service} b3 {weight}"));
    common::assert_unbroken(held, &format!("{when}, after a drain and a weight"), balancer);
    common::command_all(balancer, |service| format!("backend drain {service} b1 --undo"));
    common::assert_unbroken(held, &format!("{when}, after the end of a drain"), balancer);
}

fn assert_follows(balancer: &Balancer, fields: &str) {
    let status = balancer.status().unwrap();
    assert_eq!(status["warnings"].as_array().map(Vec::len), Some(0), "{}", status["warnings"]);
    for service in status["services"].as_array().unwrap() {
        let method = service["method"].as_str().unwrap();
        assert!(fields.starts_with(&format!("method = \"{method}\"")), "{fields}: {method}");
    }
}

#[test]
fn whatever_a_reload_changes_connections_go_on() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    let balancer = start(&lab);
    let traffic = common::mixed_traffic(&lab, 300);
    let mut held = common::hold_both(&lab, 200);
    for fields in FIELDS.iter().skip(1).chain(FIELDS) {
        write(&balancer, fields);
        let done = common::command(&balancer, "reload");
        assert!(done.contains("configuration reloaded: 3 services"), "{done}");
        common::assert_unbroken(&mut held, fields, &balancer);
        held.extend(common::hold_both(&lab, 10));
        assert_follows(&balancer, fields);
        change_pools(&balancer, &mut held, fields);
    }
    common::assert_none_broke(traffic);
    common::assert_unbroken(&mut held, "at the end", &balancer);
}

#[test]
fn killed_while_a_service_changes_or_started_with_another_file_it_goes_on() {
    let _alone = common::alone();
    let mut random = StdRng::seed_from_u64(common::seed());
    let lab = common::lab_of(LabSpec { backends: 4, ..LabSpec::default() });
    let balancer = start(&lab);
    let mut held = common::hold_both(&lab, 100);
    for round in 0..8 {
        let fields = FIELDS.choose(&mut random).unwrap();
        let when = format!("round {round}: {fields}");
        write(&balancer, fields);
        if round % 2 == 0 {
            balancer.hang_up();
            thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
        }
        common::kill_and_launch(&lab, &balancer, &mut held, &when);
        assert_follows(&balancer, fields);
        held.extend(common::hold_both(&lab, 10));
        change_pools(&balancer, &mut held, &when);
    }
}

/// All methods of the kernel's program, and whether their connections can be carried over to others that are
/// so marked.
const ALL: [(&str, bool); 6] = [
    ("concury", true),
    ("tracked", true),
    ("residue", true),
    ("jet", false),
    ("cheetah", false),
    ("cheetah-stateful", false),
];

/// From each method to each other one, under connections: they go on, or it is refused with the reason, and
/// they go on as they were.
#[test]
fn from_every_method_to_every_other_connections_go_on_or_it_is_refused() {
    let _alone = common::alone();
    let topology = Topology::Inline;
    let lab = common::lab_of(LabSpec { backends: 4, topology, ..LabSpec::default() });
    let balancer = start(&lab);
    let line = |method: &str| format!("method = \"{method}\"");
    for (from, carries) in ALL {
        write(&balancer, &line(from));
        common::command(&balancer, "reload --break-connections");
        let mut held = common::hold_both(&lab, 40);
        for (to, takes) in ALL.into_iter().filter(|(to, _)| *to != from) {
            let when = format!("{from} to {to}");
            write(&balancer, &line(to));
            let reloaded = common::try_command(&balancer, "reload");
            common::assert_unbroken(&mut held, &when, &balancer);
            if carries && takes {
                assert!(reloaded.is_ok(), "{when}: {reloaded:?}");
                assert_follows(&balancer, &line(to));
                held.extend(common::hold_both(&lab, 6));
                change_pools(&balancer, &mut held, &when);
            } else {
                let refused = reloaded.expect_err(&when);
                let culprit = if carries { to } else { from };
                let reason =
                    ["cannot change under connections", "cannot be told where connections live"];
                assert!(refused.contains("service web4: method: "), "{when}: {refused}");
                assert!(
                    refused.contains(culprit) && reason.iter().any(|one| refused.contains(one)),
                    "{when}: {refused}"
                );
                assert_follows(&balancer, &line(from));
            }
            write(&balancer, &line(from));
            common::command(&balancer, "reload");
            common::assert_unbroken(&mut held, &format!("{when} and back"), &balancer);
        }
    }
}

/// What connections cannot survive is refused with their number, by a reload and at a start, and
/// done if it is asked for.
#[test]
fn what_breaks_connections_is_refused_until_it_is_asked_for() {
    let _alone = common::alone();
    let lab = common::lab_of(LabSpec { backends: 4, clients: 1, ..LabSpec::default() });
    let balancer = start(&lab);
    let mut held = common::hold_both(&lab, 60);
    let before = fs::read_to_string(balancer.config()).unwrap();
    write(&balancer, "method = \"concury\"\naffinity = \"client\"");
    let refused = balancer.command(&["reload"]).unwrap_err().to_string();
    for words in ["service web4: affinity", "connections break", "--break-connections"] {
        assert!(refused.contains(words), "{refused}");
    }
    let counts =
        refused.split(" known connections break").filter_map(|part| part.rsplit(' ').next());
    let counts: Vec<usize> = counts.filter_map(|count| count.parse().ok()).collect();
    // Of the third service there need be none.
    assert!(counts.len() >= 2 && counts[..2].iter().all(|count| *count >= 30), "{refused}");
    assert!(!refused.contains(" 0 known"), "{refused}");
    common::assert_unbroken(&mut held, "after a reload that was refused", &balancer);
    change_pools(&balancer, &mut held, "after a reload that was refused");
    balancer.kill();
    // A start with that file goes on with what was in force, and says why.
    balancer.launch().unwrap();
    let warnings = balancer.status().unwrap()["warnings"].to_string();
    for words in ["would be refused", "connections break", "--break-connections"] {
        assert!(warnings.contains(words), "{warnings}");
    }
    common::assert_unbroken(&mut held, "after a start whose file was refused", &balancer);
    change_pools(&balancer, &mut held, "after a start whose file was refused");
    balancer.kill();
    let wanted = fs::read_to_string(balancer.config()).unwrap();
    fs::write(balancer.config(), before).unwrap();
    balancer.launch().unwrap();
    change_pools(&balancer, &mut held, "after a start with the file as it was");
    fs::write(balancer.config(), wanted).unwrap();
    let done = common::command(&balancer, "reload --break-connections");
    assert!(
        done.contains("service web4: affinity") && done.contains("connections break"),
        "{done}"
    );
    drop(held);
    let mut held = common::hold_both(&lab, 60);
    change_pools(&balancer, &mut held, "by client");
}
