//! The virtio network header: the unfinished work on a packet from a kernel, and the finished checks of a packet for a
//! kernel.
//!
//! Source: virtio 1.2, 5.1.6 ("Device Operation"), in the form without `num_buffers` that Linux uses for a TAP with
//! `IFF_VNET_HDR`: ten bytes, numbers in the machine's byte order (without `TUNSETVNETLE`).

/// The header in front of a packet.
///
/// ```
/// use offload_wire::attach::{Gso, GsoKind, PartialChecksum, VnetHeader};
///
/// let header = VnetHeader {
///     checksum: Some(PartialChecksum { start: 34, offset: 16 }),
///     gso: Some(Gso { kind: GsoKind::Tcp4, segment_bytes: 1448, header_bytes: 66 }),
/// };
/// assert_eq!(VnetHeader::parse(&header.to_bytes()), Ok(header));
/// assert_eq!(VnetHeader::default().to_bytes(), [0; 10], "nothing left to do");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// Checksum to be completed. `None` if it is complete or absent.
    pub checksum: Option<PartialChecksum>,
    /// Segmentation to be done, or joining that was done. `None` for a single frame.
    pub gso: Option<Gso>,
}

/// A partial checksum: its field holds the sum of the pseudo header.
///
/// See [`VnetHeader`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset of the summed bytes, which extend to the packet's end.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// The segmentation of a packet.
///
/// See [`VnetHeader`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocol of the segments.
    pub kind: GsoKind,
    /// Payload bytes of each segment except the last. Not zero.
    pub segment_bytes: u16,
    /// Size of all headers in bytes. By the standard, only a hint.
    pub header_bytes: u16,
}

/// The protocol of a packet to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal size, over IPv4 or IPv6.
    Udp,
}

/// The error for a header with an unknown or impossible request.
///
/// ```
/// use offload_wire::attach::{InvalidVnetHeader, VnetHeader};
///
/// let error = VnetHeader::parse(&[0, 9, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
/// assert_eq!(error, InvalidVnetHeader { flags: 0, gso_type: 9 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an unknown virtio network header: flags {flags:#x}, type {gso_type:#x}")]
pub struct InvalidVnetHeader {
    /// Flags of the header.
    pub flags: u8,
    /// Segmentation type of the header.
    pub gso_type: u8,
}

impl VnetHeader {
    /// Size of a header in bytes.
    pub const LEN: usize = 10;

    /// Parses a header.
    ///
    /// # Errors
    /// If the header requests a segmentation that was not negotiated, or segments without payload.
    pub fn parse(bytes: &[u8; VnetHeader::LEN]) -> Result<VnetHeader, InvalidVnetHeader> {
        let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let invalid = InvalidVnetHeader { flags: bytes[0], gso_type: bytes[1] };
        let checksum =
            (bytes[0] & NEEDS_CHECKSUM != 0).then(|| PartialChecksum { start: number(6), offset: number(8) });
        // The ECN flag needs no extra work: CWR is kept in the first segment anyway.
        let kind = match bytes[1] & !GSO_ECN {
            GSO_NONE => return Ok(VnetHeader { checksum, gso: None }),
            GSO_TCP4 => GsoKind::Tcp4,
            GSO_TCP6 => GsoKind::Tcp6,
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return Err(invalid),
        };
        let gso = Gso { kind, segment_bytes: number(4), header_bytes: number(2) };
        // Cutting into segments without payload would never finish.
        if gso.segment_bytes == 0 {
            return Err(invalid);
        }
        Ok(VnetHeader { checksum, gso: Some(gso) })
    }

    /// Returns the header's bytes.
    pub fn to_bytes(self) -> [u8; VnetHeader::LEN] {
        let mut bytes = [0; VnetHeader::LEN];
        if let Some(gso) = self.gso {
            bytes[1] = match gso.kind {
                GsoKind::Tcp4 => GSO_TCP4,
                GsoKind::Tcp6 => GSO_TCP6,
                GsoKind::Udp => GSO_UDP_L4,
            };
            bytes[2..4].copy_from_slice(&gso.header_bytes.to_ne_bytes());
            bytes[4..6].copy_from_slice(&gso.segment_bytes.to_ne_bytes());
        }
        if let Some(checksum) = self.checksum {
            bytes[0] = NEEDS_CHECKSUM;
            bytes[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
            bytes[8..10].copy_from_slice(&checksum.offset.to_ne_bytes());
        }
        bytes
    }
}

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_NONE.
const GSO_NONE: u8 = 0;
/// VIRTIO_NET_HDR_GSO_TCPV4.
const GSO_TCP4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6.
const GSO_TCP6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_UDP_L4.
const GSO_UDP_L4: u8 = 5;
/// VIRTIO_NET_HDR_GSO_ECN: the first segment may carry CWR.
const GSO_ECN: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_give_a_header_or_an_error(bytes: [u8; VnetHeader::LEN]) {
            if let Ok(header) = VnetHeader::parse(&bytes) {
                prop_assert_eq!(VnetHeader::parse(&header.to_bytes()), Ok(header));
            }
        }
    }

    #[test]
    fn header_bytes_match_the_standard() {
        let header = VnetHeader {
            checksum: Some(PartialChecksum { start: 0x0036, offset: 0x0010 }),
            gso: Some(Gso { kind: GsoKind::Tcp6, segment_bytes: 0x0594, header_bytes: 0x0056 }),
        };
        let expected = if cfg!(target_endian = "little") {
            [1, 4, 0x56, 0, 0x94, 5, 0x36, 0, 0x10, 0]
        } else {
            [1, 4, 0, 0x56, 5, 0x94, 0, 0x36, 0, 0x10]
        };
        assert_eq!(header.to_bytes(), expected);
    }

    #[test]
    fn unsupported_segmentation_is_refused() {
        let fragmentation = [0, 3, 0, 0, 8, 0, 0, 0, 0, 0]; // VIRTIO_NET_HDR_GSO_UDP, by IP fragments
        assert_eq!(VnetHeader::parse(&fragmentation), Err(InvalidVnetHeader { flags: 0, gso_type: 3 }));
        let segments_of_nothing = [1, 1, 54, 0, 0, 0, 34, 0, 16, 0];
        assert_eq!(VnetHeader::parse(&segments_of_nothing), Err(InvalidVnetHeader { flags: 1, gso_type: 1 }));
    }
}
