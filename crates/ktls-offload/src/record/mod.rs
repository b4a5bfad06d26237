//! TLS 1.3 records (RFC 8446 section 5), made and taken apart, in software or with a device.
//!
//! ```text
//!  write --> Sender --> (bytes, tag) --> transport        transport --> Inbox --> Receiver --> Record --> read
//! ```
//!
//! - [`send`]: frames records, and seals them unless a device will;
//! - [`inbox`]: the received ranges that are not yet a whole record;
//! - [`receive`]: cuts records out of them and opens whatever part the device did not.
//!
//! The one seam above is typed content, in and out, one record each ([`ContentType`] and its bytes). Software and
//! device are a property of each direction ([`send::Protection`], the verdicts of the received ranges), not two
//! implementations. A kernel that frames by itself takes and gives the same typed content, and would stand beside
//! [`send`] and [`receive`].

pub(crate) mod inbox;
pub(crate) mod receive;
pub(crate) mod send;
mod starts;

/// What a record holds (RFC 8446 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    Alert,
    Handshake,
    ApplicationData,
}

impl ContentType {
    pub(crate) fn from_code(code: u8) -> Option<ContentType> {
        match code {
            21 => Some(ContentType::Alert),
            22 => Some(ContentType::Handshake),
            APPLICATION_DATA => Some(ContentType::ApplicationData),
            _ => None,
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            ContentType::Alert => 21,
            ContentType::Handshake => 22,
            ContentType::ApplicationData => APPLICATION_DATA,
        }
    }
}

/// The header of a protected record of `length` bytes, header included.
pub(crate) fn data_header(length: usize) -> [u8; HEADER_LEN] {
    let [high, low] = ((length - HEADER_LEN) as u16).to_be_bytes();
    [APPLICATION_DATA, VERSION[0], VERSION[1], high, low]
}

/// Whether `header` is that of a protected record of `length` bytes, header included.
pub(crate) fn is_data_header(header: [u8; HEADER_LEN], length: usize) -> bool {
    (OVERHEAD..=WIRE_MAX).contains(&length) && header == data_header(length)
}

/// Bytes of a record header.
pub(crate) const HEADER_LEN: usize = 5;
/// Bytes a record has beside its content: header, content type, tag.
pub(crate) const OVERHEAD: usize = HEADER_LEN + TRAILER_LEN;
/// Bytes after the content: its type and the tag.
pub(crate) const TRAILER_LEN: usize = 1 + crate::keys::TAG_LEN;
/// Most bytes of content in a record (RFC 8446 section 5.1).
pub(crate) const CONTENT_MAX: usize = 1 << 14;
/// Most bytes after the header of a protected record (RFC 8446 section 5.2).
pub(crate) const CIPHERTEXT_MAX: usize = CONTENT_MAX + 256;
/// Most bytes of a protected record.
pub(crate) const WIRE_MAX: usize = HEADER_LEN + CIPHERTEXT_MAX;
/// legacy_record_version of every protected record (RFC 8446 section 5.2).
pub(crate) const VERSION: [u8; 2] = [3, 3];
/// The outer type of every protected record.
pub(crate) const APPLICATION_DATA: u8 = 23;
