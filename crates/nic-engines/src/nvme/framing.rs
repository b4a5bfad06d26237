//! The layout of a PDU, from its common header.
//!
//! NVMe/TCP Transport Specification 1.0, 3.6. Only PDUs that a controller sends after connection setup are valid here.

use offload_api::NvmeTcpConfig;
use offload_formats::nvme::PduHeader;

/// The offsets of a PDU's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PduLayout {
    /// End of the header and its digest.
    pub(super) header_end: u32,
    pub(super) data_start: u32,
    pub(super) data_end: u32,
    /// End of the PDU.
    pub(super) end: u32,
    /// Whether the PDU is C2HData.
    pub(super) has_data: bool,
    /// Whether the header has a digest.
    pub(super) digested: bool,
}

impl PduLayout {
    /// Parses `common`, the common header of a PDU. Returns `None` if no controller sends such a header.
    pub(super) fn parse(common: &[u8; PduHeader::BYTES], config: &NvmeTcpConfig) -> Option<PduLayout> {
        let pdu = PduHeader::parse(common);
        let PduHeader { kind, data_offset, len: length, .. } = pdu;
        if pdu.header_len != HEADER {
            return None;
        }
        let digested = config.header_digest && kind != TERMINATION;
        let header_end = u32::from(HEADER) + if digested { DIGEST } else { 0 };
        // Strict checks on every field: during a search, data bytes must not pass for a header.
        if kind != TERMINATION && pdu.has_header_digest() != digested {
            return None;
        }
        let plain = PduLayout {
            header_end,
            data_start: header_end,
            data_end: header_end,
            end: header_end,
            has_data: false,
            digested,
        };
        match kind {
            RESPONSE | REQUEST => (length == header_end && data_offset == 0).then_some(plain),
            // Contains up to 128 bytes of the rejected header, and ends the connection.
            TERMINATION => {
                (header_end..=header_end + 128).contains(&length).then_some(PduLayout { end: length, ..plain })
            }
            DATA => {
                let data_start = u32::from(data_offset);
                let trailer = if config.data_digest { DIGEST } else { 0 };
                let alignment = (u32::from(config.alignment) + 1) * 4;
                let fits = pdu.has_data_digest() == config.data_digest
                    && data_start >= header_end
                    && data_start.is_multiple_of(alignment)
                    && length > data_start + trailer
                    && length <= LONGEST;
                let data_end = length.wrapping_sub(trailer);
                fits.then_some(PduLayout { data_start, data_end, end: length, has_data: true, ..plain })
            }
            _ => None,
        }
    }
}

/// HLEN of all PDUs from a controller after connection setup.
pub(super) const HEADER: u8 = 24;
pub(super) const DIGEST: u32 = 4;
const TERMINATION: u8 = 0x03;
const RESPONSE: u8 = 0x05;
const DATA: u8 = 0x07;
const REQUEST: u8 = 0x09;
/// Longer PDUs are rejected, because the bytes are probably data and not a header.
const LONGEST: u32 = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: NvmeTcpConfig = NvmeTcpConfig { header_digest: false, data_digest: true, alignment: 0, check: true };

    #[test]
    fn a_header_tells_where_its_parts_are() {
        let data = PduLayout::parse(&[0x07, 0b10, 24, 24, 0x20, 0x02, 0, 0], &CONFIG).unwrap();
        assert_eq!((data.data_start, data.data_end, data.end), (24, 0x21c, 0x220));
        let response = PduLayout::parse(&[0x05, 0, 24, 0, 24, 0, 0, 0], &CONFIG).unwrap();
        assert_eq!((response.end, response.has_data), (24, false));
    }

    #[test]
    fn headers_that_no_controller_sends_are_rejected() {
        for wrong in [
            [0x06, 0b10, 24, 24, 0x20, 2, 0, 0], // a host's
            [0x07, 0b00, 24, 24, 0x20, 2, 0, 0], // no data digest
            [0x07, 0b11, 24, 24, 0x20, 2, 0, 0], // a header digest
            [0x07, 0b10, 25, 24, 0x20, 2, 0, 0],
            [0x07, 0b10, 24, 23, 0x20, 2, 0, 0],
            [0x07, 0b10, 24, 24, 28, 0, 0, 0], // no data
            [0x05, 0, 24, 0, 25, 0, 0, 0],
        ] {
            assert_eq!(PduLayout::parse(&wrong, &CONFIG), None, "{wrong:x?}");
        }
    }
}
