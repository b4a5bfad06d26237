//! The headers in front of ESP: the packet's own IP header in transport mode, a new IP header in tunnel mode (RFC 4301
//! 5.1.2, RFC 4303 3.1), and optionally UDP (RFC 3948).

use crate::{ESP_AND_IV, ETHERNET, EspCipher, checksum, trailer_len};
use bytes::BytesMut;
use core::net::IpAddr;
use offload_api::{DontFragment, EspMode, SaParams, UdpEncapsulation};
use offload_formats::IpView;
use offload_formats::protocol;
use smallvec::SmallVec;

/// The headers in front of ESP, for one packet or for all segments of one. Lengths, identification and checksums are
/// filled in per packet.
///
/// See the [crate] for an example.
#[derive(Clone, Debug)]
pub struct OuterHeaders {
    /// IP header with extension headers, and optionally UDP.
    bytes: SmallVec<[u8; 64]>,
    /// End of the IP header: start of UDP or ESP.
    ip: usize,
    udp: bool,
    tunnel: bool,
    /// Offset of the byte that names the protocol after the IP header.
    protocol_at: usize,
    /// Unprotected bytes at the start of the plain packet. `bytes` contains the needed ones.
    taken: usize,
    next_header: u8,
}

/// The reason that a packet cannot be encapsulated.
///
/// ```
/// use offload_esp::{OuterHeaders, WrapError};
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
/// assert_eq!(OuterHeaders::for_packet(&sa, b"no IP packet").err(), Some(WrapError::NotIp));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrapError {
    /// The packet is not an IP packet.
    #[error("not an IP packet")]
    NotIp,
    /// The packet is a fragment. Transport mode is for whole packets (RFC 4301 7).
    #[error("a fragment cannot be protected in transport mode")]
    Fragment,
}

impl OuterHeaders {
    /// Builds the headers for a packet of an SA. `packet` holds at least the packet's headers; their length field is
    /// ignored.
    ///
    /// # Errors
    /// If the SA cannot carry the packet.
    pub fn for_packet(sa: &SaParams, packet: &[u8]) -> Result<OuterHeaders, WrapError> {
        let view = IpView::parse_headers(packet).ok_or(WrapError::NotIp)?;
        let mut outer = match sa.mode {
            EspMode::Transport if view.fragment => return Err(WrapError::Fragment),
            EspMode::Transport => OuterHeaders::own_header(&view, packet),
            EspMode::Tunnel => OuterHeaders::new_header(sa, &view),
        };
        outer.bytes[outer.protocol_at] = if sa.encapsulation.is_some() { protocol::UDP } else { protocol::ESP };
        if let Some(UdpEncapsulation { source_port, destination_port }) = sa.encapsulation {
            outer.udp = true;
            outer.bytes.extend_from_slice(&source_port.to_be_bytes());
            outer.bytes.extend_from_slice(&destination_port.to_be_bytes());
            // Length and checksum are filled in per packet.
            outer.bytes.extend_from_slice(&[0; 4]);
        }
        Ok(outer)
    }

    /// Parses the headers written by [`write_headers`](Self::write_headers), up to the ESP header at `esp` in the
    /// frame, as far as a device needs them.
    pub fn parse_headers(frame: &[u8], esp: usize, sa: &SaParams, next_header: u8) -> Option<OuterHeaders> {
        let bytes = frame.get(ETHERNET..esp)?;
        let view = IpView::parse_headers(bytes)?;
        let udp = sa.encapsulation.is_some();
        // The headers come from a packet, and must end exactly where ESP begins.
        if view.header + if udp { 8 } else { 0 } != bytes.len() {
            return None;
        }
        let tunnel = sa.mode == EspMode::Tunnel;
        let taken = if tunnel { 0 } else { view.header };
        let (ip, protocol_at) = (view.header, view.protocol_at);
        Some(OuterHeaders { bytes: bytes.into(), ip, udp, tunnel, protocol_at, taken, next_header })
    }

    /// Returns the number of bytes between Ethernet header and ESP header.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns false, because there is always an IP header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of unprotected bytes at the start of the plain packet.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the offset, from the start of the IP header, of the byte that names the protocol of the payload.
    pub fn protocol_at(&self) -> usize {
        self.protocol_at
    }

