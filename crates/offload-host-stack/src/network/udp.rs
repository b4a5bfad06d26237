//! Parsing and building of UDP headers (RFC 768; over IPv6, RFC 8200 8.1).

use super::icmp::UndeliverableReason;
use super::{ETHERNET_BYTES, MAX_OUTBOX_PACKETS, NetworkLayer, ParsedDatagram, ReceivedContent};
use crate::counters::HostCounters;
use crate::udp::SendError;
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use offload_api::rx::Checksums;
use offload_api::{EcnCodepoint, Header, PathCaps, Protection, SendLimits, TxAsk, TxDatagram, TxPacket};
use offload_base::Instant;
use offload_formats::protocol::UDP;
use offload_formats::{InternetSum, IpHeaders, IpVersion};
use smoltcp::wire::{Ipv4Packet, UdpPacket};

impl NetworkLayer {
    /// Processes the datagram in `packet`.
    pub(super) fn on_udp(
        &self,
        packet: &[u8],
        headers: &IpHeaders,
        checksums: Checksums,
        counters: &mut HostCounters,
    ) -> Option<ReceivedContent> {
        let datagram = &packet[headers.upper..headers.end];
        // Destination port 0 is reserved and belongs to no socket.
        let Some(udp) = UdpPacket::new_checked(datagram).ok().filter(|udp| udp.dst_port() != 0) else {
            counters.udp_in_errors += 1;
            return None;
        };
        let bytes = usize::from(udp.len());
        let source = headers.source(packet);
        let right = match (checksums, udp.checksum(), headers.version) {
            (Checksums::Good, ..) => true,
            // RFC 768: zero means no checksum. RFC 8200 8.1: IPv6 requires one.
            (_, 0, version) => version == IpVersion::V4,
            (Checksums::Bad, ..) => false,
            (Checksums::Unchecked, ..) => {
                let mut sum = InternetSum::pseudo_header(UDP, source, headers.destination(packet), bytes);
                sum.add(&datagram[..bytes]);
                sum.is_right()
            }
        };
        if !right {
            counters.udp_in_checksum_errors += 1;
            return None;
        }
        let start = ETHERNET_BYTES + headers.upper;
        Some(ReceivedContent::Datagram(ParsedDatagram {
            from: SocketAddr::new(source, udp.src_port()),
            to: SocketAddr::new(headers.destination(packet), udp.dst_port()),
            ecn: EcnCodepoint::from_bits(headers.ecn(packet)),
            payload: start + UDP_BYTES..start + bytes,
        }))
    }

    /// Reports a closed port to the sender of the datagram in `frame`. `came` is the datagram's protection.
    pub(crate) fn refuse_datagram(
        &mut self,
        now: Instant,
        frame: &[u8],
        came: Protection,
        counters: &mut HostCounters,
    ) {
        self.report_undeliverable(now, &frame[ETHERNET_BYTES..], UndeliverableReason::Port, Some(came), counters);
    }

    /// Queues datagrams: a single one, fragmented if it exceeds the path MTU and may be; or several, cut by a device
    /// with UDP segmentation, or else one by one. `caps` are the device's capabilities.
    pub(crate) fn send_datagrams(
        &mut self,
        now: Instant,
        port: u16,
        mut datagrams: TxDatagram,
        caps: &PathCaps,
        counters: &mut HostCounters,
    ) -> Result<(), SendError> {
        let TxDatagram { to, segment, .. } = datagrams;
        let source = SocketAddr::new(self.source_of(to, datagrams.source)?, port);
        let (all, fits) = (datagrams.payload_len(), self.max_unfragmented_bytes(now, &to, caps));
        let each = segment.map_or(all, |bytes| all.min(bytes.get().into()));
        let may_cut = segment.is_none() && datagrams.ask.is_none() && !datagrams.dont_fragment;
        if each > fits && !may_cut {
            return Err(SendError::SegmentTooLong { most: fits });
        }
        let most = segment.map_or(usize::MAX, |bytes| usize::from(bytes.get()) * MAX_SEGMENTS).min(max_bytes(&to));
        if all > most {
            return Err(SendError::TooLong { most });
        }
        // The limit for packets that the device cuts is the device's, not the path's.
        let offered = if caps.checksum && caps.udp_segmentation { caps.tso_max_bytes as usize } else { 0 };
        let at_once = (offered / each.max(1)).max(1);
        let packets = datagrams.count().div_ceil(at_once);
        // All packets of a call must fit, because a partial send could not be reported.
        if !self.takes_datagrams() || self.outbox.len() + packets > MAX_OUTBOX_PACKETS {
            return Err(SendError::Full);
        }
        for _ in 0..packets {
            let part = datagrams.split_to(at_once);
            counters.udp_out_datagrams += part.count() as u64;
            // A device cannot compute a checksum over several fragments.
            let checksum = caps.checksum && each <= fits;
            self.send_packet(now, source, part, checksum, counters);
        }
        Ok(())
    }

