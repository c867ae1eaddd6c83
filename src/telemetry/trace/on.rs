//! Spans by the OpenTelemetry SDK.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan};

use super::export::Client;
use super::{Kind, TRACEPARENT, TRACESTATE, TraceError};

/// How long the last spans may take to be sent when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// What makes spans, once they are exported.
static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// What ends the export of spans.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

/// Exports spans from now on, where the environment wants it, under the name of a service where the environment has none.
/// To be called once, inside the runtime.
pub fn init(service: &'static str) -> Result<Traces, TraceError> {
    let variable = |name: &str| std::env::var(name).ok();
    if !super::is_wanted(&variable)? {
        return Ok(Traces(None));
    }
    let settings = |problem: String| TraceError::Settings(problem);
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(Client::new(&variable).map_err(settings)?)
        .build()
        .map_err(|problem| settings(problem.to_string()))?;
    let named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.trim().is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| list.contains("service.name="));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    let resource = if named { resource } else { resource.with_service_name(service) };
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
    // A second call leaves the first one's in place.
    let _ = TRACER.set(provider.tracer("rankpin"));
    Ok(Traces(Some(provider)))
}

impl Traces {
    /// Sends what is left.
    pub async fn finish(self) {
        let Some(provider) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FINISH_TIMEOUT)).await;
        if let Ok(Err(problem)) = ended {
            tracing::warn!(%problem, "the last spans may not have been exported");
        }
    }
}

/// A span, or none where nothing is exported. It ends when it is dropped.
#[derive(Debug, Default)]
pub struct Span(Option<Box<SdkSpan>>);

/// Headers by name.
struct Headers<'h, F>(F, PhantomData<&'h str>);

impl<'h, F: Fn(&str) -> Option<&'h str>> Extractor for Headers<'h, F> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

impl Span {
    /// One that begins now, under the span that the headers name; of a trace of its own where they name none.
    pub fn begin<'h>(kind: Kind, header: impl Fn(&str) -> Option<&'h str>) -> Self {
        let Some(tracer) = TRACER.get() else { return Self(None) };
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(header, PhantomData));
        let (name, of) = match kind {
            Kind::Request(path) => (format!("POST {path}").into(), SpanKind::Server),
            Kind::Attempt => ("route".into(), SpanKind::Client),
            Kind::Generation => ("generate".into(), SpanKind::Server),
        };
        let name: std::borrow::Cow<'static, str> = name;
        let span = tracer.span_builder(name).with_kind(of).start_with_context(tracer, &parent);
        Self(Some(Box::new(span)))
    }

    /// Whether there is one that has not ended.
    pub fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Notes a word.
    pub fn note(&mut self, key: &'static str, value: &str) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new(key, value.to_owned()));
        }
    }

    /// Notes a number.
    pub fn note_number(&mut self, key: &'static str, value: u64) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX)));
        }
    }

    /// What it is about has failed.
    pub fn fail(&mut self, why: &str) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new("error.type", why.to_owned()));
            span.set_status(Status::error(why.to_owned()));
        }
    }

    /// The value of `traceparent` for what is done on its behalf; `None`: as it came.
    pub fn carried(&self) -> Option<String> {
        let context = self.0.as_ref()?.span_context();
        let flags = context.trace_flags().to_u8();
        context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
    }

    /// Ends it.
    pub fn end(&mut self) {
        self.0 = None;
    }

    fn recording(&mut self) -> Option<&mut SdkSpan> {
        self.0.as_deref_mut().filter(|span| span.is_recording())
    }
}