    /// Returns the protocol number of the protected data.
    pub fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Returns the size of the encapsulated packet, without Ethernet header, for a plain packet of `plain` bytes.
    pub fn wrapped_len(&self, plain: usize) -> usize {
        let payload = plain - self.taken;
        self.bytes.len() + ESP_AND_IV + payload + trailer_len(payload)
    }

    /// Returns the maximum size of a plain packet that fits into `mtu` bytes when encapsulated, or 0 if there is none.
    pub fn plain_len(&self, mtu: usize) -> usize {
        let room = mtu.saturating_sub(self.bytes.len() + ESP_AND_IV + crate::ICV);
        // The encrypted part is a multiple of four bytes, and ends with pad length and next header.
        (room - room % 4).checked_sub(2).map_or(0, |payload| payload + self.taken)
    }

    /// Returns the maximum size of a plain packet without options or extensions that an SA can carry in packets of
    /// `mtu` bytes.
    pub fn plain_mtu(sa: &SaParams, ipv6: bool, mtu: usize) -> usize {
        let mut header = [0; 40];
        header[0] = if ipv6 { 0x60 } else { 0x45 };
        header[6] = if ipv6 { protocol::NO_NEXT_HEADER } else { 0 };
        OuterHeaders::for_packet(sa, &header).map_or(0, |outer| outer.plain_len(mtu))
    }

    /// Appends Ethernet header, outer headers, and room for ESP header and IV to an empty `frame`. `plain` holds at
    /// least the headers of the plain frame, because in transport mode the IP header is copied from this very packet.
    pub fn write_headers(&self, plain: &[u8], frame: &mut BytesMut) {
        frame.extend_from_slice(&plain[..ETHERNET - 2]);
        frame.extend_from_slice(if self.is_ipv6() { &[0x86, 0xdd] } else { &[0x08, 0x00] });
        frame.extend_from_slice(&self.bytes);
        if !self.tunnel {
            frame[ETHERNET..ETHERNET + self.ip].copy_from_slice(&plain[ETHERNET..ETHERNET + self.ip]);
            frame[ETHERNET + self.protocol_at] = self.bytes[self.protocol_at];
        }
        frame.resize(frame.len() + ESP_AND_IV, 0);
    }

    /// Encapsulates a whole plain frame in an empty one.
    pub fn wrap(&self, cipher: &EspCipher, plain: &[u8], number: u64, frame: &mut BytesMut) {
        self.write_headers(plain, frame);
        let packet = &plain[ETHERNET..];
        // Ethernet pads short packets. The padding must not be encrypted as payload.
        let total = IpView::parse(packet).map_or(packet.len(), |view| view.total);
        frame.extend_from_slice(&packet[self.taken..total]);
        self.finish(cipher, number, frame);
    }

    /// Completes a frame that holds headers, room for ESP header and IV, and payload.
    pub fn finish(&self, cipher: &EspCipher, number: u64, frame: &mut BytesMut) {
        let esp = ETHERNET + self.bytes.len();
        cipher.seal(frame, esp, number, self.next_header);
        self.fix_lengths(frame, number);
    }

