//! Validation of rules of a card, beside a plane in user space.

use std::ops::Range;

use toml::Spanned;

use super::super::error::Problems;
use super::super::{
    LEAST_IDLE_BESIDE_RULES, Offload, PlaneKind, Protocol, RuleCard, RuleChoice, written,
};
use super::Service;
use super::scope::Scope;

/// Cards have 2,048 to 8,192.
pub const MOST_RULES: u32 = 65_536;
pub const MOST_QUEUES: u16 = 256;
pub const MOST_HYSTERESIS: u32 = 100;

/// What the file says of it; `None` if it says nothing, or not whose rules there are to be.
pub(super) fn table(
    raw: Option<Spanned<written::Offload>>,
    problems: &mut Problems<'_>,
) -> Option<Offload> {
    let raw = raw?;
    let mut scope = Scope::new(problems, "offload", raw.span());
    let raw = raw.into_inner();
    let rules = scope.integer(raw.rules.as_ref(), "rules", 1..=MOST_RULES).unwrap_or(2048);
    let queues = scope.integer(raw.queues.as_ref(), "queues", 2..=MOST_QUEUES).unwrap_or(16);
    let hysteresis = scope.integer(raw.hysteresis.as_ref(), "hysteresis", 1..=MOST_HYSTERESIS);
    let choice = scope.choice(raw.choice.as_ref(), "choice", &RuleChoice::ALL).unwrap_or_default();
    let profiles = [("sound", false), ("hostile", true)];
    let hostile = scope.choice(raw.profile.as_ref(), "profile", &profiles);
    if raw.card.is_none() {
        scope.missing("card", "give \"emulated\", \"emulated-veth\", \"ntuple\" or \"rte_flow\"");
    }
    let card = scope.choice(raw.card.as_ref(), "card", &RuleCard::ALL)?;
    if let (Some(profile), false) = (&raw.profile, card.is_emulated()) {
        let wrong = "only an emulated card behaves as it is told";
        scope.problem(profile.span(), "profile", wrong, "remove it, or give card = \"emulated\"");
    }
    let hysteresis = hysteresis.unwrap_or(2);
    Some(Offload { card, rules, queues, choice, hysteresis, hostile: hostile.unwrap_or(false) })
}

/// What the rules are to be beside.
pub(super) struct Beside {
    pub kind: PlaneKind,
    pub threads: u16,
    pub interfaces: usize,
}

/// Why nothing could use the rules, and what would be right, one reason after the other; none if something could.
pub(super) fn against(offload: Option<&Offload>, beside: &Beside) -> Vec<(String, &'static str)> {
    let kind = beside.kind;
    if !kind.is_beside() {
        let wrong = format!("a plane of kind {} has no use for rules of a card", kind.name());
        let right = "give balancer.plane = \"af-xdp\" or \"dpdk\", or remove the table";
        return vec![(wrong, right)];
    }
    let mut found = Vec::new();
    if beside.threads > 1 {
        let wrong =
            format!("{} threads would not hear of each other's connections", beside.threads);
        found.push((wrong, "give threads = 1, or remove the table"));
    }
    let Some(offload) = offload else { return found };
    let name = offload.card.name();
    match (offload.card, kind) {
        (RuleCard::Ntuple, PlaneKind::Dpdk) => {
            let wrong = format!("{name} rules are the kernel's, which has no card that DPDK has");
            found.push((wrong, "give card = \"rte_flow\", or balancer.plane = \"af-xdp\""));
        }
        (RuleCard::RteFlow, PlaneKind::AfXdp) => {
            let wrong = format!("{name} rules are of devices of DPDK's, and this plane has none");
            found.push((wrong, "give card = \"ntuple\", or balancer.plane = \"dpdk\""));
        }
        (RuleCard::EmulatedVeth, PlaneKind::Dpdk) => {
            let wrong = format!("{name} is at an interface of the kernel's, which DPDK has not");
            found.push((wrong, "give card = \"emulated\", or balancer.plane = \"af-xdp\""));
        }
        _ => {}
    }
    let of_one = matches!(offload.card, RuleCard::Ntuple | RuleCard::EmulatedVeth);
    if of_one && beside.interfaces != 1 {
        let wrong = format!(
            "rules of {name} are of one card, and there are {} interfaces",
            beside.interfaces
        );
        found.push((wrong, "give one of balancer.interfaces"));
    }
    found
}

