//! Package `proto.crypto.v1`: signed messages.

use super::Timestamp;

/// How a message is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SignatureAlgorithm {
    /// Nobody says.
    Unspecified = 0,
    /// ECDSA over SHA-256.
    EcdsaWithSha256 = 1,
    /// ECDSA over SHA-384.
    EcdsaWithSha384 = 2,
    /// ECDSA over SHA-512.
    EcdsaWithSha512 = 3,
}

/// Some bytes and the signature over them (and over the associated data that the reader knows).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SignedMessage {
    /// An encoded [`HeaderAndBody`].
    #[prost(bytes = "vec", tag = "1")]
    pub header_and_body: Vec<u8>,
    /// Over `header_and_body`, then the associated data.
    #[prost(bytes = "vec", tag = "2")]
    pub signature: Vec<u8>,
}

/// What the signature covers beside the associated data.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderAndBody {
    /// An encoded [`Header`].
    #[prost(bytes = "vec", tag = "1")]
    pub header: Vec<u8>,
    /// The message itself.
    #[prost(bytes = "vec", tag = "2")]
    pub body: Vec<u8>,
}

/// Who signed, how and when.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Header {
    /// A [`SignatureAlgorithm`].
    #[prost(enumeration = "SignatureAlgorithm", tag = "1")]
    pub signature_algorithm: i32,
    /// Names the signer's key: an encoded `VerificationKeyID`.
    #[prost(bytes = "vec", tag = "2")]
    pub verification_key_id: Vec<u8>,
    /// When it was signed.
    #[prost(message, optional, tag = "3")]
    pub timestamp: Option<Timestamp>,
    /// For the application.
    #[prost(bytes = "vec", tag = "4")]
    pub metadata: Vec<u8>,
    /// Bytes of associated data under the signature.
    #[prost(int32, tag = "5")]
    pub associated_data_length: i32,
}
