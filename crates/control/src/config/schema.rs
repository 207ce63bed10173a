//! The JSON Schema of the file, for editors.
//!
//! Fields and their kinds are read off the types of the file as written, by a deserializer that hands them a
//! made-up value of whatever they ask for and notes what that was: a field that is added there is in the
//! schema. Descriptions and defaults are those of `examples/weir.toml`. Words and ranges stand here, and of
//! methods in the registry. What depends on several fields is for `weir check`.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use weir_dataplane::user::PLANE_THREADS;
use weir_steering::MethodId;

use super::new_flows::MOST_FLOWS;
use super::validate::offload::{MOST_HYSTERESIS, MOST_QUEUES, MOST_RULES};
use super::{PlaneKind, RuleCard, RuleChoice, written};

const EXAMPLE: &str = include_str!("../../../../examples/weir.toml");

/// The schema, in the draft 2020-12.
pub fn schema() -> Value {
    let mut schema = Value::Null;
    // It hands out what is asked for, so nothing is refused.
    let _ = written::File::deserialize(Tracer(&mut schema));
    describe(&mut schema);
    let objects = [
        ("", balancer_required as fn(&mut Value)),
        ("balancer", balancer),
        ("af_xdp", af_xdp),
        ("dpdk", dpdk),
        ("offload", offload),
        ("p4", p4),
        ("limits", limits),
        ("api", api),
        ("api.client", api_client),
        ("agents", agents),
        ("announce", announce),
        ("store", store),
        ("service", service),
        ("service.check", check),
        ("service.new_flows", new_flows),
        ("service.backend", backend),
        ("service.backend.check", check),
        ("service.discover", discover),
        ("service.quic.config", quic_config),
    ];
    for (path, constrain) in objects {
        if let Some(object) = at(&mut schema, path) {
            constrain(object);
        }
    }
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("weir's configuration");
    schema
}

/// The object of a table, in which its fields stand.
fn at<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(schema, |object, name| {
        let field = object.get_mut("properties")?.get_mut(name)?;
        if field.get("items").is_some() { field.get_mut("items") } else { Some(field) }
    })
}

/// Adds to what is said of a field.
fn add(object: &mut Value, field: &str, more: Value) {
    let field = object.get_mut("properties").and_then(|fields| fields.get_mut(field));
    if let (Some(Value::Object(field)), Value::Object(more)) = (field, more) {
        field.extend(more);
    }
}

fn words(object: &mut Value, field: &str, words: &[&str]) {
    add(object, field, json!({ "enum": words }));
}

fn range(object: &mut Value, fields: &[&str], least: i64, most: i64) {
    for field in fields {
        add(object, field, json!({ "minimum": least, "maximum": most }));
    }
}

fn require(object: &mut Value, fields: &[&str]) {
    object["required"] = json!(fields);
}

fn balancer_required(root: &mut Value) {
    require(root, &["balancer"]);
}

const NAME: &str = "^[A-Za-z0-9_.-]{1,64}$";

fn balancer(object: &mut Value) {
    require(object, &["interfaces"]);
    add(object, "name", json!({ "pattern": "^[a-z0-9-]{1,32}$" }));
    add(object, "interfaces", json!({ "minItems": 1, "uniqueItems": true }));
    add(object, "run_dir", json!({ "pattern": "^/" }));
    add(object, "state_dir", json!({ "pattern": "^/" }));
    add(object, "next_program", json!({ "pattern": "^/" }));
    words(object, "mode", &["auto", "native", "generic"]);
    words(object, "plane", &PlaneKind::ALL.map(|(name, _)| name));
    range(object, &["icmp_per_second", "resets_per_second"], 0, 1_000_000);
    words(object, "web_role", &["read", "operate"]);
    range(object, &["hold_checks_at"], 0, 100);
    // None, or a power of two.
    let one_in: Vec<u32> = [0].into_iter().chain((0..=16).map(|bits| 1_u32 << bits)).collect();
    add(object, "follow_flows", json!({ "enum": one_in }));
    add(object, "nat_sources", json!({ "uniqueItems": true }));
    add(object, "nat_ports", json!({ "pattern": "^ *[0-9]{1,5} *- *[0-9]{1,5} *$" }));
}

