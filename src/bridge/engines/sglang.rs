//! SGLang: a header, which counts before the body's `routed_dp_rank`.

use super::{Dialect, Figures, RankBy, path};

pub(super) const DIALECT: Dialect = Dialect {
    name: "SGLang",
    paths: path::ALL,
    rank: RankBy::Header {
        name: "x-data-parallel-rank",
        // Embeddings are given to any rank, and tokens are counted by none.
        paths: &[path::CHAT, path::COMPLETIONS, path::MESSAGES, path::RESPONSES],
    },
    // Its figures are off by default, and name a rank only with attention that is data-parallel.
    ranks_in: Some(("/get_server_info", "dp_size")),
    session_header: None,
    health: "/health",
    figures: Some(Figures {
        page: "/metrics",
        rank: "dp_rank",
        running: "sglang:num_running_reqs",
        waiting: "sglang:num_queue_reqs",
        kv_used: "sglang:token_usage",
        cache: None,
    }),
    kv_sources: None,
    dead_words: &[],
};
