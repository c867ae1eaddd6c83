//! Files and batches, as OpenAI's client library asks for them.

use async_nats::jetstream;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::{Gateway, sim};
use crate::support::http::{self, Answer};
use crate::support::{Behaviour, Cluster, PATIENCE, eventually};

const URL: &str = "/v1/chat/completions";
const BOUNDARY: &str = "a-boundary";

fn form(purpose: &str, file: &str) -> String {
    let part = |disposition: &str, text: &str| {
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{text}\r\n")
    };
    let fields = [part("name=\"purpose\"", purpose), part("name=\"file\"; filename=\"in.jsonl\"", file)];
    format!("{}--{BOUNDARY}--\r\n", fields.concat())
}

async fn upload(gateway: &Gateway, purpose: &str, file: &str) -> Answer {
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let body = form(purpose, file);
    http::send(gateway.address, "POST", "/v1/files", &[("Content-Type", &kind)], body.as_bytes()).await
}

fn line(custom_id: &str, body: &Value) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": URL, "body": body}).to_string() + "\n"
}

fn chat(words: &str) -> Value {
    json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": words}]})
}

async fn create(gateway: &Gateway, file: &str) -> Value {
    let uploaded = upload(gateway, "batch", file).await;
    assert_eq!(uploaded.status, 200, "{}", uploaded.text());
    let wanted = json!({"input_file_id": uploaded.json()["id"], "endpoint": URL, "completion_window": "24h",
        "metadata": {"night": "1"}});
    let created = gateway.post("/v1/batches", &wanted).await;
    assert_eq!(created.status, 200, "{}", created.text());
    created.json()
}

/// Waits until a batch is in one of these states.
async fn reaches(gateway: &Gateway, id: &Value, states: &[&str]) -> Value {
    let path = format!("/v1/batches/{}", id.as_str().expect("an id"));
    let look = async || {
        let batch = gateway.get(&path).await.json();
        let state = batch["status"].as_str().expect("a state").to_owned();
        assert!(states.contains(&state.as_str()) || !["failed", "expired"].contains(&state.as_str()), "{batch}");
        states.contains(&state.as_str()).then_some(batch)
    };
    eventually(&format!("the batch is {states:?}"), PATIENCE * 3, look).await
}

async fn lines(gateway: &Gateway, id: &Value) -> Vec<Value> {
    let content = gateway.get(&format!("/v1/files/{}/content", id.as_str().expect("an id"))).await;
    assert_eq!(content.status, 200);
    content.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn a_batch_is_done_and_leaves_its_answers_whichever_gateway_is_asked() {
    let cluster = Cluster::start().await;
    let (first, second) = (Gateway::start(&cluster, &[]).await, Gateway::start(&cluster, &[]).await);
    let _sim = sim(&cluster, &["--speed", "1000"]).await;
    let file: String = (0..100).map(|n| line(&format!("r{n}"), &chat(&format!("question {n}")))).collect();
    let created = create(&first, &file).await;
    assert_eq!((&created["object"], &created["status"]), (&"batch".into(), &"validating".into()));
    let done = reaches(&second, &created["id"], &["completed"]).await;
    assert_eq!(done["request_counts"], json!({"total": 100, "completed": 100, "failed": 0}));
    assert_eq!((&done["metadata"]["night"], &done["error_file_id"]), (&"1".into(), &Value::Null));
    let answers = lines(&second, &done["output_file_id"]).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer["custom_id"], format!("r{n}"));
        assert_eq!((&answer["response"]["status_code"], &answer["error"]), (&200.into(), &Value::Null));
        let text = answer["response"]["body"]["choices"][0]["message"]["content"].as_str();
        assert_eq!(text.map(str::len), Some(16), "{answer}");
    }
    assert_eq!(answers.len(), 100);
    let listed = second.get("/v1/batches?limit=1").await.json();
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&created["id"], &false.into()));
    let files = second.get("/v1/files").await.json();
    let purposes: Vec<&Value> = files["data"].as_array().expect("a list").iter().map(|f| &f["purpose"]).collect();
    assert_eq!(purposes, ["batch_output", "batch"]);
    let late = first.post(&format!("/v1/batches/{}/cancel", created["id"].as_str().expect("an id")), &json!({})).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &"batch_done".into()));
}

