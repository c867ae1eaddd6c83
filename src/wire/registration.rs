//! A worker's registration: value of its key in the bucket `{ns}_workers` (protocol section 7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::id::{InstanceId, Model, Pool, RankRange, WorkerId};
use crate::core::worker::{WorkerKind, WorkerSpec, WorkerState};

/// Most models that one worker may serve.
pub const MAX_MODELS: usize = 256;
/// Largest value of a registration that is read, in bytes.
pub const MAX_REGISTRATION_BYTES: usize = 256 * 1024;

/// What a worker says of itself. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Registration {
    /// Version of this shape: 1.
    #[schemars(range(min = 1, max = 1))]
    pub v: u32,
    /// The worker's id, equal to the key.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))]
    pub worker: String,
    /// Id of this process; a restart gives another one.
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub instance: String,
    /// Names of the models served.
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 256)))]
    pub models: Vec<String>,
    /// The group of workers it belongs to.
    #[serde(default = "default_pool")]
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub pool: String,
    /// First DP rank hosted.
    #[serde(default)]
    #[schemars(range(max = 65535))]
    pub dp_start: u32,
    /// Number of DP ranks hosted; `dp_start + dp_size` is at most 65536.
    #[schemars(range(min = 1, max = 65536))]
    pub dp_size: u32,
    /// Kind of device.
    #[serde(default = "default_device")]
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub device: String,
    /// Share of traffic relative to other workers; above 0.
    #[serde(default = "default_weight")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub weight: f64,
    /// Most requests in flight per rank; no limit where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = u32::MAX))]
    pub max_inflight: Option<u32>,
    /// Tokens per block of the prefix cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = u32::MAX))]
    pub block_size: Option<u32>,
    /// Blocks in each rank's prefix cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = u64::MAX))]
    pub kv_blocks: Option<u64>,
    /// Whether it takes new sessions.
    #[serde(default)]
    pub state: State,
    /// Whether it is a plain NATS responder, which answers on the request's reply subject with one message.
    #[serde(default)]
    pub plain: bool,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Takes requests.
    #[default]
    Ready,
    /// Takes no new requests and finishes those it has.
    Draining,
}

fn default_pool() -> String {
    "default".into()
}

fn default_device() -> String {
    "cuda".into()
}

fn default_weight() -> f64 {
    1.0
}

impl Registration {
    /// A registration with the defaults of the protocol.
    pub fn new(worker: &str, instance: &str, models: &[&str], dp_start: u32, dp_size: u32) -> Self {
        Self {
            v: 1,
            worker: worker.into(),
            instance: instance.into(),
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            pool: default_pool(),
            dp_start,
            dp_size,
            device: default_device(),
            weight: default_weight(),
            max_inflight: None,
            block_size: None,
            kv_blocks: None,
            state: State::Ready,
            plain: false,
        }
    }

    /// Reads the value of the key `key`. The error names the field and what is wrong with it.
    pub fn parse(key: &str, value: &[u8]) -> Result<WorkerSpec, String> {
        if value.len() > MAX_REGISTRATION_BYTES {
            return Err(format!("the value is {} bytes long, the limit is {MAX_REGISTRATION_BYTES}", value.len()));
        }
        let read: Self = super::Encoding::Json.decode(value)?;
        if read.worker != key {
            return Err(format!("field worker: is {:?} under the key {key:?}", read.worker));
        }
        read.check()
    }

    /// Checks what the types alone don't say. The error names the field.
    pub fn check(&self) -> Result<WorkerSpec, String> {
        let field = |name: &'static str| move |e: crate::core::id::NameError| format!("field {name}: {e}");
        if self.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", self.v));
        }
        if self.models.is_empty() || self.models.len() > MAX_MODELS {
            return Err(format!("field models: holds {} names, 1 to {MAX_MODELS} are allowed", self.models.len()));
        }
        let mut models =
            self.models.iter().map(|name| Model::new(name).map_err(field("models"))).collect::<Result<Vec<_>, _>>()?;
        models.sort();
        models.dedup();
        let ranks = RankRange::new(self.dp_start, self.dp_size).ok_or_else(|| {
            format!(
                "field dp_size: ranks {} + {} are not 1 or more that end at 65536 or below",
                self.dp_start, self.dp_size
            )
        })?;
        if !(self.weight.is_finite() && self.weight > 0.0) {
            return Err(format!("field weight: is {}, it must be above 0", self.weight));
        }
        if self.max_inflight == Some(0) {
            return Err("field max_inflight: is 0, it must be 1 or more; leave it out for no limit".into());
        }
        if self.block_size == Some(0) {
            return Err("field block_size: is 0, it must be 1 or more".into());
        }
        Ok(WorkerSpec {
            id: WorkerId::new(&self.worker).map_err(field("worker"))?,
            instance: InstanceId::new(&self.instance).map_err(field("instance"))?,
            models,
            pool: Pool::new(&self.pool).map_err(field("pool"))?,
            ranks,
            device: Pool::new(&self.device).map_err(field("device"))?.as_str().into(),
            weight: self.weight,
            max_inflight: self.max_inflight,
            kv_blocks: self.kv_blocks,
            block_size: self.block_size,
            state: match self.state {
                State::Ready => WorkerState::Ready,
                State::Draining => WorkerState::Draining,
            },
            kind: if self.plain { WorkerKind::Plain } else { WorkerKind::Native },
            subject: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_unknown_fields() {
        let value = br#"{"v":1,"worker":"a","instance":"i","models":["m"],"dp_size":2,"new":[1]}"#;
        let spec = Registration::parse("a", value).expect("valid");
        assert_eq!(spec.pool.as_str(), "default");
        assert_eq!(spec.ranks, RankRange::new(0, 2).expect("valid"));
        assert_eq!(spec.max_inflight, None);
        assert_eq!(spec.kind, WorkerKind::Native);
        assert_eq!(spec.state, WorkerState::Ready);
    }

    #[test]
    fn refusals_name_the_field() {
        let good = serde_json::to_value(Registration::new("a", "i", &["m"], 0, 1)).expect("plain data");
        let refused = |change: (&str, serde_json::Value)| {
            let mut value = good.clone();
            value[change.0] = change.1;
            let bytes = serde_json::to_vec(&value).expect("plain data");
            Registration::parse("a", &bytes).expect_err(change.0)
        };
        for (field, value) in [
            ("v", 2.into()),
            ("worker", "b".into()),
            ("instance", "".into()),
            ("models", serde_json::json!([])),
            ("models", serde_json::json!([""])),
            ("models", serde_json::json!("m")),
            ("pool", "".into()),
            ("dp_size", 0.into()),
            ("dp_size", 65537.into()),
            ("dp_size", (-1).into()),
            ("weight", 0.into()),
            ("weight", "1".into()),
            ("max_inflight", 0.into()),
            ("state", "asleep".into()),
            ("plain", 1.into()),
        ] {
            let error = refused((field, value));
            assert!(error.contains(&format!("field {field}")), "{field}: {error}");
        }
        for missing in ["v", "worker", "instance", "models", "dp_size"] {
            let mut value = good.clone();
            value.as_object_mut().expect("an object").remove(missing);
            let bytes = serde_json::to_vec(&value).expect("plain data");
            let error = Registration::parse("a", &bytes).expect_err(missing);
            assert!(error.contains(missing), "{error}");
        }
        assert!(Registration::parse("a", b"\xff").is_err());
    }
}
