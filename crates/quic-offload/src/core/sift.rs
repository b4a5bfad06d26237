//! Frames that the state machine would lose are held back, and handed to it later, among those of other packets.
//!
//! For each piece of a stream that is new, the state machine counts the whole packet that brought it; when a packet's pieces of
//! one stream waste 32 KiB so, it copies what it holds together, and takes bytes at offsets below the *number* of bytes read for
//! known ones. Read unordered, these are bytes that fill a gap: they would be lost, and the stream would hang. As streams are read
//! after each datagram, only a packet with so many pieces of one stream does that: 23 in a datagram of 1472 bytes. A peer may
//! send them, which sends again what it lost in small pieces, or all of it at once, where acknowledgements were lost.
//!
//! So such a packet's frames of streams with gaps are taken out of it. As many go back in as cause no harm, those that touch as
//! one; the others are held, and go into packets that come later. The packet was received, and is acknowledged; the peer is asked
//! for another one by a PING.
//!
//! Invariants: what is held is not forgotten before it was read from the state machine, which may drop the packet that it was put
//! into. No packet has more pieces of a stream with gaps than are safe.

use super::frames::{Frame, Frames, Kind, PING, StreamFrame, write_number};
use super::pieces::Pieces;
use super::reading::{BUFFERS_WASTED, Reading};
use crate::crypto::keyring::Sift;
use bytes::{Bytes, BytesMut};
use noq_proto::StreamId;
use smallvec::SmallVec;

impl Sift for Reading {
    fn sift(&mut self, payload: &mut BytesMut) -> bool {
        if !self.is_busy() {
            return true;
        }
        let Some(look) = self.look(payload) else { return true };
        let is_safe = is_safe(look.pieces, payload.len());
        if is_safe && (self.holding.is_empty() || look.is_probing) {
            return true;
        }
        if !is_safe && self.held > MOST_HELD {
            return false;
        }
        let whole = payload.split().freeze();
        self.rewrite(&whole, is_safe, payload);
        self.hand_over(if is_safe { 2 * look.pieces } else { 0 }, payload);
        true
    }
}

/// What a packet has.
struct Look {
    /// New pieces of streams with gaps, or more.
    pieces: usize,
    /// It is of those that do not say that the peer's address changed (RFC 9000 9.1), and has to stay one.
    is_probing: bool,
}

impl Reading {
    /// `None`: there is something that nobody knows how to read, and the state machine will say so.
    fn look(&mut self, payload: &[u8]) -> Option<Look> {
        let mut frames = Frames::new(payload);
        let mut seen: SmallVec<[StreamFrame; 4]> = SmallVec::new();
        let mut look = Look { pieces: 0, is_probing: true };
        while let Some(Frame { kind, .. }) = frames.next() {
            look.is_probing &= matches!(kind, Kind::Probing);
            let Kind::Stream(frame) = kind else { continue };
            let Some(of) = self.streams.get_mut(&stream(frame.id)) else { continue };
            if frame.fin {
                of.size = Some(frame.end());
            }
            // Once there are too many, it does not matter how many.
            if of.pieces.has_gaps() && is_safe(look.pieces, payload.len()) {
                let touches = |other: &&StreamFrame| other.offset < frame.end() && frame.offset < other.end();
                let known = of.pieces.runs_among(frame.offset..frame.end()) + seen.iter().filter(touches).count();
                look.pieces += 1 + known;
                seen.push(frame);
            }
        }
        frames.is_done().then_some(look)
    }

    /// Writes a packet anew: all of its frames, or all but those of streams with gaps, which are held.
    fn rewrite(&mut self, whole: &Bytes, all: bool, payload: &mut BytesMut) {
        let mut frames = Frames::new(whole);
        while let Some(Frame { range, kind }) = frames.next() {
            match kind {
                Kind::Stream(frame) => {
                    let data = whole.slice(frame.data.clone());
                    let is_held = !all && !data.is_empty() && self.hold(stream(frame.id), frame.offset, &data);
                    match is_held {
                        false => StreamFrame::write(payload, frame.id, frame.offset, frame.fin, &data),
                        true if frame.fin => StreamFrame::write(payload, frame.id, frame.end(), true, &[]),
                        true => {}
                    }
                }
                // What follows would be taken for more of it.
                Kind::DatagramToTheEnd(data) => {
                    payload.extend_from_slice(&[DATAGRAM]);
                    write_number(payload, data.len() as u64);
                    payload.extend_from_slice(&whole[data]);
                }
                Kind::Probing | Kind::Other => payload.extend_from_slice(&whole[range]),
            }
        }
        if !all {
            // It is to be acknowledged as what it was.
            payload.extend_from_slice(&[PING]);
        }
    }

