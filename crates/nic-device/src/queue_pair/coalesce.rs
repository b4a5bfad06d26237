//! Large receive offload: the choice of segments that may be joined into one packet for the host.
//!
//! Segments are joined if they follow each other without a gap and differ only in sequence number, length, IPv4
//! identification and checksum. A different ECN mark, timestamp, acknowledgment, window, option or hop limit keeps
//! segments apart, as in Linux's GRO. A segment that is shorter than the first, or has PSH or FIN, is the last.
//! Datagrams of one sender and one size are joined in order if the NIC's configuration says so. The caller checks that the
//! device's verdicts on the segments are equal.
//!
//! Packets that an engine opened are compared without their outer headers. If these are still in the frame (ESP in
//! crypto offload), the joined packet keeps the first packet's headers and the last packet's trailer: see [`OuterParts`].
//!
//! Invariant: the IP header gives the length of the joined packet, or zero if the length does not fit.

use bytes::BytesMut;
use nic_engine::InnerPosition;
use offload_api::Protocol;
use offload_base::Seq;
use offload_formats::frame::ETHERNET_BYTES as ETHERNET;
use offload_formats::{IpVersion, TransportHeader};

/// The common properties of segments that are being joined, and the expected next segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedPacket {
    transport: TransportHeader,
    /// Payload bytes of each segment but the last.
    segment_bytes: usize,
    payload_bytes: usize,
    next: Seq,
    pub(crate) segments: u32,
    /// PSH and FIN of the last segment.
    last_flags: u8,
}

impl JoinedPacket {
    /// Starts with `frame`, if others may follow it.
    pub(crate) fn begin(frame: &[u8], transport: &TransportHeader, datagrams: bool) -> Option<JoinedPacket> {
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
        first.then(|| JoinedPacket {
            transport: TransportHeader { end: transport.payload, ..*transport },
            segment_bytes: payload_bytes,
            payload_bytes,
            next: next_seq(frame, transport),
            segments: 1,
            last_flags: 0,
        })
    }

    /// Returns the length of the first segment's headers, which become the headers of the joined packet.
    pub(crate) fn headers(&self) -> usize {
        self.transport.payload
    }

    /// Tests whether `frame` belongs to the same flow; `first` are the headers of the first segment.
    pub(crate) fn is_of_flow(&self, first: &[u8], frame: &[u8], transport: &TransportHeader) -> bool {
        transport.is_of_flow(frame, &self.transport, first)
    }

    /// Tests whether `frame`, of the same flow, may be the next segment in an IP packet of at most `most` bytes.
    pub(crate) fn takes(&self, most: usize, first: &[u8], frame: &[u8], transport: &TransportHeader) -> bool {
        let bytes = transport.payload_len();
        // The limit applies to the IP packet, so headers count once.
        let whole = self.transport.payload - self.transport.network + self.payload_bytes + bytes;
        let (most, in_order) = match self.transport.protocol {
            // UDP has no form for lengths above 64 KiB.
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

    /// Adds `frame`, which was tested to be the next segment.
    pub(crate) fn add(&mut self, frame: &[u8], transport: &TransportHeader) {
        let bytes = transport.payload_len();
        self.payload_bytes += bytes;
        self.next = next_seq(frame, transport);
        self.segments += 1;
        self.last_flags = transport.last_flags(frame);
    }

    /// Tests whether no segment can follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.last_flags != 0 || !self.payload_bytes.is_multiple_of(self.segment_bytes)
    }

    /// Returns the payload bytes of each segment but the last; `None` for a single segment.
    pub(crate) fn segment_bytes(&self) -> Option<core::num::NonZeroU16> {
        let several = self.segments > 1;
        if several { core::num::NonZeroU16::new(self.segment_bytes as u16) } else { None }
    }

    /// Rewrites the first segment's headers so that they describe the joined packet. The checksums are not updated and
    /// become invalid.
    pub(crate) fn finish(&self, headers: &mut [u8]) {
        if self.segments > 1 {
            self.transport.make_joined(headers, self.payload_bytes, self.last_flags);
        }
    }
}

/// The outer parts of an opened packet that others may join.
#[derive(Debug)]
pub(crate) struct OuterParts {
    /// Headers of the first segment without the outer ones.
    plain: BytesMut,
    within: InnerPosition,
    /// Bytes after the payload of the last segment.
    tail: BytesMut,
}

impl OuterParts {
    /// Removes the bytes after the payload of `frame`, so that further payload can be appended.
    pub(crate) fn begin(
        plain: &[u8],
        transport: &TransportHeader,
        within: InnerPosition,
        frame: &mut BytesMut,
    ) -> OuterParts {
        let end = shifted(within, transport.end);
        let tail = frame[end..].into();
        frame.truncate(end);
        OuterParts { plain: plain[..transport.payload].into(), within, tail }
    }

    /// Returns the headers of the first segment, without the outer ones.
    pub(crate) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Returns the payload of `frame`, for the decrypted packet's `transport` header, and the bytes after the payload.
    pub(crate) fn parts<'a>(
        within: InnerPosition,
        frame: &'a [u8],
        transport: &TransportHeader,
    ) -> (&'a [u8], &'a [u8]) {
        frame[shifted(within, transport.payload)..].split_at(transport.payload_len())
    }

    /// Tests whether the outer headers of `frame` equal those of `first`, except for per-packet fields.
    pub(crate) fn takes(&self, first: &[u8], frame: &[u8], within: InnerPosition) -> bool {
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let own = match first[ETHERNET] >> 4 {
            // IPv4: length, identification and checksum may differ.
            4 => {
                same(ETHERNET, ETHERNET + 2) && same(ETHERNET + 6, ETHERNET + 10) && same(ETHERNET + 12, within.headers)
            }
            // IPv6: the length may differ.
            _ => same(ETHERNET, ETHERNET + 4) && same(ETHERNET + 6, within.headers),
        };
        within == self.within && same(0, ETHERNET) && own
    }

    /// Replaces the bytes after the payload.
    pub(crate) fn set_tail(&mut self, tail: &[u8]) {
        self.tail.clear();
        self.tail.extend_from_slice(tail);
    }

    /// Completes `frame`, which ends with the payload, and rewrites its headers for all segments.
    pub(crate) fn finish(mut self, joint: &JoinedPacket, frame: &mut BytesMut) {
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

/// Converts an offset in the plain packet to an offset in the frame.
fn shifted(within: InnerPosition, at: usize) -> usize {
    at - within.in_front + within.opened
}

/// Writes the length of a whole packet to its IP header.
fn set_ip_length(frame: &mut [u8], network: usize, bytes: usize) {
    let version = if frame[network] >> 4 == 4 { IpVersion::V4 } else { IpVersion::V6 };
    version.set_length(&mut frame[network..], bytes);
}

/// Returns the sequence number after a segment; unused for datagrams.
fn next_seq(frame: &[u8], transport: &TransportHeader) -> Seq {
    match transport.protocol {
        Protocol::Tcp => transport.seq(frame) + transport.payload_len() as u32,
        _ => Seq::default(),
    }
}

/// Tests whether a datagram fills its IP packet. Joining would lose bytes after it, such as the options of RFC 9868.
fn is_all_of_it(frame: &[u8], transport: &TransportHeader) -> bool {
    let length = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let packet = match transport.version {
        IpVersion::V4 => length(transport.network + 2),
        IpVersion::V6 => length(transport.network + 4) + IpVersion::V6.header_bytes(),
    };
    packet == transport.end - transport.network
}
