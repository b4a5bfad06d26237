//! UDP headers, read and written (RFC 768). Checksums are the software's: devices know TCP's.

use super::icmp::Refusal;
use super::{Arrival, ETHERNET_BYTES, IP_BYTES, Network, OUTBOX_PACKETS, UDP};
use crate::counters::HostCounters;
use crate::udp::SendError;
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use core::ops::Range;
use ip_packets::Sum;
use offload_api::rx::Checksums;
use offload_api::{Header, TxAsk, TxPacket};
use offload_base::Instant;
use smallvec::smallvec;
use smoltcp::wire::{IpProtocol, UdpPacket};

impl Network {
    /// A datagram from `source`, at `place` in `frame`.
    pub(super) fn on_udp(
        &self,
        source: Ipv4Addr,
        frame: &[u8],
        place: Range<usize>,
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<Arrival> {
        let Some(udp) = UdpPacket::new_checked(&frame[place.clone()]).ok().filter(|udp| udp.dst_port() != 0) else {
            counters.udp_in_errors += 1;
            return None;
        };
        let (bytes, start) = (usize::from(udp.len()), place.start);
        // RFC 768: zero says that the sender made none.
        if checksums == Checksums::Unchecked && udp.checksum() != 0 {
            let mut sum = Sum::pseudo_header(UDP, source.into(), self.address().into(), bytes);
            sum.add(&frame[start..start + bytes]);
            if !sum.is_right() {
                counters.udp_in_checksum_errors += 1;
                return None;
            }
        }
        Some(Arrival::Datagram {
            port: udp.dst_port(),
            from: SocketAddr::V4(SocketAddrV4::new(source, udp.src_port())),
            payload: start + UDP_BYTES..start + bytes,
        })
    }

    /// Tells the sender of the datagram in `frame` that nobody listens at its port.
    pub(crate) fn refuse_datagram(&mut self, now: Instant, frame: &[u8], counters: &mut HostCounters) {
        self.refuse(now, &frame[ETHERNET_BYTES..], Refusal::Port, counters);
    }

    /// Puts a datagram on its way. `mtu` is the interface's.
    pub(crate) fn send_datagram(
        &mut self,
        now: Instant,
        port: u16,
        to: SocketAddr,
        data: Bytes,
        mtu: u16,
        counters: &mut HostCounters,
    ) -> Result<(), SendError> {
        let IpAddr::V4(destination) = to.ip() else { return Err(SendError::Unreachable) };
        if to.port() == 0 || !self.reaches(to.ip()) {
            return Err(SendError::Unreachable);
        }
        let most = usize::from(mtu).saturating_sub(IP_BYTES + UDP_BYTES);
        if data.len() > most {
            return Err(SendError::TooLong { most });
        }
        // Half of the outbox is for answers.
        if self.outbox.len() >= OUTBOX_PACKETS / 2 {
            return Err(SendError::Full);
        }
        let bytes = UDP_BYTES + data.len();
        let mut header = Header::from_elem(0, ETHERNET_BYTES + IP_BYTES + UDP_BYTES);
        self.write_ip(&mut header, destination, IpProtocol::Udp, bytes);
        let mut udp = UdpPacket::new_unchecked(&mut header[ETHERNET_BYTES + IP_BYTES..]);
        udp.set_src_port(port);
        udp.set_dst_port(to.port());
        udp.set_len(bytes as u16);
        let mut sum = Sum::pseudo_header(UDP, self.address().into(), destination.into(), bytes);
        sum.add(&header[ETHERNET_BYTES + IP_BYTES..]);
        sum.add(&data);
        // RFC 768: a sum of zero is sent as its other form, for zero says that there is none.
        let checksum = Some(sum.finish()).filter(|sum| *sum != 0).unwrap_or(u16::MAX);
        UdpPacket::new_unchecked(&mut header[ETHERNET_BYTES + IP_BYTES..]).set_checksum(checksum);
        counters.udp_out_datagrams += 1;
        let fragments = if data.is_empty() { Default::default() } else { smallvec![data] };
        self.answer(now, destination, TxPacket { header, fragments, ask: TxAsk::default() }, counters);
        Ok(())
    }
}

/// A UDP header.
const UDP_BYTES: usize = 8;
