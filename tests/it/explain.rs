//! `rankpin explain` as a process, without a server and with one.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rankpin::core::id::Model;
use rankpin::wire::Encoding;
use rankpin::wire::body::{Wanted, read};
use serde_json::{Value, json};

use crate::support::{Ask, Cluster, PATIENCE, eventually};

/// Runs it on bodies; `-` stands for the standard input, which gets the first body. Gives what it prints, or its error.
fn explain(args: &[&str], bodies: &[&[u8]]) -> Result<String, String> {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rankpin"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RANKPIN_") || name.starts_with("NATS_")) {
        command.env_remove(name);
    }
    command.arg("explain").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !args.contains(&"-") {
        for (index, body) in bodies.iter().enumerate() {
            let path = dir.path().join(format!("turn{index}"));
            std::fs::write(&path, body).expect("a temp directory takes files");
            command.arg(path);
        }
    }
    let mut child = command.spawn().expect("the binary runs");
    // One that has ended over its arguments reads nothing.
    let _ = child.stdin.take().expect("it is piped").write_all(bodies.first().unwrap_or(&&b""[..]));
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn told(args: &[&str], bodies: &[&[u8]]) -> Value {
    let text = explain(&[&["--json"], args].concat(), bodies).expect("it explains");
    serde_json::from_str(&text).expect("JSON")
}

fn later_turn() -> Value {
    json!({"model": "m", "system": "be brief", "prompt_cache_key": "app", "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hello"}]},
        {"role": "user", "content": "go on"},
    ]})
}

#[test]
fn keys_sources_and_texts_are_those_of_a_router() {
    let body = later_turn();
    let text = body.to_string();
    let explained = told(&[], &[text.as_bytes()]);
    let keys: Vec<_> = explained["keys"].as_array().expect("a list").iter().map(|key| key["key"].clone()).collect();
    let reading = read(text.as_bytes(), Encoding::Json, Wanted { elements: true, ..Wanted::default() }).expect("valid");
    let expected = reading.prefixes(&Model::new("m").expect("valid")).expect("it has items");
    assert_eq!(keys, expected.keys().iter().map(|key| json!(format!("{key:016x}"))).collect::<Vec<_>>());
    assert_eq!(explained["session"], format!("\u{1}px:{:016x}", expected.full()));
    assert_eq!(explained["class"], "later_turn");
    let items: Vec<_> = explained["keys"].as_array().expect("a list").iter().map(|key| key["item"].clone()).collect();
    assert_eq!(items, ["messages[0]", "messages[1]", "messages[2]"]);
    let texts = explained["elements"][2]["texts"].as_array().expect("a list");
    let thinking = texts.iter().find(|text| text["text"] == "\"hm\"").expect("it is told");
    assert_eq!(thinking["counts"], false);
    assert!(thinking["why"].as_str().is_some_and(|why| why.contains("\"thinking\"")), "{thinking}");
    assert!(explained["notes"].to_string().contains("body field prompt_cache_key holds"), "{explained}");
    // From standard input, in MessagePack.
    let packed = rmp_serde::to_vec_named(&body).expect("plain data");
    let of_packed = told(&["--content-type", "application/msgpack", "-"], &[&packed]);
    assert_eq!((&of_packed["keys"], &of_packed["session"]), (&explained["keys"], &explained["session"]));
    let shown = explain(&[], &[text.as_bytes()]).expect("it explains");
    for line in ["session  \"\\u0001px:", "+ text       \"hello\"", "- thinking   \"hm\"", "never looked up"] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn sessions_are_named_as_the_configuration_says() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(
        &path,
        "group_subagents = true\n[session]\nheaders = ['x-chat']\nbody_fields = ['prompt_cache_key']",
    )
    .expect("a temp directory takes files");
    let config = ["--config", path.to_str().expect("UTF-8")];
    let body = later_turn().to_string();
    let of = |args: &[&str]| {
        let explained = told(&[&config[..], args].concat(), &[body.as_bytes()]);
        (
            explained["session"].clone(),
            explained["source"].as_str().expect("a text").to_owned(),
            explained["parent"].clone(),
        )
    };
    let field = (json!("app"), "body field prompt_cache_key, which the configuration names".to_owned(), Value::Null);
    assert_eq!(of(&[]), field);
    let header = (json!("c"), "header x-chat, which the configuration names".to_owned(), json!("p"));
    assert_eq!(of(&["-H", "X-Chat: c", "-H", "x-parent-session-id: p"]), header);
    assert_eq!(of(&["-H", "X-Chat: c", "-H", "thread-id: t"]).1, "header thread-id");
}

