//! What the API has, once: the router and the OpenAPI document are made of the same list, and the schemas
//! in it of the types that are read and written.

use super::guard::{Gate, Rule, guard, typed};
use super::{Common, Refusal, Shared};
use crate::config::Role;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::MethodRouter;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Bytes of a request's body, where nothing else is said.
pub(super) const BODY: usize = 64 << 10;

type Make = fn(&mut SchemaGenerator) -> Schema;

/// What comes back.
#[derive(Clone, Copy)]
enum Gives {
    Json(Make),
    /// Something else, of this media type; each piece is such a value.
    Other(&'static str, Option<Make>),
}

/// A kind of request.
pub(super) struct Route {
    method: &'static str,
    path: &'static str,
    about: &'static str,
    rule: Rule,
    query: Vec<Make>,
    takes: Option<(Make, bool)>,
    gives: Gives,
    /// What gRPC calls it, and what a piece of its answer is there, if that is another one.
    call: Option<&'static str>,
    says: Option<Make>,
    handler: MethodRouter<Shared>,
}

/// How an answer in pieces is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// One piece of JSON, the whole.
    One,
    /// A piece of JSON on each line.
    Lines,
    /// Server-Sent Events.
    Events,
}

/// A kind of request, as gRPC leads to it.
pub(super) struct Called {
    pub name: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    /// Fields of the query, each with what the message calls it.
    pub query: Vec<(String, String)>,
    pub takes: bool,
    pub pieces: Pieces,
    pub rule: Rule,
}

/// The schemas of a kind of request that gRPC has: names in the path, fields of the query, body, answer.
#[cfg(test)]
pub(super) struct Described {
    pub called: Called,
    pub about: &'static str,
    pub names: Vec<&'static str>,
    pub query: Vec<Value>,
    pub body: Option<Value>,
    pub answer: Value,
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Route {
    pub fn new(
        method: &'static str,
        path: &'static str,
        handler: MethodRouter<Shared>,
        about: &'static str,
    ) -> Self {
        let role = Role::Read;
        let rule = Rule { role, changes: false, often: false, most: BODY, private: false };
        let gives = Gives::Other("text/html", None);
        let (query, takes, call, says) = (Vec::new(), None, None, None);
        Self { method, path, about, rule, query, takes, gives, call, says, handler }
    }

    /// What gRPC calls it.
    pub fn call(mut self, name: &'static str) -> Self {
        self.call = Some(name);
        self
    }

    /// What a piece of the answer is in gRPC.
    pub fn says<T: JsonSchema>(mut self) -> Self {
        self.says = Some(schema_of::<T>);
        self
    }

    /// As gRPC leads to it; none if it does not.
    pub fn called(&self) -> Option<Called> {
        let mut generator = SchemaGenerator::default();
        let mut fields = |make: &Make| -> Vec<String> {
            let schema = make(&mut generator).to_value();
            let name = schema.get("$ref").and_then(Value::as_str);
            let name = name.and_then(|path| path.rsplit('/').next());
            let named = name.and_then(|name| generator.definitions().get(name));
            let fields = named.unwrap_or(&schema).get("properties").and_then(Value::as_object);
            fields.into_iter().flatten().map(|(name, _)| name.clone()).collect()
        };
        let body = self.takes.map(|(make, _)| fields(&make)).unwrap_or_default();
        // In a message both stand beside each other.
        let message = |name: String| match body.contains(&name) {
            true => (name.clone(), format!("instance_{name}")),
            false => (name.clone(), name),
        };
        Some(Called {
            name: self.call?,
            method: self.method,
            path: self.path,
            query: self.query.iter().flat_map(fields).map(message).collect(),
            takes: self.takes.is_some(),
            pieces: match self.gives {
                Gives::Json(_) => Pieces::One,
                Gives::Other("text/event-stream", _) => Pieces::Events,
                Gives::Other(..) => Pieces::Lines,
            },
            rule: self.rule,
        })
    }

    #[cfg(test)]
    fn described(&self, generator: &mut SchemaGenerator) -> Option<Described> {
        let answer = match (self.says, self.gives) {
            (Some(make), _) | (None, Gives::Json(make) | Gives::Other(_, Some(make))) => make,
            (None, Gives::Other(_, None)) => return None,
        };
        Some(Described {
            called: self.called()?,
            about: self.about,
            names: self.path_names().collect(),
            query: self.query.iter().map(|make| make(generator).to_value()).collect(),
            body: self.takes.map(|(make, _)| make(generator).to_value()),
            answer: answer(generator).to_value(),
        })
    }

    /// Whoever asks needs this role.
    pub fn needs(mut self, role: Role) -> Self {
        self.rule.role = role;
        self
    }

    /// It changes something.
    pub fn changes(mut self, role: Role) -> Self {
        self.rule.changes = true;
        self.needs(role)
    }

    /// A change that comes all the time, and is no news.
    pub fn often(mut self) -> Self {
        self.rule.often = true;
        self
    }

    /// The body may be so large, and is not repeated.
    pub fn file(mut self, most: usize) -> Self {
        (self.rule.most, self.rule.private) = (most, true);
        self
    }

    pub fn asks<T: JsonSchema>(mut self) -> Self {
        self.query.push(|generator| T::json_schema(generator));
        self
    }

    pub fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some((schema_of::<T>, true));
        self
    }

