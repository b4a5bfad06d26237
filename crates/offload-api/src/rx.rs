//! Received packets, and ranges of a stream with the device's verdicts.

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

/// The device's verdict on a packet's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// The device did not check.
    #[default]
    Unchecked,
    /// The IP header checksum and the transport checksum are correct.
    Good,
    /// A checksum is wrong.
    Bad,
}

/// The verdict of the TLS receive engine on a packet. A packet is processed as a whole: if any part fails, all bytes
/// stay as received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVerdict {
    /// The packet is as it was on the wire.
    #[default]
    NotDecrypted,
    /// All record bytes of the packet are decrypted, and every tag that ends in the packet is correct.
    Decrypted,
    /// The packet is unchanged because the engine lost its position, and asks for a resync.
    ResyncRequested,
    /// The packet is unchanged because a tag was wrong or the stream is not TLS.
    Error,
}

/// The verdict of the NVMe/TCP receive engine on a packet's digests. Placement is separate: [`RxBuf::Placed`] marks
/// placed payload.
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
    /// The engine did not check all of the packet.
    #[default]
    NotChecked,
    /// The engine followed all PDU bytes of the packet, and every data digest that ends in the packet is correct.
    Good,
    /// The engine checked nothing because it lost its position, and asks for a resync.
    ResyncRequested,
}

/// The device's verdicts on a packet. The metadata stay with the packet's bytes through all layers, and ranges with
/// different metadata are never merged.
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
    /// Verdicts of the engines.
    pub marks: Marks,
    /// Protection of the SA through which the packet arrived, set by an IPsec layer.
    pub protection: Protection,
}

impl RxMeta {
    /// Returns the metadata with the verdict of `context` added.
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

    /// Returns the verdict of the TLS engine.
    pub fn tls(&self) -> TlsVerdict {
        match self.marks.for_engine(engines::TLS).map(|mark| mark.verdict) {
            None | Some(Verdict::Untouched) => TlsVerdict::NotDecrypted,
            Some(Verdict::Done) => TlsVerdict::Decrypted,
            Some(Verdict::Asks) => TlsVerdict::ResyncRequested,
            Some(Verdict::Failed) => TlsVerdict::Error,
        }
    }

    /// Returns the context that gave the TLS verdict.
    pub fn tls_context(&self) -> Option<Handle> {
        self.marks.for_engine(engines::TLS).map(|mark| mark.context)
    }

    /// Returns the verdict of the ESP engine.
    pub fn esp(&self) -> EspVerdict {
        self.marks.packet().into()
    }

    /// Tests whether an engine opened the packet for a protocol above IP. (ESP is excluded, because an IPsec layer
    /// handles its packets.)
    pub fn is_opened(&self) -> bool {
        matches!(self.marks.packet(), PacketMark::Opened { context, .. } if context.engine() != engines::ESP)
    }

    /// Tests whether an engine changed the payload. The NVMe/TCP engine does not count, because it only moves bytes.
    pub fn is_changed(&self) -> bool {
        // Decryption changes bytes, while placement only moves them.
        let changes = |mark: Mark| mark.verdict == Verdict::Done && mark.context.engine() != engines::NVME_TCP;
        self.marks.iter().any(changes) || self.is_opened()
    }

