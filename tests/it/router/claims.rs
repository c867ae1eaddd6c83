//! Pins are claimed before a dispatch, so that replicas agree, and taken back where the request fails (protocol
//! section 5).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use rankpin::core::hash::PinKey;

use super::sessions_hashing_to;
use crate::support::server::Options;
use crate::support::{Ask, Behaviour, Cluster, NatsServer, PATIENCE, Worker};

async fn three_workers(cluster: &Cluster) -> Vec<Worker> {
    let mut workers = Vec::new();
    for (id, start) in [("a", 0), ("b", 4), ("c", 8)] {
        workers.push(cluster.worker(id).ranks(start, 4).start().await);
    }
    workers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_sessions_stay_where_they_are_whichever_router_takes_the_turn() {
    let cluster = Cluster::with(3, &[]).await;
    let workers = three_workers(&cluster).await;
    let mut places = BTreeMap::<usize, BTreeSet<String>>::new();
    for _ in 0..10 {
        let turns = (0..100).map(|n| {
            let cluster = &cluster;
            async move { (n, cluster.at(&format!("s{n}")).await) }
        });
        for (n, at) in join_all(turns).await {
            places.entry(n).or_default().insert(at);
        }
    }
    let hopped: Vec<_> = places.values().filter(|places| places.len() > 1).collect();
    assert!(hopped.is_empty(), "{hopped:?}");
    assert!(places.values().flatten().all(|at| !at.contains(' ')), "{places:?}");
    assert!(workers.iter().all(|worker| worker.count() > 0));
    let mut taken = Vec::new();
    for router in &cluster.routers {
        taken.push(router.metric("requests_admitted").await);
    }
    assert!(taken.iter().all(|taken| *taken > 0.0), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_first_turns_at_once_get_one_placement() {
    let cluster = Cluster::with(3, &[]).await;
    let _workers = three_workers(&cluster).await;
    for round in 0..6 {
        let session = format!("first-{round}");
        let turns = join_all((0..50).map(|_| cluster.at(&session))).await;
        let places: BTreeSet<_> = turns.into_iter().collect();
        assert_eq!(places.len(), 1, "{places:?}");
        assert_eq!(cluster.pinned_at(&session).await.as_ref(), places.first());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_dispatch_fails_while_another_router_follows_it_gives_one_placement() {
    let cluster = Cluster::with(2, &[("accept_timeout", "1s")]).await;
    for round in 0..3 {
        // Nobody hears the claimant's first attempt; those that follow its pin are served.
        let behaviour = Behaviour::script(|dispatch| async move {
            if dispatch.header("Rankpin-Decision") != Some("placed") {
                dispatch.accept().await;
                dispatch.answer().await;
            }
        });
        let mut workers = Vec::new();
        for id in [format!("a{round}"), format!("b{round}")] {
            workers.push(cluster.worker(&id).ranks(0, 2).behaves(behaviour.clone()).start().await);
        }
        let session = format!("s{round}");
        let turns = join_all((0..12).map(|_| cluster.at(&session))).await;
        let places: BTreeSet<_> = turns.into_iter().collect();
        assert_eq!(places.len(), 1, "{places:?}");
        assert_eq!(Some(&cluster.at(&session).await), places.first());
        assert_eq!(cluster.pinned_at(&session).await.as_ref(), places.first());
        for worker in &mut workers {
            worker.deregister().await;
        }
        cluster.knows_workers(0).await;
    }
}

/// No pin stands in the bucket, and the next turn of the session is a first one.
async fn left_nothing(cluster: &Cluster, session: &str, what: &str) {
    assert_eq!(cluster.pin(session).await, None, "{what}");
}

#[tokio::test]
async fn a_failed_request_leaves_no_pin() {
    let cluster = Cluster::with(1, &[("accept_timeout", "1s")]).await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let failures = [
        (Behaviour::Reject(400, "bad"), "400 bad"),
        (Behaviour::Reject(404, "missing"), "404 missing"),
        (Behaviour::Reject(429, "overloaded"), "429 overloaded"),
        (Behaviour::Reject(503, "draining"), "503 no_worker"),
        (Behaviour::Silent, "504 accept_timeout"),
    ];
    for (n, (behaviour, wanted)) in failures.into_iter().enumerate() {
        worker.behave(behaviour);
        let session = format!("s{n}");
        let ask = Ask::new().session(&session);
        assert_eq!(cluster.ask(ask.timeout_ms(1200)).await.at(), wanted);
        left_nothing(&cluster, &session, wanted).await;
        worker.behave(Behaviour::Answer);
        assert_eq!(cluster.turn(&session).await.decision(), "placed", "after {wanted}");
    }
    worker.behave(Behaviour::Silent);
    let ask = Ask::new().session("deadline").header("Rankpin-Deadline-Ms", "100");
    assert_eq!(cluster.ask(ask).await.at(), "504 deadline");
    left_nothing(&cluster, "deadline", "deadline").await;
    let sent = cluster.send(Ask::new().session("cancelled").id("c")).await;
    worker.dispatch(worker.count()).await;
    cluster.cancel("c").await;
    assert_eq!(sent.end().await.at(), "499 cancelled");
    left_nothing(&cluster, "cancelled", "cancelled").await;
}

#[tokio::test]
async fn a_claim_follows_its_request_from_worker_to_worker() {
    let cluster = Cluster::start().await;
    let mut refusing = Vec::new();
    for id in ["a", "b", "c"] {
        refusing.push(cluster.worker(id).behaves(Behaviour::Reject(503, "draining")).start().await);
    }
    let good = cluster.worker("d").ranks(4, 4).start().await;
    for n in 0..8 {
        let session = format!("s{n}");
        let at = super::hashed_at("d", &session, 4, 4);
        assert_eq!(cluster.at(&session).await, at);
        assert_eq!(cluster.pinned_at(&session).await, Some(at));
    }
    assert_eq!(good.count(), 8);
    assert!(refusing.iter().all(|worker| worker.count() > 0));
}

#[tokio::test]
async fn a_pin_put_in_place_of_a_lost_workers_goes_where_the_request_fails() {
    let cluster = Cluster::start().await;
    let _w = cluster.worker("w").behaves(Behaviour::Reject(400, "bad")).start().await;
    cluster.put_pin("s", "gone", Some(3)).await;
    assert_eq!(cluster.at("s").await, "400 bad");
    left_nothing(&cluster, "s", "the pin of a lost worker").await;
}

#[tokio::test]
async fn a_failed_request_never_touches_a_pin_that_was_there() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let session = sessions_hashing_to(1, 2).next().expect("there are many");
    assert_eq!(cluster.at(&session).await, "w/1");
    let before = cluster.pin(&session).await;
    for (behaviour, wanted) in
        [(Behaviour::Reject(400, "bad"), "400 bad"), (Behaviour::Reject(429, "overloaded"), "429 overloaded")]
    {
        worker.behave(behaviour);
        assert_eq!(cluster.ask(Ask::new().session(&session).timeout_ms(1000)).await.at(), wanted);
        assert_eq!(cluster.pin(&session).await, before, "{wanted}");
    }
    worker.behave(Behaviour::Answer);
    assert_eq!(cluster.turn(&session).await.told(), "w/1 pinned");
}

/// A cluster whose server brings what is written under the key of session `s` to the test, which answers in the bucket's place.
async fn bucket_in_hand() -> (Cluster, Subscriber) {
    let key = PinKey::of("", "m", "s");
    let config = format!("mappings: {{ \"$KV.rankpin_pins.{key}\": \"hand\" }}\n");
    let cluster = Cluster::on(NatsServer::start_with(Options { config, ..Options::default() }), 1, &[]).await;
    let hand = cluster.subscribe("hand").await;
    (cluster, hand)
}

async fn next_write(hand: &mut Subscriber) -> Message {
    tokio::time::timeout(PATIENCE, hand.next()).await.expect("something is written").expect("the subscription stands")
}

/// What is written before something has ended, if anything is.
async fn next_write_before<T>(hand: &mut Subscriber, ended: impl Future<Output = T>) -> Option<Message> {
    tokio::select! {
        biased;
        write = hand.next() => Some(write.expect("the subscription stands")),
        _ = ended => None,
    }
}

async fn answer_write(cluster: &Cluster, write: &Message, answer: &str) {
    let reply = write.reply.clone().expect("whoever writes wants an answer");
    cluster.client.publish(reply, answer.to_owned().into()).await.expect("is published");
}

fn expected(write: &Message) -> &str {
    let headers = write.headers.as_ref().expect("a compare-and-set");
    headers.get("Nats-Expected-Last-Subject-Sequence").expect("a compare-and-set").as_str()
}

#[tokio::test]
async fn a_request_that_is_cancelled_while_its_pin_is_put_gives_it_back() {
    let (cluster, mut hand) = bucket_in_hand().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    // Where the test or the bucket takes too long, nothing is known to be put, and nothing given back.
    for n in 0.. {
        assert!(n < 20, "no answer came in time");
        let id = format!("r{n}");
        let mut ended = pin!(cluster.send(Ask::new().session("s").id(&id)).await.end());
        let Some(claim) = next_write_before(&mut hand, &mut ended).await else { continue };
        assert_eq!(expected(&claim), "0");
        cluster.cancel(&id).await;
        crate::support::settle(&cluster.client).await;
        answer_write(&cluster, &claim, r#"{"stream":"KV_rankpin_pins","seq":7}"#).await;
        let Some(given_back) = next_write_before(&mut hand, &mut ended).await else { continue };
        assert_eq!(expected(&given_back), "7");
        let operation = given_back.headers.as_ref().and_then(|headers| headers.get("KV-Operation"));
        assert_eq!(operation.map(async_nats::HeaderValue::as_str), Some("DEL"));
        answer_write(&cluster, &given_back, r#"{"stream":"KV_rankpin_pins","seq":8}"#).await;
        break;
    }
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    assert_eq!(worker.count(), 0);
}

#[tokio::test]
async fn a_bucket_that_does_not_answer_to_a_claim_is_left_aside_and_its_late_answer_too() {
    let (cluster, mut hand) = bucket_in_hand().await;
    let _w = cluster.worker("w").ranks(0, 2).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    let claim = next_write(&mut hand).await;
    let told = sent.end().await.told();
    assert!(told.ends_with(" placed,bucket-unreachable"), "{told}");
    answer_write(&cluster, &claim, r#"{"stream":"KV_rankpin_pins","seq":7}"#).await;
    assert_eq!(cluster.turn("other").await.decision(), "placed");
    assert_eq!(cluster.turn("other").await.decision(), "pinned");
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
    cluster.routers[0].reaches("malformed", 0.0).await;
}

#[tokio::test]
async fn what_is_no_answer_to_a_claim_is_none() {
    let (cluster, mut hand) = bucket_in_hand().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let answers = ["", "{}", r#"{"seq":-1}"#, r#"{"error":{"code":503,"err_code":10077,"description":"full"}}"#];
    for (n, answer) in answers.into_iter().enumerate() {
        let sent = cluster.send(Ask::new().session("s")).await;
        // As often as a pin is contested.
        for _ in 0..3 {
            let claim = next_write(&mut hand).await;
            answer_write(&cluster, &claim, answer).await;
        }
        let told = sent.end().await.told();
        assert!(told.ends_with(" placed,bucket-unreachable"), "{answer}: {told}");
        assert_eq!(worker.count(), n + 1);
    }
    cluster.routers[0].reaches("requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn nobody_but_the_bucket_answers_a_claim() {
    let (cluster, mut hand) = bucket_in_hand().await;
    let worker = cluster.worker("w").ranks(0, 2).start().await;
    let sent = cluster.send(Ask::new().session("s")).await;
    let claim = next_write(&mut hand).await;
    let reply = claim.reply.clone().expect("whoever writes wants an answer");
    // A worker may publish there, and knows all of it but the end.
    let (known, _) = reply.rsplit_once('-').expect("it ends in a token");
    for guess in [known.to_owned(), format!("{known}-0"), format!("{known}-1"), format!("{known}-x")] {
        let answer = r#"{"stream":"KV_rankpin_pins","seq":7}"#;
        cluster.client.publish(guess, answer.into()).await.expect("is published");
    }
    crate::support::settle(&cluster.client).await;
    cluster.routers[0].reaches("malformed", 4.0).await;
    assert_eq!(worker.count(), 0, "it is not sent before its pin stands");
    let told = sent.end().await.told();
    assert!(told.ends_with(" placed,bucket-unreachable"), "{told}");
}
