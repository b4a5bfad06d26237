//! The NVMe/TCP transmit engine: computes the data digests of PDUs as they leave. Before that, the data of
//! [marked](MarkedData) PDUs from a host pass stages.
//!
//! The common header gives the position of the data and whether a digest follows. The engine does not handle
//! retransmissions. As with TLS, the driver guarantees that a packet continues the stream, and otherwise restores the
//! state with parameters and DUMPs first. PDUs inside TLS records arrive without record framing, before encryption;
//! only the TLS engine knows their position on the wire.
//!
//! Invariant: the output depends on the bytes of the stream and not on their division into packets.
//!
//! Source: NVMe/TCP Transport Specification 1.0, 3.3.1.1 and 3.6; Pismenny et al., ASPLOS 2021, 4.1.

use super::framing::DIGEST;
use super::placement::Seals;
use super::sealing::{self, BlockStart};
use bytes::BytesMut;
use nic_engine::{ImageReader, ImageWriter};
use nic_engine::{OutOfStep, StageRun, StageStates};
use offload_api::{Direction, MarkedData, Piece};
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

/// The state of a transmit context.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NvmeTransmit {
    position: Option<PduPosition>,
}

#[derive(Clone, Copy, Debug)]
struct PduPosition {
    next: Seq,
    pdu: PduCursor,
}

/// A position in a PDU.
#[derive(Clone, Copy, Debug, Default)]
struct PduCursor {
    /// Bytes of the PDU passed so far.
    at: u32,
    /// The queued start of the PDU.
    head: [u8; MarkedData::END],
    /// CRC32C of the data so far.
    sum: u32,
    /// The queued start of the block in which the data end so far.
    begun: BlockStart,
    /// State of the stages after the last complete block.
    states: StageStates,
}

/// Statistics of the processed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilledFields {
    /// Digests completed.
    pub(crate) digests: u64,
    /// Bytes that passed stages.
    pub(crate) sealed: u64,
}

/// The offsets of a PDU's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PduParts {
    data_start: u32,
    data_end: u32,
    end: u32,
}

impl NvmeTransmit {
    /// Writes the state to an image.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(self.position.is_some()));
        if let Some(PduPosition { next, pdu }) = &self.position {
            image.put_seq(*next);
            image.put_u32(pdu.at);
            image.put(&pdu.head);
            image.put_u32(pdu.sum);
            image.put(&pdu.begun);
            pdu.states.put(image);
        }
    }

    /// Reads the state from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<NvmeTransmit> {
        if image.take_u8()? == 0 {
            return Some(NvmeTransmit::default());
        }
        let next = image.take_seq()?;
        let (at, head, sum, begun) = (image.take_u32()?, image.take()?, image.take_u32()?, image.take()?);
        let pdu = PduCursor { at, head, sum, begun, states: StageStates::take(image)? };
        Some(NvmeTransmit { position: Some(PduPosition { next, pdu }) })
    }

    /// Sets the position to the PDU at `start`. For PDUs in records this is a position in the content, without record
    /// framing.
    pub(crate) fn set_progress(&mut self, start: Seq) {
        self.position = Some(PduPosition { next: start, pdu: PduCursor::default() });
    }

    /// Tests whether `seq` is the next byte.
    pub(crate) fn expects(&self, seq: Seq) -> bool {
        self.position.is_some_and(|position| position.next == seq)
    }

    /// Appends the bytes at `seq` to `destination`, with digests filled in. Marked data pass their stages of `seals`.
    /// `ahead` are the bytes after the packet, or `None` if the packet is not sent. After an error the context waits
    /// for parameters.
    pub(crate) fn fill(
        &mut self,
        seq: Seq,
        source: &[u8],
        destination: &mut BytesMut,
        seals: &Seals,
        ahead: Option<&[u8]>,
    ) -> Result<FilledFields, OutOfStep> {
        // Taken out, so that an error leaves the context without a position.
        let mut position = self.position.take().filter(|at| at.next == seq).ok_or(OutOfStep)?;
        let at = destination.len();
        destination.extend_from_slice(source);
        let filled = position.pdu.pass(&mut destination[at..], seals, ahead)?;
        position.next += source.len() as u32;
        self.position = Some(position);
        Ok(filled)
    }
}

