//! Large receive offload: which segments of a flow may be one packet for the host.
//!
//! Joined are segments that follow each other without a gap and say the same in everything but sequence number,
//! length, IPv4 identification and checksum: so an ECN mark, another timestamp, acknowledgment, window, option or hop
//! limit keeps them apart, as in Linux's GRO. A segment shorter than the first, or one with PSH or FIN, is the last.
//! What the device found out about them has to be the same too; that is for the caller to see to, who knows it.
//!
//! Packets that came under ESP are compared by what they are without it. Where crypto offload leaves ESP around them, the
//! first one's headers stay in front of what is joined, and the last one's trailer behind it: see [`Wrapping`].
//!
//! Invariant: the length of what is joined is what the IP header says, or more than that can say, and then it says zero.

use crate::engine::layout::{IP, Layout};
use bytes::BytesMut;
use esp::{ESP_AND_IV, ETHERNET, EspAt};
use offload_formats::Version;
use offload_api::{EspMode, Protocol};
use offload_base::Seq;

/// What segments that are being joined have in common, and what comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joint {
    layout: Layout,
    /// Payload bytes of each segment but the last.
    segment_bytes: usize,
    payload_bytes: usize,
    next: Seq,
    pub(crate) segments: u32,
    /// PSH and FIN of the last one.
    last_flags: u8,
}

impl Joint {
    /// Begins with `frame`, if others may follow it.
    pub(crate) fn begin(frame: &[u8], layout: &Layout) -> Option<Joint> {
        let payload_bytes = layout.end - layout.payload;
        let first = layout.protocol == Protocol::Tcp
            && layout.transport == IP + layout.version.header_bytes()
            && flags(frame, layout) & !ECE == ACK
            && payload_bytes > 0
            && layout.end == frame.len();
        first.then(|| Joint {
            layout: Layout { end: layout.payload, ..*layout },
            segment_bytes: payload_bytes,
            payload_bytes,
            next: layout.seq(frame) + payload_bytes as u32,
            segments: 1,
            last_flags: 0,
        })
    }

    /// Bytes of the headers of the first segment, which are those of all.
    pub(crate) fn headers(&self) -> usize {
        self.layout.payload
    }

    /// Whether `frame` is of the same flow; `first` are the headers of the first segment.
    pub(crate) fn is_of_flow(&self, first: &[u8], frame: &[u8], layout: &Layout) -> bool {
        let ports = |frame: &[u8], at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        layout.protocol == Protocol::Tcp
            && layout.version == self.layout.version
            && ports(frame, layout.transport) == ports(first, self.layout.transport)
            && layout.addresses(frame) == self.layout.addresses(first)
    }

    /// Whether `frame`, of the same flow, may be the next segment, in an IP packet of `most` bytes at most.
    pub(crate) fn takes(&self, most: usize, first: &[u8], frame: &[u8], layout: &Layout) -> bool {
        let bytes = layout.end - layout.payload;
        let whole = self.layout.payload - IP + self.payload_bytes + bytes;
        self.last_flags == 0
            && self.payload_bytes.is_multiple_of(self.segment_bytes)
            && (1..=self.segment_bytes).contains(&bytes)
            && whole <= most
            && layout.seq(frame) == self.next
            && Layout { end: layout.payload, ..*layout } == self.layout
            && self.says_the_same(first, frame)
    }

    /// Adds `frame`, which was found to be the next segment.
    pub(crate) fn add(&mut self, frame: &[u8], layout: &Layout) {
        let bytes = layout.end - layout.payload;
        self.payload_bytes += bytes;
        self.next += bytes as u32;
        self.segments += 1;
        self.last_flags = flags(frame, layout) & LAST_ONLY;
    }

    /// Whether nothing can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.last_flags != 0 || !self.payload_bytes.is_multiple_of(self.segment_bytes)
    }

    /// Payload bytes of each segment but the last, if there are several.
    pub(crate) fn segment_bytes(&self) -> Option<core::num::NonZeroU16> {
        let several = self.segments > 1;
        if several { core::num::NonZeroU16::new(self.segment_bytes as u16) } else { None }
    }

    /// Makes the headers of the first segment, which stand in `headers`, those of all. The checksums stay what they
    /// were, and are of no use any more.
    pub(crate) fn finish(&self, headers: &mut [u8]) {
        if self.segments == 1 {
            return;
        }
        set_ip_length(headers, self.layout.payload - IP + self.payload_bytes);
        headers[self.layout.transport + TCP_FLAGS] |= self.last_flags;
    }

    fn says_the_same(&self, first: &[u8], frame: &[u8]) -> bool {
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let network = match self.layout.version {
            // But for length, identification and checksum.
            Version::Four => same(IP, IP + 2) && same(IP + 6, IP + 10),
            // But for the length.
            Version::Six => same(IP, IP + 4) && same(IP + 6, IP + 8),
        };
        let tcp = self.layout.transport;
        // But for sequence number, checksum, and flags of the last.
        let transport = same(tcp + 8, tcp + TCP_FLAGS)
            && first[tcp + TCP_FLAGS] == frame[tcp + TCP_FLAGS] & !LAST_ONLY
            && same(tcp + TCP_FLAGS + 1, tcp + TCP_CHECKSUM)
            && same(tcp + TCP_CHECKSUM + 2, self.layout.payload);
        same(0, IP) && network && transport
    }
}

