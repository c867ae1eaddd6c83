//! The wire: bytes to types and back (protocol sections 2, 3, 6, 7 and 8).
//!
//! Everything is checked here, once; code further in trusts what it is given. These are the only serde types, and
//! the JSON Schemas under `schemas/` are generated from them.

pub mod body;
pub mod claim;
pub mod drain;
pub mod event;
pub mod header;
pub mod identity;
pub mod job;
pub mod kv;
pub mod load;
pub mod partitions;
pub mod pin;
pub mod registration;
pub mod reply;
pub mod request;
pub mod schema;
pub mod service;
pub mod subject;

/// How a payload is encoded, by its `Content-Type` (protocol section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON: the default, and any type not named in the protocol.
    Json,
    /// MessagePack.
    MessagePack,
}

impl Encoding {
    /// Reads a media type; its case and parameters don't matter.
    pub fn of(content_type: Option<&str>) -> Self {
        let Some(value) = content_type else {
            return Self::Json;
        };
        let media = value.split(';').next().unwrap_or_default().trim();
        const PACKED: [&str; 3] = ["application/msgpack", "application/x-msgpack", "application/vnd.msgpack"];
        if PACKED.iter().any(|name| media.eq_ignore_ascii_case(name)) { Self::MessagePack } else { Self::Json }
    }

    /// The media type to write.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::MessagePack => "application/msgpack",
        }
    }

    /// Decodes a control message; the error says what is wrong and where.
    pub fn decode<T: serde::de::DeserializeOwned>(self, payload: &[u8]) -> Result<T, String> {
        match self {
            Self::Json => {
                let mut reader = serde_json::Deserializer::from_slice(payload);
                let value = serde_path_to_error::deserialize(&mut reader).map_err(named)?;
                reader.end().map_err(|e| e.to_string())?;
                Ok(value)
            }
            Self::MessagePack => {
                let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
                serde_path_to_error::deserialize(&mut reader).map_err(named)
            }
        }
    }

    /// Decodes a control message where nobody asks what is wrong with one that can't be.
    pub fn read<T: serde::de::DeserializeOwned>(self, payload: &[u8]) -> Option<T> {
        match self {
            Self::Json => serde_json::from_slice(payload).ok(),
            Self::MessagePack => rmp_serde::from_slice(payload).ok(),
        }
    }

    /// Encodes a control message.
    pub fn encode<T: serde::Serialize>(self, value: &T) -> Vec<u8> {
        match self {
            Self::Json => serde_json::to_vec(value).expect("control messages are plain data"),
            Self::MessagePack => rmp_serde::to_vec_named(value).expect("control messages are plain data"),
        }
    }
}

/// The error with the name of the field that it is about, where there is one.
fn named<E: std::fmt::Display>(error: serde_path_to_error::Error<E>) -> String {
    match error.path().to_string().as_str() {
        "." => error.inner().to_string(),
        path => format!("field {path}: {}", error.inner()),
    }
}

#[cfg(test)]
mod tests {
    use super::Encoding;

    #[test]
    fn media_types_are_read_without_case_and_parameters() {
        assert_eq!(Encoding::of(None), Encoding::Json);
        assert_eq!(Encoding::of(Some("text/plain")), Encoding::Json);
        assert_eq!(Encoding::of(Some("Application/MsgPack; charset=x")), Encoding::MessagePack);
        assert_eq!(Encoding::of(Some(" application/vnd.msgpack ")), Encoding::MessagePack);
    }
}
