//! PDUs on the wire (TS 38.323 6.2, 6.3).

use crate::SnLen;

/// A malformed PDU, which no correct entity sends.
///
/// ```
/// use pdcp::{MalformedPdu, StatusReport};
///
/// assert_eq!(StatusReport::parse(&[0, 0]), Err(MalformedPdu::Short));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedPdu {
    /// The PDU is shorter than its header and MAC-I.
    #[error("the PDU is shorter than its header and MAC-I")]
    Short,
    /// An unknown type of control PDU.
    #[error("control PDUs of type {0} are not known here")]
    Type(u8),
}

/// Returns the length of a data PDU's header.
pub(crate) fn header_len(sn: SnLen) -> usize {
    match sn {
        SnLen::Twelve => 2,
        SnLen::Eighteen => 3,
    }
}

/// Writes a data PDU's header. The first bit marks data PDUs; on signalling bearers the bit is reserved and zero.
pub(crate) fn write_header(sn: SnLen, count: u32, data: bool, to: &mut [u8]) {
    let number = sn.sn(count).to_be_bytes();
    let header = header_len(sn);
    to[..header].copy_from_slice(&number[4 - header..]);
    to[0] |= u8::from(data) << 7;
}

/// Parses the sequence number of a data PDU, ignoring reserved bits.
pub(crate) fn sequence_number(sn: SnLen, pdu: &[u8]) -> Option<u32> {
    match (sn, pdu) {
        (SnLen::Twelve, [a, b, ..]) => Some(u32::from_be_bytes([0, 0, a & 0x0f, *b])),
        (SnLen::Eighteen, [a, b, c, ..]) => Some(u32::from_be_bytes([0, a & 0x03, *b, *c])),
        _ => None,
    }
}

/// A status report of an acknowledged bearer's receiver to the peer's transmitter (TS 38.323 6.2.3.1).
///
/// ```
/// use pdcp::StatusReport;
///
/// let report = StatusReport::new(7, [9, 10]); // 7 and 8 are missing
/// let bytes = report.to_bytes();
/// assert_eq!(bytes, [0, 0, 0, 0, 7, 0b0110_0000]);
/// let parsed = StatusReport::parse(&bytes)?;
/// assert!(parsed.has(6) && !parsed.has(7) && !parsed.has(8) && parsed.has(9));
/// # Ok::<(), pdcp::MalformedPdu>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReport {
    first_missing: u32,
    /// One bit for each COUNT after `first_missing`, starting with the highest bit of the first byte.
    bitmap: Vec<u8>,
}

impl StatusReport {
    /// Creates a report from the first missing COUNT and the received COUNTs after it, in ascending order. COUNTs that
    /// exceed the size of a PDU are omitted.
    pub fn new(first_missing: u32, received: impl IntoIterator<Item = u32>) -> StatusReport {
        let mut bitmap = Vec::new();
        for count in received {
            let Some(behind) = count.checked_sub(first_missing).and_then(|behind| behind.checked_sub(1)) else {
                continue;
            };
            let byte = behind as usize / 8;
            if byte >= BITMAP_MAX {
                break;
            }
            if bitmap.len() <= byte {
                bitmap.resize(byte + 1, 0);
            }
            bitmap[byte] |= 0x80 >> (behind % 8);
        }
        StatusReport { first_missing, bitmap }
    }

    /// Tests whether the reporter has received a COUNT. COUNTs after the end of the bitmap count as missing.
    pub fn has(&self, count: u32) -> bool {
        let Some(behind) = count.checked_sub(self.first_missing) else { return true };
        let Some(behind) = behind.checked_sub(1) else { return false };
        self.bitmap.get(behind as usize / 8).is_some_and(|byte| byte & 0x80 >> (behind % 8) != 0)
    }

    /// Serializes the report as a control PDU.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![STATUS_REPORT << 4];
        bytes.extend(self.first_missing.to_be_bytes());
        bytes.extend(&self.bitmap);
        bytes
    }

    /// Parses a control PDU.
    ///
    /// # Errors
    /// [`MalformedPdu`] if the PDU is of another type or too short.
    pub fn parse(pdu: &[u8]) -> Result<StatusReport, MalformedPdu> {
        let [first, a, b, c, d, bitmap @ ..] = pdu else { return Err(MalformedPdu::Short) };
        match first >> 4 {
            STATUS_REPORT => {
                let bitmap = bitmap[..bitmap.len().min(BITMAP_MAX)].to_vec();
                Ok(StatusReport { first_missing: u32::from_be_bytes([*a, *b, *c, *d]), bitmap })
            }
            other => Err(MalformedPdu::Type(other)),
        }
    }
}

/// The first byte of a status report has D/C zero and type zero.
const STATUS_REPORT: u8 = 0;
/// A report is at most as long as an SDU.
const BITMAP_MAX: usize = crate::config::SDU_MAX - 5;
