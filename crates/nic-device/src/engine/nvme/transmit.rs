//! The NVMe/TCP transmit engine: fills in the data digests of PDUs as they leave.
//!
//! A PDU's first bytes tell all it has to know: where the data are, and whether a digest follows them. It knows nothing
//! of retransmission; as with TLS, the driver promises that a packet's bytes are the next of the stream, and rebuilds
//! the state with parameters and DUMPs when they are not. PDUs in records come without what frames those, before they are
//! encrypted; where on the wire they are is then for the TLS engine to know.
//!
//! Invariant: what is written depends on the bytes of the stream only, never on how they were cut.
//!
//! Source: NVMe/TCP Transport Specification 1.0, 3.3.1.1 and 3.6; Pismenny et al., ASPLOS 2021, 4.1.

use super::framing::DIGEST;
use crate::context::{ImageReader, ImageWriter};
use crate::engine::OutOfStep;
use bytes::BytesMut;
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

/// A transmit context's state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NvmeTransmit {
    position: Option<Position>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    next: Seq,
    pdu: Pdu,
}

/// A place in a PDU.
#[derive(Clone, Copy, Debug, Default)]
struct Pdu {
    /// Bytes of it passed.
    at: u32,
    common: [u8; PduHeader::BYTES],
    /// CRC32C of the data so far.
    sum: u32,
}

/// Where the parts of a PDU are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    data_start: u32,
    data_end: u32,
    end: u32,
}

impl NvmeTransmit {
    /// Writes the state out.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(self.position.is_some()));
        if let Some(Position { next, pdu }) = &self.position {
            image.put_seq(*next);
            image.put_u32(pdu.at);
            image.put(&pdu.common);
            image.put_u32(pdu.sum);
        }
    }

    /// Reads back what [`write`](Self::write) wrote.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<NvmeTransmit> {
        if image.take_u8()? == 0 {
            return Some(NvmeTransmit::default());
        }
        let next = image.take_seq()?;
        let pdu = Pdu { at: image.take_u32()?, common: image.take()?, sum: image.take_u32()? };
        Some(NvmeTransmit { position: Some(Position { next, pdu }) })
    }

    /// A PDU begins at `start`, and is the next to come.
    pub(crate) fn set_progress(&mut self, start: Seq) {
        self.position = Some(Position { next: start, pdu: Pdu::default() });
    }

    /// Whether the byte at `seq` is the next.
    pub(crate) fn expects(&self, seq: Seq) -> bool {
        self.position.is_some_and(|position| position.next == seq)
    }

    /// Appends the bytes to `destination`, with digests in their places; tells how many digests ended. They are at `seq`, or
    /// else of PDUs in records, without what frames those: the next of all PDUs. After an error the context waits for
    /// parameters.
    pub(crate) fn fill(
        &mut self,
        seq: Option<Seq>,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<u64, OutOfStep> {
        let mut position = self.position.take().filter(|at| seq.is_none_or(|seq| at.next == seq)).ok_or(OutOfStep)?;
        let at = destination.len();
        destination.extend_from_slice(source);
        let digests = position.pdu.pass(&mut destination[at..])?;
        position.next += source.len() as u32;
        self.position = Some(position);
        Ok(digests)
    }
}

impl Pdu {
    /// Passes `bytes`, which come next, and writes digests where they belong.
    fn pass(&mut self, bytes: &mut [u8]) -> Result<u64, OutOfStep> {
        let (mut done, mut digests) = (0, 0);
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            if (self.at as usize) < PduHeader::BYTES {
                let at = self.at as usize;
                let taken = rest.len().min(PduHeader::BYTES - at);
                self.common[at..at + taken].copy_from_slice(&rest[..taken]);
                self.at += taken as u32;
                done += taken;
                continue;
            }
            let parts = Parts::of(&self.common).ok_or(OutOfStep)?;
            let until = match self.at {
                at if at < parts.data_start => parts.data_start,
                at if at < parts.data_end => parts.data_end,
                _ => parts.end,
            };
            let taken = rest.len().min((until - self.at) as usize);
            if self.at >= parts.data_end {
                let at = (self.at - parts.data_end) as usize;
                rest[..taken].copy_from_slice(&self.sum.to_le_bytes()[at..at + taken]);
                digests += u64::from(self.at + taken as u32 == parts.end);
            } else if self.at >= parts.data_start {
                self.sum = crc32c::crc32c_append(self.sum, &rest[..taken]);
            }
            self.at += taken as u32;
            done += taken;
            if self.at == parts.end {
                *self = Pdu::default();
            }
        }
        Ok(digests)
    }
}

