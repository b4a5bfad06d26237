//! Large packets cut into those that ESP wraps, where the device cannot: headers as a segmenting device makes them,
//! so that the wire shows no difference.

use offload_api::{Header, TxPacket};
use offload_esp::{ETHERNET, IpView, PROTOCOL_TCP, PROTOCOL_UDP};
use smallvec::SmallVec;

/// A packet, cut.
pub(super) struct Segments<'a> {
    packet: &'a TxPacket,
    view: IpView,
    payload: usize,
    sent: usize,
    made: u16,
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
    pub(super) fn new(packet: &'a TxPacket, view: IpView) -> Segments<'a> {
        Segments { packet, view, payload: packet.payload_len(), sent: 0, made: 0, fragment: 0, at_in_fragment: 0 }
    }

    /// How many packets there will be.
    pub(super) fn count(packet: &TxPacket) -> u32 {
        let most = packet.ask.mss.map_or(usize::MAX, |mss| usize::from(mss).max(1));
        packet.payload_len().div_ceil(most).max(1) as u32
    }

    fn fix_headers(&self, header: &mut [u8], bytes: usize) {
        let total = header.len() - ETHERNET + bytes;
        let ip = &mut header[ETHERNET..];
        if self.view.is_ipv6() {
            ip[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        } else {
            ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            let identification = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(self.made);
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
        }
        let transport = &mut ip[self.view.header..];
        if self.packet.ask.mss.is_none() {
            return;
        }
        match self.view.protocol {
            PROTOCOL_TCP if transport.len() >= 20 => {
                let seq = self.packet.ask.seq + self.sent as u32;
                transport[4..8].copy_from_slice(&seq.0.to_be_bytes());
                if self.sent + bytes < self.payload {
                    transport[13] &= !(FIN | PSH);
                }
                if self.made > 0 {
                    transport[13] &= !CWR;
                }
            }
            PROTOCOL_UDP if transport.len() >= 8 => {
                transport[4..6].copy_from_slice(&((8 + bytes) as u16).to_be_bytes());
            }
            _ => {}
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
        self.made = self.made.wrapping_add(1);
        Some(Segment { header, pieces })
    }
}

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
/// RFC 3168 6.1.2: only the first segment after the window was cut says so.
const CWR: u8 = 0x80;
