//! What is done to a body before an engine gets it: nothing, wherever that is possible.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::wire::Encoding;

/// The body in JSON, which is all that engines read: as it came, where it is JSON.
pub fn to_json(payload: Bytes, encoding: Encoding) -> Result<Bytes, String> {
    match encoding {
        Encoding::Json => Ok(payload),
        Encoding::MessagePack => {
            let tree: serde_json::Value = rmp_serde::from_slice(&payload)
                .map_err(|e| format!("the body is no MessagePack that can be written as JSON: {e}"))?;
            Ok(Encoding::Json.encode(&tree).into())
        }
    }
}

/// The body with another `model`; everything else stays, byte for byte.
pub fn with_model(body: &[u8], model: &str) -> Result<Bytes, String> {
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(|e| format!("the body is no JSON object: {e}"))?;
    let mut written = String::with_capacity(body.len() + model.len());
    let mut put = |name: &str, value: &str| {
        written.push(if written.is_empty() { '{' } else { ',' });
        written.push_str(&quoted(name));
        written.push(':');
        written.push_str(value);
    };
    let model = quoted(model);
    put("model", &model);
    fields.0.iter().filter(|(name, _)| name != "model").for_each(|(name, value)| put(name, value.get()));
    written.push('}');
    Ok(written.into())
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// The fields of an object as they stand.
struct Fields<'b>(Vec<(Cow<'b, str>, &'b RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    fields.push((Cow::Owned(name), map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

/// Which of the fields that tell the APIs apart a body has at its top.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// `system`: Anthropic messages.
    pub system: bool,
    /// `messages`: chat completions or Anthropic messages.
    pub messages: bool,
    /// `input`: responses.
    pub input: bool,
}

/// Looks at a body's top level. What is no JSON object has no shape; the engine says what is wrong with it.
pub fn shape(body: &[u8]) -> Shape {
    serde_json::from_slice(body).unwrap_or_default()
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Shape;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut shape = Shape::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    match name.as_ref() {
                        "system" => shape.system = true,
                        "messages" => shape.messages = true,
                        "input" => shape.input = true,
                        _ => (),
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_model_changes() {
        let body = br#"{ "a" : 1e999, "model":"x", "m\u00f6":[ 1, {"model":"x"} ], "model":"y" }"#;
        let changed = with_model(body, "new \"one\"").expect("an object");
        assert_eq!(changed, r#"{"model":"new \"one\"","a":1e999,"mö":[ 1, {"model":"x"} ]}"#);
        assert_eq!(with_model(b"{}", "m").expect("an object"), r#"{"model":"m"}"#);
        assert!(with_model(b"[]", "m").is_err() && with_model(b"{", "m").is_err());
    }

    #[test]
    fn packed_bodies_become_json() {
        let tree = serde_json::json!({"model": "m", "messages": [{"role": "user", "content": "h\u{e9}"}], "n": null});
        let packed = rmp_serde::to_vec(&tree).expect("plain data");
        let json = to_json(packed.into(), Encoding::MessagePack).expect("it can be written");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).expect("JSON"), tree);
        assert!(to_json(Bytes::from_static(b"\xc1"), Encoding::MessagePack).is_err());
        assert_eq!(to_json(Bytes::from_static(b"no json"), Encoding::Json).expect("as it is"), "no json");
    }

    #[test]
    fn shapes() {
        assert_eq!(shape(br#"{"messages":[],"system":"x"}"#), Shape { system: true, messages: true, input: false });
        assert_eq!(shape(br#"{"input":{"system":1}}"#), Shape { input: true, ..Shape::default() });
        assert_eq!(shape(b"no json"), Shape::default());
    }
}
