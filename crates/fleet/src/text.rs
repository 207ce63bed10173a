//! Which part of a configuration file a fleet shares: the services. The rest is each balancer's own:
//! interfaces, limits, addresses of its own, certificates.
//!
//! Comments stay with what they stand above. A command of one balancer is a change of the shared text.

use crate::FleetError;
use std::net::IpAddr;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

/// Begins the line behind which the text of another file stands, in a text that was put together.
const MARK: &str = "#: file ";

/// A configuration in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// What is this balancer's own.
    pub own: String,
    /// What all balancers share.
    pub shared: String,
}

/// A change of one service's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A backend joins.
    Add {
        /// Its address.
        address: IpAddr,
        /// The port that its packets get.
        port: Option<u16>,
        /// Its weight.
        weight: u16,
        /// Whether it drains.
        drain: bool,
    },
    /// A backend leaves.
    Remove,
    /// It drains, or serves again.
    Drain(bool),
    /// It has another weight.
    Weight(u16),
}

fn parse(text: &str) -> Result<DocumentMut, FleetError> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        FleetError::Text(format!("the configuration is not TOML: {}", error.message()))
    })
}

fn tidy(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with(MARK));
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!("{text}\n") }
}

/// Takes a configuration apart.
///
/// # Errors
/// [`FleetError::Text`] if it is not TOML, or `service` is no list of tables.
pub fn split(text: &str) -> Result<Parts, FleetError> {
    let mut own = parse(text)?;
    let mut shared = DocumentMut::new();
    if let Some(services) = own.remove("service") {
        let services = services.into_array_of_tables().map_err(|_| {
            FleetError::Text("service is no list of tables; write [[service]]".into())
        })?;
        shared.insert("service", Item::ArrayOfTables(services));
    }
    Ok(Parts { own: tidy(&own.to_string()), shared: tidy(&shared.to_string()) })
}

/// Puts a configuration together.
pub fn join(own: &str, shared: &str) -> String {
    match (tidy(own), tidy(shared)) {
        (own, shared) if shared.is_empty() => own,
        (own, shared) => format!("{own}\n{shared}"),
    }
}

fn named<'a>(tables: &'a mut ArrayOfTables, name: &str) -> Option<(usize, &'a mut Table)> {
    let is = |table: &Table| table.get("name").and_then(Item::as_str) == Some(name);
    tables.iter_mut().enumerate().find(|(_, table)| is(table))
}

/// Changes a backend in the shared part. What is so already stays as it is written.
///
/// # Errors
/// [`FleetError::Text`] if the text has no such service or backend.
pub fn edit(shared: &str, service: &str, backend: &str, edit: &Edit) -> Result<String, FleetError> {
    let missing =
        |what: String| FleetError::Text(format!("the shared configuration has no {what}"));
    let mut document = parse(shared)?;
    let services = document.get_mut("service").and_then(Item::as_array_of_tables_mut);
    let (_, table) = services
        .and_then(|services| named(services, service))
        .ok_or_else(|| missing(format!("service {service}")))?;
    if let Some(inline) = table.get("backend").filter(|pool| !pool.is_array_of_tables()).cloned()
        && let Ok(pool) = inline.into_array_of_tables()
    {
        table.insert("backend", Item::ArrayOfTables(pool));
    }
    let pool = table
        .entry("backend")
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()
        .ok_or_else(|| missing(format!("list of backends for service {service}")))?;
    if let Edit::Add { address, port, weight, drain } = edit {
        let mut new = Table::new();
        new.insert("name", value(backend));
        new.insert("address", value(address.to_string()));
        if let Some(port) = port {
            new.insert("port", value(i64::from(*port)));
        }
        set(&mut new, "weight", (*weight).into(), 1);
        flag(&mut new, *drain);
        new.decor_mut().set_prefix("\n");
        // Behind the others of its service, and not at the end of the file.
        new.set_position(pool.iter().filter_map(last_position).max());
        pool.push(new);
        return Ok(tidy(&document.to_string()));
    }
    let (at, found) = named(pool, backend)
        .ok_or_else(|| missing(format!("backend {backend} in service {service}")))?;
    match edit {
        Edit::Remove => drop(pool.remove(at)),
        Edit::Drain(drain) => flag(found, *drain),
        Edit::Weight(weight) => set(found, "weight", (*weight).into(), 1),
        Edit::Add { .. } => {}
    }
    Ok(tidy(&document.to_string()))
}

/// Where the last of a table and those in it stands.
fn last_position(table: &Table) -> Option<isize> {
    let inside = table.iter().filter_map(|(_, item)| match item {
        Item::Table(table) => last_position(table),
        Item::ArrayOfTables(tables) => tables.iter().filter_map(last_position).max(),
        _ => None,
    });
    inside.chain(table.position()).max()
}

