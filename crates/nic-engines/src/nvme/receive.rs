//! A stream of PDUs from a controller, processed packet by packet.
//!
//! ```text
//!            the next packet: placed, checked              a gap that hides a header
//!   Known ----------------------------------> Known   Known -------------------------> Searching
//!            a gap inside data: goes on placing, the digest of that PDU is software's
//!   Searching --- something that looks like a header: ask software --> Tracking
//!   Tracking  --- lengths lead to no header, or software says no --> Searching
//!   Tracking  --- software says yes --> Known
//! ```
//!
//! Over TLS the stream is the content of the records that the TLS engine opened in each packet. Its bytes keep the TCP
//! sequence numbers of the wire, so numbers jump between records. Behind a gap the TLS engine opens nothing before the
//! next record, and reports the length of the skipped content.
//!
//! Invariant: packets are not held back, changed or dropped, and retransmissions are ignored. The state has constant
//! size.

use super::cursor::{DataPart, ReceiveCursor};
use super::open_block::OpenBlock;
use super::placement::Placement;
use nic_engine::UnitContent;
use nic_engine::{ImageReader, ImageWriter};
use offload_api::rx::NvmeVerdict;
use offload_api::{NvmeTcpConfig, Placements};
use offload_base::Seq;
use offload_formats::nvme::PduHeader;

/// The state of a receive context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmeReceive {
    config: NvmeTcpConfig,
    place: NvmeTracking,
    /// Over TLS: the end of the last packet that the TLS engine processed.
    shown_to: Option<Seq>,
}

#[derive(Clone, Copy, Debug)]
enum NvmeTracking {
    /// `next` is the next byte of the stream; the cursor is at this byte, with `open` before it.
    Known { next: Seq, cursor: ReceiveCursor, open: OpenBlock },
    /// Position unknown; looking for a header.
    Searching { end: Seq, have: u8, bytes: [u8; PduHeader::BYTES] },
    /// Following PDU lengths from a candidate header.
    Tracking { asked: Seq, next: Seq, cursor: ReceiveCursor },
}

impl NvmeTracking {
    fn known(next: Seq, cursor: ReceiveCursor) -> NvmeTracking {
        NvmeTracking::Known { next, cursor, open: OpenBlock::default() }
    }
}

/// The result of one packet.
#[derive(Debug, Default)]
pub(crate) struct ReceivedPdus {
    pub(crate) verdict: NvmeVerdict,
    pub(crate) placed: Placements,
    /// Whether the context lost its position with this packet.
    pub(crate) lost: bool,
}

impl NvmeReceive {
    /// Makes a context that starts with the PDU at `start`.
    pub(crate) fn new(config: NvmeTcpConfig, start: Seq) -> NvmeReceive {
        NvmeReceive { config, place: NvmeTracking::known(start, ReceiveCursor::START), shown_to: None }
    }

