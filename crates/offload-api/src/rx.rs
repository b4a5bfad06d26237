//! A packet on its way in, and a range of a stream with what the device said about it.

use crate::ipsec::{EspVerdict, Protection};
use crate::mark::{Mark, Marks, PacketMark, Verdict};
use crate::unit::{Handle, engines};
use bytes::{Buf, Bytes, BytesMut};
use core::fmt;
use core::num::NonZeroU16;
use core::ops::{Deref, Range};
use offload_base::Seq;
use smallvec::SmallVec;
use std::sync::Arc;

/// What the device found out about a packet's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// It did not look.
    #[default]
    Unchecked,
    /// IP header and transport checksum are right.
    Good,
    /// One of them is wrong.
    Bad,
}

/// What the TLS receive engine did with a packet. All or nothing: a packet in which anything failed is untouched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVerdict {
    /// Nothing: it is as it was on the wire.
    #[default]
    NotDecrypted,
    /// All its record bytes are decrypted, and every tag that ends in it is right.
    Decrypted,
    /// Nothing, and the engine asks for help to find its place again.
    ResyncRequested,
    /// Nothing: a tag was wrong, or the stream is no TLS.
    Error,
}

/// What the NVMe/TCP receive engine found out about the digests of a packet. Whether it placed the payload is told
/// by [`RxBuf::Placed`]: the two are kept apart.
///
/// ```
/// use offload_api::rx::NvmeVerdict;
/// use offload_api::{Handle, RxMeta, Verdict, engines};
///
/// let context = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: 0 };
/// assert_eq!(RxMeta::default().marked(context, Verdict::Done).nvme(), NvmeVerdict::Good);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvmeVerdict {
    /// It did not look, or not at all of the packet.
    #[default]
    NotChecked,
    /// It followed all PDU bytes of the packet, and every data digest that ends in it is right.
    Good,
    /// Nothing, and the engine asks for help to find its place again.
    ResyncRequested,
}

/// What the device said about a packet. It stays with the packet's bytes through every layer; ranges whose
/// metadata differ are never merged.
///
/// ```
/// use offload_api::RxMeta;
/// use offload_api::rx::{Checksums, TlsVerdict};
///
/// let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
/// assert_eq!(meta.tls(), TlsVerdict::NotDecrypted);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// Checksum verdict.
    pub checksums: Checksums,
    /// What the engines said.
    pub marks: Marks,
    /// What the SA did for it that it came by, as an IPsec layer found.
    pub protection: Protection,
}

impl RxMeta {
    /// The same, and `context` says this.
    ///
    /// ```
    /// use offload_api::rx::TlsVerdict;
    /// use offload_api::{Handle, RxMeta, Verdict};
    ///
    /// let context = Handle { index: 3, generation: 0 };
    /// let meta = RxMeta::default().marked(context, Verdict::Done);
    /// assert_eq!((meta.tls(), meta.tls_context()), (TlsVerdict::Decrypted, Some(context)));
    /// ```
    #[must_use]
    pub fn marked(mut self, context: Handle, verdict: Verdict) -> RxMeta {
        self.marks.set(context, verdict);
        self
    }

    /// What the TLS engine did.
    pub fn tls(&self) -> TlsVerdict {
        match self.marks.of(engines::TLS).map(|mark| mark.verdict) {
            None | Some(Verdict::Untouched) => TlsVerdict::NotDecrypted,
            Some(Verdict::Done) => TlsVerdict::Decrypted,
            Some(Verdict::Asks) => TlsVerdict::ResyncRequested,
            Some(Verdict::Failed) => TlsVerdict::Error,
        }
    }

    /// The context that gave the TLS verdict.
    pub fn tls_context(&self) -> Option<Handle> {
        self.marks.of(engines::TLS).map(|mark| mark.context)
    }

    /// What the ESP engine did.
    pub fn esp(&self) -> EspVerdict {
        self.marks.packet().into()
    }

    /// Tests whether an engine opened the packet for a protocol above IP. (An IPsec layer looks at the packets that ESP protected.)
    pub fn is_opened(&self) -> bool {
        matches!(self.marks.packet(), PacketMark::Opened { context, .. } if context.engine() != engines::ESP)
    }

