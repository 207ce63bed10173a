//! The balancer's file, as tests write it that change more in it than a backend's weight.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::{SERVICES, WEB4, WEB6};
use weir_lab::Balancer;

/// Of a service `more`, for a lab whose backends listen there.
pub const MORE_PORT: u16 = 4433;

/// Weight and drain of each backend that is there, by its position in the lab.
pub type Pool = BTreeMap<usize, (u32, bool)>;

/// Address of a backend of the lab in one of its services.
pub fn address(service: &str, backend: usize) -> String {
    if service == "web6" {
        format!("fd77::2:{}", backend + 1)
    } else {
        format!("10.77.2.{}", backend + 1)
    }
}

/// What checks of backends ask, in histories in which backends die.
pub const CHECKED: &str = "interval = \"300ms\"\nport = 80\nrise = 1";
/// In histories in which none dies: a check that fails because the machine is busy moves flows of datagrams.
pub const UNCHECKED: &str = "enabled = false";

/// The balancer's file with these limits, and with these services of the lab and their pools, each with the same
/// fields and the same check.
pub fn text(
    balancer: &Balancer,
    limits: &str,
    services: &[(&str, &Pool)],
    fields: &str,
    check: &str,
) -> String {
    let text = fs::read_to_string(balancer.config()).unwrap();
    let (head, _) = text.split_once("\n[[service]]").unwrap();
    let head = head.split("\n[limits]").next().unwrap();
    let mut text = format!("{head}\n[limits]\n{limits}\n");
    for (service, pool) in services {
        let (vip, rest) = match *service {
            "web4" => (WEB4.ip(), "port = 80".to_owned()),
            "web6" => (WEB6.ip(), "port = 80".to_owned()),
            "more" => (WEB4.ip(), format!("port = {MORE_PORT}")),
            _ => (WEB4.ip(), "port = 5353\nprotocol = \"udp\"".to_owned()),
        };
        let _ = write!(
            text,
            "\n[[service]]\nname = \"{service}\"\nvip = \"{vip}\"\n{rest}\n{fields}\n\
             [service.check]\n{check}\n"
        );
        for (backend, (weight, drain)) in *pool {
            let address = address(service, *backend);
            let _ = write!(
                text,
                "[[service.backend]]\nname = \"b{backend}\"\naddress = \"{address}\"\n\
                 weight = {weight}\ndrain = {drain}\n"
            );
        }
    }
    text
}

/// Which services have a backend, and whether it drains there.
pub fn holders(balancer: &Balancer, backend: usize) -> BTreeMap<&'static str, bool> {
    let status = balancer.status().unwrap();
    let name = format!("b{backend}");
    let mut found = BTreeMap::new();
    for service in SERVICES {
        let backends = super::service(&status, service)["backends"].as_array().unwrap();
        if let Some(one) = backends.iter().find(|one| one["name"] == name.as_str()) {
            found.insert(service, one["drain"] == true);
        }
    }
    found
}
