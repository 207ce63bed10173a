//! `weir plan`: what a file would change, before anybody asks for it. It looks at the file as a reload
//! does (`reload.rs`), and does nothing.

use super::network::may_attach;
use super::reload::meaning::leaves_ids;
use super::reload::overtaken::{Broken, Loss};
use super::reload::words::GivenUp;
use super::reload::{How, Plan, Planned};
use super::service::ServiceRuntime;
use super::turn::Change;
use super::{Engine, EngineError, pin_directory};
use crate::config::{Api, Backend, Config, Service, Source};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::LazyCell;
use std::collections::HashMap;
use weir_plane::Plane;
use weir_steering::BackendId;

/// What a file would change.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanReport {
    /// Name of the file that was looked at.
    pub file: String,
    /// Whether anything would change.
    pub changes: bool,
    /// Whether `weir reload` would refuse it, since connections would break.
    pub refused: bool,
    /// Settings of `[balancer]` and `[limits]` that would change.
    pub settings: Vec<FieldChange>,
    /// Services of which something would change, in the order of the file; those that go are last.
    pub services: Vec<ServicePlan>,
    /// Services of which nothing would change.
    pub unchanged: usize,
    /// Why `weir reload` would refuse it as a whole, whatever becomes of each service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Why limits would stay larger than the file wants them, as far as that can be told beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_stay: Option<String>,
    /// What there is to know of it that is no reason to refuse it, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A setting that would change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    /// Name of the setting, as the configuration file has it.
    pub field: String,
    /// What is in force, as JSON; null: nothing.
    pub from: Value,
    /// What would be.
    pub to: Value,
}

/// What would become of a service.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServicePlan {
    /// Its name in the file; of one that goes, the name that it has.
    pub name: String,
    /// The name that it has, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// "new", "changed", "refused" (as it would break connections) or "removed".
    pub change: String,
    /// Why it would break connections, or to which addresses they would end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Settings that would change.
    pub fields: Vec<FieldChange>,
    /// Backends that would come, go or change.
    pub backends: Vec<BackendPlan>,
    /// Connections that the change would touch: those that are known of the service now. None if nobody
    /// knows.
    pub connections: Option<usize>,
    /// How many of them would break, or end with their backend. None if nobody knows.
    pub broken: Option<usize>,
    /// How many of them may break at most, where their number is not known and this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at_most: Option<usize>,
}

/// What would become of a backend.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BackendPlan {
    /// Name of the backend.
    pub name: String,
    /// "new", "changed" or "removed".
    pub change: String,
    /// Settings that would change.
    pub fields: Vec<FieldChange>,
    /// Connections that are known there. None if nobody knows.
    pub connections: Option<usize>,
}

/// What stands for what is left out, if it is another than before.
const ANOTHER: &str = "(another, left out)";

