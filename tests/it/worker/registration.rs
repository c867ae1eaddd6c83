//! Keeping and giving up a name.

use super::*;
use crate::support::server::Options;

#[tokio::test]
async fn a_drain_lets_running_requests_end_and_refuses_new_ones() {
    let field = Field::new().await;
    let worker = field.worker(0, 1).await;
    let mut running = field.dispatch("any", "r1", "hang", &[]).await;
    running.accepted().await;
    let drained = tokio::spawn(worker.drain(PATIENCE));
    eventually("the registration says draining", PATIENCE, async || {
        let state = field.registration().await?.state;
        (state == rankpin::wire::registration::State::Draining).then_some(())
    })
    .await;
    let mut refused = field.dispatch("any", "r2", "whole", &[]).await;
    assert_eq!(refused.rejected().await, (503, "draining".into()));
    field.cancel("r1", "1").await;
    running.finished(Outcome::Cancelled).await;
    let drained = drained.await.expect("it ends").expect("it drains");
    assert_eq!(drained.cut_off, 0);
    assert_eq!(field.revision().await, None, "the key is deleted");
    let mut gone = field.dispatch("any", "r3", "whole", &[]).await;
    assert_eq!(next(&mut gone.events).await.status.map(|s| s.as_u16()), Some(503));
    // Its name is free at once.
    let _next = field.worker(0, 1).await;
}

#[tokio::test]
async fn a_drain_cuts_off_what_does_not_end() {
    let field = Field::new().await;
    let worker = field.worker(0, 1).await;
    let mut running = field.dispatch("any", "r1", "deaf", &[]).await;
    running.accepted().await;
    let drained = worker.drain(Duration::from_millis(50)).await.expect("it drains");
    assert_eq!(drained.cut_off, 1);
    let (end, _) = running.reply().await;
    assert_eq!((end.last, end.error), (true, Some((503, "shutting_down".into()))));
    running.finished(Outcome::Error).await;
}

#[tokio::test]
async fn a_name_is_taken_over_only_after_three_seconds() {
    let field = Field::new().await;
    let dead = serde_json::to_vec(&Registration::new("w", "dead", &["m"], 0, 1)).expect("plain data");
    field.bucket.put("w", dead.into()).await.expect("stored");
    let began = Instant::now();
    let worker = field.worker(0, 1).await;
    assert!(began.elapsed() >= Duration::from_secs(3), "took the name after {:?}", began.elapsed());
    assert_eq!(field.registration().await.expect("registered").instance, worker.instance());
}

#[tokio::test]
async fn a_second_live_instance_is_refused_and_disturbs_nobody() {
    let field = Field::new().await;
    let first = field.worker(0, 1).await;
    let second = tokio::spawn(Worker::start(field.options(0, 1), Scripted));
    // Requests go to the first one all the while.
    while !second.is_finished() {
        let mut attempt = field.dispatch("rank.0", "r", "whole", &[]).await;
        attempt.accepted().await;
        attempt.finished(Outcome::Ok).await;
        settle(&field.client).await;
        assert!(attempt.is_silent() || attempt.is_silent(), "nobody answers twice");
    }
    match second.await.expect("no panic") {
        Err(WorkerError::NameTaken { by, .. }) => assert!(by.contains(first.instance()), "{by}"),
        other => panic!("awaited NameTaken, came {other:?}"),
    }
}

#[tokio::test]
async fn a_worker_that_lost_its_name_stops() {
    let field = Field::new().await;
    let mut worker = field.worker(0, 1).await;
    let other = serde_json::to_vec(&Registration::new("w", "other", &["m"], 0, 1)).expect("plain data");
    field.bucket.put("w", other.into()).await.expect("stored");
    match tokio::time::timeout(PATIENCE, worker.failed()).await.expect("it notices") {
        WorkerError::NameLost { to, .. } => assert!(to.contains("other"), "{to}"),
        error => panic!("awaited NameLost, came {error:?}"),
    }
    // The end is told before the last subscription is gone at the server.
    let nobody = async || {
        let mut attempt = field.dispatch("any", "r", "whole", &[]).await;
        let answer = tokio::time::timeout(Duration::from_millis(200), attempt.events.next()).await.ok()??;
        (answer.status.map(|s| s.as_u16()) == Some(503)).then_some(())
    };
    eventually("nobody listens any more", PATIENCE, nobody).await;
    assert_eq!(field.registration().await.expect("the other's stands").instance, "other");
}

