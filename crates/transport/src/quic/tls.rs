//! Who is at the other end: TLS 1.3 with raw public keys (RFC 7250), on both sides.
//!
//! There are no certificates and no authorities. Each side proves that it holds the private half of the key it shows; whose
//! key that is, the caller compares ([`NodeId`]).

use std::any::Any;
use std::sync::Arc;

use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::{Identity, NodeId};

/// The protocol that both sides must speak: BitTorrent's peer wire on one bidirectional stream.
pub const ALPN: &[u8] = b"anabranch-bt/1";

/// A name is part of every TLS client; ours is never sent.
pub(super) const SERVER_NAME: &str = "anabranch.invalid";

/// AES-128-GCM first: the fastest wherever the processor has AES, and twice as strong as needed.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

fn certified(identity: &Identity) -> Option<Arc<CertifiedKey>> {
    let key = identity.signing_key();
    let spki = key.public_key()?.to_vec();
    Some(Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], key)))
}

/// The dialling side.
pub(super) fn client(identity: &Identity, alpn: &[u8]) -> Result<QuicClientConfig, Error> {
    let key = certified(identity).ok_or(Error::General("the key has no public half".to_owned()))?;
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyNode(ring::default_provider().signature_verification_algorithms)))
        .with_client_cert_resolver(Arc::new(rustls::client::AlwaysResolvesClientRawPublicKeys::new(key)));
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_sni = false;
    // Both ends prove their keys in every connection.
    config.resumption = rustls::client::Resumption::disabled();
    QuicClientConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// The listening side.
pub(super) fn server(identity: &Identity, alpn: &[u8]) -> Result<QuicServerConfig, Error> {
    let key = certified(identity).ok_or(Error::General("the key has no public half".to_owned()))?;
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(AnyNode(ring::default_provider().signature_verification_algorithms)))
        .with_cert_resolver(Arc::new(rustls::server::AlwaysResolvesServerRawPublicKeys::new(key)));
    config.alpn_protocols = vec![alpn.to_vec()];
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// The key that the other side proved to hold.
pub(super) fn node_id(connection: &noq::Connection) -> Option<NodeId> {
    node_id_of(connection.peer_identity()?)
}

/// The same, of what TLS says.
pub(super) fn node_id_of(identity: Box<dyn Any>) -> Option<NodeId> {
    let certificates = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    NodeId::from_spki(certificates.first()?)
}

/// Accepts every node that proves its Ed25519 key.
#[derive(Debug)]
struct AnyNode(WebPkiSupportedAlgorithms);

impl AnyNode {
    fn check_key(spki: &[u8]) -> Result<(), Error> {
        match NodeId::from_spki(spki) {
            Some(_) => Ok(()),
            None => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        spki: &[u8],
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(spki), signature, &self.0)
    }
}

/// What rustls asks of both sides in the same words: raw keys of Ed25519, by TLS 1.3.
macro_rules! verify_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // QUIC is TLS 1.3 only (RFC 9001 §4.2).
            Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls13RequiredForQuic))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Self::check_key(end_entity).map(|()| ServerCertVerified::assertion())
    }

    verify_raw_keys!();
}

impl ClientCertVerifier for AnyNode {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Self::check_key(end_entity).map(|()| ClientCertVerified::assertion())
    }

    verify_raw_keys!();
}
