//! A pin: value of its key in the bucket `{ns}_pins` (protocol section 8).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::hash::PinKey;
use crate::core::id::{DEFAULT_POOL, DpRank, Model, Origin, Placement, Pool, SessionId, Tenant, WorkerId};
use crate::core::pins::Pin;

/// Largest value of a pin that is read, in bytes. Session, model and tenant are at most 256 each, six times as much
/// where every character is escaped.
pub const MAX_PIN_BYTES: usize = 8 * 1024;

/// A pin as it stands in the bucket. Unknown fields are kept out of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinValue {
    /// Version of this shape: 1.
    #[schemars(range(min = 1, max = 1))]
    pub v: u32,
    /// The session's id.
    #[schemars(length(min = 1, max = 256))]
    pub session: String,
    /// The model.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// The tenant; empty where there is none.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub tenant: String,
    /// The worker pinned to.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))]
    pub worker: String,
    /// The rank pinned to; null where there is none.
    #[serde(default)]
    #[schemars(range(max = 65535))]
    pub dp_rank: Option<u16>,
    /// Where the session id comes from.
    #[serde(default)]
    pub origin: OriginName,
    /// Of a derived session: the session id of its first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Of a derived session: true where several conversations begin so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The pool of the worker, where that is not `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// Where a session id comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OriginName {
    /// A header, or a field of the body.
    #[default]
    Named,
    /// The conversation's text, or the response that it goes on from.
    Derived,
}

impl From<OriginName> for Origin {
    fn from(name: OriginName) -> Self {
        match name {
            OriginName::Named => Self::Named,
            OriginName::Derived => Self::Derived,
        }
    }
}

/// A pin that was read and fits its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPin {
    /// Where the session is.
    pub placement: Placement,
    /// Where its id comes from.
    pub origin: Origin,
    /// Root of a derived session.
    pub root: Option<Box<str>>,
    /// Whether several conversations begin so.
    pub shared: bool,
    /// The pool of the worker, where it is named.
    pub pool: Option<Pool>,
}

impl From<ReadPin> for Pin {
    fn from(read: ReadPin) -> Self {
        let ReadPin { placement, origin, root, shared, pool } = read;
        Self::new(placement, origin).shared(shared).with(root, pool)
    }
}

impl PinValue {
    /// The value that pins a session.
    pub fn new(tenant: &Tenant, model: &Model, session: &SessionId, origin: Origin, placement: &Placement) -> Self {
        Self {
            v: 1,
            session: session.as_str().into(),
            model: model.as_str().into(),
            tenant: tenant.as_str().into(),
            worker: placement.worker.as_str().into(),
            dp_rank: placement.rank.map(|r| r.0),
            origin: match origin {
                Origin::Named => OriginName::Named,
                Origin::Derived => OriginName::Derived,
            },
            root: None,
            shared: false,
            pool: None,
        }
    }

    /// The same, of a worker in this pool.
    pub fn in_pool(self, pool: Option<&Pool>) -> Self {
        let pool = pool.filter(|pool| pool.as_str() != DEFAULT_POOL).map(|pool| pool.as_str().to_owned());
        Self { pool, ..self }
    }

    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        super::Encoding::Json.encode(self)
    }

    /// Reads the value of a key. A value whose session, model and tenant don't hash to the key belongs to another
    /// session and is no pin of this one; the error says so, or what else is wrong.
    pub fn parse(key: PinKey, value: &[u8]) -> Result<ReadPin, String> {
        if value.len() > MAX_PIN_BYTES {
            return Err(format!("the value is {} bytes long, the limit is {MAX_PIN_BYTES}", value.len()));
        }
        let read: Self = super::Encoding::Json.decode(value)?;
        if read.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", read.v));
        }
        let stored = PinKey::of(&read.tenant, &read.model, &read.session);
        if stored != key {
            return Err("fields tenant, model and session don't belong to this key".into());
        }
        Ok(ReadPin {
            placement: Placement {
                worker: WorkerId::new(&read.worker).map_err(|e| format!("field worker: {e}"))?,
                rank: read.dp_rank.map(DpRank),
            },
            origin: read.origin.into(),
            root: read.root.map(Into::into),
            shared: read.shared,
            // One that can be none says nothing; the pin is good without it.
            pool: read.pool.and_then(|pool| Pool::new(&pool).ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_reads_back_and_fits_only_its_key() {
        let (tenant, model) = (Tenant::none(), Model::new("m").expect("valid"));
        let session = SessionId::named("s").expect("valid");
        let placement = Placement { worker: WorkerId::new("gpu-7").expect("valid"), rank: Some(DpRank(6)) };
        let key = PinKey::new(&tenant, &model, &session);
        let bytes = PinValue::new(&tenant, &model, &session, Origin::Named, &placement).encode();
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            r#"{"v":1,"session":"s","model":"m","tenant":"","worker":"gpu-7","dp_rank":6,"origin":"named"}"#
        );
        assert_eq!(PinValue::parse(key, &bytes).expect("valid").placement, placement);
        let in_pool = |name: &str| {
            let pool = Pool::new(name).expect("valid");
            let value = PinValue::new(&tenant, &model, &session, Origin::Named, &placement).in_pool(Some(&pool));
            (value.pool.clone(), PinValue::parse(key, &value.encode()).expect("valid").pool)
        };
        assert_eq!(in_pool("eu"), (Some("eu".into()), Pool::new("eu").ok()));
        assert_eq!(in_pool("default"), (None, None));
        let bad = String::from_utf8_lossy(&bytes).replace("}", r#","pool":""}"#);
        assert_eq!(PinValue::parse(key, bad.as_bytes()).expect("the rest counts").pool, None);
        let other = PinKey::new(&tenant, &model, &SessionId::named("t").expect("valid"));
        assert!(PinValue::parse(other, &bytes).is_err());
        for bad in [&b""[..], b"null", b"[]", b"{\"v\":1}", b"\xff\xfe"] {
            assert!(PinValue::parse(key, bad).is_err());
        }
    }
}
