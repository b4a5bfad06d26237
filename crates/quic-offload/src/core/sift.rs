//! Withholding of frames that the state machine would lose, until they can be delivered with other packets.
//!
//! For each new piece of a stream, the state machine counts the whole packet as buffered. If the pieces of one stream
//! in a packet waste 32 KiB by this count, the state machine compacts its buffers, and then mistakes bytes at offsets
//! below the *number* of read bytes for known ones. In unordered reading, these are bytes that fill a gap: they would
//! be lost, and the stream would hang. Because streams are read after each datagram, only a single packet with many
//! pieces of one stream triggers this: 23 pieces in a datagram of 1472 bytes. A peer may send such packets if it
//! retransmits many small pieces, or if acknowledgments were lost.
//!
//! So frames of streams with gaps are removed from such a packet. Adjacent frames are joined, and as many bytes as are
//! safe go back into the packet. The rest is held for later packets. The packet counts as received and is acknowledged;
//! a PING asks the peer for another packet.
//!
//! Invariants: held bytes are forgotten only when they were read from the state machine, which may drop the packet that
//! carried them. No packet has more pieces of a stream with gaps than are safe.

use super::frames::{Frame, FrameKind, Frames, PING, StreamFrame, write_number};
use super::pieces::StreamPieces;
use super::unordered_reader::{BUFFERS_WASTED, UnorderedReader};
use crate::crypto::keyring::PayloadFilter;
use bytes::{Bytes, BytesMut};
use noq_proto::StreamId;
use smallvec::SmallVec;

impl PayloadFilter for UnorderedReader {
    fn sift(&mut self, payload: &mut BytesMut) -> bool {
        if !self.is_busy() {
            return true;
        }
        let Some(look) = self.look(payload) else { return true };
        let is_safe = is_safe(look.pieces, payload.len());
        if is_safe && (self.holding.is_empty() || look.is_probing) {
            return true;
        }
        // The packet is dropped unacknowledged, so the peer retransmits it.
        if !is_safe && self.held > MAX_KEPT {
            return false;
        }
        let whole = payload.split().freeze();
        self.rewrite(&whole, is_safe, payload);
        self.hand_over(if is_safe { 2 * look.pieces } else { 0 }, payload);
        true
    }
}

/// The properties of a packet.
struct PacketSurvey {
    /// New pieces of streams with gaps, or an upper bound.
    pieces: usize,
    /// Whether the packet has only probing frames (RFC 9000 9.1), which do not signal a changed address. It must stay a
    /// probing packet.
    is_probing: bool,
}

impl UnorderedReader {
    /// Examines a packet. `None` if a frame is unknown; the state machine will report the error.
    fn look(&mut self, payload: &[u8]) -> Option<PacketSurvey> {
        let mut frames = Frames::new(payload);
        let mut seen: SmallVec<[StreamFrame; 4]> = SmallVec::new();
        let mut look = PacketSurvey { pieces: 0, is_probing: true };
        while let Some(Frame { kind, .. }) = frames.next() {
            look.is_probing &= matches!(kind, FrameKind::Probing);
            let FrameKind::Stream(frame) = kind else { continue };
            let Some(of) = self.streams.get_mut(&stream(frame.id)) else { continue };
            if frame.fin {
                of.size = Some(frame.end());
            }
            // Beyond the safe number, the exact count does not matter.
            if of.pieces.has_gaps() && is_safe(look.pieces, payload.len()) {
                let touches = |other: &&StreamFrame| other.offset < frame.end() && frame.offset < other.end();
                let known = of.pieces.runs_among(frame.offset..frame.end()) + seen.iter().filter(touches).count();
                look.pieces += 1 + known;
                seen.push(frame);
            }
        }
        frames.is_done().then_some(look)
    }

    /// Rewrites a packet with all frames, or without the frames of streams with gaps, which are held.
    fn rewrite(&mut self, whole: &Bytes, all: bool, payload: &mut BytesMut) {
        let mut frames = Frames::new(whole);
        while let Some(Frame { range, kind }) = frames.next() {
            match kind {
                FrameKind::Stream(frame) => {
                    let data = whole.slice(frame.data.clone());
                    let is_held = !all && !data.is_empty() && self.hold(stream(frame.id), frame.offset, &data);
                    match is_held {
                        false => StreamFrame::write(payload, frame.id, frame.offset, frame.fin, &data),
                        // The end of the stream must stay in order with this packet, so an empty frame carries it.
                        true if frame.fin => StreamFrame::write(payload, frame.id, frame.end(), true, &[]),
                        true => {}
                    }
                }
                // With a length, so that following frames are not taken for its data.
                FrameKind::DatagramToTheEnd(data) => {
                    payload.extend_from_slice(&[DATAGRAM]);
                    write_number(payload, data.len() as u64);
                    payload.extend_from_slice(&whole[data]);
                }
                FrameKind::Probing | FrameKind::Other => payload.extend_from_slice(&whole[range]),
            }
        }
        if !all {
            // The packet must still be acknowledged as an ack-eliciting one.
            payload.extend_from_slice(&[PING]);
        }
    }

