//! Large receive offload: which segments of a flow may be one packet for the host.
//!
//! Joined are segments that follow each other without a gap and say the same in everything but sequence number,
//! length, IPv4 identification and checksum: so an ECN mark, another timestamp, acknowledgment, window, option or hop
//! limit keeps them apart, as in Linux's GRO. A segment shorter than the first, or one with PSH or FIN, is the last.
//! So are datagrams, if the NIC is to join those: of one sender and one size, in the order they came.
//! What the device found out about them has to be the same too; that is for the caller to see to, who knows it.
//!
//! Packets that an engine opened are compared by what they are without what was around them. Where that is left there (ESP in
//! crypto offload), the first one's headers stay in front of what is joined, and the last one's trailer behind it: see
//! [`Wrapping`].
//!
//! Invariant: the length of what is joined is what the IP header says, or more than that can say, and then it says zero.

use bytes::BytesMut;
use nic_engine::InnerPosition;
use offload_api::Protocol;
use offload_base::Seq;
use offload_formats::frame::ETHERNET_BYTES as ETHERNET;
use offload_formats::{IpVersion, TransportHeader};

/// What segments that are being joined have in common, and what comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joint {
    transport: TransportHeader,
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
    pub(crate) fn begin(frame: &[u8], transport: &TransportHeader, datagrams: bool) -> Option<Joint> {
        let payload_bytes = transport.payload_len();
        let joins = match transport.protocol {
            Protocol::Tcp => transport.may_be_first(frame),
            Protocol::Udp => datagrams && is_all_of_it(frame, transport),
            _ => false,
        };
        let first = joins
            && transport.header == transport.network + transport.version.header_bytes()
            && payload_bytes > 0
            && transport.end == frame.len();
        first.then(|| Joint {
            transport: TransportHeader { end: transport.payload, ..*transport },
            segment_bytes: payload_bytes,
            payload_bytes,
            next: next_seq(frame, transport),
            segments: 1,
            last_flags: 0,
        })
    }

    /// Bytes of the headers of the first segment, which are those of all.
    pub(crate) fn headers(&self) -> usize {
        self.transport.payload
    }

    /// Whether `frame` is of the same flow; `first` are the headers of the first segment.
    pub(crate) fn is_of_flow(&self, first: &[u8], frame: &[u8], transport: &TransportHeader) -> bool {
        transport.is_of_flow(frame, &self.transport, first)
    }

    /// Whether `frame`, of the same flow, may be the next segment, in an IP packet of `most` bytes at most.
    pub(crate) fn takes(&self, most: usize, first: &[u8], frame: &[u8], transport: &TransportHeader) -> bool {
        let bytes = transport.payload_len();
        let whole = self.transport.payload - self.transport.network + self.payload_bytes + bytes;
        let (most, in_order) = match self.transport.protocol {
            // Its own length has no form for more.
            Protocol::Udp => (most.min(u16::MAX.into()), is_all_of_it(frame, transport)),
            _ => (most, transport.seq(frame) == self.next),
        };
        self.last_flags == 0
            && self.payload_bytes.is_multiple_of(self.segment_bytes)
            && (1..=self.segment_bytes).contains(&bytes)
            && whole <= most
            && in_order
            && TransportHeader { end: transport.payload, ..*transport } == self.transport
            && self.transport.says_the_same(first, frame)
    }

    /// Adds `frame`, which was found to be the next segment.
    pub(crate) fn add(&mut self, frame: &[u8], transport: &TransportHeader) {
        let bytes = transport.payload_len();
        self.payload_bytes += bytes;
        self.next = next_seq(frame, transport);
        self.segments += 1;
        self.last_flags = transport.last_flags(frame);
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
        if self.segments > 1 {
            self.transport.make_joined(headers, self.payload_bytes, self.last_flags);
        }
    }
}

/// What an engine leaves around a packet that others may join.
#[derive(Debug)]
pub(crate) struct Wrapping {
    /// Headers of the first segment, as they are without that.
    plain: BytesMut,
    within: InnerPosition,
    /// What was behind the payload of the last segment.
    tail: BytesMut,
}

impl Wrapping {
    /// Takes what is behind the payload off `frame`, so that others can be joined.
    pub(crate) fn begin(
        plain: &[u8],
        transport: &TransportHeader,
        within: InnerPosition,
        frame: &mut BytesMut,
    ) -> Wrapping {
        let end = shifted(within, transport.end);
        let tail = frame[end..].into();
        frame.truncate(end);
        Wrapping { plain: plain[..transport.payload].into(), within, tail }
    }

    /// The headers of the first segment, as they are without what is around them.
    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Payload of `frame`, whose plain packet has `transport`, and what is behind it.
    pub(crate) fn parts<'a>(
        within: InnerPosition,
        frame: &'a [u8],
        transport: &TransportHeader,
    ) -> (&'a [u8], &'a [u8]) {
        frame[shifted(within, transport.payload)..].split_at(transport.payload_len())
    }

    /// Whether the outer headers of `frame` are those of `first` but for what each packet has for itself.
    pub(crate) fn takes(&self, first: &[u8], frame: &[u8], within: InnerPosition) -> bool {
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let own = match first[ETHERNET] >> 4 {
            // Length, identification and checksum.
            4 => {
                same(ETHERNET, ETHERNET + 2) && same(ETHERNET + 6, ETHERNET + 10) && same(ETHERNET + 12, within.headers)
            }
            // The length.
            _ => same(ETHERNET, ETHERNET + 4) && same(ETHERNET + 6, within.headers),
        };
        within == self.within && same(0, ETHERNET) && own
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
        let opened = self.within.opened;
        frame[opened..opened + headers.len()].copy_from_slice(headers);
        let bytes = frame.len() - ETHERNET;
        set_ip_length(frame, ETHERNET, bytes);
    }
}

/// Where in the frame that is which is `at` in the plain packet.
fn shifted(within: InnerPosition, at: usize) -> usize {
    at - within.in_front + within.opened
}

/// Writes the length of a whole packet to its IP header.
fn set_ip_length(frame: &mut [u8], network: usize, bytes: usize) {
    let version = if frame[network] >> 4 == 4 { IpVersion::V4 } else { IpVersion::V6 };
    version.set_length(&mut frame[network..], bytes);
}

/// Where a stream goes on behind a segment; of no use for datagrams.
fn next_seq(frame: &[u8], transport: &TransportHeader) -> Seq {
    match transport.protocol {
        Protocol::Tcp => transport.seq(frame) + transport.payload_len() as u32,
        _ => Seq::default(),
    }
}

/// Whether a datagram is all of its IP packet. What is behind it there (RFC 9868 has options in it) would be lost.
fn is_all_of_it(frame: &[u8], transport: &TransportHeader) -> bool {
    let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let packet = match transport.version {
        IpVersion::V4 => length(transport.network + 2),
        IpVersion::V6 => length(transport.network + 4) + IpVersion::V6.header_bytes(),
    };
    packet == transport.end - transport.network
}