    /// Tests whether an engine changed the payload. The NVMe/TCP engine changes nothing but the place of bytes.
    pub fn is_changed(&self) -> bool {
        let changes = |mark: Mark| mark.verdict == Verdict::Done && mark.context.engine() != engines::NVME_TCP;
        self.marks.iter().any(changes) || self.is_opened()
    }

    /// What the NVMe/TCP engine found out about digests.
    pub fn nvme(&self) -> NvmeVerdict {
        match self.marks.of(engines::NVME_TCP).map(|mark| mark.verdict) {
            None | Some(Verdict::Untouched | Verdict::Failed) => NvmeVerdict::NotChecked,
            Some(Verdict::Done) => NvmeVerdict::Good,
            Some(Verdict::Asks) => NvmeVerdict::ResyncRequested,
        }
    }
}

impl From<TlsVerdict> for Verdict {
    fn from(verdict: TlsVerdict) -> Verdict {
        match verdict {
            TlsVerdict::NotDecrypted => Verdict::Untouched,
            TlsVerdict::Decrypted => Verdict::Done,
            TlsVerdict::ResyncRequested => Verdict::Asks,
            TlsVerdict::Error => Verdict::Failed,
        }
    }
}

/// A received packet as a driver hands it to the stack: all of it, Ethernet header first.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{RxMeta, RxPacket};
///
/// let packet = RxPacket::new(BytesMut::zeroed(60), RxMeta::default());
/// assert!(packet.joined.is_none() && packet.placed.is_empty());
/// ```
#[derive(Debug)]
pub struct RxPacket {
    /// The packet. Unique: its holder may write to it.
    pub frame: BytesMut,
    /// What the device said.
    pub meta: RxMeta,
    /// If the device joined several segments of a flow to this one: payload bytes of each, but for the last, which may
    /// have fewer. All of them had the same metadata, but for ESP's numbers, which are consecutive. The headers are those
    /// of the first, with the length of all, and PSH and FIN of the last; the checksum fields are of no use, for they
    /// were checked. A length of zero stands for one that the IP header cannot tell: the packet is what is in the frame.
    pub joined: Option<NonZeroU16>,
    /// Parts of the payload that the device put elsewhere: where each begins in the payload, in order. What is in their
    /// place in the frame means nothing.
    pub placed: Placements,
}

/// Parts of a payload that were placed, each with where it begins in the payload.
pub type Placements = SmallVec<[(usize, Piece); 1]>;

impl RxPacket {
    /// A packet as it was on the wire.
    pub fn new(frame: BytesMut, meta: RxMeta) -> RxPacket {
        RxPacket { frame, meta, joined: None, placed: Placements::new() }
    }
}

/// A range of a received stream.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{RxMeta, RxSegment};
/// use offload_base::Seq;
///
/// let mut segment = RxSegment { seq: Seq(100), data: BytesMut::from(&b"abcdef"[..]).into(), meta: RxMeta::default() };
/// let first = segment.split_to(2);
/// assert_eq!((first.seq, &first.data[..]), (Seq(100), &b"ab"[..]));
/// assert_eq!((segment.seq, segment.end()), (Seq(102), Seq(106)));
/// ```
#[derive(Debug)]
pub struct RxSegment {
    /// TCP sequence number of the first byte.
    pub seq: Seq,
    /// The bytes.
    pub data: RxBuf,
    /// What the device said about the packet they came in.
    pub meta: RxMeta,
}

impl RxSegment {
    /// Sequence number after the last byte.
    pub fn end(&self) -> Seq {
        self.seq + self.data.len() as u32
    }

    /// Takes the first `bytes` bytes off, as a segment of their own with the same metadata.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, bytes: usize) -> RxSegment {
        let first = RxSegment { seq: self.seq, data: self.data.split_to(bytes), meta: self.meta };
        self.seq += bytes as u32;
        first
    }

    /// Drops the first `bytes` bytes, which takes less than to [split](Self::split_to) them off.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn skip(&mut self, bytes: usize) {
        self.data.skip(bytes);
        self.seq += bytes as u32;
    }

    /// Keeps the first `bytes` bytes; without effect if there are fewer.
    pub fn truncate(&mut self, bytes: usize) {
        self.data.truncate(bytes);
    }
}