#[tokio::test]
async fn what_fails_stands_in_the_file_of_errors() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[("large_bodies", "refuse")]).await;
    let script = Behaviour::script(|dispatch| async move {
        if String::from_utf8_lossy(&dispatch.message.payload).contains("wrong") {
            dispatch.reject(400, "invalid_request").await;
        } else {
            dispatch.accept().await;
            dispatch.job_answer(r#"{"it":"works"}"#).await;
        }
    });
    let worker = cluster.worker("w").behaves(script).start().await;
    let file = line("good", &chat("fine")) + &line("bad", &chat("wrong")) + &line("large", &chat(&"x".repeat(2 << 20)));
    let created = create(&gateway, &file).await;
    let done = reaches(&gateway, &created["id"], &["completed"]).await;
    assert_eq!(done["request_counts"], json!({"total": 3, "completed": 1, "failed": 2}));
    let answers = lines(&gateway, &done["output_file_id"]).await;
    assert_eq!((answers.len(), &answers[0]["response"]["body"]["it"]), (1, &"works".into()));
    let errors = lines(&gateway, &done["error_file_id"]).await;
    let told: Vec<_> = errors.iter().map(|e| (&e["custom_id"], &e["response"]["status_code"])).collect();
    assert_eq!(told, [(&"bad".into(), &400.into()), (&"large".into(), &413.into())]);
    assert_eq!(worker.dispatch(0).await.header("Rankpin-Path"), Some(URL));
}

#[tokio::test]
async fn a_line_that_a_message_cant_hold_is_done_too() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let _sim = sim(&cluster, &["--speed", "100000"]).await;
    let words = |n: usize| "word ".repeat(n);
    // Less than a message takes, but too much for what the router adds; and far more.
    let close = line("close", &chat(&"x".repeat((1 << 20) - 4096)));
    let file = line("small", &chat("hi")) + &close + &line("large", &chat(&words(600_000)));
    let created = create(&gateway, &file).await;
    let done = reaches(&gateway, &created["id"], &["completed"]).await;
    assert_eq!(done["request_counts"], json!({"total": 3, "completed": 3, "failed": 0}));
    let answers = lines(&gateway, &done["output_file_id"]).await;
    let tokens: Vec<u64> =
        answers.iter().filter_map(|a| a["response"]["body"]["usage"]["prompt_tokens"].as_u64()).collect();
    assert!(tokens.len() == 3 && tokens[0] < 100 && tokens[1] > 250_000 && tokens[2] > 700_000, "{tokens:?}");
    let context = jetstream::new(cluster.client.clone());
    let bodies = context.get_object_store("rankpin_bodies").await.expect("the gateway has made it");
    let left = async || bodies.list().await.expect("can be listed").count().await;
    eventually("the bodies are deleted", PATIENCE, async || (left().await == 0).then_some(())).await;
}

/// Changes a batch as it stands in the bucket, as if time had passed and its gateway had died.
async fn rewrite(cluster: &Cluster, batch: &Value, change: impl Fn(&mut Value)) {
    let (bucket, id) = (cluster.bucket("rankpin_batches").await, batch["id"].as_str().expect("an id"));
    loop {
        let entry = bucket.entry(id).await.expect("the bucket answers").expect("the batch is there");
        let mut record: Value = serde_json::from_slice(&entry.value).expect("JSON");
        change(&mut record);
        record["lease"] = Value::Null;
        if bucket.update(id, record.to_string().into(), entry.revision).await.is_ok() {
            return;
        }
    }
}

