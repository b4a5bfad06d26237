//! IP fragmentation of outgoing packets (RFC 791 3.2, RFC 8200 4.5).
//!
//! Invariant: the reassembled fragments equal the packet byte for byte. Each fragment but the last has a multiple of
//! eight bytes of data, and no fragment exceeds the MTU.

use crate::tx::{Header, TxPacket};
use bytes::Bytes;
use offload_formats::checksum::fill_ipv4_header;
use offload_formats::ip::{HeaderError, IpHeaders, IpVersion};
use offload_formats::protocol::FRAGMENT;
use smallvec::SmallVec;

/// The reasons why a packet cannot be fragmented.
///
/// See [`fragment`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentationError {
    /// The headers are malformed.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The packet forbids fragmentation, or is an IPv6 fragment, which only [its source](fragment_own) may cut further.
    #[error("the packet is not to be fragmented")]
    Forbidden,
    /// The packet has IPv4 options. Some options belong in the first fragment only, which is not supported.
    #[error("a packet with IPv4 options is not fragmented here")]
    Options,
    /// The MTU leaves fewer than eight bytes after the headers.
    #[error("the path takes packets of {0} bytes, too few for a fragment")]
    Path(u16),
    /// The packet asks for an offload on the packet as a whole.
    #[error("the packet asks for an offload, which a fragment cannot have: do that work before the packet is cut")]
    Offload,
    /// The fragments would exceed the maximum length of a packet.
    #[error("the fragments add up to more bytes than a packet can have")]
    TooLong,
}

/// Cuts `packet` into fragments of at most `mtu` bytes. The IP header starts at `network`, and the transport checksum
/// must be filled in. `identification` distinguishes the packet's fragments from those of other packets; IPv4 uses 16
/// bits of it.
///
/// # Errors
/// If the packet cannot or must not be fragmented.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::TxPacket;
/// use offload_api::fragmentation::fragment;
///
/// let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// let packet = TxPacket {
///     header: header.into_iter().collect(),
///     fragments: [Bytes::from(vec![7; 3000])].into_iter().collect(),
///     ..TxPacket::default()
/// };
/// let fragments = fragment(packet, 0, 1500, 77)?;
/// assert_eq!(fragments.iter().map(TxPacket::payload_len).collect::<Vec<_>>(), [1480, 1480, 40]);
/// # Ok::<(), offload_api::fragmentation::FragmentationError>(())
/// ```
pub fn fragment(
    packet: TxPacket,
    network: usize,
    mtu: u16,
    identification: u32,
) -> Result<Vec<TxPacket>, FragmentationError> {
    cut(packet, network, mtu, identification, false)
}

/// Cuts a packet of this host. Unlike [`fragment`], this function also cuts IPv6 fragments further, because the host is
/// their source.
///
/// # Errors
/// If the packet cannot or must not be fragmented.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::TxPacket;
/// use offload_api::fragmentation::{fragment, fragment_own};
///
/// let header = [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[7; 32]].concat();
/// let packet = TxPacket {
///     header: header.into(),
///     fragments: [Bytes::from(vec![7; 2000])].into_iter().collect(),
///     ..TxPacket::default()
/// };
/// let [first, last] = &fragment(packet, 0, 1500, 77)?[..] else { panic!("two fragments") };
/// assert!(fragment(first.clone(), 0, 1400, 0).is_err(), "a router must not fragment it");
/// let sizes = fragment_own(first.clone(), 0, 1400, 0)?.iter().map(TxPacket::payload_len).collect::<Vec<_>>();
/// assert_eq!((sizes, last.payload_len()), (vec![1352, 96], 552));
/// # Ok::<(), offload_api::fragmentation::FragmentationError>(())
/// ```
pub fn fragment_own(
    packet: TxPacket,
    network: usize,
    mtu: u16,
    identification: u32,
) -> Result<Vec<TxPacket>, FragmentationError> {
    cut(packet, network, mtu, identification, true)
}

fn cut(
    packet: TxPacket,
    network: usize,
    mtu: u16,
    identification: u32,
    own: bool,
) -> Result<Vec<TxPacket>, FragmentationError> {
    if !packet.ask.is_nothing() {
        return Err(FragmentationError::Offload);
    }
    let ip = packet.header.get(network..).unwrap_or_default();
    let headers = IpHeaders::walk(ip)?;
    if headers.version == IpVersion::V6 && headers.fragment.is_some() && !own {
        return Err(FragmentationError::Forbidden);
    }
    let cut = FragmentPlan::plan(&headers, ip, mtu, identification)?;
    // An IPv6 fragment keeps extension headers in front of the data, and the receiver counts them in the length of the
    // whole.
    let total = ip.len() - headers.upper + packet.payload_len();
    let in_front = cut.kept - if headers.version == IpVersion::V6 { IpVersion::V6.header_bytes() } else { 0 };
    if in_front + total > usize::from(u16::MAX) {
        return Err(FragmentationError::TooLong);
    }
    let mut rest = UncutPayload::new(&packet, network + headers.upper);
    let mut made = Vec::with_capacity(total.div_ceil(cut.most).max(1));
    let mut at = 0;
    loop {
        let bytes = cut.most.min(total - at);
        let more = at + bytes < total;
        let header = cut.header(&packet.header[..network + cut.kept], network, at, bytes, more);
        made.push(TxPacket { header, fragments: rest.take(bytes), ask: packet.ask });
        at += bytes;
        if !more {
            return Ok(made);
        }
    }
}

