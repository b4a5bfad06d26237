//! Bounded reassembly of IP fragments (RFC 791 3.2, RFC 8200 4.5).
//!
//! Overlapping fragments are never merged, because a sender of such fragments hides something (RFC 5722; the same rule
//! is applied to IPv4). The packet is given up, and its further fragments are refused until its timeout. An exact
//! duplicate of a fragment is not an overlap (RFC 8200 4.5).
//!
//! Invariants: the pieces of a packet do not overlap, and no piece lies past a known end. The memory of all pieces,
//! with the bookkeeping, and the number of packets stay within the limits.

use crate::checksum::fill_ipv4_header;
use crate::ip::{Fragment, HeaderError, HeaderProblem, IpHeaders, IpVersion, ReportRule, reaches_upper_layer};
use bytes::{Bytes, BytesMut};
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use std::collections::{BTreeMap, BTreeSet};

/// The limits of incomplete packets: memory, number and time.
///
/// ```
/// use offload_formats::reassembly::ReassemblyLimits;
/// use offload_formats::IpVersion;
///
/// let small = ReassemblyLimits { bytes: 64 << 10, ..ReassemblyLimits::for_version(IpVersion::V6) };
/// assert_eq!(small.timeout.as_secs(), 60);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReassemblyLimits {
    /// Bytes of fragments, with the bookkeeping.
    pub bytes: usize,
    /// Incomplete packets.
    pub packets: usize,
    /// Time from the arrival of a packet's first fragment until the packet is given up.
    pub timeout: Duration,
}

impl ReassemblyLimits {
    /// Returns Linux's limits: 4 MiB, 30 seconds for IPv4 and a minute for IPv6 (RFC 8200 4.5), and 1024 packets.
    pub const fn for_version(version: IpVersion) -> ReassemblyLimits {
        let timeout = match version {
            IpVersion::V4 => Duration::from_secs(30),
            IpVersion::V6 => Duration::from_secs(60),
        };
        ReassemblyLimits { bytes: 4 << 20, packets: 1024, timeout }
    }
}

/// A buffer that reassembles packets.
///
/// ```
/// use offload_formats::reassembly::{ReassemblyLimits, Reassembler, FragmentOutcome};
/// use offload_formats::{IpHeaders, IpVersion};
/// use offload_base::Instant;
///
/// // An IPv4 fragment without an Ethernet header.
/// let fragment = |eighths: u8, more: u8, data: &[u8]| {
///     let header = [0x45, 0, 0, 20 + data.len() as u8, 0, 7, more, eighths, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&header[..], data].concat()
/// };
/// let (first, last) = (fragment(0, 0x20, b"begins, "), fragment(1, 0, b"ends"));
/// assert_eq!(IpHeaders::parse(&last)?.fragment.unwrap().offset, 8);
///
/// let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
/// assert_eq!(reassembler.insert(Instant::ZERO, &last, 0), FragmentOutcome::Kept);
/// let FragmentOutcome::Whole(packet) = reassembler.insert(Instant::ZERO, &first, 0) else { panic!("nothing is missing") };
/// assert_eq!(&packet[20..], b"begins, ends");
/// # Ok::<(), offload_formats::HeaderError>(())
/// ```
#[derive(Debug)]
pub struct Reassembler {
    limits: ReassemblyLimits,
    packets: BTreeMap<ReassemblyKey, PartialPacket>,
    /// Deadlines of the incomplete packets.
    deadlines: BTreeSet<(Instant, ReassemblyKey)>,
    bytes: usize,
    evicted: u64,
}

/// The result of inserting a fragment.
///
/// See [`Reassembler`] for an example.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum FragmentOutcome {
    /// The complete packet, after the bytes in front of its first fragment's IP header. The IPv4 header checksum is
    /// filled in; no other checksum is checked or changed.
    Whole(BytesMut),
    /// The fragment waits for others.
    Kept,
    /// The fragment was already there.
    Duplicate,
    /// The fragment was dropped.
    Refused(FragmentError),
}

/// The reason that a fragment is dropped.
///
/// ```
/// use offload_formats::reassembly::{ReassemblyLimits, Reassembler, FragmentError, FragmentOutcome};
/// use offload_formats::IpVersion;
/// use offload_base::Instant;
///
/// let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
/// let whole = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// assert_eq!(reassembler.insert(Instant::ZERO, &whole, 0), FragmentOutcome::Refused(FragmentError::NoFragment));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// The packet is not a fragment.
    #[error("the packet is not a fragment")]
    NoFragment,
    /// The headers are invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The packet cannot have such a fragment. The sender may be told.
    #[error("an impossible fragment: {0:?}")]
    Impossible(HeaderProblem),
    /// The fragment overlaps another one, or its packet had overlapping fragments before.
    #[error("fragments overlap")]
    Overlap,
    /// A router marked one fragment of the packet with congestion, but the sender of another one does not support ECN.
    #[error("some fragments are marked with congestion (ECN CE), others come from a sender without ECN")]
    Marks,
}

