//! Header fields of segments: the fields that differ between the segments of a packet, and the fields that all share.
//! Devices, IPsec layers and attachments cut and join packets by these rules.
//!
//! Invariant: headers made by [`TransportHeader::make_segment`] are equal, in the sense of
//! [`TransportHeader::says_the_same`], for all segments of a packet. Checksums are not updated here.

use crate::flow::Protocol;
use crate::frame::TransportHeader;
use crate::ip::IpVersion;
use crate::protocol::{TCP, UDP};
use crate::{InternetSum, number};

/// The position of a segment in the packet that it is cut from.
///
/// See [`TransportHeader::make_segment`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPosition {
    /// Number of segments before this segment.
    pub number: u32,
    /// Payload bytes before this segment.
    pub offset: usize,
    /// Whether this is the last segment.
    pub is_last: bool,
}

impl TransportHeader {
    /// Rewrites the packet headers at the start of `frame` so that they describe one segment with `payload_bytes` bytes
    /// of payload. The segment gets its own length, IPv4 identification and sequence number. FIN and PSH are kept only
    /// in the last segment (RFC 9293 3.8.3), CWR only in the first (RFC 3168 6.1.2).
    ///
    /// # Panics
    /// If `frame` does not hold the headers.
    ///
    /// ```
    /// use offload_formats::{Headers, SegmentPosition};
    ///
    /// let mut header = vec![2; 12];
    /// header.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 9, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// header.extend([0, 9, 0, 9, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
    /// let tcp = Headers::parse_unfinished(&header).transport().unwrap();
    /// tcp.make_segment(&mut header, 1000, SegmentPosition { number: 2, offset: 2000, is_last: false });
    /// assert_eq!(header[16..18], 1040u16.to_be_bytes());
    /// assert_eq!(header[18..20], [0, 11], "the identification counts segments");
    /// assert_eq!(header[38..42], 2100u32.to_be_bytes());
    /// assert_eq!(header[47], 0x10, "no PSH before the last");
    /// ```
    #[inline]
    pub fn make_segment(&self, frame: &mut [u8], payload_bytes: usize, segment: SegmentPosition) {
        self.set_lengths(frame, payload_bytes);
        if self.version == IpVersion::V4 {
            let at = self.network + IDENTIFICATION;
            // RFC 6864 section 4 requires unique identifications only for packets that may be fragmented; counting up
            // is valid for all packets.
            let identification = self.identification(frame).wrapping_add(segment.number as u16);
            frame[at..at + 2].copy_from_slice(&identification.to_be_bytes());
        }
        if self.protocol == Protocol::Tcp {
            let seq = self.seq(frame) + segment.offset as u32;
            frame[self.header + 4..self.header + 8].copy_from_slice(&seq.0.to_be_bytes());
            let flags = &mut frame[self.header + FLAGS];
            if !segment.is_last {
                *flags &= !LAST_ONLY;
            }
            if segment.number > 0 {
                *flags &= !CWR;
            }
        }
    }

    /// Rewrites the first segment's headers at the start of `frame` so that they describe the joined packet, with
    /// `payload_bytes` bytes of payload and the flags of the last segment ([`last_flags`](Self::last_flags)).
    ///
    /// # Panics
    /// If `frame` does not hold the headers.
    ///
    /// ```
    /// use offload_formats::Headers;
    ///
    /// let mut frame = vec![2; 12];
    /// frame.extend([0x08, 0x00, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// frame.extend([0, 9, 0, 9, 0, 9, 0, 0, 1]);
    /// let udp = Headers::parse(&frame).transport().unwrap();
    /// udp.make_joined(&mut frame, 40, 0);
    /// assert_eq!((&frame[16..18], &frame[38..40]), (&[0, 68][..], &[0, 48][..]));
    /// ```
    pub fn make_joined(&self, frame: &mut [u8], payload_bytes: usize, last_flags: u8) {
        self.set_lengths(frame, payload_bytes);
        if self.protocol == Protocol::Tcp {
            frame[self.header + FLAGS] |= last_flags;
        }
    }

    /// Tests whether `frame`, with headers at the offsets of `first`, can be joined with `first`: all headers are
    /// equal, except lengths, IPv4 identification, checksums, and TCP's sequence number, FIN and PSH.
    ///
    /// # Panics
    /// If a frame does not hold the headers.
    ///
    /// ```
    /// use offload_formats::Headers;
    ///
    /// let mut first = vec![2; 12];
    /// first.extend([0x08, 0x00, 0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// first.extend([0, 9, 0, 9, 0, 9, 0, 0, 1]);
    /// let udp = Headers::parse(&first).transport().unwrap();
    /// let mut next = first.clone();
    /// next[19] = 2; // identification
    /// assert!(udp.says_the_same(&first, &next));
    /// next[15] = 3; // congestion experienced
    /// assert!(!udp.says_the_same(&first, &next));
    /// ```
    #[inline]
    pub fn says_the_same(&self, first: &[u8], frame: &[u8]) -> bool {
        let same = |from: usize, to: usize| first[from..to] == frame[from..to];
        let (ip, tcp) = (self.network, self.header);
        // Compares all bytes of the IP header except length and identification, which `set_lengths` and `make_segment`
        // write, and the checksum.
        let network = match self.version {
            IpVersion::V4 => same(ip, ip + 2) && same(ip + 6, ip + 10) && same(ip + 12, tcp),
            IpVersion::V6 => same(ip, ip + 4) && same(ip + 6, tcp),
        };
        let transport = || match self.protocol {
            Protocol::Udp => same(tcp, tcp + UDP_LENGTH),
            _ => {
                same(tcp, tcp + 4)
                    && same(tcp + 8, tcp + FLAGS)
                    // FIN and PSH may differ, because only the last segment carries them.
                    && first[tcp + FLAGS] & !LAST_ONLY == frame[tcp + FLAGS] & !LAST_ONLY
                    && same(tcp + FLAGS + 1, tcp + CHECKSUM)
                    && same(tcp + CHECKSUM + 2, self.payload)
            }
        };
        same(0, ip) && network && transport()
    }

