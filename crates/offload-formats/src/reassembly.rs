//! Fragments put together again (RFC 791 3.2, RFC 8200 4.5), within bounds.
//!
//! Fragments that overlap are never sorted out: their sender hides something, or wants to (RFC 5722, and for
//! IPv4 likewise). The packet is given up then, and what else comes of it is refused until its time is over. A
//! fragment that comes twice, byte for byte the same, is no overlap (RFC 8200 4.5).
//!
//! Invariants: the pieces of a packet do not overlap, and none lies behind its end once that is known; what all of
//! them take, with what it takes to keep them, is at most what the limits say, and so is the number of packets.

use crate::checksum::fill_ipv4_header;
use crate::ip::{Fragment, HeaderError, IpHeaders, Problem, Report, Version, reaches_upper_layer};
use bytes::{Bytes, BytesMut};
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use offload_base::cost::{self, Work};
use std::collections::{BTreeMap, BTreeSet};

/// How much waits at most for the rest of its packet, and how long.
///
/// ```
/// use offload_formats::reassembly::Limits;
/// use offload_formats::Version;
///
/// let small = Limits { bytes: 64 << 10, ..Limits::of(Version::Six) };
/// assert_eq!(small.timeout.as_secs(), 60);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of fragments, with what it takes to keep them.
    pub bytes: usize,
    /// Packets of which something waits.
    pub packets: usize,
    /// How long a packet's first fragment to come waits for the last.
    pub timeout: Duration,
}

impl Limits {
    /// Linux's limits: 4 MiB, half a minute for IPv4 and a minute for IPv6 (RFC 8200 4.5); and 1024 packets.
    pub const fn of(version: Version) -> Limits {
        let timeout = match version {
            Version::Four => Duration::from_secs(30),
            Version::Six => Duration::from_secs(60),
        };
        Limits { bytes: 4 << 20, packets: 1024, timeout }
    }
}

/// Puts packets together again.
///
/// ```
/// use offload_formats::reassembly::{Limits, Reassembler, Taken};
/// use offload_formats::{IpHeaders, Version};
/// use offload_base::Instant;
///
/// // A fragment of an IPv4 packet, no Ethernet header in front.
/// let fragment = |eighths: u8, more: u8, data: &[u8]| {
///     let header = [0x45, 0, 0, 20 + data.len() as u8, 0, 7, more, eighths, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
///     [&header[..], data].concat()
/// };
/// let (first, last) = (fragment(0, 0x20, b"begins, "), fragment(1, 0, b"ends"));
/// assert_eq!(IpHeaders::parse(&last)?.fragment.unwrap().offset, 8);
///
/// let mut reassembler = Reassembler::new(Limits::of(Version::Four));
/// assert_eq!(reassembler.insert(Instant::ZERO, &last, 0), Taken::Kept);
/// let Taken::Whole(packet) = reassembler.insert(Instant::ZERO, &first, 0) else { panic!("nothing is missing") };
/// assert_eq!(&packet[20..], b"begins, ends");
/// # Ok::<(), offload_formats::HeaderError>(())
/// ```
#[derive(Debug)]
pub struct Reassembler {
    limits: Limits,
    packets: BTreeMap<Key, Partial>,
    /// When each of them is given up.
    deadlines: BTreeSet<(Instant, Key)>,
    bytes: usize,
    evicted: u64,
}

/// What became of a fragment.
///
/// See [`Reassembler`] for an example.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// Nothing is missing any more: the packet, behind what was in front of its first fragment's IP header. No
    /// checksum but IPv4's header's was checked or made.
    Whole(BytesMut),
    /// It waits for others.
    Kept,
    /// It was there already.
    Duplicate,
    /// It goes nowhere.
    Refused(Refusal),
}