    /// Holds what is new of a frame. False: the stream has no gaps.
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

    /// Puts into a packet what is held, as far as it is safe beside so many pieces.
    fn hand_over(&self, pieces: usize, payload: &mut BytesMut) {
        let mut most = pieces;
        for id in &self.holding {
            let parts = self.streams.get(id).into_iter().flat_map(|of| of.held.parts());
            for ((at, part), more) in parts.zip(1..) {
                most = most.max(pieces + more);
                if !is_safe(most, payload.len() + StreamFrame::MOST_HEADER + part.len()) {
                    return;
                }
                StreamFrame::write(payload, (*id).into(), at, false, part);
            }
        }
    }

    /// Forgets what was held and has been read. True: some is held still, and the peer is to send something.
    pub(super) fn note_handed_over(&mut self) -> bool {
        let Reading { streams, holding, held, .. } = self;
        *held = 0;
        holding.retain(|id| {
            let Some(of) = streams.get_mut(id) else { return false };
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

    /// No packet will come any more: what is held is there to be read all the same.
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

/// Whether a packet may have so many new pieces of one stream.
fn is_safe(pieces: usize, payload: usize) -> bool {
    pieces * payload <= BUFFERS_WASTED as usize
}

/// What is kept for pieces, more or less.
fn cost(held: &Pieces) -> usize {
    held.bytes() as usize + 128 * held.runs()
}

fn stream(id: u64) -> StreamId {
    noq_proto::VarInt::from_u64(id).unwrap_or(noq_proto::VarInt::MAX).into()
}

/// A datagram (RFC 9221) that says how long it is.
const DATAGRAM: u8 = 0x31;
/// Packets that would add to more than that are lost, as others are.
const MOST_HELD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::super::crafted::{Crafted, ID, frame};
    use super::super::reading::Next;
    use super::super::tests::address;
    use super::*;
    use noq_proto::PathId;

    /// A server that waits for bytes below 100,000, and has 100,000 above.
    fn waiting() -> Crafted {
        let mut crafted = Crafted::read_from(16 << 20, 16 << 20);
        for piece in 0..100 {
            crafted.send([(100_000 + 1000 * piece, 1000)], false);
        }
        crafted
    }

    /// The peer acknowledges what it is asked to.
    fn answer(crafted: &mut Crafted) -> usize {
        let mut packets = 0;
        while !crafted.reading().holding.is_empty() {
            crafted.send_payload(&[PING]);
            packets += 1;
            assert!(packets <= 20 && crafted.why().is_empty(), "{packets}: {}", crafted.why());
        }
        packets
    }

    fn finish(crafted: &mut Crafted, from: u64) {
        for at in (from..100_000).step_by(1000) {
            crafted.send([(at, 1000)], false);
            answer(crafted);
        }
        crafted.send([(200_000, 0)], true);
        assert_eq!((crafted.why(), crafted.read()), (String::new(), 200_000));
        assert!(matches!(crafted.conn().read_stream(Crafted::id(), 1), (Next::Finished, _)));
        assert_eq!(crafted.reading().held, 0);
    }

    #[test]
    fn all_bytes_of_many_short_frames_arrive() {
        for (frames, packets) in [(2, 0), (22, 0), (40, 1), (100, 4)] {
            let mut crafted = waiting();
            crafted.send((0..frames).map(|frame| (8 * frame, 2)), false);
            assert_eq!(crafted.why(), "");
            assert!(answer(&mut crafted) <= packets, "{frames} frames");
            // What is between, in one packet too, the last ones first.
            crafted.send((0..frames).rev().map(|frame| (8 * frame + 2, 6)), false);
            answer(&mut crafted);
            finish(&mut crafted, 8 * frames);
        }
    }

    /// Where acknowledgements were lost, all is sent again, and most of it is there.
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

    /// One frame, and then all of it in small ones, of which one is new to the state machine and the others are not.
    #[test]
    fn frames_that_overlap_are_counted_as_what_becomes_of_them() {
        let mut crafted = waiting();
        let tiny = (0..20).map(|piece| (50 * piece + 5, 2));
        crafted.send(tiny.chain([(0, 1000)]), false);
        answer(&mut crafted);
        finish(&mut crafted, 1000);
    }

    /// The state machine drops what comes twice, with what was put into it.
    #[test]
    fn a_packet_that_comes_twice_loses_nothing() {
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

    /// Until it has room again it is as if they were lost, and they are sent again.
    #[test]
    fn packets_for_which_there_is_no_room_are_lost() {
        let mut crafted = waiting();
        let packet = |round: u64| (0..100).map(move |piece| (8 * (100 * round + piece), 2));
        for round in 0..100 {
            crafted.send(packet(round), false);
        }
        assert!((1..=MOST_HELD + 100 * 130).contains(&crafted.reading().held), "{}", crafted.reading().held);
        for round in 0..100 {
            crafted.send_payload(&[PING]);
            answer(&mut crafted);
            crafted.send(packet(round), false);
        }
        answer(&mut crafted);
        assert_eq!(crafted.reading().runs, 100 * 100 + 1);
        finish(&mut crafted, 0);
    }

    /// What was acknowledged is there to be read, though the peer answers no more.
    #[test]
    fn a_peer_that_closes_at_once_is_heard_to_its_end() {
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
        assert!(matches!(crafted.conn().read_stream(Crafted::id(), 1), (Next::Finished, _)));
    }

    /// RFC 9000 9.3: the server would follow a peer that only looks for another way.
    #[test]
    fn a_packet_that_probes_stays_one() {
        let mut crafted = waiting();
        crafted.send((0..100).map(|piece| (8 * piece, 2)), false);
        assert!(!crafted.reading().holding.is_empty());
        let challenge = crafted.packet(&[0x1a, 1, 2, 3, 4, 5, 6, 7, 8]);
        crafted.hand(5001, challenge);
        assert_eq!(crafted.conn().noq.network_path(PathId::ZERO).unwrap().remote(), address(5000));
        answer(&mut crafted);
        finish(&mut crafted, 0);
    }

    /// A datagram that says nothing of its length, and a stream that has no gaps, in a packet that is written anew.
    #[test]
    fn other_frames_stay_what_they_are() {
        let mut crafted = waiting();
        let mut payload: Vec<u8> = (0..80).flat_map(|piece| frame(ID, 8 * piece, 2, false)).collect();
        payload.extend(frame(ID + 4, 0, 50, true));
        payload.extend([0x30, 1, 2, 3]);
        crafted.send_payload(&payload);
        // The packet has four bytes more.
        assert_eq!(crafted.conn().noq.datagrams().recv().unwrap()[..], [1, 2, 3, 0, 0, 0, 0]);
        let other = stream(ID + 4);
        let (Next::Data(data), _) = crafted.conn().read_stream(other, 100) else { panic!("no data") };
        assert_eq!(data[..], frame(ID + 4, 0, 50, true)[12..]);
        assert!(matches!(crafted.conn().read_stream(other, 1), (Next::Finished, _)));
        answer(&mut crafted);
        finish(&mut crafted, 0);
    }

    mod any {
        use super::*;
        use proptest::prelude::*;

        /// Of two streams of 3,000 bytes, and whether the packet comes twice.
        type Packet = (Vec<(bool, u16, u8)>, bool);

        fn packet() -> impl Strategy<Value = Packet> {
            let many = prop::collection::vec((any::<bool>(), 0u16..3000, 0u8..8), 20..90);
            let few = prop::collection::vec((any::<bool>(), 0u16..3000, 0u8..=255), 1..5);
            (prop_oneof![3 => many, 2 => few], prop::bool::weighted(0.2))
        }

        proptest! {
            /// In whatever frames two streams come, they arrive, and the state machine is at their end.
            #[test]
            fn frames_of_two_streams_arrive(packets in prop::collection::vec(packet(), 1..30)) {
                let mut crafted = Crafted::read_from(16 << 20, 16 << 20);
                let ids = [ID, ID + 4];
                crafted.send_payload(&frame(ids[1], 0, 0, false));
                let _nothing = crafted.conn().read_stream(stream(ids[1]), 1);
                // That there are gaps.
                for id in ids {
                    crafted.send_payload(&frame(id, 3000, 1000, false));
                    crafted.send_payload(&frame(id, 4000, 0, true));
                }
                for (frames, twice) in packets {
                    let frames = frames.into_iter().flat_map(|(other, at, bytes)| {
                        frame(ids[usize::from(other)], at.into(), bytes.into(), false)
                    });
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
                while let (Next::Data(data), _) = crafted.conn().read_stream(stream(ids[1]), 10_000) {
                    prop_assert!(data.iter().zip(bytes..).all(|(byte, at)| *byte == (at % 251) as u8));
                    bytes += data.len();
                }
                prop_assert_eq!(bytes, 4000);
                for id in ids {
                    prop_assert!(matches!(crafted.conn().read_stream(stream(id), 1), (Next::Finished, _)));
                }
            }
        }
    }
}
