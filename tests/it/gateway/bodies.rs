//! Bodies that a message can't hold.

use async_nats::jetstream;
use futures_util::StreamExt as _;
use rankpin::core::id::{Model, Namespace, RankRange, WorkerId};
use rankpin::nats::LinkOptions;
use rankpin::wire::event::{Finished, Outcome};
use rankpin::worker::{Engine, EngineRequest, Failure, ReplyStream, Worker, WorkerOptions};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

use super::Gateway;
use crate::support::{Ask, Behaviour, Cluster, PATIENCE, eventually, http};

const CHAT: &str = "/v1/chat/completions";
const KB: usize = 1024;
const MB: usize = 1024 * KB;

/// An engine that says what it was sent.
struct Witness;

impl Engine for Witness {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        let told = json!({
            "size": request.payload.len(), "hash": xxh3_64(&request.payload).to_string(),
            "claimed": request.headers.find("Rankpin-Body").is_some(),
        });
        replies.finish(told.to_string().into()).await?;
        Ok(Finished::outcome(Outcome::Ok))
    }
}

async fn witness(cluster: &Cluster, ranks: u32) -> Worker {
    let options = WorkerOptions::new(
        LinkOptions::new(&cluster.server.url(), "witness"),
        Namespace::new("rankpin").expect("valid"),
        WorkerId::new("w").expect("valid"),
        vec![Model::new("m").expect("valid")],
        RankRange::new(0, ranks).expect("valid"),
    );
    let worker = Worker::start(options, Witness).await.expect("it starts");
    cluster.knows_workers(1).await;
    worker
}

/// A conversation whose first message makes it as long as this, with these turns behind it.
fn conversation(size: usize, turns: usize) -> Vec<u8> {
    let body = |filler: &str| {
        let image = format!("data:image/png;base64,{filler}");
        let part = json!({"type": "image_url", "image_url": {"url": image}});
        let mut messages = vec![json!({"role": "user", "content": [part]})];
        for turn in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("question {turn}")}));
        }
        json!({"model": "m", "messages": messages}).to_string()
    };
    let rest = body("").len();
    body(&"iVBORw0KGgo".repeat(size / 11 + 1)[..size - rest]).into_bytes()
}

async fn left(cluster: &Cluster) -> usize {
    let context = jetstream::new(cluster.client.clone());
    let Ok(store) = context.get_object_store("rankpin_bodies").await else { return 0 };
    store.list().await.expect("can be listed").count().await
}

#[tokio::test]
async fn bodies_of_every_size_reach_the_engine_byte_for_byte_and_nothing_of_them_stays() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _worker = witness(&cluster, 1).await;
    let sizes = [2 * KB, MB - 9 * KB, MB - 8 * KB, MB - KB, MB + KB, 8 * MB, 45 * MB];
    for size in sizes {
        let body = conversation(size, 1);
        let answer = http::send(gateway.address, "POST", CHAT, &[], &body).await;
        let expected = json!({"size": size, "hash": xxh3_64(&body).to_string(), "claimed": false});
        assert_eq!((answer.status, answer.json()), (200, expected), "{size}");
    }
    assert_eq!(gateway.metric("rankpin_gateway_large_bodies_total").await, 5.0);
    eventually("the bodies are deleted", PATIENCE, async || (left(&cluster).await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_conversation_is_followed_from_small_bodies_to_large_ones_without_a_name() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _worker = witness(&cluster, 8).await;
    // The same first message; what makes the body large comes with a later turn.
    let turn = |turns: usize, last: &str| {
        let mut messages = vec![json!({"role": "user", "content": "begin"})];
        for turn in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("question {turn} {last}")}));
        }
        json!({"model": "m", "messages": messages})
    };
    let large = "x".repeat(2 * MB);
    let mut ranks = Vec::new();
    for (turns, last) in [(0, ""), (1, large.as_str()), (2, large.as_str()), (3, large.as_str())] {
        let answer = gateway.post(CHAT, &turn(turns, last)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let decision = answer.header("x-rankpin-decision").expect("a decision").to_owned();
        assert_eq!(decision, if turns == 0 { "placed,derived" } else { "pinned,derived" }, "turn {turns}");
        ranks.push(answer.header("x-rankpin-dp-rank").expect("a rank").to_owned());
        cluster.mirrors_pins().await;
    }
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
}

