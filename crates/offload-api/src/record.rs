//! How TLS records are framed and protected: what the TLS layer and a device have to agree on to the byte.
//!
//! ```text
//!  TLS 1.3 (RFC 8446 5.2)        header 5 | content, its type, padding        | tag 16     type 23 outside
//!  TLS 1.2, AES-GCM (RFC 5288)   header 5 | explicit nonce 8 | content        | tag 16     the real type outside
//!  TLS 1.2, ChaCha20 (RFC 7905)  header 5 | content                           | tag 16     the real type outside
//! ```
//! The **prefix** is what comes before the body: header, and explicit nonce if there is one. The **body** is what the
//! AEAD encrypts.

use core::ops::Deref;
use offload_formats::tls::RecordHeader;

/// TLS versions whose records a device may know.
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
    /// Bytes of its key.
    pub const fn key_len(self) -> usize {
        match self {
            TlsSuite::Aes128Gcm => 16,
            TlsSuite::Aes256Gcm | TlsSuite::ChaCha20Poly1305 => 32,
        }
    }
}

/// The format of the records of a version and suite.
///
/// ```
/// use offload_api::{RecordFormat, TlsSuite, TlsVersion};
///
/// let tls13 = RecordFormat::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm);
/// assert_eq!(tls13.body_len(&[23, 3, 3, 0, 27]), Some(11), "ten bytes of content and their type");
/// assert_eq!(tls13.body_len(&[22, 3, 3, 0, 27]), None, "it says application data whatever it holds");
///
/// let tls12 = RecordFormat::new(TlsVersion::Tls12, TlsSuite::Aes128Gcm);
/// assert_eq!(tls12.body_len(&[22, 3, 3, 0, 27]), Some(3));
/// assert_eq!(tls12.nonce(&[1; 12], 7, &[9; 8]), [1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9], "salt and what the record says");
/// assert_eq!(&tls12.aad(7, &[22, 3, 3, 0, 27])[..], &[0, 0, 0, 0, 0, 0, 0, 7, 22, 3, 3, 0, 3]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordFormat {
    version: TlsVersion,
    suite: TlsSuite,
}

/// Additional data of a record.
///
/// See [`RecordFormat`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAad {
    bytes: [u8; AAD_MAX],
    len: usize,
}

impl RecordFormat {
    /// The format of `version` with `suite`.
    pub const fn new(version: TlsVersion, suite: TlsSuite) -> RecordFormat {
        RecordFormat { version, suite }
    }

    /// The protocol version.
    pub const fn version(self) -> TlsVersion {
        self.version
    }

    /// The algorithm.
    pub const fn suite(self) -> TlsSuite {
        self.suite
    }

    /// Bytes of the nonce that every record carries.
    pub const fn explicit_nonce_len(self) -> usize {
        match (self.version, self.suite) {
            (TlsVersion::Tls12, TlsSuite::Aes128Gcm | TlsSuite::Aes256Gcm) => EXPLICIT_NONCE_LEN,
            _ => 0,
        }
    }

    /// Bytes before the body.
    pub const fn prefix_len(self) -> usize {
        RECORD_HEADER_LEN + self.explicit_nonce_len()
    }

    /// Bytes of a body beside content and padding: the content's type, where that is inside.
    pub const fn inner_type_len(self) -> usize {
        match self.version {
            TlsVersion::Tls12 => 0,
            TlsVersion::Tls13 => 1,
        }
    }

    /// Bytes that a record without padding has beside its content.
    pub const fn overhead(self) -> usize {
        self.prefix_len() + self.inner_type_len() + RECORD_TAG_LEN
    }

    /// Most bytes after the header of a record.
    pub const fn longest(self) -> usize {
        match self.version {
            // Content is at most 2^14 bytes, and an AEAD leaves no other length to be had (RFC 5246 6.2.3.3).
            TlsVersion::Tls12 => self.explicit_nonce_len() + RECORD_CONTENT_MAX + RECORD_TAG_LEN,
            TlsVersion::Tls13 => RECORD_CONTENT_MAX + 256,
        }
    }

    /// Fewest bytes after the header of a record.
    pub const fn shortest(self) -> usize {
        self.explicit_nonce_len() + self.inner_type_len() + RECORD_TAG_LEN
    }

