//! What the doctor finds where a deployment is ill, and how it gets along with the rights and the level of whoever asks.

use async_nats::jetstream::{self, stream};

use super::{output, run};
use crate::support::{NatsServer, RouterProcess};

/// What it finds of room; that there is no worker is another matter.
async fn room(server: &NatsServer) -> Vec<String> {
    let output = output(server, &["doctor"]).await;
    let found = String::from_utf8(output.stdout).expect("UTF-8");
    found.lines().filter(|line| line.contains("  room  ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_bucket_without_room_is_named() {
    let server = NatsServer::start();
    let _router = RouterProcess::start("router", &server, &["--provision", "auto"]).await;
    assert_eq!(room(&server).await, [""; 0]);
    let context = jetstream::new(server.client().await);
    let pins = context.get_stream("KV_rankpin_pins").await.expect("a router has made it");
    let config = stream::Config { max_bytes: 4096, ..pins.cached_info().config.clone() };
    context.update_stream(config).await.expect("it may be made smaller");
    let fill = |n: usize| context.publish(format!("$KV.rankpin_pins.{n}"), vec![b'x'; 900].into());
    for n in 0..4 {
        fill(n).await.expect("is sent").await.expect("has room");
    }
    let found = room(&server).await.concat();
    assert!(found.starts_with("WARN") && found.contains("rankpin_pins has"), "{found}");
    // The rest of the room, to the last byte: what is stored counts with its subject and a head of its own.
    let info = context.get_stream("KV_rankpin_pins").await.expect("it is there").cached_info().state.clone();
    let each = usize::try_from(info.bytes / info.messages).expect("small") - 900;
    let rest = 4096 - usize::try_from(info.bytes).expect("small") - each;
    let last = context.publish("$KV.rankpin_pins.4", vec![b'x'; rest].into());
    last.await.expect("is sent").await.expect("has room");
    let found = room(&server).await.concat();
    assert!(found.starts_with("FAIL"), "{found}");
}

/// There the pins alone stand in the namespace.
#[tokio::test]
async fn the_global_level_is_examined_as_it_is() {
    let server = NatsServer::start();
    let path = server.dir().join("global.toml");
    std::fs::write(&path, "level = \"global\"\n[[pool]]\nname = \"eu\"\nnamespace = \"eu\"\n").expect("is written");
    let path = path.to_str().expect("UTF-8");
    let _global = RouterProcess::start("global", &server, &["--config", path]).await;
    let found = run(&server, &["doctor", "--config", path]).await;
    assert!(found.contains("rankpin_pins: 0 keys") && !found.contains("rankpin_workers"), "{found}");
    let refused = output(&server, &["workers"]).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("routers at the global level have none"), "{refused:?}");
}
