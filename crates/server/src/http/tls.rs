//! TLS: a certificate and its key, from files.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::TlsAcceptor;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("cannot read the certificates in {path}: {error}")]
    Certificates { path: String, error: pem::Error },
    #[error("{path} has no certificate; use a file in PEM form")]
    NoCertificate { path: String },
    #[error("cannot read the key in {path}: {error}; use a file in PEM form")]
    Key { path: String, error: pem::Error },
    #[error("the certificate and its key do not serve: {0}")]
    Config(#[from] rustls::Error),
}

/// The files, and what is in them now.
#[derive(Clone)]
pub struct Tls {
    certificates: PathBuf,
    key: PathBuf,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.certificates).finish()
    }
}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and the key of that one.
    ///
    /// # Errors
    /// A file cannot be read, or they do not belong together.
    pub fn read(certificates: PathBuf, key: PathBuf) -> Result<Tls, TlsError> {
        let config = Arc::new(RwLock::new(config(&certificates, &key)?));
        Ok(Tls {
            certificates,
            key,
            config,
        })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// As [`Tls::read`]; what was read before stays.
    pub(crate) fn read_again(&self) -> Result<(), TlsError> {
        let new = config(&self.certificates, &self.key)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Returns what begins TLS on a connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }
}

fn config(certificates: &PathBuf, key: &PathBuf) -> Result<Arc<ServerConfig>, TlsError> {
    let path = || certificates.display().to_string();
    let failed = |error| TlsError::Certificates {
        path: path(),
        error,
    };
    let chain = CertificateDer::pem_file_iter(certificates).map_err(failed)?;
    let chain: Vec<CertificateDer<'static>> = chain.collect::<Result<_, _>>().map_err(failed)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path() });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::Key {
        path: key.display().to_string(),
        error,
    })?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}
