//! A position in a PDU.
//!
//! Invariant: the cursor depends on the bytes passed so far and not on their division into packets.

use super::framing::{DIGEST, HEADER, PduLayout};
use nic_engine::{ImageReader, ImageWriter};
use offload_api::NvmeTcpConfig;
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

/// A position in a received PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveCursor {
    /// Bytes of the PDU passed so far.
    at: u32,
    shape: Option<PduLayout>,
    head: [u8; HEADER as usize + DIGEST as usize],
    /// CRC32C of the data so far; `None` if some data were not seen.
    sum: Option<u32>,
    trailer: [u8; DIGEST as usize],
}

/// The result of passing bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PduPart {
    /// Whether some data were not digested, or their digest was wrong.
    pub(super) unchecked: bool,
    /// PDUs completed.
    pub(super) ended: u64,
}

/// The bytes are not a valid PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPdu;

/// A range of data that was passed: its command, its offset in the command's buffer, and its position in the passed
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataPart {
    pub(super) command: u16,
    pub(super) offset: u32,
    pub(super) at: usize,
    pub(super) length: usize,
    /// Whether software will not compute a digest over the data: there is no digest, or the device checks it.
    pub(super) is_settled: bool,
}

impl ReceiveCursor {
    /// The position before a PDU.
    pub(super) const START: ReceiveCursor = ReceiveCursor {
        at: 0,
        shape: None,
        head: [0; HEADER as usize + DIGEST as usize],
        sum: Some(0),
        trailer: [0; 4],
    };

    /// Makes the position after the common header of a PDU.
    pub(super) fn behind(common: &[u8; PduHeader::BYTES], config: &NvmeTcpConfig) -> Option<ReceiveCursor> {
        let mut cursor = ReceiveCursor {
            shape: Some(PduLayout::parse(common, config)?),
            at: PduHeader::BYTES as u32,
            ..ReceiveCursor::START
        };
        cursor.head[..PduHeader::BYTES].copy_from_slice(common);
        Some(cursor)
    }

