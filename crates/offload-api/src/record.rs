//! Framing and protection of TLS records, as the TLS layer and a device must agree on byte for byte.
//!
//! ```text
//!  TLS 1.3 (RFC 8446 5.2)        header 5 | content, its type, padding        | tag 16     type 23 outside
//!  TLS 1.2, AES-GCM (RFC 5288)   header 5 | explicit nonce 8 | content        | tag 16     the real type outside
//!  TLS 1.2, ChaCha20 (RFC 7905)  header 5 | content                           | tag 16     the real type outside
//! ```
//! The **prefix** precedes the body: the header, and the explicit nonce if there is one. The **body** is the input of
//! the AEAD.

use core::ops::Deref;
use offload_formats::tls::RecordHeader;

/// TLS versions with records that a device may support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246), AEAD suites only.
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

/// Record protection algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsSuite {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl TlsSuite {
    /// Returns the key length in bytes.
    pub const fn key_len(self) -> usize {
        match self {
            TlsSuite::Aes128Gcm => 16,
            TlsSuite::Aes256Gcm | TlsSuite::ChaCha20Poly1305 => 32,
        }
    }
}

/// The record format of a version and suite.
///
/// ```
/// use offload_api::{RecordFormat, TlsSuite, TlsVersion};
///
/// let tls13 = RecordFormat::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm);
/// assert_eq!(tls13.body_len(&[23, 3, 3, 0, 27]), Some(11), "ten bytes of content and a type byte");
/// assert_eq!(tls13.body_len(&[22, 3, 3, 0, 27]), None, "the outer type is always application data");
///
/// let tls12 = RecordFormat::new(TlsVersion::Tls12, TlsSuite::Aes128Gcm);
/// assert_eq!(tls12.body_len(&[22, 3, 3, 0, 27]), Some(3));
/// assert_eq!(tls12.nonce(&[1; 12], 7, &[9; 8]), [1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9], "the salt, then the record's explicit nonce");
/// assert_eq!(&tls12.aad(7, &[22, 3, 3, 0, 27])[..], &[0, 0, 0, 0, 0, 0, 0, 7, 22, 3, 3, 0, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordFormat {
    version: TlsVersion,
    suite: TlsSuite,
}

/// Additional authenticated data of a record.
///
/// See [`RecordFormat`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAad {
    bytes: [u8; AAD_MAX],
    len: usize,
}

impl RecordFormat {
    /// Makes the format of `version` with `suite`.
    pub const fn new(version: TlsVersion, suite: TlsSuite) -> RecordFormat {
        RecordFormat { version, suite }
    }

    /// Returns the protocol version.
    pub const fn version(self) -> TlsVersion {
        self.version
    }

    /// Returns the algorithm.
    pub const fn suite(self) -> TlsSuite {
        self.suite
    }

    /// Returns the length of the explicit nonce in each record; 0 if there is no explicit nonce.
    pub const fn explicit_nonce_len(self) -> usize {
        match (self.version, self.suite) {
            (TlsVersion::Tls12, TlsSuite::Aes128Gcm | TlsSuite::Aes256Gcm) => EXPLICIT_NONCE_LEN,
            _ => 0,
        }
    }

    /// Returns the number of bytes before the body.
    pub const fn prefix_len(self) -> usize {
        RECORD_HEADER_LEN + self.explicit_nonce_len()
    }

    /// Returns the number of bytes in a body besides content and padding: 1 if the content type is inside, otherwise 0.
    pub const fn inner_type_len(self) -> usize {
        match self.version {
            TlsVersion::Tls12 => 0,
            TlsVersion::Tls13 => 1,
        }
    }

    /// Returns the overhead of a record without padding.
    pub const fn overhead(self) -> usize {
        self.prefix_len() + self.inner_type_len() + RECORD_TAG_LEN
    }

