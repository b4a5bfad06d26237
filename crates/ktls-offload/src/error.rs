//! Errors of a TLS stream, and the alerts that report them to the peer.

use crate::alert::AlertDescription;
use crate::keys::ScheduleError;
use std::io;

/// Error of a TLS stream. The [`io::Error`] of a read or write contains it.
///
/// ```
/// use ktls_offload::{AlertDescription, TlsError};
///
/// let error = std::io::Error::from(TlsError::BadRecordMac);
/// let inner = error.get_ref().unwrap().downcast_ref::<TlsError>().unwrap();
/// assert_eq!(inner.alert(), Some(AlertDescription::BAD_RECORD_MAC));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer sent a record that fails authentication.
    #[error("peer's fault: a record does not verify")]
    BadRecordMac,
    /// The peer sent a record longer than RFC 8446 section 5.2 allows.
    #[error("peer's fault: a record of {length} bytes is too long")]
    RecordOverflow {
        /// The length in the header, or the length of the content.
        length: usize,
    },
    /// The peer sent an unprotected record, or a record type that is not allowed now.
    #[error("peer's fault: a record of type {0} where only protected ones may come")]
    UnexpectedRecord(u8),
    /// The peer's record header has an unknown version.
    #[error("peer's fault: a record of version {0:#06x}")]
    UnknownVersion(u16),
    /// The peer sent a protected record that contains only padding.
    #[error("peer's fault: a record of nothing but padding")]
    OnlyPadding,
    /// The peer sent protected content of a type that is not allowed now.
    #[error("peer's fault: content of type {0}")]
    UnexpectedContent(u8),
    /// The peer sent an empty fragment of a handshake message, or an empty alert (RFC 8446 section 5.1 forbids both).
    #[error("peer's fault: an empty handshake fragment or alert")]
    EmptyFragment,
    /// The peer interrupted a fragmented handshake message.
    #[error("peer's fault: a handshake message is interleaved with something else")]
    Interleaved,
    /// The peer sent a handshake message that cannot be parsed.
    #[error("peer's fault: a handshake message cannot be parsed")]
    MalformedHandshake,
    /// The peer sent a handshake message that exceeds this end's limit.
    #[error("peer's fault: a handshake message of {length} bytes is too long")]
    HandshakeTooLong {
        /// The length in the message header.
        length: usize,
    },
    /// The peer sent a handshake message that is not allowed now.
    #[error("peer's fault: handshake message {0}")]
    UnexpectedHandshake(u8),
    /// The peer's KeyUpdate has an undefined request code.
    #[error("peer's fault: a KeyUpdate request of {0}")]
    InvalidKeyUpdate(u8),
    /// The peer changed keys within a record (RFC 8446 section 5.1 forbids it).
    #[error("peer's fault: a KeyUpdate is not the last message of its record")]
    KeyUpdateInsideRecord,
    /// The peer requested renegotiation too often.
    #[error("peer's fault: too many requests to renegotiate")]
    TooManyRenegotiations,
    /// The peer sent an alert that cannot be parsed.
    #[error("peer's fault: an alert cannot be parsed")]
    MalformedAlert,
    /// The peer sent too many warnings.
    #[error("peer's fault: too many warnings")]
    TooManyWarnings,
    /// The peer ended the connection with a fatal alert.
    #[error("the peer sent a fatal alert: {0}")]
    AlertReceived(AlertDescription),
    /// The transport ended without a close_notify, so the data may be incomplete.
    #[error("the connection ended without close_notify")]
    Truncated,
    /// The key schedule failed.
    #[error("no next key: {0}")]
    Schedule(#[from] ScheduleError),
    /// Caller's fault: TLS 1.2 has no key updates. The stream continues.
    #[error("caller's fault: TLS 1.2 has no key updates")]
    NoKeyUpdates,
    /// Caller's fault: data of a protocol above TLS carry device work for the highest layer, which leaves no layer for
    /// TLS.
    #[error(
        "caller's fault: data came with work for more layers than a device has: send them with a tag of a lower layer"
    )]
    TooManyLayers,
    /// The key has protected the maximum number of records.
    #[error("the key is used up")]
    KeyExhausted,
}

impl TlsError {
    /// Returns the alert that reports this error, or `None` if the peer already knows or is gone.
    pub fn alert(&self) -> Option<AlertDescription> {
        // RFC 8446 sections 5 and 6.2, case by case.
        Some(match self {
            TlsError::BadRecordMac => AlertDescription::BAD_RECORD_MAC,
            TlsError::RecordOverflow { .. } => AlertDescription::RECORD_OVERFLOW,
            TlsError::UnexpectedRecord(_)
            | TlsError::OnlyPadding
            | TlsError::UnexpectedContent(_)
            | TlsError::EmptyFragment
            | TlsError::Interleaved
            | TlsError::UnexpectedHandshake(_)
            | TlsError::KeyUpdateInsideRecord
            | TlsError::TooManyRenegotiations
            | TlsError::TooManyWarnings => AlertDescription::UNEXPECTED_MESSAGE,
            TlsError::UnknownVersion(_)
            | TlsError::MalformedHandshake
            | TlsError::HandshakeTooLong { .. }
            | TlsError::MalformedAlert => AlertDescription::DECODE_ERROR,
            TlsError::InvalidKeyUpdate(_) => AlertDescription::ILLEGAL_PARAMETER,
            TlsError::Schedule(ScheduleError::BadTicket) => AlertDescription::DECODE_ERROR,
            TlsError::Schedule(_) | TlsError::KeyExhausted | TlsError::NoKeyUpdates | TlsError::TooManyLayers => {
                AlertDescription::INTERNAL_ERROR
            }
            TlsError::AlertReceived(_) | TlsError::Truncated => return None,
        })
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            TlsError::Truncated => io::ErrorKind::UnexpectedEof,
            TlsError::AlertReceived(_) => io::ErrorKind::ConnectionAborted,
            TlsError::NoKeyUpdates | TlsError::TooManyLayers => io::ErrorKind::Unsupported,
            TlsError::Schedule(ScheduleError::BadTicket) => io::ErrorKind::InvalidData,
            TlsError::Schedule(_) | TlsError::KeyExhausted => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidData,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