/// Sets a number, and leaves a default out that nobody has written.
fn set(table: &mut Table, field: &str, number: i64, default: i64) {
    match table.get_mut(field) {
        Some(item) if item.as_integer() == Some(number) => {}
        Some(item) => *item = value(number),
        None if number == default => {}
        None => drop(table.insert(field, value(number))),
    }
}

fn flag(table: &mut Table, drain: bool) {
    match table.get_mut("drain") {
        Some(item) if item.as_bool() == Some(drain) => {}
        Some(_) if !drain => drop(table.remove("drain")),
        Some(item) => *item = value(true),
        None if drain => drop(table.insert("drain", value(true))),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Ours.\n[balancer]\ninterfaces = [\"eth0\"] # the wire\n\n\
        # What clients see.\n[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\nport = 80\n\n\
        [service.check]\ninterval = \"1s\"\n\n# The old one.\n[[service.backend]]\nname = \"a\"\n\
        address = \"10.0.0.11\"\nweight = 7 # heavy\n\n[[service.backend]]\nname = \"b\"\n\
        address = \"10.0.0.12\"\n\n[service.backend.check]\nport = 81\n\n[limits]\nservices = 3\n\n[[service]]\nname = \"dns\"\n\
        vip = \"10.0.0.2\"\nport = 53\nbackend = [{ name = \"a\", address = \"10.0.0.11\" }]\n";

    #[test]
    fn parts_are_told_apart_and_put_together_again() {
        let Parts { own, shared } = split(TEXT).unwrap();
        assert_eq!(
            own,
            "# Ours.\n[balancer]\ninterfaces = [\"eth0\"] # the wire\n\n[limits]\nservices = 3\n"
        );
        assert!(shared.starts_with("# What clients see.\n[[service]]\nname = \"web\""), "{shared}");
        assert!(shared.contains("# The old one.") && shared.contains("# heavy"));
        let joined = join(&own, &shared);
        let same = |text: &str| toml_edit::de::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(same(&joined), same(TEXT));
        assert_eq!(split(&joined).unwrap(), Parts { own: own.clone(), shared });
        assert_eq!(split(&own).unwrap(), Parts { own: own.clone(), shared: String::new() });
        assert_eq!(join(&own, ""), own);
        assert!(split("service = 3").is_err() && split("[").is_err());
    }

    #[test]
    fn commands_change_what_they_name_and_nothing_else() {
        let shared = split(TEXT).unwrap().shared;
        let drained = edit(&shared, "web", "b", &Edit::Drain(true)).unwrap();
        assert_eq!(drained, shared.replace("10.0.0.12\"\n", "10.0.0.12\"\ndrain = true\n"));
        assert_eq!(edit(&drained, "web", "b", &Edit::Drain(false)).unwrap(), shared);
        assert_eq!(edit(&shared, "web", "b", &Edit::Drain(false)).unwrap(), shared);
        assert_eq!(edit(&shared, "web", "b", &Edit::Weight(1)).unwrap(), shared);
        let heavy = edit(&shared, "web", "a", &Edit::Weight(9)).unwrap();
        assert!(heavy.contains("weight = 9") && !heavy.contains("weight = 7"), "{heavy}");
        let address = "10.0.0.13".parse().unwrap();
        let add = Edit::Add { address, port: Some(8080), weight: 2, drain: false };
        for service in ["web", "dns"] {
            let more = edit(&shared, service, "c", &add).unwrap();
            let whole: serde_json::Value = toml_edit::de::from_str(&more).unwrap();
            let all = whole["service"].as_array().unwrap();
            let pool =
                |name| all.iter().find(|one| one["name"] == name).unwrap()["backend"].clone();
            let last = pool(service).as_array().unwrap().last().unwrap().clone();
            let wanted = serde_json::json!({
                "name": "c", "address": "10.0.0.13", "port": 8080, "weight": 2
            });
            assert_eq!(last, wanted, "{more}");
            assert_eq!(all.len(), 2, "{more}");
            let less = edit(&more, service, "c", &Edit::Remove).unwrap();
            let before: serde_json::Value = toml_edit::de::from_str(&shared).unwrap();
            assert_eq!(toml_edit::de::from_str::<serde_json::Value>(&less).unwrap(), before);
        }
        let said = edit(&shared, "web", "x", &Edit::Remove).unwrap_err().to_string();
        assert_eq!(said, "the shared configuration has no backend x in service web");
        assert!(edit(&shared, "x", "a", &Edit::Remove).is_err());
    }
}