    /// Whether a protected record may have this type outside. (ChangeCipherSpec does not come after the handshake.)
    pub const fn has_outer_type(self, code: u8) -> bool {
        match self.version {
            TlsVersion::Tls12 => matches!(code, 21..=23),
            TlsVersion::Tls13 => code == APPLICATION_DATA,
        }
    }

    /// The header of a record of `content_type` whose body has `body` bytes.
    pub const fn header(self, content_type: u8, body: usize) -> [u8; RECORD_HEADER_LEN] {
        let outer = match self.version {
            TlsVersion::Tls12 => content_type,
            TlsVersion::Tls13 => APPLICATION_DATA,
        };
        let len = (self.explicit_nonce_len() + body + RECORD_TAG_LEN) as u16;
        RecordHeader { content_type: outer, version: VERSION, len }.to_bytes()
    }

    /// Bytes of the body, if this is the header of a protected record.
    pub fn body_len(self, header: &[u8; RECORD_HEADER_LEN]) -> Option<usize> {
        let RecordHeader { content_type, version: VERSION, len } = RecordHeader::parse(header) else { return None };
        let length = usize::from(len);
        let fits = self.has_outer_type(content_type) && (self.shortest()..=self.longest()).contains(&length);
        fits.then(|| length - self.explicit_nonce_len() - RECORD_TAG_LEN)
    }

    /// Bytes of the whole record, if this is the header of a protected one.
    pub fn record_len(self, header: &[u8; RECORD_HEADER_LEN]) -> Option<usize> {
        self.body_len(header).map(|body| self.prefix_len() + body + RECORD_TAG_LEN)
    }

    /// The explicit nonce of record `number`, where records have one: as many of its bytes as there are. The number makes
    /// it a different one for each record of a key (RFC 5288 3), and the IV starts it anywhere.
    pub fn explicit_nonce(self, iv: &[u8; NONCE_LEN], number: u64) -> [u8; EXPLICIT_NONCE_LEN] {
        let mut explicit = [0; EXPLICIT_NONCE_LEN];
        explicit.copy_from_slice(&combine(iv, number)[NONCE_LEN - EXPLICIT_NONCE_LEN..]);
        explicit
    }

    /// The nonce of record `number`, which carries `explicit`, as long as [`explicit_nonce_len`](Self::explicit_nonce_len)
    /// says.
    ///
    /// # Panics
    /// If that has another length.
    pub fn nonce(self, iv: &[u8; NONCE_LEN], number: u64, explicit: &[u8]) -> [u8; NONCE_LEN] {
        assert_eq!(explicit.len(), self.explicit_nonce_len(), "the explicit nonce of another format");
        if explicit.is_empty() {
            // RFC 8446 5.3 and RFC 7905 2 alike.
            return combine(iv, number);
        }
        let mut nonce = *iv;
        nonce[NONCE_LEN - EXPLICIT_NONCE_LEN..].copy_from_slice(explicit);
        nonce
    }

    /// The additional data of record `number`, which has this header. (The header of no record makes additional data of
    /// none.)
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

/// The number, padded on the left, exclusive-or the IV.
fn combine(iv: &[u8; NONCE_LEN], number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, part) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= part;
    }
    nonce
}

/// Bytes of a record's header.
pub const RECORD_HEADER_LEN: usize = RecordHeader::BYTES;
/// What protected records say: RFC 8446 5.1, RFC 5246 6.2.1.
const VERSION: u16 = 0x0303;
/// Bytes of a record's tag.
pub const RECORD_TAG_LEN: usize = 16;
/// Most bytes of content in a record (RFC 8446 5.1, RFC 5246 6.2.1).
pub const RECORD_CONTENT_MAX: usize = 1 << 14;
/// Most bytes of an explicit nonce.
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
    fn what_is_sent_is_what_is_received() {
        for (version, suite) in ALL {
            let format = RecordFormat::new(version, suite);
            let iv = [0x5a; 12];
            let explicit = format.explicit_nonce(&iv, 77);
            let explicit = &explicit[..format.explicit_nonce_len()];
            assert_eq!(format.nonce(&iv, 77, explicit), combine(&iv, 77), "{format:?}: the same rule for all");
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
