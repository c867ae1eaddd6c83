//! `rankpin jobs` as a process.

use std::process::Output;

use serde_json::Value;

use crate::support::rankpin::command;
use crate::support::rankpin::sim;
use crate::support::{NatsServer, PATIENCE, RouterProcess};

struct Shell {
    server: NatsServer,
    _router: RouterProcess,
}

impl Shell {
    async fn new() -> Self {
        let server = NatsServer::start();
        let router = RouterProcess::start("router", &server, &[]).await;
        Self { server, _router: router }
    }

    async fn output(&self, args: &[&str]) -> Output {
        let mut command = tokio::process::Command::from(command(&["jobs", "--nats-url", &self.server.url()]));
        let output = command.args(args).current_dir(self.server.dir()).kill_on_drop(true).output();
        tokio::time::timeout(2 * PATIENCE, output).await.expect("it ends").expect("it starts")
    }

    /// What a command prints; it has to end well.
    async fn run(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    async fn json(&self, args: &[&str]) -> Vec<Value> {
        let text = self.run(&[args, &["--json"]].concat()).await;
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// What a command that fails says last.
    async fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).expect("UTF-8").lines().last().expect("a message").to_owned()
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.server.dir().join(name), text).expect("a temp directory takes files");
    }
}

fn batch(lines: usize) -> String {
    let line = |n| {
        format!(
            r#"{{"custom_id":"c{n}","method":"POST","url":"/v1/chat/completions","body":{{"model":"m","messages":[{{"role":"user","content":"question {n}"}}]}}}}"#
        )
    };
    (0..lines).map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_batch_is_submitted_once_however_often_and_its_results_are_a_batch() {
    let shell = Shell::new().await;
    let _sim = sim(&shell.server, "w", &["--speed", "100"]);
    shell.file("batch.jsonl", &batch(50));
    let first = shell.json(&["submit", "batch.jsonl"]).await;
    assert_eq!(first.len(), 50);
    assert!(first.iter().all(|line| line["duplicate"] == false));
    assert_eq!(first[7]["custom_id"], "c7");
    let again = shell.json(&["submit", "batch.jsonl"]).await;
    assert!(again.iter().all(|line| line["duplicate"] == true));
    let results = shell.json(&["results", "--of", "batch.jsonl", "--wait", "30s"]).await;
    let mut names: Vec<_> = results.iter().map(|line| line["custom_id"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 50);
    for line in &results {
        assert_eq!((&line["error"], &line["response"]["status_code"]), (&Value::Null, &200.into()), "{line}");
        assert!(line["response"]["body"]["choices"].is_array(), "{line}");
        assert_eq!(line["worker"], "w");
    }
    let all = &shell.json(&["status"]).await[0];
    assert_eq!((&all["done"], &all["pending"], &all["dead"]), (&50.into(), &0.into(), &0.into()), "{all}");
    assert_eq!(shell.json(&["results"]).await.len(), 50);
    // Under another name they are other jobs.
    let other = shell.json(&["submit", "batch.jsonl", "--batch", "b"]).await;
    assert!(other.iter().all(|line| line["duplicate"] == false));
}

#[tokio::test]
async fn one_job_is_submitted_waited_for_and_printed() {
    let shell = Shell::new().await;
    shell.file("body.json", "{\"model\": \"m\",\n \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    assert_eq!(shell.run(&["submit", "body.json", "--id", "one"]).await, "one\n");
    let status = &shell.json(&["status", "one"]).await;
    assert!(["pending", "running"].contains(&status[0]["status"].as_str().expect("a word")), "{status:?}");
    assert!(shell.refused(&["status", "one", "none"]).await.contains("1 of the jobs are not there"));
    let told = shell.refused(&["results", "one"]).await;
    assert!(told.contains("1 of 1 job(s) have no result yet, such as one"), "{told}");
    let _sim = sim(&shell.server, "w", &["--speed", "100"]);
    let answer: Value = serde_json::from_str(&shell.run(&["results", "one", "--wait", "30s"]).await).expect("JSON");
    assert_eq!(answer["object"], "chat.completion", "{answer}");
    assert_eq!(shell.run(&["status", "one"]).await, "one  done\n");
}

#[tokio::test]
async fn a_job_is_cancelled_dead_ones_are_listed_and_requeued() {
    let shell = Shell::new().await;
    let body = r#"{"model":"m","messages":[]}"#;
    shell.file("body.json", body);
    shell.run(&["submit", "body.json", "--id", "gone"]).await;
    assert_eq!(shell.run(&["cancel", "gone"]).await, "gone  cancelled\n");
    assert!(shell.run(&["cancel", "gone"]).await.contains("too late"));
    assert!(shell.refused(&["cancel", "nobody"]).await.contains("1 of the jobs are not there"));
    assert!(shell.refused(&["results", "gone"]).await.contains("499 cancelled"));
    assert_eq!(shell.run(&["dead"]).await, "");
    assert!(shell.refused(&["requeue", "gone"]).await.contains("1 of the jobs are not dead, such as gone"));

    // A dead letter as a router writes one.
    let client = shell.server.client().await;
    super::publish(
        &client,
        "rankpin.dead.m",
        &[
            ("Rankpin-Request-Id", "late"),
            ("Rankpin-Failures", "5"),
            ("Nats-Service-Error-Code", "503"),
            ("Nats-Service-Error", "worker_lost"),
            ("Rankpin-Dead-Reason", "worker \"w\" was lost"),
        ],
    )
    .await;
    let dead = shell.json(&["dead"]).await;
    assert_eq!(
        (&dead[0]["id"], &dead[0]["model"], &dead[0]["code"]),
        (&"late".into(), &"m".into(), &"worker_lost".into())
    );
    let _sim = sim(&shell.server, "w", &["--speed", "100"]);
    assert_eq!(shell.run(&["requeue", "--all"]).await, "late  requeued\n");
    shell.run(&["results", "late", "--wait", "30s"]).await;
    assert_eq!(shell.run(&["dead"]).await, "");
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = NatsServer::start();
    let shell = Shell { _router: RouterProcess::start("router", &server, &["--max-jobs", "0"]).await, server };
    shell.file("bad.jsonl", "{\"model\":\"m\"}\nnonsense\n");
    shell.file("large.jsonl", &format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}\n", "x".repeat(2 << 20)));
    shell.file("two.jsonl", "{\"model\":\"m\"}\n{\"model\":\"m\"}\n");
    for (args, told) in [
        (&["submit", "bad.jsonl"][..], "bad.jsonl: line 2: this is no JSON object of a request"),
        (&["submit", "nowhere.jsonl"], "cannot read the jobs in nowhere.jsonl"),
        (&["submit", "two.jsonl", "--id", "x"], "--id names one job, two.jsonl holds 2"),
        (&["submit", "two.jsonl", "-H", "nonsense"], "write 'Name: value'"),
        (&["results", "--wait", "1s"], "--wait can have no effect"),
        (&["status", "a b"], "the job id \"a b\" holds ' '"),
        (&["results"], "no stream takes messages on \"rankpin.job"),
        (&["dead"], "no stream takes messages on \"rankpin.job"),
        (&["submit", "large.jsonl"], "can't be submitted; batches of a gateway take larger bodies"),
        (&["submit", "two.jsonl"], "no stream takes messages on \"rankpin.job.m\""),
    ] {
        let error = shell.refused(args).await;
        assert!(error.contains(told), "{args:?}: {error}");
    }
}
