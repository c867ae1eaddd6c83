//! A worker's load report on `{ns}.load.{worker}` (protocol section 7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::core::id::{DpRank, InstanceId, MAX_RANKS, WorkerId};
use crate::core::load::{RankLoad, Report};

/// Largest load report that is read, in bytes.
pub const MAX_LOAD_BYTES: usize = 8 * 1024 * 1024;

/// Load of a worker's ranks. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadReport {
    /// Version of this shape: 1.
    #[schemars(range(min = 1, max = 1))]
    pub v: u32,
    /// The worker's id.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))]
    pub worker: String,
    /// The process that reports.
    #[schemars(length(max = 64), regex(pattern = r"^[^\u0000-\u001f\u007f]+$"))]
    pub instance: String,
    /// Goes up with every report of one instance.
    #[schemars(range(max = u64::MAX))]
    pub seq: u64,
    /// One entry per rank.
    #[schemars(length(max = 65536))]
    pub ranks: Vec<RankReport>,
}

/// Load of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RankReport {
    /// The rank.
    #[schemars(range(max = 65535))]
    pub dp_rank: u16,
    /// Requests it works on.
    #[serde(default)]
    #[schemars(range(max = u32::MAX))]
    pub inflight: u32,
    /// Requests it has accepted and not begun.
    #[serde(default)]
    #[schemars(range(max = u32::MAX))]
    pub queued: u32,
    /// Blocks of its prefix cache in use.
    #[serde(default)]
    #[schemars(range(max = u64::MAX))]
    pub kv_used_blocks: u64,
    /// Prompt tokens still to be prefilled.
    #[serde(default)]
    #[schemars(range(max = u64::MAX))]
    pub prefill_tokens: u64,
}

impl LoadReport {
    /// Reads a report. The error names the field.
    pub fn parse(encoding: super::Encoding, payload: &[u8]) -> Result<Report, String> {
        if payload.len() > MAX_LOAD_BYTES {
            return Err(format!("the report is {} bytes long", payload.len()));
        }
        let read: Self = encoding.decode(payload)?;
        if read.v != 1 {
            return Err(format!("field v: is {}, this version reads 1", read.v));
        }
        if read.ranks.len() > MAX_RANKS as usize {
            return Err(format!("field ranks: holds {} entries", read.ranks.len()));
        }
        Ok(Report {
            worker: WorkerId::new(&read.worker).map_err(|e| format!("field worker: {e}"))?,
            instance: InstanceId::new(&read.instance).map_err(|e| format!("field instance: {e}"))?,
            seq: read.seq,
            ranks: read
                .ranks
                .iter()
                .map(|r| RankLoad {
                    rank: DpRank(r.dp_rank),
                    inflight: r.inflight,
                    queued: r.queued,
                    kv_used_blocks: r.kv_used_blocks,
                    prefill_tokens: r.prefill_tokens,
                })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Encoding;

    #[test]
    fn json_and_messagepack_say_the_same() {
        let report = LoadReport {
            v: 1,
            worker: "gpu-7".into(),
            instance: "i".into(),
            seq: 17,
            ranks: vec![RankReport { dp_rank: 4, inflight: 3, ..RankReport::default() }],
        };
        let read = |encoding: Encoding| LoadReport::parse(encoding, &encoding.encode(&report));
        let json = read(Encoding::Json).expect("valid");
        assert_eq!(Ok(json), read(Encoding::MessagePack));
        let error = LoadReport::parse(
            Encoding::Json,
            br#"{"v":1,"worker":"a","instance":"i","seq":1,"ranks":[{"dp_rank":-1}]}"#,
        );
        assert!(error.expect_err("a negative rank").contains("ranks[0].dp_rank"));
    }
}