/// Received bytes: in a buffer from a pool, or in a piece of the buffer they were meant for.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::RxBuf;
///
/// let mut buffer = RxBuf::from(BytesMut::from(&b"payload"[..]));
/// buffer.bytes_mut()[0] = b'P';
/// assert_eq!(&buffer.freeze()[..], b"Payload");
/// ```
#[derive(Debug)]
pub enum RxBuf {
    /// In a receive buffer.
    Pool(BytesMut),
    /// Placed by the device.
    Placed(Piece),
}

impl RxBuf {
    /// The bytes, to be worked on in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            RxBuf::Pool(bytes) => bytes,
            RxBuf::Placed(piece) => piece.bytes_mut(),
        }
    }

    /// Takes the first `at` bytes off.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, at: usize) -> RxBuf {
        match self {
            RxBuf::Pool(bytes) => RxBuf::Pool(bytes.split_to(at)),
            RxBuf::Placed(piece) => RxBuf::Placed(piece.split_to(at)),
        }
    }

    /// Drops the first `bytes` bytes; those of a placed piece go home.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn skip(&mut self, bytes: usize) {
        match self {
            RxBuf::Pool(buffer) => buffer.advance(bytes),
            RxBuf::Placed(piece) => drop(piece.split_to(bytes)),
        }
    }

    /// Keeps the first `bytes` bytes; without effect if there are fewer.
    pub fn truncate(&mut self, bytes: usize) {
        match self {
            RxBuf::Pool(buffer) => buffer.truncate(bytes),
            RxBuf::Placed(piece) => piece.truncate(bytes),
        }
    }

    /// Whether a stage of the device has worked on some of the bytes: copied out, they are not known from others.
    pub fn is_opened(&self) -> bool {
        matches!(self, RxBuf::Placed(piece) if !piece.opened().is_empty())
    }

    /// Makes the bytes what came, if a stage of the device has worked on some of them. False: that cannot be told any more.
    #[must_use]
    pub fn close(&mut self) -> bool {
        match self {
            RxBuf::Pool(_) => true,
            RxBuf::Placed(piece) => piece.close(),
        }
    }

    /// The bytes, shared and immutable. A placed piece is copied out, so that its memory can go home.
    pub fn freeze(self) -> Bytes {
        match self {
            RxBuf::Pool(bytes) => bytes.freeze(),
            RxBuf::Placed(piece) => Bytes::copy_from_slice(piece.bytes()),
        }
    }
}

impl Deref for RxBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            RxBuf::Pool(bytes) => bytes,
            RxBuf::Placed(piece) => piece.bytes(),
        }
    }
}

impl From<BytesMut> for RxBuf {
    fn from(bytes: BytesMut) -> RxBuf {
        RxBuf::Pool(bytes)
    }
}

/// Where the pieces of a command's buffer come back to.
pub trait PieceHome: Send + Sync {
    /// Takes back `bytes`, which began at `offset` of the command's buffer.
    fn take_back(&self, offset: u64, bytes: BytesMut);

    /// Undoes what stages of the device did to `bytes`, whole blocks at `offset` of the command's buffer. False: nobody asked for
    /// stages, or it cannot be undone.
    fn close(&self, _offset: u64, _bytes: &mut [u8]) -> bool {
        false
    }
}

/// A piece of a command's buffer that the device filled. However it ends, its memory goes home exactly once.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Piece, PieceHome};
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct Home(Mutex<Vec<(u64, usize)>>);
/// impl PieceHome for Home {
///     fn take_back(&self, offset: u64, bytes: BytesMut) {
///         self.0.lock().unwrap().push((offset, bytes.len()));
///     }
/// }
///
/// let home = Arc::new(Home::default());
/// drop(Piece::new(4096, BytesMut::zeroed(512), home.clone()));
/// assert_eq!(*home.0.lock().unwrap(), [(4096, 512)]);
/// ```
pub struct Piece {
    place: Place,
    bytes: BytesMut,
    home: Arc<dyn PieceHome>,
}

