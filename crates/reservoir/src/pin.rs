//! Pinned certificates: trust in one certificate and no other.
//!
//! An intercepting proxy presents its own certificate, signed by an authority that was added to this machine's trusted
//! ones. All usual checks pass. A pin that was communicated in advance by other means detects the proxy.

use crate::digest::hexadecimal;
use core::fmt;
use core::str::FromStr;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The SHA-256 of a certificate, as `openssl x509 -noout -fingerprint -sha256` prints it.
///
/// ```
/// use offload_reservoir::pin::Pin;
/// use offload_testbed::identity::server_certificate;
///
/// let pin = Pin::for_certificate(&server_certificate());
/// assert_eq!(pin.to_string().parse(), Ok(pin));
/// assert!("12:34".parse::<Pin>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    /// Computes the pin of `certificate`.
    pub fn for_certificate(certificate: &CertificateDer<'_>) -> Pin {
        Pin(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hexadecimal(&self.0))
    }
}

impl FromStr for Pin {
    type Err = String;
    fn from_str(text: &str) -> Result<Pin, String> {
        // OpenSSL prints fingerprints with colons.
        let digits: String = text.chars().filter(|character| *character != ':').collect();
        let is_pin = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = is_pin
            .then(|| (0..64).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect())
            .flatten();
        let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Pin).ok_or_else(|| "a pin is the SHA-256 of a certificate, 64 hexadecimal digits".into())
    }
}

/// Makes `config` trust certificates signed by `roots` and, if `pin` is set, only the pinned one of these.
///
/// # Errors
/// If one of the roots is not a CA certificate.
pub fn trust(config: &mut ClientConfig, roots: Vec<CertificateDer<'static>>, pin: Option<Pin>) -> Result<(), Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root)?;
    }
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(store), config.crypto_provider().clone())
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    config.dangerous().set_certificate_verifier(match pin {
        Some(pin) => Arc::new(PinnedVerifier { usual, pin }),
        None => usual,
    });
    Ok(())
}

/// A verifier that performs the usual checks and then compares the pin.
#[derive(Debug)]
struct PinnedVerifier {
    usual: Arc<WebPkiServerVerifier>,
    pin: Pin,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        // The pin adds to the usual checks, so an expired pinned certificate is refused too.
        let shown = Pin::for_certificate(end_entity);
        if shown == self.pin {
            return Ok(verified);
        }
        let intercepted = Intercepted { shown, pinned: self.pin };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(intercepted)))))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// A valid certificate that is not the pinned one.
struct Intercepted {
    shown: Pin,
    pinned: Pin,
}

impl fmt::Display for Intercepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Intercepted { shown, pinned } = self;
        write!(f, "the connection is intercepted: the certificate shown is {shown}, the pinned one {pinned}")
    }
}

/// Prints the display text, because rustls shows the `Debug` form.
impl fmt::Debug for Intercepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Intercepted {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_with_and_without_colons() {
        let pin = Pin([0xab; 32]);
        let with_colons = ["AB"; 32].join(":");
        assert_eq!(with_colons.parse(), Ok(pin));
        assert_eq!("ab".repeat(32).parse(), Ok(pin));
        for bad in ["", "ab", &"ab".repeat(33), &"zz".repeat(32), &"é".repeat(32)] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }
}
