//! The TLS receive engine: decrypts records as their bytes arrive in order, and finds its position again after a gap.
//!
//! A packet is processed as a whole: if it is not next in the stream, or any check fails, it is passed to the host
//! unchanged. Packets are never held back. The state has constant size and depends on sequence numbers and stream bytes
//! only.
//!
//! ```text
//!            the next packet: decrypted                  a gap that hides a header
//!   Known ------------------------------> Known   Known ---------------------------> Searching
//!            a gap, but the next header's place is known and arrives: past it, on with the next packet
//!   Searching --- something that looks like a header: ask software --> Tracking
//!   Tracking  --- a length that leads to no header, or software says no --> Searching
//!   Tracking  --- software says yes, and the next header arrives --> Known
//! ```
//!
//! A context without requests ([`ResyncMode::CoreHint`](offload_api::ResyncMode::CoreHint)) waits instead of searching:
//! ```text
//!   Known --- a gap that hides a header --> Waiting --- software says where the next record begins --> Expecting
//!   Expecting --- that header arrives --> Known        Expecting --- it was lost --> Waiting
//! ```
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, section 4.3, and Linux's tls-offload documentation.
//! The two differ about a negative answer of software; this engine follows the paper.

use super::record::{HEADER, RecordCursor, RecordMode, RecordProtection, WalkedRecords};
use bytes::BytesMut;
use nic_engine::UnitContent;
use nic_engine::{ImageReader, ImageWriter};
use offload_api::rx::TlsVerdict;
use offload_base::Seq;
use resumable_aead::Key;

/// The state of a receive context.
#[derive(Clone, Debug)]
pub(crate) struct TlsReceive {
    protection: RecordProtection,
    /// Whether the context searches and asks, instead of waiting for a hint.
    asks: bool,
    place: StreamTracking,
}

#[derive(Clone, Copy, Debug)]
enum StreamTracking {
    /// `next` is the next byte of the stream; the cursor is at this byte.
    Known { next: Seq, cursor: RecordCursor },
    /// Position unknown; looking for a header. The stream was searched up to `seen_to`.
    Searching { seen: PartialHeader, seen_to: Seq },
    /// Following record lengths from a candidate header.
    Tracking(RecordTrack),
    /// Position unknown; waiting for a hint. The stream was seen up to `seen_to`.
    Waiting { seen_to: Seq },
    /// Software announced the position of the next record.
    Expecting { header: Seq, number: u64 },
}

/// A walk over records by their lengths, without decryption.
#[derive(Clone, Copy, Debug)]
struct RecordTrack {
    /// The candidate header about which software was asked.
    asked: Seq,
    /// Number of the record at `asked`, if software confirmed it.
    confirmed: Option<u64>,
    /// Headers passed so far, `asked` included.
    headers: u64,
    /// The header that is being read or awaited.
    header: PartialHeader,
    /// Sequence number up to which the stream was seen.
    seen_to: Seq,
}

/// The received bytes of a header.
#[derive(Clone, Copy, Debug)]
struct PartialHeader {
    start: Seq,
    have: u8,
    bytes: [u8; HEADER],
}

/// The result of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRecords {
    pub(crate) verdict: TlsVerdict,
    pub(crate) walked: WalkedRecords,
    /// Whether the context lost its position with this packet.
    pub(crate) lost: bool,
    /// Whether the context found its position with this packet, and works from the next packet on.
    pub(crate) found: bool,
}

/// A position: the next byte, and the cursor in its record.
pub(crate) type RecordPosition = (Seq, RecordCursor);

impl ReceivedRecords {
    const UNTOUCHED: ReceivedRecords = ReceivedRecords {
        verdict: TlsVerdict::NotDecrypted,
        walked: WalkedRecords { body_bytes: 0, records: 0 },
        lost: false,
        found: false,
    };
}

impl TlsReceive {
    /// Makes a context that starts with record `number` at `start`. After a loss the context searches and `asks`, or
    /// waits for a hint.
    pub(crate) fn new(protection: RecordProtection, start: Seq, number: u64, asks: bool) -> TlsReceive {
        TlsReceive {
            protection,
            asks,
            place: StreamTracking::Known { next: start, cursor: RecordCursor::at_record(number) },
        }
    }

