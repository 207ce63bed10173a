//! Validation of what a switch cannot do, and of where it is (docs/p4.md).

use std::net::SocketAddr;
use std::ops::Range;

use toml::Spanned;
use weir_plane_p4::{METHODS, layout};
use weir_steering::cheetah::PARTITIONS;
use weir_steering::{DCODE_BITS, MethodId, Misfit, ROWS};

use super::super::error::Problems;
use super::super::{P4, resolve, written};
use super::scope::Scope;
use super::service::{Service, title};

const KERNEL: &str = "set balancer.plane = \"kernel\"";

/// What the file says of the switch.
pub(super) fn table(raw: Option<Spanned<written::P4>>, problems: &mut Problems<'_>) -> P4 {
    let mut all = P4::default();
    let Some(raw) = raw else { return all };
    let mut scope = Scope::new(problems, "p4", raw.span());
    if let Some(given) = raw.into_inner().thrift {
        match given.get_ref().parse::<SocketAddr>() {
            // Whoever reaches that server has the switch, and its ports are this host's interfaces.
            Ok(address) if address.ip().is_loopback() && address.port() > 0 => all.thrift = address,
            _ => scope.problem(
                given.span(),
                "thrift",
                format!("{:?} is no address of the loopback with a port", given.get_ref()),
                "give the one of simple_switch --thrift-port, such as \"127.0.0.1:9090\"",
            ),
        }
    }
    all
}

/// What a file has that is for other planes, by where it gives it, and what a switch may be too small for.
pub(super) struct Asked<'a> {
    pub mode: Option<Range<usize>>,
    pub followed: Option<Range<usize>>,
    pub next_program: Option<Range<usize>>,
    pub counted: Option<Range<usize>>,
    pub tunnel_source: Option<Spanned<String>>,
    pub store: Option<Range<usize>>,
    pub limits: Option<&'a Spanned<written::Limits>>,
    pub services: &'a [Spanned<written::Service>],
}

/// Refuses by name what the program on the switch does not do.
pub(super) fn can_do(asked: Asked<'_>, problems: &mut Problems<'_>) {
    let remove = format!("remove it, or {KERNEL}");
    for (place, field, wrong) in [
        (asked.mode, "balancer: mode", "a switch has no XDP program"),
        (asked.followed, "balancer: follow_flows", "a switch follows no connections"),
        (asked.next_program, "balancer: next_program", "a switch has no XDP program"),
        (asked.counted, "balancer: count_interfaces", "a switch counts no frames by interface"),
        (
            asked.store,
            "store",
            "a switch cannot keep flows from starting while a fleet changes its pool",
        ),
    ] {
        if let Some(place) = place {
            problems.add(place, field, wrong, remove.clone());
        }
    }
    if let Some(given) = asked.tunnel_source.filter(|text| text.get_ref().contains('/')) {
        let wrong = "a switch's tunnels begin at one address";
        let right = format!("give it without a prefix, or {KERNEL}");
        problems.add(given.span(), "balancer: tunnel_source", wrong, right);
    }
    if let Some(raw) = asked.limits {
        let mut scope = Scope::new(problems, "limits", raw.span());
        let raw = raw.get_ref();
        let sizes = [
            (&raw.services, "services", layout::SERVICES, "SERVICES"),
            (&raw.backends, "backends", layout::BACKENDS, "BACKENDS"),
        ];
        for (field, name, most, size) in sizes {
            let Some(given) = field else { continue };
            if *given.get_ref() > most.into() {
                let wrong = format!("{}, and a switch has room for {most}", given.get_ref());
                let right = format!("give at most {most} ({size} in p4/sizes.p4)");
                scope.problem(given.span(), name, wrong, right);
            }
        }
    }
    for (at, service) in asked.services.iter().enumerate() {
        let raw = service.get_ref();
        let mut scope = Scope::new(problems, title(raw, at), service.span());
        has_method(raw, &mut scope);
        is_found(raw, &mut scope);
        is_plain(raw, &mut scope);
    }
}

