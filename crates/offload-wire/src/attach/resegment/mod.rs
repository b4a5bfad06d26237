//! Cutting of a kernel's packets into frames that fit a wire, with completed checksums.
//!
//! A kernel with segmentation offload hands over up to 64 KiB of TCP, or of UDP datagrams, after one header with a
//! partial checksum. Frames are made one at a time, as the wire takes them, and the payload is copied once.
//!
//! Invariant: for any input, no frame is longer than its packet, and the number of frames equals the number of
//! segments.

use super::vnet_header::{Gso, GsoKind, InvalidVnetHeader, PartialChecksum, VnetHeader};
use crate::frame::Frame;
use bytes::BytesMut;
use core::fmt;
use offload_base::BufferPool;
use offload_base::cost::{self, WorkKind};
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, InternetSum, IpVersion, Protocol, SegmentPosition, TransportHeader};

/// A buffer that cuts packets into frames, one packet at a time.
///
/// ```
/// use offload_wire::attach::{Resegmenter, VnetHeader};
///
/// let mut resegmenter = Resegmenter::default();
/// // A device read fills in the virtio header, then the packet. A header of zeros means that the packet is a frame.
/// let buffer = resegmenter.buffer();
/// buffer[..VnetHeader::LEN + 60].fill(0);
/// resegmenter.filled(VnetHeader::LEN + 60)?;
/// assert_eq!(resegmenter.next_frame().unwrap().len(), 60);
/// assert!(resegmenter.next_frame().is_none());
/// # Ok::<(), offload_wire::attach::MalformedPacket>(())
/// ```
pub struct Resegmenter {
    buffer: Box<[u8]>,
    /// State of the packet in the buffer. `None` if all of its frames were taken.
    work: Option<CutPlan>,
    frames: BufferPool,
}

/// The error for a packet that cannot be cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedPacket {
    /// The packet is shorter than its headers, or fills the whole buffer and may have been truncated.
    #[error("a packet of {0} bytes is too short for its headers, or too long for the buffer")]
    Length(usize),
    /// The virtio header is invalid.
    #[error(transparent)]
    Header(#[from] InvalidVnetHeader),
    /// The virtio header contradicts the packet's own headers.
    #[error("the packet contradicts its virtio header")]
    Contradiction,
}

/// The plan for the packet in the buffer, and its progress.
#[derive(Clone, Copy, Debug)]
enum CutPlan {
    /// One frame, with the checksum completed.
    Whole { packet_bytes: usize, checksum: Option<PartialChecksum> },
    /// Several segments.
    Segments { transport: TransportHeader, segment_bytes: usize, at: usize, number: u32 },
}

impl Resegmenter {
    /// Returns the buffer for the next packet, which starts with its virtio header. Discards the previous packet.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.work = None;
        &mut self.buffer
    }

    /// Parses the packet in the first `bytes` bytes of the buffer.
    ///
    /// # Errors
    /// If the packet cannot be cut into frames.
    pub fn filled(&mut self, bytes: usize) -> Result<(), MalformedPacket> {
        self.work = None;
        let Some((header, packet)) = self.buffer.get(..bytes).and_then(|filled| filled.split_first_chunk()) else {
            return Err(MalformedPacket::Length(bytes));
        };
        // A packet that fills the buffer may have been cut by the read. The buffer has a byte more than any packet.
        if packet.len() < ETHERNET_BYTES || bytes == self.buffer.len() {
            return Err(MalformedPacket::Length(bytes));
        }
        let header = VnetHeader::parse(header)?;
        self.work = Some(CutPlan::plan(packet, header).ok_or(MalformedPacket::Contradiction)?);
        Ok(())
    }

    /// Tests whether more than one frame of the packet remains.
    pub fn is_super_segment(&self) -> bool {
        matches!(self.work, Some(CutPlan::Segments { transport, segment_bytes, at, .. }) if transport.end - at > segment_bytes)
    }

    /// Returns the next frame of the packet, or `None` if all were taken.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let work = self.work.as_mut()?;
        let packet = &self.buffer[VnetHeader::LEN..];
        match work {
            CutPlan::Whole { packet_bytes, checksum } => {
                let mut frame = buffer_of(&mut self.frames, *packet_bytes);
                {
                    let _copy_scope = cost::work(WorkKind::Copy);
                    frame.extend_from_slice(&packet[..*packet_bytes]);
                }
                if let Some(checksum) = checksum {
                    complete(&mut frame, *checksum);
                }
                self.work = None;
                Some(Frame::from(frame))
            }
            CutPlan::Segments { transport, segment_bytes, at, number } => {
                let from = *at;
                let to = (from + *segment_bytes).min(transport.end);
                let mut frame = buffer_of(&mut self.frames, transport.payload + to - from);
                frame.extend_from_slice(&packet[..transport.payload]);
                {
                    let _copy_scope = cost::work(WorkKind::Copy);
                    frame.extend_from_slice(&packet[from..to]);
                }
                // Only the last segment may carry FIN and PSH.
                let is_last = to == transport.end;
                let segment = SegmentPosition { number: *number, offset: from - transport.payload, is_last };
                transport.make_segment(&mut frame, to - from, segment);
                // The segment is shorter than the whole packet, so its checksum covers the end of the frame.
                TransportHeader { end: frame.len(), ..*transport }.fill_checksums(&mut frame);
                if is_last {
                    self.work = None;
                } else {
                    (*at, *number) = (to, *number + 1);
                }
                Some(Frame::from(frame))
            }
        }
    }
}

