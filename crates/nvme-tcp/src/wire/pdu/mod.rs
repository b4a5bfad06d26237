//! The PDUs of NVMe/TCP.
//!
//! - [`Pdu`]: a typed PDU header; the data are kept separately;
//! - `frame`: framing of PDUs for sending: digests, padding;
//! - `receive`: parsing and checking of PDUs from a stream, without a copy of the data;
//! - `sealing`: data to be encrypted on the way to the wire;
//! - `fatal`: fatal errors, and the PDUs that report these errors.
//!
//! NVMe/TCP Transport Specification 1.0, 3.6. All fields are little-endian. Each PDU begins with a [`PduHeader`].

mod fatal;
mod frame;
mod receive;
mod sealing;

pub use fatal::{FatalError, FatalStatus, Termination};
pub use frame::{PduFraming, WirePdu};
pub use receive::{ConnectionSide, PduItem, PduLimits, PduReceiver};
pub(crate) use sealing::{CIPHER_BLOCK, DataEncryption, slice};

use crate::wire::{Command, Completion, put, u16_at, u32_at};
use offload_formats::nvme::PduHeader;

/// A PDU's header. The PDU's data, if any, are kept separately.
///
/// ```
/// use nvme_tcp::wire::{Pdu, ReadyToTransfer};
///
/// let ask = Pdu::ReadyToTransfer(ReadyToTransfer { command: 3, tag: 9, offset: 0, length: 8192 });
/// let mut header = ask.header();
/// assert_eq!((header[0], header[2]), (0x09, 24));
/// assert_eq!(Pdu::parse(&header), Some(ask));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// 00: the host opens the connection.
    InitializeRequest(InitializeRequest),
    /// 01: the controller accepts.
    InitializeResponse(InitializeResponse),
    /// 02: the host terminates the connection.
    HostTermination(Termination),
    /// 03: the controller terminates the connection.
    ControllerTermination(Termination),
    /// 04: a command. Its in-capsule data are the PDU's data.
    Command(Command),
    /// 05: a completion.
    Response(Completion),
    /// 06: data that the controller requested.
    HostData(DataHeader),
    /// 07: data that the host requested.
    ControllerData(DataHeader),
    /// 09: the controller requests data.
    ReadyToTransfer(ReadyToTransfer),
}

/// ICReq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitializeRequest {
    /// PDU format version: 0.
    pub version: u16,
    /// HPDA: data in PDUs to the host begin at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// The host requests header digests.
    pub header_digest: bool,
    /// The host requests data digests.
    pub data_digest: bool,
    /// MAXR2T: maximum number of outstanding requests to transfer of a command, less one.
    pub max_requests: u32,
}

/// ICResp.
///
/// ```
/// use nvme_tcp::wire::{InitializeResponse, Pdu, PduType};
///
/// let agreed = InitializeResponse { data_digest: true, max_data: 1 << 20, ..InitializeResponse::default() };
/// let pdu = Pdu::InitializeResponse(agreed);
/// assert_eq!((pdu.kind(), Pdu::parse(&pdu.header())), (PduType::InitializeResponse, Some(pdu)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitializeResponse {
    /// PDU format version: 0.
    pub version: u16,
    /// CPDA: data in PDUs to the controller begin at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Header digests are used.
    pub header_digest: bool,
    /// Data digests are used.
    pub data_digest: bool,
    /// MAXH2CDATA: maximum number of data bytes in one H2CData PDU.
    pub max_data: u32,
}

/// H2CData and C2HData.
///
/// ```
/// use nvme_tcp::wire::{DataHeader, Pdu};
///
/// let last = DataHeader { command: 3, tag: 0, offset: 4096, length: 4096, last: true, success: true };
/// let pdu = Pdu::ControllerData(last);
/// assert_eq!(Pdu::parse(&pdu.header()), Some(pdu));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// CCCID: identifier of the command.
    pub command: u16,
    /// TTAG: tag of the answered R2T; reserved in C2HData.
    pub tag: u16,
    /// DATAO: offset of the data in the command's buffer.
    pub offset: u32,
    /// DATAL: length in bytes.
    pub length: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS: the command is complete, no response follows. C2HData only.
    pub success: bool,
}

