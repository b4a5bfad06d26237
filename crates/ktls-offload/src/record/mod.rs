//! TLS records (RFC 8446 section 5; RFC 5246 section 6.2 with the AEADs of RFC 5288 and RFC 7905), made and taken apart,
//! in software or with a device. What differs between versions is a [`RecordFormat`](offload_api::RecordFormat).
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

use offload_api::record;

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

/// Bytes of a record header.
pub(crate) const HEADER_LEN: usize = record::RECORD_HEADER_LEN;
/// Most bytes of content in a record (RFC 8446 section 5.1).
pub(crate) const CONTENT_MAX: usize = record::RECORD_CONTENT_MAX;
/// Most bytes of a protected record of any version.
pub(crate) const WIRE_MAX: usize = HEADER_LEN + CONTENT_MAX + 256;
/// legacy_record_version of every protected record (RFC 8446 section 5.2), and the version of TLS 1.2.
pub(crate) const VERSION: [u8; 2] = [3, 3];
const APPLICATION_DATA: u8 = 23;
