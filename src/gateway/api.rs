//! The APIs that are served, and what differs between them.

/// An endpoint whose requests go to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI `/v1/chat/completions`.
    Chat,
    /// OpenAI `/v1/completions`.
    Completions,
    /// OpenAI `/v1/responses`.
    Responses,
    /// OpenAI `/v1/embeddings`.
    Embeddings,
    /// Anthropic `/v1/messages`.
    Messages,
    /// Anthropic `/v1/messages/count_tokens`.
    CountTokens,
}

/// Whose words errors are told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// What a stream of an API ends with, after its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// `data: [DONE]`.
    Done,
    /// Nothing: its last event says that it is the last.
    Nothing,
}

/// Where the name of an event comes from, where the reply message does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Events have none.
    Unnamed,
    /// It is the `type` of their data.
    ByType,
}

impl Api {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Chat, Self::Completions, Self::Responses, Self::Embeddings, Self::Messages, Self::CountTokens];

    /// The path of its endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
        }
    }

    /// The API of a path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.path() == path)
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
        }
    }

    /// Whose words its errors are told in.
    pub fn family(self) -> Family {
        match self {
            Self::Chat | Self::Completions | Self::Responses | Self::Embeddings => Family::OpenAi,
            Self::Messages | Self::CountTokens => Family::Anthropic,
        }
    }

    /// What a stream ends with.
    pub fn closing(self) -> Closing {
        match self {
            Self::Chat | Self::Completions => Closing::Done,
            Self::Responses | Self::Embeddings | Self::Messages | Self::CountTokens => Closing::Nothing,
        }
    }

    /// Where names of events come from.
    pub fn naming(self) -> Naming {
        match self {
            Self::Responses | Self::Messages => Naming::ByType,
            Self::Chat | Self::Completions | Self::Embeddings | Self::CountTokens => Naming::Unnamed,
        }
    }
}

impl Family {
    /// That of a path which need not be an endpoint.
    pub fn of_path(path: &str) -> Self {
        if path.starts_with(Api::Messages.path()) { Self::Anthropic } else { Self::OpenAi }
    }
}