    /// Returns the maximum number of bytes after a record's header.
    pub const fn longest(self) -> usize {
        match self.version {
            // Content is at most 2^14 bytes, and the AEAD suites add a fixed length (RFC 5246 6.2.3.3).
            TlsVersion::Tls12 => self.explicit_nonce_len() + RECORD_CONTENT_MAX + RECORD_TAG_LEN,
            TlsVersion::Tls13 => RECORD_CONTENT_MAX + 256,
        }
    }

    /// Returns the minimum number of bytes after a record's header.
    pub const fn shortest(self) -> usize {
        self.explicit_nonce_len() + self.inner_type_len() + RECORD_TAG_LEN
    }

    /// Tests whether a protected record may have this outer type. (ChangeCipherSpec does not occur after the
    /// handshake.)
    pub const fn has_outer_type(self, code: u8) -> bool {
        match self.version {
            TlsVersion::Tls12 => matches!(code, 21..=23),
            TlsVersion::Tls13 => code == APPLICATION_DATA,
        }
    }

    /// Returns the header of a record of `content_type` with a body of `body` bytes.
    pub const fn header(self, content_type: u8, body: usize) -> [u8; RECORD_HEADER_LEN] {
        // TLS 1.3 hides the content type inside of the body.
        let outer = match self.version {
            TlsVersion::Tls12 => content_type,
            TlsVersion::Tls13 => APPLICATION_DATA,
        };
        let len = (self.explicit_nonce_len() + body + RECORD_TAG_LEN) as u16;
        RecordHeader { content_type: outer, version: VERSION, len }.to_bytes()
    }

    /// Returns the length of the body; `None` if this is not the header of a protected record.
    pub fn body_len(self, header: &[u8; RECORD_HEADER_LEN]) -> Option<usize> {
        let RecordHeader { content_type, version: VERSION, len } = RecordHeader::parse(header) else { return None };
        // Strict, because a device searches for headers in arbitrary bytes.
        let length = usize::from(len);
        let fits = self.has_outer_type(content_type) && (self.shortest()..=self.longest()).contains(&length);
        fits.then(|| length - self.explicit_nonce_len() - RECORD_TAG_LEN)
    }

    /// Returns the length of the whole record; `None` if this is not the header of a protected record.
    pub fn record_len(self, header: &[u8; RECORD_HEADER_LEN]) -> Option<usize> {
        self.body_len(header).map(|body| self.prefix_len() + body + RECORD_TAG_LEN)
    }

    /// Returns the explicit nonce of record `number`; only the first [`explicit_nonce_len`](Self::explicit_nonce_len)
    /// bytes are used. The record number makes the nonce unique under a key (RFC 5288 3); the IV sets the first value.
    pub fn explicit_nonce(self, iv: &[u8; NONCE_LEN], number: u64) -> [u8; EXPLICIT_NONCE_LEN] {
        let mut explicit = [0; EXPLICIT_NONCE_LEN];
        explicit.copy_from_slice(&combine(iv, number)[NONCE_LEN - EXPLICIT_NONCE_LEN..]);
        explicit
    }

    /// Returns the nonce of record `number`. `explicit` is the explicit nonce in the record, of the length
    /// [`explicit_nonce_len`](Self::explicit_nonce_len).
    ///
    /// # Panics
    /// If `explicit` has another length.
    pub fn nonce(self, iv: &[u8; NONCE_LEN], number: u64, explicit: &[u8]) -> [u8; NONCE_LEN] {
        assert_eq!(explicit.len(), self.explicit_nonce_len(), "the explicit nonce must have the length of the format");
        if explicit.is_empty() {
            // RFC 8446 5.3 and RFC 7905 2 have the same rule.
            return combine(iv, number);
        }
        let mut nonce = *iv;
        nonce[NONCE_LEN - EXPLICIT_NONCE_LEN..].copy_from_slice(explicit);
        nonce
    }