/// Why a fragment is not kept.
///
/// ```
/// use offload_formats::reassembly::{Limits, Reassembler, Refusal, Taken};
/// use offload_formats::Version;
/// use offload_base::Instant;
///
/// let mut reassembler = Reassembler::new(Limits::of(Version::Four));
/// let whole = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// assert_eq!(reassembler.insert(Instant::ZERO, &whole, 0), Taken::Refused(Refusal::NoFragment));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The packet is not a fragment.
    #[error("the packet is not a fragment")]
    NoFragment,
    /// Its headers make no sense.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// It is no part that a packet can have; the sender may be told.
    #[error("an impossible fragment: {0:?}")]
    Impossible(Problem),
    /// It overlaps with another one of its packet, or is one of a packet in which some did.
    #[error("fragments overlap")]
    Overlap,
    /// A router marked one, and another cannot be marked, or it is one of a packet in which that was so.
    #[error("some fragments are marked with congestion (ECN CE), others come from a sender without ECN")]
    Marks,
}

/// A packet that was given up when its time was over.
///
/// See [`Reassembler::expire`].
///
/// ```
/// use offload_base::Instant;
/// use offload_formats::Version;
/// use offload_formats::reassembly::{Expired, Limits, Reassembler};
///
/// let mut reassembler = Reassembler::new(Limits::of(Version::Four));
/// // The first eight bytes of a UDP datagram: more fragments are to come, and do not.
/// let mut first = vec![0x45, 0, 0, 28, 0, 1, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// first.extend([0, 7, 0, 7, 0, 99, 0, 0]);
/// reassembler.insert(Instant::ZERO, &first, 0);
/// let late = reassembler.next_event().unwrap();
/// let Expired { first, among } = reassembler.expire(late).unwrap();
/// assert!(first.is_some() && among == 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The first fragment, if it had come, behind what was in front of its IP header: with it the sender may be told
    /// (RFC 792, RFC 8200 4.5).
    pub first: Option<Bytes>,
    /// What its fragments came under; see [`Reassembler::insert_among`].
    pub among: u64,
}

/// What fragments of one packet have in common. IPv4 tells them apart by their protocol too (RFC 791).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    among: u64,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: Option<u8>,
}

/// What there is of a packet.
#[derive(Debug)]
struct Partial {
    deadline: Instant,
    /// By where they start.
    pieces: BTreeMap<usize, Bytes>,
    /// The first fragment, and its headers.
    first: Option<(Bytes, IpHeaders)>,
    /// Where the IP header starts in it.
    network: usize,
    /// Bytes in all pieces.
    received: usize,
    /// Bytes of the whole, once the last fragment has come.
    total: Option<usize>,
    charged: usize,
    /// Why it will never be whole.
    spoilt: Option<Refusal>,
    /// A router marked one of them; one of them says that its sender does not know such marks (RFC 3168 5.3).
    congestion: bool,
    not_capable: bool,
}

impl Reassembler {
    /// Nothing waits yet.
    pub fn new(limits: Limits) -> Reassembler {
        Reassembler { limits, packets: BTreeMap::new(), deadlines: BTreeSet::new(), bytes: 0, evicted: 0 }
    }

    /// Takes a fragment, whose IP header starts at `network` in `frame`. If it finds no space, what would be given up
    /// first gives way to it.
    pub fn insert(&mut self, now: Instant, frame: &[u8], network: usize) -> Taken {
        self.insert_among(now, frame, network, 0)
    }

    /// [`insert`](Self::insert), of those who keep fragments apart by more than their headers say: only such as came
    /// under the same `among` make a packet.
    pub fn insert_among(&mut self, now: Instant, frame: &[u8], network: usize, among: u64) -> Taken {
        match self.try_insert(now, frame, network, among) {
            Ok(taken) => taken,
            Err(refusal) => Taken::Refused(refusal),
        }
    }

    /// When [`expire`](Self::expire) has something to give up.
    pub fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Gives up the next packet whose time is over. Those whose fragments did not fit together go silently.
    pub fn expire(&mut self, now: Instant) -> Option<Expired> {
        while let Some((_, key)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            if let Some(partial) = self.remove(&key)
                && partial.spoilt.is_none()
            {
                return Some(Expired { first: partial.first.map(|(frame, _)| frame), among: key.among });
            }
        }
        None
    }

    /// How many packets were given up to make space, since this was asked last.
    pub fn take_evicted(&mut self) -> u64 {
        core::mem::take(&mut self.evicted)
    }

