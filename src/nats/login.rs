//! As whom to connect: the kinds of login that NATS has, and what of them stands in a server's URL (the client library
//! does not take it from there by itself). None of it is ever shown.

use std::fmt;

use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;

/// A password, token or seed. Neither a log nor an error message can show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever has to send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// As whom to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// Nothing is said.
    Nobody,
    /// `nats://user:password@host`.
    User(String, Secret),
    /// `nats://token@host`.
    Token(Secret),
    /// The seed of a user's nkey.
    Nkey(Secret),
}

impl Login {
    /// What the first URL with a login says; it holds for all servers of the cluster.
    pub(super) fn of(addresses: &[ServerAddr]) -> Self {
        let Some(address) = addresses.iter().find(|address| address.has_user_pass()) else {
            return Self::Nobody;
        };
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = decode(address.username().unwrap_or_default());
        match address.password() {
            Some(password) => Self::User(user, Secret::new(decode(password))),
            None => Self::Token(Secret::new(user)),
        }
    }

    /// The options with this login.
    pub(super) fn apply(self, options: ConnectOptions) -> ConnectOptions {
        match self {
            Self::Nobody => options,
            Self::User(user, password) => options.user_and_password(user, password.0),
            Self::Token(token) => options.token(token.0),
            Self::Nkey(seed) => options.nkey(seed.0),
        }
    }
}

/// URLs in one text without the logins in them, for messages and logs.
pub(super) fn shown(urls: &[String]) -> String {
    urls.iter().map(|url| without_login(url)).collect::<Vec<_>>().join(",")
}

/// A URL without the login in it.
pub fn without_login(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(urls: &[&str]) -> Login {
        let addresses: Vec<ServerAddr> = urls.iter().map(|url| url.parse().expect("a URL")).collect();
        Login::of(&addresses)
    }

    #[test]
    fn logins_are_taken_from_the_first_url_that_has_one() {
        assert_eq!(login(&["nats://a:4222"]), Login::Nobody);
        assert_eq!(login(&["nats://a", "nats://u:p%40ss@b"]), Login::User("u".into(), Secret::new("p@ss")));
        assert_eq!(login(&["nats://s3cr3t@b"]), Login::Token(Secret::new("s3cr3t")));
    }

    #[test]
    fn messages_show_no_login() {
        assert_eq!(shown(&["nats://u:p@a:4222".into(), "b".into()]), "nats://a:4222,b");
        assert_eq!(without_login("u:p@a"), "a");
        assert_eq!(without_login("nats://u:p@ss@a"), "nats://a");
        let login = Login::User("u".into(), Secret::new("p4ss"));
        assert!(!format!("{login:?} {:?}", Login::Nkey(Secret::new("p4ss"))).contains("p4ss"));
    }
}