impl NvmeTransmit {
    /// Reports the stages named by data in `source`, the next bytes of the stream.
    pub(crate) fn stages_in(&self, source: &[u8], stages: &mut dyn FnMut(u16)) {
        if let Some(PduPosition { pdu, .. }) = self.position {
            pdu.stages_in(source, stages);
        }
    }
}

impl PduCursor {
    /// Passes over `bytes`. An invalid PDU is detected when the bytes are sent.
    fn stages_in(mut self, mut bytes: &[u8], stages: &mut dyn FnMut(u16)) {
        while !bytes.is_empty() {
            if let Some(taken) = self.take_header(bytes) {
                bytes = &bytes[taken..];
                continue;
            }
            let Ok(parts) = self.parts() else { return };
            let taken = bytes.len().min((parts.end - self.at) as usize);
            let has_data = self.at < parts.data_end && self.at + taken as u32 > parts.data_start;
            if let Some(marked) = self.marked().filter(|_| has_data) {
                stages(marked.stages());
            }
            self.at += taken as u32;
            bytes = &bytes[taken..];
            if self.at == parts.end {
                self = PduCursor::default();
            }
        }
    }

    /// Adds the first of `rest` to the stored header and returns their number; `None` if the header is complete.
    fn take_header(&mut self, rest: &[u8]) -> Option<usize> {
        let (at, header) = (self.at as usize, self.header_bytes());
        let taken = rest.len().min(header.checked_sub(at).filter(|missing| *missing > 0)?);
        self.head[at..at + taken].copy_from_slice(&rest[..taken]);
        self.at += taken as u32;
        Some(taken)
    }

