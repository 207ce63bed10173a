//! Messages of gRPC and JSON, each put into the other by the descriptor of the message. What JSON has and
//! messages have not:
//!
//! - a list of two (`["eth0", "native"]`) is a message whose name ends with `Pair`;
//! - null in a list of numbers is NaN;
//! - an object in an object of any names is a message `TextMap`;
//! - what may be anything is a `google.protobuf.Value`.

use bytes::Buf;
use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};
use serde_json::{Map, Number, Value as Json};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The type that holds anything.
const ANYTHING: &str = "google.protobuf.Value";

/// Reads messages of a kind, and writes those of any.
#[derive(Clone)]
pub(super) struct Dynamic(pub MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(item.encoded_len());
        item.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        // A message of nothing but its descriptor cannot be told how long it is; the buffer can.
        let whole = from.copy_to_bytes(from.remaining());
        let read = DynamicMessage::decode(self.0.clone(), whole);
        read.map(Some).map_err(|error| {
            let words = format!("the message is no {}: {error}", self.0.full_name());
            super::refusal(super::Kind::Invalid, super::StatusCode::BAD_REQUEST, &words)
        })
    }
}

/// What JSON cannot be put into a message, and where it stands.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{field} cannot be {json}")]
pub(super) struct Odd {
    field: String,
    json: String,
}

fn odd(field: &str, json: &Json) -> Odd {
    Odd { field: field.to_owned(), json: json.to_string().chars().take(100).collect() }
}

/// A message from JSON. Names that it has no field for are added to `left`.
pub(super) fn read(
    kind: &MessageDescriptor,
    json: &Json,
    left: &mut Vec<String>,
) -> Result<DynamicMessage, Odd> {
    if is_anything(kind) {
        return Ok(anything(kind, json));
    }
    let mut message = DynamicMessage::new(kind.clone());
    match json {
        Json::Array(values) if kind.name().ends_with("Pair") => {
            for (field, value) in in_order(kind).iter().zip(values) {
                message.set_field(field, read_one(field, value, left)?);
            }
        }
        Json::Object(_) if kind.name() == "TextMap" => {
            if let Some(field) = kind.get_field(1) {
                message.set_field(&field, read_field(&field, json, left)?);
            }
        }
        Json::Object(values) => {
            for (name, value) in values {
                match kind.get_field_by_name(name) {
                    Some(field) if field.kind().as_message().is_some_and(is_anything) => {
                        message.set_field(&field, read_field(&field, value, left)?);
                    }
                    Some(_) if value.is_null() => {}
                    Some(field) => message.set_field(&field, read_field(&field, value, left)?),
                    None => left.push(format!("{}.{name}", kind.name())),
                }
            }
        }
        json => return Err(odd(kind.name(), json)),
    }
    Ok(message)
}

/// The fields of a message, by their numbers.
fn in_order(kind: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let mut fields: Vec<FieldDescriptor> = kind.fields().collect();
    fields.sort_by_key(FieldDescriptor::number);
    fields
}

fn is_anything(kind: &MessageDescriptor) -> bool {
    kind.full_name() == ANYTHING
}

fn read_field(field: &FieldDescriptor, json: &Json, left: &mut Vec<String>) -> Result<Value, Odd> {
    let kind = field.kind();
    match json {
        Json::Object(values) if field.is_map() => {
            let entry = kind.as_message().map(MessageDescriptor::map_entry_value_field);
            let entry = entry.ok_or_else(|| odd(field.name(), json))?;
            let one = |(name, value): (&String, &Json)| {
                Ok((MapKey::String(name.clone()), read_one(&entry, value, left)?))
            };
            values.iter().map(one).collect::<Result<_, _>>().map(Value::Map)
        }
        Json::Array(values) if field.is_list() => {
            let all: Result<_, _> =
                values.iter().map(|value| read_one(field, value, left)).collect();
            all.map(Value::List)
        }
        json if field.is_map() || field.is_list() => Err(odd(field.name(), json)),
        json => read_one(field, json, left),
    }
}

fn read_one(field: &FieldDescriptor, json: &Json, left: &mut Vec<String>) -> Result<Value, Odd> {
    let value = match field.kind() {
        Kind::Bool => json.as_bool().map(Value::Bool),
        Kind::String => json.as_str().map(|text| Value::String(text.to_owned())),
        Kind::Uint32 => json.as_u64().and_then(|number| number.try_into().ok()).map(Value::U32),
        Kind::Uint64 => json.as_u64().map(Value::U64),
        Kind::Int32 => json.as_i64().and_then(|number| number.try_into().ok()).map(Value::I32),
        Kind::Int64 => json.as_i64().map(Value::I64),
        Kind::Float if json.is_null() => Some(Value::F32(f32::NAN)),
        Kind::Float => json.as_f64().map(|number| Value::F32(number as f32)),
        Kind::Double => json.as_f64().map(Value::F64),
        Kind::Message(kind) => Some(Value::Message(read(&kind, json, left)?)),
        _ => None,
    };
    value.ok_or_else(|| odd(field.name(), json))
}

