//! What a router's user may not do is told at the start, never found out by requests that hang.

use rankpin::router::RouterError;

use crate::support::cluster::RouterTask;
use crate::support::server::Options;
use crate::support::{Cluster, NatsServer};

/// A server with a user `admin` that may everything, and `router` that is denied something.
fn server(publish: &str, subscribe: &str) -> NatsServer {
    let deny = |what: &str| {
        let denied: Vec<_> = what.split_ascii_whitespace().map(|subject| format!("{subject:?}")).collect();
        format!("{{ allow: \">\", deny: [{}] }}", denied.join(", "))
    };
    let permissions = format!("{{ publish: {}, subscribe: {} }}", deny(publish), deny(subscribe));
    let config = format!(
        "authorization {{ users: [
            {{ user: admin, password: p }}
            {{ user: router, password: p, permissions: {permissions} }}
        ] }}"
    );
    NatsServer::start_with(Options { config, ..Options::default() })
}

async fn refused(server: &NatsServer) -> RouterError {
    let admin = format!("nats://admin:p@127.0.0.1:{}", server.port());
    // The buckets are there, as in a deployment with least privileges.
    drop(RouterTask::start(&admin, &[]).await);
    let url = format!("nats://router:p@127.0.0.1:{}", server.port());
    RouterTask::spawn(&url, &[("provision", "never")]).refused().await
}

#[tokio::test]
async fn each_missing_permission_is_named_at_the_start() {
    // What is denied for publishing, for subscribing, and what has to be named.
    let rows = [
        ("", "rankpin.request.>", "rankpin.request"),
        ("", "rankpin.trusted.>", "rankpin.trusted"),
        ("", "rankpin.cancel.*", "rankpin.cancel"),
        ("", "rankpin.load.*", "rankpin.load"),
        ("", "_INBOX_rankpin_router.>", "_INBOX_rankpin_router"),
        ("rankpin.worker.>", "", "rankpin.worker"),
        ("_INBOX.>", "", "_INBOX"),
        ("$JS.API.STREAM.INFO.KV_rankpin_pins", "", "$JS.API.STREAM.INFO.KV_rankpin_pins"),
        ("$JS.API.STREAM.INFO.KV_rankpin_workers", "", "$JS.API.STREAM.INFO.KV_rankpin_workers"),
        ("$JS.API.CONSUMER.CREATE.KV_rankpin_pins.>", "", "$JS.API.CONSUMER.CREATE.KV_rankpin_pins"),
        ("$JS.API.CONSUMER.CREATE.KV_rankpin_workers.>", "", "$JS.API.CONSUMER.CREATE.KV_rankpin_workers"),
        ("$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_pins.>", "", "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_pins"),
        ("$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_workers.>", "", "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_workers"),
        ("$KV.rankpin_pins.>", "", "$KV.rankpin_pins"),
    ];
    for (publish, subscribe, named) in rows {
        let server = server(publish, subscribe);
        let error = refused(&server).await.to_string();
        assert!(error.contains(named), "{named}: {error}");
        assert!(error.contains("permission"), "{named}: {error}");
    }
}

#[tokio::test]
async fn a_router_with_no_more_than_it_needs_serves() {
    let config = r#"authorization { users: [
        { user: admin, password: p }
        { user: router, password: p, permissions: {
            publish: { allow: [
                "rankpin.worker.>", "_INBOX.>", "_INBOX_.>", "_INBOX_rankpin_router.>", "$KV.rankpin_pins.>",
                "$JS.API.STREAM.INFO.KV_rankpin_workers", "$JS.API.STREAM.INFO.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_workers", "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_workers.>", "$JS.API.CONSUMER.CREATE.KV_rankpin_pins.>",
                "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_workers.>", "$JS.API.CONSUMER.MSG.NEXT.KV_rankpin_pins.>"
            ] }
            subscribe: { allow: [
                "rankpin.request router", "rankpin.request.> router", "rankpin.trusted.> router",
                "rankpin.cancel.*", "rankpin.load.*", "_INBOX_rankpin_router.>"
            ] }
        } }
    ] }"#;
    let server = NatsServer::start_with(Options { config: config.into(), ..Options::default() });
    let admin = format!("nats://admin:p@127.0.0.1:{}", server.port());
    drop(RouterTask::start(&admin, &[]).await);
    let url = format!("nats://router:p@127.0.0.1:{}", server.port());
    let router = RouterTask::start(&url, &[("provision", "never")]).await;
    let cluster = Cluster::of(server, router, "admin", "p").await;
    let _w = cluster.worker("w").ranks(0, 2).start().await;
    let at = super::hashed_at("w", "s", 0, 2);
    assert_eq!(cluster.turn("s").await.told(), format!("{at} placed"));
    assert_eq!(cluster.turn("s").await.told(), format!("{at} pinned"));
    cluster.put_pin("t", "gone", None).await;
    assert!(cluster.turn("t").await.decision().starts_with("repinned"));
    assert_eq!(cluster.routers[0].metric("bucket_unreachable").await, 0.0);
}