    /// Returns the verdict of the NVMe/TCP engine on digests.
    pub fn nvme(&self) -> NvmeVerdict {
        match self.marks.for_engine(engines::NVME_TCP).map(|mark| mark.verdict) {
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

/// A received packet from a driver, with all headers from Ethernet on.
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
    /// The packet. The buffer is unique, so the holder may write to it.
    pub frame: BytesMut,
    /// Verdicts of the device.
    pub meta: RxMeta,
    /// Payload bytes of each segment that the device joined into this packet; the last segment may be shorter. `None`
    /// if the device joined no segments. All segments had the same metadata, except for consecutive ESP numbers. The
    /// headers are the first segment's, with the length of the whole and with PSH and FIN of the last segment. The
    /// checksum fields are invalid, because the device has checked them. An IP length of zero means that the length
    /// does not fit the field: the packet then extends to the end of the frame.
    pub joined: Option<NonZeroU16>,
    /// Parts of the payload that the device placed elsewhere, in order, each with its start in the payload. The frame's
    /// bytes at these positions are undefined.
    pub placed: Placements,
}

/// Placed parts of a payload, each with its start in the payload.
pub type Placements = SmallVec<[(usize, Piece); 1]>;

impl RxPacket {
    /// Makes a packet that the device neither joined nor placed.
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
    /// Verdicts of the device on the packet that carried the bytes.
    pub meta: RxMeta,
}

impl RxSegment {
    /// Returns the sequence number after the last byte.
    pub fn end(&self) -> Seq {
        self.seq + self.data.len() as u32
    }

    /// Removes and returns the first `bytes` bytes, with the same metadata.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, bytes: usize) -> RxSegment {
        let first = RxSegment { seq: self.seq, data: self.data.split_to(bytes), meta: self.meta };
        self.seq += bytes as u32;
        first
    }

    /// Drops the first `bytes` bytes. Cheaper than [`split_to`](Self::split_to).
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

/// Received bytes, in a pool buffer or in a piece of the command's buffer.
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
    /// Bytes in a receive buffer.
    Pool(BytesMut),
    /// Bytes that the device placed.
    Placed(Piece),
}

impl RxBuf {
    /// Returns the bytes for work in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            RxBuf::Pool(bytes) => bytes,
            RxBuf::Placed(piece) => piece.bytes_mut(),
        }
    }

    /// Removes and returns the first `at` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, at: usize) -> RxBuf {
        match self {
            RxBuf::Pool(bytes) => RxBuf::Pool(bytes.split_to(at)),
            RxBuf::Placed(piece) => RxBuf::Placed(piece.split_to(at)),
        }
    }

    /// Drops the first `bytes` bytes; the memory of placed bytes returns to its owner.
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

    /// Tests whether a stage of the device changed some of the bytes. A copy of the bytes does not carry this
    /// information.
    pub fn is_opened(&self) -> bool {
        matches!(self, RxBuf::Placed(piece) if !piece.opened().is_empty())
    }

    /// Undoes the work of the device's stages, so that the bytes are as received. Returns false if they cannot be
    /// restored.
    #[must_use]
    pub fn close(&mut self) -> bool {
        match self {
            RxBuf::Pool(_) => true,
            RxBuf::Placed(piece) => piece.close(),
        }
    }

    /// Returns the bytes, shared and immutable. Placed bytes are copied, so that their memory can return to its owner.
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

/// The owner of a command's buffer, to which all pieces return.
pub trait PieceHome: Send + Sync {
    /// Takes back `bytes`, which start at `offset` of the buffer.
    fn take_back(&self, offset: u64, bytes: BytesMut);

    /// Undoes the work of the device's stages on `bytes`, whole blocks at `offset` of the buffer. Returns false if the
    /// buffer has no stages or the work cannot be undone.
    fn close(&self, _offset: u64, _bytes: &mut [u8]) -> bool {
        false
    }
}

/// A piece of a command's buffer that the device filled. Its memory returns to its owner exactly once, however the
/// piece ends.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Piece, PieceHome};
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Default)]
/// struct TestBuffer(Mutex<Vec<(u64, usize)>>);
/// impl PieceHome for TestBuffer {
///     fn take_back(&self, offset: u64, bytes: BytesMut) {
///         self.0.lock().unwrap().push((offset, bytes.len()));
///     }
/// }
///
/// let home = Arc::new(TestBuffer::default());
/// drop(Piece::new(4096, BytesMut::zeroed(512), home.clone()));
/// assert_eq!(*home.0.lock().unwrap(), [(4096, 512)]);
/// ```
pub struct Piece {
    place: PieceLayout,
    bytes: BytesMut,
    home: Arc<dyn PieceHome>,
}

/// The position of a piece and the state of its bytes, packed into one word because received memory is charged at its
/// true size. Fields: start in the buffer (51 bits), length of the [lead](Piece::lead) (4), a flag for stage work (1),
/// and the number of unchanged bytes at the head and the tail (4 each). Stages changed all other bytes, or no bytes if
/// the flag is clear.
#[derive(Clone, Copy)]
struct PieceLayout(u64);

impl PieceLayout {
    fn at(start: u64) -> PieceLayout {
        PieceLayout(start << 13)
    }

    fn start(self) -> u64 {
        self.0 >> 13
    }

    fn lead(self) -> usize {
        (self.0 >> 9 & 0xf) as usize
    }

