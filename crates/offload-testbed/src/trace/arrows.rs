//! Arrows of packets: from a host's segment over the frames of both NICs to the other host's segment.
//!
//! An arrow is a Perfetto flow: a number shared by all slices on its path. A TCP segment is found by its flow and
//! sequence number, a frame on the wire by its bytes. The segments inside encrypted ESP frames are invisible, so ESP
//! frames get their own arrows, from one NIC to the other.
//!
//! Invariant: no slice names an arrow after the slice that ended the arrow. All tables are bounded; lost packets are
//! eventually forgotten.

use core::hash::BuildHasher;
use offload_base::Seq;
use offload_base::quick_hash::QuickHash;
use offload_formats::{FlowKey, Headers, Protocol, TransportHeader};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The position of a TCP packet in its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpPosition {
    /// The flow, from the receiver's point of view.
    pub(super) flow: FlowKey,
    pub(super) seq: Seq,
    pub(super) ack: u32,
    pub(super) syn: bool,
    /// Bytes of payload.
    pub(super) len: u32,
}

impl TcpPosition {
    /// Reads the TCP packet in `frame`, which has `len` bytes of payload. Returns `None` for other protocols.
    pub(super) fn read(transport: &TransportHeader, frame: &[u8], len: usize) -> Option<TcpPosition> {
        if transport.protocol != Protocol::Tcp {
            return None;
        }
        let header = &frame[transport.header..];
        let ack = header.get(8..)?.first_chunk::<4>()?;
        Some(TcpPosition {
            flow: transport.flow_of_receiver(frame),
            seq: transport.seq(frame),
            ack: u32::from_be_bytes(*ack),
            syn: header.get(13)? & SYN != 0,
            len: len as u32,
        })
    }

    /// Reads the TCP packet in a complete frame.
    pub(super) fn of_frame(frame: &[u8]) -> Option<TcpPosition> {
        let transport = Headers::parse(frame).transport()?;
        TcpPosition::read(&transport, frame, transport.payload_len())
    }
}

#[derive(Debug, Default)]
pub(super) struct Arrows {
    last: u64,
    /// Arrows that have begun and not ended.
    alive: HashSet<u64>,
    /// Arrows of segments with payload that were sent and not yet received, by first sequence number.
    segments: HashMap<FlowKey, BTreeMap<u32, u64>>,
    /// Arrows of segments without payload, by sequence and acknowledgment number.
    empty: HashMap<(FlowKey, u32, u32), u64>,
    /// Arrows of frames between two NICs, by a hash of the frame's bytes.
    frames: HashMap<u64, u64>,
    hasher: QuickHash,
}

impl Arrows {
    /// Begins an arrow for each segment of a packet that a host sends; the NIC cuts the packet into segments of `mss`
    /// bytes.
    pub(super) fn sent(&mut self, place: &TcpPosition, mss: Option<u16>) -> Vec<u64> {
        if place.len == 0 {
            let arrow = self.begin();
            self.empty.insert((place.flow, place.seq.0, place.ack), arrow);
            return vec![arrow];
        }
        // Without segmentation the packet is one segment. A step of zero would not end.
        let step = mss.map_or(u32::MAX, u32::from).max(1);
        let starts = (0..place.len).step_by(step as usize).map(|at| place.seq.0.wrapping_add(at));
        let arrows = starts.map(|seq| (seq, self.begin())).collect::<Vec<_>>();
        let segments = self.segments.entry(place.flow).or_default();
        segments.extend(arrows.iter().copied());
        arrows.into_iter().map(|(_, arrow)| arrow).collect()
    }

    /// Returns the arrow of a frame that a NIC sends: its segment's arrow, or a new arrow.
    pub(super) fn frame_sent(&mut self, frame: &[u8]) -> u64 {
        let of_segment = TcpPosition::of_frame(frame).and_then(|place| match place.len {
            0 => self.empty.get(&(place.flow, place.seq.0, place.ack)).copied(),
            _ => self.segments.get(&place.flow)?.get(&place.seq.0).copied(),
        });
        let arrow = of_segment.unwrap_or_else(|| self.begin());
        self.frames.insert(self.hasher.hash_one(frame), arrow);
        arrow
    }