    /// Writes the state to an image.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        let NvmeTcpConfig { header_digest, data_digest, alignment, check } = self.config;
        let flags = [header_digest, data_digest, check, self.shown_to.is_some()];
        image.put_u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        image.put_u8(alignment);
        image.put_seq(self.shown_to.unwrap_or(Seq(0)));
        match &self.place {
            NvmeTracking::Known { next, cursor, open } => {
                image.put_u8(KNOWN);
                image.put_seq(*next);
                cursor.write(image);
                open.write(image);
            }
            NvmeTracking::Searching { end, have, bytes } => {
                image.put_u8(SEARCHING);
                image.put_seq(*end);
                image.put_u8(*have);
                image.put(bytes);
            }
            NvmeTracking::Tracking { asked, next, cursor } => {
                image.put_u8(TRACKING);
                image.put_seq(*asked);
                image.put_seq(*next);
                cursor.write(image);
            }
        }
    }

    /// Reads the state from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<NvmeReceive> {
        let bits = image.take_u8()?;
        let flag = |bit: u8| bits >> bit & 1 == 1;
        let config =
            NvmeTcpConfig { header_digest: flag(0), data_digest: flag(1), check: flag(2), alignment: image.take_u8()? };
        let shown_to = Some(image.take_seq()?).filter(|_| flag(3));
        let place = match image.take_u8()? {
            KNOWN => {
                let (next, cursor) = (image.take_seq()?, ReceiveCursor::read(image, &config)?);
                NvmeTracking::Known { next, cursor, open: OpenBlock::read(image)? }
            }
            SEARCHING => {
                NvmeTracking::Searching { end: image.take_seq()?, have: image.take_u8()?, bytes: image.take()? }
            }
            TRACKING => {
                let (asked, next) = (image.take_seq()?, image.take_seq()?);
                NvmeTracking::Tracking { asked, next, cursor: ReceiveCursor::read(image, &config)? }
            }
            _ => return None,
        };
        Some(NvmeReceive { config, place, shown_to })
    }

    /// Processes the payload at `seq`.
    pub(crate) fn receive(&mut self, seq: Seq, payload: &[u8], placement: &mut Placement) -> ReceivedPdus {
        match self.place {
            NvmeTracking::Known { next, cursor, open } => self.follow(seq, payload, next, cursor, open, placement),
            NvmeTracking::Searching { .. } => self.search(seq, payload),
            NvmeTracking::Tracking { asked, next, cursor } => self.track(seq, payload, asked, next, cursor),
        }
    }

    /// Processes the content of TLS records in the packet at `seq`: the ranges `content` of its decrypted payload
    /// `plain`.
    pub(crate) fn receive_content(
        &mut self,
        seq: Seq,
        content: &[(usize, usize)],
        plain: &[u8],
        placement: &mut Placement,
    ) -> ReceivedPdus {
        // The TLS engine processed every packet up to this packet.
        let follows = self.shown_to == Some(seq);
        let first = self.shown_to.is_none();
        self.shown_to = Some(seq + plain.len() as u32);
        let mut all = ReceivedPdus { verdict: NvmeVerdict::NotChecked, ..ReceivedPdus::default() };
        // Content between the last packet and this packet was not seen, so the sequence numbers cannot bridge it.
        if !follows && !first {
            all.lost = self.lose_content();
        }
        let mut vouched = self.config.check && !content.is_empty();
        for (number, &(mut at, mut length)) in content.iter().enumerate() {
            let mut start = seq + at as u32;
            if first && let NvmeTracking::Known { next, .. } = self.place {
                // The context may start at a PDU further on, in this packet or a later one.
                let before = if start.before(next) { next.distance_from(start) } else { 0 };
                let before = length.min(before as usize);
                (at, length, start) = (at + before, length - before, start + before as u32);
                vouched &= before == 0;
                if length == 0 {
                    continue;
                }
                all.lost |= start.after(next) && number == 0 && self.lose_content();
            }
            if follows || !first || number > 0 {
                // Framing lies between two content ranges, so the position moves without a gap.
                self.move_to(start);
            }
            let part = self.receive(start, &plain[at..at + length], placement);
            all.lost |= part.lost;
            all.placed.extend(part.placed.into_iter().map(|(offset, piece)| (at + offset, piece)));
            vouched &= part.verdict == NvmeVerdict::Good;
            if part.verdict == NvmeVerdict::ResyncRequested {
                all.verdict = NvmeVerdict::ResyncRequested;
            }
        }
        if vouched {
            all.verdict = NvmeVerdict::Good;
        }
        all
    }

    /// Reports the commands with data in the payload at `seq`, as far as the position is known.
    pub(crate) fn commands(&self, seq: Seq, payload: &[u8], command: &mut dyn FnMut(u16)) {
        let NvmeTracking::Known { next, cursor, .. } = self.place else { return };
        if seq.before(next) {
            return;
        }
        if let Some((from, mut cursor)) = enter(cursor, next, seq, payload.len()) {
            // An invalid PDU is detected when the packet is received.
            let _ = cursor.pass(&self.unchecked(), &payload[from..], &mut |data| command(data.command));
        }
    }

    /// Reports the commands with data in the content of records.
    pub(crate) fn commands_in_content(
        &self,
        seq: Seq,
        content: &[(usize, usize)],
        plain: &[u8],
        command: &mut dyn FnMut(u16),
    ) {
        let NvmeTracking::Known { next, mut cursor, .. } = self.place else { return };
        if self.shown_to.is_some_and(|shown_to| shown_to != seq) {
            return;
        }
        for &(at, length) in content {
            let start = seq + at as u32;
            // The first packet: the context may start at a PDU further on.
            let is_before = self.shown_to.is_none() && start.before(next);
            let before = if is_before { length.min(next.distance_from(start) as usize) } else { 0 };
            let part = &plain[at + before..at + length];
            if cursor.pass(&self.unchecked(), part, &mut |data| command(data.command)).is_err() {
                return;
            }
        }
    }

    /// Returns the configuration without digest checks, for bytes that are processed again later.
    fn unchecked(&self) -> NvmeTcpConfig {
        NvmeTcpConfig { check: false, ..self.config }
    }

    /// Follows a packet that the TLS engine parsed but passes to the host undecrypted. No data are placed. `plain` is
    /// the decrypted content, and `end` the end of the packet.
    pub(crate) fn pass_over(&mut self, content: &UnitContent, end: Seq, plain: &[u8]) -> ReceivedPdus {
        let follows = self.shown_to == Some(content.last);
        self.shown_to = Some(end);
        let config = self.config;
        if let NvmeTracking::Known { open, .. } = &mut self.place {
            open.forget();
        }
        // Skipped content must lie within the data of one PDU, or it may hide a header.
        let leads_on = match &mut self.place {
            NvmeTracking::Known { cursor, .. } | NvmeTracking::Tracking { cursor, .. } => {
                let parts = || content.parts.iter().map(|(at, length)| &plain[*at..at + length]);
                follows
                    && (content.skipped == 0 || cursor.skip(content.skipped))
                    && parts().all(|part| cursor.pass(&config, part, &mut |_| ()).is_ok())
            }
            NvmeTracking::Searching { .. } => false,
        };
        ReceivedPdus { lost: !leads_on && self.lose_content(), ..ReceivedPdus::default() }
    }

    /// Starts a search because missed content may contain a header. Returns whether the position was known.
    fn lose_content(&mut self) -> bool {
        let known = matches!(self.place, NvmeTracking::Known { .. });
        self.place = NvmeTracking::Searching { end: Seq(0), have: 0, bytes: [0; PduHeader::BYTES] };
        known
    }

    /// Moves the position to `seq`.
    fn move_to(&mut self, seq: Seq) {
        match &mut self.place {
            NvmeTracking::Known { next, .. } | NvmeTracking::Tracking { next, .. } => *next = seq,
            NvmeTracking::Searching { end, .. } => *end = seq,
        }
    }

    /// Returns the header about which software must answer, if a request is open.
    pub(crate) fn question(&self) -> Option<Seq> {
        match self.place {
            NvmeTracking::Tracking { asked, .. } => Some(asked),
            NvmeTracking::Known { .. } | NvmeTracking::Searching { .. } => None,
        }
    }

    /// Handles the answer of software for the header at `header`. Returns whether it was useful.
    pub(crate) fn answer(&mut self, header: Seq, is_header: bool) -> bool {
        let NvmeTracking::Tracking { asked, next, mut cursor } = self.place else { return false };
        if asked != header {
            return false;
        }
        self.place = if is_header {
            // Bytes that passed while tracking were not digested.
            cursor.forget_sum();
            NvmeTracking::known(next, cursor)
        } else {
            NvmeTracking::Searching { end: next, have: 0, bytes: [0; PduHeader::BYTES] }
        };
        is_header
    }

    fn follow(
        &mut self,
        seq: Seq,
        payload: &[u8],
        next: Seq,
        cursor: ReceiveCursor,
        mut open: OpenBlock,
        placement: &mut Placement,
    ) -> ReceivedPdus {
        let end = seq + payload.len() as u32;
        if seq.before(next) {
            // A retransmission. New bytes at its end are treated as lost, because handling them is not worthwhile.
            return ReceivedPdus::default();
        }
        // A gap separates the open block from its rest.
        if seq != next {
            open.forget();
        }
        let Some((from, mut cursor)) = enter(cursor, next, seq, payload.len()) else { return self.lose(seq, payload) };
        let mut received = ReceivedPdus::default();
        let passed = cursor.pass(&self.config, &payload[from..], &mut |data: DataPart| {
            place(placement, &payload[from..], from, data, &mut open, &mut received.placed);
        });
        match passed {
            Ok(passed) => {
                // A packet is verified only if it was followed from its first byte.
                let vouched = self.config.check && !passed.unchecked && from == 0;
                received.verdict = if vouched { NvmeVerdict::Good } else { NvmeVerdict::NotChecked };
                self.place = NvmeTracking::Known { next: end, cursor, open };
                received
            }
            Err(_) => {
                self.place = NvmeTracking::Searching { end, have: 0, bytes: [0; PduHeader::BYTES] };
                ReceivedPdus { verdict: NvmeVerdict::NotChecked, lost: true, ..received }
            }
        }
    }

    /// Starts a search because a header was missed.
    fn lose(&mut self, seq: Seq, payload: &[u8]) -> ReceivedPdus {
        self.place = NvmeTracking::Searching { end: seq, have: 0, bytes: [0; PduHeader::BYTES] };
        ReceivedPdus { lost: true, ..self.search(seq, payload) }
    }

    /// Searches a packet for a header, which may start in the previous packet.
    fn search(&mut self, seq: Seq, payload: &[u8]) -> ReceivedPdus {
        let NvmeTracking::Searching { end, mut have, mut bytes } = self.place else { return ReceivedPdus::default() };
        if seq != end {
            have = 0;
        }
        let packet_end = seq + payload.len() as u32;
        for (offset, byte) in payload.iter().enumerate() {
            bytes.rotate_left(1);
            bytes[PduHeader::BYTES - 1] = *byte;
            have = (have + 1).min(PduHeader::BYTES as u8);
            if usize::from(have) < PduHeader::BYTES {
                continue;
            }
            // A candidate counts only if the lengths that follow it hold to the end of the packet.
            let Some(mut cursor) = ReceiveCursor::behind(&bytes, &self.config) else { continue };
            let next = seq + offset as u32 + 1;
            let asked = cursor.start(next);
            if cursor.pass(&self.config, &payload[offset + 1..], &mut |_| ()).is_ok() {
                self.place = NvmeTracking::Tracking { asked, next: packet_end, cursor };
                return ReceivedPdus { verdict: NvmeVerdict::ResyncRequested, ..ReceivedPdus::default() };
            }
        }
        self.place = NvmeTracking::Searching { end: packet_end, have, bytes };
        ReceivedPdus::default()
    }

    /// Follows PDU lengths through a packet.
    fn track(&mut self, seq: Seq, payload: &[u8], asked: Seq, next: Seq, mut cursor: ReceiveCursor) -> ReceivedPdus {
        if seq.before(next) {
            return ReceivedPdus::default();
        }
        let gap = seq.distance_from(next);
        let leads_on = (gap == 0 || cursor.skip(gap)) && cursor.pass(&self.config, payload, &mut |_| ()).is_ok();
        if !leads_on {
            self.place = NvmeTracking::Searching { end: seq, have: 0, bytes: [0; PduHeader::BYTES] };
            return self.search(seq, payload);
        }
        self.place = NvmeTracking::Tracking { asked, next: seq + payload.len() as u32, cursor };
        ReceivedPdus::default()
    }
}

