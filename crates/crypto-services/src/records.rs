//! TLS records through a chain. The key of a handshake supplies key and IV, and each record its nonce and additional
//! data.

use crate::{NotAuthentic, Suite, SuiteCipher, SuiteKeys};
use core::fmt;
use offload_api::record::{RECORD_CONTENT_MAX, RECORD_HEADER_LEN};
use offload_api::{RecordFormat, TlsKey, TlsSuite, TlsVersion};
use zeroize::Zeroizing;

/// One direction of a TLS connection, sealed or opened by the services: AES-GCM and ChaCha20-Poly1305 of TLS 1.2 and
/// 1.3.
///
/// `ktls_offload::traffic_key` makes the key from the secrets that rustls extracts after a handshake.
///
/// ```
/// use crypto_services::TlsRecords;
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
///
/// let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [1; 12]).expect("16 bytes");
/// let (mut sender, mut receiver) = (TlsRecords::new(&key, 0).unwrap(), TlsRecords::new(&key, 0).unwrap());
/// let record = sender.seal(23, b"attack at dawn").unwrap();
/// assert_eq!(record[..5], [23, 3, 3, 0, 31]);
/// assert_eq!(receiver.open(&record)?, (23, b"attack at dawn".to_vec()));
/// assert!(receiver.open(&record).is_err(), "the next record has another nonce");
/// # Ok::<(), crypto_services::NotAuthentic>(())
/// ```
pub struct TlsRecords {
    cipher: SuiteCipher,
    format: RecordFormat,
    iv: Zeroizing<[u8; 12]>,
    number: u64,
    /// Number of the first record that needs another key.
    limit: u64,
}

impl TlsRecords {
    /// Creates a direction with its key, beginning with record `number`. `None` if there is no chain for the suite.
    pub fn new(key: &TlsKey, number: u64) -> Option<TlsRecords> {
        let suite = match key.suite() {
            TlsSuite::Aes128Gcm => Suite::Aes128Gcm,
            TlsSuite::Aes256Gcm => Suite::Aes256Gcm,
            TlsSuite::ChaCha20Poly1305 => Suite::ChaCha20Poly1305,
            _ => return None,
        };
        // RFC 8446 5.5: 2^24.5 full records for AES-GCM; `ktls-offload` uses 2^24. ChaCha20-Poly1305 has no such limit,
        // but the record number must not wrap (5.3).
        let limit = if suite == Suite::ChaCha20Poly1305 { u64::MAX } else { 1 << 24 };
        let cipher = SuiteCipher::new(suite, &SuiteKeys::from_cipher_key(key.key().to_vec())).ok()?;
        Some(TlsRecords { cipher, format: key.format(), iv: Zeroizing::new(*key.iv()), number, limit })
    }

    /// Returns the chain's suite.
    pub fn suite(&self) -> Suite {
        self.cipher.suite()
    }

    /// Returns the number of the next record.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Seals the next record without padding. `None` if the content is longer than 16 KiB, or if the key has sealed the
    /// maximum number of records (RFC 8446 5.5).
    pub fn seal(&mut self, content_type: u8, content: &[u8]) -> Option<Vec<u8>> {
        if content.len() > RECORD_CONTENT_MAX || self.number >= self.limit {
            return None;
        }
        let RecordContext { explicit, iv, .. } = self.context(None);
        let mut body = content.to_vec();
        if self.format.version() == TlsVersion::Tls13 {
            // TLS 1.3 encrypts the content type and puts 23 into the header.
            body.push(content_type);
        }
        let header = self.format.header(content_type, body.len());
        self.cipher.seal(&iv, &self.format.aad(self.number, &header), &mut body);
        self.number += 1;
        Some([&header[..], &explicit, &body].concat())
    }

    /// Opens the next record, given as a whole. Returns content type and content.
    ///
    /// # Errors
    /// [`NotAuthentic`] if the record differs from the one sealed under this number, or if the numbers are exhausted.
    /// The number does not advance.
    pub fn open(&mut self, record: &[u8]) -> Result<(u8, Vec<u8>), NotAuthentic> {
        let next = self.number.checked_add(1).ok_or(NotAuthentic)?;
        let header = record.first_chunk::<RECORD_HEADER_LEN>().ok_or(NotAuthentic)?;
        // A record can be opened only as a whole.
        if self.format.record_len(header) != Some(record.len()) {
            return Err(NotAuthentic);
        }
        let (prefix, body) = record.split_at(self.format.prefix_len());
        let RecordContext { iv, .. } = self.context(Some(&prefix[RECORD_HEADER_LEN..]));
        let mut body = body.to_vec();
        self.cipher.open(&iv, &self.format.aad(self.number, header), &mut body)?;
        let mut content_type = header[0];
        if self.format.version() == TlsVersion::Tls13 {
            // RFC 8446 5.4: the content type is the last byte that is not zero.
            let end = body.iter().rposition(|byte| *byte != 0).ok_or(NotAuthentic)?;
            content_type = body[end];
            body.truncate(end);
        }
        self.number = next;
        Ok((content_type, body))
    }

    /// Returns the IV of the next record, with the given explicit nonce or with a new one.
    fn context(&self, explicit: Option<&[u8]>) -> RecordContext {
        let made = self.format.explicit_nonce(&self.iv, self.number);
        let explicit = explicit.unwrap_or(&made[..self.format.explicit_nonce_len()]).to_vec();
        let mut iv = [0; 16];
        iv[..12].copy_from_slice(&self.format.nonce(&self.iv, self.number, &explicit));
        RecordContext { explicit, iv }
    }
}

impl fmt::Debug for TlsRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsRecords({}, next {})", self.suite().name(), self.number)
    }
}

/// Values that differ for each record.
struct RecordContext {
    explicit: Vec<u8>,
    iv: [u8; 16],
}