/// Refuses rules where nothing could use them.
pub(super) fn refuse(
    against: Vec<(String, &'static str)>,
    place: &Range<usize>,
    problems: &mut Problems<'_>,
) {
    for (wrong, right) in against {
        problems.add(place.clone(), "offload", wrong, right);
    }
}

/// What to tell where rules are set aside, for a start that was told another plane than the file's; none if they can
/// be there.
pub(super) fn aside(against: &[(String, &'static str)], kind: PlaneKind) -> Option<String> {
    let why: Vec<&str> = against.iter().map(|(wrong, _)| wrong.as_str()).collect();
    (!why.is_empty()).then(|| {
        format!(
            "the rules of [offload] are set aside, as this start was told --plane {}: {}",
            kind.name(),
            why.join("; ")
        )
    })
}

/// Refuses services whose connections would be taken for over while rules lead their packets.
pub(super) fn outlive_looks(
    services: &[Service],
    places: &[Range<usize>],
    problems: &mut Problems<'_>,
) {
    for (service, place) in services.iter().zip(places) {
        let short = service.idle_timeout.filter(|idle| *idle < LEAST_IDLE_BESIDE_RULES);
        if let (Some(idle), Protocol::Tcp) = (short, service.protocol) {
            let wrong =
                format!("{} s are too few where rules of a card lead packets", idle.as_secs());
            let what = format!("service {:?}: idle_timeout", service.name);
            problems.add(place.clone(), what, wrong, "give 60s at least, or remove [offload]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Config, offer_dpdk};
    use super::*;

    fn parse(balancer: &str, more: &str, service: &str) -> Result<Config, String> {
        let text = format!(
            "[balancer]\n{balancer}\n{more}\n[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\
             {service}\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
        );
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    }

    /// With so many devices of DPDK's.
    fn dpdk(devices: usize) -> String {
        offer_dpdk();
        let interfaces: Vec<_> = (0..devices).map(|number| format!("\"lan{number}\"")).collect();
        let devices: Vec<_> = (0..devices).map(|number| format!("\"net_ring{number}\"")).collect();
        let (interfaces, devices) = (interfaces.join(", "), devices.join(", "));
        format!("plane = \"dpdk\"\ninterfaces = [{interfaces}]\n[dpdk]\ndevices = [{devices}]")
    }

    const ONE: &str = "plane = \"af-xdp\"\ninterfaces = [\"eth0\"]";

    #[test]
    fn what_is_not_said_is_usual() {
        assert_eq!(parse(ONE, "", "").unwrap().offload, None);
        let found = parse(ONE, "[offload]\ncard = \"emulated\"", "").unwrap().offload.unwrap();
        assert_eq!((found.card, found.rules, found.queues), (RuleCard::Emulated, 2048, 16));
        assert_eq!((found.choice, found.hysteresis, found.hostile), (RuleChoice::Heavy, 2, false));
        let all = "[offload]\ncard = \"emulated\"\nrules = 8\nqueues = 4\nchoice = \"all\"\nhysteresis = 1\n\
                   profile = \"hostile\"";
        let found = parse(ONE, all, "idle_timeout = \"1m\"").unwrap().offload.unwrap();
        assert_eq!((found.rules, found.queues, found.choice), (8, 4, RuleChoice::All));
        assert!(found.hostile && found.hysteresis == 1);
        let ntuple = parse(ONE, "[offload]\ncard = \"ntuple\"", "").unwrap().offload.unwrap();
        assert_eq!(ntuple.card, RuleCard::Ntuple);
        let flows = parse(&dpdk(2), "[offload]\ncard = \"rte_flow\"", "").unwrap().offload.unwrap();
        assert_eq!((flows.card, flows.card.name()), (RuleCard::RteFlow, "rte_flow"));
        let veth = "[offload]\ncard = \"emulated-veth\"\nprofile = \"hostile\"";
        let veth = parse(ONE, veth, "").unwrap().offload.unwrap();
        assert!(veth.card == RuleCard::EmulatedVeth && veth.hostile);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        let card = "[offload]\ncard = \"emulated\"";
        let two = "plane = \"af-xdp\"\ninterfaces = [\"eth0\", \"eth1\"]";
        let kernel = "plane = \"kernel\"\ninterfaces = [\"eth0\"]";
        let over_dpdk = dpdk(1);
        for (balancer, more, service, wanted) in [
            (ONE, "[offload]", "", "offload: card: is missing"),
            (
                ONE,
                "[offload]\ncard = \"magic\"",
                "",
                "give one of emulated, ntuple, rte_flow, emulated-veth",
            ),
            (ONE, &format!("{card}\nrules = 0"), "", "give 1..65536"),
            (ONE, &format!("{card}\nqueues = 1"), "", "give 2..256"),
            (ONE, &format!("{card}\nhysteresis = 0"), "", "give 1..100"),
            (ONE, &format!("{card}\nchoice = \"some\""), "", "give one of all, heavy, sampled"),
            (ONE, &format!("{card}\nprofile = \"mean\""), "", "give one of sound, hostile"),
            (ONE, "[offload]\ncard = \"ntuple\"\nprofile = \"sound\"", "", "offload: profile"),
            (kernel, card, "", "a plane of kind kernel has no use for rules"),
            (ONE, &format!("[af_xdp]\nthreads = 2\n{card}"), "", "2 threads would not hear"),
            (two, "[offload]\ncard = \"ntuple\"", "", "there are 2 interfaces"),
            (ONE, "[offload]\ncard = \"rte_flow\"", "", "rules are of devices of DPDK's"),
            (&over_dpdk, "[offload]\ncard = \"ntuple\"", "", "no card that DPDK has"),
            (two, "[offload]\ncard = \"emulated-veth\"", "", "there are 2 interfaces"),
            (ONE, card, "idle_timeout = \"59s\"", "59 s are too few where rules"),
        ] {
            let said = parse(balancer, more, service).unwrap_err();
            assert!(said.contains("weir.toml:") && said.contains(wanted), "{more}: {said}");
        }
    }

    /// `--plane` is the way back from a plane that does not do, whatever the file has for that one.
    #[test]
    fn a_start_that_is_told_another_plane_sets_rules_aside() {
        let file = |plane: &str, balancer: &str, card: &str, service: &str| {
            format!(
                "[balancer]\nplane = \"{plane}\"\n{balancer}\n[offload]\ncard = \"{card}\"\n\
                 [[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n{service}\n\
                 [[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
            )
        };
        let one = "interfaces = [\"eth0\"]";
        let told = |text: &str, plane| Config::parse_with(text, "weir.toml", Some(plane));
        let text = file("af-xdp", one, "ntuple", "");
        let config = told(&text, PlaneKind::Kernel).unwrap();
        assert_eq!((config.balancer.plane, config.offload), (PlaneKind::Kernel, None));
        let said = config.offload_aside.unwrap();
        assert!(said.contains("--plane kernel: a plane of kind kernel has no use"), "{said}");
        let config = told(&text, PlaneKind::AfXdp).unwrap();
        assert!(config.offload.is_some() && config.offload_aside.is_none());
        let config = told(&file("dpdk", one, "rte_flow", ""), PlaneKind::AfXdp).unwrap();
        assert!(config.offload.is_none() && config.offload_aside.unwrap().contains("rte_flow"));
        // What counts beside rules alone does not count without them.
        let short = file("af-xdp", one, "emulated", "idle_timeout = \"30s\"");
        assert!(told(&short, PlaneKind::AfXdp).is_err());
        assert!(told(&short, PlaneKind::Kernel).unwrap().offload_aside.is_some());
        // A table that was never right, and a file that is wrong by itself, stay refused.
        let two = "interfaces = [\"eth0\", \"eth1\"]";
        assert!(told(&file("af-xdp", one, "magic", ""), PlaneKind::Kernel).is_err());
        assert!(told(&file("af-xdp", two, "ntuple", ""), PlaneKind::AfXdp).is_err());
        assert!(Config::parse(&file("kernel", one, "emulated", ""), "weir.toml").is_err());
        // One that is always started with a plane of the command line has the way back, too.
        let config = told(&file("kernel", one, "emulated", ""), PlaneKind::Kernel).unwrap();
        assert!(config.offload_aside.is_some());
        // And what suits the plane that the start was told is there.
        let config = told(&file("kernel", one, "emulated", ""), PlaneKind::AfXdp).unwrap();
        assert!(config.offload.is_some() && config.offload_aside.is_none());
    }
}
