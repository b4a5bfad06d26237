//! A place in a PDU.
//!
//! Invariant: what a cursor knows depends on the bytes that passed only, never on how they were cut.

use super::framing::{DIGEST, HEADER, Shape};
use nic_engine::{ImageReader, ImageWriter};
use offload_api::NvmeTcpConfig;
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

/// Where in a PDU the stream stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// Bytes of the PDU passed.
    at: u32,
    shape: Option<Shape>,
    head: [u8; HEADER as usize + DIGEST as usize],
    /// CRC32C of the data so far; `None`: not all of them were seen.
    sum: Option<u32>,
    trailer: [u8; DIGEST as usize],
}

/// What passing bytes came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Some data were not summed up, or their digest is wrong.
    pub(super) unchecked: bool,
    /// PDUs that ended.
    pub(super) ended: u64,
}

/// These bytes are no PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoPdu;

/// Data that passed: of which command, where in its buffer, and which bytes of those passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) command: u16,
    pub(super) offset: u32,
    pub(super) at: usize,
    pub(super) length: usize,
    /// Software has no digest over them to make: there is none, or it is the device's.
    pub(super) is_settled: bool,
}

impl Cursor {
    /// Before a PDU.
    pub(super) const START: Cursor =
        Cursor { at: 0, shape: None, head: [0; HEADER as usize + DIGEST as usize], sum: Some(0), trailer: [0; 4] };

    /// Behind the first bytes of a PDU.
    pub(super) fn behind(common: &[u8; PduHeader::BYTES], config: &NvmeTcpConfig) -> Option<Cursor> {
        let mut cursor =
            Cursor { shape: Some(Shape::of(common, config)?), at: PduHeader::BYTES as u32, ..Cursor::START };
        cursor.head[..PduHeader::BYTES].copy_from_slice(common);
        Some(cursor)
    }

    /// Writes it out.
    pub(super) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u32(self.at);
        image.put(&self.head);
        image.put_u8(u8::from(self.sum.is_some()));
        image.put_u32(self.sum.unwrap_or_default());
        image.put(&self.trailer);
    }

    /// Reads back what [`write`](Self::write) wrote.
    pub(super) fn read(image: &mut ImageReader<'_>, config: &NvmeTcpConfig) -> Option<Cursor> {
        let (at, head) = (image.take_u32()?, image.take()?);
        let (is_summed, sum) = (image.take_u8()? != 0, image.take_u32()?);
        let cursor = Cursor { at, shape: None, head, sum: is_summed.then_some(sum), trailer: image.take()? };
        if (at as usize) < PduHeader::BYTES {
            return Some(cursor);
        }
        // The first bytes tell it, and they were looked at before.
        Some(Cursor { shape: Some(Shape::of(head.first_chunk()?, config)?), ..cursor })
    }

    /// Bytes until the next PDU; `None` while that is not known.
    pub(super) fn bytes_left(&self) -> Option<u32> {
        Some(self.shape?.end - self.at)
    }

    /// Passes over `bytes` bytes that are missing; false if they hide more than data.
    pub(super) fn skip(&mut self, bytes: u32) -> bool {
        let Some(shape) = self.shape else { return false };
        if self.at < shape.header_end || bytes > shape.end - self.at {
            return false;
        }
        self.sum = None;
        self.at += bytes;
        if self.at == shape.end {
            *self = Cursor::START;
        }
        true
    }

    /// The digest of the data so far is not to be relied on.
    pub(super) fn forget_sum(&mut self) {
        self.sum = None;
    }

    /// Passes `bytes`, which come next; `data` hears of those that are data.
    pub(super) fn pass(
        &mut self,
        config: &NvmeTcpConfig,
        bytes: &[u8],
        data: &mut dyn FnMut(Data),
    ) -> Result<Passed, NoPdu> {
        let mut passed = Passed::default();
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let Some(shape) = self.shape else {
                done += self.gather(rest, PduHeader::BYTES as u32);
                if self.at == PduHeader::BYTES as u32 {
                    let common = self.head.first_chunk().ok_or(NoPdu)?;
                    self.shape = Some(Shape::of(common, config).ok_or(NoPdu)?);
                }
                continue;
            };
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
                let is_settled = !config.data_digest || (config.check && self.sum.is_some());
                data(Data { command: self.command(), offset, at: done, length, is_settled });
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
                *self = Cursor::START;
                passed.ended += 1;
            }
        }
        Ok(passed)
    }

    /// Where the PDU begins that the cursor stands in, if it stands at `next`.
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

    fn check_header(&self, shape: &Shape) -> Result<(), NoPdu> {
        let (header, digest) = self.head.split_at(usize::from(HEADER));
        if shape.digested && crc32c::crc32c(header).to_le_bytes() != digest[..DIGEST as usize] {
            return Err(NoPdu);
        }
        // DATAL says the same as the lengths in the common header.
        if shape.has_data && u32_at(header, 16) != shape.data_end - shape.data_start {
            return Err(NoPdu);
        }
        // Nor do data lie beyond what DATAO can count.
        if shape.has_data && self.offset().checked_add(shape.data_end - shape.data_start).is_none() {
            return Err(NoPdu);
        }
        Ok(())
    }

    /// CCCID.
    fn command(&self) -> u16 {
        u16::from_le_bytes([self.head[8], self.head[9]])
    }

    /// DATAO.
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
    fn data_beyond_what_an_offset_counts_are_no_pdu() {
        let config = NvmeTcpConfig { header_digest: false, data_digest: false, alignment: 0, check: false };
        for (offset, fits) in [(u32::MAX - 8, true), (u32::MAX - 7, false), (u32::MAX, false)] {
            let mut pdu = [0; 32];
            pdu[..8].copy_from_slice(&[7, 0, 24, 24, 32, 0, 0, 0]);
            pdu[12..16].copy_from_slice(&offset.to_le_bytes());
            pdu[16] = 8;
            let (mut cursor, mut seen) = (Cursor::START, Vec::new());
            // The data come in two packets.
            let passed = cursor
                .pass(&config, &pdu[..28], &mut |data| seen.push(data.offset))
                .and_then(|_| cursor.pass(&config, &pdu[28..], &mut |data| seen.push(data.offset)));
            assert_eq!(passed.is_ok(), fits, "{offset:#x}");
            assert_eq!(seen, if fits { vec![offset, offset + 4] } else { Vec::new() });
        }
    }
}