    /// Writes the state to an image.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        self.protection.write(image);
        image.put_u8(u8::from(self.asks));
        match &self.place {
            StreamTracking::Known { next, cursor } => {
                image.put_u8(KNOWN);
                image.put_seq(*next);
                cursor.write(image);
            }
            StreamTracking::Searching { seen, seen_to } => {
                image.put_u8(SEARCHING);
                seen.write(image);
                image.put_seq(*seen_to);
            }
            StreamTracking::Tracking(track) => {
                image.put_u8(TRACKING);
                image.put_seq(track.asked);
                image.put_u8(u8::from(track.confirmed.is_some()));
                // Every state has a fixed layout, so an absent number is stored as 0 after its flag.
                image.put_u64(track.confirmed.unwrap_or(0));
                image.put_u64(track.headers);
                track.header.write(image);
                image.put_seq(track.seen_to);
            }
            StreamTracking::Waiting { seen_to } => {
                image.put_u8(WAITING);
                image.put_seq(*seen_to);
            }
            StreamTracking::Expecting { header, number } => {
                image.put_u8(EXPECTING);
                image.put_seq(*header);
                image.put_u64(*number);
            }
        }
    }

    /// Reads the state from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<TlsReceive> {
        let (protection, asks) = (RecordProtection::read(image)?, image.take_u8()? != 0);
        let place = match image.take_u8()? {
            KNOWN => StreamTracking::Known { next: image.take_seq()?, cursor: RecordCursor::read(image)? },
            SEARCHING => StreamTracking::Searching { seen: PartialHeader::read(image)?, seen_to: image.take_seq()? },
            TRACKING => {
                let asked = image.take_seq()?;
                let (is_confirmed, number) = (image.take_u8()? != 0, image.take_u64()?);
                let headers = image.take_u64()?;
                let (header, seen_to) = (PartialHeader::read(image)?, image.take_seq()?);
                StreamTracking::Tracking(RecordTrack {
                    asked,
                    confirmed: is_confirmed.then_some(number),
                    headers,
                    header,
                    seen_to,
                })
            }
            WAITING => StreamTracking::Waiting { seen_to: image.take_seq()? },
            EXPECTING => StreamTracking::Expecting { header: image.take_seq()?, number: image.take_u64()? },
            _ => return None,
        };
        Some(TlsReceive { protection, asks, place })
    }

    /// Decrypts `source`, the payload at `seq`, and appends the result to `destination`. The result is complete only
    /// with the verdict [`TlsVerdict::Decrypted`]; otherwise the caller truncates `destination`.
    pub(crate) fn receive(
        &mut self,
        key: &Key,
        seq: Seq,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> ReceivedRecords {
        let end = seq + source.len() as u32;
        match &mut self.place {
            // The usual case: the packet continues the stream.
            StreamTracking::Known { next, cursor } if seq == *next => {
                match cursor.walk(RecordMode::Open, key, &self.protection, source, destination) {
                    Ok(walked) => {
                        *next = end;
                        ReceivedRecords { verdict: TlsVerdict::Decrypted, walked, ..ReceivedRecords::UNTOUCHED }
                    }
                    Err(_) => {
                        self.lose(end);
                        ReceivedRecords { verdict: TlsVerdict::Error, lost: true, ..ReceivedRecords::UNTOUCHED }
                    }
                }
            }
            // A retransmission, whole or in part: the bytes were processed before.
            StreamTracking::Known { next, .. } if seq.before(*next) => ReceivedRecords::UNTOUCHED,
            StreamTracking::Known { next, cursor } => {
                let (next, cursor) = (*next, *cursor);
                let received = self.jump(key, (next, cursor), seq, source, destination);
                ReceivedRecords { lost: !matches!(self.place, StreamTracking::Known { .. }), ..received }
            }
            StreamTracking::Searching { seen, seen_to } => {
                let (seen, seen_to) = (*seen, *seen_to);
                self.search_on((seen, seen_to), seq, source)
            }
            StreamTracking::Tracking(track) => {
                let track = *track;
                self.track(key, track, seq, source, destination)
            }
            StreamTracking::Waiting { seen_to } => {
                *seen_to = seen_to.max(end);
                ReceivedRecords::UNTOUCHED
            }
            StreamTracking::Expecting { header, number } => {
                let (header, number) = (*header, *number);
                self.expect(key, (header, number), seq, source, destination)
            }
        }
    }

    /// Returns the position, if it is known.
    pub(crate) fn standing(&self) -> Option<RecordPosition> {
        match &self.place {
            StreamTracking::Known { next, cursor } => Some((*next, *cursor)),
            _ => None,
        }
    }

    /// Describes the record content that a packet at `seq` revealed, for the engine of the layer above. `before` is the
    /// position before the packet, and `plain` the appended bytes. Returns `None` if the content's position relative to
    /// earlier content is unknown.
    pub(crate) fn shown(
        &self,
        before: RecordPosition,
        seq: Seq,
        received: &ReceivedRecords,
        plain: &[u8],
    ) -> Option<UnitContent> {
        let (last, cursor) = before;
        match received.verdict {
            TlsVerdict::Decrypted if last == seq => {
                Some(UnitContent { last, skipped: 0, parts: cursor.content(&self.protection, plain) })
            }
            // The engine parsed the packet from the next header on, where `plain` starts.
            TlsVerdict::NotDecrypted if received.found => {
                let parts = RecordCursor::at_record(0).content(&self.protection, plain);
                Some(UnitContent { last, skipped: cursor.content_left(&self.protection)?, parts })
            }
            _ => None,
        }
    }

    /// Returns the header about which software must answer, if a request is open.
    pub(crate) fn question(&self) -> Option<Seq> {
        match &self.place {
            StreamTracking::Tracking(track) if track.confirmed.is_none() => Some(track.asked),
            _ => None,
        }
    }

    /// Handles the answer of software for the header at `asked`: the number of the record there, or `None`. Returns
    /// whether the answer was useful. An answer to an earlier request is too late, and so is a hint for a header that
    /// has passed.
    pub(crate) fn answer(&mut self, asked: Seq, number: Option<u64>) -> bool {
        match &mut self.place {
            StreamTracking::Waiting { seen_to: earliest } | StreamTracking::Expecting { header: earliest, .. } => {
                match number {
                    Some(number) if asked.at_or_after(*earliest) => {
                        self.place = StreamTracking::Expecting { header: asked, number };
                        true
                    }
                    _ => false,
                }
            }
            StreamTracking::Tracking(track) if track.asked == asked => {
                match number {
                    Some(_) => track.confirmed = number,
                    None => {
                        self.place = StreamTracking::Searching { seen: PartialHeader::NONE, seen_to: track.seen_to }
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// Gives up the position. The stream was seen up to `end`.
    fn lose(&mut self, end: Seq) {
        self.place = if self.asks {
            StreamTracking::Searching { seen: PartialHeader::NONE, seen_to: end }
        } else {
            StreamTracking::Waiting { seen_to: end }
        };
    }

    /// Handles a packet while the position of the next header is known from a hint.
    fn expect(
        &mut self,
        key: &Key,
        (header, number): (Seq, u64),
        seq: Seq,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> ReceivedRecords {
        let end = seq + source.len() as u32;
        let record = RecordCursor::at_record(number);
        if end.at_or_before(header) {
            return ReceivedRecords::UNTOUCHED;
        }
        // The packet starts after the announced header, so the header was lost.
        if seq.after(header) {
            self.lose(end);
            return ReceivedRecords::UNTOUCHED;
        }
        if seq == header {
            self.place = StreamTracking::Known { next: header, cursor: record };
            // The packet starts with the announced header, so it can be decrypted itself.
            let received = self.receive(key, seq, source, destination);
            return ReceivedRecords { lost: false, found: !received.lost, ..received };
        }
        self.enter(key, record, &source[header.distance_from(seq) as usize..], end, destination)
    }

    /// Handles a packet that follows a gap after `next`, the cursor's position.
    fn jump(
        &mut self,
        key: &Key,
        (next, cursor): (Seq, RecordCursor),
        seq: Seq,
        source: &[u8],
        scratch: &mut BytesMut,
    ) -> ReceivedRecords {
        let Some(left) = cursor.bytes_left() else {
            // The gap hides the header with the record's length.
            return self.search(PartialHeader::NONE, seq, source);
        };
        let header = next + left;
        let end = seq + source.len() as u32;
        if end.at_or_before(header) {
            return ReceivedRecords::UNTOUCHED;
        }
        // The next header lies in the gap, so record boundaries are unknown.
        if seq.after(header) {
            return self.search(PartialHeader::NONE, seq, source);
        }
        let at = header.distance_from(seq) as usize;
        self.enter(key, RecordCursor::at_record(cursor.number.wrapping_add(1)), &source[at..], end, scratch)
    }

    /// Resumes at the start of a record; `source` starts with its header. The packet itself stays undecrypted, because
    /// part of it belongs to a record that was not followed. The engine parses it to be ready for the next packet.
    fn enter(
        &mut self,
        key: &Key,
        record: RecordCursor,
        source: &[u8],
        end: Seq,
        scratch: &mut BytesMut,
    ) -> ReceivedRecords {
        let mut cursor = record;
        match cursor.walk(RecordMode::Open, key, &self.protection, source, scratch) {
            Ok(_) => {
                self.place = StreamTracking::Known { next: end, cursor };
                ReceivedRecords { found: true, ..ReceivedRecords::UNTOUCHED }
            }
            Err(_) => {
                self.lose(end);
                ReceivedRecords { verdict: TlsVerdict::Error, ..ReceivedRecords::UNTOUCHED }
            }
        }
    }

    /// Searches the new part of a packet for a header; `seen` contains the bytes before it.
    fn search_on(&mut self, (seen, seen_to): (PartialHeader, Seq), seq: Seq, source: &[u8]) -> ReceivedRecords {
        if !seq.before(seen_to) {
            let follows = seq == seen_to;
            return self.search(if follows { seen } else { PartialHeader::NONE }, seq, source);
        }
        // Only the unseen part is searched; the rest was searched before.
        let fresh = source.get(seen_to.distance_from(seq) as usize..).unwrap_or_default();
        if !fresh.is_empty() {
            return self.search(seen, seen_to, fresh);
        }
        // An overtaken or retransmitted packet. A header in it helps only if its record reaches beyond the bytes seen
        // so far.
        match self.find(&mut { PartialHeader::NONE }, seq, source) {
            Some(track) if track.header.start.at_or_after(seen_to) => {
                self.place = StreamTracking::Tracking(RecordTrack { seen_to, ..track });
                ReceivedRecords { verdict: TlsVerdict::ResyncRequested, ..ReceivedRecords::UNTOUCHED }
            }
            _ => ReceivedRecords::UNTOUCHED,
        }
    }

    /// Searches `source` for a header, which may start in the bytes of `seen`.
    fn search(&mut self, mut seen: PartialHeader, seq: Seq, source: &[u8]) -> ReceivedRecords {
        if !self.asks {
            self.lose(seq + source.len() as u32);
            return ReceivedRecords::UNTOUCHED;
        }
        if let Some(track) = self.find(&mut seen, seq, source) {
            self.place = StreamTracking::Tracking(track);
            return ReceivedRecords { verdict: TlsVerdict::ResyncRequested, ..ReceivedRecords::UNTOUCHED };
        }
        self.place = StreamTracking::Searching { seen, seen_to: seq + source.len() as u32 };
        ReceivedRecords::UNTOUCHED
    }

    /// Returns a candidate header in `source`, possibly started in `seen`, with record lengths that hold up to the end
    /// of `source`. If there is no candidate, `seen` contains the last bytes.
    fn find(&self, seen: &mut PartialHeader, seq: Seq, source: &[u8]) -> Option<RecordTrack> {
        let end = seq + source.len() as u32;
        for (offset, byte) in source.iter().enumerate() {
            seen.push_sliding(seq + offset as u32, *byte);
            if seen.is_complete() && self.protection.record_bytes(&seen.bytes).is_some() {
                let mut track =
                    RecordTrack { asked: seen.start, confirmed: None, headers: 0, header: *seen, seen_to: end };
                let rest = seen.end();
                if track.follow(&self.protection, rest, &source[rest.distance_from(seq) as usize..]).is_some() {
                    return Some(track);
                }
            }
        }
        None
    }

    /// Follows record lengths through a packet.
    fn track(
        &mut self,
        key: &Key,
        mut track: RecordTrack,
        seq: Seq,
        source: &[u8],
        scratch: &mut BytesMut,
    ) -> ReceivedRecords {
        let end = seq + source.len() as u32;
        track.seen_to = track.seen_to.max(end);
        let wanted = track.header.end();
        if end.at_or_before(wanted) {
            // Before the next header, or a retransmission.
            self.place = StreamTracking::Tracking(track);
            return ReceivedRecords::UNTOUCHED;
        }
        if seq.after(wanted) {
            // The gap hides the header.
            return self.search(PartialHeader::NONE, seq, source);
        }
        // Resume only at a header that starts in this packet: a header split over two packets was not decrypted from
        // its first byte.
        if let (Some(number), 0) = (track.confirmed, track.header.have) {
            let record = RecordCursor::at_record(number.wrapping_add(track.headers));
            let at = track.header.start.distance_from(seq) as usize;
            return self.enter(key, record, &source[at..], end, scratch);
        }
        let asked_at = track.headers / RECORDS_BETWEEN_QUESTIONS;
        match track.follow(&self.protection, wanted, &source[wanted.distance_from(seq) as usize..]) {
            Some(()) => {
                self.place = StreamTracking::Tracking(track);
                if track.confirmed.is_none() && track.headers / RECORDS_BETWEEN_QUESTIONS > asked_at {
                    // The request or its answer may have been lost, so ask again.
                    return ReceivedRecords { verdict: TlsVerdict::ResyncRequested, ..ReceivedRecords::UNTOUCHED };
                }
                ReceivedRecords::UNTOUCHED
            }
            None => self.search(PartialHeader::NONE, seq, source),
        }
    }
}

impl RecordTrack {
    /// Follows record lengths through `source`, which starts at `at`. Returns `None` if a length does not lead to a
    /// header.
    fn follow(&mut self, protection: &RecordProtection, mut at: Seq, mut source: &[u8]) -> Option<()> {
        loop {
            if self.header.is_complete() {
                let length = protection.record_bytes(&self.header.bytes)?;
                self.headers += 1;
                // After so many records the answer is not expected any more.
                if self.headers > RECORDS_TO_WAIT {
                    return None;
                }
                self.header = PartialHeader { start: self.header.start + length, ..PartialHeader::NONE };
            }
            let skipped = self.header.end().distance_from(at) as usize;
            let Some(rest) = source.get(skipped..).filter(|rest| !rest.is_empty()) else { return Some(()) };
            let taken = rest.len().min(HEADER - usize::from(self.header.have));
            for byte in &rest[..taken] {
                self.header.push(*byte);
            }
            source = &rest[taken..];
            at = self.header.end();
        }
    }
}

impl PartialHeader {
    const NONE: PartialHeader = PartialHeader { start: Seq(0), have: 0, bytes: [0; HEADER] };

    fn write(&self, image: &mut ImageWriter<'_>) {
        image.put_seq(self.start);
        image.put_u8(self.have);
        image.put(&self.bytes);
    }

    fn read(image: &mut ImageReader<'_>) -> Option<PartialHeader> {
        let start = image.take_seq()?;
        let have = image.take_u8().filter(|have| usize::from(*have) <= HEADER)?;
        Some(PartialHeader { start, have, bytes: image.take()? })
    }

    /// Returns the sequence number of the next byte of the header.
    fn end(&self) -> Seq {
        self.start + u32::from(self.have)
    }

    fn is_complete(&self) -> bool {
        usize::from(self.have) == HEADER
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.have)] = byte;
        self.have += 1;
    }

    /// Keeps the last bytes of the stream; `byte` at `seq` is the newest.
    fn push_sliding(&mut self, seq: Seq, byte: u8) {
        if self.have == 0 {
            self.start = seq;
        }
        if self.is_complete() {
            self.bytes.rotate_left(1);
            self.have -= 1;
            self.start += 1;
        }
        self.push(byte);
    }
}

const KNOWN: u8 = 1;
const SEARCHING: u8 = 2;
const TRACKING: u8 = 3;
const WAITING: u8 = 4;
const EXPECTING: u8 = 5;
/// Number of records after which an unanswered request is repeated.
const RECORDS_BETWEEN_QUESTIONS: u64 = 64;
/// Number of records after which an unanswered request is given up, as in Linux.
const RECORDS_TO_WAIT: u64 = 65_535;

#[cfg(test)]
mod tests;