#[tokio::test]
async fn a_batch_whose_time_is_up_when_it_is_taken_over_leaves_no_job_behind() {
    let cluster = Cluster::start().await;
    let first = Gateway::start(&cluster, &[]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let stopped = create(&first, &line("a", &chat("x"))).await;
    worker.dispatch(0).await;
    drop(first);
    // Its gateway died between saying that the time is up and cancelling what was open.
    rewrite(&cluster, &stopped, |record| {
        record["status"] = "finalizing".into();
        record["out_of_time"] = true.into();
    })
    .await;
    let second = Gateway::start(&cluster, &[]).await;
    let expired = reaches(&second, &stopped["id"], &["expired"]).await;
    let errors = lines(&second, &expired["error_file_id"]).await;
    assert_eq!(errors[0]["error"]["code"], "batch_expired");
    let results = jetstream::new(cluster.client.clone()).get_stream("rankpin_results").await.expect("it is there");
    let subject = format!("rankpin.result.{}-1", stopped["id"].as_str().expect("an id"));
    let result = results.get_last_raw_message_by_subject(&subject).await.expect("the job has a result");
    assert_eq!(result.headers.get("Nats-Service-Error").map(async_nats::HeaderValue::as_str), Some("cancelled"));
}

#[tokio::test]
async fn a_batch_whose_time_was_up_before_anybody_came_to_it_is_not_begun() {
    let cluster = Cluster::start().await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let first = Gateway::start(&cluster, &[]).await;
    let uploaded = upload(&first, "batch", &(line("a", &chat("x")) + &line("b", &chat("y")))).await.json();
    let model = create(&first, &line("other", &chat("z"))).await;
    worker.dispatch(0).await;
    drop(first);
    rewrite(&cluster, &model, |record| {
        record["status"] = "in_progress".into();
        record["input_file_id"] = uploaded["id"].clone();
        record["request_counts"] = json!({"total": 2, "completed": 0, "failed": 0});
        record["expires_at"] = 1.into();
    })
    .await;
    let second = Gateway::start(&cluster, &[]).await;
    let expired = reaches(&second, &model["id"], &["expired"]).await;
    let errors = lines(&second, &expired["error_file_id"]).await;
    let codes: Vec<_> = errors.iter().map(|error| &error["error"]["code"]).collect();
    assert_eq!(codes, ["batch_expired", "batch_expired"]);
    assert_eq!(worker.count(), 1, "none of its requests was run");
}

#[tokio::test]
async fn a_file_that_is_none_of_a_batch_fails_it_with_its_lines() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let file = line("a", &chat("x")) + "nonsense\n" + &line("a", &chat("y"));
    let created = create(&gateway, &file).await;
    let failed = reaches(&gateway, &created["id"], &["failed"]).await;
    let errors: Vec<_> =
        failed["errors"]["data"].as_array().expect("errors").iter().map(|e| (&e["line"], &e["code"])).collect();
    assert_eq!(errors, [(&2.into(), &"invalid_json_line".into()), (&3.into(), &"duplicate_custom_id".into())]);
    let empty = create(&gateway, "\n").await;
    let failed = reaches(&gateway, &empty["id"], &["failed"]).await;
    assert_eq!(failed["errors"]["data"][0]["code"], "empty_file");
    // What is wrong with its lines is all that is wrong with it.
    let wrong = create(&gateway, "nonsense\n[]\n").await;
    let failed = reaches(&gateway, &wrong["id"], &["failed"]).await;
    let errors = failed["errors"]["data"].as_array().expect("errors");
    let codes: Vec<_> = errors.iter().map(|error| &error["code"]).collect();
    assert_eq!(codes, ["invalid_json_line", "invalid_json_line"]);
    for none in [
        json!(["file-x", URL, "24h", null]),
        json!({"input_file_id": "f", "endpoint": URL,
        "completion_window": "24h", "output_expires_after": {"anchor": "created_at", "seconds": 3600}}),
    ] {
        let refused = gateway.post("/v1/batches", &none).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &"invalid_request".into()), "{none}");
        assert!(!refused.text().contains("struct"), "{}", refused.text());
    }
}

#[tokio::test]
async fn lists_are_filtered_and_in_the_order_that_is_asked_for() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let ids = async |query: &str| -> Vec<Value> {
        let listed = gateway.get(&format!("/v1/files{query}")).await;
        assert_eq!(listed.status, 200, "{}", listed.text());
        listed.json()["data"].as_array().expect("a list").iter().map(|file| file["id"].clone()).collect()
    };
    let mut files = Vec::new();
    for _ in 0..3 {
        files.push(upload(&gateway, "batch", "x").await.json()["id"].clone());
    }
    assert_eq!(ids("?order=asc").await, files);
    assert_eq!(ids("?purpose=batch&order=asc&limit=2").await, files[..2]);
    let after = format!("?order=asc&after={}", files[0].as_str().expect("an id"));
    assert_eq!(ids(&after).await, files[1..]);
    files.reverse();
    assert_eq!(ids("").await, files);
    assert_eq!(ids("?order=desc&purpose=%62atch").await, files);
    assert_eq!(ids("?purpose=batch_output").await, Vec::<Value>::new());
    for path in ["/v1/files?order=up", "/v1/files?before=x", "/v1/files?order", "/v1/batches?order=asc"] {
        let refused = gateway.get(path).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &"invalid_request".into()), "{path}");
    }
}

#[tokio::test]
async fn an_upload_with_what_is_not_done_here_is_refused_and_leaves_nothing() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let put = async |form: &str| {
        http::send(gateway.address, "POST", "/v1/files", &[("Content-Type", &kind)], form.as_bytes()).await
    };
    let end = format!("--{BOUNDARY}--\r\n");
    let whole = form("batch", "x");
    let begun = whole.strip_suffix(&end).expect("that is its end");
    let field = |name: &str| format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n5\r\n");
    for (form, told) in [
        (format!("{begun}{}{end}", field("expires_after[seconds]")), "expires_after"),
        (format!("{}{whole}", field("expires_after[anchor]")), "expires_after"),
        (format!("{begun}{}{end}", field("other")), "other"),
        (format!("{begun}{begun}{end}"), "two"),
        // It breaks off behind the file.
        (format!("{begun}--{BOUNDARY}\r\nContent-Dis"), "form"),
    ] {
        let refused = put(&form).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["code"]), (400, &"invalid_request".into()), "{form}");
        assert!(error["message"].as_str().is_some_and(|words| words.contains(told)), "{error}");
    }
    assert_eq!(gateway.get("/v1/files").await.json()["data"], json!([]));
    assert_eq!(put(&whole).await.status, 200);
}