/// The fields in which two values differ; null stands for what is not there, and keys are left out, as whoever may read
/// may ask for a plan. `table`: the name of what they are in.
fn differences(
    from: &impl Serialize,
    to: &impl Serialize,
    table: &str,
    without: &[&str],
) -> Vec<FieldChange> {
    let fields = |value: Value| match value {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    // What does not fit into JSON differs in nothing that could be shown.
    let read = |value: serde_json::Result<Value>| fields(value.unwrap_or_default());
    let (from, mut to) = (read(serde_json::to_value(from)), read(serde_json::to_value(to)));
    let mut changes = Vec::new();
    for (field, from) in from {
        let to = to.remove(&field).unwrap_or_default();
        if from != to {
            changes.push(FieldChange { field, from, to });
        }
    }
    let new = to.into_iter().filter(|(_, to)| !to.is_null());
    changes.extend(new.map(|(field, to)| FieldChange { field, from: Value::Null, to }));
    changes.retain(|change| !without.contains(&&*change.field));
    for FieldChange { field, from, to } in &mut changes {
        let both = (from.clone(), to.clone());
        for value in [&mut *from, &mut *to].into_iter().filter(|value| !value.is_null()) {
            let mut whole = Value::Object([(field.clone(), value.take())].into_iter().collect());
            crate::snapshot::leave_out(&mut whole, table);
            *value = whole[&*field].take();
        }
        tell_apart((&both.0, &both.1), from, to);
    }
    changes
}

/// What is left out looks alike, whatever it is: where it is another, that is said. `whole`: both with all that is in
/// them.
fn tell_apart(whole: (&Value, &Value), from: &Value, to: &mut Value) {
    if whole.0 == whole.1 {
        return;
    }
    match (whole, from, to) {
        ((Value::Object(had), Value::Object(has)), Value::Object(from), Value::Object(to)) => {
            for (name, to) in to.iter_mut() {
                let both = had.get(name).zip(has.get(name)).zip(from.get(name));
                if let Some((both, from)) = both {
                    tell_apart(both, from, to);
                }
            }
        }
        ((Value::Array(had), Value::Array(has)), Value::Array(from), Value::Array(to)) => {
            for (at, to) in to.iter_mut().enumerate() {
                // Those that have a number are known by it.
                let number = has.get(at).and_then(|one| one.get("config_id"));
                let was = match number {
                    Some(_) => had.iter().position(|one| one.get("config_id") == number),
                    None => (had.len() == has.len()).then_some(at),
                };
                let Some(was) = was else { continue };
                let both = had.get(was).zip(has.get(at)).zip(from.get(was));
                if let Some((both, from)) = both {
                    tell_apart(both, from, to);
                }
            }
        }
        (_, from, to) if *from == *to => *to = ANOTHER.into(),
        _ => {}
    }
}

/// `[api]` with the fields that the file has: how it is served by TLS stands among the others there, and each who may
/// do something in a table `client`.
fn as_written(api: &Api) -> Value {
    let mut all = match serde_json::to_value(api) {
        Ok(Value::Object(all)) => all,
        _ => serde_json::Map::new(),
    };
    if let Some(Value::Object(tls)) = all.remove("tls") {
        all.extend(tls);
    }
    if let Some(clients) = all.remove("clients") {
        all.insert("client".into(), clients);
    }
    all.into_iter().map(|(field, value)| (format!("api.{field}"), value)).collect()
}

impl<P: Plane> Engine<P> {
    /// What a file, or a text, would change once it is the instance's; without one, its own does.
    pub(super) fn plan_of(&self, from: Option<Source>) -> Result<PlanReport, EngineError> {
        let from = from.unwrap_or_else(|| Source::File(self.config_path.clone()));
        let config = match &from {
            Source::File(file) => self.read_as_own(&Config::text(file)?, &from.name())?,
            Source::Text { name, text } => self.read_as_own(text, name)?,
        };
        self.plan_to(&config, &from)
    }

    /// What a configuration would change, and what it was read from.
    pub(super) fn plan_to(
        &self,
        config: &Config,
        from: &Source,
    ) -> Result<PlanReport, EngineError> {
        let before = self.looked_at.replace(Some(from.clone()));
        let report = self.plan_looked_at(config, from);
        self.looked_at.replace(before);
        report
    }

    fn plan_looked_at(&self, config: &Config, from: &Source) -> Result<PlanReport, EngineError> {
        self.keeps_identity(config, from)?;
        self.lists_fit(config)?;
        self.leaves_found(config)?;
        self.reaches(config)?;
        // As they are, they are not looked at by a reload either.
        if self.config.balancer.interfaces != config.balancer.interfaces {
            may_attach(config, from, &pin_directory(&config.balancer.name))?;
        }
        let (plan, _) = self.plan(config, How::asked(true))?;
        let mut settings = differences(&self.config.balancer, &config.balancer, "balancer", &[]);
        let limits = self.limits_beside(config);
        // What goes, or comes into other tables, makes room that is not there yet.
        let as_full = plan.remove.is_empty()
            && plan.services.iter().all(|one| one.leaving.is_empty() && one.change == Change::Same);
        let limits_stay = match limits.is_empty() || !as_full {
            true => None,
            false => self.too_small(config, from),
        };
        settings.extend(limits);
        let (api, wanted) = (as_written(&self.config.api), as_written(&config.api));
        settings.extend(differences(&api, &wanted, "api", &[]));
        let mut services: Vec<ServicePlan> =
            plan.services.iter().filter_map(|planned| self.planned(planned)).collect();
        let unchanged = plan.services.len() - services.len();
        let mut warnings: Vec<String> =
            self.interfaces_given_up(config, false).into_iter().collect();
        warnings.extend(self.room_of_connections(config).notes);
        warnings.extend(self.unremembered_of(&plan));
        services.extend(self.removed(&plan));
        let why = self.against_all(config, false);
        let why = (!why.is_empty()).then(|| why.join("; "));
        Ok(PlanReport {
            file: from.name(),
            changes: !settings.is_empty() || !services.is_empty(),
            refused: why.is_some() || services.iter().any(|service| service.change == "refused"),
            settings,
            services,
            unchanged,
            why,
            limits_stay,
            warnings,
        })
    }

    /// In what the limits in force differ from a configuration's.
    fn limits_beside(&self, config: &Config) -> Vec<FieldChange> {
        differences(&self.limits_in_force(), &config.limits, "limits", &[])
    }

    /// Whether all that a plan has are limits which the configuration in force wants otherwise, too, and which have
    /// stayed as they were.
    pub(super) fn is_of_limits_that_stay(&self, plan: &PlanReport) -> bool {
        let stay = self.limits_beside(&self.config);
        plan.services.is_empty() && plan.settings.iter().all(|one| stay.contains(one))
    }

    /// None if nothing would change.
    fn planned(&self, planned: &Planned) -> Option<ServicePlan> {
        let wanted = &planned.wanted;
        let now = planned.now.as_ref().and_then(|now| self.services.get(now));
        let Some(now) = now else {
            let backends = planned.pool.iter().map(|member| backend_plan("new", &member.wanted));
            return Some(ServicePlan {
                name: wanted.name.clone(),
                was: None,
                change: "new".into(),
                why: None,
                fields: Vec::new(),
                backends: backends.collect(),
                connections: Some(0),
                broken: Some(0),
                broken_at_most: None,
            });
        };
        let mut fields = differences(&now.configured, wanted, "service", &["backends", "name"]);
        // One address is as good a list as several.
        if let Some(vips) = fields.iter_mut().find(|change| change.field == "vips") {
            (vips.from, vips.to) = (addresses(&now.configured), addresses(wanted));
        }
        let was = (now.configured.name != wanted.name).then(|| now.configured.name.clone());
        // Of many states, and so only if a backend changes, and once.
        let open = LazyCell::new(|| self.known_by_backend(now));
        let open_at = |id| Some(open.as_ref()?.get(&id).copied().unwrap_or(0));
        let mut backends = Vec::new();
        let before: HashMap<_, _> = now.pool.iter().map(|member| (member.id, member)).collect();
        for member in &planned.pool {
            let Some(before) = before.get(&member.id) else {
                backends.push(backend_plan("new", &member.wanted));
                continue;
            };
            let fields = differences(&before.wanted, &member.wanted, "backend", &[]);
            if !fields.is_empty() {
                let connections = open_at(member.id);
                let name = member.wanted.name.clone();
                let change = "changed".into();
                backends.push(BackendPlan { name, change, fields, connections });
            }
        }
        let mut leaving = Some(0);
        for member in now.pool.iter().filter(|member| planned.leaving.contains(&member.id)) {
            let connections = open_at(member.id);
            leaving = leaving.zip(connections).map(|(all, more)| all + more);
            backends.push(BackendPlan { connections, ..backend_plan("removed", &member.wanted) });
        }
        let breaks = match &planned.change {
            Change::Breaks(why) => Some(why.clone()),
            _ => None,
        };
        let (loss, given_up) = (planned.loss.as_ref(), self.given_up(now, wanted));
        let whole = breaks.is_some();
        // Nobody knows which of those that are led by ids are led by nothing else.
        let ids = leaves_ids(&now.configured, wanted);
        let ids = breaks.as_ref().map_or(ids, |why| why.starts_with("quic:"));
        let refused = whole || loss.is_some();
        let given_up_words = given_up.as_ref().map(|given_up| given_up.words.clone());
        let why = breaks.into_iter().chain(loss.map(|loss| loss.why.clone()));
        let why: Vec<String> = why.chain(given_up_words).collect();
        if fields.is_empty() && backends.is_empty() && was.is_none() && why.is_empty() {
            return None;
        }
        let connections = self.count_known(now);
        // Nor of how many a list takes no packets any more.
        let lists = fields.iter().any(|change| change.field == "lists");
        let (broken, broken_at_most) = if whole {
            match planned.partly || ids {
                true => (connections.filter(|known| *known == 0), connections.filter(|n| *n > 0)),
                false => (connections, None),
            }
        } else if lists || ids {
            (None, None)
        } else if loss.is_some() || given_up.is_some() {
            let broken = self.broken_by(now, &planned.leaving, (loss, given_up));
            (broken.and_then(Broken::exactly), broken.and_then(Broken::at_most))
        } else {
            (leaving, None)
        };
        Some(ServicePlan {
            name: wanted.name.clone(),
            was,
            change: if refused { "refused" } else { "changed" }.into(),
            // Of none, none breaks.
            broken: broken.or(connections.filter(|known| *known == 0)),
            broken_at_most,
            why: (!why.is_empty()).then(|| why.join("; ")),
            fields,
            backends,
            connections,
        })
    }

    /// How many connections of a service break by what others take of it, what it gives up itself, and backends
    /// that leave. None if nobody knows.
    fn broken_by(
        &self,
        now: &ServiceRuntime,
        leaving: &[BackendId],
        (loss, given_up): (Option<&Loss>, Option<GivenUp>),
    ) -> Option<Broken> {
        let mut gone = loss.map(|loss| loss.at.clone()).unwrap_or_default();
        if let Some(given_up) = given_up {
            gone.extend(given_up.at?);
        }
        self.count_broken(now, leaving, &gone)
    }

    fn removed<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = ServicePlan> + 'a {
        let gone = plan.remove.iter().filter_map(|name| self.services.get(name));
        gone.map(|gone: &ServiceRuntime| {
            let connections = self.count_known(gone);
            ServicePlan {
                name: gone.configured.name.clone(),
                was: None,
                change: "removed".into(),
                why: None,
                fields: Vec::new(),
                backends: Vec::new(),
                connections,
                broken: connections,
                broken_at_most: None,
            }
        })
    }
}

