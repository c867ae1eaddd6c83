//! Without the feature: a span is nothing, and nothing is done with it.

use super::{Kind, TraceError};

/// What ends the export of spans.
#[derive(Debug)]
pub struct Traces;

/// Says so where spans are wanted: this program has none.
pub fn init(_service: &'static str) -> Result<Traces, TraceError> {
    if super::is_wanted(&|name| std::env::var(name).ok()).unwrap_or(true) {
        tracing::warn!(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and this rankpin is built without the feature otel: no spans"
        );
    }
    Ok(Traces)
}

impl Traces {
    /// Sends what is left.
    pub async fn finish(self) {}
}

/// A span.
#[derive(Debug, Default)]
pub struct Span(());

impl Span {
    /// One that begins now.
    #[inline]
    pub fn begin<'h>(_kind: Kind, _header: impl Fn(&str) -> Option<&'h str>) -> Self {
        Self(())
    }

    /// Whether there is one that has not ended.
    #[inline]
    pub fn is_open(&self) -> bool {
        true
    }

    /// Notes a word.
    #[inline]
    pub fn note(&mut self, _key: &'static str, _value: &str) {}

    /// Notes a number.
    #[inline]
    pub fn note_number(&mut self, _key: &'static str, _value: u64) {}

    /// What it is about has failed.
    #[inline]
    pub fn fail(&mut self, _why: &str) {}

    /// The value of `traceparent` for what is done on its behalf; `None`: as it came.
    #[inline]
    pub fn carried(&self) -> Option<String> {
        None
    }

    /// Ends it.
    #[inline]
    pub fn end(&mut self) {}
}
