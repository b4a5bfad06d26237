//! Fatal errors of a connection, and the PDUs that report these errors to the peer.
//!
//! NVMe/TCP Transport Specification 1.0, 3.5 and 3.6.2.3: the side that detects a fatal error sends a TermReq with a
//! status (FES), information (FEI) and up to 128 bytes of the faulty header, and closes the connection.

use super::{ConnectionSide, MAX_HEADER, Pdu};
use bytes::Bytes;

/// A fatal error in a PDU of the peer.
///
/// ```
/// use nvme_tcp::wire::{FatalError, FatalStatus};
///
/// let error = FatalError::new(FatalStatus::InvalidHeaderField, 2, &[0x04, 0, 73]);
/// assert_eq!(error.information, [2, 0, 0, 0]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent {status}, information {}", u32::from_le_bytes(*.information))]
pub struct FatalError {
    /// FES: kind of error.
    pub status: FatalStatus,
    /// FEI: offset of the faulty field, or the received digest.
    pub information: [u8; 4],
    /// The faulty header, as far as received.
    pub header: Bytes,
}

impl FatalError {
    /// Creates an error about the field at `offset` of `header`.
    pub fn new(status: FatalStatus, offset: u32, header: &[u8]) -> FatalError {
        let header = Bytes::copy_from_slice(&header[..header.len().min(MAX_HEADER)]);
        FatalError { status, information: offset.to_le_bytes(), header }
    }

    /// Creates an error about a header that does not match the `received` digest.
    pub fn header_digest(received: [u8; 4], header: &[u8]) -> FatalError {
        FatalError { information: received, ..FatalError::new(FatalStatus::HeaderDigest, 0, header) }
    }

    /// Returns the PDU that reports the error. The caller sends [`header`](Self::header) as its data.
    pub fn pdu(&self, found_by: ConnectionSide) -> Pdu {
        let termination = Termination { status: self.status as u16, information: self.information };
        match found_by {
            ConnectionSide::Host => Pdu::HostTermination(termination),
            ConnectionSide::Controller => Pdu::ControllerTermination(termination),
        }
    }
}

/// Contents of H2CTermReq and C2HTermReq.
///
/// ```
/// use nvme_tcp::wire::{FatalError, FatalStatus, Pdu, ConnectionSide, Termination};
///
/// let found = FatalError::new(FatalStatus::SequenceError, 2, &[0x07]);
/// let Pdu::HostTermination(told) = found.pdu(ConnectionSide::Host) else { panic!("the host found it") };
/// assert_eq!(told, Termination { status: 2, information: [2, 0, 0, 0] });
/// assert_eq!(told.fatal_status(), Some(FatalStatus::SequenceError));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// FES, unchecked.
    pub status: u16,
    /// FEI.
    pub information: [u8; 4],
}

impl Termination {
    /// Returns the status; `None` if the specification does not define it.
    pub fn fatal_status(&self) -> Option<FatalStatus> {
        Some(match self.status {
            1 => FatalStatus::InvalidHeaderField,
            2 => FatalStatus::SequenceError,
            3 => FatalStatus::HeaderDigest,
            4 => FatalStatus::DataOutOfRange,
            5 => FatalStatus::LimitExceeded,
            6 => FatalStatus::UnsupportedParameter,
            _ => return None,
        })
    }
}

/// Fatal error status (FES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum FatalStatus {
    /// A header field has an invalid value.
    #[error("an invalid header field")]
    InvalidHeaderField = 1,
    /// A PDU is not allowed in this state.
    #[error("a PDU out of sequence")]
    SequenceError = 2,
    /// A header does not match its digest.
    #[error("a header does not match its digest")]
    HeaderDigest = 3,
    /// Data lie outside the requested range, or do not begin at the next expected offset.
    #[error("data out of range")]
    DataOutOfRange = 4,
    /// More data, or more requests for data, than allowed.
    #[error("too much data or too many requests")]
    LimitExceeded = 5,
    /// A parameter is not supported.
    #[error("an unsupported parameter")]
    UnsupportedParameter = 6,
}
