//! vLLM: a header on the endpoints that generate, but for `/v1/responses`, which ignores it.

use super::{CacheLabels, Dialect, Figures, RankBy, path};

pub(super) const DIALECT: Dialect = Dialect {
    name: "vLLM",
    paths: path::ALL,
    rank: RankBy::Header { name: "x-data-parallel-rank", paths: &[path::CHAT, path::COMPLETIONS, path::MESSAGES] },
    ranks_in: None,
    // Its cache events carry what stands there.
    session_header: Some("x-session-id"),
    health: "/health",
    figures: Some(Figures {
        page: "/metrics",
        rank: "engine",
        running: "vllm:num_requests_running",
        waiting: "vllm:num_requests_waiting",
        kv_used: "vllm:kv_cache_usage_perc",
        cache: Some(CacheLabels {
            figure: "vllm:cache_config_info",
            blocks: "num_gpu_blocks",
            block_size: "block_size",
        }),
    }),
    kv_sources: Some("/kv_event_sources"),
    // The server answers with these for some seconds after its engine core has died, and calls itself healthy.
    dead_words: &["EngineCore encountered an issue", "EngineDeadError"],
};