fn af_xdp(object: &mut Value) {
    range(object, &["threads"], 1, PLANE_THREADS as i64);
}

fn dpdk(object: &mut Value) {
    add(object, "devices", json!({ "uniqueItems": true }));
    range(object, &["memory_mb"], 64, 65_536);
    range(object, &["threads"], 1, PLANE_THREADS as i64);
}

fn offload(object: &mut Value) {
    require(object, &["card"]);
    words(object, "card", &RuleCard::ALL.map(|(name, _)| name));
    words(object, "choice", &RuleChoice::ALL.map(|(name, _)| name));
    words(object, "profile", &["sound", "hostile"]);
    range(object, &["rules"], 1, MOST_RULES.into());
    range(object, &["queues"], 2, MOST_QUEUES.into());
    range(object, &["hysteresis"], 1, MOST_HYSTERESIS.into());
}

fn p4(object: &mut Value) {
    add(object, "thrift", json!({ "pattern": "^(127\\.[0-9.]+|\\[::1\\]):[0-9]{1,5}$" }));
}

fn api(object: &mut Value) {
    for field in ["certificate", "key", "client_ca", "audit"] {
        add(object, field, json!({ "pattern": "^/" }));
    }
}

fn api_client(object: &mut Value) {
    require(object, &["role"]);
    words(object, "role", &["read", "operate", "admin"]);
}

fn agents(object: &mut Value) {
    require(object, &["listen", "certificate", "key", "ca"]);
    for field in ["certificate", "key", "ca"] {
        add(object, field, json!({ "pattern": "^/" }));
    }
}

fn limits(object: &mut Value) {
    range(object, &["services"], 1, 65_536);
    range(object, &["backends"], 1, 32_767);
    let flows =
        ["pending_flows", "unreported_flows", "tracked_flows", "answered_flows", "udp_flows"];
    range(object, &flows, 1, 1 << 26);
    range(object, &["slot_partitions"], 1, 1024);
    range(object, &["event_ring_bytes"], 4096, 1 << 30);
    range(object, &["table_bytes"], 1 << 20, 1 << 29);
    range(object, &["states_per_service", "half_open_flows"], 1, 1 << 28);
    range(object, &["states_per_prefix"], 0, 1 << 28);
    range(object, &["nat_connections"], 2, 1 << 21);
}

fn announce(object: &mut Value) {
    require(object, &["speaker"]);
    words(object, "speaker", &["gobgp", "bird", "none"]);
    words(object, "at_stop", &["keep", "withdraw"]);
    range(object, &["med"], 0, u32::MAX.into());
    add(object, "socket", json!({ "pattern": "^/" }));
    add(object, "file", json!({ "pattern": "^/" }));
    let community = json!({ "type": "string", "pattern": "^[0-9]{1,5}:[0-9]{1,5}$" });
    add(object, "communities", json!({ "items": community, "uniqueItems": true }));
}

fn store(object: &mut Value) {
    words(object, "kind", &["file", "etcd"]);
    add(object, "endpoints", json!({ "minItems": 1, "uniqueItems": true }));
    for field in ["prefix", "ca", "certificate", "key", "password_file"] {
        add(object, field, json!({ "pattern": "^/" }));
    }
}

