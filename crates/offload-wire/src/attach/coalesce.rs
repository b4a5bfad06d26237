//! From frames to a kernel's packets: neighbours of one TCP flow become one, behind a virtio header that says how
//! they were cut.
//!
//! Invariant: cut again as its header says, a packet is the frames it was made of, byte for byte; frames of one
//! flow leave in the order they came. So nothing is joined that differs in anything but its place in the flow, and
//! nothing whose checksums are not right: a frame that was corrupted on the wire stays one.

use super::headers::{ACK, FIN, Headers, PROTOCOL_TCP, PSH, TCP_CHECKSUM, TCP_FLAGS, number, set_number};
use super::vnet_header::{Gso, GsoKind, PartialChecksum, VnetHeader};
use crate::frame::Frame;
use bytes::Bytes;
use offload_base::Seq;
use offload_formats::Version;
use offload_formats::checksum::is_ipv4_header_right;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Joins frames, as far as that changes nothing.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::attach::Coalescer;
///
/// let mut coalescer = Coalescer::default();
/// coalescer.push(Frame::from(vec![0; 60])); // no TCP: a packet by itself
/// coalescer.flush(); // the burst is over: nothing waits for company any more
/// let packet = coalescer.pop().unwrap();
/// assert_eq!((packet.frames(), packet.len()), (1, 60));
/// assert_eq!(packet.virtio_header(), &[0; 10]);
/// ```
#[derive(Debug, Default)]
pub struct Coalescer {
    /// Packets that may still grow, the oldest first; at most one of each flow.
    growing: SmallVec<[Growing; MOST_FLOWS]>,
    ready: VecDeque<OutPacket>,
}

/// A packet for a kernel: a virtio header, and pieces that are to follow it in one write.
///
/// See [`Coalescer`] for an example.
#[derive(Clone, Debug)]
pub struct OutPacket {
    virtio_header: [u8; VnetHeader::LEN],
    /// Nothing, if the pieces begin with a header of their own.
    header: SmallVec<[u8; 128]>,
    pieces: SmallVec<[Bytes; 1]>,
}

impl OutPacket {
    /// The virtio header, as it is written.
    pub fn virtio_header(&self) -> &[u8; VnetHeader::LEN] {
        &self.virtio_header
    }

    /// What follows it, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let header = (!self.header.is_empty()).then_some(&self.header[..]);
        header.into_iter().chain(self.pieces.iter().map(|piece| &piece[..]))
    }

    /// Bytes of the packet, without the virtio header.
    pub fn len(&self) -> usize {
        self.header.len() + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many frames it was made of.
    pub fn frames(&self) -> usize {
        self.pieces.len()
    }

    fn whole(frame: Frame) -> OutPacket {
        let virtio_header = VnetHeader::default().to_bytes();
        OutPacket { virtio_header, header: SmallVec::new(), pieces: [frame.data].into_iter().collect() }
    }
}

impl Coalescer {
    /// Takes a frame.
    pub fn push(&mut self, frame: Frame) {
        let segment = match Segment::of(frame) {
            Ok(segment) => segment,
            Err(frame) => return self.ready.push_back(OutPacket::whole(frame)),
        };
        let same_flow = self.growing.iter().position(|growing| growing.first.is_of_flow_of(&segment));
        if let Some(place) = same_flow {
            if self.growing[place].takes(&segment) {
                let is_full = self.growing[place].add(segment);
                if is_full {
                    self.finish(place);
                }
                return;
            }
            self.finish(place);
        }
        if !segment.may_be_first() {
            return self.ready.push_back(OutPacket::whole(segment.frame));
        }
        if self.growing.len() == MOST_FLOWS {
            self.finish(0);
        }
        self.growing.push(Growing::new(segment));
    }

    /// Lets go of everything: no more frames come for now.
    pub fn flush(&mut self) {
        self.ready.extend(self.growing.drain(..).map(Growing::into_packet));
    }

    /// The next packet that is ready.
    pub fn pop(&mut self) -> Option<OutPacket> {
        self.ready.pop_front()
    }

    fn finish(&mut self, place: usize) {
        self.ready.push_back(self.growing.remove(place).into_packet());
    }
}

/// A TCP segment in a frame of its own.
#[derive(Debug)]
struct Segment {
    frame: Frame,
    headers: Headers,
}

impl Segment {
    /// The frame itself, if it is something else.
    fn of(frame: Frame) -> Result<Segment, Frame> {
        match Headers::of_tcp(&frame.data) {
            Some(headers) => Ok(Segment { frame, headers }),
            None => Err(frame),
        }
    }

    fn network(&self) -> &[u8] {
        &self.frame.data[self.headers.network..self.headers.transport]
    }

    fn tcp(&self) -> &[u8] {
        &self.frame.data[self.headers.transport..self.headers.payload]
    }

    fn payload_bytes(&self) -> usize {
        self.frame.len() - self.headers.payload
    }

    fn flags(&self) -> u8 {
        self.tcp()[TCP_FLAGS]
    }