/// A packet that was given up at its timeout.
///
/// See [`Reassembler::expire`].
///
/// ```
/// use offload_base::Instant;
/// use offload_formats::IpVersion;
/// use offload_formats::reassembly::{ExpiredPacket, ReassemblyLimits, Reassembler};
///
/// let mut reassembler = Reassembler::new(ReassemblyLimits::for_version(IpVersion::V4));
/// // The first eight bytes of a UDP datagram. The other fragments never arrive.
/// let mut first = vec![0x45, 0, 0, 28, 0, 1, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// first.extend([0, 7, 0, 7, 0, 99, 0, 0]);
/// reassembler.insert(Instant::ZERO, &first, 0);
/// let late = reassembler.next_event().unwrap();
/// let ExpiredPacket { first, among } = reassembler.expire(late).unwrap();
/// assert!(first.is_some() && among == 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredPacket {
    /// First fragment, if it arrived, with the bytes in front of its IP header. It can be quoted to the sender (RFC
    /// 792, RFC 8200 4.5).
    pub first: Option<Bytes>,
    /// Separate space of the fragments; see [`Reassembler::insert_among`].
    pub among: u64,
}

/// The fields that all fragments of a packet share. In IPv4 the protocol is one of them (RFC 791).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReassemblyKey {
    among: u64,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: Option<u8>,
}

/// An incomplete packet.
#[derive(Debug)]
struct PartialPacket {
    deadline: Instant,
    /// Pieces by offset.
    pieces: BTreeMap<usize, Bytes>,
    /// First fragment, with its headers.
    first: Option<(Bytes, IpHeaders)>,
    /// Offset of the IP header in the first fragment.
    network: usize,
    /// Bytes in all pieces.
    received: usize,
    /// Size of the whole, known once the last fragment has arrived.
    total: Option<usize>,
    charged: usize,
    /// Reason that the packet will never be complete.
    spoilt: Option<FragmentError>,
    /// Whether a router marked a fragment, and whether a fragment's sender does not support ECN (RFC 3168 5.3).
    congestion: bool,
    not_capable: bool,
}

impl Reassembler {
    /// Creates an empty buffer.
    pub fn new(limits: ReassemblyLimits) -> Reassembler {
        Reassembler { limits, packets: BTreeMap::new(), deadlines: BTreeSet::new(), bytes: 0, evicted: 0 }
    }

    /// Inserts the fragment with its IP header at `network` in `frame`. If there is no space, the packet with the
    /// earliest deadline is given up.
    pub fn insert(&mut self, now: Instant, frame: &[u8], network: usize) -> FragmentOutcome {
        self.insert_among(now, frame, network, 0)
    }

    /// Inserts like [`insert`](Self::insert), but in a separate space: only fragments with an equal `among` form a
    /// packet. For callers that separate fragments by more than their headers.
    pub fn insert_among(&mut self, now: Instant, frame: &[u8], network: usize, among: u64) -> FragmentOutcome {
        match self.try_insert(now, frame, network, among) {
            Ok(taken) => taken,
            Err(refusal) => FragmentOutcome::Refused(refusal),
        }
    }

    /// Returns the next time at which [`expire`](Self::expire) gives up a packet.
    pub fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Gives up the next packet with an expired deadline and returns it. Packets with bad fragments are removed
    /// silently.
    pub fn expire(&mut self, now: Instant) -> Option<ExpiredPacket> {
        while let Some((_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            // Packets with bad fragments are not reported: an answer would help an attacker who probes with such fragments.
            if let Some(partial) = self.remove(&key)
                && partial.spoilt.is_none()
            {
                return Some(ExpiredPacket { first: partial.first.map(|(frame, _)| frame), among: key.among });
            }
        }
        None
    }

    /// Returns the number of packets given up for space since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        core::mem::take(&mut self.evicted)
    }

