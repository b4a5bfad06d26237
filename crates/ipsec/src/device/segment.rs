//! Large packets cut into those that ESP wraps, where the device cannot: headers as a segmenting device makes them,
//! so that the wire shows no difference.

use offload_api::{Header, TxPacket};
use offload_esp::ETHERNET;
use offload_formats::IpView;
use offload_formats::{Headers, IpVersion, TransportHeader};
use smallvec::SmallVec;

/// A packet, cut.
pub(super) struct Segments<'a> {
    packet: &'a TxPacket,
    transport: Option<TransportHeader>,
    version: IpVersion,
    payload: usize,
    sent: usize,
    made: u32,
    fragment: usize,
    at_in_fragment: usize,
}

/// One of the packets it is cut into.
pub(super) struct Segment<'a> {
    /// Ethernet, IP and transport headers; checksums not yet right.
    pub(super) header: Header,
    /// Payload.
    pub(super) pieces: SmallVec<[&'a [u8]; 4]>,
}

impl<'a> Segments<'a> {
    pub(super) fn new(packet: &'a TxPacket, view: &IpView) -> Segments<'a> {
        Segments {
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

    /// How many packets there will be.
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

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        if self.made > 0 && self.sent == self.payload {
            return None;
        }
        let most = self.packet.ask.mss.map_or(usize::MAX, |mss| usize::from(mss).max(1));
        let bytes = most.min(self.payload - self.sent);
        let mut header = self.packet.header.clone();
        self.fix_headers(&mut header, bytes);
        let mut pieces = SmallVec::new();
        let mut wanted = bytes;
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
        Some(Segment { header, pieces })
    }
}
