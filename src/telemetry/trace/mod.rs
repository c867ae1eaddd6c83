//! Traces: spans of requests for OpenTelemetry, with the cargo feature `otel`.
//!
//! A request is one span at the gateway, one for each attempt at the router, and one at the worker. Each part hands its own
//! span on in the header `traceparent` of W3C's trace context, in place of the one that it got. Without the feature, or
//! where nothing is exported, there are no spans, and `traceparent` goes on as it came.

#[cfg(feature = "otel")]
mod export;
#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod on;

#[cfg(not(feature = "otel"))]
pub use off::{Span, Traces, init};
#[cfg(feature = "otel")]
pub use on::{Span, Traces, init};

/// The header of the span that a request came from (W3C Trace Context).
pub const TRACEPARENT: &str = "traceparent";
/// What tracing systems say besides; it is carried as it is.
pub const TRACESTATE: &str = "tracestate";

/// What the spans of a request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request over HTTP at the gateway, from its head to the end of its answer; with its path.
    Request(&'static str),
    /// One attempt at the router: from the wish for a placement to the worker's word.
    Attempt,
    /// The worker's part, from the dispatch to `finished`.
    Generation,
}

/// Spans can't be exported as the environment wants it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A protocol that is not built in.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL={0:?} is not spoken here; leave it out or write http/protobuf")]
    Protocol(String),
    /// An exporter that is not built in.
    #[error("OTEL_TRACES_EXPORTER={0:?} is none that is built in; write otlp or none")]
    Exporter(String),
    /// The exporter does not take its settings.
    #[error("spans can't be exported: {0}; see the OTEL_EXPORTER_OTLP_… variables")]
    Settings(String),
}

/// Where spans are wanted, by the environment: where an endpoint is named, and nothing switches it off.
fn is_wanted(variable: &dyn Fn(&str) -> Option<String>) -> Result<bool, TraceError> {
    let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let endpoint = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
    if endpoint.is_none() || set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(false);
    }
    match set("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(false),
        Some(other) => return Err(TraceError::Exporter(other.to_owned())),
    }
    match set("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL")).as_deref() {
        None | Some("http/protobuf") => Ok(true),
        Some(other) => Err(TraceError::Protocol(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_exported_where_an_endpoint_is_named_and_nothing_switches_it_off() {
        let wanted = |set: &[(&str, &str)]| {
            is_wanted(&|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        assert_eq!(wanted(&[]), Ok(false));
        assert_eq!(wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(false));
        assert_eq!(wanted(&[there]), Ok(true));
        assert_eq!(wanted(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces")]), Ok(true));
        assert_eq!(wanted(&[there, ("OTEL_SDK_DISABLED", "true")]), Ok(false));
        assert_eq!(wanted(&[there, ("OTEL_TRACES_EXPORTER", "none")]), Ok(false));
        assert_eq!(wanted(&[there, ("OTEL_TRACES_EXPORTER", "zipkin")]), Err(TraceError::Exporter("zipkin".into())));
        assert_eq!(wanted(&[there, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]), Err(TraceError::Protocol("grpc".into())));
        let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
        assert_eq!(wanted(&[there, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), of_traces]), Ok(true));
    }
}