/// How it decides.
fn has_method(raw: &written::Service, scope: &mut Scope<'_, '_>) {
    let given = raw.method.as_ref();
    let method = given.map_or(Some(resolve::METHOD), |word| MethodId::named(word.get_ref()));
    // One that nobody knows is told elsewhere.
    if let (Some(given), Some(method)) = (given, method.filter(|one| !METHODS.contains(one))) {
        let names: Vec<String> = METHODS.iter().map(|one| format!("{:?}", one.name())).collect();
        let wrong = format!("a switch does not decide by {method}");
        let right = format!("take {}, or {KERNEL}", names.join(" or "));
        scope.problem(given.span(), "method", wrong, right);
    }
}

/// Refuses settings of methods that the program has not.
pub(super) fn fits(services: &[Service], places: &[Range<usize>], problems: &mut Problems<'_>) {
    for (service, place) in services.iter().zip(places) {
        let Err(Misfit { setting, wrong, right }) = weir_plane_p4::fits(service.method.settings())
        else {
            continue;
        };
        let field = format!("service {:?}: {setting}", service.name);
        problems.add(place.clone(), field, wrong, format!("{right}, or {KERNEL}"));
    }
    has_room(services, places, problems);
}

/// Refuses tables for which there is no room on the switch, at the first service that is too much.
fn has_room(services: &[Service], places: &[Range<usize>], problems: &mut Problems<'_>) {
    let (mut slots, mut partitions) = (0, 0);
    for (service, place) in services.iter().zip(places) {
        let settings = service.method.settings();
        let wanted = weir_plane_p4::slots_of(settings);
        let connections = match settings.method() {
            MethodId::CheetahStateful => u64::from(settings.get(PARTITIONS)),
            _ => 0,
        };
        (slots, partitions) = (slots + wanted, partitions + connections);
        let setting = if settings.method() == MethodId::Concury { DCODE_BITS } else { ROWS };
        let both =
            "two tables of each service, as packets follow one while the next one is written";
        for (taken, own, most, setting, what, size) in [
            (slots, wanted, layout::SLOTS, setting, both, "SLOTS"),
            (partitions, connections, layout::PARTITIONS, PARTITIONS, "all services", "PARTITIONS"),
        ] {
            let most = u64::from(most);
            if own == 0 || taken <= most {
                continue;
            }
            problems.add(
                place.clone(),
                format!("service {:?}: {setting}", service.name),
                format!("with the services before it {taken} are taken, and a switch has room for {most} ({what})"),
                format!("give fewer ({size} in p4/sizes.p4), or {KERNEL}"),
            );
            return;
        }
    }
}

/// By what packets find it.
fn is_found(raw: &written::Service, scope: &mut Scope<'_, '_>) {
    if let Some(vip) = &raw.vip {
        let each = vip.get_ref().each(vip.span());
        let several = each.len() > 1 || each.iter().any(|(text, _)| text.contains('/'));
        if several {
            let wrong = "a switch finds a service by one address";
            let right = format!("make a service of each, or {KERNEL}");
            scope.problem(vip.span(), "vip", wrong, right);
        }
    }
    if let Some(port) = &raw.port
        && matches!(port.get_ref(), written::Value::Word(_))
    {
        let wrong = "a switch knows one port, or any";
        let right = format!("give a number, or any_port = true, or {KERNEL}");
        scope.problem(port.span(), "port", wrong, right);
    }
    if let Some(given) = raw.protocol.as_ref().filter(|word| word.get_ref() == "sctp") {
        let right = format!("take \"tcp\" or \"udp\", or {KERNEL}");
        scope.problem(given.span(), "protocol", "a switch does not read SCTP", right);
    }
}

