//! Finding ESP in a frame, and removing it (RFC 4303 3.4, RFC 3948 3, RFC 6040 4.2).

use crate::cipher::EspTrailer;
use crate::outer::ECN;
use crate::{ESP_AND_IV, ETHERNET, ICV, UDP_ENCAPSULATION_PORT};
use bytes::{Buf, BytesMut};
use offload_api::{EspMode, SaParams};
use offload_formats::esp::{self, EspHeader};
use offload_formats::protocol;
use offload_formats::view::{IpView, set_traffic_class};
use offload_formats::{HeaderKind, Headers};

/// The position of ESP in a frame.
///
/// See the [crate] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspAt {
    /// IP header in front.
    pub ip: IpView,
    /// Whether there is a UDP header in front.
    pub udp: bool,
    /// Offset of the ESP header in the frame.
    pub esp: usize,
    /// Offset of the packet's end in the frame.
    pub end: usize,
    /// Security parameters index.
    pub spi: u32,
    /// Lower half of the sequence number.
    pub low: u32,
}

impl EspAt {
    /// Finds ESP in a complete Ethernet frame, after IP, or after UDP to or from port 4500. Returns `None` without
    /// ESP, for a fragment, and for a packet below the minimum size.
    pub fn find(frame: &[u8]) -> Option<EspAt> {
        EspAt::from_headers(&Headers::parse(frame), frame)
    }

    /// Finds ESP in a frame with known headers.
    pub fn from_headers(headers: &Headers, frame: &[u8]) -> Option<EspAt> {
        let esp = headers.find(HeaderKind::Esp)?;
        let ip = IpView::from_frame(headers, frame)?;
        let end = headers.end();
        // Shorter packets have no room for a trailer, and the offsets below would overlap.
        if end < esp + ESP_AND_IV + 2 + ICV {
            return None;
        }
        let EspHeader { spi, low } = esp::parse(&frame[esp..])?;
        Some(EspAt { ip, udp: ip.protocol == protocol::UDP, esp, end, spi, low })
    }
}

/// A packet at the port of ESP in UDP that is not ESP (RFC 3948 2.2, 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotEsp {
    /// A key exchange message, after four zero bytes.
    Ike,
    /// A single byte that keeps the state of an address translator alive.
    KeepAlive,
}

/// Returns the kind of a packet that shares ESP's port without being ESP.
pub fn shares_port(packet: &[u8], ip: &IpView) -> Option<NotEsp> {
    if ip.protocol != protocol::UDP || ip.fragment || !to_encapsulation_port(packet, ip) {
        return None;
    }
    match packet.get(ip.header + UDP_HEADER..udp_end(packet, ip)?)? {
        [0xff] => Some(NotEsp::KeepAlive),
        [0, 0, 0, 0, ..] => Some(NotEsp::Ike),
        _ => None,
    }
}

/// Returns the end of a datagram, which may precede the end of its packet. Returns `None` if the datagram's length
/// exceeds the packet.
fn udp_end(packet: &[u8], ip: &IpView) -> Option<usize> {
    let length = packet.get(ip.header + 4..ip.header + 6)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    Some(ip.header + length).filter(|end| length >= UDP_HEADER && *end <= ip.total)
}

fn to_encapsulation_port(packet: &[u8], ip: &IpView) -> bool {
    ip.ports(packet).is_some_and(|(_, to)| to == UDP_ENCAPSULATION_PORT)
}

/// The reason that an authentic packet is not delivered: a fault of the peer.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_esp::{EspCipher, EspAt, OuterHeaders, EspTrailer, UnwrapError, unwrap};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
/// let cipher = EspCipher::new(&sa);
/// // Ethernet and IPv4 headers, and eight bytes of UDP.
/// let mut plain = vec![0; 12];
/// plain.extend([8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0x66, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 7, 0, 8, 0, 0]);
/// let mut frame = BytesMut::new();
/// OuterHeaders::for_packet(&sa, &plain[14..])?.wrap(&cipher, &plain, 1, &mut frame);
/// let at = EspAt::find(&frame).unwrap();
/// let trailer = cipher.open(&mut frame, &at, 1)?;
/// assert_eq!(EspTrailer::read(&frame, &at)?, trailer, "it is plain now");
/// // RFC 4303 2.6: a packet with protocol 59 is a dummy.
/// let dummy = EspTrailer { next_header: 59, ..trailer };
/// assert_eq!(unwrap(frame, &at, &dummy, &sa), Err(UnwrapError::Dummy));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnwrapError {
    /// The packet is a dummy, to be discarded (RFC 4303 2.6).
    #[error("a dummy packet")]
    Dummy,
    /// The trailer announces a protocol that the SA does not carry, or contradicts the payload.
    #[error("the packet's protocol is not one that the SA carries")]
    Mode,
    /// RFC 6040 4.2: there was congestion on the way, and the inner packet cannot carry the mark.
    #[error("the outer header is marked with congestion (ECN CE), and the inner packet is without ECN")]
    Ecn,
}