impl Parts {
    /// What `common`, the first bytes of a PDU, say. `None`: they are those of none.
    fn of(common: &[u8; PduHeader::BYTES]) -> Option<Parts> {
        let pdu = PduHeader::parse(common);
        let (header_len, len) = (u32::from(pdu.header_len), pdu.len);
        if header_len < PduHeader::BYTES as u32 || len < header_len {
            return None;
        }
        if !pdu.has_data_digest() {
            return Some(Parts { data_start: len, data_end: len, end: len });
        }
        let (data_start, data_end) = (u32::from(pdu.data_offset), len - DIGEST);
        (header_len <= data_start && data_start < data_end).then_some(Parts { data_start, data_end, end: len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextImage;
    use proptest::prelude::*;

    /// A PDU whose digest is still to be made, and as it belongs on the wire. Without data it has no digest.
    fn pdu(data: &[u8], padding: u8) -> (Vec<u8>, Vec<u8>) {
        let digested = !data.is_empty();
        let start = if digested { 24 + padding } else { 0 };
        let length = if digested { usize::from(start) + data.len() + 4 } else { 24 };
        let mut bytes = vec![0x07, if digested { PduHeader::DATA_DIGEST } else { 0 }, 24, start];
        bytes.extend((length as u32).to_le_bytes());
        bytes.resize(if digested { start.into() } else { length }, 0x11);
        bytes.extend(data);
        let (mut queued, mut wire) = (bytes.clone(), bytes);
        if digested {
            queued.extend([0; 4]);
            wire.extend(crc32c::crc32c(data).to_le_bytes());
        }
        (queued, wire)
    }

    proptest! {
        #[test]
        fn digests_do_not_depend_on_how_the_stream_was_cut(
            lengths in prop::collection::vec((0usize..700, 0u8..9), 1..10),
            cuts in prop::collection::vec(1usize..300, 1..20),
            start: u32,
        ) {
            let (mut queued, mut wire, mut digests) = (Vec::new(), Vec::new(), 0);
            for (length, padding) in &lengths {
                let data: Vec<u8> = (0..*length).map(|at| (at * 13) as u8).collect();
                let (plain, whole) = pdu(&data, *padding);
                queued.extend(plain);
                wire.extend(whole);
                digests += u64::from(*length > 0);
            }
            let mut engine = NvmeTransmit::default();
            engine.set_progress(Seq(start));
            let (mut filled, mut at) = (0, 0);
            for cut in cuts.iter().cycle() {
                let end = queued.len().min(at + cut);
                let mut out = BytesMut::new();
                let seq = Seq(start) + at as u32;
                prop_assert!(engine.expects(seq));
                filled += engine.fill(Some(seq), &queued[at..end], &mut out).unwrap();
                prop_assert_eq!(&out[..], &wire[at..end]);
                // Wherever it stands, it may be written to host memory and read back.
                engine = ContextImage::of(|image| engine.write(image)).read(NvmeTransmit::read).unwrap();
                at = end;
                if at == queued.len() {
                    break;
                }
            }
            prop_assert_eq!(filled, digests);
        }
    }

    #[test]
    fn what_is_out_of_order_or_no_pdu_is_not_worked_on() {
        let (queued, _) = pdu(&[1; 100], 0);
        let mut out = BytesMut::new();
        let mut engine = NvmeTransmit::default();
        assert_eq!(engine.fill(Some(Seq(5)), &queued, &mut out), Err(OutOfStep), "no parameters yet");
        engine.set_progress(Seq(5));
        assert_eq!(engine.fill(Some(Seq(6)), &queued, &mut out), Err(OutOfStep));
        assert!(!engine.expects(Seq(5)), "it waits for parameters");
        for wrong in [[7, 2, 4, 24, 128, 0, 0, 0], [7, 2, 24, 20, 128, 0, 0, 0], [7, 2, 24, 24, 28, 0, 0, 0]] {
            engine.set_progress(Seq(5));
            let bytes = [wrong, [0; 8]].concat();
            assert_eq!(engine.fill(Some(Seq(5)), &bytes, &mut out), Err(OutOfStep), "{wrong:?}");
        }
    }
}