/// Where the memory of a piece begins in its buffer, how much of that is its [lead](Piece::lead), and how much of it stages have worked
/// on: all but fewer than 16 bytes at each end, or nothing. In one word, for received memory is charged at its true size: 51 bits, four,
/// one, and twice four.
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    fn at(start: u64) -> Place {
        Place(start << 13)
    }

    fn start(self) -> u64 {
        self.0 >> 13
    }

    fn lead(self) -> usize {
        (self.0 >> 9 & 0xf) as usize
    }

    fn with_lead(self, lead: usize) -> Place {
        Place(self.0 & !0x1e00 | (lead as u64) << 9)
    }

    fn gaps(self) -> Option<(u64, u64)> {
        (self.0 & 0x100 != 0).then_some((self.0 >> 4 & 0xf, self.0 & 0xf))
    }

    fn with_gaps(self, gaps: Option<(u64, u64)>) -> Place {
        let gaps = gaps.map_or(0, |(head, tail)| 0x100 | head << 4 | tail);
        Place(self.0 & !0x1ff | gaps)
    }
}

impl Piece {
    /// The piece at `offset` bytes, fewer than 2^51, into the buffer that `home` keeps together.
    pub fn new(offset: u64, bytes: BytesMut, home: Arc<dyn PieceHome>) -> Piece {
        Piece { place: Place::at(offset), bytes, home }
    }

    /// Where the piece begins in its command's buffer, in bytes, behind its lead.
    pub fn offset(&self) -> u64 {
        self.place.start() + self.lead() as u64
    }

    /// Bytes in it, without its lead.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.lead()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the buffer before the piece that come along with it: the beginning of a block that packets before this one left
    /// open, now filled with what became of it. The stream has those bytes as they came, in these packets.
    pub fn lead(&self) -> usize {
        self.place.lead()
    }

