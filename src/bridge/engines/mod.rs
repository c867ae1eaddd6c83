//! What engines have in common and where they differ: one file each.

mod openai;
mod sglang;
mod trtllm;
mod vllm;

/// The HTTP server behind a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`.
    Trtllm,
    /// Any server with an OpenAI-compatible API; it takes no rank, so one URL for each.
    Openai,
}

/// How an engine is spoken to.
#[derive(Debug)]
pub struct Dialect {
    /// Its name.
    pub name: &'static str,
    /// The paths that requests may ask for.
    pub paths: &'static [&'static str],
    /// How it takes a rank.
    pub rank: RankBy,
    /// The page and the field that say how many ranks it has, where that is not told by its figures.
    pub ranks_in: Option<(&'static str, &'static str)>,
    /// The header in which it takes the conversation, where it has one.
    pub session_header: Option<&'static str>,
    /// The page that says whether it works.
    pub health: &'static str,
    /// Its figures, where it has any that are known.
    pub figures: Option<Figures>,
    /// The page that lists where its cache events are published, where it publishes any.
    pub kv_sources: Option<&'static str>,
    /// Words in an error that say that the engine is dead, while its server still answers.
    pub dead_words: &'static [&'static str],
}

/// How an engine takes a rank.
#[derive(Debug, Clone, Copy)]
pub enum RankBy {
    /// By a header, on these paths alone: others ignore it.
    Header {
        /// Its name, in lower case.
        name: &'static str,
        /// The paths that look at it.
        paths: &'static [&'static str],
    },
    /// Not at all: the URL is the rank.
    Url,
}

/// Names of an engine's figures, on a page in Prometheus' text format.
#[derive(Debug)]
pub struct Figures {
    /// The page.
    pub page: &'static str,
    /// The label that holds the local rank.
    pub rank: &'static str,
    /// Requests that it works on.
    pub running: &'static str,
    /// Requests that wait.
    pub waiting: &'static str,
    /// Share of the cache in use, 0 to 1.
    pub kv_used: &'static str,
    /// The size of the cache, as labels of one figure.
    pub cache: Option<CacheLabels>,
}

/// A figure whose labels tell the size of the cache.
#[derive(Debug)]
pub struct CacheLabels {
    /// Its name.
    pub figure: &'static str,
    /// Blocks of one rank.
    pub blocks: &'static str,
    /// Tokens of one block.
    pub block_size: &'static str,
}

/// Paths of the APIs that are carried.
mod path {
    pub const CHAT: &str = "/v1/chat/completions";
    pub const COMPLETIONS: &str = "/v1/completions";
    pub const RESPONSES: &str = "/v1/responses";
    pub const EMBEDDINGS: &str = "/v1/embeddings";
    pub const MESSAGES: &str = "/v1/messages";
    pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
    pub const ALL: &[&str] = &[CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, COUNT_TOKENS];
}

impl EngineKind {
    /// How it is spoken to.
    pub fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm => &vllm::DIALECT,
            Self::Sglang => &sglang::DIALECT,
            Self::Trtllm => &trtllm::DIALECT,
            Self::Openai => &openai::DIALECT,
        }
    }
}

impl Dialect {
    /// The header that carries a rank on a path; `None` where the engine would not look at it.
    pub fn rank_header(&self, path: &str) -> Option<&'static str> {
        match self.rank {
            RankBy::Header { name, paths } => paths.contains(&path).then_some(name),
            RankBy::Url => None,
        }
    }

    /// Whether one server can host several ranks that can be told apart.
    pub fn takes_ranks(&self) -> bool {
        match self.rank {
            RankBy::Header { .. } => true,
            RankBy::Url => false,
        }
    }
}