fn service(object: &mut Value) {
    require(object, &["name", "vip"]);
    add(object, "name", json!({ "pattern": NAME }));
    words(object, "protocol", &["tcp", "udp", "sctp"]);
    words(object, "affinity", &["flow", "client"]);
    words(object, "fragments", &["first", "source"]);
    words(object, "states", &["observed", "agents"]);
    words(object, "forward", &["l2", "ipip", "gue", "fou", "gre", "nat", "fullnat"]);
    range(object, &["port"], 0, 65_535);
    add(object, "port", json!({ "pattern": "^[0-9]+ *- *[0-9]+$" }));
    add(object, "vip", json!({ "minItems": 1, "uniqueItems": true }));
    range(object, &["tunnel_port"], 1, 65_535);
    range(object, &["need"], 0, 32_767);
    add(object, "backend", json!({ "minItems": 1 }));
    add(object, "cookie_key", json!({ "pattern": "^[0-9A-Fa-f]{32}$" }));
    let key = json!({ "type": "string", "pattern": "^([0-9A-Fa-f]{32})?$" });
    add(object, "cookie_keys", json!({ "items": key, "minItems": 1, "maxItems": 2 }));
    range(object, &["issue_key"], 0, 1);
    let methods: Vec<&str> = weir_dataplane::methods().map(MethodId::name).collect();
    words(object, "method", &methods);
    let either = |one: &str, other: &str| json!({ "anyOf": [{ "required": [one] }, { "required": [other] }] });
    object["allOf"] = json!([either("port", "any_port"), either("backend", "discover")]);
    // Settings of one name may differ between methods: what any of them takes.
    let mut all: HashMap<&str, (Vec<&str>, (u32, u32))> = HashMap::new();
    for setting in MethodId::published().flat_map(|method| method.info().settings) {
        let (words, range) = all.entry(setting.name).or_insert((Vec::new(), setting.range));
        words.extend(
            setting.words.iter().filter(|word| !words.contains(word)).copied().collect::<Vec<_>>(),
        );
        *range = (range.0.min(setting.range.0), range.1.max(setting.range.1));
    }
    for (name, (words, (least, most))) in all {
        let kind = if words.is_empty() {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        } else {
            json!({ "type": "string", "enum": words })
        };
        add(object, name, kind);
    }
}

fn check(object: &mut Value) {
    words(
        object,
        "type",
        &["tcp", "http", "https", "grpc", "grpcs", "dns", "udp", "script", "agent"],
    );
    words(object, "all_down", &["keep", "refuse"]);
    words(object, "dead_connections", &["keep", "move", "reset"]);
    words(object, "via", &["direct", "service"]);
    words(object, "record", &["A", "AAAA", "NS", "SOA", "CNAME", "PTR", "MX", "TXT", "SRV"]);
    range(object, &["rise", "fall"], 1, 1000);
    range(object, &["jitter"], 0, 50);
    range(object, &["weight_step"], 0, 100);
    range(object, &["slow_start_curve"], 1, 10);
    range(object, &["port"], 1, 65_535);
    add(object, "path", json!({ "pattern": "^/" }));
    add(object, "ca", json!({ "pattern": "^/" }));
    add(object, "status", json!({ "minItems": 1 }));
    add(object, "command", json!({ "minItems": 1, "maxItems": 64 }));
    for field in ["send_hex", "expect_hex"] {
        add(object, field, json!({ "pattern": "^([0-9A-Fa-f]{2})+$" }));
    }
}

fn backend(object: &mut Value) {
    require(object, &["name", "address"]);
    add(object, "name", json!({ "pattern": NAME }));
    range(object, &["port"], 1, 65_535);
    range(object, &["weight"], 0, 65_535);
    add(object, "nat_sources", json!({ "minItems": 1, "uniqueItems": true }));
}

fn discover(object: &mut Value) {
    require(object, &["name"]);
    add(object, "name", json!({ "pattern": "^[A-Za-z0-9_.-]{1,16}$" }));
    range(object, &["port", "weight"], 1, 65_535);
    range(object, &["most"], 1, 1024);
    add(object, "nat_sources", json!({ "minItems": 1, "uniqueItems": true }));
    add(object, "servers", json!({ "minItems": 1, "maxItems": 8 }));
    object["anyOf"] = json!([{ "required": ["dns"] }, { "required": ["srv"] }]);
}

fn new_flows(object: &mut Value) {
    let rates = ["per_second", "burst", "source_per_second", "source_burst", "source_connections"];
    range(object, &rates, 1, MOST_FLOWS.into());
    range(object, &["ipv4_prefix"], 1, 32);
    range(object, &["ipv6_prefix"], 1, 128);
    object["anyOf"] = json!([
        { "required": ["per_second"] },
        { "required": ["source_per_second"] },
        { "required": ["source_connections"] },
    ]);
}

fn quic_config(object: &mut Value) {
    range(object, &["config_id"], 0, 6);
    range(object, &["server_id_length"], 1, 15);
    range(object, &["nonce_length"], 4, 18);
}

