//! Who may ask, what of a client's headers goes on, TLS, and pages of other origins.

use std::sync::Arc;

use rankpin::core::hash::PinKey;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::{Gateway, chat};
use crate::support::{Cluster, http};

const CHAT: &str = "/v1/chat/completions";

/// `printf %s one | sha256sum`, and of `two`.
const KEYS: &str = "\
# Two tenants
sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed acme
sha256:3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3 other corp
";

#[tokio::test]
async fn a_key_tells_the_tenant_and_a_tenants_session_is_its_own() {
    let cluster = Cluster::with(1, &[("untrusted_frontends", "true")]).await;
    let path = cluster.server.dir().join("keys.txt");
    std::fs::write(&path, KEYS).expect("a temp directory takes files");
    let gateway = Gateway::start(&cluster, &[("api_keys", path.to_str().expect("UTF-8"))]).await;
    let worker = cluster.worker("w").ranks(0, 4).start().await;

    let session = ("Rankpin-Session-Id", "s");
    for headers in [&[session][..], &[session, ("Authorization", "Bearer three")]] {
        let answer = gateway.post_with(CHAT, headers, &chat("hi")).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (401, &"invalid_api_key".into()));
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(gateway.get("/v1/models").await.status, 401);
    assert_eq!(gateway.get("/readyz").await.status, 200, "probes have no key");
    assert_eq!(worker.count(), 0);

    let forged = ("Rankpin-Tenant", "other corp");
    let answer = gateway.post_with(CHAT, &[session, forged, ("Authorization", "Bearer one")], &chat("hi")).await;
    assert_eq!(answer.status, 200);
    let answer = gateway.post_with(CHAT, &[session, ("x-api-key", "two")], &chat("hi")).await;
    assert_eq!(answer.status, 200);
    for tenant in ["acme", "other corp"] {
        assert!(cluster.pin_of(tenant, "m", "s").await.is_some(), "{tenant}: {}", PinKey::of(tenant, "m", "s"));
    }
    assert!(cluster.pin("s").await.is_none());
}

#[tokio::test]
async fn sessions_and_traces_go_on_and_credentials_never_do() {
    let cluster = Cluster::start().await;
    let gateway = Gateway::start(&cluster, &[]).await;
    let mut tap = cluster.subscribe(">").await;
    let worker = cluster.worker("w").start().await;
    let sent = [
        ("Authorization", "Bearer secret"),
        ("X-Api-Key", "secret"),
        ("Cookie", "secret=secret"),
        ("X-Claude-Code-Session-Id", "claude"),
        ("X-Parent-Session-Id", "parent"),
        ("Traceparent", "00-1"),
        ("Anthropic-Version", "2023-06-01"),
        ("Rankpin-Target-Worker", "nobody"),
        ("Rankpin-Reply-To", "forged"),
    ];
    let answer = gateway.post_with("/v1/messages", &sent, &chat("hi")).await;
    assert_eq!((answer.status, answer.header("x-rankpin-worker")), (200, Some("w")), "the hint is dropped");
    let dispatch = worker.dispatch(0).await;
    assert_eq!(dispatch.session(), "claude");
    for (name, value) in [
        ("x-parent-session-id", "parent"),
        ("traceparent", "00-1"),
        ("anthropic-version", "2023-06-01"),
        ("rankpin-path", "/v1/messages"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(dispatch.header(name), Some(value), "{name}");
    }
    let seen = crate::support::so_far(&cluster.client, &mut tap).await;
    assert!(!seen.is_empty());
    for message in seen {
        let headers = format!("{:?}", message.headers);
        assert!(!headers.contains("secret") && !headers.contains("forged"), "{}: {headers}", message.subject);
    }
}

#[tokio::test]
async fn what_is_asked_for_goes_on_and_what_is_to_be_hidden_is() {
    let cluster = Cluster::start().await;
    let settings =
        [("client_hints", "true"), ("forward_headers", "x-tier,authorization"), ("placement_headers", "false")];
    let gateway = Gateway::start(&cluster, &settings).await;
    let worker = cluster.worker("w").start().await;
    let asked = [("Authorization", "Bearer k"), ("X-Tier", "gold"), ("Rankpin-Timeout-Ms", "5000")];
    let answer = gateway.post_with(CHAT, &asked, &chat("hi")).await;
    assert_eq!((answer.status, answer.header("x-rankpin-worker")), (200, None));
    let dispatch = worker.dispatch(0).await;
    for (name, value) in [("authorization", "Bearer k"), ("x-tier", "gold"), ("Rankpin-Timeout-Ms", "5000")] {
        assert_eq!(dispatch.header(name), Some(value), "{name}");
    }
    let answer = gateway.post_with(CHAT, &[("Rankpin-Target-Worker", "nobody")], &chat("hi")).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &"unknown_worker".into()));
    let answer = gateway.post_with(CHAT, &[("Rankpin-Deadline-Ms", "soon")], &chat("hi")).await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn pages_of_other_origins_read_answers_only_where_that_is_allowed() {
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("w").start().await;
    let origin = |name: &'static str| ("Origin", name);
    let shut = Gateway::start(&cluster, &[]).await;
    let answer = shut.post_with(CHAT, &[origin("https://a.example")], &chat("hi")).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));

    let open = Gateway::start(&cluster, &[("cors_origins", "https://a.example")]).await;
    for (name, allowed) in [("https://a.example", true), ("https://b.example", false)] {
        let answer = open.post_with(CHAT, &[origin(name)], &chat("hi")).await;
        assert_eq!(answer.header("access-control-allow-origin"), allowed.then_some(name));
        let asks = [origin(name), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "x-a")];
        let preflight = http::send(open.address, "OPTIONS", CHAT, &asks, b"").await;
        assert_eq!(preflight.status, if allowed { 204 } else { 405 });
        assert_eq!(preflight.header("access-control-allow-headers"), allowed.then_some("x-a"));
    }
}

#[tokio::test]
async fn https_is_served_with_a_certificate() {
    const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/gateway/tls");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| format!("{DIR}/{name}"));
    let cluster = Cluster::start().await;
    let _worker = cluster.worker("w").start().await;
    let gateway = Gateway::start(&cluster, &[("tls_cert", &cert), ("tls_key", &key)]).await;

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&cert).expect("a certificate")).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(gateway.address).await.expect("somebody listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("the certificate is trusted");
    let body = chat("hi").to_string();
    let answer = http::send_over(stream, gateway.address, "POST", CHAT, &[], body.as_bytes()).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "done"));
}

#[tokio::test]
async fn settings_that_can_not_work_end_it_at_its_start() {
    let cluster = Cluster::with(0, &[]).await;
    for (flag, told) in [("--api-keys", "cannot read the API keys"), ("--tls-cert", "cannot serve TLS with")] {
        let url = cluster.server.url();
        let mut args = vec!["gateway", "--nats-url", &url, "--listen", "127.0.0.1:0", flag, "/nowhere"];
        if flag == "--tls-cert" {
            args.extend(["--tls-key", "/nowhere"]);
        }
        let mut command = tokio::process::Command::from(crate::support::rankpin::command(&args));
        let output = command.kill_on_drop(true).output();
        let output = tokio::time::timeout(crate::support::PATIENCE, output).await.expect("it ends").expect("it starts");
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(!output.status.success() && text.contains(told), "{text}");
    }
}
