//! The span of an attempt (feature `otel`): from the wish for a placement to the worker's word.

use super::route::Request;
use crate::core::decide::{Cause, Decision};
use crate::nats::Block;
use crate::telemetry::trace::{Kind, Span};

impl Request {
    /// Begins the span of the next attempt, unless it has begun.
    pub(super) fn begin_span(&mut self) {
        if self.span.is_open() {
            return;
        }
        let headers = self.message.headers().unwrap_or(Block::NONE);
        self.span = Span::begin(Kind::Attempt, |name| headers.find(name));
        self.span.note("rankpin.request_id", self.id.as_str());
        self.span.note("gen_ai.request.model", self.ask.model.as_str());
        self.span.note("rankpin.session.source", self.source);
    }

    /// Notes where the attempt goes, and why.
    pub(super) fn note_dispatch(&mut self, decision: &Decision) {
        self.span.note("rankpin.decision", decision.reason.word());
        if let Some(cause) = decision.cause.map(Cause::word) {
            self.span.note("rankpin.decision.cause", cause);
        }
        self.span.note("rankpin.worker", decision.placement.worker.as_str());
        if let Some(rank) = decision.placement.rank {
            self.span.note_number("rankpin.dp_rank", rank.0.into());
        }
        self.span.note_number("rankpin.attempt", self.attempt.into());
    }
}