    fn seq(&self) -> Seq {
        let tcp = self.tcp();
        Seq(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]))
    }

    fn is_of_flow_of(&self, other: &Segment) -> bool {
        self.headers.version == other.headers.version
            && self.headers.addresses(&self.frame.data) == other.headers.addresses(&other.frame.data)
            && self.tcp()[..4] == other.tcp()[..4]
    }

    /// Whether others may follow it in one packet.
    fn may_be_first(&self) -> bool {
        // ECE may be set, on all of them or on none; what else there is has to be seen by itself.
        self.flags() & !ECE == ACK && (1..=usize::from(u16::MAX)).contains(&self.payload_bytes()) && self.is_right()
    }

    /// Whether it says the same as `first` in everything that every segment of a packet says.
    fn is_like(&self, first: &Segment) -> bool {
        let (ours, theirs) = (self.network(), first.network());
        let same_network = match self.headers.version {
            // But for length, identification and checksum.
            Version::Four => ours[..2] == theirs[..2] && ours[6..10] == theirs[6..10] && ours[12..] == theirs[12..],
            // But for the length.
            Version::Six => ours[..4] == theirs[..4] && ours[6..] == theirs[6..],
        };
        let (ours, theirs) = (self.tcp(), first.tcp());
        // But for sequence number, flags and checksum.
        let same_transport = ours.len() == theirs.len()
            && ours[8..TCP_FLAGS] == theirs[8..TCP_FLAGS]
            && ours[TCP_FLAGS + 1..TCP_CHECKSUM] == theirs[TCP_FLAGS + 1..TCP_CHECKSUM]
            && ours[TCP_CHECKSUM + 2..] == theirs[TCP_CHECKSUM + 2..];
        self.headers == first.headers
            && self.frame.data[..self.headers.network] == first.frame.data[..first.headers.network]
            && same_network
            && same_transport
            && self.flags() & !LAST_ONLY == first.flags()
    }

    /// Whether its checksums are right, and as this side would write them: of one's complement's two zeros the field
    /// of a sum never holds the one of all ones (RFC 1624 3).
    fn is_right(&self) -> bool {
        let right_network = match self.headers.version {
            Version::Six => true,
            Version::Four => is_ipv4_header_right(self.network()) && number(self.network(), 10) != 0xffff,
        };
        let transport = &self.frame.data[self.headers.transport..];
        let mut sum = self.headers.pseudo_sum(&self.frame.data, PROTOCOL_TCP, transport.len());
        sum.add(transport);
        right_network && sum.is_right() && number(transport, TCP_CHECKSUM) != 0xffff
    }
}

/// Segments that will be one packet.
#[derive(Debug)]
struct Growing {
    first: Segment,
    payloads: SmallVec<[Bytes; 1]>,
    payload_bytes: usize,
    /// Flags that only the last segment has.
    last_flags: u8,
}

impl Growing {
    fn new(first: Segment) -> Growing {
        let payload = first.frame.data.slice(first.headers.payload..);
        let payload_bytes = payload.len();
        Growing { first, payloads: [payload].into_iter().collect(), payload_bytes, last_flags: 0 }
    }

    /// Whether `segment` may be the next.
    fn takes(&self, segment: &Segment) -> bool {
        let headers = &self.first.headers;
        let (bytes, segment_bytes) = (segment.payload_bytes(), self.first.payload_bytes());
        let count = self.payloads.len() as u16;
        let identification = match headers.version {
            Version::Four => headers.identification(&self.first.frame.data).wrapping_add(count),
            Version::Six => 0,
        };
        segment.seq() == self.first.seq() + self.payload_bytes as u32
            && (1..=segment_bytes).contains(&bytes)
            && headers.payload - headers.network + self.payload_bytes + bytes <= usize::from(u16::MAX)
            && segment.headers.identification(&segment.frame.data) == identification
            && segment.is_like(&self.first)
            && segment.is_right()
    }

    /// Adds the next segment, and says whether it is the last.
    fn add(&mut self, segment: Segment) -> bool {
        let payload = segment.frame.data.slice(segment.headers.payload..);
        let is_short = payload.len() < self.first.payload_bytes();
        self.payload_bytes += payload.len();
        self.payloads.push(payload);
        self.last_flags = segment.flags() & LAST_ONLY;
        is_short || self.last_flags != 0 || self.payloads.len() == MOST_SEGMENTS
    }

    fn into_packet(self) -> OutPacket {
        let Segment { frame, headers } = self.first;
        if self.payloads.len() == 1 {
            return OutPacket::whole(frame);
        }
        let segment_bytes = frame.len() - headers.payload;
        let packet_bytes = headers.payload + self.payload_bytes;
        let mut header: SmallVec<[u8; 128]> = SmallVec::from_slice(&frame.data[..headers.payload]);
        headers.set_network(&mut header, packet_bytes, headers.identification(&frame.data));
        header[headers.transport + TCP_FLAGS] |= self.last_flags;
        let pseudo = !headers.pseudo_sum(&header, PROTOCOL_TCP, packet_bytes - headers.transport).finish();
        set_number(&mut header, headers.transport + TCP_CHECKSUM, pseudo);
        let kind = match headers.version {
            Version::Four => GsoKind::Tcp4,
            Version::Six => GsoKind::Tcp6,
        };
        let virtio_header = VnetHeader {
            checksum: Some(PartialChecksum { start: headers.transport as u16, offset: TCP_CHECKSUM as u16 }),
            gso: Some(Gso { kind, segment_bytes: segment_bytes as u16, header_bytes: headers.payload as u16 }),
        };
        OutPacket { virtio_header: virtio_header.to_bytes(), header, pieces: self.payloads }
    }
}

/// Flags that segmentation leaves to the last segment.
const LAST_ONLY: u8 = FIN | PSH;
const ECE: u8 = 0x40;
/// Flows that packets grow of at a time; eight, as in Linux's GRO.
const MOST_FLOWS: usize = 8;
/// Segments of a packet; a full one at an MTU of 1500 has 45.
const MOST_SEGMENTS: usize = 64;

#[cfg(test)]
mod tests;