/// R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// CCCID: identifier of the command.
    pub command: u16,
    /// TTAG: tag that the data PDUs must carry.
    pub tag: u16,
    /// R2TO: offset of the requested data in the command's buffer.
    pub offset: u32,
    /// R2TL: length in bytes.
    pub length: u32,
}

impl Pdu {
    /// Encodes the header: type, flags (without the digest flags), HLEN and the type's own fields. The framing fills in
    /// PDO and PLEN. A header shorter than the array is followed by zeros.
    pub fn header(&self) -> [u8; MAX_HEADER] {
        let mut bytes = [0; MAX_HEADER];
        put(&mut bytes, 0, &self.common().to_bytes());
        // The fields of a type begin after the common header of 8 bytes.
        match self {
            Pdu::InitializeRequest(request) => {
                put(&mut bytes, 8, &request.version.to_le_bytes());
                bytes[10] = request.alignment;
                bytes[11] = digest_bits(request.header_digest, request.data_digest);
                put(&mut bytes, 12, &request.max_requests.to_le_bytes());
            }
            Pdu::InitializeResponse(response) => {
                put(&mut bytes, 8, &response.version.to_le_bytes());
                bytes[10] = response.alignment;
                bytes[11] = digest_bits(response.header_digest, response.data_digest);
                put(&mut bytes, 12, &response.max_data.to_le_bytes());
            }
            // FEI is at an odd position for a 32-bit field, directly after the 16 bits of FES.
            Pdu::HostTermination(termination) | Pdu::ControllerTermination(termination) => {
                put(&mut bytes, 8, &termination.status.to_le_bytes());
                put(&mut bytes, 10, &termination.information);
            }
            Pdu::Command(command) => put(&mut bytes, 8, command.as_bytes()),
            Pdu::Response(completion) => put(&mut bytes, 8, &completion.to_bytes()),
            Pdu::HostData(data) | Pdu::ControllerData(data) => {
                put(&mut bytes, 8, &data.command.to_le_bytes());
                put(&mut bytes, 10, &data.tag.to_le_bytes());
                put(&mut bytes, 12, &data.offset.to_le_bytes());
                put(&mut bytes, 16, &data.length.to_le_bytes());
            }
            Pdu::ReadyToTransfer(request) => {
                put(&mut bytes, 8, &request.command.to_le_bytes());
                put(&mut bytes, 10, &request.tag.to_le_bytes());
                put(&mut bytes, 12, &request.offset.to_le_bytes());
                put(&mut bytes, 16, &request.length.to_le_bytes());
            }
        }
        bytes
    }

    /// Returns the common header, as in [`Pdu::header`].
    fn common(&self) -> PduHeader {
        let flags = match self {
            Pdu::HostData(data) | Pdu::ControllerData(data) => {
                (if data.last { LAST } else { 0 }) | if data.success { SUCCESS } else { 0 }
            }
            _ => 0,
        };
        let kind = self.kind();
        PduHeader { kind: kind as u8, flags, header_len: kind.header_len() as u8, data_offset: 0, len: 0 }
    }

    /// Parses a header; `None` if its type is unknown or if the header is too short for its type.
    pub fn parse(header: &[u8]) -> Option<Pdu> {
        let kind = PduType::from_u8(*header.first()?)?;
        let header = header.get(..kind.header_len())?;
        // The header has the length of its type, so all offsets below are within bounds.
        let data = || DataHeader {
            command: u16_at(header, 8),
            tag: u16_at(header, 10),
            offset: u32_at(header, 12),
            length: u32_at(header, 16),
            last: header[1] & LAST != 0,
            success: header[1] & SUCCESS != 0,
        };
        let termination =
            || Termination { status: u16_at(header, 8), information: [header[10], header[11], header[12], header[13]] };
        // Reserved bits and bytes are ignored: a receiver is not required to check them.
        Some(match kind {
            PduType::InitializeRequest => Pdu::InitializeRequest(InitializeRequest {
                version: u16_at(header, 8),
                alignment: header[10],
                header_digest: header[11] & 1 != 0,
                data_digest: header[11] & 2 != 0,
                max_requests: u32_at(header, 12),
            }),
            PduType::InitializeResponse => Pdu::InitializeResponse(InitializeResponse {
                version: u16_at(header, 8),
                alignment: header[10],
                header_digest: header[11] & 1 != 0,
                data_digest: header[11] & 2 != 0,
                max_data: u32_at(header, 12),
            }),
            PduType::HostTermination => Pdu::HostTermination(termination()),
            PduType::ControllerTermination => Pdu::ControllerTermination(termination()),
            PduType::Command => Pdu::Command(Command::from_bytes(header[8..].try_into().ok()?)),
            PduType::Response => Pdu::Response(Completion::from_bytes(header[8..].try_into().ok()?)),
            PduType::HostData => Pdu::HostData(data()),
            PduType::ControllerData => Pdu::ControllerData(data()),
            PduType::ReadyToTransfer => Pdu::ReadyToTransfer(ReadyToTransfer {
                command: u16_at(header, 8),
                tag: u16_at(header, 10),
                offset: u32_at(header, 12),
                length: u32_at(header, 16),
            }),
        })
    }