    /// Makes the first `bytes` bytes its lead.
    ///
    /// # Panics
    /// If they are a [`BLOCK`](Self::BLOCK) or more, or more than the piece has.
    pub fn set_lead(&mut self, bytes: usize) {
        assert!(bytes < Self::BLOCK as usize && bytes <= self.bytes.len(), "a lead of {bytes} bytes");
        self.place = self.place.with_lead(bytes);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.lead()..]
    }

    /// The bytes, for the device to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let lead = self.lead();
        &mut self.bytes[lead..]
    }

    /// Which bytes of the command's buffer are in this piece, or its lead, and are not as they came, for a stage of the device has
    /// worked on them. [`opens_to`](Self::opens_to) says what those are.
    pub fn opened(&self) -> Range<u64> {
        let Some((head, tail)) = self.place.gaps() else { return NOTHING };
        self.place.start() + head..self.end() - tail
    }

    fn end(&self) -> u64 {
        self.place.start() + self.bytes.len() as u64
    }

    /// Notes what was opened of it; false if that cannot be noted.
    fn note_opened(&mut self, opened: Range<u64>) -> bool {
        let gaps = (opened.start < opened.end).then(|| (opened.start - self.place.start(), self.end() - opened.end));
        let fits = gaps.is_none_or(|(head, tail)| head < Self::BLOCK && tail < Self::BLOCK);
        if fits {
            self.place = self.place.with_gaps(gaps);
        }
        fits
    }

    /// Which of its bytes a stage may work on: whole blocks of [`BLOCK`](Self::BLOCK) bytes of the command's buffer. Offsets are
    /// of that buffer.
    pub fn opens_to(&self) -> Range<u64> {
        let (start, end) = (self.place.start(), self.end());
        let range = start.next_multiple_of(Self::BLOCK)..end - end % Self::BLOCK;
        if range.is_empty() { NOTHING } else { range }
    }

    /// Has `work` change what stages may work on, and notes that it did. Without any such bytes, or if `work` says that it did
    /// not, nothing is noted.
    pub fn open(&mut self, work: impl FnOnce(u64, &mut [u8]) -> bool) {
        let Range { start, end } = self.opens_to();
        if start == end {
            return;
        }
        let offset = self.place.start();
        let bytes = &mut self.bytes[(start - offset) as usize..(end - offset) as usize];
        if work(start, bytes) {
            self.note_opened(start..end);
        }
    }

    /// Makes its bytes what came, if a stage has worked on some of them: a digest or a tag below the stage is to be made. False:
    /// that cannot be told any more, for a block was cut.
    #[must_use]
    pub fn close(&mut self) -> bool {
        let (Range { start, end }, offset) = (self.opened(), self.place.start());
        if start == end {
            return true;
        }
        let is_whole = start.is_multiple_of(Self::BLOCK) && end.is_multiple_of(Self::BLOCK);
        let bytes = &mut self.bytes[(start - offset) as usize..(end - offset) as usize];
        if !is_whole || !self.home.close(start, bytes) {
            return false;
        }
        self.note_opened(NOTHING)
    }

    /// Bytes of a block, the least that a stage works on.
    pub const BLOCK: u64 = 16;

    /// Whether it belongs to the buffer that `home` keeps together.
    pub fn is_from<H: PieceHome>(&self, home: &Arc<H>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.home), Arc::as_ptr(home))
    }

    /// Takes in the piece behind it, its lead included: between them the stream has to have that, and nothing else.
    ///
    /// # Errors
    /// It is not the piece behind, in the same memory; or what a stage has worked on would not be all but fewer than 16 bytes at
    /// each end.
    pub fn join(&mut self, next: Piece) -> Result<(), Piece> {
        let follows = self.end() == next.place.start()
            && core::ptr::addr_eq(Arc::as_ptr(&self.home), Arc::as_ptr(&next.home))
            && self.bytes.as_ptr_range().end == next.bytes.as_ptr();
        let (ours, theirs) = (self.opened(), next.opened());
        let opened = match (ours.is_empty(), theirs.is_empty()) {
            (_, true) => ours,
            (true, false) => theirs,
            (false, false) => ours.start..theirs.end,
        };
        let length = opened.end - opened.start;
        let opened_bytes = |piece: &Piece| piece.opened().end - piece.opened().start;
        let is_known = length == opened_bytes(self) + opened_bytes(&next)
            && (length == 0
                || opened.start - self.place.start() < Self::BLOCK && next.end() - opened.end < Self::BLOCK);
        if !follows || !is_known {
            return Err(next);
        }
        let mut next = next;
        self.bytes.unsplit(core::mem::take(&mut next.bytes));
        self.note_opened(opened);
        Ok(())
    }

    /// Keeps the first `bytes` bytes; the rest goes home.
    pub fn truncate(&mut self, bytes: usize) {
        if bytes < self.len() {
            let kept = self.split_to(bytes);
            *self = kept;
        }
    }

    /// Takes the first `at` bytes off, and the lead with them, if there are any.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, at: usize) -> Piece {
        if at == 0 {
            return Piece::new(self.offset(), BytesMut::new(), self.home.clone());
        }
        let cut = self.offset() + at as u64;
        let Range { start, end } = self.opened();
        let bytes = self.bytes.split_to(self.lead() + at);
        let mut first = Piece { place: self.place, bytes, home: self.home.clone() };
        first.note_opened(start.min(cut)..end.min(cut));
        self.place = Place::at(cut);
        self.note_opened(start.max(cut)..end.max(cut));
        first
    }
}

const NOTHING: Range<u64> = 0..0;

impl Drop for Piece {
    fn drop(&mut self) {
        let bytes = core::mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            self.home.take_back(self.place.start(), bytes);
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes at {})", self.len(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Home(Mutex<Vec<(u64, Vec<u8>)>>);

    impl PieceHome for Home {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
        }

