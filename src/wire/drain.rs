//! A worker's answer to whoever asks it to drain (protocol section 7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Largest answer that is read, in bytes.
pub const MAX_ANSWER_BYTES: usize = 4096;

/// What the worker says: it has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainAnswer {
    /// Version of this shape: 1.
    #[schemars(range(min = 1, max = 1))]
    pub v: u32,
    /// The worker's id.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))]
    pub worker: String,
    /// The process that drains.
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub instance: String,
    /// Requests that it still has.
    #[schemars(range(max = u64::MAX))]
    pub held: u64,
}

impl DrainAnswer {
    /// Reads an answer; the error says what is wrong with it.
    pub fn parse(payload: &[u8]) -> Result<Self, String> {
        if payload.len() > MAX_ANSWER_BYTES {
            return Err(format!("the answer is {} bytes long, the limit is {MAX_ANSWER_BYTES}", payload.len()));
        }
        let read: Self = super::Encoding::Json.decode(payload)?;
        if read.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", read.v));
        }
        crate::core::id::WorkerId::new(&read.worker).map_err(|e| format!("field worker: {e}"))?;
        crate::core::id::InstanceId::new(&read.instance).map_err(|e| format!("field instance: {e}"))?;
        Ok(read)
    }
}