    /// Fills in lengths, identification and checksums of a frame that is otherwise complete.
    fn fix_lengths(&self, frame: &mut BytesMut, number: u64) {
        let total = frame.len() - ETHERNET;
        let packet = &mut frame[ETHERNET..];
        if self.udp {
            let length = (total - self.ip) as u16;
            packet[self.ip + 4..self.ip + 6].copy_from_slice(&length.to_be_bytes());
            // RFC 3948 2.1: over IPv4, the UDP checksum is zero.
            packet[self.ip + 6..self.ip + 8].fill(0);
        }
        if self.is_ipv6() {
            packet[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
            // RFC 8200 8.1: over IPv6, a UDP checksum is required.
            if self.udp
                && let Some(view) = IpView::parse(packet)
            {
                checksum::fill(packet, &view);
            }
        } else {
            packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            // In transport mode the packet keeps its own identification.
            if self.tunnel {
                packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
            }
            offload_formats::checksum::fill_ipv4_header(packet);
        }
    }

    /// Keeps the packet's own IP header (RFC 4303 3.1.1).
    fn own_header(view: &IpView, packet: &[u8]) -> OuterHeaders {
        OuterHeaders {
            bytes: packet[..view.header].into(),
            ip: view.header,
            udp: false,
            tunnel: false,
            protocol_at: view.protocol_at,
            taken: view.header,
            next_header: view.protocol,
        }
    }

    /// Builds the IP header of a tunnel (RFC 4301 5.1.2).
    fn new_header(sa: &SaParams, view: &IpView) -> OuterHeaders {
        // RFC 6040 4.1: normal mode copies ECN, compatibility mode clears it.
        let ecn = if sa.ecn { view.traffic_class & ECN } else { 0 };
        let class = sa.dscp.map_or(view.traffic_class & !ECN, |dscp| dscp << 2) | ecn;
        let mut bytes: SmallVec<[u8; 64]> = SmallVec::new();
        match (sa.source, sa.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let dont_fragment = match sa.dont_fragment {
                    DontFragment::Copy => view.dont_fragment,
                    DontFragment::Set => true,
                    DontFragment::Clear => false,
                };
                let flags = if dont_fragment { 0x40 } else { 0 };
                bytes.extend_from_slice(&[0x45, class, 0, 0, 0, 0, flags, 0, HOPS, 0, 0, 0]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
            }
            // An IPv4 address in an IPv6 header is written in its mapped form, which only a mistaken SA contains.
            (source, destination) => {
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                bytes.extend_from_slice(&[0x60 | class >> 4, class << 4, 0, 0, 0, 0, 0, HOPS]);
                bytes.extend_from_slice(&octets(source));
                bytes.extend_from_slice(&octets(destination));
            }
        }
        let next_header = if view.is_ipv6() { protocol::IPV6 } else { protocol::IPV4 };
        let protocol_at = if bytes[0] >> 4 == 6 { 6 } else { 9 };
        OuterHeaders { ip: bytes.len(), bytes, udp: false, tunnel: true, protocol_at, taken: 0, next_header }
    }

    fn is_ipv6(&self) -> bool {
        self.bytes[0] >> 4 == 6
    }
}

/// Builds a NAT keep-alive of an SA in UDP (RFC 3948 2.3), as a frame with the Ethernet addresses `ethernet`. Returns
/// `None` if the SA is not in UDP.
///
/// ```
/// use offload_esp::inner::{NotEsp, shares_port};
/// use offload_formats::IpView;
/// use offload_api::{Direction, EspKey, EspSuite, SaParams, UdpEncapsulation};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let plain = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
/// assert!(offload_esp::outer::keep_alive(&plain, &[2; 12]).is_none());
/// let encapsulation = Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
/// let frame = offload_esp::outer::keep_alive(&SaParams { encapsulation, ..plain }, &[2; 12]).unwrap();
/// let view = IpView::parse(&frame[14..]).unwrap();
/// assert_eq!(shares_port(&frame[14..], &view), Some(NotEsp::KeepAlive));
/// ```
pub fn keep_alive(sa: &SaParams, ethernet: &[u8; ETHERNET - 2]) -> Option<BytesMut> {
    let UdpEncapsulation { source_port, destination_port } = sa.encapsulation?;
    let mut frame = BytesMut::from(&ethernet[..]);
    let length = (UDP_HEADER + KEEP_ALIVE.len()) as u16;
    match (sa.source, sa.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frame.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
            frame.extend_from_slice(&(20 + length).to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0x40, 0, HOPS, protocol::UDP, 0, 0]);
            frame.extend_from_slice(&source.octets());
            frame.extend_from_slice(&destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&[protocol::UDP, HOPS]);
            frame.extend_from_slice(&source.octets());
            frame.extend_from_slice(&destination.octets());
        }
        _ => return None,
    }
    frame.extend_from_slice(&source_port.to_be_bytes());
    frame.extend_from_slice(&destination_port.to_be_bytes());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0; 2]);
    frame.extend_from_slice(KEEP_ALIVE);
    let packet = &mut frame[ETHERNET..];
    match IpView::parse(packet) {
        // RFC 8200 8.1: over IPv6, a UDP checksum is required.
        Some(view) if view.is_ipv6() => checksum::fill(packet, &view),
        _ => offload_formats::checksum::fill_ipv4_header(packet),
    }
    Some(frame)
}

const UDP_HEADER: usize = 8;
const KEEP_ALIVE: &[u8] = &[0xff];
/// Time to live, or hop limit, of tunnel packets.
const HOPS: u8 = 64;
/// Mask of the ECN bits in a traffic class (RFC 3168 5).
pub(crate) const ECN: u8 = 0x03;
