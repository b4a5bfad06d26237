//! A packet's payload on its way through the stream engines of its flow, from the bytes of the wire to the buffer for
//! the host.
//!
//! Invariant: the host gets as many bytes as there were on the wire, for any behaviour of the engines: either bytes
//! that an engine made from all bytes, or the bytes of the wire, with holes for bytes that an engine placed in other
//! buffers.

use bytes::BytesMut;
use offload_api::{Piece, Placements};
use offload_base::Seq;
use smallvec::SmallVec;

/// A list of ranges within some bytes, as (offset, length).
pub type ByteRanges = SmallVec<[(usize, usize); 2]>;

/// The content of an engine's units in a packet, described for the engine above.
///
/// ```
/// use nic_engine::{UnitContent, ByteRanges};
/// use offload_base::Seq;
///
/// // 100 bytes of content follow the 5 bytes of a unit's header.
/// let content = UnitContent { last: Seq(1000), skipped: 0, parts: ByteRanges::from_iter([(5, 100)]) };
/// assert_eq!(content.parts.iter().map(|(_, bytes)| bytes).sum::<usize>(), 100);
/// ```
#[derive(Debug)]
pub struct UnitContent {
    /// Position of the engine in its stream before this packet.
    pub last: Seq,
    /// Bytes of content from there that were skipped.
    pub skipped: u32,
    /// Ranges of the opened bytes that are content.
    pub parts: ByteRanges,
}

/// The payload of a received packet.
#[derive(Debug)]
pub struct ReceivedPayload<'a> {
    seq: Seq,
    wire: &'a [u8],
    buffer: &'a mut BytesMut,
    /// Offset of the payload in the buffer.
    start: usize,
    is_opened: bool,
    content: Option<UnitContent>,
    /// Whether an engine above reads the content.
    is_looked_at: bool,
    placed: &'a mut Placements,
}

impl<'a> ReceivedPayload<'a> {
    /// Creates the payload from the bytes `wire` at `seq`. The result will be appended to `buffer`. Pieces placed
    /// elsewhere are listed in `placed`, which must be empty.
    pub fn new(
        seq: Seq,
        wire: &'a [u8],
        buffer: &'a mut BytesMut,
        placed: &'a mut Placements,
        is_looked_at: bool,
    ) -> ReceivedPayload<'a> {
        let start = buffer.len();
        ReceivedPayload { seq, wire, buffer, start, is_opened: false, content: None, is_looked_at, placed }
    }

    /// Returns the sequence number of the first byte.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the sequence number after the last byte.
    pub fn end(&self) -> Seq {
        self.seq + self.wire.len() as u32
    }

    /// Returns the bytes of the wire.
    pub fn wire(&self) -> &[u8] {
        self.wire
    }

    /// Returns the bytes that `open` appended so far.
    pub fn opened(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Tests whether the host gets bytes made by an engine.
    pub fn is_opened(&self) -> bool {
        self.is_opened
    }

    /// Lets `f` process the bytes of the wire and append the result. If `f` returns true and as many bytes as the wire
    /// had, the host gets the result; otherwise other engines may try. Returns `None` without calling `f` if an engine
    /// below has opened the payload.
    pub fn open<T>(&mut self, f: impl FnOnce(&[u8], &mut BytesMut) -> (bool, T)) -> Option<T> {
        if self.is_opened {
            return None;
        }
        // An engine below may have appended a result that it then rejected.
        self.buffer.truncate(self.start);
        let (is_opened, result) = f(self.wire, self.buffer);
        // A result of another length would shift the following bytes of the stream.
        self.is_opened = is_opened && self.buffer.len() == self.start + self.wire.len();
        Some(result)
    }

    /// Tests whether an engine above may read the content.
    pub fn is_looked_at(&self) -> bool {
        self.is_looked_at
    }

    /// Returns the content described by the engine below. Returns `None` if there is no engine below, or if that engine
    /// could not relate the content to the previous one.
    pub fn content(&self) -> Option<&UnitContent> {
        self.content.as_ref()
    }

    /// Sets the content for the engine above.
    pub fn show(&mut self, content: Option<UnitContent>) {
        self.content = content;
    }

    /// Sets the pieces that were filled with bytes of the payload, with their offsets in the payload, in order.
    pub fn place(&mut self, pieces: Placements) {
        // An engine that placed nothing must not discard the pieces of the engine below.
        if !pieces.is_empty() {
            *self.placed = pieces;
        }
    }

    /// Finishes the payload. If no engine opened the payload, the bytes of the wire are appended.
    pub fn finish(self) {
        let ReceivedPayload { wire, buffer, start, is_opened, placed, .. } = self;
        if is_opened {
            return;
        }
        buffer.truncate(start);
        // The common case: the bytes of the wire are contiguous.
        if placed.is_empty() {
            return buffer.extend_from_slice(wire);
        }
        // Placed ranges stay zero: the host reads these bytes from the pieces.
        buffer.resize(start + wire.len(), 0);
        let mut at = 0;
        for (offset, piece) in placed.iter() {
            buffer[start + at..start + offset].copy_from_slice(&wire[at..*offset]);
            at = offset + Piece::len(piece);
        }
        buffer[start + at..].copy_from_slice(&wire[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the host's bytes for `wire` that follow an earlier segment, after engines with the given results.
    fn handed_on(wire: &[u8], engines: &[(bool, &[u8])]) -> (Vec<bool>, Vec<u8>) {
        let (mut buffer, mut placed) = (BytesMut::from(&b"before "[..]), Placements::new());
        let mut payload = ReceivedPayload::new(Seq(1), wire, &mut buffer, &mut placed, false);
        let open = |(is_opened, made): &(bool, &[u8])| {
            payload.open(|bytes, buffer| {
                assert_eq!(bytes, wire);
                buffer.extend_from_slice(made);
                (*is_opened, ())
            })
        };
        let ran = engines.iter().map(open).map(|ran| ran.is_some()).collect();
        payload.finish();
        (ran, buffer[b"before ".len()..].to_vec())
    }

    #[test]
    fn payload_keeps_its_length_through_any_engines() {
        assert_eq!(handed_on(b"wire", &[(true, b"open"), (true, b"more")]), (vec![true, false], b"open".to_vec()));
        assert_eq!(handed_on(b"wire", &[(false, b"part"), (true, b"open")]), (vec![true, true], b"open".to_vec()));
        assert_eq!(handed_on(b"wire", &[(true, b"too long")]), (vec![true], b"wire".to_vec()));
        assert_eq!(handed_on(b"wire", &[(true, b"no"), (true, b"")]), (vec![true, true], b"wire".to_vec()));
    }
}
