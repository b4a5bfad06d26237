//! TCP segmentation offload: one packet with a large payload in, segments with their own headers out.
//!
//! Segments are made one at a time, as the port has room for them, payload copied (or encrypted) from the
//! fragments straight into the frame.

use crate::engine::checksum;
use crate::engine::layout::{IP, Layout};
use bytes::BytesMut;
use offload_api::TxPacket;
use offload_base::{BufferPool, Seq};

/// A packet being sent, and how far.
#[derive(Debug)]
pub(crate) struct Segmenter {
    packet: TxPacket,
    layout: Option<Layout>,
    payload_bytes: usize,
    sent: usize,
    segments: u16,
    fragment: usize,
    at_in_fragment: usize,
}

impl Segmenter {
    /// Starts on a packet.
    pub(crate) fn new(packet: TxPacket) -> Segmenter {
        Segmenter {
            layout: Layout::of_headers(&packet.header),
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

    /// Whether it has headers that this device knows how to fix.
    pub(crate) fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// Whether every byte has gone out.
    pub(crate) fn is_done(&self) -> bool {
        self.segments > 0 && self.sent == self.payload_bytes
    }

    /// Makes the next segment. `move_payload(seq, source, destination)` moves payload, encrypting it on the way if
    /// it wants to; pieces come in order.
    ///
    /// # Errors
    /// Whatever `move_payload` returns; the packet is then to be given up.
    pub(crate) fn next_frame<E>(
        &mut self,
        pool: &mut BufferPool,
        mut move_payload: impl FnMut(Seq, &[u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<BytesMut, E> {
        let header_bytes = self.packet.header.len();
        let most = self.packet.ask.mss.map_or(self.payload_bytes, usize::from);
        let bytes = most.min(self.payload_bytes - self.sent);
        let mut frame = if header_bytes + bytes <= pool.buffer_bytes() {
            pool.take()
        } else {
            BytesMut::with_capacity(header_bytes + bytes)
        };
        frame.extend_from_slice(&self.packet.header);
        frame.resize(header_bytes + bytes, 0);
        let mut at = header_bytes;
        while at < frame.len() {
            let source = &self.packet.fragments[self.fragment][self.at_in_fragment..];
            let taken = source.len().min(frame.len() - at);
            let seq = self.packet.ask.seq + (self.sent + at - header_bytes) as u32;
            move_payload(seq, &source[..taken], &mut frame[at..at + taken])?;
            at += taken;
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

    /// Gives the segment its own length, identification, sequence number, flags and checksums.
    fn fix_headers(&self, frame: &mut [u8]) {
        let Some(layout) = self.layout else { return };
        let layout = Layout { end: frame.len(), ..layout };
        if self.packet.ask.mss.is_some() {
            let total_length = (frame.len() - IP) as u16;
            frame[IP + 2..IP + 4].copy_from_slice(&total_length.to_be_bytes());
            let identification = u16::from_be_bytes([frame[IP + 4], frame[IP + 5]]).wrapping_add(self.segments);
            frame[IP + 4..IP + 6].copy_from_slice(&identification.to_be_bytes());
            let seq = self.packet.ask.seq + self.sent as u32;
            frame[layout.tcp + 4..layout.tcp + 8].copy_from_slice(&seq.0.to_be_bytes());
            let is_last = self.sent + (frame.len() - layout.payload) == self.payload_bytes;
            if !is_last {
                frame[layout.tcp + 13] &= !(FIN | PSH);
            }
            if self.segments > 0 {
                frame[layout.tcp + 13] &= !CWR;
            }
        }
        if self.packet.ask.checksum {
            checksum::fill(frame, &layout);
        }
    }
}

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
/// RFC 3168 6.1.2: only the first segment after the window was cut says so.
const CWR: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use core::convert::Infallible;
    use offload_api::TxAsk;
    use proptest::prelude::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
        Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
    };

    const SOURCE: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
    const DESTINATION: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);

    fn header(seq: u32, control: TcpControl) -> Vec<u8> {
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
        let ip = Ipv4Repr {
            src_addr: SOURCE,
            dst_addr: DESTINATION,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
            dst_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
            ethertype: EthernetProtocol::Ipv4,
        };
        let mut bytes = vec![0; 14 + 20 + tcp.buffer_len()];
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut bytes[..]));
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[14..]), &ChecksumCapabilities::ignored());
        tcp.emit(
            &mut TcpPacket::new_unchecked(&mut bytes[34..]),
            &IpAddress::Ipv4(SOURCE),
            &IpAddress::Ipv4(DESTINATION),
            &ChecksumCapabilities::ignored(),
        );
        bytes
    }

    fn segments_of(packet: TxPacket) -> Vec<BytesMut> {
        let mut pool = BufferPool::new(2048, 4);
        let mut segmenter = Segmenter::new(packet);
        let mut frames = Vec::new();
        while !segmenter.is_done() {
            let frame = segmenter.next_frame(&mut pool, |_, from, to| {
                to.copy_from_slice(from);
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
        ) {
            let payload: Vec<u8> = fragments.concat();
            let packet = TxPacket {
                header: header(seq, TcpControl::Fin).into(),
                fragments: fragments.into_iter().map(Bytes::from).collect(),
                ask: TxAsk { seq: Seq(seq), checksum: true, mss: Some(mss), context: None },
            };
            let frames = segments_of(packet);
            prop_assert_eq!(frames.len(), payload.len().div_ceil(usize::from(mss)).max(1));
            let mut received = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                let ip = Ipv4Packet::new_checked(&frame[14..]).unwrap();
                prop_assert!(ip.verify_checksum());
                prop_assert_eq!(usize::from(ip.ident()), number);
                let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
                prop_assert!(tcp.verify_checksum(&IpAddress::Ipv4(SOURCE), &IpAddress::Ipv4(DESTINATION)));
                prop_assert_eq!(tcp.seq_number().0 as u32, seq.wrapping_add(received.len() as u32));
                prop_assert_eq!(tcp.fin(), number + 1 == frames.len());
                received.extend_from_slice(tcp.payload());
                let layout = Layout::of_frame(frame).unwrap();
                prop_assert!(checksum::is_right(frame, &layout));
            }
            prop_assert_eq!(received, payload);
        }

        #[test]
        fn garbage_headers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), mss in 1u16..100) {
            let packet = TxPacket {
                header: bytes.clone().into(),
                fragments: [Bytes::from_static(&[1; 250])].into_iter().collect(),
                ask: TxAsk { mss: Some(mss), checksum: true, ..TxAsk::default() },
            };
            segments_of(packet);
            if let Some(layout) = Layout::of_frame(&bytes) {
                checksum::is_right(&bytes, &layout);
                layout.flow_of_receiver(&bytes);
            }
        }
    }
}