/// JSON of any kind; its message has a field for each.
fn anything(kind: &MessageDescriptor, json: &Json) -> DynamicMessage {
    let mut message = DynamicMessage::new(kind.clone());
    let of = |name: &str| kind.get_field_by_name(name)?.kind().as_message().cloned();
    let (name, value) = match json {
        Json::Null => ("null_value", Value::EnumNumber(0)),
        Json::Bool(flag) => ("bool_value", Value::Bool(*flag)),
        Json::Number(number) => ("number_value", Value::F64(number.as_f64().unwrap_or(f64::NAN))),
        Json::String(text) => ("string_value", Value::String(text.clone())),
        Json::Array(values) => {
            let Some(list) = of("list_value") else { return message };
            let values = values.iter().map(|value| Value::Message(anything(kind, value)));
            let mut within = DynamicMessage::new(list);
            within.set_field_by_name("values", Value::List(values.collect()));
            ("list_value", Value::Message(within))
        }
        Json::Object(values) => {
            let Some(object) = of("struct_value") else { return message };
            let one = |(name, value): (&String, &Json)| {
                (MapKey::String(name.clone()), Value::Message(anything(kind, value)))
            };
            let mut within = DynamicMessage::new(object);
            within.set_field_by_name("fields", Value::Map(values.iter().map(one).collect()));
            ("struct_value", Value::Message(within))
        }
    };
    message.set_field_by_name(name, value);
    message
}

/// The fields of a message that are there, as JSON.
pub(super) fn fields(message: &DynamicMessage) -> Map<String, Json> {
    message.fields().map(|(field, value)| (field.name().to_owned(), write(value))).collect()
}

fn write(value: &Value) -> Json {
    match value {
        Value::Bool(flag) => Json::Bool(*flag),
        Value::I32(number) => (*number).into(),
        Value::I64(number) => (*number).into(),
        Value::U32(number) => (*number).into(),
        Value::U64(number) => (*number).into(),
        // In JSON no number is infinite, or none.
        Value::F32(number) => Number::from_f64((*number).into()).map_or(Json::Null, Json::Number),
        Value::F64(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::String(text) => Json::String(text.clone()),
        Value::Bytes(_) | Value::EnumNumber(_) => Json::Null,
        Value::Message(message) => write_message(message),
        Value::List(values) => values.iter().map(write).collect(),
        Value::Map(values) => {
            let one =
                |(name, value): (&MapKey, &Value)| Some((name.as_str()?.to_owned(), write(value)));
            Json::Object(values.iter().filter_map(one).collect())
        }
    }
}

fn write_message(message: &DynamicMessage) -> Json {
    let kind = message.descriptor();
    if is_anything(&kind) {
        // What it holds is in the one field of it that is there; a list and an object have one of their own.
        let Some((_, held)) = message.fields().next() else { return Json::Null };
        let Value::Message(within) = held else { return write(held) };
        return match within.fields().next() {
            Some((_, held)) => write(held),
            None if within.descriptor().name() == "Struct" => Json::Object(Map::new()),
            None => Json::Array(Vec::new()),
        };
    }
    if kind.name().ends_with("Pair") {
        return in_order(&kind).iter().map(|field| write(&message.get_field(field))).collect();
    }
    let mut fields = fields(message);
    if kind.name() == "TextMap" {
        return fields.remove("entries").unwrap_or_else(|| Json::Object(Map::new()));
    }
    Json::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kind(name: &str) -> MessageDescriptor {
        super::super::POOL.get_message_by_name(&format!("weir.v1.{name}")).expect(name)
    }

    /// There and back, over the bytes.
    fn again(name: &str, json: &Json) -> Json {
        let mut left = Vec::new();
        let message = read(&kind(name), json, &mut left).expect("it fits");
        assert!(left.is_empty(), "{left:?}");
        let bytes = message.encode_to_vec();
        let read = DynamicMessage::decode(kind(name), bytes.as_slice()).expect("what was written");
        write_message(&read)
    }

    #[test]
    fn what_json_has_and_messages_have_not_goes_there_and_back() {
        for (name, value) in [
            ("Status", json!({ "interfaces": [["eth0", "native"], ["eth1", "generic"]] })),
            ("NatSourceStatus", json!({ "ports": [1024, 65_535] })),
            ("Rate", json!({ "packets": [1.5, null, 0.0], "states": [] })),
            ("Host", json!({ "interfaces": { "eth0": { "mtu": "1500" }, "lo": {} } })),
            ("PlaneStatus", json!({ "counts": { "bursts": u64::MAX } })),
            (
                "FieldChange",
                json!({ "from": null, "to": { "a": [1.0, "x", true, null, {}, []], "b": {} } }),
            ),
            ("WatchLine", json!({ "event": { "number": 7, "type": "health", "up": false } })),
        ] {
            // Empty lists are as none.
            let mut wanted = value.clone();
            if name == "Rate" {
                wanted.as_object_mut().expect("an object").remove("states");
            }
            assert_eq!(again(name, &value), wanted, "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_and_what_is_not_known_is_listed() {
        let wrong = read(&kind("Answer"), &json!({ "done": 7 }), &mut Vec::new());
        assert_eq!(wrong, Err(Odd { field: "done".into(), json: "7".into() }));
        let wrong = read(&kind("BackendStatus"), &json!({ "weight": -1 }), &mut Vec::new());
        assert!(wrong.is_err());
        assert!(read(&kind("Answer"), &json!([]), &mut Vec::new()).is_err());
        let mut left = Vec::new();
        read(&kind("Answer"), &json!({ "done": "x", "more": 1 }), &mut left).expect("it fits");
        assert_eq!(left, ["Answer.more"]);
    }
}