    fn with_lead(self, lead: usize) -> PieceLayout {
        PieceLayout(self.0 & !0x1e00 | (lead as u64) << 9)
    }

    fn gaps(self) -> Option<(u64, u64)> {
        (self.0 & 0x100 != 0).then_some((self.0 >> 4 & 0xf, self.0 & 0xf))
    }

    fn with_gaps(self, gaps: Option<(u64, u64)>) -> PieceLayout {
        let gaps = gaps.map_or(0, |(head, tail)| 0x100 | head << 4 | tail);
        PieceLayout(self.0 & !0x1ff | gaps)
    }
}

impl Piece {
    /// Makes the piece at `offset` (below 2^51) of the buffer that `home` owns.
    pub fn new(offset: u64, bytes: BytesMut, home: Arc<dyn PieceHome>) -> Piece {
        Piece { place: PieceLayout::at(offset), bytes, home }
    }

    /// Returns the offset in the command's buffer, without the lead.
    pub fn offset(&self) -> u64 {
        self.place.start() + self.lead() as u64
    }

    /// Returns the number of bytes, without the lead.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.lead()
    }

    /// Tests whether the piece is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the length of the lead: buffer bytes before the piece that arrived in earlier packets. Those packets
    /// left a block incomplete; the lead is the start of that block after the stages' work. The stream has these bytes
    /// already, as received, in the earlier packets.
    pub fn lead(&self) -> usize {
        self.place.lead()
    }

    /// Declares the first `bytes` bytes to be the lead.
    ///
    /// # Panics
    /// If `bytes` is at least [`BLOCK`](Self::BLOCK) or exceeds the piece.
    pub fn set_lead(&mut self, bytes: usize) {
        assert!(bytes < Self::BLOCK as usize && bytes <= self.bytes.len(), "a lead of {bytes} bytes");
        self.place = self.place.with_lead(bytes);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.lead()..]
    }

    /// Returns the bytes, for the device to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let lead = self.lead();
        &mut self.bytes[lead..]
    }

    /// Returns the range of the command's buffer, within this piece and its lead, that a stage of the device changed.
    /// [`opens_to`](Self::opens_to) gives the maximum range.
    pub fn opened(&self) -> Range<u64> {
        let Some((head, tail)) = self.place.gaps() else { return NOTHING };
        self.place.start() + head..self.end() - tail
    }

    fn end(&self) -> u64 {
        self.place.start() + self.bytes.len() as u64
    }

    /// Records the range that stages changed. Returns false if the word has no room for it.
    fn note_opened(&mut self, opened: Range<u64>) -> bool {
        // The word has four bits per gap, so a gap of a whole block or more cannot be recorded.
        // An empty range is stored as "nothing changed".
        let gaps = (opened.start < opened.end).then(|| (opened.start - self.place.start(), self.end() - opened.end));
        let fits = gaps.is_none_or(|(head, tail)| head < Self::BLOCK && tail < Self::BLOCK);
        if fits {
            self.place = self.place.with_gaps(gaps);
        }
        fits
    }

    /// Returns the range of the command's buffer on which a stage may work: the whole blocks of [`BLOCK`](Self::BLOCK)
    /// bytes in the piece.
    pub fn opens_to(&self) -> Range<u64> {
        let (start, end) = (self.place.start(), self.end());
        // Blocks are aligned in the command's buffer and not in the piece.
        let range = start.next_multiple_of(Self::BLOCK)..end - end % Self::BLOCK;
        if range.is_empty() { NOTHING } else { range }
    }

    /// Calls `work` with the range on which stages may work, and records the range as changed if `work` returns true.
    /// Without a whole block, `work` is not called.
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

    /// Undoes the work of stages, so that the bytes are as received; a digest or tag of a lower layer needs them.
    /// Returns false if a block was cut, because its bytes cannot be restored.
    #[must_use]
    pub fn close(&mut self) -> bool {
        let (Range { start, end }, offset) = (self.opened(), self.place.start());
        if start == end {
            return true;
        }
        // A cut block cannot be restored, because a cipher needs all of its bytes.
        let is_whole = start.is_multiple_of(Self::BLOCK) && end.is_multiple_of(Self::BLOCK);
        let bytes = &mut self.bytes[(start - offset) as usize..(end - offset) as usize];
        if !is_whole || !self.home.close(start, bytes) {
            return false;
        }
        self.note_opened(NOTHING)
    }

    /// Block size in bytes, the minimum unit of a stage's work.
    pub const BLOCK: u64 = 16;

    /// Tests whether the piece belongs to the buffer that `home` owns.
    pub fn is_from<H: PieceHome>(&self, home: &Arc<H>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.home), Arc::as_ptr(home))
    }

    /// Appends the following piece and its lead. The caller guarantees that in the stream nothing but this lead lies
    /// between the pieces.
    ///
    /// # Errors
    /// The other piece, if it does not follow in the same memory, or if the joined range of stage work would leave a
    /// whole block or more unchanged at an end.
    pub fn join(&mut self, next: Piece) -> Result<(), Piece> {
        // Offsets alone do not suffice: another buffer may have the same ones.
        let follows = self.end() == next.place.start()
            && core::ptr::addr_eq(Arc::as_ptr(&self.home), Arc::as_ptr(&next.home))
            && self.bytes.as_ptr_range().end == next.bytes.as_ptr();
        let (ours, theirs) = (self.opened(), next.opened());
        let opened = match (ours.is_empty(), theirs.is_empty()) {
            (_, true) => ours,
            (true, false) => theirs,
            (false, false) => ours.start..theirs.end,
        };
        // Two changed ranges must meet: a gap between them could not be recorded.
        // If the two ranges do not meet, their sum is shorter than the joined range.
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

    /// Keeps the first `bytes` bytes; the rest returns to its owner.
    pub fn truncate(&mut self, bytes: usize) {
        if bytes < self.len() {
            let kept = self.split_to(bytes);
            *self = kept;
        }
    }

    /// Removes and returns the first `at` bytes with the lead, if `at` is not 0.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_to(&mut self, at: usize) -> Piece {
        if at == 0 {
            // The lead stays with the bytes after it.
            return Piece::new(self.offset(), BytesMut::new(), self.home.clone());
        }
        let cut = self.offset() + at as u64;
        let Range { start, end } = self.opened();
        // The cut may pass through a changed block. Both halves keep their part of the changed range; `close` then
        // refuses them.
        let bytes = self.bytes.split_to(self.lead() + at);
        let mut first = Piece { place: self.place, bytes, home: self.home.clone() };
        first.note_opened(start.min(cut)..end.min(cut));
        self.place = PieceLayout::at(cut);
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
    struct TestBuffer(Mutex<Vec<(u64, Vec<u8>)>>);

    impl PieceHome for TestBuffer {
        fn take_back(&self, offset: u64, bytes: BytesMut) {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
        }

        fn close(&self, offset: u64, bytes: &mut [u8]) -> bool {
            bytes.fill(7);
            offset != 64
        }
    }

    /// The changed range stays known by position, however pieces are cut and joined.
    #[test]
    fn each_part_of_a_packet_keeps_its_marks() {
        let home = Arc::new(TestBuffer::default());
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
        let closed = first.join(closed).expect_err("16 unchanged bytes would lie behind the changed range");
        let mut next = first.join(next).expect_err("not adjacent");
        assert!(closed.opened().is_empty());
        let part = next.split_to(6);
        assert_eq!((part.opened(), next.opened()), (64..70, 70..96));
        let mut again = part;
        again.join(next).unwrap();
        assert_eq!(again.opened(), 64..96);
        assert!(!again.close() && again.opened() == (64..96), "the home cannot restore a whole");
        let mut rest = again.split_to(16);
        assert!(again.close() && again.opened().is_empty() && again.bytes[..16] == [7; 16]);
        drop(rest.split_to(1));
        assert!(!rest.close(), "a block was cut");
        // Work that was refused, or that had no whole block, is not recorded.
        let mut small = Piece::new(1, BytesMut::zeroed(30), home.clone());
        small.open(|_, _| panic!("no whole block"));
        let mut refused = Piece::new(0, BytesMut::zeroed(32), home);
        refused.open(|_, _| false);
        assert!(small.opened().is_empty() && refused.opened().is_empty());
    }

    #[test]
    fn a_lead_comes_along_and_is_no_part_of_the_stream() {
        let home = Arc::new(TestBuffer::default());
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
        assert_eq!(home.0.lock().unwrap().pop(), Some((16, (0..16).collect())), "the lead returns home too");
        // After joining with the piece before, the lead is an ordinary part.
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
        let home = Arc::new(TestBuffer::default());
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