/// What else would be done to its packets.
fn is_plain(raw: &written::Service, scope: &mut Scope<'_, '_>) {
    let takes = |word: &&Spanned<String>| !["l2", "ipip"].contains(&word.get_ref().as_str());
    if let Some(given) = raw.forward.as_ref().filter(takes) {
        let wrong = format!("a switch does not forward by {:?}", given.get_ref());
        let right = format!("take \"l2\" or \"ipip\", or {KERNEL}");
        scope.problem(given.span(), "forward", wrong, right);
    }
    let lists = "a switch has no lists of sources";
    let text = |field: &Option<Spanned<String>>| field.as_ref().map(Spanned::span);
    let many = |field: &Option<Spanned<Vec<Spanned<String>>>>| field.as_ref().map(Spanned::span);
    let fields = [
        (
            "fragments",
            raw.fragments.as_ref().filter(|word| word.get_ref() != "first").map(Spanned::span),
            "a switch leads no later fragments by their source",
        ),
        ("mss", raw.mss.as_ref().map(Spanned::span), "a switch does not write into SYNs"),
        ("allow", many(&raw.allow), lists),
        ("deny", many(&raw.deny), lists),
        ("allow_file", text(&raw.allow_file), lists),
        ("deny_file", text(&raw.deny_file), lists),
        (
            "new_flows",
            raw.new_flows.as_ref().map(Spanned::span),
            "a switch does not count new flows by source or time",
        ),
        ("quic", raw.quic.as_ref().map(Spanned::span), "a switch does not read QUIC ids"),
    ];
    for (field, span, wrong) in fields {
        if let Some(span) = span {
            scope.problem(span, field, wrong, format!("remove it, or {KERNEL}"));
        }
    }
    let own = raw.backend.iter().filter_map(|one| one.get_ref().check.as_ref());
    for check in raw.check.iter().chain(own) {
        let given = check.get_ref().dead_connections.as_ref();
        if let Some(given) = given.filter(|word| word.get_ref() == "reset") {
            let right = format!("remove it, or {KERNEL}");
            scope.problem(given.span(), "dead_connections", "a switch sends no resets", right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Config, PlaneKind};

    fn parse(balancer: &str, service: &str, more: &str) -> Result<Config, String> {
        let text = format!(
            "[balancer]\nplane = \"p4\"\ninterfaces = [\"eth0\"]\n{balancer}\n{more}\n[[service]]\nname = \"web\"\n\
             {service}\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
        );
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    }

    const WEB: &str = "vip = \"10.0.0.1\"\nport = 80\n";

    #[test]
    fn the_switch_is_on_the_loopback() {
        let config = parse("", WEB, "").unwrap();
        assert_eq!(config.balancer.plane, PlaneKind::P4);
        assert_eq!(config.p4.thrift.to_string(), "127.0.0.1:9090");
        let config = parse("", WEB, "[p4]\nthrift = \"[::1]:9999\"").unwrap();
        assert_eq!(config.p4.thrift.to_string(), "[::1]:9999");
        for wrong in ["10.0.0.3:9090", "localhost:9090", "127.0.0.1", "127.0.0.1:0"] {
            let said = parse("", WEB, &format!("[p4]\nthrift = {wrong:?}")).unwrap_err();
            assert!(said.contains("weir.toml:6: p4: thrift"), "{said}");
        }
    }

    #[test]
    fn what_it_does_is_taken() {
        for service in [
            "method = \"residue\"",
            "method = \"concury\"\naffinity = \"client\"\nforward = \"ipip\"",
            "protocol = \"udp\"\n[service.check]\nenabled = false",
            "[service.check]\ndead_connections = \"keep\"",
        ] {
            let said = parse("", &format!("{WEB}{service}"), "");
            assert!(said.as_ref().is_ok_and(|_| true), "{service}: {said:?}");
        }
        let any = "vip = \"10.0.0.1\"\nany_port = true\n[service.check]\nenabled = false";
        parse("", any, "").unwrap();
        parse("tunnel_source = \"10.0.0.9\"", WEB, "[limits]\nservices = 256").unwrap();
    }

    #[test]
    fn what_it_cannot_do_is_refused_where_it_stands() {
        for (field, service) in [
            ("method", "method = \"tracked\""),
            ("method", "method = \"jet\""),
            ("forward", "forward = \"gue\""),
            ("forward", "forward = \"fullnat\""),
            ("mss", "mss = 1400"),
            ("protocol", "protocol = \"sctp\""),
            ("allow", "allow = [\"10.0.0.0/8\"]"),
            ("deny_file", "deny_file = \"deny.txt\""),
            ("new_flows", "new_flows = { per_second = 10 }"),
            ("quic", "quic = {}"),
            ("fragments", "affinity = \"client\"\nfragments = \"source\""),
            ("dead_connections", "[service.check]\ndead_connections = \"reset\""),
        ] {
            let said = parse("", &format!("{WEB}{service}"), "").unwrap_err();
            let wanted = format!("service \"web\": {field}: a switch ");
            assert!(said.contains(&wanted), "{service}: {said}");
        }
        for (field, service) in [
            ("vip", "vip = [\"10.0.0.1\", \"10.0.0.3\"]\nport = 80"),
            ("vip", "vip = \"10.0.0.0/24\"\nport = 80"),
            ("port", "vip = \"10.0.0.1\"\nport = \"80-81\""),
        ] {
            let said = parse("", service, "").unwrap_err();
            let wanted = format!("service \"web\": {field}: a switch ");
            assert!(said.contains(&wanted), "{service}: {said}");
        }
        for (field, balancer, more) in [
            ("balancer: mode", "mode = \"generic\"", ""),
            ("balancer: follow_flows", "follow_flows = 64", ""),
            ("balancer: count_interfaces", "count_interfaces = true", ""),
            ("balancer: tunnel_source", "tunnel_source = \"10.1.0.0/16\"", ""),
            ("limits: services", "", "[limits]\nservices = 257"),
            ("limits: backends", "", "[limits]\nbackends = 5000"),
            ("store", "", "[store]\nkind = \"etcd\"\nendpoints = [\"https://10.0.0.9:2379\"]"),
        ] {
            let said = parse(balancer, WEB, more).unwrap_err();
            assert!(said.contains(&format!(": {field}: ")), "{field}: {said}");
        }
    }

    /// Whatever a pool is like, tables of that size find no room.
    #[test]
    fn tables_without_room_are_refused() {
        let with = |service: &str, more: &str| {
            let text = format!(
                "{WEB}{service}\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n{more}"
            );
            // The usual backend is the last service's.
            parse("", &text, "").map(|_| ())
        };
        let second = |method: &str| {
            format!("[[service]]\nname = \"more\"\nvip = \"10.0.0.3\"\nport = 80\n{method}\n")
        };
        let rows = |rows: u32| format!("method = \"residue\"\nrows = {rows}");
        let own = |service: &str| parse("", &format!("{WEB}{service}"), "").map(|_| ());
        own(&rows(1 << 18)).unwrap();
        let said = own(&rows(1 << 19)).unwrap_err();
        assert!(said.contains("service \"web\": rows: ") && said.contains("SLOTS"), "{said}");
        with(&rows(1 << 17), &second(&rows(1 << 17))).unwrap();
        let said = with(&rows(1 << 18), &second("method = \"concury\"")).unwrap_err();
        assert!(said.contains("service \"more\": dcode_bits: "), "{said}");
        let slots = |n: u32| {
            format!("method = \"cheetah-stateful\"\nanswers = \"backend\"\npartitions = {n}")
        };
        let said = with(&slots(4), &second(&slots(8))).unwrap_err();
        assert!(said.contains("service \"more\": partitions: "), "{said}");
    }

    /// Another plane does not look at the table, and the option overrides the file.
    #[test]
    fn the_option_asks_for_it_too() {
        let text = "[balancer]\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\
                    method = \"tracked\"\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n";
        assert!(Config::parse(text, "weir.toml").is_ok());
        let said = Config::parse_with(text, "weir.toml", Some(PlaneKind::P4)).unwrap_err();
        assert!(said.to_string().contains("a switch does not decide by tracked"), "{said}");
    }
}
