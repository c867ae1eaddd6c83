//! The life of a request at a worker, and what comes in besides requests.

use super::*;
use crate::support::RawClient;
use crate::support::frontend::find;
use crate::support::server::Options;

#[tokio::test]
async fn a_request_is_accepted_streamed_and_finished() {
    let field = Field::new().await;
    let worker = field.worker(4, 2).await;
    let registration = field.registration().await.expect("registered");
    assert_eq!(registration, Registration::new("w", worker.instance(), &["m"], 4, 2));

    let mut attempt = field.dispatch("rank.5", "r1", "stream", &[("Rankpin-Attempt", "2")]).await;
    attempt.accepted().await;
    let (first, payload) = attempt.reply().await;
    let head = ReplyHead { request_id: Some("r1".into()), seq: Some(0), attempt: Some(2), ..ReplyHead::default() };
    let placed = ReplyHead {
        worker: Some("w".into()),
        dp_rank: Some(5),
        decision: Some("placed".into()),
        content_type: Some("application/json".into()),
        ..head.clone()
    };
    assert_eq!((first, &payload[..]), (placed, &b"a"[..]));
    let (second, _) = attempt.reply().await;
    assert_eq!(second, ReplyHead { seq: Some(1), ..head.clone() });
    let (last, payload) = attempt.reply().await;
    assert_eq!((last, payload.len()), (ReplyHead { seq: Some(2), last: true, ..head }, 0));
    assert_eq!(attempt.finished(Outcome::Ok).await.prompt_tokens, Some(6));

    let mut attempt = field.dispatch("any", "r2", "whole", &[]).await;
    attempt.accepted().await;
    let (only, payload) = attempt.reply().await;
    assert_eq!((only.seq, only.last, only.dp_rank, &payload[..]), (Some(0), true, None, &b"all"[..]));
    attempt.finished(Outcome::Ok).await;
}

#[tokio::test]
async fn only_declared_ranks_are_listened_to() {
    let field = Field::new().await;
    let _worker = field.worker(4, 2).await;
    for (subject, listens) in [("rank.3", false), ("rank.4", true), ("rank.5", true), ("rank.6", false), ("any", true)]
    {
        let mut attempt = field.dispatch(subject, "r", "whole", &[]).await;
        let message = next(&mut attempt.events).await;
        assert_eq!(message.status.is_none(), listens, "{subject}");
    }
}

#[tokio::test]
async fn a_cancel_ends_the_stream_with_499() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("any", "r", "hang", &[("Rankpin-Attempt", "3")]).await;
    attempt.accepted().await;
    attempt.reply().await;
    field.cancel("r", "2").await;
    let mut probe = HeaderMap::new();
    probe.insert("Rankpin-Probe", "1");
    field.client.publish_with_headers("rankpin.worker.w.cancel", probe, Bytes::new()).await.expect("published");
    field.cancel("r", "3").await;
    let (end, payload) = attempt.reply().await;
    assert_eq!((end.last, end.seq, end.error), (true, Some(1), Some((499, "cancelled".into()))));
    assert_eq!(error_code(&payload), "cancelled");
    assert_eq!(attempt.finished(Outcome::Cancelled).await.output_tokens, Some(7), "the engine's figures are kept");

    let mut attempt = field.dispatch("any", "r", "deaf", &[]).await;
    attempt.accepted().await;
    field.cancel("r", "1").await;
    assert_eq!(attempt.reply().await.0.error, Some((499, "cancelled".into())), "an engine that is deaf is dropped");
    attempt.finished(Outcome::Cancelled).await;
}

#[tokio::test]
async fn a_failing_engine_ends_its_own_request_alone() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("any", "r1", "panic", &[]).await;
    attempt.accepted().await;
    let (end, payload) = attempt.reply().await;
    assert_eq!((end.seq, end.last, end.error), (Some(0), true, Some((500, "worker_error".into()))));
    assert_eq!(error_code(&payload), "worker_error");
    attempt.finished(Outcome::Error).await;

    let mut attempt = field.dispatch("any", "r2", "refuse", &[]).await;
    attempt.accepted().await;
    assert_eq!(attempt.rejected().await, (400, "invalid_request".into()));

    let mut attempt = field.dispatch("any", "r3", "refuse late", &[]).await;
    attempt.accepted().await;
    attempt.reply().await;
    let (end, _) = attempt.reply().await;
    assert_eq!((end.last, end.error, end.retry_after_s), (true, Some((429, "overloaded".into())), Some(1)));
    attempt.finished(Outcome::Error).await;
}

#[tokio::test]
async fn a_reply_that_a_message_does_not_hold_goes_on_in_the_next_ones() {
    let options = Options { config: "max_payload: 2048".into(), ..Default::default() };
    let field = Field::on(NatsServer::start_with(options)).await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("any", "r", "large", &[]).await;
    attempt.accepted().await;
    let mut whole = 0;
    for seq in 0.. {
        let (head, payload) = attempt.reply().await;
        assert_eq!((head.error, head.seq, head.continues), (None, Some(seq), !head.last));
        whole += payload.len();
        if head.last {
            break;
        }
    }
    assert_eq!(whole, 4096);
    attempt.finished(Outcome::Ok).await;
}

