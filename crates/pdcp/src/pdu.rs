//! PDUs on the wire (TS 38.323 6.2, 6.3).

use crate::SnLen;

/// A PDU that no entity sends: the peer's fault, or the network's.
///
/// ```
/// use pdcp::{MalformedPdu, StatusReport};
///
/// assert_eq!(StatusReport::parse(&[0, 0]), Err(MalformedPdu::Short));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedPdu {
    /// Fewer bytes than its header and MAC-I have.
    #[error("the PDU is shorter than its header and MAC-I")]
    Short,
    /// A control PDU of a type that is not known here.
    #[error("control PDUs of type {0} are not known here")]
    Type(u8),
}

/// Bytes in a data PDU's header.
pub(crate) fn header_len(sn: SnLen) -> usize {
    match sn {
        SnLen::Twelve => 2,
        SnLen::Eighteen => 3,
    }
}

/// Writes a data PDU's header. The first bit says "data"; a signalling bearer has a zero there, which is reserved.
pub(crate) fn write_header(sn: SnLen, count: u32, data: bool, to: &mut [u8]) {
    let number = sn.sn(count).to_be_bytes();
    let header = header_len(sn);
    to[..header].copy_from_slice(&number[4 - header..]);
    to[0] |= u8::from(data) << 7;
}

/// The sequence number of a data PDU. Reserved bits are not looked at.
pub(crate) fn sequence_number(sn: SnLen, pdu: &[u8]) -> Option<u32> {
    match (sn, pdu) {
        (SnLen::Twelve, [a, b, ..]) => Some(u32::from_be_bytes([0, 0, a & 0x0f, *b])),
        (SnLen::Eighteen, [a, b, c, ..]) => Some(u32::from_be_bytes([0, a & 0x03, *b, *c])),
        _ => None,
    }
}

/// What a receiver of an acknowledged bearer has, for the peer's transmitter (TS 38.323 6.2.3.1).
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
    /// A bit for each COUNT behind it, the first the highest of the first byte.
    bitmap: Vec<u8>,
}

impl StatusReport {
    /// The first COUNT that is missing, and those behind it that are there, in ascending order. Those that do not fit a PDU are left out.
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

    /// Whether the reporter has a COUNT. Of those behind the bitmap's end it has none.
    pub fn has(&self, count: u32) -> bool {
        let Some(behind) = count.checked_sub(self.first_missing) else { return true };
        let Some(behind) = behind.checked_sub(1) else { return false };
        self.bitmap.get(behind as usize / 8).is_some_and(|byte| byte & 0x80 >> (behind % 8) != 0)
    }

    /// As a control PDU.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![STATUS_REPORT << 4];
        bytes.extend(self.first_missing.to_be_bytes());
        bytes.extend(&self.bitmap);
        bytes
    }

    /// From a control PDU.
    ///
    /// # Errors
    /// [`MalformedPdu`] when it is another PDU, or is cut short.
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

/// D/C is zero, and so is the type.
const STATUS_REPORT: u8 = 0;
/// A report is no longer than an SDU may be.
const BITMAP_MAX: usize = crate::config::SDU_MAX - 5;
