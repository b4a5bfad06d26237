//! From a kernel's packet to frames that fit a wire: checksums are completed, super-segments cut.
//!
//! A kernel that was told that its device can do it hands over up to 64 KiB of TCP (or of UDP datagrams) behind one
//! header, the checksum left half done. Frames are made one at a time, as the wire takes them, payload copied once.
//!
//! Invariant: whatever the bytes are, no frame is longer than the packet they came from, and as many are made as
//! the segments are.

use super::headers::{
    CWR, FIN, Headers, PROTOCOL_TCP, PROTOCOL_UDP, PSH, TCP_CHECKSUM, TCP_FLAGS, Transport, UDP_CHECKSUM, set_number,
};
use super::vnet_header::{Gso, GsoKind, InvalidVnetHeader, PartialChecksum, VnetHeader};
use crate::frame::Frame;
use bytes::BytesMut;
use core::fmt;
use offload_base::BufferPool;
use offload_base::cost::{self, Work};
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Sum, Version};

/// Cuts packets into frames, one packet at a time.
///
/// ```
/// use offload_wire::attach::{Resegmenter, VnetHeader};
///
/// let mut resegmenter = Resegmenter::default();
/// // What a read from the device would do: the virtio header, then the packet. With a header of zeros a packet is
/// // a frame already.
/// let buffer = resegmenter.buffer();
/// buffer[..VnetHeader::LEN + 60].fill(0);
/// resegmenter.filled(VnetHeader::LEN + 60)?;
/// assert_eq!(resegmenter.next_frame().unwrap().len(), 60);
/// assert!(resegmenter.next_frame().is_none());
/// # Ok::<(), offload_wire::attach::MalformedPacket>(())
/// ```
pub struct Resegmenter {
    buffer: Box<[u8]>,
    /// What is being cut.
    work: Option<Cut>,
    frames: BufferPool,
}

/// A packet that cannot be made frames of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedPacket {
    /// It is shorter than its headers, or as long as the buffer and perhaps longer.
    #[error("a packet of {0} bytes is too short or too long")]
    Length(usize),
    /// Its virtio header is none.
    #[error(transparent)]
    Header(#[from] InvalidVnetHeader),
    /// Its virtio header and its own headers contradict each other.
    #[error("the packet is not what its virtio header says")]
    Contradiction,
}

/// How the packet in the buffer is cut, and how far that is done.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Not at all: as it is, with the checksum completed.
    Whole { packet_bytes: usize, checksum: Option<PartialChecksum> },
    /// Into segments.
    Segments { headers: Headers, kind: Transport, segment_bytes: usize, end: usize, at: usize, number: u16 },
}

impl Resegmenter {
    /// Where the next packet is to be read to, its virtio header first. What was in it before is given up.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.work = None;
        &mut self.buffer
    }

    /// Says that `bytes` bytes of the buffer were filled, and looks at what they are.
    ///
    /// # Errors
    /// If no frames can be made of them.
    pub fn filled(&mut self, bytes: usize) -> Result<(), MalformedPacket> {
        self.work = None;
        let Some((header, packet)) = self.buffer.get(..bytes).and_then(|filled| filled.split_first_chunk()) else {
            return Err(MalformedPacket::Length(bytes));
        };
        if packet.len() < ETHERNET_BYTES || bytes == self.buffer.len() {
            return Err(MalformedPacket::Length(bytes));
        }
        let header = VnetHeader::parse(header)?;
        self.work = Some(Cut::plan(packet, header).ok_or(MalformedPacket::Contradiction)?);
        Ok(())
    }

    /// Whether the packet makes several frames.
    pub fn is_super_segment(&self) -> bool {
        matches!(self.work, Some(Cut::Segments { segment_bytes, end, at, .. }) if end - at > segment_bytes)
    }

    /// The next frame of the packet, if there is one.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let work = self.work.as_mut()?;
        let packet = &self.buffer[VnetHeader::LEN..];
        match work {
            Cut::Whole { packet_bytes, checksum } => {
                let mut frame = buffer_of(&mut self.frames, *packet_bytes);
                {
                    let _copying = cost::work(Work::Copy);
                    frame.extend_from_slice(&packet[..*packet_bytes]);
                }
                if let Some(checksum) = checksum {
                    complete(&mut frame, *checksum);
                }
                self.work = None;
                Some(Frame::from(frame))
            }
            Cut::Segments { headers, kind, segment_bytes, end, at, number } => {
                let from = *at;
                let to = (from + *segment_bytes).min(*end);
                let mut frame = buffer_of(&mut self.frames, headers.payload + to - from);
                frame.extend_from_slice(&packet[..headers.payload]);
                {
                    let _copying = cost::work(Work::Copy);
                    frame.extend_from_slice(&packet[from..to]);
                }
                let segment = Segment { before: from - headers.payload, number: *number, is_last: to == *end };
                segment.fix_headers(&mut frame, headers, *kind);
                if segment.is_last {
                    self.work = None;
                } else {
                    (*at, *number) = (to, number.wrapping_add(1));
                }
                Some(Frame::from(frame))
            }
        }
    }
}

