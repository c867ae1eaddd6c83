//! TensorRT-LLM: no rank over HTTP. It keeps a conversation on one rank of its own by the conversation's id.

use super::{Dialect, RankBy, path};

pub(super) const DIALECT: Dialect = Dialect {
    name: "TensorRT-LLM",
    paths: path::ALL,
    rank: RankBy::Url,
    ranks_in: None,
    session_header: Some("x-session-id"),
    health: "/health",
    figures: None,
    kv_sources: None,
    dead_words: &[],
};
