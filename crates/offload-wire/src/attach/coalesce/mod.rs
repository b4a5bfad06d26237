//! Joining of frames for a kernel: consecutive frames of one TCP flow become one packet, after a virtio header that
//! describes how to cut the packet again.
//!
//! Invariant: cutting a packet as its header describes yields the original frames, byte for byte, and the frames of one
//! flow keep their order. Frames are therefore joined only if they differ in nothing but their position in the flow,
//! and if their checksums are right, so that a corrupted frame stays corrupted.

use super::vnet_header::{Gso, GsoKind, PartialChecksum, VnetHeader};
use crate::frame::Frame;
use bytes::Bytes;
use offload_base::Seq;
use offload_formats::checksum::fill_ipv4_header;
use offload_formats::{Headers, IpVersion, Protocol, TransportHeader};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A buffer that joins frames where the receiver cannot notice.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::attach::Coalescer;
///
/// let mut coalescer = Coalescer::default();
/// coalescer.push(Frame::from(vec![0; 60])); // not TCP: a packet of its own
/// coalescer.flush(); // the burst is over: finishes the open packets
/// let packet = coalescer.pop().unwrap();
/// assert_eq!((packet.frames(), packet.len()), (1, 60));
/// assert_eq!(packet.virtio_header(), &[0; 10]);
/// ```
#[derive(Debug, Default)]
pub struct Coalescer {
    /// Packets that may still grow, the oldest first, at most one per flow.
    growing: SmallVec<[GrowingPacket; MAX_FLOWS]>,
    ready: VecDeque<OutPacket>,
}

/// A packet for a kernel: a virtio header, and pieces to be written after it in one write.
///
/// See [`Coalescer`] for an example.
#[derive(Clone, Debug)]
pub struct OutPacket {
    virtio_header: [u8; VnetHeader::LEN],
    /// Joined header. Empty if the pieces are a whole frame.
    header: SmallVec<[u8; 128]>,
    pieces: SmallVec<[Bytes; 1]>,
}

impl OutPacket {
    /// Returns the virtio header's bytes.
    pub fn virtio_header(&self) -> &[u8; VnetHeader::LEN] {
        &self.virtio_header
    }

    /// Returns the pieces after the virtio header, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let header = (!self.header.is_empty()).then_some(&self.header[..]);
        header.into_iter().chain(self.pieces.iter().map(|piece| &piece[..]))
    }

    /// Returns the size of the packet without the virtio header, in bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.pieces.iter().map(Bytes::len).sum::<usize>()
    }

    /// Tests whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of frames in the packet.
    pub fn frames(&self) -> usize {
        self.pieces.len()
    }

    fn whole(frame: Frame) -> OutPacket {
        let virtio_header = VnetHeader::default().to_bytes();
        OutPacket { virtio_header, header: SmallVec::new(), pieces: [frame.data].into_iter().collect() }
    }
}

impl Coalescer {
    /// Adds a frame.
    pub fn push(&mut self, frame: Frame) {
        let segment = match TcpSegment::parse(frame) {
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
            // The segment does not continue its flow's packet, which must leave before the segment to keep the order.
            self.finish(place);
        }
        if !segment.may_be_first() {
            return self.ready.push_back(OutPacket::whole(segment.frame));
        }
        // The oldest packet makes room.
        if self.growing.len() == MAX_FLOWS {
            self.finish(0);
        }
        self.growing.push(GrowingPacket::new(segment));
    }

    /// Finishes all packets, because no further frames are expected now.
    pub fn flush(&mut self) {
        self.ready.extend(self.growing.drain(..).map(GrowingPacket::into_packet));
    }

    /// Returns the next finished packet.
    pub fn pop(&mut self) -> Option<OutPacket> {
        self.ready.pop_front()
    }

    fn finish(&mut self, place: usize) {
        self.ready.push_back(self.growing.remove(place).into_packet());
    }
}

/// A frame with one TCP segment.
#[derive(Debug)]
struct TcpSegment {
    frame: Frame,
    tcp: TransportHeader,
}

impl TcpSegment {
    /// Parses a frame. Returns the frame itself if it is not TCP, or has extension headers or padding.
    fn parse(frame: Frame) -> Result<TcpSegment, Frame> {
        let is_bare = |tcp: &TransportHeader| {
            // Padding and extension headers would be lost in the joined packet, so such frames pass separately.
            tcp.end == frame.len()
                && (tcp.version == IpVersion::V4 || tcp.header == tcp.network + IpVersion::V6.header_bytes())
        };
        let transport = Headers::parse(&frame.data).transport();
        match transport.filter(|transport| transport.protocol == Protocol::Tcp).filter(is_bare) {
            Some(tcp) => Ok(TcpSegment { frame, tcp }),
            None => Err(frame),
        }
    }

    fn payload(&self) -> Bytes {
        self.frame.data.slice(self.tcp.payload..)
    }

    fn seq(&self) -> Seq {
        self.tcp.seq(&self.frame.data)
    }

    fn identification(&self) -> u16 {
        self.tcp.identification(&self.frame.data)
    }