/// The parameters of a fragmentation.
struct FragmentPlan {
    version: IpVersion,
    identification: u32,
    /// Header bytes of the packet that each fragment repeats, without a fragment header.
    kept: usize,
    /// Data bytes of each fragment but the last.
    most: usize,
    /// Offset of the byte that names the fragment header, and the protocol it names now. IPv6 only.
    named_at: usize,
    protocol: u8,
    /// For a fragment that is cut further: its offset in the original packet, and whether more fragments follow.
    before: usize,
    more_behind: bool,
}

impl FragmentPlan {
    fn plan(headers: &IpHeaders, ip: &[u8], mtu: u16, identification: u32) -> Result<FragmentPlan, FragmentationError> {
        let (kept, own) = match headers.version {
            IpVersion::V4 => (headers.upper, headers.upper),
            IpVersion::V6 => (headers.unfragmentable(), headers.unfragmentable() + FRAGMENT_HEADER_BYTES),
        };
        // Offsets of fragments count units of eight bytes.
        let most = usize::from(mtu).saturating_sub(own) / 8 * 8;
        if most == 0 {
            return Err(FragmentationError::Path(mtu));
        }
        let (mut identification, mut before, mut more_behind) = (identification, 0, false);
        match headers.version {
            IpVersion::V4 if headers.upper > IpVersion::V4.header_bytes() => return Err(FragmentationError::Options),
            IpVersion::V4 if ip[6] & DONT_FRAGMENT != 0 => return Err(FragmentationError::Forbidden),
            _ => {}
        }
        // A fragment that is cut further keeps its identification, so that the receiver puts all parts into one packet.
        if let Some(fragment) = headers.fragment {
            (identification, before, more_behind) = (fragment.identification, fragment.offset, fragment.more);
        }
        Ok(FragmentPlan {
            version: headers.version,
            identification,
            kept,
            most,
            named_at: headers.protocol_at(),
            protocol: headers.protocol,
            before,
            more_behind,
        })
    }

    /// Returns the headers of the fragment with `bytes` bytes at offset `at`, derived from the packet's headers
    /// `whole`.
    fn header(&self, whole: &[u8], network: usize, at: usize, bytes: usize, more: bool) -> Header {
        let mut header = Header::from_slice(whole);
        let place = (self.before + at) as u16;
        // The last part of a cut fragment is not the last part of the packet.
        let more = more || self.more_behind;
        match self.version {
            IpVersion::V4 => {
                let ip = &mut header[network..];
                let length = (ip.len() + bytes) as u16;
                ip[2..4].copy_from_slice(&length.to_be_bytes());
                ip[4..6].copy_from_slice(&(self.identification as u16).to_be_bytes());
                ip[6..8].copy_from_slice(&(place / 8 + if more { MORE_FRAGMENTS } else { 0 }).to_be_bytes());
                fill_ipv4_header(ip);
            }
            IpVersion::V6 => {
                // The fragment header follows the last repeated header, and names the header after it.
                header[network + self.named_at] = FRAGMENT;
                header.extend_from_slice(&[self.protocol, 0]);
                header.extend_from_slice(&(place | u16::from(more)).to_be_bytes());
                header.extend_from_slice(&self.identification.to_be_bytes());
                let behind = header.len() - network - IpVersion::V6.header_bytes() + bytes;
                header[network + 4..network + 6].copy_from_slice(&(behind as u16).to_be_bytes());
            }
        }
        header
    }
}

/// The part of the packet that is not in a fragment yet.
struct UncutPayload {
    pieces: SmallVec<[Bytes; 5]>,
}

impl UncutPayload {
    /// Takes all of `packet` from offset `at` of its header on.
    fn new(packet: &TxPacket, at: usize) -> UncutPayload {
        // The transport header is payload of the first fragment.
        let header = Bytes::copy_from_slice(&packet.header[at..]);
        UncutPayload { pieces: core::iter::once(header).chain(packet.fragments.iter().cloned()).collect() }
    }

    fn take(&mut self, mut bytes: usize) -> SmallVec<[Bytes; 4]> {
        let mut taken = SmallVec::new();
        while bytes > 0 && !self.pieces.is_empty() {
            // Pieces are shared slices, so no payload is copied.
            let first = &mut self.pieces[0];
            let part = first.split_to(bytes.min(first.len()));
            if first.is_empty() {
                self.pieces.remove(0);
            }
            bytes -= part.len();
            if !part.is_empty() {
                taken.push(part);
            }
        }
        taken
    }
}

const FRAGMENT_HEADER_BYTES: usize = 8;
const DONT_FRAGMENT: u8 = 0x40;
const MORE_FRAGMENTS: u16 = 0x2000;

#[cfg(test)]
mod tests;