/// Removes outer headers, ESP header, trailer and ICV from an opened frame, and returns the plain frame. The payload is
/// not moved; the headers are moved up to it.
///
/// # Errors
/// If the result is not a packet of the SA.
pub fn unwrap(mut frame: BytesMut, at: &EspAt, trailer: &EspTrailer, sa: &SaParams) -> Result<BytesMut, UnwrapError> {
    if trailer.next_header == protocol::NO_NEXT_HEADER {
        return Err(UnwrapError::Dummy);
    }
    let payload_at = at.esp + ESP_AND_IV;
    // The trailer and the ICV come off first, so that the lengths below are those of the plain packet.
    frame.truncate(payload_at + trailer.payload);
    match sa.mode {
        EspMode::Transport => {
            // Moving the headers up is cheaper than moving the payload down.
            let gap = payload_at - (ETHERNET + at.ip.header);
            frame.copy_within(..ETHERNET + at.ip.header, gap);
            frame.advance(gap);
            let packet = &mut frame[ETHERNET..];
            packet[at.ip.protocol_at] = trailer.next_header;
            let total = packet.len();
            if at.ip.is_ipv6() {
                packet[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
            } else {
                packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
                offload_formats::checksum::fill_ipv4_header(packet);
            }
        }
        EspMode::Tunnel => {
            let inner = IpView::parse(&frame[payload_at..]).ok_or(UnwrapError::Mode)?;
            // The trailer is authentic but may contradict the payload; a receiver must not guess which is right.
            let announced = if inner.is_ipv6() { protocol::IPV6 } else { protocol::IPV4 };
            if announced != trailer.next_header {
                return Err(UnwrapError::Mode);
            }
            let ethernet = payload_at - ETHERNET;
            frame.copy_within(..ETHERNET - 2, ethernet);
            frame.advance(ethernet);
            frame[12..14].copy_from_slice(if inner.is_ipv6() { &[0x86, 0xdd] } else { &[0x08, 0x00] });
            // RFC 4303 2.7: bytes after the inner packet are padding that hides its length.
            frame.truncate(ETHERNET + inner.total);
            let outer = at.ip.traffic_class;
            let class = if sa.dscp_out { outer & !ECN | inner.traffic_class & ECN } else { inner.traffic_class };
            let class = if sa.ecn { with_ecn_of(outer & ECN, class)? } else { class };
            // Rewriting the class needs a new header checksum, so it is only done for a change.
            if class != inner.traffic_class {
                set_traffic_class(&mut frame[ETHERNET..], class);
            }
        }
    }
    Ok(frame)
}

/// Combines the ECN fields of outer and inner header (RFC 6040 4.2, figure 4).
fn with_ecn_of(outer: u8, class: u8) -> Result<u8, UnwrapError> {
    let ecn = match (class & ECN, outer) {
        (NOT_ECT, CE) => return Err(UnwrapError::Ecn),
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (ECT_0, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Ok(class & !ECN | ecn)
}

const UDP_HEADER: usize = 8;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// ESP in UDP with `bytes` bytes after the UDP header, and the length field `told`.
    fn in_udp(bytes: usize, told: u16) -> Vec<u8> {
        let total = (28 + bytes) as u16;
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[0x08, 0, 0x45, 0]);
        frame.extend_from_slice(&total.to_be_bytes());
        frame.extend_from_slice(&[0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x11, 0x94, 0x11, 0x94]);
        frame.extend_from_slice(&(8 + told).to_be_bytes());
        frame.extend_from_slice(&[0, 0]);
        frame.resize(42 + bytes, 1);
        frame
    }

    #[test]
    fn esp_in_udp_ends_with_its_datagram() {
        let end = |bytes, told| EspAt::find(&in_udp(bytes, told)).map(|at| at.end - 42);
        assert_eq!((end(100, 100), end(100, 60), end(100, 34)), (Some(100), Some(60), Some(34)));
        assert_eq!((end(100, 101), end(100, 33), end(100, u16::MAX - 8)), (None, None, None));
        let mut short = in_udp(100, 0);
        short[38..40].copy_from_slice(&7u16.to_be_bytes());
        assert_eq!(EspAt::find(&short), None, "less than the header");
        let mut keep_alive = in_udp(20, 1);
        keep_alive[42] = 0xff;
        let view = IpView::parse(&keep_alive[14..]).unwrap();
        assert_eq!(shares_port(&keep_alive[14..], &view), Some(NotEsp::KeepAlive));
    }
}