/// Places data as far as their buffer is here, and joins adjacent pieces.
fn place(
    placement: &mut Placement,
    bytes: &[u8],
    from: usize,
    data: DataPart,
    open: &mut OpenBlock,
    placed: &mut Placements,
) {
    let mut done = 0;
    while done < data.length {
        let rest = &bytes[data.at + done..data.at + data.length];
        let offset = data.offset + done as u32;
        let Some(piece) = placement.place(data.command, offset, rest, data.is_settled, open) else { return };
        let at = from + data.at + done;
        done += piece.len();
        // Adjacent pieces are joined, because the host pays for each entry.
        match placed.last_mut() {
            Some((start, last)) if *start + last.len() == at => {
                if let Err(piece) = last.join(piece) {
                    placed.push((at, piece));
                }
            }
            _ => placed.push((at, piece)),
        }
    }
}

const KNOWN: u8 = 1;
const SEARCHING: u8 = 2;
const TRACKING: u8 = 3;

/// Finds the first byte of a packet (`length` bytes at `seq`) with a known position, and the cursor there. Returns
/// `None` if the gap after `next` hides a header.
fn enter(mut cursor: ReceiveCursor, next: Seq, seq: Seq, length: usize) -> Option<(usize, ReceiveCursor)> {
    let left = cursor.bytes_left();
    if seq == next {
        return Some((0, cursor));
    }
    let gap = seq.distance_from(next);
    if left.is_some_and(|left| gap <= left) && cursor.skip(gap) {
        return Some((0, cursor));
    }
    // The gap ends in another PDU. The position is known if that PDU's successor starts in this packet.
    let header = next + left?;
    header.within(seq, seq + length as u32).then(|| (header.distance_from(seq) as usize, ReceiveCursor::START))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use nic_engine::ContextImage;
    use nic_engine::{NamedStage, Stage, StageMakers, StageRun, StageState};
    use offload_api::{NvmeTcpStages, Piece, PieceHome, StageSpec};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    /// The owner of one command's memory, which keeps the last value of each byte.
    #[derive(Default)]
    struct ByteBuffer(Mutex<BTreeMap<u64, u8>>);

    impl PieceHome for ByteBuffer {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().extend((offset..).zip(bytes));
        }
    }

    /// A stage that inverts whole blocks, with their position as parameter.
    #[derive(Debug)]
    struct CompletingStage;

    impl NamedStage for CompletingStage {
        const NAME: &'static str = "turn";
        type Spec = ();

        fn new((): ()) -> Option<CompletingStage> {
            Some(CompletingStage)
        }
    }

    impl Stage for CompletingStage {
        fn pass(&self, run: StageRun, _: &mut StageState, bytes: &mut [u8]) -> bool {
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            run.at.is_multiple_of(Piece::BLOCK) && (bytes.len() as u64).is_multiple_of(Piece::BLOCK)
        }
    }

    const CONFIG: NvmeTcpConfig = NvmeTcpConfig { header_digest: true, data_digest: true, alignment: 1, check: true };

    /// Returns a stream of PDUs with data of these lengths for commands 0, 1, 2, each followed by a response; the start
    /// of each PDU; and the position of data in the stream.
    fn stream(lengths: &[usize], spoilt: Option<usize>) -> (Vec<u8>, Vec<u32>, Vec<(usize, usize)>) {
        let (mut bytes, mut starts, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for (command, length) in lengths.iter().enumerate() {
            let mut pdu = |kind: u8, payload: &[u8]| {
                starts.push(bytes.len() as u32);
                let start = if payload.is_empty() { 0 } else { 32 };
                let length = if payload.is_empty() { 28 } else { 32 + payload.len() + 4 };
                let mut header = vec![kind, if start == 0 { 1 } else { 3 }, 24, start];
                header.extend((length as u32).to_le_bytes());
                header.extend((command as u16).to_le_bytes());
                header.extend([0; 6]);
                header.extend((payload.len() as u32).to_le_bytes());
                header.extend([0; 4]);
                let digest = crc32c::crc32c(&header).to_le_bytes();
                bytes.extend(header);
                bytes.extend(digest);
                if !payload.is_empty() {
                    bytes.extend([0; 4]);
                    data.push((bytes.len(), payload.len()));
                    bytes.extend(payload);
                    bytes.extend((crc32c::crc32c(payload) ^ u32::from(spoilt == Some(command))).to_le_bytes());
                }
            };
            let payload: Vec<u8> = (0..*length).map(|at| (at * 7 + command * 31) as u8).collect();
            pdu(0x07, &payload);
            pdu(0x05, &[]);
        }
        (bytes, starts, data)
    }

    /// Returns buffers for commands of these lengths, and their owners.
    fn buffers(lengths: &[usize], passes: bool) -> (Placement, Vec<Arc<ByteBuffer>>) {
        let mut placement = Placement::with(StageMakers::default().with::<CompletingStage>());
        let homes: Vec<Arc<ByteBuffer>> = lengths.iter().map(|_| Arc::default()).collect();
        for ((command, length), home) in (0u16..).zip(lengths).zip(&homes) {
            let stages = || NvmeTcpStages { command, unit: 0, stages: vec![StageSpec::new("turn", ())] };
            let pieces = vec![Piece::new(0, BytesMut::zeroed(*length), home.clone())];
            placement.insert(command, pieces, passes.then(stages));
        }
        (placement, homes)
    }

    proptest! {
        #[test]
        fn placed_and_verified_data_are_right_after_any_loss(
            lengths in prop::collection::vec(1usize..900, 1..12),
            spoilt in prop::option::of(0usize..12),
            cut in 20usize..400,
            fates in prop::collection::vec(0u8..10, 64),
            late: bool,
            passes: bool,
        ) {
            let (bytes, starts, data) = stream(&lengths, spoilt);
            let start = Seq(u32::MAX - 300);
            let mut engine = NvmeReceive::new(CONFIG, start);
            let (mut placement, homes) = buffers(&lengths, passes);
            let mut opened = vec![BTreeSet::new(); lengths.len()];
            let mut held = None;
            let mut gaps = false;
            for (number, packet) in bytes.chunks(cut).enumerate() {
                let at = number * cut;
                let mut arrivals = vec![(at, packet)];
                match fates[number % fates.len()] {
                    0 => {
                        gaps = true;
                        continue; // lost
                    }
                    1 if held.is_none() => {
                        (held, gaps) = (Some((at, packet)), true);
                        continue; // late
                    }
                    2 => arrivals.push((at, packet)), // twice
                    3 => arrivals.extend(held.take()),
                    _ => {}
                }
                for (at, packet) in arrivals {
                    // The state may be evicted to host memory and reloaded at any point.
                    engine = ContextImage::build(|image| engine.write(image)).read(NvmeReceive::read).unwrap();
                    let received = engine.receive(start + at as u32, packet, &mut placement);
                    for (offset, piece) in received.placed {
                        let from = at + offset;
                        let is_here = |(start, length): &(usize, usize)| (*start..start + length).contains(&from);
                        let command = data.iter().position(is_here).expect("only data are placed");
                        let (data_at, length) = data[command];
                        prop_assert_eq!(piece.offset() as usize, from - data_at);
                        prop_assert!(piece.offset() as usize + piece.len() <= length);
                        opened[command].extend(piece.opened());
                        // The piece contains the received bytes, or their form after the stage.
                        let (start, end) = (piece.offset() - piece.lead() as u64, piece.offset() + piece.len() as u64);
                        drop(piece);
                        let home = homes[command].0.lock().unwrap();
                        for (place, byte) in home.range(start..end) {
                            let came = bytes[data_at + *place as usize];
                            let is_opened = opened[command].contains(place);
                            prop_assert_eq!(*byte, if is_opened { !came } else { came }, "{} of {}", place, command);
                        }
                    }
                    if received.verdict == NvmeVerdict::Good
                        && let Some((spoilt_at, length)) = spoilt.and_then(|spoilt| data.get(spoilt))
                    {
                        let digest = spoilt_at + length;
                        prop_assert!(!(at..at + packet.len()).contains(&(digest + 3)), "a wrong digest");
                    }
                    if let Some(asked) = engine.question() {
                        let header = asked.distance_from(start);
                        if !late || number % 3 == 0 {
                            engine.answer(asked, starts.contains(&header));
                        }
                    }
                }
            }
            if !gaps {
                // The engine followed to the last byte, so everything was placed and verified.
                let end = start + bytes.len() as u32;
                let followed = matches!(engine.place, NvmeTracking::Known { next, .. } if next == end);
                prop_assert!(followed);
                for (command, length) in lengths.iter().enumerate() {
                    let nothing = vec![0; *length];
                    prop_assert!(placement.place(command as u16, 0, &nothing, true, &mut OpenBlock::default()).is_none());
                    let blocks = if passes { length - length % Piece::BLOCK as usize } else { 0 };
                    prop_assert_eq!(opened[command].len(), blocks, "all whole blocks passed the stage");
                }
            }
        }
    }

    #[test]
    fn a_packet_behind_a_gap_in_data_is_placed_and_not_vouched_for() {
        let (bytes, _, _) = stream(&[600, 100], None);
        let mut engine = NvmeReceive::new(CONFIG, Seq(0));
        let (mut placement, _) = buffers(&[600, 100], false);
        assert_eq!(engine.receive(Seq(0), &bytes[..200], &mut placement).verdict, NvmeVerdict::Good);
        let behind = engine.receive(Seq(400), &bytes[400..500], &mut placement);
        assert_eq!((behind.verdict, behind.placed[0].1.offset()), (NvmeVerdict::NotChecked, 400 - 32));
        // This holds to the end of the PDU, even across an eviction; then the next PDU is complete.
        engine = ContextImage::build(|image| engine.write(image)).read(NvmeReceive::read).unwrap();
        for (from, to) in [(500, 600), (600, 636)] {
            let received = engine.receive(Seq(from as u32), &bytes[from..to], &mut placement);
            assert_eq!(received.verdict, NvmeVerdict::NotChecked);
        }
        assert_eq!(engine.receive(Seq(636), &bytes[636..], &mut placement).verdict, NvmeVerdict::Good);
        assert!(
            engine.receive(Seq(200), &bytes[200..400], &mut placement).placed.is_empty(),
            "a retransmission is ignored"
        );
    }

    /// The gap hides the rest of a header. The packet starts with data that have a wrong digest, which was not
    /// computed.
    #[test]
    fn a_packet_that_begins_behind_half_a_header_is_not_vouched_for() {
        let (bytes, _, data) = stream(&[300, 300], Some(0));
        let (data_at, length) = data[0];
        let start = Seq(77);
        for (cut, begin) in (8..data_at).flat_map(|cut| (data_at..data_at + length + 4).map(move |begin| (cut, begin)))
        {
            let mut engine = NvmeReceive::new(CONFIG, start);
            let (mut placement, _homes) = buffers(&[300, 300], false);
            engine.receive(start, &bytes[..cut], &mut placement);
            let rest = engine.receive(start + begin as u32, &bytes[begin..], &mut placement);
            assert_ne!(rest.verdict, NvmeVerdict::Good, "{cut} bytes, and from {begin} on");
        }
    }
}
