//! Where and as whom to connect to NATS: one set of flags for every subcommand.

use std::convert::Infallible;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::core::id::Namespace;
use crate::nats::access::Urls;
use crate::nats::login::Secret;
use crate::nats::{Access, Link, LinkOptions};
use crate::wire::subject::Subjects;

/// Server, login and namespace.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "NATS")]
pub(super) struct Connection {
    /// NATS servers, several with commas between [default: nats://127.0.0.1:4222]
    #[arg(long, global = true, env = "NATS_URL", value_name = "URL", hide_env_values = true, value_parser = urls)]
    nats_url: Option<Urls>,

    /// First token of every subject, and prefix of the buckets and streams
    #[arg(
        long,
        global = true,
        env = "RANKPIN_NAMESPACE",
        value_name = "NAME",
        default_value = "rankpin",
        value_parser = namespace
    )]
    pub(super) namespace: Namespace,

    #[command(flatten)]
    pub(super) login: Login,
}

/// As whom.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "NATS")]
pub(super) struct Login {
    /// Context of the nats command line (~/.config/nats/context/NAME.json, or a path); flags go before what it says
    #[arg(long, global = true, env = "NATS_CONTEXT", value_name = "NAME")]
    context: Option<String>,

    /// Credentials file (JWT and seed)
    #[arg(long, global = true, env = "NATS_CREDS", value_name = "FILE")]
    creds: Option<PathBuf>,

    /// File with the seed of the user's nkey
    #[arg(long, global = true, env = "NATS_NKEY", value_name = "FILE")]
    nkey: Option<PathBuf>,

    /// User to connect as, with a password
    #[arg(long, global = true, env = "NATS_USER", value_name = "NAME")]
    user: Option<String>,

    /// The user's password; better as a variable, other users of the machine see flags
    #[arg(long, global = true, env = "NATS_PASSWORD", value_name = "TEXT", hide_env_values = true, value_parser = secret)]
    password: Option<Secret>,

    /// Token to connect with; better as a variable
    #[arg(long, global = true, env = "NATS_TOKEN", value_name = "TEXT", hide_env_values = true, value_parser = secret)]
    token: Option<Secret>,

    /// PEM file of the authorities that are believed, instead of the system's
    #[arg(long, global = true, env = "NATS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// PEM file of this client's certificate, where the server asks for one
    #[arg(long, global = true, env = "NATS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// PEM file of the certificate's key
    #[arg(long, global = true, env = "NATS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Prefix of this client's inboxes, where its user may not subscribe to all [default: _INBOX]
    #[arg(long, global = true, env = "RANKPIN_INBOX_PREFIX", value_name = "PREFIX")]
    inbox_prefix: Option<String>,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

fn urls(text: &str) -> Result<Urls, Infallible> {
    Ok(Urls::new(text))
}

fn namespace(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|e| format!("it {e}; allowed are 1 to 32 of a-z 0-9 _ -"))
}

impl Login {
    /// The same, at these servers.
    pub(super) fn at(&self, urls: Option<Urls>) -> Access {
        let Self { context, creds, nkey, user, password, token, tls_ca, tls_cert, tls_key, inbox_prefix } =
            self.clone();
        Access { urls, context, creds, nkey, user, password, token, tls_ca, tls_cert, tls_key, inbox_prefix }
    }
}

impl Login {
    /// This login where there is one, else that of `below`; what is said of TLS and inboxes goes before it too.
    pub(super) fn over(&self, below: Access) -> Access {
        let own = self.at(below.urls.clone());
        let login = if own.logins().is_empty() && own.context.is_none() { below.clone() } else { own.clone() };
        Access {
            tls_ca: own.tls_ca.or(below.tls_ca),
            tls_cert: own.tls_cert.or(below.tls_cert),
            tls_key: own.tls_key.or(below.tls_key),
            inbox_prefix: own.inbox_prefix.or(below.inbox_prefix),
            ..login
        }
    }
}

impl Connection {
    /// What is said of it.
    pub(super) fn access(&self) -> Access {
        self.login.at(self.nats_url.clone())
    }

    /// How to connect.
    pub(super) fn link(&self, name: &str) -> anyhow::Result<LinkOptions> {
        Ok(self.access().link(name)?)
    }

    /// Connects.
    pub(super) async fn open(&self, name: &str) -> anyhow::Result<Link> {
        let hint = "where and as whom: --nats-url, --context, --creds … (see --help)";
        Link::open(self.link(name)?).await.context(hint)
    }

    /// The subjects of the namespace.
    pub(super) fn subjects(&self) -> Subjects {
        Subjects::new(self.namespace.clone())
    }
}