/// Where crypto offload leaves a packet in the frame that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Within {
    /// Where the ESP header is in the frame.
    esp: usize,
    /// Bytes in front of the plain packet that are not behind the ESP header.
    in_front: usize,
}

impl Within {
    /// Of an ESP packet that was opened.
    pub(crate) fn of(at: &EspAt, mode: EspMode) -> Within {
        let in_front = match mode {
            EspMode::Transport => ETHERNET + at.ip.header,
            EspMode::Tunnel => ETHERNET,
        };
        Within { esp: at.esp, in_front }
    }

    /// Where in the frame that is which is `at` in the plain packet.
    fn shifted(&self, at: usize) -> usize {
        at - self.in_front + self.esp + ESP_AND_IV
    }
}

/// What crypto offload leaves around a packet that others may join.
#[derive(Debug)]
pub(crate) struct Wrapping {
    /// Headers of the first segment, as they are without ESP.
    plain: BytesMut,
    within: Within,
    /// What was behind the payload of the last segment: padding, trailer, ICV.
    tail: BytesMut,
}

impl Wrapping {
    /// Takes what is behind the payload off `frame`, so that others can be joined.
    pub(crate) fn begin(plain: &[u8], layout: &Layout, within: Within, frame: &mut BytesMut) -> Wrapping {
        let end = within.shifted(layout.end);
        let tail = frame[end..].into();
        frame.truncate(end);
        Wrapping { plain: plain[..layout.payload].into(), within, tail }
    }

    /// The headers of the first segment, as they are without ESP.
    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Payload of `frame`, whose plain packet has `layout`, and what is behind it.
    pub(crate) fn parts<'a>(within: Within, frame: &'a [u8], layout: &Layout) -> (&'a [u8], &'a [u8]) {
        frame[within.shifted(layout.payload)..].split_at(layout.end - layout.payload)
    }

    /// Whether the outer headers of `frame` are those of `first` but for what each packet has for itself.
    pub(crate) fn takes(&self, first: &[u8], frame: &[u8], within: Within) -> bool {
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let own = match first[IP] >> 4 {
            // Length, identification and checksum.
            4 => same(IP, IP + 2) && same(IP + 6, IP + 10) && same(IP + 12, within.esp),
            // The length.
            _ => same(IP, IP + 4) && same(IP + 6, within.esp),
        };
        within == self.within && same(0, IP) && own
    }

    /// What is behind the payload is this from now on.
    pub(crate) fn set_tail(&mut self, tail: &[u8]) {
        self.tail.clear();
        self.tail.extend_from_slice(tail);
    }

    /// Makes `frame`, which ends with the payload, whole again, its headers those of all segments.
    pub(crate) fn finish(mut self, joint: &Joint, frame: &mut BytesMut) {
        frame.extend_from_slice(&self.tail);
        if joint.segments == 1 {
            return;
        }
        joint.finish(&mut self.plain);
        let headers = &self.plain[self.within.in_front..];
        let protected = self.within.esp + ESP_AND_IV;
        frame[protected..protected + headers.len()].copy_from_slice(headers);
        let bytes = frame.len() - IP;
        set_ip_length(frame, bytes);
    }
}

/// Writes the length of a whole packet to its IP header.
fn set_ip_length(frame: &mut [u8], bytes: usize) {
    let version = if frame[IP] >> 4 == 4 { Version::Four } else { Version::Six };
    version.set_length(&mut frame[IP..], bytes);
}

fn flags(frame: &[u8], layout: &Layout) -> u8 {
    frame[layout.transport + TCP_FLAGS]
}

const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const ACK: u8 = 0x10;
/// On all segments, or on none.
const ECE: u8 = 0x40;
const LAST_ONLY: u8 = 0x01 | 0x08;