    /// Bytes that wait, with what it takes to keep them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets of which something waits.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    fn try_insert(&mut self, now: Instant, frame: &[u8], network: usize, among: u64) -> Result<Taken, Refusal> {
        let packet = frame.get(network..).ok_or(HeaderError::Truncated)?;
        let headers = IpHeaders::parse(packet)?;
        let fragment = headers.fragment.ok_or(Refusal::NoFragment)?;
        check(&headers, &fragment, packet)?;
        // Such as IPv6 may have: a packet by itself, whatever else goes by its identification (RFC 6946).
        if fragment.offset == 0 && !fragment.more {
            let data = Bytes::copy_from_slice(&packet[headers.upper..headers.end]);
            let first = Bytes::copy_from_slice(&frame[..network + headers.end]);
            return Ok(Taken::Whole(assemble(&first, network, &headers, [data].iter(), false)));
        }
        let key = Key {
            among,
            source: headers.source(packet),
            destination: headers.destination(packet),
            identification: fragment.identification,
            protocol: (headers.version == Version::Four).then_some(headers.protocol),
        };
        if !self.packets.contains_key(&key) {
            self.begin(now, key, network);
        }
        let partial = self.packets.get_mut(&key).ok_or(Refusal::Overlap)?;
        if let Some(refusal) = partial.spoilt {
            return Err(refusal);
        }
        let (start, data) = (fragment.offset, &packet[headers.upper..headers.end]);
        match partial.place(start, data, fragment.more) {
            Place::Free => {}
            Place::Taken => return Ok(Taken::Duplicate),
            Place::Contested => return Err(self.spoil(&key, Refusal::Overlap)),
        }
        let ecn = headers.ecn(packet);
        partial.congestion |= ecn == CONGESTION;
        partial.not_capable |= ecn == NOT_CAPABLE;
        if partial.congestion && partial.not_capable {
            // RFC 3168 5.3: the whole is neither to lose the mark nor to have one that its sender does not know.
            return Err(self.spoil(&key, Refusal::Marks));
        }
        let frame = &frame[..network + headers.end];
        let charged = partial.keep(start, data.len(), &headers, fragment.more, frame, network);
        self.bytes += charged;
        if partial.is_whole()
            && let Some(partial) = self.remove(&key)
            && let Some((first, headers)) = &partial.first
        {
            let whole = assemble(first, partial.network, headers, partial.pieces.values(), partial.congestion);
            return Ok(Taken::Whole(whole));
        }
        self.make_space(&key);
        Ok(Taken::Kept)
    }

    fn begin(&mut self, now: Instant, key: Key, network: usize) {
        if self.packets.len() >= self.limits.packets {
            self.evict(None);
        }
        let deadline = now + self.limits.timeout;
        self.deadlines.insert((deadline, key));
        self.bytes += PACKET_OVERHEAD;
        self.packets.insert(
            key,
            Partial {
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

    /// Gives up others than `key` as long as too much waits; `key` too, if it takes too much alone.
    fn make_space(&mut self, key: &Key) {
        while self.bytes > self.limits.bytes {
            if !self.evict(Some(key)) {
                self.evicted += u64::from(self.remove(key).is_some());
            }
        }
    }

    /// Gives up what would be given up first, but not `spared`. False: there is nothing else.
    fn evict(&mut self, spared: Option<&Key>) -> bool {
        let victim = self.deadlines.iter().map(|(_, key)| *key).find(|key| Some(key) != spared);
        let Some(key) = victim else { return false };
        let gone = self.remove(&key);
        self.evicted += u64::from(gone.is_some_and(|partial| partial.spoilt.is_none()));
        true
    }

    /// Only that there was such a packet is remembered, and `why` nothing will come of it.
    fn spoil(&mut self, key: &Key, why: Refusal) -> Refusal {
        if let Some(partial) = self.packets.get_mut(key) {
            self.bytes -= partial.charged - PACKET_OVERHEAD;
            partial.charged = PACKET_OVERHEAD;
            partial.pieces.clear();
            partial.first = None;
            partial.spoilt = Some(why);
        }
        why
    }

    fn remove(&mut self, key: &Key) -> Option<Partial> {
        let partial = self.packets.remove(key)?;
        self.deadlines.remove(&(partial.deadline, *key));
        self.bytes -= partial.charged;
        Some(partial)
    }
}

/// What is known about where a fragment would go.
enum Place {
    Free,
    /// By the same bytes.
    Taken,
    /// By others.
    Contested,
}

impl Partial {
    fn place(&self, start: usize, data: &[u8], more: bool) -> Place {
        let end = start + data.len();
        if self.pieces.get(&start).is_some_and(|piece| piece[..] == *data) {
            // It says the same about where the packet ends, or it is another.
            let same_end = if more { self.total != Some(end) } else { self.total == Some(end) };
            return if same_end { Place::Taken } else { Place::Contested };
        }
        let before = self.pieces.range(..=start).next_back();
        let behind = self.pieces.range(start..).next();
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() > start)
            || behind.is_some_and(|(at, _)| *at < end)
            || self.total.is_some_and(|total| end > total || (!more && end != total))
            || (!more && behind.is_some());
        if overlaps { Place::Contested } else { Place::Free }
    }

    /// Keeps a fragment for which there is a place, and returns what it takes.
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
            let _copying = cost::work(Work::Copy);
            // Of the first, the headers too; of the others they say nothing new.
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

/// Whether a packet can have such a fragment.
fn check(headers: &IpHeaders, fragment: &Fragment, packet: &[u8]) -> Result<(), Refusal> {
    let data = &packet[headers.upper..headers.end];
    let impossible = |code, pointer: usize| {
        Err(Refusal::Impossible(Problem { code, pointer: pointer as u32, report: Report::Always }))
    };
    if data.is_empty() || (fragment.more && !data.len().is_multiple_of(8)) {
        return impossible(0, if headers.version == Version::Four { 2 } else { 4 });
    }
    let in_front = match headers.version {
        Version::Four => headers.unfragmentable(),
        // RFC 8200 3: the length is of what comes behind the fixed header.
        Version::Six => headers.unfragmentable() - Version::Six.header_bytes(),
    };
    if in_front + fragment.offset + data.len() > usize::from(u16::MAX) {
        return impossible(0, if headers.version == Version::Four { 6 } else { headers.upper - 6 });
    }
    // RFC 8200 4.5, RFC 7112 5: whoever looks at the first fragment sees what the packet is.
    let six = headers.version == Version::Six;
    if six && fragment.offset == 0 && !reaches_upper_layer(headers.protocol, data) {
        return impossible(3, 0);
    }
    Ok(())
}

/// The whole packet, behind the first fragment's headers.
fn assemble<'a>(
    first: &[u8],
    network: usize,
    headers: &IpHeaders,
    pieces: impl Iterator<Item = &'a Bytes> + Clone,
    congestion: bool,
) -> BytesMut {
    let header_bytes = network + headers.unfragmentable();
    let mut whole = BytesMut::with_capacity(header_bytes + pieces.clone().map(Bytes::len).sum::<usize>());
    whole.extend_from_slice(&first[..header_bytes]);
    {
        let _copying = cost::work(Work::Copy);
        pieces.for_each(|piece| whole.extend_from_slice(piece));
    }
    let ip = &mut whole[network..];
    let bytes = ip.len();
    if congestion {
        headers.version.set_ecn(ip, CONGESTION);
    }
    match headers.version {
        Version::Four => {
            ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
            ip[6] &= 0x40; // neither more fragments nor an offset
            ip[7] = 0;
            fill_ipv4_header(ip);
        }
        Version::Six => {
            ip[4..6].copy_from_slice(&((bytes - Version::Six.header_bytes()) as u16).to_be_bytes());
            ip[headers.protocol_at()] = headers.protocol;
        }
    }
    whole
}

/// RFC 3168 5: congestion experienced; not ECN-capable.
const CONGESTION: u8 = 3;
const NOT_CAPABLE: u8 = 0;
/// What it takes to keep a packet, and each of its pieces, beside their bytes.
const PACKET_OVERHEAD: usize = 384;
const PIECE_OVERHEAD: usize = 128;