impl CutPlan {
    fn plan(packet: &[u8], header: VnetHeader) -> Option<CutPlan> {
        let VnetHeader { checksum, gso: Some(Gso { kind, segment_bytes, .. }) } = header else {
            if let Some(PartialChecksum { start, offset }) = header.checksum
                // The field must lie in the packet, because `complete` writes there without a further check.
                && usize::from(start) + usize::from(offset) + 2 > packet.len()
            {
                return None;
            }
            return Some(CutPlan::Whole { packet_bytes: packet.len(), checksum: header.checksum });
        };
        // A request for segments includes the checksum offsets, because every segment needs its own checksum.
        let PartialChecksum { start, offset } = checksum?;
        // A super-segment may be too long for its length fields, so these are ignored.
        let transport = Headers::parse_unfinished(packet).transport()?;
        let is_of_kind = match kind {
            GsoKind::Tcp4 => (transport.protocol, transport.version) == (Protocol::Tcp, IpVersion::V4),
            GsoKind::Tcp6 => (transport.protocol, transport.version) == (Protocol::Tcp, IpVersion::V6),
            GsoKind::Udp => transport.protocol == Protocol::Udp,
        };
        // The kernel's offsets must agree with the headers. Otherwise the packet is of another kind than announced.
        let field = transport.checksum() - transport.header;
        if !is_of_kind || usize::from(start) != transport.header || usize::from(offset) != field {
            return None;
        }
        let segment_bytes = usize::from(segment_bytes);
        Some(CutPlan::Segments { transport, segment_bytes, at: transport.payload, number: 0 })
    }
}

/// Completes a partial checksum, whose field holds the sum of the pseudo header.
fn complete(frame: &mut [u8], PartialChecksum { start, offset }: PartialChecksum) {
    let start = usize::from(start);
    let mut sum = InternetSum::default();
    sum.add(&frame[start..]);
    let checksum = match sum.finish() {
        // RFC 768: a field of zero means that there is no checksum, so a sum of zero is sent as all ones.
        0 if usize::from(offset) == UDP_CHECKSUM => 0xffff,
        checksum => checksum,
    };
    let field = start + usize::from(offset);
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
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

/// Space for the longest IP packet, the headers in front, and one byte by which a longer packet is noticed.
const BUFFER_BYTES: usize = VnetHeader::LEN + ETHERNET_BYTES + 8 + u16::MAX as usize + 1;
/// Offset of the checksum in a UDP header. TCP's offset differs.
const UDP_CHECKSUM: usize = 6;
/// Size of pooled buffers. Longer frames are rare enough for an allocation each.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;

#[cfg(test)]
mod tests;
