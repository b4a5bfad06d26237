//! Segmentation in software, before ESP: for devices that cannot segment. The headers equal a segmenting device's, so
//! that the wire shows no difference.

use offload_api::{Header, TxPacket};
use offload_esp::ETHERNET;
use offload_formats::IpView;
use offload_formats::{Headers, IpVersion, TransportHeader};
use smallvec::SmallVec;

/// An iterator over the segments of a large packet.
pub(super) struct PlainSegments<'a> {
    packet: &'a TxPacket,
    transport: Option<TransportHeader>,
    version: IpVersion,
    payload: usize,
    sent: usize,
    made: u32,
    fragment: usize,
    at_in_fragment: usize,
}

/// One segment.
pub(super) struct PlainSegment<'a> {
    /// Ethernet, IP and transport headers. Checksums are not filled in yet.
    pub(super) header: Header,
    /// Payload, borrowed from the large packet.
    pub(super) pieces: SmallVec<[&'a [u8]; 4]>,
}

impl<'a> PlainSegments<'a> {
    pub(super) fn new(packet: &'a TxPacket, view: &IpView) -> PlainSegments<'a> {
        PlainSegments {
            packet,
            transport: Headers::parse_unfinished(&packet.header).transport(),
            version: if view.is_ipv6() { IpVersion::V6 } else { IpVersion::V4 },
            payload: packet.payload_len(),
            sent: 0,
            made: 0,
            fragment: 0,
            at_in_fragment: 0,
        }
    }

    /// Returns the number of segments.
    pub(super) fn count(packet: &TxPacket) -> u32 {
        let most = packet.ask.mss.map_or(usize::MAX, |mss| usize::from(mss).max(1));
        packet.payload_len().div_ceil(most).max(1) as u32
    }

    fn fix_headers(&self, header: &mut [u8], bytes: usize) {
        match self.transport {
            Some(transport) if self.packet.ask.mss.is_some() => {
                let is_last = self.sent + bytes == self.payload;
                let segment = offload_formats::SegmentPosition { number: self.made, offset: self.sent, is_last };
                transport.make_segment(header, bytes, segment);
            }
            _ => {
                let total = header.len() - ETHERNET + bytes;
                self.version.set_length(&mut header[ETHERNET..], total);
            }
        }
    }
}

impl<'a> Iterator for PlainSegments<'a> {
    type Item = PlainSegment<'a>;

    fn next(&mut self) -> Option<PlainSegment<'a>> {
        if self.made > 0 && self.sent == self.payload {
            return None;
        }
        let most = self.packet.ask.mss.map_or(usize::MAX, |mss| usize::from(mss).max(1));
        let bytes = most.min(self.payload - self.sent);
        // Each segment gets a copy of the large packet's header; lengths, numbers and flags are fixed below.
        let mut header = self.packet.header.clone();
        self.fix_headers(&mut header, bytes);
        let mut pieces = SmallVec::new();
        let mut wanted = bytes;
        // A segment may span several fragments of the payload, which is never copied.
        while wanted > 0 {
            let rest = &self.packet.fragments[self.fragment][self.at_in_fragment..];
            let taken = rest.len().min(wanted);
            pieces.push(&rest[..taken]);
            wanted -= taken;
            self.at_in_fragment += taken;
            if taken == rest.len() {
                self.fragment += 1;
                self.at_in_fragment = 0;
            }
        }
        self.sent += bytes;
        self.made += 1;
        Some(PlainSegment { header, pieces })
    }
}