/// The addresses of a service, as a list.
fn addresses(service: &Service) -> Value {
    serde_json::to_value(service.addresses()).unwrap_or_default()
}

fn backend_plan(change: &str, backend: &Backend) -> BackendPlan {
    let (name, change) = (backend.name.clone(), change.into());
    BackendPlan { name, change, fields: Vec::new(), connections: Some(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiTls;
    use serde_json::json;

    /// Whoever may read may ask for a plan; that a key changes is said, and neither the one nor the other.
    #[test]
    fn no_key_stands_in_a_plan() {
        let from =
            json!({ "cookie_keys": ["SECRET1"], "port": 80, "check": { "send": "SECRET2" } });
        let to =
            json!({ "cookie_keys": ["SECRET1", "SECRET3"], "port": 81, "cookie_key": "SECRET4" });
        let changes = differences(&from, &to, "service", &[]);
        let fields: Vec<&str> = changes.iter().map(|change| &*change.field).collect();
        assert_eq!(fields, ["check", "cookie_keys", "port", "cookie_key"]);
        let text = serde_json::to_string(&changes).expect("JSON");
        assert!(!text.contains("SECRET"), "{text}");
        // In [api] it is the name of a file, which tells nobody anything.
        let (from, to) = (json!({ "key": "/etc/a.key" }), json!({ "key": "/etc/b.key" }));
        let changes = differences(&from, &to, "api", &[]);
        assert_eq!(changes[0].to, json!("/etc/b.key"));
    }

    /// Two that are left out look alike; that they differ is said of each at its own place.
    #[test]
    fn another_key_differs_from_the_one_before() {
        let config = |number: u8, key: &str| json!({ "config_id": number, "key": key });
        let differ = |from: Value, to: Value| {
            let (from, to) = (json!({ "quic": from }), json!({ "quic": to }));
            let changes = differences(&from, &to, "service", &[]);
            assert!(!serde_json::to_string(&changes).expect("JSON").contains("SECRET"));
            let [change] = &changes[..] else { panic!("{changes:?}") };
            change.to["configs"].clone()
        };
        let same = json!("(left out)");
        let from = json!({ "configs": [config(1, "SECRET1"), config(2, "SECRET2")] });
        let to = json!({ "configs": [config(2, "SECRET2"), config(1, "SECRET3"), config(3, "SECRET4")] });
        let told = differ(from, to);
        assert_eq!(
            [&told[0]["key"], &told[1]["key"], &told[2]["key"]],
            [&same, &json!(ANOTHER), &same]
        );
        let check = |word: &str| json!({ "check": { "send": word, "headers": { "Host": word } } });
        let changes = differences(&check("SECRET1"), &check("SECRET2"), "service", &[]);
        let other = json!({ "send": ANOTHER, "headers": { "Host": ANOTHER } });
        assert_eq!(changes[0].to, other);
    }

    #[test]
    fn fields_of_the_api_are_called_as_in_the_file() {
        let with = |key: &str| {
            let tls = ApiTls {
                listen: ([192, 0, 2, 1], 9443).into(),
                certificate: "/a.pem".into(),
                key: key.into(),
                client_ca: "/ca.pem".into(),
            };
            as_written(&Api { tls: Some(tls), ..Api::default() })
        };
        let told = |from: &Value, to: &Value| -> Vec<String> {
            let found = differences(from, to, "api", &[]);
            found.iter().map(|one| format!("{} {} {}", one.field, one.from, one.to)).collect()
        };
        let keys = told(&with("/a.key"), &with("/b.key"));
        assert_eq!(keys, ["api.key \"/a.key\" \"/b.key\""]);
        let all = told(&as_written(&Api::default()), &with("/a.key"));
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all.contains(&"api.certificate null \"/a.pem\"".to_owned()), "{all:?}");
    }
}