    /// Holds the new bytes of a frame. Returns false if the stream has no gaps.
    fn hold(&mut self, id: StreamId, at: u64, data: &Bytes) -> bool {
        let Some(of) = self.streams.get_mut(&id).filter(|of| of.pieces.has_gaps()) else { return false };
        self.held -= cost(&of.held);
        of.pieces.new_of(at, data).for_each(|(at, new)| of.held.insert(at, new));
        self.held += cost(&of.held);
        if of.held.bytes() > 0 && !self.holding.contains(&id) {
            self.holding.push(id);
        }
        true
    }

    /// Adds held bytes to a packet that has this number of pieces, while it is safe.
    fn hand_over(&self, pieces: usize, payload: &mut BytesMut) {
        let mut most = pieces;
        for id in &self.holding {
            let parts = self.streams.get(id).into_iter().flat_map(|of| of.held.parts());
            for ((at, part), more) in parts.zip(1..) {
                // Every held part adds one piece to its stream.
                most = most.max(pieces + more);
                if !is_safe(most, payload.len() + StreamFrame::MAX_HEADER + part.len()) {
                    return;
                }
                StreamFrame::write(payload, (*id).into(), at, false, part);
            }
        }
    }

    /// Forgets held bytes that were read. Returns true if some are left, and the peer must be asked for a packet.
    pub(super) fn note_handed_over(&mut self) -> bool {
        let UnorderedReader { streams, holding, held, .. } = self;
        *held = 0;
        holding.retain(|id| {
            let Some(of) = streams.get_mut(id) else { return false };
            // Kept bytes that were read meanwhile are in `pieces`, and are forgotten here.
            let all = core::mem::take(&mut of.held);
            if of.end.is_none() {
                for (at, part) in all.parts() {
                    of.pieces.new_of(at, part).for_each(|(at, new)| of.held.insert(at, new));
                }
            }
            *held += cost(&of.held);
            of.held.bytes() > 0
        });
        !holding.is_empty()
    }

    /// Makes held bytes readable at the end of the connection, because no further packet will carry them.
    pub(super) fn release(&mut self) {
        self.held = 0;
        for id in core::mem::take(&mut self.holding) {
            let Some(of) = self.streams.get_mut(&id) else { continue };
            let before = (of.pieces.bytes(), of.pieces.runs());
            for (at, part) in core::mem::take(&mut of.held).parts() {
                of.pieces.insert(at, part.clone());
            }
            self.bytes = self.bytes + of.pieces.bytes() - before.0;
            self.runs = self.runs + of.pieces.runs() - before.1;
        }
    }
}

/// Tests whether a packet may have this number of new pieces of one stream.
fn is_safe(pieces: usize, payload: usize) -> bool {
    pieces * payload <= BUFFERS_WASTED as usize
}

/// Estimates the memory of held pieces.
fn cost(held: &StreamPieces) -> usize {
    held.bytes() as usize + 128 * held.runs()
}

fn stream(id: u64) -> StreamId {
    noq_proto::VarInt::from_u64(id).unwrap_or(noq_proto::VarInt::MAX).into()
}

