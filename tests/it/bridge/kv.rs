//! An engine's cache events, as a ZeroMQ publisher says them, on their way to the routers.

use rankpin::wire::Encoding;
use rankpin::wire::kv::{KvEvent, KvEvents, SessionBlocks};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::engine::Engine;
use super::{registered, start};
use crate::support::PATIENCE;
use crate::worker::{Field, next};

/// The publisher's side of ZMTP 3.1, as libzmq speaks it.
async fn accept(listener: &TcpListener) -> TcpStream {
    let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await.expect("it connects").expect("accepted");
    let (mut stream, mut greeting) = (accepted.0, [0; 64]);
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.expect("sent");
    stream.read_exact(&mut [0; 64]).await.expect("it greets");
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    stream.write_all(&[&[4, u8::try_from(ready.len()).expect("short")], &ready[..]].concat()).await.expect("sent");
    let mut theirs = vec![0; 2 + ready.len() + 3];
    stream.read_exact(&mut theirs).await.expect("it is ready and subscribes");
    assert_eq!(theirs[theirs.len() - 3..], [0, 1, 1], "to everything");
    stream
}

async fn publish(stream: &mut TcpStream, seq: u64, events: serde_json::Value) {
    let payload = rmp_serde::to_vec(&json!([1.5, events, 1])).expect("plain data");
    let mut message = vec![1, 2, b'k', b'v', 1, 8];
    message.extend(seq.to_be_bytes());
    message.push(2);
    message.extend((payload.len() as u64).to_be_bytes());
    message.extend(payload);
    stream.write_all(&message).await.expect("sent");
}

fn blocks(session: &str, blocks: u32) -> SessionBlocks {
    SessionBlocks { session: session.into(), blocks }
}

#[tokio::test]
async fn routers_hear_of_a_ranks_blocks_by_session() {
    let (field, engine) = (Field::new().await, Engine::start());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let endpoint = format!("tcp://*:{}", listener.local_addr().expect("bound").port());
    engine.say(|said| {
        said.kv_sources = json!({
            "0": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:1"},
            "1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "topic": "kv"}
        });
    });
    let mut heard = field.client.subscribe("rankpin.kv.w.*").await.expect("subscribed");
    crate::support::settle(&field.client).await;
    let _bridge = start(&field, "vllm", &[&engine], &["--dp-start", "4"]);
    let instance = registered(&field).await.instance;
    let mut told = async |seq: u64| {
        let message = next(&mut heard).await;
        assert_eq!(message.subject.as_str(), "rankpin.kv.w.5");
        let events: KvEvents = Encoding::MessagePack.read(&message.payload).expect("events");
        assert_eq!((events.instance.as_str(), events.seq), (instance.as_str(), seq));
        events.events
    };
    let mut publisher = accept(&listener).await;
    assert_eq!(told(1).await, [KvEvent::Cleared(true)], "what was before is not known");
    let stored = json!([{"type": "BlockStored", "block_hashes": [11, 12], "session_id": "%01px:1", "medium": "GPU",
        "token_ids": [1, 2], "block_size": 32, "group_idx": 0}]);
    publish(&mut publisher, 7, stored.clone()).await;
    assert_eq!(told(2).await, [KvEvent::Stored(blocks("\u{1}px:1", 2))]);
    publish(&mut publisher, 8, json!([{"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU"}])).await;
    assert_eq!(told(3).await, [KvEvent::Removed(blocks("\u{1}px:1", 1))]);
    // One is missing: all is learnt anew.
    publish(&mut publisher, 10, stored.clone()).await;
    assert_eq!(told(4).await, [KvEvent::Cleared(true), KvEvent::Stored(blocks("\u{1}px:1", 2))]);
    drop(publisher);
    let mut publisher = accept(&listener).await;
    assert_eq!(told(5).await, [KvEvent::Cleared(true)]);
    publish(&mut publisher, 0, stored).await;
    assert_eq!(told(6).await, [KvEvent::Stored(blocks("\u{1}px:1", 2))]);
}