#[tokio::test]
async fn a_batch_that_is_cancelled_keeps_what_was_done() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let script = Behaviour::script(|dispatch| async move {
        dispatch.accept().await;
        if String::from_utf8_lossy(&dispatch.message.payload).contains("quick") {
            dispatch.job_answer("{}").await;
        }
    });
    let _worker = cluster.worker("w").behaves(script).start().await;
    let created = create(&gateway, &(line("quick", &chat("quick")) + &line("slow", &chat("slow")))).await;
    let path = format!("/v1/batches/{}", created["id"].as_str().expect("an id"));
    let one = async || (gateway.get(&path).await.json()["request_counts"]["completed"] == 1).then_some(());
    eventually("one of two is done", PATIENCE, one).await;
    let answer = gateway.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!((answer.status, &answer.json()["status"]), (200, &"cancelling".into()));
    let done = reaches(&gateway, &created["id"], &["cancelled"]).await;
    assert_eq!(lines(&gateway, &done["output_file_id"]).await[0]["custom_id"], "quick");
    let errors = lines(&gateway, &done["error_file_id"]).await;
    assert_eq!((&errors[0]["custom_id"], &errors[0]["error"]["code"]), (&"slow".into(), &"batch_cancelled".into()));
}

#[tokio::test]
async fn another_gateway_goes_on_with_a_batch() {
    let cluster = Cluster::start().await;
    let first = Gateway::start(&cluster, &[]).await;
    let worker = cluster.worker("w").behaves(Behaviour::Hold).start().await;
    let created = create(&first, &line("a", &chat("x"))).await;
    let dispatch = worker.dispatch(0).await;
    // Killed: it tells nobody.
    drop(first);
    let second = Gateway::start(&cluster, &[]).await;
    dispatch.job_answer("{}").await;
    let done = reaches(&second, &created["id"], &["completed"]).await;
    assert_eq!(done["request_counts"]["completed"], 1);
    assert_eq!(worker.count(), 1, "its job is not run again");
}

#[tokio::test]
async fn files_are_taken_shown_and_deleted_and_are_of_their_tenant() {
    let cluster = Cluster::start().await;
    let path = cluster.server.dir().join("keys.txt");
    // `printf %s one | sha256sum`, and of `two`.
    let keys = "sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed acme\n\
                sha256:3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3 other\n";
    std::fs::write(&path, keys).expect("a temp directory takes files");
    let settings = [("api_keys", path.to_str().expect("UTF-8")), ("max_file", "1MB")];
    let gateway = Gateway::start(&cluster, &settings).await;
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let put = async |key: &str, purpose: &str, file: &str| {
        let headers = [("Content-Type", kind.as_str()), ("x-api-key", key)];
        http::send(gateway.address, "POST", "/v1/files", &headers, form(purpose, file).as_bytes()).await
    };
    let ask = async |method: &str, key: &str, path: &str| {
        http::send(gateway.address, method, path, &[("x-api-key", key)], b"").await
    };
    let file = "x".repeat(900 * 1024);
    let taken = put("one", "batch", &file).await;
    assert_eq!(taken.status, 200, "{}", taken.text());
    let shown = taken.json();
    assert_eq!((&shown["bytes"], &shown["filename"]), (&(900 * 1024).into(), &"in.jsonl".into()));
    let one = format!("/v1/files/{}", shown["id"].as_str().expect("an id"));
    assert_eq!(ask("GET", "one", &one).await.json(), shown);
    assert_eq!(ask("GET", "one", &format!("{one}/content")).await.text(), file);
    for (method, path) in [("GET", one.clone()), ("GET", format!("{one}/content")), ("DELETE", one.clone())] {
        assert_eq!(ask(method, "two", &path).await.status, 404, "{method} {path}");
    }
    assert_eq!(ask("GET", "two", "/v1/files").await.json()["data"], json!([]));
    assert_eq!(ask("GET", "three", "/v1/files").await.status, 401);
    assert_eq!(put("one", "fine-tune", "x").await.status, 400);
    assert_eq!(put("one", "batch", &"x".repeat(1100 * 1024)).await.status, 413);
    assert_eq!(ask("GET", "one", "/v1/files").await.json()["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(ask("DELETE", "one", &one).await.json()["deleted"], true);
    assert_eq!(ask("GET", "one", &one).await.status, 404);
    let wanted = json!({"input_file_id": "file-none", "endpoint": URL, "completion_window": "24h"});
    let body = wanted.to_string();
    let none = http::send(gateway.address, "POST", "/v1/batches", &[("x-api-key", "one")], body.as_bytes()).await;
    assert_eq!((none.status, &none.json()["error"]["code"]), (404, &"unknown_file".into()));
}