    /// Returns the additional data of record `number` with this header. If the header is invalid, so are the additional
    /// data.
    pub fn aad(self, number: u64, header: &[u8; RECORD_HEADER_LEN]) -> RecordAad {
        let mut bytes = [0; AAD_MAX];
        if self.version == TlsVersion::Tls13 {
            // RFC 8446 5.2.
            bytes[..RECORD_HEADER_LEN].copy_from_slice(header);
            return RecordAad { bytes, len: RECORD_HEADER_LEN };
        }
        // RFC 5246 6.2.3.3: number, type, version, and the length of the content.
        let content = RecordHeader::parse(header).len.wrapping_sub((self.explicit_nonce_len() + RECORD_TAG_LEN) as u16);
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..11].copy_from_slice(&header[..3]);
        bytes[11..].copy_from_slice(&content.to_be_bytes());
        RecordAad { bytes, len: AAD_MAX }
    }
}

impl Deref for RecordAad {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// XORs the IV with the left-padded number.
fn combine(iv: &[u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, part) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= part;
    }
    nonce
}

/// Length of a record header.
pub const RECORD_HEADER_LEN: usize = RecordHeader::BYTES;
/// Version field of protected records (RFC 8446 5.1, RFC 5246 6.2.1).
const VERSION: u16 = 0x0303;
/// Length of a record's tag.
pub const RECORD_TAG_LEN: usize = 16;
/// Maximum content of a record (RFC 8446 5.1, RFC 5246 6.2.1).
pub const RECORD_CONTENT_MAX: usize = 1 << 14;
/// Maximum length of an explicit nonce.
pub const EXPLICIT_NONCE_LEN: usize = 8;
const NONCE_LEN: usize = 12;
const AAD_MAX: usize = 13;
const APPLICATION_DATA: u8 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(TlsVersion, TlsSuite); 6] = [
        (TlsVersion::Tls12, TlsSuite::Aes128Gcm),
        (TlsVersion::Tls12, TlsSuite::Aes256Gcm),
        (TlsVersion::Tls12, TlsSuite::ChaCha20Poly1305),
        (TlsVersion::Tls13, TlsSuite::Aes128Gcm),
        (TlsVersion::Tls13, TlsSuite::Aes256Gcm),
        (TlsVersion::Tls13, TlsSuite::ChaCha20Poly1305),
    ];

    #[test]
    fn the_number_goes_into_the_last_eight_bytes_of_the_nonce() {
        let format = RecordFormat::new(TlsVersion::Tls13, TlsSuite::Aes256Gcm);
        let iv = [0xff; 12];
        assert_eq!(format.nonce(&iv, 0x0102, &[]), [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0xfe, 0xfd]);
        assert_eq!(format.nonce(&[0; 12], u64::MAX, &[]), [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn sent_and_received_records_have_the_same_aad() {
        for (version, suite) in ALL {
            let format = RecordFormat::new(version, suite);
            let iv = [0x5a; 12];
            let explicit = format.explicit_nonce(&iv, 77);
            let explicit = &explicit[..format.explicit_nonce_len()];
            assert_eq!(format.nonce(&iv, 77, explicit), combine(&iv, 77), "{format:?}: one rule for all formats");
            for content in [0, 1, 100, RECORD_CONTENT_MAX] {
                let body = content + format.inner_type_len();
                let header = format.header(23, body);
                assert_eq!(format.body_len(&header), Some(body));
                assert_eq!(format.record_len(&header), Some(content + format.overhead()));
            }
        }
    }

    #[test]
    fn headers_of_no_protected_record() {
        for (version, suite) in ALL {
            let format = RecordFormat::new(version, suite);
            let with_length = |length: usize| [23, 3, 3, (length >> 8) as u8, length as u8];
            assert!(format.body_len(&with_length(format.shortest())).is_some());
            assert_eq!(format.body_len(&with_length(format.shortest() - 1)), None);
            assert!(format.body_len(&with_length(format.longest())).is_some());
            assert_eq!(format.body_len(&with_length(format.longest() + 1)), None);
            assert_eq!(format.body_len(&[23, 3, 1, 1, 0]), None);
            assert_eq!(format.body_len(&[20, 3, 3, 1, 0]), None);
            assert_eq!(format.body_len(&[22, 3, 3, 1, 0]).is_some(), version == TlsVersion::Tls12);
        }
    }
}
