//! Segmentation offload for TCP and UDP: cuts one packet with a large payload into segments or datagrams with their own
//! headers.
//!
//! Segments are made one at a time, as the port has room. The payload is copied or encrypted from the fragments
//! directly into the frame. The fragments determine the payload length; the length in the packet's IP header is
//! ignored, because that field cannot express more than 64 KiB.

use bytes::BytesMut;
use offload_api::TxPacket;
use offload_base::{BufferPool, Seq};
use offload_formats::{Headers, SegmentPosition, TransportHeader};

/// A packet that is being sent, and its progress.
#[derive(Debug)]
pub(crate) struct Segmenter {
    packet: TxPacket,
    transport: Option<TransportHeader>,
    payload_bytes: usize,
    sent: usize,
    segments: u32,
    fragment: usize,
    at_in_fragment: usize,
}

impl Segmenter {
    /// Starts a packet.
    pub(crate) fn new(packet: TxPacket) -> Segmenter {
        Segmenter {
            transport: Headers::parse_unfinished(&packet.header).transport(),
            payload_bytes: packet.payload_len(),
            packet,
            sent: 0,
            segments: 0,
            fragment: 0,
            at_in_fragment: 0,
        }
    }

    pub(crate) fn packet(&self) -> &TxPacket {
        &self.packet
    }

    /// Tests whether the packet has headers that the device can adjust.
    pub(crate) fn has_transport(&self) -> bool {
        self.transport.is_some()
    }

    /// Tests whether all bytes are sent.
    pub(crate) fn is_done(&self) -> bool {
        self.segments > 0 && self.sent == self.payload_bytes
    }

    /// Makes the next segment. `append(seq, fragment, source, frame)` appends the payload bytes `source` of the given
    /// fragment to `frame`, encrypted if necessary, without changing their number. Calls are in order.
    ///
    /// # Errors
    /// The error of `append`; the packet must then be given up.
    pub(crate) fn next_frame<E>(
        &mut self,
        pool: &mut BufferPool,
        mut append: impl FnMut(Seq, usize, &[u8], &mut BytesMut) -> Result<(), E>,
    ) -> Result<BytesMut, E> {
        let header_bytes = self.packet.header.len();
        let most = self.packet.ask.mss.map_or(self.payload_bytes, usize::from);
        let bytes = most.min(self.payload_bytes - self.sent);
        // A packet without `mss` may be longer than a pool buffer, for example on a link with jumbo frames.
        let mut frame = if header_bytes + bytes <= pool.buffer_bytes() {
            pool.take()
        } else {
            BytesMut::with_capacity(header_bytes + bytes)
        };
        frame.extend_from_slice(&self.packet.header);
        let mut left = bytes;
        while left > 0 {
            let source = &self.packet.fragments[self.fragment][self.at_in_fragment..];
            let taken = source.len().min(left);
            // A fragment may end inside a segment, so the position is that of the piece and not of the segment.
            let seq = self.packet.ask.seq + (self.sent + bytes - left) as u32;
            append(seq, self.fragment, &source[..taken], &mut frame)?;
            left -= taken;
            self.at_in_fragment += taken;
            if self.at_in_fragment == self.packet.fragments[self.fragment].len() {
                self.fragment += 1;
                self.at_in_fragment = 0;
            }
        }
        self.fix_headers(&mut frame);
        self.sent += bytes;
        self.segments += 1;
        Ok(frame)
    }

    /// Sets the segment's length, identification, sequence number, flags and checksums.
    fn fix_headers(&self, frame: &mut [u8]) {
        let Some(transport) = self.transport else { return };
        let transport = TransportHeader { end: frame.len(), ..transport };
        if self.packet.ask.mss.is_some() {
            let bytes = transport.payload_len();
            let is_last = self.sent + bytes == self.payload_bytes;
            transport.make_segment(frame, bytes, SegmentPosition { number: self.segments, offset: self.sent, is_last });
        }
        if self.packet.ask.checksum {
            transport.fill_checksums(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use core::convert::Infallible;
    use offload_api::TxAsk;
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, IpRepr, Ipv4Packet,
        Ipv6Packet, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket,
    };

    fn addresses(six: bool) -> [IpAddress; 2] {
        if six {
            [IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2)]
        } else {
            [IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2)]
        }
    }

