//! Where and as whom the router connects to NATS.

use super::ConfigError;
use super::setting::{self, Given, Setting, Sources};
use crate::nats::Access;
use crate::nats::access::Urls;
use crate::nats::login::Secret;

/// What is said of it. Files and a context are read where the connection is made.
pub(super) fn read(sources: &Sources<'_>) -> Result<Access, ConfigError> {
    let text = |setting: &Setting| sources.find(setting).map(|given| given.text);
    let path = |setting: &Setting| text(setting).map(Into::into);
    Ok(Access {
        urls: sources.find(&setting::NATS_URL).map(urls).transpose()?,
        context: text(&setting::CONTEXT),
        creds: path(&setting::CREDS),
        nkey: path(&setting::NKEY),
        user: text(&setting::USER),
        password: text(&setting::PASSWORD).map(Secret::new),
        token: text(&setting::TOKEN).map(Secret::new),
        tls_ca: path(&setting::TLS_CA),
        tls_cert: path(&setting::TLS_CERT),
        tls_key: path(&setting::TLS_KEY),
        // That of routers is part of the protocol.
        inbox_prefix: None,
    })
}

fn urls(given: Given) -> Result<Urls, ConfigError> {
    // Whether each of them is a URL is judged where the connection is made.
    if given.text.split(',').all(|url| url.trim().is_empty()) {
        return Err(
            given.refuse("write the URL of a NATS server, nats://host:4222, several with commas between".into())
        );
    }
    Ok(Urls::new(given.text))
}

/// One login counts: a second one would silently not.
pub(super) fn refuse_what_has_no_effect(sources: &Sources<'_>, access: &Access) -> Result<(), ConfigError> {
    let logins = [&setting::CREDS, &setting::NKEY, &setting::USER, &setting::TOKEN];
    let mut given = logins.into_iter().filter_map(|setting| sources.find(setting));
    let first = given.next();
    if let (Some(first), Some(second)) = (&first, given.next()) {
        return Err(second.no_effect(&format!("{} is given too; leave one of the two out", first.key)));
    }
    if let (true, Some(first)) = (access.urls.as_ref().is_some_and(Urls::has_login), first) {
        return Err(first.no_effect("nats_url holds a login; leave one of the two out"));
    }
    for (half, other) in [
        (&setting::PASSWORD, &setting::USER),
        (&setting::TLS_CERT, &setting::TLS_KEY),
        (&setting::TLS_KEY, &setting::TLS_CERT),
    ] {
        if let (Some(given), None) = (sources.find(half), sources.find(other)) {
            return Err(given.no_effect(&format!("{} is missing", other.key)));
        }
    }
    Ok(())
}
