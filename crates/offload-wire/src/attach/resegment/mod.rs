//! From a kernel's packet to frames that fit a wire: checksums are completed, super-segments cut.
//!
//! A kernel that was told that its device can do it hands over up to 64 KiB of TCP (or of UDP datagrams) behind one
//! header, the checksum left half done. Frames are made one at a time, as the wire takes them, payload copied once.
//!
//! Invariant: whatever the bytes are, no frame is longer than the packet they came from, and as many are made as
//! the segments are.

use super::vnet_header::{Gso, GsoKind, InvalidVnetHeader, PartialChecksum, VnetHeader};
use crate::frame::Frame;
use bytes::BytesMut;
use core::fmt;
use offload_base::BufferPool;
use offload_base::cost::{self, Work};
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, Protocol, Segment, Sum, Transport, Version};

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
    #[error("the packet contradicts its virtio header")]
    Contradiction,
}

/// How the packet in the buffer is cut, and how far that is done.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Not at all: as it is, with the checksum completed.
    Whole { packet_bytes: usize, checksum: Option<PartialChecksum> },
    /// Into segments.
    Segments { transport: Transport, segment_bytes: usize, at: usize, number: u32 },
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
        matches!(self.work, Some(Cut::Segments { transport, segment_bytes, at, .. }) if transport.end - at > segment_bytes)
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
            Cut::Segments { transport, segment_bytes, at, number } => {
                let from = *at;
                let to = (from + *segment_bytes).min(transport.end);
                let mut frame = buffer_of(&mut self.frames, transport.payload + to - from);
                frame.extend_from_slice(&packet[..transport.payload]);
                {
                    let _copying = cost::work(Work::Copy);
                    frame.extend_from_slice(&packet[from..to]);
                }
                let is_last = to == transport.end;
                let segment = Segment { number: *number, offset: from - transport.payload, is_last };
                transport.make_segment(&mut frame, to - from, segment);
                Transport { end: frame.len(), ..*transport }.fill_checksums(&mut frame);
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
        let transport = Headers::parse_unfinished(packet).transport()?;
        let is_of_kind = match kind {
            GsoKind::Tcp4 => (transport.protocol, transport.version) == (Protocol::Tcp, Version::Four),
            GsoKind::Tcp6 => (transport.protocol, transport.version) == (Protocol::Tcp, Version::Six),
            GsoKind::Udp => transport.protocol == Protocol::Udp,
        };
        let field = transport.checksum() - transport.header;
        if !is_of_kind || usize::from(start) != transport.header || usize::from(offset) != field {
            return None;
        }
        let segment_bytes = usize::from(segment_bytes);
        Some(Cut::Segments { transport, segment_bytes, at: transport.payload, number: 0 })
    }
}

/// Completes a checksum whose field holds the sum of the pseudo header.
fn complete(frame: &mut [u8], PartialChecksum { start, offset }: PartialChecksum) {
    let start = usize::from(start);
    let mut sum = Sum::default();
    sum.add(&frame[start..]);
    let checksum = match sum.finish() {
        // RFC 768: a checksum of zero says that there is none, so one that comes to zero is sent as all ones.
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

/// The longest IP packet, the headers before it, and a byte by which to know what is longer.
const BUFFER_BYTES: usize = VnetHeader::LEN + ETHERNET_BYTES + 8 + u16::MAX as usize + 1;
/// Where a UDP header has its checksum; TCP's is elsewhere.
const UDP_CHECKSUM: usize = 6;
/// Longer frames are rare enough for an allocation each.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;

#[cfg(test)]
mod tests;
