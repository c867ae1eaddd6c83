//! What the users of `rankpin nats-permissions` may not do: each denial is proved from outside, by a plain client that tries.

use std::sync::{Arc, Mutex};

use async_nats::{Client, ConnectOptions, Event, HeaderMap, jetstream};
use serde_json::Value;

use super::permissions::{password, server, server_with};
use crate::support::{NatsServer, settle};

/// A plain client, and the violations that the server has told it of.
struct Plain {
    client: Client,
    told: Arc<Mutex<Vec<String>>>,
    user: &'static str,
}

impl Plain {
    async fn connect(server: &NatsServer, user: &'static str) -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let inbox = if user == "router" { "_INBOX_rankpin_router".to_owned() } else { format!("_INBOX.{user}") };
        let client = ConnectOptions::with_user_and_password(user.to_owned(), password(user))
            .custom_inbox_prefix(inbox)
            .event_callback({
                let told = Arc::clone(&told);
                move |event| {
                    let told = Arc::clone(&told);
                    async move {
                        if let Event::ServerError(error) = event {
                            told.lock().expect("whole").push(error.to_string());
                        }
                    }
                }
            })
            .connect(server.url())
            .await
            .expect("the server takes this user");
        Self { client, told, user }
    }

    /// What the server says to these, each tried alone: subjects by whether they were refused.
    async fn publish(&self, subject: &str) -> bool {
        self.client.publish(subject.to_owned(), "x".into()).await.expect("taken");
        self.was_refused(subject).await
    }

    async fn subscribe(&self, subject: &str) -> bool {
        let (subject, queue) =
            subject.split_once(' ').map_or((subject, None), |(subject, queue)| (subject, Some(queue)));
        let subscribed = match queue {
            Some(queue) => self.client.queue_subscribe(subject.to_owned(), queue.to_owned()).await,
            None => self.client.subscribe(subject.to_owned()).await,
        };
        let subscribed = subscribed.expect("taken");
        let refused = self.was_refused(subject).await;
        drop(subscribed);
        refused
    }

    async fn was_refused(&self, subject: &str) -> bool {
        // The server answers in order, but the library hands errors on through another task: one that comes is waited for.
        settle(&self.client).await;
        let quoted = format!("\"{subject}\"");
        for _ in 0..20 {
            if self.told.lock().expect("whole").iter().any(|told| told.contains("ermissions") && told.contains(&quoted))
            {
                self.told.lock().expect("whole").clear();
                return true;
            }
            tokio::task::yield_now().await;
            settle(&self.client).await;
        }
        false
    }

    /// Everything here has to be refused.
    async fn denied(&self, publish: &[&str], subscribe: &[&str]) {
        for subject in publish {
            assert!(self.publish(subject).await, "{} may publish {subject}", self.user);
        }
        for subject in subscribe {
            assert!(self.subscribe(subject).await, "{} may subscribe to {subject}", self.user);
        }
    }

    /// Everything here has to be let through: that what is denied above is not denied for another reason.
    async fn allowed(&self, publish: &[&str], subscribe: &[&str]) {
        for subject in publish {
            assert!(!self.publish(subject).await, "{} may not publish {subject}", self.user);
        }
        for subject in subscribe {
            assert!(!self.subscribe(subject).await, "{} may not subscribe to {subject}", self.user);
        }
    }
}

/// What nobody but an operator of the whole server may do.
const NOBODY: [&str; 8] = [
    "$JS.API.STREAM.DELETE.KV_rankpin_pins",
    "$JS.API.STREAM.PURGE.KV_rankpin_pins",
    "$JS.API.STREAM.UPDATE.KV_rankpin_pins",
    "$JS.API.STREAM.DELETE.rankpin_jobs",
    "$JS.API.STREAM.CREATE.spy",
    "$JS.API.STREAM.LIST",
    "$JS.API.CONSUMER.DELETE.rankpin_jobs.router",
    "$SYS.REQ.SERVER.PING",
];

