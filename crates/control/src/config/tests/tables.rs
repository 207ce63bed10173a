//! Room for the published tables.

use super::*;

/// A file with limits before its services.
fn limited(limits: &str, services: &str) -> String {
    services.replacen("[[service]]", &format!("[limits]\n{limits}\n[[service]]"), 1)
}

/// The number behind some words of the only problem.
fn suggested(text: &str, words: &str) -> u64 {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:?}");
    let said = found[0].to_string();
    let (_, rest) = said.split_once(words).unwrap_or_else(|| panic!("{words}: {said}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// With the defaults, and with whatever limit is given alone, a service of any method can have its table and the
/// next one beside it, however many connections it has.
#[test]
fn tables_have_room_for_all_that_a_service_may_have() {
    for fields in [
        "method = \"concury\"",
        "method = \"concury\"\ndcode_bits = 15",
        "method = \"concury\"\naffinity = \"client\"",
        "protocol = \"udp\"\ncheck = { enabled = false }",
        "method = \"residue\"",
        "method = \"residue\"\nrows = 4194304",
        "method = \"jet\"\nrows = 4194304",
        "method = \"tracked\"\ntable_size = 16777213",
        "method = \"cheetah\"",
    ] {
        for limits in ["", "states_per_service = 20000", "half_open_flows = 1000000"] {
            let text = limited(limits, &service(&format!("port = 80\n{fields}")));
            let config = Config::parse(&text, "weir.toml").unwrap_or_else(|e| panic!("{e}"));
            let service = &config.services[0];
            let bounds = Bounds::from(&config.limits);
            let states = bounds.most_states(service.protocol, service.affinity) as usize;
            let parts = if service.method.name() == "residue" { 4 } else { 1 };
            let settings = service.method.settings();
            let table = settings.most_table_bytes(states.div_ceil(parts)).unwrap();
            assert!(2 * table <= config.limits.table_bytes as usize, "{fields}, {limits}: {table}");
            assert!(config.limits.half_open_flows >= 20_000, "{fields}, {limits}");
        }
    }
    let config = Config::parse(&service("port = 80"), "weir.toml").unwrap();
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.limits.half_open_flows, 3 << 20);
}

/// What is refused for lack of room says which limit does not fit, and what would.
#[test]
fn limits_without_room_for_tables_are_refused_with_those_that_have_it() {
    let web = service("port = 80");
    let all = "states_per_service = 4194304\n";
    let small = limited(&format!("table_bytes = 67108864\n{all}"), &web);
    expect_one(
        "the former default",
        &small,
        5,
        &[
            "limits: table_bytes: service \"web\" may come to ",
            "with the next one beside it that is ",
            "limits.table_bytes is 67108864",
            "or set limits.states_per_service to ",
        ],
    );
    let parses = |text: &str| Config::parse(text, "weir.toml").is_ok();
    let bytes = suggested(&small, "set limits.table_bytes to ");
    let sized = |bytes: u64| limited(&format!("table_bytes = {bytes}\n{all}"), &web);
    assert!(parses(&sized(bytes)) && !parses(&sized(bytes - 1)));
    let states = suggested(&small, "set limits.states_per_service to ");
    let with =
        |states| limited(&format!("table_bytes = 67108864\nstates_per_service = {states}"), &web);
    assert!(parses(&with(states)) && !parses(&with(states + 1)));
    // What is advised leaves room for handshakes, and it is what a file has that does not say how many.
    let found = |text: &str| Config::parse(text, "weir.toml").unwrap().limits;
    assert!(found(&with(states)).half_open_flows >= 1 << 18);
    let unsaid = found(&limited("table_bytes = 67108864", &web));
    assert_eq!(u64::from(unsaid.states_per_service), states);
    assert!(unsaid.half_open_flows >= 1 << 18);
    // Cells are doubled long before they are full.
    assert!(!parses(&with(3_600_000)), "{states}");

    // Beside another service it is too little by the first table of that.
    let other =
        web.replacen(HEAD, "", 1).replace("web", "other").replace("10.0.0.1\"", "10.0.0.2\"");
    let both = limited(&format!("table_bytes = {bytes}\n{all}"), &format!("{web}{other}"));
    expect_one("two", &both, 5, &["and with that of the other service that is "]);
    assert_eq!(suggested(&both, "set limits.table_bytes to ") - bytes, 128 + 4 * 4096);

    let states = limited("states_per_service = 200000000", &web);
    expect_one(
        "many",
        &states,
        5,
        &["limits: states_per_service: ", "set limits.states_per_service"],
    );
    // Half-open flows alone may be too many.
    let most =
        suggested(&limited("half_open_flows = 100000000", &web), "set limits.half_open_flows to ");
    let with = |flows: u64| limited(&format!("half_open_flows = {flows}"), &web);
    assert!(parses(&with(most)) && !parses(&with(most + 1)), "{most}");
    // Without a limit in the file, it is a matter of the services.
    let large = "port = 80\nmethod = \"tracked\"\ntable_size = 16777213";
    let mut many = service(large);
    for n in 2..8 {
        let next = service(large).replacen(HEAD, "", 1).replace("web", &format!("web{n}"));
        many += &next.replace("10.0.0.1\"", &format!("10.0.0.{n}\""));
    }
    expect_one(
        "large ones",
        &many,
        4,
        &["service: service \"web", "those of the 6 other services"],
    );
}