    /// Writes the cursor to an image.
    pub(super) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u32(self.at);
        image.put(&self.head);
        image.put_u8(u8::from(self.sum.is_some()));
        image.put_u32(self.sum.unwrap_or_default());
        image.put(&self.trailer);
    }

    /// Reads the cursor from an image.
    pub(super) fn read(image: &mut ImageReader<'_>, config: &NvmeTcpConfig) -> Option<ReceiveCursor> {
        let (at, head) = (image.take_u32()?, image.take()?);
        let (is_summed, sum) = (image.take_u8()? != 0, image.take_u32()?);
        let cursor = ReceiveCursor { at, shape: None, head, sum: is_summed.then_some(sum), trailer: image.take()? };
        if (at as usize) < PduHeader::BYTES {
            return Some(cursor);
        }
        // The shape follows from the common header, which was valid when it was first parsed.
        Some(ReceiveCursor { shape: Some(PduLayout::parse(head.first_chunk()?, config)?), ..cursor })
    }

    /// Returns the number of bytes before the next PDU; `None` while the length is unknown.
    pub(super) fn bytes_left(&self) -> Option<u32> {
        Some(self.shape?.end - self.at)
    }

    /// Skips `bytes` missing bytes. Returns false if they may contain more than data.
    pub(super) fn skip(&mut self, bytes: u32) -> bool {
        let Some(shape) = self.shape else { return false };
        if self.at < shape.header_end || bytes > shape.end - self.at {
            return false;
        }
        self.sum = None;
        self.at += bytes;
        if self.at == shape.end {
            *self = ReceiveCursor::START;
        }
        true
    }

    /// Marks the digest of the data so far as unknown.
    pub(super) fn forget_sum(&mut self) {
        self.sum = None;
    }

    /// Passes `bytes`, the next bytes of the stream, and reports data ranges to `data`.
    pub(super) fn pass(
        &mut self,
        config: &NvmeTcpConfig,
        bytes: &[u8],
        data: &mut dyn FnMut(DataPart),
    ) -> Result<PduPart, NoPdu> {
        let mut passed = PduPart::default();
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let Some(shape) = self.shape else {
                done += self.gather(rest, PduHeader::BYTES as u32);
                if self.at == PduHeader::BYTES as u32 {
                    let common = self.head.first_chunk().ok_or(NoPdu)?;
                    self.shape = Some(PduLayout::parse(common, config).ok_or(NoPdu)?);
                }
                continue;
            };
            // The header is gathered, because its fields may be split over packets.
            if self.at < shape.header_end {
                done += self.gather(rest, shape.header_end);
                if self.at == shape.header_end {
                    self.check_header(&shape)?;
                }
            } else if self.at < shape.data_start {
                done += self.advance(rest, shape.data_start);
            } else if self.at < shape.data_end {
                let offset = self.offset() + (self.at - shape.data_start);
                let length = self.advance(rest, shape.data_end);
                if config.check {
                    self.sum = self.sum.map(|sum| crc32c::crc32c_append(sum, &rest[..length]));
                }
                passed.unchecked |= self.sum.is_none();
                // If software must check the digest, the data must stay as received.
                let is_settled = !config.data_digest || (config.check && self.sum.is_some());
                data(DataPart { command: self.command(), offset, at: done, length, is_settled });
                done += length;
            } else if shape.has_data {
                // The data digest.
                let at = (self.at - shape.data_end) as usize;
                let length = self.advance(rest, shape.end);
                self.trailer[at..at + length].copy_from_slice(&rest[..length]);
                done += length;
                passed.unchecked |= self.sum.is_none();
                if self.at == shape.end {
                    passed.unchecked |= self.sum != Some(u32::from_le_bytes(self.trailer));
                }
            } else {
                done += self.advance(rest, shape.end);
            }
            if self.at == shape.end {
                *self = ReceiveCursor::START;
                passed.ended += 1;
            }
        }
        Ok(passed)
    }

    /// Returns the start of the current PDU if the cursor is at `next`.
    pub(super) fn start(&self, next: Seq) -> Seq {
        next - self.at
    }

    fn gather(&mut self, bytes: &[u8], end: u32) -> usize {
        let from = self.at as usize;
        let length = self.advance(bytes, end);
        self.head[from..from + length].copy_from_slice(&bytes[..length]);
        length
    }

    fn advance(&mut self, bytes: &[u8], end: u32) -> usize {
        let length = bytes.len().min((end - self.at) as usize);
        self.at += length as u32;
        length
    }

    fn check_header(&self, shape: &PduLayout) -> Result<(), NoPdu> {
        let (header, digest) = self.head.split_at(usize::from(HEADER));
        if shape.digested && crc32c::crc32c(header).to_le_bytes() != digest[..DIGEST as usize] {
            return Err(NoPdu);
        }
        // DATAL must match the lengths in the common header.
        if shape.has_data && u32_at(header, 16) != shape.data_end - shape.data_start {
            return Err(NoPdu);
        }
        // The data must not extend beyond the range of DATAO.
        if shape.has_data && self.offset().checked_add(shape.data_end - shape.data_start).is_none() {
            return Err(NoPdu);
        }
        Ok(())
    }

    /// Returns CCCID.
    fn command(&self) -> u16 {
        u16::from_le_bytes([self.head[8], self.head[9]])
    }

    /// Returns DATAO.
    fn offset(&self) -> u32 {
        u32_at(&self.head, 12)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_past_the_last_32_bit_offset_are_no_pdu() {
        let config = NvmeTcpConfig { header_digest: false, data_digest: false, alignment: 0, check: false };
        for (offset, fits) in [(u32::MAX - 8, true), (u32::MAX - 7, false), (u32::MAX, false)] {
            let mut pdu = [0; 32];
            pdu[..8].copy_from_slice(&[7, 0, 24, 24, 32, 0, 0, 0]);
            pdu[12..16].copy_from_slice(&offset.to_le_bytes());
            pdu[16] = 8;
            let (mut cursor, mut seen) = (ReceiveCursor::START, Vec::new());
            // The data come in two packets.
            let passed = cursor
                .pass(&config, &pdu[..28], &mut |data| seen.push(data.offset))
                .and_then(|_| cursor.pass(&config, &pdu[28..], &mut |data| seen.push(data.offset)));
            assert_eq!(passed.is_ok(), fits, "{offset:#x}");
            assert_eq!(seen, if fits { vec![offset, offset + 4] } else { Vec::new() });
        }
    }
}