    /// Takes a body, or none.
    pub fn may_take<T: JsonSchema>(mut self) -> Self {
        self.takes = Some((schema_of::<T>, false));
        self
    }

    pub fn gives<T: JsonSchema>(mut self) -> Self {
        self.gives = Gives::Json(schema_of::<T>);
        self
    }

    /// Answers in pieces.
    pub fn streams<T: JsonSchema>(mut self, media: &'static str) -> Self {
        self.gives = Gives::Other(media, Some(schema_of::<T>));
        self
    }

    /// Answers with something else.
    pub fn shows(mut self, media: &'static str) -> Self {
        self.gives = Gives::Other(media, None);
        self
    }

    fn operation(&self, generator: &mut SchemaGenerator) -> Value {
        let mut parameters: Vec<Value> = self.path_names().map(path_parameter).collect();
        for make in &self.query {
            parameters.extend(query_parameters(&make(generator)));
        }
        if self.rule.changes {
            parameters.push(json!({
                "name": "X-Weir", "in": "header", "required": false, "schema": { "type": "string" },
                "description": "Any text. Needed by TLS and by plain HTTP, not at the socket: no other site can \
                                have a browser send it.",
            }));
        }
        let (media, schema) = match self.gives {
            Gives::Json(make) => ("application/json", Some(make(generator))),
            Gives::Other(media, make) => (media, make.map(|make| make(generator))),
        };
        let content = schema.map_or_else(|| json!({}), |schema| json!({ "schema": schema }));
        let mut responses =
            json!({ "200": { "description": "Done.", "content": { media: content } } });
        let refusals: &[&str] = match self.method {
            "get" => &["400", "403", "404", "500", "503"],
            _ => &["400", "403", "404", "408", "409", "413", "415", "422", "500", "503"],
        };
        for status in refusals {
            responses[*status] = json!({ "$ref": "#/components/responses/Refused" });
        }
        let mut operation = json!({
            "operationId": self.id(),
            "summary": self.about,
            "description": format!("Needs the role `{}`.", self.rule.role.name()),
            "x-role": self.rule.role.name(),
            "parameters": parameters,
            "responses": responses,
        });
        if let Some((make, required)) = self.takes {
            let schema = make(generator);
            operation["requestBody"] = json!({ "required": required, "content": { "application/json": { "schema": schema } } });
        }
        operation
    }

    fn path_names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next())
    }

    /// `put_services_backends_drain`.
    fn id(&self) -> String {
        let words = self.path.trim_start_matches("/v1/").split('/');
        let words = words.filter(|word| !word.is_empty() && !word.starts_with('{'));
        let mut id = self.method.to_owned();
        for word in words {
            id = format!("{id}_{}", word.replace('.', "_"));
        }
        // One of many and all of them are not the same.
        if self.path.ends_with('}') { id + "_one" } else { id }
    }
}

fn path_parameter(name: &str) -> Value {
    let schema = match name {
        "number" => json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX }),
        _ => json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$" }),
    };
    json!({ "name": name, "in": "path", "required": true, "schema": schema })
}

/// The fields of a query.
fn query_parameters(schema: &Schema) -> Vec<Value> {
    let fields = schema.get("properties").and_then(Value::as_object);
    let one = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let about = schema.as_object_mut().and_then(|fields| fields.remove("description"));
        // What is not given is not there; a query has no null.
        if let Some(fields) = schema.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        if let Some(kinds) = schema.get_mut("type")
            && let Some(kind) = kinds.as_array().and_then(|all| all.first()).cloned()
        {
            *kinds = kind;
        }
        json!({ "name": name, "in": "query", "required": false, "schema": schema, "description": about })
    };
    fields.into_iter().flatten().map(one).collect()
}

/// The router of all requests, each with what stands before it.
pub(super) fn router(routes: Vec<Route>, common: &Arc<Common>) -> Router<Shared> {
    let mut router = Router::new();
    for Route { path, rule, handler, .. } in routes {
        let gate = Gate { common: Arc::clone(common), rule };
        // The guard bounds bodies; what it hands on is in memory.
        let handler = handler.route_layer(from_fn_with_state(gate, guard));
        router = router.route(path, handler.layer(axum::extract::DefaultBodyLimit::disable()));
    }
    router.layer(from_fn(typed))
}

/// What gRPC has of the list, and the types in it by their names.
#[cfg(test)]
pub(super) fn described(routes: &[Route]) -> (Vec<Described>, Map<String, Value>) {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let all = routes.iter().filter_map(|route| route.described(&mut generator)).collect();
    (all, generator.take_definitions(true))
}

/// The document, OpenAPI 3.1.
pub(super) fn document(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let refusal = generator.subschema_for::<Refusal>();
    let mut paths = Map::new();
    for route in routes {
        let operation = route.operation(&mut generator);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "weir",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The control API of a running balancer. Paths begin with /v1; within it, fields and \
                            paths are added and none is taken away or given another meaning.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "responses": {
                "Refused": {
                    "description": "It was refused, and nothing has changed; `kind` says why.",
                    "content": { "application/json": { "schema": refusal } },
                },
            },
        },
    })
}