    /// Returns the PDU's type.
    pub fn kind(&self) -> PduType {
        match self {
            Pdu::InitializeRequest(_) => PduType::InitializeRequest,
            Pdu::InitializeResponse(_) => PduType::InitializeResponse,
            Pdu::HostTermination(_) => PduType::HostTermination,
            Pdu::ControllerTermination(_) => PduType::ControllerTermination,
            Pdu::Command(_) => PduType::Command,
            Pdu::Response(_) => PduType::Response,
            Pdu::HostData(_) => PduType::HostData,
            Pdu::ControllerData(_) => PduType::ControllerData,
            Pdu::ReadyToTransfer(_) => PduType::ReadyToTransfer,
        }
    }
}

/// PDU types, by their value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduType {
    /// ICReq.
    InitializeRequest = 0x00,
    /// ICResp.
    InitializeResponse = 0x01,
    /// H2CTermReq.
    HostTermination = 0x02,
    /// C2HTermReq.
    ControllerTermination = 0x03,
    /// CapsuleCmd.
    Command = 0x04,
    /// CapsuleResp.
    Response = 0x05,
    /// H2CData.
    HostData = 0x06,
    /// C2HData.
    ControllerData = 0x07,
    /// R2T.
    ReadyToTransfer = 0x09,
}

impl PduType {
    /// Returns the type with this value.
    pub fn from_u8(value: u8) -> Option<PduType> {
        Some(match value {
            0x00 => PduType::InitializeRequest,
            0x01 => PduType::InitializeResponse,
            0x02 => PduType::HostTermination,
            0x03 => PduType::ControllerTermination,
            0x04 => PduType::Command,
            0x05 => PduType::Response,
            0x06 => PduType::HostData,
            0x07 => PduType::ControllerData,
            0x09 => PduType::ReadyToTransfer,
            _ => return None,
        })
    }

    /// Returns HLEN: bytes of the header without its digest.
    pub const fn header_len(self) -> usize {
        match self {
            PduType::InitializeRequest | PduType::InitializeResponse => 128,
            PduType::Command => 72,
            _ => 24,
        }
    }

    /// Returns whether the host sends PDUs of this type.
    pub(crate) const fn is_from_host(self) -> bool {
        matches!(self, PduType::InitializeRequest | PduType::HostTermination | PduType::Command | PduType::HostData)
    }

    /// Returns whether PDUs of this type may carry data.
    pub(crate) const fn carries_data(self) -> bool {
        matches!(self, PduType::Command | PduType::HostData | PduType::ControllerData)
    }

    /// Returns whether PDUs of this type never have a header digest, because they open or terminate the connection.
    pub(crate) const fn never_digested(self) -> bool {
        matches!(
            self,
            PduType::InitializeRequest
                | PduType::InitializeResponse
                | PduType::HostTermination
                | PduType::ControllerTermination
        )
    }
}

fn digest_bits(header: bool, data: bool) -> u8 {
    u8::from(header) | u8::from(data) << 1
}

/// Maximum bytes of a header.
const MAX_HEADER: usize = 128;
/// LAST_PDU in FLAGS: the last data PDU of a request or command.
const LAST: u8 = 1 << 2;
/// SUCCESS in FLAGS of a data PDU: no response follows.
const SUCCESS: u8 = 1 << 3;