#[test]
fn two_turns_are_compared() {
    let opening =
        json!({"model": "m", "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let later = later_turn().to_string();
    assert_eq!(told(&[], &[opening.as_bytes(), later.as_bytes()])["continues"], true);
    let moved = later.replace("\"hi\"", "\"hi, it is 12:00\"");
    let compared = told(&[], &[opening.as_bytes(), moved.as_bytes()]);
    assert_eq!(
        (&compared["continues"], &compared["difference"]["second_item"]),
        (&json!(false), &json!("messages[0]"))
    );
    let shown = explain(&[], &[opening.as_bytes(), moved.as_bytes()]).expect("it compares");
    assert!(shown.contains("does NOT continue") && shown.contains("content: \"hi, it is 12:00\""), "{shown}");
}

#[test]
fn what_can_not_be_explained_says_what_to_do() {
    let body: &[u8] = br#"{"messages":[]}"#;
    for (args, bodies, expected) in [
        (&[][..], &[body][..], "has no string \"model\" at the top; --model names the one of the subject"),
        (&["--model", "m"], &[b"{"], "400 invalid_request: the body is not valid JSON"),
        (&["--model", "m", "-H", "thread-id"], &[body], "-H \"thread-id\": write 'Name: value'"),
        (&["--model", "m", "-H", "thread-id: \u{7f}"], &[body], "400 invalid_session_id: header thread-id"),
        (&["--namespace", "eu"], &[body], "--nats-url"),
        (&["--nats-url", "nats://127.0.0.1:1", "--model", "m"], &[body, body], "can have no effect with two bodies"),
        (&["--nats-url", "nats://127.0.0.1:1", "--model", "m"], &[body], "cannot connect to NATS"),
    ] {
        let error = explain(args, bodies).expect_err(expected);
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
}

/// In a task of its own: the cluster under test lives in this process.
async fn explain_at(cluster: &Cluster, args: &[&str], body: &Value) -> (Value, String) {
    let url = cluster.server.url();
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let body = body.to_string();
    let both = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--nats-url", &url]).collect();
        (told(&args, &[body.as_bytes()]), explain(&args, &[body.as_bytes()]).expect("it explains"))
    });
    both.await.expect("it does not panic")
}

#[tokio::test]
async fn the_pin_that_is_followed_and_the_workers_are_told() {
    let cluster = Cluster::start().await;
    let _a = cluster.worker("a").ranks(0, 4).start().await;
    let _b = cluster.worker("b").ranks(4, 4).with("state", "draining").start().await;
    let _c = cluster.worker("c").with("models", json!(["other"])).start().await;
    let opening = json!({"model": "m", "system": "be brief", "messages": [{"role": "user", "content": "hi"}]});
    let (before, shown) = explain_at(&cluster, &[], &later_turn()).await;
    assert_eq!((&before["cluster"]["follows"], &before["cluster"]["looked_up"]), (&Value::Null, &json!(2)));
    assert_eq!(before["cluster"]["decision"], "placed,derived");
    assert!(shown.contains("None of them is followed"), "{shown}");
    let at = cluster.ask(Ask::new().body(opening.to_string())).await.at();
    eventually("it is pinned", PATIENCE, async || {
        cluster.mirrors_pins().await;
        let (after, shown) = explain_at(&cluster, &[], &later_turn()).await;
        let of = &after["cluster"];
        if of["follows"] != 0 {
            return None;
        }
        assert_eq!((&of["placement"], &of["decision"]), (&json!(at), &json!("pinned,derived")));
        let found = &of["found"][0];
        assert_eq!((&found["of"], &found["placement"]), (&json!("the prefix up to messages[0]"), &json!(at)));
        assert_eq!(found["root"], told(&[], &[opening.to_string().as_bytes()])["session"]);
        assert!(shown.contains(&format!("> the prefix up to messages[0] → {at} (revision ")), "{shown}");
        Some(())
    })
    .await;
    let standings = |explained: &Value| {
        let workers = explained["cluster"]["workers"].as_array().expect("a list").clone();
        let told = |one: &Value| format!("{} {}", one["placement"], one["standing"]).replace('"', "");
        workers.iter().map(told).collect::<Vec<_>>()
    };
    let seen = standings(&before);
    assert!(seen[0].starts_with("a/") && seen[0].ends_with("may have it"), "{seen:?}");
    assert!(seen[1].starts_with("b") && seen[1].contains("is draining"), "{seen:?}");
    assert_eq!(seen[2], "c does not serve the model");
    // A hint against the pin, and a session that is named.
    let (hinted, _) = explain_at(&cluster, &["-H", "Rankpin-Session-Id: s", "-H", "x-dp-rank: 9"], &opening).await;
    assert_eq!(hinted["cluster"]["decision"], "400 rank_out_of_range");
    let (named, _) = explain_at(&cluster, &["-H", "Rankpin-Session-Id: s"], &opening).await;
    let hashed = format!("a/{}", crate::router::hashed("s", 0, 4));
    assert_eq!((&named["cluster"]["placement"], &named["cluster"]["decision"]), (&json!(hashed), &json!("placed")));
    assert_eq!(cluster.pin("s").await, None, "nothing is written");
}

#[tokio::test]
async fn an_alias_is_told_with_the_model_that_it_leads_to() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, "[[alias]]\nmodel = 'chat'\nto = [{model = 'm', weight = 1e-9}, {model = 'n', weight = 3}]")
        .expect("a temp directory takes files");
    let config = ["--config", path.to_str().expect("UTF-8"), "--model", "chat"];
    let body = later_turn();
    let alone = told(&config, &[body.to_string().as_bytes()]);
    assert_eq!((&alone["alias"], &alone["model"]), (&json!("chat"), &json!("n")));
    let as_n = told(&["--model", "n"], &[body.to_string().as_bytes()]);
    assert_eq!(alone["keys"], as_n["keys"], "keys are those of the model");
    assert!(alone["notes"].to_string().contains("is an alias of \\\"m\\\" (0.0 %), \\\"n\\\" (100.0 %)"), "{alone}");

    let cluster = Cluster::start().await;
    let (none, shown) = explain_at(&cluster, &config, &body).await;
    assert_eq!(none["cluster"]["decision"], "404 unknown_model");
    assert!(shown.contains("\"chat\" is an alias of \"m\", \"n\": none of them is served"), "{shown}");
    let _m = cluster.worker("m").start().await;
    let opening = json!({"system": "be brief", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(cluster.ask(Ask::new().body(opening.to_string())).await.at(), "m");
    let _n = cluster.worker("n").with("models", json!(["n"])).start().await;
    eventually("it is pinned", PATIENCE, async || {
        let (pinned, shown) = explain_at(&cluster, &config, &body).await;
        let of = &pinned["cluster"];
        if of["follows"] != 0 {
            return None;
        }
        assert_eq!((&of["placement"], &of["decision"]), (&json!("m"), &json!("pinned,derived")));
        assert!(shown.contains("of the alias's models it gets \"m\": it is pinned under it"), "{shown}");
        Some(())
    })
    .await;
    let (named, _) = explain_at(&cluster, &[&config[..], &["-H", "thread-id: s"]].concat(), &body).await;
    assert_eq!(named["cluster"]["placement"], "n");
}

#[tokio::test]
async fn who_has_no_room_is_told_with_what_it_reports() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").with("max_inflight", 8).with("kv_blocks", 200).start().await;
    let (client, instance) = (worker.client.clone(), worker.instance());
    let reports = tokio::spawn(async move {
        for seq in 1_u64.. {
            let rank = json!({"dp_rank": 0, "inflight": 3, "queued": 5, "kv_used_blocks": 150});
            let report = json!({"v": 1, "worker": "w", "instance": instance, "seq": seq, "ranks": [rank]});
            client.publish("rankpin.load.w", report.to_string().into()).await.expect("is published");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let path = dir.path().join("rankpin.toml");
    std::fs::write(&path, "full_at_queued = 5").expect("a temp directory takes files");
    let config = ["--config", path.to_str().expect("UTF-8")];
    let (explained, shown) = explain_at(&cluster, &config, &later_turn()).await;
    // What policies compare, where there is room.
    for (policy, told) in [("least-loaded", "may have it, relative load 0.375, 3 of 8"), ("kv", "may have it, cost ")] {
        std::fs::write(&path, format!("policy = '{policy}'")).expect("a temp directory takes files");
        let (compared, shown) = explain_at(&cluster, &config, &later_turn()).await;
        assert!(shown.contains(told), "{shown}");
        let one = &compared["cluster"]["workers"][0];
        assert!(one["relative_load"] == json!(0.375) || one["cost"].as_f64().is_some_and(|cost| cost > 0.0), "{one}");
    }
    reports.abort();
    let of = &explained["cluster"];
    let one = &of["workers"][0];
    assert_eq!((&of["decision"], &one["open"]), (&json!("waits"), &json!(false)));
    let load = ["inflight", "max_inflight", "queued", "kv_used_percent"].map(|key| one[key].as_u64());
    assert_eq!(load, [Some(3), Some(8), Some(5), Some(75)]);
    let line =
        "has no room (it reports as many requests queued as full_at_queued says), 3 of 8 in flight, 5 queued, 75 % of";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("it waits by priority, in turns with other sessions"), "{shown}");
}

#[tokio::test]
async fn a_cluster_where_no_router_ever_ran_is_told_so() {
    let server = crate::support::NatsServer::start();
    let url = server.url();
    let body = later_turn().to_string();
    let error = tokio::task::spawn_blocking(move || explain(&["--nats-url", &url], &[body.as_bytes()]));
    let error = error.await.expect("it does not panic").expect_err("there are no buckets");
    assert!(error.contains("the bucket rankpin_workers can't be read") && error.contains("ever run there?"), "{error}");
}