/// Takes descriptions and defaults from the example: what stands above a setting, and the value of one
/// that is commented out.
fn describe(schema: &mut Value) {
    let (mut table, mut said, mut used) = (String::new(), Vec::new(), false);
    for line in EXAMPLE.lines() {
        // A table that need not be there is commented out.
        let there = line.strip_prefix("#   ").unwrap_or(line);
        let header = there.trim_start_matches('[').trim_end_matches(']');
        if there.starts_with('[') && header.len() < there.len() {
            (table, said) = (header.to_owned(), Vec::new());
            continue;
        }
        let bare = line.trim_start_matches('#').trim_start();
        let setting = bare.split_once(" = ").filter(|(key, _)| {
            !key.is_empty()
                && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        });
        match setting {
            Some((key, value)) => {
                let fields = at(schema, &table);
                let field = fields.and_then(|fields| fields.get_mut("properties")?.get_mut(key));
                if let Some(Value::Object(field)) = field {
                    // What stands further in is an example of what has no default.
                    let default = line.starts_with("# ") && !line.starts_with("#  ");
                    tell(field, &said.join(" "), value, default);
                }
                used = true;
            }
            // Several settings in a row share what is said above them.
            None if line.starts_with('#') => {
                if std::mem::take(&mut used) {
                    said.clear();
                }
                said.push(bare.to_owned());
            }
            None => said.clear(),
        }
    }
    // Checks of backends are the services' checks.
    let shared = at(schema, "service.check").cloned();
    if let (Some(shared), Some(own)) = (shared, at(schema, "service.backend.check")) {
        *own = shared;
        if let Some(fields) = own.get_mut("properties").and_then(Value::as_object_mut) {
            fields.remove("all_down");
        }
    }
}

fn tell(field: &mut Map<String, Value>, said: &str, value: &str, default: bool) {
    if !said.is_empty() && !field.contains_key("description") {
        field.insert("description".into(), said.into());
    }
    let shown = !value.is_empty() && default && !field.contains_key("default");
    let parsed = toml::from_str::<Map<String, Value>>(&format!("value = {value}"));
    if let (true, Ok(mut parsed)) = (shown, parsed)
        && let Some(value) = parsed.remove("value")
    {
        field.insert("default".into(), value);
    }
}

/// Hands out values of whatever is asked for, and notes what it was.
struct Tracer<'s>(&'s mut Value);

impl Tracer<'_> {
    fn is(self, kind: &str) {
        *self.0 = json!({ "type": kind });
    }
}

macro_rules! numbers {
    ($($ask:ident)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.is("integer");
            visitor.visit_u64(1)
        })*
    };
}

macro_rules! texts {
    ($($ask:ident)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.is("string");
            visitor.visit_str("text")
        })*
    };
}

macro_rules! unknown {
    ($($ask:ident)*) => {
        $(fn $ask<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("the file has nothing of this kind"))
        })*
    };
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    numbers!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64);
    texts!(deserialize_str deserialize_string deserialize_identifier);
    unknown!(deserialize_f32 deserialize_f64 deserialize_char deserialize_bytes deserialize_byte_buf
        deserialize_unit deserialize_ignored_any);

    /// What is not known before it is read is a number or a text, in this file.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        *self.0 = json!({ "type": ["integer", "string"] });
        visitor.visit_i64(1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.is("boolean");
        visitor.visit_bool(true)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut items = Value::Null;
        let value = visitor.visit_seq(One(Some(&mut items)))?;
        *self.0 = json!({ "type": "array", "items": items });
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut fields = Map::new();
        let value = visitor.visit_map(Fields::new(&["any"], &mut fields))?;
        let each = fields.remove("any");
        *self.0 = json!({ "type": "object", "additionalProperties": each });
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut fields = Map::new();
        let value = visitor.visit_map(Fields::new(names, &mut fields))?;
        // A value with its place in the file: the value is last.
        let inner = names.last().filter(|name| name.starts_with("$__serde_spanned"));
        *self.0 = match inner.and_then(|name| fields.remove(*name)) {
            Some(inner) => inner,
            None => json!({
                "type": "object",
                "properties": fields,
                "additionalProperties": false,
            }),
        };
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == written::TEXTS {
            *self.0 = json!({ "type": ["string", "array"], "items": { "type": "string" } });
            return visitor.visit_str("text");
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }
}