    /// Processes `bytes`, the next bytes of the stream: stages, then digests.
    fn pass(&mut self, bytes: &mut [u8], seals: &Seals, ahead: Option<&[u8]>) -> Result<FilledFields, OutOfStep> {
        let (mut done, mut filled) = (0, FilledFields::default());
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            let at = self.at as usize;
            if let Some(taken) = self.take_header(rest) {
                // Only the headers of host data are longer than the common header, and contain a marker to replace.
                if at >= PduHeader::BYTES {
                    self.write_lengths(at, &mut rest[..taken])?;
                }
                done += taken;
                continue;
            }
            let parts = self.parts()?;
            let until = match self.at {
                at if at < parts.data_start => parts.data_start,
                at if at < parts.data_end => parts.data_end,
                _ => parts.end,
            };
            let taken = rest.len().min((until - self.at) as usize);
            // The driver queued zeros in place of the digest.
            if self.at >= parts.data_end {
                let at = (self.at - parts.data_end) as usize;
                rest[..taken].copy_from_slice(&self.sum.to_le_bytes()[at..at + taken]);
                filled.digests += u64::from(self.at + taken as u32 == parts.end);
            } else if self.at >= parts.data_start {
                match self.marked() {
                    Some(marked) => {
                        let (data, behind) = rest.split_at_mut(taken);
                        // If bytes follow the data in this packet, they belong to the digest or the next PDU, and the
                        // data end with a whole block.
                        let ahead = ahead.map(|ahead| if behind.is_empty() { ahead } else { &[] });
                        self.seal(marked, &parts, data, seals, ahead)?;
                        filled.sealed += taken as u64;
                    }
                    None => self.sum = crc32c::crc32c_append(self.sum, &rest[..taken]),
                }
            }
            self.at += taken as u32;
            done += taken;
            if self.at == parts.end {
                *self = PduCursor::default();
            }
        }
        Ok(filled)
    }

    /// Returns the number of header bytes that must be stored.
    fn header_bytes(&self) -> usize {
        let is_of_host = self.at as usize >= PduHeader::BYTES && self.head[0] == HOST_DATA;
        if is_of_host { MarkedData::END } else { PduHeader::BYTES }
    }

    fn parts(&self) -> Result<PduParts, OutOfStep> {
        self.head.first_chunk().and_then(PduParts::parse).ok_or(OutOfStep)
    }

    /// Returns the marker of the data, once the header has passed.
    fn marked(&self) -> Option<MarkedData> {
        if self.head[0] == HOST_DATA { MarkedData::read(&self.head) } else { None }
    }

    /// Replaces the marker in the header bytes `bytes`, which start at `at`, by the real lengths.
    fn write_lengths(&self, at: usize, bytes: &mut [u8]) -> Result<(), OutOfStep> {
        let parts = self.parts()?;
        let mut header = self.head;
        MarkedData::erase(&mut header, parts.data_end - parts.data_start);
        let from = at.max(MarkedData::AT);
        if let Some(changed) = bytes.get_mut(from - at..) {
            changed.copy_from_slice(&header[from..from + changed.len()]);
        }
        Ok(())
    }

    /// Passes the data at the current position through the stages.
    fn seal(
        &mut self,
        marked: MarkedData,
        parts: &PduParts,
        data: &mut [u8],
        seals: &Seals,
        ahead: Option<&[u8]>,
    ) -> Result<(), OutOfStep> {
        let stages = seals.get(&marked.stages()).ok_or(OutOfStep)?;
        let [.., a, b, c, d] = self.head.first_chunk::<{ MarkedData::AT }>().copied().unwrap_or_default();
        let offset = u32::from_le_bytes([a, b, c, d]);
        // Stages work on whole blocks, so an unaligned PDU would leave bytes unprotected.
        if !u64::from(offset | (parts.data_end - parts.data_start)).is_multiple_of(Piece::BLOCK) {
            return Err(OutOfStep);
        }
        let within = u64::from(self.at - parts.data_start);
        let (sum, states) = (&mut self.sum, &mut self.states);
        let is_sealed = sealing::seal(
            &mut self.begun,
            within,
            data,
            ahead,
            |at, blocks, is_complete| {
                let run = StageRun { direction: Direction::Transmit, unit: marked.unit(), at: u64::from(offset) + at };
                // An incomplete block is processed again later, so its effect on the state is discarded.
                let mut after = *states;
                let passed = stages.pass(run, &mut after, blocks);
                if is_complete {
                    *states = after;
                }
                passed
            },
            |sealed| *sum = crc32c::crc32c_append(*sum, sealed),
        );
        if is_sealed { Ok(()) } else { Err(OutOfStep) }
    }
}

impl PduParts {
    /// Parses `common`, the common header of a PDU. Returns `None` if the header is invalid.
    fn parse(common: &[u8; PduHeader::BYTES]) -> Option<PduParts> {
        let pdu = PduHeader::parse(common);
        let (header_len, len) = (u32::from(pdu.header_len), pdu.len);
        if header_len < PduHeader::BYTES as u32 || len < header_len {
            return None;
        }
        let is_of_host = pdu.kind == HOST_DATA;
        // Without a digest or a marker, the engine treats the PDU as a header without data.
        if !pdu.has_data_digest() && !is_of_host {
            return Some(PduParts { data_start: len, data_end: len, end: len });
        }
        let trailer = if pdu.has_data_digest() { DIGEST } else { 0 };
        let (data_start, data_end) = (u32::from(pdu.data_offset), len.checked_sub(trailer)?);
        let is_whole = !is_of_host || header_len == MarkedData::END as u32;
        (is_whole && header_len <= data_start && data_start < data_end).then_some(PduParts {
            data_start,
            data_end,
            end: len,
        })
    }
}

