//! Encrypted connections: whose certificates are believed, and which one is shown.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// What is said of TLS. Where any of it is, the connection has to be encrypted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the authorities that are believed; those of the system where there is none.
    pub ca: Option<PathBuf>,
    /// PEM files of the client's certificate and its key, where the server asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The server expects TLS before it says anything (`handshake_first`).
    pub first: bool,
}

impl Tls {
    /// Whether the connection has to be encrypted, whatever the server asks for.
    pub fn is_wanted(&self) -> bool {
        self.ca.is_some() || self.identity.is_some() || self.first
    }

    /// What the library needs to know. Files are read anew, so that renewed certificates count at the next connect.
    pub(super) fn config(&self) -> io::Result<Arc<ClientConfig>> {
        static OF_THE_SYSTEM: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        if self.ca.is_none() && self.identity.is_none() {
            if let Some(config) = OF_THE_SYSTEM.get() {
                return Ok(Arc::clone(config));
            }
            let config = Arc::new(build(system_roots()?, None)?);
            return Ok(Arc::clone(OF_THE_SYSTEM.get_or_init(|| config)));
        }
        let roots = match &self.ca {
            Some(path) => roots_of(path)?,
            None => system_roots()?,
        };
        build(roots, self.identity.as_ref()).map(Arc::new)
    }
}

fn system_roots() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let problems: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        return Err(io::Error::other(format!(
            "TLS needs the system's root certificates, and none were found: {problems}; name a file with --tls-ca"
        )));
    }
    Ok(roots)
}

fn roots_of(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| of_file(path, &e))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|e| of_file(path, &e))?;
    if certificates.is_empty() {
        return Err(of_file(path, &"there is no certificate in it"));
    }
    Ok(certificates)
}

fn of_file(path: &Path, problem: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {problem}", path.display()))
}

fn build(roots: RootCertStore, identity: Option<&(PathBuf, PathBuf)>) -> io::Result<ClientConfig> {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(io::Error::other)?.with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| of_file(key, &e))?;
    config.with_client_auth_cert(certificates(certificate)?, private).map_err(|e| of_file(certificate, &e))
}