    /// Returns headers up to TCP's. IPv6 headers include an empty extension header.
    fn header(seq: u32, control: TcpControl, six: bool) -> Vec<u8> {
        let tcp = TcpRepr {
            src_port: 443,
            dst_port: 5000,
            control,
            seq_number: TcpSeqNumber(seq as i32),
            ack_number: Some(TcpSeqNumber(77)),
            window_len: 1000,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let [source, destination] = addresses(six);
        let next = if six { IpProtocol::Ipv6Opts } else { IpProtocol::Tcp };
        let extension: &[u8] = if six { &[6, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
        let ip = IpRepr::new(source, destination, next, extension.len() + tcp.buffer_len(), 64);
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
            dst_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
            ethertype: if six { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 },
        };
        let tcp_at = 14 + ip.header_len() + extension.len();
        let mut bytes = vec![0; tcp_at + tcp.buffer_len()];
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..]));
        ip.emit(&mut bytes[14..], &ChecksumCapabilities::ignored());
        bytes[tcp_at - extension.len()..tcp_at].copy_from_slice(extension);
        let mut packet = TcpPacket::new_unchecked(&mut bytes[tcp_at..]);
        tcp.emit(&mut packet, &source, &destination, &ChecksumCapabilities::ignored());
        bytes
    }

    /// Parses a frame with smoltcp: the identification, if any, and the TCP segment.
    fn read(frame: &[u8], six: bool) -> (Option<u16>, &[u8]) {
        if six {
            let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
            assert_eq!(ip.total_len(), frame.len() - 14);
            (None, &ip.payload()[8..])
        } else {
            let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
            assert!(ip.verify_checksum());
            (Some(ip.ident()), ip.payload())
        }
    }

    fn segments_of(packet: TxPacket) -> Vec<BytesMut> {
        let mut pool = BufferPool::new(2048, 4);
        let mut segmenter = Segmenter::new(packet);
        let mut frames = Vec::new();
        while !segmenter.is_done() {
            let frame = segmenter.next_frame(&mut pool, |_, _, from, to| {
                to.extend_from_slice(from);
                Ok::<(), Infallible>(())
            });
            frames.push(frame.unwrap());
        }
        frames
    }

    proptest! {
        #[test]
        fn segments_are_right_and_carry_the_payload(
            fragments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..5),
            mss in 1u16..3000,
            seq: u32,
            six: bool,
        ) {
            let payload: Vec<u8> = fragments.concat();
            let packet = TxPacket {
                header: header(seq, TcpControl::Fin, six).into(),
                fragments: fragments.into_iter().map(Bytes::from).collect(),
                ask: TxAsk { seq: Seq(seq), checksum: true, mss: Some(mss), ..TxAsk::default() },
            };
            let frames = segments_of(packet);
            prop_assert_eq!(frames.len(), payload.len().div_ceil(usize::from(mss)).max(1));
            let mut received = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                // smoltcp parses the frames independently of the project's own parser.
                let (identification, tcp) = read(frame, six);
                prop_assert!(identification.is_none_or(|identification| usize::from(identification) == number));
                let tcp = TcpPacket::new_checked(tcp).unwrap();
                let [source, destination] = addresses(six);
                prop_assert!(tcp.verify_checksum(&source, &destination));
                prop_assert_eq!(tcp.seq_number().0 as u32, seq.wrapping_add(received.len() as u32));
                // FIN belongs to the last segment only.
                prop_assert_eq!(tcp.fin(), number + 1 == frames.len());
                received.extend_from_slice(tcp.payload());
                let transport = Headers::parse(frame).transport().unwrap();
                prop_assert_eq!(transport.are_checksums_right(frame), Some(true));
                let flow = transport.flow_of_receiver(frame);
                prop_assert_eq!((flow.local.ip(), flow.remote.ip()), (destination.into(), source.into()));
                prop_assert_eq!((flow.local.port(), flow.remote.port(), transport.seq(frame)), (5000, 443, Seq(tcp.seq_number().0 as u32)));
            }
            prop_assert_eq!(received, payload);
        }

        /// With payloads above and below the maximum of an IP length field, the wire carries the same frames as from
        /// many small packets.
        #[test]
        fn packets_of_all_sizes_are_cut_by_the_same_rule(
            bytes in prop_oneof![1usize..100_000, 65_000usize..512 << 10],
            pieces in 1usize..20_000,
            mss in prop_oneof![536u16..1460, 1u16..9000],
            each in 1usize..60,
            seq: u32,
            six: bool,
        ) {
            let mut payload = vec![0; bytes];
            offload_base::Seed(u64::from(seq)).stream("payload").fill(&mut payload);
            let payload = Bytes::from(payload);
            let identification = seq as u16;
            // Smaller packets continue sequence numbers and identifications where the large packet's segments have
            // them.
            let packet = |from: usize, to: usize, control: TcpControl| {
                let at = seq.wrapping_add(from as u32);
                let mut header = header(at, control, six);
                if !six {
                    let number = identification.wrapping_add((from / usize::from(mss)) as u16);
                    header[18..20].copy_from_slice(&number.to_be_bytes());
                }
                // The device does not read the length.
                header[if six { 18 } else { 16 }..][..2].copy_from_slice(&(to as u16).to_be_bytes());
                let fragments = (from..to).step_by(pieces).map(|at| payload.slice(at..to.min(at + pieces))).collect();
                let ask = TxAsk { seq: Seq(at), checksum: true, mss: Some(mss), ..TxAsk::default() };
                TxPacket { header: header.into(), fragments, ask }
            };
            let whole = segments_of(packet(0, bytes, TcpControl::Fin));
            let step = each * usize::from(mss);
            let smaller = (0..bytes).step_by(step).flat_map(|from| {
                let to = bytes.min(from + step);
                segments_of(packet(from, to, if to == bytes { TcpControl::Fin } else { TcpControl::None }))
            });
            prop_assert!(whole.iter().all(|frame| frame.len() <= usize::from(mss) + 100));
            prop_assert!(smaller.eq(whole));
        }

        #[test]
        fn datagrams_are_right_and_carry_the_payload(
            fragments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..5),
            mss in 1u16..3000,
            six: bool,
        ) {
            let payload: Vec<u8> = fragments.concat();
            let [source, destination] = addresses(six);
            let ip = IpRepr::new(source, destination, IpProtocol::Udp, 8 + payload.len(), 64);
                let mut header = vec![0; 12];
            header.extend_from_slice(if six { &[0x86, 0xdd] } else { &[8, 0] });
            header.resize(14 + ip.header_len() + 8, 0);
            ip.emit(&mut header[14..], &ChecksumCapabilities::ignored());
            let mut udp = UdpPacket::new_unchecked(&mut header[14 + ip.header_len()..]);
            udp.set_src_port(443);
            udp.set_dst_port(5000);
            let packet = TxPacket {
                header: header.into(),
                fragments: fragments.into_iter().map(Bytes::from).collect(),
                ask: TxAsk { checksum: true, mss: Some(mss), ..TxAsk::default() },
            };
            let frames = segments_of(packet);
            prop_assert_eq!(frames.len(), payload.len().div_ceil(usize::from(mss)).max(1));
            let mut received = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                let udp = if six {
                    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
                    prop_assert_eq!(ip.total_len(), frame.len() - 14);
                    &frame[54..]
                } else {
                    // UDP has no field that orders datagrams, so the IPv4 identification is checked instead.
                    let (identification, udp) = read(frame, false);
                    prop_assert_eq!(identification, Some(number as u16));
                    udp
                };
                let udp = UdpPacket::new_checked(udp).unwrap();
                prop_assert_eq!(usize::from(udp.len()), 8 + udp.payload().len());
                prop_assert!(udp.checksum() != 0 && udp.verify_checksum(&source, &destination));
                prop_assert_eq!((udp.src_port(), udp.dst_port()), (443, 5000));
                if number + 1 < frames.len() {
                    prop_assert_eq!(udp.payload().len(), usize::from(mss));
                }
                received.extend_from_slice(udp.payload());
                prop_assert_eq!(Headers::parse(frame).transport().unwrap().are_checksums_right(frame), Some(true));
            }
            prop_assert_eq!(received, payload);
        }

        #[test]
        fn garbage_headers_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), mss in 1u16..100, kind in 0..3usize) {
            let claim: &[u8] = [&[][..], &[8, 0, 0x45], &[0x86, 0xdd, 0x60]][kind];
            if bytes.len() >= 15 {
                bytes[12..12 + claim.len()].copy_from_slice(claim);
            }
            let packet = TxPacket {
                header: bytes.clone().into(),
                fragments: [Bytes::from_static(&[1; 250])].into_iter().collect(),
                ask: TxAsk { mss: Some(mss), checksum: true, ..TxAsk::default() },
            };
            segments_of(packet);
            if let Some(transport) = Headers::parse(&bytes).transport() {
                transport.are_checksums_right(&bytes);
                transport.flow_of_receiver(&bytes);
            }
        }
    }
}
