//! What metrics are made of, and their text as a whole.

use super::*;
use crate::metrics::text;

/// Each metric stands in one piece, with one help and one kind before its series, and no series is there twice.
fn is_whole(text: &str) {
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    let (mut families, mut series) = (HashSet::new(), HashSet::new());
    let (mut family, mut kind) = ("", "");
    for line in body.lines() {
        if let Some(words) = line.strip_prefix("# HELP ") {
            let (name, help) = words.split_once(' ').expect("a help");
            assert!(families.insert(name) && !help.is_empty(), "{line}");
            (family, kind) = (name, "");
        } else if let Some(words) = line.strip_prefix("# TYPE ") {
            let (name, said) = words.split_once(' ').expect("a kind");
            assert!(name == family && kind.is_empty(), "{line}");
            assert!(["counter", "gauge"].contains(&said), "{line}");
            kind = said;
        } else {
            assert!(!kind.is_empty(), "{line}");
            let suffix = if kind == "counter" { "_total" } else { "" };
            let rest = line.strip_prefix(family).and_then(|rest| rest.strip_prefix(suffix));
            let rest = rest.unwrap_or_else(|| panic!("{line:?} among series of {family}"));
            let (labels, value) = rest.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let labelled = labels.starts_with('{') && labels.ends_with("\"}");
            assert!(labels.is_empty() || labelled, "{line}");
            assert!(series.insert((family, labels)), "{line}");
        }
    }
    assert!(families.len() > 30, "{families:?}");
}

#[test]
fn metrics_lack_nothing_that_status_has() {
    let mut world = World::new(3);
    world.start(0, 0..20);
    world.drain("a", "b1").expect("nothing is refused");
    let mut whole = world.engine.status().expect("readable");
    let mut numbers = world.engine.status_in_numbers().expect("readable");
    (whole.uptime_seconds, numbers.uptime_seconds) = (7, 7);
    assert_eq!(text(&numbers), text(&whole));
    is_whole(&text(&numbers));
    let lines = |status: &crate::engine::Status, begin: &str| {
        text(status).lines().filter(|line| line.starts_with(begin)).count()
    };
    assert_eq!(lines(&numbers, "weir_service_states{service=\""), 3);
    assert_eq!(lines(&numbers, "weir_backend_up{service=\"a\",backend=\""), 3);
    assert_eq!(lines(&numbers, "weir_backend_up{service=\"a\",backend=\"b1\"} 0.0"), 1);
    // What it lacks is what no metric shows.
    assert!(!whole.services[0].digest.is_empty());
    assert!(numbers.services[0].digest.is_empty());
}

/// Whatever a name has in it, a series is one line.
#[test]
fn names_are_escaped_everywhere() {
    let world = World::new(2);
    let mut status = world.engine.status_in_numbers().expect("readable");
    status.services[0].name = "a\"\\\n".into();
    status.services[1].backends[0].name = "\n".into();
    let text = text(&status);
    is_whole(&text);
    for begin in [
        r#"weir_service_info{service="a\"\\\n",vip="10.0.0.1","#,
        r#"weir_service_states{service="a\"\\\n"} "#,
        r#"weir_backend_info{service="a\"\\\n",backend="b1",address="10.9.0.1"} 1.0"#,
        r#"weir_backend_packets_total{service="b",backend="\n"} 0"#,
    ] {
        assert!(text.lines().any(|line| line.starts_with(begin)), "{begin}");
    }
}
