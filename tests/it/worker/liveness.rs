//! Who listens, and whether the engine still works (protocol section 6.1).

use std::time::Duration;

use rankpin::wire::event::Outcome;

use super::{Field, error_code, next};
use crate::support::RawClient;

#[tokio::test]
async fn a_request_whose_frontend_is_gone_is_given_up() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("rank.0", "r", "endless", &[]).await;
    attempt.accepted().await;
    for seq in 0..3 {
        assert_eq!(attempt.reply().await.0.seq, Some(seq));
    }
    // Another one of the same id and attempt, whose frontend stays.
    let mut other = field.dispatch("rank.0", "r", "endless", &[]).await;
    other.accepted().await;
    attempt.replies.unsubscribe().await.expect("the client lives");
    attempt.finished(Outcome::Cancelled).await;
    for _ in 0..20 {
        assert!(!other.reply().await.0.last);
    }
    field.cancel("r", "1").await;
    other.finished(Outcome::Cancelled).await;
}

#[tokio::test]
async fn a_frontend_that_listens_to_the_end_gets_all_and_is_asked_nothing_that_it_has_to_answer() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("rank.0", "r", "endless", &[]).await;
    attempt.accepted().await;
    let mut asked = 0;
    let mut seq = 0;
    // Longer than a frontend that is gone is waited for.
    while asked < 12 {
        let message = next(&mut attempt.replies).await;
        let found = crate::support::frontend::find(&message, "Rankpin-Seq").and_then(|seq| seq.parse().ok());
        assert_eq!(found, Some(seq));
        seq += 1;
        asked += u32::from(message.reply.is_some());
    }
    field.cancel("r", "1").await;
    attempt.finished(Outcome::Cancelled).await;
}

#[tokio::test]
async fn what_is_published_where_the_worker_asks_harms_nobody() {
    let field = Field::new().await;
    let _worker = field.worker(0, 1).await;
    let mut attempt = field.dispatch("rank.0", "r", "endless", &[]).await;
    attempt.accepted().await;
    let first = next(&mut attempt.replies).await;
    let subject = first.reply.expect("the first part asks");
    let mut raw = RawClient::connect(&field.server).await;
    // A header block that kills the client library, a status that somebody else forges, and nonsense.
    for block in ["NATS/1.0\r\nA: x\ry\r\n\r\n", "NATS/1.0 503\r\n\r\n", "NATS/1.0\r\nno colon\r\n\r\n"] {
        raw.publish(&subject, None, block.as_bytes(), b"").await;
    }
    let mut seq = 1;
    let mut more = field.dispatch("rank.0", "s", "whole", &[]).await;
    more.accepted().await;
    more.finished(Outcome::Ok).await;
    while seq < 50 {
        assert_eq!(attempt.reply().await.0.seq, Some(seq), "nothing is lost");
        seq += 1;
    }
    field.cancel("r", "1").await;
    attempt.finished(Outcome::Cancelled).await;
}

#[tokio::test]
async fn an_engine_that_stops_in_the_middle_of_an_answer_is_given_up() {
    let field = Field::new().await;
    let _worker = field.worker_with_idle_timeout(Duration::from_millis(300)).await;
    let mut attempt = field.dispatch("rank.0", "r", "hang", &[]).await;
    attempt.accepted().await;
    assert_eq!(attempt.reply().await.1, "begun");
    let (head, body) = attempt.reply().await;
    assert!(head.last);
    assert_eq!(head.error, Some((504, "stream_idle".into())));
    assert_eq!(error_code(&body), "stream_idle");
    attempt.finished(Outcome::Error).await;
    // One that has not begun may take its time; one that goes on is left alone.
    let mut slow = field.dispatch("rank.0", "s", "deaf", &[]).await;
    let mut busy = field.dispatch("rank.0", "t", "endless", &[]).await;
    slow.accepted().await;
    busy.accepted().await;
    for _ in 0..50 {
        assert!(!busy.reply().await.0.last);
    }
    assert!(slow.is_silent());
    field.cancel("s", "1").await;
    field.cancel("t", "1").await;
    slow.finished(Outcome::Cancelled).await;
    busy.finished(Outcome::Cancelled).await;
}