/// H2CData.
const HOST_DATA: u8 = 0x06;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::placement::Placement;
    use nic_engine::ContextImage;
    use nic_engine::{NamedStage, Stage, StageMakers, StageState};
    use offload_api::{NvmeTcpStages, StageSpec};
    use proptest::prelude::*;

    /// Returns a queued PDU with an empty digest, and its form on the wire. Without data there is no digest.
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
                filled += engine.fill(seq, &queued[at..end], &mut out, &Seals::new(), Some(&[])).unwrap().digests;
                prop_assert_eq!(&out[..], &wire[at..end]);
                // The state may be evicted to host memory and reloaded at any point.
                engine = ContextImage::build(|image| engine.write(image)).read(NvmeTransmit::read).unwrap();
                at = end;
                if at == queued.len() {
                    break;
                }
            }
            prop_assert_eq!(filled, digests);
        }
    }

    /// A stage that adds the position in the volume to each byte.
    #[derive(Debug)]
    struct AddOneStage;

    impl NamedStage for AddOneStage {
        const NAME: &'static str = "add";
        type Spec = ();

        fn new((): ()) -> Option<AddOneStage> {
            Some(AddOneStage)
        }
    }

    impl Stage for AddOneStage {
        fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
            assert!(run.at.is_multiple_of(16) && bytes.len().is_multiple_of(16));
            bytes.iter_mut().zip(run.unit + run.at..).for_each(|(byte, at)| *byte = byte.wrapping_add(at as u8));
            true
        }
    }

    /// Returns a host PDU with data at `offset` of a command, as queued and on the wire. The data of an unmarked PDU do
    /// not pass stages.
    fn of_host(blocks: usize, offset: u32, marked: Option<MarkedData>, digested: bool) -> (Vec<u8>, Vec<u8>) {
        let data: Vec<u8> = (0..16 * blocks).map(|at| (at * 13) as u8).collect();
        let len = 24 + data.len() + if digested { 4 } else { 0 };
        let mut wire = vec![HOST_DATA, if digested { PduHeader::DATA_DIGEST } else { 0 }, 24, 24];
        wire.extend((len as u32).to_le_bytes());
        wire.extend([7, 0, 1, 0]);
        wire.extend(offset.to_le_bytes());
        wire.extend(u64::to_le_bytes(data.len() as u64));
        let mut queued = wire.clone();
        if let (Some(marked), Some(header)) = (marked, queued.first_chunk_mut()) {
            marked.write(header);
        }
        queued.extend(&data);
        let unit = marked.map_or(0, |marked| marked.unit() + u64::from(offset));
        let add = if marked.is_some() { 1 } else { 0 };
        let sealed: Vec<u8> = data.iter().zip(unit..).map(|(byte, at)| byte.wrapping_add(at as u8 * add)).collect();
        wire.extend(&sealed);
        if digested {
            queued.extend([0; 4]);
            wire.extend(crc32c::crc32c(&sealed).to_le_bytes());
        }
        (queued, wire)
    }

    proptest! {
        #[test]
        fn data_of_a_host_are_sealed_however_the_stream_was_cut(
            pdus in prop::collection::vec((1usize..40, 0u32..100, any::<bool>(), any::<bool>()), 1..6),
            cuts in prop::collection::vec((1usize..200, any::<bool>()), 1..20),
        ) {
            let (mut queued, mut wire) = (Vec::new(), Vec::new());
            let (mut digests, mut sealed) = (0, 0);
            for (blocks, offset, is_marked, digested) in pdus {
                let marked = MarkedData::new(3, 1000).filter(|_| is_marked);
                let (plain, whole) = of_host(blocks, 16 * offset, marked, digested);
                queued.extend(plain);
                wire.extend(whole);
                digests += u64::from(digested);
                sealed += if is_marked { 16 * blocks as u64 } else { 0 };
            }
            let mut held = Placement::with(StageMakers::default().with::<AddOneStage>());
            held.seal_with(NvmeTcpStages { command: 3, unit: 0, stages: vec![StageSpec::new("add", ())] });
            let mut engine = NvmeTransmit::default();
            engine.set_progress(Seq(5));
            let (mut at, mut filled) = (0, FilledFields::default());
            for (cut, is_sent) in cuts.iter().cycle() {
                let end = queued.len().min(at + cut);
                let mut out = BytesMut::new();
                let ahead = is_sent.then_some(&queued[end..queued.len().min(end + 15)]);
                let seq = Seq(5) + at as u32;
                let of_part = engine.fill(seq, &queued[at..end], &mut out, held.seals(), ahead).unwrap();
                filled.digests += of_part.digests;
                filled.sealed += of_part.sealed;
                if *is_sent {
                    prop_assert_eq!(&out[..], &wire[at..end]);
                }
                engine = ContextImage::build(|image| engine.write(image)).read(NvmeTransmit::read).unwrap();
                at = end;
                if at == queued.len() {
                    break;
                }
            }
            prop_assert_eq!(filled, FilledFields { digests, sealed });
        }
    }

    #[test]
    fn data_do_not_leave_without_their_named_stages() {
        let mut held = Placement::with(StageMakers::default().with::<AddOneStage>());
        held.seal_with(NvmeTcpStages { command: 3, unit: 0, stages: vec![StageSpec::new("add", ())] });
        let fill_with = |held: &Placement, (queued, _): (Vec<u8>, Vec<u8>)| {
            let mut engine = NvmeTransmit::default();
            engine.set_progress(Seq(5));
            engine.fill(Seq(5), &queued, &mut BytesMut::new(), held.seals(), Some(&[]))
        };
        let fill = |pdu| fill_with(&held, pdu);
        assert!(fill(of_host(2, 16, MarkedData::new(3, 9), true)).is_ok());
        assert_eq!(fill(of_host(2, 16, MarkedData::new(4, 9), true)), Err(OutOfStep), "no stages have this number");
        assert_eq!(fill(of_host(2, 8, MarkedData::new(3, 9), true)), Err(OutOfStep), "the data start inside a block");
        let (mut cut, wire) = of_host(2, 16, MarkedData::new(3, 9), false);
        cut.truncate(50);
        assert_eq!(fill((cut, wire)), Err(OutOfStep), "the following bytes are unknown");
        held.seal_with(NvmeTcpStages { command: 3, unit: 0, stages: vec![StageSpec::new("press", ())] });
        assert_eq!(
            fill_with(&held, of_host(2, 16, MarkedData::new(3, 9), true)),
            Err(OutOfStep),
            "the stages of this number are missing"
        );
    }

    #[test]
    fn bytes_out_of_order_or_of_no_pdu_are_not_processed() {
        let (queued, _) = pdu(&[1; 100], 0);
        let mut out = BytesMut::new();
        let mut engine = NvmeTransmit::default();
        assert_eq!(
            engine.fill(Seq(5), &queued, &mut out, &Seals::new(), Some(&[])),
            Err(OutOfStep),
            "no parameters yet"
        );
        engine.set_progress(Seq(5));
        assert_eq!(engine.fill(Seq(6), &queued, &mut out, &Seals::new(), Some(&[])), Err(OutOfStep));
        assert!(!engine.expects(Seq(5)), "the context waits for parameters");
        for wrong in [[7, 2, 4, 24, 128, 0, 0, 0], [7, 2, 24, 20, 128, 0, 0, 0], [7, 2, 24, 24, 28, 0, 0, 0]] {
            engine.set_progress(Seq(5));
            let bytes = [wrong, [0; 8]].concat();
            assert_eq!(engine.fill(Seq(5), &bytes, &mut out, &Seals::new(), Some(&[])), Err(OutOfStep), "{wrong:?}");
        }
    }
}