#[tokio::test]
async fn where_the_object_store_is_off_large_bodies_are_refused_with_the_limit() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[("large_bodies", "refuse")]).await;
    let _worker = witness(&cluster, 1).await;
    let mut tap = cluster.subscribe(">").await;
    let answer = http::send(gateway.address, "POST", CHAT, &[], &conversation(MB + KB, 0)).await;
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (413, &"payload_too_large".into()));
    assert!(error["message"].as_str().is_some_and(|words| words.contains("1048576")), "{error}");
    let seen = crate::support::so_far(&cluster.client, &mut tap).await;
    let requests = seen.iter().filter(|message| message.subject.starts_with("rankpin.request"));
    assert_eq!(requests.count(), 0);
    assert_eq!(http::send(gateway.address, "POST", CHAT, &[], &conversation(MB - 9 * KB, 0)).await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_gone_or_another_is_told() {
    let cluster = Cluster::start().await;
    let _worker = witness(&cluster, 1).await;
    let digest = "xxh3-128=00000000000000000000000000000000";
    let ask = |object: &'static str| {
        Ask::new().header("Rankpin-Body", object).header("Rankpin-Body-Size", "4").header("Rankpin-Body-Digest", digest)
    };
    assert_eq!(cluster.ask(ask("nothing")).await.at(), "404 body_missing");
    let context = jetstream::new(cluster.client.clone());
    let config = jetstream::object_store::Config { bucket: "rankpin_bodies".into(), ..Default::default() };
    let store = context.create_object_store(config).await.expect("is made");
    store.put("other", &mut &b"body"[..]).await.expect("is stored");
    assert_eq!(cluster.ask(ask("other")).await.at(), "400 invalid_request");
    assert_eq!(cluster.ask(ask("no.name")).await.at(), "400 invalid_request");
}

#[tokio::test]
async fn keys_count_only_where_gateways_publish() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").ranks(0, 4).behaves(Behaviour::Answer).start().await;
    let keys = "0000000000000001,0000000000000002,0000000000000003;1";
    let headers = [("Rankpin-Body", "b"), ("Rankpin-Body-Size", "4"), ("Rankpin-Prefix-Keys", keys)];
    let publish = async |subject: &str, more: &[(&str, &str)]| {
        let mut map = async_nats::HeaderMap::new();
        headers.iter().chain(more).for_each(|(name, value)| map.insert(*name, *value));
        let inbox = cluster.client.new_inbox();
        let mut replies = cluster.client.subscribe(inbox.clone()).await.expect("subscribes");
        let sent = cluster.client.publish_with_reply_and_headers(subject.to_owned(), inbox, map, "".into());
        sent.await.expect("is published");
        let reply = tokio::time::timeout(PATIENCE, replies.next()).await.expect("in time").expect("lives");
        let headers = reply.headers.unwrap_or_default();
        let find = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        find("Nats-Service-Error").or_else(|| find("Rankpin-Decision")).expect("one of them")
    };
    assert_eq!(publish("rankpin.request.m", &[]).await, "unpinned");
    assert_eq!(publish("rankpin.trusted.m", &[]).await, "placed,derived");
    let dispatch = worker.dispatch(1).await;
    assert_eq!(dispatch.session(), "\u{1}px:0000000000000003");
    assert_eq!(dispatch.header("Rankpin-Prefix-Keys"), None, "they are the router's");
    assert_eq!(dispatch.header("Rankpin-Body"), Some("b"));
    // What it pins is the prefix that ends with the assistant's item.
    cluster.mirrors_pins().await;
    let next = "0000000000000001,0000000000000002,0000000000000009;1";
    assert_eq!(publish("rankpin.trusted.m", &[("Rankpin-Prefix-Keys", next)]).await, "pinned,derived");
    assert_eq!(publish("rankpin.trusted.m", &[("Rankpin-Prefix-Keys", "nonsense")]).await, "invalid_request");
    assert_eq!(publish("rankpin.request", &[]).await, "invalid_request");
}

#[tokio::test]
async fn bodies_from_a_size_on_go_straight_to_their_ranks_and_find_the_same_sessions() {
    let cluster = Cluster::with(1, &[("decide_mode", "true")]).await;
    let _worker = witness(&cluster, 4).await;
    let gateway = Gateway::start(&cluster, &[("decide_from", "64KB")]).await;
    let router = &cluster.routers[0];
    let mut ranks = Vec::new();
    // It grows beyond the size in its third turn, and beyond a message in its fifth.
    for (size, turns, permits) in
        [(0, 0, 0.0), (60 * KB, 1, 0.0), (64 * KB, 2, 1.0), (512 * KB, 3, 2.0), (2 * MB, 4, 2.0)]
    {
        let mut messages = vec![json!({"role": "user", "content": "begin"})];
        for turn in 0..turns {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
            messages.push(json!({"role": "user", "content": format!("question {turn}")}));
        }
        // What fills it up stands at the end, as with clients that decorate their last message.
        let last = messages.last_mut().expect("one");
        if turns > 0 {
            last["content"] = format!("question {}{}", turns - 1, "x".repeat(size)).into();
        }
        let body = json!({"model": "m", "messages": messages});
        let headers = [("Content-Type", "application/json")];
        let body = body.to_string();
        let answer = http::send(gateway.address, "POST", CHAT, &headers, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let told = answer.json();
        assert_eq!(told["size"].as_u64(), Some(body.len() as u64));
        assert_eq!(told["hash"], xxh3_64(body.as_bytes()).to_string());
        assert_eq!(router.metric("permits").await, permits, "{turns}");
        ranks.push(answer.header("x-rankpin-dp-rank").expect("shown").to_owned());
        router.reaches("requests_in_flight", 0.0).await;
        cluster.mirrors_pins().await;
    }
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "one conversation, one rank: {ranks:?}");
}
