//! Every way to log in, on both kinds of connection that a router has, and through the command line.

use std::path::Path;

use rankpin::nats::access::{Access, Urls};
use rankpin::nats::login::Secret;
use rankpin::nats::{ConnectError, Lane, Link};

use super::{output_with, printed};
use crate::support::NatsServer;
use crate::support::server::Options;

fn server(config: String) -> NatsServer {
    NatsServer::start_with(Options { config, ..Options::default() })
}

/// Connects as a router does: by the client library, and by the hot path's own connection.
async fn connect(access: &Access) -> Result<(), ConnectError> {
    let options = access.link("test").expect("it makes sense");
    Link::open(options.clone()).await?.barrier().await?;
    let lane = Lane::open(options).await?;
    let driving = tokio::spawn({
        let lane = lane.clone();
        async move { lane.drive(|_| ()).await }
    });
    let stands = lane.barrier().await;
    driving.abort();
    stands
}

fn nkey(dir: &Path) -> (String, Access) {
    let key = nkeys::KeyPair::new_from_raw(nkeys::KeyPairType::User, [9; 32]).expect("a key");
    let path = dir.join("user.nk");
    std::fs::write(&path, key.seed().expect("it has one")).expect("written");
    (key.public_key(), Access { nkey: Some(path), ..Access::default() })
}

#[tokio::test]
async fn users_tokens_and_nkeys() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    let (public, by_nkey) = nkey(dir.path());
    let by_user = Access { user: Some("u".into()), password: Some(Secret::new("p4ss")), ..Access::default() };
    let by_token = Access { token: Some(Secret::new("t0ken")), ..Access::default() };
    for (config, right) in [
        ("user: u, password: p4ss".to_owned(), by_user),
        ("token: t0ken".to_owned(), by_token),
        (format!("users: [ {{ nkey: {public} }} ]"), by_nkey),
    ] {
        let server = server(format!("authorization {{ {config} }}"));
        let at = |access: Access| Access { urls: Some(Urls::new(server.url())), ..access };
        connect(&at(right)).await.unwrap_or_else(|e| panic!("{config}: {e}"));
        let wrong = Access { user: Some("u".into()), password: Some(Secret::new("wr0ng")), ..Access::default() };
        let error = connect(&at(wrong)).await.expect_err("wrong").to_string();
        assert!(error.contains("authorization") && !error.contains("wr0ng"), "{error}");
    }
}

#[tokio::test]
async fn a_context_of_the_nats_command_line_counts_for_every_command() {
    let server = server("authorization { user: u, password: p4ss }".into());
    let dir = server.dir().join("config/nats/context");
    std::fs::create_dir_all(&dir).expect("made");
    let context = format!(r#"{{"description":"","url":"{}","user":"u","password":"p4ss","token":""}}"#, server.url());
    std::fs::write(dir.join("prod.json"), context).expect("written");
    let home = server.dir().join("config").display().to_string();
    let variables = [("XDG_CONFIG_HOME", home.as_str())];
    // There is no bucket yet; that it says so shows that it was let in.
    let output = output_with(&server, &["workers", "--context", "prod"], &variables).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the bucket rankpin_workers can't be read"), "{said}");
    let router = [("XDG_CONFIG_HOME", home.as_str()), ("NATS_CONTEXT", "prod")];
    let args = ["config", "check"];
    printed(&args, output_with(&server, &args, &router).await);
    let output = output_with(&server, &["workers", "--context", "test"], &variables).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("there is no NATS context \"test\"") && said.contains("(there are prod)"), "{said}");
}

/// An authority, and certificates of it for the server and a client, as files.
fn certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).expect("written");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key")).expect("signed");
    write("ca.pem", issuer.pem());
    for name in ["server", "client"] {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[tokio::test]
async fn tls_with_an_authority_and_certificates_of_our_own() {
    let dir = tempfile::tempdir().expect("a temp directory can be made");
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name);
    for first in [false, true] {
        let config = format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true, handshake_first: {first} }}",
            file("server.pem"),
            file("server.key"),
            file("ca.pem"),
        );
        let server = server(config);
        // Whether TLS comes first, only a context can say.
        let context = dir.path().join("context.json");
        std::fs::write(&context, format!(r#"{{"tls_first":{first}}}"#)).expect("written");
        let right = Access {
            urls: Some(Urls::new(server.url())),
            context: Some(context.display().to_string()),
            tls_ca: Some(file("ca.pem")),
            tls_cert: Some(file("client.pem")),
            tls_key: Some(file("client.key")),
            ..Access::default()
        };
        connect(&right).await.unwrap_or_else(|e| panic!("first {first}: {e}"));
        let nameless = Access { tls_cert: None, tls_key: None, ..right.clone() };
        connect(&nameless).await.expect_err("the server wants a certificate");
        let missing = Access { tls_ca: Some(file("none.pem")), ..right };
        let error = connect(&missing).await.expect_err("no such file").to_string();
        assert!(error.contains("none.pem"), "{error}");
    }
    let plain = server(String::new());
    let wanted = Access { urls: Some(Urls::new(plain.url())), tls_ca: Some(file("ca.pem")), ..Access::default() };
    connect(&wanted).await.expect_err("the server has no TLS");
}
