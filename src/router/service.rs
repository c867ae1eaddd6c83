//! The router as a NATS service (`$SRV.PING|INFO|STATS`, ADR-32): `nats micro ls` lists it, `rankpin top` reads it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::state::Router;
use crate::core::alias::Target;
use crate::nats::{ConnectError, Lines, Message, Payload};
use crate::wire::Encoding;
use crate::wire::header;
use crate::wire::service::{ALIASES, Endpoint, EndpointStats, Head, Info, NAME, NAMESPACE, PREFIX, Stats, Verb};
use crate::wire::subject::QUEUE;

/// Names of the subjects on which requests are taken, in the order of [`crate::wire::subject::Subjects::intake`].
const ENDPOINTS: [&str; 3] = ["request", "request_of_body", "trusted"];
/// Questions for the whole state that are answered at once.
const MAX_ANSWERING: usize = 4;
/// Room that is left for headers in an answer, in bytes.
const MARGIN: usize = 1024;

/// Numbers of the subscriptions on the intake.
pub const NUMBERS: std::ops::Range<u64> = 8..11;

/// Subscribes to questions to every service, to this one, and to this router. Where that is not allowed, the router serves
/// without it, and says so: nobody's requests depend on it.
pub async fn subscribe(router: &Router) -> Result<(), ConnectError> {
    let subjects = [format!("{PREFIX}.*"), format!("{PREFIX}.*.{NAME}"), format!("{PREFIX}.*.{NAME}.{}", router.id)];
    for (number, subject) in NUMBERS.zip(&subjects) {
        router.intake.subscribe(number, subject, None);
    }
    match router.intake.barrier().await {
        Err(ConnectError::Permissions(problem)) => {
            tracing::warn!(
                problem,
                "the router can't be found as a NATS service: `nats micro ls` and `rankpin top` don't see it"
            );
            NUMBERS.for_each(|number| router.intake.unsubscribe(number));
            Ok(())
        }
        other => other,
    }
}

/// Takes a question. What the router is as a whole takes a moment to put together, elsewhere than on the hot thread;
/// where several ask at once, some are not answered.
pub fn take(router: &Arc<Router>, message: Message) {
    let Some(verb) = Verb::asked(message.subject(), &router.id) else { return };
    if !message.reply().is_some_and(|reply| router.may_reply_to(reply)) {
        return;
    }
    if verb != Verb::Stats {
        return answer(router, verb, &message);
    }
    if router.answering.fetch_add(1, Ordering::Relaxed) >= MAX_ANSWERING {
        router.answering.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let router = Arc::clone(router);
    let runtime = router.runtime.clone();
    runtime.spawn_blocking(move || {
        router.outlive(|| answer(&router, verb, &message));
        router.answering.fetch_sub(1, Ordering::Relaxed);
    });
}

fn answer(router: &Router, verb: Verb, message: &Message) {
    let Some(reply) = message.reply() else { return };
    let head = |kind: &str| Head {
        kind: format!("io.nats.micro.v1.{kind}_response"),
        name: NAME.into(),
        id: router.id.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        metadata: BTreeMap::from([(NAMESPACE.to_owned(), router.config.namespace.to_string())]),
    };
    let answer = match verb {
        Verb::Ping => Encoding::Json.encode(&head("ping")),
        Verb::Info => {
            let mut info = info(router, head("info"));
            let aliases = aliases(router);
            // Very many of them fit into no message: then they are known to routers alone, and served all the same.
            if !aliases.is_empty() && aliases.len() * 2 + 4 * MARGIN <= router.dispatch.max_payload() {
                info.head.metadata.insert(ALIASES.to_owned(), aliases);
            }
            Encoding::Json.encode(&info)
        }
        Verb::Stats => {
            let mut stats = stats(router, head("stats"));
            let answer = Encoding::Json.encode(&stats);
            if answer.len() + MARGIN <= router.dispatch.max_payload() {
                answer
            } else {
                // A large fleet: what is left is what the protocol itself asks for, and the router's own counts.
                for state in stats.endpoints.iter_mut().filter_map(|endpoint| endpoint.data.as_mut()) {
                    state.ranks_left_out += state.workers.iter().map(|worker| worker.ranks.len() as u64).sum::<u64>();
                    state.workers.clear();
                }
                Encoding::Json.encode(&stats)
            }
        }
    };
    let mut headers = Lines::new();
    headers.push(header::CONTENT_TYPE, "application/json");
    router.send(reply, None, &headers, Payload::from(answer.as_slice()));
}

/// The aliases as an object in JSON; empty where there are none.
fn aliases(router: &Router) -> String {
    if router.config.aliases.is_empty() {
        return String::new();
    }
    let targets = |targets: &[Target]| targets.iter().map(|target| target.model.as_str().to_owned()).collect();
    let all: BTreeMap<&str, Vec<String>> =
        router.config.aliases.iter().map(|(name, to)| (name.as_str(), targets(to))).collect();
    String::from_utf8(Encoding::Json.encode(&all)).unwrap_or_default()
}

fn info(router: &Router, head: Head) -> Info {
    let endpoint = |(name, subject): (&str, String)| Endpoint {
        name: name.into(),
        subject,
        queue_group: QUEUE.into(),
        metadata: BTreeMap::new(),
    };
    let endpoints = ENDPOINTS.into_iter().zip(router.subjects.intake()).map(endpoint).collect();
    Info {
        head,
        description: "Places every turn of a conversation on the worker and rank that has it cached".into(),
        endpoints,
    }
}

fn stats(router: &Router, head: Head) -> Stats {
    let state = router.view(router.is_up());
    let started = std::time::SystemTime::now() - router.started.elapsed();
    let accept = Duration::new(state.requests.accept_s, u32::try_from(state.requests.accept_ns).unwrap_or(0));
    let time = u64::try_from(accept.as_nanos()).unwrap_or(u64::MAX);
    let errors = state.requests.ended.iter().filter(|(outcome, _)| *outcome != "ok" && *outcome != "cancelled");
    let (num_requests, num_errors) = (state.requests.admitted, errors.map(|(_, count)| count).sum());
    let average = time.checked_div(state.requests.accepted).unwrap_or(0);
    let mut figures = Some((num_requests, num_errors, time, average, state));
    let endpoint = |(name, subject): (&str, String)| {
        let (num_requests, num_errors, processing_time, average_processing_time, data) =
            figures.take().map_or((0, 0, 0, 0, None), |(a, b, c, d, state)| (a, b, c, d, Some(state)));
        EndpointStats {
            name: name.into(),
            subject,
            queue_group: QUEUE.into(),
            num_requests,
            num_errors,
            last_error: String::new(),
            processing_time,
            average_processing_time,
            data,
        }
    };
    let endpoints = ENDPOINTS.into_iter().zip(router.subjects.intake()).map(endpoint).collect();
    Stats { head, started: humantime::format_rfc3339_seconds(started).to_string(), endpoints }
}