    /// Tests whether a segment has the addresses and ports of `first`. `of_first` holds the header offsets of `first`.
    ///
    /// ```
    /// use offload_formats::Headers;
    ///
    /// let mut frame = vec![2; 12];
    /// frame.extend([0x08, 0x00, 0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// frame.extend([0, 9, 0, 9, 0, 9, 0, 0, 1]);
    /// let udp = Headers::parse(&frame).transport().unwrap();
    /// let mut other = frame.clone();
    /// assert!(udp.is_of_flow(&other, &udp, &frame));
    /// other[35] = 8; // from another port
    /// assert!(!udp.is_of_flow(&other, &udp, &frame));
    /// ```
    #[inline]
    pub fn is_of_flow(&self, frame: &[u8], of_first: &TransportHeader, first: &[u8]) -> bool {
        let ports = |frame: &[u8], at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        self.protocol == of_first.protocol
            && self.version == of_first.version
            && ports(frame, self.header) == ports(first, of_first.header)
            && self.addresses(frame) == of_first.addresses(first)
    }

    /// Tests whether other segments may be joined after this segment. True only for TCP with ACK and optionally ECE:
    /// FIN or PSH ends a joined packet, and a segment with any other flag is delivered separately.
    ///
    /// ```
    /// # let mut frame = vec![2; 12];
    /// # frame.extend([0x08, 0x00, 0x45, 0, 0, 41, 0, 9, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// # frame.extend([0, 9, 0, 9, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0, 1]);
    /// # let tcp = offload_formats::Headers::parse(&frame).transport().unwrap();
    /// assert!(tcp.may_be_first(&frame)); // an ACK
    /// frame[47] |= 0x08; // PSH: nothing may follow
    /// assert!(!tcp.may_be_first(&frame));
    /// ```
    #[inline]
    pub fn may_be_first(&self, frame: &[u8]) -> bool {
        // SYN, RST, URG and CWR change the receiver's state, and must be seen at their exact position.
        self.protocol == Protocol::Tcp && frame[self.header + FLAGS] & !ECE == ACK
    }

    /// Returns FIN and PSH of a TCP segment, which only the last of the joined segments may have. Returns zero for UDP.
    ///
    /// See [`make_joined`](Self::make_joined).
    #[inline]
    pub fn last_flags(&self, frame: &[u8]) -> u8 {
        if self.protocol == Protocol::Tcp { frame[self.header + FLAGS] & LAST_ONLY } else { 0 }
    }

    /// Returns the identification of an IPv4 packet. Returns zero for IPv6, which has no such field.
    ///
    /// See [`make_segment`](Self::make_segment).
    pub fn identification(&self, frame: &[u8]) -> u16 {
        match self.version {
            IpVersion::V4 => number(frame, self.network + IDENTIFICATION).unwrap_or(0),
            IpVersion::V6 => 0,
        }
    }

    /// Sums the pseudo header of the packet in `frame`, whose transport length reaches from `self.header` to `self.end`
    /// (RFC 9293 3.1, RFC 8200 8.1).
    ///
    /// ```
    /// # let mut frame = vec![2; 12];
    /// # frame.extend([0x08, 0x00, 0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// # frame.extend([0, 9, 0, 9, 0, 9, 0, 0, 1]);
    /// # let udp = offload_formats::Headers::parse(&frame).transport().unwrap();
    /// // 10.0.0.1, 10.0.0.2, UDP, 9 bytes
    /// assert_eq!(udp.pseudo_sum(&frame).finish(), !(0x0a00 + 1 + 0x0a00 + 2 + 17 + 9));
    /// ```
    pub fn pseudo_sum(&self, frame: &[u8]) -> InternetSum {
        let mut sum = InternetSum::default();
        sum.add(self.addresses(frame));
        let protocol = if self.protocol == Protocol::Udp { UDP } else { TCP };
        let bytes = ((self.end - self.header) as u32).to_be_bytes();
        sum.add(&[0, protocol, bytes[0], bytes[1], bytes[2], bytes[3]]);
        sum
    }

    #[inline]
    fn set_lengths(&self, frame: &mut [u8], payload_bytes: usize) {
        self.version.set_length(&mut frame[self.network..], self.payload - self.network + payload_bytes);
        if self.protocol == Protocol::Udp {
            // RFC 768: a UDP header repeats the length.
            let bytes = (self.payload - self.header + payload_bytes) as u16;
            let at = self.header + UDP_LENGTH;
            frame[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
        }
    }
}

/// Offset of the identification in an IPv4 header.
const IDENTIFICATION: usize = 4;
/// Offset of the length in a UDP header.
const UDP_LENGTH: usize = 4;
/// Offsets of the flags and the checksum in a TCP header.
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;
/// Set on all segments or on no segment of a packet.
const ECE: u8 = 0x40;
/// FIN and PSH, allowed only on the last segment.
const LAST_ONLY: u8 = 0x01 | 0x08;