#[tokio::test]
async fn only_routers_hand_requests_over() {
    let server = server_with(&["--partitions", "4"]);
    let parts = ["rankpin.part.0.request.m", "rankpin.part.3.trusted.m", "rankpin.part.3.probe"];
    let listen = ["rankpin.part.0.> router", "rankpin.part.>"];
    for user in ["web", "gateway", "direct", "nightly", "worker-gpu-0", "operator"] {
        Plain::connect(&server, user).await.denied(&parts, &listen).await;
    }
    let router = Plain::connect(&server, "router").await;
    router.allowed(&parts, &listen[..1]).await;
    router.allowed(&["$KV.rankpin_pins_3.x", "$JS.API.STREAM.INFO.KV_rankpin_pins_0"], &[]).await;
    router.denied(&["$KV.rankpin_pins_4.x"], &listen[1..]).await;
    router.denied(&NOBODY, &[]).await;
}

#[tokio::test]
async fn a_frontend_can_only_ask_and_hear_its_own_answers() {
    let server = server().await;
    let web = Plain::connect(&server, "web").await;
    web.allowed(&["rankpin.request.m", "rankpin.request", "rankpin.cancel.r"], &["_INBOX.web.>"]).await;
    web.denied(&NOBODY, &[]).await;
    web.denied(
        &[
            // Registering a worker, or passing for one.
            "$KV.rankpin_workers.evil",
            "rankpin.load.gpu-0",
            "rankpin.kv.gpu-0.0",
            "_INBOX_rankpin_router.x",
            "rankpin.result.r",
            // Which the server answers wherever it is told to: with this reply subject, on any of these.
            "$SYS.REQ.USER.INFO",
            // Pins, read or written.
            "$KV.rankpin_pins.5f3b0a7c8d9e4f10a1b2c3d4e5f60718",
            "$JS.API.STREAM.INFO.KV_rankpin_pins",
            "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
            "$JS.API.DIRECT.GET.KV_rankpin_pins",
            "$JS.API.DIRECT.GET.KV_rankpin_pins.$KV.rankpin_pins.x",
            "$JS.API.CONSUMER.CREATE.KV_rankpin_pins",
            "$JS.API.CONSUMER.CREATE.KV_rankpin_pins.c.$KV.rankpin_pins.>",
            // To a rank, past the router; and what only routers, gateways, batch users and operators say.
            "rankpin.worker.gpu-0.rank.0",
            "rankpin.worker.gpu-0.any",
            "rankpin.worker.gpu-0.cancel",
            "rankpin.worker.gpu-0.drain",
            "rankpin.router.kv",
            "rankpin.trusted.m",
            "rankpin.decide.m",
            "rankpin.job.m",
            "rankpin.dead.m",
            "$SRV.STATS",
            // Another frontend's inbox.
            "_INBOX.chat.x",
        ],
        &[
            ">",
            "rankpin.>",
            "rankpin.request.>",
            "rankpin.request.> router",
            "rankpin.worker.>",
            "rankpin.worker.gpu-0.rank.0",
            "rankpin.load.*",
            "rankpin.cancel.*",
            "rankpin.result.>",
            "$KV.rankpin_pins.>",
            "$KV.rankpin_workers.>",
            "_INBOX.>",
            "_INBOX.*.x",
            "_INBOX.chat.>",
            "_INBOX_rankpin_router.>",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_gateway_can_only_ask_and_hear_its_own_answers() {
    let server = server().await;
    let gateway = Plain::connect(&server, "gateway").await;
    let own = [
        "rankpin.trusted.m",
        "rankpin.job.m",
        "$O.rankpin_bodies.C.x",
        "$O.rankpin_files.M.x",
        "$KV.rankpin_batches.x",
        "$JS.API.STREAM.INFO.KV_rankpin_workers",
        "$SRV.INFO.rankpin-router",
    ];
    gateway.allowed(&own, &["_INBOX.gateway.>"]).await;
    gateway.denied(&NOBODY, &[]).await;
    gateway
        .denied(
            &[
                "$KV.rankpin_workers.evil",
                "$KV.rankpin_pins.x",
                "rankpin.decide.m",
                "rankpin.worker.gpu-0.rank.0",
                "rankpin.worker.gpu-0.drain",
                "$JS.API.STREAM.INFO.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_pins.c.$KV.rankpin_pins.>",
                "$JS.API.STREAM.MSG.GET.rankpin_jobs",
                "$JS.API.STREAM.MSG.DELETE.rankpin_results",
                "$JS.API.STREAM.PURGE.rankpin_results",
                "$JS.API.STREAM.PURGE.KV_rankpin_workers",
                // A stream takes any subjects that its maker names: who may make one can hear every request.
                "$JS.API.STREAM.CREATE.OBJ_rankpin_bodies",
                "$JS.API.STREAM.UPDATE.OBJ_rankpin_files",
                "$JS.API.STREAM.CREATE.KV_rankpin_batches",
                "$JS.API.STREAM.DELETE.OBJ_rankpin_bodies",
                "$SRV.STATS",
                "rankpin.dead.m",
                "rankpin.load.gpu-0",
                "_INBOX_rankpin_router.x",
                "_INBOX.web.x",
            ],
            &[
                "_INBOX.>",
                "_INBOX.web.>",
                "rankpin.trusted.>",
                "rankpin.request.> router",
                "$O.rankpin_bodies.>",
                "rankpin.result.>",
            ],
        )
        .await;
}

#[tokio::test]
async fn a_deciding_gateway_can_send_to_ranks_and_do_no_more_than_any_gateway_besides() {
    let server = server().await;
    let direct = Plain::connect(&server, "direct").await;
    direct
        .allowed(
            &[
                "rankpin.decide.m",
                "rankpin.trusted.m",
                "rankpin.worker.gpu-0.rank.0",
                "rankpin.worker.gpu-0.any",
                "_INBOX_rankpin_router.x",
            ],
            &["_INBOX.direct.>"],
        )
        .await;
    direct.denied(&NOBODY, &[]).await;
    direct
        .denied(
            &[
                "$KV.rankpin_workers.evil",
                "$KV.rankpin_pins.x",
                "rankpin.worker.gpu-0.cancel",
                "rankpin.worker.gpu-0.drain",
                "rankpin.load.gpu-0",
                "rankpin.router.kv",
                "_INBOX.web.x",
            ],
            &[
                "_INBOX.>",
                "_INBOX_rankpin_router.>",
                "rankpin.worker.>",
                "rankpin.decide.>",
                "rankpin.decide.> router",
                "rankpin.request.> router",
            ],
        )
        .await;
}

#[tokio::test]
async fn a_worker_is_itself_alone_and_neither_asks_nor_pins() {
    let server = server().await;
    let worker = Plain::connect(&server, "worker-gpu-0").await;
    worker
        .allowed(
            &["rankpin.load.gpu-0", "rankpin.kv.gpu-0.1", "_INBOX.web.x", "_INBOX_rankpin_router.x"],
            &["rankpin.worker.gpu-0.rank.7", "rankpin.worker.gpu-0.any any", "rankpin.worker.gpu-0.drain"],
        )
        .await;
    worker.denied(&NOBODY, &[]).await;
    worker
        .denied(
            &[
                "rankpin.request.m",
                "rankpin.request",
                "rankpin.trusted.m",
                "rankpin.job.m",
                "rankpin.cancel.r",
                "$KV.rankpin_pins.x",
                "$JS.API.STREAM.INFO.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
                "$JS.API.CONSUMER.CREATE.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.GET.rankpin_results",
                "$KV.rankpin_workers.gpu-1",
                "rankpin.load.gpu-1",
                "rankpin.kv.gpu-1.0",
                "rankpin.worker.gpu-1.rank.0",
                "rankpin.worker.gpu-1.drain",
                "rankpin.worker.gpu-0.drain",
                "rankpin.router.kv",
                "rankpin.dead.m",
                // Bodies that a message can't hold are read, and no more; files of batches not even that.
                "$O.rankpin_bodies.C.x",
                "$O.rankpin_bodies.M.x",
                "$JS.API.STREAM.PURGE.OBJ_rankpin_bodies",
                "$JS.API.STREAM.INFO.OBJ_rankpin_files",
                "$JS.API.DIRECT.GET.OBJ_rankpin_files.$O.rankpin_files.M.x",
                "$JS.API.CONSUMER.CREATE.OBJ_rankpin_files",
            ],
            &[
                ">",
                "rankpin.worker.gpu-1.rank.0",
                "rankpin.worker.gpu-1.any any",
                "rankpin.worker.>",
                "rankpin.worker.gpu-0.>",
                "rankpin.request.> router",
                "rankpin.load.*",
                "_INBOX.>",
                "_INBOX.web.>",
                "_INBOX_rankpin_router.>",
                "$KV.rankpin_workers.>",
            ],
        )
        .await;
}

#[tokio::test]
async fn routers_batch_users_and_operators_have_limits_too() {
    let server = server().await;
    let router = Plain::connect(&server, "router").await;
    router
        .allowed(&["rankpin.worker.gpu-0.rank.0", "_INBOX.web.x"], &["rankpin.request.> router", "rankpin.load.*"])
        .await;
    router.denied(&NOBODY, &[]).await;
    router
        .denied(
            &[
                "rankpin.request.m",
                "$KV.rankpin_workers.evil",
                "rankpin.load.gpu-0",
                "rankpin.worker.gpu-0.drain",
                "$JS.API.STREAM.CREATE.KV_rankpin_pins",
                "$JS.API.STREAM.MSG.DELETE.KV_rankpin_pins",
                "$JS.API.STREAM.PURGE.rankpin_results",
            ],
            &[
                ">",
                "rankpin.request.>",
                "rankpin.request.> spy",
                "_INBOX.>",
                "_INBOX.web.>",
                "rankpin.worker.>",
                "rankpin.result.>",
            ],
        )
        .await;
    let batch = Plain::connect(&server, "nightly").await;
    batch.denied(&NOBODY, &[]).await;
    batch
        .denied(
            &[
                "rankpin.request.m",
                "$KV.rankpin_pins.x",
                "$KV.rankpin_workers.x",
                "$JS.API.STREAM.MSG.GET.KV_rankpin_pins",
            ],
            &["_INBOX.>", "_INBOX.web.>", "rankpin.result.>", "rankpin.job.>"],
        )
        .await;
    let operator = Plain::connect(&server, "operator").await;
    operator.denied(&NOBODY, &[]).await;
    operator
        .denied(
            &["rankpin.request.m", "rankpin.worker.gpu-0.rank.0", "$KV.rankpin_workers.evil", "_INBOX.web.x"],
            &[">", "_INBOX.>", "_INBOX.web.>", "rankpin.request.>", "rankpin.request.> router", "rankpin.worker.>"],
        )
        .await;
}

#[tokio::test]
async fn a_workers_registration_can_take_no_others_away() {
    let server = server().await;
    let mut operator = crate::support::rankpin::command(&["provision", "--inbox-prefix", "_INBOX.operator"]);
    operator.env("NATS_URL", server.url()).env("NATS_USER", "operator").env("NATS_PASSWORD", password("operator"));
    assert!(operator.status().expect("it starts").success());
    let register = async |name: &'static str, rollup: bool| {
        let context = jetstream::new(Plain::connect(&server, name).await.client);
        let mut headers = HeaderMap::new();
        if rollup {
            headers.insert("Nats-Rollup", "all");
        }
        let key = name.strip_prefix("worker-").expect("so they are called");
        let subject = format!("$KV.rankpin_workers.{key}");
        context.publish_with_headers(subject, headers, "{}".into()).await.expect("sent").await
    };
    register("worker-gpu-1", false).await.expect("it may");
    let refused = register("worker-gpu-0", true).await.expect_err("it may not").to_string();
    assert!(refused.contains("rollup"), "{refused}");
    let router = Plain::connect(&server, "router").await.client;
    let info = router.request("$JS.API.STREAM.INFO.KV_rankpin_workers", "".into()).await.expect("an answer");
    let info: Value = serde_json::from_slice(&info.payload).expect("JSON");
    assert_eq!(info["state"]["messages"], 1, "{info}");
}