#[tokio::test]
async fn a_full_rank_refuses() {
    let field = Field::new().await;
    let options = WorkerOptions { max_inflight: Some(1), ..field.options(0, 2) };
    let _worker = start_worker(options).await;
    let mut held = field.dispatch("rank.0", "r1", "hang", &[]).await;
    held.accepted().await;
    let mut refused = field.dispatch("rank.0", "r2", "whole", &[]).await;
    assert_eq!(refused.rejected().await, (429, "overloaded".into()));
    let mut other = field.dispatch("rank.1", "r3", "whole", &[]).await;
    other.accepted().await;
    other.finished(Outcome::Ok).await;
    field.cancel("r1", "1").await;
    held.finished(Outcome::Cancelled).await;
    let mut next = field.dispatch("rank.0", "r4", "whole", &[]).await;
    next.accepted().await;
}

#[tokio::test]
async fn what_came_too_late_is_never_accepted() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let late_by = |ms: u128| (unix_ms() - ms).to_string();

    let mut expired = field.dispatch("any", "r1", "whole", &[("Rankpin-Accept-By", &late_by(2500))]).await;
    // Late within the skew, and the router's cancel is right behind.
    let mut given_up = field.dispatch("any", "r2", "whole", &[("Rankpin-Accept-By", &late_by(500))]).await;
    field.cancel("r2", "1").await;
    // A cancel may overtake its dispatch, which came on another subscription.
    field.cancel("r3", "1").await;
    settle(&field.client).await;
    let mut overtaken = field.dispatch("any", "r3", "whole", &[("Rankpin-Accept-By", &late_by(500))]).await;
    // Late within the skew, and wanted.
    let mut skewed = field.dispatch("any", "r4", "whole", &[("Rankpin-Accept-By", &late_by(500))]).await;
    skewed.accepted().await;
    skewed.finished(Outcome::Ok).await;
    // That one was held for longer than any of these can be.
    for attempt in [&mut expired, &mut given_up, &mut overtaken] {
        assert!(attempt.is_silent());
    }
}

#[tokio::test]
async fn load_is_reported_on_change_and_otherwise_every_second() {
    let field = Field::new().await;
    let mut reports = field.client.subscribe("rankpin.load.w").await.expect("subscribed");
    settle(&field.client).await;
    let worker = field.worker(4, 2).await;
    let read = async |reports: &mut Subscriber| {
        let message = next(reports).await;
        LoadReport::parse(Encoding::Json, &message.payload).expect("a report")
    };
    let first = read(&mut reports).await;
    assert_eq!((first.seq, first.instance.as_str()), (1, worker.instance()));
    assert_eq!(first.ranks.iter().map(|r| (r.rank, r.inflight)).collect::<Vec<_>>(), [(DpRank(4), 0), (DpRank(5), 0)]);
    let mut running = field.dispatch("rank.5", "r", "hang", &[]).await;
    running.accepted().await;
    let mut last = first.seq;
    for inflight in [1, 0] {
        loop {
            let report = read(&mut reports).await;
            assert_eq!(report.seq, last + 1);
            last = report.seq;
            if report.ranks[1].inflight == inflight {
                break;
            }
        }
        field.cancel("r", "1").await;
    }
    // Nothing changes any more; reports still come.
    assert_eq!(read(&mut reports).await.seq, last + 1);
}

#[tokio::test]
async fn a_header_block_that_breaks_clients_is_refused_and_disturbs_nobody() {
    let field = Field::new().await;
    let worker = field.worker(0, 2).await;
    let mut raw = RawClient::connect(&field.server).await;
    let mut running = field.dispatch("rank.1", "running", "hang", &[]).await;
    running.accepted().await;
    for poison in
        [&b"NATS/1.0\r\nName: a\rb\r\n\r\n"[..], b"NATS/1.0\r\nName: \xff\xfe\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n"]
    {
        let mut told = field.client.subscribe("told").await.expect("subscribed");
        settle(&field.client).await;
        raw.publish("rankpin.worker.w.rank.0", Some("told"), poison, b"whole").await;
        let refusal = next(&mut told).await;
        assert_eq!(find(&refusal, "Rankpin-Event"), Some("rejected"));
        assert_eq!(find(&refusal, "Nats-Service-Error-Code"), Some("400"));
        // Neither a server's API nor a bucket is told of anything.
        raw.publish("rankpin.worker.w.rank.0", Some("$KV.b.k"), poison, b"whole").await;
        let mut attempt = field.dispatch("rank.0", "r", "whole", &[]).await;
        attempt.accepted().await;
        attempt.finished(Outcome::Ok).await;
    }
    // What ran goes on, and can still be cancelled.
    field.cancel("running", "1").await;
    assert_eq!(running.reply().await.1, "begun");
    running.finished(Outcome::Cancelled).await;
    assert_eq!(field.registration().await.expect("registered").instance, worker.instance());
}

#[tokio::test]
async fn what_names_no_reply_subject_is_served_and_what_names_a_wrong_one_is_not() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut bucket_writes = field.client.subscribe("$KV.>").await.expect("subscribed");
    settle(&field.client).await;
    field.client.publish("rankpin.worker.w.any", "whole".into()).await.expect("published");
    let mut headers = HeaderMap::new();
    headers.insert("Rankpin-Reply-To", "$KV.rankpin_pins.x");
    field.client.publish_with_headers("rankpin.worker.w.any", headers, "whole".into()).await.expect("published");
    field
        .client
        .publish_with_reply("rankpin.worker.w.any", "$KV.rankpin_pins.x", "whole".into())
        .await
        .expect("published");
    let mut attempt = field.dispatch("any", "r", "whole", &[]).await;
    attempt.accepted().await;
    attempt.finished(Outcome::Ok).await;
    // Up to the second of two puts of the registration nothing else went into a bucket.
    for _ in 0..2 {
        assert_eq!(next(&mut bucket_writes).await.subject.as_str(), "$KV.rankpin_workers.w");
    }
}