/// A list of one.
struct One<'s>(Option<&'s mut Value>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|items| seed.deserialize(Tracer(items))).transpose()
    }
}

/// All fields, once each.
struct Fields<'s> {
    left: std::slice::Iter<'static, &'static str>,
    now: &'static str,
    found: &'s mut Map<String, Value>,
}

impl<'s> Fields<'s> {
    fn new(names: &'static [&'static str], found: &'s mut Map<String, Value>) -> Self {
        Self { left: names.iter(), now: "", found }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.left.next() else { return Ok(None) };
        self.now = name;
        if name.starts_with("$__") {
            return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
        }
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let mut schema = Value::Null;
        let value = seed.deserialize(Tracer(&mut schema))?;
        self.found.insert(self.now.to_owned(), schema);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_are_there_with_kinds_words_and_ranges() {
        let mut schema = schema();
        let field = |schema: &mut Value, path: &str, name: &str| {
            let object = at(schema, path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(object["additionalProperties"], false, "{path}");
            object["properties"][name].clone()
        };
        assert_eq!(schema["required"], json!(["balancer"]));
        for (path, name, kind) in [
            ("balancer", "interfaces", "array"),
            ("balancer", "echo", "boolean"),
            ("limits", "backends", "integer"),
            ("service", "rows", "integer"),
            ("service", "placement", "string"),
            ("service.check", "headers", "object"),
            ("service.check", "type", "string"),
            ("service.quic", "server_ids", "object"),
            ("service.quic.config", "key", "string"),
            ("service.backend", "weight", "integer"),
            ("service.backend.check", "status", "array"),
        ] {
            let found = field(&mut schema, path, name);
            assert_eq!(found["type"], kind, "{path}.{name}: {found}");
            let described = found["description"].as_str().is_some_and(|text| text.len() > 10);
            assert!(described, "{path}.{name}: {found}");
        }
        let vip = field(&mut schema, "service", "vip");
        assert_eq!(vip["type"], json!(["string", "array"]), "{vip}");
        let mss = field(&mut schema, "service", "mss");
        assert_eq!(mss["type"], json!(["integer", "string"]), "{mss}");
        let rise = field(&mut schema, "service.check", "fall");
        assert_eq!((&rise["minimum"], &rise["maximum"]), (&json!(1), &json!(1000)), "{rise}");
        let echo = field(&mut schema, "balancer", "echo");
        assert_eq!(echo["default"], true, "{echo}");
        let method = field(&mut schema, "service", "method");
        assert!(method["enum"].as_array().is_some_and(|all| all.len() >= 5), "{method}");
        assert_eq!(method["default"], "concury", "{method}");
        let metrics = field(&mut schema, "balancer", "metrics");
        assert!(metrics.get("default").is_none(), "{metrics}");
        // Every table's fields are all of the type's.
        let names = |schema: &mut Value, path: &str| {
            at(schema, path).and_then(|o| Some(o["properties"].as_object()?.len())).unwrap_or(0)
        };
        assert!(names(&mut schema, "service") >= 25 && names(&mut schema, "service.check") >= 25);
    }

    /// Words that the schema has are words that the file may have, and the other way round.
    #[test]
    fn words_are_those_of_the_file() {
        let mut schema = schema();
        for (path, name) in
            [("service", "forward"), ("service", "affinity"), ("service", "protocol")]
        {
            let all = at(&mut schema, path).unwrap()["properties"][name]["enum"].clone();
            let wrong = format!(
                "[balancer]\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nvip = \"10.0.0.1\"\n\
                 port = 80\n{name} = \"wrong\"\n[[service.backend]]\nname = \"b\"\naddress = \"10.0.0.2\"\n"
            );
            let said = super::super::Config::parse(&wrong, "weir.toml").unwrap_err().to_string();
            let listed: Vec<&str> =
                all.as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert!(said.contains(&format!("give one of {}", listed.join(", "))), "{said}");
        }
    }
}
