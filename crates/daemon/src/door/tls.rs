//! TLS for the address, with a certificate of the user's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Certificates of one chain.
const CHAIN_MAX: usize = 16;

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is none of its kind.
    #[error("cannot use {path}: {source}; it has to be PEM: the certificate with those above it, or its key", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// There is no certificate.
    #[error("{path} has no certificate in it", path = .0.display())]
    Empty(PathBuf),
    /// They do not belong together, or cannot be used.
    #[error("the certificate and the key cannot be used together: {0}; give the key that the certificate was made for")]
    Pair(#[from] rustls::Error),
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}

/// What makes connections secure with a certificate and its key.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let failed = |path: &Path, source| TlsError::File { path: path.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|error| failed(certificate, error))?;
    let chain: Vec<_> = chain.take(CHAIN_MAX).collect::<Result<_, _>>().map_err(|error| failed(certificate, error))?;
    if chain.is_empty() {
        return Err(TlsError::Empty(certificate.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, private)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