/// A server answers wherever it is told to: what it says may come to stand under a worker's key, and on its subject of drains.
#[tokio::test]
async fn what_is_no_registration_and_no_drain_costs_a_worker_nothing() {
    let field = Field::new().await;
    let worker = field.worker(0, 1).await;
    for _ in 0..50 {
        field.bucket.put("w", r#"{"server":{"name":"n"},"data":{"user":"web"}}"#.into()).await.expect("stored");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    field.client.publish("rankpin.worker.w.drain", r#"{"server":{"name":"n"}}"#.into()).await.expect("published");
    let again = async || {
        let registration = field.registration().await?;
        (registration.instance == worker.instance()).then_some(registration.state)
    };
    let state = eventually("it is registered again", PATIENCE, again).await;
    assert_eq!(state, rankpin::wire::registration::State::Ready);
    let mut served = field.dispatch("any", "r", "whole", &[]).await;
    served.accepted().await;
}

#[tokio::test]
async fn the_put_goes_on_after_deletion_expiry_and_a_bucket_made_anew() {
    let field = Field::new().await;
    let worker = field.worker(0, 1).await;
    let registered_beyond = async |revision: u64| {
        eventually("it is registered again", PATIENCE, async || field.revision().await.filter(|now| *now > revision))
            .await
    };
    let first = field.revision().await.expect("registered");
    let second = registered_beyond(first).await;
    field.bucket.delete("w").await.expect("deleted");
    registered_beyond(second + 1).await;
    // Expiry leaves nothing behind, not even a marker.
    let stream = async_nats::jetstream::new(field.client.clone()).get_stream("KV_rankpin_workers").await;
    stream.expect("it is there").purge().await.expect("purged");
    eventually("it is registered again", PATIENCE, async || field.revision().await).await;

    let context = async_nats::jetstream::new(field.client.clone());
    context.delete_key_value("rankpin_workers").await.expect("deleted");
    let bucket = make_bucket(&field.client).await;
    let value =
        eventually("it is registered again", PATIENCE, async || bucket.get("w").await.expect("the bucket answers"))
            .await;
    let registration: Registration = serde_json::from_slice(&value).expect("a registration");
    assert_eq!(registration.instance, worker.instance());
}

#[tokio::test]
async fn a_worker_waits_for_its_bucket_and_survives_its_server() {
    let mut server = NatsServer::start();
    let client = server.client().await;
    let options = {
        let ranks = RankRange::new(0, 1).expect("valid");
        let link = LinkOptions::new(&server.url(), "test-worker");
        let (ns, id) = (Namespace::new("rankpin").expect("valid"), WorkerId::new("w").expect("valid"));
        WorkerOptions::new(link, ns, id, vec![Model::new("m").expect("valid")], ranks)
    };
    let started = tokio::spawn(start_worker(options));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!started.is_finished(), "there is no bucket yet");
    let bucket = make_bucket(&client).await;
    let _worker = started.await.expect("it starts");
    let before = bucket.entry("w").await.expect("the bucket answers").expect("registered").revision;
    server.restart();
    eventually("the put goes on", PATIENCE, async || {
        let entry = bucket.entry("w").await.ok()??;
        (entry.revision > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_user_that_may_publish_its_own_key_and_no_more_can_be_a_worker() {
    let config = r#"authorization { users: [
        { user: admin, password: admin }
        { user: worker, password: worker, permissions: {
            publish: ["$KV.rankpin_workers.w", "rankpin.load.w", "_INBOX.>"]
            subscribe: ["rankpin.worker.w.>", "_INBOX.>"] } }
    ] }"#;
    let options = Options { config: config.into(), ..Default::default() };
    let server = NatsServer::start_with(options);
    let client = server.client_as("admin", "admin").await;
    let bucket = make_bucket(&client).await;
    let field = Field { client, bucket, server };
    let mut options = field.options(0, 1);
    let url = field.server.url().replace("nats://", "nats://worker:worker@");
    options.link = LinkOptions::new(&url, "test-worker");
    let worker = start_worker(options.clone()).await;
    let first = field.revision().await.expect("registered");
    eventually("the put goes on", PATIENCE, async || field.revision().await.filter(|now| *now > first)).await;
    drop(worker);
    let successor = start_worker(options).await;
    assert_eq!(field.registration().await.expect("registered").instance, successor.instance());
    successor.drain(PATIENCE).await.expect("it drains");
    assert_eq!(field.revision().await, None);
}