    /// Returns the memory in use, in bytes, with the bookkeeping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of incomplete packets.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    fn try_insert(
        &mut self,
        now: Instant,
        frame: &[u8],
        network: usize,
        among: u64,
    ) -> Result<FragmentOutcome, FragmentError> {
        let packet = frame.get(network..).ok_or(HeaderError::Truncated)?;
        let headers = IpHeaders::parse(packet)?;
        let fragment = headers.fragment.ok_or(FragmentError::NoFragment)?;
        check(&headers, &fragment, packet)?;
        // IPv6 allows such "atomic" fragments. Each is a packet of its own, even if its identification is in use (RFC
        // 6946).
        if fragment.offset == 0 && !fragment.more {
            let data = Bytes::copy_from_slice(&packet[headers.upper..headers.end]);
            let first = Bytes::copy_from_slice(&frame[..network + headers.end]);
            return Ok(FragmentOutcome::Whole(assemble(&first, network, &headers, [data].iter(), false)));
        }
        let key = ReassemblyKey {
            among,
            source: headers.source(packet),
            destination: headers.destination(packet),
            identification: fragment.identification,
            protocol: (headers.version == IpVersion::V4).then_some(headers.protocol),
        };
        // The first fragment to arrive starts the timeout, no matter which part of the packet it is.
        if !self.packets.contains_key(&key) {
            self.begin(now, key, network);
        }
        let partial = self.packets.get_mut(&key).ok_or(FragmentError::Overlap)?;
        if let Some(refusal) = partial.spoilt {
            return Err(refusal);
        }
        let (start, data) = (fragment.offset, &packet[headers.upper..headers.end]);
        match partial.place(start, data, fragment.more) {
            RangeState::Free => {}
            // A duplicate is common after a retransmission at the link layer, and harmless (RFC 8200 4.5).
            RangeState::Taken => return Ok(FragmentOutcome::Duplicate),
            RangeState::Contested => return Err(self.spoil(&key, FragmentError::Overlap)),
        }
        let ecn = headers.ecn(packet);
        partial.congestion |= ecn == CONGESTION;
        partial.not_capable |= ecn == NOT_CAPABLE;
        if partial.congestion && partial.not_capable {
            // RFC 3168 5.3: the whole packet must neither lose the mark nor carry a mark that its sender does not
            // understand.
            return Err(self.spoil(&key, FragmentError::Marks));
        }
        let frame = &frame[..network + headers.end];
        let charged = partial.keep(start, data.len(), &headers, fragment.more, frame, network);
        self.bytes += charged;
        if partial.is_whole()
            && let Some(partial) = self.remove(&key)
            && let Some((first, headers)) = &partial.first
        {
            let whole = assemble(first, partial.network, headers, partial.pieces.values(), partial.congestion);
            return Ok(FragmentOutcome::Whole(whole));
        }
        self.make_space(&key);
        Ok(FragmentOutcome::Kept)
    }

    fn begin(&mut self, now: Instant, key: ReassemblyKey, network: usize) {
        // The victim makes room before the insertion, so the limit holds at any time.
        if self.packets.len() >= self.limits.packets {
            self.evict(None);
        }
        let deadline = now + self.limits.timeout;
        self.deadlines.insert((deadline, key));
        self.bytes += PACKET_OVERHEAD;
        self.packets.insert(
            key,
            PartialPacket {
                deadline,
                pieces: BTreeMap::new(),
                first: None,
                network,
                received: 0,
                total: None,
                charged: PACKET_OVERHEAD,
                spoilt: None,
                congestion: false,
                not_capable: false,
            },
        );
    }

    /// Gives up other packets than `key` while the memory exceeds its limit, and finally `key`, if it alone is too
    /// large.
    fn make_space(&mut self, key: &ReassemblyKey) {
        while self.bytes > self.limits.bytes {
            if !self.evict(Some(key)) {
                self.evicted += u64::from(self.remove(key).is_some());
            }
        }
    }

    /// Gives up the packet with the earliest deadline, except `spared`. Returns false if there is none.
    fn evict(&mut self, spared: Option<&ReassemblyKey>) -> bool {
        let victim = self.deadlines.iter().map(|(_, key)| *key).find(|key| Some(key) != spared);
        let Some(key) = victim else { return false };
        let gone = self.remove(&key);
        // A spoilt packet was lost before, and is not counted again.
        self.evicted += u64::from(gone.is_some_and(|partial| partial.spoilt.is_none()));
        true
    }

    /// Frees the pieces of a packet, and remembers the reason, so that later fragments are refused.
    fn spoil(&mut self, key: &ReassemblyKey, why: FragmentError) -> FragmentError {
        if let Some(partial) = self.packets.get_mut(key) {
            self.bytes -= partial.charged - PACKET_OVERHEAD;
            partial.charged = PACKET_OVERHEAD;
            partial.pieces.clear();
            partial.first = None;
            partial.spoilt = Some(why);
        }
        why
    }

    fn remove(&mut self, key: &ReassemblyKey) -> Option<PartialPacket> {
        let partial = self.packets.remove(key)?;
        self.deadlines.remove(&(partial.deadline, *key));
        self.bytes -= partial.charged;
        Some(partial)
    }
}

/// The state of the range that a fragment would occupy.
enum RangeState {
    Free,
    /// Occupied by the same bytes.
    Taken,
    /// Occupied by different bytes.
    Contested,
}