    /// Returns the source address of datagrams to `to`: `source` if given and acceptable.
    pub(crate) fn source_of(&self, to: SocketAddr, source: Option<IpAddr>) -> Result<IpAddr, SendError> {
        let usual = self.source_to(to)?;
        match source {
            Some(source) if source.is_ipv4() != usual.is_ipv4() || !self.addresses.is_own(source) => {
                Err(SendError::ForeignSource)
            }
            source => Ok(source.unwrap_or(usual)),
        }
    }

    /// Returns the limits for datagrams to `to`: bytes of one datagram within the path MTU, number of segments per
    /// call, and total bytes of all segments.
    pub(crate) fn datagram_limits(&self, now: Instant, to: &SocketAddr, caps: &PathCaps) -> SendLimits {
        SendLimits {
            bytes: self.max_unfragmented_bytes(now, to, caps).min(max_bytes(to)),
            segments: MAX_SEGMENTS,
            segments_bytes: max_bytes(to),
        }
    }

    /// Returns the default source address for `to`.
    fn source_to(&self, to: SocketAddr) -> Result<IpAddr, SendError> {
        let source = self.addresses.source_for(to.ip()).filter(|_| to.port() != 0 && self.reaches(to.ip()));
        source.ok_or(SendError::Unreachable)
    }

    /// Returns the maximum datagram length within the path MTU to `to`.
    fn max_unfragmented_bytes(&self, now: Instant, to: &SocketAddr, caps: &PathCaps) -> usize {
        let headers = IpVersion::of_address(&to.ip()).header_bytes() + UDP_BYTES;
        usize::from(self.datagram_path_mtu(now, to.ip(), caps.mtu)).saturating_sub(headers)
    }

    /// Builds the packet of datagrams and sends it. Work that the device does not do is done here.
    fn send_packet(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagrams: TxDatagram,
        checksum: bool,
        counters: &mut HostCounters,
    ) {
        // A single datagram needs no segmentation by the device.
        let mss = datagrams.segment.filter(|_| datagrams.count() > 1).map(NonZeroU16::get);
        let TxDatagram { to, ecn, pieces, ask, dont_fragment, .. } = datagrams;
        let ask = TxAsk { checksum, mss, packet: ask, ..TxAsk::default() };
        let (source, destination) = (from.ip(), to.ip());
        let version = IpVersion::of_address(&destination);
        let bytes = UDP_BYTES + pieces.iter().map(Bytes::len).sum::<usize>();
        let udp_at = ETHERNET_BYTES + version.header_bytes();
        let mut header = Header::from_elem(0, udp_at + UDP_BYTES);
        self.write_ip(&mut header, source, destination, UDP, bytes);
        version.set_ecn(&mut header[ETHERNET_BYTES..], ecn.bits());
        if dont_fragment && version == IpVersion::V4 {
            Ipv4Packet::new_unchecked(&mut header[ETHERNET_BYTES..]).set_dont_frag(true);
        }
        let mut udp = UdpPacket::new_unchecked(&mut header[udp_at..]);
        udp.set_src_port(from.port());
        udp.set_dst_port(to.port());
        udp.set_len(bytes as u16);
        if !checksum {
            let mut sum = InternetSum::pseudo_header(UDP, source, destination, bytes);
            sum.add(&header[udp_at..]);
            pieces.iter().for_each(|piece| sum.add(piece));
            // RFC 768: a computed sum of zero is sent as all ones, because zero means no checksum.
            let sum = Some(sum.finish()).filter(|sum| *sum != 0).unwrap_or(u16::MAX);
            UdpPacket::new_unchecked(&mut header[udp_at..]).set_checksum(sum);
        }
        // Empty pieces are dropped, because a descriptor has no use for a fragment without bytes.
        let fragments = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        self.answer(now, destination, TxPacket { header, fragments, ask }, counters);
    }
}

/// Returns the maximum datagram length in a packet to `to`. IPv4's length field includes the header.
fn max_bytes(to: &SocketAddr) -> usize {
    let version = IpVersion::of_address(&to.ip());
    let headers = UDP_BYTES + if version == IpVersion::V4 { version.header_bytes() } else { 0 };
    usize::from(u16::MAX) - headers
}

/// Linux's UDP_MAX_SEGMENTS. The outbox has room for so many single datagrams.
const MAX_SEGMENTS: usize = 128;
/// Length of a UDP header.
const UDP_BYTES: usize = 8;
