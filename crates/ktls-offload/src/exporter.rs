//! Exported keying material (RFC 8446 section 7.5).
//!
//! An unbuffered connection of rustls has no exporter. But rustls passes the exporter secret to the key log, so a key
//! log records the secret here.

use core::fmt;
use rustls::crypto::tls13::OkmBlock;
use rustls::{KeyLog, SupportedCipherSuite, Tls13CipherSuite};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// The exporter of a TLS 1.3 connection.
pub(crate) struct Exporter {
    suite: &'static Tls13CipherSuite,
    secret: OkmBlock,
}

impl Exporter {
    pub(crate) fn export(&self, output: &mut [u8], label: &[u8], context: &[u8]) -> io::Result<()> {
        let Tls13CipherSuite { common, hkdf_provider, .. } = self.suite;
        let hash = |bytes: &[u8]| common.hash_provider.hash(bytes);
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the label or the output is too long");
        let expand = |from: &OkmBlock, label: &[u8], hashed: &[u8], output: &mut [u8]| {
            let length = u16::try_from(output.len()).ok()?.to_be_bytes();
            let label_length = [u8::try_from(PREFIX.len() + label.len()).ok()?];
            // HkdfLabel of RFC 8446 section 7.1: the output length, the label and the context, each with its length.
            let info = [&length[..], &label_length, PREFIX, label, &[hashed.len() as u8], hashed];
            hkdf_provider.expander_for_okm(from).expand_slice(&info, output).ok()
        };
        // RFC 8446 section 7.5: derive a secret for the label from the hash of the empty string, then expand with the
        // hash of the context.
        let empty = hash(&[]);
        let mut derived = Zeroizing::new(vec![0; empty.as_ref().len()]);
        expand(&self.secret, label, empty.as_ref(), &mut derived).ok_or_else(too_long)?;
        expand(&OkmBlock::new(&derived), b"exporter", hash(context).as_ref(), output).ok_or_else(too_long)
    }
}

/// A key log that records the exporter secret and forwards every entry.
pub(crate) struct ExporterLog {
    inner: Arc<dyn KeyLog>,
    secret: Mutex<Option<OkmBlock>>,
}

impl ExporterLog {
    pub(crate) fn wrap(inner: &Arc<dyn KeyLog>) -> Arc<ExporterLog> {
        Arc::new(ExporterLog { inner: inner.clone(), secret: Mutex::default() })
    }

    /// Returns the exporter after the handshake. `None` with TLS 1.2.
    pub(crate) fn exporter(&self, suite: Option<SupportedCipherSuite>) -> Option<Box<Exporter>> {
        let suite = suite?.tls13()?;
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::new(Exporter { suite, secret })) // boxed because few of many streams export
    }
}

impl KeyLog for ExporterLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if label == EXPORTER_SECRET && secret.len() <= OkmBlock::MAX_LEN {
            *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = Some(OkmBlock::new(secret));
        }
        if self.inner.will_log(label) {
            self.inner.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == EXPORTER_SECRET || self.inner.will_log(label)
    }
}

impl fmt::Debug for ExporterLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExporterLog").finish_non_exhaustive()
    }
}

/// The label of a key log's line.
const EXPORTER_SECRET: &str = "EXPORTER_SECRET";
/// RFC 8446 section 7.1.
const PREFIX: &[u8] = b"tls13 ";
