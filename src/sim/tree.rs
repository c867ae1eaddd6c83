//! A request's body as a tree, read from JSON or MessagePack with as little fuss as an engine makes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// Null, binary data, or a MessagePack extension.
    Nothing,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object, in its own order; keys that are no texts are left out.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of an object's key, the last where it stands twice; null is as if missing.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(pairs) = self else { return None };
        let (_, value) = pairs.iter().rfind(|(name, _)| name == key)?;
        (*value != Self::Nothing).then_some(value)
    }

    /// The text of an object's key.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Self::Text(text) => Some(text),
            Self::Nothing | Self::Flag(_) | Self::Number(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// The items of an array; none of anything else.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            Self::Nothing | Self::Flag(_) | Self::Number(_) | Self::Text(_) | Self::Map(_) => &[],
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Flag(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        // MessagePack's extensions come so.
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Node::Nothing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, value)) = map.next_entry::<Node, Node>()? {
            if let Node::Text(key) = key {
                pairs.push((key, value));
            }
        }
        Ok(Node::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Encoding;

    #[test]
    fn json_and_messagepack_read_the_same() {
        let value = serde_json::json!({"a": [1, -2, 0.5, true, null, "x"], "b": {"c": "d"}});
        let packed = Encoding::MessagePack.encode(&value);
        let json: Node = Encoding::Json.decode(value.to_string().as_bytes()).expect("valid");
        assert_eq!(Encoding::MessagePack.decode::<Node>(&packed).expect("valid"), json);
        assert_eq!(json.get("b").and_then(|b| b.text("c")), Some("d"));
        assert_eq!(json.get("a").map(|a| a.items().len()), Some(6));
    }

    #[test]
    fn what_is_no_json_is_nothing() {
        // {1: "a", "b": bin, "c": ext}
        let bytes = [0x83, 0x01, 0xa1, b'a', 0xa1, b'b', 0xc4, 0x01, 0xff, 0xa1, b'c', 0xd4, 0x05, 0x00];
        let node: Node = Encoding::MessagePack.decode(&bytes).expect("valid");
        assert_eq!(node, Node::Map(vec![("b".into(), Node::Nothing), ("c".into(), Node::Nothing)]));
    }
}
