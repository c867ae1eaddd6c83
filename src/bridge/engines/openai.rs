//! Any server with an OpenAI-compatible API: nothing is known of ranks, health or figures.

use super::{Dialect, RankBy, path};

pub(super) const DIALECT: Dialect = Dialect {
    name: "an OpenAI-compatible server",
    paths: path::ALL,
    rank: RankBy::Url,
    ranks_in: None,
    session_header: None,
    // Every such server lists its models.
    health: "/v1/models",
    figures: None,
    kv_sources: None,
    dead_words: &[],
};