    fn is_of_flow_of(&self, other: &TcpSegment) -> bool {
        self.tcp.is_of_flow(&self.frame.data, &other.tcp, &other.frame.data)
    }

    /// Tests whether other segments may be joined after this segment.
    fn may_be_first(&self) -> bool {
        self.tcp.may_be_first(&self.frame.data)
            && (1..=usize::from(u16::MAX)).contains(&self.tcp.payload_len())
            && self.is_right()
    }

    /// Tests whether the headers equal those of `first`, except for the fields that differ between the segments of a
    /// packet.
    fn is_like(&self, first: &TcpSegment) -> bool {
        TransportHeader { end: first.tcp.end, ..self.tcp } == first.tcp
            && self.tcp.says_the_same(&first.frame.data, &self.frame.data)
    }

    /// Tests whether the checksums are right and can be recreated exactly: a computed checksum field never holds all
    /// ones, the other of the two zeros of one's complement (RFC 1624 3).
    fn is_right(&self) -> bool {
        let data = &self.frame.data;
        let is_all_ones = |at: usize| data[at..at + 2] == [0xff, 0xff];
        // A joined packet gets a new checksum, which would hide a corruption.
        self.tcp.are_checksums_right(data) == Some(true)
            && !is_all_ones(self.tcp.checksum())
            && (self.tcp.version == IpVersion::V6 || !is_all_ones(self.tcp.network + IPV4_CHECKSUM))
    }
}

/// Segments that are being joined into one packet.
#[derive(Debug)]
struct GrowingPacket {
    first: TcpSegment,
    payloads: SmallVec<[Bytes; 1]>,
    payload_bytes: usize,
    /// Flags that only the last segment may have.
    last_flags: u8,
}

impl GrowingPacket {
    fn new(first: TcpSegment) -> GrowingPacket {
        let payload = first.payload();
        let payload_bytes = payload.len();
        GrowingPacket { first, payloads: [payload].into_iter().collect(), payload_bytes, last_flags: 0 }
    }

    /// Tests whether `segment` may be joined next.
    fn takes(&self, segment: &TcpSegment) -> bool {
        let TransportHeader { version, network, payload, .. } = self.first.tcp;
        let bytes = segment.tcp.payload_len();
        // Cutting the packet again counts the identification up from the first segment's.
        let identification = match version {
            IpVersion::V4 => self.first.identification().wrapping_add(self.payloads.len() as u16),
            IpVersion::V6 => 0,
        };
        segment.seq() == self.first.seq() + self.payload_bytes as u32
            // Cutting yields segments as long as the first one, and a shorter last one.
            && (1..=self.first.tcp.payload_len()).contains(&bytes)
            // The length field of the joined IP packet has 16 bits.
            && payload - network + self.payload_bytes + bytes <= usize::from(u16::MAX)
            && segment.identification() == identification
            && segment.is_like(&self.first)
            && segment.is_right()
    }

    /// Adds the next segment. Returns whether the packet is complete.
    fn add(&mut self, segment: TcpSegment) -> bool {
        let payload = segment.payload();
        let is_short = payload.len() < self.first.tcp.payload_len();
        self.payload_bytes += payload.len();
        self.payloads.push(payload);
        self.last_flags = segment.tcp.last_flags(&segment.frame.data);
        // A short segment, FIN or PSH can only be the last, so the packet is complete.
        is_short || self.last_flags != 0 || self.payloads.len() == MAX_SEGMENTS
    }

    fn into_packet(self) -> OutPacket {
        let TcpSegment { frame, tcp } = self.first;
        // A single frame is passed on unchanged, with its own checksum.
        if self.payloads.len() == 1 {
            return OutPacket::whole(frame);
        }
        let mut header: SmallVec<[u8; 128]> = SmallVec::from_slice(&frame.data[..tcp.payload]);
        tcp.make_joined(&mut header, self.payload_bytes, self.last_flags);
        if tcp.version == IpVersion::V4 {
            fill_ipv4_header(&mut header[tcp.network..]);
        }
        // A kernel's partial checksum is the sum of the pseudo header, not inverted.
        let pseudo = !TransportHeader { end: tcp.payload + self.payload_bytes, ..tcp }.pseudo_sum(&header).finish();
        let field = tcp.checksum();
        header[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        let kind = match tcp.version {
            IpVersion::V4 => GsoKind::Tcp4,
            IpVersion::V6 => GsoKind::Tcp6,
        };
        let offset = (field - tcp.header) as u16;
        let virtio_header = VnetHeader {
            checksum: Some(PartialChecksum { start: tcp.header as u16, offset }),
            gso: Some(Gso { kind, segment_bytes: tcp.payload_len() as u16, header_bytes: tcp.payload as u16 }),
        };
        OutPacket { virtio_header: virtio_header.to_bytes(), header, pieces: self.payloads }
    }
}

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// Maximum number of growing packets, equal to that of Linux's GRO.
const MAX_FLOWS: usize = 8;
/// Maximum number of segments in a packet. A full packet at an MTU of 1500 has 45.
const MAX_SEGMENTS: usize = 64;

#[cfg(test)]
mod tests;