        fn close(&self, offset: u64, bytes: &mut [u8]) -> bool {
            bytes.fill(7);
            offset != 64
        }
    }

    /// What a stage has worked on stays known by place, however pieces are cut and joined.
    #[test]
    fn what_was_opened_is_known_of_each_part() {
        let home = Arc::new(Home::default());
        let mut slab = BytesMut::zeroed(100);
        let (head, tail) = (slab.split_to(40), slab);
        let mut first = Piece::new(10, head, home.clone());
        first.open(|at, bytes| {
            bytes.fill(1);
            at == 16
        });
        assert_eq!((first.opened(), &first.bytes[5..7], first.bytes[37], first.bytes[38]), (16..48, &[0, 1][..], 1, 0));
        let mut next = Piece::new(50, tail, home.clone());
        let mut closed = next.split_to(14);
        next.open(|at, _| at == 64);
        assert_eq!(next.opened(), 64..96);
        first.join(closed.split_to(13)).unwrap();
        let closed = first.join(closed).expect_err("16 bytes behind what was opened");
        let mut next = first.join(next).expect_err("not the one behind");
        assert!(closed.opened().is_empty());
        let part = next.split_to(6);
        assert_eq!((part.opened(), next.opened()), (64..70, 70..96));
        let mut again = part;
        again.join(next).unwrap();
        assert_eq!(again.opened(), 64..96);
        assert!(!again.close() && again.opened() == (64..96), "its home cannot");
        let mut rest = again.split_to(16);
        assert!(again.close() && again.opened().is_empty() && again.bytes[..16] == [7; 16]);
        drop(rest.split_to(1));
        assert!(!rest.close(), "a part of a block");
        // Work that was not done, or had nothing to be done on, is not noted.
        let mut small = Piece::new(1, BytesMut::zeroed(30), home.clone());
        small.open(|_, _| panic!("no whole block"));
        let mut refused = Piece::new(0, BytesMut::zeroed(32), home);
        refused.open(|_, _| false);
        assert!(small.opened().is_empty() && refused.opened().is_empty());
    }

    #[test]
    fn a_lead_comes_along_and_is_no_part_of_the_stream() {
        let home = Arc::new(Home::default());
        let piece = || {
            let mut piece = Piece::new(16, BytesMut::from_iter(0..48u8), home.clone());
            piece.open(|at, bytes| at == 16 && bytes.len() == 48);
            piece.set_lead(5);
            piece
        };
        let mut whole = piece();
        assert_eq!((whole.offset(), whole.len(), whole.lead(), whole.opened()), (21, 43, 5, 16..64));
        assert!(whole.split_to(0).opened().is_empty() && whole.lead() == 5);
        assert_eq!((whole.bytes_mut()[0], RxBuf::Placed(piece()).freeze()[0]), (5, 5));
        assert!(whole.close() && whole.opened().is_empty() && whole.bytes == [7; 48][..]);
        let mut rest = piece();
        let first = rest.split_to(11);
        assert_eq!((first.opened(), first.lead(), rest.opened(), rest.lead()), (16..32, 5, 32..64, 0));
        assert!(rest.close());
        home.0.lock().unwrap().clear();
        drop(first);
        assert_eq!(home.0.lock().unwrap().pop(), Some((16, (0..16).collect())), "all of it goes home");
        // Joined to what is before it, it is a part.
        let mut slab = BytesMut::zeroed(64);
        let mut next = Piece::new(32, slab.split_off(32), home.clone());
        let mut first = Piece::new(0, slab, home.clone());
        for piece in [&mut first, &mut next] {
            piece.open(|_, _| true);
        }
        next.set_lead(3);
        first.join(next).unwrap();
        assert_eq!((first.len(), first.opened()), (64, 0..64));
    }

    #[test]
    fn every_byte_of_a_placed_buffer_goes_home_once() {
        let home = Arc::new(Home::default());
        let mut buffer = RxBuf::Placed(Piece::new(100, BytesMut::from(&b"0123456789"[..]), home.clone()));
        let first = buffer.split_to(3);
        buffer.truncate(5); // the two bytes cut off go home now
        buffer.skip(1); // and this one
        assert_eq!(&buffer.freeze()[..], b"4567");
        drop(first);
        let mut home = core::mem::take(&mut *home.0.lock().unwrap());
        home.sort();
        let expected = [(100, &b"012"[..]), (103, b"3"), (104, b"4567"), (108, b"89")];
        assert_eq!(home, expected.map(|(offset, bytes)| (offset, bytes.to_vec())));
    }
}