/// The type of a DATAGRAM frame with a length (RFC 9221).
const DATAGRAM: u8 = 0x31;
/// If more is held, further such packets are dropped like lost ones.
const MAX_KEPT: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::super::crafted::{CraftedPair, ID, frame};
    use super::super::tests::address;
    use super::super::unordered_reader::ReadResult;
    use super::*;
    use noq_proto::PathId;

    /// A server that waits for bytes below 100,000 and has the 100,000 bytes above.
    fn waiting() -> CraftedPair {
        let mut crafted = CraftedPair::read_from(16 << 20, 16 << 20);
        for piece in 0..100 {
            crafted.send([(100_000 + 1000 * piece, 1000)], false);
        }
        crafted
    }

    /// Lets the peer answer each PING. Returns the number of answers.
    fn answer(crafted: &mut CraftedPair) -> usize {
        let mut packets = 0;
        while !crafted.reading().holding.is_empty() {
            crafted.send_payload(&[PING]);
            packets += 1;
            assert!(packets <= 20 && crafted.why().is_empty(), "{packets}: {}", crafted.why());
        }
        packets
    }

    fn finish(crafted: &mut CraftedPair, from: u64) {
        for at in (from..100_000).step_by(1000) {
            crafted.send([(at, 1000)], false);
            answer(crafted);
        }
        crafted.send([(200_000, 0)], true);
        assert_eq!((crafted.why(), crafted.read()), (String::new(), 200_000));
        assert!(matches!(crafted.conn().read_stream(CraftedPair::id(), 1), (ReadResult::Finished, _)));
        assert_eq!(crafted.reading().held, 0);
    }

    #[test]
    fn all_bytes_of_many_short_frames_arrive() {
        for (frames, packets) in [(2, 0), (22, 0), (40, 1), (100, 4)] {
            let mut crafted = waiting();
            crafted.send((0..frames).map(|frame| (8 * frame, 2)), false);
            assert_eq!(crafted.why(), "");
            assert!(answer(&mut crafted) <= packets, "{frames} frames");
            // The bytes in between, also in one packet, in reverse order.
            crafted.send((0..frames).rev().map(|frame| (8 * frame + 2, 6)), false);
            answer(&mut crafted);
            finish(&mut crafted, 8 * frames);
        }
    }

    /// A peer that lost acknowledgments retransmits everything, although most of it has arrived.
    #[test]
    fn all_bytes_of_a_frame_over_many_gaps_arrive() {
        let mut crafted = waiting();
        for piece in 0..50 {
            crafted.send([(20 * piece + 10, 10)], false);
        }
        crafted.send([(0, 1000)], false);
        answer(&mut crafted);
        finish(&mut crafted, 1000);
    }

    /// One large frame after many small ones: one piece is new to the state machine, the others are not.
    #[test]
    fn overlapping_frames_are_counted_by_their_fate() {
        let mut crafted = waiting();
        let tiny = (0..20).map(|piece| (50 * piece + 5, 2));
        crafted.send(tiny.chain([(0, 1000)]), false);
        answer(&mut crafted);
        finish(&mut crafted, 1000);
    }

    /// The state machine drops a duplicate packet together with the held bytes added to it.
    #[test]
    fn duplicate_packet_loses_no_bytes() {
        let mut crafted = waiting();
        let first = crafted.packet(&[PING]);
        crafted.hand(5000, first.clone());
        let frames: Vec<u8> = (0..100).flat_map(|piece| frame(ID, 8 * piece, 2, false)).collect();
        let many = crafted.packet(&frames);
        for _ in 0..50 {
            crafted.hand(5000, many.clone());
            crafted.hand(5000, first.clone());
        }
        assert!(crafted.reading().held <= 100 * 130, "{}", crafted.reading().held);
        answer(&mut crafted);
        finish(&mut crafted, 0);
    }

    /// Without room, packets count as lost and are retransmitted.
    #[test]
    fn packets_without_room_are_lost() {
        let mut crafted = waiting();
        let packet = |round: u64| (0..100).map(move |piece| (8 * (100 * round + piece), 2));
        for round in 0..100 {
            crafted.send(packet(round), false);
        }
        assert!((1..=MAX_KEPT + 100 * 130).contains(&crafted.reading().held), "{}", crafted.reading().held);
        for round in 0..100 {
            crafted.send_payload(&[PING]);
            answer(&mut crafted);
            crafted.send(packet(round), false);
        }
        answer(&mut crafted);
        assert_eq!(crafted.reading().runs, 100 * 100 + 1);
        finish(&mut crafted, 0);
    }

    /// Acknowledged bytes can be read even if the peer closes at once.
    #[test]
    fn bytes_before_a_close_can_be_read() {
        let mut crafted = waiting();
        for at in (4000..100_000).step_by(800) {
            crafted.send([(at, 800)], false);
        }
        crafted.send((0..500).map(|piece| (8 * piece, 2)), false);
        answer(&mut crafted);
        crafted.send((0..500).map(|piece| (8 * piece + 2, 6)), false);
        crafted.send([(200_000, 0)], true);
        assert!(!crafted.reading().holding.is_empty());
        crafted.send_payload(&[0x1d, 7, 0]);
        assert_eq!(crafted.read(), 200_000);
        assert!(matches!(crafted.conn().read_stream(CraftedPair::id(), 1), (ReadResult::Finished, _)));
    }

    /// RFC 9000 9.3: with another frame in the packet, the server would take the probe for a migration.
    #[test]
    fn probing_packet_stays_a_probe() {
        let mut crafted = waiting();
        crafted.send((0..100).map(|piece| (8 * piece, 2)), false);
        assert!(!crafted.reading().holding.is_empty());
        let challenge = crafted.packet(&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8]);
        crafted.hand(5001, challenge);
        assert_eq!(crafted.conn().noq.network_path(PathId::ZERO).unwrap().remote(), address(5000));
        answer(&mut crafted);
        finish(&mut crafted, 0);
    }

    /// A datagram without a length and a stream without gaps, in a packet that is rewritten.
    #[test]
    fn other_frames_are_unchanged() {
        let mut crafted = waiting();
        let mut payload: Vec<u8> = (0..80).flat_map(|piece| frame(ID, 8 * piece, 2, false)).collect();
        payload.extend(frame(ID + 4, 0, 50, true));
        payload.extend([0x30, 1, 2, 3]);
        crafted.send_payload(&payload);
        // The rewritten packet is four bytes longer.
        assert_eq!(crafted.conn().noq.datagrams().recv().unwrap()[..], [1, 2, 3, 0, 0, 0, 0]);
        let other = stream(ID + 4);
        let (ReadResult::Data(data), _) = crafted.conn().read_stream(other, 100) else { panic!("no data") };
        assert_eq!(data[..], frame(ID + 4, 0, 50, true)[12..]);
        assert!(matches!(crafted.conn().read_stream(other, 1), (ReadResult::Finished, _)));
        answer(&mut crafted);
        finish(&mut crafted, 0);
    }

    mod any {
        use super::*;
        use proptest::prelude::*;

        /// Frames of two streams of 3,000 bytes, and whether the packet is duplicated.
        type TestPacket = (Vec<(bool, u16, u8)>, bool);

        fn packet() -> impl Strategy<Value = TestPacket> {
            let many = prop::collection::vec((any::<bool>(), 0u16..3000, 0u8..8), 20..90);
            let few = prop::collection::vec((any::<bool>(), 0u16..3000, 0u8..=255), 1..5);
            (prop_oneof![3 => many, 2 => few], prop::bool::weighted(0.2))
        }

        proptest! {
            /// Whatever the frames, both streams arrive completely, and the state machine reaches their ends.
            #[test]
            fn frames_of_two_streams_arrive(packets in prop::collection::vec(packet(), 1..30)) {
                let mut crafted = CraftedPair::read_from(16 << 20, 16 << 20);
                let ids = [ID, ID + 4];
                crafted.send_payload(&frame(ids[1], 0, 0, false));
                let _ = crafted.conn().read_stream(stream(ids[1]), 1);
                // Bytes after a gap.
                for id in ids {
                    crafted.send_payload(&frame(id, 3000, 1000, false));
                    crafted.send_payload(&frame(id, 4000, 0, true));
                }
                for (frames, twice) in packets {
                    let frames = frames.into_iter().flat_map(|(other, at, bytes)| {
                        frame(ids[usize::from(other)], at.into(), bytes.into(), false)
                    });
                    // Each packet mixes frames of both streams.
                    let packet = crafted.packet(&frames.collect::<Vec<u8>>());
                    crafted.hand(5000, packet.clone());
                    if twice {
                        crafted.hand(5000, packet);
                    }
                }
                for id in ids {
                    for at in (0..3000).step_by(1000) {
                        crafted.send_payload(&frame(id, at, 1000, false));
                    }
                }
                answer(&mut crafted);
                prop_assert_eq!((crafted.why(), crafted.read()), (String::new(), 4000));
                let mut bytes = 0;
                while let (ReadResult::Data(data), _) = crafted.conn().read_stream(stream(ids[1]), 10_000) {
                    prop_assert!(data.iter().zip(bytes..).all(|(byte, at)| *byte == (at % 251) as u8));
                    bytes += data.len();
                }
                prop_assert_eq!(bytes, 4000);
                for id in ids {
                    prop_assert!(matches!(crafted.conn().read_stream(stream(id), 1), (ReadResult::Finished, _)));
                }
            }
        }
    }
}
