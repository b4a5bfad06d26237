//! TLS records (RFC 8446 section 5; RFC 5246 section 6.2 with the AEADs of RFC 5288 and RFC 7905), sealed and opened in
//! software or with a device. [`RecordFormat`](offload_api::RecordFormat) covers the differences between versions.
//!
//! ```text
//!  write --> RecordSender --> (bytes, tag) --> transport
//!  transport --> RecordInbox --> RecordReceiver --> Record --> read
//! ```
//!
//! - [`send`]: frames records, and seals the records that no device will seal;
//! - [`inbox`]: received ranges that do not yet form a record;
//! - [`receive`]: cuts records out of the inbox and opens the parts that the device did not decrypt.
//!
//! The interface above is typed content, one record at a time ([`ContentType`] and bytes). Software and device are a
//! property of each direction ([`send::SendProtection`], and the verdicts of received ranges), not two
//! implementations. A kernel that frames records itself exchanges the same typed content, and would be an alternative
//! to [`send`] and [`receive`].

pub(crate) mod inbox;
pub(crate) mod receive;
pub(crate) mod send;
mod starts;

use offload_api::record;

/// The content type of a record (RFC 8446 section 5.1).
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

/// Length of a record header in bytes.
pub(crate) const HEADER_LEN: usize = record::RECORD_HEADER_LEN;
/// Maximum content of a record in bytes (RFC 8446 section 5.1).
pub(crate) const CONTENT_MAX: usize = record::RECORD_CONTENT_MAX;
/// Maximum length of a protected record of any version in bytes.
pub(crate) const WIRE_MAX: usize = HEADER_LEN + CONTENT_MAX + 256;
/// The legacy_record_version of every protected record (RFC 8446 section 5.2), and the version of TLS 1.2.
pub(crate) const VERSION: [u8; 2] = [3, 3];
const APPLICATION_DATA: u8 = 23;