impl Cut {
    fn plan(packet: &[u8], header: VnetHeader) -> Option<Cut> {
        let VnetHeader { checksum, gso: Some(Gso { kind, segment_bytes, .. }) } = header else {
            if let Some(PartialChecksum { start, offset }) = header.checksum
                && usize::from(start) + usize::from(offset) + 2 > packet.len()
            {
                return None;
            }
            return Some(Cut::Whole { packet_bytes: packet.len(), checksum: header.checksum });
        };
        // Whoever asks for segments says where the transport header is: every segment needs its own checksum.
        let PartialChecksum { start, offset } = checksum?;
        let (transport, field) = match kind {
            GsoKind::Tcp4 | GsoKind::Tcp6 => (Transport::Tcp, TCP_CHECKSUM),
            GsoKind::Udp => (Transport::Udp, UDP_CHECKSUM),
        };
        let headers = Headers::with_transport_at(packet, usize::from(start), transport)?;
        let is_of_kind = match kind {
            GsoKind::Tcp4 => headers.version == Version::Four,
            GsoKind::Tcp6 => headers.version == Version::Six,
            GsoKind::Udp => true,
        };
        if !is_of_kind || usize::from(offset) != field {
            return None;
        }
        Some(Cut::Segments {
            headers,
            kind: transport,
            segment_bytes: usize::from(segment_bytes),
            end: packet.len(),
            at: headers.payload,
            number: 0,
        })
    }
}

/// One of the segments of a packet.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Payload bytes in those before it.
    before: usize,
    /// How many there are before it.
    number: u16,
    is_last: bool,
}

impl Segment {
    /// Gives the segment its own length, identification, sequence number, flags and checksums.
    fn fix_headers(&self, frame: &mut [u8], headers: &Headers, kind: Transport) {
        let bytes = frame.len();
        let identification = headers.identification(frame).wrapping_add(self.number);
        headers.set_network(frame, bytes, identification);
        let transport_bytes = bytes - headers.transport;
        let (protocol, field) = match kind {
            Transport::Tcp => {
                let tcp = &mut frame[headers.transport..];
                let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(self.before as u32);
                tcp[4..8].copy_from_slice(&seq.to_be_bytes());
                if !self.is_last {
                    tcp[TCP_FLAGS] &= !(FIN | PSH);
                }
                // RFC 3168 6.1.2: only the first segment after the window was cut says so.
                if self.number > 0 {
                    tcp[TCP_FLAGS] &= !CWR;
                }
                (PROTOCOL_TCP, TCP_CHECKSUM)
            }
            Transport::Udp => {
                set_number(frame, headers.transport + 4, transport_bytes as u16);
                (PROTOCOL_UDP, UDP_CHECKSUM)
            }
        };
        set_number(frame, headers.transport + field, 0);
        let mut sum = headers.pseudo_sum(frame, protocol, transport_bytes);
        sum.add(&frame[headers.transport..]);
        set_number(frame, headers.transport + field, finished(sum, kind == Transport::Udp));
    }
}

/// Completes a checksum whose field holds the sum of the pseudo header.
fn complete(frame: &mut [u8], PartialChecksum { start, offset }: PartialChecksum) {
    let start = usize::from(start);
    let mut sum = Sum::default();
    sum.add(&frame[start..]);
    let is_udp = usize::from(offset) == UDP_CHECKSUM;
    set_number(frame, start + usize::from(offset), finished(sum, is_udp));
}

/// RFC 768: a checksum of zero says that there is none, so one that comes to zero is sent as all ones.
fn finished(sum: Sum, is_udp: bool) -> u16 {
    match sum.finish() {
        0 if is_udp => 0xffff,
        checksum => checksum,
    }
}

fn buffer_of(frames: &mut BufferPool, bytes: usize) -> BytesMut {
    if bytes <= frames.buffer_bytes() { frames.take() } else { BytesMut::with_capacity(bytes) }
}

impl Default for Resegmenter {
    fn default() -> Resegmenter {
        Resegmenter {
            buffer: vec![0; BUFFER_BYTES].into(),
            work: None,
            frames: BufferPool::new(FRAME_BYTES, FRAMES_PER_SLAB),
        }
    }
}

impl fmt::Debug for Resegmenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resegmenter").field("work", &self.work).finish_non_exhaustive()
    }
}

/// The longest IP packet, the headers before it, and a byte by which to know what is longer.
const BUFFER_BYTES: usize = VnetHeader::LEN + ETHERNET_BYTES + 8 + u16::MAX as usize + 1;
/// Longer frames are rare enough for an allocation each.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;

#[cfg(test)]
mod tests;