    /// Returns the arrow of a frame that a NIC receives, and whether the arrow ends here. Returns `None` for a copy and
    /// for a frame that the wire changed.
    pub(super) fn frame_taken(&mut self, frame: &[u8]) -> Option<(u64, bool)> {
        let arrow = self.frames.remove(&self.hasher.hash_one(frame)).filter(|arrow| self.alive.contains(arrow))?;
        // A TCP segment's arrow goes on to the host; other frames end at the NIC.
        let goes_on = TcpPosition::of_frame(frame).is_some();
        if !goes_on {
            self.alive.remove(&arrow);
        }
        Some((arrow, !goes_on))
    }

    /// Returns the arrows that end because a host received a packet.
    pub(super) fn received(&mut self, place: &TcpPosition) -> Vec<u64> {
        let mut ends = Vec::new();
        if place.len == 0 {
            ends.extend(self.empty.remove(&(place.flow, place.seq.0, place.ack)));
        } else if let Some(segments) = self.segments.get_mut(&place.flow) {
            // Sequence numbers wrap, so the range may consist of two parts.
            let (from, to) = (place.seq.0, place.seq.0.wrapping_add(place.len));
            let within: Vec<u32> = if from < to {
                segments.range(from..to).map(|(seq, _)| *seq).collect()
            } else {
                segments.range(from..).chain(segments.range(..to)).map(|(seq, _)| *seq).collect()
            };
            ends.extend(within.iter().filter_map(|seq| segments.remove(seq)));
        }
        ends.retain(|arrow| self.alive.remove(arrow));
        ends
    }

    fn begin(&mut self) -> u64 {
        if self.alive.len() >= MAX_ARROWS {
            // Most of the table's arrows belong to lost packets. The few others lose the rest of their path.
            let (last, hasher) = (self.last, core::mem::take(&mut self.hasher));
            *self = Arrows { last, hasher, ..Arrows::default() };
        }
        if self.frames.len() >= MAX_ARROWS {
            self.frames.clear();
        }
        self.last += 1;
        self.alive.insert(self.last);
        self.last
    }
}

const SYN: u8 = 1 << 1;
const MAX_ARROWS: usize = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(seq: u32, len: u32) -> TcpPosition {
        let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap());
        TcpPosition { flow, seq: Seq(seq), ack: 1, syn: false, len }
    }

    #[test]
    fn each_segment_has_an_arrow_that_ends_once() {
        let mut arrows = Arrows::default();
        // The payload crosses the end of the sequence space.
        assert_eq!(arrows.sent(&place(u32::MAX - 149, 300), Some(100)), [1, 2, 3]);
        assert_eq!(arrows.sent(&place(150, 0), None), [4]);
        assert_eq!(arrows.received(&place(u32::MAX - 149, 100)), [1]);
        assert_eq!(arrows.received(&place(u32::MAX - 49, 200)), [2, 3], "joined by the NIC");
        assert!(arrows.received(&place(u32::MAX - 149, 300)).is_empty(), "a copy ends nothing");
        assert_eq!(arrows.received(&place(150, 0)), [4]);
    }

    #[test]
    fn retransmission_begins_a_new_arrow() {
        let mut arrows = Arrows::default();
        arrows.sent(&place(0, 100), None);
        assert_eq!(arrows.sent(&place(0, 100), None), [2]);
        assert_eq!(arrows.received(&place(0, 100)), [2]);
        let frame = [7; 60];
        assert_eq!(arrows.frame_sent(&frame), 3, "no TCP: an arrow of its own");
        assert_eq!(arrows.frame_taken(&frame), Some((3, true)));
        assert_eq!(arrows.frame_taken(&frame), None, "the wire doubled it");
    }

    #[test]
    fn lost_segments_are_forgotten() {
        let mut arrows = Arrows::default();
        for seq in 0..3 * MAX_ARROWS as u32 {
            arrows.sent(&place(seq, 1), None);
        }
        assert!(arrows.alive.len() <= MAX_ARROWS && arrows.segments[&place(0, 1).flow].len() <= MAX_ARROWS);
    }
}