impl PartialPacket {
    fn place(&self, start: usize, data: &[u8], more: bool) -> RangeState {
        let end = start + data.len();
        if self.pieces.get(&start).is_some_and(|piece| piece[..] == *data) {
            // A true duplicate agrees about the end of the packet, too.
            let same_end = if more { self.total != Some(end) } else { self.total == Some(end) };
            return if same_end { RangeState::Taken } else { RangeState::Contested };
        }
        // Pieces never overlap each other, so only the two neighbours can overlap the new one.
        let before = self.pieces.range(..=start).next_back();
        let behind = self.pieces.range(start..).next();
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() > start)
            || behind.is_some_and(|(at, _)| *at < end)
            || self.total.is_some_and(|total| end > total || (!more && end != total))
            || (!more && behind.is_some());
        if overlaps { RangeState::Contested } else { RangeState::Free }
    }

    /// Stores a fragment in a free range, and returns the memory that it takes.
    fn keep(
        &mut self,
        start: usize,
        bytes: usize,
        headers: &IpHeaders,
        more: bool,
        frame: &[u8],
        network: usize,
    ) -> usize {
        let data = network + headers.upper;
        let (kept, piece) = {
            let _copy_scope = cost::work(WorkKind::Copy);
            // The first fragment is kept with its headers. The headers of later fragments add nothing.
            let kept = Bytes::copy_from_slice(if start == 0 { frame } else { &frame[data..] });
            let piece = if start == 0 { kept.slice(data..) } else { kept.clone() };
            (kept, piece)
        };
        let charged = kept.len() + PIECE_OVERHEAD;
        if start == 0 {
            self.first = Some((kept, *headers));
            self.network = network;
        }
        self.pieces.insert(start, piece);
        self.received += bytes;
        if !more {
            self.total = Some(start + bytes);
        }
        self.charged += charged;
        charged
    }

    fn is_whole(&self) -> bool {
        self.first.is_some() && self.total == Some(self.received)
    }
}

/// Checks that a packet can have such a fragment.
fn check(headers: &IpHeaders, fragment: &Fragment, packet: &[u8]) -> Result<(), FragmentError> {
    let data = &packet[headers.upper..headers.end];
    let impossible = |code, pointer: usize| {
        Err(FragmentError::Impossible(HeaderProblem { code, pointer: pointer as u32, report: ReportRule::Always }))
    };
    if data.is_empty() || (fragment.more && !data.len().is_multiple_of(8)) {
        return impossible(0, if headers.version == IpVersion::V4 { 2 } else { 4 });
    }
    let in_front = match headers.version {
        IpVersion::V4 => headers.unfragmentable(),
        // RFC 8200 3: the payload length counts the bytes after the fixed header.
        IpVersion::V6 => headers.unfragmentable() - IpVersion::V6.header_bytes(),
    };
    if in_front + fragment.offset + data.len() > usize::from(u16::MAX) {
        return impossible(0, if headers.version == IpVersion::V4 { 6 } else { headers.upper - 6 });
    }
    // RFC 8200 4.5, RFC 7112 5: the first fragment must show the transport header, so that a filter can judge the
    // packet.
    let six = headers.version == IpVersion::V6;
    if six && fragment.offset == 0 && !reaches_upper_layer(headers.protocol, data) {
        return impossible(3, 0);
    }
    Ok(())
}

/// Builds the whole packet, with the headers of the first fragment.
fn assemble<'a>(
    first: &[u8],
    network: usize,
    headers: &IpHeaders,
    pieces: impl Iterator<Item = &'a Bytes> + Clone,
    congestion: bool,
) -> BytesMut {
    // The fragment header itself is dropped: the whole packet has none.
    let header_bytes = network + headers.unfragmentable();
    let mut whole = BytesMut::with_capacity(header_bytes + pieces.clone().map(Bytes::len).sum::<usize>());
    whole.extend_from_slice(&first[..header_bytes]);
    {
        let _copy_scope = cost::work(WorkKind::Copy);
        pieces.for_each(|piece| whole.extend_from_slice(piece));
    }
    let ip = &mut whole[network..];
    let bytes = ip.len();
    if congestion {
        headers.version.set_ecn(ip, CONGESTION);
    }
    match headers.version {
        IpVersion::V4 => {
            ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
            ip[6] &= 0x40; // clears "more fragments" and the offset
            ip[7] = 0;
            fill_ipv4_header(ip);
        }
        IpVersion::V6 => {
            ip[4..6].copy_from_slice(&((bytes - IpVersion::V6.header_bytes()) as u16).to_be_bytes());
            ip[headers.protocol_at()] = headers.protocol;
        }
    }
    whole
}

/// ECN codepoints (RFC 3168 5): congestion experienced, and not ECN-capable.
const CONGESTION: u8 = 3;
const NOT_CAPABLE: u8 = 0;
/// Bookkeeping per packet and per piece, in bytes.
const PACKET_OVERHEAD: usize = 384;
const PIECE_OVERHEAD: usize = 128;
